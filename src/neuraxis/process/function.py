"""Run a function in N processes: `run(function, n, *args)`.

Ranks start like those of `multiprocessing`'s spawn method, as a new interpreter that imports the function, but without
multiprocessing: its resource tracker is a process that outlives the call, it reaps dead children immediately, and it
cannot prevent orphans. Only its function to import the parent's `__main__` is used.
"""

from __future__ import annotations

import multiprocessing as _multiprocessing  # noqa: F401 (gives `__main__` its second name, `__mp_main__`)
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from neuraxis.errors import InvalidArgument, LaunchTimeout, MissingDependency, RankFailed
from neuraxis.machine import check_process_count, reporting_exhaustion
from neuraxis.process.environment import Placement, free_port, new_job_secret, rank_environment
from neuraxis.process.function_worker import LENGTH_BYTES, Job, Result, refuse_during_import
from neuraxis.process.pickling import by_value, dumps, importable_main
from neuraxis.process.processes import POSIX, RankProcess, Watchdog
from neuraxis.process.script import DEFAULT_GRACE_S, SECONDARY_ERRORS, first_cause
from neuraxis.process.supervisor import Shutdown, Supervisor

__all__ = ["ResultChannel", "main_module", "pickle_call", "run", "spawn_rank"]

Value = TypeVar("Value")

# `sys.path` must be the parent's before the worker module is imported: neuraxis itself may be found through it.
_BOOTSTRAP = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from neuraxis.process.{module} import main; main()"
)


def run(
    function: Callable[..., Value],
    n: int,
    *args: object,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    prefix_output: bool = False,
    grace: float = DEFAULT_GRACE_S,
) -> list[Value]:
    """Call `function(*args)` in `n` new processes and return the value of each rank.

    The environment of each process has RANK, WORLD_SIZE, MASTER_ADDR and the other variables of torchrun, so ranks can
    open a `DistributedContext`. The function, its arguments and its value are pickled, so the function must be
    importable; a script that calls `run` needs the guard `if __name__ == "__main__":`. Functions that are defined in a
    notebook or at a prompt are sent by value, which needs cloudpickle (the extra "notebook").

    Parameters
    ----------
    function : callable
        Function at the top level of a module, or of a notebook.
    n : int
        Number of processes.
    *args
        Arguments of the function.
    timeout : float, optional
        Seconds after which all ranks are ended and `LaunchTimeout` is raised.
    env : mapping, optional
        Variables to add to, or replace in, the environment of the ranks.
    prefix_output : bool
        Start each line that a rank prints with `[rank N]` (not on Windows).
    grace : float
        Seconds between SIGTERM and SIGKILL when ranks are ended.

    Returns
    -------
    list
        Value of each rank, in the order of ranks.

    Raises
    ------
    InvalidArgument
        The function or an argument cannot be pickled, or the machine cannot hold `n` more processes (see
        `neuraxis.machine.check_process_count`); nothing was started.
    ResourceExhausted
        The system refused a process or an open file; ranks that had started were ended.
    RankFailed
        A rank died without an exception (signal, exit), or its value cannot be pickled.
    LaunchTimeout
        The ranks did not end within `timeout`.
    MissingDependency
        The function or an argument is defined in a notebook or at a prompt, and cloudpickle is not installed.
    Exception
        The exception of the rank that failed first, with its traceback as a note. An error that only reports the loss
        of another rank (`PeerLost`) is raised only if no rank has another error.

    Examples
    --------
    >>> import math
    >>> run(math.sqrt, 2, 9.0)
    [3.0, 3.0]

    With a function of one's own, in a script::

        from neuraxis import launch

        def square(x):
            return x * x

        if __name__ == "__main__":
            print(launch.run(square, 2, 3))  # [9, 9]
    """
    refuse_during_import("run()")
    check_process_count(n)
    call = pickle_call(function, args)
    base = {**os.environ, **(env or {})}
    shutdown = Shutdown(grace, timeout_at=None if timeout is None else time.monotonic() + timeout)
    channels: list[ResultChannel] = []
    try:
        with (
            reporting_exhaustion("run()"),
            Watchdog() as watchdog,
            Supervisor(watchdog, shutdown, grace=grace, prefix=prefix_output) as supervisor,
        ):
            place = Placement(n, 1, 0, "127.0.0.1", free_port(), new_job_secret())
            for rank in range(n):
                channels.append(ResultChannel())
                environment = rank_environment(place, rank, base)
                process = _start(rank, call, channels[rank], environment, capture=prefix_output)
                _follow(supervisor, process, channels[rank])
            supervisor.watch()
    finally:
        for channel in channels:
            channel.close()
    supervisor.output.finish()
    results = [channel.result() for channel in channels]
    _raise_first_failure(supervisor, results, timeout)
    return [_value(rank, result) for rank, result in enumerate(results)]


