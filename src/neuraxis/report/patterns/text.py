"""Text output of a run: a table for each pattern. A terminal highlights changed values."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from neuraxis.report.patterns.model import Held, PatternReport, PatternRun, pieces, sources

__all__ = ["ELLIPSIS", "print_report", "shown_places", "sum_in_words"]

ELLIPSIS = "…"
_INDENT = "   "
_WIDTH = 88
_MAX_PLACES = 8
_CHANGED = "bold green"


def print_report(report: PatternReport, console: Console) -> None:
    """Print every pattern in its order, and whether all agreed with their definitions."""

    def line(text: Text | str = "") -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    ranks = "1 rank" if report.world_size == 1 else f"{report.world_size} ranks"
    line(f"{ranks}, backend {report.backend}, dtype {report.dtype}, host {report.host}")
    for number, run in enumerate(report.runs, start=1):
        line()
        line(Text(f"{number}. {run.title}", "bold"))
        for code in run.call.splitlines():
            line(Text(_INDENT + code, "cyan"))
        for words in textwrap.wrap(run.caption, _WIDTH - len(_INDENT)):
            line(_INDENT + words)
        line()
        for row in _times(run) if run.name == "barrier" else _values(run):
            line(row)
        if run.reduces and len(sources(run, 0, 0)) > 1:
            line(_INDENT + sum_in_words(run))
    line()
    for problem in report.problems:
        line(Text(f"WRONG {problem}", "bold red"))
    if report.problems:
        line(f"{len(report.problems)} results differ from the definitions of the patterns.")
    else:
        line(f"All {len(report.runs)} agree with their definitions on every rank.")


def shown_places(count: int) -> list[int | None]:
    """Return the indices of a tensor to show; None stands for omitted ones."""
    if count <= _MAX_PLACES:
        return list(range(count))
    return [*range(_MAX_PLACES - 2), None, count - 1]


def sum_in_words(run: PatternRun) -> str:
    """Return the first value of the first sum with its terms, for example "24 = 0 + 4 + 8 + 12"."""
    terms = [pieces(run.ranks[move.from_rank].before)[move.from_slot][0] for move in sources(run, 0, 0)]
    total = pieces(run.ranks[0].after)[0][0]
    return f"The first value on rank 0: {total} = {' + '.join(map(str, terms))}"


def _values(run: PatternRun) -> list[Text]:
    """Return the table rank | before | after, with a line for each tensor."""
    width = max(len(str(value)) for view in run.ranks for held in (view.before, view.after) for value in _flat(held))
    table: list[tuple[Text, Text, Text]] = [(Text("rank"), Text("before"), Text("after"))]
    for view in run.ranks:
        before, after = pieces(view.before), pieces(view.after)
        for slot in range(max(len(before), len(after), 1)):
            table.append(
                (
                    Text(str(view.rank) if slot == 0 else ""),
                    _tensor(before, slot, width),
                    _tensor(after, slot, width, before),
                )
            )
    return _aligned(table)


def _times(run: PatternRun) -> list[Text]:
    # Rounded to 10 ms, so that two runs print the same; the JSON output has the measured times.
    table = [(Text("rank"), Text("arrived"), Text("left, to the nearest 10 ms after the first arrival"))]
    for view in run.ranks:
        arrived, left = (f"{round(ms or 0, -1):.0f} ms" for ms in (view.arrived_ms, view.left_ms))
        table.append((Text(str(view.rank)), Text(arrived), Text(left)))
    return _aligned(table)


def _tensor(tensors: list[list[int]], slot: int, width: int, before: list[list[int]] | None = None) -> Text:
    """Return a tensor in brackets; values that differ from those in `before` are highlighted."""
    if slot >= len(tensors):
        return Text("nothing" if slot == 0 else "")
    tensor = tensors[slot]
    old = before[slot] if before is not None and slot < len(before) else []
    words = Text("[")
    for index, place in enumerate(shown_places(len(tensor))):
        words.append(" " if index else "")
        if place is None:
            words.append(ELLIPSIS)
            continue
        changed = before is not None and (place >= len(old) or old[place] != tensor[place])
        words.append(str(tensor[place]).rjust(width), _CHANGED if changed else "")
    return words.append("]")


def _aligned(table: Sequence[tuple[Text, Text, Text]]) -> list[Text]:
    widths = [max(row[column].cell_len for row in table) for column in range(2)]
    lines = []
    for rank, before, after in table:
        line = Text(_INDENT)
        for cell, width in zip((rank, before), widths, strict=True):
            line.append_text(cell).append(" " * (width - cell.cell_len + 2))
        lines.append(line.append_text(after))
    for line in lines:
        line.rstrip()
    lines[0].stylize("dim")
    return lines


def _flat(held: Held) -> list[int]:
    return [value for piece in pieces(held) for value in piece]
