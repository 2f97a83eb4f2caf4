"""Common helpers of the figures: escaping, number formats, colours, ticks and flags.

The page is well-formed XML as well as HTML, so every element is closed. Curves and dots are an SVG that is stretched to
its place, with strokes of fixed width; text is HTML beside it. Text therefore has the same size on a phone and on a
wide screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

__all__ = [
    "PALETTE_SIZE",
    "Colours",
    "clipped",
    "count",
    "draw_axis",
    "draw_flags",
    "memory",
    "number",
    "percent",
    "plain",
    "plural",
    "rate",
    "ticks",
    "words",
]

PALETTE_SIZE = 8  # further regions reuse the colours; the name of the region is always written as well

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def words(text: str) -> str:
    """Escape a text for the page, and replace the characters that XML does not allow."""
    return escape(_NOT_XML.sub("\ufffd", text))


def clipped(text: str, characters: int) -> str:
    """Shorten a text that is too long, with an ellipsis."""
    return text if len(text) <= characters else text[: max(1, characters - 1)].rstrip() + "…"


class Colours:
    """CSS colour classes of the regions, assigned in the order of the names; the same in every figure."""

    def __init__(self, names: Iterable[str]) -> None:
        self._places = {name: place for place, name in enumerate(dict.fromkeys(names))}

    def place(self, name: str) -> int:
        return self._places[name]

    def __getitem__(self, name: str) -> str:
        return f"c{self._places[name] % PALETTE_SIZE}"


def number(value: float, digits: int = 1) -> str:
    """Format a number for a reader, without trailing zeros: 1.5, 20, 1,200."""
    return _short(f"{value:,.{digits}f}").replace("-", "\u2212")


def plain(value: float, digits: int = 2) -> str:
    """Format a number for SVG or CSS."""
    return _short(f"{value:.{digits}f}")


def _short(shown: str) -> str:
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown == "-0" else shown


def count(value: float) -> str:
    return f"{value:,.0f}"


def plural(value: int, singular: str, several: str = "") -> str:
    return f"{count(value)} {singular if value == 1 else several or singular + 's'}"


def percent(share: float) -> str:
    """Format a share as a percentage, with a no-break space; decimals only near 0 and 1."""
    digits = 1 if 0 < share < 0.01 or 0.99 < share < 1 else 0
    return f"{100 * share:.{digits}f}\u00a0%"


def rate(rate_hz: float) -> str:
    return f"{number(rate_hz, 2 if rate_hz < 1 else 1 if rate_hz < 100 else 0)}\u00a0Hz"


def memory(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{number(size_bytes, 0 if size_bytes >= 10 else 1)}\u00a0{unit}"


def ticks(start: float, stop: float, about: int) -> list[float]:
    """Return about `about` round numbers from start to stop, in steps of 1, 2 or 5 times a power of ten."""
    span = stop - start
    if not span > 0:
        return [start]
    rough = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first = math.ceil(start / step - 1e-9)
    return [place * step for place in range(first, math.floor(stop / step + 1e-9) + 1)]


# --- Flags: labels of times above a plot, on as many lines as they need not to overlap ---


_PHONE_PX, _WIDE_PX = 215.0, 440.0  # width of the narrowest plot on a phone, and on a wide screen
_LETTER_PX = 7.0
_MAX_CHARACTERS = 17  # of a label


def draw_flags(flags: Sequence[tuple[float, str]]) -> str:
    """Return labels at shares (0 to 1) of the width, right of their place or, without room there, left of it."""
    ordered = sorted(flags)
    phone, wide = _places(ordered, _PHONE_PX), _places(ordered, _WIDE_PX)
    poles, names = [], []
    for (share, name), (low, phone_left), (high, wide_left) in zip(ordered, phone, wide, strict=True):
        place = f"left:{plain(100 * share)}%;--phone:{low};--wide:{high}"
        poles.append(f'<i class="pole" style="{place}"></i>')
        names.append(
            f'<span class="flag" style="{place};--phone-left:{phone_left:d};--wide-left:{wide_left:d}" '
            f'title="{words(name)}">{words(clipped(name, _MAX_CHARACTERS))}</span>'
        )
    # A label covers the poles behind it, so all poles are drawn first.
    drawn = "".join(poles + names)
    lines = [1 + max((line for line, _ in places), default=-1) for places in (phone, wide)]
    return f'<div class="flags" style="--phone:{lines[0]};--wide:{lines[1]}">{drawn}</div>'


def draw_axis(places: Sequence[tuple[float, str]], title: str) -> str:
    """Return tick labels at shares of the width of a plot; a phone shows every other one."""
    marks = "".join(
        f'<span class="tick{" minor" if place % 2 else ""}{_end(share)}" style="left:{plain(100 * share)}%">'
        f"{words(text)}</span>"
        for place, (share, text) in enumerate(places)
    )
    return f'<div class="axis"><div class="ticks">{marks}</div><div class="axis-name">{words(title)}</div></div>'


def _places(flags: Sequence[tuple[float, str]], plot_px: float) -> list[tuple[int, bool]]:
    """Return, for each flag, the lowest line without overlap, counted from the plot, and True if it is left."""
    taken: list[list[tuple[float, float]]] = []
    places = []
    for share, name in flags:
        width = (min(len(name), _MAX_CHARACTERS) * _LETTER_PX + 12) / plot_px
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
