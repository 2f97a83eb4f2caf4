"""One network, many executors: bit-identical spikes, states, samples, weights and fingerprint.

The reference is a single uninterrupted run of the SequentialExecutor. A new executor joins by a line in `EXECUTORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.engine.cpu import plastic_tables, shard
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.network.models.catalogue import built_in_models
from neuraxis.simulation import Executor, ParallelExecutor, SequentialExecutor, Simulation
from tests.simulation.by_turns import ByTurns
from tests.simulation.networks import DRIVES, NETWORKS, RATE_WEIGHTS, SOURCES, driven

# "mixed models" has weights of all sizes in one projection, some of them too small for its scale.
pytestmark = pytest.mark.filterwarnings("ignore:fixed-point weights:neuraxis.errors.RoundingWarning")

SEED = 5

EXECUTORS: dict[str, Callable[[], Executor]] = {
    "sequential": SequentialExecutor,
    **{f"parallel {n}": lambda n=n: ParallelExecutor(n) for n in (5, 3, 2, 1)},  # type: ignore[misc]
    **{f"by turns {n}": lambda n=n: ByTurns(n, seed=n) for n in (7,)},  # type: ignore[misc]
}

# Starting worker processes is what takes the time here, so each network has some of their numbers, and all have all.
PAIRS = [
    pytest.param((network, executor), id=f"{network}, {executor}")
    for network, case in NETWORKS.items()
    for executor in EXECUTORS
    if not executor.startswith("parallel") or int(executor.split()[1]) in case.parallel
]


@dataclass
class Outcome:
    """All that can be seen of a simulation, for comparison."""

    fingerprint: str
    spikes: dict[str, tuple[np.ndarray, np.ndarray]]
    states: dict[tuple[str, str], np.ndarray]
    samples: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
    synapses: dict[str, dict[str, np.ndarray]]
    levels: dict[str, float]
    totals: tuple[Any, ...]


def look(simulation: Simulation) -> Outcome:
    network = simulation.network
    counters = simulation._executor.counters()
    return Outcome(
        fingerprint=simulation.fingerprint(),
        spikes={p.population.name: simulation.spikes(p.population) for p in network.probes if p.what == "spikes"},
        states={(p.name, state): simulation.state(p, state) for p in network.populations for state in p.model.states},
        samples={
            (p.population.name, p.what): simulation.samples(p.population, p.what)
            for p in network.probes
            if p.what != "spikes"
        },
        synapses={p.name: simulation.synapses(p) for p in (*network.projections, *network.rate_projections)},
        levels={m.name: simulation.level(m.name) for m in network.neuromodulators},
        totals=(simulation.steps, counters.step, counters.spike_counts.tolist(), counters.events),
    )


def assert_same(found: Outcome, expected: Outcome, since_ms: float = 0.0) -> None:
    """Equal in every bit; of what was recorded, that after `since_ms`."""
    assert found.totals == expected.totals
    assert found.levels == expected.levels
    assert found.spikes.keys() == expected.spikes.keys()
    for name, (times, ids) in expected.spikes.items():
        later = times > since_ms
        assert np.array_equal(found.spikes[name][0], times[later]), f"times of the spikes of {name}"
        assert np.array_equal(found.spikes[name][1], ids[later]), f"ids of the spikes of {name}"
    for key, (times, values) in expected.samples.items():
        later = times > since_ms
        assert np.array_equal(found.samples[key][0], times[later]), f"times of the samples of {key}"
        assert np.array_equal(found.samples[key][1], values[later]), f"samples of {key}"
        assert found.samples[key][1].dtype == values.dtype
    for key, state in expected.states.items():
        assert np.array_equal(found.states[key], state), f"state {key}"
        assert found.states[key].dtype == state.dtype
    for name, columns in expected.synapses.items():
        for column, array in columns.items():
            assert np.array_equal(found.synapses[name][column], array), f"{column} of {name}"
    assert found.fingerprint == expected.fingerprint


@cache
def reference(network: str, seed: int = SEED) -> Outcome:
    case = NETWORKS[network]
    with Simulation(case.make(seed)) as simulation:
        simulation.step(case.steps)
        return look(simulation)


@cache
def saved_by_reference(network: str, folder: Path) -> tuple[Path, Path]:
    """States that the SequentialExecutor saved in the middle of the run, and at its end."""
    case = NETWORKS[network]
    middle, end = folder / network / "middle", folder / network / "end"
    with Simulation(case.make(SEED)) as simulation:
        simulation.step(middle_of(network))
        simulation.save(middle)
        simulation.step(case.steps - simulation.steps)
        simulation.save(end)
    return middle, end


def middle_of(network: str) -> int:
    """An odd step with spikes in flight."""
    return NETWORKS[network].steps // 2 + 37


@pytest.fixture(scope="module")
def states_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[str, Simulation]]:
    """The name of a network, and a simulation of it; alive for all tests of the pair."""
    network, executor = request.param
    with Simulation(NETWORKS[network].make(SEED), executor=EXECUTORS[executor]()) as simulation:
        yield network, simulation


# These run in this order on one simulation: each continues from the state of the previous one, or restores a state.


def test_a_run_in_one_piece(pair: tuple[str, Simulation], states_folder: Path) -> None:
    network, simulation = pair
    simulation.save(start_folder(states_folder, network, simulation))
    simulation.step(NETWORKS[network].steps)
    assert_same(look(simulation), reference(network))


def test_back_to_the_start_and_in_uneven_pieces(pair: tuple[str, Simulation], states_folder: Path) -> None:
    network, simulation = pair
    simulation.restore(start_folder(states_folder, network, simulation))
    assert simulation.steps == 0
    steps = NETWORKS[network].steps
    for piece in (1, 1, 1, 0, 14, 17, 255, 257):
        simulation.step(piece)
        simulation.fingerprint()  # looking changes nothing
    simulation.run((steps - 10) * simulation.network.dt_ms - simulation.time_ms)
    for _ in range(10):
        simulation.step()
    assert_same(look(simulation), reference(network))


def test_a_state_of_another_executor_over_one_that_ran_further(
    pair: tuple[str, Simulation], states_folder: Path
) -> None:
    network, simulation = pair
    middle, _ = saved_by_reference(network, states_folder)
    simulation.restore(LAST_SAVED.get(network, middle))
    since = simulation.steps
    assert since in (middle_of(network), middle_of(network) + 53)
    simulation.step(NETWORKS[network].steps - since)
    assert_same(look(simulation), reference(network), since_ms=since * simulation.network.dt_ms)


def test_a_saved_state_continues_in_the_reference(pair: tuple[str, Simulation], states_folder: Path) -> None:
    network, simulation = pair
    middle, end = saved_by_reference(network, states_folder)
    simulation.restore(middle)
    simulation.step(53)
    folder = states_folder / f"{network}, {type(simulation._executor).__name__} {simulation.workers}"
    simulation.save(folder)
    with Simulation(NETWORKS[network].make(SEED)) as other:
        other.restore(folder)
        other.step(NETWORKS[network].steps - other.steps)
        assert_same(look(other), reference(network), since_ms=(middle_of(network) + 53) * other.network.dt_ms)
    simulation.restore(end)
    assert simulation.fingerprint() == reference(network).fingerprint
    LAST_SAVED[network] = folder


# By network: what the executor before this one saved, so that states travel between all of them (5 workers to 2, ...).
LAST_SAVED: dict[str, Path] = {}


def start_folder(folder: Path, network: str, simulation: Simulation) -> Path:
    return folder / f"start of {network}, {type(simulation._executor).__name__} {simulation.workers}"


# --- from any number of shards to any other ---


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("chain", [(1, 3), (5, 2, 1)], ids=str)
def test_states_travel_between_numbers_of_shards(network: str, chain: tuple[int, ...], tmp_path: Path) -> None:
    case = NETWORKS[network]
    since = 0
    for place, workers in enumerate(chain):
        with Simulation(case.make(SEED), executor=ByTurns(workers, seed=place)) as simulation:
            if place:
                simulation.restore(tmp_path)
            since = simulation.steps
            last = place == len(chain) - 1
            simulation.step(case.steps - since if last else case.steps // len(chain) + 1)
            simulation.save(tmp_path)
            if last:
                assert_same(look(simulation), reference(network), since_ms=since * simulation.network.dt_ms)


@settings(max_examples=8)
@given(st.sampled_from(sorted(NETWORKS)), st.integers(1, 9), st.integers(0, 2**32), st.data())
def test_however_the_network_is_cut_and_in_whatever_order_the_shards_run(
    network: str, workers: int, seed: int, data: st.DataObject
) -> None:
    steps = NETWORKS[network].steps
    stops = sorted(data.draw(st.lists(st.integers(0, steps), max_size=4), label="stops"))
    with Simulation(NETWORKS[network].make(SEED), executor=ByTurns(workers, seed)) as simulation:
        for stop in [*stops, steps]:
            simulation.step(stop - simulation.steps)
        assert_same(look(simulation), reference(network))


@pytest.mark.parametrize("executor", ["sequential", "by turns 7"])
@pytest.mark.parametrize("network", ["mixed models", "every neuron learns"])
def test_small_recording_buffers(network: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard stops whenever a buffer is full, in whatever step that is."""
    expected = reference(network)
    monkeypatch.setattr(shard, "RECORD_ROOM", 3)
    monkeypatch.setattr(shard, "SAMPLE_ROOM", 5)
    with Simulation(NETWORKS[network].make(SEED), executor=EXECUTORS[executor]()) as simulation:
        simulation.step(NETWORKS[network].steps)
        assert_same(look(simulation), expected)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("network", ["every neuron learns", "reward and fatigue"])
