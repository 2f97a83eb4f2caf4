"""The code of one rank: runs every pattern, and records its data before and after.

`python -m neuraxis.report.patterns.rank DIM FILE`, started by mpirun on every rank, writes the observations of all
ranks to FILE as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.comm import DistributedContext, ReduceOp
from neuraxis.comm import functions as dist
from neuraxis.report.patterns.definitions import create_data, even_ranks
from neuraxis.report.patterns.model import DTYPE, Held, Observation, RankObservations

__all__ = ["observe_patterns"]

_TIMEOUT_S = 60.0
_BARRIER_STEP_S = 0.03  # delay between the arrivals of successive ranks at the barrier, far above clock jitter


def observe_patterns(backend: str, dim: int) -> RankObservations:
    """Join the other ranks, run every pattern once and return the observations."""
    with DistributedContext(backend, timeout=_TIMEOUT_S):
        return _observe_all(dim)


def _observe_all(dim: int) -> RankObservations:
    return RankObservations(dist.get_backend(), {name: observe(dim) for name, observe in _OBSERVERS.items()})


def _broadcast(dim: int) -> Observation:
    data = _create_data(dim)
    before = _held(data)
    dist.broadcast(data, src=0)
    return Observation(before, _held(data))


def _reduce(dim: int) -> Observation:
    data = _create_data(dim)
    before = _held(data)
    dist.reduce(data, dst=0, op=ReduceOp.SUM)
    return Observation(before, _held(data))


def _all_reduce(dim: int) -> Observation:
    data = _create_data(dim)
    before = _held(data)
    dist.all_reduce(data, op=ReduceOp.SUM)
    return Observation(before, _held(data))


def _barrier(dim: int) -> Observation:
    dist.barrier()  # start together, so that only the delay below separates the arrivals
    time.sleep(_BARRIER_STEP_S * dist.get_rank())
    arrived_s = time.monotonic()
    dist.barrier()
    return Observation(arrived_s=arrived_s, left_s=time.monotonic())


def _gather(dim: int) -> Observation:
    data = _create_data(dim)
    before = _held(data)
    result = _empty_list(dim) if dist.get_rank() == 0 else None
    dist.gather(data, gather_list=result, dst=0)
    return Observation(before, _held(data if result is None else result))


def _all_gather(dim: int) -> Observation:
    data = _create_data(dim)
    before = _held(data)
    result = _empty_list(dim)
    dist.all_gather(result, data)
    return Observation(before, _held(result))


def _scatter(dim: int) -> Observation:
    root = dist.get_rank() == 0
    data = [_create_data(dim, worker_id=i) for i in range(dist.get_world_size())] if root else None
    before = _held(data)
    result = np.zeros(dim, DTYPE)
    dist.scatter(result, data, src=0)
    return Observation(before, _held(result))


def _all_to_all(dim: int) -> Observation:
    data = _create_list(dim)
    before = _held(data)
    result = _empty_list(dim)
    dist.all_to_all(result, data)
    return Observation(before, _held(result))


def _reduce_scatter(dim: int) -> Observation:
    data = _create_list(dim)
    before = _held(data)
    result = np.zeros(dim, DTYPE)
    dist.reduce_scatter(result, data, op=ReduceOp.SUM)
    return Observation(before, _held(result))


def _send_recv(dim: int) -> Observation:
    rank, n = dist.get_rank(), dist.get_world_size()
    data = _create_data(dim)
    before = _held(data)
    if n == 1:
        return Observation(before, _held(data))
    result = np.zeros(dim, DTYPE)
    # If all ranks blocked in send, none would receive.
    request = dist.isend(data, dst=(rank + 1) % n)
    dist.recv(result, src=(rank - 1) % n)
    request.wait()
    return Observation(before, _held(result))


def _group(dim: int) -> Observation:
    data = _create_data(dim)
    before = _held(data)
    group = dist.new_group(ranks=even_ranks(dist.get_world_size()))
    if dist.get_rank() % 2 == 0:
        dist.reduce(data, dst=0, op=ReduceOp.SUM, group=group)
    return Observation(before, _held(data))


_OBSERVERS: dict[str, Callable[[int], Observation]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "barrier": _barrier,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "send_recv": _send_recv,
    "group": _group,
}


def _create_data(dim: int, worker_id: int | None = None) -> np.ndarray[Any, Any]:
    return np.array(create_data(dist.get_rank() if worker_id is None else worker_id, dim), DTYPE)


def _create_list(dim: int) -> list[np.ndarray[Any, Any]]:
    n = dist.get_world_size()
    return [_create_data(dim, worker_id=dist.get_rank() * n + i) for i in range(n)]


def _empty_list(dim: int) -> list[np.ndarray[Any, Any]]:
    return [np.zeros(dim, DTYPE) for _ in range(dist.get_world_size())]


def _held(data: np.ndarray[Any, Any] | list[np.ndarray[Any, Any]] | None) -> Held:
    """Return a copy of the current values."""
    if data is None:
        return None
    if isinstance(data, list):
        return [tensor.tolist() for tensor in data]
    values: list[int] = data.tolist()
    return values


def _main(dim: int, file: Path) -> None:
    with DistributedContext("mpi", timeout=_TIMEOUT_S):
        mine = asdict(_observe_all(dim))
        gathered: list[Any] | None = [None] * dist.get_world_size() if dist.is_main_process() else None
        dist.gather_object(mine, gathered, dst=0)
        if gathered is not None:
            file.write_text(json.dumps(gathered), encoding="utf-8")


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]))
