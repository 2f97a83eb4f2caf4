"""Interventions in a running simulation: given spikes and states, silenced populations, frozen learning.

All of it happens between two steps, and gives the same bits however the network is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.engine.cpu import plastic_tables
from neuraxis.errors import InvalidArgument, InvalidType, RoundingWarning, SimulationClosed
from neuraxis.network import (
    STDP,
    FixedInDegree,
    HomeostaticScaling,
    Network,
    RewardSTDP,
    TsodyksMarkram,
    Uniform,
)
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Executor, ParallelExecutor, SequentialExecutor, Simulation
from tests.engine.running import adder
from tests.simulation.by_turns import ByTurns
from tests.simulation.networks import driven
from tests.simulation.test_conformance import Outcome, assert_same, look

Action = Callable[[Simulation], object]

LEARNING = ["bounded", "power", "reward", "scaled"]


def acted_upon() -> Network:
    """Every form of learning, every kind of input, more than one block of neurons."""
    network = Network(dt_ms=0.1, seed=4)
    network.neuromodulator("dopamine", tau_ms=40.0)
    a = network.population("a", 330, lif_delta, v_mv=Uniform(-70.0, -55.1))
    b = network.population("b", 90, lif_delta, v_mv=Uniform(-70.0, -55.1))
    scripted = network.population("scripted", 300, spike_source)
    short = Uniform(0.1, 3.0)
    reward = RewardSTDP(w_max=2.0, a_plus=0.05, a_minus=0.03, tau_eligibility_ms=20.0, every_ms=1.3)
    for name, pre, post, rule in (
        ("bounded", a, b, STDP(w_max=2.0, learning_rate=0.05, mu_plus=0.3, mu_minus=0.6)),
        ("power", b, a, STDP.power_law(w_max=2.0, w0=0.5)),
        ("reward", a, a, reward),
        ("scaled", scripted, a, [STDP.additive(w_max=2.0), HomeostaticScaling(20.0, w_max=4.0, every_ms=3.0)]),
    ):
        network.connect(pre, post, FixedInDegree(k=8), Uniform(0.1, 1.5), short, plasticity=rule, name=name)
    network.connect(scripted, b, FixedInDegree(k=5), 2.0, short, plasticity=TsodyksMarkram())
    network.connect(b, a, FixedInDegree(k=5), -0.5, 1.0)
    network.current(a, np.linspace(350.0, 700.0, 330), stop_ms=45.0)
    network.current(b, np.linspace(300.0, 500.0, 90), start_ms=20.0, stop_ms=60.0)
    network.current(b, 150.0, start_ms=30.0)
    network.poisson(b, rate_hz=500.0, weight=1.5)
    network.spikes(scripted, np.linspace(0.2, 70.0, 900).round(1), np.arange(900) % 300)
    for population in network.populations:
        network.record(population)
    network.record(b, "v_mv", every_ms=0.9)
    network.modulate(b, "dopamine", amount=0.01)
    return network


STEPS = 700
FAR_MS = 68.0

SCRIPT: list[tuple[int, Action]] = [
    (0, lambda s: s.inject("scripted", [0.1, 0.1, 5.0, 5.0], [299, 0, 7, 7])),
    (0, lambda s: s.inject("a", (FAR_MS + 0.1 * np.arange(40) / 10).round(1), np.arange(40) * 8)),
    (33, lambda s: s.set_state("a", "v_mv", np.linspace(-70.0, -56.0, 330))),
    (60, lambda s: s.freeze("bounded", "reward")),
    (101, lambda s: s.silence("b", "scripted")),
    (101, lambda s: s.inject("scripted", [11.0, 15.0, 29.0, 33.3], [0, 299, 150, 151])),  # the first two while silent
    (150, lambda s: s.silence("b")),
    (160, lambda s: s.release("dopamine", 1.5)),
    (222, lambda s: s.freeze("scaled", "power")),
    (250, lambda s: s.inject("b", [26.0, 41.0], [3, 89])),
    (333, lambda s: s.silence()),
    (401, lambda s: s.freeze(*LEARNING)),
    (402, lambda s: s.silence("scripted", "a")),
    (455, lambda s: s.set_state("b", "v_mv", -69)),
    (480, lambda s: s.silence()),
    (530, lambda s: s.freeze()),
]


def act(simulation: Simulation, until: int = STEPS) -> None:
    """Apply the script from the current step to `until`, which is excluded."""
    for step, action in SCRIPT:
        if simulation.steps <= step < until:
            simulation.advance(step - simulation.steps)
            action(simulation)
    simulation.advance(until - simulation.steps)


@cache
def reference() -> Outcome:
    with Simulation(acted_upon()) as simulation:
        act(simulation)
        return look(simulation)


def test_the_script_does_something() -> None:
    with Simulation(acted_upon()) as simulation:
        simulation.advance(STEPS)
        untouched = look(simulation)
    assert untouched.fingerprint != reference().fingerprint
    assert all(len(times) > 100 for times, _ in reference().spikes.values())


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "sequential": SequentialExecutor,
    **{f"by turns {n}": lambda n=n: ByTurns(n, seed=n) for n in (1, 2, 3, 4, 5, 6, 7)},  # type: ignore[misc]
    "parallel 2": lambda: ParallelExecutor(2),
}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_interventions_give_the_same_result_for_any_placement(executor: str) -> None:
    with Simulation(acted_upon(), executor=EXECUTORS[executor]()) as simulation:
        act(simulation)
        assert_same(look(simulation), reference())
        assert_counts(simulation)
        status = simulation.status()
        assert [one.worker for one in status] == list(range(simulation.workers))
        assert {one.step for one in status} == {STEPS}
        assert sum(one.spikes_out for one in status) == sum(len(times) for times, _ in reference().spikes.values())
        assert all(0 <= share <= 1 for one in status for share in one.shares.values())
        assert all(one.memory_bytes > 0 for one in status)
        if simulation.workers == 1:
            assert status[0].spikes_in == 0


def assert_counts(simulation: Simulation) -> None:
    """The spikes of each neuron are counted since step 0, recorded here or not."""
    for population in simulation.network.populations:
        counts = simulation.spike_counts(population)
        ids = reference().spikes[population.name][1]
        assert np.array_equal(counts, np.bincount(ids, minlength=population.n))
        assert counts.dtype == np.int64


@settings(max_examples=4)
@given(st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=2, unique=True), st.data())
def test_a_state_saved_at_any_step_continues_on_other_shards(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], data: Any
) -> None:
    """Pending spikes, silenced populations and frozen projections are part of the state."""
    folder = tmp_path_factory.mktemp("state")
    since = 0
    for stop in [*sorted(stops), STEPS]:
        workers = data.draw(st.integers(1, 7), label="workers")
        with Simulation(acted_upon(), executor=ByTurns(workers, seed=stop)) as simulation:
            if since:
                simulation.restore(folder)
            act(simulation, stop)
            simulation.save(folder)
            if stop == STEPS:
                assert_same(look(simulation), reference(), since_ms=since * 0.1)
                assert_counts(simulation)
        since = stop


@pytest.mark.parametrize("workers", [1, 4])
def test_it_does_not_matter_when_histories_were_flushed(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights, and a full history, flush it; results do not depend on the time."""
    expected = reference()
    monkeypatch.setattr(plastic_tables, "FIRST_CAPACITY", 1)
    with Simulation(acted_upon(), executor=ByTurns(workers)) as simulation:
        for stop in (55, 60, 61, 100, 223, 260, 400, 403, 531, 560, STEPS):
            act(simulation, stop)
            simulation.weights("bounded")
        assert_same(look(simulation), expected)


