"""Compiled folds: reduce n arrays at n addresses to one, element by element, in rank order.

A fold is a C function `fold(out, sources, n, count, op, scratch)`. There is one per element type, compiled when that
type is first reduced and cached on disk. The collective kernels call folds by address, so they are compiled once and
do not depend on the element type.

The order is always rank 0, 1, 2, ..., whichever rank computes and however the data is split, so a reduction gives the
same bits on every rank, at every size and in every repetition. float16 and bfloat16 are summed in float32 and rounded
once at the end. Sums of integers wrap, as in NumPy. AVG divides the sum by n (towards zero for integers). MIN and MAX
propagate NaN, as in NumPy.

A fold works on tiles in `scratch` (TILE_BYTES, private to the caller, fits in the L1 cache). The accumulator then never
aliases a source or the output, so the compiler can vectorise every loop, and `out` may be one of the sources.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types

from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.compiled import compiled_c_function
from neuraxis.compiled.atomics import bits_to_float32, copy_bytes, float32_to_bits, load, pointer_to

__all__ = ["TILE_BYTES", "fold_address"]

TILE_BYTES = 8192

_SUM, _PRODUCT, _MIN, _MAX = int(ReduceOp.SUM), int(ReduceOp.PRODUCT), int(ReduceOp.MIN), int(ReduceOp.MAX)
_BAND, _BOR, _BXOR, _AVG = int(ReduceOp.BAND), int(ReduceOp.BOR), int(ReduceOp.BXOR), int(ReduceOp.AVG)

_SIGNATURE = types.void(*[types.int64] * 6)


@njit(inline="always")
def half_to_float(half: int) -> float:
    """Convert IEEE binary16 bits to float32, exactly: shift the fields into place and rescale the exponent."""
    magnitude = np.uint32(half) & np.uint32(0x7FFF)
    sign = (np.uint32(half) & np.uint32(0x8000)) << np.uint32(16)
    scaled = bits_to_float32(np.uint32(magnitude << np.uint32(13))) * np.float32(2.0**112)
    bits = float32_to_bits(scaled)
    special = np.uint32((magnitude << np.uint32(13)) | np.uint32(0x7F800000))  # infinity and NaN keep their fraction
    chosen = special if magnitude >= np.uint32(0x7C00) else bits
    return bits_to_float32(np.uint32(chosen | sign))


@njit(inline="always")
def float_to_half(value: float) -> Any:
    """Convert float32 to IEEE binary16 bits, rounding to nearest even."""
    bits = float32_to_bits(value)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # Subnormal halves: adding 0.5 makes the float adder align and round the fraction.
    small = np.uint32(float32_to_bits(bits_to_float32(magnitude) + np.float32(0.5)) - np.uint32(0x3F000000))
    odd = np.uint32((magnitude >> np.uint32(13)) & np.uint32(1))
    normal = np.uint32((magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13))
    half = small if magnitude < np.uint32(0x38800000) else normal
    half = np.uint32(0x7C00) if magnitude >= np.uint32(0x477FF000) else half
    half = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else half
    return np.uint16(half | sign)


@njit(inline="always")
def bfloat_to_float(bfloat: int) -> float:
    """Convert bfloat16 bits, the upper half of a float32, to float32."""
    return bits_to_float32(np.uint32(bfloat) << np.uint32(16))


@njit(inline="always")
def float_to_bfloat(value: float) -> Any:
    """Convert float32 to bfloat16 bits, rounding to nearest even; NaN stays NaN."""
    bits = float32_to_bits(value)
    rounded = np.uint32((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
    quiet = np.uint32((bits >> np.uint32(16)) | np.uint32(0x40))
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(quiet if is_nan else rounded)


@njit(inline="always")
def _ordered(accumulator: Any, value: Any, op: int) -> None:
    if op == _MIN:
        for i in range(accumulator.size):
            a, b = accumulator[i], value[i]
            accumulator[i] = a if (a < b or a != a) else b
    elif op == _MAX:
        for i in range(accumulator.size):
            a, b = accumulator[i], value[i]
            accumulator[i] = a if (a > b or a != a) else b


@njit(inline="always")
def _arithmetic(accumulator: Any, value: Any, op: int) -> None:
    if op == _SUM or op == _AVG:
        for i in range(accumulator.size):
            accumulator[i] += value[i]
    elif op == _PRODUCT:
        for i in range(accumulator.size):
            accumulator[i] *= value[i]


@njit(inline="always")
def _bitwise(accumulator: Any, value: Any, op: int) -> None:
    if op == _BAND:
        for i in range(accumulator.size):
            accumulator[i] &= value[i]
    elif op == _BOR:
        for i in range(accumulator.size):
            accumulator[i] |= value[i]
    elif op == _BXOR:
        for i in range(accumulator.size):
            accumulator[i] ^= value[i]


def _integer_fold(element: Any) -> Any:
    size = np.dtype(element).itemsize
    tile = TILE_BYTES // size
    signed = np.dtype(element).kind == "i"

    def fold(out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
        for start in range(0, count, tile):
            width = min(tile, count - start)
            copy_bytes(scratch, load(sources) + start * size, width * size)
            accumulator = carray(pointer_to(scratch, element), width)
            for r in range(1, n):
                value = carray(pointer_to(load(sources + 8 * r) + start * size, element), width)
                _arithmetic(accumulator, value, op)
                _ordered(accumulator, value, op)
                _bitwise(accumulator, value, op)
            if op == _AVG:
                for i in range(width):
                    if signed:
                        total = np.int64(accumulator[i])
                        quotient = total // n  # rounded down, so negative quotients with a remainder are one too low
                        accumulator[i] = quotient + (1 if total < 0 and quotient * n != total else 0)
                    else:
                        accumulator[i] = np.uint64(accumulator[i]) // np.uint64(n)
            copy_bytes(out + start * size, scratch, width * size)

    return fold


def _float_fold(element: Any) -> Any:
    size = np.dtype(element).itemsize
    tile = TILE_BYTES // size

    def fold(out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
        for start in range(0, count, tile):
            width = min(tile, count - start)
            copy_bytes(scratch, load(sources) + start * size, width * size)
            accumulator = carray(pointer_to(scratch, element), width)
            for r in range(1, n):
                value = carray(pointer_to(load(sources + 8 * r) + start * size, element), width)
                _arithmetic(accumulator, value, op)
                _ordered(accumulator, value, op)
            if op == _AVG:
                divisor = element(n)
                for i in range(width):
                    accumulator[i] /= divisor
            copy_bytes(out + start * size, scratch, width * size)

    return fold


def _complex_fold(element: Any) -> Any:
    size = np.dtype(element).itemsize
    tile = TILE_BYTES // size

    def fold(out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
        for start in range(0, count, tile):
            width = min(tile, count - start)
            copy_bytes(scratch, load(sources) + start * size, width * size)
            accumulator = carray(pointer_to(scratch, element), width)
            for r in range(1, n):
                value = carray(pointer_to(load(sources + 8 * r) + start * size, element), width)
                _arithmetic(accumulator, value, op)
            if op == _AVG:
                for i in range(width):
                    accumulator[i] = accumulator[i] / n
            copy_bytes(out + start * size, scratch, width * size)

    return fold


def _bool_fold() -> Any:
    tile = TILE_BYTES

    def fold(out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
        # Booleans are bytes 0 and 1: SUM and MAX are "or", PRODUCT and MIN are "and", as in NumPy.
        bits = op
        if op == _SUM or op == _MAX:
            bits = _BOR
        elif op == _PRODUCT or op == _MIN:
            bits = _BAND
        for start in range(0, count, tile):
            width = min(tile, count - start)
            copy_bytes(scratch, load(sources) + start, width)
            accumulator = carray(pointer_to(scratch, np.uint8), width)
            for r in range(1, n):
                value = carray(pointer_to(load(sources + 8 * r) + start, np.uint8), width)
                _bitwise(accumulator, value, bits)
            copy_bytes(out + start, scratch, width)

    return fold


def _narrow_fold(brain: bool) -> Any:
    """Return the fold of float16, or of bfloat16 (`brain`): widen, accumulate in float32, round once at the end."""
    tile = TILE_BYTES // 8  # half the scratch is the accumulator, half the widened source

    def fold(out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
        for start in range(0, count, tile):
            width = min(tile, count - start)
            accumulator = carray(pointer_to(scratch, np.float32), width)
            value = carray(pointer_to(scratch + 4 * tile, np.float32), width)
            for r in range(n):
                source = carray(pointer_to(load(sources + 8 * r) + start * 2, np.uint16), width)
                widened = accumulator if r == 0 else value
                for i in range(width):
                    widened[i] = bfloat_to_float(source[i]) if brain else half_to_float(source[i])
                if r > 0:
                    _arithmetic(accumulator, value, op)
                    _ordered(accumulator, value, op)
            if op == _AVG:
                for i in range(width):
                    accumulator[i] /= np.float32(n)
            result = carray(pointer_to(out + start * 2, np.uint16), width)
            for i in range(width):
                result[i] = float_to_bfloat(accumulator[i]) if brain else float_to_half(accumulator[i])

    return fold


_compiled: list[Any] = [None] * len(ElementType)
_addresses = [0] * len(ElementType)


def fold_address(element: ElementType) -> int:
    """Return the address of the compiled fold of an element type; compile or load it on first use."""
    address = _addresses[element]
    if address == 0:
        _compiled[element] = compiled_c_function(_SIGNATURE, _source(element))
        address = _addresses[element] = int(_compiled[element].address)
    return address


def _source(element: ElementType) -> Any:
    if element is ElementType.BOOL:
        return _bool_fold()
    if element is ElementType.FLOAT16:
        return _narrow_fold(brain=False)
    if element is ElementType.BFLOAT16:
        return _narrow_fold(brain=True)
    numpy_type = getattr(np, element.label)
    if element in (ElementType.FLOAT32, ElementType.FLOAT64):
        return _float_fold(numpy_type)
    if element in (ElementType.COMPLEX64, ElementType.COMPLEX128):
        return _complex_fold(numpy_type)
    return _integer_fold(numpy_type)
