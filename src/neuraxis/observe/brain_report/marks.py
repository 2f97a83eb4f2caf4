"""Flags on a time axis: names of moments above a plot, on as many lines as they need to stay apart on a phone."""

from __future__ import annotations

from collections.abc import Sequence

from neuraxis.observe.brain_report.markup import clipped, plain, words

__all__ = ["draw_axis", "draw_flags"]

_PHONE_PX, _WIDE_PX = 215.0, 440.0  # the width of the narrowest plot, and of the narrowest on a wide screen
_LETTER_PX = 7.0
_LETTERS = 17  # of a flag's name at most


def draw_flags(flags: Sequence[tuple[float, str]]) -> str:
    """Names at shares (0 to 1) of the width, each right of its place or, where there is no room, left of it."""
    ordered = sorted(flags)
    phone, wide = _places(ordered, _PHONE_PX), _places(ordered, _WIDE_PX)
    poles, names = [], []
    for (share, name), (low, phone_left), (high, wide_left) in zip(ordered, phone, wide, strict=True):
        place = f"left:{plain(100 * share)}%;--phone:{low};--wide:{high}"
        poles.append(f'<i class="pole" style="{place}"></i>')
        names.append(
            f'<span class="flag" style="{place};--phone-left:{phone_left:d};--wide-left:{wide_left:d}" '
            f'title="{words(name)}">{words(clipped(name, _LETTERS))}</span>'
        )
    # A name covers the poles behind it, so all the poles come first.
    drawn = "".join(poles + names)
    lines = [1 + max((line for line, _ in places), default=-1) for places in (phone, wide)]
    return f'<div class="flags" style="--phone:{lines[0]};--wide:{lines[1]}">{drawn}</div>'


def draw_axis(places: Sequence[tuple[float, str]], title: str) -> str:
    """Numbers under a plot at shares of its width, within its ends; a phone shows every other one."""
    marks = "".join(
        f'<span class="tick{" minor" if place % 2 else ""}{_end(share)}" style="left:{plain(100 * share)}%">'
        f"{words(text)}</span>"
        for place, (share, text) in enumerate(places)
    )
    return f'<div class="axis"><div class="ticks">{marks}</div><div class="axis-name">{words(title)}</div></div>'


def _places(flags: Sequence[tuple[float, str]], plot_px: float) -> list[tuple[int, bool]]:
    """For each flag its line, from 0 at the plot, the lowest on which it touches no other; and whether it is left."""
    taken: list[list[tuple[float, float]]] = []
    places = []
    for share, name in flags:
        width = (min(len(name), _LETTERS) * _LETTER_PX + 12) / plot_px
        left = share >= 0.5 and share + width > 1
        span = (share - width, share) if left else (share, share + width)
        line = next((line for line, spans in enumerate(taken) if _free(span, spans)), len(taken))
        if line == len(taken):
            taken.append([])
        taken[line].append(span)
        places.append((line, left))
    return places


def _free(span: tuple[float, float], spans: list[tuple[float, float]]) -> bool:
    return all(span[1] <= start or stop <= span[0] for start, stop in spans)


def _end(share: float) -> str:
    return " first" if share < 0.02 else " last" if share > 0.98 else ""