def test_a_restore_undoes_interventions(tmp_path: Path) -> None:
    """Pending spikes, silencing and frozen weights of one run do not leak into the next."""
    with Simulation(acted_upon(), executor=ByTurns(3)) as simulation:
        simulation.save(tmp_path)
        simulation.advance(50)
        simulation.inject("a", np.full(330, 30.0), np.arange(330))
        simulation.silence("b", "a")
        simulation.freeze(*LEARNING)
        simulation.advance(50)
        simulation.restore(tmp_path)
        act(simulation)
        assert_same(look(simulation), reference())


@pytest.mark.parametrize("workers", [1, 5])
def test_frozen_weights_keep_every_bit_and_all_the_others_learn(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plastic_tables, "FIRST_CAPACITY", 1)  # histories are flushed and grow in the middle of it
    with Simulation(acted_upon(), executor=ByTurns(workers)) as simulation:
        simulation.release("dopamine", 1.0)
        simulation.advance(120)
        for frozen in (LEARNING[:2], LEARNING[2:], LEARNING):
            simulation.freeze(*frozen)
            before = {name: simulation.weights(name).copy() for name in LEARNING}
            simulation.advance(100)
            for name in LEARNING:
                after = simulation.weights(name)
                assert (after.tobytes() == before[name].tobytes()) == (name in frozen), name


