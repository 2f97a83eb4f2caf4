"""Subscriptions: a thread passes messages to a handler or a channel, or a loop polls them.

Between Zenoh and the reader is a backlog of bounded depth for each sender and key. Zenoh keeps arrived samples in a
ring that knows neither kinds nor sizes, so the ring has to be drained while a handler runs: the handler's own thread
does so between two messages, and one thread per node (`Drainer`) while a handler takes longer than a few milliseconds.
Waking another thread for every message would take longer than most handlers do.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from neuraxis.arguments import is_whole
from neuraxis.deprecation import renamed_members
from neuraxis.errors import ForkedProcess, InvalidArgument, MeshClosed
from neuraxis.mesh.asynchronous import HandlerCancelled
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.declarations import Declaration
from neuraxis.mesh.messages import DEPTHS, STALE_AFTER_S, Arrival, Decoder, Message, Stream, size_of
from neuraxis.mesh.recovery import RecoveringSubscriber

__all__ = ["Drainer", "Polled", "Subscription", "check_depth", "ring_for"]

_log = logging.getLogger("neuraxis.mesh")
_RING = 1000  # samples in Zenoh's ring
_MAX_BYTES = 256 * 2**20  # in the backlog of one subscription, besides the newest message
_MAX_MESSAGES = 20_000  # in the backlog of one subscription with default depths, of all senders together
_TICK_S = 0.02  # interval at which the drainer works
_IDLE_TICKS = 50  # without a running handler, after which it sleeps
_OBSERVED_S = 1.0  # observation time before a slow reader is reported
_REPORT_S = 60.0  # interval between two reports


def check_depth(depth: int | None) -> int | None:
    if depth is not None and (not is_whole(depth) or depth < 1):
        raise InvalidArgument(f"depth={depth!r}: a number of messages, 1 or more, is expected; None chooses by kind")
    return depth


def ring_for(depth: int | None) -> int:
    """Return the capacity of Zenoh's ring for a subscription of a depth."""
    return max(_RING, depth or 0)


class _ChannelEnded(Exception):
    """The subscriber was undeclared or its session closed: nothing more arrives."""


