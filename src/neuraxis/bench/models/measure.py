"""Measure the processor time of models and networks on neuraxis and on other simulators, in turns.

A sample is a process that runs one case on one core and reports the processor time of the run, without building. Other
load on the machine lengthens processor time only a little, through shared caches.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from neuraxis.bench import harness
from neuraxis.bench.harness import LeftOut, Progress
from neuraxis.bench.machine import machine_state
from neuraxis.bench.models.catalogue import CASES, NETWORKS, Case
from neuraxis.bench.processes import ContenderFailed
from neuraxis.bench.programs import run_program

__all__ = ["OURS", "Entry", "Failure", "Plan", "Results", "Sample", "contenders", "measure"]

OURS = "neuraxis"
_FOLDER = Path(__file__).parent / "peers"
_PROGRAMS = {
    OURS: _FOLDER / "ours.py",
    "nest": _FOLDER / "peer_nest.py",
    "brian2": _FOLDER / "peer_brian2.py",
}


class Plan(msgspec.Struct, frozen=True):
    """Plan of a measurement.

    Attributes:
        cases: names of models and networks.
        peers: simulators to compare with.
        neurons: neurons of a model; networks have their own size.
        time_ms, peer_time_ms: model time of a sample of a model, on neuraxis and on the others, which are slower.
        network_ms: model time of a sample of a network, the same for all.
        repeats: rounds in which the contenders take turns.
        limit_s: seconds after which a process counts as failed.
    """

    cases: tuple[str, ...] = tuple(case.name for case in (*CASES, *NETWORKS))
    peers: tuple[str, ...] = ()
    neurons: int = 4000
    time_ms: float = 1000.0
    peer_time_ms: float = 200.0
    network_ms: float = 1000.0
    repeats: int = 3
    limit_s: float = 600.0
    peers_python: str = sys.executable


class Sample(msgspec.Struct):
    """The answer of a program about one run."""

    version: str
    neurons: int
    steps: int
    time_ms: float
    cpu_seconds: float
    spikes: int
    fingerprint: str = ""

    @property
    def nanoseconds(self) -> float:
        """Processor time for one neuron and step."""
        return self.cpu_seconds * 1e9 / (self.neurons * self.steps)

    @property
    def rate_hz(self) -> float:
        return self.spikes / self.neurons / (self.time_ms * 1e-3)


class Entry(msgspec.Struct):
    """One case on one simulator: every sample."""

    case: str
    simulator: str
    samples: list[Sample]

    @property
    def nanoseconds(self) -> float:
        return statistics.median(sample.nanoseconds for sample in self.samples)


class Failure(msgspec.Struct):
    """A simulator that failed on a case, and its last error."""

    case: str
    simulator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.case}: {self.simulator}: {self.reason}"


class Results(harness.Results):
    """The results of a run."""

    plan: Plan
    entries: list[Entry]
    left_out: list[LeftOut]
    failures: list[Failure]

    def entry(self, case: str, simulator: str) -> Entry | None:
        """Return the entry that has samples, if there is one."""
        found = (one for one in self.entries if (one.case, one.simulator) == (case, simulator) and one.samples)
        return next(found, None)

    def ratio(self, case: str, peer: str) -> float | None:
        """Return the peer's processor time as a multiple of neuraxis's."""
        ours, theirs = self.entry(case, OURS), self.entry(case, peer)
        return None if ours is None or theirs is None else theirs.nanoseconds / ours.nanoseconds

    @property
    def sound(self) -> bool:
        """True if neuraxis ran every case."""
        return all(failure.simulator != OURS for failure in self.failures)


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Run the plan. A simulator that fails on a case does not run that case again."""
    state = machine_state(1)
    cases = [case for case in (*CASES, *NETWORKS) if case.name in plan.cases]
    entries = [
        Entry(case.name, simulator, [])
        for case in cases
        for simulator in contenders(plan, case.network)
        if simulator == OURS or getattr(case, simulator.partition(" ")[0]) is not None
    ]
    failures: list[Failure] = []
    done = 0
    # Programs that Brian2 has compiled stay here until all rounds are done.
    with tempfile.TemporaryDirectory(prefix="neuraxis-bench-") as folder:
        for case in cases:
            running = [entry for entry in entries if entry.case == case.name]
            for number in range(plan.repeats):
                for entry in list(running):
                    if progress is not None:
                        what = f"{case.name}: {entry.simulator}, round {number + 1} of {plan.repeats}"
                        progress(done, len(entries) * plan.repeats, what)
                    done += 1
                    try:
                        entry.samples.append(_sample(plan, case, entry.simulator, str(Path(folder) / case.name)))
                    except ContenderFailed as error:
                        failures.append(Failure(case.name, entry.simulator, str(error)))
                        running.remove(entry)
                        done += plan.repeats - number - 1
    state["machine"] |= {
        entry.simulator: entry.samples[0].version
        for entry in entries
        if entry.samples and entry.simulator in plan.peers
    }
    return Results(plan=plan, entries=entries, left_out=list(left_out), failures=failures, **state)


def contenders(plan: Plan, network: bool) -> list[str]:
    """Return what takes turns: networks run on Brian2 also in float64, which is its default."""
    found = [OURS, *plan.peers]
    return [*found, "brian2 float64"] if network and "brian2" in plan.peers else found


def _sample(plan: Plan, case: Case, simulator: str, folder: str) -> Sample:
    # -P keeps files of the working folder from being imported; older interpreters of peers lack the option.
    python = [sys.executable, "-P"] if simulator == OURS else [plan.peers_python]
    program, _, precision = simulator.partition(" ")
    options = _options(plan, case, program, f"{folder} {precision}".rstrip())
    if precision:
        options["precision"] = precision
    line = run_program([*python, str(_PROGRAMS[program]), json.dumps(options)], plan.limit_s)
    try:
        return msgspec.json.decode(line, type=Sample)
    except msgspec.MsgspecError as error:
        raise ContenderFailed(f"its output is not a result: {error}") from error


def _options(plan: Plan, case: Case, simulator: str, folder: str) -> dict[str, Any]:
    """Return the options of a simulator's program for a case."""
    model_ms = plan.time_ms if simulator == OURS else plan.peer_time_ms
    options: dict[str, Any] = {
        "neurons": plan.neurons,
        "time_ms": plan.network_ms if case.network else model_ms,
        "current_pa": case.current_pa,
    }
    if simulator == "nest":
        assert case.nest is not None
        return options | {"model": case.nest.model, "parameters": case.nest.parameters}
    if simulator == "brian2":
        options |= msgspec.to_builtins(case.brian2)
        return options | {"folder": folder} | ({"neurons": 4000} if case.network else {})
    if case.network:
        return options | {"network": case.name}
    return options | {"model": case.name, "parameters": case.parameters}
