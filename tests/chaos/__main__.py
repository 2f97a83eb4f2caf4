"""Run the storm:

    python -m tests.chaos                          30 minutes, every part
    python -m tests.chaos --seconds 120 --seed 7   shorter, another seed
    python -m tests.chaos --part mesh --part calls
    python -m tests.chaos --seed 7 --only kill_a_rank:3   one round again

As root it runs in mount and network namespaces of its own: a /dev/shm of 256 MB, small disks, TCP links that can be
cut, and an exact account of segments and sockets that are left. Without root these scenarios are left out, and the
report names them. The exit status is 1 if a round failed, or if scenarios were left out although the variable
NEURAXIS_NEED_NAMESPACES is set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from tests.chaos import calls, checkpoints, collectives, launcher, mesh, simulation, training
from tests.chaos.storm import PARTS, ROOT, SCENARIOS, Report, run_storm
from tests.mesh.namespaces import NEED_NAMESPACES
from tests.ranks.fork_server import close_fork_servers

assert all((calls, checkpoints, collectives, launcher, mesh, simulation, training))  # they register their scenarios

_INSIDE = "NEURAXIS_CHAOS_INSIDE"
_SHM_MEGABYTES = 256

app = App(help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def main(
    *,
    seconds: float = 1800.0,
    seed: int = 1,
    part: Annotated[list[str] | None, Parameter(negative=())] = None,
    only: str | None = None,
    json_to: Path | None = None,
) -> int:
    """Run rounds of faults.

    Parameters
    ----------
    seconds
        When to stop drawing new rounds. Every part gets at least one round.
    seed
        What all faults are drawn from. The same seed injects the same faults; the processes' timing is their own.
    part
        Only these parts.
    only
        One round, as SCENARIO:NUMBER.
    json_to
        A file for the counts.
    """
    unknown = set(part or ()) - set(PARTS)
    if unknown:
        print(f"--part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if os.environ.get(_INSIDE) is None and _can_isolate():
        return subprocess.call(
            ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, "-m", "tests.chaos",
             *sys.argv[1:]],
            cwd=ROOT, env={**os.environ, _INSIDE: "1"},
        )  # fmt: skip
    isolated = os.environ.get(_INSIDE) is not None
    if isolated:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
        size = f"size={_SHM_MEGABYTES}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", "/dev/shm"], check=True, timeout=20)
    console = Console()
    chosen = [one for one in SCENARIOS if part is None or one.part in part]
    again = None
    if only is not None:
        name, _, number = only.rpartition(":")
        if name not in {one.name for one in chosen} or not number.isdecimal():
            print(f"--only {only}: SCENARIO:NUMBER is expected, such as {chosen[0].name}:0", file=sys.stderr)
            return 2
        again = (name, int(number))
    try:
        report = run_storm(
            seed, seconds, scenarios=chosen, isolated=isolated, only=again,
            tell=lambda line: console.print(line, markup=False, highlight=False),
        )  # fmt: skip
    finally:
        close_fork_servers()
    show(console, report)
    if json_to is not None:
        json_to.write_text(json.dumps(report.as_data(), indent=1))
    return 1 if report.failures or (report.left_out and os.environ.get(NEED_NAMESPACES)) else 0


def show(console: Console, report: Report) -> None:
    """Print the counts."""
    table = Table("part", "rounds", "faults", "slowest answer (s)", "which")
    for part, counts in report.faults.items():
        which = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        table.add_row(part, str(report.rounds_of[part]), str(counts.total()), f"{report.slowest_s[part]:.2f}", which)
    console.print(table)
    total = sum(counts.total() for counts in report.faults.values())
    console.print(
        f"seed {report.seed}: {report.rounds} rounds, {total} faults in {report.seconds:.0f} s, "
        f"{report.hostile_frames:,} hostile frames, "
        f"{len(report.failures)} rounds failed"
    )
    if report.left_out:
        console.print(f"left out, for want of root: {', '.join(report.left_out)}")
    for failure in report.failures:
        console.print(f"FAILED {failure['scenario']}: {failure['again']}", markup=False)


def _can_isolate() -> bool:
    """Return True if namespaces can be made here."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("unshare", "mount", "ip", "ss")):
        return False
    probe = ["unshare", "--mount", "--net", "--propagation", "private", "ip", "link", "set", "lo", "up"]
    return subprocess.run(probe, capture_output=True, timeout=20).returncode == 0


if __name__ == "__main__":
    sys.exit(app())