class _SlowReaderReport:
    """Log with figures that a reader falls behind, at most once a minute."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._since = 0.0  # when the current observation began
        self._next_report = 0.0
        self._arrived_before = self._taken_before = 0
        self._dropped = 0
        self._worst_age_s = 0.0
        self._is_event = False
        self.arrived = self.taken = 0

    def drop(self, stream: Stream, sent_at: float, amount: int = 1) -> None:
        """Note that messages were dropped, except states, which newer ones replace by design."""
        if stream.kind == "state":
            return
        now = time.monotonic()
        if not self._dropped:
            self._since, self._arrived_before, self._taken_before = now, self.arrived, self.taken
        self._dropped += amount
        self._is_event = self._is_event or stream.kind != "stream"
        self._worst_age_s = max(self._worst_age_s, time.time() - sent_at)
        if now - self._since >= _OBSERVED_S:
            self.report(now)

    def report(self, now: float) -> None:
        """Log the figures, unless nothing was dropped or they were logged within the last minute."""
        if not self._dropped or now < self._next_report:
            return
        self._next_report = now + _REPORT_S
        elapsed = now - self._since
        rates = ""
        if elapsed >= _OBSERVED_S:
            arrived, taken = self.arrived - self._arrived_before, self.taken - self._taken_before
            rates = (
                f"; {arrived / elapsed:.1f} arrive per second, and the handler takes {taken / elapsed:.1f} per second"
            )
        _log.log(
            logging.ERROR if self._is_event else logging.WARNING,
            "%s falls behind: %d messages dropped within %.1f s, up to %.2f s old%s. Make the handler faster, publish "
            "less often, or increase the depth.",
            self._where, self._dropped, elapsed, self._worst_age_s, rates,
        )  # fmt: skip
        self._dropped, self._worst_age_s, self._is_event = 0, 0.0, False


class _Backlog(Declaration):
    """A subscriber with its backlog: the newest `depth` unread messages of each sender and key.

    `_order` has one entry per unread message: the stream whose oldest message is next. A message that replaces an older
    one of its stream keeps its place. `_held` counts unread messages and bytes by the first part of the key.
    """

    def __init__(self, expression: str, declaration: Any, decoder: Decoder, depth: int | None, ring: int) -> None:
        super().__init__(declaration)
        self.expression = expression
        self._recovery = declaration if isinstance(declaration, RecoveringSubscriber) else None
        self._decoder = decoder
        self._ledger = decoder.ledger
        self._depth = depth
        self._ring = ring
        self._max_messages = max(_MAX_MESSAGES, ring)
        self._order: deque[Stream] = deque()
        self._bytes = 0
        self._held: dict[str, tuple[int, int]] = {}
        self._slow_reader = _SlowReaderReport(f"subscription {expression!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.expression!r}{', closed' * self.closed}>"

    def counts(self) -> Counts:
        """Return the counts of messages (received, lost, dropped, ...) over all keys."""
        return self._ledger.total()

    def counts_by_key(self) -> dict[str, Counts]:
        """Return the counts of messages by key."""
        return self._ledger.copy()

    def _stop(self) -> None:
        super()._stop()
        self._slow_reader.report(time.monotonic())

    # --- the backlog ------------------------------------------------------------------------------------------

    def _drain(self, *samples_before: Any) -> list[Arrival]:
        """Take all arrived samples from Zenoh's ring, after those that were taken before."""
        samples = list(samples_before)
        receive, limit = self._channel.try_recv, 2 * self._ring
        try:
            while len(samples) < limit and (sample := receive()) is not None:
                samples.append(sample)
        except Exception as error:
            raise _ChannelEnded from error
        was_full = len(samples) >= self._ring
        if self._recovery is not None:
            order = self._recovery.order
            samples = [ordered for sample in samples for ordered in order(sample)]
        return self._admit(samples, was_full)

    def _admit(self, samples: list[Any], was_full: bool) -> list[Arrival]:
        admit = self._decoder.admit
        arrivals = [arrival for sample in samples if (arrival := admit(sample, was_full)) is not None]
        self._slow_reader.arrived += len(arrivals)
        if was_full:
            for stream, *_, sent_at, missing in arrivals:
                if missing:
                    self._slow_reader.drop(stream, sent_at, missing)
        return arrivals

    def _push(self, stream: Stream, item: Any, size: int) -> None:
        """Add an item to the backlog; drop the oldest if it is full."""
        waiting = stream.waiting
        waiting.append((item, size, time.monotonic()))
        self._hold(stream, 1, size)
        if len(waiting) > (self._depth or self._default_depth(stream)):
            self._discard_oldest(stream)
        else:
            self._order.append(stream)
        while (self._bytes > _MAX_BYTES or len(self._order) > self._max_messages) and len(self._order) > 1:
            self._discard_of_largest()

    def _hold(self, stream: Stream, messages: int, size: int) -> None:
        """Account for messages added to the backlog, or removed (negative numbers)."""
        self._bytes += size
        have, nbytes = self._held.get(stream.owner, (0, 0))
        if have + messages:
            self._held[stream.owner] = have + messages, nbytes + size
        else:
            del self._held[stream.owner]

    def _discard_of_largest(self) -> None:
        """Drop the oldest message of the sender with the largest backlog, so that it cannot evict those of others."""
        largest = max(
            self._held, key=lambda owner: self._held[owner][0] / self._max_messages + self._held[owner][1] / _MAX_BYTES
        )
        for index, stream in enumerate(self._order):
            if stream.owner == largest and (index < len(self._order) - 1 or not index):
                del self._order[index]
                return self._discard_oldest(stream)
        return self._discard_oldest(self._order.popleft())  # the sender has only the newest

    def _pop(self, fresh: bool = False) -> tuple[Stream, Any] | None:
        """Take the next item. With `fresh`, drop stale items of kind "stream" if newer ones are waiting."""
        while self._order:
            stream = self._order.popleft()
            if fresh and stream.kind == "stream" and self._depth is None and len(stream.waiting) > 1:
                if time.monotonic() - stream.waiting[0][2] > STALE_AFTER_S:
                    self._discard_oldest(stream)
                    continue
            item, size, _ = stream.waiting.popleft()
            self._hold(stream, -1, -size)
            self._slow_reader.taken += 1
            return stream, item
        return None

    def _default_depth(self, stream: Stream) -> int:
        return DEPTHS[stream.kind]

    def _discard_oldest(self, stream: Stream) -> None:
        item, size, _ = stream.waiting.popleft()
        self._hold(stream, -1, -size)
        if isinstance(item, Message):  # already counted as received
            self._ledger.note(stream.key, "received", -1)
            sent_at, missing = item.sent_at, item.lost
        else:
            *_, sent_at, missing = item
        stream.skipped += 1 + missing
        self._ledger.note(stream.key, "dropped")
        self._slow_reader.drop(stream, sent_at)

    def _pop_arrival(self, fresh: bool = False) -> Arrival | None:
        """Take the next arrival; dropped messages before it count as missing."""
        taken = self._pop(fresh)
        if taken is None:
            return None
        stream, arrival = taken
        return self._after_skipped(arrival) if stream.skipped else arrival

    def _after_skipped(self, arrival: Arrival) -> Arrival:
        stream, *rest, missing = arrival
        skipped, stream.skipped = stream.skipped, 0
        return (stream, *rest, missing + skipped)


