"""The mesh executor equals one process bit for bit: for networks, interventions and Python populations.

The checks of the other executors are made here as well, with a node for each population or for several.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import AccumulatorOverflow, CheckpointError, InvalidArgument
from neuraxis.network import STDP, FixedInDegree, Network, Uniform
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.process import Team
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import MeshExecutor, RegionSetup, Units
from neuraxis.simulation.python_populations import PythonPopulation, SpikeSubscription
from tests.engine.test_weights_in_use import overflowing
from tests.simulation import test_acting
from tests.simulation.mesh.meshes import fresh_mesh, in_units, on_the_mesh, one_each
from tests.simulation.networks import NETWORKS, driven
from tests.simulation.python_regions import remembered
from tests.simulation.test_conformance import (
    SEED,
    Outcome,
    assert_same,
    look,
    states_folder,
    test_a_run_in_one_piece,
    test_a_saved_state_continues_in_the_reference,
    test_a_state_of_another_executor_over_one_that_ran_further,
    test_back_to_the_start_and_in_uneven_pieces,
)
from tests.simulation.test_instability import A, facts, kicked, raised_by

# "mixed models" has weights of all sizes in one projection, some of them too small for its scale.
pytestmark = pytest.mark.filterwarnings("ignore:fixed-point weights:neuraxis.errors.RoundingWarning")

__all__ = [
    "states_folder",
    "test_a_run_in_one_piece",
    "test_a_saved_state_continues_in_the_reference",
    "test_a_state_of_another_executor_over_one_that_ran_further",
    "test_back_to_the_start_and_in_uneven_pieces",
]

# The number of nodes; 0: one for each population.
PAIRS = [
    ("continuous", 0),
    ("in float64", 2),  # with parameters for each neuron
    ("mixed models", 3),
    ("reward and fatigue", 0),
    ("regions far apart", 0),
    ("rhythms and maps", 0),
    ("every neuron learns", 0),
    ("mixed models", 0),
    ("tiny populations", 0),
    ("inputs alone", 2),
    ("shortest delay 15", 0),
    ("one long delay", 0),
]


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[str, Simulation]]:
    """The name of a network, and a simulation of it over the mesh; alive for all tests of the pair."""
    name, nodes = request.param
    network = NETWORKS[name].make(SEED)
    with on_the_mesh(network, in_units(network, nodes) if nodes else one_each(network)) as simulation:
        yield name, simulation


# --- what is done to a network while it runs ---


def test_interventions_give_the_same_result_over_the_mesh(tmp_path: Path) -> None:
    """Given spikes and states, silencing, frozen learning, rewards: in one run, and split by a saved state."""
    cut, steps = 240, test_acting.STEPS
    expected = test_acting.reference()
    with on_the_mesh(test_acting.acted_upon()) as simulation:
        test_acting.act(simulation, cut)
        simulation.save(tmp_path / "mesh")
        test_acting.act(simulation)
        assert_same(look(simulation), expected)
        test_acting.assert_counts(simulation)
        status = simulation.status()
        assert [one.worker for one in status] == [0, 1, 2]
        assert {one.step for one in status} == {steps}
        assert sum(one.spikes_out for one in status) == sum(len(times) for times, _ in expected.spikes.values())
        with Simulation(test_acting.acted_upon()) as alone:
            alone.restore(tmp_path / "mesh")
            test_acting.act(alone, cut + 90)
            alone.save(tmp_path / "alone")
            test_acting.act(alone)
            assert_same(look(alone), expected, since_ms=cut * 0.1)
        simulation.restore(tmp_path / "alone")
        test_acting.act(simulation)
        assert_same(look(simulation), expected, since_ms=(cut + 90) * 0.1)
        test_acting.assert_counts(simulation)
        assert nothing_was_missed(simulation)


def nothing_was_missed(simulation: Simulation) -> bool:
    """Check that no region recorded an outage or lost a window."""
    executor = simulation._executor
    assert isinstance(executor, MeshExecutor)
    assert executor.team is not None
    heard = [one for story in executor.statistics().values() for one in story["upstream"].values()]
    return not executor.team.lost and not any(one["silences"] or one["lost"] for one in heard)


# --- delays ---


def near_and_far(seed: int = 2) -> Network:
    """Populations with delays of one step and of hundreds; one without targets, and one without sources."""
    network = Network(dt_ms=0.1, seed=seed)
    a, b, deaf, mute = (
        network.population(name, n, lif_delta, v_mv=Uniform(-70.0, -55.1))
        for name, n in (("a", 60), ("b", 50), ("deaf", 40), ("mute", 30))
    )
    network.connect(a, b, FixedInDegree(k=6), 0.6, delay_ms=0.1)
    network.connect(b, a, FixedInDegree(k=6), -0.4, delay_ms=0.1)
    network.connect(
        a, b, FixedInDegree(k=6), 0.7, delay_ms=Uniform(25.0, 40.0), plasticity=STDP.additive(w_max=2.0), name="far"
    )
    network.connect(deaf, a, FixedInDegree(k=6), 0.7, delay_ms=31.7)
    network.connect(b, mute, FixedInDegree(k=6), 0.7, delay_ms=29.0)
    for population in network.populations:
        network.poisson(population, rate_hz=1200.0, weight=1.5)
        network.record(population)
    return network


@cache
def near_and_far_alone() -> Outcome:
    with Simulation(near_and_far()) as simulation:
        simulation.step(900)
        return look(simulation)


def test_delays_of_one_step_and_of_hundreds() -> None:
    with on_the_mesh(near_and_far(), Units({"a": [0], "b": [1], "ends": [2, 3]})) as simulation:
        simulation.step(137)
        simulation.step(763)
        assert_same(look(simulation), near_and_far_alone())
        assert nothing_was_missed(simulation)


# --- Python between nodes ---


def couriers(*kinds: str) -> tuple[Network, tuple[PythonPopulation, ...], Units]:
    """Python populations in a ring; each receives spikes of the one before it and of some neurons, with own delays."""
    network = Network(dt_ms=0.1, seed=8)
    source = network.population("source", 4, spike_source)
    network.spikes(source, np.linspace(0.3, 30.0, 40).round(1), np.arange(40) % 4)
    homes = [
        (network.population(f"p{i}", 4, spike_source), network.population(f"m{i}", 1, spike_source))
        for i in range(len(kinds))
    ]
    made = []
    for i, kind in enumerate(kinds):
        hears = (
            SpikeSubscription(homes[i - 1][1].index, "before", 3 + 7 * i),
            SpikeSubscription(homes[i - 1][0].index, "its spikes", 11),
        )
        if i == 0:
            hears += (SpikeSubscription(source.index, "neurons", 2),)
        config = {"kind": kind, "sources": [one.source for one in hears], "torch": "tensor" in kinds}
        population, mark = (one.index for one in homes[i])
        made.append(
            PythonPopulation(
                f"r{i}", "tests.simulation.mesh.couriers:Courier", population, mark, config, hears, batch_steps=1 + i
            )
        )
        network.record(homes[i][0])
        network.record(homes[i][1])
    units = {f"r{i}": [population.index, mark.index] for i, (population, mark) in enumerate(homes)}
    units["r0"] = [source.index, *units["r0"]]
    return network, tuple(made), Units(units, topics={"r1": "mail"})


def test_data_between_regions_of_python_in_a_loop(tmp_path: Path) -> None:
    kinds = ("tensor", "array", "dict") if find_spec("torch") else ("array", "dict")
    network, python_populations, units = couriers(*kinds)

    def reported(simulation: Simulation, folder: str) -> dict[str, Any]:
        rows = {name: found.tolist() for name, found in remembered(simulation, tmp_path / folder).items()}
        assert all(len(found) > 30 for found in rows.values())
        return rows

    def go(simulation: Simulation) -> None:
        simulation.step(50)
        simulation.give("r1", {"from": "outside", "values": [1, 2.5]})
        simulation.step(100)

    with Simulation(network, python_populations=python_populations) as simulation:
        go(simulation)
        simulation.step(150)
        expected, fingerprint = reported(simulation, "one"), simulation.fingerprint()
    kinds_heard = {row[3] for rows in expected.values() for row in rows}
    assert kinds_heard == {0.0, *({"array": 1.0, "dict": 2.0, "tensor": 3.0}[kind] for kind in kinds), 2.0}
    with on_the_mesh(network, units, python_populations=python_populations) as simulation:
        go(simulation)
        simulation.save(tmp_path / "middle")
        simulation.step(150)
        assert reported(simulation, "mesh") == expected
        assert simulation.fingerprint() == fingerprint
        simulation.restore(tmp_path / "middle")
        simulation.step(150)
        assert reported(simulation, "mesh again") == expected
        assert nothing_was_missed(simulation)
    with Simulation(network, python_populations=python_populations) as simulation:
        simulation.restore(tmp_path / "middle")
        simulation.step(150)
        assert reported(simulation, "one again") == expected


# --- what makes no sense ---


def test_units_must_have_every_population_once() -> None:
    for units in ({"a": [0]}, {"a": [0, 1], "b": [1]}, {"a": [0, 1, 2]}, {"a": [1, 1], "b": [0]}, {}):
        network = Network()
        network.population("x", 3, lif_delta)
        network.population("y", 3, lif_delta)
        with pytest.raises(InvalidArgument, match="every population"):
            Units(units).placement(network)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_loss": "panic"}, "on_loss='panic': expected silence or raise"),
        ({"remote": ["nobody"]}, "no region nobody; there are cells"),
        ({"silence_timeout": 0.0}, "silence_timeout"),
        ({"silence_timeout": -1.0}, "silence_timeout"),
        ({"silence_timeout": float("nan")}, "silence_timeout"),
        ({"reconnect_timeout": -1.0}, "reconnect_timeout"),
        ({"checkpoint_every": 0, "checkpoint": "here"}, "checkpoint_every"),
        ({"mesh": "a/b"}, "mesh"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(options: dict[str, Any], words: str) -> None:
    network = driven(n=10)

    def start() -> None:
        executor = MeshExecutor(one_each(network), **{"mesh": fresh_mesh(), **options})
        Simulation(network, executor=executor).close()

    with pytest.raises(InvalidArgument, match=words):
        start()


def test_setups_that_make_no_sense() -> None:
    network = driven(n=10)
    units = one_each(network)
    with pytest.raises(InvalidArgument, match="region 'v1': there are cells"):
        RegionSetup("v1", units, network, (), "m", {})
    with pytest.raises(InvalidArgument, match="clock='sundial'"):
        RegionSetup("cells", units, network, (), "m", {}, clock="sundial")


def test_a_region_that_cannot_be_built_raises_and_ends_all_nodes() -> None:
    network, python_populations, units = couriers("array", "array")
    broken = (
        python_populations[0],
        PythonPopulation("r1", "nowhere.at.all:X", python_populations[1].population, python_populations[1].marker),
    )
    executor = MeshExecutor(units, mesh=fresh_mesh())
    with pytest.raises(Exception, match=r"nowhere\.at\.all:X' cannot be imported"):
        Simulation(network, executor=executor, python_populations=broken)


def test_a_region_that_is_not_started_is_named() -> None:
    network = driven(n=10)
    executor = MeshExecutor(one_each(network), mesh=fresh_mesh(), remote=["cells"], start_timeout=0.5)
    with pytest.raises(ConnectionError, match=r"region cells did not join within 0\.5 s.*neuraxis node"):
        Simulation(network, executor=executor)


def test_stories_is_a_deprecated_name_of_statistics() -> None:
    with pytest.warns(DeprecationWarning, match="Use MeshExecutor.statistics"):
        assert MeshExecutor(one_each(driven(n=10)), mesh=fresh_mesh()).stories() == {}


def test_closing_does_not_warn_that_the_driver_is_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def close_slowly(team: Team) -> None:
        time.sleep(1.0)
        close(team)

    close = Team.close
    monkeypatch.setattr(Team, "close", close_slowly)
    monkeypatch.setattr("neuraxis.mesh.links._ALONE_S", 0.0)
    with on_the_mesh(driven(n=10)) as simulation:
        simulation.run(1.0)
    assert "sees no other node" not in caplog.text


def test_an_executor_runs_one_simulation() -> None:
    network = driven(n=10)
    with on_the_mesh(network) as simulation:
        with pytest.raises(InvalidArgument, match="already runs a simulation"):
            simulation._executor.start(network, lambda synapses: None)
        assert simulation.step(10).fingerprint


def test_an_unwritable_state_raises_and_the_run_continues(tmp_path: Path) -> None:
    network = driven(n=30)
    with on_the_mesh(network) as simulation, Simulation(network) as alone:
        simulation.step(20)
        (tmp_path / "file").write_text("in the way")
        with pytest.raises((CheckpointError, OSError)):
            simulation.save(tmp_path / "file")
        with pytest.raises(CheckpointError):
            simulation.restore(tmp_path / "nothing here")
        assert simulation.step(20).fingerprint == alone.step(40).fingerprint


def test_over_the_mesh_the_process_that_drives_the_nodes_raises() -> None:
    network = kicked({25: A, 21: A, 7: A + 1}, n=40)
    with on_the_mesh(network, in_units(network, 2)) as simulation:
        assert facts(raised_by(simulation, 10.0)) == ("cells", 21, "v", np.inf, A, round(A * 0.1, 9))
        simulation.set_state("cells", "v", 0.0)
        simulation.run(1.0)


def test_weights_that_do_not_fit_are_the_same_error_as_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    network = overflowing(monkeypatch)
    with pytest.raises(AccumulatorOverflow, match="population 'cells'") as caught, on_the_mesh(network):
        pass
    assert caught.value.population == "cells"
    assert 0 <= caught.value.neuron < 20
