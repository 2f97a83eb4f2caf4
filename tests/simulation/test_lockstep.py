"""The lockstep executor over each available backend: every rank equals a single process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import neuraxis.launch
from neuraxis.comm import DistributedContext
from neuraxis.simulation import LockstepExecutor, Simulation
from tests.simulation.networks import NETWORKS


def run_on_a_rank(backend: str, name: str, folder: str) -> dict[str, object]:
    """Return the observations of a rank: run, save, run, restore the saved state, run again."""
    case = NETWORKS[name]
    network = case.make(1)
    half = case.steps // 2
    with (
        DistributedContext(backend=backend) as context,
        Simulation(network, executor=LockstepExecutor(context.world)) as simulation,
    ):
        simulation.step(half)
        simulation.save(folder)
        first = simulation.step(case.steps - half).fingerprint
        simulation.restore(folder)
        again = simulation.step(case.steps - half).fingerprint
        states = {
            p.name: simulation.state(p, next(iter(p.model.states))) for p in network.populations if p.model.states
        }
        return {"rank": context.rank, "first": first, "again": again, "states": states}


@pytest.mark.parametrize(
    ("backend", "ranks", "name"), [("gloo", 2, "every neuron learns"), ("shm", 3, "shortest delay 15")]
)
def test_every_rank_gets_what_one_process_gets(backend: str, ranks: int, name: str, tmp_path: Path) -> None:
    case = NETWORKS[name]
    network = case.make(1)
    with Simulation(network) as simulation:
        wanted = simulation.step(case.steps).fingerprint
        states = {
            p.name: simulation.state(p, next(iter(p.model.states))) for p in network.populations if p.model.states
        }
        answers = neuraxis.launch.run(run_on_a_rank, ranks, backend, name, str(tmp_path / "state"), timeout=100)
        for answer in answers:
            assert answer["first"] == wanted
            assert answer["again"] == wanted
            for population, values in states.items():
                np.testing.assert_array_equal(answer["states"][population], values)
        # The state of the ranks continues in one process as well.
        simulation.restore(tmp_path / "state")
        assert simulation.step(case.steps - case.steps // 2).fingerprint == wanted