def _start(
    rank: int, call: bytes, channel: ResultChannel, environment: Mapping[str, str], *, capture: bool
) -> RankProcess:
    process = spawn_rank(
        rank,
        "function_worker",
        Job(os.getpid(), channel.target, main_module(call), by_value()),
        call,
        environment=environment,
        capture=capture,
        pass_fds=() if channel.write_end is None else (channel.write_end,),
    )
    channel.close_write_end()
    return process


def _follow(supervisor: Supervisor, process: RankProcess, channel: ResultChannel) -> None:
    supervisor.add(process)
    descriptor = channel.read_end
    if descriptor is None:
        return

    def receive() -> None:
        at_end = not channel.receive()
        if at_end:
            supervisor.remove_reader(descriptor)
        result = channel.result()
        if result is None:
            failed = at_end  # ended without a result, perhaps with exit code 0, and others may wait for it
        else:
            failed = result.failed  # even if a thread keeps the process alive
        if failed:
            supervisor.record_failure(process)

    supervisor.add_reader(descriptor, receive)


def _raise_first_failure(supervisor: Supervisor, results: Sequence[Result | None], timeout: float | None) -> None:
    n = len(results)
    failures = list(supervisor.failures)
    # If results are files, a rank that exited with 0 without a result is detected only here.
    failures += [
        process
        for process, result in zip(supervisor.ranks, results, strict=True)
        if result is None and process not in failures and not process.ended_by_launcher
    ]
    if failures:
        errors = {process.rank: _error(process, results[process.rank], n) for process in failures}
        raise errors[first_cause(failures, lambda p: isinstance(errors[p.rank], SECONDARY_ERRORS)).rank]
    if supervisor.shutdown.timed_out:
        late = tuple(process.rank for process in supervisor.ranks if process.ended_by_launcher)
        names = ", ".join(map(str, late))
        raise LaunchTimeout(
            f"{len(late)} of {n} ranks had not ended after {timeout} s: {names}. Give more time with timeout=",
            ranks=late,
        )


def _error(process: RankProcess, result: Result | None, n: int) -> BaseException:
    rank, status = process.rank, process.exit
    assert status is not None
    if result is None:
        how = f"was killed by {status}" if status.signal is not None else f"ended with {status}"
        text = f"rank {rank} {how} before it returned"
        return RankFailed(text, rank=rank, exit_code=status.exit_code, signal=status.signal)
    error: BaseException
    if result.error is None:
        error = RankFailed(f"rank {rank} {result.problem}", rank=rank, exit_code=status.exit_code)
    else:
        try:
            error = pickle.loads(result.error)
        except Exception as reason:
            error = RankFailed(f"rank {rank} raised an exception that cannot be unpickled here: {reason}", rank=rank)
    if result.traceback:
        error.add_note(f"Raised in rank {rank} of {n}:\n{result.traceback.rstrip()}")
    return error


def _value(rank: int, result: Result | None) -> Any:
    assert result is not None
    assert result.value is not None
    try:
        return pickle.loads(result.value)
    except Exception as reason:
        text = f"rank {rank} returned a value that cannot be unpickled here: {reason}"
        raise RankFailed(text, rank=rank) from reason


