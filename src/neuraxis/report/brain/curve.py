"""The learning curve of the page: running accuracy over trials, every trial as a dot, chance, target and reversal.

`neuraxis.report.plots.learning_curve` draws it with matplotlib.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from neuraxis.report.brain.markup import count, draw_axis, draw_flags, percent, plain, plural, ticks, words
from neuraxis.report.brain.model import LearningCurve

__all__ = ["describe_curve", "draw_curve"]

# Positions in the drawing of 1000 by 1000 units: a strip of right trials, the curve, a strip of wrong ones.
_RIGHT_STRIP = (12.0, 78.0)
_FULL, _NOTHING = 125.0, 875.0
_WRONG_STRIP = (922.0, 988.0)
_BINS = 60  # parts of the plot with a tooltip about their trials
_LABEL_DISTANCE = 105.0  # distance of two lines of text


def describe_curve(curve: LearningCurve) -> str:
    """Return a caption of the curve."""
    if not curve.correct:
        return "No trial was run."
    trials = len(curve.correct)
    last = min(curve.window, trials)
    accuracy = percent(float(curve.accuracy()[-1]))
    sentences = [f"{accuracy} of the last {plural(last, 'trial')} were right; guessing gets {percent(curve.chance)}."]
    if curve.target is not None:
        reached = curve.reached_at()
        sentences.append(
            f"The target of {percent(curve.target)} was not reached."
            if reached is None
            else f"The target of {percent(curve.target)} was reached at trial {count(reached + 1)}."
        )
    changed = curve.reversed_at
    if changed is not None:
        after = f"From trial {count(changed + 1)} on the rule was reversed"
        again = curve.reached_at(changed)
        if curve.target is None:
            sentences.append(f"{after}.")
        elif again is None:
            sentences.append(f"{after}; the target was not reached again.")
        else:
            sentences.append(f"{after}; the target was reached again {plural(again + 1 - changed, 'trial')} later.")
    return " ".join(sentences)


def draw_curve(curve: LearningCurve) -> str:
    """Return the figure as HTML."""
    if not curve.correct:
        return '<p class="empty">No trials.</p>'
    trials = len(curve.correct)
    accuracy = curve.accuracy()
    x = 1000 * (np.arange(trials) + 0.5) / trials
    y = _NOTHING - (_NOTHING - _FULL) * accuracy
    drawn = [f'<path class="grid" d="M0 {plain(_height(share))}H1000"/>' for share in (0, 0.25, 0.5, 0.75, 1)]
    drawn.append(f'<path class="chance" d="M0 {plain(_height(curve.chance))}H1000"/>')
    if curve.target is not None:
        drawn.append(f'<path class="target" d="M0 {plain(_height(curve.target))}H1000"/>')
    flags: list[tuple[float, str]] = []
    changed = curve.reversed_at
    if changed is not None:
        flags.append((changed / trials, f"reversal at {count(changed + 1)}"))
    for first in dict.fromkeys((0, changed or 0)):
        reached = curve.reached_at(first)
        if reached is not None and (first or changed is None or reached < changed):
            flags.append(((reached + 0.5) / trials, f"target at {count(reached + 1)}"))
    drawn += [f'<path class="mark" d="M{plain(1000 * share)} 0V1000"/>' for share, _ in flags]
    points = [f"{plain(a)} {b:.1f}" for a, b in zip(x, y, strict=True)]
    drawn.append(f'<path class="area" d="M{x[0]:.2f} {_NOTHING} L{" ".join(points)} L{x[-1]:.2f} {_NOTHING}Z"/>')
    # Faint where the window is not full yet.
    whole = min(curve.window, trials) - 1
    drawn.append(f'<path class="curve early" d="M{" ".join(points[: whole + 1])}"/>')
    drawn.append(f'<path class="curve whole" d="M{" ".join(points[whole:])}"/>')
    size = "large" if trials <= 150 else "middling" if trials <= 800 else "small"
    right = np.asarray(curve.correct, np.bool_)
    drawn.append(f'<path class="dots right {size}" d="{_dots(x, right, *_RIGHT_STRIP)}"/>')
    drawn.append(f'<path class="dots wrong {size}" d="{_dots(x, ~right, *_WRONG_STRIP)}"/>')
    drawn += _bins(curve)
    heights = "".join(
        f'<span class="height{klass}" style="top:{plain(place / 10)}%">{name}</span>'
        for place, name, klass in [
            *((_height(share), f"{100 * share:.0f}\u00a0%", "") for share in (0, 0.25, 0.5, 0.75, 1)),
            (sum(_RIGHT_STRIP) / 2, "right", " right-word"),
            (sum(_WRONG_STRIP) / 2, "wrong", " wrong-word"),
        ]
    )
    places = [((tick - 0.5) / trials, count(tick)) for tick in ticks(0, trials, min(8, trials)) if tick >= 1] or [
        (0.5, "1")
    ]
    if places[0][0] > 0.04:
        places = [(0.5 / trials, "1"), *places]
    return f"""<div class="plot curve-plot" role="img" aria-label="{words(describe_curve(curve))}">
