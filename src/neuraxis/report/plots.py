"""Plots with matplotlib: spike rasters, mean rates and learning curves.

`raster`, `rate_bars`, `learning_curve` and `learning_curves` draw on the Axes that they are given, and return it;
`figure` and `learning_curve_figure` make complete figures. Nothing here touches matplotlib's global state: no pyplot,
no backend, no settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument
from neuraxis.report.brain.model import LearningCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Spikes",
    "figure",
    "learning_curve",
    "learning_curve_figure",
    "learning_curves",
    "raster",
    "rate_bars",
    "save",
]

# Spikes of a population: times in ms, neurons, and number of neurons.
Spikes = tuple[npt.ArrayLike, npt.ArrayLike, int]

_EXCITATORY = "#1F4E79"
_INHIBITORY = "#C8471C"
_NEITHER = "#4D4D4D"
_ROWS = 2_000  # more rows cannot be distinguished on paper
_LEAST_BAND = 0.04  # least share of the height for a band, so that its name has room
# Distinguishable with the common kinds of colour blindness.
_COLOURS = ("#0067a5", "#b84700", "#00735a", "#a23b7a", "#7a5c00", "#5648c2", "#6b4a2b", "#555b66")
_SOFT = "#6b7280"


def raster(
    ax: Axes,
    spikes: Mapping[str, Spikes],
    *,
    share: float | None = None,
    window_ms: tuple[float, float] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """Draw a spike raster: a row for each neuron and a band for each population, the first on top.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes to draw on.
    spikes : mapping of str to (times_ms, ids, n)
        By population: spike times in ms and neurons (from 0), one of each for every spike, and number of neurons.
    share : float, optional
        Share of each population's neurons to draw, evenly spaced and at least one neuron. None: all, or as many as fit
        on about 2,000 rows.
    window_ms : (float, float), optional
        Start and end of the time to show, in ms. None: all spikes.
    colours : mapping of str to str, optional
        Colours by population. By default, inhibitory populations (names that end in "I" or begin with "inh") and
        excitatory ones ("E", "exc") have a colour each.

    Returns
    -------
    matplotlib.axes.Axes
        `ax`.

    Raises
    ------
    InvalidArgument
        There are no populations, or an id or option is out of range.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = raster(Figure().subplots(), {"E": ([1.0, 2.5, 40.0], [0, 3, 3], 4), "I": ([7.0], [1], 2)})
    >>> ax.get_xlabel()
    'time (ms)'
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
            top - (row + 0.5) * (heights[name] / max(1, rows[name])),
            linestyle="none",
            marker=".",
            markersize=dot_points,
            markeredgewidth=0,
            color=_colour(name, colours),
            label=name,
            # A hundred thousand dots make a vector file slow to open.
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


def rate_bars(ax: Axes, rates: Mapping[str, float], *, colours: Mapping[str, str] | None = None) -> Axes:
    """Draw the mean rate of each population as a labelled bar, the first on top.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes to draw on.
    rates : mapping of str to float
        Mean rate by population, in Hz.
    colours : mapping of str to str, optional
        Colours by population; see `raster`.

    Returns
    -------
    matplotlib.axes.Axes
        `ax`.

    Raises
    ------
    InvalidArgument
        There are no populations, or a rate is negative or not finite.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> rate_bars(Figure().subplots(), {"E": 4.2, "I": 9.8}).get_xlabel()
    'mean rate (Hz)'
    """
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
    # Room for the label of the longest bar.
    ax.set_xlim(0.0, max(*rates.values(), 1e-3) * 1.25)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("mean rate (Hz)")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def learning_curve(
    ax: Axes, curve: LearningCurve, *, label: str = "", colour: str = _COLOURS[0], dots: bool = True
) -> Axes:
    """Draw the running accuracy over trials, with chance, target and reversal.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes to draw on.
    curve : LearningCurve
        Right and wrong answers, trial by trial.
    label : str
        Name of the curve in a legend.
    colour : str
        Colour of the curve.
    dots : bool
        Draw each trial as a dot, too: right ones above the curve and wrong ones below it.

    Returns
    -------
    matplotlib.axes.Axes
        `ax`.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from neuraxis.report.brain.model import LearningCurve
    >>> curve = LearningCurve(correct=(False, True, False, True, True), chance=0.25, window=3)
    >>> learning_curve(Figure().subplots(), curve).get_xlabel()
    'trial'
    """
    trials = np.arange(1, len(curve.correct) + 1)
    ax.axhline(curve.chance, color=_SOFT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    if curve.target is not None:
        ax.axhline(curve.target, color=_SOFT, linewidth=0.9, linestyle=(0, (6, 2)), zorder=1)
    if curve.reversed_at is not None:
        ax.axvline(curve.reversed_at + 0.5, color=_SOFT, linewidth=0.9, zorder=1)
    accuracy = curve.accuracy()
    # Faint where the window is not full yet.
    whole = min(curve.window, max(1, len(trials))) - 1
    ax.plot(trials[: whole + 1], accuracy[: whole + 1], color=colour, linewidth=1.1, alpha=0.35, zorder=3)
    ax.plot(trials[whole:], accuracy[whole:], color=colour, linewidth=1.6, label=label or None, zorder=3)
    if dots:
        right = np.asarray(curve.correct, np.bool_)
        # Heights by the golden ratio: neighbours differ, and no stripes appear.
        height = 0.05 * ((trials * 0.618034) % 1.0)
        style: dict[str, Any] = {
            "linestyle": "none",
            "marker": ".",
            "markersize": 2.5,
            "markeredgewidth": 0,
            "zorder": 2,
        }
        ax.plot(trials[right], 1.03 + height[right], color=colour, **style)
        ax.plot(trials[~right], -0.08 + height[~right], color=_SOFT, **style)
    ax.set_xlim(0.5, max(1, len(trials)) + 0.5)
    ax.set_ylim(-0.1, 1.1)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    ax.set_xlabel("trial")
    ax.set_ylabel(f"right answers (%), last {curve.window} trials")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def learning_curves(ax: Axes, curves: Mapping[str, LearningCurve]) -> Axes:
    """Draw several learning curves with a legend; a single one has its trials as dots instead.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes to draw on.
    curves : mapping of str to LearningCurve
        Curves by name.

    Returns
    -------
    matplotlib.axes.Axes
        `ax`.

    Raises
    ------
    InvalidArgument
        There are no curves.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from neuraxis.report.brain.model import LearningCurve
    >>> curve = LearningCurve(correct=(False, True, True), chance=0.25, window=3)
    >>> ax = learning_curves(Figure().subplots(), {"whole": curve, "lesioned": curve})
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['whole', 'lesioned']
    """
    if not curves:
        raise InvalidArgument("curves is empty: give at least one")
    for place, (name, curve) in enumerate(curves.items()):
        learning_curve(ax, curve, label=name, colour=_COLOURS[place % len(_COLOURS)], dots=len(curves) == 1)
    longest = max(len(curve.correct) for curve in curves.values())
    ax.set_xlim(0.5, max(1, longest) + 0.5)
    _name_lines(ax, curves)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize="small", loc="lower right")
    return ax


