"""A barrier drawn as a timeline: a row for each rank, which works, arrives, waits, and goes on with the others."""

from __future__ import annotations

from neuraxis.observe.patterns.model import PatternRun
from neuraxis.observe.patterns.svg import element, frame, rank_class, text

__all__ = ["draw_timeline"]

_WIDTH = 380.0
_LEFT = 56.0
_START = 76.0  # where the first rank arrives; left of it all are at work
_END = 306.0  # where the last one leaves
_RIGHT = 368.0
_TOP = 24.0
_ROW = 38.0
_BAR = 15.0


def draw_timeline(run: PatternRun) -> str:
    """The timeline of a barrier, as SVG in a frame."""
    times = [(view.arrived_ms or 0.0, view.left_ms or 0.0) for view in run.ranks]
    last_arrival = max(arrived for arrived, _ in times)
    span = max(max(left for _, left in times), 1.0)

    def x(ms: float) -> float:
        return _START + (_END - _START) * ms / span

    bottom = _TOP + len(times) * _ROW
    opens = x(last_arrival)
    parts = [
        element("line", x1=opens, y1=_TOP - 4, x2=opens, y2=bottom + 2, klass="gate"),
        text("the last one arrives", opens, _TOP - 10, "gate-word", text_anchor="end" if len(times) > 1 else "middle"),
    ]
    for rank, (arrived, left) in enumerate(times):
        parts.append(_lane(rank, _TOP + rank * _ROW, opens, x(arrived), x(left), arrived, left))
    parts.append(text("time →", _RIGHT, bottom + 18, "axis", text_anchor="end"))
    parts.append(text("ms after the first arrival", _LEFT, bottom + 18, "axis"))
    words = " ".join(
        f"Rank {rank} arrived at {arrived:.1f} ms and left at {left:.1f} ms."
        for rank, (arrived, left) in enumerate(times)
    )
    title = f"{run.title}: when each of {len(times)} ranks arrived and left"
    return frame(run.name, title, words, _WIDTH, bottom + 26, "".join(parts))


def _lane(rank: int, top: float, gate: float, arrival: float, departure: float, arrived: float, left: float) -> str:
    colour = rank_class(rank)
    bar, middle, word = top + 5, top + 5 + _BAR / 2, top + 5 + _BAR + 12
    parts = [
        text("rank", 2, middle + 4, "rank-name"),
        element("circle", cx=42, cy=middle, r=6, klass=f"badge {colour}"),
        text(str(rank), 42, middle + 3.4, f"badge-word {colour}", text_anchor="middle"),
        element("rect", x=_LEFT, y=bar, width=max(arrival - _LEFT, 1), height=_BAR, rx=2, klass=f"work {colour}"),
        element("line", x1=arrival, y1=middle, x2=max(departure, arrival), y2=middle, klass=f"wait {colour}"),
        element("rect", x=departure, y=bar, width=_RIGHT - departure, height=_BAR, rx=2, klass=f"work {colour}"),
        element("circle", cx=arrival, cy=middle, r=4.5, klass=f"arrival {colour}"),
    ]
    room, waited = departure - arrival, f"{left - arrived:.0f} ms"
    if room > 44:
        words = f"waits {waited}" if room > 90 else waited
        parts.append(text(words, arrival + room / 2, middle + 4, "wait-word", text_anchor="middle"))
    # The numbers stand clear of the gate: an arrival left of it, a departure right of it.
    parts.append(
        text(f"{arrived:.1f}", arrival - 3 if arrival > gate - 12 else arrival + 9, word, "moment", text_anchor="end")
    )
    parts.append(text(f"{left:.1f}", max(departure, gate) + 4, word, "moment"))
    return "".join(parts)
