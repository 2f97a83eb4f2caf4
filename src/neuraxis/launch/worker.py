"""The process of one rank of `run`: read the job, call the function, send what came of it.

The parent sends, one after the other on standard input, `sys.path` (so that neuraxis itself can be
found), a `Job`, and the pickled call. The answer goes back as one pickled `Answer` behind its length.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from neuraxis.errors import LaunchError
from neuraxis.launch.tether import tether

__all__ = [
    "LENGTH_BYTES",
    "Answer",
    "Job",
    "empty_stdin",
    "failed_answer",
    "import_main",
    "load_call",
    "main",
    "refuse_while_starting_up",
]

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


def refuse_while_starting_up(what: str) -> None:
    """Raise in a process that is a rank and still imports the parent's main module."""
    if _starting_up:
        raise LaunchError(
            f"{what} was called while a rank was importing the main module: every rank would start ranks of "
            'its own. Put the call under `if __name__ == "__main__":`'
        )


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    tether(job.parent_pid)
    answer_file = _open_answer(job.answer_to)
    call = sys.stdin.buffer.read()
    empty_stdin()
    with answer_file:
        answer = _answer(job, call)
        sys.stdout.flush()
        sys.stderr.flush()
        data = pickle.dumps(answer)
        answer_file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    if answer.failed:
        sys.exit(1)


def import_main(main_module: dict[str, Any]) -> None:
    """Import the parent's main module, so that what it defines can be unpickled."""
    import multiprocessing.spawn

    with _starting():
        multiprocessing.spawn.prepare(main_module)


def load_call(call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and its arguments, their modules imported."""
    with _starting():
        function, arguments = pickle.loads(call)
    return function, arguments


@contextmanager
def _starting() -> Iterator[None]:
    global _starting_up
    _starting_up = True
    try:
        yield
    finally:
        _starting_up = False


def _answer(job: Job, call: bytes) -> Answer:
    # SystemExit passes through: the exit code is then the rank's answer.
    try:
        if job.main_module:
            import_main(job.main_module)
        function, arguments = load_call(call)
        value = function(*arguments)
    except SystemExit:
        raise
    except BaseException as error:
        return failed_answer(error)
    try:
        return Answer(value=pickle.dumps(value))
    except Exception as error:
        name = type(value).__qualname__
        return Answer(problem=f"returned a value of type {name} that cannot be pickled: {error}")


def failed_answer(error: BaseException) -> Answer:
    """What a caught error says to the caller. Its first frame, where it was caught, is left out."""
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


def empty_stdin() -> None:
    # As in multiprocessing: a rank that reads its standard input finds it empty.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
