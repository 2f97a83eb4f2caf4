"""Byte rings and doorbells in shared memory, compiled.

A ring has one writer and one reader. `head` counts the bytes ever written and is stored by the writer alone,
`tail` those ever read and is stored by the reader alone; each is released after the bytes were copied and
acquired before the other side copies, so a ring needs no lock.

A doorbell is a counter that others increment when they have moved bytes in a ring that they share with its owner,
who sleeps on it; the two sides are ordered as `atomics` explains.
"""

from __future__ import annotations

from numba import njit

from neuraxis.comm.atomics import (
    copy_bytes,
    fetch_add,
    load,
    load_acquire,
    load_ordered,
    relax,
    store_release,
    wake_all,
    yield_cpu,
)
from neuraxis.compiled import compiled

__all__ = [
    "DOORBELL",
    "DOORBELL_BYTES",
    "HEADER_BYTES",
    "RING_COUNTERS_BYTES",
    "change_sleepers",
    "receive_message",
    "ring_bytes",
    "ring_doorbell",
    "ring_read",
    "ring_write",
    "send_message",
]

RING_COUNTERS_BYTES = 256  # head and tail, each on lines of its own
_HEAD, _TAIL = 0, 128
HEADER_BYTES = 32  # tag, length, element type, number

DOORBELL, DOORBELL_SLEEPERS = 0, 64  # within a rank's doorbell block
DOORBELL_BYTES = 128


def ring_bytes(size: int) -> int:
    """The capacity of one ring: smaller where there are many pairs."""
    return 262144 if size <= 8 else 65536


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


@njit
def _copy_out(data: int, capacity: int, tail: int, target: int, width: int) -> None:
    start = tail % capacity
    first = min(width, capacity - start)
    copy_bytes(target, data + start, first)
    if width > first:
        copy_bytes(target + first, data, width - first)


@compiled
def ring_read(ring: int, data: int, capacity: int, target: int, nbytes: int) -> int:
    """Copy up to `nbytes` out of the ring; how many came out."""
    tail = load(ring + _TAIL)
    width = min(nbytes, load_acquire(ring + _HEAD) - tail)
    if width <= 0:
        return 0
    _copy_out(data, capacity, tail, target, width)
    store_release(ring + _TAIL, tail + width)
    return width


@compiled
def ring_doorbell(doorbell: int) -> None:
    fetch_add(doorbell + DOORBELL, 1)
    if load_ordered(doorbell + DOORBELL_SLEEPERS) != 0:
        wake_all(doorbell + DOORBELL)


@compiled
def change_sleepers(doorbell: int, sleepers: int) -> int:
    """Change the number of sleepers; how often the bell has rung."""
    if sleepers != 0:
        fetch_add(doorbell + DOORBELL_SLEEPERS, sleepers)
    return load_ordered(doorbell + DOORBELL)


# --- whole messages, without a word of Python in between ---


@compiled
def send_message(
    ring: int,
    data: int,
    capacity: int,
    header: int,
    source: int,
    nbytes: int,
    doorbell: int,
    spins: int,
    yields: int,
) -> int:
    """Write header and bytes while the reader keeps up; how many bytes went in, the header's included.

    Nothing goes in unless the header fits. It waits for room only as long as the patience lasts.
    """
    if capacity - (load(ring + _HEAD) - load_acquire(ring + _TAIL)) < HEADER_BYTES:
        return 0
    written = ring_write(ring, data, capacity, header, HEADER_BYTES)
    tries = 0
    while True:
        # In quarters of the ring, so that the reader reads one while the next is written.
        step = ring_write(
            ring, data, capacity, source + written - HEADER_BYTES, min(nbytes + HEADER_BYTES - written, capacity // 4)
        )
        written += step
        if written == nbytes + HEADER_BYTES:
            break
        tries = 0 if step > 0 else tries + 1
        if tries == 1:
            ring_doorbell(doorbell)
        if tries > spins + yields:
            return written
        if tries > spins:
            yield_cpu()
        elif tries > 0:
            relax()
    ring_doorbell(doorbell)
    return written


@compiled
def receive_message(
    ring: int,
    data: int,
    capacity: int,
    tag: int,
    element: int,
    header: int,
    target: int,
    nbytes: int,
    doorbell: int,
    spins: int,
    yields: int,
) -> int:
    """Read the next message while the writer keeps up; how many bytes came out, the header's included.

    Nothing is read (-1) if the next message is another one than this receive is for.
    """
    tries = 0
    while load_acquire(ring + _HEAD) - load(ring + _TAIL) < HEADER_BYTES:
        tries += 1
        if tries > spins + yields:
            return 0
        if tries > spins:
            yield_cpu()
        else:
            relax()
    tail = load(ring + _TAIL)
    _copy_out(data, capacity, tail, header, HEADER_BYTES)
    if load(header) != tag or load(header + 8) != nbytes or load(header + 16) != element:
        return -1
    store_release(ring + _TAIL, tail + HEADER_BYTES)
    received = HEADER_BYTES
    tries = 0
    while received < nbytes + HEADER_BYTES:
        step = ring_read(ring, data, capacity, target + received - HEADER_BYTES, nbytes + HEADER_BYTES - received)
        received += step
        tries = 0 if step > 0 else tries + 1
        if tries == 1:
            ring_doorbell(doorbell)
        if tries > spins + yields:
            return received
        if tries > spins:
            yield_cpu()
        elif tries > 0:
            relax()
    ring_doorbell(doorbell)
    return received
