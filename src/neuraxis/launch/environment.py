"""The environment variables by which a rank knows its place.

The names are those of torchrun, so that scripts written for it (and torch itself) find what they expect.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from neuraxis.machine import usable_cores

__all__ = ["Placement", "free_port", "new_job_secret", "rank_environment"]


@dataclass(frozen=True)
class Placement:
    """Where the ranks of one attempt run and meet.

    `job` is the secret that tells the ranks of this job from those of another one; None leaves whatever the
    environment holds, since launchers of several hosts cannot agree on a value without talking.
    """

    n: int
    nodes: int
    node_rank: int
    master_addr: str
    master_port: int
    job: str | None
    attempt: int = 0

    @property
    def world_size(self) -> int:
        return self.n * self.nodes

    def rank(self, local_rank: int) -> int:
        return self.node_rank * self.n + local_rank


def rank_environment(place: Placement, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with the variables of one rank added."""
    environment = dict(base)
    environment.update(
        RANK=str(place.rank(local_rank)),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(place.world_size),
        LOCAL_WORLD_SIZE=str(place.n),
        NODE_RANK=str(place.node_rank),
        GROUP_RANK=str(place.node_rank),
        MASTER_ADDR=place.master_addr,
        MASTER_PORT=str(place.master_port),
        NEURAXIS_RESTART=str(place.attempt),
    )
    if place.job is not None:
        environment["NEURAXIS_JOB"] = place.job
    if place.n > 1:
        # Every rank would otherwise start one thread a core, and n of them would fight for each core.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // place.n)))
    return environment


def new_job_secret() -> str:
    return secrets.token_hex(16)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago. Another process can take it first; rank 0 then says so."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
