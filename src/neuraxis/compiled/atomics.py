"""Atomic operations, raw memory access and futexes for code compiled by Numba.

Numba has no atomics for the CPU, so this module emits the few that are needed as LLVM instructions. All functions take
plain addresses (int64): shared memory is mapped at different addresses in different processes.

Memory orderings, and why each is enough:

* `load_acquire` / `store_release`: a rank writes its data, then *releases* its flag; another *acquires* the flag, then
  reads the data. Everything before the release is visible after the acquire, which is all that one-writer flags need.
* `store_ordered` / `load_ordered`: sequentially consistent. A rank that stores its flag and then checks for waiters
  needs them, because release and acquire do not order a store before a later load of another word. A waiter does the
  opposite (registers itself, then checks the flag), so at least one of the two sees the other.
* `fetch_add`: sequentially consistent, for counters with several writers (the number of waiters).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import time
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "allocate_file_range",
    "bits_to_float32",
    "bits_to_float64",
    "call_fold",
    "copy_bytes",
    "cycles",
    "fetch_add",
    "float32_to_bits",
    "float64_to_bits",
    "load",
    "load_acquire",
    "load_ordered",
    "monotonic_ns",
    "pointer_to",
    "prefetch",
    "relax",
    "sleep_on_word",
    "store",
    "store_ordered",
    "store_release",
    "wake_all",
    "yield_counted",
    "yield_cpu",
]

_INT64 = ir.IntType(64)
_BYTE_POINTER = ir.IntType(8).as_pointer()
_MACHINE = platform.machine().lower()


def _pointer(builder: Any, address: Any, kind: Any = _INT64) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """Load the int64 at `address` with acquire ordering: nothing after this load is done before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64 with release ordering: everything before is visible after a matching `load_acquire`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def load(typingctx: Any, address: Any) -> Any:
    """Load the int64 at `address` atomically, without ordering."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "monotonic", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64 atomically, without ordering."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "monotonic", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def fetch_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address` and return its old value; sequentially consistent."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_ordered(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64; sequentially consistent, so before any following `load_ordered`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def load_ordered(typingctx: Any, address: Any) -> Any:
    """Load the int64 at `address`; sequentially consistent, so after any earlier `store_ordered` or `fetch_add`."""

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
    """Prefetch the cache line at `address` for reading."""

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
    """Read the time-stamp counter, in ticks of constant rate."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT64, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter"), [])

    return types.int64(), codegen


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes between two regions that do not overlap (memcpy)."""

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
    """Convert `address` to a typed pointer for `numba.carray`; `prototype` is a dtype such as `np.float32`."""
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
    """Reinterpret 32 bits as a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def float32_to_bits(typingctx: Any, value: Any) -> Any:
    """Reinterpret a float32 as 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def bits_to_float64(typingctx: Any, bits: Any) -> Any:
    """Reinterpret 64 bits as a float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen


@intrinsic
def float64_to_bits(typingctx: Any, value: Any) -> Any:
    """Reinterpret a float64 as 64 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), codegen


# Services of the operating system. Except on Linux waiters poll, so none has to be woken. Except on POSIX, Python calls
# the scheduler.
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
        """Do nothing: waiters poll on this system."""


if hasattr(os, "posix_fallocate"):
    _posix_fallocate = types.ExternalFunction("posix_fallocate", types.int32(types.int32, types.int64, types.int64))

    @njit
    def allocate_file_range(descriptor: int, offset: int, length: int) -> bool:
        """Reserve memory for a part of a file in memory; return whether there was enough."""
        reason = _posix_fallocate(types.int32(descriptor), offset, length)
        return reason == 0 or reason == errno.EOPNOTSUPP or reason == errno.EINVAL

else:

    @njit
    def allocate_file_range(descriptor: int, offset: int, length: int) -> bool:
        """Reserve nothing: not possible on this system."""
        return True


_MONOTONIC = 1  # CLOCK_MONOTONIC
_YIELD_NS = 4096


@intrinsic
def monotonic_ns(typingctx: Any) -> Any:
    """Read the monotonic clock in ns; POSIX only."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        clock = ir.IntType(32)
        room = cgutils.alloca_once(builder, ir.ArrayType(_INT64, 2))
        kind = ir.FunctionType(clock, [clock, _BYTE_POINTER])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [ir.Constant(clock, _MONOTONIC), builder.bitcast(room, _BYTE_POINTER)])
        words = builder.bitcast(room, _INT64.as_pointer())
        seconds = builder.load(words)
        nanoseconds = builder.load(builder.gep(words, [ir.Constant(ir.IntType(32), 1)]))
        return builder.add(builder.mul(seconds, ir.Constant(_INT64, 10**9)), nanoseconds)

    return types.int64(), codegen


if sys.platform == "win32":

    @njit
    def yield_cpu() -> None:
        """Do nothing: Python calls the scheduler on this system."""

    @njit
    def yield_counted() -> int:
        """Call `yield_cpu` and return 1."""
        return 1

else:
    _sched_yield = types.ExternalFunction("sched_yield", types.int32())

    @njit
    def yield_cpu() -> None:
        """Yield the core to another runnable process."""
        _sched_yield()

    @njit
    def yield_counted() -> int:
        """Yield the core, and return a number that grows with the time that this took.

        On a busy machine a yield can take milliseconds. A caller that counted yields alone would not check for seconds
        whether the rank that it waits for is alive.
        """
        before = monotonic_ns()
        _sched_yield()
        return 1 + (monotonic_ns() - before) // _YIELD_NS


# --- Waiting for a change of a word in shared memory ---
#
# On Linux by the futex system call: the kernel compares the word and blocks the caller in one step, so no wake-up is
# lost. Elsewhere the caller polls after a short pause. Ctrl-C interrupts both.


_FUTEX_WAIT = 0
_POLL_SECONDS = 0.0005


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if FUTEX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.syscall.restype = ctypes.c_long

    def sleep_on_word(address: int, seen: int, seconds: float) -> None:
        """Sleep while the 32-bit word at `address` equals the low half of `seen`, for at most `seconds`."""
        limit = _TimeSpec(int(seconds), int(seconds % 1 * 1e9))
        _libc.syscall(
            ctypes.c_long(FUTEX),
            ctypes.c_void_p(address if sys.byteorder == "little" else address + 4),
            ctypes.c_long(_FUTEX_WAIT),
            ctypes.c_uint32(seen & 0xFFFFFFFF),
            ctypes.byref(limit),
            None,
            ctypes.c_long(0),
        )

else:

    def sleep_on_word(address: int, seen: int, seconds: float) -> None:
        """Sleep for a short time; the caller polls."""
        time.sleep(min(seconds, _POLL_SECONDS))
