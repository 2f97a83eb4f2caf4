"""Compile a function with Numba, and keep the result on disk where that is possible.

Numba refuses to compile a cached function at all where it finds no folder to write to (a read-only image, a user
without a home). There it is compiled anew in each process instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from numba import cfunc, njit

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself the first time
    fcntl = None

__all__ = ["after_the_first", "compiled", "compiled_c_function"]

Function = TypeVar("Function")


def compiled(function: Function) -> Function:
    """`function`, compiled when it is first called; it holds no lock of Python's while it runs."""
    try:
        return cast(Function, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # "no locator available"
        return cast(Function, njit(nogil=True)(function))


def compiled_c_function(signature: Any, function: Any) -> Any:
    """`function` compiled now for a signature; its `address` is that of a C function."""
    try:
        return cfunc(signature, cache=True)(function)
    except RuntimeError:
        return cfunc(signature)(function)


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