def test_a_frozen_projection_transmits_and_one_that_is_freed_learns_from_then_on() -> None:
    """A spike of the target counts if it reaches the synapse while nothing is frozen."""

    def weight_after(*frozen_ms: float) -> float:
        network = Network(dt_ms=0.1)
        pre, post = network.population("pre", 1, spike_source), network.population("post", 1, lif_delta)
        rule = STDP.additive(w_max=10.0, learning_rate=0.1)
        network.connect(pre, post, FixedInDegree(1), 2.0, 1.0, plasticity=rule, name="learns")
        network.spikes(pre, [5.0, 30.0, 40.0], [0, 0, 0])
        network.spikes(post, [12.0, 32.0], [0, 0])
        with Simulation(network) as simulation:
            for i, until in enumerate(frozen_ms):
                simulation.run(until - simulation.time_ms)
                simulation.freeze(*["learns"] * (1 - i % 2))
            simulation.run(60.0 - simulation.time_ms)
            return float(simulation.weights("learns")[0])

    learned = weight_after()
    assert learned != 2.0
    assert weight_after(0.0) == 2.0
    assert weight_after(50.0) == learned
    only_first, only_second = weight_after(20.0), weight_after(0.0, 20.0)
    assert 2.0 not in (only_first, only_second)
    assert len({learned, only_first, only_second}) == 3


# --- spikes ---


def listening() -> Network:
    network = Network(dt_ms=0.1)
    source = network.population("source", 300, spike_source)
    cells = network.population("cells", 3, adder)
    network.connect(source, cells, FixedInDegree(300, multapses=False), 1.0, 0.2)
    network.record(source)
    network.record(cells, "arrived")
    return network


def test_injected_spikes_occur_once_in_their_steps() -> None:
    network = listening()
    network.spikes("source", [2.0], [5])
    with Simulation(network, executor=ByTurns(2)) as simulation:
        simulation.advance(10)
        with pytest.warns(RoundingWarning, match=r"times_ms: 1 of 4 times .*times_ms\[3\]=2.04, for which 2 ms"):
            simulation.inject("source", [1.1, 2.0, 2.0, 2.04], [299, 5, 6, 6])  # twice is once
        simulation.inject("source", [], [])
        simulation.advance(5)
        simulation.inject("source", [1.6], [0])
        simulation.advance(25)
        times, ids = simulation.spikes("source")
        assert list(zip(np.rint(times * 10).astype(int).tolist(), ids.tolist(), strict=True)) == [
            (11, 299), (16, 0), (20, 5), (20, 6),
        ]  # fmt: skip
        arrived = simulation.samples("cells", "arrived")[1]
        steps = {int(step) + 1: float(arrived[step, 0]) for step in np.flatnonzero(arrived[:, 0])}
        assert steps == {13: 1.0, 18: 1.0, 22: 2.0}


