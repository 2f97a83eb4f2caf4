"""One worker of a `Team`, seen from the team: its process, its line, and what became of it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import IO

from neuraxis.errors import WorkerFailed
from neuraxis.launch.call import importable_main
from neuraxis.launch.messages import Frame, Kind, MessageStream
from neuraxis.launch.processes import RankProcess
from neuraxis.launch.spawning import spawn_rank
from neuraxis.launch.team_worker import Failure, TeamJob

__all__ = ["Member", "start_member"]

_LAST_WORDS = 8 * 1024


class Member:
    """A worker and what has arrived from it.

    Attributes:
        inbox: messages that have arrived whole, each with a number that tells which came first.
        ready: its function was called.
        finished: its function has returned.
        failure: what its function raised, if it did.
    """

    def __init__(
        self, process: RankProcess, n: int, stream: MessageStream, last_words: IO[bytes], arrivals: Iterator[int]
    ) -> None:
        self.rank = process.rank
        self.process = process
        self.stream = stream
        self.inbox: deque[tuple[int, Frame]] = deque()
        self.ready = False
        self.finished = False
        self.failure: Failure | None = None
        self._last_words = last_words
        self._arrivals = arrivals
        self._n = n

    def left_silently(self) -> bool:
        """Whether it is known that nothing more comes from it, though it has not said that it ended."""
        self._read_what_is_left()
        ended = self.stream.at_end or self.process.exit is not None
        return ended and not self.finished and self.failure is None

    def is_a_cause(self) -> bool:
        """Whether it is known how it failed, and that it did not merely lose another one."""
        self._read_what_is_left()
        if self.failure is not None:
            return not self.failure.follower
        return self.process.exit is not None and not self.process.ended_by_launcher

    def sort_frames(self) -> None:
        """Act on the frames that have arrived."""
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
        """How it failed, as an error."""
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
            return WorkerFailed(f"{who} closed its line and went on without it", rank=self.rank)
        how = f"ended with {status}" if status.signal is None else f"was killed by {status}"
        when = "after its function had returned" if self.finished else "before its function returned"
        text = f"{who} {how} {when}"
        last_words = self._read_last_words()
        if status.signal == signal.SIGKILL:
            text += " (a SIGKILL that nobody sent is often the kernel's, for want of memory: see dmesg)"
        error = WorkerFailed(
            text, rank=self.rank, exit_code=status.exit_code, signal=status.signal, last_words=last_words
        )
        if last_words:
            error.add_note(f"The last words of rank {self.rank}:\n{last_words.rstrip()}")
        return error

    def close(self) -> None:
        """Let go of every descriptor but the process's."""
        self.stream.close()
        self._last_words.close()

    def _read_what_is_left(self) -> None:
        """Its death can be known before its last words have been read."""
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
            return None  # its class cannot be found here; the text has to do
        return error if isinstance(error, BaseException) else None

    def _read_last_words(self) -> str:
        return os.pread(self._last_words.fileno(), _LAST_WORDS, 0).decode("utf-8", "replace")


def start_member(rank: int, n: int, call: bytes, environment: Mapping[str, str], arrivals: Iterator[int]) -> Member:
    """Start the process of a worker, which will make `call`. `arrivals` numbers the messages of all members."""
    with ExitStack() as undo:
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        last_words = undo.enter_context(tempfile.TemporaryFile())
        with theirs:
            process = spawn_rank(
                rank,
                "team_worker",
                TeamJob(rank, n, _tether(), theirs.fileno(), last_words.fileno(), importable_main()),
                call,
                environment=environment,
                pass_fds=(theirs.fileno(), last_words.fileno()),
            )
        undo.pop_all()
    return Member(process, n, MessageStream(ours), last_words, arrivals)


def _tether() -> int | None:
    # The kernel kills a tethered process when the thread that started it ends, not only when its parent does. The
    # guardian makes no such difference.
    return os.getpid() if threading.current_thread() is threading.main_thread() else None
