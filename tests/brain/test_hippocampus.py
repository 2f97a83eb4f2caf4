"""The hippocampus: separation, one-shot storage and completion, the phases of theta, comparison."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neuraxis.brain.models.sources import rate_source, thresholds
from neuraxis.brain.region import Afferent, BuiltRegion
from neuraxis.brain.regions.hippocampus import Hippocampus, HippocampusConfig, create_hippocampus_region
from neuraxis.errors import InvalidArgument
from neuraxis.execution.simulation import Simulation
from neuraxis.network import FixedInDegree, Network, OneToOne, PairwiseBernoulli

SEED = 6
EC, ACTIVE, RATE_HZ = 100, 20, 40.0
THETA_HZ = 8.0
PATTERNS = 3
LEARNED = ("hc.EC->hc.CA3", "hc.CA3->hc.CA3", "hc.CA3->hc.CA1")

Counts = NDArray[np.int64]


@dataclass
class Bench:
    """A hippocampus each of whose EC cells has a source of its own."""

    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = Network(seed=SEED)
        self.built = create_hippocampus_region(self.config).build(self.network, "hc")
        source = self.network.population("cortex", EC, rate_source)
        self.network.connect(source, self.built.input("EC"), OneToOne(), 20.0)
        for population in self.built.populations.values():
            self.network.record(population)
        self.simulation = Simulation(self.network, progress=False)

    def show(self, pattern: Counts, time_ms: float) -> tuple[float, float]:
        """Let these cells of EC fire, then half a second of rest; when it was."""
        rates = np.zeros(EC)
        rates[pattern] = RATE_HZ
        begun = self.simulation.time_ms
        self.simulation.set_state("cortex", "threshold", thresholds(rates, 0.1))
        self.simulation.advance(round(time_ms * 10))
        ended = self.simulation.time_ms
        self.simulation.set_state("cortex", "threshold", thresholds(np.zeros(EC), 0.1))
        self.simulation.advance(5000)
        return begun, ended

    def counts(self, short: str, window: tuple[float, float], half: str = "both") -> Counts:
        """Spikes of each cell in a time; of the half of each cycle around theta's trough or peak only."""
        times, ids = self.simulation.spikes(f"hc.{short}")
        keep = (times > window[0]) & (times <= window[1])
        trough = np.abs(phases(times) - 0.5) < 0.25
        keep &= {"both": np.ones_like(keep), "trough": trough, "peak": ~trough}[half]
        return np.bincount(ids[keep], minlength=self.built.populations[short].n)


