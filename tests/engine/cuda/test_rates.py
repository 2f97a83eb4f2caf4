"""Continuous connections on the CPU emulation of a GPU: the outputs, sums and hashes of the CPU's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.cuda import grid, shard
from neuraxis.engine.placement import Placement, Slice, place
from neuraxis.engine.shards import make_shard
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.state import export_state, install_state, state_hash
from neuraxis.network import FixedInDegree, Network, Normal, OneToOne, Uniform
from neuraxis.network.models import lif_exp, rate_linear, rate_tanh
from neuraxis.simulation.checkpoint import SavedState, write_shard
from tests.engine.cuda.comparing import assert_same_as_cpu
from tests.engine.cuda.shards import Together, run_together
from tests.engine.cuda.twin import TwinDevice, compiler
from tests.engine.test_rates import counter, relay, summed
from tests.simulation import networks

pytestmark = pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")

STOPS = (1, 7, 60, 61, 150)
ROOM = 1 << 18


def far_apart() -> Network:
    """Lags of many steps, of which all are less than the longest, and a population that nobody reads."""
    network = Network(dt_ms=0.1, seed=3)
    a = network.population("a", 130, rate_tanh(sigma=0.5), rate=Uniform(-1.0, 1.0))
    b = network.population("b", 90, rate_linear(mean=0.2), rate=0.1)
    c = network.population("c", 40, rate_linear(), rate=Normal(0.0, 1.0))
    network.connect_rates(a, b, FixedInDegree(k=9), weight=Normal(0.1, 0.1), delay_ms=Uniform(1.2, 12.0))
    network.connect_rates(b, a, FixedInDegree(k=5), weight=Normal(-0.1, 0.1), delay_ms=Uniform(2.0, 4.0))
    network.connect_rates(a, c, FixedInDegree(k=5), weight=0.2, delay_ms=1.0)
    return network


# --- one shard ---


def test_the_conformance_network_in_windows_of_several_steps() -> None:
    made = assert_same_as_cpu(networks.continuous(1), [1, 5, 60, 150], TwinDevice(shared_bytes=ROOM))
    assert made.grid.shape.states_in_registers
    assert made.grid.shape.rate_inputs == 2
    assert made.rates.synapses > 30_000


def test_states_in_the_memory_of_the_card_and_threads_in_the_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_ROWS", 1)
    made = assert_same_as_cpu(networks.continuous(1), [1, 150], TwinDevice(7, shared_bytes=20_000, backwards=True))
    assert not made.grid.shape.states_in_registers


def test_the_order_of_sums_of_several_projections() -> None:
    made = assert_same_as_cpu(summed(), [1, 7, 40], TwinDevice(shared_bytes=ROOM))
    assert np.abs(made.parts[1].state("rate")).max() > 0.1


def test_lags_of_many_steps() -> None:
    made = assert_same_as_cpu(far_apart(), [1, 300], TwinDevice())
    assert made.grid.shape.lag > 5


# --- several shards ---


@pytest.fixture(scope="module")
def alone() -> dict[str, Together]:
    made = {"continuous": networks.continuous(1), "far": far_apart()}
    return {name: run_together(network, "c", STOPS) for name, network in made.items()}


def on_twin() -> TwinDevice:
    return TwinDevice(shared_bytes=ROOM)


@pytest.mark.parametrize("kinds", ["gcg", "cgc", "gg"])
def test_shards_on_gpus_and_cpus(alone: dict[str, Together], kinds: str) -> None:
    for first in range(2):
        found = run_together(networks.continuous(1), kinds, STOPS, first=first, device=on_twin)
        assert found == alone["continuous"]


@pytest.mark.parametrize("kinds", ["gcg", "ggg"])
def test_shards_that_are_far_apart(alone: dict[str, Together], kinds: str) -> None:
    assert run_together(far_apart(), kinds, STOPS, device=on_twin) == alone["far"]
    # Populations on shards of their own have lags that differ.
    apart: Placement = tuple((Slice(one.index, 0, one.n),) for one in far_apart().populations)
    assert run_together(far_apart(), kinds, STOPS, apart, device=on_twin) == alone["far"]


def test_without_intermediate_reads_and_with_launches_that_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "LEAST_RECORDED", 16)
    monkeypatch.setattr(shard, "RECORDED_EACH", 0)
    network = far_apart()
    busy = network.population("busy", 60, lif_exp(refractory_ms=0.0), v_mv=-50.0)
    network.current(busy, 20000.0)
    network.record(busy)
    expected = run_together(network, "c", (300,), look=False)
    assert int(expected.counts[3]) > 5000
    assert run_together(network, "gg", (300,), look=False, device=on_twin) == expected


# --- saved states, silence, time that is skipped ---


def shards_of(network: Network, kinds: str) -> tuple[list[Shard], Placement]:
    placement = place(network, len(kinds))
    buffers = SpikeBuffers.private(network, placement)
    return [
        make_shard(network, placement, me, buffers, lambda n: None, (), on_twin() if kind == "g" else None)
        for me, kind in enumerate(kinds)
    ], placement


def run(shards: list[Shard], step: int) -> tuple[int, int, int]:
    """Run to a step; return events, hash and states of all."""
    while any(one.step < step for one in shards):
        for one in shards:
            one.advance(step, 0, 0)
            one.take_recorded()
    return (
        sum(one.events for one in shards),
        sum(one.spike_hash for one in shards) % 2**64,
        sum(state_hash(one) for one in shards) % 2**64,
    )


def outputs_of(shards: list[Shard]) -> dict[int, list[Any]]:
    """Return the outputs in transit by population, in the order of neurons."""
    found: dict[int, list[Any]] = {}
    for one in shards:
        for population, saved in export_state(one).outputs.items():
            found.setdefault(population, []).extend(saved.values.view(np.uint32).tolist())
    return found


def test_states_saved_on_one_kind_and_restored_on_the_other(tmp_path: Path) -> None:
    network = networks.continuous(1)
    cpu, one, two = (shards_of(network, kinds)[0] for kinds in ("c", "g", "gc"))
    everywhere = (cpu, one, two)
    for step in (33, 80):
        assert run(one, step) == run(two, step) == run(cpu, step)
        assert outputs_of(one) == outputs_of(two) == outputs_of(cpu)
        if step == 33:
            for shards in everywhere:
                for made in shards:
                    made.silence([1])  # one that all others read
    files = []
    for number, shards in enumerate(everywhere):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append((folder, [write_shard(folder, export_state(made), i, {}) for i, made in enumerate(shards)]))
        for made in shards:
            made.silence([])
    expected = run(cpu, 100)
    # Each continues from the state of another: the CPU from the GPU, the GPU from two shards, those from the CPU.
    for shards, (folder, names) in zip(everywhere, files[1:] + files[:1], strict=True):
        with SavedState(folder, names) as saved:
            for made in shards:
                install_state(made, saved)
        assert outputs_of(shards) == outputs_of(cpu)
    for shards in everywhere:
        for made in shards:
            made.silence([])
    assert run(cpu, 100) == run(one, 100) == run(two, 100) == expected


def test_outputs_are_0_before_a_step_that_was_jumped_to() -> None:
    network = Network(dt_ms=0.1)
    source = network.population("source", 9, counter, rate=10.0)
    target = network.population("target", 9, relay)
    network.connect_rates(source, target, OneToOne(), weight=1.0, delay_ms=[0.1, 0.3, 0.7] * 3)
    network.record(target, "rate")
    found = []
    for kinds in "cg":
        (made,), _ = shards_of(network, kinds)
        made.advance(5, 0, 0)
        made.jump(50)
        made.publish()
        made.advance(60, 0, 0)
        found.append((made.spike_hash, made.take_recorded()[2].view(np.float32).reshape(-1, 9)))
    (here, values), (there, on_device) = found
    assert there == here
    assert on_device.tolist() == values.tolist()
    assert values[5:, 2].tolist() == [0.0] * 7 + [15.0, 16.0, 17.0]
