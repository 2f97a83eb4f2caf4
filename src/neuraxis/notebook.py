"""Tables as text for `repr`, and as HTML for `_repr_html_`, which notebooks show in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["html_table", "text_table"]


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table with a caption above it; all cells are escaped.

    Examples
    --------
    >>> html_table("a < b", ("name", "n"), [("x", 1)])
    '<p>a &lt; b</p><table><tr><th>name</th><th>n</th></tr><tr><td>x</td><td>1</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<p>{escape(caption)}</p><table><tr>{head}</tr>{body}</table>"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text, with aligned columns.

    Examples
    --------
    >>> print(text_table(("name", "n"), [("spikes", "1")]))
    name    n
    spikes  1
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in text)
