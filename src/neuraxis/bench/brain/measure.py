"""Measure spiking networks on neuraxis and on other simulators in one run.

A sample is a process that builds a network, runs it for `discard_ms` that do not count, and then for `time_ms` that do.
The first run of a network on neuraxis, which compiles what no cache has, is reported apart.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from neuraxis.bench import harness
from neuraxis.bench.brain.plan import OURS, Contender, Plan, options_for, unable
from neuraxis.bench.harness import LeftOut, Progress
from neuraxis.bench.machine import machine_state
from neuraxis.bench.processes import ContenderFailed
from neuraxis.bench.programs import run_program

__all__ = ["Entry", "Failure", "Results", "Sample", "StartUp", "disagreements", "measure"]

_START_UP_ORDER = 20
_FOLDER = Path(__file__).parent / "peers"
_PROGRAMS = {
    "neuraxis": _FOLDER / "ours.py",
    "nest": _FOLDER / "peer_nest.py",
    "brian2": _FOLDER / "peer_brian2.py",
}


class Sample(msgspec.Struct):
    """The answer of a program about one run.

    `process_seconds` is the time of its whole process. `cpu_seconds` is the processor time of the run alone, of all
    threads; neuraxis with several workers and Brian2 with several threads do not report it.
    """

    version: str
    neurons: int
    synapses: int
    time_ms: float
    build_seconds: float
    run_seconds: float
    spikes: int
    rate_hz: float
    prepare_seconds: float = 0.0
    process_seconds: float = 0.0
    synaptic_events: int | None = None
    fingerprint: str = ""
    peak_memory_bytes: int | None = None
    import_seconds: float | None = None
    ready_seconds: float | None = None
    cpu_seconds: float | None = None

    @property
    def real_time_factor(self) -> float:
        """Seconds of run time per second of model time."""
        return self.run_seconds / (self.time_ms * 1e-3)

    @property
    def cpu_factor(self) -> float | None:
        """Processor seconds per second of model time."""
        return None if self.cpu_seconds is None else self.cpu_seconds / (self.time_ms * 1e-3)

    @property
    def built_seconds(self) -> float:
        """Seconds until it could run; NEST sorts its synapses in `prepare`."""
        return self.build_seconds + self.prepare_seconds


class Entry(msgspec.Struct):
    """One network on one contender: every sample, and the first run of neuraxis apart."""

    network: str
    contender: Contender
    samples: list[Sample]
    first: Sample | None = None

    def median(self, figure: Callable[[Sample], float]) -> float:
        return statistics.median(map(figure, self.samples))

    @property
    def real_time_factor(self) -> float:
        return self.median(lambda sample: sample.real_time_factor)

    @property
    def cpu_factor(self) -> float | None:
        found = [factor for sample in self.samples if (factor := sample.cpu_factor) is not None]
        return statistics.median(found) if found else None

    @property
    def built_seconds(self) -> float:
        return self.median(lambda sample: sample.built_seconds)


class Failure(msgspec.Struct):
    """A contender that failed on a network, and its last error."""

    network: str
    contender: Contender
    reason: str

    def __str__(self) -> str:
        return f"{self.network}: {self.contender}: {self.reason}"


class StartUp(msgspec.Struct):
    """Seconds of `import neuraxis`, and from Simulation(...) of a tiny network to the end of its first step."""

    workers: int
    import_seconds: list[float]
    ready_seconds: list[float]


class Results(harness.Results):
    """The results of a run. `disagreements` are runs of neuraxis whose spikes differ, which is an error."""

    plan: Plan
    entries: list[Entry]
    start_up: StartUp | None
    left_out: list[LeftOut]
    failures: list[Failure]
    disagreements: list[str]

    def of(self, network: str) -> list[Entry]:
        """Return the entries of a network that have samples, in the plan's order."""
        return [entry for entry in self.entries if entry.network == network and entry.samples]

    def ours(self, network: str) -> Entry | None:
        return next((entry for entry in self.of(network) if entry.contender == self.plan.ours), None)

    def ratio(self, entry: Entry) -> float | None:
        """Return how many times as fast as this entry neuraxis is."""
        ours = self.ours(entry.network)
        return None if ours is None else entry.real_time_factor / ours.real_time_factor

    def events(self, entry: Entry, sample: Sample) -> float | None:
        """Return the synaptic events of a sample.

        Other simulators do not count them: the estimate is their spikes times the events per spike in neuraxis.
        """
        if sample.synaptic_events is not None:
            return sample.synaptic_events
        ours = self.ours(entry.network)
        if ours is None or not ours.samples[0].spikes:
            return None
        return sample.spikes * (ours.samples[0].synaptic_events or 0) / ours.samples[0].spikes

    @property
    def sound(self) -> bool:
        """True if neuraxis ran everywhere, with the same spikes each time."""
        return not self.disagreements and all(failure.contender.simulator != OURS for failure in self.failures)


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Run the plan. A contender that fails on a network does not run that network again."""
    state = machine_state(plan.processes)
    gone, failures, entries = list(left_out), list[Failure](), list[Entry]()
    for network in plan.networks:
        for contender in plan.contenders:
            reason = unable(plan, network, contender)
            if reason is None:
                entries.append(Entry(network, contender, []))
            elif reason not in gone:
                gone.append(reason)
    with_start_up = not plan.scaling
    total = (len(entries) + with_start_up) * plan.repeats + len(plan.networks) + with_start_up
    done = 0

    def sample(network: str, contender: Contender, options: dict[str, Any], what: str) -> Sample:
        nonlocal done
        if progress is not None:
            progress(done, total, f"{network}: {contender}, {what}")
        done += 1
        return _sample(plan, contender, options)

    start_up = None
    if with_start_up:
        try:
            start_up = _start_up(plan, lambda options, what: sample("start-up", plan.ours, options, what))
        except ContenderFailed as error:
            failures.append(Failure("start-up", plan.ours, str(error)))
    for network in plan.networks:
        running = [entry for entry in entries if entry.network == network]
        for what in ("first run", *(f"round {number + 1} of {plan.repeats}" for number in range(plan.repeats))):
            for entry in list(running):
                if what == "first run" and entry.contender != plan.ours:
                    continue
                try:
                    found = sample(network, entry.contender, options_for(plan, network, entry.contender), what)
                except ContenderFailed as error:
                    failures.append(Failure(network, entry.contender, str(error)))
                    running.remove(entry)
                    continue
                if what == "first run":
                    entry.first = found
                else:
                    entry.samples.append(found)
    state["machine"] |= {
        entry.contender.simulator: entry.samples[0].version
        for entry in entries
        if entry.samples and entry.contender.simulator != OURS
    }
    return Results(plan, entries, start_up, gone, failures, disagreements(entries), **state)


def disagreements(entries: Sequence[Entry]) -> list[str]:
    """Describe runs of the same network on neuraxis that did not give the same spikes."""
    found = []
    for network in dict.fromkeys(entry.network for entry in entries):
        seen: dict[str, str] = {}
        for entry in entries:
            if entry.network == network and entry.contender.simulator == OURS:
                for sample in [entry.first, *entry.samples]:
                    if sample is not None:
                        seen.setdefault(sample.fingerprint, str(entry.contender))
        if len(seen) > 1:
            text = ", ".join(f"{fingerprint} ({contender})" for fingerprint, contender in seen.items())
            found.append(f"{network}: the runs differ, and they must not: {text}")
    return found


def _start_up(plan: Plan, sample: Callable[[dict[str, Any], str], Sample]) -> StartUp:
    options = options_for(plan, "brunel", plan.ours) | {"order": _START_UP_ORDER, "presim_ms": 0.1, "time_ms": 0.1}
    sample(options, "first run")  # fills the cache of compiled code
    found = [sample(options, f"round {number + 1} of {plan.repeats}") for number in range(plan.repeats)]
    return StartUp(
        plan.ours.cores,
        [one.import_seconds for one in found if one.import_seconds is not None],
        [one.ready_seconds for one in found if one.ready_seconds is not None],
    )


def _sample(plan: Plan, contender: Contender, options: dict[str, Any]) -> Sample:
    # -P keeps files of the working folder from being imported; older interpreters of peers lack the option.
    python = [sys.executable, "-P"] if contender.simulator == OURS else [plan.peers_python]
    text = msgspec.json.encode(options).decode()
    begun = perf_counter()
    line = run_program([*python, str(_PROGRAMS[contender.simulator]), text], plan.limit_s)
    seconds = perf_counter() - begun
    try:
        sample = msgspec.json.decode(line, type=Sample)
    except msgspec.MsgspecError as error:
        raise ContenderFailed(f"its output is not a result: {error}") from error
    sample.process_seconds = seconds
    return sample
