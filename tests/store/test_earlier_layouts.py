"""States that were saved before all kinds had one layout can still be restored, and are replaced by a new one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from neuraxis.comm import DistributedContext
from neuraxis.simulation import Simulation
from neuraxis.training import Checkpointer
from tests.ranks.processes import run_ranks
from tests.simulation.by_turns import ByTurns
from tests.store import states
from tests.store.states import Weights

EARLIER = Path(__file__).parent / "earlier"
EXPECTED = json.loads((EARLIER / "expected.json").read_text())


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER, tmp_path / "earlier"))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_simulation_continues(earlier: Path, shards: int) -> None:
    folder = earlier / "simulation"
    with Simulation(states.network(), executor=ByTurns(shards), progress=False) as simulation:
        assert simulation.note(folder) == states.NOTE
        assert simulation.restore(folder) == states.NOTE
        assert simulation.steps == 200
        simulation.step(100)
        assert simulation.fingerprint() == EXPECTED["simulation"]
        simulation.save(folder)
        assert len(files(folder)) == 1 + shards
        assert simulation.restore(folder) == {}
        assert simulation.steps == 300


def test_a_training_continues_on_as_many_ranks(earlier: Path) -> None:
    found = run_ranks(_restore_rank, 2, str(earlier / "training"), torch=True)
    assert [one["drawn"] for one in found] == EXPECTED["training"]
    assert [one["residual"] for one in found] == [[10.0] * 4, [11.0] * 4]
    assert [one["count"] for one in found] == [0, 1]


def test_a_training_continues_on_another_number_of_ranks(earlier: Path) -> None:
    found = _restored(earlier / "training")
    assert (found["drawn"], found["residual"], found["count"]) == (EXPECTED["training"][0], [10.5] * 4, 0)
    checkpointer = Checkpointer(earlier / "training", keep=2, part=Weights(0))
    assert checkpointer.steps() == [3, 7]
    checkpointer.save(7)  # in place of the one that is there
    assert checkpointer.steps() == [3, 7]
    assert len(files(earlier / "training" / "step-00000007")) == 2
    checkpointer.save(8)
    assert checkpointer.steps() == [7, 8]
    assert {path.name for path in (earlier / "training").iterdir()} == {"step-00000007", "step-00000008"}


def _restore_rank(folder: str) -> dict[str, Any]:
    with DistributedContext("shm", timeout=30.0):
        return _restored(Path(folder))


def _restored(folder: Path) -> dict[str, Any]:
    part, wanted = Weights(), Weights(0).state
    assert Checkpointer(folder, part=part).restore() == 7
    assert torch.equal(part.state["weights"], wanted["weights"])
    assert part.state["weights"].stride() == wanted["weights"].stride()
    assert (part.state["rates"], part.state[3]) == (wanted["rates"], wanted[3])
    return {
        "drawn": float(torch.rand(())),
        "residual": part.residual["residual"].tolist(),
        "count": part.residual["count"].item(),
    }


def test_a_region_continues(earlier: Path) -> None:
    kept, runner = states.region_states(earlier / "region"), states.region_runner()
    assert kept.restore(runner) == (250, 3)
    runner.shard.publish()
    runner.advance(400)
    assert runner.state_hash() == EXPECTED["region"]
    kept.save(runner, timeline=3)
    again = states.region_runner()
    assert states.region_states(earlier / "region").restore(again) == (400, 3)
    shutil.rmtree(next(path for path in (earlier / "region" / "cells").iterdir() if path.name.endswith("400")))
    assert states.region_states(earlier / "region").restore(states.region_runner()) == (250, 3)
