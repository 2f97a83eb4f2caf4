"""The parts that all benchmarks share: results, targets, and a report that renders itself.

A benchmark module measures and fills a `Report` with lines, tables and targets; nothing outside this module formats a
table. `Report` renders as plain text (pipes and files), on a terminal, as Markdown (documentation pages, between two
marks) and as JSON-compatible data. Targets are goals for developers on a 2-core machine: the three textual forms show
them only on request, JSON always has them. `record` adds the command and the date: a file that a page can be made from.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from neuraxis.errors import InvalidArgument

__all__ = [
    "LeftOut",
    "Progress",
    "Report",
    "Results",
    "Table",
    "Target",
    "check_marked",
    "check_rounds",
    "count_text",
    "left_out_lines",
    "machine_lines",
    "marks",
    "parse_choices",
    "ratio_text",
    "record",
    "write_between",
]

_TEXT_WIDTH = 100

Progress = Callable[[int, int, str], None]  # done, total, description of what is measured


class LeftOut(msgspec.Struct):
    """A contender that is not measured, the reason, and the command that makes it available (if there is one)."""

    contender: str
    reason: str
    remedy: str = ""


class Results(msgspec.Struct, kw_only=True):
    """Fields that the results of every benchmark have.

    Attributes:
        machine: hardware and versions by name.
        load_before: load average of the machine before the start.
        busy: whether other processes left too few cores for the figures to be trusted.
    """

    machine: dict[str, str] = {}
    load_before: float = 0.0
    busy: bool = False


class Target(msgspec.Struct):
    """A goal for developers, and whether a run met it.

    Attributes:
        text: the figure reached and the one wanted.
        missed: by how much, where a share makes sense.
        data: further fields for JSON.
    """

    text: str
    met: bool
    missed: float | None = None
    data: dict[str, Any] = {}

    def __str__(self) -> str:
        if self.met:
            return f"{self.text}: met"
        return f"{self.text}: MISSED" if self.missed is None else f"{self.text}: missed by {self.missed:.0%}"


@dataclass(frozen=True)
class Table:
    """A table of formatted cells.

    Attributes:
        title: its heading; headings: one per column; rows: cells.
        meaning: an explanation below the table.
        bold: headings of columns that a terminal shows in bold.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    meaning: str = ""
    bold: Sequence[str] = ()

    def as_text(self) -> str:
        lines = ["  ".join(cells) for cells in self._aligned()]
        return "\n".join([self.title, *lines] + ([_fold(self.meaning)] if self.meaning else []))

    def as_markdown(self) -> str:
        head, *body = ("| " + " | ".join(cells) + " |" for cells in self._aligned())
        rule = "|" + "|".join("-" * (width + 1) + ":" for width in self._widths()) + "|"
        return (
            f"### {self.title}\n\n" + "\n".join([head, rule, *body]) + (f"\n\n{self.meaning}" if self.meaning else "")
        )

    def print(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(self.headings):
            justify = "right" if number else "left"
            table.add_column(heading, justify=justify, style="bold" if heading in self.bold else None)  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        if self.meaning:
            console.print(self.meaning, style="dim", highlight=False, markup=False)

    def _widths(self) -> list[int]:
        return [max(map(len, column)) for column in zip(self.headings, *self.rows, strict=True)]

    def _aligned(self) -> list[list[str]]:
        widths = self._widths()
        return [
            [cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (self.headings, *self.rows)
        ]


@dataclass(frozen=True)
class Report:
    """Results of a benchmark, ready to be rendered.

    Attributes:
        data: everything, for JSON; targets are added when it is rendered.
        heading: lines about the machine, the method, and contenders that were left out or failed.
        tables: the figures.
        notes: lines after the tables.
        targets: goals that the plan's sizes and contenders can be compared with.
        targets_title: the words before the count of targets that were met.
    """

    data: dict[str, Any]
    heading: Sequence[str]
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    targets: Sequence[Target] = field(default_factory=list)
    targets_title: str = "Targets"

    def as_data(self) -> dict[str, Any]:
        """Return everything as JSON-compatible data: raw rounds, derived figures, targets, and the report's text."""
        targets = [{"text": target.text, "met": target.met, **target.data} for target in self.targets]
        tables = [
            {
                "title": table.title,
                "headings": list(table.headings),
                "rows": [list(row) for row in table.rows],
                "meaning": table.meaning,
            }
            for table in self.tables
        ]
        text = {"heading": list(self.heading), "tables": tables, "notes": list(self.notes)}
        return {**self.data, "targets": targets, "report": text}

    def as_text(self, targets: bool = False) -> str:
        """Return plain text for a file or a pipe."""
        blocks = [_fold(*self.heading), *(table.as_text() for table in self.tables), _fold(*self._closing(targets))]
        return "\n\n".join(filter(None, blocks))

    def as_markdown(self, targets: bool = False) -> str:
        """Return Markdown for a documentation page."""
        blocks = [_items(self.heading), *(table.as_markdown() for table in self.tables), _items(self._closing(targets))]
        return "\n\n".join(filter(None, blocks))

    def print(self, console: Console, targets: bool = False) -> None:
        """Print to a terminal."""
        console.print(*self.heading, sep="\n", highlight=False, markup=False)
        for table in self.tables:
            table.print(console)
        console.print(*self._closing(targets), sep="\n", highlight=False, markup=False)

    def _closing(self, targets: bool) -> list[str]:
        if not targets:
            return list(self.notes)
        if not self.targets:
            return [*self.notes, "No target applies to what was measured."]
        met = sum(target.met for target in self.targets)
        return [*self.notes, f"{self.targets_title}: {met} of {len(self.targets)} met.", *map(str, self.targets)]


def record(report: Report, command: Sequence[str], note: str = "") -> dict[str, Any]:
    """Return a report as data for a file: with the command, the date in UTC, and a note about the circumstances."""
    date = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"command": shlex.join(command), "date": date, "note": note, **report.as_data()}


# --- documentation pages -------------------------------------------------------------------------------------------


def marks(bench: str) -> tuple[str, str]:
    """Return the two lines between which a page has the tables of `neuraxis bench <bench>`."""
    return f"<!-- neuraxis bench {bench}: begin -->", f"<!-- neuraxis bench {bench}: end -->"


def check_marked(path: Path, bench: str) -> None:
    """Raise `InvalidArgument` before anything is measured if a file lacks the marks."""
    _split(path, bench)


def write_between(path: Path, bench: str, text: str) -> None:
    """Replace the text between the two marks in a file."""
    before, after = _split(path, bench)
    begin, end = marks(bench)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def _split(path: Path, bench: str) -> tuple[str, str]:
    begin, end = marks(bench)
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidArgument(f"--into {path}: cannot be read: {error.strerror}") from None
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise InvalidArgument(f"--into {path}: it needs the lines {begin} and {end}, between which the tables go")
    return before, after


# --- options and lines that several benchmarks have ----------------------------------------------------------------


def parse_choices(text: str, option: str, known: Iterable[str], none: bool = False) -> tuple[str, ...]:
    """Return the names in "a,b" in the order of `known`; with `none`, the word "none" selects nothing."""
    known = tuple(known)
    wanted = {word.strip() for word in text.split(",")} - ({"none", ""} if none else set())
    unknown = sorted(wanted - set(known))
    if unknown:
        choices = ", ".join([*known, "none"] if none else known)
        raise InvalidArgument(f"{option}: {unknown[0]!r} is not one of {choices}")
    return tuple(name for name in known if name in wanted)


def check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise InvalidArgument(f"--repeats {rounds}: at least one round is needed")


def machine_lines(results: Results) -> list[str]:
    """Return the hardware in one line, the software in another, and the load before the start in a third."""
    machine = results.machine
    hardware = ("cpu", "cores", "memory", "gpu", "kernel")
    lines = [
        ", ".join(
            f"{machine[name]} cores" if name == "cores" else machine[name] for name in hardware if name in machine
        ),
        ", ".join(
            value if name == "mpi" else f"{name} {value}" for name, value in machine.items() if name not in hardware
        ),
        f"Load average before the start: {results.load_before:.1f}"
        + (": the machine was too busy to trust these figures." if results.busy else "."),
    ]
    return [line for line in lines if line]


def left_out_lines(left_out: Iterable[LeftOut], failures: Iterable[object]) -> list[str]:
    """Return a line for each reason to leave contenders out, and for each failure."""
    reasons: dict[str, list[str]] = {}
    for gone in left_out:
        reasons.setdefault(gone.reason + (f": {gone.remedy}" if gone.remedy else ""), []).append(gone.contender)
    lines = [f"left out: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return lines + [f"failed: {failure}" for failure in failures]


def ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:.0f}x"


def count_text(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _fold(*lines: str) -> str:
    return "\n".join(textwrap.fill(line, _TEXT_WIDTH) for line in lines)


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
