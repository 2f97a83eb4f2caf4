"""The GPU's kernels on their CPU emulation: the same spikes, states, weights and counts as the CPU's engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cuda import description, grid, shard
from neuraxis.engine.cuda.program import has_lookahead
from neuraxis.engine.cuda.shard import CudaShard
from neuraxis.engine.placement import place
from neuraxis.engine.shards import make_shard
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.state import export_state, install_state, state_hash
from neuraxis.errors import InvalidArgument
from neuraxis.network import (
    STDP,
    FixedInDegree,
    FixedTotalNumber,
    Network,
    Normal,
    PairwiseBernoulli,
    Uniform,
    neuron_model,
)
from neuraxis.network.models import lif_exp, lif_exp_two, poisson_source
from neuraxis.simulation.checkpoint import SavedState, write_shard
from tests.engine.cuda.comparing import assert_same_as_cpu
from tests.engine.cuda.twin import TwinDevice, compiler
from tests.simulation import networks

pytestmark = pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")

ROOM = 1 << 18


def assert_same(network: Network, steps: list[int], **device: Any) -> CudaShard:
    return assert_same_as_cpu(network, steps, TwinDevice(**device))


def layered(shortest: float = 0.1) -> Network:
    """Models that know their spikes a step ahead, and delays from one step on: as in the cortical microcircuit."""
    network = Network(dt_ms=0.1, seed=3)
    e = network.population("E", 150, lif_exp, v_mv=Normal(-58.0, 5.0))
    i = network.population("I", 41, lif_exp_two, v_mv=Normal(-58.0, 3.0))
    delay = Normal(1.5, 0.75, low=shortest)
    network.connect(e, e, FixedTotalNumber(3000), weight=Normal(87.8, 8.7), delay_ms=delay)
    network.connect(e, i, FixedInDegree(20), weight=Normal(87.8, 8.7), delay_ms=delay)
    network.connect(i, e, PairwiseBernoulli(0.1), weight=Normal(-351.0, 35.0), delay_ms=delay)
    network.poisson(e, 12800.0, 87.8)
    network.poisson(i, 15000.0, 87.8)
    network.record(e, "spikes")
    network.record(i, "v_mv", every_ms=0.5)
    return network


def test_spikes_that_are_known_one_step_ahead() -> None:
    made = assert_same(layered(), [1, 7, 100, 200])
    assert made.grid.shape.lookahead
    assert made.grid.shape.ring_in_shared
    assert made.grid.shape.prefetched


def test_every_model_rule_and_input_with_immediate_effects() -> None:
    made = assert_same(networks.mixed_models(1), [1, 5, 120], shared_bytes=ROOM)
    assert made.grid.shape.urgent
    assert made.grid.shape.wide


def test_parameters_that_differ_between_neurons() -> None:
    assert_same(networks.every_neuron_differs(1), [1, 5, 120], shared_bytes=ROOM)


def test_models_of_equations() -> None:
    assert_same(networks.written_as_equations(1), [1, 5, 120], shared_bytes=ROOM)


def test_float64_is_refused() -> None:
    network = Network(precision="float64")
    network.population("cells", 3, lif_exp)
    placement = place(network, 1)
    with pytest.raises(InvalidArgument, match=r"float64.*runs on CPUs only"):
        CudaShard(network, placement, 0, SpikeBuffers.private(network, placement), device=TwinDevice())


def test_built_in_models_of_many_kinds() -> None:
    assert_same(networks.built_in_models_of_many_kinds(1), [1, 5, 120], shared_bytes=ROOM)


def test_every_rule_of_plasticity() -> None:
    assert_same(networks.every_neuron_learns(1), [1, 5, 150], shared_bytes=ROOM)


def test_reward_neuromodulators_and_short_term_plasticity() -> None:
    assert_same(networks.reward_and_fatigue(1), [3, 150], shared_bytes=ROOM)


def test_the_host_has_no_plastic_synapse_before_somebody_asks_for_it(tmp_path: Path) -> None:
    network = networks.reward_and_fatigue(1)
    placement, shards, files = place(network, 1), [], []
    for device in (TwinDevice(shared_bytes=ROOM), None):
        spike_buffers = SpikeBuffers.private(network, placement)
        made = make_shard(network, placement, 0, spike_buffers, lambda n: None, (), device)
        made.advance(3, 0, 0)
        made.set_level(0, 0.5)
        made.advance(40, 0, 0)
        made.freeze([0, 3])
        assert made.parts[0].spike_counts.any()
        made.advance(60, 0, 0)
        made.freeze([])
        made.advance(80, 0, 0)
        shards.append(made)
    gpu, cpu = shards
    assert gpu.plastic_synapses == cpu.plastic_synapses
    assert state_hash(gpu) == state_hash(cpu)
    assert [len(table.weights) for table in gpu.plastic_held] == [0] * 4
    for projection in (network.projections[3], network.projections[0]):
        here, there = cpu.list_synapses(projection), gpu.list_synapses(projection)
        assert {name: array.tolist() for name, array in there.items()} == {k: v.tolist() for k, v in here.items()}
    assert {table.projection.index for table in gpu.plastic_held if len(table.weights)} == {0, 3}
    # Each continues from the other's state.
    for made in shards:
        made.advance(90, 0, 0)
        folder = tmp_path / str(len(files))
        folder.mkdir()
        files.append((folder, [write_shard(folder, export_state(made), 0, {})]))
    for made, (folder, names) in zip(shards, reversed(files), strict=True):
        made.advance(100, 0, 0)
        with SavedState(folder, names) as saved:
            install_state(made, saved)
        made.advance(110, 0, 0)
    assert (gpu.events, gpu.spike_hash, state_hash(gpu)) == (cpu.events, cpu.spike_hash, state_hash(cpu))


def test_rhythms_and_more_spikes_than_lists_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "LEAST_RECORDED", 16)  # so that launches end early, for the record to be emptied
    monkeypatch.setattr(shard, "RECORDED_EACH", 0)
    made = assert_same(networks.rhythms_and_maps(1), [2, 60], shared_bytes=ROOM)
    assert int(made.spike_counts.sum()) > 10_000


def test_more_spikes_than_the_lists_hold_with_the_longest_delay() -> None:
    network = Network(dt_ms=0.1, seed=5)
    cells = network.population("cells", 1500, lif_exp, v_mv=-49.0)  # all of them spike at once
    network.connect(cells, cells, FixedInDegree(3), weight=30.0, delay_ms=Uniform(0.1, 1.6))
    made = assert_same(network, [1, 5, 30])
    assert made.grid.shape.lookahead
    assert made.grid.slots == made.longest_delay == 16


@neuron_model(states={"v": 0.0}, receptors=("input",))
def counting(v, input):
    for _ in range(int(input)):
        v = v + 1.0
    spike = v >= 3.0
    return spike, 0.0 if spike else v


def test_spikes_that_depend_on_how_often_a_loop_runs() -> None:
    assert not has_lookahead(counting, 0.1)
    network = Network(dt_ms=0.1, seed=1)
    noise = network.population("noise", 50, poisson_source(rate_hz=500.0))
    cells = network.population("cells", 50, counting)
    network.connect(noise, cells, FixedInDegree(5), weight=1.0, delay_ms=0.1)
    made = assert_same(network, [100])
    assert made.spike_counts[1] > 0


def test_more_models_than_the_kernels_support() -> None:
    network = Network()
    for number in range(130):
        other = replace(counting, source=counting.source.replace("3.0", f"{number}.5"))
        network.population(f"p{number}", 1, other)
    placement = place(network, 1)
    with pytest.raises(InvalidArgument, match=r"130 different models .* can have 128"):
        make_shard(
            network, placement, 0, SpikeBuffers.private(network, placement), lambda n: None, (),
            TwinDevice(shared_bytes=ROOM),
        )  # fmt: skip


def test_delays_of_many_steps_and_plastic_ones_among_them() -> None:
    made = assert_same(networks.shortest_delay_15(1), [1, 400], shared_bytes=ROOM)
    assert made.grid.shape.lag == 14


def test_states_and_rings_in_the_memory_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_ROWS", 1)
    made = assert_same(networks.regions_far_apart(1), [1, 150], shared_bytes=20_000)
    assert not made.grid.shape.states_in_registers
    assert not made.grid.shape.ring_in_shared


def large(delay_ms: Uniform | float, seed: int) -> Network:
    """Two populations with a drive and a current; more neurons than a thread of the twin handles at once."""
    network = Network(dt_ms=0.1, seed=seed)
    a = network.population("a", 900, lif_exp(), v_mv=Normal(-58.0, 5.0))
    b = network.population("b", 300, lif_exp_two, v_mv=Normal(-58.0, 5.0))
    for one, inputs, weight in ((a, 10, 87.8), (b, 5, -351.0)):
        network.connect(one, a, FixedInDegree(inputs), weight=weight, delay_ms=delay_ms)
        network.connect(one, b, FixedInDegree(inputs), weight=Normal(weight, 8.0), delay_ms=delay_ms)
    network.poisson(a, 14000.0, 87.8)
    network.poisson(b, 16000.0, 87.8)
    network.current(b, 50.0, start_ms=2.0)
    network.record(a, "spikes")
    network.record(b, "v_mv", every_ms=0.7)
    return network


@pytest.mark.parametrize(
    ("delay_ms", "slots"), [(1.5, 1), (Uniform(1.2, 1.8), 8), (0.1, 1), (Uniform(0.1, 3.0), 32)], ids=str
)
@pytest.mark.parametrize("listed", [4, 8192])
def test_networks_with_more_neurons_than_registers_hold(
    delay_ms: Uniform | float, slots: int, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "MOST_THREADS", 16)
    monkeypatch.setattr(grid, "LIST", 16)
    monkeypatch.setattr(grid, "LONGEST_LIST", listed)
    made = assert_same(large(delay_ms, 1), [1, 30, 150], shared_bytes=ROOM)
    shape = made.grid.shape
    assert not shape.states_in_registers
    assert shape.compact
    assert shape.lookahead == (shape.lag == 0) == (made.grid.first_delay == 1)
    assert (made.grid.slots, shape.one_slot) == (slots, slots == 1)
    assert made.spike_counts.sum() > 100


@pytest.mark.parametrize("room", [2, 5000])
@pytest.mark.parametrize("delay_ms", [Uniform(0.1, 3.0), Uniform(1.2, 5.0)], ids=str)
def test_queues_of_the_slots_of_a_large_ring(room: int, delay_ms: Uniform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_THREADS", 16)
    monkeypatch.setattr(grid, "LARGEST_RING", 0)
    monkeypatch.setattr(grid, "LEAST_QUEUE", room)
    monkeypatch.setattr(grid, "QUEUE_SHARE", 1 << 20)
    network = large(delay_ms, 3)
    b = network["b"]
    network.connect(b, b, FixedInDegree(3), weight=20.0, delay_ms=1.0, plasticity=STDP(w_max=40.0))
    made = assert_same(network, [1, 2, 3, 30, 100], shared_bytes=48 << 10)
    assert made.grid.shape.queued
    assert made.grid.queue_room == room
    assert made.spike_counts.sum() > 100


def test_poisson_inputs_with_many_spikes_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(dt_ms=0.1, seed=6)
    each = np.full(30, 900_000.0)
    each[3] = 0.0
    for number, rates in enumerate(([1_600_000.0], [5_000_000.0], [320_000.0, 9000.0], [each], [each[:3], 200_000.0])):
        cells = network.population(f"cells_{number}", 3 if len(rates) == 2 else 30, lif_exp(refractory_ms=0.5))
        for rate in rates:
            network.poisson(cells, rate, 2_000_000.0 / np.max(rate))
        network.poisson(cells, 700_000.0, 0.3, start_ms=2.0, stop_ms=4.0)
        network.record(cells, "v_mv", every_ms=0.1)
    made = assert_same(network, [1, 30, 100], shared_bytes=ROOM)
    assert np.all(np.asarray(made.spike_counts) > 0)
    monkeypatch.setattr(description, "MOST_WORDS", 700)  # tables beyond are not in shared memory
    assert_same(network, [50], shared_bytes=ROOM)


def test_neurons_of_a_few_synapses_have_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "FEW_SEGMENTS", 100)
    made = assert_same(large(1.5, 2), [1, 30, 100], shared_bytes=ROOM, multiprocessors=12)
    assert made.grid.shape.states_in_registers
    assert made.grid.shape.compact


@pytest.mark.parametrize("name", ["driven", "tiny_populations", "inputs_alone", "one_long_delay", "mixed_models"])
def test_all_networks_for_longer(name: str) -> None:
    assert_same(getattr(networks, name)(1), [1, 5, 150, 400], shared_bytes=ROOM)


def test_several_neurons_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_THREADS", 64)
    made = assert_same(networks.driven(1), [1, 250], shared_bytes=ROOM, multiprocessors=4)
    assert made.grid.shape.neurons_per_thread == 2


def test_histories_of_target_spikes_that_must_grow() -> None:
    """Neurons that spike in nearly every step, with plastic inputs that are felt much later."""
    network = Network(dt_ms=0.1, seed=2)
    cells = network.population("cells", 30, lif_exp(refractory_ms=0.0), v_mv=-50.0)
    network.current(cells, 20000.0)
    network.connect(cells, cells, FixedInDegree(5), 10.0, 20.0, plasticity=STDP.additive(w_max=60.0))
    network.connect(cells, cells, FixedInDegree(5), 1.0, Uniform(1.0, 6.0))
    network.record(cells)
    made = assert_same(network, [1, 800])
    assert made.plastic_held[0].post_steps.shape[1] > 64
