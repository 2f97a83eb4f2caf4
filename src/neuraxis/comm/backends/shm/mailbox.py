"""Point-to-point messages in shared memory, on a byte ring per ordered pair of ranks.

A message is a header (tag, length, element type, sequence number) and its bytes. It may be longer than the ring, and
then streams through it. A sender may pass several buffers, which arrive as one message.

`Endpoint` is this rank's end of all its rings: it holds the pending sends and receives, and messages that have arrived
before a receive asked for them. `progress` moves all bytes that can be moved now and never waits. Waiting threads call
it; while transfers are pending and no thread waits, a background thread does.

A thread that waits polls this rank's `Doorbell` for a moment, in compiled code that releases the GIL, and then sleeps
on it. Waking a sleeper costs a system call on the other side and an acquisition of the GIL here. So while one thread
polls, sleepers are not announced to the other ranks: the polling thread moves the bytes for all, and wakes the threads
that they are for. Before it stops polling, it announces the sleepers again, and checks once more for bytes that arrived
in between.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import numpy as np

from neuraxis.comm.backends.base import Request
from neuraxis.comm.backends.shm.rings import (
    DOORBELL,
    HEADER_BYTES,
    await_doorbell,
    change_sleepers,
    next_with_bytes,
    notify_writer,
    receive_message,
    ring_doorbell,
    ring_read,
    ring_write,
    send_message,
    set_writer_waiting,
    wake_sleepers,
)
from neuraxis.comm.buffers import Buffer, address_of, buffer_of
from neuraxis.comm.reduction import ElementType
from neuraxis.compiled.atomics import sleep_on_word
from neuraxis.errors import CollectiveMismatch, CommunicatorClosed, NeuraxisError

__all__ = ["HEADER_WORDS", "Doorbell", "Endpoint", "Incoming", "Rings", "Transfer"]

# --- state of messages ---


HEADER_WORDS = HEADER_BYTES // 8


class Rings(Protocol):
    """Addresses of the rings and doorbells of a group."""

    rank: int
    size: int

    def ring_counters(self, source: int, to: int) -> int: ...
    def ring_data(self, source: int, to: int) -> int: ...
    def doorbell(self, rank: int) -> int: ...


class Transfer(Request):
    """A message to be sent or received. With `any_length` it receives a message of any length, in `content`."""

    def __init__(self, endpoint: Endpoint, buffer: Buffer, peer: int | None, tag: int, what: str) -> None:
        self.endpoint = endpoint
        self.buffer = buffer
        self.trailing: list[Buffer] = []  # sent after the buffer, as parts of the same message
        self.any_length = False
        self.content: np.ndarray | None = None
        self.peer = peer  # None: any rank, until one has begun to send
        self.begun = False
        self.tag = tag
        self.what = what
        self.header = np.zeros(HEADER_WORDS, np.int64)
        self.header_done = 0
        self.done = 0
        self.finished = False
        self.error: NeuraxisError | None = None

    @property
    def is_written(self) -> bool:
        return self.done == self.buffer.nbytes and not self.trailing

    def rest(self) -> np.ndarray:
        """Return a copy of the bytes that are not yet sent."""
        parts = [self.buffer.bytes()[self.done :], *(part.bytes() for part in self.trailing)]
        return np.concatenate(parts)

    def copy_rest(self) -> None:
        """Send the rest from a copy, so that the caller's memory is no longer used."""
        self.buffer, self.done, self.trailing = buffer_of(self.rest(), "message", writes=False), 0, []

    def test(self) -> bool:
        return self.endpoint.test(self)

    def wait(self, timeout: float) -> None:
        self.endpoint.wait(self, timeout)

    def cancel(self) -> None:
        self.endpoint.cancel(self)


class Incoming:
    """The reading end of one ring and the message in it: its header so far, and the destination of its bytes."""

    def __init__(self, rings: Rings, source: int) -> None:
        self.counters = rings.ring_counters(source, rings.rank)
        self.data = rings.ring_data(source, rings.rank)
        self.doorbell = rings.doorbell(source)
        self.header = np.zeros(HEADER_WORDS, np.int64)
        self.header_address = address_of(self.header)
        self.header_done = 0
        self.done = 0
        self.target = 0  # destination address of the message's bytes
        self.transfer: Transfer | None = None
        self.stash: np.ndarray | None = None


