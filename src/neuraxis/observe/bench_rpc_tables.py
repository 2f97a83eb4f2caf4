"""The results of `neuraxis bench rpc` as tables: on a terminal, as plain text, as Markdown, and as data."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from neuraxis.observe import bench_page
from neuraxis.observe.bench_patterns import size_text
from neuraxis.observe.bench_rpc import Entry, Results
from neuraxis.observe.bench_rpc_plan import MANY, OURS, PEERS, WAYS
from neuraxis.observe.bench_rpc_targets import verdicts
from neuraxis.observe.bench_tables import Rows, machine_lines, markdown_table, text_lines, text_table

__all__ = ["as_data", "as_markdown", "as_text", "check_marked", "print_tables", "write_between"]

_MEANING = (
    "p50, p99: what a call takes that waits for the one before. Calls/s: one after the other, and with "
    f"{MANY} under way. By a peer: how many times its time a median call takes; below 1 it is quicker. "
    "Each figure is the median of the rounds, each ratio the median of the rounds' ratios."
)

Tables = list[tuple[str, list[str], Rows]]


def as_data(results: Results) -> dict[str, Any]:
    """Everything for a program: each round, medians, ratios, targets."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, entry in zip(data["entries"], results.entries, strict=True):
        found["medians"] = {
            name: statistics.median(rounds) if rounds else None
            for name, rounds in (
                ("p50_us", entry.p50_us),
                ("p99_us", entry.p99_us),
                ("per_s", entry.per_s),
                ("many_per_s", entry.many_per_s),
            )
        }
    data["ratios"] = [
        {"size": size, "way": way, "peer": peer, "time": ratio, "many_per_s": results.many_ratio(size, way, peer)}
        for size in results.plan.sizes
        for way in OURS
        for peer in PEERS
        if (ratio := results.ratio(size, way, peer)) is not None
    ]
    data["targets"] = msgspec.to_builtins(verdicts(results))
    data["sound"] = results.sound
    return data


def as_text(results: Results) -> str:
    """For a file or a pipe."""
    blocks = [text_lines(_heading(results))]
    blocks += [f"{title}\n{text_table(headings, rows)}" for title, headings, rows in _tables(results)]
    return "\n\n".join([*blocks, text_lines([_MEANING]), text_lines(_footing(results))])


def as_markdown(results: Results) -> str:
    """For a page of documentation."""
    blocks = ["\n".join(f"- {line}" for line in _heading(results))]
    blocks += [f"**{title}**\n\n{markdown_table(headings, rows)}" for title, headings, rows in _tables(results)]
    return "\n\n".join([*blocks, _MEANING, "\n".join(f"- {line}" for line in _footing(results))])


def print_tables(results: Results, console: Console) -> None:
    """For a terminal."""
    console.print(*_heading(results), sep="\n", highlight=False)
    for title, headings, rows in _tables(results):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(_MEANING, style="dim", highlight=False, markup=False)
    console.print(*_footing(results), sep="\n", highlight=False, markup=False)


def check_marked(path: Path) -> None:
    """Raise now, and not after minutes, if there is no place in a file for the tables."""
    bench_page.check_marked(path, "rpc")


def write_between(results: Results, path: Path) -> None:
    """Put the tables, as Markdown, between the two marks in a file."""
    bench_page.write_between(path, "rpc", as_markdown(results))


def _heading(results: Results) -> list[str]:
    plan = results.plan
    lines = [
        *machine_lines(results.machine),
        f"Load average when it began: {results.load_before:.1f}.",
        "A caller and a callee, two processes of this host; an array of bytes is sent and comes back.",
        f"The ways took turns, and the median of {plan.rounds} round(s) counts.",
    ]
    lines += [f"{way}: {WAYS[way].text}" for way in _measured(results)]
    reasons: dict[str, list[str]] = {}
    for gone in results.left_out:
        reasons.setdefault(gone.reason + (f": {gone.remedy}" if gone.remedy else ""), []).append(gone.contender)
    lines += [f"left out: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    lines += [f"failed: {failure}" for failure in results.failures]
    return lines


def _measured(results: Results) -> list[str]:
    return [way for way in results.plan.ways if any(results.entry(size, way) for size in results.plan.sizes)]


def _tables(results: Results) -> Tables:
    peers = [way for way in _measured(results) if way in PEERS]
    headings = ["way", "p50 µs", "p99 µs", "calls/s", f"{MANY} under way", *(f"by {peer}" for peer in peers)]
    tables = []
    for size in results.plan.sizes:
        entries = [entry for way in results.plan.ways if (entry := results.entry(size, way)) is not None]
        if entries:
            tables.append((size_text(size), headings, [_row(results, entry, peers) for entry in entries]))
    return tables


def _row(results: Results, entry: Entry, peers: list[str]) -> list[str]:
    return [
        entry.way,
        _number(entry.p50_us),
        _number(entry.p99_us),
        _number(entry.per_s),
        _number(entry.many_per_s),
        *(_ratio(results.ratio(entry.size, entry.way, peer)) for peer in peers),
    ]


def _footing(results: Results) -> list[str]:
    judged = verdicts(results)
    if not judged:
        return ["No target applies to this choice of ways and sizes."]
    return [f"Targets: {sum(one.met for one in judged)} of {len(judged)} met.", *map(str, judged)]


def _number(rounds: list[float]) -> str:
    return f"{statistics.median(rounds):,.0f}" if rounds else "-"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
