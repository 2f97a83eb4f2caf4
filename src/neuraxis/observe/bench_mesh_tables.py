"""The results of `neuraxis bench mesh` as tables: on a terminal, as plain text, as Markdown, and as data."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from neuraxis.observe import bench_page
from neuraxis.observe.bench_mesh import Results, verdicts, window_trips
from neuraxis.observe.bench_mesh_brain import BrainEntry
from neuraxis.observe.bench_mesh_brains import BRAINS
from neuraxis.observe.bench_tables import Rows, machine_lines, markdown_table, text_lines, text_table

__all__ = ["BEGIN", "END", "as_data", "as_markdown", "as_text", "check_marked", "print_tables", "write_between"]

BEGIN, END = bench_page.marks("mesh")

Tables = list[tuple[str, list[str], Rows, str]]  # title, headings, rows, what they mean


def as_data(results: Results) -> dict[str, Any]:
    """Everything for a program: each round, ratios, targets."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, message in zip(data["messages"], results.messages, strict=True):
        found["ratio"] = message.ratio
    for found, load in zip(data["load"], results.load, strict=True):
        found["lost"] = load.lost
    for found, entry in zip(data["brain"]["entries"], results.brain.entries, strict=True):
        found["steps_per_second"] = entry.steps_per_second
        found["real_time_factor"] = entry.real_time_factor
    data["brain"]["disagreements"] = results.brain.disagreements
    data["window_trips"] = window_trips(results)
    data["targets"] = msgspec.to_builtins(verdicts(results))
    data["sound"] = results.sound
    return data


def as_text(results: Results) -> str:
    """For a file or a pipe."""
    blocks = [text_lines(_heading(results))]
    for title, headings, rows, meaning in _tables(results):
        blocks.append(f"{title}\n{text_table(headings, rows)}\n{text_lines([meaning])}")
    return "\n\n".join([*blocks, text_lines(_footing(results))])


def as_markdown(results: Results) -> str:
    """For a page of documentation."""
    blocks = ["\n".join(f"- {line}" for line in _heading(results))]
    for title, headings, rows, meaning in _tables(results):
        blocks.append(f"**{title}**\n\n{markdown_table(headings, rows)}\n\n{meaning}")
    blocks.append("\n".join(f"- {line}" for line in _footing(results)))
    return "\n\n".join(blocks)


def print_tables(results: Results, console: Console) -> None:
    """For a terminal."""
    console.print(*_heading(results), sep="\n", highlight=False)
    for title, headings, rows, meaning in _tables(results):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(meaning, style="dim", highlight=False, markup=False)
    console.print(*_footing(results), sep="\n", highlight=False, markup=False)


def check_marked(path: Path) -> None:
    """Raise now, and not after minutes, if there is no place in a file for the tables."""
    bench_page.check_marked(path, "mesh")


def write_between(results: Results, path: Path) -> None:
    """Put the tables, as Markdown, between the two marks in a file."""
    bench_page.write_between(path, "mesh", as_markdown(results))


def _heading(results: Results) -> list[str]:
    plan = results.plan
    lines = [
        *machine_lines(results.machine),
        f"Load average when it began: {results.load_before:.1f}. What is compared took turns; the median of "
        + (f"{plan.rounds} rounds counts." if plan.rounds > 1 else "what there was counts, of one round."),
    ]
    for gone in results.brain.left_out:
        lines.append(f"{gone.contender} is left out: {gone.reason}" + (f": {gone.remedy}" if gone.remedy else ""))
    lines += [f"failed: {failure}" for failure in results.brain.failures]
    return lines


def _tables(results: Results) -> Tables:
    tables: Tables = []
    if results.messages:
        tables.append(_messages(results))
    if results.load:
        tables.append(_load(results))
    for brain in results.plan.brains:
        if results.brain.of(brain):
            tables.append(_brain(results, brain))
    if results.brain.faults:
        tables.append(_faults(results))
    return tables


def _messages(results: Results) -> tuple[str, list[str], Rows, str]:
    headings = ["message", "raw p50 µs", "ours p50 µs", "ours/raw", "raw p99 µs", "ours p99 µs"]
    rows = [
        [
            str(entry),
            f"{entry.median('raw'):.0f}",
            f"{entry.median('ours'):.0f}",
            f"{entry.ratio:.2f}",
            f"{entry.median_p99('raw'):.0f}",
            f"{entry.median_p99('ours'):.0f}",
        ]
        for entry in results.messages
    ]
    meaning = (
        "publish: from the call to the handler in another process, one way; request: there and back. Raw: Zenoh's own "
        "calls, in sessions of the same configuration, with bytes."
    )
    return "Messages between two processes", headings, rows, meaning


