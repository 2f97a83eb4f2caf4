"""The lockstep executor over each available backend: every rank equals a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuraxis.launch
from neuraxis.comm import DistributedContext
from neuraxis.simulation import LockstepExecutor, Simulation
from tests.simulation.networks import NETWORKS


def run_on_a_rank(backend: str, names: list[str], folder: str) -> list[dict[str, object]]:
    """Return the observations of a rank, of each network."""
    with DistributedContext(backend=backend) as context:
        return [observed(context, name, f"{folder}/{name}") for name in names]


def observed(context: DistributedContext, name: str, folder: str) -> dict[str, object]:
    """Run, save, run, restore the saved state, run again."""
    case = NETWORKS[name]
    network = case.make(1)
    half = case.steps // 2
    with Simulation(network, executor=LockstepExecutor(context.world)) as simulation:
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
    ("backend", "ranks", "names"),
    # "in float64" has parameters for each neuron, too.
    [("gloo", 2, ["every neuron learns"]), ("shm", 3, ["shortest delay 15", "continuous", "in float64"])],
)
def test_every_rank_gets_what_one_process_gets(backend: str, ranks: int, names: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    ran = neuraxis.launch.run(run_on_a_rank, ranks, backend, names, str(folder), timeout=100)
    for place, name in enumerate(names):
        compare(name, [answers[place] for answers in ran], folder / name)


def compare(name: str, answers: list[dict[str, Any]], folder: Path) -> None:
    """Compare what the ranks observed with one process."""
    case = NETWORKS[name]
    with Simulation(case.make(1)) as simulation:
        network = simulation.network
        wanted = simulation.step(case.steps).fingerprint
        states = {
            p.name: simulation.state(p, next(iter(p.model.states))) for p in network.populations if p.model.states
        }
        for answer in answers:
            assert answer["first"] == wanted
            assert answer["again"] == wanted
            for population, values in states.items():
                np.testing.assert_array_equal(answer["states"][population], values)
        # The state of the ranks continues in one process as well.
        simulation.restore(folder)
        assert simulation.step(case.steps - case.steps // 2).fingerprint == wanted
