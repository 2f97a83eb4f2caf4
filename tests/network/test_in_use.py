"""A description that something was built from cannot be changed without an error, and arrays given are copied."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuraxis.brain import Brain, BrainBuilder, BrainConfig
from neuraxis.errors import InvalidType, NetworkInUse
from neuraxis.network import Explicit, Network, OneToOne
from neuraxis.network.models import lif_delta
from neuraxis.simulation import Simulation


def small() -> Network:
    network = Network()
    network.neuromodulator("dopamine")
    network.population("a", 4, lif_delta)
    network.connect("a", "a", OneToOne(), weight=1.0)
    network.record("a")
    return network


CHANGES: dict[str, Callable[[Network], Any]] = {
    "population": lambda n: n.population("b", 2, lif_delta),
    "connect": lambda n: n.connect("a", "a", OneToOne(), weight=1.0),
    "poisson": lambda n: n.poisson("a", 10.0, 1.0),
    "spikes": lambda n: n.spikes("a", [1.0], [0]),
    "current": lambda n: n.current("a", 100.0),
    "record": lambda n: n.record("a", "v_mv"),
    "neuromodulator": lambda n: n.neuromodulator("serotonin"),
    "rhythm": lambda n: n.rhythm("theta", 8.0),
    "modulate": lambda n: n.modulate("a", "dopamine", 1.0),
}


@pytest.mark.parametrize("call", CHANGES)
def test_a_network_in_use_refuses_every_change_and_stays_as_it_was(call: str) -> None:
    network = small()
    same = copy.deepcopy(network)
    with Simulation(network) as first:
        with pytest.raises(
            NetworkInUse, match=rf"network\.{call}\(\): .*close the simulation, or change network\.copy"
        ):
            CHANGES[call](network)
        with pytest.raises(NetworkInUse, match=rf"network\.{call}\(\): this network belongs to a simulation"):
            CHANGES[call](first.network)  # what the simulation shows of it
        assert network == same == first.network
        with Simulation(network) as second:  # several of one network
            assert first.run(2.0).fingerprint == second.run(2.0).fingerprint
        with pytest.raises(NetworkInUse):  # the first is still open
            CHANGES[call](network)
        CHANGES[call](network.copy())
    CHANGES[call](network)
    assert network != same


def test_a_simulation_that_is_gone_holds_nothing() -> None:
    network = small()
    forgotten = Simulation(network)
    forgotten.close()
    with pytest.raises(Exception, match="workers"):
        Simulation(network, workers=0)
    network.current("a", 1.0)
    dropped = Simulation(network)
    del dropped
    gc.collect()
    network.current("a", 1.0)
    assert pickle.loads(pickle.dumps(network)) == network


def test_parts_of_a_description_cannot_be_changed() -> None:
    network = small()
    cells, (projection,) = network["a"], network.projections
    for part, name in ((cells, "n"), (cells, "model"), (projection, "weight"), (network.probes[0], "what")):
        with pytest.raises(AttributeError):
            setattr(part, name, None)
    for mapping in (
        cells.initial,
        cells.model.parameters,
        cells.model.states,
        cells.model.constants,
    ):
        for change in (
            lambda m: m.update(v_mv=1.0),
            lambda m: m.__setitem__("v_mv", 1.0),
            lambda m: m.pop("v_mv", None),
            lambda m: m.clear(),
        ):
            with pytest.raises(InvalidType, match="never changes"):
                change(mapping)
    assert copy.deepcopy(cells) == pickle.loads(pickle.dumps(cells)) == cells


def test_arrays_are_copied_where_they_are_given() -> None:
    network = Network()
    initial, weights, delays = np.full(3, -60.0), np.full(3, 0.5), np.full(3, 0.2)
    pre, rates, currents, times, ids = np.arange(3), np.full(3, 10.0), np.full(3, 5.0), np.full(3, 1.0), np.arange(3)
    network.population("a", 3, lif_delta, v_mv=initial)
    network.connect("a", "a", Explicit(pre, pre), weights, delays)
    network.poisson("a", rates, 0.1)
    network.current("a", currents)
    network.spikes("a", times, ids)
    network.record("a", "v_mv", subset=ids)
    same = copy.deepcopy(network)
    for array in (initial, weights, delays, rates, currents, times):
        array[:] = 7.0
    for array in (pre, ids):
        array[:] = 0
    assert network == same
    with pytest.raises(ValueError, match="read-only"):
        network.projections[0].weight.array[0] = 1.0


def test_a_brain_and_its_description_cannot_be_changed() -> None:
    options = {"neurons": 60}
    spec = BrainBuilder("b").sensor("eye", 4).region("sheet", "cortex", **options).pathway("eye", "sheet", 1.0).spec()
    with Brain(spec) as brain:
        for given in (spec, brain.spec):
            with pytest.raises(InvalidType, match="never changes"):
                given.regions["other"] = given.regions["sheet"]
            with pytest.raises(InvalidType, match="never changes"):
                given.regions["sheet"].config["neurons"] = 80
            with pytest.raises(AttributeError):
                given.seed = 2
    config = BrainConfig(regions={"sheet": options})
    options["neurons"] = 900
    assert config.regions == {"sheet": {"neurons": 60}}
    with pytest.raises(InvalidType):
        config.regions["sheet"]["neurons"] = 900
