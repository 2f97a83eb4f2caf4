"""A brain whose regions follow the wall clock, watched from outside: a line while it runs, and what each region saw."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from rich.console import Console
from rich.table import Table

from neuraxis.execution.mesh.setup import RegionSetup
from neuraxis.execution.mesh.team import RegionTeam
from neuraxis.execution.progress import ProgressLine
from neuraxis.mesh.topology import Topology

__all__ = ["print_stories", "run_by_the_clock"]

_START_S = 300.0
_AHEAD_S = 0.2  # step 0 is so far in the future when all are told, so that nobody is late for it


def run_by_the_clock(
    setups: dict[str, RegionSetup],
    steps: int,
    dt_ms: float,
    topology: Topology | None = None,
    remote: Collection[str] = (),
) -> tuple[dict[str, Any], bool]:
    """Start the nodes, let them run so many steps, and ask what they saw; whether Ctrl-C ended it early.

    Those that run elsewhere already have a clock, which is the one that counts; they run on when this is over.
    """
    interrupted = False
    with RegionTeam(setups, topology=topology, remote=remote) as team:
        team.wait(_START_S)
        now_ns = time.time_ns() + int(_AHEAD_S * 1e9)
        epoch_ns = min([now_ns, *team.epochs_ns()])
        until = steps + int((now_ns - epoch_ns) * 1e-6 / dt_ms)
        team.ask("start", until, epoch_ns)
        end_s = until * dt_ms * 1e-3
        begun_s = (now_ns - epoch_ns) * 1e-9
        with ProgressLine("running", end_s - begun_s) as line:
            try:
                while (now := (time.time_ns() - epoch_ns) * 1e-9) < end_s + 0.1:
                    lost = "".join(f", {name} is gone" for name in team.names if not team.is_live(name))
                    line.update(max(0.0, now - begun_s), f"{len(team.names)} regions by the wall clock{lost}")
                    time.sleep(0.1)
            except KeyboardInterrupt:
                interrupted = True
        stories = team.ask("story")
    return stories, interrupted


def print_stories(stories: dict[str, Any], dt_ms: float) -> None:
    """A table of how each region kept time, and what it missed of the others."""
    table = Table(box=None, pad_edge=False)
    table.add_column("region")
    for name in (
        "ms",
        "windows",
        "late p50",
        "p99",
        "missed",
        "skipped",
        "spikes early p50",
        "p1",
        "late steps",
        "silence",
    ):
        table.add_column(name, justify="right")
    for name, story in stories.items():
        clock = story["clock"]
        heard = story["upstream"].values()
        silent = [f"{other} {one[0]}-{one[1] or ''}" for other, u in story["upstream"].items() for one in u["silences"]]
        table.add_row(
            name,
            f"{story['step'] * dt_ms:,.0f}",
            f"{clock['windows']:,}",
            f"{clock['jitter_ms']['p50']:.2f}",
            f"{clock['jitter_ms']['p99']:.2f}",
            f"{clock['missed_deadlines']:,}",
            f"{clock['skipped_steps']:,}",
            _number(clock["margin_ms"]["p50"]),
            _number(clock["margin_ms"]["p1"]),
            f"{sum(one['late'] for one in heard):,}",
            ", ".join(silent) or "-",
        )
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print(
        "late: ms after its time that a window was run; early: ms before its time that the first spike of a window came"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
