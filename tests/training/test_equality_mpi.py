"""The same over MPI: two ranks by mpirun, once; what `test_equality` does over MPI in all sizes needs --slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crew import Crew
from tests.training.test_data_parallel import joining
from tests.training.test_equality import equality


@pytest.fixture(scope="module")
def two_over_mpi() -> Iterator[Crew]:
    crew = Crew("mpi", 2)
    crew.start()
    yield crew
    crew.close()


def test_two_ranks_over_mpi(two_over_mpi: Crew) -> None:
    for optimizer in ("sgd", "adamw"):
        two_over_mpi.check(equality, optimizer)
    two_over_mpi.check(joining)
