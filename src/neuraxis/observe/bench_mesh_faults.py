"""What becomes of a brain when one of its processes is killed: noticed after how long, and what the others do.

The process of the last region gets SIGKILL in the middle of a run. The others cannot go further than the delay from it
allows until they know that it is gone; so the first of them that gets further shows when it was noticed, unless they
all end.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec

from neuraxis.observe.bench_contender import ContenderFailed
from neuraxis.observe.bench_mesh_program import Program
from neuraxis.observe.bench_mesh_ticks import read_ticks

__all__ = ["Fault", "kill_one"]

_BEFORE_S = 0.3  # how long it runs before that
_LIMIT_S = 20.0
_LOOK_S = 0.005
_START_S = 60.0


class Fault(msgspec.Struct):
    """What was seen.

    Attributes:
        outcome: "stops" (all others end), "goes on", or "hangs" (neither, within the limit).
        noticed_s: until the first of the others ended or got further than it could without the one that was killed.
        all_s: until the last of them did.
        at_step: how far the killed one had come.
        silent_from: the step from which others count it as silent, where they do.
        error: what the others raised, or were ended by.
    """

    way: str
    brain: str
    outcome: str
    noticed_s: float
    all_s: float
    at_step: int
    dt_ms: float
    silent_from: int | None = None
    error: str = ""

    def __str__(self) -> str:
        if self.outcome == "hangs":
            return f"others hang (> {self.all_s:.0f} s)"
        if self.way == "sequential":
            return "it is over"
        if self.outcome == "stops":
            return f"all stop, {self.all_s:.2g} s"
        if self.silent_from is not None:
            return f"others go on, {self.all_s:.2g} s"
        return f"restarted, {self.all_s:.2g} s"


def kill_one(program: Program, brain: str, window_steps: int, dt_ms: float) -> Fault:
    """Kill the process of the last region, and see."""
    begun = program.wait_for("waits", brain, _START_S).at
    files = program.tick_files(brain)
    *others, victim = files
    _wait_until_it_runs(program, files[victim], begun)
    pids = program.pids(brain)
    killed_at = time.monotonic_ns()
    os.kill(pids[victim], signal.SIGKILL)
    survivors = {pid for pid in pids.values() if pid != pids[victim]}
    ended: dict[int, int] = {}
    further: dict[str, int] = {}
    at_step = 0
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        now = time.monotonic_ns()
        # What it had noted when it died; where another takes its place, only that one's later notes are newer.
        steps, times = read_ticks(files[victim])
        at_step = int(steps[times <= killed_at].max(initial=0))
        for pid in survivors - set(ended):
            if not _lives(pid):
                ended[pid] = now
        for name in others:
            steps, times = read_ticks(files[name])
            beyond = times[(times > killed_at) & (steps > at_step + 3 * window_steps)]
            if name not in further and len(beyond):
                further[name] = int(beyond[0])
        if program.main.poll() is not None:
            break
        if len(further) == len(others) and now > max(further.values()) + 2e8:
            return _gone_on(program, brain, killed_at, further, at_step, dt_ms)
        time.sleep(_LOOK_S)
    else:
        return Fault(program.way, brain, "hangs", _LIMIT_S, _LIMIT_S, at_step, dt_ms)
    over = time.monotonic_ns()
    raised = [said for said in program.all_said() if said.what == "raised"]
    first = min([said.at for said in raised] + list(ended.values()) + [over])
    last = max([*ended.values(), over])
    error = raised[0].error if raised else f"ended by the launcher: {program.last_words()}"
    if program.way == "sequential":
        error = f"status {program.main.returncode}"
    return Fault(
        program.way, brain, "stops", 1e-9 * (first - killed_at), 1e-9 * (last - killed_at), at_step, dt_ms, error=error
    )


def _gone_on(
    program: Program, brain: str, killed_at: int, further: dict[str, int], at_step: int, dt_ms: float
) -> Fault:
    program.say_enough()
    said = program.wait_for("went on", brain, _START_S)
    silences = [silence for seen in said.silences.values() for silence in seen]
    times = [1e-9 * (at - killed_at) for at in further.values()]
    fault = Fault(program.way, brain, "goes on", min(times), max(times), at_step, dt_ms)
    if silences:
        fault.silent_from = min(int(first) for _, first, _, _ in silences)
        fault.error = ", ".join(sorted({str(why) for *_, why in silences}))
    return fault


def _wait_until_it_runs(program: Program, ticks: Path, begun: int) -> None:
    """Wait until the region has been running for a while since a time."""
    deadline = time.monotonic() + _START_S
    while True:
        times = read_ticks(ticks)[1]
        if len(times) and times[-1] > begun + 1e9 * _BEFORE_S:
            return
        if program.main.poll() is not None or time.monotonic() > deadline:
            raise ContenderFailed(program.last_words() or "it does not run")
        time.sleep(_LOOK_S)


def _lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
