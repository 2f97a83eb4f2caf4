"""Environment variables of ranks: detect those that a launcher set, and set them for new ranks.

New ranks get the variables of torchrun, so scripts written for it, and torch itself, work unchanged.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument
from neuraxis.machine import usable_cores

__all__ = ["Launch", "Placement", "detect_launch", "free_port", "new_job_secret", "rank_environment"]


@dataclass(frozen=True)
class Launch:
    """Rank and world size of this process, as its launcher set them."""

    launcher: str  # "env", "openmpi", "pmi", "slurm" or "none"
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str | None
    master_port: int | None
    job: str  # secret that distinguishes this job from others on the same hosts


# By launcher, in order of precedence: variables for rank, world size, local rank, local world size, job.
# "env" is neuraxis launch and torchrun, "pmi" MPICH and other PMI launchers.
_VARIABLES = {
    "env": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    "pmi": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"),
}


def detect_launch(environ: Mapping[str, str] = os.environ) -> Launch:
    """Return the variables of the first launcher found; without a launcher, the world has one rank."""
    addr = environ.get("MASTER_ADDR")
    port = _integer(environ, "MASTER_PORT")
    for launcher, (rank_name, size_name, local_rank_name, local_size_name, job_name) in _VARIABLES.items():
        rank, size = _integer(environ, rank_name), _integer(environ, size_name)
        if rank is None and size is None:
            continue
        if rank is None or size is None:
            # Inside a Slurm allocation, but not started by srun: SLURM_NTASKS alone is meaningless.
            if launcher == "slurm":
                continue
            present, absent = (rank_name, size_name) if size is None else (size_name, rank_name)
            raise InvalidArgument(f"{present} is set and {absent} is not. Set both, or neither for a world of one")
        if not 0 <= rank < size:
            raise InvalidArgument(f"{rank_name}={rank} is not below {size_name}={size}")
        local_rank = _integer(environ, local_rank_name)
        local_size = _integer(environ, local_size_name)
        job = environ.get("NEURAXIS_JOB") or environ.get(job_name, "")
        return Launch(
            launcher,
            rank,
            size,
            rank if local_rank is None else local_rank,
            size if local_size is None else local_size,
            addr,
            port,
            job,
        )
    return Launch("none", 0, 1, 0, 1, addr, port, environ.get("NEURAXIS_JOB", ""))


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"the environment variable {name}={text!r} is not a whole number") from None


@dataclass(frozen=True)
class Placement:
    """Ranks of one attempt on this host, and the rendezvous address.

    `job` is the secret that distinguishes the ranks of this job from those of others. None keeps the value in the
    environment, because launchers on several hosts do not communicate and cannot agree on one.
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
    """Return `base` with the variables of one rank added."""
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
        # Otherwise every rank would start one thread per core and oversubscribe the machine n times.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // place.n)))
    return environment


def new_job_secret() -> str:
    return secrets.token_hex(16)


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago; if another process takes it first, rank 0 raises."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
