"""Reductions, element types, and which of them fit together."""

from __future__ import annotations

import enum

import numpy as np

from neuraxis.errors import InvalidType

__all__ = ["ElementType", "ReduceOp", "check_reducible", "element_type_of"]


class ReduceOp(enum.IntEnum):
    """Reduction of the values of several ranks to one, under the names of `torch.distributed.ReduceOp`.

    Sums of integers wrap, AVG of integers rounds towards zero, and MIN and MAX propagate NaN, as in NumPy. The bitwise
    operations BAND, BOR and BXOR need an integer or boolean dtype.

    Examples
    --------
    >>> from neuraxis.comm import ReduceOp
    >>> ReduceOp.MAX.name
    'MAX'
    """

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    AVG = 7


class ElementType(enum.IntEnum):
    """Element type of an array, by its number on the wire. Those up to COMPLEX128 have a compiled fold.

    NumPy reduces LONGDOUBLE and CLONGDOUBLE; COMPLEX32 (torch's) is a pair of float16 and can only be added; OPAQUE
    stands for every type that can be copied but not reduced (dates, records, float8).
    """

    BOOL = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT8 = 5
    UINT16 = 6
    UINT32 = 7
    UINT64 = 8
    FLOAT16 = 9
    BFLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    LONGDOUBLE = 15
    CLONGDOUBLE = 16
    COMPLEX32 = 17
    OPAQUE = 18

    @property
    def label(self) -> str:
        return self.name.lower()


_FLOATS = {
    ElementType.FLOAT16,
    ElementType.BFLOAT16,
    ElementType.FLOAT32,
    ElementType.FLOAT64,
    ElementType.LONGDOUBLE,
}
_COMPLEX = {ElementType.COMPLEX32, ElementType.COMPLEX64, ElementType.COMPLEX128, ElementType.CLONGDOUBLE}
_BITWISE = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}

_BY_NUMPY: dict[np.dtype, ElementType] = {
    np.dtype(name): ElementType[name.upper()]
    for name in [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
}
if np.dtype(np.longdouble) not in _BY_NUMPY:  # on some platforms it is another name of float64
    _BY_NUMPY[np.dtype(np.longdouble)] = ElementType.LONGDOUBLE
    _BY_NUMPY[np.dtype(np.clongdouble)] = ElementType.CLONGDOUBLE
for _same in (np.longlong, np.ulonglong, np.intc, np.uintc):  # distinct NumPy types of equal layout
    _kind = "int" if np.dtype(_same).kind == "i" else "uint"
    _BY_NUMPY.setdefault(np.dtype(_same), ElementType[f"{_kind}{np.dtype(_same).itemsize * 8}".upper()])


def element_type_of(dtype: np.dtype) -> ElementType:
    """Return the element type of a NumPy dtype; recognizes `ml_dtypes`' bfloat16 by its name."""
    known = _BY_NUMPY.get(dtype)
    if known is not None:
        return known
    if dtype.hasobject:
        raise InvalidType(
            f"arrays of dtype {dtype} hold Python objects, which processes cannot share. "
            "Use the object collectives (broadcast_object_list, all_gather_object, ...)"
        )
    if dtype.name == "bfloat16":
        return ElementType.BFLOAT16
    return ElementType.OPAQUE


def check_reducible(element: ElementType, op: ReduceOp, what: str) -> None:
    """Raise InvalidType unless values of this element type can be reduced by this operation."""
    problem = _PROBLEMS[element][op]
    if problem:
        raise InvalidType(f"{what}: {problem}")


def _problem(element: ElementType, op: ReduceOp) -> str:
    reason = ""
    if element is ElementType.OPAQUE:
        return "this dtype can be copied but not reduced"
    if op in _BITWISE and (element in _FLOATS or element in _COMPLEX):
        reason = "bitwise operations need an integer or boolean dtype"
    elif op in (ReduceOp.MIN, ReduceOp.MAX) and element in _COMPLEX:
        reason = "complex numbers have no order"
    elif op is ReduceOp.AVG and element is ElementType.BOOL:
        reason = "booleans have no mean; convert to a float dtype first"
    elif op is ReduceOp.PRODUCT and element is ElementType.COMPLEX32:
        reason = "complex32 can be added only; convert to complex64 first"
    return f"{op.name} of {element.label} is not defined: {reason}" if reason else ""


# A table, because every reduction looks it up.
_PROBLEMS = [[_problem(element, op) for op in ReduceOp] for element in ElementType]
