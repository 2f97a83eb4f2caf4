"""Channels of a node for remote calls over Zenoh: publishers, reply channels, and arrays in shared memory.

**Reply channels.** A thread that waits for a reply blocks in Zenoh: polling would take the core from the threads that
bring the reply, unless there are many cores. Blocking in Zenoh has no timeout. So each blocked thread records its
deadline, and one timer thread wakes expired ones with an empty message to this node itself. A reply that arrives in
time costs nothing but recording a time.

**Publishers.** Each endpoint and channel has a publisher, which the threads of this process share. A publisher
must not be undeclared while another thread publishes through it. So the last thread that uses a retired publisher
(its endpoint is unreachable, or there are too many) undeclares it; later threads declare a new one. If the other side
does not read, Zenoh blocks a publishing thread until it drops the link, after about a second. A message that may block
and has less time is published by another thread.

**Shared arrays.** Large arrays for a receiver on this host are placed in shared memory instead of sent
(`neuraxis.comm.backends.shm.zero_copy`). The small part of the message is sent as usual with the description of the
memory attached, so that a receiver that cannot read the memory can still reply with an error. The first large message
to an endpoint is sent whole, with a probe of shared memory.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from neuraxis.comm.backends.shm.zero_copy import BufferHandle, BufferReceiver, BufferSender
from neuraxis.machine import usable_cores
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import INBOX, Endpoint, not_accepted
from neuraxis.threads import Threads
from neuraxis.wire.objects import Unreadable

__all__ = ["Publishers", "ReplyChannels", "SharedArrays"]

_SHARED_BYTES = 131072  # smaller messages are faster to send than to share
_CLOSE_S = 0.5
_MAX_PUBLISHERS = 1000
_LONGEST_PUT_S = 2.0  # longer than Zenoh blocks a publishing thread: see mesh.topology
_BLOCKING_BYTES = 65536  # a message of this size can fill the buffers between two nodes
_MANY_CORES = 8
_SPIN_S = 2e-4  # with many cores: quick replies arrive within this time, and waking a thread takes about as long
_SLEEP_S = 0.05  # longest sleep at a time
_LINGER_S = 1.0  # how long the timer thread lives when no thread is blocked
_CHANNEL_MESSAGES = 100


class SharedArrays:
    """Arrays in shared memory that one endpoint sends and receives. A message has at most `largest` bytes."""

    def __init__(self, largest: int) -> None:
        self._sender = BufferSender()
        self._receiver = BufferReceiver(largest)

    def share(self, to: Endpoint, frame: Frame) -> bytes | None:
        """Place the arrays of a large frame in shared memory, if the endpoint can read it; return the attachment."""
        if frame.shared is not None:
            return frame.shared.handle
        if frame.size < _SHARED_BYTES:
            return None
        if not self._sender.reaches(to):
            return self._sender.probe(to)
        if not frame.pieces:
            return None
        buffer = self._sender.share(to, [piece for _, piece in frame.pieces])
        if buffer is None:
            return None
        frame.share(buffer)
        return buffer.handle

    def detach(self, to: Endpoint, frame: Frame) -> None:
        """Copy the arrays of a frame, to shared memory if possible."""
        if frame.size >= _SHARED_BYTES and self._sender.reaches(to):
            self.share(to, frame)
        frame.joined()

    def received(self, content: bytes, attached: bytes) -> bytes | Frame:
        """Return a received message with its shared arrays. If they cannot be read, decoding raises the reason."""
        arrays: Sequence[Any]
        try:
            handle = BufferHandle.unpack(attached)
            if not handle.lengths:
                self._read_probe(handle)
                return content
            arrays = self._receiver.receive(handle)
        except Unreadable as error:
            arrays = [_Missing(error)]
        except (OSError, MemoryError) as error:  # too many open files, for example: the caller gets this error
            arrays = [_Missing(Unreadable(f"the arrays in shared memory cannot be opened: {error!r}"))]
        frame = Frame(content)
        frame.pieces = [(0, array) for array in arrays]
        return frame

    def _read_probe(self, probe: BufferHandle) -> None:
        """Read a probe, which shows the sender that this endpoint can read its shared memory."""
        with suppress(Unreadable, OSError, MemoryError):
            self._receiver.receive(probe)

    def drop(self, endpoint: Endpoint) -> None:
        """Free the memory shared with an endpoint that is unreachable."""
        self._sender.drop(endpoint)
        self._receiver.close_idle()

    def close(self) -> None:
        self._sender.close(_CLOSE_S)
        self._receiver.close()


class _Missing:
    """Placeholder of arrays that cannot be read."""

    def __init__(self, error: Unreadable) -> None:
        self._error = error

    @property
    def data(self) -> memoryview:
        raise self._error


class _Retired(Exception):
    """The publisher must not be used any more."""


class _Publisher:
    """A Zenoh publisher with a count of the threads that use it.

    A thread registers as a user before it checks whether the publisher is retired, and `retire` sets the flag before it
    checks for users. So either the user sees the flag, or `retire` sees the user.
    """

    def __init__(self, declared: Any) -> None:
        self._declared = declared
        self._users: list[None] = []
        self._retired = False
        self._ending = threading.Lock()
        self._ended = False

    @property
    def in_use(self) -> bool:
        return bool(self._users)

    def put(self, payload: Any, attachment: bytes | None) -> None:
        self._users.append(None)
        try:
            if self._retired:
                raise _Retired
            if attachment is None:
                self._declared.put(payload)
            else:
                self._declared.put(payload, attachment=attachment)
        finally:
            self._users.pop()
            if self._retired:
                self._end()

    def retire(self) -> None:
        self._retired = True
        self._end()

    def _end(self) -> None:
        with self._ending:
            last = not self._users and not self._ended
            self._ended = self._ended or last
        if last:
            self._declared.undeclare()


class Publishers:
    """The publishers of one node by endpoint and channel; `declare` declares one."""

    def __init__(self, declare: Callable[[Endpoint, int], Any]) -> None:
        self._declare = declare
        self._lock = threading.Lock()
        self._publishers: OrderedDict[tuple[Endpoint, int], _Publisher] = OrderedDict()  # the newest at the end
        self._threads = Threads("neuraxis rpc put")

    def __len__(self) -> int:
        return len(self._publishers)

    def must_not_wait(self, to: Endpoint, channel: int, nbytes: int, timeout: float) -> bool:
        """Return True if publishing may block for longer than `timeout`: call `put_within` with a private copy then."""
        if timeout >= _LONGEST_PUT_S:
            return False
        publisher = self._publishers.get((to, channel))
        return nbytes >= _BLOCKING_BYTES or (publisher is not None and publisher.in_use)

    def put(self, to: Endpoint, channel: int, payload: Any, attachment: bytes | None = None) -> None:
        """Publish a message with an optional attachment. Errors of Zenoh are raised."""
        while True:
            publisher = self._publishers.get((to, channel)) or self._make(to, channel)
            try:
                publisher.put(payload, attachment)
                return
            except _Retired:  # after it was looked up
                with self._lock:
                    if self._publishers.get((to, channel)) is publisher:
                        del self._publishers[to, channel]

    def put_within(
        self, timeout: float, to: Endpoint, channel: int, payload: Any, attachment: bytes | None = None
    ) -> None:
        """Publish in another thread; raise CallTimeout if that takes longer, while the thread continues."""
        done = threading.Event()
        failure: list[Exception] = []

        def work() -> None:
            try:
                self.put(to, channel, payload, attachment)
            except Exception as error:
                failure.append(error)
            done.set()

        self._threads.run(work)
        if not done.wait(timeout):
            raise not_accepted(to, timeout)
        if failure:
            raise failure[0]

    def _make(self, to: Endpoint, channel: int) -> _Publisher:
        made = _Publisher(self._declare(to, channel))
        spare = None
        with self._lock:
            publisher = self._publishers.setdefault((to, channel), made)
            self._publishers.move_to_end((to, channel))
            if len(self._publishers) > _MAX_PUBLISHERS:
                _, spare = self._publishers.popitem(last=False)
        if publisher is not made:
            made.retire()
        if spare is not None:
            spare.retire()
        return publisher

    def drop(self, endpoint: Endpoint) -> None:
        """Retire the publishers to an endpoint that is unreachable."""
        with self._lock:
            dropped = [self._publishers.pop(key) for key in list(self._publishers) if key[0] == endpoint]
        for publisher in dropped:
            publisher.retire()

    def close(self) -> None:
        """Wait for threads that still publish; the publishers end with their session."""
        self._threads.close(_CLOSE_S)


class ReplyChannels:
    """The reply channels of one node, with the timer thread that wakes expired waits.

    Parameters
    ----------
    session : zenoh.Session
        The session of the node.
    key : callable
        Returns the key of a channel by its number, and optionally a sender.
    me : str
        The name of this node, as the sender of wake-up messages.
    message : callable
        Returns the content of a sample; None to drop it.
    """

    def __init__(self, session: Any, key: Callable[..., str], me: str, message: Callable[[Any], Any]) -> None:
        self._session = session
        self._key = key
        self._me = me
        self._message = message
        self._numbers = itertools.count(INBOX + 1)
        self._channels: list[_ReplyChannel] = []
        self.spin_s = _SPIN_S if usable_cores() >= _MANY_CORES else 0.0
        self._threads = Threads("neuraxis rpc timer")
        self._lock = threading.Lock()
        self._runs = False
        self._rescheduled = threading.Event()
        self.wakes_at = math.inf  # when the timer thread wakes up next
        self._closed = False

    def open(self) -> _ReplyChannel:
        """Return a reply channel with a new number."""
        import zenoh

        number = next(self._numbers)
        # A ring: late replies may find no reader, and the newest reply is the awaited one.
        ring: Any = zenoh.handlers.RingChannel(_CHANNEL_MESSAGES)
        subscriber = self._session.declare_subscriber(self._key(number), ring)
        channel = _ReplyChannel(self, number, subscriber, self._message)
        with self._lock:
            self._channels.append(channel)
        return channel

    def reschedule(self) -> None:
        """Wake the timer thread, because a deadline is earlier than its next wake-up."""
        with self._lock:
            self._rescheduled.set()
            begins = not self._runs
            self._runs = True
        if begins:
            try:
                self._runs = self._threads.run(self._run)
            except BaseException:
                self._runs = False
                raise

    def _run(self) -> None:
        try:
            self._run_timer()
        except BaseException:
            self._runs, self.wakes_at = False, math.inf
            raise

    def _run_timer(self) -> None:
        idle_since = time.monotonic()
        while not self._closed:
            # A thread that blocks from here on reschedules, so its deadline is seen in this or the next iteration.
            self.wakes_at = math.inf
            self._rescheduled.clear()
            now = time.monotonic()
            next_s = _SLEEP_S
            for channel in list(self._channels):
                until = channel.blocked_until
                if until == math.inf:
                    continue
                idle_since = now
                if until <= now:
                    self._wake(channel)
                else:
                    next_s = min(next_s, until - now)
            if now > idle_since + _LINGER_S:
                with self._lock:
                    if not self._rescheduled.is_set():
                        self._runs = False
                        return
                continue
            self.wakes_at = now + next_s
            self._rescheduled.wait(next_s)

    def _wake(self, channel: _ReplyChannel) -> None:
        import zenoh

        try:
            key = self._key(channel.number, self._me)
            self._session.put(key, b"", allowed_destination=zenoh.Locality.SESSION_LOCAL)
        except Exception:  # the session is closed, which wakes all
            pass

    def stop(self) -> None:
        """Wake all blocked threads."""
        for channel in list(self._channels):
            if channel.blocked_until != math.inf:
                self._wake(channel)

    def close(self) -> None:
        """End the timer thread."""
        self._closed = True
        self._rescheduled.set()
        self._threads.close(_CLOSE_S)


class _ReplyChannel:
    """A `ReplyChannel` over Zenoh. Its subscriber ends with the session."""

    def __init__(self, channels: ReplyChannels, number: int, subscriber: Any, message: Callable[[Any], Any]) -> None:
        self.number = number
        self.blocked_until = math.inf
        self._channels = channels
        self._subscriber = subscriber
        self._message = message
        self._receive = subscriber.handler.recv
        self._try_receive = subscriber.handler.try_recv

    def receive(self, source: Endpoint, timeout: float) -> Any:
        try:
            sample = self._spin() if self._channels.spin_s else None
            if sample is None:
                sample = self._block(min(timeout, _SLEEP_S))
        except Exception:  # the session is closed
            return None
        # An empty sample is a wake-up, perhaps a late one.
        return None if sample is None or not len(sample.payload) else self._message(sample)

    def _spin(self) -> Any:
        receive, monotonic, yield_core = self._try_receive, time.monotonic, os.sched_yield
        sample = receive()
        end = monotonic() + self._channels.spin_s
        while sample is None and monotonic() < end:
            yield_core()
            sample = receive()
        return sample

    def _block(self, limit_s: float) -> Any:
        until = self.blocked_until = time.monotonic() + limit_s
        try:
            if until < self._channels.wakes_at:
                self._channels.reschedule()
            sample = self._receive()
        finally:
            self.blocked_until = math.inf
        return sample
