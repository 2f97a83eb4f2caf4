"""States that the tests of saved states write and read: one of each kind, small.

The folders below `tests/store/release-0.1` were written by `write_all` with the code of release 0.1, whose three kinds
of state had three layouts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from neuraxis.comm import DistributedContext
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.network import STDP, FixedInDegree, Network, Normal, Uniform
from neuraxis.network.models import lif_exp
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import RegionSetup
from neuraxis.simulation.mesh.region_state import RegionStates
from neuraxis.simulation.runner import ShardRunner
from neuraxis.training import Checkpointer
from tests.ranks.processes import run_ranks
from tests.simulation.by_turns import ByTurns
from tests.simulation.mesh.meshes import one_each

__all__ = [
    "NOTE",
    "Weights",
    "network",
    "region_runner",
    "region_states",
    "save_region",
    "save_simulation",
    "save_training",
    "write_all",
]

NOTE = {"brain": {"task": [1, 2.5, None]}, "π": "text"}


def network() -> Network:
    """Fifteen neurons with plastic synapses, spikes in flight and random input."""
    made = Network(dt_ms=0.1, seed=4)
    cells = made.population("cells", 15, lif_exp, v_mv=Normal(-58.0, 5.0))
    made.connect(
        cells, cells, FixedInDegree(k=5), 60.0, Uniform(0.2, 2.0), plasticity=STDP.additive(w_max=90.0), name="plastic"
    )
    made.poisson(cells, rate_hz=8000.0, weight=90.0)
    made.record(cells)
    return made


def save_simulation(folder: Path) -> str:
    """Save a simulation in two shards at step 200, and return its fingerprint 100 steps later."""
    with Simulation(network(), executor=ByTurns(2), progress=False) as simulation:
        simulation.step(200)
        simulation.save(folder, NOTE)
        simulation.step(100)
        return simulation.fingerprint()


class Weights:
    """A part of a training whose weights are equal on all ranks, and whose residual differs."""

    def __init__(self, rank: int | None = None) -> None:
        self.state: Any = None
        self.residual: Any = None
        if rank is not None:
            self.state = {"weights": torch.arange(6.0).reshape(2, 3).t(), "rates": [0.5, float("inf")], 3: (1, "a")}
            self.residual = {"residual": torch.full((4,), 10.0 + rank), "count": torch.tensor(rank)}

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state

    def step_state_dict(self) -> Any:
        return self.residual

    def load_step_state_dict(self, state: Any) -> None:
        self.residual = state


def save_training(folder: Path) -> list[float]:
    """Save the steps 3 and 7 by two ranks, and return the next random number of each."""
    return run_ranks(_save_rank, 2, str(folder), torch=True)


def _save_rank(folder: str) -> float:
    with DistributedContext("shm", timeout=30.0) as context:
        torch.manual_seed(context.rank)
        checkpointer = Checkpointer(folder, part=Weights(context.rank))
        checkpointer.save(3)
        checkpointer.save(7)
        return float(torch.rand(()))


def region_runner() -> ShardRunner:
    described = network()
    placement = one_each(described).placement(described)
    buffers = SpikeBuffers.private(described, placement)
    return ShardRunner(described, placement, 0, buffers, lambda synapses: None, (0, 0))


def region_states(folder: Path, digest: int = 77) -> RegionStates:
    described = network()
    setup = RegionSetup(
        "cells", one_each(described), described, (), "m", {}, checkpoint=str(folder), checkpoint_every=100
    )
    return RegionStates(setup, digest)


def save_region(folder: Path) -> int:
    """Save the states of a region at the steps 100 and 250, and return a hash of its state at step 400."""
    states, runner = region_states(folder), region_runner()
    for step in (100, 250):
        runner.advance(step)
        states.save(runner, timeline=3)
    runner.advance(400)
    return runner.state_hash()


def write_all(folder: Path) -> None:
    """Write one state of each kind, and what a run that continues from each must give."""
    expected = {
        "simulation": save_simulation(folder / "simulation"),
        "training": save_training(folder / "training"),
        "region": save_region(folder / "region"),
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
