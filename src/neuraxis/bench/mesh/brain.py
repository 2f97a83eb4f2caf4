"""Run a brain by every method and measure speed, time of a window, result, and reaction to a killed process.

In each round every method has its turn, in separate processes. The time of a window is that between the ends of two
windows in a region: its own work, and waiting for the others.

In the last round the process of the last region is killed (SIGKILL) in mid-run. Until the other regions detect the
failure they cannot advance further than their delay from it allows; so the first of them that does, or that ends, shows
the time of detection.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from neuraxis.bench.contenders import left_out
from neuraxis.bench.harness import LeftOut, parse_choices
from neuraxis.bench.mesh.program import Program, ranks_of
from neuraxis.bench.mesh.runner import Event, Job
from neuraxis.bench.mesh.workloads import read_ticks
from neuraxis.bench.processes import ContenderFailed
from neuraxis.errors import NeuraxisError
from neuraxis.imports import install_command, installed

__all__ = ["METHODS", "BrainEntry", "BrainResults", "Failure", "Fault", "kill_one", "measure_brains", "parse_methods"]

METHODS = (
    "sequential", "shm", "lockstep-shm", "lockstep-gloo", "lockstep-mpi", "zenoh-peers", "zenoh-router",
)  # fmt: skip
_RESTART = "shm-restart"
_RUN_TIMEOUT_S = 180.0
_BEFORE_FAULT_S = 0.3  # run time before the process is killed
_FAULT_TIMEOUT_S = 20.0
_POLL_S = 0.005
_START_TIMEOUT_S = 60.0


class Fault(msgspec.Struct):
    """The reaction to a killed process when a brain is run by one method.

    Attributes:
        outcome: "stops" (all others end), "goes on", or "hangs" (neither within the time limit).
        noticed_s: seconds until the first of the others ended or continued without the killed process.
        all_s: seconds until the last of them did.
        at_step: the last step of the killed process.
        silent_from: the step from which others treat it as silent, in methods that do.
        error: the exception of the others, or how the launcher ended them.
    """

    method: str = msgspec.field(name="way")
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
        if self.method == "sequential":
            return "it ends"
        if self.outcome == "stops":
            return f"all stop, {self.all_s:.2g} s"
        if self.silent_from is not None:
            return f"others go on, {self.all_s:.2g} s"
        return f"restarted, {self.all_s:.2g} s"


class BrainEntry(msgspec.Struct):
    """One brain, run by one method.

    Attributes:
        steps: of a stretch.
        seconds: of each stretch, over all rounds.
        start_seconds: until it could run, in each round.
        window_p50_us, window_p99_us: time of a window in each round, in the region where it is longest.
    """

    brain: str
    method: str = msgspec.field(name="way")
    processes: int
    neurons: int
    dt_ms: float
    window_steps: int
    steps: int
    seconds: list[float]
    start_seconds: list[float]
    window_p50_us: list[float]
    window_p99_us: list[float]
    fingerprints: list[str]

    @property
    def steps_per_second(self) -> float:
        return self.steps / statistics.median(self.seconds)

    @property
    def real_time_factor(self) -> float:
        """Seconds of run time per second of model time."""
        return statistics.median(self.seconds) / (self.steps * self.dt_ms * 1e-3)


class Failure(msgspec.Struct):
    """A method that could not be measured, and the reason."""

    method: str = msgspec.field(name="way")
    reason: str

    def __str__(self) -> str:
        return f"{self.method}: {self.reason}"


class BrainResults(msgspec.Struct):
    entries: list[BrainEntry]
    faults: list[Fault]
    left_out: list[LeftOut]
    failures: list[Failure]

    def of(self, brain: str) -> list[BrainEntry]:
        return [entry for entry in self.entries if entry.brain == brain]

    def fault(self, method: str) -> Fault | None:
        return next((one for one in self.faults if one.method == method), None)

    @property
    def disagreements(self) -> list[str]:
        """Runs of a brain with another fingerprint than its first run, which is an error."""
        found = []
        for brain in dict.fromkeys(entry.brain for entry in self.entries):
            entries = self.of(brain)
            wanted = entries[0].fingerprints[0]
            found += [
                f"{brain}: {entry.method} gave {other}, {entries[0].method} {wanted}"
                for entry in entries
                for other in sorted(set(entry.fingerprints) - {wanted})
            ]
        return found


def parse_methods(text: str) -> tuple[str, ...]:
    return parse_choices(text, "--methods", METHODS)


def measure_brains(
    methods: Sequence[str],
    brains: Sequence[str],
    rounds: int,
    steps: int,
    stretches: int,
    fault_brain: str,
    show: Callable[[str], None] = lambda what: None,
) -> BrainResults:
    """Run brains by all methods, in turns.

    At the end of the last round, one process of each method is killed while it runs `fault_brain`; so is one of an
    additional method, which restarts workers. An empty `fault_brain` skips this.
    """
    results = BrainResults([], [], [], [])
    present = []
    for method in methods:
        gone = _left_out(method)
        if gone is None:
            present.append(method)
        else:
            results.left_out.append(gone)
    if fault_brain and "shm" in present:
        present.insert(present.index("shm") + 1, _RESTART)
    found: dict[tuple[str, str], BrainEntry] = {}
    rounds = rounds if brains else 1
    for number in range(rounds):
        for method in present:
            jobs = [] if method == _RESTART else [Job(brain, steps, steps, stretches) for brain in brains]
            if fault_brain and number == rounds - 1:
                counted = [job.stretches for job in jobs if job.brain == fault_brain] or [0]
                jobs = [job for job in jobs if job.brain != fault_brain]
                jobs.append(Job(fault_brain, steps, steps, counted[0], fault=True))
            if not jobs or any(failure.method == method for failure in results.failures):
                continue
            show(method)
            try:
                _run_method(method, jobs, found, results)
            except NeuraxisError as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                results.failures.append(Failure(method, lines[0]))
    results.entries = [found[brain, method] for brain in brains for method in methods if (brain, method) in found]
    return results


def _run_method(method: str, jobs: list[Job], found: dict[tuple[str, str], BrainEntry], results: BrainResults) -> None:
    for ranks, group in _by_ranks(method, jobs).items():
        with Program(method, group, ranks) as program:
            for job in group:
                ran = program.wait_for("ran", job.brain, _RUN_TIMEOUT_S)
                if job.stretches:
                    _add(found, method, program, job, ran)
                if job.fault:
                    results.faults.append(kill_one(program, job.brain, ran.window_steps, ran.dt_ms))
            program.wait_for_end()


def _by_ranks(method: str, jobs: list[Job]) -> dict[int, list[Job]]:
    """Group jobs by the number of ranks that a launcher must start; return one group for other methods."""
    if not method.startswith("lockstep-"):
        return {1: jobs}
    groups: dict[int, list[Job]] = {}
    with tempfile.TemporaryDirectory(prefix="neuraxis-bench-") as folder:
        for job in jobs:
            groups.setdefault(ranks_of(job.brain, Path(folder)), []).append(job)
    return groups


def _add(found: dict[tuple[str, str], BrainEntry], method: str, program: Program, job: Job, ran: Event) -> None:
    entry = found.get((job.brain, method))
    if entry is None:
        entry = found[job.brain, method] = BrainEntry(
            job.brain, method, ran.processes, ran.neurons, ran.dt_ms, ran.window_steps, ran.steps, [], [], [], [], []
        )
    entry.seconds += [1e-9 * (end - begin) for begin, end in ran.stretches]
    entry.start_seconds.append(ran.start_seconds)
    entry.fingerprints.append(ran.fingerprint)
    by_region = []
    for path in program.tick_files(job.brain).values():
        times = read_ticks(path)[1]
        taken = [
            np.diff(times[(times >= begin) & (times <= end)]) for begin, end in ran.stretches
        ]  # fmt: skip
        together = np.concatenate(taken)
        if len(together):
            by_region.append(1e-3 * np.percentile(together, [50, 99]))
    if by_region:
        p50, p99 = np.max(by_region, axis=0)
        entry.window_p50_us.append(float(p50))
        entry.window_p99_us.append(float(p99))


def _left_out(method: str) -> LeftOut | None:
    if method == "lockstep-gloo" and (gone := left_out("gloo")):
        return LeftOut(method, gone.reason, gone.remedy)
    if method == "lockstep-mpi" and (gone := left_out("mpi")):
        return LeftOut(method, gone.reason, gone.remedy)
    if method.startswith("zenoh-") and not installed("zenoh"):
        return LeftOut(method, "zenoh is not installed", install_command("", "eclipse-zenoh"))
    return None


def kill_one(program: Program, brain: str, window_steps: int, dt_ms: float) -> Fault:
    """Kill the process of the last region, and observe the others."""
    begun = program.wait_for("ready", brain, _START_TIMEOUT_S).at
    files = program.tick_files(brain)
    *others, victim = files
    _wait_until_running(program, files[victim], begun)
    pids = program.pids(brain)
    killed_at = time.monotonic_ns()
    os.kill(pids[victim], signal.SIGKILL)
    survivors = {pid for pid in pids.values() if pid != pids[victim]}
    ended: dict[int, int] = {}
    further: dict[str, int] = {}
    at_step = 0
    deadline = time.monotonic() + _FAULT_TIMEOUT_S
    while time.monotonic() < deadline:
        now = time.monotonic_ns()
        # Ticks until it died; a process that replaces it writes later ones.
        steps, times = read_ticks(files[victim])
        at_step = int(steps[times <= killed_at].max(initial=0))
        for pid in survivors - set(ended):
            if not _is_alive(pid):
                ended[pid] = now
        for name in others:
            steps, times = read_ticks(files[name])
            beyond = times[(times > killed_at) & (steps > at_step + 3 * window_steps)]
            if name not in further and len(beyond):
                further[name] = int(beyond[0])
        if program.main.poll() is not None:
            break
        if len(further) == len(others) and now > max(further.values()) + 2e8:
            return _continued(program, brain, killed_at, further, at_step, dt_ms)
        time.sleep(_POLL_S)
    else:
        return Fault(program.method, brain, "hangs", _FAULT_TIMEOUT_S, _FAULT_TIMEOUT_S, at_step, dt_ms)
    over = time.monotonic_ns()
    raised = [event for event in program.all_events() if event.what == "raised"]
    first = min([event.at for event in raised] + list(ended.values()) + [over])
    last = max([*ended.values(), over])
    error = raised[0].error if raised else f"ended by the launcher: {program.last_error()}"
    if program.method == "sequential":
        error = f"status {program.main.returncode}"
    return Fault(
        program.method,
        brain,
        "stops",
        1e-9 * (first - killed_at),
        1e-9 * (last - killed_at),
        at_step,
        dt_ms,
        error=error,
    )


def _continued(
    program: Program, brain: str, killed_at: int, further: dict[str, int], at_step: int, dt_ms: float
) -> Fault:
    program.stop()
    event = program.wait_for("continued", brain, _START_TIMEOUT_S)
    silences = [silence for seen in event.silences.values() for silence in seen]
    times = [1e-9 * (at - killed_at) for at in further.values()]
    fault = Fault(program.method, brain, "goes on", min(times), max(times), at_step, dt_ms)
    if silences:
        fault.silent_from = min(int(first) for _, first, _, _ in silences)
        fault.error = ", ".join(sorted({str(why) for *_, why in silences}))
    return fault


def _wait_until_running(program: Program, ticks: Path, begun: int) -> None:
    """Wait until the region has run for a while since `begun`."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        times = read_ticks(ticks)[1]
        if len(times) and times[-1] > begun + 1e9 * _BEFORE_FAULT_S:
            return
        if program.main.poll() is not None or time.monotonic() > deadline:
            raise ContenderFailed(program.last_error() or "the region does not run")
        time.sleep(_POLL_S)


def _is_alive(pid: int) -> bool:
    """Return True if a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
