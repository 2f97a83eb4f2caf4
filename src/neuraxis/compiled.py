"""Compile a function with Numba, and keep the result on disk where that is possible.

Numba refuses to compile a cached function at all where it finds no folder to write to (a read-only image, a user
without a home). There it is compiled anew in each process instead.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from numba import cfunc, njit

__all__ = ["compiled", "compiled_c_function"]

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
