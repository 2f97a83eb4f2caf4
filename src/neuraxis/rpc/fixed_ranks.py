"""Who is here, where there are so many ranks from the beginning, and none comes back."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from neuraxis.comm.liveness import ProcessWatch
from neuraxis.errors import CalleeGone
from neuraxis.rpc.transport import Party

__all__ = ["LIFE", "FixedRanks"]

LIFE = 1  # of every rank: the only one
_LOOK_S = 2e-3  # how often processes are looked at, which takes longer than to look a rank up


class FixedRanks:
    """The ranks of a world, by name and number. `watch` sees the ends of those that are on this host."""

    def __init__(self, names: Sequence[str], rank: int, watch: ProcessWatch) -> None:
        self._names = list(names)
        self._ranks = {name: rank for rank, name in enumerate(self._names)}
        self._rank = rank
        self._watch = watch
        self._left: set[int] = set()  # ranks that have said good-bye, or are known to be lost
        self._ended: Collection[int] = ()  # those whose end was seen when they were last looked at
        self._looked = 0.0
        self.me = Party(self._names[rank], LIFE)

    def find(self, dst: int | str) -> Party:
        rank = self._ranks.get(dst) if isinstance(dst, str) else dst if 0 <= dst < len(self._names) else None
        if rank is None:
            raise CalleeGone(f"{dst!r} cannot be called: there are {', '.join(self._names)}", str(dst))
        if rank != self._rank and self._is_lost(rank):
            raise CalleeGone(f"{self._names[rank]!r} cannot be called: it has left, or died", self._names[rank])
        return Party(self._names[rank], LIFE)

    def names(self) -> list[str]:
        return sorted(name for rank, name in enumerate(self._names) if rank == self._rank or not self._is_lost(rank))

    def is_gone(self, party: Party) -> bool:
        rank = self._ranks.get(party.name)
        return rank is None or (rank != self._rank and self._is_lost(rank))

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        return [name for name in names if isinstance(name, str) and name not in self._ranks]

    def _is_lost(self, rank: int) -> bool:
        if rank in self._left:
            return True
        now = time.monotonic()
        if now > self._looked + _LOOK_S:
            self._ended, self._looked = self._watch.ended().keys(), now
        return rank in self._ended
