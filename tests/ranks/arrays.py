"""Test arrays of every dtype, in NumPy and PyTorch, and a reference implementation of reductions.

Content is generated in a *wide* NumPy dtype that represents every value of the tested dtype exactly (float32 for
float16 and bfloat16, complex64 for complex32); `make` converts it to the tested dtype. The reference implementation
therefore needs only NumPy, and rounds once, when the result is converted.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from neuraxis.comm import ReduceOp

LIBRARIES = ("numpy", "torch")

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SHARED = ("bool", *_INTEGERS, "float16", "float32", "float64", "complex64", "complex128")
_RECORD = np.dtype([("place", "<i4"), ("weight", "<f8"), ("name", "S3")])
_NUMPY_ONLY = {
    "datetime64[ns]": np.dtype("datetime64[ns]"),
    "timedelta64[s]": np.dtype("timedelta64[s]"),
    "record": _RECORD,
    "S5": np.dtype("S5"),
    "U3": np.dtype("U3"),
    "V7": np.dtype("V7"),
}
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")

REDUCIBLE = {
    "numpy": [*_SHARED, "longdouble", "clongdouble"],
    "torch": [*_SHARED, "bfloat16", "complex32"],
}
OPAQUE = {"numpy": list(_NUMPY_ONLY), "torch": list(_FLOAT8)}
MOVABLE = {library: REDUCIBLE[library] + OPAQUE[library] for library in LIBRARIES}

_WIDE = {
    "float16": "float32",
    "bfloat16": "float32",
    "complex32": "complex64",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
}

try:
    import ml_dtypes

    REDUCIBLE["numpy"].append("bfloat16")
    MOVABLE["numpy"].append("bfloat16")
except ImportError:
    ml_dtypes = None

BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def every_combination(context: Any) -> bool:
    """Return True if this rank group tests every dtype with every shape, root and operation.

    The treatment of a dtype depends on the backend, not on the number of ranks, so one size per backend tests all
    combinations (also three ranks in shared memory, where a root has several peers). The other groups test each dtype,
    shape, root and operation in fewer combinations.
    """
    return context.world_size == 2 or (context.backend, context.world_size) == ("shm", 3)


def torch_module() -> ModuleType:
    """Import torch when it is first needed: the import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import torch.distributed
    torch.set_num_threads(1)
    return torch


def wide_dtype(name: str) -> np.dtype:
    return _NUMPY_ONLY.get(name) or np.dtype(_WIDE.get(name, name))


# --- content ---

# A long array repeats a block, which is fast to generate. The block length is prime and divides no chunk size, so a
# shifted chunk changes the content.
_LONG, _BLOCK = 10_000, 4099


def content(name: str, shape: Sequence[int], *seed: int) -> np.ndarray:
    """Values that differ with every number in `seed` (rank, place, ...), exact in the dtype `name`."""
    if np.prod(shape) < _LONG:
        return _cached_content(name, tuple(shape), seed)
    return np.resize(_cached_content(name, (_BLOCK,), seed), shape)


