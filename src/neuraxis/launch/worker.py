"""The process of one rank of `run`: read the job, call the function, send what came of it.

The parent sends, one after the other on standard input, `sys.path` (so that neuraxis itself can be
found), a `Job`, and the pickled call. The answer goes back as one pickled `Answer` behind its length.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from dataclasses import dataclass, field
from typing import IO, Any

from neuraxis.launch.tether import tether

__all__ = ["BOOTSTRAP", "LENGTH_BYTES", "Answer", "Job", "main", "starting_up"]

BOOTSTRAP = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from neuraxis.launch.worker import main; main()"
)
LENGTH_BYTES = 8

_starting_up = False


@dataclass(frozen=True)
class Job:
    """What a worker must know before it can unpickle the call.

    `main_module` is what `multiprocessing.spawn.prepare` takes to make the parent's `__main__` importable.
    `answer_to` is a descriptor, or where none can be inherited (Windows) the path of a file.
    """

    parent_pid: int
    answer_to: int | str
    main_module: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What came of the call: `value` or `error`, pickled, or `problem` if that could not be pickled."""

    value: bytes | None = None
    error: bytes | None = None
    problem: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return self.value is None


def starting_up() -> bool:
    """Whether this process is a rank that is still importing the parent's main module."""
    return _starting_up


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    tether(job.parent_pid)
    answer_file = _open_answer(job.answer_to)
    call = sys.stdin.buffer.read()
    _empty_stdin()
    with answer_file:
        answer = _answer(job, call)
        sys.stdout.flush()
        sys.stderr.flush()
        data = pickle.dumps(answer)
        answer_file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    if answer.failed:
        sys.exit(1)


def _answer(job: Job, call: bytes) -> Answer:
    # SystemExit passes through: the exit code is then the rank's answer.
    global _starting_up
    try:
        _starting_up = True
        if job.main_module:
            import multiprocessing.spawn

            multiprocessing.spawn.prepare(job.main_module)
        function, arguments = pickle.loads(call)
        _starting_up = False
        value = function(*arguments)
    except SystemExit:
        raise
    except BaseException as error:
        return _failed(error)
    try:
        return Answer(value=pickle.dumps(value))
    except Exception as error:
        name = type(value).__qualname__
        return Answer(problem=f"returned a value of type {name} that cannot be pickled: {error}")


def _failed(error: BaseException) -> Answer:
    # The first frame is this module's own.
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # many exceptions can be pickled but not unpickled
    except Exception as reason:
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        return Answer(problem=f"raised {name}: {error} (the exception itself cannot be sent: {reason})", traceback=text)
    return Answer(error=data, traceback=text)


def _open_answer(answer_to: int | str) -> IO[bytes]:
    if isinstance(answer_to, str):
        return open(answer_to, "wb")
    os.set_inheritable(answer_to, False)  # a child of this rank must not hold it open
    return open(answer_to, "wb")


def _empty_stdin() -> None:
    # As in multiprocessing: a rank that reads its standard input finds it empty.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