# --- the doorbell ---


# Busy polls of the doorbell, then polls that yield the core in between. The rank that is to ring it has to run Python
# first, perhaps on this very core; and yielding a core that no other thread wants takes half a microsecond.
_SPINS, _YIELDS = 100, 500
_LIVENESS_S = 0.05  # how long a thread sleeps before it checks that the other ranks are alive


class Doorbell:
    """The doorbell of this rank, and its threads that poll it or sleep on it."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._polling = 0
        self._sleeping = 0
        self._announced = 0  # sleepers announced to other ranks: at most one, which stands for all
        # Loads the functions now: Numba opens a file for that, and there may be no descriptor left at `close`.
        change_sleepers(address, 0)
        wake_sleepers(address)

    @property
    def has_sleepers(self) -> bool:
        return self._sleeping > 0

    def poll(self, until: Callable[[], bool], move: Callable[[], bool]) -> None:
        """Move bytes as they arrive, until `until` is true or nothing arrives for a moment."""
        self._count(polling=1)
        try:
            seen = change_sleepers(self._address, 0)
            while not until():
                if move():
                    continue
                rung = await_doorbell(self._address, seen, _SPINS, _YIELDS)
                if rung == seen:
                    return
                seen = rung
        finally:
            self._count(polling=-1)
            if self._sleeping:
                move()

    def sleep(self, move: Callable[[], bool], seconds: float = _LIVENESS_S) -> None:
        """Sleep until the doorbell rings, but not longer than `seconds`; do not sleep if there is something to move."""
        self._count(sleeping=1)
        try:
            seen = change_sleepers(self._address, 0)
            if not move():
                sleep_on_word(self._address + DOORBELL, seen, min(seconds, _LIVENESS_S))
        finally:
            self._count(sleeping=-1)

    def wake(self) -> None:
        """Wake this process's threads that sleep on the doorbell."""
        wake_sleepers(self._address)

    def _count(self, polling: int = 0, sleeping: int = 0) -> None:
        with self._lock:
            self._polling += polling
            self._sleeping += sleeping
            announced = 1 if self._sleeping and not self._polling else 0
            if announced != self._announced:
                change_sleepers(self._address, announced - self._announced)
                self._announced = announced


# --- the endpoint ---


_NOTHING = Buffer(0, 0, 1, ElementType.UINT8, None, None)


class _ThreadCounter:
    """Number of threads in a section; `close` unmaps the memory only when there are none."""

    def __init__(self) -> None:
        self.threads = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.threads += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.threads -= 1