def _load(results: Results) -> tuple[str, list[str], Rows, str]:
    headings = ["load", "by", "sent", "heard", "lost", "p50 ms", "p99 ms", "longest ms", "sent late ms"]
    rows = [
        [
            f"{one.nodes} nodes x {one.rate_hz:g} Hz x {one.size // 1024} KB, hear {one.hears}",
            one.contender,
            f"{one.sent:,}",
            f"{one.received:,}",
            str(one.lost),
            f"{one.p50_us / 1000:.2f}",
            f"{one.p99_us / 1000:.2f}",
            f"{one.longest_us / 1000:.1f}",
            f"{one.late_us / 1000:.1f}",
        ]
        for one in results.load
    ]
    meaning = (
        "Each node is a process; it hears one other (next), or all others. By our nodes, and by raw Zenoh. Sent late: "
        "by how much senders missed their time (p99), which is the machine's lack of cores."
    )
    return "Nodes under load", headings, rows, meaning


def _brain(results: Results, brain: str) -> tuple[str, list[str], Rows, str]:
    entries = results.brain.of(brain)
    first = entries[0]
    headings = [
        "way", "processes", "start s", "steps/s", "s per model s", "window p50 µs", "p99 µs", "result", "one is killed",
    ]  # fmt: skip
    rows = [
        [
            entry.way,
            str(entry.processes),
            f"{statistics.median(entry.start_seconds):.1f}",
            f"{entry.steps_per_second:,.0f}",
            f"{entry.real_time_factor:.3f}",
            _median(entry.window_p50_us),
            _median(entry.window_p99_us),
            _result(first, entry),
            str(results.brain.fault(entry.way) or "-"),
        ]
        for entry in entries
    ]
    meaning = (
        f"{first.neurons:,} neurons, steps of {first.dt_ms:g} ms; a window is {first.window_steps * first.dt_ms:g} ms, "
        "the shortest delay between two regions, and its time that between its end and the end of the one before, in "
        "the region where that takes longest. Result: the fingerprint, or that it is the same."
    )
    return f"Brain {brain!r}: {BRAINS[brain]}", headings, rows, meaning


def _faults(results: Results) -> tuple[str, list[str], Rows, str]:
    brain = results.brain.faults[0].brain
    headings = ["way", "what the others do", "noticed after s", "all, after s", "said"]
    rows = []
    for fault in results.brain.faults:
        does = {"stops": "end", "hangs": "neither end nor go on", "goes on": "go on with a new worker"}[fault.outcome]
        if fault.way == "sequential":
            does = "(there is one process)"
        if fault.silent_from is not None:
            does = f"go on; silence from step {fault.silent_from:,} (it was killed at {fault.at_step:,})"
        rows.append([fault.way, does, f"{fault.noticed_s:.2f}", f"{fault.all_s:.2f}", _short(fault.error) or "-"])
    meaning = (
        f"The process of the last region of brain {brain!r} gets SIGKILL in mid-run. Noticed: the first of the others "
        "has ended, or gone further than it could without knowing; all: the last of them has."
    )
    return "One process is killed", headings, rows, meaning


def _footing(results: Results) -> list[str]:
    judged = verdicts(results)
    lines = [f"Targets: {sum(one.met for one in judged)} of {len(judged)} met.", *map(str, judged)] if judged else []
    if results.brain.disagreements:
        lines += ["NOT SOUND: results differ", *results.brain.disagreements]
    elif results.brain.entries:
        ways = len({entry.way for entry in results.brain.entries})
        lines.append(f"All {ways} ways gave the same result for every brain, to the bit.")
    return lines


def _result(first: BrainEntry, entry: BrainEntry) -> str:
    differ = set(entry.fingerprints) - {first.fingerprints[0]}
    if differ:
        return f"DIFFERS: {sorted(differ)[0]}"
    return first.fingerprints[0] if entry is first else "same"


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f}" if values else "-"


def _short(text: str) -> str:
    """The kind of an error and a little of it; a bar would end a cell of Markdown."""
    text = text.replace("|", "/")
    return text if len(text) <= 60 else text[:57] + "..."
