"""A benchmark's results as tables: on a terminal, as plain text, as Markdown, and as data."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from neuraxis.observe.bench_collectives import Results
from neuraxis.observe.bench_contenders import PEERS
from neuraxis.observe.bench_patterns import size_text
from neuraxis.observe.bench_targets import verdicts

__all__ = [
    "Rows",
    "as_data",
    "as_markdown",
    "as_text",
    "machine_lines",
    "markdown_table",
    "print_tables",
    "ratio_text",
    "text_lines",
    "text_table",
]

SIZE_MEANING = (
    "Size: bytes of float32 that one rank passes in; for scatter, all_to_all and reduce_scatter the whole input, "
    "cut into one part a rank (at least one number each). send_recv is half a round trip."
)

_TEXT_WIDTH = 100

Rows = list[list[str]]


def as_data(results: Results) -> dict[str, Any]:
    """Everything for a program: raw rounds, medians, ratios, targets."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, measured in zip(data["measurements"], results.measurements, strict=True):
        found["median_us"] = measured.median_us
    data["ratios"] = [
        {"pattern": pattern, "size": size, "peer": peer, "ours": ours, "ratio": ratio}
        for pattern, size in results.plan.cells()
        for peer, ours in _comparisons(results)
        if (ratio := results.ratio(pattern, size, peer, ours)) is not None
    ]
    data["targets"] = msgspec.to_builtins(verdicts(results))
    return data


def print_tables(results: Results, console: Console) -> None:
    """For a terminal."""
    console.print(*_heading(results), sep="\n", highlight=False)
    for pattern, headings, rows in _tables(results):
        table = Table(title=pattern, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            table.add_column(heading, justify="right", style="bold" if "/" in heading else None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(*_footing(results), sep="\n", highlight=False, markup=False)


def as_text(results: Results) -> str:
    """For a file or a pipe."""
    blocks = [text_lines(_heading(results))]
    blocks += [f"{pattern}\n{text_table(headings, rows)}" for pattern, headings, rows in _tables(results)]
    return "\n\n".join([*blocks, "\n".join(_footing(results))])


def as_markdown(results: Results) -> str:
    """For a page of documentation."""
    blocks = ["\n".join(f"- {line}" for line in _heading(results))]
    for pattern, headings, rows in _tables(results):
        blocks.append(f"### {pattern}\n\n{markdown_table(headings, rows)}")
    blocks.append("\n".join(f"- {line}" for line in _footing(results)))
    return "\n\n".join(blocks)


def text_lines(lines: Sequence[str]) -> str:
    """Lines, folded where they are long."""
    return "\n".join(textwrap.fill(line, _TEXT_WIDTH) for line in lines)


def text_table(headings: Sequence[str], rows: Rows) -> str:
    """Columns that are flush right."""
    widths = _widths(headings, rows)
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]
    )


def markdown_table(headings: Sequence[str], rows: Rows) -> str:
    """Columns that are flush right, in the source as well."""
    widths = _widths(headings, rows)
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([_markdown_row(headings, widths), rule, *(_markdown_row(row, widths) for row in rows)])


def machine_lines(machine: dict[str, str]) -> list[str]:
    """The hardware in one line, the software in another."""
    hardware = ("cpu", "cores", "memory", "gpu", "kernel")
    return [
        ", ".join(
            f"{machine[name]} cores" if name == "cores" else machine[name] for name in hardware if name in machine
        ),
        ", ".join(
            value if name == "mpi" else f"{name} {value}" for name, value in machine.items() if name not in hardware
        ),
    ]


def ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:.0f}x"


def _tables(results: Results) -> list[tuple[str, list[str], Rows]]:
    contenders, comparisons = results.contenders, _comparisons(results)
    headings = ["size", *(f"{name} µs" for name in contenders)]
    headings += [f"{peer}/{ours}" for peer, ours in comparisons]
    tables = []
    for pattern in results.plan.patterns:
        rows = [
            [
                size_text(size),
                *(_time(results.median_us(pattern, size, name)) for name in contenders),
                *(ratio_text(results.ratio(pattern, size, peer, ours)) for peer, ours in comparisons),
            ]
            for other, size in results.plan.cells()
            if other == pattern
        ]
        tables.append((pattern, headings, rows))
    return tables


def _comparisons(results: Results) -> list[tuple[str, str]]:
    """(peer, ours): shm against each peer, and torch-shm against gloo, whose place it takes."""
    measured = results.contenders
    pairs = [(peer, "shm") for peer in PEERS] + [("gloo", "torch-shm")]
    return [(peer, ours) for peer, ours in pairs if peer in measured and ours in measured]


def _heading(results: Results) -> list[str]:
    plan = results.plan
    lines = [
        *machine_lines(results.machine),
        f"{plan.ranks} ranks; microseconds a call, the median of {plan.rounds} round(s) in which all take turns.",
        SIZE_MEANING,
    ]
    for gone in results.left_out:
        lines.append(f"{gone.contender} is left out: {gone.reason}" + (f": {gone.remedy}" if gone.remedy else ""))
    lines += [f"failed: {failure}" for failure in results.failures]
    return lines


def _footing(results: Results) -> list[str]:
    judged = verdicts(results)
    if not judged:
        return ["No target applies to this choice of ranks, patterns and sizes."]
    met = sum(verdict.met for verdict in judged)
    return [f"Targets (for 2 cores): {met} of {len(judged)} met.", *map(str, judged)]


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    digits = 2 if microseconds < 10 else 1 if microseconds < 100 else 0
    return f"{microseconds:,.{digits}f}"


def _widths(headings: Sequence[str], rows: Rows) -> list[int]:
    return [max(map(len, column)) for column in zip(headings, *rows, strict=True)]


def _markdown_row(row: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
