"""The process of one worker of a `Team`, and its connection to the team.

The parent sends on standard input `sys.path`, a `TeamJob`, and the pickled call. Everything else uses the connection:
READY before the function is called, the user's messages, and FINISHED or FAILED when the function has ended. A process
that ends without one of these was killed or has exited.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import pickle
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuraxis.errors import LineClosed, LineTimeout
from neuraxis.process.function_worker import empty_stdin, failed_result, import_main, load_call
from neuraxis.process.messages import Kind, MessageStream, encode
from neuraxis.process.parent_death import die_with_parent
from neuraxis.process.pickling import follow_parent
from neuraxis.process.script import SECONDARY_ERRORS

__all__ = ["Failure", "TeamJob", "WorkerLine", "main"]


@dataclass(frozen=True)
class TeamJob:
    """Data that a worker needs before it can unpickle the call.

    Attributes
    ----------
    die_with : int or None
        Parent whose death kills the worker (parent-death signal).
    line, crash_output : int
        Descriptors of the socket, and of a file for the interpreter's output on a crash (faulthandler).
    main_module : dict
        Data to import the parent's `__main__`, used only if the call or a message mentions it.
    by_value : bool
        The parent pickles objects of its `__main__` by value, and the worker must do the same.
    """

    rank: int
    n: int
    die_with: int | None
    line: int
    crash_output: int
    main_module: dict[str, Any]
    by_value: bool


@dataclass(frozen=True)
class Failure:
    """Exception of a worker: a summary, the text of the traceback and, if possible, the pickled error.

    `secondary` is True if the worker failed only because it lost another one.
    """

    summary: str
    traceback: str
    error: bytes | None
    secondary: bool


class WorkerLine:
    """Connection of a worker to its `Team`; first argument of the worker's function.

    Use it from one thread at a time.

    Attributes
    ----------
    rank : int
        Rank of this worker.
    n : int
        Number of workers.

    Examples
    --------
    A function for `Team`::

        def double(line):
            while True:
                line.send(2 * line.receive())
    """

    def __init__(self, job: TeamJob) -> None:
        self.rank = job.rank
        self.n = job.n
        self._main_module = job.main_module  # until it has been imported
        self._stream = MessageStream(socket.socket(fileno=job.line))
        atexit.register(self._stream.close)  # last, after what the worker's function registered

    def __repr__(self) -> str:
        return f"<WorkerLine of rank {self.rank} of {self.n}>"

    @property
    def closed(self) -> bool:
        """True if the team was closed or has died and no message is left; does not block."""
        return self.poll() and not self._stream.incoming

    def receive(self, timeout: float | None = None) -> Any:
        """Wait for the next message of the team and return it.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait.

        Returns
        -------
        object
            The message.

        Raises
        ------
        LineClosed
            The team was closed or its process has died. A function that does not catch this ends without an error.
        LineTimeout
            No complete message arrived within `timeout`; a partial one is kept.
        """
        stream = self._stream
        self._wait(lambda: bool(stream.incoming) or stream.at_end, timeout, "no message arrived")
        if not stream.incoming:
            raise LineClosed(
                f"the team has closed the connection to rank {self.rank}. Return from the worker's function"
            )
        frame = stream.incoming.popleft()
        if frame.mentions(b"__main__"):
            self._import_main()
        return frame.message()

    def send(self, message: object, timeout: float | None = None) -> None:
        """Send a message to the team; on return its arrays may be changed.

        A message that fits into the socket's buffer (about 200 kB) is sent even while the team is busy elsewhere; a
        larger one waits until the team makes a call.

        Parameters
        ----------
        message : object
            Any object that can be pickled.
        timeout : float, optional
            Seconds to wait.

        Raises
        ------
        InvalidType
            The message cannot be pickled; nothing was sent.
        LineClosed
            The process of the team has died.
        LineTimeout
            The message was not sent within `timeout`; the next call sends the rest.
        """
        self._send(encode(message), timeout)

    def poll(self) -> bool:
        """Return True if `receive` would return, or raise `LineClosed`, without waiting."""
        self._stream.write_some()
        self._stream.read_some()
        return bool(self._stream.incoming) or self._stream.at_end

    def _import_main(self) -> None:
        if self._main_module:
            main_module, self._main_module = self._main_module, {}
            import_main(main_module)

    def _send(self, parts: list[memoryview], timeout: float | None = None) -> None:
        stream = self._stream
        stream.put(parts)
        try:
            self._wait(lambda: not stream.writing, timeout, "the team did not receive the message")
        except BaseException:
            stream.keep_rest()
            raise
        if stream.broken:
            raise LineClosed(
                f"the process of the team has died, so rank {self.rank} cannot send. Return from the worker's function"
            )

    def _wait(self, done: Callable[[], bool], timeout: float | None, problem: str) -> None:
        stream = self._stream
        deadline = None if timeout is None else time.monotonic() + timeout
        poller = select.poll()
        while True:
            stream.write_some()
            stream.read_some()
            if done():
                return
            left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
            if left_ms is not None and left_ms <= 0:
                raise LineTimeout(f"{problem} within {timeout} s in rank {self.rank}", ranks=(self.rank,))
            poller.register(
                stream.descriptor,
                (0 if stream.at_end else select.POLLIN) | (select.POLLOUT if stream.writing else 0),
            )
            poller.poll(left_ms)


def main() -> None:
    job: TeamJob = pickle.load(sys.stdin.buffer)
    if job.die_with is not None:
        die_with_parent(job.die_with)
    follow_parent(job.by_value)
    call = sys.stdin.buffer.read()
    empty_stdin()
    for descriptor in (job.line, job.crash_output):
        os.set_inheritable(descriptor, False)  # a child of this worker must not hold them open
    faulthandler.enable(job.crash_output)
    line = WorkerLine(job)
    failure = _work(line, job, call)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if failure is None:
            line._send(encode(kind=Kind.FINISHED))
        else:
            line._send(encode(failure, Kind.FAILED))
    except LineClosed:
        pass  # the team has gone
    if failure is not None:
        sys.exit(1)


def _work(line: WorkerLine, job: TeamJob, call: bytes) -> Failure | None:
    # SystemExit propagates: the team then reports the exit code.
    try:
        if b"__main__" in call:
            line._import_main()
        function, arguments = load_call(call)
        line._send(encode(kind=Kind.READY))
        function(line, *arguments)
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, LineClosed) and line.closed:
            return None
        result = failed_result(error)
        summary = f"{type(error).__qualname__}: {error}" if str(error) else type(error).__qualname__
        return Failure(summary, result.traceback, result.error, _is_secondary(error))
    return None


def _is_secondary(error: BaseException) -> bool:
    """Return True if the error, or one of its causes, reports the loss of another rank."""
    seen: set[int] = set()
    origin: BaseException | None = error
    while origin is not None and id(origin) not in seen:
        if isinstance(origin, SECONDARY_ERRORS):
            return True
        seen.add(id(origin))
        origin = origin.__cause__ if origin.__suppress_context__ else origin.__context__
    return False
