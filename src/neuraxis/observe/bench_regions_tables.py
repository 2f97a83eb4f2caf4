"""The results of `neuraxis bench brain --regions` as tables."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
from rich.console import Console

from neuraxis.observe.bench_regions import RegionEntry, RegionResults
from neuraxis.observe.bench_tables import Rows, machine_lines, markdown_table, ratio_text, text_lines, text_table

__all__ = ["as_data", "as_markdown", "as_text", "print_tables"]

_HEADINGS = [
    "brain", "neurons", "workers", "start s", "s per model s", "speedup", "waiting", "exchange", "window ms",
    "us a window",
]  # fmt: skip
_MEANING = (
    "waiting: for other workers, uneven load included; exchange: taking in each other's spikes, which is done once "
    "in a step; a window is how long two workers can go on without news of each other."
)


def as_data(results: RegionResults) -> dict[str, Any]:
    """Everything for a program."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, entry in zip(data["entries"], results.entries, strict=True):
        found["speedup"] = results.speedup(entry)
        found["seconds_per_model_second"] = _per_second(results, entry)
    return data


def as_text(results: RegionResults) -> str:
    return "\n\n".join(
        [text_lines(_heading(results)), text_table(_HEADINGS, _rows(results)), text_lines(_footing(results))]
    )


def as_markdown(results: RegionResults) -> str:
    parts = [*_heading(results), markdown_table(_HEADINGS, _rows(results)), *_footing(results)]
    return "\n\n".join(parts)


def print_tables(results: RegionResults, console: Console) -> None:
    console.print(as_text(results), highlight=False, markup=False)


def _heading(results: RegionResults) -> list[str]:
    return machine_lines(results.machine)


def _rows(results: RegionResults) -> Rows:
    return [
        [
            entry.size,
            f"{entry.neurons:,}",
            str(entry.workers),
            f"{entry.start_seconds:.2f}",
            f"{_per_second(results, entry):.3f}",
            ratio_text(results.speedup(entry)) if entry.workers > 1 else "-",
            f"{entry.waiting:.0%}" if entry.workers > 1 else "-",
            f"{entry.exchange:.1%}" if entry.workers > 1 else "-",
            f"{entry.window_ms:.1f}" if entry.workers > 1 else "-",
            f"{entry.window_us:.1f}" if entry.workers > 1 else "-",
        ]
        for entry in results.entries
    ]


def _footing(results: RegionResults) -> list[str]:
    rounds = len(results.entries[0].seconds) if results.entries else 0
    lines = [f"Medians of {rounds} stretches of {results.time_ms:g} ms, in turns. {_MEANING}"]
    lines += [f"{size}, workers='auto': {choice}" for size, choice in results.choices.items()]
    if not results.sound:
        lines.append("NOT SOUND: fingerprints differ between numbers of workers")
    return lines


def _per_second(results: RegionResults, entry: RegionEntry) -> float:
    return statistics.median(entry.seconds) / (results.time_ms * 1e-3)
