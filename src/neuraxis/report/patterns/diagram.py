"""SVG drawings of the patterns: boxes and arrows for a run, and a timeline for a barrier.

Colours and fonts are CSS classes, which the style sheet of the page defines.
"""

from __future__ import annotations

from html import escape

from neuraxis.report.patterns.model import Held, PatternRun, RankView, pieces, sources
from neuraxis.report.patterns.text import ELLIPSIS, shown_places

__all__ = [
    "GOAL_PIN",
    "PALETTE_SIZE",
    "arrow",
    "draw_diagram",
    "draw_timeline",
    "element",
    "frame",
    "number",
    "rank_class",
    "text",
]

PALETTE_SIZE = 8  # further ranks reuse the colours; the number of the rank is always written as well

# --- Diagram ---

GOAL_PIN = "M0.5 7.5 A5.5 5.5 0 1 1 11.5 7.5 C11.5 11.5 7.5 14 6 17.5 C4.5 14 0.5 11.5 0.5 7.5 Z"

_GUTTER = 13.0  # at the left, for "before" and "after"
_GAP = 4.0
_PADDING = 3.5
_HEADER = 18.0
_BADGE = 14.0
_DIGIT = 7.6
_CELL_HEIGHT = 19.0
_ROW = 24.0
_BAND = 92.0  # height between the rows, for the arrows; a wide drawing gets more, so that they stay steep
_TOP = 2.0

# --- Timeline ---

_TIMELINE_WIDTH = 380.0
_TIMELINE_LEFT = 56.0
_FIRST_ARRIVAL = 76.0  # x of the first arrival
_LAST_LEAVE = 306.0  # x of the last leave
_TIMELINE_RIGHT = 368.0
_TIMELINE_TOP = 24.0
_TIMELINE_ROW = 38.0
_TIMELINE_BAR = 15.0


def draw_diagram(run: PatternRun) -> str:
    """Return the drawing of a run, as SVG in a frame."""
    return _Drawing(run).svg()


