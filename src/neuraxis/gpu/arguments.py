"""The arguments of a launch, held against what the kernel takes.

NumPy scalars must be of the parameter's own type: CUDA copies as many bytes as the kernel reads, and converts nothing.
Python's numbers have no C type; they get the parameter's, where it is known and they fit.

All of it is looked at again in each launch, so it must not take longer than the launch itself. `QuickMatch` knows
the usual arguments by their exact type and answers for those alone; whatever it does not know, `matched` looks at in
full, and finds the words for what is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.gpu.sources import Parameter

__all__ = ["QuickMatch", "is_device_array", "is_tensor", "matched"]

_BYTES = {np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.bool_)}


def is_device_array(value: Any) -> bool:
    """Whether it is an array in the memory of a GPU."""
    return hasattr(type(value), "__cuda_array_interface__") and not is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, wherever it is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def matched(kernel: str, arguments: Sequence[Any], parameters: Sequence[Parameter] | None) -> tuple[Any, ...]:
    """The arguments as they can be handed over; an error that names the first that does not fit.

    `parameters`: what the kernel takes, or None if that is not known.
    """
    if parameters is not None and len(arguments) != len(parameters):
        taken = ", ".join(parameter.text for parameter in parameters)
        raise InvalidType(f"kernel {kernel!r} takes {len(parameters)} arguments ({taken}), {len(arguments)} were given")
    known: Sequence[Parameter] = parameters if parameters is not None else [Parameter("")] * len(arguments)
    return tuple(
        _matched(_place(kernel, position, parameter), value, parameter)
        for position, (value, parameter) in enumerate(zip(arguments, known, strict=True))
    )


class QuickMatch:
    """What `matched` gives for the usual arguments of one kernel, in a fraction of the time.

    Args:
        array_type: of arrays on the GPU (cupy.ndarray).
    """

    def __init__(self, parameters: Sequence[Parameter] | None, array_type: type) -> None:
        self._array_type = array_type
        self._parameters = None if parameters is None else [_Quick.of(parameter) for parameter in parameters]

    def __call__(self, arguments: Sequence[Any], device_id: int) -> tuple[Any, ...] | None:
        """The arguments as they can be handed over; None if any is one for `matched`, or on another device."""
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
                # NaN, infinities and what would become one are not between the bounds.
                if kind not in parameter.python_types or not parameter.least <= value <= parameter.most:
                    return None
                value = parameter.convert(value)
            given.append(value)
        return tuple(given)


_ANY: frozenset[np.dtype] = frozenset()  # of arrays, where the source does not say what is read
_NUMBERS = frozenset(np.dtype(code).type for code in "?bBhHiIlLqQefdFD")


@dataclass(frozen=True, slots=True)
class _Quick:
    """What of a parameter can be told by a look at types.

    Attributes:
        array_dtypes: of arrays that it takes; None: it takes no array, `_ANY`: any.
        scalar_types: NumPy's types that it takes as they are.
        python_types: of Python's numbers that it takes, between `least` and `most`, when they are converted.
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
        raise InvalidType(
            f"{place}: an array in the memory of the host; bring it over with to_gpu() or tensor_to_gpu()"
        )
    if not isinstance(value, np.generic | bool | int | float | complex):
        raise InvalidType(f"{place}: {type(value).__name__} is neither an array on the GPU nor a number")
    if parameter.pointer:
        raise InvalidType(f"{place}: the number {value!r} was given where the kernel takes a pointer")
    return _scalar(place, value, parameter.dtype)


def _array(place: str, array: Any, parameter: Parameter) -> Any:
    if parameter.pointer is False:
        raise InvalidType(f"{place}: an array was given where the kernel takes a number")
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{place}: the array is not contiguous (a transpose, or a slice with steps), and kernels see memory only; "
            "give it cupy.ascontiguousarray(array)"
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
            raise InvalidType(f"{place}: {value.dtype} is no number")
        if dtype is not None and value.dtype != dtype:
            raise InvalidType(f"{place}: {value.dtype} was given; write np.{dtype}({value.item()!r})")
        return value
    if dtype is None:
        raise InvalidType(
            f"{place}: {value!r} has no C type; say which, e.g. np.int32({value!r}) or np.float32({value!r})"
        )
    fits = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float), "c": (int, float, complex)}[dtype.kind]
    if type(value) not in fits:
        raise InvalidType(f"{place}: {value!r} is no {dtype}")
    if dtype.kind in "iu":
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if not least <= value <= most:
            raise InvalidArgument(f"{place}: {value} does not fit into {dtype} ({least} to {most})")
    try:
        with np.errstate(over="ignore"):
            converted: np.generic = dtype.type(value)
    except OverflowError:  # of a whole number
        converted = np.float64(np.inf)
    if np.isinf(converted) and not (isinstance(value, float | complex) and np.isinf(value)):
        most = np.finfo(dtype).max
        raise InvalidArgument(f"{place}: {value} does not fit into {dtype}, whose largest number is {most:.3g}")
    return converted