@lru_cache(maxsize=4096)  # generating random numbers takes longer than sending them
def _cached_content(name: str, shape: tuple[int, ...], seed: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(_content(name, shape, *seed))
    values.flags.writeable = False
    return values


def _content(name: str, shape: Sequence[int], *seed: int) -> Any:
    dtype = wide_dtype(name)
    random = _random(name, seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "f":
        return random.integers(-99, 100, shape).astype(dtype)
    if dtype.kind == "c":
        return (random.integers(-99, 100, shape) + 1j * random.integers(-99, 100, shape)).astype(dtype)
    if dtype.kind in "mM":
        return random.integers(0, 2**60, shape).view(dtype)
    if dtype == _RECORD:
        array = np.zeros(shape, dtype)
        array["place"] = random.integers(0, 2**31, shape)
        array["weight"] = random.normal(size=shape)
        array["name"] = random.integers(100, 1000, shape).astype("S3")
        return array
    letters = random.integers(ord("a"), ord("z"), (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "U":
        letters = letters.view(np.uint32) & 0x7F
    return np.ascontiguousarray(letters).view(dtype).reshape(shape)


def terms(name: str, op: ReduceOp, shape: Sequence[int], *seed: int) -> np.ndarray:
    """Return operands whose reduction is exact in any order: floats are small whole numbers."""
    dtype = wide_dtype(name)
    if dtype.kind not in "fc":
        return content(name, shape, *seed)
    if np.prod(shape) >= _LONG:
        return np.resize(terms(name, op, (_BLOCK,), *seed), shape)
    random = _random(name, seed)
    choice = np.array([-2, -1, 1, 2, 3] if op is ReduceOp.PRODUCT else range(-6, 7))
    values = random.choice(choice, shape).astype(dtype)
    if dtype.kind == "c":
        imaginary = random.integers(-1, 2, shape)
        values = (values.real.clip(-1, 1) + 1j * imaginary).astype(dtype)
    return np.asarray(values)


def _random(name: str, seed: Sequence[int]) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), *seed])


# --- arrays ---


def make(library: str, name: str, values: np.ndarray) -> Any:
    """Return a new contiguous array of dtype `name` with these values (given in the wide dtype)."""
    if library == "numpy":
        if name == "bfloat16":
            return values.astype(ml_dtypes.bfloat16)
        return values.astype(_NUMPY_ONLY.get(name) or np.dtype(name), copy=True, order="C")
    torch = torch_module()
    tensor = torch.from_numpy(np.array(values, order="C"))
    dtype = getattr(torch, name)
    return tensor.view(dtype) if name in _FLOAT8 else tensor.to(dtype)


def blank(library: str, name: str, shape: Sequence[int]) -> Any:
    """Return an array to receive into, filled with values that no rank sends."""
    return make(library, name, content(name, shape, 987_654_321))


def same(left: Any, right: Any) -> bool:
    """Return True if two arrays of one library have the same dtype, shape and bits, apart from byte order."""
    if isinstance(left, np.ndarray) != isinstance(right, np.ndarray):
        return False
    if tuple(left.shape) != tuple(right.shape):
        return False
    if isinstance(left, np.ndarray):
        if left.dtype.newbyteorder("=") != right.dtype.newbyteorder("="):
            return False
        left, right = (np.ascontiguousarray(side, side.dtype.newbyteorder("=")) for side in (left, right))
        if left.dtype.char in "gG":  # a long double has bytes that are not part of its value
            return bool(np.array_equal(left, right))
        return left.tobytes() == right.tobytes()
    return left.dtype == right.dtype and _bytes_of(left) == _bytes_of(right)


def _bytes_of(tensor: Any) -> bytes:
    """Return the bytes of a fresh copy: torch cannot view every tensor as bytes, not even every contiguous one."""
    torch = torch_module()
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().resolve_conj().resolve_neg().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def layouts(library: str) -> list[str]:
    shared = ["strided", "transposed", "offset"]
    return [*shared, "fortran", "reversed", "big-endian"] if library == "numpy" else shared


def laid_out(array: Any, layout: str) -> Any:
    """Return the same values in another memory layout: with gaps, in another order, or at an offset."""
    library_is_numpy = isinstance(array, np.ndarray)
    shape = tuple(array.shape)

    def new(new_shape: Sequence[int]) -> Any:
        if library_is_numpy:
            return np.zeros(new_shape, array.dtype)
        return torch_module().zeros(new_shape, dtype=array.dtype)

    if layout == "strided":
        view = new((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
    elif layout == "transposed":
        view = new(shape[::-1])
        view = view.transpose(*range(len(shape))[::-1]) if library_is_numpy else view.mT
    elif layout == "offset":
        view = new((shape[0] + 1, *shape[1:]))[1:]
    elif layout == "fortran":
        view = np.zeros(shape, array.dtype, order="F")
    elif layout == "reversed":
        view = new(shape)[::-1]
    elif layout == "big-endian":
        view = np.zeros(shape, array.dtype.newbyteorder(">"))
    else:
        raise ValueError(layout)
    view[...] = array
    return view


# --- reference implementation ---


def defined(name: str, op: ReduceOp) -> bool:
    """Return True if a reduction is defined for a dtype; if not, the call must raise."""
    kind = wide_dtype(name).kind
    if name in _FLOAT8 or name in _NUMPY_ONLY:
        return False
    if kind == "c":
        return op in (ReduceOp.SUM, ReduceOp.AVG) or (op is ReduceOp.PRODUCT and name != "complex32")
    if kind == "f":
        return op not in BITWISE
    return not (kind == "b" and op is ReduceOp.AVG)


_FOLDS = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def folded(rows: Sequence[np.ndarray], op: ReduceOp) -> np.ndarray:
    """Reduce wide arrays in rank order; integers wrap around, and an integer mean rounds towards zero."""
    result = rows[0].copy()
    for row in rows[1:]:
        result = np.asarray(_FOLDS[op](result, row))
    if op is not ReduceOp.AVG:
        return result
    if result.dtype.kind in "iu":
        whole = [abs(total) // len(rows) * (1 if total >= 0 else -1) for total in result.ravel().tolist()]
        return np.array(whole, result.dtype).reshape(result.shape)
    if result.dtype.kind == "c":  # each part by itself
        count = result.real.dtype.type(len(rows))
        return np.asarray(result.real / count + 1j * (result.imag / count), result.dtype)
    return np.asarray(result / result.dtype.type(len(rows)))
