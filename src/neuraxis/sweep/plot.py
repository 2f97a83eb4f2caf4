"""Plots of a sweep: a panel for each metric, over the setting with the most values."""

from __future__ import annotations

import math
import statistics
from typing import Any

from neuraxis.sweep.table import Group, Table, grouped, metrics_of, short_name

__all__ = ["plot_metric", "plot_sweep"]

# Distinguishable with the common kinds of colour blindness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = "osD^vPX"
_COLUMNS = 4
_MAX_IN_LEGEND = 14
_MAX_TICKS = 8


def plot_metric(table: Table, metric: str, ax: Any) -> Any:
    """Draw a metric on an Axes, with a mark for each seed and a line through the means; return the Axes.

    The setting with the most values is the x axis; each combination of the others has a line. In a sweep of seeds
    only, these are the x axis.
    """
    axis = _x_axis(table)
    places = _places(table, axis)
    for number, (label, groups) in enumerate(_lines(table, axis).items()):
        colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number // len(_COLOURS) % len(_MARKS)]
        means = []
        for chosen, rows in groups:
            points = [(_place(places, row[axis]), row[metric]) for row in rows if row[metric] is not None]
            if not points:
                continue
            ax.scatter(*zip(*points, strict=True), color=colour, marker=mark, s=12, alpha=0.45, lw=0)
            if axis in chosen:
                means.append((points[0][0], statistics.fmean(value for _, value in points)))
        if means:
            ax.plot(*zip(*sorted(means), strict=True), color=colour, marker=mark, ms=5, lw=1.6, label=label)
    if _is_numeric(places):
        if len(places) <= _MAX_TICKS:
            ax.set_xticks(places)
    else:
        ax.set_xticks(range(len(places)), [str(value) for value in places])
    ax.set_xlabel(axis, fontsize=8)
    ax.set_title(short_name(metric), fontsize=10)
    if metric == "accuracy":
        ax.set_ylim(-0.03, 1.03)
    else:
        ax.set_ylim(bottom=0)
    ax.grid(True, color="#dddddd", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return ax


def plot_sweep(table: Table, title: str) -> Any:
    """Return a matplotlib Figure with a panel for each metric."""
    from matplotlib.figure import Figure

    metrics = metrics_of(table)
    columns = max(1, min(_COLUMNS, len(metrics)))
    lines = math.ceil(max(1, len(metrics)) / columns)
    figure = Figure(figsize=(max(3.2 * columns, 6.0), 2.8 * lines + 1.0), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for metric, ax in zip(metrics, panels, strict=False):
        plot_metric(table, metric, ax)
    for ax in panels[len(metrics) :]:
        ax.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    if len(labels) > 1:
        shown = min(len(labels), _MAX_IN_LEGEND)
        figure.legend(handles[:shown], labels[:shown], loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    failed = sum(row["error"] is not None for row in table.rows)
    text = f"{title}: {len(table.rows) - failed} cells" + (f", {failed} failed" if failed else "")
    figure.suptitle(text, x=0.01, ha="left", fontsize=11)
    return figure


def _x_axis(table: Table) -> str:
    """Return the setting with the most values; the first of them, if several have as many."""
    values = {name: len({str(row[name]) for row in table.rows}) for name in table.settings}
    return max(values, key=lambda name: values[name]) if values else "seed"


def _lines(table: Table, axis: str) -> dict[str, list[Group]]:
    """Return the groups of each line, by the settings other than that of the x axis."""
    lines: dict[str, list[Group]] = {}
    for chosen, rows in grouped(table):
        label = ", ".join(f"{short_name(name)}={value}" for name, value in chosen.items() if name != axis)
        lines.setdefault(label, []).append((chosen, rows))
    return lines


def _places(table: Table, axis: str) -> list[Any]:
    """Return the distinct values of the x axis, in the order of the table."""
    found: list[Any] = []
    for row in table.rows:
        if row[axis] not in found:
            found.append(row[axis])
    return found


def _is_numeric(places: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in places)


def _place(places: list[Any], value: Any) -> float:
    return float(value) if _is_numeric(places) else float(places.index(value))
