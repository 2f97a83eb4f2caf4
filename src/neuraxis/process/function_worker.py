"""The process of one rank of `run`: read the job, call the function, send the result.

The parent sends on standard input `sys.path` (so that neuraxis itself can be found), a `Job`, and the pickled call. The
rank sends back the length of a pickled `Result` and the pickle.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from neuraxis import imports as optional
from neuraxis.errors import LaunchError
from neuraxis.process.parent_death import die_with_parent
from neuraxis.process.pickling import dumps, follow_parent

__all__ = [
    "LENGTH_BYTES",
    "Job",
    "Result",
    "empty_stdin",
    "failed_result",
    "import_main",
    "load_call",
    "main",
    "refuse_during_import",
]

LENGTH_BYTES = 8

_importing_main = False


@dataclass(frozen=True)
class Job:
    """Data that a worker needs before it can unpickle the call.

    `main_module` is passed to `multiprocessing.spawn.prepare` to make the parent's `__main__` importable. `send_to` is
    a descriptor or, on Windows, where none can be inherited, the path of a file. `by_value`: the parent pickles objects
    of its `__main__` by value, and the worker must do the same.
    """

    parent_pid: int
    send_to: int | str
    main_module: dict[str, Any] = field(default_factory=dict)
    by_value: bool = False


@dataclass(frozen=True)
class Result:
    """Result of a call: the pickled `value` or `error`, or `problem` if it could not be pickled."""

    value: bytes | None = None
    error: bytes | None = None
    problem: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return self.value is None


def refuse_during_import(what: str) -> None:
    """Raise in a rank that is still importing the parent's main module."""
    if _importing_main:
        raise LaunchError(
            f"{what} was called while a rank was importing the main module, so every rank would start ranks. "
            'Put the call under `if __name__ == "__main__":`'
        )


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    die_with_parent(job.parent_pid)
    follow_parent(job.by_value)
    result_file = _open_result(job.send_to)
    call = sys.stdin.buffer.read()
    empty_stdin()
    with result_file:
        result = _call(job, call)
        sys.stdout.flush()
        sys.stderr.flush()
        data = pickle.dumps(result)
        result_file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    if result.failed:
        sys.exit(1)


def import_main(main_module: dict[str, Any]) -> None:
    """Import the parent's main module, so that its classes and functions can be unpickled."""
    import multiprocessing.spawn

    with _importing():
        multiprocessing.spawn.prepare(main_module)


def load_call(call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and its arguments, with their modules imported."""
    with _importing():
        function, arguments = pickle.loads(call)
    return function, arguments


@contextmanager
def _importing() -> Iterator[None]:
    global _importing_main
    _importing_main = True
    try:
        yield
    finally:
        _importing_main = False


def _call(job: Job, call: bytes) -> Result:
    # SystemExit propagates: the exit code is then the result of the rank.
    try:
        if job.main_module:
            import_main(job.main_module)
        function, arguments = load_call(call)
        value = function(*arguments)
    except SystemExit:
        raise
    except BaseException as error:
        _leave_context(error)
        return failed_result(error)
    try:
        return Result(value=dumps(value))
    except Exception as error:
        name = type(value).__qualname__
        return Result(problem=f"returned a value of type {name} that cannot be pickled: {error}")


def _leave_context(error: BaseException) -> None:
    """Send the error to the other ranks, if the function left its distributed context open."""
    context = optional.loaded("neuraxis.comm.context")  # only if the function imported it
    if context is not None and context._current is not None:
        with suppress(Exception):  # the result must still be sent
            context._current.abort(error)


def failed_result(error: BaseException) -> Result:
    """Return the result for a caught error, without the frame that caught it."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        data = dumps(error)
        pickle.loads(data)  # many exceptions can be pickled but not unpickled
    except Exception as reason:
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        return Result(problem=f"raised {name}: {error} (the exception itself cannot be sent: {reason})", traceback=text)
    return Result(error=data, traceback=text)


def _open_result(send_to: int | str) -> IO[bytes]:
    if isinstance(send_to, str):
        return open(send_to, "wb")
    os.set_inheritable(send_to, False)  # a child of this rank must not hold it open
    return open(send_to, "wb")


def empty_stdin() -> None:
    """Replace standard input by an empty file, as multiprocessing does."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
