"""Supervise started ranks until all have ended, and end them together.

One event loop, without threads, waits for deaths, output, results, signals and deadlines. `Shutdown` is the state
machine that decides when ranks get SIGTERM and SIGKILL; it uses neither processes nor clocks:

    running --a rank failed--> settling --timeout, or all ended--> terminating --grace is over--> killing

While settling, survivors of a failure may still report their own errors: a rank that lost its peer notices immediately,
and its error is more informative than a SIGTERM.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from types import TracebackType

from neuraxis.process.output import Output
from neuraxis.process.processes import LINUX, RankProcess, Watchdog, groups_with_members
from neuraxis.process.signals import ENDING_SIGNALS, SignalRelay

__all__ = ["Action", "Phase", "Shutdown", "Supervisor"]

SETTLE_S = 1.5


class Phase(Enum):
    RUNNING = auto()
    SETTLING = auto()
    TERMINATING = auto()
    KILLING = auto()


class Action(Enum):
    """Next action of the supervisor for every rank."""

    TERMINATE = auto()
    KILL = auto()


class Shutdown:
    """State machine of ending ranks; `now` is a monotonic time in seconds."""

    def __init__(self, grace: float, *, settle_s: float = SETTLE_S, timeout_at: float | None = None) -> None:
        self.phase = Phase.RUNNING
        self.timed_out = False
        self._grace = grace
        self._settle_s = settle_s
        self._deadline = timeout_at

    @property
    def deadline(self) -> float | None:
        """Time at which `step` must be called at the latest."""
        return self._deadline

    @property
    def ranks_end_by_themselves(self) -> bool:
        """True until the launcher has sent a signal to end: a rank that ends now does so by itself."""
        return self.phase in (Phase.RUNNING, Phase.SETTLING)

    def failed(self, now: float) -> None:
        """Record that a rank failed by itself."""
        if self.phase is Phase.RUNNING:
            self.phase, self._deadline = Phase.SETTLING, now + self._settle_s

    def signalled(self, now: float) -> None:
        """Record that a signal to end was forwarded to every rank."""
        if self.ranks_end_by_themselves:
            self.phase, self._deadline = Phase.TERMINATING, now + self._grace

    def request_end(self, now: float, timeout_s: float) -> None:
        """Record that the ranks were asked, without a signal, to end within `timeout_s`."""
        if self.ranks_end_by_themselves:
            self.phase, self._deadline = Phase.SETTLING, now + timeout_s

    def end_now(self, now: float) -> None:
        """End the ranks at the next step: SIGTERM if none was sent yet, else SIGKILL."""
        if self.phase is Phase.TERMINATING:
            self._deadline = now
        elif self.ranks_end_by_themselves:
            self.phase, self._deadline = Phase.SETTLING, now

    def step(self, now: float, *, any_rank_alive: bool) -> Action | None:
        due = self._deadline is not None and now >= self._deadline
        if self.phase is Phase.RUNNING and due:
            self.timed_out = True
            self.phase = Phase.SETTLING
        if self.phase is Phase.SETTLING and (due or not any_rank_alive):
            self.phase, self._deadline = Phase.TERMINATING, now + self._grace
            return Action.TERMINATE
        if self.phase is Phase.TERMINATING and due:
            self.phase, self._deadline = Phase.KILLING, None
            return Action.KILL
        return None


# With pidfds this wake-up only bounds the wait for a signal that arrives between Python's check and the system call.
_TICK_S = 0.25
_TICK_WITHOUT_PIDFD_S = 0.03


class Supervisor:
    """Owns the ranks of one attempt; a context manager that leaves no process behind.

    Attributes
    ----------
    ranks : list of RankProcess
        In the order in which they were added.
    failures : list of RankProcess
        Ranks that failed by themselves, in the order of detection.
    interrupted : int or None
        The signal that ended the launcher.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        shutdown: Shutdown,
        *,
        grace: float,
        prefix: bool = False,
        relay: SignalRelay | None = None,
        waiting: AbstractContextManager[object] | None = None,
        is_secondary: Callable[[str], bool] | None = None,
    ) -> None:
        """`waiting` is entered around each wait: the only place where an exception of a signal handler is safe.

        `is_secondary`: see `Output`.
        """
        self.ranks: list[RankProcess] = []
        self.failures: list[RankProcess] = []
        self.interrupted: int | None = None
        self.shutdown = shutdown
        self._watchdog = watchdog
        self._grace = grace
        self._relay = relay
        self._waiting = waiting or nullcontext()
        self._selector = selectors.DefaultSelector()
        self.output = Output(self._selector, prefix=prefix, is_secondary=is_secondary)
        self._readers: dict[int, Callable[[], None]] = {}
        if relay is not None and relay.descriptor is not None:
            self._selector.register(relay.descriptor, selectors.EVENT_READ, lambda: None)

    def add(self, process: RankProcess) -> None:
        self._watchdog.watch(process)
        self.ranks.append(process)
        self.output.attach(process)
        if process.pidfd is not None:
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._check(process))

    def add_reader(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call `handler` when `descriptor` is readable, until `remove_reader`, and once more at the end."""
        self._readers[descriptor] = handler
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def remove_reader(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def set_writing(self, descriptor: int, wanted: bool) -> None:
        """Set whether the handler of `descriptor` is also called when it is writable."""
        if descriptor in self._readers:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            if self._selector.get_key(descriptor).events != events:
                self._selector.modify(descriptor, events, self._readers[descriptor])

    def record_failure(self, process: RankProcess) -> None:
        """Record that a rank failed by itself; its process may still be alive."""
        if self.shutdown.ranks_end_by_themselves and process not in self.failures:
            self.failures.append(process)
            self.shutdown.failed(time.monotonic())

    def watch(self) -> None:
        """Run until every rank and every process in its group has ended."""
        while self.any_rank_alive():
            self.run_once()
        self._sweep()
        self.output.drain()
        for handler in list(self._readers.values()):
            handler()

    def any_rank_alive(self) -> bool:
        return any(process.exit is None for process in self.ranks)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                # Ctrl-C in `run`, or an error while starting: ranks still get time to clean up.
                self.shutdown.end_now(time.monotonic())
                self.watch()
        finally:
            # Also reached when a second Ctrl-C cuts the grace short.
            self.close()

    def close(self) -> None:
        """Kill live ranks, reap all of them, and close every descriptor."""
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            # The pid may be reused once it is reaped, so the watchdog must forget it before.
            self._watchdog.forget(process)
            process.reap()
        self._selector.close()

    def run_once(self, longest_s: float = _TICK_S) -> None:
        """Wait for events until the next deadline, at most `longest_s`, and handle them."""
        self._wait(min(longest_s, self._timeout()))
        for number in self._relay.take() if self._relay is not None else ():
            self._forward(number)
        now = time.monotonic()
        if self.output.broken and self.shutdown.phase is Phase.RUNNING:
            self.shutdown.end_now(now)
        self._act(self.shutdown.step(now, any_rank_alive=self.any_rank_alive()))
        self.output.flush()

    def refresh(self) -> None:
        """Poll once, so that the next `run_once` after a pause sees events in the order in which they happened.

        epoll reports descriptors in the order in which they became ready, but those that it reported before keep their
        place in its list until the next poll.
        """
        self._selector.select(0)

    def _wait(self, timeout: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout)  # select on Windows needs at least one descriptor
        else:
            with self._waiting:
                events = self._selector.select(timeout)
            for key, _ in events:
                if key.fd in self._selector.get_map():  # an earlier handler may have unregistered it
                    key.data()
        for process in self.ranks:
            if process.pidfd is None:
                self._check(process)

    def _timeout(self) -> float:
        tick = _TICK_S if all(p.pidfd is not None for p in self.ranks) else _TICK_WITHOUT_PIDFD_S
        if self.shutdown.deadline is None:
            return tick
        return min(tick, max(0.0, self.shutdown.deadline - time.monotonic()))

    def _check(self, process: RankProcess) -> None:
        if process.exit is not None:
            return
        status = process.check_exit()
        if status is None:
            return
        if process.pidfd is not None:
            self._selector.unregister(process.pidfd)
        self.output.ended(process.rank, ok=status.ok)
        if not status.ok:
            self.record_failure(process)

    def _forward(self, number: int) -> None:
        now = time.monotonic()
        if number in ENDING_SIGNALS:
            if self.interrupted is not None:
                self.shutdown.end_now(now)
                return
            self.interrupted = number
            self._mark_ended()
            self.shutdown.signalled(now)
        for process in self.ranks:
            process.send(number)

    def _act(self, action: Action | None) -> None:
        if action is None:
            return
        self._mark_ended()
        for process in self.ranks:
            if action is Action.TERMINATE:
                process.terminate()
            else:
                process.kill()

    def _mark_ended(self) -> None:
        for process in self.ranks:
            if process.exit is None:
                process.ended_by_launcher = True

    def _sweep(self) -> None:
        """End the processes that ranks left in their process groups."""
        if not LINUX:
            # An empty group cannot be detected, so waiting would take the whole grace each time.
            for process in self.ranks:
                process.kill()
            return
        left = groups_with_members(process.pid for process in self.ranks)
        if not left:
            return
        for process in self.ranks:
            if process.pid in left:
                process.terminate()
        deadline = time.monotonic() + self._grace
        while left and time.monotonic() < deadline and self.shutdown.phase is not Phase.KILLING:
            self._wait(0.02)
            for number in self._relay.take() if self._relay is not None else ():
                self._forward(number)
                if number in ENDING_SIGNALS:
                    deadline = 0.0
            self.output.flush()
            left = groups_with_members(left)
        for process in self.ranks:
            process.kill()