def test_little_room_for_spikes_to_learn_from(
    network: str, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Histories of spikes begin with room for one and grow, differently in each shard; also in a saved state."""
    expected = reference(network)
    monkeypatch.setattr(plastic_tables, "FIRST_CAPACITY", 1)
    steps = NETWORKS[network].steps
    with Simulation(NETWORKS[network].make(SEED), executor=ByTurns(workers)) as simulation:
        simulation.step(steps // 3)
        simulation.save(tmp_path)
        simulation.step(steps - simulation.steps)
        assert_same(look(simulation), expected)
    with Simulation(NETWORKS[network].make(SEED), executor=ByTurns(3)) as simulation:
        simulation.restore(tmp_path)
        simulation.step(steps - simulation.steps)
        assert_same(look(simulation), expected, since_ms=steps // 3 * simulation.network.dt_ms)


# --- a fingerprint tells what differs ---


@pytest.mark.parametrize("network", NETWORKS)
def test_another_seed_gives_another_fingerprint(network: str) -> None:
    assert reference(network, SEED + 1).fingerprint != reference(network).fingerprint


@pytest.mark.parametrize("network", NETWORKS)
def test_every_population_of_the_network_is_active(network: str) -> None:
    """Otherwise the comparisons above would compare little."""
    assert all(len(times) > 3 for times, _ in reference(network).spikes.values())


def test_every_built_in_model_is_in_a_network() -> None:
    """A new model joins by a line in `DRIVES`, `RATE_WEIGHTS` or `SOURCES`."""
    assert {*DRIVES, *RATE_WEIGHTS, *SOURCES} == set(built_in_models())
    for name in ("every built-in model", "every built-in model in float64"):
        present = {population.model.name for population in NETWORKS[name].make(SEED).populations}
        assert present == {model.name for model in built_in_models().values()}


def fingerprint_of(change: Callable[[Any], None], steps: int = 200) -> str:
    network = driven(n=40)
    change(network)
    with Simulation(network) as simulation:
        simulation.step(steps)
        return simulation.fingerprint()


def test_one_more_spike_gives_another_fingerprint() -> None:
    def source_with(times_ms: list[float]) -> Callable[[Any], None]:
        def change(network: Any) -> None:
            network.population("source", 3, spike_source)  # without connections: only its spikes differ
            network.spikes("source", times_ms, [1] * len(times_ms))

        return change

    found = [fingerprint_of(source_with(times)) for times in ([5.0], [5.1], [5.0, 7.0], [])]
    assert len(set(found)) == 4
    assert fingerprint_of(source_with([5.0])) == found[0]
    assert fingerprint_of(source_with([5.0, 50.0])) == found[0]  # that is after the end


def test_a_state_that_differs_gives_another_fingerprint() -> None:
    def start_at(v_mv: float) -> Callable[[Any], None]:
        def change(network: Any) -> None:
            network.population("silent", 2, lif_delta, v_mv=[-70.0, v_mv])

        return change

    assert fingerprint_of(start_at(-69.0), 1) != fingerprint_of(start_at(-69.00001), 1)


def test_probes_do_not_change_the_fingerprint() -> None:
    def record(network: Any) -> None:
        network.record("cells", "refractory")

    assert fingerprint_of(record) == fingerprint_of(lambda network: None)
