"""Which of how many this process is: from the arguments, else from the launcher, else one of an open world."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from neuraxis.comm.environment import detect_launch
from neuraxis.errors import InvalidArgument

__all__ = ["World", "find_world"]


@dataclass(frozen=True)
class World:
    """`rank` and `size` are -1 in an open world, whose nodes come and go. `job` names a launched one among others."""

    rank: int
    size: int
    job: str

    @property
    def is_open(self) -> bool:
        return self.size < 0


def find_world(rank: int, size: int, init_method: str | None) -> World:
    """What arguments and launcher say."""
    if size == 0 or size < -1 or rank < -1:
        raise InvalidArgument(f"world_size={size}, rank={rank}: give both, or -1 to detect them")
    launch = detect_launch()
    place = init_method or ""
    if launch.launcher != "none":
        rank = launch.rank if rank < 0 else rank
        size = launch.world_size if size < 0 else size
        place = f"{launch.job} {launch.master_addr} {launch.master_port} {place}"
    if (rank < 0) != (size < 0):
        raise InvalidArgument(f"world_size={size} and rank={rank}: give both, or start them with `neuraxis launch`")
    if size >= 0 and rank >= size:
        raise InvalidArgument(f"rank={rank} is not below world_size={size}")
    job = hashlib.sha256(place.encode()).hexdigest()[:12] if place else ""
    return World(rank, size, job)
