"""The few SVG elements that the drawings are made of. Colours and fonts are classes, so that the page's style rules."""

from __future__ import annotations

from html import escape

__all__ = ["PALETTE_SIZE", "arrow", "element", "frame", "number", "rank_class", "text"]

PALETTE_SIZE = 8  # ranks beyond it take the colours again; their number is written beside each


def element(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """One element. Attributes are escaped, `content` is markup; `klass` is class, and _ in a name is -."""
    words = [
        f'{name.replace("klass", "class").replace("_", "-")}="{escape(_word(value))}"'
        for name, value in attributes.items()
    ]
    start = " ".join([tag, *words])
    return f"<{start}>{content}</{tag}>" if content else f"<{start}/>"


def text(content: str, x: float, y: float, klass: str, **attributes: str | float) -> str:
    return element("text", escape(content), x=x, y=y, klass=klass, **attributes)


def arrow(x0: float, y0: float, x1: float, y1: float, klass: str) -> str:
    """A dashed line that leaves downwards and arrives downwards, with a head.

    The head is a shape and no marker: a marker cannot take its line's colour in every browser.
    """
    neck, bend = y1 - 5, (y1 - y0) * 0.45
    line = (
        f"M{number(x0)} {number(y0)} C{number(x0)} {number(y0 + bend)} "
        f"{number(x1)} {number(neck - bend)} {number(x1)} {number(neck)}"
    )
    head = f"M{number(x1 - 3.2)} {number(neck - 1)} L{number(x1 + 3.2)} {number(neck - 1)} L{number(x1)} {number(y1)} Z"
    return element("path", d=line, klass=f"line {klass}") + element("path", d=head, klass=f"head {klass}")


def frame(name: str, title: str, description: str, width: float, height: float, content: str) -> str:
    """A whole drawing that scales with its place, but not below what can be read."""
    return (
        f'<div class="frame" tabindex="0" role="group" aria-label="{escape(title)}">'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" style="--natural:{number(width)}">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f"{content}</svg></div>"
    )


def rank_class(rank: int) -> str:
    return f"r{rank % PALETTE_SIZE}"


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _word(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
