"""The learning curve for a paper, with matplotlib. Nothing here touches matplotlib's global state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.observe.brain_report.model import LearningCurve
from neuraxis.observe.raster import save

__all__ = ["learning_curve", "learning_curve_figure"]

# These keep their distance for the common kinds of colour blindness.
_COLOURS = ("#0067a5", "#b84700", "#00735a", "#a23b7a", "#7a5c00", "#5648c2", "#6b4a2b", "#555b66")
_SOFT = "#6b7280"


def learning_curve(
    ax: Any, curve: LearningCurve, *, label: str = "", colour: str = _COLOURS[0], dots: bool = True
) -> Any:
    """Draw running accuracy over trials on `ax`, with chance, target and reversal; returns `ax`.

    Args:
        label: the curve's name in a legend.
        dots: whether to draw each trial too, right ones above the curve and wrong ones below it.
    """
    trials = np.arange(1, len(curve.correct) + 1)
    ax.axhline(curve.chance, color=_SOFT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    if curve.target is not None:
        ax.axhline(curve.target, color=_SOFT, linewidth=0.9, linestyle=(0, (6, 2)), zorder=1)
    if curve.reversed_at is not None:
        ax.axvline(curve.reversed_at + 0.5, color=_SOFT, linewidth=0.9, zorder=1)
    accuracy = curve.accuracy()
    # The first windows are short and say little: that part is faint.
    whole = min(curve.window, max(1, len(trials))) - 1
    ax.plot(trials[: whole + 1], accuracy[: whole + 1], color=colour, linewidth=1.1, alpha=0.35, zorder=3)
    ax.plot(trials[whole:], accuracy[whole:], color=colour, linewidth=1.6, label=label or None, zorder=3)
    if dots:
        right = np.asarray(curve.correct, np.bool_)
        # Neighbours at different heights, by the golden ratio: a pattern without stripes.
        height = 0.05 * ((trials * 0.618034) % 1.0)
        style = {"linestyle": "none", "marker": ".", "markersize": 2.5, "markeredgewidth": 0, "zorder": 2}
        ax.plot(trials[right], 1.03 + height[right], color=colour, **style)
        ax.plot(trials[~right], -0.08 + height[~right], color=_SOFT, **style)
    ax.set_xlim(0.5, max(1, len(trials)) + 0.5)
    ax.set_ylim(-0.1, 1.1)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    ax.set_xlabel("trial")
    ax.set_ylabel(f"right answers (%), last {curve.window} trials")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def learning_curve_figure(curves: Mapping[str, LearningCurve], path: str | os.PathLike[str]) -> Path:
    """Write the curves in one picture, whose kind the path's ending tells (.png, .svg, .pdf); returns the path.

    One curve is drawn with its trials as dots; more have a legend with their names instead.
    """
    if not curves:
        raise InvalidArgument("curves is empty: give at least one")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.5, 3.4), layout="constrained")
    FigureCanvasAgg(made)
    ax = made.subplots()
    for place, (name, curve) in enumerate(curves.items()):
        learning_curve(ax, curve, label=name, colour=_COLOURS[place % len(_COLOURS)], dots=len(curves) == 1)
    longest = max(len(curve.correct) for curve in curves.values())
    ax.set_xlim(0.5, max(1, longest) + 0.5)
    _name_lines(ax, curves)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize="small", loc="lower right")
    return save(made, path)


def _name_lines(ax: Any, curves: Mapping[str, LearningCurve]) -> None:
    """Write chance, target and reversal at their lines, once for each height or moment."""
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