# --- Calls sent to another process ---


def pickle_call(function: Callable[..., Any], arguments: tuple[object, ...]) -> bytes:
    """Pickle `(function, arguments)`; an error names the part that cannot be pickled."""
    if not callable(function):
        raise InvalidArgument(f"function is {function!r}, which is not callable")
    name = getattr(function, "__qualname__", repr(function))
    try:
        dumps(function)
    except MissingDependency:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"function {name} cannot be sent to other processes: {error}. They import it by name: define it at the "
            "top level of a module, not as a lambda or within a function"
        ) from error
    for index, argument in enumerate(arguments):
        try:
            dumps(argument)
        except MissingDependency:
            raise
        except Exception as error:
            raise InvalidArgument(
                f"argument {index} of {name}, a {type(argument).__qualname__}, cannot be pickled: {error}"
            ) from error
    return dumps((function, arguments))


def main_module(call: bytes) -> dict[str, Any]:
    """Return `importable_main()` if the call needs it, else {}, because importing it runs the whole script."""
    return importable_main() if b"__main__" in call else {}


# --- Starting a rank ---


def spawn_rank(
    rank: int,
    module: str,
    job: object,
    call: bytes,
    *,
    environment: Mapping[str, str],
    capture: bool = False,
    pass_fds: Sequence[int] = (),
) -> RankProcess:
    """Start a rank that runs `main()` of a module of this package, with `job` and `call` on standard input."""
    # A file, because a large argument would fill a pipe, and starting a rank would wait for the previous interpreter.
    with tempfile.TemporaryFile() as file:
        pickle.dump([path or os.getcwd() for path in sys.path], file)
        pickle.dump(job, file)
        file.write(call)
        file.seek(0)
        return RankProcess(
            rank,
            [sys.executable, *_interpreter_flags(), "-u", "-c", _BOOTSTRAP.format(module=module)],
            environment=environment,
            stdin=file,
            capture=capture and POSIX,
            pass_fds=pass_fds,
        )


def _interpreter_flags() -> list[str]:
    """Return the options (-W, -X, -O ...) of this interpreter."""
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return flags


# --- Results ---


class ResultChannel:
    """Receives the result of one rank through a pipe.

    Windows can neither pass a descriptor to a child nor wait for a pipe; there the channel is a file, read when the
    rank has ended.

    Attributes
    ----------
    target : int or str
        Descriptor or path that the worker writes to.
    read_end, write_end : int or None
        Ends of the pipe, while open.
    """

    def __init__(self) -> None:
        self.target: int | str
        self.read_end: int | None = None
        self.write_end: int | None = None
        self._received = bytearray()
        if POSIX:
            self.read_end, self.write_end = os.pipe()
            os.set_blocking(self.read_end, False)
            self.target = self.write_end
        else:
            descriptor, self.target = tempfile.mkstemp(prefix="neuraxis-result-")
            os.close(descriptor)

    def receive(self) -> bool:
        """Read the data that has arrived; return False at the end of the stream."""
        while self.read_end is not None:
            try:
                data = os.read(self.read_end, 1024 * 1024)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._received += data
        return False

    def result(self) -> Result | None:
        """Return the result, or None if it is missing or incomplete."""
        length = int.from_bytes(self._received[:LENGTH_BYTES], "little")
        if not LENGTH_BYTES < len(self._received) == LENGTH_BYTES + length:
            return None
        result = pickle.loads(memoryview(self._received)[LENGTH_BYTES:])
        assert isinstance(result, Result)
        return result

    def close_write_end(self) -> None:
        """Close our copy of the rank's end, without which the stream would never end."""
        if self.write_end is not None:
            os.close(self.write_end)
            self.write_end = None

    def close(self) -> None:
        self.close_write_end()
        if self.read_end is not None:
            os.close(self.read_end)
            self.read_end = None
        if isinstance(self.target, str) and os.path.exists(self.target):
            with open(self.target, "rb") as file:
                self._received += file.read()
            os.unlink(self.target)
