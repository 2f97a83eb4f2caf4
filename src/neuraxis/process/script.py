"""Run a script as N ranks, with restarts: the implementation of `neuraxis launch`.

With several hosts, each has its own launcher, started by the user or a scheduler with the same options and its own
node_rank. The launchers do not communicate. Therefore:

- Ranks get their rank from the options alone, and rendezvous at MASTER_ADDR:MASTER_PORT.
- When a rank fails, its launcher ends the ranks of that host. Ranks on other hosts lose their peers and fail (PeerLost
  or a timeout); their launchers report that, and restart if allowed.
- Restarts of several hosts are not counted together (give each the same max_restarts), and a new attempt uses the same
  port. Ranks that never communicate are not ended when another host fails.
- The user must set NEURAXIS_JOB, the secret that distinguishes jobs, to the same value on all hosts.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuraxis.deprecation import renamed_members
from neuraxis.errors import InvalidArgument, PeerLost, RendezvousError
from neuraxis.machine import check_process_count, reporting_exhaustion, usable_cores
from neuraxis.process.environment import Placement, free_port, new_job_secret, rank_environment
from neuraxis.process.output import Tail
from neuraxis.process.processes import POSIX, ExitStatus, RankProcess, Watchdog, with_parent_death_signal
from neuraxis.process.signals import SignalRelay
from neuraxis.process.supervisor import Shutdown, Supervisor

__all__ = [
    "DEFAULT_GRACE_S",
    "MULTI_NODE_PORT",
    "SECONDARY_ERRORS",
    "LaunchOptions",
    "describe_failure",
    "first_cause",
    "is_secondary_error",
    "launch_script",
]

DEFAULT_GRACE_S = 5.0
MULTI_NODE_PORT = 29500
"""Default rendezvous port of several hosts, which must all know it."""

SECONDARY_ERRORS = (PeerLost, RendezvousError)
"""Errors that a rank raises because another rank failed; never the cause if another rank has a different error."""

_SECONDARY_LINE = re.compile(r"(\w+\.)*(PeerLost|CollectiveTimeout|RendezvousError|RendezvousTimeout)\b")
_SIGPIPE = 13


@renamed_members(grace_s="grace")
@dataclass(frozen=True)
class LaunchOptions:
    """Options of `launch_script`: a script or module to run as `n` processes on each of `nodes` hosts.

    Parameters
    ----------
    script : str
        Path of the script, or name of the module.
    arguments : tuple of str
        `sys.argv[1:]` of the script.
    n : int
        Processes on this host; by default one per usable core.
    module : bool
        Run `script` as `python -m script`.
    nodes, node_rank : int
        Number of hosts, and the index of this one from 0.
    master_addr, master_port : str, int
        Address of rank 0. On one host, each attempt chooses a new port by default.
    max_restarts : int
        Largest number of restarts of all ranks after failures.
    grace : float
        Seconds between SIGTERM and SIGKILL when ranks are ended.
    prefix : bool
        Start each line of output with its rank.

    Raises
    ------
    InvalidArgument
        An option is invalid, the script does not exist, or the machine cannot hold `n` more processes.

    Examples
    --------
    >>> LaunchOptions("json.tool", n=2, module=True).n
    2
    """

    script: str
    arguments: tuple[str, ...] = ()
    n: int = field(default_factory=usable_cores)
    module: bool = False
    nodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    max_restarts: int = 0
    grace: float = DEFAULT_GRACE_S
    prefix: bool = True

    def __post_init__(self) -> None:
        check_process_count(self.n)
        if self.nodes < 1:
            raise InvalidArgument(f"nodes is {self.nodes}. At least one host is needed")
        if not 0 <= self.node_rank < self.nodes:
            raise InvalidArgument(f"node_rank is {self.node_rank}. It must be from 0 to nodes - 1 = {self.nodes - 1}")
        if self.nodes > 1 and not self.master_addr:
            raise InvalidArgument(
                f"master_addr is needed with {self.nodes} nodes. Give every host the address of node 0, "
                "for example --master-addr 10.0.0.1"
            )
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise InvalidArgument(f"master_port is {self.master_port}. A port is between 1 and 65535")
        if self.max_restarts < 0:
            raise InvalidArgument(f"max_restarts is {self.max_restarts}. It cannot be negative")
        if not 0 <= self.grace < float("inf"):
            raise InvalidArgument(f"grace is {self.grace}. It must be a number of seconds, 0 or more")
        if not self.module and not Path(self.script).exists():
            raise InvalidArgument(f"there is no script {self.script!r}. To run a module, put -m before its name")


def launch_script(options: LaunchOptions) -> int:
    """Run a script as ranks and return the exit status for the calling program.

    In the main thread, signals are forwarded to the ranks.

    Parameters
    ----------
    options : LaunchOptions
        The script or module, its arguments, and the number of ranks.

    Returns
    -------
    int
        0, the exit code of the rank that failed first, or 128 + the signal that ended that rank or the launcher.

    Examples
    --------
    >>> launch_script(LaunchOptions("platform", n=2, module=True))
    0

    A script, which is started again after a failure::

        status = launch.launch_script(launch.LaunchOptions("train.py", n=4, max_restarts=1))
    """
    with reporting_exhaustion("neuraxis launch"), Watchdog() as watchdog:
        attempt = 0
        while True:
            status, may_restart = _attempt(options, attempt, watchdog)
            if status == 0 or not may_restart:
                return status
            attempt += 1


def _attempt(options: LaunchOptions, attempt: int, watchdog: Watchdog) -> tuple[int, bool]:
    """Start all ranks once; return the exit status, and whether to restart after a failure."""
    place = _placement(options, attempt)
    with SignalRelay() as relay:
        with Supervisor(
            watchdog,
            Shutdown(options.grace),
            grace=options.grace,
            prefix=options.prefix,
            relay=relay,
            is_secondary=is_secondary_error,
        ) as supervisor:
            for local_rank in range(options.n):
                supervisor.add(_start(options, place, local_rank))
            supervisor.watch()
        result = _evaluate(options, attempt, supervisor)
    # Outside the relay, so that a signal can end the wait for a reader that has stopped.
    supervisor.output.finish()
    return result


def _evaluate(options: LaunchOptions, attempt: int, supervisor: Supervisor) -> tuple[int, bool]:
    output = supervisor.output
    if supervisor.interrupted is not None:
        ended = ExitStatus(signal=supervisor.interrupted)
        output.release()
        output.report(f"neuraxis launch: all ranks ended after {ended}")
        return ended.shell_status, False
    if supervisor.failures:
        cause = first_cause(
            supervisor.failures, lambda process: is_secondary_error(output.tail(process.rank).last_error())
        )
        assert cause.exit is not None
        output.release(cause.rank)
        output.report(describe_failure(cause, supervisor.ranks, output.tail))
        attempts = options.max_restarts + 1
        if attempt + 1 < attempts:
            output.report(
                f"neuraxis launch: restarting after the failure of rank {cause.rank}: "
                f"attempt {attempt + 2} of {attempts}"
            )
        elif attempts > 1:
            output.report(f"neuraxis launch: giving up after {attempts} attempts")
        return cause.exit.shell_status, attempt + 1 < attempts
    if output.broken:
        return 128 + _SIGPIPE, False
    return 0, False


def _placement(options: LaunchOptions, attempt: int) -> Placement:
    several = options.nodes > 1
    address = options.master_addr or "127.0.0.1"
    return Placement(
        n=options.n,
        nodes=options.nodes,
        node_rank=options.node_rank,
        master_addr=address,
        master_port=options.master_port or (MULTI_NODE_PORT if several else free_port()),
        job=None if several else new_job_secret(),
        attempt=attempt,
    )


def _start(options: LaunchOptions, place: Placement, local_rank: int) -> RankProcess:
    what = ["-m", options.script] if options.module else [options.script]
    rank = place.rank(local_rank)
    return RankProcess(
        rank,
        with_parent_death_signal([sys.executable, "-u", *what, *options.arguments]),
        environment=rank_environment(place, local_rank, os.environ),
        # Only rank 0 reads standard input; otherwise each rank would get some of it.
        stdin=None if rank == 0 else subprocess.DEVNULL,
        # Windows cannot wait for pipes and processes together, so ranks write directly there.
        capture=POSIX,
    )


# --- Reports of failures ---


def first_cause(failures: Sequence[RankProcess], is_secondary: Callable[[RankProcess], bool]) -> RankProcess:
    """Return the rank that failed first, ignoring ranks that only lost another one."""
    return next((process for process in failures if not is_secondary(process)), failures[0])


def is_secondary_error(error_line: str) -> bool:
    """Return True if the last line of a traceback reports the loss of another rank."""
    return _SECONDARY_LINE.match(error_line) is not None


def describe_failure(cause: RankProcess, ranks: Sequence[RankProcess], tail: Callable[[int], Tail]) -> str:
    """Return the summary that `neuraxis launch` prints: the first cause, and a line for all other ranks.

    The traceback of the cause has been written before; the last lines of a rank without one follow here.
    """
    assert cause.exit is not None
    how = f"failed with {cause.exit}" if cause.exit.signal is None else f"was killed by {cause.exit}"
    error = tail(cause.rank).last_error()
    lines = ["", f"neuraxis launch: rank {cause.rank} (pid {cause.pid}) {how}{f': {error}' if error else ''}"]
    if cause.exit.signal == getattr(signal, "SIGKILL", None):
        lines.append("  (an unexpected SIGKILL is often the kernel's, for lack of memory: see dmesg)")
    last = tail(cause.rank).lines()
    if not last:
        lines.append("  it wrote nothing")
    elif not error:
        lines.append("  its last lines:")
        lines += [f"    {line}" for line in last]
    alike: dict[str, tuple[str, list[int]]] = {}  # text of the first rank, and all ranks
    for process in ranks:
        if process is not cause:
            kind, text = _describe_end(process, tail(process.rank))
            alike.setdefault(kind, (text, []))[1].append(process.rank)
    if alike:
        lines.append("  " + "; ".join(f"{_rank_list(found)} {text}" for text, found in alike.values()))
    return "\n".join(lines)


def _describe_end(process: RankProcess, tail: Tail) -> tuple[str, str]:
    """Return how a rank ended: in a form that is equal for ranks to be listed together, and as text."""
    assert process.exit is not None
    if process.exit.ok:
        return (text := "finished with exit code 0"), text
    if process.ended_by_launcher:
        return (text := f"ended by the launcher, {process.exit}"), text
    how, error = f"failed too, {process.exit}", tail.last_error()
    if is_secondary_error(error):  # they differ in where each rank noticed
        error = error.removeprefix("neuraxis.errors.")
        return f"{how}: {error.partition(':')[0]}", f"{how}: {error.partition('. ')[0]}"
    return (text := f"{how}: {error}" if error else how), text


def _rank_list(ranks: Sequence[int]) -> str:
    """Return "rank 1", or "ranks 0, 2-15"."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, part)) for part in parts)}"
