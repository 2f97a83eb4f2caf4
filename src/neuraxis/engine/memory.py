"""Arrays and C functions at plain addresses, for compiled code.

A shard has any number of populations and tables, but a compiled function takes a fixed number of arguments. The
addresses of a shard's arrays are therefore fields of records (`engine/tables.py`), which the kernels read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "address_of", "array_of", "call", "call_poisson", "call_update", "f32", "f64", "i32", "i64", "u8", "u16", "u32",
    "u64",
]  # fmt: skip

_INT64, _INT32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()


def array_of(dtype: Any) -> Any:
    """Return a function for compiled code that makes an array of n records at an address.

    `numba.carray` does the same, but is compiled for each combination of argument types.
    """
    element = from_dtype(np.dtype(dtype))
    kind = types.Array(element, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, n = args
        in_memory = context.get_data_type(element)
        size = ir.Constant(_INT64, context.get_abi_sizeof(in_memory))
        array = cgutils.create_struct_proxy(kind)(context, builder)
        array.data = builder.inttoptr(address, in_memory.as_pointer())
        array.itemsize, array.nitems = size, n
        array.shape, array.strides = cgutils.pack_array(builder, [n]), cgutils.pack_array(builder, [size])
        return array._getvalue()

    @intrinsic
    def array_at(typingctx: Any, address: Any, n: Any) -> Any:
        return kind(types.int64, types.int64), codegen

    return array_at


def _numbers_of(dtype: Any) -> Any:
    """Return a function for compiled code that returns the n numbers at an address, for indices from 0 to n - 1.

    They are a pointer. An array of Numba is seven words, counts references, and checks if indices are negative: kernels
    with arrays took a seventh longer to compile.
    """
    element = from_dtype(np.dtype(dtype))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_data_type(element).as_pointer())

    @intrinsic
    def numbers_at(typingctx: Any, address: Any, n: Any) -> Any:
        return types.CPointer(element)(types.int64, types.int64), codegen

    return numbers_at


u8, u16, i32, u32, i64, u64 = map(_numbers_of, (np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64))
f32, f64 = map(_numbers_of, (np.float32, np.float64))


@intrinsic
def address_of(typingctx: Any, record: Any) -> Any:
    """Return the address of a record."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], _INT64)

    return types.int64(record), codegen


@intrinsic
def call(typingctx: Any, function: Any, *arguments: Any) -> Any:
    """Call a `neuraxis.compiled.compiled_on_demand` at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = cgutils.unpack_tuple(builder, args[1], len(arguments))
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * len(arguments))
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, len(arguments))), codegen


@intrinsic
def call_update(
    typingctx: Any, function: Any, block: Any, accumulators: Any, flags: Any, n: Any, constants: Any, current: Any,
    step: Any,
) -> Any:  # fmt: skip
    """Call the compiled update of a model (`codegen.update_function`) at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 5 + [_FLOAT, _INT64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32, types.int64), codegen


@intrinsic
def call_poisson(typingctx: Any, function: Any, stream: Any, accumulators: Any, n: Any, table: Any, weight: Any) -> Any:
    """Call a compiled Poisson input (`codegen.poisson_function`) at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 4 + [_INT32])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, types.int32), codegen
