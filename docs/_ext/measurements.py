"""Tables of measurements: `docs/benchmarks/*.json`, as `neuraxis bench ... --json` wrote them.

    ```{benchmark} collectives.json
    :table: all_reduce
    ```

shows the tables whose title begins with the words of `:table:` (several: separated by `|`), else all of them, and below
them the date, the machine, the versions and the command. `:columns: size, shm µs` selects columns.

    ```{benchmarks}
    ```

lists all files with their age on the day of the build.

Two roles put figures into sentences, so that a sentence and its table cannot differ:

    {measured}`mesh.json; Messages; request 64 B; ours p50 µs`

inserts a cell: the file, the first words of the table's title, the row by its first cell, and the column. Where several
rows have the same first cell, as `large`, name the second one, too: `large, 2`. Two cells with ` / ` between them give
their ratio with two digits.

    {measured-on}`mesh.json`

inserts the number of cores and the date, and says so if it was a quick run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

FOLDER = Path(__file__).parents[1] / "benchmarks"
HARDWARE = ("cpu", "cores", "memory", "gpu", "cuda", "kernel")
NEEDED = ("command", "date", "machine", "report")
QUICK = "A quick run (`--quick`), shorter than the whole benchmark: single figures scatter more."


@dataclass(frozen=True)
class Measured:
    """A file of results."""

    path: Path

    @cached_property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.path.read_text())
        missing = [name for name in NEEDED if name not in data]
        if missing:
            raise ValueError(f"{self.path.name} lacks {', '.join(missing)}: write it with neuraxis bench ... --json")
        return data

    @property
    def date(self) -> datetime:
        return datetime.fromisoformat(self.data["date"])

    @property
    def command(self) -> str:
        return str(self.data["command"]).removesuffix(" --json")

    @property
    def hardware(self) -> str:
        machine = self.data["machine"]
        facts = [f"{machine[name]} cores" if name == "cores" else machine[name] for name in HARDWARE if name in machine]
        return ", ".join(facts)

    @property
    def versions(self) -> str:
        machine = self.data["machine"]
        return ", ".join(
            value if name == "mpi" else f"{name} {value}" for name, value in machine.items() if name not in HARDWARE
        )

    @property
    def is_quick(self) -> bool:
        return "--quick" in self.command.split()

    @property
    def circumstances(self) -> str:
        """Return the number of cores and the date, for a sentence, and whether it was a quick run."""
        facts = f"{self.data['machine']['cores'].split()[0]} cores, {self.date:%-d %B %Y}"
        return f"{facts}, a quick run" if self.is_quick else facts

    def cell(self, title: str, row: str, column: str) -> str:
        """Return a cell: by the first words of the table's title, the first cell of the row or two, and the column."""
        tables = self.data["report"]["tables"]
        titles = [one["title"] for one in tables]
        table = tables[_place(titles, title, whole=False)]
        rows = table["rows"]
        firsts = [one[0] for one in rows]
        names = [
            first if firsts.count(first) == 1 else ", ".join(one[:2]) for first, one in zip(firsts, rows, strict=True)
        ]
        return str(rows[_place(names, row)][_place(table["headings"], column)])

    @property
    def remarks(self) -> list[str]:
        """Return whether it was a quick run, the note of whoever measured, and a warning if the machine was busy."""
        found = [QUICK] if self.is_quick else []
        found += [self.data["note"]] if self.data.get("note") else []
        if self.data.get("busy"):
            load = self.data["load_before"]
            found.append(f"The load average was {load:.1f} before the start: the machine may not have been idle.")
        return found


class _Show(Directive):
    def parse(self, text: str) -> list[nodes.Node]:
        parent = nodes.container()
        self.state.nested_parse(StringList(text.splitlines(), source=""), self.content_offset, parent)
        return parent.children


