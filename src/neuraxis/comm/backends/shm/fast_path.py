"""The fast path: synchronous calls on plain NumPy arrays, from the arguments directly to the kernels.

A small collective in shared memory takes about a microsecond; the general path through argument checks, buffers and the
dispatcher takes several. So each collective has a method here that passes the array objects to a kernel, for the usual
case: arrays of a built-in dtype, contiguous, and no queued calls. In every other case the method returns False before
it has done anything, and the general path makes the call or raises the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from neuraxis.comm.backends.base import Operation
from neuraxis.comm.backends.shm import array_kernels, kernels
from neuraxis.comm.backends.shm.array_kernels import all_reduce_array
from neuraxis.comm.reduce_kernels import fold_address
from neuraxis.comm.reduction import ElementType, ReduceOp, check_reducible, element_type_of
from neuraxis.errors import InvalidType

__all__ = ["FastPath"]

_DONE, _NOT_PLAIN = kernels.DONE, array_kernels.NOT_PLAIN

Drive = Callable[..., None]
"""Finishes a kernel that returned early: `drive(status, operation, kernel, *arguments)`."""


class FastPath:
    """Fast path of one group. `state` is the address of the kernels' state; `objects` holds ids of listed arrays."""

    def __init__(
        self,
        state: int,
        size: int,
        rank: int,
        objects: memoryview,
        drive: Drive,
        lock: threading.Lock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._size = size
        self._rank = rank
        self._objects = objects
        self._drive = drive
        self._lock = lock
        self._fail = fail
        self.retired = False  # set, under the lock, when the group is closed or has failed

    def barrier(self) -> bool:
        return self._run(Operation.BARRIER, kernels.barrier, _BARRIER)

    def all_reduce(self, array: np.ndarray, op: ReduceOp) -> bool:
        # The hottest call, so `_run` is inlined.
        try:
            plan = _PLANS[op][array.dtype]
        except KeyError:
            plan = _plan(_PLANS, Operation.ALL_REDUCE, op, array.dtype)
        if not plan:
            return False
        with self._lock:
            if self.retired:
                return False
            try:  # around the first call, too: Ctrl-C may arrive as it returns, in the middle of a round
                status = all_reduce_array(self._state, plan, id(array))
                if status == _DONE:
                    return True
                if status == _NOT_PLAIN:
                    return False
                self._drive(status, Operation.ALL_REDUCE, all_reduce_array, plan, id(array))
            except BaseException as error:
                self._fail(error)
                raise
        return True

    def reduce(self, array: np.ndarray, op: ReduceOp, root: int) -> bool:
        plan = _plan(_REDUCE_PLANS, Operation.REDUCE, op, array.dtype)
        return bool(plan) and self._run(Operation.REDUCE, array_kernels.reduce_array, plan, root, id(array))

    def broadcast(self, array: np.ndarray, root: int) -> bool:
        signature, item_bytes = _MOVES[array.dtype]
        if not item_bytes:
            return False
        return self._run(
            Operation.BROADCAST, array_kernels.broadcast_array, signature | _BROADCAST, item_bytes, root, id(array)
        )

    def gather(self, array: np.ndarray, outputs: Any, root: int) -> bool:
        signature, item_bytes = _MOVES[array.dtype]
        if not item_bytes or (self._rank != root and outputs is not None):
            return False
        arguments = (signature | _GATHER, item_bytes, root, id(array))
        lists = (outputs,) if self._rank == root else ()
        return self._run_on_lists(lists, array.dtype, Operation.GATHER, array_kernels.gather_arrays, *arguments)

    def all_gather(self, outputs: Any, array: np.ndarray) -> bool:
        signature, item_bytes = _MOVES[array.dtype]
        if not item_bytes:
            return False
        arguments = (signature | _ALL_GATHER, item_bytes, -1, id(array))
        return self._run_on_lists(
            (outputs,), array.dtype, Operation.ALL_GATHER, array_kernels.gather_arrays, *arguments
        )

    def all_gather_into(self, output: np.ndarray, array: np.ndarray) -> bool:
        signature, item_bytes = _MOVES[array.dtype]
        if not item_bytes or output.dtype is not array.dtype:
            return False
        arguments = (signature | _ALL_GATHER, item_bytes, id(output), id(array))
        return self._run(Operation.ALL_GATHER, array_kernels.all_gather_into_array, *arguments)

    def scatter(self, array: np.ndarray, inputs: Any, root: int) -> bool:
        signature, item_bytes = _MOVES[array.dtype]
        if not item_bytes or (self._rank != root and inputs is not None):
            return False
        arguments = (signature | _SCATTER, item_bytes, root, id(array))
        lists = (inputs,) if self._rank == root else ()
        return self._run_on_lists(lists, array.dtype, Operation.SCATTER, array_kernels.scatter_arrays, *arguments)

    def all_to_all(self, outputs: Any, inputs: Any) -> bool:
        if type(inputs) is not list or not inputs or type(inputs[0]) is not np.ndarray:
            return False
        dtype = inputs[0].dtype
        signature, item_bytes = _MOVES[dtype]
        if not item_bytes:
            return False
        arguments = (signature | _ALL_TO_ALL, item_bytes)
        return self._run_on_lists(
            (inputs, outputs), dtype, Operation.ALL_TO_ALL, array_kernels.all_to_all_arrays, *arguments
        )

    def all_to_all_single(self, output: np.ndarray, array: np.ndarray) -> bool:
        signature, item_bytes = _MOVES[array.dtype]
        if not item_bytes or output.dtype is not array.dtype:
            return False
        arguments = (signature | _ALL_TO_ALL, item_bytes, id(output), id(array))
        return self._run(Operation.ALL_TO_ALL, array_kernels.all_to_all_array, *arguments)

    def reduce_scatter(self, output: np.ndarray, inputs: Any, op: ReduceOp) -> bool:
        plan = _plan(_REDUCE_SCATTER_PLANS, Operation.REDUCE_SCATTER, op, output.dtype)
        if not plan:
            return False
        return self._run_on_lists(
            (inputs,), output.dtype, Operation.REDUCE_SCATTER, array_kernels.reduce_scatter_arrays, plan, id(output)
        )

    def reduce_scatter_tensor(self, output: np.ndarray, array: np.ndarray, op: ReduceOp) -> bool:
        plan = _plan(_REDUCE_SCATTER_PLANS, Operation.REDUCE_SCATTER, op, output.dtype)
        if not plan or output.dtype is not array.dtype:
            return False
        return self._run(Operation.REDUCE_SCATTER, array_kernels.reduce_scatter_array, plan, id(output), id(array))

    def _run(self, operation: Operation, kernel: Callable[..., int], *arguments: int) -> bool:
        with self._lock:
            return self._enter(operation, kernel, arguments)

    def _run_on_lists(
        self,
        lists: tuple[Any, ...],
        dtype: np.dtype,
        operation: Operation,
        kernel: Callable[..., int],
        *arguments: int,
    ) -> bool:
        with self._lock:
            start = 0
            for arrays in lists:
                if not self._store_ids(arrays, dtype, start):
                    return False
                start += self._size
            return self._enter(operation, kernel, arguments)

    def _store_ids(self, arrays: Any, dtype: np.dtype, start: int) -> bool:
        """Store the ids of listed arrays for the kernels; return False unless all are arrays of this dtype."""
        if type(arrays) is not list or len(arrays) != self._size:
            return False
        objects = self._objects
        for array in arrays:
            # NumPy has one object per built-in dtype, so the fast comparison by identity is sufficient.
            if type(array) is not np.ndarray or array.dtype is not dtype:
                return False
            objects[start] = id(array)
            start += 1
        return True

    def _enter(self, operation: Operation, kernel: Callable[..., int], arguments: tuple[int, ...]) -> bool:
        if self.retired:
            return False
        try:
            status = kernel(self._state, *arguments)
            if status == _NOT_PLAIN:
                return False
            if status != _DONE:
                self._drive(status, operation, kernel, *arguments)
        except BaseException as error:
            self._fail(error)
            raise
        return True


def _is_supported(dtype: np.dtype) -> bool:
    """Return True for dtypes with a compiled fold, in native byte order, that are NumPy's singleton object."""
    try:
        element = element_type_of(dtype)
    except InvalidType:
        return False
    return element <= ElementType.COMPLEX128 and dtype.isnative and dtype is np.dtype(dtype.str)


class _Moves(dict[np.dtype, tuple[int, int]]):
    """dtype → (its part of a signature, its item bytes); 0 bytes if the general path must be used."""

    def __missing__(self, dtype: np.dtype) -> tuple[int, int]:
        self[dtype] = (element_type_of(dtype) << 8, dtype.itemsize) if _is_supported(dtype) else (0, 0)
        return self[dtype]


_PlanTable = list[dict[np.dtype, int]]
"""For each reduction: dtype → address of its plan (see array_kernels); 0 if the general path must be used."""

_plan_memory: list[np.ndarray] = []


def _plan(table: _PlanTable, operation: Operation, op: ReduceOp, dtype: np.dtype) -> int:
    """Return the address of the plan of a reduction of this dtype; 0 if the general path must be used."""
    try:
        return table[op][dtype]
    except KeyError:
        table[op][dtype] = _make_plan(operation, op, dtype) if _is_supported(dtype) else 0
        return table[op][dtype]


def _make_plan(operation: Operation, op: ReduceOp, dtype: np.dtype) -> int:
    element = element_type_of(dtype)
    try:
        check_reducible(element, op, "")
    except InvalidType:
        return 0
    plan = np.zeros(array_kernels.PLAN_WORDS, np.int64)
    plan[array_kernels.PLAN_SIGNATURE] = operation | element << 8 | op << 16
    plan[array_kernels.PLAN_ITEM_BYTES] = dtype.itemsize
    plan[array_kernels.PLAN_FOLD] = fold_address(element)
    plan[array_kernels.PLAN_OP] = int(op)
    _plan_memory.append(plan)
    return int(plan.ctypes.data)


_MOVES = _Moves()
_PLANS: _PlanTable = [{} for _ in ReduceOp]
_REDUCE_PLANS: _PlanTable = [{} for _ in ReduceOp]
_REDUCE_SCATTER_PLANS: _PlanTable = [{} for _ in ReduceOp]
# As plain integers: arithmetic on enum members is slower, and so is Numba's type dispatch on them.
_BARRIER, _BROADCAST, _GATHER = int(Operation.BARRIER), int(Operation.BROADCAST), int(Operation.GATHER)
_ALL_GATHER, _SCATTER, _ALL_TO_ALL = int(Operation.ALL_GATHER), int(Operation.SCATTER), int(Operation.ALL_TO_ALL)
