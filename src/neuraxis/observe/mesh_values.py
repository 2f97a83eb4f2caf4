"""Values of messages for people and for programs: a line of text, or what JSON can hold.

They come from the network: nothing in them may move a terminal's cursor, and none is too large or too deep to be told.
"""

from __future__ import annotations

import base64
import math
import sys
from typing import Any

import numpy as np

__all__ = ["as_json", "as_text", "printable"]

_MOST_ITEMS = 8  # of a container that are shown
_MOST_NUMBERS = 5  # of an array
_MOST_LETTERS = 200
_MOST_BYTES = 16
_MOST_DEPTH = 6
_HUGE_BITS = 10_000  # of a number that Python does not write in decimal


def printable(text: str) -> str:
    """A text without anything that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def as_text(value: Any, whole: bool = False) -> str:
    """A value in one line: what is long is cut and arrays are summarised, unless the `whole` is wanted."""
    try:
        return _text(value, whole, 0)
    except RecursionError:
        return "(nested too deeply to be shown)"


def as_json(value: Any) -> Any:
    """A value as JSON has it: arrays as lists, bytes as base64, what is no number (NaN, infinity) as null."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A lone half of a surrogate pair has no form in UTF-8.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _HUGE_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, complex):
        return [as_json(value.real), as_json(value.imag)]
    if isinstance(value, np.generic):
        return as_json(_plain(value))
    if _is_tensor(value):
        value = _array_of(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
        return as_json(value)
    if isinstance(value, dict):
        return {key if isinstance(key, str) else as_text(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    return str(value)


# --- a line of text ---


def _text(value: Any, whole: bool, depth: int) -> str:
    if isinstance(value, str):
        return repr(value) if whole or len(value) <= _MOST_LETTERS else f"{value[:_MOST_LETTERS]!r}…"
    if isinstance(value, int) and value.bit_length() > _HUGE_BITS:
        return hex(value) if whole else f"(a number of {value.bit_length()} bits)"
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value), whole)
    if isinstance(value, np.generic):
        return _text(_plain(value), whole, depth)
    if isinstance(value, np.ndarray):
        return _array_text(str(value.dtype), value, whole)
    if _is_tensor(value):
        return _array_text(str(value.dtype), _array_of(value), whole)
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _container_text(value, whole, depth)
    if value is None or isinstance(value, bool | int | float | complex):
        return repr(value)
    text = printable(str(value))
    return text if whole or len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _bytes_text(value: bytes, whole: bool) -> str:
    shown = value if whole else value[:_MOST_BYTES]
    unit = "byte" if len(value) == 1 else "bytes"
    return f"<{len(value)} {unit}{' ' * bool(shown)}{shown.hex(' ')}{' …' * (len(shown) < len(value))}>"


def _array_text(dtype: str, array: np.ndarray, whole: bool) -> str:
    kind = dtype if array.dtype.names is None else f"records of {len(array.dtype.names)} fields"
    shape = "x".join(map(str, array.shape)) if array.shape else "scalar"
    if whole:
        return f"<{kind} {shape} {_text(array.tolist(), True, 0)}>"
    items = array.flat[:_MOST_NUMBERS].tolist()
    first = [f"{item:.6g}" if isinstance(item, float) else _text(item, False, _MOST_DEPTH - 1) for item in items]
    return f"<{' '.join([kind, shape, *first])}{' …' * (array.size > len(first))}>"


def _container_text(value: Any, whole: bool, depth: int) -> str:
    opened, closed = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    if depth >= _MOST_DEPTH and not whole and len(value):
        return f"{opened}…{closed}"
    shown: list[str] = []
    for item in value:
        if len(shown) == _MOST_ITEMS and not whole:
            shown.append(f"… {len(value) - _MOST_ITEMS} more")
            break
        text = _text(item, whole, depth + 1)
        shown.append(f"{text}: {_text(value[item], whole, depth + 1)}" if isinstance(value, dict) else text)
    return f"{opened}{', '.join(shown)}{closed}"


# --- arrays ---


def _plain(value: np.generic) -> Any:
    """The Python form of a NumPy number; a long double has none but the nearest float."""
    plain = value.item()
    if isinstance(plain, np.generic):
        return complex(value) if isinstance(value, np.complexfloating) else float(value)
    return plain


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _array_of(tensor: Any) -> np.ndarray:
    """A tensor's numbers; those of types that NumPy has not, as the nearest that it has."""
    tensor = tensor.detach().cpu()
    try:
        array: np.ndarray = tensor.numpy()
    except TypeError:
        array = (tensor.cfloat() if tensor.is_complex() else tensor.float()).numpy()
    return array
