"""Text output about the mesh: tables of nodes, topics and clocks, and the values of messages.

Names and values come from the network: nothing in them may move a terminal's cursor, and none is too large or too deep
to print.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuraxis import imports as optional
from neuraxis.mesh import Peer
from neuraxis.mesh.monitor import ObservedMessage

__all__ = [
    "NODES",
    "TOPICS",
    "TopicRow",
    "age_text",
    "as_json",
    "as_text",
    "gather_topics",
    "node_data",
    "node_rows",
    "print_clock_reports",
    "print_table",
    "printable",
    "rate_text",
    "rich_table",
    "topic_rows",
]

NODES = ("name", "role", "host", "pid", "since", "sees", "step")
TOPICS = ("key", "kind", "node", "encoding", "Hz", "B/s", "lost")
_NUMBERS = frozenset({"pid", "since", "sees", "step", "Hz", "B/s", "lost"})
_NOTHING = "-"

# Limits of a value that is printed as one line.
_MAX_ITEMS = 8  # of a container
_MAX_NUMBERS = 5  # of an array
_MAX_CHARACTERS = 200
_MAX_BYTES = 16
_MAX_DEPTH = 6
_HUGE_BITS = 10_000  # of an integer; Python does not write larger ones in decimal


# --- Nodes ---


def node_rows(peers: Iterable[Peer], now: float | None = None) -> list[tuple[str, ...]]:
    now = time.time() if now is None else now
    rows: list[tuple[str, ...]] = []
    for peer in peers:
        step = "no answer" if peer.topics is None else _NOTHING if peer.step is None else str(peer.step)
        age = age_text(now - peer.since)
        sees = _NOTHING if peer.sees is None else str(peer.sees)
        rows.append((peer.name, peer.role or _NOTHING, peer.host, str(peer.pid), age, sees, step))
    return rows


def node_data(peer: Peer, now: float | None = None) -> dict[str, Any]:
    """Return a node as JSON-like values; `answers` is False if it does not answer, `since` is in epoch seconds."""
    now = time.time() if now is None else now
    return {
        "name": peer.name,
        "role": peer.role,
        "roles": list(peer.roles),
        "host": peer.host,
        "pid": peer.pid,
        "since": peer.since,
        "age_s": max(0.0, now - peer.since),
        "step": peer.step,
        "topics": peer.topics,
        "answers": peer.topics is not None,
        "sees": peer.sees,
    }


def age_text(seconds: float) -> str:
    """Format a duration with at most two units: 4 s, 3 min 20 s, 5 h 2 min, 3 d 4 h."""
    whole = max(0, int(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + f" {rest} {smaller}" * bool(rest)
    return f"{whole} s"


# --- Topics ---


@dataclass
class TopicRow:
    """A topic: its announcement by a node, and the messages received on its key."""

    key: str
    kind: str | None = None
    nodes: list[str] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    messages: int = 0
    rate_hz: float = 0.0
    bytes_per_s: float = 0.0
    lost: int = 0

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def gather_topics(peers: Iterable[Peer], messages: Iterable[ObservedMessage], seconds: float) -> list[TopicRow]:
    """Combine, by key, the topics that nodes announce and the messages received within `seconds`."""
    rows: dict[str, TopicRow] = {}
    for peer in peers:
        for topic, kind in (peer.topics or {}).items():
            key = f"{peer.name}/{topic}"
            rows[key] = TopicRow(key, kind, [peer.name])
    for one in messages:
        row = rows.setdefault(one.key, TopicRow(one.key))
        for names, name in ((row.nodes, one.node), (row.encodings, one.encoding)):
            if name and name not in names:
                names.append(name)
        row.messages += 1
        row.rate_hz += 1 / seconds
        row.bytes_per_s += one.size / seconds
        row.lost += one.lost
    return [rows[key] for key in sorted(rows)]


def topic_rows(rows: Iterable[TopicRow]) -> list[tuple[str, ...]]:
    return [
        (
            row.key,
            row.kind or _NOTHING,
            ",".join(row.nodes) or _NOTHING,
            ",".join(map(_short_encoding, row.encodings)) or _NOTHING,
            f"{row.rate_hz:.1f}",
            rate_text(row.bytes_per_s),
            str(row.lost),
        )
        for row in rows
    ]


def rate_text(bytes_per_s: float) -> str:
    """Format bytes per second with a unit prefix: 12.3k, 4.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bytes_per_s >= 0.99995 * size:
            return f"{bytes_per_s / size:.1f}{letter}"
    return f"{bytes_per_s:.0f}"


def _short_encoding(encoding: str) -> str:
    return encoding.removeprefix("application/").removeprefix("x-neuraxis-")


