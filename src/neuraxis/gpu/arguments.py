"""Validation of launches: block and grid, and arguments against the parameters of the kernel.

NumPy scalars must have the exact type of the parameter: CUDA copies as many bytes as the kernel reads, and converts
nothing. Python numbers have no C type; they are converted to the parameter's, if it is known and they fit.

Validation runs at each launch, so it must not take longer than the launch itself. `QuickMatch` is the fast path: it
recognizes the usual arguments by their exact type. For all others `matched` does the complete validation, and raises
descriptive errors.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis import imports as optional
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.gpu.sources import Parameter

__all__ = ["Geometry", "Limits", "QuickMatch", "is_device_array", "is_tensor", "matched"]


Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Limits:
    """Limits of a device: block and grid along x, y and z, and threads per block."""

    block: Triple = (1024, 1024, 64)
    grid: Triple = (2**31 - 1, 65535, 65535)
    threads: int = 1024


@dataclass(frozen=True)
class Geometry:
    """Validated block and grid of a launch, three numbers each."""

    block: Triple
    grid: Triple

    @classmethod
    def checked(cls, block: Any, grid: Any, limits: Limits = Limits()) -> Geometry:  # noqa: B008  (it is frozen)
        """Create it from one to three numbers each."""
        block, grid = _triple("block", block, limits.block), _triple("grid", grid, limits.grid)
        threads = block[0] * block[1] * block[2]
        if threads > limits.threads:
            raise InvalidArgument(
                f"block={block}: {threads} threads, and this kernel can have {limits.threads} a block"
            )
        return cls(block, grid)


def _triple(name: str, value: Any, limit: Triple) -> Triple:
    given = list(value) if isinstance(value, tuple | list) else [value]
    if not 1 <= len(given) <= 3:
        raise InvalidArgument(f"{name}={value!r}: pass one to three numbers")
    numbers = []
    for number in given:
        try:
            if isinstance(number, bool):
                raise TypeError
            numbers.append(operator.index(number))
        except TypeError:
            raise InvalidType(f"{name}={value!r}: {number!r} ({type(number).__name__}) is not an integer") from None
    x, y, z = (*numbers, 1, 1)[:3]
    for axis, number, most in zip("xyz", (x, y, z), limit, strict=True):
        if number < 1:
            raise InvalidArgument(
                f"{name}={value!r}: {number} along {axis}, and at least 1 is needed; for an empty array, launch nothing"
            )
        if number > most:
            raise InvalidArgument(f"{name}={value!r}: {number} along {axis}, and this device takes {most}")
    return x, y, z


_BYTES = {np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.bool_)}


def is_device_array(value: Any) -> bool:
    """Return True for an array in the memory of a GPU that is not a torch tensor."""
    return hasattr(type(value), "__cuda_array_interface__") and not is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Return True for a torch tensor on any device. Does not import torch."""
    torch = optional.loaded("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def matched(kernel: str, arguments: Sequence[Any], parameters: Sequence[Parameter] | None) -> tuple[Any, ...]:
    """Validate arguments and return them as CuPy takes them; the error names the first that does not fit.

    `parameters` is None if they are unknown.
    """
    if parameters is not None and len(arguments) != len(parameters):
        taken = ", ".join(parameter.text for parameter in parameters)
        raise InvalidType(f"kernel {kernel!r} takes {len(parameters)} arguments ({taken}), got {len(arguments)}")
    known: Sequence[Parameter] = parameters if parameters is not None else [Parameter("")] * len(arguments)
    return tuple(
        _matched(_place(kernel, position, parameter), value, parameter)
        for position, (value, parameter) in enumerate(zip(arguments, known, strict=True))
    )


class QuickMatch:
    """Fast path of `matched` for the usual arguments of one kernel; `array_type` is cupy.ndarray."""

    def __init__(self, parameters: Sequence[Parameter] | None, array_type: type) -> None:
        self._array_type = array_type
        self._parameters = None if parameters is None else [_Quick.of(parameter) for parameter in parameters]

    def __call__(self, arguments: Sequence[Any], device_id: int) -> tuple[Any, ...] | None:
        """Return the arguments as CuPy takes them; None if one needs `matched`, or is on another device."""
        parameters = self._parameters
        if parameters is None:
            parameters = [_UNKNOWN] * len(arguments)
        elif len(parameters) != len(arguments):
            return None
        given = []
        for value, parameter in zip(arguments, parameters, strict=True):
            kind = type(value)
            if kind is self._array_type:
                dtypes = parameter.array_dtypes
                if dtypes is None or not (dtypes is _ANY or value.dtype in dtypes) or not value.flags.c_contiguous:
                    return None
                if value.data.device_id != device_id:
                    return None
            elif kind not in parameter.scalar_types:
                # NaN and infinities are not between the bounds.
                if kind not in parameter.python_types or not parameter.least <= value <= parameter.most:
                    return None
                value = parameter.convert(value)
            given.append(value)
        return tuple(given)


_ANY: frozenset[np.dtype] = frozenset()  # arrays of any dtype, if the source does not state it
_NUMBERS = frozenset(np.dtype(code).type for code in "?bBhHiIlLqQefdFD")


@dataclass(frozen=True, slots=True)
class _Quick:
    """Types that a parameter accepts without complete validation.

    Attributes
    ----------
    array_dtypes : frozenset or None
        Accepted dtypes of arrays; None for no array, `_ANY` for any.
    scalar_types : frozenset
        Accepted NumPy scalar types.
    python_types : tuple
        Python types that are converted, if the value is between `least` and `most`.
    """

    array_dtypes: frozenset[np.dtype] | None
    scalar_types: frozenset[type] = frozenset()
    python_types: tuple[type, ...] = ()
    convert: Any = None
    least: float = 0
    most: float = 0

    @classmethod
    def of(cls, parameter: Parameter) -> _Quick:
        dtype = parameter.dtype
        if parameter.pointer:
            if dtype is None:
                return cls(_ANY)
            return cls(frozenset(_BYTES if dtype in _BYTES else {dtype}))
        arrays = _ANY if parameter.pointer is None else None
        if dtype is None:
            return cls(arrays, _NUMBERS)
        own = frozenset({dtype.type})
        if dtype.kind in "iu":
            return cls(arrays, own, (int,), dtype.type, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        if dtype.kind == "f":
            most = float(np.finfo(dtype).max)
            return cls(arrays, own, (int, float), dtype.type, -most, most)
        return cls(arrays, own)


_UNKNOWN = _Quick.of(Parameter(""))


def _place(kernel: str, position: int, parameter: Parameter) -> str:
    return f"kernel {kernel!r}, argument {position}" + (f" ({parameter.text})" if parameter.text else "")


def _matched(place: str, value: Any, parameter: Parameter) -> Any:
    if is_device_array(value):
        return _array(place, value, parameter)
    if value is None and parameter.pointer is not False:
        return None  # a null pointer
    if isinstance(value, np.ndarray) or is_tensor(value):
        raise InvalidType(f"{place}: the array is in the memory of the host. Copy it with to_gpu() or tensor_to_gpu()")
    if not isinstance(value, np.generic | bool | int | float | complex):
        raise InvalidType(f"{place}: {type(value).__name__} is neither an array on the GPU nor a number")
    if parameter.pointer:
        raise InvalidType(f"{place}: got the number {value!r}, but the kernel takes a pointer")
    return _scalar(place, value, parameter.dtype)


def _array(place: str, array: Any, parameter: Parameter) -> Any:
    if parameter.pointer is False:
        raise InvalidType(f"{place}: got an array, but the kernel takes a number")
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{place}: the array is not contiguous (a transpose, or a slice with steps), and kernels see memory only. "
            "Pass cupy.ascontiguousarray(array)"
        )
    wanted, dtype = parameter.dtype, np.dtype(array.dtype)
    if parameter.pointer and wanted is not None and dtype != wanted and not {dtype, wanted} <= _BYTES:
        raise InvalidType(
            f"{place}: an array of {dtype}, and the kernel reads {wanted}; convert it with astype(np.{wanted}), or, if "
            f"its bits are meant, view(np.{wanted})"
        )
    return array


def _scalar(place: str, value: Any, dtype: np.dtype | None) -> np.generic:
    if isinstance(value, np.generic):
        if value.dtype.kind not in "biufc":
            raise InvalidType(f"{place}: {value.dtype} is not a number")
        if dtype is not None and value.dtype != dtype:
            raise InvalidType(f"{place}: {value.dtype} was given. Write np.{dtype}({value.item()!r})")
        return value
    if dtype is None:
        raise InvalidType(
            f"{place}: {value!r} has no C type. Pass np.int32({value!r}) or np.float32({value!r}), for example"
        )
    fits = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float), "c": (int, float, complex)}[dtype.kind]
    if type(value) not in fits:
        raise InvalidType(f"{place}: {value!r} is not of type {dtype}")
    if dtype.kind in "iu":
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if not least <= value <= most:
            raise InvalidArgument(f"{place}: {value} does not fit into {dtype} ({least} to {most})")
    try:
        with np.errstate(over="ignore"):
            converted: np.generic = dtype.type(value)
    except OverflowError:  # raised for a large integer
        converted = np.float64(np.inf)
    if np.isinf(converted) and not (isinstance(value, float | complex) and np.isinf(value)):
        most = np.finfo(dtype).max
        raise InvalidArgument(f"{place}: {value} does not fit into {dtype}, whose largest number is {most:.3g}")
    return converted
