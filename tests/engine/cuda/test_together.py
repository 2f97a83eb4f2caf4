"""Shards on GPUs next to shards on GPUs and CPUs: the same spikes, states and counts as one shard on the CPU."""

from __future__ import annotations

import pytest

from neuraxis.engine.placement import Placement, Slice, check_placement, place_on_devices
from neuraxis.network import STDP, AllToAll, FixedInDegree, Network, Normal, Uniform, neuron_model
from neuraxis.network.models import lif_exp, poisson_source
from tests.engine.cuda.shards import run_together
from tests.engine.cuda.twin import compiler
from tests.simulation import networks

pytestmark = pytest.mark.skipif(compiler() is None, reason="the twin of a GPU needs g++")

STOPS = (1, 7, 60, 61, 150)


def spiking(delay_ms: Normal | Uniform | float) -> Network:
    """Cut into three, all shards have the same kernels, which take seconds to compile."""
    network = Network(dt_ms=0.1, seed=5)
    a = network.population("a", 210, lif_exp(), v_mv=Normal(-58.0, 5.0))
    b = network.population("b", 192, lif_exp(), v_mv=Normal(-58.0, 5.0))
    network.connect(a, a, FixedInDegree(15), weight=Normal(87.8, 8.7), delay_ms=delay_ms)
    network.connect(a, b, FixedInDegree(20), weight=Normal(87.8, 8.7), delay_ms=delay_ms)
    network.connect(b, a, FixedInDegree(5), weight=Normal(-351.0, 35.0), delay_ms=delay_ms)
    network.poisson(a, 13000.0, 87.8)
    network.poisson(b, 15000.0, 87.8)
    network.record(a, "spikes")
    network.record(b, "spikes")
    return network


DELAYS = {
    "next step": Normal(1.5, 0.75, low=0.1),
    "two steps": Uniform(0.2, 1.5),
    "far apart": Uniform(1.5, 20.0),
}
KINDS = [(delay, kinds) for delay in DELAYS for kinds in ("gcg", "cgc")] + [("far apart", "ggg")]


@pytest.fixture(scope="module")
def alone() -> dict[str, object]:
    return {name: run_together(spiking(delay), "c", STOPS) for name, delay in DELAYS.items()}


@pytest.mark.parametrize(("delay", "kinds"), KINDS)
def test_the_same_as_one_on_the_cpu(alone: dict[str, object], delay: str, kinds: str) -> None:
    network = spiking(DELAYS[delay])
    for first in range(2):
        assert run_together(network, kinds, STOPS, first=first) == alone[delay]


@pytest.mark.parametrize("delay", DELAYS)
def test_the_same_result_without_intermediate_reads(delay: str) -> None:
    network = spiking(DELAYS[delay])
    expected = run_together(network, "c", STOPS, look=False)
    assert run_together(network, "ggc", STOPS, look=False) == expected


def test_spikes_are_received_as_on_the_cpu() -> None:
    network = spiking(DELAYS["far apart"])
    assert run_together(network, "gcg", STOPS).received == run_together(network, "ccc", STOPS).received


def apart(network: Network) -> Placement:
    """Every population on a shard of its own."""
    return tuple((Slice(one.index, 0, one.n),) for one in network.populations)


def test_remote_spikes_that_arrive_in_the_next_step() -> None:
    network = spiking(DELAYS["next step"])
    assert run_together(network, "cg", STOPS, apart(network)) == run_together(network, "c", STOPS)


@neuron_model(states={"v": 0.0}, signals={"level": 0.0})
def follower(v, level):
    return False, level


@pytest.mark.parametrize("connected", [True, False])
def test_a_level_that_spikes_of_another_shard_release(connected: bool) -> None:
    network = Network(dt_ms=0.1, seed=3)
    noise = network.population("noise", 80, poisson_source(rate_hz=200.0))
    network.neuromodulator("dopamine", tau_ms=5.0)
    cells = network.population("cells", 6, follower(level="dopamine"))
    network.modulate(noise, "dopamine", amount=0.25, delay_ms=0.5)
    network.modulate(noise, "dopamine", amount=-0.25, delay_ms=2.0)
    if connected:
        fed = network.population("fed", 5, lif_exp)
        network.connect(noise, fed, AllToAll(), weight=50.0, delay_ms=1.5)
    network.record(noise, "spikes")
    here = [Slice(one.index, 0, one.n) for one in network.populations]
    placement = ((here[0],), tuple(here[1:]))
    assert cells.index in [part.population for part in placement[1]]
    assert run_together(network, "cg", STOPS, placement) == run_together(network, "c", STOPS)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("every_neuron_learns", "gc"),
        ("every_neuron_learns", "gg"),
        ("every_neuron_learns", "cgc"),
        ("reward_and_fatigue", "cg"),
        ("shortest_delay_15", "gcg"),
        ("regions_far_apart", "gg"),
        ("rhythms_and_maps", "gcg"),
    ],
)
def test_synapses_that_learn_between_shards(name: str, kinds: str) -> None:
    network = getattr(networks, name)(1)
    assert run_together(network, kinds, STOPS) == run_together(network, "c", STOPS)


# --- placement ---


def apart_or_not() -> Network:
    network = Network(dt_ms=0.1, seed=1)
    for name, n in {"a": 1000, "b": 500, "c": 400, "d": 300, "user": 1}.items():
        network.population(name, n, lif_exp)
    network.connect("a", "b", FixedInDegree(10), weight=1.0, plasticity=STDP.additive(w_max=2.0))
    network.connect("c", "d", FixedInDegree(10), weight=1.0)
    return network


@pytest.mark.parametrize("gpus", [(True, False), (False, True, False), (True, True), (True, False, True)], ids=str)
def test_gpus_run_all_populations_except_those_next_to_python_ones(gpus: tuple[bool, ...]) -> None:
    network = apart_or_not()
    placement = place_on_devices(network, gpus, [{4}])
    check_placement(network, placement, len(gpus))
    on_cpu = [part.population for gpu, slices in zip(gpus, placement, strict=True) for part in slices if not gpu]
    assert on_cpu == ([] if all(gpus) else [4])