def figure(
    spikes: Mapping[str, Spikes],
    rates: Mapping[str, float],
    *,
    share: float | None = None,
    window_ms: tuple[float, float] | None = None,
    colours: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """Return a figure with the raster on the left and the rates on the right.

    Parameters
    ----------
    spikes, rates, share, window_ms, colours
        See `raster` and `rate_bars`.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Examples
    --------
    >>> made = figure({"E": ([1.0, 2.5], [0, 3], 4)}, {"E": 4.2}, title="A network")
    >>> len(made.axes)
    2
    """
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


def learning_curve_figure(curves: Mapping[str, LearningCurve], path: str | os.PathLike[str]) -> Path:
    """Write a figure of `learning_curves` to a file, in the format of its suffix, and return the path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.5, 3.4), layout="constrained")
    FigureCanvasAgg(made)
    learning_curves(made.subplots(), curves)
    return save(made, path)


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: int = 200) -> Path:
    """Write a figure to a file, in the format of its suffix (.png, .pdf, .svg), and return the path.

    Raises
    ------
    InvalidArgument
        The suffix is unknown, or the folder does not exist.
    """
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
            "give one of each for every spike"
        )
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < n):
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise InvalidArgument(f"spikes has the id {wrong} for {name!r}: give numbers from 0 to n - 1, {n - 1}")
    return times, numbers, n


def _span_ms(times_ms: list[npt.NDArray[np.float64]]) -> tuple[float, float]:
    """Return the time from 0 (or the first spike, if the recording began late) to just after the last spike."""
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
    """Return time and row of the spikes to draw: those in the window of the neurons `row * n // rows`."""
    if n == 0:
        return times_ms, ids
    row = -(-ids * rows // n)  # the first row whose neuron is this one or later
    shown = (row * n // rows == ids) & (row < rows) & (times_ms >= start_ms) & (times_ms < stop_ms)
    return times_ms[shown], row[shown]


def _dot_points(spikes: int) -> float:
    """Return the size of a dot in points: visible, but small enough not to merge with others."""
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


def _name_lines(ax: Axes, curves: Mapping[str, LearningCurve]) -> None:
    """Label the lines of chance, target and reversal, each once."""
    heights = {(curve.chance, "chance") for curve in curves.values()}
    heights |= {(curve.target, "target") for curve in curves.values() if curve.target is not None}
    for height, name in sorted(heights):
        ax.annotate(
            name, (1.0, height), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize="small", color=_SOFT, annotation_clip=False,
        )  # fmt: skip
    for moment in sorted({curve.reversed_at for curve in curves.values() if curve.reversed_at is not None}):
        ax.annotate(
            "rule reversed", (moment + 0.5, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
            textcoords="offset points", ha="center", va="bottom", fontsize="small", color=_SOFT,
        )  # fmt: skip
