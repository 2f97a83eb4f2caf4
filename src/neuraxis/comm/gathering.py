"""Reductions made of a gather and a fold, for what a transport cannot reduce itself.

gloo knows no 16-bit integers, MPI no half precision, and nobody long doubles but NumPy. Whatever can be moved can
be gathered, and then every rank that wants the result folds it, in rank order like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuraxis.comm import kernels
from neuraxis.comm.backend import Backend
from neuraxis.comm.buffers import Buffer, address_of, buffer_of
from neuraxis.comm.folds import TILE_BYTES, fold_address
from neuraxis.comm.reduction import ElementType, ReduceOp

__all__ = ["all_reduce_by_gathering", "as_folded", "reduce_by_gathering", "reduce_scatter_by_gathering"]


def all_reduce_by_gathering(backend: Backend, buffer: Buffer, op: ReduceOp) -> None:
    rows = _rows(backend.size, buffer)
    backend.all_gather(rows, buffer)
    _fold(rows, buffer, op)


def reduce_by_gathering(backend: Backend, buffer: Buffer, op: ReduceOp, root: int) -> None:
    rows = _rows(backend.size, buffer) if backend.rank == root else []
    backend.gather(buffer, rows, root)
    if backend.rank == root:
        _fold(rows, buffer, op)


def reduce_scatter_by_gathering(backend: Backend, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
    rows = _rows(backend.size, output)
    backend.all_to_all(rows, inputs)
    _fold(rows, output, op)


def as_folded(buffer: Buffer) -> tuple[ElementType, int, int]:
    """Element type, count and item bytes as the folds see them: complex32 is twice as many float16."""
    if buffer.element is ElementType.COMPLEX32:
        return ElementType.FLOAT16, buffer.count * 2, 2
    return buffer.element, buffer.count, buffer.item_bytes


def _rows(size: int, like: Buffer) -> list[Buffer]:
    """Memory for one buffer like this from each rank."""
    rows = []
    for _ in range(size):
        row = buffer_of(np.empty(like.nbytes, np.uint8), "row", writes=True)
        rows.append(Buffer(row.address, like.count, like.item_bytes, like.element, row.memory, None))
    return rows


def _fold(rows: Sequence[Buffer], out: Buffer, op: ReduceOp) -> None:
    if not out.on_cpu:  # the folds are for the CPU's memory
        result = _rows(1, out)[0]
        _fold(rows, result, op)
        out.torch().view(-1).copy_(result.torch())
        return
    if out.element in (ElementType.LONGDOUBLE, ElementType.CLONGDOUBLE):
        out.numpy()[:] = _fold_by_numpy([row.numpy() for row in rows], op)
        return
    element, count, _ = as_folded(out)
    sources = np.array([row.address for row in rows], np.int64)
    scratch = np.empty(TILE_BYTES, np.uint8)
    kernels.fold_now(
        fold_address(element),
        out.address,
        address_of(sources),
        len(rows),
        count,
        int(op),
        address_of(scratch),
    )


def _fold_by_numpy(rows: Sequence[np.ndarray], op: ReduceOp) -> np.ndarray:
    combine = {
        ReduceOp.SUM: np.add,
        ReduceOp.AVG: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
    }[op]
    result = rows[0].copy()
    for row in rows[1:]:
        combine(result, row, out=result)
    if op is ReduceOp.AVG:
        result /= len(rows)
    return result
