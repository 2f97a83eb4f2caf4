"""Spikes as a picture: a raster with a band for each population, and the populations' mean rates as bars.

`raster` and `rate_bars` draw on any axes; `figure` puts both side by side. Nothing here touches matplotlib's global
state: no pyplot, no backend chosen, no settings changed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument

__all__ = ["Spikes", "figure", "raster", "rate_bars", "save"]

# A population's spikes: the time of each, the neuron of each, and the number of neurons.
Spikes = tuple[npt.ArrayLike, npt.ArrayLike, int]

_EXCITATORY = "#1F4E79"
_INHIBITORY = "#C8471C"
_NEITHER = "#4D4D4D"
_ROWS = 2_000  # more rows than this cannot be told apart on paper
_LEAST_BAND = 0.04  # share of the height that a band gets at least, so that its name has room


def raster(
    ax: Any,
    spikes: Mapping[str, Spikes],
    *,
    share: float | None = None,
    window_ms: tuple[float, float] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Any:
    """Draw spikes as dots on `ax`, one row a neuron and one band a population, the first on top; returns `ax`.

    Args:
        spikes: for each population its `times_ms`, `ids` (from 0) and number of neurons.
        share: the share of each population's neurons to draw, evenly spread over its ids and at least one neuron.
            None draws all, or as many as fit on about 2,000 rows.
        window_ms: start and end of the time to show; None shows all spikes.
        colours: colours by population. Where it names none, inhibitory populations (names that end in "I"
            or begin with "inh") and excitatory ones ("E", "exc") have a colour each.

    A band is as high as its number of rows; one too thin for its name is stretched.
    """
    if not spikes:
        raise InvalidArgument("spikes is empty: give at least one population")
    if share is not None and not 0 < share <= 1:
        raise InvalidArgument(f"share is {share}: give a number above 0 and up to 1, or None")
    arrays = {name: _arrays(name, *given) for name, given in spikes.items()}
    start_ms, stop_ms = _span_ms([times for times, _, _ in arrays.values()]) if window_ms is None else window_ms
    if not start_ms < stop_ms:
        raise InvalidArgument(f"window_ms is {window_ms}: give a start before the end")
    if share is None:
        share = min(1.0, _ROWS / max(1, sum(n for _, _, n in arrays.values())))

    rows = {name: min(n, max(1, round(share * n))) for name, (_, _, n) in arrays.items()}
    drawn = {name: _drawn(*arrays[name], rows[name], start_ms, stop_ms) for name in arrays}
    dot_points = _dot_points(sum(len(times_ms) for times_ms, _ in drawn.values()))
    least = _LEAST_BAND * sum(rows.values())
    heights = {name: max(count, least, 1.0) for name, count in rows.items()}
    top = float(sum(heights.values()))
    ax.set_xlim(start_ms, stop_ms)
    ax.set_ylim(0.0, top)
    middles: list[float] = []
    for name, (times_ms, row) in drawn.items():
        if middles:
            ax.axhline(top, color="#BFBFBF", linewidth=0.5, zorder=0)
        ax.plot(
            times_ms,
            # The neuron with the lowest id is on top, as the first population is.
            top - (row + 0.5) * (heights[name] / max(1, rows[name])),
            linestyle="none",
            marker=".",
            markersize=dot_points,
            markeredgewidth=0,
            color=_colour(name, colours),
            label=name,
            # A vector file with a hundred thousand dots is slow to open and no sharper.
            rasterized=True,
        )
        middles.append(top - heights[name] / 2)
        top -= heights[name]
    ax.set_yticks(middles, list(arrays))
    for label, name in zip(ax.get_yticklabels(), arrays, strict=True):
        label.set_color(_colour(name, colours))
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("time (ms)")
    ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def rate_bars(ax: Any, rates: Mapping[str, float], *, colours: Mapping[str, str] | None = None) -> Any:
    """Draw each population's mean rate in Hz as a bar with its number, the first on top; returns `ax`."""
    if not rates:
        raise InvalidArgument("rates is empty: give at least one population")
    for name, rate_hz in rates.items():
        if not (math.isfinite(rate_hz) and rate_hz >= 0):
            raise InvalidArgument(f"rates has {rate_hz} Hz for {name!r}: give 0 or more")
    positions = np.arange(len(rates))
    bars = ax.barh(positions, list(rates.values()), height=0.62, color=[_colour(name, colours) for name in rates])
    ax.bar_label(bars, labels=[_rate_text(rate_hz) for rate_hz in rates.values()], padding=3, fontsize="small")
    ax.set_yticks(positions, list(rates))
    for label, name in zip(ax.get_yticklabels(), rates, strict=True):
        label.set_color(_colour(name, colours))
    ax.set_ylim(len(rates) - 0.5, -0.5)
    # Room for the longest bar's number.
    ax.set_xlim(0.0, max(*rates.values(), 1e-3) * 1.25)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("mean rate (Hz)")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def figure(
    spikes: Mapping[str, Spikes],
    rates: Mapping[str, float],
    *,
    share: float | None = None,
    window_ms: tuple[float, float] | None = None,
    colours: Mapping[str, str] | None = None,
    title: str = "",
) -> Any:
    """A matplotlib Figure with the raster on the left and the rates on the right; the arguments are theirs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bands = max(len(spikes), len(rates))
    made = Figure(figsize=(7.5, max(4.2, 0.28 * bands + 1.0)), layout="constrained")
    FigureCanvasAgg(made)
    left, right = made.subplots(1, 2, width_ratios=(3.2, 1))
    raster(left, spikes, share=share, window_ms=window_ms, colours=colours)
    rate_bars(right, rates, colours=colours)
    if title:
        made.suptitle(title, x=0.01, ha="left", fontsize="large")
    return made


def save(figure: Any, path: str | os.PathLike[str], *, dpi: int = 200) -> Path:
    """Write the figure to a file whose kind its ending tells (.png, .pdf, .svg); returns the path."""
    target = Path(path)
    kinds = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in kinds:
        raise InvalidArgument(f"path is {str(path)!r}: give it one of the endings {', '.join(sorted(kinds))}")
    if not target.parent.is_dir():
        raise InvalidArgument(f"path is {str(path)!r}: the folder {str(target.parent)!r} does not exist, make it first")
    figure.savefig(target, dpi=dpi)
    return target


def _arrays(
    name: str, times_ms: npt.ArrayLike, ids: npt.ArrayLike, n: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int]:
    times, numbers = np.asarray(times_ms, np.float64), np.asarray(ids).astype(np.int64)
    if times.ndim != 1 or times.shape != numbers.shape:
        raise InvalidArgument(
            f"spikes has times of shape {times.shape} and ids of shape {numbers.shape} for {name!r}: "
            "give one of each a spike"
        )
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < n):
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise InvalidArgument(f"spikes has the id {wrong} for {name!r}: give numbers from 0 to n - 1, {n - 1}")
    return times, numbers, n


def _span_ms(times_ms: list[npt.NDArray[np.float64]]) -> tuple[float, float]:
    """To just after the last spike, from 0 or, if the recording began late, from the first; a millisecond if none."""
    together = np.concatenate(times_ms)
    if len(together) == 0:
        return 0.0, 1.0
    first_ms, last_ms = float(together.min()), float(together.max())
    start_ms = 0.0 if 0.0 <= first_ms <= 0.1 * last_ms else first_ms
    return start_ms, last_ms + max(1e-3 * (last_ms - start_ms), 1e-3)


def _drawn(
    times_ms: npt.NDArray[np.float64],
    ids: npt.NDArray[np.int64],
    n: int,
    rows: int,
    start_ms: float,
    stop_ms: float,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Time and row of the spikes that are drawn: those in the window of the neurons `row * n // rows`."""
    if n == 0:
        return times_ms, ids
    row = -(-ids * rows // n)  # the first row whose neuron is not before this one
    shown = (row * n // rows == ids) & (row < rows) & (times_ms >= start_ms) & (times_ms < stop_ms)
    return times_ms[shown], row[shown]


def _dot_points(spikes: int) -> float:
    """A dot's size in points: large enough to be seen, small enough not to run together."""
    return float(np.clip(6.4 - 1.15 * math.log10(max(spikes, 1)), 1.0, 3.5))


def _rate_text(rate_hz: float) -> str:
    return f"{rate_hz:.2f}" if rate_hz < 10 else f"{rate_hz:.1f}"


def _colour(name: str, colours: Mapping[str, str] | None) -> str:
    if colours is not None and name in colours:
        return colours[name]
    lowered = name.lower()
    if name.endswith("I") or lowered.startswith("inh"):
        return _INHIBITORY
    if name.endswith("E") or lowered.startswith("exc"):
        return _EXCITATORY
    return _NEITHER
