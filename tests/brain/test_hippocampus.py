"""The hippocampus: separation, one-shot storage and completion, the phases of theta, comparison."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neuraxis.brain.region import Afferent, BuiltRegion
from neuraxis.brain.regions.hippocampus import Hippocampus, HippocampusConfig, create_hippocampus_region
from neuraxis.brain.regions.sources import rate_source, thresholds
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, OneToOne, PairwiseBernoulli
from neuraxis.simulation.simulation import Simulation

SEEDS = (1, 2, 3)  # of whole regions: what one draw of connections and patterns gives is noisy
EC, ACTIVE, RATE_HZ = 100, 20, 40.0
THETA_HZ = 8.0
PATTERNS = 3
LEARNED = ("hc.EC->hc.CA3", "hc.CA3->hc.CA3", "hc.CA3->hc.CA1")

Counts = NDArray[np.int64]


@dataclass
class Bench:
    """A hippocampus each of whose EC cells has a source of its own."""

    seed: int
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = Network(seed=self.seed)
        self.built = create_hippocampus_region(self.config).build(self.network, "hc")
        source = self.network.population("cortex", EC, rate_source)
        self.network.connect(source, self.built.input("EC"), OneToOne(), 20.0)
        for population in self.built.populations.values():
            self.network.record(population)
        self.simulation = Simulation(self.network, progress=False)

    def show(self, pattern: Counts, time_ms: float, rate_hz: float = RATE_HZ) -> tuple[float, float]:
        """Make these cells of EC fire, then rest for half a second; return the time of the activity."""
        rates = np.zeros(EC)
        rates[pattern] = rate_hz
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

    def active(self, short: str, window: tuple[float, float]) -> float:
        """The share of cells that fire in a cycle, on average."""
        times, ids = self.simulation.spikes(f"hc.{short}")
        shown = (times > window[0]) & (times <= window[1])
        cycles = np.floor((times[shown] - window[0]) * THETA_HZ * 1e-3)
        number = (window[1] - window[0]) * THETA_HZ * 1e-3
        return len(set(zip(cycles, ids[shown], strict=True))) / number / self.built.populations[short].n


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
    """Return the size of the intersection of two sets of cells, relative to the geometric mean of their sizes."""
    return len(np.intersect1d(a, b)) / max(1.0, float(np.sqrt(len(a) * len(b))))


def patterns(n: int, seed: int) -> list[Counts]:
    drawing = np.random.default_rng(seed)
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
        shown = [self.bench.show(pattern, 1000.0) for pattern in patterns(PATTERNS, self.bench.seed)]
        self.stored = [np.flatnonzero(self.bench.counts("CA3", when, "trough") >= 3) for when in shown]
        self.bench.simulation.freeze(*LEARNED)
        self.cues = [self.bench.show(pattern[: ACTIVE // 2], 500.0) for pattern in patterns(PATTERNS, self.bench.seed)]
        self.recalled = [np.flatnonzero(self.bench.counts("CA3", when, "peak") >= 2) for when in self.cues]

    def overlaps(self) -> list[float]:
        return [overlap(stored, recalled) for stored, recalled in zip(self.stored, self.recalled, strict=True)]


@pytest.fixture(scope="module")
def memories() -> list[Memory]:
    return [Memory(Bench(seed)) for seed in SEEDS]


@pytest.fixture(scope="module")
def unlearned() -> list[Memory]:
    return [Memory(Bench(seed), learns=False) for seed in SEEDS]


# --- what it does ---


def test_similar_patterns_are_separated(unlearned: list[Memory]) -> None:
    pairs = []
    for bench in (one.bench for one in unlearned):
        drawing = np.random.default_rng(bench.seed + 1)
        for _ in range(2):
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
    assert outputs < 0.55 * inputs
    assert repeated > 1.5 * outputs  # it is the pattern that counts, not chance


def test_few_granule_cells_are_active_whatever_the_input(unlearned: list[Memory]) -> None:
    bench = unlearned[0].bench
    drawing = np.random.default_rng(7)
    for cells, rate_hz in ((10, 40.0), (20, 40.0), (25, 25.0), (25, 150.0)):
        window = bench.show(drawing.permutation(EC)[:cells], 500.0, rate_hz)
        assert 0.01 < bench.active("DG", window) < 0.04
    begun = bench.simulation.time_ms  # 25 cells at 25 Hz, all within 4 ms
    times = begun + 20.0 + 40.0 * np.arange(12)[:, None] + drawing.uniform(0.0, 4.0, (12, 25))
    bench.simulation.inject("hc.EC", np.round(times, 1).ravel(), np.tile(drawing.permutation(EC)[:25], 12))
    bench.simulation.advance(5000)
    assert 0.01 < bench.active("DG", (begun, bench.simulation.time_ms)) < 0.05


def test_half_a_pattern_recalls_all_of_it(memories: list[Memory], unlearned: list[Memory]) -> None:
    overlaps = np.array([memory.overlaps() for memory in memories])
    assert overlaps.mean() >= 0.75
    assert np.mean(overlaps >= 0.7) >= 0.75
    assert overlaps.min() >= 0.5
    assert all(8 <= len(stored) <= 45 for memory in memories for stored in memory.stored)
    assert all(len(stored) >= 8 for memory in unlearned for stored in memory.stored)
    assert max(max(memory.overlaps()) for memory in unlearned) < 0.3


def test_patterns_do_not_mix(memories: list[Memory]) -> None:
    margins = []
    for memory in memories:
        for i, recalled in enumerate(memory.recalled):
            others = [overlap(stored, recalled) for j, stored in enumerate(memory.stored) if j != i]
            margins.append(overlap(memory.stored[i], recalled) - max(others))
    assert np.mean(margins) > 0.3
    assert min(margins) > 0.0


def test_input_and_recall_come_in_opposite_phases_of_theta(memories: list[Memory], unlearned: list[Memory]) -> None:
    for one in unlearned:  # nothing learned: driven by EC, by way of DG
        times, _ = one.bench.simulation.spikes("hc.CA3")
        driven, tied = mean_phase(times)
        assert abs(driven - 0.5) < 0.1
        assert tied > 0.6

    # Half of a stored pattern's cells are made to fire in all phases alike; the others fire by recurrent input only.
    recurrent_times = []
    for memory in memories:
        simulation = memory.bench.simulation
        for cells in memory.stored:
            half = len(cells) // 2
            begun = simulation.time_ms
            kicks = np.round(begun + 5.0 + 20.0 * (np.arange(25)[:, None] + np.arange(half) / half), 1)
            simulation.silence("hc.EC", "hc.DG")
            simulation.inject("hc.CA3", kicks.ravel(), np.tile(cells[:half], 25))
            simulation.advance(5000)
            ended = simulation.time_ms
            simulation.silence()
            simulation.advance(2500)
            times, ids = simulation.spikes("hc.CA3")
            recurrent_times.append(times[(times > begun) & (times <= ended) & np.isin(ids, cells[half:])])
    assert sum(map(len, recurrent_times)) >= 40
    recurrent, tied = mean_phase(np.concatenate(recurrent_times))
    assert min(recurrent, 1.0 - recurrent) < 0.15
    assert tied > 0.5


def test_repeated_patterns_leave_it_stable() -> None:
    network = Network(seed=SEEDS[0])
    built = create_hippocampus_region().build(network, "hc")
    source = network.population("cortex", EC, rate_source)
    network.connect(source, built.input("EC"), OneToOne(), 20.0)
    drawing = np.random.default_rng(SEEDS[0])
    with Simulation(network, progress=False) as simulation:
        for trial in range(30):
            rates = np.ones(EC)
            rates[drawing.permutation(EC // 25)[0] * 25 :][:25] = RATE_HZ
            simulation.set_state("cortex", "threshold", thresholds(rates, 0.1))
            simulation.advance(4800)
            simulation.set_state("cortex", "threshold", thresholds(np.ones(EC), 0.1))
            simulation.advance(2000)
            if trial == 14:
                before = {short: simulation.spike_counts(f"hc.{short}").sum() for short in ("CA3", "CA1")}
                weights = [simulation.weights(name).mean() for name in LEARNED]
        for short, earlier in before.items():
            rate_hz = (simulation.spike_counts(f"hc.{short}").sum() - earlier) / built.populations[short].n / 10.2
            assert 0.5 < rate_hz < 8.0
        for name, first, largest in zip(LEARNED, weights, (8.0, 2.6, 1.4), strict=True):
            assert 0.1 * largest < simulation.weights(name).mean() < 0.6 * largest
            assert simulation.weights(name).mean() < first + 0.15 * largest


def test_learning_shrinks_for_familiar_patterns() -> None:
    grown = []
    for seed in SEEDS:
        with Bench(seed).simulation as simulation:
            rates = np.zeros(EC)
            rates[patterns(1, seed)[0]] = RATE_HZ
            simulation.set_state("cortex", "threshold", thresholds(rates, 0.1))
            counts, weights = [0], [0.0]
            for _ in range(3):
                simulation.advance(10000)
                counts.append(int(simulation.spike_counts("hc.septum").sum()))
                weights.append(float(simulation.weights("hc.EC->hc.CA3").sum()))
        grown.append((np.diff(counts), np.diff(weights)))
    septum, growth = np.mean(grown, axis=0)
    assert septum[0] > 1.5 * septum[2]
    assert growth[0] > 2 * growth[2]


def test_nothing_is_learned_at_the_peak_of_theta() -> None:
    network = Network(seed=SEEDS[0])
    built = create_hippocampus_region().build(network, "hc")
    with Simulation(network, progress=False) as simulation:
        grown = {}
        for phase, cells in ((0.0, np.arange(10)), (0.5, np.arange(10, 20))):
            begun = np.ceil(simulation.time_ms / 125.0) * 125.0
            cycles = (np.arange(1, 9) + phase) * 125.0 + begun
            simulation.inject(built.populations["CA3"], np.repeat(cycles, 10), np.tile(cells, 8))
            peaks = np.arange(1, 10) * 125.0 + begun  # input in EC: otherwise there is nothing to learn
            simulation.inject(built.populations["EC"], np.repeat(peaks, EC), np.tile(np.arange(EC), 9))
            before = simulation.weights("hc.CA3->hc.CA3").sum()
            simulation.advance(12500)
            grown[phase] = simulation.weights("hc.CA3->hc.CA3").sum() - before
    assert grown[0.5] > 50.0
    assert grown[0.0] < 0.1 * grown[0.5]


def test_ca1_fires_more_when_recall_matches_the_input(memories: list[Memory]) -> None:
    """In the phase of retrieval: with the same cells of CA3 firing, and with whatever CA3 recalls by itself."""
    rates = {"known": 0, "new": 0, "known, forced": 0, "new, forced": 0}
    for memory in memories:
        bench, simulation = memory.bench, memory.bench.simulation
        drawn = patterns(2 * PATTERNS, bench.seed)
        for kind, shown in (("known", drawn[:PATTERNS]), ("new", drawn[PATTERNS:])):
            for pattern, cells in zip(shown, memory.stored, strict=True):
                rates[kind] += int(bench.counts("CA1", bench.show(pattern, 500.0), "peak").sum())
                peaks = np.ceil(simulation.time_ms / 125.0) * 125.0 + 125.0 * np.arange(1, 5)
                times = (peaks[:, None] + np.array([-10.0, 0.0, 10.0])).ravel()
                simulation.inject("hc.CA3", np.repeat(times, len(cells)), np.tile(cells, len(times)))
                rates[f"{kind}, forced"] += int(bench.counts("CA1", bench.show(pattern, 625.0), "peak").sum())
    assert rates["known"] > 1.5 * rates["new"]
    assert rates["known, forced"] > 1.1 * rates["new, forced"]


# --- how it is made ---


def test_default_sizes_and_ports() -> None:
    network = Network()
    built = create_hippocampus_region().build(network, "hc")
    sizes = {short: population.n for short, population in built.populations.items()}
    assert sizes == {"EC": 100, "DG": 500, "CA3": 150, "CA1": 100, "DGi": 25, "CA3i": 15, "CA1i": 10, "septum": 10}
    assert built.input().name == "hc.EC"
    assert built.output().name == "hc.CA1"
    assert built.inhibitory == {"DGi", "CA3i", "CA1i"}
    assert network.neuron_count == 910


def test_a_rhythm_of_the_brain_is_followed() -> None:
    network = Network()
    network.rhythm("theta", 6.0, phase=0.25)
    create_hippocampus_region().build(network, "hc")
    create_hippocampus_region({"rhythm": "septum", "frequency_hz": 7.0}).build(network, "other")
    known = {rhythm.name: rhythm for rhythm in network.rhythms}
    assert {name: rhythm.frequency_hz for name, rhythm in known.items()} == {"theta": 6.0, "septum": 7.0}
    followed = {one.name: dict(one.model.signals)["theta"] for one in network.populations if one.name.endswith("CA3")}
    assert followed == {"hc.CA3": "theta", "other.CA3": "septum"}
    assert [one.name for one in network.neuromodulators] == ["hc.encoding", "other.encoding"]


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
    assert made.rule == FixedInDegree(2, multapses=False)
    assert made.weight.value == 20.0


def test_a_pathway_as_it_is_asked_for() -> None:
    assert received(weight=7.0, in_degree=3)[2].weight.value == 7.0
    assert received(in_degree=10)[2].weight.value == 6.0
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
