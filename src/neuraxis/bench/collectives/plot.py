"""The figure of `neuraxis bench collectives`: one panel per pattern, time against size on logarithmic axes."""

from __future__ import annotations

import math
from typing import Any

from neuraxis.bench.collectives.measure import Results
from neuraxis.bench.collectives.patterns import size_text

__all__ = ["plot_pattern", "plot_results"]

# Distinguishable with colour blindness, and by their marks in print.
_STYLES = {
    "shm": ("#D55E00", "o", 2.2),
    "torch-shm": ("#E69F00", "s", 1.6),
    "gloo": ("#0072B2", "^", 1.6),
    "mpi": ("#009E73", "D", 1.6),
}
_COLUMNS = 5


def plot_pattern(results: Results, pattern: str, ax: Any) -> Any:
    """Draw one pattern's medians, with the range of the rounds behind them, on `ax`; return `ax`."""
    for contender in results.contenders:
        colour, mark, width = _STYLES[contender]
        found = [m for m in results.measurements if (m.pattern, m.contender) == (pattern, contender)]
        if not found:
            continue
        if pattern == "barrier":
            # A barrier has no size: a line across the panel compares it with the others.
            ax.axhline(found[0].median_us, color=colour, lw=width, label=contender)
            continue
        sizes = [m.size for m in found]
        ax.fill_between(
            sizes,
            [min(m.rounds_us) for m in found],
            [max(m.rounds_us) for m in found],
            color=colour,
            alpha=0.15,
            lw=0,
        )
        medians = [m.median_us for m in found]
        ax.plot(sizes, medians, color=colour, marker=mark, ms=4, lw=width, label=contender)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_title("send/recv (half a round trip)" if pattern == "send_recv" else pattern, fontsize=10)
    ax.grid(True, color="#dddddd", lw=0.6)
    ax.set_axisbelow(True)
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return ax


def plot_results(results: Results) -> Any:
    """Return a matplotlib Figure with a panel for each pattern, all with the same axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    patterns = results.plan.patterns
    columns = min(_COLUMNS, len(patterns))
    rows = math.ceil(len(patterns) / columns)
    figure = Figure(figsize=(max(2.9 * columns, 5.5), 2.6 * rows + 1.1), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(axes.flat)
    for pattern, ax in zip(patterns, panels, strict=False):
        plot_pattern(results, pattern, ax)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(round(size))))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda time_us, _: _time_text(time_us)))
        ax.set_xlim(min(results.plan.sizes) / 2, max(results.plan.sizes) * 2)
        ax.set_xticks(_ticks(results.plan.sizes))
    for ax in panels[len(patterns) :]:
        ax.set_visible(False)
    for column in range(columns):
        # With a last row that is not full, the panel above the gap carries the axis.
        lowest = max(index for index in range(len(patterns)) if index % columns == column)
        panels[lowest].tick_params(labelbottom=True)
    handles: dict[str, Any] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=4, frameon=False)
    figure.suptitle(
        f"Time of a call, {results.plan.ranks} ranks, {results.machine.get('cores', '?').split()[0]} cores",
        x=0.01,
        ha="left",
        fontsize=12,
    )
    figure.supxlabel("bytes that a rank passes in", fontsize=9)
    return figure


def _ticks(sizes: tuple[int, ...]) -> list[int]:
    """Return a few round sizes between the smallest and the largest."""
    least, most = math.log2(min(sizes)), math.log2(max(sizes))
    step = max(2, math.ceil((most - least) / 4))
    return [2 ** round(least + step * index) for index in range(int((most - least) // step) + 1)]


def _time_text(time_us: float) -> str:
    if time_us >= 1e6:
        return f"{time_us / 1e6:g} s"
    return f"{time_us / 1e3:g} ms" if time_us >= 1e3 else f"{time_us:g} µs"