def test_an_injected_spike_of_a_silenced_neuron_is_dropped() -> None:
    with Simulation(listening(), executor=ByTurns(2)) as simulation:
        simulation.inject("source", [0.3, 0.5, 0.7, 0.9], [0, 1, 299, 298])
        simulation.advance(3)
        simulation.silence("source")
        simulation.inject("source", [0.6, 1.2], [2, 3])
        simulation.advance(4)
        simulation.silence()
        simulation.advance(8)
        _, ids = simulation.spikes("source")
        assert ids.tolist() == [0, 298, 3]
        assert simulation.spike_counts("source")[[0, 1, 2, 3, 298, 299]].tolist() == [1, 0, 0, 1, 1, 0]
        # Spikes in flight when the population was silenced still arrive.
        assert np.flatnonzero(simulation.samples("cells", "arrived")[1][:, 0]).tolist() == [4, 10, 13]


def test_a_silenced_population_keeps_its_state_and_drops_input() -> None:
    with Simulation(listening()) as simulation:
        simulation.inject("source", [0.3, 0.9, 2.0], [0, 1, 2])
        simulation.silence("cells")
        simulation.advance(15)
        assert simulation.state("cells", "total").tolist() == [0.0] * 3
        simulation.silence()
        simulation.advance(15)
        assert simulation.state("cells", "total").tolist() == [1.0] * 3


@pytest.mark.parametrize(("begin", "end"), [(20, 80), (20, 150), (80, 150)], ids=str)
def test_a_current_starts_and_ends_while_its_target_is_silenced(begin: int, end: int, tmp_path: Path) -> None:
    """A current that differs between neurons flows from 5 to 10 ms; a restored run takes it as it is now."""

    def make() -> Network:
        network = Network(dt_ms=0.1)
        cells = network.population("cells", 5, lif_delta)
        network.current(cells, np.linspace(900.0, 1500.0, 5), start_ms=5.0, stop_ms=10.0)
        return network

    with Simulation(make()) as simulation:
        simulation.advance(begin)
        simulation.silence("cells")
        simulation.advance(end - begin)
        simulation.save(tmp_path)
        before = simulation.state("cells", "v_mv")
        simulation.silence()
        simulation.advance(10)
        after = simulation.state("cells", "v_mv")
        assert (after > before).all() == (end < 100)
    with Simulation(make()) as simulation:
        simulation.restore(tmp_path)
        simulation.silence()
        simulation.advance(10)
        assert np.array_equal(simulation.state("cells", "v_mv"), after)


def test_states_are_set_for_all_or_for_each() -> None:
    with Simulation(driven(n=40), executor=ByTurns(3)) as simulation:
        simulation.set_state("cells", "v_mv", -61)
        assert (simulation.state("cells", "v_mv") == -61.0).all()
        each = np.linspace(-70.0, -60.0, 40)
        simulation.set_state("cells", "v_mv", each)
        assert np.array_equal(simulation.state("cells", "v_mv"), each.astype(np.float32))
        simulation.set_state("cells", "refractory", np.arange(40, dtype=np.uint8))
        assert simulation.state("cells", "refractory").tolist() == list(range(40))
        simulation.set_state(simulation.network["cells"], "v_mv", each.tolist())
        simulation.advance(3)
        assert np.array_equal(simulation.state("cells", "v_mv")[5:], each[5:].astype(np.float32))  # refractory
        assert simulation.state("cells", "refractory")[5:].tolist() == list(range(2, 37))