# --- Tables ---


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print a table on a terminal, and columns of plain text elsewhere."""
    if console.is_terminal:
        console.print(rich_table(headings, rows))
        return
    lines = [headings, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = [
            cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)
            for cell, width, heading in zip(line, widths, headings, strict=True)
        ]
        print("  ".join(cells).rstrip(), file=console.file)


def print_clock_reports(reports: dict[str, Any], dt_ms: float) -> None:
    """Print, for each region that followed the wall clock, its timing and the spikes that it missed."""
    table = Table(box=None, pad_edge=False)
    table.add_column("region")
    for name in (
        "ms",
        "windows",
        "late p50",
        "p99",
        "missed",
        "skipped",
        "spikes early p50",
        "p1",
        "late steps",
        "silence",
    ):
        table.add_column(name, justify="right")
    for name, report in reports.items():
        clock = report["clock"]
        upstream = report["upstream"]
        silent = [f"{other} {one[0]}-{one[1] or ''}" for other, u in upstream.items() for one in u["silences"]]
        table.add_row(
            name,
            f"{report['step'] * dt_ms:,.0f}",
            f"{clock['windows']:,}",
            f"{clock['jitter_ms']['p50']:.2f}",
            f"{clock['jitter_ms']['p99']:.2f}",
            f"{clock['missed_deadlines']:,}",
            f"{clock['skipped_steps']:,}",
            _milliseconds(clock["margin_ms"]["p50"]),
            _milliseconds(clock["margin_ms"]["p1"]),
            f"{sum(one['late'] for one in upstream.values()):,}",
            ", ".join(silent) or _NOTHING,
        )
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print(
        "late: ms from the scheduled to the actual time of a window; early: ms from the first spike of a window to its "
        "scheduled time"
    )


def _milliseconds(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        if heading in _NUMBERS:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


# --- Values of messages ---


def printable(text: str) -> str:
    """Return a text with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def as_text(value: Any, whole: bool = False) -> str:
    """Format a value in one line; long values are cut and arrays summarised, unless `whole` is set."""
    try:
        return _text(value, whole, 0)
    except RecursionError:
        return "(nested too deeply to be shown)"


def as_json(value: Any) -> Any:
    """Convert a value to JSON types: arrays to lists, bytes to base64, NaN and infinity to None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A lone surrogate cannot be encoded in UTF-8.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _HUGE_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, complex):
        return [as_json(value.real), as_json(value.imag)]
    if isinstance(value, np.generic):
        return as_json(_plain(value))
    if _is_tensor(value):
        value = _array_of(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
        return as_json(value)
    if isinstance(value, dict):
        return {key if isinstance(key, str) else as_text(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    return str(value)


def _text(value: Any, whole: bool, depth: int) -> str:
    if isinstance(value, str):
        return repr(value) if whole or len(value) <= _MAX_CHARACTERS else f"{value[:_MAX_CHARACTERS]!r}…"
    if isinstance(value, int) and value.bit_length() > _HUGE_BITS:
        return hex(value) if whole else f"(a number of {value.bit_length()} bits)"
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value), whole)
    if isinstance(value, np.generic):
        return _text(_plain(value), whole, depth)
    if isinstance(value, np.ndarray):
        return _array_text(str(value.dtype), value, whole)
    if _is_tensor(value):
        return _array_text(str(value.dtype), _array_of(value), whole)
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _container_text(value, whole, depth)
    if value is None or isinstance(value, bool | int | float | complex):
        return repr(value)
    text = printable(str(value))
    return text if whole or len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _bytes_text(value: bytes, whole: bool) -> str:
    shown = value if whole else value[:_MAX_BYTES]
    unit = "byte" if len(value) == 1 else "bytes"
    return f"<{len(value)} {unit}{' ' * bool(shown)}{shown.hex(' ')}{' …' * (len(shown) < len(value))}>"


def _array_text(dtype: str, array: np.ndarray, whole: bool) -> str:
    kind = dtype if array.dtype.names is None else f"records of {len(array.dtype.names)} fields"
    shape = "x".join(map(str, array.shape)) if array.shape else "scalar"
    if whole:
        return f"<{kind} {shape} {_text(array.tolist(), True, 0)}>"
    items = array.flat[:_MAX_NUMBERS].tolist()
    first = [f"{item:.6g}" if isinstance(item, float) else _text(item, False, _MAX_DEPTH - 1) for item in items]
    return f"<{' '.join([kind, shape, *first])}{' …' * (array.size > len(first))}>"


def _container_text(value: Any, whole: bool, depth: int) -> str:
    opened, closed = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    if depth >= _MAX_DEPTH and not whole and len(value):
        return f"{opened}…{closed}"
    shown: list[str] = []
    for item in value:
        if len(shown) == _MAX_ITEMS and not whole:
            shown.append(f"… {len(value) - _MAX_ITEMS} more")
            break
        text = _text(item, whole, depth + 1)
        shown.append(f"{text}: {_text(value[item], whole, depth + 1)}" if isinstance(value, dict) else text)
    return f"{opened}{', '.join(shown)}{closed}"


def _plain(value: np.generic) -> Any:
    """Convert a NumPy number to Python; a long double becomes the nearest float."""
    plain = value.item()
    if isinstance(plain, np.generic):
        return complex(value) if isinstance(value, np.complexfloating) else float(value)
    return plain


def _is_tensor(value: Any) -> bool:
    torch = optional.loaded("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _array_of(tensor: Any) -> np.ndarray:
    """Convert a tensor to an array; types that NumPy lacks become float32 or complex64."""
    tensor = tensor.detach().cpu()
    try:
        array: np.ndarray = tensor.numpy()
    except TypeError:
        array = (tensor.cfloat() if tensor.is_complex() else tensor.float()).numpy()
    return array
