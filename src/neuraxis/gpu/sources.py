"""Parsing of CUDA source without a compiler: which kernels it has, and their parameters.

A launch passes raw memory: with a missing argument, an int64 for an int, or a float64 array for a float pointer the
kernel silently reads wrong values. So the parameters of a kernel are read from its source, and arguments are checked
against them. Only plain C types are parsed; others (a typedef, a template's T, a struct) are not checked, and a kernel
that a macro generates has unknown parameters.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from dataclasses import dataclass

import numpy as np

__all__ = ["Parameter", "cache_key", "kernel_names", "parameters_of"]


@dataclass(frozen=True)
class Parameter:
    """Parameter of a kernel.

    Attributes
    ----------
    text : str
        Declaration in the source, such as "const float *input".
    pointer : bool or None
        Pointer or value; None if unknown.
    dtype : numpy.dtype or None
        Type of the value, or of the pointer's target; None if it is not a plain type.
    """

    text: str
    pointer: bool | None = None
    dtype: np.dtype | None = None


def cache_key(source: str, function_name: str, options: tuple[str, ...], device: str) -> str:
    """Return a key that is equal for sources that compile to the same function; the user's name does not count."""
    parts = [source, function_name, device, *options]
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)  # lengths keep different lists apart
    return digest.hexdigest()


def kernel_names(source: str) -> list[str]:
    """Return the names of the `__global__` functions in `source`, in order."""
    return list(_kernels(source))


def parameters_of(source: str, function_name: str) -> tuple[Parameter, ...] | None:
    """Return the parameters of a kernel; None if the source does not state them.

    `function_name` may be qualified and have template arguments ("ns::scale<float>").
    """
    plain = re.sub(r"<.*", "", function_name).rpartition("::")[2].strip()
    lists = _kernels(source).get(plain, [])
    if not lists or any(one != lists[0] for one in lists[1:]):  # none, or different ones: overloads, #if
        return None
    return tuple(_parameter(text) for text in lists[0])


# --- finding kernels ----------------------------------------------------------------------------------

_IDENTIFIER_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*$")
_ATTRIBUTES = {"__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__", "__align__"}
# Comments, string literals and preprocessor directives.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?m:^[ \t]*#(?:\\\n|[^\n])*)', re.DOTALL)


def _kernels(source: str) -> dict[str, list[list[str]]]:
    """Return the parameter declarations of each kernel, by name."""
    code = _NO_CODE.sub(" ", source)
    found: dict[str, list[list[str]]] = {}
    for mark in re.finditer(r"\b__global__\b", code):
        place = mark.end()
        while (opening := re.compile(r"[({;]").search(code, place)) is not None and opening.group() == "(":
            closing = _closing(code, opening.start())
            name = _IDENTIFIER_BEFORE.search(code, place, opening.start())
            if closing is None or name is None:
                break
            if name.group(1) in _ATTRIBUTES:
                place = closing + 1
                continue
            found.setdefault(name.group(1), []).append(_split(code[opening.start() + 1 : closing]))
            break
    return found


def _closing(code: str, opening: int) -> int | None:
    depth = 0
    for place in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return None


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts = [" ".join(part.split()) for part in [*parts, text[start:]]]
    return [] if parts in ([""], ["void"]) else parts


# --- reading a parameter ------------------------------------------------------------------------------

_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__", "register"}
_INTEGER_WORDS = {"signed", "unsigned", "char", "short", "int", "long"}
_NAMED = {
    "bool": np.dtype(np.bool_),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "half": np.dtype(np.float16),
    "__half": np.dtype(np.float16),
    "size_t": np.dtype(np.uint64),
    "complex<float>": np.dtype(np.complex64),
    "complex<double>": np.dtype(np.complex128),
    **{f"{kind}{bits}_t": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


def _parameter(text: str) -> Parameter:
    declaration = text.partition("=")[0]
    stars = declaration.count("*") + declaration.count("[")
    if "&" in declaration or "(" in declaration:
        return Parameter(text)
    declaration = re.sub(r"\s*<\s*(\w+)\s*>", r"<\1>", re.sub(r"\[[^\]]*\]|\*", " ", declaration))
    words = [word for word in declaration.split() if word not in _QUALIFIERS]
    dtype = _dtype(words)
    if stars > 1:
        return Parameter(text, True, np.dtype(np.uint64))  # a pointer to pointers reads addresses
    if stars == 0 and dtype is None:
        return Parameter(text, None, None)  # an alias may be a pointer
    return Parameter(text, stars == 1, dtype)


def _dtype(words: list[str]) -> np.dtype | None:
    """Return the type that the words name, ignoring a parameter name at the end."""
    integer = [word for word in words if word in _INTEGER_WORDS]
    others = [word for word in words if word not in _INTEGER_WORDS]
    if integer:
        return _integer(integer) if len(others) <= 1 else (_NAMED["double"] if "double" in others else None)
    if not others or len(others) > 2:
        return None
    return _NAMED.get(others[0].removeprefix("std::").removeprefix("thrust::").removeprefix("cuda::std::"))


def _integer(words: list[str]) -> np.dtype:
    if "char" in words:
        size = 1
    elif "short" in words:
        size = 2
    elif words.count("long") == 2:
        size = 8
    elif "long" in words:
        size = ctypes.sizeof(ctypes.c_long)  # as of the host compiler: 4 bytes on Windows, 8 elsewhere
    else:
        size = 4
    return np.dtype(f"{'u' if 'unsigned' in words else 'i'}{size}")
