"""Run a script as N ranks, with restarts: what `neuraxis launch` does.

With several hosts, each has its own launcher, started by the user or a scheduler with the same options and
its own node_rank. The launchers do not talk to each other. What holds without that:
- Ranks know their place from the options alone, and meet at MASTER_ADDR:MASTER_PORT.
- When a rank fails, its own launcher ends the ranks of that host. Ranks elsewhere lose their peers, fail with
  that (PeerLost, or a timeout), and their launchers report it, and restart if they may.
What does not: the attempts of several hosts are not counted together (give each the same max_restarts), a new
attempt meets at the same port, and ranks that never communicate are not ended when another host fails.
NEURAXIS_JOB, the secret that tells jobs apart, is the user's to set to one value on all hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys

from neuraxis.launch.ending import Ending
from neuraxis.launch.environment import Placement, free_port, new_job_secret, rank_environment
from neuraxis.launch.options import MULTI_NODE_PORT, LaunchOptions
from neuraxis.launch.processes import POSIX, ExitStatus, Guardian, RankProcess, tethered
from neuraxis.launch.report import describe_failure, first_cause, is_follower_error
from neuraxis.launch.signals import SignalRelay
from neuraxis.launch.supervisor import Supervisor

__all__ = ["launch_script"]

_SIGPIPE = 13


def launch_script(options: LaunchOptions) -> int:
    """Run the script and return the status to exit with.

    That is 0, the exit code of the rank that failed first, or 128 + the signal that ended it or the launcher.
    Called from a thread that is not the main one, signals are left alone.
    """
    with Guardian() as guardian:
        attempt = 0
        while True:
            status, may_restart = _attempt(options, attempt, guardian)
            if status == 0 or not may_restart:
                return status
            attempt += 1


def _attempt(options: LaunchOptions, attempt: int, guardian: Guardian) -> tuple[int, bool]:
    """One start of all ranks: the status, and whether there may be another start."""
    place = _placement(options, attempt)
    with SignalRelay() as relay:
        with Supervisor(
            guardian, Ending(options.grace_s), grace_s=options.grace_s, prefix=options.prefix, relay=relay
        ) as supervisor:
            for local_rank in range(options.n):
                supervisor.add(_start(options, place, local_rank))
            supervisor.watch()
        result = _judge(options, attempt, supervisor)
    # After the relay: if nobody reads our output, a signal can end the wait for it.
    supervisor.output.finish()
    return result


def _judge(options: LaunchOptions, attempt: int, supervisor: Supervisor) -> tuple[int, bool]:
    output = supervisor.output
    if supervisor.interrupted is not None:
        ended = ExitStatus(signal=supervisor.interrupted)
        output.say(f"neuraxis launch: all ranks have ended after {ended}")
        return ended.shell_status, False
    if supervisor.failures:
        culprit = first_cause(
            supervisor.failures, lambda process: is_follower_error(output.tail(process.rank).last_error())
        )
        assert culprit.exit is not None
        output.say(describe_failure(culprit, supervisor.ranks, output.tail))
        attempts = options.max_restarts + 1
        if attempt + 1 < attempts:
            output.say(
                f"neuraxis launch: starting again after the failure of rank {culprit.rank}: "
                f"attempt {attempt + 2} of {attempts}"
            )
        elif attempts > 1:
            output.say(f"neuraxis launch: giving up after {attempts} attempts")
        return culprit.exit.shell_status, attempt + 1 < attempts
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
        tethered([sys.executable, "-u", *what, *options.arguments]),
        environment=rank_environment(place, local_rank, os.environ),
        # One reader at most, or the ranks would each get some of the input.
        stdin=None if rank == 0 else subprocess.DEVNULL,
        # Windows cannot wait for pipes and processes together: there the ranks write for themselves.
        capture=POSIX,
    )
