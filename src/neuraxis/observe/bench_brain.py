"""Measure spiking networks, on neuraxis and on other simulators, in one run.

A sample is a process that builds a network, runs it for `discard_ms` that do not count, and then for `time_ms` that do.
The contenders take turns within each round, so that whatever else the machine does meets all of them alike, and the
median of the rounds counts. neuraxis's first run of a network, in which it compiles what is in no cache, is kept apart.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from neuraxis.observe.bench_brain_plan import OURS, Contender, Plan, options_for, unable
from neuraxis.observe.bench_brain_programs import PROGRAMS, run_program
from neuraxis.observe.bench_contender import ContenderFailed
from neuraxis.observe.bench_contenders import LeftOut
from neuraxis.observe.bench_machine import describe_machine

__all__ = ["Entry", "Failure", "Results", "Sample", "StartUp", "disagreements", "measure"]

_START_UP_ORDER = 20

Progress = Callable[[int, int, str], None]  # done, total, what is measured now


class Sample(msgspec.Struct):
    """What a program said of one run; `process_seconds` is how long it took altogether."""

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

    @property
    def real_time_factor(self) -> float:
        """Seconds of run time for a second of model time."""
        return self.run_seconds / (self.time_ms * 1e-3)

    @property
    def built_seconds(self) -> float:
        """Until it could run: NEST sorts its synapses when it prepares."""
        return self.build_seconds + self.prepare_seconds


class Entry(msgspec.Struct):
    """One network on one contender: every sample, and neuraxis's first run apart."""

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
    def built_seconds(self) -> float:
        return self.median(lambda sample: sample.built_seconds)


class Failure(msgspec.Struct):
    """A contender that failed on a network, and its last words."""

    network: str
    contender: Contender
    reason: str

    def __str__(self) -> str:
        return f"{self.network}: {self.contender}: {self.reason}"


class StartUp(msgspec.Struct):
    """Seconds for `import neuraxis`, and from Simulation(...) of a tiny network to the end of its first step."""

    workers: int
    import_seconds: list[float]
    ready_seconds: list[float]


class Results(msgspec.Struct):
    """All that a run found out. `disagreements` are runs of neuraxis whose spikes differ: none is to be expected."""

    plan: Plan
    machine: dict[str, str]
    entries: list[Entry]
    start_up: StartUp | None
    left_out: list[LeftOut]
    failures: list[Failure]
    disagreements: list[str]

    def of(self, network: str) -> list[Entry]:
        """The entries of a network that have samples, in the plan's order."""
        return [entry for entry in self.entries if entry.network == network and entry.samples]

    def ours(self, network: str) -> Entry | None:
        return next((entry for entry in self.of(network) if entry.contender == self.plan.ours), None)

    def ratio(self, entry: Entry) -> float | None:
        """How many times as fast as this entry neuraxis is."""
        ours = self.ours(entry.network)
        return None if ours is None else entry.real_time_factor / ours.real_time_factor

    def events(self, entry: Entry, sample: Sample) -> float | None:
        """Synaptic events of a sample.

        Other simulators do not count them: theirs are their spikes, times what a spike has come to in neuraxis.
        """
        if sample.synaptic_events is not None:
            return sample.synaptic_events
        ours = self.ours(entry.network)
        if ours is None or not ours.samples[0].spikes:
            return None
        return sample.spikes * (ours.samples[0].synaptic_events or 0) / ours.samples[0].spikes

    @property
    def sound(self) -> bool:
        """Whether neuraxis ran everywhere, with the same spikes each time."""
        return not self.disagreements and all(failure.contender.simulator != OURS for failure in self.failures)


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Run everything. A contender that fails on a network is not asked for that network again."""
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
    machine = describe_machine()
    machine |= {
        entry.contender.simulator: entry.samples[0].version
        for entry in entries
        if entry.samples and entry.contender.simulator != OURS
    }
    return Results(plan, machine, entries, start_up, gone, failures, disagreements(entries))


def disagreements(entries: Sequence[Entry]) -> list[str]:
    """Runs of the same network by neuraxis that did not give the same spikes, in words."""
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
    sample(options, "first run")  # what it had to compile is in the cache now
    found = [sample(options, f"round {number + 1} of {plan.repeats}") for number in range(plan.repeats)]
    return StartUp(
        plan.ours.cores,
        [one.import_seconds for one in found if one.import_seconds is not None],
        [one.ready_seconds for one in found if one.ready_seconds is not None],
    )


def _sample(plan: Plan, contender: Contender, options: dict[str, Any]) -> Sample:
    # -P: a file of the user's working folder must not be taken for a module. Older Pythons do not know it.
    python = [sys.executable, "-P"] if contender.simulator == OURS else [plan.peers_python]
    text = msgspec.json.encode(options).decode()
    begun = perf_counter()
    line = run_program([*python, str(PROGRAMS[contender.simulator]), text], plan.limit_s)
    seconds = perf_counter() - begun
    try:
        sample = msgspec.json.decode(line, type=Sample)
    except msgspec.MsgspecError as error:
        raise ContenderFailed(f"it printed what is no result: {error}") from error
    sample.process_seconds = seconds
    return sample