<div class="corner"></div>{draw_flags(flags)}<div class="corner"></div>
<div class="heights">{heights}</div>
<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">{"".join(drawn)}</svg>
<div class="line-names">{_line_names(curve)}</div>
<div class="corner"></div>{draw_axis(places, "trial")}<div class="corner"></div>
</div>"""


def _height(share: float) -> float:
    return _NOTHING - (_NOTHING - _FULL) * share


def _dots(x: npt.NDArray[np.float64], shown: npt.NDArray[np.bool_], top: float, bottom: float) -> str:
    """Return dots as lines of zero length, which keep their shape in a stretched drawing.

    Their heights follow the golden ratio, so that neighbours differ and no stripes appear.
    """
    (indices,) = np.nonzero(shown)
    heights = top + (bottom - top) * ((indices * 0.618034) % 1.0)
    return "".join(f"M{a:.1f} {b:.0f}h0" for a, b in zip(x[indices], heights, strict=True))


def _bins(curve: LearningCurve) -> list[str]:
    """Return invisible parts of the plot with a tooltip about their trials."""
    trials = len(curve.correct)
    edges = np.linspace(0, trials, min(_BINS, trials) + 1).round().astype(int)
    return [
        f'<rect class="hover" x="{1000 * start / trials:.2f}" y="0" width="{1000 * (stop - start) / trials:.2f}" '
        f'height="1000"><title>{_bin_title(curve, int(start), int(stop))}</title></rect>'
        for start, stop in pairwise(edges)
    ]


def _bin_title(curve: LearningCurve, start: int, stop: int) -> str:
    which = f"trial {count(stop)}" if stop - start == 1 else f"trials {count(start + 1)} to {count(stop)}"
    right = sum(curve.correct[start:stop])
    return f"{which}: {right} of {stop - start} right; running accuracy {percent(float(curve.accuracy()[stop - 1]))}"


def _line_names(curve: LearningCurve) -> str:
    """Return the labels of the lines at the right of the plot, moved apart where the lines are close."""
    lines = [("chance", curve.chance)] + ([("target", curve.target)] if curve.target is not None else [])
    lines.sort(key=lambda line: -line[1])
    places = [_height(share) for _, share in lines]
    if len(places) == 2 and places[1] - places[0] < _LABEL_DISTANCE:
        middle = min(max(sum(places) / 2, _FULL + _LABEL_DISTANCE / 2), _NOTHING - _LABEL_DISTANCE / 2)
        places = [middle - _LABEL_DISTANCE / 2, middle + _LABEL_DISTANCE / 2]
    return "".join(
        f'<span class="line-name {name}-word" style="top:{plain(place / 10)}%">{name} <b>{percent(share)}</b></span>'
        for (name, share), place in zip(lines, places, strict=True)
    )
