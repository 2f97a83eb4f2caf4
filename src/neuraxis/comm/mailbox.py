"""Point-to-point messages in shared memory, on a byte ring for each ordered pair of ranks.

A message is a header (tag, length, element type, number) and its bytes; it may be longer than the ring, and
streams through it.

`Endpoint` is this rank's end of all its rings: what is to be sent, what is to be received, and what has come
before anybody asked for it. `progress` moves whatever can be moved now and never waits. Whoever waits calls
it; while something is under way and nobody waits, a thread does.

A rank that has nothing to do sleeps on its doorbell: a counter that every other rank increments when it has
moved bytes in a ring that the two share.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

import numpy as np

from neuraxis.comm.backend import Request
from neuraxis.comm.buffers import Buffer, address_of, buffer_of
from neuraxis.comm.futex import sleep_on_word
from neuraxis.comm.reduction import ElementType
from neuraxis.comm.rings import (
    DOORBELL,
    HEADER_BYTES,
    change_sleepers,
    receive_message,
    ring_doorbell,
    ring_read,
    ring_write,
    send_message,
)
from neuraxis.errors import CollectiveMismatch, CommunicatorClosed, NeuraxisError

__all__ = ["Endpoint"]

_PATIENCE = 50  # how often to look in vain before asking whether the other side lives, and going to sleep
_HEADER_WORDS = HEADER_BYTES // 8
_NOTHING = Buffer(0, 0, 1, ElementType.UINT8, None, None)


class Rings(Protocol):
    """Where the rings are."""

    rank: int
    size: int

    def ring_counters(self, source: int, to: int) -> int: ...
    def ring_data(self, source: int, to: int) -> int: ...
    def doorbell(self, rank: int) -> int: ...


class _Transfer(Request):
    """A message to be sent or received. One that is `open` takes a message of any length, as `content`."""

    def __init__(self, endpoint: Endpoint, buffer: Buffer, peer: int | None, tag: int, what: str) -> None:
        self.endpoint = endpoint
        self.buffer = buffer
        self.open = False
        self.content: np.ndarray | None = None
        self.peer = peer
        self.tag = tag
        self.what = what
        self.header = np.zeros(_HEADER_WORDS, np.int64)
        self.header_done = 0
        self.done = 0
        self.finished = False
        self.error: NeuraxisError | None = None

    def test(self) -> bool:
        return self.endpoint.test(self)

    def wait(self, timeout: float) -> None:
        self.endpoint.wait(self, timeout)

    def cancel(self) -> None:
        self.endpoint.forget(self)


class _Incoming:
    """The reading end of one ring, and the message there: its header so far, and where its bytes go."""

    def __init__(self, rings: Rings, source: int) -> None:
        self.counters = rings.ring_counters(source, rings.rank)
        self.data = rings.ring_data(source, rings.rank)
        self.doorbell = rings.doorbell(source)
        self.header = np.zeros(_HEADER_WORDS, np.int64)
        self.header_address = address_of(self.header)
        self.header_done = 0
        self.done = 0
        self.transfer: _Transfer | None = None
        self.stash: np.ndarray | None = None


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
        self._sends: dict[int, deque[_Transfer]] = {}
        self._receives: list[_Transfer] = []
        self._incoming = {rank: _Incoming(rings, rank) for rank in range(rings.size) if rank != rings.rank}
        self._outgoing: dict[int, tuple[int, int, int]] = {}  # counters, data and the reader's doorbell of a ring
        self._unexpected: list[tuple[int, np.ndarray, np.ndarray]] = []  # source, header, bytes
        self._sequence = 0
        # The header of the message that is being sent, and the same memory as words that are quick to write to.
        self._header = np.zeros(_HEADER_WORDS, np.int64)
        self._header_address = address_of(self._header)
        self._header_words = memoryview(self._header.data)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._users = 0  # threads that wait for, or look at, a transfer

    # --- what a caller does ---

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        transfer = _Transfer(self, buffer, to, tag, "send")
        with self._lock:
            self._check_open()
            transfer.header[:] = (tag, buffer.nbytes, int(buffer.element), self._sequence)
            self._sequence += 1
            self._queue(transfer, to, 0)
        self.progress()
        return transfer

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        transfer = _Transfer(self, buffer, source, tag, "receive")
        with self._lock:
            self._check_open()
            self._post(transfer)
        self.progress()
        return transfer

    def send(self, buffer: Buffer, to: int, tag: int, timeout: float) -> None:
        """Send and wait: in compiled code while the reader keeps up, as any other transfer after that."""
        rings = self._rings
        with self._lock:
            self._check_open()
            words = self._header_words
            words[0], words[1], words[2], words[3] = tag, buffer.nbytes, int(buffer.element), self._sequence
            self._sequence += 1
            written = 0
            if to != rings.rank and to not in self._sends:
                counters, data, doorbell = self._outgoing.get(to) or self._open(to)
                written = send_message(
                    counters,
                    data,
                    self._capacity,
                    self._header_address,
                    buffer.address,
                    buffer.nbytes,
                    doorbell,
                    *self._patience,
                )
                if written == HEADER_BYTES + buffer.nbytes:
                    return
            transfer = _Transfer(self, buffer, to, tag, "send")
            transfer.header[:] = self._header
            self._queue(transfer, to, written)
        self._wait_or_forget(transfer, timeout)

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
            transfer = _Transfer(self, buffer, source, tag, "receive")
            if read > 0:
                assert incoming is not None
                incoming.header_done, incoming.done = HEADER_BYTES, read - HEADER_BYTES
                incoming.transfer = transfer
            else:
                self._post(transfer)
        self._wait_or_forget(transfer, timeout)
        return transfer.source

    def receive_bytes(self, source: int | None, tag: int, timeout: float) -> tuple[np.ndarray, int]:
        """A message of any length, in memory that was taken for it, and the rank it came from."""
        transfer = _Transfer(self, _NOTHING, source, tag, "receive")
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

    def _wait_or_forget(self, transfer: _Transfer, timeout: float) -> None:
        try:
            self.wait(transfer, timeout)
        except BaseException:
            self.forget(transfer)
            raise

    def progress(self) -> bool:
        """Move whatever can be moved now; whether anything was."""
        with self._lock:
            if self._closed:
                return False
            moved = False
            for to in list(self._sends):
                moved |= self._push(to)
            for source, incoming in self._incoming.items():
                moved |= self._pull(source, incoming)
            return moved

    def test(self, transfer: _Transfer) -> bool:
        """Whether a transfer is finished; raises if it failed, or never can be because the other side is gone."""
        with self._inside():
            return self._test(transfer)

    def wait(self, transfer: _Transfer, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._inside():
            idle = 0
            while idle < _PATIENCE and not transfer.finished:
                idle = 0 if self.progress() else idle + 1
            while not self._test(transfer):
                self._sleep()
                if time.monotonic() >= deadline and not self._test(transfer):
                    self._expire(transfer.what, transfer.peer, timeout)

    def _test(self, transfer: _Transfer) -> bool:
        if not transfer.finished:
            self._check_open()
        self.progress()
        if not transfer.finished:
            try:
                self._check(transfer.what, transfer.peer)
            except NeuraxisError:
                self.progress()  # what the other side wrote before it went is still ours
                if not transfer.finished:
                    self.forget(transfer)
                    raise
        if transfer.error is not None:
            raise transfer.error
        return transfer.finished

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """While somebody is in here, the memory stays mapped: `close` waits for it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

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
        ring_doorbell(self._rings.doorbell(self._rings.rank))
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        # Those inside have been woken, and look at least every 50 ms; one below a signal handler that has called us
        # cannot leave before we do.
        deadline = time.monotonic() + 2.0
        while self._users and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._users == 0

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

    def _queue(self, transfer: _Transfer, to: int, written: int) -> None:
        """Put a message in line, of which the first bytes (header included) may have gone out."""
        if to == self._rings.rank:
            self._accept(to, transfer.header, transfer.buffer.bytes().copy())
            transfer.finished = True
            return
        transfer.header_done = min(written, HEADER_BYTES)
        transfer.done = written - transfer.header_done
        self._sends.setdefault(to, deque()).append(transfer)

    def _post(self, transfer: _Transfer) -> None:
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
                self._sleep()

    def _sleep(self) -> None:
        """Sleep until the doorbell rings, or for a moment."""
        doorbell = self._rings.doorbell(self._rings.rank)
        seen = change_sleepers(doorbell, 1)
        try:
            if not self.progress():
                sleep_on_word(doorbell + DOORBELL, seen, 0.05)
        finally:
            change_sleepers(doorbell, -1)

    def _push(self, to: int) -> bool:
        queue = self._sends[to]
        ring, data, doorbell = self._outgoing.get(to) or self._open(to)
        moved = False
        while queue:
            transfer = queue[0]
            if transfer.header_done < HEADER_BYTES:
                written = ring_write(
                    ring,
                    data,
                    self._capacity,
                    address_of(transfer.header) + transfer.header_done,
                    HEADER_BYTES - transfer.header_done,
                )
                transfer.header_done += written
                moved = moved or written > 0
                if transfer.header_done < HEADER_BYTES:
                    break
            written = ring_write(
                ring,
                data,
                self._capacity,
                transfer.buffer.address + transfer.done,
                transfer.buffer.nbytes - transfer.done,
            )
            transfer.done += written
            moved = moved or written > 0
            if transfer.done < transfer.buffer.nbytes:
                break
            queue.popleft()
            transfer.finished = True
        if moved:
            ring_doorbell(doorbell)
        if not queue:
            del self._sends[to]
        return moved

    def _pull(self, source: int, incoming: _Incoming) -> bool:
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
            target = incoming.transfer.buffer.address if incoming.transfer is not None else None
            if target is None:
                assert incoming.stash is not None
                target = address_of(incoming.stash)
            read = ring_read(ring, data, self._capacity, target + incoming.done, nbytes - incoming.done)
            incoming.done += read
            moved = moved or read > 0
            if incoming.done < nbytes:
                break
            self._end(source, incoming)
        if moved:
            ring_doorbell(incoming.doorbell)
        return moved

    def _begin(self, source: int, incoming: _Incoming) -> None:
        """A header is complete: choose where the bytes go."""
        for transfer in self._receives:
            if _matches(transfer, source, int(incoming.header[0])):
                self._receives.remove(transfer)
                if transfer.open:
                    transfer.content = np.empty(int(incoming.header[1]), np.uint8)
                    transfer.buffer = buffer_of(transfer.content, "message", writes=True)
                if transfer.open or self._fits(transfer, source, incoming.header):
                    incoming.transfer = transfer
                    return
                break
        incoming.stash = np.empty(int(incoming.header[1]), np.uint8)

    def _end(self, source: int, incoming: _Incoming) -> None:
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

    def _hand_over(self, transfer: _Transfer, source: int, header: np.ndarray, content: np.ndarray) -> None:
        """Give a whole message to who has asked for it."""
        if transfer.open:
            transfer.content = content
        elif self._fits(transfer, source, header):
            transfer.buffer.bytes()[:] = content
        else:
            return
        self._finish_receive(transfer, source)

    def _fits(self, transfer: _Transfer, source: int, header: np.ndarray) -> bool:
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
        transfer.finished = True
        return False

    def _finish_receive(self, transfer: _Transfer, source: int) -> None:
        transfer.source = source
        transfer.finished = True

    def forget(self, transfer: _Transfer) -> None:
        """Give up a transfer: nothing more is received into its buffer, and nothing of it is begun to be sent."""
        with self._lock:
            if transfer in self._receives:
                self._receives.remove(transfer)
            queue = self._sends.get(transfer.peer) if transfer.peer is not None else None
            if queue is not None and transfer in queue and transfer.header_done == 0:
                queue.remove(transfer)
            for incoming in self._incoming.values():
                if incoming.transfer is transfer:
                    incoming.stash = np.empty(int(incoming.header[1]), np.uint8)
                    incoming.stash[: incoming.done] = transfer.buffer.bytes()[: incoming.done]
                    incoming.transfer = None


def _matches(transfer: _Transfer, source: int, tag: int) -> bool:
    return transfer.peer in (None, source) and transfer.tag == tag
