"""The results of `neuraxis bench brain` as tables: on a terminal, as plain text, as Markdown, and as data."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from neuraxis.observe.bench_brain import Entry, Results
from neuraxis.observe.bench_brain_plan import BRUNEL_ORDER
from neuraxis.observe.bench_brain_targets import verdicts
from neuraxis.observe.bench_tables import Rows, machine_lines, markdown_table, ratio_text, text_lines, text_table

__all__ = ["as_data", "as_markdown", "as_text", "print_tables"]

_MISSED = "!"  # after a figure that misses its target


def as_data(results: Results) -> dict[str, Any]:
    """Everything for a program: every sample, medians, ratios, targets."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, entry in zip(data["entries"], results.entries, strict=True):
        if not entry.samples:
            continue
        events = _events_per_second(results, entry)
        found["median"] = {
            "built_seconds": entry.built_seconds,
            "real_time_factor": entry.real_time_factor,
            "ratio": results.ratio(entry),
            "spikes_per_second": entry.median(lambda sample: sample.spikes / sample.run_seconds),
            "rate_hz": entry.median(lambda sample: sample.rate_hz),
            "events_per_second": events,
            "efficiency": _efficiency(results, entry),
        }
    data["targets"] = [{**msgspec.to_builtins(verdict), "text": str(verdict)} for verdict in verdicts(results)]
    return data


def print_tables(results: Results, console: Console) -> None:
    """For a terminal."""
    console.print(*_heading(results), sep="\n", highlight=False, markup=False)
    for title, headings, rows in _tables(results):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            table.add_column(heading, justify="right", style="bold" if heading in ("ratio", "efficiency") else None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(*_footing(results), sep="\n", highlight=False, markup=False)


def as_text(results: Results) -> str:
    """For a file or a pipe."""
    blocks = [text_lines(_heading(results))]
    blocks += [f"{title}\n{text_table(headings, rows)}" for title, headings, rows in _tables(results)]
    return "\n\n".join([*blocks, text_lines(_footing(results))])


def as_markdown(results: Results) -> str:
    """For a page of documentation."""
    blocks = ["\n".join(f"- {line}" for line in _heading(results))]
    blocks += [f"### {title}\n\n{markdown_table(headings, rows)}" for title, headings, rows in _tables(results)]
    blocks.append("\n".join(f"- {line}" for line in _footing(results)))
    return "\n\n".join(blocks)


def _tables(results: Results) -> list[tuple[str, list[str], Rows]]:
    tables = []
    for network in results.plan.networks:
        entries = results.of(network)
        if entries:
            one = entries[0].samples[0]
            title = f"{network}: {one.neurons:,} neurons, {one.synapses:,} synapses"
            tables.append((title, *(_scaling(results, entries) if results.plan.scaling else _race(results, entries))))
    return tables


def _race(results: Results, entries: list[Entry]) -> tuple[list[str], Rows]:
    missed = {(v.target.network, v.contender, v.target.figure) for v in verdicts(results) if not v.met}

    def marked(text: str, entry: Entry, figure: str) -> str:
        return text + _MISSED * ((entry.network, str(entry.contender), figure) in missed)

    rows = []
    for entry in entries:
        ratio = None if entry.contender == results.plan.ours else results.ratio(entry)
        rows.append(
            [
                str(entry.contender),
                marked(_seconds(entry.built_seconds), entry, "built_seconds"),
                marked(_seconds(entry.real_time_factor), entry, "real_time_factor"),
                _spread(entry),
                marked(ratio_text(ratio), entry, "ratio"),
                _count(entry.median(lambda sample: sample.spikes / sample.run_seconds)),
                f"{entry.median(lambda sample: sample.rate_hz):.2f}",
                _count(_events_per_second(results, entry)),
            ]
        )
    return ["contender", "built s", "s for 1 s", "min..max", "ratio", "spikes/s", "rate Hz", "events/s"], rows


def _scaling(results: Results, entries: list[Entry]) -> tuple[list[str], Rows]:
    rows = []
    for entry in entries:
        efficiency = _efficiency(results, entry)
        rows.append(
            [
                str(entry.contender.cores),
                _seconds(entry.built_seconds),
                _seconds(entry.real_time_factor),
                _spread(entry),
                _count(_events_per_second(results, entry)),
                "-" if efficiency is None else f"{efficiency:.0%}",
                entry.samples[0].fingerprint,
            ]
        )
    return ["workers", "built s", "s for 1 s", "min..max", "events/s", "efficiency", "fingerprint"], rows


def _heading(results: Results) -> list[str]:
    plan = results.plan
    lines = [
        *machine_lines(results.machine),
        f"{plan.time_ms:g} ms of model time after {plan.discard_ms:g} ms that do not count.",
        f"Figures are medians of {plan.repeats} round(s) in which all take turns.",
        "s for 1 s: seconds of run time for a second of model time, also called real-time factor.",
    ]
    if results.start_up is not None:
        importing, ready = map(
            statistics.median, (results.start_up.import_seconds or [0.0], results.start_up.ready_seconds or [0.0])
        )
        lines.append(
            f"start-up: `import neuraxis` takes {importing:.3g} s; the first step of a tiny network on "
            f"{results.start_up.workers} worker(s) is done {ready:.3g} s after Simulation(...)."
        )
    for gone in results.left_out:
        lines.append(f"{gone.contender} is left out: {gone.reason}" + (f": {gone.remedy}" if gone.remedy else ""))
    lines += [f"failed: {failure}" for failure in results.failures]
    return lines + [f"WRONG: {text}" for text in results.disagreements]


def _footing(results: Results) -> list[str]:
    lines, simulators = [], {entry.contender.simulator for entry in results.entries if entry.samples}
    for entry in results.entries:
        if entry.first is not None:
            later = f"{entry.median(lambda sample: sample.process_seconds):.3g} s" if entry.samples else "-"
            lines.append(
                f"{entry.network}: the first run of {entry.contender}, which compiles what is in no cache, took "
                f"{entry.first.process_seconds:.3g} s in all (built in {entry.first.built_seconds:.3g} s), later ones "
                f"{later}; fingerprint {entry.first.fingerprint}."
            )
    if simulators - {"neuraxis"}:
        lines.append(
            "ratio: how many times as fast neuraxis is; events/s of the others: their spikes/s times the synaptic "
            "events that a spike came to in neuraxis."
        )
        if "brunel" in results.plan.networks and results.plan.order != BRUNEL_ORDER:
            lines.append(
                f"Brunel's network of order {results.plan.order} is not the same for all: neuraxis's has larger "
                f"weights in place of the missing inputs, the others' keeps them. Compare at order {BRUNEL_ORDER}."
            )
    if "brian2" in simulators:
        lines.append(
            "brian2 compiles a program for each run, which is part of its building; with one thread it counts "
            "processor time, which other load does not lengthen."
        )
    judged = verdicts(results)
    if not judged:
        return [*lines, "No target applies to this choice of networks, sizes and workers."]
    met = sum(verdict.met for verdict in judged)
    return [*lines, f"Targets (for 2 cores): {met} of {len(judged)} met; {_MISSED} marks a miss.", *map(str, judged)]


def _events_per_second(results: Results, entry: Entry) -> float | None:
    rates = [
        events / sample.run_seconds for sample in entry.samples if (events := results.events(entry, sample)) is not None
    ]
    return statistics.median(rates) if rates else None


def _efficiency(results: Results, entry: Entry) -> float | None:
    """Events/s for a worker, in parts of what a worker does where they are fewest."""
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
    """1,234 or 5.67e+08."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if number < 1e6 else f"{number:.3g}"
