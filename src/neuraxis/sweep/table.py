"""The results of a sweep as a table with a row for each cell, for CSV, Parquet and the terminal."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuraxis import imports as optional
from neuraxis.errors import BackendUnavailable, InvalidArgument
from neuraxis.notebook import html_table
from neuraxis.store import replacing
from neuraxis.sweep.run import SweepRun

__all__ = [
    "Group",
    "Table",
    "check_table_path",
    "grouped",
    "metrics_of",
    "short_name",
    "summary",
    "sweep_table",
    "write_table",
]

Row = dict[str, Any]
Group = tuple[dict[str, Any], list[Row]]
_RATES = "rates_hz."
_FORMATS = (".csv", ".parquet")


class Table:
    """Rows with the same columns in the same order; None where a cell has no value."""

    def __init__(self, settings: Sequence[str], rows: Sequence[Row]) -> None:
        self.settings = list(settings)
        names = dict.fromkeys([*settings, "seed"])
        for row in rows:
            names |= dict.fromkeys(row)
        names.pop("error", None)
        self.columns = [*names, "error"]
        self.rows = [{name: row.get(name) for name in self.columns} for row in rows]

    def __repr__(self) -> str:
        return f"<Table: {len(self.rows)} rows; settings {', '.join(self.settings) or 'none'}>"

    def _repr_html_(self) -> str:
        return html_table(
            repr(self)[1:-1], self.columns, (["" if v is None else v for v in row.values()] for row in self.rows)
        )


def sweep_table(run: SweepRun) -> Table:
    """Return a table with settings, seed, result and error of each cell that has run."""
    settings = list(run.cells[0].settings) if run.cells else []
    rows = []
    for cell, record in zip(run.cells, run.records, strict=True):
        if record is not None:
            rows.append({**cell.settings, "seed": cell.seed, **_flat(record.get("answer", {})),
                         "error": record.get("error")})  # fmt: skip
    return Table(settings, rows)


def _flat(answer: dict[str, Any], prefix: str = "") -> Row:
    """Flatten nested tables into columns "outer.inner"."""
    row: Row = {}
    for name, value in answer.items():
        if isinstance(value, dict):
            row |= _flat(value, f"{prefix}{name}.")
        else:
            row[f"{prefix}{name}"] = value
    return row


# --- Files ---


def check_table_path(path: Path, option: str = "--out") -> None:
    """Raise, before anything runs, if a table cannot be written to a path."""
    if path.suffix not in _FORMATS:
        raise InvalidArgument(f"{option} {path}: a file name that ends in {' or '.join(_FORMATS)} is expected")
    if path.suffix == ".parquet" and not optional.installed("pyarrow"):
        remedy = f"{optional.install_command('dask')}, or use --out *.csv"
        raise BackendUnavailable("parquet", "pyarrow is not installed", remedy)


def write_table(table: Table, path: Path) -> None:
    """Write a table as CSV or Parquet, by the suffix of the path."""
    with replacing(path) as new:
        (_write_parquet if path.suffix == ".parquet" else _write_csv)(table, new)


def _write_csv(table: Table, path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        for row in table.rows:
            writer.writerow(["" if value is None else _text(value) for value in row.values()])


def _write_parquet(table: Table, path: Path) -> None:
    pyarrow = _pyarrow()
    parquet = optional.require("pyarrow.parquet", extra="dask", purpose="a Parquet file")
    columns = {}
    for name in table.columns:
        values = [row[name] for row in table.rows]
        kind = _arrow_type(name, [value for value in values if value is not None])
        if kind == pyarrow.string():
            values = [None if value is None else _text(value) for value in values]
        columns[name] = pyarrow.array(values, kind)
    parquet.write_table(pyarrow.table(columns), path)


def _pyarrow() -> Any:
    return optional.require("pyarrow", extra="dask", purpose="a Parquet file")


def _arrow_type(name: str, values: list[Any]) -> Any:
    """Return the narrowest type that holds all values exactly; string if there is none."""
    pyarrow = _pyarrow()
    kinds = {type(value) for value in values}
    if not kinds:
        return pyarrow.string() if name == "error" else pyarrow.float64()
    if kinds == {bool}:
        return pyarrow.bool_()
    if kinds == {int}:
        if all(-(2**63) <= value < 2**63 for value in values):
            return pyarrow.int64()
        return pyarrow.uint64() if all(0 <= value < 2**64 for value in values) else pyarrow.string()
    exact = kinds <= {int, float} and all(abs(value) <= 2**53 for value in values if type(value) is int)
    return pyarrow.float64() if exact else pyarrow.string()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- Summary ---


def metrics_of(table: Table) -> list[str]:
    """Return the main columns: the accuracy of a task, or else the rates of all regions."""
    if "accuracy" in table.columns:
        return ["accuracy"]
    return [name for name in table.columns if name.startswith(_RATES)]


def grouped(table: Table) -> list[Group]:
    """Group the rows without an error by their combination of settings."""
    groups: dict[str, Group] = {}
    for row in table.rows:
        if row["error"] is None:
            chosen = {name: row[name] for name in table.settings}
            groups.setdefault(json.dumps(chosen), (chosen, []))[1].append(row)
    return list(groups.values())


def summary(table: Table) -> list[str]:
    """Return lines of text with mean and standard deviation over seeds, for each combination of settings."""
    metrics = metrics_of(table)
    lines = [[short_name(name) for name in table.settings] + ["seeds"] + [short_name(name) for name in metrics]]
    for chosen, rows in grouped(table):
        figures = [_mean_and_deviation([row[name] for row in rows if row[name] is not None]) for name in metrics]
        lines.append([*map(_text, chosen.values()), str(len(rows)), *figures])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)) for line in lines]


def short_name(column: str) -> str:
    """Shorten the path of a field for a heading; add the unit to a rate."""
    if column.startswith(_RATES):
        return f"{column.removeprefix(_RATES)} (Hz)"
    return ".".join(part for part in column.split(".") if part not in ("config", "regions"))


def _mean_and_deviation(values: list[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.3g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"
