"""Long-lived workers: `Team(function, n, *args)` starts n processes and exchanges messages with them over sockets.

The supervisor's event loop, without threads, waits for messages of all workers, for room to write, and for deaths. It
runs only during calls of the team: what happens between two calls, such as a death, is detected by the next one, and
messages of workers wait in their sockets.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from itertools import count
from types import TracebackType
from typing import IO, Any, NoReturn

from neuraxis.deprecation import renamed_arguments
from neuraxis.errors import InvalidArgument, LaunchError, LaunchTimeout, LineClosed, LineTimeout, WorkerFailed
from neuraxis.machine import check_process_count, reporting_exhaustion
from neuraxis.process.environment import Placement, free_port, new_job_secret, rank_environment
from neuraxis.process.function import pickle_call, spawn_rank
from neuraxis.process.function_worker import refuse_during_import
from neuraxis.process.messages import Frame, Kind, MessageStream, encode
from neuraxis.process.pickling import by_value, importable_main
from neuraxis.process.processes import POSIX, RankProcess, Watchdog
from neuraxis.process.script import DEFAULT_GRACE_S, first_cause
from neuraxis.process.signals import Interrupts
from neuraxis.process.supervisor import Shutdown, Supervisor
from neuraxis.process.team_worker import Failure, TeamJob

__all__ = ["Member", "Team", "start_member"]

_CRASH_OUTPUT_BYTES = 8 * 1024
# A failure must be reported within a second, so these are short: the time for the first cause to show after errors of
# ranks that only lost it, and the time between SIGTERM and SIGKILL.
_SETTLE_S = 0.5
_TERMINATE_S = 0.4


@renamed_arguments(grace_s="grace", start_timeout_s="start_timeout")
class Team:
    """`n` worker processes that call `function(line, *args)`, where `line` is a `WorkerLine` to this object.

    The environment of each process has RANK, WORLD_SIZE, MASTER_ADDR and the other variables of torchrun, so the
    workers can open a `DistributedContext`. The function, its arguments and messages are pickled, so the function must
    be importable; a script that makes a team needs the guard `if __name__ == "__main__":`. The function should receive
    until `LineClosed` is raised, which it need not catch.

    A team is a context manager that closes on exit. Use it from one thread at a time. Ctrl-C interrupts a call but not
    the workers, and the next call continues where the interrupted one stopped. Workers print directly to this process's
    output. Not available on Windows.

    Every method raises `WorkerFailed` when a worker dies, exits or raises, during the call or before it; all workers
    were ended then. The error names the first cause: a worker that only lost another one (`PeerLost`) is named only if
    no worker has another error. After `timeout` seconds a call raises `LineTimeout`, and the team stays usable.

    Parameters
    ----------
    function : callable
        Function at the top level of a module.
    n : int
        Number of processes.
    *args
        Further arguments of the function.
    env : mapping, optional
        Variables to add to, or replace in, the environment of the workers.
    grace : float
        Seconds that workers have to end by themselves when the team is closed.
    start_timeout : float
        Seconds within which every worker must have imported the function.

    Raises
    ------
    InvalidArgument
        The function or an argument cannot be pickled, or the machine cannot hold `n` more processes (see
        `neuraxis.machine.check_process_count`); nothing was started.
    ResourceExhausted
        The system refused a process or an open file; workers that had started were ended.
    LaunchTimeout
        A worker did not start in time.
    WorkerFailed
        A worker failed before its function was called.

    Examples
    --------
    >>> from operator import methodcaller
    >>> with Team(methodcaller("send", "ready"), 2) as team:
    ...     team.gather()
    ['ready', 'ready']

    With a function of one's own, in a script::

        from neuraxis import launch

        def double(line):
            while True:
                line.send(2 * line.receive())

        if __name__ == "__main__":
            with launch.Team(double, 2) as team:
                team.broadcast(21)
                print(team.gather())  # [42, 42]
    """

    def __init__(
        self,
        function: Callable[..., object],
        n: int,
        *args: object,
        env: Mapping[str, str] | None = None,
        grace: float = DEFAULT_GRACE_S,
        start_timeout: float = 60.0,
    ) -> None:
        refuse_during_import("Team()")
        if not POSIX:
            raise LaunchError("a Team needs sockets that a child can inherit, which Windows lacks. Use run()")
        check_process_count(n)
        if not 0 <= grace < math.inf:
            raise InvalidArgument(f"grace is {grace}. It must be a number of seconds, 0 or more")
        call = pickle_call(function, args)
        self.n = n
        self._grace = grace
        self._members: list[Member] = []
        self._arrivals = count()
        self._closed = False
        self._failure: WorkerFailed | None = None
        self._interrupts = Interrupts()
        with self._interrupts, reporting_exhaustion("a Team"):
            self._watchdog = Watchdog()
            try:
                self._supervisor = Supervisor(
                    self._watchdog,
                    Shutdown(_TERMINATE_S, settle_s=_SETTLE_S),
                    grace=_TERMINATE_S,
                    waiting=self._interrupts.let_through,
                )
            except BaseException:
                self._watchdog.close()
                raise
            try:
                self._start(call, {**os.environ, **(env or {})}, start_timeout)
            except BaseException:
                self._release()
                raise

    def __repr__(self) -> str:
        return f"<Team of {self.n}{', closed' if self._closed else ''}>"

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, in the order of ranks."""
        return tuple(member.process.pid for member in self._members)

    def send(self, rank: int, message: object, timeout: float | None = None) -> None:
        """Send a message to one worker; on return its arrays may be changed.

        A message that fits into the socket's buffer (about 200 kB) does not wait for the worker to receive it. If
        `timeout` or Ctrl-C stops a partly sent message, later calls send the rest.

        Parameters
        ----------
        rank : int
            The worker.
        message : object
            Any object that can be pickled.
        timeout : float, optional
            Seconds to wait.
        """
        self._send([self._member(rank)], message, timeout)

    def broadcast(self, message: object, timeout: float | None = None) -> None:
        """Send one message to every worker, as `send` does; it is pickled once.

        Parameters
        ----------
        message : object
            What can be pickled.
        timeout : float, optional
            Longest time in seconds; by default there is no limit.
        """
        self._send(self._members, message, timeout)

    def receive(self, ranks: Iterable[int] | None = None, timeout: float | None = None) -> tuple[int, Any]:
        """Return the next message of any worker, or of any in `ranks`.

        Parameters
        ----------
        ranks : iterable of int, optional
            Ranks of workers, by default all.
        timeout : float, optional
            Longest time to wait, in seconds; by default there is no limit.

        Returns
        -------
        rank : int
            Rank of the worker.
        message : object
            The message.

        Raises
        ------
        LineClosed
            The functions of all these workers have returned.
        """
        members = self._members if ranks is None else [self._member(rank) for rank in ranks]
        if not members:
            raise InvalidArgument("ranks is empty. Give at least one, or None for any")
        found, messages = self._receive(members, 1, timeout)
        return found[0], messages[0]

    def gather(self, timeout: float | None = None) -> list[Any]:
        """Return the next message of each worker; none is taken until all have arrived.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds; by default there is no limit.

        Returns
        -------
        list
            Message of each worker, in the order of ranks.
        """
        return self._receive(self._members, self.n, timeout)[1]

    def close(self) -> None:
        """Close the connections and wait until every worker has ended; a second call does nothing.

        A worker that waits for a message within `grace` ends by itself; others get SIGTERM and then SIGKILL. Ctrl-C
        kills them immediately. Messages that were not received are lost. An error of a worker that no call has raised
        is printed.
        """
        if self._closed:
            return
        with self._interrupts:
            try:
                for member in self._members:
                    member.stream.stop_writing()
                self._supervisor.shutdown.request_end(time.monotonic(), self._grace)
                self._supervisor.watch()
                causes = [member for member in map(self._of, self._supervisor.failures) if member.is_cause()]
                if causes:
                    error = causes[0].error()
                    notes = getattr(error, "__notes__", [])
                    print(f"neuraxis: while the team was closing, {error}", *notes, sep="\n", file=sys.stderr)
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
            self._supervisor.add_reader(member.stream.descriptor, partial(self._transfer, member))
        try:
            self._run_until(self._members, lambda member: not member.ready, self.n, timeout, "not started")
        except LineTimeout as error:
            late = ", ".join(map(str, error.ranks))
            text = f"{len(error.ranks)} of {self.n} workers had not started after {timeout} s (start_timeout): {late}"
            raise LaunchTimeout(text, ranks=error.ranks) from None

    def _member(self, rank: int) -> Member:
        if not 0 <= rank < self.n:
            raise InvalidArgument(f"rank is {rank}. The ranks of this team are 0 to {self.n - 1}")
        return self._members[rank]

    def _of(self, process: RankProcess) -> Member:
        return self._members[process.rank]

    def _send(self, members: Sequence[Member], message: object, timeout: float | None) -> None:
        self._check_usable()
        parts = encode(message)
        try:
            with self._interrupts:
                for member in members:
                    # Do not read yet: messages of other workers may have arrived before.
                    member.stream.put(parts)
                    member.stream.write_some()
                    self._supervisor.set_writing(member.stream.descriptor, member.stream.writing)
                self._run_until(members, _is_written_to, len(members), timeout, "the message was not received")
        except BaseException:
            for member in members:
                member.stream.keep_rest()
            raise
        finished = [member for member in members if member.finished]
        if finished:
            raise _returned(finished)

    def _receive(self, members: Sequence[Member], number: int, timeout: float | None) -> tuple[list[int], list[Any]]:
        """Wait until `number` members have a message, take one of each, and return their ranks and the messages."""
        self._check_usable()
        taken: list[tuple[Member, tuple[int, Frame]]] = []
        try:
            with self._interrupts:
                self._run_until(members, _has_no_message, number, timeout, "no message arrived")
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
            # Ctrl-C was deferred until here, so the caller will not get the messages: put them back.
            for member, entry in taken:
                member.inbox.appendleft(entry)
            raise

    def _run_until(
        self,
        members: Sequence[Member],
        is_late: Callable[[Member], bool],
        number: int,
        timeout: float | None,
        problem: str,
    ) -> None:
        """Run the loop, at least once, until `number` of the members are not late, or never will be."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        longest_s = 0.0  # the first iteration only polls, mainly for failures since the last call
        while True:
            self._supervisor.run_once(longest_s)
            for member in self._members:
                # A child of a dead worker may hold the connection open.
                if member.process.exit is not None and member.ended_without_result():
                    self._supervisor.record_failure(member.process)
            if self._supervisor.failures:
                self._fail()
            late = [member for member in members if is_late(member)]
            never = sum(member.finished for member in late)
            if len(members) - len(late) >= number or len(members) - never < number:
                self._supervisor.refresh()
                return
            longest_s = deadline - time.monotonic()
            if longest_s <= 0:
                self._supervisor.refresh()
                ranks = tuple(member.rank for member in late)
                names = ", ".join(map(str, ranks))
                raise LineTimeout(f"{problem} within {timeout} s: waiting for rank {names} of {self.n}", ranks=ranks)

    def _transfer(self, member: Member) -> None:
        """Write to a worker and read from it without blocking."""
        stream = member.stream
        stream.write_some()
        stream.read_some()
        member.sort_frames()
        if stream.at_end:
            stream.stop_writing()
            self._supervisor.remove_reader(stream.descriptor)
        else:
            self._supervisor.set_writing(stream.descriptor, stream.writing)
        if member.failure is not None or member.ended_without_result():
            self._supervisor.record_failure(member.process)

    def _fail(self) -> NoReturn:
        """End all workers and raise the error of the first cause."""
        supervisor, shutdown = self._supervisor, self._supervisor.shutdown
        try:
            while (
                shutdown.ranks_end_by_themselves
                and supervisor.any_rank_alive()
                and not any(self._of(process).is_cause() for process in supervisor.failures)
            ):
                supervisor.run_once()
            if shutdown.ranks_end_by_themselves:
                shutdown.end_now(time.monotonic())
            supervisor.watch()
        finally:
            cause = first_cause(supervisor.failures, lambda process: not self._of(process).is_cause())
            self._failure = self._of(cause).error()
            self._release()
        raise copy(self._failure) from self._failure.__cause__

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise copy(self._failure) from self._failure.__cause__
        if self._closed:
            raise LineClosed("this team is closed. Start a new Team")

    def _release(self) -> None:
        """Kill live workers and free all resources."""
        if self._closed:
            return
        self._closed = True
        self._supervisor.close()
        for member in self._members:
            member.close()
        self._watchdog.close()


def _is_written_to(member: Member) -> bool:
    return member.stream.writing


def _has_no_message(member: Member) -> bool:
    return not member.inbox


def _unpickle_first(members: Sequence[Member]) -> list[Any]:
    """Return the first message of each without removing it; if one cannot be unpickled, drop all of them and raise."""
    messages = []
    for member in members:
        try:
            messages.append(member.inbox[0][1].message())
        except Exception as error:
            for each in members:
                each.inbox.popleft()
            error.add_note(f"This was a message of rank {member.rank}, which is lost.")
            raise
    return messages


def _returned(members: Sequence[Member]) -> LineClosed:
    names = ", ".join(str(member.rank) for member in members)
    return LineClosed(f"the function of rank {names} has returned. A worker should receive until LineClosed is raised")


# --- One worker of a team ---


class Member:
    """A worker and the messages that have arrived from it.

    Attributes
    ----------
    inbox : deque
        Complete messages, each with a number that orders the messages of all members.
    ready : bool
        Its function was called.
    finished : bool
        Its function has returned.
    failure : Failure or None
        Exception of its function.
    """

    def __init__(
        self, process: RankProcess, n: int, stream: MessageStream, crash_output: IO[bytes], arrivals: Iterator[int]
    ) -> None:
        self.rank = process.rank
        self.process = process
        self.stream = stream
        self.inbox: deque[tuple[int, Frame]] = deque()
        self.ready = False
        self.finished = False
        self.failure: Failure | None = None
        self._crash_output = crash_output
        self._arrivals = arrivals
        self._n = n

    def ended_without_result(self) -> bool:
        """Return True if the worker ended, or closed its connection, without reporting how."""
        self._read_rest()
        ended = self.stream.at_end or self.process.exit is not None
        return ended and not self.finished and self.failure is None

    def is_cause(self) -> bool:
        """Return True if the worker failed in a known way, and not only because it lost another one."""
        self._read_rest()
        if self.failure is not None:
            return not self.failure.secondary
        return self.process.exit is not None and not self.process.ended_by_launcher

    def sort_frames(self) -> None:
        """Handle the frames that have arrived."""
        while self.stream.incoming:
            frame = self.stream.incoming.popleft()
            match frame.kind:
                case Kind.MESSAGE:
                    self.inbox.append((next(self._arrivals), frame))
                case Kind.READY:
                    self.ready = True
                case Kind.FINISHED:
                    self.finished = True
                case Kind.FAILED:
                    self.failure = frame.message()

    def error(self) -> WorkerFailed:
        """Return the error that describes how the worker failed."""
        status = self.process.exit
        who = f"rank {self.rank} of {self._n} (process {self.process.pid})"
        if self.failure is not None:
            error = WorkerFailed(
                f"{who} raised {self.failure.summary}",
                rank=self.rank,
                exit_code=1,
                traceback=self.failure.traceback,
            )
            error.add_note(f"Raised in rank {self.rank} of {self._n}:\n{self.failure.traceback.rstrip()}")
            error.__cause__ = self._raised(self.failure)
            return error
        if status is None or self.process.ended_by_launcher:
            return WorkerFailed(f"{who} closed its connection and kept running", rank=self.rank)
        how = f"ended with {status}" if status.signal is None else f"was killed by {status}"
        when = "after its function had returned" if self.finished else "before its function returned"
        text = f"{who} {how} {when}"
        crash_output = self._read_crash_output()
        if status.signal == signal.SIGKILL:
            text += " (an unexpected SIGKILL is often the kernel's, for lack of memory: see dmesg)"
        error = WorkerFailed(
            text, rank=self.rank, exit_code=status.exit_code, signal=status.signal, last_words=crash_output
        )
        if crash_output:
            error.add_note(f"Crash output of rank {self.rank}:\n{crash_output.rstrip()}")
        return error

    def close(self) -> None:
        """Close the connection and the crash output file."""
        self.stream.close()
        self._crash_output.close()

    def _read_rest(self) -> None:
        """Read the messages of a dead worker: its death may be detected before they are read."""
        if self.process.exit is not None:
            while self.stream.read_some():
                pass
            self.sort_frames()

    def _raised(self, failure: Failure) -> BaseException | None:
        if failure.error is None:
            return None
        try:
            error = pickle.loads(failure.error)
        except Exception:
            return None  # its class cannot be imported here; the text remains
        return error if isinstance(error, BaseException) else None

    def _read_crash_output(self) -> str:
        return os.pread(self._crash_output.fileno(), _CRASH_OUTPUT_BYTES, 0).decode("utf-8", "replace")


def start_member(rank: int, n: int, call: bytes, environment: Mapping[str, str], arrivals: Iterator[int]) -> Member:
    """Start a worker process for `call`; `arrivals` numbers the messages of all members."""
    with ExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        crash_output = undo.enter_context(tempfile.TemporaryFile())
        with theirs:
            process = spawn_rank(
                rank,
                "team_worker",
                TeamJob(
                    rank,
                    n,
                    _parent_to_die_with(),
                    theirs.fileno(),
                    crash_output.fileno(),
                    importable_main(),
                    by_value(),
                ),
                call,
                environment=environment,
                pass_fds=(theirs.fileno(), crash_output.fileno()),
            )
        undo.pop_all()
    return Member(process, n, MessageStream(ours), crash_output, arrivals)


def _parent_to_die_with() -> int | None:
    # The kernel sends the parent-death signal when the *thread* that started the process ends. A team made in another
    # thread therefore relies on the watchdog alone.
    return os.getpid() if threading.current_thread() is threading.main_thread() else None
