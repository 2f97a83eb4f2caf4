"""Atomic operations, raw memory and the operating system's wait words, for code compiled by Numba.

Numba has no atomics for the CPU, so the few that the shared-memory backend needs are emitted here as LLVM
instructions. Everything takes plain addresses (int64): the arena is shared between processes that map it at
different places, so no array object could be shared anyway.

Orderings, and why each is enough:

* `load_acquire` / `store_release`: a rank writes its data, then *releases* its flag; another *acquires* the
  flag, then reads the data. The pair makes everything before the release visible after the acquire, which is
  all that one-writer flags need.
* `store_ordered` / `load_ordered`: sequentially consistent. They are needed where "I store my flag" is followed by "I
  look whether somebody waits for it", because a store followed by a load of another word is the one order that release
  and acquire do not keep. Who waits does the mirror image (says so, then looks at the flag), so at least one of the two
  sees the other.
* `fetch_add`: sequentially consistent, for counters with several writers (the number of sleepers).
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "bits_to_float32",
    "call_fold",
    "copy_bytes",
    "cycles",
    "fetch_add",
    "float32_to_bits",
    "load",
    "load_acquire",
    "load_ordered",
    "pointer_to",
    "prefetch",
    "relax",
    "store",
    "store_ordered",
    "store_release",
    "wake_all",
    "yield_cpu",
]

_INT64 = ir.IntType(64)
_BYTE_POINTER = ir.IntType(8).as_pointer()
_MACHINE = platform.machine().lower()


def _pointer(builder: Any, address: Any, kind: Any = _INT64) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`; nothing after this load may be done before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64; everything before this store is visible to whoever acquires it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def load(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, without ordering."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "monotonic", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64 without ordering."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "monotonic", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def fetch_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address` and return what it was; sequentially consistent."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_ordered(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64 with release, and before any `load_ordered` that follows."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def load_ordered(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, with acquire, and after any `store_ordered` or `fetch_add` before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def relax(typingctx: Any) -> Any:
    """Tell the core that this is a spin loop (saves power, frees the sibling hyper-thread)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # As LLVM intrinsics: Numba's code generator has no parser for inline assembly.
        if _MACHINE in ("x86_64", "amd64"):
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        elif _MACHINE in ("aarch64", "arm64"):
            hint = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            yield_hint = ir.Constant(ir.IntType(32), 1)
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.aarch64.hint"), [yield_hint])
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at `address`, to be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = ir.Constant(flag, 0), ir.Constant(flag, 3), ir.Constant(flag, 1)
        builder.call(function, [builder.inttoptr(args[0], _BYTE_POINTER), read, keep, data])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@intrinsic
def cycles(typingctx: Any) -> Any:
    """The processor's own clock, in ticks of its constant rate."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT64, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter"), [])

    return types.int64(), codegen


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """memcpy between two addresses that do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source, count = args
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(target, _BYTE_POINTER),
            builder.inttoptr(source, _BYTE_POINTER),
            count,
            ir.Constant(_INT64, 1),
        )
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


@intrinsic
def pointer_to(typingctx: Any, address: Any, prototype: Any) -> Any:
    """`address` as a typed pointer, for `numba.carray`; `prototype` is a dtype such as `np.float32`."""
    pointer = types.CPointer(prototype.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, prototype), codegen


@intrinsic
def call_fold(typingctx: Any, function: Any, out: Any, sources: Any, n: Any, count: Any, op: Any, scratch: Any) -> Any:
    """Call the C function at address `function`: `void fold(out, sources, n, count, op, scratch)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 6)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.none(*[types.int64] * 7), codegen


@intrinsic
def bits_to_float32(typingctx: Any, bits: Any) -> Any:
    """The float32 that has these bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def float32_to_bits(typingctx: Any, value: Any) -> Any:
    """The bits of a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


# What the operating system gives. Elsewhere than on Linux a sleeper polls (see shm.py), so nobody has to be
# woken; elsewhere than on POSIX the scheduler is asked from Python.
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
FUTEX = _FUTEX_NUMBERS.get(_MACHINE, 0) if sys.platform == "linux" else 0
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1

if FUTEX:
    _syscall = types.ExternalFunction(
        "syscall",
        types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    )

    @njit
    def wake_all(address: int) -> None:
        """Wake every process that sleeps on the 32-bit word at `address`."""
        _syscall(FUTEX, address, _FUTEX_WAKE, _EVERYBODY, 0, 0, 0)

else:

    @njit
    def wake_all(address: int) -> None:
        """Nobody sleeps on a word here: sleepers poll."""


if sys.platform == "win32":

    @njit
    def yield_cpu() -> None:
        """The scheduler is asked from Python here."""

else:
    _sched_yield = types.ExternalFunction("sched_yield", types.int32())

    @njit
    def yield_cpu() -> None:
        """Let another runnable process have this core."""
        _sched_yield()