class Benchmark(_Show):
    """Show tables of one file, and where they come from."""

    required_arguments = 1
    option_spec = {"table": directives.unchanged, "columns": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        path = FOLDER / self.arguments[0]
        self.state.document.settings.env.note_dependency(str(path))
        try:
            measured = Measured(path)
            tables = self._tables(measured)
        except (OSError, ValueError) as error:
            raise self.error(str(error)) from None
        source = f"{measured.date:%-d %B %Y}, `{measured.command}`: {measured.hardware}; {measured.versions}."
        text = " ".join([source, *measured.remarks, f"{{download}}`All figures </benchmarks/{path.name}>`."])
        shown = f":::{{div}} benchmark-source\n{text}\n:::"
        return self.parse("\n\n".join([":::{div} benchmark-tables", *tables, ":::", shown]))

    def _tables(self, measured: Measured) -> list[str]:
        report = measured.data["report"]
        wanted = [title.strip() for title in self.options.get("table", "").split("|")]
        tables = [one for one in report["tables"] if any(one["title"].startswith(title) for title in wanted)]
        if not tables:
            titles = ", ".join(one["title"] for one in report["tables"])
            raise ValueError(f"{measured.path.name} has no table {self.options['table']!r}, but {titles}")
        columns = [name.strip() for name in self.options["columns"].split(",")] if "columns" in self.options else None
        return [markdown(one, columns) for one in tables]


def markdown(table: dict[str, Any], columns: list[str] | None = None) -> str:
    """Return a table of a report as Markdown under its title."""
    headings, rows = table["headings"], table["rows"]
    if columns is not None:
        missing = [name for name in columns if name not in headings]
        if missing:
            raise ValueError(f"table {table['title']!r} has no column {missing[0]!r}, but {', '.join(headings)}")
        places = [headings.index(name) for name in columns]
        headings, rows = columns, [[row[place] for place in places] for row in rows]
    lines = [f"**{table['title']}**", "", _row(headings), "|" + "|".join(["---:"] * len(headings)) + "|"]
    lines += [_row(row) for row in rows]
    return "\n".join(lines + (["", table["meaning"]] if table.get("meaning") else []))


class Benchmarks(_Show):
    """List all files, the oldest first."""

    def run(self) -> list[nodes.Node]:
        self.state.document.settings.env.note_reread()  # ages change from day to day
        lines = [
            "| measured | age in days | command | machine | cores | neuraxis | figures |",
            "|---|---:|---|---|---|---|---|",
        ]
        now = datetime.now(UTC)
        try:
            for measured in sorted(map(Measured, FOLDER.glob("*.json")), key=lambda one: one.date):
                cells = [
                    f"{measured.date:%Y-%m-%d}",
                    str((now - measured.date).days),
                    f"`{measured.command}`",
                    ", ".join(
                        measured.data["machine"][name] for name in ("cpu", "gpu") if name in measured.data["machine"]
                    ),
                    measured.data["machine"]["cores"],
                    measured.data["machine"].get("neuraxis", ""),
                    f"{{download}}`JSON </benchmarks/{measured.path.name}>`",
                ]
                lines.append(_row(cells))
        except ValueError as error:
            raise self.error(str(error)) from None
        return self.parse("\n".join(lines))


def figure(reference: str) -> str:
    """Return what the role `measured` inserts: a cell, or the ratio of two."""
    cells = []
    for one in reference.split(" / "):
        parts = [part.strip() for part in one.split(";")]
        if len(parts) != 4:
            raise ValueError(f"{one!r} is not 'file; table; row; column'")
        cells.append(Measured(FOLDER / parts[0]).cell(*parts[1:]))
    if len(cells) == 1:
        return cells[0]
    first, second = (float(cell.replace(",", "").rstrip("x%")) for cell in cells)
    ratio = first / second
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def circumstances(reference: str) -> str:
    """Return what the role `measured-on` inserts."""
    return Measured(FOLDER / reference.strip()).circumstances


ROLES = {"measured": figure, "measured-on": circumstances}


class Inserted(SphinxRole):
    """A figure of a file, in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        for one in self.text.split(" / "):
            self.env.note_dependency(str(FOLDER / one.partition(";")[0].strip()))
        try:
            return [nodes.Text(ROLES[self.name.lower()](self.text))], []
        except (OSError, ValueError) as error:
            message = self.inliner.reporter.error(f"{self.name}: {error}", line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


def _place(names: list[str], wanted: str, whole: bool = True) -> int:
    for place, name in enumerate(names):
        if name == wanted or (not whole and name.startswith(wanted)):
            return place
    raise ValueError(f"there is no {wanted!r}, but {', '.join(names)}")


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") or " " for cell in cells) + " |"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("benchmark", Benchmark)
    app.add_directive("benchmarks", Benchmarks)
    for name in ROLES:
        app.add_role(name, Inserted())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
