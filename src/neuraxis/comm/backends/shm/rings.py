"""Byte rings and doorbells in shared memory, compiled.

A ring is a lock-free queue of bytes with one writer and one reader. Only the writer stores `head`, the number of bytes
ever written, and only the reader stores `tail`, the number ever read; each is released after the bytes were copied and
acquired before the other side copies. A writer that finds the ring full sets a word and tries once more; the reader
checks that word after it has stored `tail`, so one of them sees the other.

A doorbell is a counter in shared memory on which its owner sleeps. Another rank increments it after writing to a ring
that the owner reads, or after reading from a ring in which the owner waits for space, and wakes the owner. `atomics`
explains how the two sides are ordered.
"""

from __future__ import annotations

from numba import njit

from neuraxis.compiled import compiled
from neuraxis.compiled.atomics import (
    copy_bytes,
    fetch_add,
    load,
    load_acquire,
    load_ordered,
    relax,
    store_ordered,
    store_release,
    wake_all,
    yield_counted,
)

__all__ = [
    "DOORBELL",
    "DOORBELL_BYTES",
    "HEADER_BYTES",
    "RING_COUNTERS_BYTES",
    "await_doorbell",
    "change_sleepers",
    "next_with_bytes",
    "notify_writer",
    "receive_message",
    "ring_bytes",
    "ring_doorbell",
    "ring_read",
    "ring_write",
    "send_message",
    "set_writer_waiting",
    "wake_sleepers",
]

RING_COUNTERS_BYTES = 256  # words of the writer and of the reader, on separate cache lines
_HEAD, _WAITS, _TAIL = 0, 8, 128
HEADER_BYTES = 32  # tag, length in bytes, element type, sequence number

DOORBELL, DOORBELL_SLEEPERS = 0, 64  # within a rank's doorbell block
DOORBELL_BYTES = 128


def ring_bytes(size: int) -> int:
    """Return the capacity of one ring: smaller if there are many pairs of ranks."""
    return 262144 if size <= 8 else 65536


@compiled
def ring_write(ring: int, data: int, capacity: int, source: int, nbytes: int) -> int:
    """Copy up to `nbytes` into the ring; return the number copied."""
    head = load(ring + _HEAD)
    width = min(nbytes, capacity - (head - load_ordered(ring + _TAIL)))
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
    """Copy up to `nbytes` out of the ring; return the number copied."""
    tail = load(ring + _TAIL)
    width = min(nbytes, load_acquire(ring + _HEAD) - tail)
    if width <= 0:
        return 0
    _copy_out(data, capacity, tail, target, width)
    store_ordered(ring + _TAIL, tail + width)
    return width


@compiled
def set_writer_waiting(ring: int, waits: bool) -> None:
    """Set whether the writer waits for space, and wants the reader to ring its doorbell; it then tries again."""
    store_ordered(ring + _WAITS, 1 if waits else 0)


@compiled
def notify_writer(ring: int, doorbell: int) -> None:
    """Ring the doorbell of a writer that waits for space."""
    if load_ordered(ring + _WAITS) != 0:
        ring_doorbell(doorbell)


@compiled
def next_with_bytes(rings: int, count: int, first: int) -> int:
    """Return the index, from `first` on, of the next of `count` rings that has bytes to read; -1 if none has."""
    for index in range(first, count):
        ring = load(rings + 8 * index)
        if load_acquire(ring + _HEAD) != load(ring + _TAIL):
            return index
    return -1


@compiled
def ring_doorbell(doorbell: int) -> None:
    """Ring a doorbell: increment its counter, and wake its owner if it sleeps."""
    fetch_add(doorbell + DOORBELL, 1)
    if load_ordered(doorbell + DOORBELL_SLEEPERS) != 0:
        wake_all(doorbell + DOORBELL)


@compiled
def wake_sleepers(doorbell: int) -> None:
    """Ring a doorbell for the threads of its own process, also those that are not announced as sleepers."""
    fetch_add(doorbell + DOORBELL, 1)
    wake_all(doorbell + DOORBELL)


@compiled
def await_doorbell(doorbell: int, seen: int, spins: int, yields: int) -> int:
    """Poll a doorbell, for a bounded time, until its counter differs from `seen`; return the counter."""
    tries = 0
    while tries < spins + yields:
        rung = load_acquire(doorbell + DOORBELL)
        if rung != seen:
            return rung
        if tries >= spins:
            tries += yield_counted()
        else:
            relax()
            tries += 1
    return load_acquire(doorbell + DOORBELL)


@compiled
def change_sleepers(doorbell: int, sleepers: int) -> int:
    """Change the number of announced sleepers; return the counter of the doorbell."""
    if sleepers != 0:
        fetch_add(doorbell + DOORBELL_SLEEPERS, sleepers)
    return load_ordered(doorbell + DOORBELL)


# --- whole messages ---


@compiled
def send_message(
    ring: int,
    data: int,
    capacity: int,
    header: int,
    header_bytes: int,
    source: int,
    nbytes: int,
    doorbell: int,
    spins: int,
    yields: int,
) -> int:
    """Write a header and bytes while the reader keeps up; return the number of bytes written, the header included.

    Nothing is written unless the header fits. `header_bytes` is 0 if the bytes continue a message. The wait for space
    is bounded by `spins` and `yields`.
    """
    if header_bytes > 0:
        if capacity - (load(ring + _HEAD) - load_acquire(ring + _TAIL)) < header_bytes:
            return 0
        ring_write(ring, data, capacity, header, header_bytes)
    written = header_bytes
    end = nbytes + header_bytes
    tries = 0
    while True:
        # In quarters of the ring, so that the reader can read one while the next is written.
        step = ring_write(ring, data, capacity, source + written - header_bytes, min(end - written, capacity // 4))
        written += step
        if written == end:
            break
        tries = 0 if step > 0 else tries + 1
        if tries == 1:
            ring_doorbell(doorbell)
        if tries > spins + yields:
            return written
        if tries > spins:
            tries += yield_counted() - 1
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
    """Read the next message while the writer keeps up; return the number of bytes read, the header included.

    Nothing is read, and -1 returned, if the next message has another tag, element type or length.
    """
    tries = 0
    while load_acquire(ring + _HEAD) - load(ring + _TAIL) < HEADER_BYTES:
        tries += 1
        if tries > spins + yields:
            return 0
        if tries > spins:
            tries += yield_counted() - 1
        else:
            relax()
    tail = load(ring + _TAIL)
    _copy_out(data, capacity, tail, header, HEADER_BYTES)
    if load(header) != tag or load(header + 8) != nbytes or load(header + 16) != element:
        return -1
    store_ordered(ring + _TAIL, tail + HEADER_BYTES)
    received = HEADER_BYTES
    tries = 0
    while received < nbytes + HEADER_BYTES:
        step = ring_read(ring, data, capacity, target + received - HEADER_BYTES, nbytes + HEADER_BYTES - received)
        received += step
        tries = 0 if step > 0 else tries + 1
        if tries == 1:
            notify_writer(ring, doorbell)
        if tries > spins + yields:
            return received
        if tries > spins:
            tries += yield_counted() - 1
        elif tries > 0:
            relax()
    notify_writer(ring, doorbell)
    return received
