"""The data of a run: what each rank held before and after each pattern, and what moved. Plain data, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "DTYPE",
    "Held",
    "Move",
    "Observation",
    "PatternReport",
    "PatternRun",
    "RankObservations",
    "RankView",
    "pieces",
    "sources",
]

# What a rank holds: one tensor (a list of values), a list of tensors, or nothing.
Held = list[int] | list[list[int]] | None


DTYPE = "int64"


@dataclass(frozen=True)
class Move:
    """A tensor that went from one rank to another (or stayed where it was, as a part of the pattern).

    A slot is a place in the list of tensors that the rank holds; a rank that holds one tensor has it in slot 0.
    """

    from_rank: int
    to_rank: int
    from_slot: int = 0
    to_slot: int = 0


@dataclass(frozen=True)
class Observation:
    """What a rank held before and after a pattern; for a barrier, when it arrived and left (monotonic seconds)."""

    before: Held = None
    after: Held = None
    arrived_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class RankObservations:
    """Everything that one rank saw: the backend that was chosen, and an observation for each pattern's name."""

    backend: str
    observations: dict[str, Observation]


@dataclass(frozen=True)
class RankView:
    """What one rank held; for a barrier, when it arrived and left, in ms after the first arrival."""

    rank: int
    before: Held
    after: Held
    arrived_ms: float | None = None
    left_ms: float | None = None


@dataclass(frozen=True)
class PatternRun:
    """One pattern as it ran on every rank.

    Attributes:
        name: the pattern's name in code, e.g. "all_reduce".
        title: its name in a heading.
        label: what the arrows are called in a drawing.
        call: the code as a student would write it.
        caption: what happens, in plain words.
        use: when distributed learning or a distributed brain uses it.
        reduces: whether moves that meet in one slot are added up; otherwise each move is a copy.
        members: the ranks that take part.
        ranks: what each rank held.
        moves: what went where.
    """

    name: str
    title: str
    label: str
    call: str
    caption: str
    use: str
    reduces: bool
    members: list[int]
    ranks: list[RankView]
    moves: list[Move]


@dataclass(frozen=True)
class PatternReport:
    """All patterns of one run. `problems` says where a result differs from its pattern's definition."""

    backend: str
    world_size: int
    dim: int
    dtype: str
    host: str
    runs: list[PatternRun]
    problems: list[str] = field(default_factory=list)


def pieces(held: Held) -> list[list[int]]:
    """What a rank holds as a list of tensors, so that a slot is an index into it."""
    tensors = [piece for piece in held or () if isinstance(piece, list)]
    values = [value for value in held or () if isinstance(value, int)]
    return tensors or ([values] if values else [])


def sources(run: PatternRun, rank: int, slot: int) -> list[Move]:
    """The moves that ended in a slot of a rank, in the order of the ranks they came from."""
    return [move for move in run.moves if (move.to_rank, move.to_slot) == (rank, slot)]