@renamed_members(stop="close")
class Polled(_Backlog):
    """A subscription without a thread, as returned by `Node.poll`: `take` returns messages that have arrived.

    Meant for a loop that polls often: waking a thread takes longer than the transport of a message. The depth holds for
    all senders together. It is a context manager; `close` ends it, `counts` returns the numbers of received and dropped
    messages.

    Examples
    --------
    >>> from neuraxis.mesh import Node
    >>> with Node("motor", mesh="example-poll") as motor, motor.poll("vision/objects") as objects:
    ...     print(objects.take())
    None

    In a loop::

        while running:
            while (message := objects.take()) is not None:
                update(message.value)
    """

    def __init__(self, expression: str, declaration: Any, decoder: Decoder, depth: int) -> None:
        super().__init__(expression, declaration, decoder, depth, depth)

    def take(self) -> Message | None:
        """Return the next message, or None if none has arrived. Raises MeshClosed after `close`."""
        try:
            arrivals = self._drain()
        except _ChannelEnded:
            raise MeshClosed(f"the subscription {self.expression!r} is closed. Subscribe again") from None
        for new in arrivals:
            self._push(new[0], new, size_of(new[1]))
            if len(self._order) > self._ring:
                self._discard_oldest(self._order.popleft())
        while (arrival := self._pop_arrival()) is not None:
            message = self._decoder.decode(arrival)
            if message is not None:
                return message
        return None


