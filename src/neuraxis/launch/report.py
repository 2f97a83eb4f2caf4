"""Which rank is to blame for a failed attempt, and the words that say so."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence

from neuraxis.errors import PeerLost, RendezvousError
from neuraxis.launch.lines import Tail
from neuraxis.launch.processes import RankProcess

__all__ = ["FOLLOWER_ERRORS", "describe_failure", "first_cause", "is_follower_error"]

FOLLOWER_ERRORS = (PeerLost, RendezvousError)
"""What a rank raises because of another one: never the cause while another rank has a cause of its own."""

_FOLLOWER_LINE = re.compile(r"(\w+\.)*(PeerLost|CollectiveTimeout|RendezvousError|RendezvousTimeout)\b")


def first_cause(failures: Sequence[RankProcess], is_follower: Callable[[RankProcess], bool]) -> RankProcess:
    """The rank that failed first, of those that did not merely lose another one."""
    return next((process for process in failures if not is_follower(process)), failures[0])


def is_follower_error(error_line: str) -> bool:
    """Whether the last line of a traceback says that this rank failed because of another one."""
    return _FOLLOWER_LINE.match(error_line) is not None


def describe_failure(culprit: RankProcess, ranks: Sequence[RankProcess], tail: Callable[[int], Tail]) -> str:
    """The summary that `neuraxis launch` prints: the culprit with its last lines, then a line a rank."""
    assert culprit.exit is not None
    how = f"failed with {culprit.exit}" if culprit.exit.signal is None else f"was killed by {culprit.exit}"
    lines = ["", f"neuraxis launch: rank {culprit.rank} (pid {culprit.pid}) {how}"]
    if culprit.exit.signal == getattr(signal, "SIGKILL", None):
        lines.append("  (a SIGKILL that nobody sent is often the kernel's, for want of memory: see dmesg)")
    last = tail(culprit.rank).lines()
    if last:
        lines.append("  its last lines:")
        lines += [f"    {line}" for line in last]
    else:
        lines.append("  it wrote nothing")
    for process in ranks:
        if process is not culprit:
            lines.append(f"  rank {process.rank}: {_fate(process, tail(process.rank))}")
    return "\n".join(lines)


def _fate(process: RankProcess, tail: Tail) -> str:
    assert process.exit is not None
    if process.exit.ok:
        return "finished with exit code 0"
    if process.ended_by_launcher:
        return f"ended by the launcher, {process.exit}"
    error = tail.last_error()
    return f"failed too, {process.exit}" + (f": {error}" if error else "")
