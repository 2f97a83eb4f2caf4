"""Byte rings and doorbells in shared memory, compiled.

A ring has one writer and one reader. `head` counts the bytes ever written and is stored by the writer alone,
`tail` those ever read and is stored by the reader alone; each is released after the bytes were copied and
acquired before the other side copies, so a ring needs no lock. A writer that has found the ring full says so in a word
of its own, and tries once more; the reader looks at that word after it has stored `tail`, so one sees the other.

A doorbell is a counter that others increment when they have written to a ring that its owner reads, or read from one
whose owner waits for room. Its owner sleeps on it; the two sides are ordered as `atomics` explains.
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
    store_ordered,
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
    "await_ring",
    "change_sleepers",
    "next_with_bytes",
    "receive_message",
    "ring_bytes",
    "ring_doorbell",
    "ring_read",
    "ring_write",
    "send_message",
    "tell_writer",
    "wait_for_room",
    "wake_sleepers",
]

RING_COUNTERS_BYTES = 256  # what the writer stores, and what the reader does, each on lines of its own
_HEAD, _WAITS, _TAIL = 0, 8, 128
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
    """Copy up to `nbytes` out of the ring; how many came out."""
    tail = load(ring + _TAIL)
    width = min(nbytes, load_acquire(ring + _HEAD) - tail)
    if width <= 0:
        return 0
    _copy_out(data, capacity, tail, target, width)
    store_ordered(ring + _TAIL, tail + width)
    return width


@compiled
def wait_for_room(ring: int, waits: bool) -> None:
    """Let the reader know whether the writer wants to be told when there is room; it then tries once more."""
    store_ordered(ring + _WAITS, 1 if waits else 0)


@compiled
def tell_writer(ring: int, doorbell: int) -> None:
    """Ring the bell of a writer that waits for room."""
    if load_ordered(ring + _WAITS) != 0:
        ring_doorbell(doorbell)


@compiled
def next_with_bytes(rings: int, count: int, first: int) -> int:
    """Of `count` addresses of rings, from the one of index `first` on, the next that has bytes to read; -1: none."""
    for index in range(first, count):
        ring = load(rings + 8 * index)
        if load_acquire(ring + _HEAD) != load(ring + _TAIL):
            return index
    return -1


@compiled
def ring_doorbell(doorbell: int) -> None:
    fetch_add(doorbell + DOORBELL, 1)
    if load_ordered(doorbell + DOORBELL_SLEEPERS) != 0:
        wake_all(doorbell + DOORBELL)


@compiled
def wake_sleepers(doorbell: int) -> None:
    """Ring it for the threads of its own process, of which others may not know."""
    fetch_add(doorbell + DOORBELL, 1)
    wake_all(doorbell + DOORBELL)


@compiled
def await_ring(doorbell: int, seen: int, spins: int, yields: int) -> int:
    """Look, as long as the patience lasts, until the bell has rung once more than `seen`; how often it has."""
    for tries in range(spins + yields):
        rung = load_acquire(doorbell + DOORBELL)
        if rung != seen:
            return rung
        if tries >= spins:
            yield_cpu()
        else:
            relax()
    return load_acquire(doorbell + DOORBELL)


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
    header_bytes: int,
    source: int,
    nbytes: int,
    doorbell: int,
    spins: int,
    yields: int,
) -> int:
    """Write a header and bytes while the reader keeps up; how many bytes went in, the header's included.

    Nothing goes in unless the header fits; `header_bytes` is 0 where bytes go on with a message. It waits for room only
    as long as the patience lasts.
    """
    if header_bytes > 0:
        if capacity - (load(ring + _HEAD) - load_acquire(ring + _TAIL)) < header_bytes:
            return 0
        ring_write(ring, data, capacity, header, header_bytes)
    written = header_bytes
    end = nbytes + header_bytes
    tries = 0
    while True:
        # In quarters of the ring, so that the reader reads one while the next is written.
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
    store_ordered(ring + _TAIL, tail + HEADER_BYTES)
    received = HEADER_BYTES
    tries = 0
    while received < nbytes + HEADER_BYTES:
        step = ring_read(ring, data, capacity, target + received - HEADER_BYTES, nbytes + HEADER_BYTES - received)
        received += step
        tries = 0 if step > 0 else tries + 1
        if tries == 1:
            tell_writer(ring, doorbell)
        if tries > spins + yields:
            return received
        if tries > spins:
            yield_cpu()
        elif tries > 0:
            relax()
    tell_writer(ring, doorbell)
    return received
