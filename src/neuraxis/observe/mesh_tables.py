"""The mesh as tables: who is here, and what is said."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuraxis.mesh import Peer
from neuraxis.observe.mesh_listening import Heard
from neuraxis.observe.mesh_values import printable

__all__ = [
    "NODES",
    "TOPICS",
    "TopicRow",
    "age_text",
    "gather_topics",
    "node_data",
    "node_rows",
    "print_table",
    "rate_text",
    "rich_table",
    "topic_rows",
]

NODES = ("name", "role", "host", "pid", "since", "step")
TOPICS = ("key", "kind", "node", "encoding", "Hz", "B/s", "lost")
_NUMBERS = frozenset({"pid", "since", "step", "Hz", "B/s", "lost"})
_NOTHING = "-"


# --- who is here ---


def node_rows(peers: Iterable[Peer], now: float | None = None) -> list[tuple[str, ...]]:
    now = time.time() if now is None else now
    rows: list[tuple[str, ...]] = []
    for peer in peers:
        step = "no answer" if peer.topics is None else _NOTHING if peer.step is None else str(peer.step)
        age = age_text(now - peer.since)
        rows.append((peer.name, peer.role or _NOTHING, peer.host, str(peer.pid), age, step))
    return rows


def node_data(peer: Peer, now: float | None = None) -> dict[str, Any]:
    """A node for a program; `answers` is false where it is present and says nothing, `since` is in epoch seconds."""
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
    }


def age_text(seconds: float) -> str:
    """Two units at most: 4 s, 3 min 20 s, 5 h 2 min, 3 d 4 h."""
    whole = max(0, int(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + f" {rest} {smaller}" * bool(rest)
    return f"{whole} s"


# --- what is said ---


@dataclass
class TopicRow:
    """A key, with what its node says of it and what was heard."""

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


def gather_topics(peers: Iterable[Peer], heard: Iterable[Heard], seconds: float) -> list[TopicRow]:
    """What nodes say that they publish, and what was heard within some seconds, by key."""
    rows: dict[str, TopicRow] = {}
    for peer in peers:
        for topic, kind in (peer.topics or {}).items():
            key = f"{peer.name}/{topic}"
            rows[key] = TopicRow(key, kind, [peer.name])
    for one in heard:
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
    """Bytes per second, with a letter for the thousands: 12.3k, 4.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bytes_per_s >= 0.99995 * size:
            return f"{bytes_per_s / size:.1f}{letter}"
    return f"{bytes_per_s:.0f}"


def _short_encoding(encoding: str) -> str:
    return encoding.removeprefix("application/").removeprefix("x-neuraxis-")


# --- as text ---


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """A table on a terminal, columns of plain text elsewhere."""
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