class Endpoint:
    """The end of all rings of this rank.

    While waiting it calls `check` with the rank that is waited for (None: any), which raises if that rank is gone.
    `expire` raises the error for a deadline that has passed.
    """

    def __init__(
        self,
        rings: Rings,
        capacity: int,
        spin_limits: tuple[int, int],
        check: Callable[[str, int | None], None],
        expire: Callable[[str, int | None, float], NoReturn],
    ) -> None:
        self._rings = rings
        self._capacity = capacity
        self._spin_limits = spin_limits
        self._check = check
        self._expire = expire
        self._lock = threading.Lock()
        self._doorbell = Doorbell(rings.doorbell(rings.rank))
        self._sends: dict[int, deque[Transfer]] = {}
        self._receives: list[Transfer] = []
        self._incoming = {rank: Incoming(rings, rank) for rank in range(rings.size) if rank != rings.rank}
        self._sources = list(self._incoming)
        self._counters = np.array([incoming.counters for incoming in self._incoming.values()], np.int64)
        self._counters_address = address_of(self._counters)
        self._finished = 0  # transfers completed so far
        self._outgoing: dict[int, tuple[int, int, int]] = {}  # counters, data and the reader's doorbell of a ring
        self._unexpected: list[tuple[int, np.ndarray, np.ndarray]] = []  # source, header, bytes
        self._sequence = 0
        # Header of the message that is being sent; the memoryview is faster to write to than the array.
        self._header = np.zeros(HEADER_WORDS, np.int64)
        self._header_address = address_of(self._header)
        self._header_words = memoryview(self._header.data)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._inside = _ThreadCounter()  # threads that wait for a transfer or test it

    # --- operations ---

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        transfer = Transfer(self, buffer, to, tag, "send")
        with self._lock:
            self._check_open()
            if to != self._rings.rank and to not in self._outgoing:
                self._open(to)  # before it is queued: an allocation error must be raised to this caller
            transfer.header[:] = (tag, buffer.nbytes, int(buffer.element), self._sequence)
            self._sequence += 1
            self._queue(transfer, to, 0)
        self.progress(transfer)
        return transfer

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        transfer = Transfer(self, buffer, source, tag, "receive")
        with self._lock:
            self._check_open()
            self._post(transfer)
        self.progress(transfer)
        return transfer

    def send(self, buffer: Buffer, to: int, tag: int, timeout: float, trailing: Sequence[Buffer] = ()) -> None:
        """Send a buffer, and `trailing` buffers as parts of the same message, and wait.

        Compiled code does it while the reader keeps up; after that the rest is queued like any other transfer.
        """
        with self._lock:
            self._check_open()
            nbytes, words = buffer.nbytes, self._header_words
            whole = nbytes + sum(part.nbytes for part in trailing) if trailing else nbytes
            words[0], words[1], words[2], words[3] = tag, whole, int(buffer.element), self._sequence
            self._sequence += 1
            written = 0
            if to != self._rings.rank and to not in self._sends:
                written = self._stream(to, buffer.address, nbytes, HEADER_BYTES)
                if written == HEADER_BYTES + nbytes:
                    for index, part in enumerate(trailing):
                        written = HEADER_BYTES + self._stream(to, part.address, part.nbytes, 0)
                        if written < HEADER_BYTES + part.nbytes:
                            buffer, trailing = part, trailing[index + 1 :]
                            break
                    else:
                        return
            transfer = Transfer(self, buffer, to, tag, "send")
            transfer.trailing = list(trailing)
            transfer.header[:] = self._header
            self._queue(transfer, to, written)
        self._wait_or_cancel(transfer, timeout)

    def _stream(self, to: int, address: int, nbytes: int, header_bytes: int) -> int:
        """Write memory, after the header at the start of a message; return the bytes written, the header included."""
        counters, data, doorbell = self._outgoing.get(to) or self._open(to)
        return send_message(
            counters,
            data,
            self._capacity,
            self._header_address,
            header_bytes,
            address,
            nbytes,
            doorbell,
            *self._spin_limits,
        )

    def receive(self, buffer: Buffer, source: int | None, tag: int, timeout: float) -> int:
        """Receive and wait, in compiled code while the writer keeps up; return the rank of the sender."""
        incoming = self._incoming.get(source) if source is not None else None
        with self._lock:
            self._check_open()
            read = 0
            if (
                incoming is not None
                and source is not None
                and incoming.header_done == 0
                and not self._is_claimed(source, tag)
            ):
                read = receive_message(
                    incoming.counters,
                    incoming.data,
                    self._capacity,
                    tag,
                    int(buffer.element),
                    incoming.header_address,
                    buffer.address,
                    buffer.nbytes,
                    incoming.doorbell,
                    *self._spin_limits,
                )
                if read == HEADER_BYTES + buffer.nbytes:
                    return source
            transfer = Transfer(self, buffer, source, tag, "receive")
            if read > 0:
                assert incoming is not None
                incoming.header_done, incoming.done = HEADER_BYTES, read - HEADER_BYTES
                incoming.transfer, incoming.target = transfer, buffer.address
                transfer.begun = True
            else:
                self._post(transfer)
        self._wait_or_cancel(transfer, timeout)
        return transfer.source

    def receive_bytes(self, source: int | None, tag: int, timeout: float) -> tuple[np.ndarray, int]:
        """Receive a message of any length; return its bytes and the rank of the sender."""
        transfer = Transfer(self, _NOTHING, source, tag, "receive")
        transfer.any_length = True
        with self._lock:
            self._check_open()
            self._post(transfer)
        self._wait_or_cancel(transfer, timeout)
        assert transfer.content is not None
        return transfer.content, transfer.source

    def _is_claimed(self, source: int, tag: int) -> bool:
        """Return True if another receive waits for this message, or it has arrived already."""
        for transfer in self._receives:
            if _matches(transfer, source, tag):
                return True
        return any(sender == source and header[0] == tag for sender, header, _ in self._unexpected)

    def _wait_or_cancel(self, transfer: Transfer, timeout: float) -> None:
        try:
            self.wait(transfer, timeout)
        except BaseException:
            self.cancel(transfer)
            raise

    def progress(self, mine: Transfer | None = None) -> bool:
        """Move all bytes that can be moved now, and return True if any were.

        Wakes the threads whose transfers have completed, except that of `mine`, which calls this.
        """
        with self._lock:
            if self._closed:
                return False
            finished = self._finished + (mine is not None and not mine.finished)
            moved = False
            for to in list(self._sends):
                moved |= self._push(to)
            table, count = self._counters_address, len(self._sources)
            index = next_with_bytes(table, count, 0)
            while index >= 0:
                source = self._sources[index]
                moved |= self._pull(source, self._incoming[source])
                index = next_with_bytes(table, count, index + 1)
            finished -= mine is not None and not mine.finished
            if self._finished > finished and self._doorbell.has_sleepers:
                self._doorbell.wake()
            return moved

    def _may_progress(self) -> bool:
        """Return True if `progress` may find something to do; a quick check for polling threads."""
        return bool(self._sends) or next_with_bytes(self._counters_address, len(self._sources), 0) >= 0

    def test(self, transfer: Transfer) -> bool:
        """Return True if a transfer has completed; raise if it failed, or cannot complete because the peer is gone."""
        with self._inside:
            return self._test(transfer)

    def wait(self, transfer: Transfer, timeout: float) -> None:
        """Wait until a transfer has completed; raise by `timeout` seconds."""
        deadline = time.monotonic() + timeout

        def is_over() -> bool:
            return transfer.finished or time.monotonic() >= deadline

        def move() -> bool:
            return (self._may_progress() and self.progress(transfer)) or transfer.finished

        with self._inside:
            if not transfer.finished:
                self._doorbell.poll(is_over, move)
            while not self._test(transfer):
                self._doorbell.sleep(move, max(0.0, deadline - time.monotonic()))
                if transfer.begun:
                    self._doorbell.poll(is_over, move)
                if time.monotonic() >= deadline and not self._test(transfer):
                    self._expire(transfer.what, transfer.peer, timeout)

    def _test(self, transfer: Transfer) -> bool:
        if not transfer.finished:
            self._check_open()
            self.progress(transfer)
        if not transfer.finished:
            try:
                self._check(transfer.what, transfer.peer)
            except NeuraxisError:
                self.progress(transfer)  # receive what the other side wrote before it left
                if not transfer.finished:
                    self.cancel(transfer)
                    raise
        if transfer.error is not None:
            raise transfer.error
        return transfer.finished

    def _check_open(self) -> None:
        if self._closed:
            raise CommunicatorClosed("this group is closed and cannot send or receive messages. Make a new one")

    def ensure_progress(self) -> None:
        """Start the background thread if transfers are pending."""
        with self._lock:
            if self._is_busy() and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="neuraxis-mailbox", daemon=True)
                self._thread.start()

    def close(self) -> bool:
        """End all transfers with CommunicatorClosed; return True if no thread uses the memory any more."""
        error = CommunicatorClosed("the group was closed before this message was complete")
        with self._lock:
            self._closed = True
            thread = self._thread
            pending = [*self._receives, *(transfer for queue in self._sends.values() for transfer in queue)]
            pending += [incoming.transfer for incoming in self._incoming.values() if incoming.transfer is not None]
            for transfer in pending:
                transfer.error, transfer.finished = error, True
        self._doorbell.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        # Waiting threads were woken, and check at least every 50 ms; only a thread that was interrupted by the signal
        # handler that called this cannot leave.
        deadline = time.monotonic() + 2.0
        while self._inside.threads and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._inside.threads == 0

    # --- moving bytes ---

    def _is_busy(self) -> bool:
        """Return True if a send, a receive or a partly received message is pending."""
        incoming = any(incoming.header_done for incoming in self._incoming.values())
        return bool(self._sends) or bool(self._receives) or incoming

    def _open(self, to: int) -> tuple[int, int, int]:
        """Allocate the ring to a rank and return the addresses of its writing end."""
        rings = self._rings
        self._outgoing[to] = (rings.ring_counters(rings.rank, to), rings.ring_data(rings.rank, to), rings.doorbell(to))
        return self._outgoing[to]

    def _queue(self, transfer: Transfer, to: int, written: int) -> None:
        """Queue a message, of which the first `written` bytes (header included) may have been sent."""
        if to == self._rings.rank:
            self._accept(to, transfer.header, transfer.rest())
            self._finish(transfer)
            self._doorbell.wake()
            return
        transfer.header_done = min(written, HEADER_BYTES)
        transfer.done = written - transfer.header_done
        transfer.begun = written > 0
        self._sends.setdefault(to, deque()).append(transfer)

    def _post(self, transfer: Transfer) -> None:
        """Post a receive; complete it if its message has arrived already."""
        for index, (sender, header, content) in enumerate(self._unexpected):
            if _matches(transfer, sender, int(header[0])):
                del self._unexpected[index]
                self._deliver(transfer, sender, header, content)
                return
        self._receives.append(transfer)

    def _run(self) -> None:
        """Make progress in the background thread until nothing is pending."""
        while True:
            moved = self.progress()
            with self._lock:
                if self._closed or not self._is_busy():
                    self._thread = None
                    return
            if not moved:
                self._doorbell.sleep(self.progress)

    def _push(self, to: int) -> bool:
        """Write queued messages to a rank while there is space; return True if anything was written."""
        queue = self._sends[to]
        ring, data, doorbell = self._outgoing.get(to) or self._open(to)
        moved = waits = False
        while queue:
            written = self._write(queue[0], ring, data)
            moved = moved or written > 0
            if queue[0].header_done == HEADER_BYTES and queue[0].is_written:
                self._finish(queue.popleft())
            elif written == 0:
                if waits:
                    break
                waits = True
                set_writer_waiting(ring, True)  # and try again: the reader may have checked before it was set
        if moved:
            ring_doorbell(doorbell)
        if not queue:
            set_writer_waiting(ring, False)
            del self._sends[to]
        return moved

    def _write(self, transfer: Transfer, ring: int, data: int) -> int:
        """Write the next part of a message, its header or a buffer, while there is space; return the bytes written."""
        if transfer.header_done < HEADER_BYTES:
            address = address_of(transfer.header) + transfer.header_done
            written = ring_write(ring, data, self._capacity, address, HEADER_BYTES - transfer.header_done)
            transfer.header_done += written
            transfer.begun = True
            return written
        if transfer.done == transfer.buffer.nbytes and transfer.trailing:
            transfer.buffer, transfer.done = transfer.trailing.pop(0), 0
        left = transfer.buffer.nbytes - transfer.done
        written = ring_write(ring, data, self._capacity, transfer.buffer.address + transfer.done, left)
        transfer.done += written
        return written

    def _pull(self, source: int, incoming: Incoming) -> bool:
        """Read messages from a rank while there are bytes; return True if anything was read."""
        ring, data = incoming.counters, incoming.data
        moved = False
        while True:
            if incoming.header_done < HEADER_BYTES:
                read = ring_read(
                    ring,
                    data,
                    self._capacity,
                    incoming.header_address + incoming.header_done,
                    HEADER_BYTES - incoming.header_done,
                )
                if read == 0:
                    break
                moved = True
                incoming.header_done += read
                if incoming.header_done < HEADER_BYTES:
                    break
                self._begin(source, incoming)
            nbytes = int(incoming.header[1])
            read = ring_read(ring, data, self._capacity, incoming.target + incoming.done, nbytes - incoming.done)
            incoming.done += read
            moved = moved or read > 0
            if incoming.done < nbytes:
                break
            self._end(source, incoming)
        if moved:
            notify_writer(ring, incoming.doorbell)
        return moved

    def _begin(self, source: int, incoming: Incoming) -> None:
        """Choose the destination of a message whose header is complete."""
        for transfer in self._receives:
            if _matches(transfer, source, int(incoming.header[0])):
                self._receives.remove(transfer)
                if transfer.any_length:
                    transfer.content = np.empty(int(incoming.header[1]), np.uint8)
                    incoming.target = address_of(transfer.content)
                elif self._fits(transfer, source, incoming.header):
                    incoming.target = transfer.buffer.address
                else:
                    break
                incoming.transfer = transfer
                transfer.peer, transfer.begun = source, True  # only this rank can complete it now
                return
        self._stash_message(incoming, np.empty(int(incoming.header[1]), np.uint8))

    def _stash_message(self, incoming: Incoming, stash: np.ndarray) -> None:
        """Receive a message into private memory, for a later receive."""
        incoming.transfer, incoming.stash, incoming.target = None, stash, address_of(stash)

    def _end(self, source: int, incoming: Incoming) -> None:
        """Complete a message whose bytes are all here."""
        if incoming.transfer is not None:
            self._finish_receive(incoming.transfer, source)
        else:
            assert incoming.stash is not None
            self._accept(source, incoming.header.copy(), incoming.stash)
        incoming.header_done = incoming.done = 0
        incoming.transfer = incoming.stash = None

    def _accept(self, source: int, header: np.ndarray, content: np.ndarray) -> None:
        """Deliver a complete message that had no receive when it began; keep it if there is still none."""
        for transfer in self._receives:
            if _matches(transfer, source, int(header[0])):
                self._receives.remove(transfer)
                self._deliver(transfer, source, header, content)
                return
        self._unexpected.append((source, header, content))

    def _deliver(self, transfer: Transfer, source: int, header: np.ndarray, content: np.ndarray) -> None:
        """Copy a complete message into its receive."""
        if transfer.any_length:
            transfer.content = content
        elif self._fits(transfer, source, header):
            transfer.buffer.bytes()[:] = content
        else:
            return
        self._finish_receive(transfer, source)

    def _fits(self, transfer: Transfer, source: int, header: np.ndarray) -> bool:
        """Return True if a message has the length and type of a receive; otherwise fail the receive."""
        nbytes, element = int(header[1]), int(header[2])
        if nbytes == transfer.buffer.nbytes and element == int(transfer.buffer.element):
            return True
        mine = f"receive({transfer.buffer.element.label}[{transfer.buffer.count}], tag {transfer.tag})"
        theirs = f"send({ElementType(element).label}, {nbytes} bytes, tag {int(header[0])})"
        transfer.error = CollectiveMismatch(
            f"rank {source} of the group called {theirs} while this rank called {mine}. Make both calls match",
            rank=source,
            mine=mine,
            theirs=theirs,
        )
        self._finish(transfer)
        return False

    def _finish_receive(self, transfer: Transfer, source: int) -> None:
        transfer.source = source
        self._finish(transfer)

    def _finish(self, transfer: Transfer) -> None:
        transfer.finished = True
        self._finished += 1

    def cancel(self, transfer: Transfer) -> None:
        """Cancel a transfer: its memory is neither read nor written any more.

        A send that has not begun is dropped. One that has begun continues from a copy, and a receive that has begun
        continues into private memory for a later receive: after half a message neither side would find the beginning of
        the next one.
        """
        with self._lock:
            if transfer in self._receives:
                self._receives.remove(transfer)
            queue = self._sends.get(transfer.peer) if transfer.peer is not None else None
            if queue is not None and transfer in queue:
                if transfer.header_done == 0:
                    queue.remove(transfer)
                else:
                    transfer.copy_rest()
            for incoming in self._incoming.values():
                if incoming.transfer is transfer:
                    stash = transfer.content
                    if stash is None:
                        stash = np.empty(int(incoming.header[1]), np.uint8)
                        stash[: incoming.done] = transfer.buffer.bytes()[: incoming.done]
                    self._stash_message(incoming, stash)


def _matches(transfer: Transfer, source: int, tag: int) -> bool:
    return transfer.peer in (None, source) and transfer.tag == tag
