"""Who this process is, according to whoever started it.

Rank and world size come from the variables of neuraxis launch and torchrun, Open MPI, MPICH and other PMI
launchers, and Slurm, in this order; without any of them the world has one rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument

__all__ = ["Launch", "detect_launch"]


@dataclass(frozen=True)
class Launch:
    """What a launcher says: who started us, and which of how many we are."""

    launcher: str  # "env", "openmpi", "pmi", "slurm" or "none"
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str | None
    master_port: int | None
    job: str  # names this job among others on the same hosts


# launcher → the variables for rank, world size, local rank, local world size, job
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
    """Read the launcher's variables."""
    addr = environ.get("MASTER_ADDR")
    port = _integer(environ, "MASTER_PORT")
    for launcher, (rank_name, size_name, local_rank_name, local_size_name, job_name) in _VARIABLES.items():
        rank, size = _integer(environ, rank_name), _integer(environ, size_name)
        if rank is None and size is None:
            continue
        if rank is None or size is None:
            # Inside a Slurm allocation, but not started by srun: SLURM_NTASKS alone means nothing.
            if launcher == "slurm":
                continue
            present, absent = (rank_name, size_name) if size is None else (size_name, rank_name)
            raise InvalidArgument(f"{present} is set and {absent} is not: set both, or neither for a world of one")
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
