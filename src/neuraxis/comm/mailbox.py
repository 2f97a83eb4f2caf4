"""Point-to-point messages in shared memory, on a byte ring for each ordered pair of ranks.

A message is a header (tag, length, element type, number) and its bytes; it may be longer than the ring, and
streams through it. What is sent may lie in several places; it comes as one.

`Endpoint` is this rank's end of all its rings: what is to be sent, what is to be received, and what has come
before anybody asked for it. `progress` moves whatever can be moved now and never waits. Whoever waits calls
it; while something is under way and nobody waits, a thread does.

A rank that has nothing to do sleeps on its `Doorbell`, which others ring when they have moved bytes for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from neuraxis.comm.backend import Request
from neuraxis.comm.buffers import Buffer, address_of
from neuraxis.comm.doorbell import Doorbell
from neuraxis.comm.reduction import ElementType
from neuraxis.comm.rings import (
    HEADER_BYTES,
    next_with_bytes,
    receive_message,
    ring_doorbell,
    ring_read,
    ring_write,
    send_message,
    tell_writer,
    wait_for_room,
)
from neuraxis.comm.transfers import HEADER_WORDS, Incoming, Rings, Transfer
from neuraxis.errors import CollectiveMismatch, CommunicatorClosed, NeuraxisError

__all__ = ["Endpoint"]

_NOTHING = Buffer(0, 0, 1, ElementType.UINT8, None, None)


class _Inside:
    """Counts the threads in a section. While somebody is in there, the memory stays mapped: `close` waits for it."""

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
    """This rank's end of all its rings.

    `check` is called while waiting, with the rank that is waited for (None for any): it raises if that is gone.
    `expire` raises the error for a deadline that has passed.
    """

    def __init__(
        self,
        rings: Rings,
        capacity: int,
        patience: tuple[int, int],
        check: Callable[[str, int | None], None],
        expire: Callable[[str, int | None, float], NoReturn],
    ) -> None:
        self._rings = rings
        self._capacity = capacity
        self._patience = patience
        self._check = check
        self._expire = expire
        self._lock = threading.Lock()
        self._bell = Doorbell(rings.doorbell(rings.rank))
        self._sends: dict[int, deque[Transfer]] = {}
        self._receives: list[Transfer] = []
        self._incoming = {rank: Incoming(rings, rank) for rank in range(rings.size) if rank != rings.rank}
        self._sources = list(self._incoming)
        self._counters = np.array([incoming.counters for incoming in self._incoming.values()], np.int64)
        self._counters_address = address_of(self._counters)
        self._finished = 0  # transfers so far
        self._outgoing: dict[int, tuple[int, int, int]] = {}  # counters, data and the reader's doorbell of a ring
        self._unexpected: list[tuple[int, np.ndarray, np.ndarray]] = []  # source, header, bytes
        self._sequence = 0
        # The header of the message that is being sent, and the same memory as words that are quick to write to.
        self._header = np.zeros(HEADER_WORDS, np.int64)
        self._header_address = address_of(self._header)
        self._header_words = memoryview(self._header.data)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._inside = _Inside()  # threads that wait for, or look at, a transfer

    # --- what a caller does ---

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        transfer = Transfer(self, buffer, to, tag, "send")
        with self._lock:
            self._check_open()
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

    def send(self, buffer: Buffer, to: int, tag: int, timeout: float, behind: Sequence[Buffer] = ()) -> None:
        """Send a buffer, and what is to come behind it as the same message, and wait.

        In compiled code while the reader keeps up, as any other transfer after that.
        """
        with self._lock:
            self._check_open()
            nbytes, words = buffer.nbytes, self._header_words
            whole = nbytes + sum(part.nbytes for part in behind) if behind else nbytes
            words[0], words[1], words[2], words[3] = tag, whole, int(buffer.element), self._sequence
            self._sequence += 1
            written = 0
            if to != self._rings.rank and to not in self._sends:
                written = self._stream(to, buffer.address, nbytes, HEADER_BYTES)
                if written == HEADER_BYTES + nbytes:
                    for index, part in enumerate(behind):
                        written = HEADER_BYTES + self._stream(to, part.address, part.nbytes, 0)
                        if written < HEADER_BYTES + part.nbytes:
                            buffer, behind = part, behind[index + 1 :]
                            break
                    else:
                        return
            transfer = Transfer(self, buffer, to, tag, "send")
            transfer.behind = list(behind)
            transfer.header[:] = self._header
            self._queue(transfer, to, written)
        self._wait_or_forget(transfer, timeout)

    def _stream(self, to: int, address: int, nbytes: int, header_bytes: int) -> int:
        """Write memory, after the header if it is the beginning of a message; how much was, the header included."""
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
            *self._patience,
        )

    def receive(self, buffer: Buffer, source: int | None, tag: int, timeout: float) -> int:
        """Receive and wait, likewise; the rank it came from."""
        incoming = self._incoming.get(source) if source is not None else None
        with self._lock:
            self._check_open()
            read = 0
            if (
                incoming is not None
                and source is not None
                and incoming.header_done == 0
                and not self._comes_before(source, tag)
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
                    *self._patience,
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
        self._wait_or_forget(transfer, timeout)
        return transfer.source

    def receive_bytes(self, source: int | None, tag: int, timeout: float) -> tuple[np.ndarray, int]:
        """A message of any length, in memory that was taken for it, and the rank it came from."""
        transfer = Transfer(self, _NOTHING, source, tag, "receive")
        transfer.open = True
        with self._lock:
            self._check_open()
            self._post(transfer)
        self._wait_or_forget(transfer, timeout)
        assert transfer.content is not None
        return transfer.content, transfer.source

    def _comes_before(self, source: int, tag: int) -> bool:
        """Whether somebody waits already for what a receive is for, or it has come."""
        for transfer in self._receives:
            if _matches(transfer, source, tag):
                return True
        return any(sender == source and header[0] == tag for sender, header, _ in self._unexpected)

    def _wait_or_forget(self, transfer: Transfer, timeout: float) -> None:
        try:
            self.wait(transfer, timeout)
        except BaseException:
            self.forget(transfer)
            raise

    def progress(self, mine: Transfer | None = None) -> bool:
        """Move whatever can be moved now; whether anything was. Who waits for more than `mine` is woken."""
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
            if self._finished > finished and self._bell.has_sleepers:
                self._bell.wake()
            return moved

    def _can_move(self) -> bool:
        """Whether `progress` may find something to do: quickly, for who is inside."""
        return bool(self._sends) or next_with_bytes(self._counters_address, len(self._sources), 0) >= 0

    def test(self, transfer: Transfer) -> bool:
        """Whether a transfer is finished; raises if it failed, or never can be because the other side is gone."""
        with self._inside:
            return self._test(transfer)

    def wait(self, transfer: Transfer, timeout: float) -> None:
        deadline = time.monotonic() + timeout

        def is_over() -> bool:
            return transfer.finished or time.monotonic() >= deadline

        def move() -> bool:
            return (self._can_move() and self.progress(transfer)) or transfer.finished

        with self._inside:
            if not transfer.finished:
                self._bell.look(is_over, move)
            while not self._test(transfer):
                self._bell.sleep(move, max(0.0, deadline - time.monotonic()))
                if transfer.begun:
                    self._bell.look(is_over, move)
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
                self.progress(transfer)  # what the other side wrote before it went is still ours
                if not transfer.finished:
                    self.forget(transfer)
                    raise
        if transfer.error is not None:
            raise transfer.error
        return transfer.finished

    def _check_open(self) -> None:
        if self._closed:
            raise CommunicatorClosed("this group is closed: no message can be sent or received any more")

    def keep_going(self) -> None:
        """Let a thread finish what is under way while nobody waits for it."""
        with self._lock:
            if self._is_busy() and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="neuraxis-mailbox", daemon=True)
                self._thread.start()

    def close(self) -> bool:
        """End what is under way with CommunicatorClosed; whether nobody uses the memory any more."""
        error = CommunicatorClosed("the group was closed while this message was under way")
        with self._lock:
            self._closed = True
            thread = self._thread
            pending = [*self._receives, *(transfer for queue in self._sends.values() for transfer in queue)]
            pending += [incoming.transfer for incoming in self._incoming.values() if incoming.transfer is not None]
            for transfer in pending:
                transfer.error, transfer.finished = error, True
        self._bell.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        # Those inside have been woken, and look at least every 50 ms; one below a signal handler that has called us
        # cannot leave before we do.
        deadline = time.monotonic() + 2.0
        while self._inside.threads and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._inside.threads == 0

    # --- how bytes move ---

    def _is_busy(self) -> bool:
        """Whether a message is on its way out, is asked for, or has come in part."""
        incoming = any(incoming.header_done for incoming in self._incoming.values())
        return bool(self._sends) or bool(self._receives) or incoming

    def _open(self, to: int) -> tuple[int, int, int]:
        """The writing end of the ring to a rank; its memory is taken now."""
        rings = self._rings
        self._outgoing[to] = (rings.ring_counters(rings.rank, to), rings.ring_data(rings.rank, to), rings.doorbell(to))
        return self._outgoing[to]

    def _queue(self, transfer: Transfer, to: int, written: int) -> None:
        """Put a message in line, of which the first bytes (header included) may have gone out."""
        if to == self._rings.rank:
            self._accept(to, transfer.header, transfer.rest())
            self._finish(transfer)
            self._bell.wake()
            return
        transfer.header_done = min(written, HEADER_BYTES)
        transfer.done = written - transfer.header_done
        transfer.begun = written > 0
        self._sends.setdefault(to, deque()).append(transfer)

    def _post(self, transfer: Transfer) -> None:
        """Ask for a message, which may be here already."""
        for index, (sender, header, content) in enumerate(self._unexpected):
            if _matches(transfer, sender, int(header[0])):
                del self._unexpected[index]
                self._hand_over(transfer, sender, header, content)
                return
        self._receives.append(transfer)

    def _run(self) -> None:
        while True:
            moved = self.progress()
            with self._lock:
                if self._closed or not self._is_busy():
                    self._thread = None
                    return
            if not moved:
                self._bell.sleep(self.progress)

    def _push(self, to: int) -> bool:
        """Write what is in line for a rank, as far as there is room; whether anything was written."""
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
                wait_for_room(ring, True)  # and try once more: the reader may have looked before it was said
        if moved:
            ring_doorbell(doorbell)
        if not queue:
            wait_for_room(ring, False)
            del self._sends[to]
        return moved

    def _write(self, transfer: Transfer, ring: int, data: int) -> int:
        """Write the next of a message: its header, or one of its parts, or as much of that as there is room for."""
        if transfer.header_done < HEADER_BYTES:
            address = address_of(transfer.header) + transfer.header_done
            written = ring_write(ring, data, self._capacity, address, HEADER_BYTES - transfer.header_done)
            transfer.header_done += written
            transfer.begun = True
            return written
        if transfer.done == transfer.buffer.nbytes and transfer.behind:
            transfer.buffer, transfer.done = transfer.behind.pop(0), 0
        left = transfer.buffer.nbytes - transfer.done
        written = ring_write(ring, data, self._capacity, transfer.buffer.address + transfer.done, left)
        transfer.done += written
        return written

    def _pull(self, source: int, incoming: Incoming) -> bool:
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
            tell_writer(ring, incoming.doorbell)
        return moved

    def _begin(self, source: int, incoming: Incoming) -> None:
        """A header is complete: choose where the bytes go."""
        for transfer in self._receives:
            if _matches(transfer, source, int(incoming.header[0])):
                self._receives.remove(transfer)
                if transfer.open:
                    transfer.content = np.empty(int(incoming.header[1]), np.uint8)
                    incoming.target = address_of(transfer.content)
                elif self._fits(transfer, source, incoming.header):
                    incoming.target = transfer.buffer.address
                else:
                    break
                incoming.transfer = transfer
                transfer.peer, transfer.begun = source, True  # should it die now, nobody else will finish this
                return
        self._put_aside(incoming, np.empty(int(incoming.header[1]), np.uint8))

    def _put_aside(self, incoming: Incoming, stash: np.ndarray) -> None:
        """Receive a message for who will ask for it."""
        incoming.transfer, incoming.stash, incoming.target = None, stash, address_of(stash)

    def _end(self, source: int, incoming: Incoming) -> None:
        if incoming.transfer is not None:
            self._finish_receive(incoming.transfer, source)
        else:
            assert incoming.stash is not None
            self._accept(source, incoming.header.copy(), incoming.stash)
        incoming.header_done = incoming.done = 0
        incoming.transfer = incoming.stash = None

    def _accept(self, source: int, header: np.ndarray, content: np.ndarray) -> None:
        """A whole message is here that nobody had asked for when it began; somebody may have since."""
        for transfer in self._receives:
            if _matches(transfer, source, int(header[0])):
                self._receives.remove(transfer)
                self._hand_over(transfer, source, header, content)
                return
        self._unexpected.append((source, header, content))

    def _hand_over(self, transfer: Transfer, source: int, header: np.ndarray, content: np.ndarray) -> None:
        """Give a whole message to who has asked for it."""
        if transfer.open:
            transfer.content = content
        elif self._fits(transfer, source, header):
            transfer.buffer.bytes()[:] = content
        else:
            return
        self._finish_receive(transfer, source)

    def _fits(self, transfer: Transfer, source: int, header: np.ndarray) -> bool:
        nbytes, element = int(header[1]), int(header[2])
        if nbytes == transfer.buffer.nbytes and element == int(transfer.buffer.element):
            return True
        mine = f"receive({transfer.buffer.element.label}[{transfer.buffer.count}], tag {transfer.tag})"
        theirs = f"send({ElementType(element).label}, {nbytes} bytes, tag {int(header[0])})"
        transfer.error = CollectiveMismatch(
            f"rank {source} of the group called {theirs} while this rank called {mine}",
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

    def forget(self, transfer: Transfer) -> None:
        """Give up a transfer: its memory is neither read nor written any more.

        What has not begun to be sent is not sent. What has goes on, from a copy, and so does what is being received,
        for whoever asks for it next: after half a message neither side would know where the next one begins.
        """
        with self._lock:
            if transfer in self._receives:
                self._receives.remove(transfer)
            queue = self._sends.get(transfer.peer) if transfer.peer is not None else None
            if queue is not None and transfer in queue:
                if transfer.header_done == 0:
                    queue.remove(transfer)
                else:
                    transfer.keep_rest()
            for incoming in self._incoming.values():
                if incoming.transfer is transfer:
                    stash = transfer.content
                    if stash is None:
                        stash = np.empty(int(incoming.header[1]), np.uint8)
                        stash[: incoming.done] = transfer.buffer.bytes()[: incoming.done]
                    self._put_aside(incoming, stash)


def _matches(transfer: Transfer, source: int, tag: int) -> bool:
    return transfer.peer in (None, source) and transfer.tag == tag