class _Drawing:
    """Layout and drawing of a run."""

    def __init__(self, run: PatternRun) -> None:
        self.run = run
        held = [held for view in run.ranks for held in (view.before, view.after)]
        values = [value for one in held for piece in pieces(one) for value in piece]
        self.cell = max(17.0, _DIGIT * max(len(str(value)) for value in values) + 1.8)
        self.places = shown_places(max(len(piece) for one in held for piece in pieces(one)))
        box = 2 * _PADDING + _BADGE + self.cell * len(self.places)
        self.box_width = max(box, 60.0)
        content = len(run.ranks) * (self.box_width + _GAP) - _GAP
        # The label must fit even with one narrow rank.
        label = 7.2 * len(run.label) + 24
        self.width = _GUTTER + max(content, label) + 1
        self.left = _GUTTER + max(0.0, (label - content) / 2)
        self.before_height = self._height([view.before for view in run.ranks])
        self.after_height = self._height([view.after for view in run.ranks])
        self.after_top = _TOP + self.before_height + _BAND + max(0.0, content - 420) * 0.07
        self.height = self.after_top + self.after_height + 2

    def svg(self) -> str:
        parts = [self._row_word("before", _TOP, self.before_height)]
        parts.append(self._row_word("after", self.after_top, self.after_height))
        for view in self.run.ranks:
            parts.append(self._box(view.rank, _TOP, self.before_height, self._before_rows(view), changed=False))
        parts += self._arrows()
        for view in self.run.ranks:
            changed = pieces(view.before) != pieces(view.after)
            parts.append(
                self._box(view.rank, self.after_top, self.after_height, self._after_rows(view), changed=changed)
            )
        title = f"{self.run.title}: before and after on {len(self.run.ranks)} ranks"
        return frame(self.run.name, title, _description(self.run), self.width, self.height, "".join(parts))

    def _height(self, row: list[Held]) -> float:
        return _HEADER + max(1, *(len(pieces(held)) for held in row)) * _ROW + 1 if row else _HEADER + _ROW

    def _x(self, rank: int) -> float:
        return self.left + rank * (self.box_width + _GAP)

    def _row_word(self, word: str, top: float, height: float) -> str:
        y = top + height / 2
        return text(word, 8, y, "row-word", text_anchor="middle", transform=f"rotate(-90 8 {y:.1f})")

    def _box(self, rank: int, top: float, height: float, rows: list[str], *, changed: bool) -> str:
        x = self._x(rank)
        outside = rank not in self.run.members
        klass = "box changed" if changed else "box outside" if outside else "box"
        outline = element("rect", x=x, y=top, width=self.box_width, height=height, rx=6, klass=klass)
        header = text(f"rank {rank}", x + self.box_width / 2, top + 13, "rank-name", text_anchor="middle")
        first = top + _HEADER
        moved = [
            element("g", row, transform=f"translate({x + _PADDING:.1f} {first + index * _ROW:.1f})")
            for index, row in enumerate(rows)
        ]
        return outline + header + "".join(moved)

    def _before_rows(self, view: RankView) -> list[str]:
        rank = view.rank
        tensors = pieces(view.before)
        if not tensors:
            return [self._nothing()]
        if view.before == tensors[0]:
            return [self._badge(str(rank), rank) + self._cells(tensors[0], rank_class(rank))]
        rows = []
        for slot, tensor in enumerate(tensors):
            rows.append(self._goal(slot) + self._cells(tensor, rank_class(rank)))
        return rows

    def _after_rows(self, view: RankView) -> list[str]:
        rows = []
        for slot, tensor in enumerate(pieces(view.after)):
            origins = [move.from_rank for move in sources(self.run, view.rank, slot)] or [view.rank]
            if self.run.reduces and len(origins) > 1:
                rows.append(self._sum_badge() + self._cells(tensor, "sum") + self._strip(origins))
            else:
                rows.append(self._badge(str(origins[0]), origins[0]) + self._cells(tensor, rank_class(origins[0])))
        return rows

    def _nothing(self) -> str:
        width = self.box_width - 2 * _PADDING
        return element("rect", x=0, y=0, width=width, height=_CELL_HEIGHT, rx=3, klass="nothing") + text(
            "nothing", width / 2, 13.5, "nothing-word", text_anchor="middle"
        )

    def _badge(self, word: str, rank: int) -> str:
        middle = _CELL_HEIGHT / 2
        return element("circle", cx=6, cy=middle, r=6, klass=f"badge {rank_class(rank)}") + text(
            word, 6, middle + 3.4, f"badge-word {rank_class(rank)}", text_anchor="middle"
        )

    def _goal(self, rank: int) -> str:
        """Return a hollow pin with the rank that receives the tensor."""
        return element("path", d=GOAL_PIN, klass=f"goal {rank_class(rank)}") + text(
            str(rank), 6, 11, f"goal-word {rank_class(rank)}", text_anchor="middle"
        )

    def _sum_badge(self) -> str:
        return text("Σ", 6, 14, "sum-badge", text_anchor="middle")

    def _cells(self, tensor: list[int], klass: str) -> str:
        cells = []
        for index, place in enumerate(self.places):
            x = _BADGE + index * self.cell
            word = ELLIPSIS if place is None else str(tensor[place])
            cells.append(element("rect", x=x, y=0, width=self.cell, height=_CELL_HEIGHT, klass=f"cell {klass}"))
            cells.append(text(word, x + self.cell / 2, 13.7, "value", text_anchor="middle"))
        return "".join(cells)

    def _strip(self, origins: list[int]) -> str:
        """Return stripes below each sum in the colours of the ranks whose values it contains."""
        width = (self.cell - 1) / len(origins)
        return "".join(
            element(
                "rect",
                x=_BADGE + index * self.cell + 0.5 + part * width,
                y=_CELL_HEIGHT,
                width=width,
                height=3,
                klass=f"strip {rank_class(rank)}",
            )
            for index in range(len(self.places))
            for part, rank in enumerate(origins)
        )

    def _arrows(self) -> list[str]:
        moves = self.run.moves
        if not moves:
            return []
        leaving, arriving = _TOP + self.before_height + 1, self.after_top - 1.5
        drawn, middles = self._outside_group(leaving, arriving), []
        for move in moves:
            # Copies of one tensor leave from one point, and terms of one sum arrive at one: spread over the box, they
            # would look like parts of the tensor.
            sent = sorted({other.from_slot for other in moves if other.from_rank == move.from_rank})
            received = sorted({other.to_slot for other in moves if other.to_rank == move.to_rank})
            x0 = self._x(move.from_rank) + self._spread(sent.index(move.from_slot), len(sent))
            x1 = self._x(move.to_rank) + self._spread(received.index(move.to_slot), len(received))
            drawn.append(arrow(x0, leaving, x1, arriving, rank_class(move.from_rank)))
            middles.append((x0 + x1) / 2)
        half = (7.2 * len(self.run.label) + 16) / 2
        x = min(max(sum(middles) / len(middles), _GUTTER + half), self.width - half - 1)
        y = (leaving + arriving) / 2
        drawn.append(element("rect", x=x - half, y=y - 10, width=2 * half, height=20, rx=10, klass="label"))
        drawn.append(text(self.run.label, x, y + 4, "label-word", text_anchor="middle"))
        return drawn

    def _outside_group(self, leaving: float, arriving: float) -> list[str]:
        """Draw a plain line for each rank outside the group, which neither sends nor waits."""
        drawn = []
        for rank in sorted({view.rank for view in self.run.ranks} - set(self.run.members)):
            x, y = self._x(rank) + self.box_width / 2, arriving - 14
            drawn.append(element("line", x1=x, y1=leaving, x2=x, y2=arriving, klass="bystander"))
            drawn.append(text("continues", x, y, "bystander-word", text_anchor="middle"))
        return drawn

    def _spread(self, index: int, count: int) -> float:
        """Return the offset along a box of the index-th of `count` points, over the middle three fifths."""
        return self.box_width * (0.5 if count == 1 else 0.2 + 0.6 * index / (count - 1))


