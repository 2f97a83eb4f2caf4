"""Arrays at plain addresses, and calls of C functions at plain addresses, for compiled code.

A shard has any number of populations and tables, and a compiled function takes a fixed number of arguments. So a
shard's arrays are listed by address in tables of int64 (`engine/plan.py`), and the kernels look at them through these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from neuraxis.comm.atomics import pointer_to

__all__ = ["call_poisson", "call_update", "f32", "f64_pairs", "i32", "i64", "u8", "u32", "u64"]

_INT64, _INT32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()


@njit
def u8(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.uint8), n)


@njit
def i32(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.int32), n)


@njit
def u32(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.uint32), n)


@njit
def f32(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.float32), n)


@njit
def f64_pairs(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.float64), n)


@njit
def i64(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.int64), n)


@njit
def u64(address: Any, n: Any) -> Any:
    return carray(pointer_to(address, np.uint64), n)


@intrinsic
def call_update(
    typingctx: Any, function: Any, block: Any, accumulators: Any, flags: Any, n: Any, constants: Any, current: Any
) -> Any:
    """Call the compiled update of a model (`generated.update_function`) at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 5 + [_FLOAT])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32), codegen


@intrinsic
def call_poisson(typingctx: Any, function: Any, stream: Any, accumulators: Any, n: Any, table: Any, weight: Any) -> Any:
    """Call a compiled Poisson input (`generated.poisson_function`) at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 4 + [_INT32])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, types.int32), codegen
