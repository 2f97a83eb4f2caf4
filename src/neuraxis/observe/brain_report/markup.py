"""What the figures share: text that cannot break the page, numbers as a reader likes them, colours, ticks.

The page is well-formed XML as well as HTML, so every element is closed. A figure's curves and dots are an SVG that is
stretched to its place, with strokes that are not; its words are HTML beside it. So words have the same size on a phone
and on a wide screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from html import escape

__all__ = [
    "PALETTE_SIZE",
    "Colours",
    "clipped",
    "count",
    "memory",
    "number",
    "percent",
    "plain",
    "plural",
    "rate",
    "ticks",
    "words",
]

PALETTE_SIZE = 8  # regions beyond it take the colours again; a name stands beside each

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def words(text: str) -> str:
    """Text for the page: escaped, and without the characters that no page can hold."""
    return escape(_NOT_XML.sub("\ufffd", text))


def clipped(text: str, characters: int) -> str:
    """The text, or its beginning with an ellipsis where it is too long."""
    return text if len(text) <= characters else text[: max(1, characters - 1)].rstrip() + "…"


class Colours:
    """The colour class of each region, the same in every figure: by the order in which the names are first met."""

    def __init__(self, names: Iterable[str]) -> None:
        self._places = {name: place for place, name in enumerate(dict.fromkeys(names))}

    def place(self, name: str) -> int:
        return self._places[name]

    def __getitem__(self, name: str) -> str:
        return f"c{self._places[name] % PALETTE_SIZE}"


def number(value: float, digits: int = 1) -> str:
    """A number for a reader, without zeros that say nothing: 1.5, 20, 1,200."""
    return _short(f"{value:,.{digits}f}").replace("-", "\u2212")


def plain(value: float, digits: int = 2) -> str:
    """A number for the browser: a place or a length."""
    return _short(f"{value:.{digits}f}")


def _short(shown: str) -> str:
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown == "-0" else shown


def count(value: float) -> str:
    return f"{value:,.0f}"


def plural(value: int, singular: str, several: str = "") -> str:
    return f"{count(value)} {singular if value == 1 else several or singular + 's'}"


def percent(share: float) -> str:
    """A share as a percentage, with a no-break space; decimals only where the share is tiny or nearly all."""
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
    """Round numbers from start to stop, about so many: steps are 1, 2 or 5 times a power of ten."""
    span = stop - start
    if not span > 0:
        return [start]
    rough = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first = math.ceil(start / step - 1e-9)
    return [place * step for place in range(first, math.floor(stop / step + 1e-9) + 1)]