def _description(run: PatternRun) -> str:
    def words(held: Held) -> str:
        return " and ".join(" ".join(map(str, piece)) for piece in pieces(held)) or "nothing"

    return " ".join(
        f"Rank {view.rank} held {words(view.before)} before and {words(view.after)} after." for view in run.ranks
    )


def draw_timeline(run: PatternRun) -> str:
    """Return the timeline of a barrier, as SVG in a frame: each rank works, arrives, waits and continues."""
    times = [(view.arrived_ms or 0.0, view.left_ms or 0.0) for view in run.ranks]
    last_arrival = max(arrived for arrived, _ in times)
    span = max(max(left for _, left in times), 1.0)

    def x(ms: float) -> float:
        return _FIRST_ARRIVAL + (_LAST_LEAVE - _FIRST_ARRIVAL) * ms / span

    bottom = _TIMELINE_TOP + len(times) * _TIMELINE_ROW
    opens = x(last_arrival)
    parts = [
        element("line", x1=opens, y1=_TIMELINE_TOP - 4, x2=opens, y2=bottom + 2, klass="gate"),
        text(
            "the last one arrives",
            opens,
            _TIMELINE_TOP - 10,
            "gate-word",
            text_anchor="end" if len(times) > 1 else "middle",
        ),
    ]
    for rank, (arrived, left) in enumerate(times):
        parts.append(
            _timeline_row(rank, _TIMELINE_TOP + rank * _TIMELINE_ROW, opens, x(arrived), x(left), arrived, left)
        )
    parts.append(text("time →", _TIMELINE_RIGHT, bottom + 18, "axis", text_anchor="end"))
    parts.append(text("ms after the first arrival", _TIMELINE_LEFT, bottom + 18, "axis"))
    words = " ".join(
        f"Rank {rank} arrived at {arrived:.1f} ms and left at {left:.1f} ms."
        for rank, (arrived, left) in enumerate(times)
    )
    title = f"{run.title}: when each of {len(times)} ranks arrived and left"
    return frame(run.name, title, words, _TIMELINE_WIDTH, bottom + 26, "".join(parts))


