"""Rank and world size from the variables of each launcher."""

from __future__ import annotations

import pytest

from neuraxis.errors import InvalidArgument
from neuraxis.process.environment import detect_launch

LAUNCHERS = {
    "env": {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    "openmpi": {
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "pmi": {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
    "slurm": {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "2"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher(launcher: str) -> None:
    launch = detect_launch(LAUNCHERS[launcher])
    assert launch.launcher == launcher
    assert (launch.rank, launch.world_size, launch.local_rank, launch.local_world_size) == (2, 4, 0, 2)


def test_without_any_the_world_has_one_rank() -> None:
    launch = detect_launch({})
    assert (launch.launcher, launch.rank, launch.world_size) == ("none", 0, 1)


def test_env_comes_before_slurm() -> None:
    """neuraxis launch inside a Slurm job: what is nearer counts."""
    launch = detect_launch({**LAUNCHERS["slurm"], "RANK": "1", "WORLD_SIZE": "3"})
    assert (launch.launcher, launch.rank, launch.world_size) == ("env", 1, 3)


def test_a_slurm_allocation_without_srun_is_a_world_of_one() -> None:
    assert detect_launch({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}).world_size == 1


def test_half_of_the_variables_is_an_error_that_names_the_other_half() -> None:
    with pytest.raises(InvalidArgument, match="RANK is set and WORLD_SIZE is not"):
        detect_launch({"RANK": "0"})


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "four", "WORLD_SIZE": "4"}, "RANK='four' is not a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "x"}, "MASTER_PORT='x'"),
    ],
)
def test_values_that_make_no_sense(variables: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        detect_launch(variables)
