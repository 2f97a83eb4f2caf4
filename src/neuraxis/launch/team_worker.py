"""The process of one worker of a `Team`, and the line by which it talks to the team.

The parent sends, one after the other on standard input, `sys.path`, a `TeamJob`, and the pickled call. All else
goes over the line: READY when the function is about to be called, the user's messages, and FINISHED or FAILED when it
has ended. A process that ends without one of the two was killed or has exited.
"""

from __future__ import annotations

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
from neuraxis.launch.messages import Kind, MessageStream, encode
from neuraxis.launch.report import FOLLOWER_ERRORS
from neuraxis.launch.tether import tether
from neuraxis.launch.worker import empty_stdin, failed_answer, import_main, load_call

__all__ = ["Failure", "TeamJob", "WorkerLine", "main"]


@dataclass(frozen=True)
class TeamJob:
    """What a worker must know before it can unpickle the call.

    Attributes:
        tethered_to: the process to die with, if the kernel can be asked for that.
        line, last_words: descriptors: a socket, and a file for what the interpreter says when it crashes.
        main_module: what makes the parent's `__main__` importable; needed only if the call or a message mentions it.
    """

    rank: int
    n: int
    tethered_to: int | None
    line: int
    last_words: int
    main_module: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """What a worker raised: in words, as text of a traceback, and, if it can be sent, pickled.

    `follower` says that it failed only because it lost another one.
    """

    summary: str
    traceback: str
    error: bytes | None
    follower: bool


class WorkerLine:
    """A worker's line to its team; the first argument of the worker's function. Not for several threads at once.

    Attributes:
        rank: which worker this is.
        n: how many there are.
    """

    def __init__(self, job: TeamJob) -> None:
        self.rank = job.rank
        self.n = job.n
        self._main_module = job.main_module  # until it has been imported
        self._stream = MessageStream(socket.socket(fileno=job.line))

    def __repr__(self) -> str:
        return f"<WorkerLine of rank {self.rank} of {self.n}>"

    @property
    def closed(self) -> bool:
        """Whether the team has closed the line, or died, and nothing is left to receive. Looks, and does not wait."""
        return self.poll() and not self._stream.incoming

    def receive(self, timeout: float | None = None) -> Any:
        """The next message of the team, waited for.

        Raises:
            LineClosed: the team was closed, or its process has died. A function that does not catch this ends well.
            LineTimeout: nothing came within `timeout` seconds; part of a message is kept.
        """
        stream = self._stream
        self._wait(lambda: bool(stream.incoming) or stream.at_end, timeout, "no message came")
        if not stream.incoming:
            raise LineClosed(f"the team has closed the line to rank {self.rank}: return from the worker's function")
        frame = stream.incoming.popleft()
        if frame.mentions(b"__main__"):
            self._import_main()
        return frame.message()

    def send(self, message: object, timeout: float | None = None) -> None:
        """Send a message to the team, and return when it is on its way and its arrays may be changed again.

        It is on its way even if the team is busy elsewhere, as long as it fits into the socket's buffer (about 200 kB);
        a larger one waits for the team to make a call.

        Raises:
            InvalidType: it cannot be pickled; nothing was sent.
            LineClosed: the process of the team has died.
            LineTimeout: it could not be sent within `timeout` seconds. What is left goes out with the next call.
        """
        self._send(encode(message), timeout)

    def poll(self) -> bool:
        """Whether `receive` would return, or raise `LineClosed`, at once."""
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
            self._wait(lambda: not stream.writing, timeout, "the team did not take the message")
        except BaseException:
            stream.keep_rest()
            raise
        if stream.broken:
            raise LineClosed(f"the process to which rank {self.rank} sends has gone")

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
    if job.tethered_to is not None:
        tether(job.tethered_to)
    call = sys.stdin.buffer.read()
    empty_stdin()
    for descriptor in (job.line, job.last_words):
        os.set_inheritable(descriptor, False)  # a child of this worker must not hold them open
    faulthandler.enable(job.last_words)
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
        pass  # nobody is left to be told
    if failure is not None:
        sys.exit(1)


def _work(line: WorkerLine, job: TeamJob, call: bytes) -> Failure | None:
    # SystemExit passes through: the exit code is then all that the team learns.
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
        answer = failed_answer(error)
        summary = f"{type(error).__qualname__}: {error}" if str(error) else type(error).__qualname__
        return Failure(summary, answer.traceback, answer.error, _lost_another(error))
    return None


def _lost_another(error: BaseException) -> bool:
    """Whether the error, or one that it came from, says that another rank was lost."""
    seen: set[int] = set()
    origin: BaseException | None = error
    while origin is not None and id(origin) not in seen:
        if isinstance(origin, FOLLOWER_ERRORS):
            return True
        seen.add(id(origin))
        origin = origin.__cause__ if origin.__suppress_context__ else origin.__context__
    return False
