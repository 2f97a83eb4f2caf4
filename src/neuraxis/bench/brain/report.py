"""The report and the targets of `neuraxis bench brain`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from neuraxis.bench.brain.measure import Entry, Results
from neuraxis.bench.brain.plan import BRUNEL_ORDER, Plan
from neuraxis.bench.harness import Report, Table, Target, left_out_lines, machine_lines, ratio_text

__all__ = ["TARGETS", "Goal", "report", "targets"]


class Goal(msgspec.Struct, frozen=True):
    """A `figure` of a network that should be at most `wanted`; a ratio to `peer` should be at least that.

    It applies to full networks (Brunel's of order 2500, the microcircuit at scale 1), and if `workers` is given only to
    that number.
    """

    network: str
    figure: str  # ratio, real_time_factor, built_seconds, import_seconds or ready_seconds
    wanted: float
    peer: str = ""
    workers: int | None = None

    def applies(self, plan: Plan) -> bool:
        if plan.scaling or self.workers not in (None, plan.ours.cores):
            return False
        if self.network == "brunel":
            return plan.order == BRUNEL_ORDER
        return self.network != "microcircuit" or plan.scale == 1.0


TARGETS = (
    Goal("brunel", "ratio", 10.0, peer="nest", workers=2),
    Goal("brunel", "ratio", 6.0, peer="brian2", workers=2),
    Goal("microcircuit", "real_time_factor", 2.0),
    Goal("microcircuit", "built_seconds", 30.0),
    Goal("start-up", "import_seconds", 1.0),
    Goal("start-up", "ready_seconds", 3.0),
)

_TEXTS = {
    "real_time_factor": "{:.3g} s for 1 s of model time",
    "built_seconds": "built in {:.3g} s",
    "import_seconds": "`import neuraxis` takes {:.3g} s",
    "ready_seconds": "the first step is done {:.3g} s after Simulation(...)",
}


def report(results: Results) -> Report:
    tables = []
    for network in results.plan.networks:
        if entries := results.of(network):
            one = entries[0].samples[0]
            title = f"{network}: {one.neurons:,} neurons, {one.synapses:,} synapses"
            make = _scaling_table if results.plan.scaling else _comparison_table
            tables.append(make(title, results, entries))
    return Report(_data(results), _heading(results), tables, _notes(results), targets(results), "Targets (for 2 cores)")


def targets(results: Results, goals: Sequence[Goal] = TARGETS) -> list[Target]:
    """Return every target that the run can be compared with; none if it compared numbers of workers."""
    found = []
    for goal in goals:
        reached = _reached(goal, results) if goal.applies(results.plan) else None
        if reached is None:
            continue
        contender, value = reached
        if goal.figure == "ratio":
            text = f"{value:.3g}x as fast as {contender}, wanted {goal.wanted:g}x or more"
            missed = 1 - value / goal.wanted
        else:
            text = f"{_TEXTS[goal.figure].format(value)}, wanted {goal.wanted:g} s or less"
            missed = value / goal.wanted - 1
        data = {"target": msgspec.to_builtins(goal), "contender": contender, "reached": value}
        found.append(Target(f"{goal.network}: {text}", missed <= 0, missed, data))
    return found


def _reached(goal: Goal, results: Results) -> tuple[str, float] | None:
    """Return the contender whose figure is compared, and the figure."""
    if goal.network == "start-up":
        seconds = [] if results.start_up is None else getattr(results.start_up, goal.figure)
        return ("neuraxis", statistics.median(seconds)) if seconds else None
    ours = results.ours(goal.network)
    if ours is None:
        return None
    if goal.figure != "ratio":
        return str(ours.contender), getattr(ours, goal.figure)
    rivals = [entry for entry in results.of(goal.network) if entry.contender.simulator == goal.peer]
    if not rivals:
        return None
    best = min(rivals, key=lambda entry: entry.real_time_factor)
    return str(best.contender), best.real_time_factor / ours.real_time_factor


def _data(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    del data["plan"]["peers_python"]  # a path says nothing about the figures; their versions are in `machine`
    for found, entry in zip(data["entries"], results.entries, strict=True):
        if entry.samples:
            found["median"] = {
                "built_seconds": entry.built_seconds,
                "real_time_factor": entry.real_time_factor,
                "cpu_factor": entry.cpu_factor,
                "ratio": results.ratio(entry),
                "spikes_per_second": _spikes_per_second(entry),
                "rate_hz": entry.median(lambda sample: sample.rate_hz),
                "events_per_second": _events_per_second(results, entry),
                "efficiency": _efficiency(results, entry),
            }
    return data


def _comparison_table(title: str, results: Results, entries: list[Entry]) -> Table:
    headings = [
        "contender",
        "built s",
        "s for 1 s",
        "min..max",
        "ratio",
        "CPU s",
        "spikes/s",
        "rate Hz",
        "events/s",
    ]
    rows = [
        [
            str(entry.contender),
            _seconds(entry.built_seconds),
            _seconds(entry.real_time_factor),
            _spread(entry),
            ratio_text(None if entry.contender == results.plan.ours else results.ratio(entry)),
            "-" if (cpu := entry.cpu_factor) is None else _seconds(cpu),
            _count(_spikes_per_second(entry)),
            f"{entry.median(lambda sample: sample.rate_hz):.2f}",
            _count(_events_per_second(results, entry)),
        ]
        for entry in entries
    ]
    return Table(title, headings, rows, bold=["ratio"])


def _scaling_table(title: str, results: Results, entries: list[Entry]) -> Table:
    headings = ["workers", "built s", "s for 1 s", "min..max", "events/s", "efficiency", "fingerprint"]
    rows = [
        [
            str(entry.contender.cores),
            _seconds(entry.built_seconds),
            _seconds(entry.real_time_factor),
            _spread(entry),
            _count(_events_per_second(results, entry)),
            "-" if (efficiency := _efficiency(results, entry)) is None else f"{efficiency:.0%}",
            entry.samples[0].fingerprint,
        ]
        for entry in entries
    ]
    return Table(title, headings, rows, bold=["efficiency"])


def _heading(results: Results) -> list[str]:
    plan = results.plan
    lines = [
        *machine_lines(results),
        f"{plan.time_ms:g} ms of model time after {plan.discard_ms:g} ms that do not count.",
        f"Figures are medians of {plan.repeats} round(s) in which all take turns.",
        "s for 1 s: seconds of run time per second of model time, also called real-time factor.",
    ]
    if results.start_up is not None:
        importing, ready = map(
            statistics.median, (results.start_up.import_seconds or [0.0], results.start_up.ready_seconds or [0.0])
        )
        lines.append(
            f"start-up: `import neuraxis` takes {importing:.3g} s; the first step of a tiny network on "
            f"{results.start_up.workers} worker(s) is done {ready:.3g} s after Simulation(...)."
        )
    lines += left_out_lines(results.left_out, results.failures)
    return lines + [f"WRONG: {text}" for text in results.disagreements]


def _notes(results: Results) -> list[str]:
    lines, simulators = [], {entry.contender.simulator for entry in results.entries if entry.samples}
    for entry in results.entries:
        if entry.first is not None:
            later = f"{entry.median(lambda sample: sample.process_seconds):.3g} s" if entry.samples else "-"
            lines.append(
                f"{entry.network}: the first run of {entry.contender}, which compiles what no cache has, took "
                f"{entry.first.process_seconds:.3g} s in all (built in {entry.first.built_seconds:.3g} s), later ones "
                f"{later}; fingerprint {entry.first.fingerprint}."
            )
    if simulators - {"neuraxis"}:
        lines.append(
            "ratio: how many times as fast neuraxis is; events/s of the others: their spikes/s times the synaptic "
            "events per spike in neuraxis."
        )
        if "brunel" in results.plan.networks and results.plan.order != BRUNEL_ORDER:
            lines.append(
                f"Brunel's network of order {results.plan.order} is not the same for all: neuraxis uses larger "
                f"weights in place of the missing inputs, the others do not. Compare at order {BRUNEL_ORDER}."
            )
    if "brian2" in simulators:
        lines.append(
            "brian2 compiles a program for each run, which is part of its building; with one thread its time of the "
            "run is processor time."
        )
    if not results.plan.scaling:
        lines.append(
            "CPU s: processor seconds of all threads per second of model time, which other load hardly "
            "lengthens. Threads of NEST use the processor while they wait."
        )
    return lines


def _spikes_per_second(entry: Entry) -> float:
    return entry.median(lambda sample: sample.spikes / sample.run_seconds)


def _events_per_second(results: Results, entry: Entry) -> float | None:
    rates = [
        events / sample.run_seconds for sample in entry.samples if (events := results.events(entry, sample)) is not None
    ]
    return statistics.median(rates) if rates else None


def _efficiency(results: Results, entry: Entry) -> float | None:
    """Return events/s per worker, relative to the run with the fewest workers."""
    if not results.plan.scaling:
        return None
    least = min(results.of(entry.network), key=lambda other: other.contender.cores)
    mine, theirs = _events_per_second(results, entry), _events_per_second(results, least)
    if not mine or not theirs:
        return None
    return mine / entry.contender.cores / (theirs / least.contender.cores)


def _spread(entry: Entry) -> str:
    factors = [sample.real_time_factor for sample in entry.samples]
    return f"{_seconds(min(factors))}..{_seconds(max(factors))}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"


def _count(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number < 1e6 else f"{number:.3g}"
