"""Plastic synapses drawn by the GPU's kernels: the arrays of the CPU's engine, split by block."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cpu.plastic_tables import PlasticTable, build_plastic_table, describe_plastic_table
from neuraxis.engine.cpu.static_tables import BuildTally
from neuraxis.engine.cuda.device import Memory, Program
from neuraxis.engine.cuda.grid import Grid, first_places, lay_out
from neuraxis.engine.cuda.plastic import PlasticTables, build_plastic_tables, draw_plastic
from neuraxis.engine.cuda.program import build_source
from neuraxis.engine.cuda.synapses import DeviceBuildTally
from neuraxis.engine.neurons import NeuronPart, make_parts
from neuraxis.engine.placement import Slice
from neuraxis.network import (
    STDP,
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    HomeostaticScaling,
    LogNormal,
    Network,
    Normal,
    OneToOne,
    PairwiseBernoulli,
    RewardSTDP,
    TsodyksMarkram,
    Uniform,
)
from neuraxis.network.models import lif_delta
from tests.engine.cuda.twin import TwinDevice, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")

PRE, POST = 23, 41
GIVEN = np.random.default_rng(3)
LISTED = Explicit([0, 22, 22, 22, 7, 7, 12], [40, 0, 0, 0, 13, 13, 5])
# What each rule makes, with delays and weights of some kind: many between the same two neurons, too.
RULES: dict[str, tuple[Any, Any, Any]] = {
    "all to all": (AllToAll(), Uniform(0.1, 2.0), Uniform(0.1, 0.7)),
    "given for all": (AllToAll(), GIVEN.uniform(0, 2, PRE * POST), GIVEN.integers(1, 5, PRE * POST) * 0.3),
    "grouped": (AllToAll(groups=4), 1.0, 0.2),
    "bernoulli": (PairwiseBernoulli(0.3, groups=3), LogNormal(-1.0, 1.0, high=2.0), Normal(0.5, 0.4)),
    "in-degree": (FixedInDegree(60), Normal(1.0, 0.3, low=0.0, high=2.0), Uniform(0.1, 0.3)),
    "distinct": (FixedInDegree(9, multapses=False), Normal(1.0, 1.0, low=0.0, high=2.0, outside="redraw"), 0.3),
    "none": (FixedInDegree(0), 1.0, 0.3),
    "total": (FixedTotalNumber(700), Uniform(0.1, 2.0), 0.1),
    "total of distinct": (FixedTotalNumber(300, multapses=False), 0.5, Uniform(0.1, 1.0)),
    "out-degree": (FixedOutDegree(20), Uniform(0.1, 2.0), Uniform(0.1, 0.2)),
    "listed": (LISTED, [1.0, 0.5, 0.25, 0.75, 0.1, 0.2, 0.3], [0.3, 0.1, 0.1, 0.1, 0.2, 0.3, 0.2]),
    "one to one": (OneToOne(), Uniform(0.1, 2.0), Uniform(0.1, 1.0)),
    "to itself": (FixedInDegree(30, autapses=False), Uniform(0.1, 2.0), Uniform(0.1, 0.4)),
}
LEARNING: dict[str, Any] = {
    "bounded": STDP.additive(w_max=2.0),
    "power law": STDP.power_law(w_max=2.0, w0=1.0),
    "reward": [
        RewardSTDP(w_max=2.0, a_plus=0.1, a_minus=0.1, every_ms=1.0),
        HomeostaticScaling(10.0, w_max=2.0, every_ms=5.0),
    ],
    "short-term": TsodyksMarkram(u=0.3),
    "scaling": HomeostaticScaling(10.0, w_max=2.0, every_ms=5.0),
}


class MeasuredTwin(TwinDevice):
    """One that knows how much memory was in use at most."""

    def __init__(self) -> None:
        super().__init__(1)
        self.used = self.peak = 0

    def empty(self, nbytes: int) -> Memory:
        memory = super().empty(nbytes)
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        weakref.finalize(memory, self._give_back, nbytes)
        return memory

    def _give_back(self, nbytes: int) -> None:
        self.used -= nbytes


def described(rule: str, learning: str) -> Network:
    network = Network(dt_ms=0.1, seed=11)
    network.population("other", 5, lif_delta)
    pre = network.population("pre", POST if rule == "one to one" else PRE, lif_delta)
    post = network.population("post", POST, lif_delta)
    made, weight, delay = RULES[rule]
    source = post if rule == "to itself" else pre
    network.neuromodulator("dopamine")
    network.connect(source, post, made, weight, delay, plasticity=LEARNING[learning])
    return network


def parts_of(network: Network, first: int = 0) -> list[NeuronPart]:
    """All neurons, the last population from its neuron `first` on."""
    last = len(network.populations) - 1
    return make_parts(
        network, tuple(Slice(one.index, first if one.index == last else 0, one.n) for one in network.populations)
    )


def grid_of(network: Network, parts: list[NeuronPart], blocks: int) -> Grid:
    made = lay_out(network, parts, 1, 0, 0, 0, TwinDevice(1), True, True)
    return replace(made, blocks=blocks, cells=-(-made.neurons // blocks))


@pytest.fixture(scope="module", params=[False, True], ids=["in turn", "backwards"])
def twin(request: pytest.FixtureRequest) -> tuple[TwinDevice, Program]:
    """With the kernels, which are the same for all of these networks: only the numbers differ."""
    device, network = TwinDevice(1, backwards=request.param), described("total", "bounded")
    parts = parts_of(network)
    return device, device.compile(build_source(grid_of(network, parts, 3).shape), resident=False)


def build(
    network: Network, parts: list[NeuronPart], blocks: int, twin: tuple[TwinDevice, Program], found: BuildTally
) -> PlasticTables:
    made = build_plastic_tables(network, parts, grid_of(network, parts, blocks), *twin, {}, lambda n: None, found)
    made.to_device()
    return made


def assert_cut_by_block(
    network: Network, table: PlasticTable, parts: list[NeuronPart], blocks: int, twin: tuple[TwinDevice, Program]
) -> None:
    """Check that the kernels' table is the CPU's table, stably sorted by block."""
    device, program = twin
    empty = describe_plastic_table(network, table.projection, table.accumulators)
    grid = grid_of(network, parts, blocks)
    tally = DeviceBuildTally(network, BuildTally(network), device)
    made = draw_plastic(network, empty, parts, grid, device, program, tally)
    place = first_places(parts)[table.projection.post.index] + table.targets.astype(np.int64)
    order = np.argsort(place % blocks, kind="stable")
    segment = np.repeat(np.arange(table.segments), np.diff(table.index[:-1].astype(np.int64)))
    counts = np.zeros((blocks, table.segments + 1), np.int64)
    np.add.at(counts, (place % blocks, segment + 1), 1)
    expected = {
        "index": np.cumsum(counts, axis=1).astype(np.uint32),
        "starts": np.concatenate(([0], np.cumsum(counts.sum(axis=1))[:-1])),
        "cells": (place // blocks)[order].astype(np.uint32),
        "weights": table.weights[order].view(np.uint32),
    }
    for name, array in expected.items():
        found = device.read(getattr(made, name), array.dtype, array.size).reshape(array.shape)
        np.testing.assert_array_equal(found, array, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_the_arrays_are_the_cpus(rule: str, twin: tuple[TwinDevice, Program]) -> None:
    # The blocks of the grid, and the first target that is there, differ from case to case.
    for learning, (blocks, first) in zip(LEARNING, [(1, 0), (3, 0), (7, 0), (4, 17), (2, 0)], strict=True):
        network = described(rule, learning)
        parts = parts_of(network, 0 if rule == "to itself" else first)  # sources must be whole
        found, found_there = BuildTally(network), BuildTally(network)
        cpu = build_plastic_table(network, network.projections[0], parts[-1].accumulators, found)
        assert_cut_by_block(network, cpu, parts, blocks, twin)
        made = build(network, parts, blocks, twin, found_there)
        table = made.tables[0].table
        assert table.synapses == cpu.synapses
        assert made.hash_weights(table) == cpu.hash_weights()
        assert len(table.weights) == len(table.targets) == 0, "the host has none before somebody asks"
        made.to_host()
        for name in ("index", "targets", "weights", "eligibilities", "last", "applied", "trace", "resource"):
            np.testing.assert_array_equal(getattr(table, name), getattr(cpu, name), err_msg=f"{name} {learning}")
        assert found_there.tallies.tolist() == found.tallies.tolist()


@pytest.mark.parametrize("learning", LEARNING)
def test_the_state_of_a_rule_round_trips(learning: str, twin: tuple[TwinDevice, Program]) -> None:
    network = described("in-degree", learning)
    parts = parts_of(network)
    made = build(network, parts, 3, twin, BuildTally(network))
    table = made.tables[0].table
    cpu = build_plastic_table(network, network.projections[0], parts[-1].accumulators, BuildTally(network))
    made.take_over()
    assert (table.kind, table.trace.tolist()) == (cpu.kind, cpu.trace.tolist())
    names = ["last", "applied", "trace", "resource", "weights", *(["eligibilities"] if learning == "reward" else [])]
    names += ["post_count", "post_steps", "post_traces", "scale_count"]
    draw, given = np.random.default_rng(1), {}
    for name in names:
        array = getattr(table, name)
        array[...] = draw.integers(0, 1000, array.shape)
        given[name] = array.copy()
    made.to_device()
    made.mark_changed()
    for name in names:
        getattr(table, name)[...] = 0
    made.to_host()
    for name in names:
        np.testing.assert_array_equal(getattr(table, name), given[name], err_msg=name)


def test_building_takes_little_more_memory_than_the_synapses() -> None:
    device, network = MeasuredTwin(), Network(dt_ms=0.1, seed=5)
    cells = network.population("cells", 60, lif_delta)
    network.connect(cells, cells, FixedInDegree(2000), Uniform(0.1, 2.0), 0.5, plasticity=LEARNING["bounded"])
    parts = parts_of(network)
    grid = grid_of(network, parts, 3)
    program = device.compile(build_source(grid.shape), resident=False)
    made = build_plastic_tables(network, parts, grid, device, program, {}, lambda n: None, BuildTally(network))
    assert made.nbytes > 8 * 60 * 2000
    assert device.peak < 1.3 * made.nbytes
