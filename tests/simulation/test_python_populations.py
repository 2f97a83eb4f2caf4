"""Python populations: received events, effects of answers, and independence of placement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.placement import Slice
from neuraxis.errors import CheckpointError, InvalidArgument, RoundingWarning, ShardFailed, SimulationClosed
from neuraxis.network import FixedInDegree, Network, Uniform
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation
from neuraxis.simulation.python_populations import Event, PythonPopulation, SpikeSubscription
from tests.simulation.python_regions import WHERE, PythonPopulationsByTurns, remembered
from tests.simulation.test_conformance import Outcome, assert_same, look

SCRIBE = f"{WHERE}:Scribe"

SPIKES = [(1, 0), (2, 1), (2, 2), (3, 0), (7, 1), (10, 2), (14, 0), (20, 1), (21, 1)]


def quiet(*python_populations: dict[str, Any]) -> tuple[Network, tuple[PythonPopulation, ...]]:
    """A source with SPIKES, and Python populations of 4 neurons each, with subscriptions (source or number, delay)."""
    network = Network(dt_ms=0.1, seed=5)
    source = network.population("source", 3, spike_source)
    network.spikes(source, [0.1 * step for step, _ in SPIKES], [neuron for _, neuron in SPIKES])
    homes = []
    for i in range(len(python_populations)):
        homes.append((network.population(f"p{i}", 4, spike_source), network.population(f"m{i}", 1, spike_source)))
        network.record(f"p{i}")
        network.record(f"m{i}")
    made = []
    for i, given in enumerate(python_populations):
        hears = tuple(
            SpikeSubscription(source.index if who == "source" else homes[who][1].index, f"r{who}", delay)
            for who, delay in given.pop("hears", ())
        )
        config = {"sources": [hearing.source for hearing in hears], **given.pop("config", {})}
        population, mark = homes[i]
        create = given.pop("create", SCRIBE)
        made.append(PythonPopulation(f"r{i}", create, population.index, mark.index, config, hears, **given))
    return network, tuple(made)


def heard(python_populations: Sequence[dict[str, Any]], steps: int, folder: Path, workers: int = 1) -> dict[str, Any]:
    network, made = quiet(*python_populations)
    with Simulation(
        network, executor=PythonPopulationsByTurns(workers, seed=steps), python_populations=made
    ) as simulation:
        simulation.advance(steps)
        return {name: rows.tolist() for name, rows in remembered(simulation, folder).items()}


def row(now: int, step: int, source: int, ids: Sequence[int], data: float = 0.0) -> list[float]:
    return [now, step, source, len(ids), float(sum(i * (place + 1) for place, i in enumerate(ids))), data]


# --- what is heard, and when ---


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("delay", [1, 4, 17])
@pytest.mark.parametrize("batch", [1, 5, 8])
def test_spikes_arrive_exactly_after_their_delay(batch: int, delay: int, workers: int, tmp_path: Path) -> None:
    found = heard([{"hears": [("source", delay)], "batch_steps": batch}], 40, tmp_path, workers)["r0"]
    steps = sorted({step for step, _ in SPIKES})
    expected = [
        row(-(-(s + delay) // batch) * batch, s + delay, 1, [n for step, n in SPIKES if step == s])
        for s in steps
        if -(-(s + delay) // batch) * batch <= 40
    ]
    assert found == expected


def test_events_are_ordered_by_time_then_by_pathway(tmp_path: Path) -> None:
    ways = {"hears": [("source", 3), ("source", 1), ("source", 2)], "batch_steps": 4}
    found = heard([ways], 8, tmp_path)["r0"]
    expected = []
    for step in range(1, 9):
        for delay in (3, 1, 2):
            ids = [n for s, n in SPIKES if s == step - delay]
            if ids:
                expected.append(row(-(-step // 4) * 4, step, 1, ids))
    assert found == expected
    assert [entry[1] for entry in found] == sorted(entry[1] for entry in found)


def test_a_python_population_with_a_tick_is_called_at_each_of_them(tmp_path: Path) -> None:
    python_populations = [{"hears": [("source", 1)], "tick_steps": 7}, {"tick_steps": 10}, {}]
    found = heard(python_populations, 35, tmp_path, workers=2)
    silent_ticks = [entry[0] for entry in found["r0"] if entry[1] == -1]
    spikes = [entry[0] for entry in found["r0"] if entry[1] != -1]
    assert spikes == [2, 3, 4, 8, 11, 15, 21, 22]
    assert silent_ticks == [7, 14, 28, 35]  # events arrived at step 21
    assert [entry[0] for entry in found["r1"]] == [10, 20, 30]
    assert found["r2"] == []


def test_only_a_first_call_with_events_is_announced() -> None:
    """A region of the mesh publishes its status then, so one without events must not announce a call at every step."""
    network, made = quiet({"hears": [("source", 1)]}, {})
    executor = PythonPopulationsByTurns(1)
    announced: list[tuple[int, bool]] = []
    with Simulation(network, executor=executor, python_populations=made) as simulation:
        runner = executor._runners[0]
        runner.python_populations.around_first_call = lambda begins: announced.append((runner.shard.step, begins))
        simulation.advance(30)
    assert announced == [(2, True), (2, False)]  # of the one that hears the spike of step 1


def test_splitting_a_run_does_not_change_the_events(tmp_path: Path) -> None:
    python_population = {"hears": [("source", 3)], "batch_steps": 6, "tick_steps": 4, "config": {"echo": 4}}
    expected = heard([dict(python_population)], 30, tmp_path / "one")
    network, made = quiet(dict(python_population))
    with Simulation(network, python_populations=made) as simulation:
        for piece in (1, 4, 2, 10, 1, 12):
            simulation.advance(piece)
        assert remembered(simulation, tmp_path / "cut")["r0"].tolist() == expected["r0"]


# --- what it answers ---


def answered(answer: Any, steps: int = 40) -> tuple[list[tuple[int, int]], list[int]]:
    """(step, neuron) of the spikes of a Python population that answers in step 5, and the steps of its mark."""
    network, made = quiet(
        {"create": f"{WHERE}:Answers", "config": {"answer": answer}}, {"hears": [(0, 2)], "config": {}}
    )
    with Simulation(network, python_populations=made) as simulation:
        simulation.advance(4)
        simulation.give("r0", 1)
        simulation.advance(steps - 4)
        times, ids = simulation.spikes("p0")
        marks, _ = simulation.spikes("m0")
        pairs = zip(np.rint(times * 10).astype(int).tolist(), ids.tolist(), strict=True)
        return list(pairs), np.rint(marks * 10).astype(int).tolist()


@pytest.mark.parametrize(
    ("answer", "spikes", "marks"),
    [
        (None, [], []),
        ([], [], []),
        (np.array([3, 0]), [(6, 0), (6, 3)], []),
        ({"ids": [1, 1, 2]}, [(6, 1), (6, 2)], []),
        ({"ids": []}, [], []),
        ({"time_ms": 0.1, "ids": [1]}, [(6, 1)], []),  # the past is the next step
        ({"time_ms": 0.5, "ids": [1]}, [(6, 1)], []),
        ({"time_ms": 3.0, "data": np.ones(2)}, [], [30]),
        ({"ids": np.array([2], np.uint8), "data": [1, 2]}, [(6, 2)], [6]),
    ],
    ids=str,
)
def test_answers_become_spikes_in_the_next_step_or_at_their_time(
    answer: Any, spikes: list[tuple[int, int]], marks: list[int]
) -> None:
    assert answered(answer) == (spikes, marks)


def test_a_time_between_two_steps_is_rounded_with_one_warning_for_a_region() -> None:
    between = [Event(time_ms=ms, ids=[1]) for ms in (2.04, 2.1, 2.26)]
    with pytest.warns(RoundingWarning) as caught:
        assert answered(between) == ([(20, 1), (21, 1), (23, 1)], [])
    (warning,) = caught
    assert "region 'r0' (reported once): a returned time_ms=2.04: " in str(warning.message)
    assert "2 ms (20 steps) is used" in str(warning.message)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("raise", "RuntimeError: a scripted accident"),
        ({"ids": [4]}, "expected whole numbers from 0 to 3"),
        ({"ids": [-1]}, "whole numbers from 0 to 3"),
        ({"ids": [0.5]}, "whole numbers from 0 to 3"),
        ({"ids": [[0]]}, "whole numbers from 0 to 3"),
        ({"ids": [True]}, "whole numbers from 0 to 3"),
        ({"time_ms": float("nan"), "ids": [0]}, "time_ms=nan; expected a time in ms"),
        ({"time_ms": "soon", "ids": [0]}, "time_ms='soon'; expected a time in ms"),
        ({"time_ms": 0.1 * (2**32 + 20), "ids": [0]}, "beyond the last step"),
        pytest.param({"data": object()}, "data of type object", id="an object"),
        ("abc", "expected events or an array of ids"),
        ([3], "expected events or an array of ids"),
        (7, "r0"),
    ],
    ids=str,
)
def test_an_invalid_answer_names_the_region_and_ends_the_simulation(answer: Any, words: str) -> None:
    network, made = quiet(
        {"create": f"{WHERE}:Answers", "config": {"answer": answer}}, {"hears": [(0, 2)], "config": {}}
    )
    with Simulation(network, python_populations=made) as simulation:
        simulation.advance(4)
        simulation.give("r0", 1)
        with pytest.raises(ShardFailed, match=r"region 'r0' failed at 0\.5 ms") as caught:
            simulation.advance(20)
        assert words in str(caught.value)
        assert (caught.value.shard, caught.value.step) == ("r0", 5)
        assert "Traceback" in caught.value.traceback
        with pytest.raises(SimulationClosed):
            simulation.advance(1)


def test_two_values_for_one_step_are_refused_and_none_is_lost() -> None:
    answer = [Event(data=np.ones(1)), Event(data=np.zeros(1))]
    with pytest.raises(ShardFailed, match=r"data twice for 0\.6 ms"):
        answered(answer)


# --- data ---


def test_data_are_copied_when_sent(tmp_path: Path) -> None:
    """The scribe answers from one buffer that it fills again at each call; and what was given may be changed."""
    network, made = quiet(
        {"hears": [("source", 1)], "config": {"data": True, "data_after_ms": 1.0}},
        {"hears": [(0, 5)]},
        {"hears": [(0, 2)], "batch_steps": 5},
    )
    given = np.full(3, 10.0)
    with Simulation(network, python_populations=made) as simulation:
        simulation.advance(24)
        simulation.give("r1", given)
        simulation.give("r1", 5)
        given[:] = 99.0
        simulation.advance(16)
        rows = {name: rows.tolist() for name, rows in remembered(simulation, tmp_path).items()}
    calls = [entry[0] for entry in rows["r0"]]
    sent = [(call + 10, n + call + 0.0) for n, call in enumerate(calls, start=1)]
    expected = [row(step + 5, step + 5, 1, [], data) for step, data in sent if step + 5 <= 40]
    expected += [row(25, 25, 0, [], 30.0), row(25, 25, 0, [], 5.0)]
    assert sorted(rows["r1"]) == sorted(expected)
    assert rows["r2"] == [
        row(-(-(step + 2) // 5) * 5, step + 2, 1, [], data) for step, data in sent if -(-(step + 2) // 5) * 5 <= 40
    ]


def test_given_events_follow_earlier_events(tmp_path: Path) -> None:
    network, made = quiet({"hears": [("source", 2)], "batch_steps": 5})
    with Simulation(network, python_populations=made) as simulation:
        simulation.advance(4)
        simulation.give("r0", [9, 9])
        simulation.advance(1)
        rows = remembered(simulation, tmp_path)["r0"].tolist()
    assert rows == [row(5, 3, 1, [0]), row(5, 4, 1, [1, 2]), row(5, 5, 1, [0]), row(5, 5, 0, [], 18.0)]


@pytest.mark.parametrize("data", [[np.ones(2), np.ones(3)], [1, 2], {"a": np.ones(2)}, 4.5, np.ones((2, 2))], ids=str)
def test_data_in_flight_are_saved_exactly_or_refused(data: Any, tmp_path: Path) -> None:
    network, made = quiet(
        {"create": f"{WHERE}:Answers", "config": {"answer": {"data": data, "time_ms": 2.0}}}, {"hears": [(0, 5)]}
    )
    with Simulation(network, python_populations=made) as simulation:
        simulation.advance(4)
        simulation.give("r0", 1)
        simulation.advance(4)
        kept = simulation._executor._runner.python_populations._transport.payloads  # type: ignore[attr-defined]
        assert list(kept) == [(made[0].marker, 20)]
        before = kept[made[0].marker, 20]
        try:
            simulation.save(tmp_path)
        except CheckpointError as error:
            assert "r0" in str(error)  # noqa: PT017
            simulation.advance(40)
            simulation.save(tmp_path)  # they were delivered
            return
        simulation.restore(tmp_path)
        after = kept[made[0].marker, 20]
        assert type(after) is type(before)
        assert str(after) == str(before)
        simulation.advance(40)


# --- to keep ---


def test_an_unsavable_population_names_the_missing_methods_and_continues(tmp_path: Path) -> None:
    for create, words in (("Unsaved", "get_state"), ("Wordy", r"get_state\(\)\['words'\]: expected numbers")):
        network, made = quiet({"create": f"{WHERE}:{create}"})
        with Simulation(network, python_populations=made) as simulation:
            simulation.advance(5)
            with pytest.raises(CheckpointError, match=rf"region 'r0'.*{words}"):
                simulation.save(tmp_path)
            simulation.advance(5)
            assert simulation.steps == 10
    assert list(tmp_path.iterdir()) == []


def test_given_events_must_be_processed_before_saving(tmp_path: Path) -> None:
    network, made = quiet({})
    with Simulation(network, python_populations=made) as simulation:
        simulation.give("r0", 1)
        with pytest.raises(CheckpointError, match="Run a step first"):
            simulation.save(tmp_path)
        simulation.advance(1)
        assert remembered(simulation, tmp_path)["r0"].tolist() == [row(1, 1, 0, [], 1.0)]


@pytest.mark.parametrize(
    ("create", "error", "words"),
    [
        ("nowhere.at.all:X", InvalidArgument, "region 'r0': create='nowhere.at.all:X' cannot be imported"),
        (f"{WHERE}:Nobody", InvalidArgument, "cannot be imported.*Nobody"),
        (WHERE, InvalidArgument, "cannot be imported"),
        (f"{WHERE}:NOT_CALLABLE", InvalidArgument, "is a int and cannot be called"),
        (f"{WHERE}:Deaf", InvalidArgument, "returned a Deaf without process_events"),
        (f"{WHERE}:Unmade", Exception, "a part is missing"),
    ],
)
def test_python_populations_that_cannot_be_made(create: str, error: type[Exception], words: str) -> None:
    network, made = quiet({"create": create})
    with pytest.raises(error, match=words):
        Simulation(network, python_populations=made)


def test_an_unknown_population_is_refused() -> None:
    network, made = quiet({})
    with Simulation(network, python_populations=made) as simulation:
        with pytest.raises(InvalidArgument, match=r"no Python population 'r1'.*r0"):
            simulation.give("r1", 1)
        with pytest.raises(TypeError, match="data of type object"):
            simulation.give("r0", object())
        simulation.advance(3)


# --- wherever it lives ---


def lively() -> tuple[Network, tuple[PythonPopulation, ...]]:
    """Neurons and three mutually connected Python populations, with various delays, batches and ticks."""
    network = Network(dt_ms=0.1, seed=7)
    cells = network.population("cells", 300, lif_delta, v_mv=Uniform(-70.0, -55.1))
    network.poisson(cells, rate_hz=1500.0, weight=1.5)
    network.connect(cells, cells, FixedInDegree(k=10), 0.4, Uniform(0.3, 4.0))
    homes = [
        (network.population(f"p{i}", n, spike_source), network.population(f"m{i}", 1, spike_source))
        for i, n in enumerate((11, 5, 7))
    ]
    for population, mark in homes:
        network.connect(population, cells, FixedInDegree(k=3), 1.5, Uniform(0.2, 2.0))
        network.record(population)
        network.record(mark)
    network.record(cells)
    (p0, m0), (p1, m1), (_, m2) = homes
    sources = {"sources": ["cells", "r0", "r1", "r2", "d0", "d1", "d2"]}
    hears = [
        (SpikeSubscription(cells.index, "cells", 3), SpikeSubscription(m2.index, "d2", 2)),
        (
            SpikeSubscription(cells.index, "cells", 30),
            SpikeSubscription(p0.index, "r0", 7),
            SpikeSubscription(m0.index, "d0", 25),
        ),
        (
            SpikeSubscription(p1.index, "r1", 1),
            SpikeSubscription(m1.index, "d1", 70),
            SpikeSubscription(m0.index, "d0", 4),
        ),
    ]
    configs = [
        {"echo": 11, "data": True},
        {"echo": 5, "later_ms": 9.0, "data": True, "data_after_ms": 3.0},
        {"later_ms": 0.7, "data": True},
    ]
    return network, tuple(
        PythonPopulation(
            f"r{i}", SCRIBE, homes[i][0].index, homes[i][1].index, configs[i] | sources, hears[i], batch, tick
        )
        for i, (batch, tick) in enumerate([(1, 0), (10, 25), (3, 0)])
    )


MIDDLE, END = 233, 500


def run_to(simulation: Simulation, until: int) -> None:
    for step, name, size in ((100, "r0", 4), (101, "r2", 2), (300, "r1", 3)):
        if simulation.steps <= step < until:
            simulation.advance(step - simulation.steps)
            simulation.give(name, np.arange(size, dtype=float))
    simulation.advance(until - simulation.steps)


@cache
def reference(folder: Path) -> tuple[Outcome, dict[str, Any]]:
    network, made = lively()
    with Simulation(network, python_populations=made) as simulation:
        run_to(simulation, MIDDLE)
        simulation.save(folder / "middle")
        run_to(simulation, END)
        outcome, rows = look(simulation), remembered(simulation, folder / "end")
    assert all(len(entries) > 50 for entries in rows.values())
    assert {entry[2] for entry in rows["r2"]} == {0.0, 3.0, 5.0, 6.0}
    assert (rows["r1"][:, 5] > 0).sum() > 10
    return outcome, rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python_populations")


def assert_same_as_reference(simulation: Simulation, folder: Path, since: int = 0) -> None:
    expected, rows = reference(folder)
    found = remembered(simulation, folder / "found")
    assert found.keys() == rows.keys()
    for name in rows:
        assert np.array_equal(found[name], rows[name]), name
    assert_same(look(simulation), expected, since_ms=0.1 * since)


@pytest.mark.parametrize("workers", [2, 5])
def test_it_does_not_matter_on_which_shard_they_live(workers: int, folder: Path, tmp_path: Path) -> None:
    reference(folder)
    network, made = lively()
    with Simulation(
        network, executor=PythonPopulationsByTurns(workers, seed=workers), python_populations=made
    ) as simulation:
        run_to(simulation, MIDDLE + 17)
        simulation.save(tmp_path)
        run_to(simulation, END)
        assert_same_as_reference(simulation, folder)
        simulation.restore(folder / "middle")
        run_to(simulation, END)
        assert_same_as_reference(simulation, folder, MIDDLE)
    with Simulation(network, python_populations=made) as simulation:
        simulation.restore(tmp_path)
        run_to(simulation, END)
        assert_same_as_reference(simulation, folder, MIDDLE + 17)


def test_nor_in_which_process_also_when_they_move_or_one_raises(folder: Path, tmp_path: Path) -> None:
    """Two workers whose Python populations send data to each other; then they change places; then one raises."""
    reference(folder)
    network, made = lively()
    sizes = {p.index: p.n for p in network.populations}
    here, there = [0, 1, 2, 5, 6], [3, 4]
    placement, moved = (
        tuple(tuple(Slice(p, 0, sizes[p]) for p in worker) for worker in order)
        for order in ((here, there), (there, here))
    )
    failing = quiet({"create": f"{WHERE}:Answers", "config": {"answer": "raise"}})[1][0]
    network.population("p3", 4, spike_source)
    network.population("m3", 1, spike_source)
    made = (*made, PythonPopulation("late", failing.create, 7, 8, failing.config, tick_steps=0))
    placement = ((*placement[0], Slice(7, 0, 4), Slice(8, 0, 1)), placement[1])
    moved = (moved[0], (*moved[1], Slice(7, 0, 4), Slice(8, 0, 1)))
    with Simulation(network, workers=2, python_populations=made, placement=placement) as simulation:
        run_to(simulation, MIDDLE)
        simulation.move(moved)
        run_to(simulation, END)
        found = remembered(simulation, tmp_path)
        expected, rows = reference(folder)
        for name in rows:
            assert np.array_equal(found[name], rows[name]), name
        for name, (times, ids) in expected.spikes.items():
            assert np.array_equal(simulation.spikes(name)[0], times)
            assert np.array_equal(simulation.spikes(name)[1], ids)
        simulation.give("late", 1)
        with pytest.raises(ShardFailed, match=r"region 'late' failed at 50\.1 ms: RuntimeError: a scripted") as caught:
            simulation.advance(50)
        assert (caught.value.worker, caught.value.shard, caught.value.step) == (1, "late", END + 1)
        assert "in process_events" in caught.value.traceback
        with pytest.raises(SimulationClosed):
            simulation.advance(1)
    with Simulation(network, executor=PythonPopulationsByTurns(3), python_populations=made) as simulation:
        simulation.restore(tmp_path)
        assert simulation.steps == END
        assert np.array_equal(remembered(simulation, tmp_path)["r1"], rows["r1"])
