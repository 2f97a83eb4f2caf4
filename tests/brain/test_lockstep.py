"""A brain on ranks that exchange spikes and data by collectives: every rank equals a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuraxis.launch
from neuraxis.brain import Brain, default_brain
from neuraxis.errors import RankFailed
from tests.brain import lockstep_brains as ranks
from tests.brain.lockstep_brains import RUN_MS, learn, look, looking, show, tiny

TIMEOUT = 100


class Alone:
    """The results of one process."""

    def __init__(self, folder: Path) -> None:
        with Brain(default_brain(1)) as brain:
            self.learned = learn(brain)
        with Brain(looking(), record=True) as brain:
            self.looked = look(brain, folder)
            self.times, self.ids = brain.spikes("judge")
        with Brain(tiny().spec()) as brain:
            brain.run(5.0)
            self.tiny = brain.fingerprint()
        with Brain(tiny().spec()) as brain:
            self.shown = show(brain)
            assert sum(brain.spike_totals().values()) > 90  # in 15 windows


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))


@pytest.fixture(
    scope="module",
    params=[("shm", 3), ("gloo", 2)],
    ids=str,
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder that the ranks of a world saved to, and what each of them saw."""
    backend, size = request.param
    folder = tmp_path_factory.mktemp("state")
    return folder, neuraxis.launch.run(ranks.everything, size, backend, str(folder), timeout=TIMEOUT)


def test_the_default_brain_learns_the_same(alone: Alone, world: tuple[Path, list[Any]]):
    _, answers = world
    assert [(one["rank"], one["leads"]) for one in answers] == [(rank, rank == 0) for rank in range(len(answers))]
    for answer in answers:
        assert answer["workers"] == len(answers)
        assert answer["learned"] == alone.learned


def test_data_of_own_regions_travel_between_ranks(alone: Alone, world: tuple[Path, list[Any]]):
    folder, answers = world
    assert len(alone.times) > 10
    later = alone.times > RUN_MS / 2  # loading a state discards earlier recordings
    for answer in answers:
        found = answer["looked"]
        assert (found["first"], found["again"]) == (alone.looked, alone.looked)
        np.testing.assert_array_equal(found["spikes"][0], alone.times[later])
        np.testing.assert_array_equal(found["spikes"][1], alone.ids[later])
        assert len({found["homes"][name] for name in ("camera", "filter", "judge", "gaze", "memory")}) > 1
    # The state of the ranks continues in one process, with data in flight.
    with Brain(looking()) as brain:
        brain.restore(folder)
        brain.run(RUN_MS / 2)
        assert brain.fingerprint() == alone.looked


def test_a_region_that_raises_does_so_on_all_ranks(alone: Alone, world: tuple[Path, list[Any]]):
    first, *others = [one["failed"] for one in world[1]]
    assert all(other == first for other in others)
    assert first["text"].startswith("region 'lab' failed at 4 ms: ZeroDivisionError: a scripted accident")
    assert (first["shard"], first["step"], first["after"]) == ("lab", 40, alone.tiny)
    assert "python_regions.py" in first["traceback"]


def test_an_invalid_brain_is_refused_on_all_ranks(world: tuple[Path, list[Any]]):
    first, *others = [one["refused"] for one in world[1]]
    assert all(other == first for other in others)
    unmakable, differing, workers, restart = first
    assert "no lens" in unmakable
    assert differing == "network: rank 1 has a different network than rank 0. Give all ranks the same"
    assert workers == f"workers={len(others) + 2}: the executor given has {len(others) + 1}"
    assert "on_worker_loss='restart'" in restart


def test_a_placement_may_be_given_and_windows_may_be_full(alone: Alone, world: tuple[Path, list[Any]]):
    assert {one["placed"] for one in world[1]} == {alone.shown}


def test_one_rank_is_enough(alone: Alone, tmp_path: Path):
    (answer,) = neuraxis.launch.run(ranks.everything, 1, "shm", str(tmp_path), timeout=TIMEOUT)
    assert answer["learned"] == alone.learned
    assert answer["looked"]["again"] == alone.looked


def test_a_rank_on_another_host_sends_its_state(tmp_path: Path):
    with Brain(looking()) as brain:
        brain.run(RUN_MS)
        wanted = brain.fingerprint()
        first, second = neuraxis.launch.run(ranks.save_apart, 2, str(tmp_path / "state"), timeout=TIMEOUT)
        assert first == second
        assert first["fingerprint"] == wanted
        assert "nowhere" in first["error"]
        brain.restore(tmp_path / "state")
        brain.run(RUN_MS / 2)
        assert brain.fingerprint() == wanted


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_rank_that_dies_is_noticed_by_the_others(backend: str, tmp_path: Path):
    with pytest.raises(RankFailed, match=r"rank 1.*SIGKILL"):
        neuraxis.launch.run(ranks.die, 2, backend, str(tmp_path), timeout=60)
    assert float((tmp_path / "noticed").read_text()) < 10