# --- what cannot be ---


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.inject("cells", [1.0], [0]), InvalidArgument, r"times_ms: 1 ms is not after now \(1 ms\)"),
        (lambda s: s.inject("cells", [9.0, 1.04], [0, 1]), InvalidArgument, r"not after now"),
        (lambda s: s.inject("cells", [-1.0], [0]), InvalidArgument, r"times_ms"),
        (lambda s: s.inject("cells", [math.nan], [0]), InvalidArgument, r"times_ms"),
        (lambda s: s.inject("cells", [1e12], [0]), InvalidArgument, r"beyond the last step"),
        (lambda s: s.inject("cells", [9.0], [40]), InvalidArgument, r"ids\[0\]=40"),
        (lambda s: s.inject("cells", [9.0], [-1]), InvalidArgument, r"ids\[0\]=-1"),
        (lambda s: s.inject("cells", [9.0], [0.5]), InvalidType, r"ids"),
        (lambda s: s.inject("cells", [9.0, 9.0], [1]), InvalidArgument, r"2 times_ms and 1 ids"),
        (lambda s: s.inject("cell", [9.0], [0]), InvalidArgument, r"'cell'"),
        (lambda s: s.inject(3, [9.0], [0]), InvalidType, r"3"),
        (lambda s: s.set_state("cells", "v", 1.0), InvalidArgument, r"no state 'v'"),
        (lambda s: s.set_state("cells", "v_mv", [1.0, 2.0]), InvalidArgument, r"one for each of 40"),
        (lambda s: s.set_state("cells", "v_mv", np.zeros((40, 1))), InvalidArgument, r"one for each of 40"),
        (lambda s: s.set_state("cells", "v_mv", math.inf), InvalidArgument, r"finite"),
        (lambda s: s.set_state("cells", "v_mv", [math.nan] * 40), InvalidArgument, r"finite"),
        (lambda s: s.set_state("cells", "v_mv", 1e39), InvalidArgument, r"values"),
        (lambda s: s.set_state("cells", "v_mv", "1"), InvalidType, r"expected numbers"),
        (lambda s: s.set_state("cells", "v_mv", True), InvalidType, r"expected numbers"),
        (lambda s: s.set_state("cells", "refractory", 1.0), InvalidType, r"whole numbers"),
        (lambda s: s.set_state("cells", "refractory", 2**31), InvalidArgument, r"int32"),
        (lambda s: s.silence("cells", "dolls"), InvalidArgument, r"'dolls'"),
        (lambda s: s.silence(3), InvalidType, r"3"),
        (lambda s: s.freeze("cells->cells", "a->b"), InvalidArgument, r"no projection 'a->b'"),
        (lambda s: s.freeze(3), InvalidType, r"3"),
        (lambda s: s.spike_counts("dolls"), InvalidArgument, r"'dolls'"),
        (lambda s: s.spike_counts(None), InvalidType, r"None"),
        (lambda s: s.advance(-1), InvalidArgument, r"steps=-1"),
        (lambda s: s.advance(1.0), InvalidArgument, r"steps=1\.0"),
        (lambda s: s.advance(True), InvalidArgument, r"steps=True"),
        (lambda s: s.advance(2**31), InvalidArgument, r"2,147,483,646 steps at most"),
        (lambda s: s.give("echo", 1), InvalidArgument, r"no Python population 'echo'"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_invalid_interventions_raise_and_change_nothing(acting: Any, call: Action, error: Any, message: str) -> None:
    simulation, fingerprint = acting
    with pytest.raises(error, match=message):
        call(simulation)
    assert (simulation.steps, simulation.fingerprint()) == (10, fingerprint)


@pytest.fixture(scope="module")
def acting() -> Any:
    """One simulation for all invalid calls; at the end it continues unchanged."""
    with Simulation(driven(n=40)) as untouched, Simulation(driven(n=40), executor=ByTurns(2)) as simulation:
        untouched.advance(10)
        simulation.advance(10)
        yield simulation, untouched.fingerprint()
        untouched.advance(200)
        simulation.advance(200)
        assert simulation.fingerprint() == untouched.fingerprint()


def test_interventions_after_closing_raise() -> None:
    simulation = Simulation(driven(n=40))
    simulation.close()
    for call in (
        lambda: simulation.inject("cells", [1.0], [0]),
        lambda: simulation.set_state("cells", "v_mv", -60.0),
        lambda: simulation.silence("cells"),
        lambda: simulation.freeze(),
        lambda: simulation.spike_counts("cells"),
        lambda: simulation.advance(0),
        lambda: simulation.status(),
    ):
        with pytest.raises(SimulationClosed):
            call()


def test_advancing_returns_the_elapsed_seconds() -> None:
    with Simulation(driven(n=40)) as simulation:
        assert simulation.advance(0) == 0.0
        assert simulation.advance(np.int64(20)) > 0.0  # type: ignore[arg-type]
        assert simulation.steps == 20
