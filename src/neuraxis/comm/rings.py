"""Byte rings and doorbells in shared memory, compiled.

A ring has one writer and one reader. `head` counts the bytes ever written and is stored by the writer alone,
`tail` those ever read and is stored by the reader alone; each is released after the bytes were copied and
acquired before the other side copies, so a ring needs no lock.

A doorbell is a counter that others increment when they have moved bytes in a ring that they share with its owner,
who sleeps on it; the fences pair as in `atomics.fence`.
"""

from __future__ import annotations

from neuraxis.comm.atomics import copy_bytes, fence, fetch_add, load, load_acquire, store_release, wake_all
from neuraxis.compiled import compiled

__all__ = [
    "DOORBELL",
    "DOORBELL_BYTES",
    "RING_COUNTERS_BYTES",
    "change_sleepers",
    "ring_bytes",
    "ring_doorbell",
    "ring_read",
    "ring_write",
]

RING_COUNTERS_BYTES = 256  # head and tail, each on lines of its own
_HEAD, _TAIL = 0, 128
DOORBELL, DOORBELL_SLEEPERS = 0, 64  # within a rank's doorbell block
DOORBELL_BYTES = 128


def ring_bytes(size: int) -> int:
    """The capacity of one ring: smaller where there are many pairs."""
    return 65536 if size <= 8 else 16384


@compiled
def ring_write(ring: int, data: int, capacity: int, source: int, nbytes: int) -> int:
    """Copy up to `nbytes` into the ring; how many went in."""
    head = load(ring + _HEAD)
    width = min(nbytes, capacity - (head - load_acquire(ring + _TAIL)))
    if width <= 0:
        return 0
    start = head % capacity
    first = min(width, capacity - start)
    copy_bytes(data + start, source, first)
    if width > first:
        copy_bytes(data, source + first, width - first)
    store_release(ring + _HEAD, head + width)
    return width


@compiled
def ring_read(ring: int, data: int, capacity: int, target: int, nbytes: int) -> int:
    """Copy up to `nbytes` out of the ring; how many came out."""
    tail = load(ring + _TAIL)
    width = min(nbytes, load_acquire(ring + _HEAD) - tail)
    if width <= 0:
        return 0
    start = tail % capacity
    first = min(width, capacity - start)
    copy_bytes(target, data + start, first)
    if width > first:
        copy_bytes(target + first, data, width - first)
    store_release(ring + _TAIL, tail + width)
    return width


@compiled
def ring_doorbell(doorbell: int) -> None:
    fetch_add(doorbell + DOORBELL, 1)
    fence()
    if load(doorbell + DOORBELL_SLEEPERS) != 0:
        wake_all(doorbell + DOORBELL)


@compiled
def change_sleepers(doorbell: int, sleepers: int) -> int:
    """Change the number of sleepers; how often the bell has rung."""
    if sleepers != 0:
        fetch_add(doorbell + DOORBELL_SLEEPERS, sleepers)
        fence()
    return load_acquire(doorbell + DOORBELL)