def phases(times_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    return (times_ms * THETA_HZ * 1e-3) % 1.0


def mean_phase(times_ms: NDArray[np.float64]) -> tuple[float, float]:
    """The mean phase (0 is the peak of theta), and how strongly the times are tied to it, from 0 to 1."""
    mean = np.exp(2j * np.pi * phases(times_ms)).mean()
    return float(np.angle(mean) / (2 * np.pi)) % 1.0, float(abs(mean))


def similarity(a: Counts, b: Counts) -> float:
    """The cosine of two vectors of spike counts."""
    return float(a @ b / max(1.0, np.sqrt(float(a @ a) * float(b @ b))))


def overlap(a: Counts, b: Counts) -> float:
    """What two sets of cells share, relative to the geometric mean of their sizes."""
    return len(np.intersect1d(a, b)) / max(1.0, np.sqrt(len(a) * len(b)))


def patterns(n: int) -> list[Counts]:
    drawing = np.random.default_rng(SEED)
    return [drawing.permutation(EC)[:ACTIVE] for _ in range(n)]


@dataclass
class Memory:
    """Three patterns, each shown once for a second; the cells of CA3 that stand for them; then halves of them."""

    bench: Bench
    learns: bool = True
    stored: list[Counts] = field(default_factory=list)
    recalled: list[Counts] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.learns:
            self.bench.simulation.freeze(*LEARNED)
        shown = [self.bench.show(pattern, 1000.0) for pattern in patterns(PATTERNS)]
        self.stored = [np.flatnonzero(self.bench.counts("CA3", when, "trough") >= 3) for when in shown]
        self.bench.simulation.freeze(*LEARNED)
        self.cues = [self.bench.show(pattern[: ACTIVE // 2], 500.0) for pattern in patterns(PATTERNS)]
        self.recalled = [np.flatnonzero(self.bench.counts("CA3", when, "peak") >= 2) for when in self.cues]


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory(Bench())


@pytest.fixture(scope="module")
def unlearned() -> Memory:
    return Memory(Bench(), learns=False)


# --- what it does ---


def test_similar_patterns_are_separated(unlearned: Memory) -> None:
    bench = unlearned.bench
    drawing = np.random.default_rng(SEED + 1)
    pairs = []
    for _ in range(4):
        drawn = drawing.permutation(EC)
        first, others = drawn[:ACTIVE], drawn[ACTIVE:]
        shared = 7 * ACTIVE // 10
        similar = np.concatenate([first[:shared], others[: ACTIVE - shared]])
        a, b, again = (bench.show(pattern, 500.0) for pattern in (first, similar, first))
        pairs.append(
            (
                similarity(bench.counts("EC", a), bench.counts("EC", b)),
                similarity(bench.counts("DG", a), bench.counts("DG", b)),
                similarity(bench.counts("DG", a), bench.counts("DG", again)),
            )
        )
    inputs, outputs, repeated = np.mean(pairs, axis=0)
    assert inputs > 0.6
    assert outputs < inputs / 2
    assert repeated > 1.5 * outputs  # it is the pattern that counts, not chance


def test_few_granule_cells_are_active(unlearned: Memory) -> None:
    begun = unlearned.cues[-1][1] + 500.0
    window = unlearned.bench.show(patterns(1)[0], 500.0)
    assert window[0] >= begun
    times, ids = unlearned.bench.simulation.spikes("hc.DG")
    shown = (times > window[0]) & (times <= window[1])
    cycles = np.floor((times[shown] - window[0]) * THETA_HZ * 1e-3)
    active = len(set(zip(cycles, ids[shown], strict=True))) / 4 / unlearned.bench.built.populations["DG"].n
    assert 0.01 < active < 0.05


def test_half_a_pattern_recalls_all_of_it(memory: Memory, unlearned: Memory) -> None:
    for stored, recalled in zip(memory.stored, memory.recalled, strict=True):
        assert 8 <= len(stored) <= 45
        assert overlap(stored, recalled) >= 0.7
    for stored, recalled in zip(unlearned.stored, unlearned.recalled, strict=True):
        assert len(stored) >= 8
        assert overlap(stored, recalled) < 0.3


def test_patterns_do_not_mix(memory: Memory) -> None:
    for i, recalled in enumerate(memory.recalled):
        own = overlap(memory.stored[i], recalled)
        assert max(overlap(stored, recalled) for j, stored in enumerate(memory.stored) if j != i) < own - 0.3


def test_input_and_recall_come_in_opposite_phases_of_theta(memory: Memory, unlearned: Memory) -> None:
    times, _ = unlearned.bench.simulation.spikes("hc.CA3")  # nothing learned: driven by EC, by way of DG
    driven, tied = mean_phase(times)
    assert abs(driven - 0.5) < 0.1
    assert tied > 0.6

    # Half of a stored pattern's cells are made to fire in all phases alike; the others fire by recurrent input only.
    simulation = memory.bench.simulation
    recurrent_times = []
    for cells in memory.stored:
        half = len(cells) // 2
        begun = simulation.time_ms
        kicks = begun + 5.0 + 20.0 * (np.arange(25)[:, None] + np.arange(half) / half)
        simulation.silence("hc.EC", "hc.DG")
        simulation.inject("hc.CA3", kicks.ravel(), np.tile(cells[:half], 25))
        simulation.advance(5000)
        ended = simulation.time_ms
        simulation.silence()
        simulation.advance(2500)
        times, ids = simulation.spikes("hc.CA3")
        recurrent_times.append(times[(times > begun) & (times <= ended) & np.isin(ids, cells[half:])])
    assert sum(map(len, recurrent_times)) >= 20
    recurrent, tied = mean_phase(np.concatenate(recurrent_times))
    assert min(recurrent, 1.0 - recurrent) < 0.15
    assert tied > 0.5


def test_nothing_is_learned_at_the_peak_of_theta() -> None:
    network = Network(seed=SEED)
    built = create_hippocampus_region().build(network, "hc")
    with Simulation(network, progress=False) as simulation:
        grown = {}
        for phase, cells in ((0.0, np.arange(10)), (0.5, np.arange(10, 20))):
            cycles = (np.arange(1, 9) + phase) * 125.0 + np.ceil(simulation.time_ms / 125.0) * 125.0
            simulation.inject(built.populations["CA3"], np.repeat(cycles, 10), np.tile(cells, 8))
            before = simulation.weights("hc.CA3->hc.CA3").sum()
            simulation.advance(12500)
            grown[phase] = simulation.weights("hc.CA3->hc.CA3").sum() - before
    assert grown[0.5] > 50.0
    assert grown[0.0] < 0.05 * grown[0.5]


def test_ca1_fires_more_when_recall_matches_the_input(memory: Memory) -> None:
    """In the phase of retrieval: with the same cells of CA3 firing, and with whatever CA3 recalls by itself."""
    bench, simulation = memory.bench, memory.bench.simulation
    known, new = patterns(2 * PATTERNS)[:PATTERNS], patterns(2 * PATTERNS)[PATTERNS:]
    rates = {}
    for kind, shown in (("known", known), ("new", new)):
        windows = [bench.show(pattern, 500.0) for pattern in shown]
        rates[kind] = sum(int(bench.counts("CA1", when, "peak").sum()) for when in windows)
        total = 0
        for pattern, cells in zip(shown, memory.stored, strict=True):
            peaks = np.ceil(simulation.time_ms / 125.0) * 125.0 + 125.0 * np.arange(1, 5)
            times = (peaks[:, None] + np.array([-10.0, 0.0, 10.0])).ravel()
            simulation.inject("hc.CA3", np.repeat(times, len(cells)), np.tile(cells, len(times)))
            total += int(bench.counts("CA1", bench.show(pattern, 625.0), "peak").sum())
        rates[f"{kind}, forced"] = total
    assert rates["known"] > 1.3 * rates["new"]
    assert rates["known, forced"] > 1.2 * rates["new, forced"]


# --- how it is made ---


def test_default_sizes_and_ports() -> None:
    network = Network()
    built = create_hippocampus_region().build(network, "hc")
    sizes = {short: population.n for short, population in built.populations.items()}
    assert sizes == {"EC": 100, "DG": 500, "CA3": 150, "CA1": 100, "DGi": 25, "CA3i": 15, "CA1i": 10}
    assert built.input().name == "hc.EC"
    assert built.output().name == "hc.CA1"
    assert built.inhibitory == {"DGi", "CA3i", "CA1i"}
    assert network.neuron_count == 900


def test_a_rhythm_of_the_brain_is_followed() -> None:
    network = Network()
    network.rhythm("theta", 6.0, phase=0.25)
    create_hippocampus_region().build(network, "hc")
    create_hippocampus_region({"rhythm": "septum", "frequency_hz": 7.0}).build(network, "other")
    known = {rhythm.name: rhythm for rhythm in network.rhythms}
    assert sorted(known) == ["hc.encoding", "other.encoding", "septum", "theta"]
    assert (known["hc.encoding"].frequency_hz, known["hc.encoding"].phase) == (6.0, 0.75)
    assert (known["other.encoding"].frequency_hz, known["other.encoding"].floor) == (7.0, 0.0)


def test_small_and_without_plasticity() -> None:
    network = Network()
    config = {"ec": 8, "dg": 20, "ca3": 6, "ca1": 4, "groups": 2, "plastic": False}
    create_hippocampus_region(config).build(network, "hc")
    with Simulation(network, progress=False) as simulation:
        simulation.advance(100)


def test_another_process_makes_the_same() -> None:
    region = pickle.loads(pickle.dumps(create_hippocampus_region({"ca3": 120})))
    networks = [Network(seed=3), Network(seed=3)]
    region.build(networks[0], "hc")
    Hippocampus(HippocampusConfig(ca3=120)).build(networks[1], "hc")
    assert networks[0] == networks[1]


def received(groups: int = 4, **changed: Any) -> tuple[Network, BuiltRegion, Any]:
    network = Network()
    region = create_hippocampus_region()
    built = region.build(network, "hc")
    source = network.population("cortex", 60, rate_source)
    afferent = Afferent(name="path", source=source, source_groups=groups, delay_ms=3.0, **changed)
    return network, built, region.receive(network, built, afferent)[0]


def test_a_pathway_as_it_is_by_default() -> None:
    _, built, made = received()
    assert (made.name, made.post) == ("path", built.populations["EC"])
    assert made.rule == FixedInDegree(10, multapses=False)
    assert made.weight.value == 6.0


def test_a_pathway_as_it_is_asked_for() -> None:
    assert received(weight=7.0, in_degree=3)[2].weight.value == 7.0
    assert received(in_degree=1)[2].weight.value == 20.0
    assert received(probability=0.5)[2].rule == PairwiseBernoulli(0.5)
    assert received(topographic=True, in_degree=2)[2].rule == FixedInDegree(2, multapses=False, groups=4)
    assert received(plasticity="none")[2].plasticity == ()


@pytest.mark.parametrize(
    ("groups", "changed", "words"),
    [
        (3, {"topographic": True}, ["3", "4", "cortex", "hc"]),
        (4, {"plasticity": "stdp"}, ["path", "stdp"]),
        (4, {"port": "CA3"}, ["CA3", "EC"]),
    ],
)
def test_a_pathway_that_cannot_be(groups: int, changed: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        received(groups, **changed)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("config", [{"ca3": 1}, {"groups": 0}, {"learning_rate": -1.0}, {"unknown": 1}, {"ec": "many"}])
def test_a_configuration_that_cannot_be(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(config))):
        create_hippocampus_region(config)
