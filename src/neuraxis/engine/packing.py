"""Spikes of some steps as two short arrays, to be carried where no memory is shared, and put back into an outbox there.

What comes from elsewhere is not trusted: a spike of a neuron that the sender does not have would be read from beyond
its tables. So it is looked at, every number, before anything of it is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine.memory import i32
from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.placement import place
from neuraxis.network import Network
from neuraxis.network.models import lif_delta

__all__ = ["clear_steps", "is_sound", "pack_steps", "unpack_steps", "warm_up_packing"]


def pack_steps(
    boxes: Outboxes, shard: int, populations: int, first: int, last: int
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """(steps after `first`, ids) of a shard's spikes in the steps first..last, in the order of steps and ids."""
    address, stride = int(boxes.outboxes[shard]), int(boxes.strides[shard])
    n = _count(address, stride, boxes.slots, populations, first, last)
    after, ids = np.empty(n, np.uint16), np.empty(n, np.int32)
    _pack(address, stride, boxes.slots, populations, first, last, after, ids)
    return after, ids


def is_sound(after: NDArray[np.uint16], ids: NDArray[np.int32], steps: int, held: NDArray[np.int64]) -> bool:
    """Whether these are spikes in so many steps of neurons that a shard has, in the order of steps and ids.

    `held` has a row (first id, last id + 1) for each of its slices, in order.
    """
    return after.shape == ids.shape and bool(_sound(after, ids, steps, held))


def unpack_steps(
    boxes: Outboxes, shard: int, first_ids: NDArray[np.int64], first: int, last: int,
    after: NDArray[np.uint16], ids: NDArray[np.int32], earliest: int,
) -> None:  # fmt: skip
    """Put the spikes of the steps first..last, from `earliest` on, into the outbox of a shard. They must be sound."""
    _unpack(
        int(boxes.outboxes[shard]), int(boxes.strides[shard]), boxes.slots, first_ids, first, last, after, ids, earliest
    )


def clear_steps(boxes: Outboxes, shard: int, populations: int, first: int, last: int) -> None:
    """Have a shard's outbox say that nobody spiked in the steps first..last."""
    _clear(int(boxes.outboxes[shard]), int(boxes.strides[shard]), boxes.slots, populations, first, last)


def warm_up_packing() -> None:
    """Have these kernels in memory."""
    network = Network()
    network.population("warm", 2, lif_delta)
    boxes = Outboxes.private(network, place(network, 1))
    after, ids = pack_steps(boxes, 0, 1, 1, 2)
    held = np.array([[0, 2]], np.int64)
    is_sound(after, ids, 2, held)
    unpack_steps(boxes, 0, np.array([0, 2], np.int64), 1, 2, after, ids, 1)
    frozen = (
        np.frombuffer(b"", np.uint16),
        np.frombuffer(b"", np.int32),
    )  # what comes from the network cannot be written to
    is_sound(*frozen, 2, held)
    unpack_steps(boxes, 0, np.array([0, 2], np.int64), 1, 2, *frozen, 1)
    clear_steps(boxes, 0, 1, 1, 2)


@njit
def _box(address: Any, stride: Any, slots: Any, step: Any) -> Any:
    return i32(address + step % slots * stride, stride // 4)


@compiled
def _count(address: Any, stride: Any, slots: Any, populations: Any, first: Any, last: Any) -> Any:
    n = 0
    for step in range(first, last + 1):
        n += _box(address, stride, slots, step)[populations]
    return n


@compiled
def _pack(address: Any, stride: Any, slots: Any, populations: Any, first: Any, last: Any, after: Any, ids: Any) -> None:
    n = 0
    for step in range(first, last + 1):
        box = _box(address, stride, slots, step)
        for i in range(box[populations]):
            after[n] = step - first
            ids[n] = box[populations + 1 + i]
            n += 1


@compiled
def _sound(after: Any, ids: Any, steps: Any, held: Any) -> Any:
    part = 0
    for i in range(ids.shape[0]):
        if np.int64(after[i]) >= steps:
            return False
        if i == 0 or after[i] != after[i - 1]:
            if i > 0 and after[i] < after[i - 1]:
                return False
            part = 0
        elif ids[i] <= ids[i - 1]:
            return False
        while part < held.shape[0] and ids[i] >= held[part, 1]:
            part += 1
        if part == held.shape[0] or ids[i] < held[part, 0]:
            return False
    return True


@compiled
def _unpack(
    address: Any, stride: Any, slots: Any, first_ids: Any, first: Any, last: Any, after: Any, ids: Any, earliest: Any
) -> None:
    populations = first_ids.shape[0] - 1
    i = 0
    for step in range(first, last + 1):
        begin = i
        while i < ids.shape[0] and first + np.int64(after[i]) == step:
            i += 1
        if step < earliest:
            continue
        box = _box(address, stride, slots, step)
        n = 0
        for p in range(populations):
            box[p] = n
            while begin + n < i and ids[begin + n] < first_ids[p + 1]:
                box[populations + 1 + n] = ids[begin + n]
                n += 1
        box[populations] = n


@compiled
def _clear(address: Any, stride: Any, slots: Any, populations: Any, first: Any, last: Any) -> None:
    for step in range(first, last + 1):
        box = _box(address, stride, slots, step)
        for p in range(populations + 1):
            box[p] = 0
