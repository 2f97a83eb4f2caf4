"""One brain in all the ways there are to run it: how fast, what a window takes, and what comes of it.

In each round every way has its turn, in processes of its own, so that other load on the machine meets all of them. A
window's time is that between the ends of two windows in a region: its own work, and waiting for the others.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.observe.bench_contenders import LeftOut, left_out
from neuraxis.observe.bench_mesh_faults import Fault, kill_one
from neuraxis.observe.bench_mesh_program import Program, ranks_of
from neuraxis.observe.bench_mesh_ticks import read_ticks
from neuraxis.observe.bench_mesh_way import Job, Said

__all__ = ["WAYS", "BrainEntry", "BrainResults", "Failure", "measure_brains", "parse_ways"]

WAYS = (
    "sequential", "shm", "lockstep-shm", "lockstep-gloo", "lockstep-mpi", "zenoh-peers", "zenoh-router",
)  # fmt: skip
_RESTART = "shm-restart"
_LIMIT_S = 180.0


class BrainEntry(msgspec.Struct):
    """One brain in one way.

    Attributes:
        steps: of a stretch; seconds: of each stretch, over all rounds.
        start_seconds: until it could run, of each round.
        window_p50_us, window_p99_us: for each round, what a window took, of the region for which it took longest.
    """

    brain: str
    way: str
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
        """Seconds for a second of model time."""
        return statistics.median(self.seconds) / (self.steps * self.dt_ms * 1e-3)


class Failure(msgspec.Struct):
    """A way that could not be measured, and why."""

    way: str
    reason: str

    def __str__(self) -> str:
        return f"{self.way}: {self.reason}"


class BrainResults(msgspec.Struct):
    entries: list[BrainEntry]
    faults: list[Fault]
    left_out: list[LeftOut]
    failures: list[Failure]

    def of(self, brain: str) -> list[BrainEntry]:
        return [entry for entry in self.entries if entry.brain == brain]

    def fault(self, way: str) -> Fault | None:
        return next((one for one in self.faults if one.way == way), None)

    @property
    def disagreements(self) -> list[str]:
        """Runs of a brain that ended otherwise than its first: none is to be expected."""
        found = []
        for brain in dict.fromkeys(entry.brain for entry in self.entries):
            entries = self.of(brain)
            wanted = entries[0].fingerprints[0]
            found += [
                f"{brain}: {entry.way} gave {other}, {entries[0].way} {wanted}"
                for entry in entries
                for other in sorted(set(entry.fingerprints) - {wanted})
            ]
        return found


def parse_ways(text: str) -> tuple[str, ...]:
    wanted = {word.strip() for word in text.split(",")}
    unknown = sorted(wanted - set(WAYS))
    if unknown:
        raise InvalidArgument(f"--ways: {unknown[0]!r} is not one of {', '.join(WAYS)}")
    return tuple(way for way in WAYS if way in wanted)


def measure_brains(
    ways: Sequence[str],
    brains: Sequence[str],
    rounds: int,
    steps: int,
    stretches: int,
    fault_brain: str,
    tell: Callable[[str], None] = lambda what: None,
) -> BrainResults:
    """Run brains in ways, by turns.

    `fault_brain`: in the last round, when all is measured, a process that runs this brain is killed in each way; and in
    one more, that of workers which are restarted. "": none is.
    """
    results = BrainResults([], [], [], [])
    present = []
    for way in ways:
        gone = _left_out(way)
        if gone is None:
            present.append(way)
        else:
            results.left_out.append(gone)
    if fault_brain and "shm" in present:
        present.insert(present.index("shm") + 1, _RESTART)
    found: dict[tuple[str, str], BrainEntry] = {}
    rounds = rounds if brains else 1
    for number in range(rounds):
        for way in present:
            jobs = [] if way == _RESTART else [Job(brain, steps, steps, stretches) for brain in brains]
            if fault_brain and number == rounds - 1:
                counted = [job.stretches for job in jobs if job.brain == fault_brain] or [0]
                jobs = [job for job in jobs if job.brain != fault_brain]
                jobs.append(Job(fault_brain, steps, steps, counted[0], fault=True))
            if not jobs or any(failure.way == way for failure in results.failures):
                continue
            tell(way)
            try:
                _run_way(way, jobs, found, results)
            except NeuraxisError as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                results.failures.append(Failure(way, lines[0]))
    results.entries = [found[brain, way] for brain in brains for way in ways if (brain, way) in found]
    return results


def _run_way(way: str, jobs: list[Job], found: dict[tuple[str, str], BrainEntry], results: BrainResults) -> None:
    for ranks, group in _by_ranks(way, jobs).items():
        with Program(way, group, ranks) as program:
            for job in group:
                said = program.wait_for("ran", job.brain, _LIMIT_S)
                if job.stretches:
                    _add(found, way, program, job, said)
                if job.fault:
                    results.faults.append(kill_one(program, job.brain, said.window_steps, said.dt_ms))
            program.wait_for_end()


def _by_ranks(way: str, jobs: list[Job]) -> dict[int, list[Job]]:
    """Jobs by how many ranks a launcher must start for them; in other ways, all together."""
    if not way.startswith("lockstep-"):
        return {1: jobs}
    groups: dict[int, list[Job]] = {}
    with tempfile.TemporaryDirectory(prefix="neuraxis-bench-") as folder:
        for job in jobs:
            groups.setdefault(ranks_of(job.brain, Path(folder)), []).append(job)
    return groups


def _add(found: dict[tuple[str, str], BrainEntry], way: str, program: Program, job: Job, said: Said) -> None:
    entry = found.get((job.brain, way))
    if entry is None:
        entry = found[job.brain, way] = BrainEntry(
            job.brain, way, said.processes, said.neurons, said.dt_ms, said.window_steps, said.steps, [], [], [], [], []
        )
    entry.seconds += [1e-9 * (end - begin) for begin, end in said.stretches]
    entry.start_seconds.append(said.start_seconds)
    entry.fingerprints.append(said.fingerprint)
    by_region = []
    for path in program.tick_files(job.brain).values():
        times = read_ticks(path)[1]
        taken = [
            np.diff(times[(times >= begin) & (times <= end)]) for begin, end in said.stretches
        ]  # fmt: skip
        together = np.concatenate(taken)
        if len(together):
            by_region.append(1e-3 * np.percentile(together, [50, 99]))
    if by_region:
        p50, p99 = np.max(by_region, axis=0)
        entry.window_p50_us.append(float(p50))
        entry.window_p99_us.append(float(p99))


def _left_out(way: str) -> LeftOut | None:
    if way == "lockstep-gloo" and (gone := left_out("gloo")):
        return LeftOut(way, gone.reason, gone.remedy)
    if way == "lockstep-mpi" and (gone := left_out("mpi")):
        return LeftOut(way, gone.reason, gone.remedy)
    if way.startswith("zenoh-") and importlib.util.find_spec("zenoh") is None:
        return LeftOut(way, "zenoh is not installed", "pip install eclipse-zenoh")
    return None
