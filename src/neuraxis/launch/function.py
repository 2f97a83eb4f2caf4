"""Run a function in N processes: `run(function, n, *args)`.

The processes are started as `multiprocessing`'s spawn would (a new interpreter that imports the function),
but not by it: its resource tracker is a process that outlives the call, it reaps a dead child at once, and
it has no place to keep ranks from becoming orphans. Only its way to import the parent's `__main__` is used.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from neuraxis.errors import InvalidArgument, LaunchTimeout, RankFailed
from neuraxis.launch.answers import AnswerChannel
from neuraxis.launch.call import main_module, pickle_call
from neuraxis.launch.ending import Ending
from neuraxis.launch.environment import Placement, free_port, new_job_secret, rank_environment
from neuraxis.launch.options import DEFAULT_GRACE_S
from neuraxis.launch.processes import Guardian, RankProcess
from neuraxis.launch.report import FOLLOWER_ERRORS, first_cause
from neuraxis.launch.spawning import spawn_rank
from neuraxis.launch.supervisor import Supervisor
from neuraxis.launch.worker import Answer, Job, refuse_while_starting_up

__all__ = ["run"]

Value = TypeVar("Value")


def run(
    function: Callable[..., Value],
    n: int,
    *args: object,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    prefix_output: bool = False,
    grace: float = DEFAULT_GRACE_S,
) -> list[Value]:
    """Call `function(*args)` in `n` new processes and return their values in the order of ranks.

    Each process finds RANK, WORLD_SIZE, MASTER_ADDR and the rest in its environment from its first
    instruction on. `function`, `args` and what the function returns travel by pickle, so the function must be
    importable; a script that calls `run` needs the usual `if __name__ == "__main__":`.

    Args:
        timeout: seconds after which all ranks are ended and `LaunchTimeout` is raised.
        env: variables to add to (or to replace in) the ranks' environment.
        prefix_output: begin each line that a rank prints with `[rank N]` (not on Windows).
        grace: seconds between asking ranks to end and killing them.

    Raises:
        InvalidArgument: the function or an argument cannot be sent; nothing was started.
        RankFailed: a rank died without an exception (signal, exit), or its value cannot be pickled.
        LaunchTimeout: the time was up.
        Exception: the exception of the rank that failed first, with its traceback there as a note. A rank
            that only lost another one (PeerLost) does not count while another has a cause of its own.
    """
    refuse_while_starting_up("run()")
    if n < 1:
        raise InvalidArgument(f"n is {n}: at least one process is needed")
    call = pickle_call(function, args)
    place = Placement(n, 1, 0, "127.0.0.1", free_port(), new_job_secret())
    base = {**os.environ, **(env or {})}
    ending = Ending(grace, timeout_at=None if timeout is None else time.monotonic() + timeout)
    channels: list[AnswerChannel] = []
    try:
        with (
            Guardian() as guardian,
            Supervisor(guardian, ending, grace_s=grace, prefix=prefix_output) as supervisor,
        ):
            for rank in range(n):
                channels.append(AnswerChannel())
                environment = rank_environment(place, rank, base)
                process = _start(rank, call, channels[rank], environment, capture=prefix_output)
                _follow(supervisor, process, channels[rank])
            supervisor.watch()
    finally:
        for channel in channels:
            channel.close()
    supervisor.output.finish()
    answers = [channel.answer() for channel in channels]
    _raise_first_failure(supervisor, answers, timeout)
    return [_value(rank, answer) for rank, answer in enumerate(answers)]


def _start(
    rank: int, call: bytes, channel: AnswerChannel, environment: Mapping[str, str], *, capture: bool
) -> RankProcess:
    process = spawn_rank(
        rank,
        "worker",
        Job(os.getpid(), channel.target, main_module(call)),
        call,
        environment=environment,
        capture=capture,
        pass_fds=() if channel.write_end is None else (channel.write_end,),
    )
    channel.close_write_end()
    return process


def _follow(supervisor: Supervisor, process: RankProcess, channel: AnswerChannel) -> None:
    supervisor.add(process)
    descriptor = channel.read_end
    if descriptor is None:
        return

    def receive() -> None:
        at_end = not channel.receive()
        if at_end:
            supervisor.remove_reader(descriptor)
        answer = channel.answer()
        if answer is None:
            failed = at_end  # it left without a word, perhaps with exit code 0, and others may wait for it
        else:
            failed = answer.failed  # from now on, even if a thread keeps the process from ending
        if failed:
            supervisor.note_failure(process)

    supervisor.add_reader(descriptor, receive)


def _raise_first_failure(supervisor: Supervisor, answers: Sequence[Answer | None], timeout: float | None) -> None:
    n = len(answers)
    failures = list(supervisor.failures)
    # Where answers are files, a rank that exited with 0 and sent nothing is noticed only now.
    failures += [
        process
        for process, answer in zip(supervisor.ranks, answers, strict=True)
        if answer is None and process not in failures and not process.ended_by_launcher
    ]
    if failures:
        errors = {process.rank: _error(process, answers[process.rank], n) for process in failures}
        raise errors[first_cause(failures, lambda p: isinstance(errors[p.rank], FOLLOWER_ERRORS)).rank]
    if supervisor.ending.timed_out:
        late = tuple(process.rank for process in supervisor.ranks if process.ended_by_launcher)
        names = ", ".join(map(str, late))
        raise LaunchTimeout(f"after {timeout} s these of the {n} ranks had not ended: {names}", ranks=late)


def _error(process: RankProcess, answer: Answer | None, n: int) -> BaseException:
    rank, status = process.rank, process.exit
    assert status is not None
    if answer is None:
        how = f"was killed by {status}" if status.signal is not None else f"ended with {status}"
        text = f"rank {rank} {how} before it returned"
        return RankFailed(text, rank=rank, exit_code=status.exit_code, signal=status.signal)
    error: BaseException
    if answer.error is None:
        error = RankFailed(f"rank {rank} {answer.problem}", rank=rank, exit_code=status.exit_code)
    else:
        try:
            error = pickle.loads(answer.error)
        except Exception as reason:
            error = RankFailed(f"rank {rank} raised what cannot be unpickled here: {reason}", rank=rank)
    if answer.traceback:
        error.add_note(f"Raised in rank {rank} of {n}:\n{answer.traceback.rstrip()}")
    return error


def _value(rank: int, answer: Answer | None) -> Any:
    assert answer is not None
    assert answer.value is not None
    try:
        return pickle.loads(answer.value)
    except Exception as reason:
        text = f"rank {rank} returned a value that cannot be unpickled here: {reason}"
        raise RankFailed(text, rank=rank) from reason
