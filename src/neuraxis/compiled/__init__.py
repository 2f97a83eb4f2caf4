"""Compilation with Numba, with a cache on disk where that is possible.

This package improves on the cache of Numba in two ways:

* Numba detects changes of the file of a function, but not of other functions that were inlined into it. After an
  upgrade of one file, a process could run old and new machine code. Here the cache is valid only for the exact content
  of all files of neuraxis that use Numba.
* Numba refuses to compile cached functions if no folder is writable (a read-only image, a user without a home). Here
  each process compiles for itself then.

`neuraxis.compiled.atomics` has atomic operations and system calls for compiled code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import cfunc, njit, types
from numba.core import caching, event
from numba.core.registry import CPUDispatcher

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself if the cache is empty
    fcntl = None

__all__ = [
    "cache_path",
    "compile_once",
    "compiled",
    "compiled_c_function",
    "compiled_on_demand",
    "digest_of_sources",
    "inner_function",
    "watch_compilation",
]

Function = TypeVar("Function")

_PACKAGE = Path(__file__).parent.parent  # neuraxis
# Their constants and dtypes are compiled into kernels.
_CONSTANTS = ("engine/tables.py", "network/drawing.py", "network/modulation.py")


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; it runs without the GIL.

    Division by zero gives infinity, and 0 for whole numbers, as in NumPy. So nothing in it raises.
    """
    with _our_cache() as usable:
        return cast(Function, njit(cache=usable, nogil=True, error_model="numpy")(function))


def inner_function(function: Any = None, *, inline: bool = False) -> Any:
    """Compile a function that only compiled functions call, without wrappers for callers in Python and in C.

    Making these wrappers takes Numba a quarter of the time. A call from Python raises TypeError: call the `py_func` of
    the function there. `inline` makes LLVM inline every call, whatever the size. Division by zero is as in NumPy.
    """
    if function is None:
        return partial(inner_function, inline=inline)
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy", "forceinline": inline}
    dispatcher = njit(**options)(function)
    if isinstance(dispatcher, CPUDispatcher):  # a plain function with NUMBA_DISABLE_JIT
        dispatcher.__class__ = _InnerDispatcher
    return dispatcher


class _InnerDispatcher(CPUDispatcher):  # type: ignore[misc]
    """A function without the wrapper that calls from Python use: Numba would call a null pointer."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError(f"{self.py_func.__qualname__} is called by compiled functions only. Call its py_func instead")


def compiled_c_function(signature: Any, function: Any) -> Any:
    """Compile a function now for a signature; the result has the `address` of a C function.

    Division by zero gives infinity, as in NumPy.
    """
    with _our_cache() as usable:
        return cfunc(signature, cache=usable, error_model="numpy")(function)


class compiled_on_demand:
    """A kernel that only some networks need: a C function that is compiled when its `address` is first read.

    Other kernels call it with `neuraxis.engine.memory.call`, so it is not compiled with them. All arguments are whole
    numbers or addresses (int64), and it returns nothing. Python calls it like any function.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @cached_property
    def _made(self) -> Any:
        arguments = self._function.__code__.co_argcount
        return compiled_c_function(types.void(*[types.int64] * arguments), self._function)

    @property
    def address(self) -> int:
        return int(self._made.address)

    def __call__(self, *arguments: int) -> None:
        self._made.ctypes(*arguments)


def cache_path(function: Any) -> str:
    """Return the folder in which the machine code of a `compiled` function is kept; empty if there is none."""
    return str(function.stats.cache_path or "")


@contextmanager
def watch_compilation(started: Callable[[str], None]) -> Iterator[None]:
    """Call `started` with the name of each function of neuraxis that this process begins to compile meanwhile."""

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            if function.__module__.startswith("neuraxis"):
                started(function.__name__)

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


@contextmanager
def compile_once(source_file: str) -> Iterator[None]:
    """Let one process compile while others that enter this context at the same time wait.

    With an empty cache, N ranks would otherwise compile the same functions N times on the same cores. The first one
    compiles; the others wait and then load the result in parallel. The lock is on `source_file`, which is not changed.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(source_file, os.O_RDONLY)
    try:
        first = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first = False
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        if not first:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        yield
    finally:
        os.close(descriptor)


@cache
def digest_of_sources() -> bytes:
    """Return a digest of all sources of neuraxis that can be part of compiled code."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        name, content = path.relative_to(_PACKAGE).as_posix(), path.read_bytes()
        if b"numba" in content or b"neuraxis.compiled" in content or name in _CONSTANTS:
            digest.update(name.encode() + b"\0" + content)
    return digest.digest()


class _DigestStamp:
    """Mixin for Numba's cache locators: the cache is valid for one digest of all sources."""

    def get_source_stamp(self) -> bytes:
        return digest_of_sources()


@cache
def _locators() -> list[Any]:
    """Return Numba's cache locators (folder of the sources, NUMBA_CACHE_DIR, the user's cache) with `_DigestStamp`.

    The list is empty if no folder is writable.
    """
    usual = getattr(caching.CacheImpl, "_locator_classes", ())[:3]  # missing in an unknown version of Numba
    ours: list[Any] = [type(f"{each.__name__}WithDigest", (_DigestStamp, each), {}) for each in usual]
    return ours if any(each.from_function(compiled, __file__) for each in ours) else []


@contextmanager
def _our_cache() -> Iterator[bool]:
    """Use our cache locators while a function is declared; yield False if no folder is writable."""
    ours = _locators()
    if not ours:
        yield False
        return
    usual = caching.CacheImpl._locator_classes
    caching.CacheImpl._locator_classes = ours
    try:
        yield True
    finally:
        caching.CacheImpl._locator_classes = usual
