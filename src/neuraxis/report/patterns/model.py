"""The data of a run: the tensors of each rank before and after each pattern, and their moves."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuraxis.notebook import html_table

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

# Data of a rank: one tensor (a list of values), a list of tensors, or nothing.
Held = list[int] | list[list[int]] | None


DTYPE = "int64"


@dataclass(frozen=True)
class Move:
    """A tensor that moved from one rank to another, or stayed as a part of the pattern.

    A slot is an index into the list of tensors of a rank; a single tensor is in slot 0.
    """

    from_rank: int
    to_rank: int
    from_slot: int = 0
    to_slot: int = 0


@dataclass(frozen=True)
class Observation:
    """Data of a rank before and after a pattern; for a barrier, when it arrived and left (monotonic clock, s)."""

    before: Held = None
    after: Held = None
    arrived_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class RankObservations:
    """Observations of one rank by name of the pattern, and the backend in use."""

    backend: str
    observations: dict[str, Observation]


@dataclass(frozen=True)
class RankView:
    """Data of one rank; for a barrier, when it arrived and left, in ms after the first arrival."""

    rank: int
    before: Held
    after: Held
    arrived_ms: float | None = None
    left_ms: float | None = None


@dataclass(frozen=True)
class PatternRun:
    """One pattern as it ran on every rank.

    Attributes
    ----------
    name : str
        Name in code, for example "all_reduce".
    title : str
        Name in a heading.
    label : str
        Label of the arrows in a drawing.
    call : str
        The call as example code.
    caption : str
        Explanation of the pattern.
    use : str
        Use in distributed learning or a distributed brain.
    reduces : bool
        True if tensors that arrive in one slot are added; otherwise each move is a copy.
    members : list of int
        Ranks that take part.
    ranks : list of RankView
        Data of each rank.
    moves : list of Move
        Tensors that moved.
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
    """All patterns of one run; `problems` lists the differences from the definitions, in words."""

    backend: str
    world_size: int
    dim: int
    dtype: str
    host: str
    runs: list[PatternRun]
    problems: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        agreement = f"{len(self.problems)} differences" if self.problems else "all correct"
        return (
            f"<PatternReport: {len(self.runs)} patterns on {self.world_size} ranks, backend {self.backend!r}, "
            f"{agreement}>"
        )

    def _repr_html_(self) -> str:
        rows = (
            (run.title, run.call, "; ".join(problem for problem in self.problems if problem.startswith(f"{run.name}:")))
            for run in self.runs
        )
        return html_table(repr(self)[1:-1], ("pattern", "call", "problems"), rows)


def pieces(held: Held) -> list[list[int]]:
    """Return the data of a rank as a list of tensors, into which a slot is an index."""
    tensors = [piece for piece in held or () if isinstance(piece, list)]
    values = [value for value in held or () if isinstance(value, int)]
    return tensors or ([values] if values else [])


def sources(run: PatternRun, rank: int, slot: int) -> list[Move]:
    """Return the moves into a slot of a rank, in the order of the source ranks."""
    return [move for move in run.moves if (move.to_rank, move.to_slot) == (rank, slot)]
