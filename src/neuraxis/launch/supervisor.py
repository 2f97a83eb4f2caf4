"""Watch started ranks until every one of them has ended, and end them together.

One loop waits for everything at once: deaths, output, results, signals and deadlines. No thread is started.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from neuraxis.launch.ending import Action, Ending, Phase
from neuraxis.launch.output import Output
from neuraxis.launch.processes import LINUX, Guardian, RankProcess, groups_with_members
from neuraxis.launch.signals import ENDING_SIGNALS, SignalRelay

__all__ = ["Supervisor"]

# Nothing depends on this wake-up where pidfds exist; it bounds the wait for a signal that arrives between
# Python's check and the system call.
_TICK_S = 0.25
_TICK_WITHOUT_PIDFD_S = 0.03


class Supervisor:
    """Owns the ranks of one attempt. Use it as a context: on leaving, no process of theirs is left.

    Attributes:
        ranks: in the order in which they were added.
        failures: ranks that failed of themselves, in the order in which that was noticed.
        interrupted: the signal that told the launcher to end, if one did.
    """

    def __init__(
        self,
        guardian: Guardian,
        ending: Ending,
        *,
        grace_s: float,
        prefix: bool = False,
        relay: SignalRelay | None = None,
        waiting: AbstractContextManager[object] | None = None,
    ) -> None:
        """`waiting` is entered around each wait, and only there: what breaks in then breaks nothing."""
        self.ranks: list[RankProcess] = []
        self.failures: list[RankProcess] = []
        self.interrupted: int | None = None
        self.ending = ending
        self._guardian = guardian
        self._grace_s = grace_s
        self._relay = relay
        self._waiting = waiting or nullcontext()
        self._selector = selectors.DefaultSelector()
        self.output = Output(self._selector, prefix=prefix)
        self._readers: dict[int, Callable[[], None]] = {}
        if relay is not None and relay.descriptor is not None:
            self._selector.register(relay.descriptor, selectors.EVENT_READ, lambda: None)

    def add(self, process: RankProcess) -> None:
        self._guardian.watch(process)
        self.ranks.append(process)
        self.output.attach(process)
        if process.pidfd is not None:
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._check(process))

    def add_reader(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `descriptor` can be read, until `remove_reader`, and once more at the end."""
        self._readers[descriptor] = handler
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def remove_reader(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def set_writing(self, descriptor: int, wanted: bool) -> None:
        """Whether the reader of `descriptor` is also called when it can be written to."""
        if descriptor in self._readers:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            if self._selector.get_key(descriptor).events != events:
                self._selector.modify(descriptor, events, self._readers[descriptor])

    def note_failure(self, process: RankProcess) -> None:
        """A rank failed of itself (its process may still be alive)."""
        if self.ending.ranks_act_alone and process not in self.failures:
            self.failures.append(process)
            self.ending.failed(time.monotonic())

    def watch(self) -> None:
        """Return when every rank and every process in its group has ended."""
        while self.anyone_alive():
            self.turn()
        self._sweep()
        self.output.drain()
        for handler in list(self._readers.values()):
            handler()

    def anyone_alive(self) -> bool:
        return any(process.exit is None for process in self.ranks)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                # Ctrl-C in `run`, or an error while starting: nothing can be reported, but time for the
                # ranks' own clean-up is still theirs.
                self.ending.hurry(time.monotonic())
                self.watch()
        finally:
            # Also reached when a second Ctrl-C cuts the grace short.
            self.close()

    def close(self) -> None:
        """Kill what is still alive, and let go of every process and descriptor."""
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            # The pid is free for others once it is reaped, so the guardian must have forgotten it before.
            self._guardian.forget(process)
            process.reap()
        self._selector.close()

    def turn(self, longest_s: float = _TICK_S) -> None:
        """Wait for the next event, at most until the next deadline and no longer than `longest_s`; act on it."""
        self._wait(min(longest_s, self._timeout()))
        for number in self._relay.take() if self._relay is not None else ():
            self._forward(number)
        now = time.monotonic()
        if self.output.broken and self.ending.phase is Phase.RUNNING:
            self.ending.hurry(now)
        self._act(self.ending.step(now, anyone_alive=self.anyone_alive()))
        self.output.flush()

    def pause(self) -> None:
        """Call this before some time without a turn, or the next turn may not tell what happened first.

        epoll lists what becomes ready in that order, but what it told of before keeps its place in the list, ready
        or not, until it has looked once more.
        """
        self._selector.select(0)

    def _wait(self, timeout: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout)  # Windows cannot wait for nothing
        else:
            with self._waiting:
                events = self._selector.select(timeout)
            for key, _ in events:
                if key.fd in self._selector.get_map():  # an earlier handler may have taken it away
                    key.data()
        for process in self.ranks:
            if process.pidfd is None:
                self._check(process)

    def _timeout(self) -> float:
        tick = _TICK_S if all(p.pidfd is not None for p in self.ranks) else _TICK_WITHOUT_PIDFD_S
        if self.ending.deadline is None:
            return tick
        return min(tick, max(0.0, self.ending.deadline - time.monotonic()))

    def _check(self, process: RankProcess) -> None:
        if process.exit is not None:
            return
        status = process.check_exit()
        if status is None:
            return
        if process.pidfd is not None:
            self._selector.unregister(process.pidfd)
        if not status.ok:
            self.note_failure(process)

    def _forward(self, number: int) -> None:
        now = time.monotonic()
        if number in ENDING_SIGNALS:
            if self.interrupted is not None:
                self.ending.hurry(now)
                return
            self.interrupted = number
            self._mark_ended()
            self.ending.told(now)
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
        """End what the ranks left behind in their process groups."""
        if not LINUX:
            # Nobody can tell whether a group is empty: waiting for that would cost the grace each time.
            for process in self.ranks:
                process.kill()
            return
        left = groups_with_members(process.pid for process in self.ranks)
        if not left:
            return
        for process in self.ranks:
            if process.pid in left:
                process.terminate()
        deadline = time.monotonic() + self._grace_s
        while left and time.monotonic() < deadline and self.ending.phase is not Phase.KILLING:
            self._wait(0.02)
            for number in self._relay.take() if self._relay is not None else ():
                self._forward(number)
                if number in ENDING_SIGNALS:
                    deadline = 0.0
            self.output.flush()
            left = groups_with_members(left)
        for process in self.ranks:
            process.kill()
