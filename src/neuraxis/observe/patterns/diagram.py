"""A pattern drawn: ranks as columns, what they held above and what they hold below, arrows for what moved.

Sizes are in units that are pixels on a phone; on a larger screen the drawing is scaled up.
"""

from __future__ import annotations

from neuraxis.observe.patterns.model import Held, PatternRun, RankView, pieces, sources
from neuraxis.observe.patterns.svg import arrow, element, frame, rank_class, text
from neuraxis.observe.patterns.text import ELLIPSIS, shown_places

__all__ = ["GOAL_PIN", "draw_diagram"]

GOAL_PIN = "M0.5 7.5 A5.5 5.5 0 1 1 11.5 7.5 C11.5 11.5 7.5 14 6 17.5 C4.5 14 0.5 11.5 0.5 7.5 Z"

_GUTTER = 13.0  # at the left, for the words before and after
_GAP = 4.0
_PADDING = 3.5
_HEADER = 18.0
_BADGE = 14.0
_DIGIT = 7.6
_CELL_HEIGHT = 19.0
_ROW = 24.0
_BAND = 92.0  # between the rows, for the arrows; more where they go far, so that they do not lie flat
_TOP = 2.0


def draw_diagram(run: PatternRun) -> str:
    """The drawing of a run, as SVG in a frame."""
    return _Drawing(run).svg()


class _Drawing:
    """Where everything is, and then the drawing of it."""

    def __init__(self, run: PatternRun) -> None:
        self.run = run
        held = [held for view in run.ranks for held in (view.before, view.after)]
        values = [value for one in held for piece in pieces(one) for value in piece]
        self.cell = max(17.0, _DIGIT * max(len(str(value)) for value in values) + 1.8)
        self.places = shown_places(max(len(piece) for one in held for piece in pieces(one)))
        box = 2 * _PADDING + _BADGE + self.cell * len(self.places)
        self.box_width = max(box, 60.0)
        content = len(run.ranks) * (self.box_width + _GAP) - _GAP
        # A label must fit even when there is one narrow rank.
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
        return frame(self.run.name, title, _in_words(self.run), self.width, self.height, "".join(parts))

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
        """A hollow pin with the rank that the tensor goes to."""
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
        """Whose values are in each sum, as a stripe of their colours under its cell."""
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
        drawn, middles = self._bystanders(leaving, arriving), []
        for move in moves:
            goals = sorted(other.to_rank for other in moves if other.from_rank == move.from_rank)
            origins = sorted(other.from_rank for other in moves if other.to_rank == move.to_rank)
            x0 = self._x(move.from_rank) + self._spread(goals.index(move.to_rank), len(goals))
            x1 = self._x(move.to_rank) + self._spread(origins.index(move.from_rank), len(origins))
            drawn.append(arrow(x0, leaving, x1, arriving, rank_class(move.from_rank)))
            middles.append((x0 + x1) / 2)
        half = (7.2 * len(self.run.label) + 16) / 2
        x = min(max(sum(middles) / len(middles), _GUTTER + half), self.width - half - 1)
        y = (leaving + arriving) / 2
        drawn.append(element("rect", x=x - half, y=y - 10, width=2 * half, height=20, rx=10, klass="label"))
        drawn.append(text(self.run.label, x, y + 4, "label-word", text_anchor="middle"))
        return drawn

    def _bystanders(self, leaving: float, arriving: float) -> list[str]:
        """The ranks that are not in the group: a plain line, for nothing moves and nobody waits."""
        drawn = []
        for rank in sorted({view.rank for view in self.run.ranks} - set(self.run.members)):
            x, y = self._x(rank) + self.box_width / 2, arriving - 14
            drawn.append(element("line", x1=x, y1=leaving, x2=x, y2=arriving, klass="bystander"))
            drawn.append(text("goes on", x, y, "bystander-word", text_anchor="middle"))
        return drawn

    def _spread(self, index: int, count: int) -> float:
        """Where along a box the index-th of `count` arrows touches it: over the middle three fifths."""
        return self.box_width * (0.5 if count == 1 else 0.2 + 0.6 * index / (count - 1))


def _in_words(run: PatternRun) -> str:
    def say(held: Held) -> str:
        return " and ".join(" ".join(map(str, piece)) for piece in pieces(held)) or "nothing"

    return " ".join(
        f"Rank {view.rank} held {say(view.before)} before and {say(view.after)} after." for view in run.ranks
    )
