"""Workers that stay: `Team(function, n, *args)` starts n processes and talks with each over a line of its own.

One loop, that of the supervisor, waits for everything at once: messages of all workers, room to write to them, and
their deaths. It turns only while a call on the team is under way, so what happened between two calls (a death, say) is
known to the next one, and a worker's messages wait meanwhile in its socket. No thread is started.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, NoReturn

from neuraxis.errors import InvalidArgument, LaunchError, LaunchTimeout, LineClosed, LineTimeout, WorkerFailed
from neuraxis.launch.call import pickle_call
from neuraxis.launch.ending import Ending
from neuraxis.launch.environment import Placement, free_port, new_job_secret, rank_environment
from neuraxis.launch.interrupts import Interrupts
from neuraxis.launch.messages import Frame, encode
from neuraxis.launch.options import DEFAULT_GRACE_S
from neuraxis.launch.processes import POSIX, Guardian, RankProcess
from neuraxis.launch.report import first_cause
from neuraxis.launch.supervisor import Supervisor
from neuraxis.launch.team_member import Member, start_member
from neuraxis.launch.worker import refuse_while_starting_up

__all__ = ["Team"]

# A failure is to be known within a second, so this is little: for the cause to show after those who only lost it, and
# for the others between SIGTERM and SIGKILL.
_SETTLE_S = 0.5
_TERMINATE_S = 0.4


class Team:
    """`n` new processes, each of which calls `function(line, *args)` with a `WorkerLine` to this object.

    Each process finds RANK, WORLD_SIZE, MASTER_ADDR and the rest in its environment, so the workers can start a
    `DistributedContext` among themselves. `function`, `args` and messages travel by pickle, so the function must be
    importable; a script that makes a team needs the usual `if __name__ == "__main__":`. The function should
    receive until `LineClosed` is raised, which it need not catch.

    A team is a context manager that closes on leaving. It is not for several threads at once. Ctrl-C interrupts
    a call and nothing else: workers do not notice, and the next call goes on where the interrupted one was. What they
    print goes straight to this process's output. Not on Windows.

    Args:
        env: variables to add to (or to replace in) the workers' environment.
        grace_s: seconds that the workers have to end by themselves when the team is closed.
        start_timeout_s: seconds in which every worker must have imported the function.

    Raises:
        InvalidArgument: the function or an argument cannot be sent; nothing was started.
        LaunchTimeout: a worker did not start in time.
        WorkerFailed: a worker failed before its function was called.

    Every call raises `WorkerFailed` when a worker dies, exits or raises, during the call or before it; all workers have
    been ended then. It names the cause: a worker that only lost another one (PeerLost) does not count while another
    has a cause of its own. When a call's `timeout`, in seconds, is over, `LineTimeout` is raised and the team stays
    usable.
    """

    def __init__(
        self,
        function: Callable[..., object],
        n: int,
        *args: object,
        env: Mapping[str, str] | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        start_timeout_s: float = 60.0,
    ) -> None:
        refuse_while_starting_up("Team()")
        if not POSIX:
            raise LaunchError("a Team needs sockets that a child can inherit, which Windows has not: use run()")
        if n < 1:
            raise InvalidArgument(f"n is {n}: at least one process is needed")
        if not 0 <= grace_s < math.inf:
            raise InvalidArgument(f"grace_s is {grace_s}: it is a number of seconds, 0 or more")
        call = pickle_call(function, args)
        self.n = n
        self._grace_s = grace_s
        self._members: list[Member] = []
        self._arrivals = count()
        self._closed = False
        self._failure: WorkerFailed | None = None
        self._interrupts = Interrupts()
        with self._interrupts:
            self._guardian = Guardian()
            self._supervisor = Supervisor(
                self._guardian,
                Ending(_TERMINATE_S, settle_s=_SETTLE_S),
                grace_s=_TERMINATE_S,
                waiting=self._interrupts.let_through,
            )
            try:
                self._start(call, {**os.environ, **(env or {})}, start_timeout_s)
            except BaseException:
                self._release()
                raise

    def __repr__(self) -> str:
        return f"<Team of {self.n}{', closed' if self._closed else ''}>"

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, in the order of ranks."""
        return tuple(member.process.pid for member in self._members)

    def send(self, rank: int, message: object, timeout: float | None = None) -> None:
        """Send a message to one worker, and return when it is on its way and its arrays may be changed again.

        What fits into the socket's buffer (about 200 kB) does not wait for the worker to receive. A message that was
        only sent in part, because of `timeout` or Ctrl-C, is not taken back: the rest goes out during the next calls.
        """
        self._send([self._member(rank)], message, timeout)

    def broadcast(self, message: object, timeout: float | None = None) -> None:
        """Send the same message to every worker, as `send` does; it is pickled once."""
        self._send(self._members, message, timeout)

    def receive(self, ranks: Iterable[int] | None = None, timeout: float | None = None) -> tuple[int, Any]:
        """The next message of any worker, or of any of those named in `ranks`: its rank, and the message.

        Raises LineClosed if none is left of them that could send: their functions have returned.
        """
        members = self._members if ranks is None else [self._member(rank) for rank in ranks]
        if not members:
            raise InvalidArgument("ranks is empty: name at least one, or None for any")
        found, messages = self._receive(members, 1, timeout)
        return found[0], messages[0]

    def gather(self, timeout: float | None = None) -> list[Any]:
        """The next message of each worker, in the order of ranks. While one is missing, none is taken."""
        return self._receive(self._members, self.n, timeout)[1]

    def close(self) -> None:
        """Close the lines and return when every worker has ended; a second call does nothing.

        A worker that waits for a message, or does so within `grace_s`, ends by itself; then come SIGTERM and SIGKILL,
        and Ctrl-C kills at once. Messages that nobody received are lost. What a worker raises meanwhile, or has
        raised without any call to tell of it, is printed and not raised.
        """
        if self._closed:
            return
        with self._interrupts:
            try:
                for member in self._members:
                    member.stream.stop_writing()
                self._supervisor.ending.leave(time.monotonic(), self._grace_s)
                self._supervisor.watch()
                causes = [member for member in map(self._of, self._supervisor.failures) if member.is_a_cause()]
                if causes:
                    error = causes[0].error()
                    notes = getattr(error, "__notes__", [])
                    print(f"neuraxis: as its team closed, {error}", *notes, sep="\n", file=sys.stderr)
            finally:
                self._release()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, call: bytes, base: Mapping[str, str], timeout: float) -> None:
        place = Placement(self.n, 1, 0, "127.0.0.1", free_port(), new_job_secret())
        for rank in range(self.n):
            member = start_member(rank, self.n, call, rank_environment(place, rank, base), self._arrivals)
            self._members.append(member)
            self._supervisor.add(member.process)
            self._supervisor.add_reader(member.stream.descriptor, partial(self._attend, member))
        try:
            self._turn_until(self._members, lambda member: not member.ready, self.n, timeout, "not started")
        except LineTimeout as error:
            late = ", ".join(map(str, error.ranks))
            text = f"after {timeout} s (start_timeout_s) these of the {self.n} workers had not started: {late}"
            raise LaunchTimeout(text, ranks=error.ranks) from None

    def _member(self, rank: int) -> Member:
        if not 0 <= rank < self.n:
            raise InvalidArgument(f"rank is {rank}: the ranks of this team are 0 to {self.n - 1}")
        return self._members[rank]

    def _of(self, process: RankProcess) -> Member:
        return self._members[process.rank]

    def _send(self, members: Sequence[Member], message: object, timeout: float | None) -> None:
        self._check_usable()
        parts = encode(message)
        try:
            with self._interrupts:
                for member in members:
                    # Not read from yet: what has come from others came perhaps before.
                    member.stream.put(parts)
                    member.stream.write_some()
                    self._supervisor.set_writing(member.stream.descriptor, member.stream.writing)
                self._turn_until(members, _is_written_to, len(members), timeout, "the message was not taken")
        except BaseException:
            for member in members:
                member.stream.keep_rest()
            raise
        finished = [member for member in members if member.finished]
        if finished:
            raise _returned(finished)

    def _receive(self, members: Sequence[Member], number: int, timeout: float | None) -> tuple[list[int], list[Any]]:
        """Wait until `number` of the members have a message; take one of each of those: their ranks, the messages."""
        self._check_usable()
        taken: list[tuple[Member, tuple[int, Frame]]] = []
        try:
            with self._interrupts:
                self._turn_until(members, _has_no_message, number, timeout, "no message came")
                ready = [member for member in members if member.inbox]
                if len(ready) < number:
                    raise _returned([member for member in members if not member.inbox])
                if number == 1:
                    ready = [min(ready, key=lambda member: member.inbox[0][0])]
                messages = _unpickle_first(ready)
                ranks = [member.rank for member in ready]
                taken.extend((member, member.inbox.popleft()) for member in ready)
            return ranks, messages
        except BaseException:
            # Ctrl-C was pressed after the wait, and has been held back until now: nobody will get the messages.
            for member, entry in taken:
                member.inbox.appendleft(entry)
            raise

    def _turn_until(
        self,
        members: Sequence[Member],
        is_late: Callable[[Member], bool],
        number: int,
        timeout: float | None,
        problem: str,
    ) -> None:
        """Let the loop turn, at least once, until `number` of the members are not late, or never will be."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        longest_s = 0.0  # the first turn only looks, for what has failed since the last call above all
        while True:
            self._supervisor.turn(longest_s)
            for member in self._members:
                # The line of one that has gone may be held open by a child of its own.
                if member.process.exit is not None and member.left_silently():
                    self._supervisor.note_failure(member.process)
            if self._supervisor.failures:
                self._fail()
            late = [member for member in members if is_late(member)]
            hopeless = sum(member.finished for member in late)
            if len(members) - len(late) >= number or len(members) - hopeless < number:
                self._supervisor.pause()
                return
            longest_s = deadline - time.monotonic()
            if longest_s <= 0:
                self._supervisor.pause()
                ranks = tuple(member.rank for member in late)
                names = ", ".join(map(str, ranks))
                raise LineTimeout(f"{problem} within {timeout} s: waiting for rank {names} of {self.n}", ranks=ranks)

    def _attend(self, member: Member) -> None:
        """Write to a worker and read from it what is possible now."""
        stream = member.stream
        stream.write_some()
        stream.read_some()
        member.sort_frames()
        if stream.at_end:
            stream.stop_writing()
            self._supervisor.remove_reader(stream.descriptor)
        else:
            self._supervisor.set_writing(stream.descriptor, stream.writing)
        if member.failure is not None or member.left_silently():
            self._supervisor.note_failure(member.process)

    def _fail(self) -> NoReturn:
        """End all workers and raise the first cause."""
        supervisor, ending = self._supervisor, self._supervisor.ending
        try:
            while (
                ending.ranks_act_alone
                and supervisor.anyone_alive()
                and not any(self._of(process).is_a_cause() for process in supervisor.failures)
            ):
                supervisor.turn()
            if ending.ranks_act_alone:
                ending.hurry(time.monotonic())
            supervisor.watch()
        finally:
            culprit = first_cause(supervisor.failures, lambda process: not self._of(process).is_a_cause())
            self._failure = self._of(culprit).error()
            self._release()
        raise copy(self._failure) from self._failure.__cause__

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise copy(self._failure) from self._failure.__cause__
        if self._closed:
            raise LineClosed("this team is closed: make a new one")

    def _release(self) -> None:
        """Kill what is still alive and let go of everything."""
        if self._closed:
            return
        self._closed = True
        self._supervisor.close()
        for member in self._members:
            member.close()
        self._guardian.close()


def _is_written_to(member: Member) -> bool:
    return member.stream.writing


def _has_no_message(member: Member) -> bool:
    return not member.inbox


def _unpickle_first(members: Sequence[Member]) -> list[Any]:
    """The first message of each, which stays; one that cannot be unpickled takes all of them with it."""
    messages = []
    for member in members:
        try:
            messages.append(member.inbox[0][1].message())
        except Exception as error:
            for each in members:
                each.inbox.popleft()
            error.add_note(f"This was a message of rank {member.rank}. It is lost.")
            raise
    return messages


def _returned(members: Sequence[Member]) -> LineClosed:
    names = ", ".join(str(member.rank) for member in members)
    return LineClosed(f"the function of rank {names} has returned: a worker receives until LineClosed is raised")
