"""The cerebellum: the error shrinks in each context and for each output; sparse granule cells; construction."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neuraxis.brain.region import Afferent, BuiltRegion
from neuraxis.brain.regions.cerebellum import Cerebellum, CerebellumConfig, create_cerebellum_region
from neuraxis.brain.regions.sources import rate_source, thresholds
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, OneToOne, PairwiseBernoulli
from neuraxis.simulation.simulation import Simulation

SEED = 1
GROUPS, MOSSY, FIBRES = 4, 40, 4  # FIBRES: climbing fibres of a group
TRIALS, TRIAL_MS, REST_MS = 40, 150.0, 75.0
CONTEXT_HZ, BALANCE_HZ, GAIN = 100.0, 10.0, 0.5
TARGETS_HZ = np.array([[40.0, 90.0, 45.0, 95.0], [95.0, 45.0, 90.0, 40.0]])

Rates = NDArray[np.float64]


class Loop:
    """Two contexts in turn; the error of the nuclei in one trial sets the climbing rates when its context comes again.

    `errors` are (trial, context, output), `granule` the spikes of granule cells in each (trial, context).
    """

    def __init__(self, teaching: bool = True) -> None:
        self.network = Network(seed=SEED)
        region = create_cerebellum_region()
        self.built = region.build(self.network, "cb")
        context = self.network.population("context", MOSSY, rate_source)
        error = self.network.population("error", GROUPS * FIBRES, rate_source)
        self.network.connect(context, self.built.input("mossy"), OneToOne(), 20.0)
        region.receive(
            self.network,
            self.built,
            Afferent("error", error, GROUPS, 1.0, port="climbing", topographic=True),
        )
        self.simulation = Simulation(self.network, progress=False)
        if not teaching:
            self.simulation.freeze(*(f"cb.parallel.{group}" for group in range(GROUPS)))
        fibres = np.random.default_rng(SEED).permutation(MOSSY)
        contexts = [fibres[:12], fibres[12:24]]
        last = np.zeros((2, GROUPS))
        self.errors = np.zeros((TRIALS, 2, GROUPS))
        self.granule = np.zeros((TRIALS, 2, self.built.populations["granule"].n), np.int64)
        for trial in range(TRIALS):
            for which, active in enumerate(contexts):
                rates = np.zeros(MOSSY)
                rates[active] = CONTEXT_HZ
                granule = self.simulation.spike_counts("cb.granule").copy()
                nuclei = self.run(rates, np.clip(BALANCE_HZ + GAIN * last[which], 0.0, 30.0), TRIAL_MS)
                self.granule[trial, which] = self.simulation.spike_counts("cb.granule") - granule
                self.errors[trial, which] = last[which] = TARGETS_HZ[which] - nuclei
                self.run(np.zeros(MOSSY), np.full(GROUPS, BALANCE_HZ), REST_MS)

    def run(self, mossy_hz: Rates, climbing_hz: Rates, time_ms: float) -> Rates:
        """The rates of the nuclei, one for each output."""
        self.simulation.set_state("context", "threshold", thresholds(mossy_hz, 0.1))
        self.simulation.set_state("error", "threshold", thresholds(np.repeat(climbing_hz, FIBRES), 0.1))
        before = self.simulation.spike_counts("cb.nuclei").copy()
        self.simulation.advance(round(time_ms * 10))
        spikes = self.simulation.spike_counts("cb.nuclei") - before
        return np.asarray(spikes.reshape(GROUPS, -1).mean(axis=1) / (time_ms * 1e-3))


@dataclass
class Loops:
    taught: Loop
    untaught: Loop


@pytest.fixture(scope="module")
def loops() -> Loops:
    return Loops(Loop(), Loop(teaching=False))


# --- what it does ---


def test_the_error_shrinks_in_each_context(loops: Loops) -> None:
    sizes = np.abs(loops.taught.errors)
    for context in (0, 1):
        first, last = sizes[0, context].mean(), sizes[-10:, context].mean()
        assert first > 20.0
        assert last < 0.5 * first


def test_each_output_is_learned(loops: Loops) -> None:
    """The rest is noise: averaged over the last trials, every output is near its target in both contexts."""
    means = loops.taught.errors[-15:].mean(axis=0)
    assert np.abs(means).max() < 18.0
    assert np.abs(means).mean() < 10.0


def test_without_learning_the_error_stays(loops: Loops) -> None:
    sizes = np.abs(loops.untaught.errors)
    assert sizes[-10:].mean() > 0.85 * sizes[:10].mean()
    weights = np.concatenate([loops.untaught.simulation.weights(f"cb.parallel.{g}") for g in range(GROUPS)])
    assert np.unique(weights).size == 1


def test_granule_cells_are_sparse_and_separate_contexts(loops: Loops) -> None:
    total = loops.untaught.granule.sum(axis=0).astype(np.float64)
    assert 0.02 < (loops.untaught.granule > 1).mean() < 0.2
    assert total[0] @ total[1] / np.sqrt(total[0] @ total[0] * (total[1] @ total[1])) < 0.2


def test_parallel_fibres_lose_with_climbing_spikes_and_gain_without() -> None:
    for climbing_hz, sign in ((30.0, -1), (0.0, 1)):
        network = Network(seed=SEED)
        region = create_cerebellum_region()
        built = region.build(network, "cb")
        context = network.population("context", MOSSY, rate_source)
        network.connect(context, built.input("mossy"), OneToOne(), 20.0)
        error = network.population("error", GROUPS, rate_source)
        afferent = Afferent("error", error, GROUPS, 1.0, port="climbing", topographic=True)
        region.receive(network, built, afferent)
        with Simulation(network, progress=False) as simulation:
            simulation.set_state("context", "threshold", thresholds(np.repeat([100.0, 0.0], [12, 28]), 0.1))
            # The first output has the error, the others are at the balance.
            rates = np.array([climbing_hz, *[BALANCE_HZ] * 3])
            simulation.set_state("error", "threshold", thresholds(rates, 0.1))
            before = [simulation.weights(f"cb.parallel.{group}") for group in (0, 1)]
            simulation.advance(10000)
            active = np.flatnonzero(simulation.spike_counts("cb.granule") >= 15)
            silent = np.flatnonzero(simulation.spike_counts("cb.granule") == 0)
            changes = []
            for group in (0, 1):
                synapses = simulation.synapses(f"cb.parallel.{group}")
                change = synapses["weight"] - before[group]
                changes.append(float(change[np.isin(synapses["pre"], active)].mean()))
                assert np.all(change[np.isin(synapses["pre"], silent)] == 0)
        assert sign * changes[0] > 0.1
        assert abs(changes[1]) < abs(changes[0])


def settled(nuclei_to_climbing: float, parallel_mv: float) -> float:
    """The mean weight after 40 trials of four contexts without errors, at a quick learning, from a first weight."""
    network = Network(seed=SEED)
    region = create_cerebellum_region(
        {"learning_rate": 0.2, "nuclei_to_climbing": nuclei_to_climbing, "parallel_mv": parallel_mv}
    )
    built = region.build(network, "cb")
    context = network.population("context", MOSSY, rate_source)
    error = network.population("error", GROUPS * FIBRES, rate_source)
    network.connect(context, built.input("mossy"), OneToOne(), 20.0)
    region.receive(network, built, Afferent("error", error, GROUPS, 1.0, port="climbing", topographic=True))
    with Simulation(network, progress=False) as simulation:
        simulation.set_state("error", "threshold", thresholds(np.full(GROUPS * FIBRES, BALANCE_HZ), 0.1))
        for trial in range(40):
            shown = np.zeros(MOSSY)
            shown[trial % 4 * 10 :][:10] = 80.0
            simulation.set_state("context", "threshold", thresholds(shown, 0.1))
            simulation.advance(4000)
        return float(np.mean([simulation.weights(f"cb.parallel.{group}").mean() for group in range(GROUPS)]))


def test_weights_come_back_from_their_bounds_when_there_are_no_errors() -> None:
    """The nuclei inhibit the olive; without that, the weights follow noise only."""
    from_below, from_above = settled(0.15, 0.02), settled(0.15, 1.5)
    assert 0.1 < from_below < 1.0
    assert 0.1 < from_above < 1.0
    assert settled(0.0, 0.02) < 0.7 * from_below


def test_nothing_is_learned_before_there_are_climbing_fibres() -> None:
    network = Network(seed=SEED)
    built = create_cerebellum_region().build(network, "cb")
    context = network.population("context", MOSSY, rate_source)
    network.connect(context, built.input("mossy"), OneToOne(), 20.0)
    with Simulation(network, progress=False) as simulation:
        simulation.set_state("context", "threshold", thresholds(np.full(MOSSY, 50.0), 0.1))
        simulation.advance(2000)
        assert simulation.spike_counts("cb.granule").sum() > 100
        assert np.unique(simulation.weights("cb.parallel.0")).size == 1


# --- how it is made ---


def test_default_sizes_and_ports() -> None:
    network = Network()
    built = create_cerebellum_region().build(network, "cb")
    sizes = {short: population.n for short, population in built.populations.items()}
    assert sizes == {"mossy": 40, "granule": 400, "golgi": 10, "purkinje": 40, "nuclei": 20, "climbing": 16}
    assert (built.input().name, built.input("climbing").name) == ("cb.mossy", "cb.climbing")
    assert built.output().name == "cb.nuclei"
    assert built.inhibitory == {"golgi", "purkinje"}
    assert built.groups == GROUPS


def test_small_and_without_plasticity() -> None:
    network = Network()
    config = {
        "mossy": 3, "granule": 5, "golgi": 1, "purkinje": 3, "nuclei": 2, "climbing": 2, "groups": 2, "plastic": False
    }  # fmt: skip
    create_cerebellum_region(config).build(network, "cb")
    with Simulation(network, progress=False) as simulation:
        simulation.advance(100)
    assert network.neuromodulators == ()


def test_another_process_makes_the_same() -> None:
    region = pickle.loads(pickle.dumps(create_cerebellum_region({"granule": 100})))
    networks = [Network(seed=3), Network(seed=3)]
    region.build(networks[0], "cb")
    Cerebellum(CerebellumConfig(granule=100)).build(networks[1], "cb")
    assert networks[0] == networks[1]


def received(groups: int = 4, **changed: Any) -> tuple[Network, BuiltRegion, Any]:
    network = Network()
    region = create_cerebellum_region()
    built = region.build(network, "cb")
    source = network.population("cortex", 60, rate_source)
    afferent = Afferent(name="path", source=source, source_groups=groups, delay_ms=3.0, **changed)
    return network, built, region.receive(network, built, afferent)[0]


def test_pathways_as_they_are_by_default() -> None:
    network, built, made = received()
    assert (made.post, made.rule, made.weight.value) == (
        built.populations["mossy"],
        FixedInDegree(4, multapses=False),
        15.0,
    )
    assert "cb.balance" not in network
    network, built, made = received(port="climbing")
    assert (made.post, made.rule, made.weight.value) == (
        built.populations["climbing"],
        FixedInDegree(1, multapses=False),
        20.0,
    )
    assert "cb.balance" in network


def test_two_climbing_pathways() -> None:
    network, built, _ = received(port="climbing", topographic=True)
    another = network.population("sense", 8, rate_source)
    afferent = Afferent("second", another, GROUPS, 1.0, port="climbing", topographic=True)
    create_cerebellum_region().receive(network, built, afferent)
    assert len(network.modulations) == 2 * GROUPS


def test_a_pathway_as_it_is_asked_for() -> None:
    assert received(weight=7.0, in_degree=3)[2].weight.value == 7.0
    assert received(probability=0.5)[2].rule == PairwiseBernoulli(0.5)
    assert received(topographic=True, in_degree=2)[2].rule == FixedInDegree(2, multapses=False, groups=4)


@pytest.mark.parametrize(
    ("groups", "changed", "words"),
    [
        (3, {"topographic": True}, ["3", "4", "cortex", "cb"]),
        (4, {"plasticity": "stdp"}, ["path", "stdp"]),
        (4, {"port": "nuclei"}, ["nuclei", "mossy"]),
    ],
)
def test_a_pathway_that_cannot_be(groups: int, changed: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        received(groups, **changed)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("config", [{"purkinje": 3}, {"groups": 0}, {"parallel_mv": 9.0}, {"unknown": 1}])
def test_a_configuration_that_cannot_be(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(config))):
        create_cerebellum_region(config)