@renamed_members(stop="close")
class Subscription(_Backlog):
    """A subscription, as returned by `Node.subscribe`.

    With a handler, a thread calls it with each message in turn. Without one, the subscription is a channel: call
    `get(timeout)`, or iterate over it until it is closed. For a slow reader the newest `depth` messages of each sender
    and key are queued; older ones are dropped and counted. It is a context manager; `close` ends it.

    Examples
    --------
    >>> from neuraxis.mesh import Node
    >>> with Node("vision", mesh="example-get") as vision, Node("motor", mesh="example-get") as motor:
    ...     with motor.subscribe("vision/objects") as objects:
    ...         vision.wait_for_subscribers("objects", timeout=10.0)
    ...         vision.publish("objects", {"cup": 0.9})
    ...         objects.get(timeout=10.0).value
    True
    {'cup': 0.9}

    Until it is closed, a loop receives all messages::

        for message in objects:
            print(message.value, message.age)
    """

    def __init__(
        self,
        expression: str,
        declaration: Any,
        decoder: Decoder,
        handler: Callable[[Message], Any] | None,
        depth: int | None,
        history: int,
        drainer: Drainer,
    ) -> None:
        super().__init__(expression, declaration, decoder, depth, ring_for(depth))
        self._handler = handler
        self._history = history
        self._drainer = drainer
        self._handling = False
        self._is_receiving = False  # waits for a sample, or has one that is not in the backlog
        self._lock = threading.Lock()  # guards the decoder, and the backlog of a handler
        self._recovered = threading.Event()
        self._turn = threading.Lock()  # held while one of two threads calls the handler
        self._waiters: set[Callable[[], Any]] = set()
        if handler is not None:
            drainer.add(self)
        self._start(expression, self._queue_messages if handler is None else self._call_handler)
        if self._recovery is not None:
            self._start(f"recovery of {expression}", self._recover)
            if handler is not None:
                self._start(f"recovered {expression}", self._handle_recovered)

    def get(self, timeout: float | None = None) -> Message:
        """Return the next message.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None waits until a message arrives or the subscription is closed.

        Raises
        ------
        TimeoutError
            No message arrived in time.
        MeshClosed
            The subscription is closed, and all messages have been read.
        """
        return self._get(timeout)

    def _get(self, timeout: float | None = None, fresh: bool = False) -> Message:
        deadline = None if timeout is None else time.monotonic() + timeout
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"the subscription {self.expression!r} belongs to the parent process. Subscribe in this process"
            )
        with self._changed:
            while (message := self._take_queued(fresh)) is None:
                if self.closed:
                    raise MeshClosed(f"the subscription {self.expression!r} is closed. Subscribe again")
                # In slices, since Ctrl-C cannot interrupt a lock on every platform.
                left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"no message arrived on {self.expression!r} within {timeout:g} s")
                self._changed.wait(left)
            return message

    def get_nowait(self) -> Message | None:
        """Return the next message, or None. Stale messages of kind "stream" are skipped, as in a loop."""
        with self._changed:
            return self._take_queued(fresh=True)

    def _add_waiter(self, callback: Callable[[], Any]) -> None:
        """Call a function, from the subscription's thread, for each message and on close, until `_remove_waiter`."""
        with self._changed:
            self._waiters.add(callback)
            if self._order or self.closed:
                callback()

    def _remove_waiter(self, callback: Callable[[], Any]) -> None:
        """Stop calling a function that was passed to `_add_waiter`."""
        with self._changed:
            self._waiters.discard(callback)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self._get(fresh=True)
            except MeshClosed:
                return

    def _drain_while_handling(self) -> bool:
        """Move arrived samples to the backlog while the handler runs; return True if it runs."""
        if not self._handling:
            return False
        with self._lock:
            if self._handling and not self._is_receiving and not self.closed:
                try:
                    self._push_all(self._drain())
                except Exception:  # undeclared meanwhile
                    return False
        return True

    # --- helpers ----------------------------------------------------------------------------------------------

    def _call_handler(self) -> None:
        receive, is_shared = self._channel.recv, self._recovery is not None
        try:
            while not self.closed:
                # `_handle_recovered` reads `_is_receiving` after `_recover` has added to the backlog, and this thread
                # sets that before it reads `_order`. So one of them sees that there is a message to handle.
                self._is_receiving = True
                try:
                    taken = [] if self._order else [receive()]
                except Exception:  # undeclared, or the session is closed
                    break
                try:
                    if is_shared and not self._turn.acquire(blocking=False):  # the other thread calls the handler
                        with self._lock:
                            self._push_all(self._drain(*taken))
                            self._is_receiving = False
                        taken.clear()
                        self._turn.acquire()
                    try:
                        arrival = self._next_arrival(taken)
                        taken.clear()  # release a large payload before waiting for the next
                        if arrival is not None:
                            self._handle(arrival)
                            del arrival
                    finally:
                        self._handling = False
                        if is_shared:
                            self._turn.release()
                except _ChannelEnded:
                    break
                except Exception as error:  # one message must not end the thread
                    self._ledger.log_failure("taking a message failed", error)
        finally:
            self._end()

    def _recover(self) -> None:
        """Pass on the recovered messages of a subscription of several keys."""
        recovery = self._recovery
        assert recovery is not None
        try:
            while recovery.wait():
                try:
                    with self._lock:
                        arrivals = self._admit(recovery.collect(), False)
                        if self._handler is not None:
                            self._push_all(arrivals)
                        else:
                            for arrival in arrivals:
                                self._queue_message(arrival)
                    recovery.ask()
                    if arrivals:
                        self._recovered.set()
                except Exception as error:  # one message must not end the thread
                    self._ledger.log_failure("recovering messages failed", error)
        finally:
            self._recovered.set()

    def _handle_recovered(self) -> None:
        """Call the handler with recovered messages, as long as the other thread waits for a sample."""
        while not self.closed:
            self._recovered.wait()
            self._recovered.clear()
            try:
                while self._order and self._is_receiving and not self.closed:
                    self._handle_next()
            except Exception as error:
                self._ledger.log_failure("handling a recovered message failed", error)

    def _handle_next(self) -> None:
        """Call the handler with the next message of the backlog."""
        with self._turn:
            with self._lock:
                arrival = self._pop_arrival(fresh=True)
                self._handling = arrival is not None
            try:
                if arrival is not None:
                    self._handle(arrival)
            finally:
                self._handling = False

    def _next_arrival(self, taken: list[Any]) -> Arrival | None:
        """Return the next message for the handler, from the samples just taken and the backlog."""
        with self._lock:
            try:
                more = self._channel.try_recv()
            except Exception as error:
                raise _ChannelEnded from error
            if more is not None:
                taken.append(more)
            self._is_receiving = False
            keeps_up = len(taken) == 1 and not self._order
            if keeps_up and (self._recovery is None or taken[0].source_info is None):
                arrival = self._decoder.admit(taken[0])
                if arrival is not None:
                    self._slow_reader.arrived += 1
                    self._slow_reader.taken += 1
                    if arrival[0].skipped:
                        arrival = self._after_skipped(arrival)
            else:
                self._push_all(self._drain(*taken))
                arrival = self._pop_arrival(fresh=True)
            self._handling = arrival is not None
            return arrival

    def _handle(self, arrival: Arrival) -> None:
        handler = self._handler
        assert handler is not None
        if self._drainer.is_asleep:
            try:
                self._drainer.wake()
            except Exception as error:  # without the drainer, this thread drains the ring between two messages
                self._ledger.log_failure("the thread that drains the ring could not be started", error)
        message = self._decoder.decode(arrival)
        if message is None:
            return
        try:
            handler(message)
        except HandlerCancelled as error:
            if not self.closed:
                self._ledger.note(message.key, "handler_errors", why=error)
        except BaseException as error:  # SystemExit as well: it must not end this thread
            self._ledger.note_error(message.key, error)
        with self._lock:
            self._handling = False

    def _push_all(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._push(arrival[0], arrival, size_of(arrival[1]))

    def _queue_messages(self) -> None:
        receive = self._channel.recv
        try:
            while not self.closed:
                try:
                    first = receive()
                except Exception:  # undeclared, or the session is closed
                    break
                try:
                    with self._lock:
                        for arrival in self._drain(first):
                            self._queue_message(arrival)
                except _ChannelEnded:
                    break
                except Exception as error:  # one message must not end the thread
                    self._ledger.log_failure("queuing a message failed", error)
        finally:
            self._end()

    def _queue_message(self, arrival: Arrival) -> None:
        message = self._decoder.decode(arrival)
        if message is not None:
            with self._changed:
                self._push(arrival[0], message, len(arrival[1].payload))
                self._changed.notify()
                self._call_waiters()

    def _call_waiters(self) -> None:
        for waiter in tuple(self._waiters):
            try:
                waiter()
            except Exception as error:
                self._ledger.log_failure("a function passed to _add_waiter raised", error)

    def _take_queued(self, fresh: bool) -> Message | None:
        taken = self._pop(fresh and not self.closed)
        if taken is None:
            return None
        stream, message = taken
        if stream.skipped:
            message = msgspec.structs.replace(message, lost=message.lost + stream.skipped)
            stream.skipped = 0
        return message  # type: ignore[no-any-return]

    def _default_depth(self, stream: Stream) -> int:
        depth = DEPTHS[stream.kind]
        return depth if stream.kind == "stream" else max(depth, self._history)

    def _end(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
            self._call_waiters()
        self._recovered.set()


class Drainer:
    """A thread of a node that drains Zenoh's rings for subscriptions whose handlers are running.

    It sleeps while no handler runs, and drains every 20 ms while some do.
    """

    def __init__(self, name: str) -> None:
        self.is_asleep = True
        self._name = name
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = (*(one for one in self._subscriptions if not one.closed), subscription)

    def wake(self) -> None:
        with self._lock:
            self.is_asleep = False
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name=f"neuraxis {self._name} drains", daemon=True)
                self._thread.start()
        self._woken.set()

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
        self._woken.set()

    def _wait_for_end(self, deadline: float) -> None:
        if self._thread is not None and not self._runs_here():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _runs_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        idle = 0
        while not self._closed:
            # A handler sets `_handling` before it reads `is_asleep`, and this thread sets `is_asleep` before it reads
            # `_handling`. So neither misses the other.
            self.is_asleep = idle > _IDLE_TICKS
            running = [one._drain_while_handling() for one in self._subscriptions]
            if any(running):
                idle, self.is_asleep = 0, False
            idle += 1
            if self.is_asleep:
                self._woken.wait()
                idle = 0
            self._woken.clear()
            if not self._closed:
                self._woken.wait(_TICK_S)