def _timeline_row(
    rank: int, top: float, gate: float, arrival: float, departure: float, arrived: float, left: float
) -> str:
    colour = rank_class(rank)
    bar, middle, word = top + 5, top + 5 + _TIMELINE_BAR / 2, top + 5 + _TIMELINE_BAR + 12
    parts = [
        text("rank", 2, middle + 4, "rank-name"),
        element("circle", cx=42, cy=middle, r=6, klass=f"badge {colour}"),
        text(str(rank), 42, middle + 3.4, f"badge-word {colour}", text_anchor="middle"),
        element(
            "rect",
            x=_TIMELINE_LEFT,
            y=bar,
            width=max(arrival - _TIMELINE_LEFT, 1),
            height=_TIMELINE_BAR,
            rx=2,
            klass=f"work {colour}",
        ),
        element("line", x1=arrival, y1=middle, x2=max(departure, arrival), y2=middle, klass=f"wait {colour}"),
        element(
            "rect",
            x=departure,
            y=bar,
            width=_TIMELINE_RIGHT - departure,
            height=_TIMELINE_BAR,
            rx=2,
            klass=f"work {colour}",
        ),
        element("circle", cx=arrival, cy=middle, r=4.5, klass=f"arrival {colour}"),
    ]
    room, waited = departure - arrival, f"{left - arrived:.0f} ms"
    if room > 44:
        words = f"waits {waited}" if room > 90 else waited
        parts.append(text(words, arrival + room / 2, middle + 4, "wait-word", text_anchor="middle"))
    # Numbers must not touch the line of the last arrival: arrivals are left of it, departures right of it.
    parts.append(
        text(f"{arrived:.1f}", arrival - 3 if arrival > gate - 12 else arrival + 9, word, "moment", text_anchor="end")
    )
    parts.append(text(f"{left:.1f}", max(departure, gate) + 4, word, "moment"))
    return "".join(parts)


# --- SVG elements ---


def element(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """Return an element. Attributes are escaped, `content` is markup; `klass` becomes class, and _ in a name -."""
    words = [
        f'{name.replace("klass", "class").replace("_", "-")}="{escape(_word(value))}"'
        for name, value in attributes.items()
    ]
    start = " ".join([tag, *words])
    return f"<{start}>{content}</{tag}>" if content else f"<{start}/>"


def text(content: str, x: float, y: float, klass: str, **attributes: str | float) -> str:
    return element("text", escape(content), x=x, y=y, klass=klass, **attributes)


def arrow(x0: float, y0: float, x1: float, y1: float, klass: str) -> str:
    """Return a dashed curve that leaves and arrives vertically, with a head.

    The head is a path, since an SVG marker does not take the colour of its line in every browser.
    """
    neck, bend = y1 - 5, (y1 - y0) * 0.45
    line = (
        f"M{number(x0)} {number(y0)} C{number(x0)} {number(y0 + bend)} "
        f"{number(x1)} {number(neck - bend)} {number(x1)} {number(neck)}"
    )
    head = f"M{number(x1 - 3.2)} {number(neck - 1)} L{number(x1 + 3.2)} {number(neck - 1)} L{number(x1)} {number(y1)} Z"
    return element("path", d=line, klass=f"line {klass}") + element("path", d=head, klass=f"head {klass}")


def frame(name: str, title: str, description: str, width: float, height: float, content: str) -> str:
    """Return a complete drawing that scales with the page, down to a readable size."""
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
