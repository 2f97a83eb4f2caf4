"""Compile a function with Numba, and keep the result on disk where that is possible.

Two things that Numba's own cache does not do:

* It knows when the file of a function changes, not when a function that was compiled into it does. After an upgrade
  that changes one file, old and new machine code would meet in one process. Here a result is kept for exactly the
  sources that it was made of: all of the package's files that have to do with Numba.
* It refuses to compile a cached function at all where it finds no folder to write to (a read-only image, a user
  without a home). There each process compiles for itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import cfunc, njit
from numba.core import caching

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself the first time
    fcntl = None

__all__ = ["after_the_first", "compiled", "compiled_c_function", "digest_of_sources"]

Function = TypeVar("Function")

_PACKAGE = Path(__file__).parent


def compiled(function: Function) -> Function:
    """`function`, compiled when it is first called; it holds no lock of Python's while it runs."""
    with _our_cache() as usable:
        return cast(Function, njit(cache=usable, nogil=True)(function))


def compiled_c_function(signature: Any, function: Any) -> Any:
    """`function` compiled now for a signature; its `address` is that of a C function."""
    with _our_cache() as usable:
        return cfunc(signature, cache=usable)(function)


@contextmanager
def after_the_first(source_file: str) -> Iterator[None]:
    """Compile within this context: of the processes that come here together, one goes first.

    When nothing is on disk yet, N ranks would otherwise compile the same functions N times, at once and on the same
    cores. The first compiles and the others, when it is done, find the result on disk and load it side by side.
    `source_file` is the file that is locked; nothing is written to it.
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
    """A digest of all that machine code of this package can be made of."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        if b"numba" in content or b"neuraxis.compiled" in content:
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + content)
    return digest.digest()


class _OfThePackage:
    """A way of Numba's to find a folder for a function, for this package's functions, with our idea of freshness."""

    def get_source_stamp(self) -> bytes:
        return digest_of_sources()


@cache
def _locators() -> list[Any]:
    """Numba's ways to find a folder beside the sources, in NUMBA_CACHE_DIR or the user's, as ours; [] if none works."""
    usual = getattr(caching.CacheImpl, "_locator_classes", ())[:3]  # none in a Numba that we do not know
    ours: list[Any] = [type(f"{each.__name__}OfThePackage", (_OfThePackage, each), {}) for each in usual]
    return ours if any(each.from_function(compiled, __file__) for each in ours) else []


@contextmanager
def _our_cache() -> Iterator[bool]:
    """Let Numba find our folders while a function is declared; whether there is one to write to."""
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
