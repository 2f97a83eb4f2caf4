"""The cerebellum: learns from errors which output belongs to which context.

    mossy -> granule -> purkinje -| nuclei          climbing -> purkinje (teaches)

Many granule cells, each with few mossy fibres and inhibited by Golgi cells, turn a context into a sparse code. Purkinje
cells add it up by the weights of their parallel fibres, and inhibit the nuclei, which fire on their own. Climbing
fibres tell the error of each output (group): parallel fibres that were active just before a climbing spike are
depressed, which sets the nuclei free; those that are active without one are potentiated (Marr 1969; Albus 1971; Ito
1989). So each group's climbing rate above or below `balance_hz` is the error of a delta rule: above says "too little".

The nuclei inhibit the olive, where climbing fibres come from: the more an output fires, the less its climbing fibres do
(Medina, Nores and Mauk 2002). So weights that errors of one kind only have pushed to a side come back when there are no
more, and settle between their bounds, in each context for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from neuraxis.brain.models.cerebellum import cerebellar_cell, olivary_cell, pacemaker, purkinje_cell
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config
from neuraxis.errors import InvalidArgument
from neuraxis.network import Explicit, FixedInDegree, Network, Population, Projection, RewardSTDP, Uniform
from neuraxis.network.arguments import not_negative, positive, whole

__all__ = ["Cerebellum", "CerebellumConfig", "create_cerebellum_region"]

CLIMBING = "climbing"


class CerebellumConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a cerebellum is made.

    Simplified: no stellate and basket cells; no collaterals of mossy and climbing fibres to the nuclei; the nuclei
    inhibit what learning hears of the olive only, not the climbing spikes that make Purkinje cells pause; a complex
    spike is one spike and a pause; all Purkinje cells of a group learn from the mean of its climbing fibres (a
    microzone: Apps and Garwicz 2005), for the level that learning follows is the group's; a parallel fibre is eligible
    by its spikes before those of the Purkinje cell, which never rests for long. Synaptic currents instead of
    conductances; weights are heights in mV (the threshold is at 15 mV). Where there are fewer sources than an in-degree
    says, weights are larger by as much.

    Attributes:
        mossy, granule, golgi, purkinje, nuclei, climbing: cells. In animals the granule cells are far more.
        groups: how many outputs; the Purkinje cells, nuclei and climbing fibres are divided into so many equal parts.
        mossy_in_degree, mossy_mv: mossy fibres to a granule cell: 4 (Eccles, Ito and Szentagothai 1967). Chosen: three
            active ones make it fire: 30 % of the mossy fibres at 100 Hz give 15 % of the granule cells 20 Hz.
        parallel_in_degree, parallel_mv, parallel_largest_mv: granule cells to a Purkinje cell, first and largest
            weight. Chosen: Purkinje cells fire at 29 Hz without them, 58 Hz at first, 109 Hz at most.
        purkinje_mv: Purkinje cells to the nuclei, in sum over the cells of a group. Chosen: the nuclei fire at 102 Hz
            when parallel fibres have no weight, at 71 Hz at first, at 19 Hz when all have the largest.
        purkinje_drive_mv, nuclei_drive_mv: what makes these fire on their own.
        balance_hz: the rate of climbing fibres at which weights stay. 10 Hz: more than the 1 Hz of animals at rest, for
            the larger it is, the less chance is in the error.
        nuclei_to_climbing: by how many Hz learning hears less of climbing fibres for each Hz of the group's nuclei
            beyond `usual_hz`. Chosen: in contexts without errors weights settle at 0.32 mV on average; with an error
            of 90 Hz for 30 ms in 19 % of the trials of each output, at 0.21 mV (with a third of it: at 0.12 and
            0.07 mV). The price: targets far from the usual rate are missed by some Hz.
        usual_hz: the rate of the nuclei that they come back to: that at first, in a context.
        learning_rate: the weight in mV that a parallel fibre at 25 Hz loses or gains in a second for each Hz beyond
            the balance, about. Chosen: an error is halved in 10 to 15 trials of 150 ms.
        eligibility_ms: how long before a climbing spike a parallel fibre may have been active (50 to 200 ms: Ito 2001).
        plastic: whether it learns.
        afferent_in_degree, afferent_mv: the default pathway to mossy fibres: synapses on each, and their weight in sum
            (20 mV each at most, which relays each spike). To climbing fibres it is one synapse of 20 mV.
    """

    mossy: int = 40
    granule: int = 400
    golgi: int = 10
    purkinje: int = 40
    nuclei: int = 20
    climbing: int = 16
    groups: int = 4
    mossy_in_degree: int = 4
    mossy_mv: float = 5.0
    parallel_in_degree: int = 200
    parallel_mv: float = 0.4
    parallel_largest_mv: float = 1.6
    purkinje_mv: float = 9.0
    purkinje_drive_mv: float = 15.6
    nuclei_drive_mv: float = 25.0
    balance_hz: float = 10.0
    nuclei_to_climbing: float = 0.15
    usual_hz: float = 71.0
    learning_rate: float = 0.05
    eligibility_ms: float = 50.0
    plastic: bool = True
    afferent_in_degree: int = 4
    afferent_mv: float = 60.0

    def __post_init__(self) -> None:
        whole(self.groups, "groups", 1)
        for name in ("mossy", "purkinje", "nuclei", "climbing"):
            whole(getattr(self, name), name, self.groups)
        for name in ("granule", "golgi", "mossy_in_degree", "parallel_in_degree", "afferent_in_degree"):
            whole(getattr(self, name), name, 1)
        for name in ("parallel_largest_mv", "eligibility_ms"):
            positive(getattr(self, name), name)
        for name in (
            "mossy_mv", "parallel_mv", "purkinje_mv", "purkinje_drive_mv", "nuclei_drive_mv", "balance_hz",
            "nuclei_to_climbing", "usual_hz", "learning_rate", "afferent_mv",
        ):  # fmt: skip
            not_negative(getattr(self, name), name)
        if self.parallel_mv > self.parallel_largest_mv:
            raise InvalidArgument(
                f"parallel_mv={self.parallel_mv}: must not be above parallel_largest_mv={self.parallel_largest_mv}"
            )


# One synapse on a mossy or climbing fibre: 20 mV or more are a spike for a spike.
LARGEST_AFFERENT_MV = 20.0

# How often learning takes effect, and how long a climbing spike is felt.
LEARNING_MS = 20.0
CLIMBING_MS = 20.0
PACEMAKER_HZ = 100.0
TRACE_MS = 20.0

# What a parallel fibre at 25 Hz makes eligible, as a multiple of a_plus, when the Purkinje cell fires at 60 Hz.
USUAL_TRACE = 25e-3 * TRACE_MS * 60e-3

# Golgi cells: (granule cells that each hears, weight), (mossy fibres, weight); the way back. Chosen with mossy_mv.
FROM_GRANULE, FROM_MOSSY, TO_GRANULE = (40, 4.0), (10, 1.0), (3, -6.0)

# Rate (Hz) and weight (mV) of random spikes to the nuclei, without which the cells of a group would fire as one.
NUCLEI_NOISE = (300.0, 2.0)


class Cerebellum(Region):
    """Ports: mossy and climbing in; nuclei and purkinje (which inhibits) out."""

    kind: ClassVar[str] = "cerebellum"

    def __init__(self, config: CerebellumConfig) -> None:
        self.config: CerebellumConfig = config

    def build(self, network: Network, name: str) -> BuiltRegion:
        c = self.config
        anywhere = Uniform(0.0, 14.0)
        models = {
            "mossy": (c.mossy, cerebellar_cell(tau_ex_ms=2.0)),
            "granule": (c.granule, cerebellar_cell()),
            "golgi": (c.golgi, cerebellar_cell()),
            "purkinje": (c.purkinje, purkinje_cell(drive_mv=c.purkinje_drive_mv)),
            "nuclei": (c.nuclei, cerebellar_cell(drive_mv=c.nuclei_drive_mv)),
            CLIMBING: (c.climbing, cerebellar_cell(tau_ex_ms=2.0)),
        }
        # The cells that fire on their own do not do it together.
        cells = {
            short: network.population(
                f"{name}.{short}", n, model, **({"v_mv": anywhere} if short in ("purkinje", "nuclei") else {})
            )
            for short, (n, model) in models.items()
        }

        def connect(pre: str, post: str, k: int, mv: float, receptor: str = "ex_mv", groups: int = 1) -> None:
            sources = cells[pre].n // groups
            rule = FixedInDegree(min(k, sources), multapses=False, groups=groups)
            delay_ms = 0.5 if receptor == "in_mv" else 1.0
            network.connect(cells[pre], cells[post], rule, mv * max(1.0, k / sources), delay_ms, receptor)

        connect("mossy", "granule", c.mossy_in_degree, c.mossy_mv)
        connect("granule", "golgi", *FROM_GRANULE)
        connect("mossy", "golgi", *FROM_MOSSY)
        connect("golgi", "granule", *TO_GRANULE, "in_mv")
        for group in range(c.groups):
            self._connect_parallel_fibres(network, name, cells, group)
        inhibiting = max(1, c.purkinje // c.groups // 2)
        network.poisson(cells["nuclei"], *NUCLEI_NOISE, "ex_mv")
        connect("purkinje", "nuclei", inhibiting, -c.purkinje_mv / inhibiting, "in_mv", c.groups)
        connect(CLIMBING, "purkinje", 1, 1.0, "climbing", c.groups)
        return BuiltRegion(
            name,
            self.kind,
            cells,
            ("mossy", CLIMBING),
            ("nuclei", "purkinje"),
            frozenset({"golgi", "purkinje"}),
            c.groups,
        )

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway to the mossy or climbing fibres, with static weights in mV.

        With the first pathway to the climbing fibres learning begins: without one, parallel fibres would only grow.
        """
        c = self.config
        if afferent.plasticity not in (None, "none"):
            raise InvalidArgument(f"{afferent.name}: plasticity={afferent.plasticity!r}: only 'none' is known here")
        target = built.input(afferent.port)
        teaches = afferent.port == CLIMBING
        rule, count = afferent_rule(afferent, built, 1 if teaches else c.afferent_in_degree)
        weight = afferent.weight
        if weight is None:
            weight = LARGEST_AFFERENT_MV if teaches else min(LARGEST_AFFERENT_MV, c.afferent_mv / count)
        made = network.connect(afferent.source, target, rule, weight, afferent.delay_ms, name=afferent.name)
        if teaches and c.plastic:
            self._begin_to_learn(network, built)
        return [made]

    def _connect_parallel_fibres(
        self, network: Network, name: str, cells: Mapping[str, Population], group: int
    ) -> None:
        """Granule cells to the Purkinje cells of a group, with a level of its own that learning follows."""
        c = self.config
        pre, post = cells["granule"], cells["purkinje"]
        k = min(c.parallel_in_degree, pre.n)
        growth = c.parallel_in_degree / k
        first, end = _part(post.n, group, c.groups)
        targets = np.repeat(np.arange(first, end), k)
        # Evenly spread, each Purkinje cell from another start: which mossy fibres a granule cell hears is random.
        sources = (np.tile(np.arange(k) * pre.n // k, end - first) + targets) % pre.n
        rule = None
        if c.plastic:
            level = network.neuromodulator(f"{name}.{CLIMBING}.{group}", tau_ms=CLIMBING_MS)
            per_second = CLIMBING_MS * 1e-3 * 1e3 / LEARNING_MS * USUAL_TRACE * c.eligibility_ms
            rule = RewardSTDP(
                w_max=c.parallel_largest_mv * growth, a_plus=-c.learning_rate * growth / per_second, a_minus=0.0,
                tau_plus_ms=TRACE_MS, tau_eligibility_ms=c.eligibility_ms, every_ms=LEARNING_MS, modulator=level.name,
            )  # fmt: skip
        network.connect(
            pre, post, Explicit(sources, targets), c.parallel_mv * growth, 1.0, "ex_mv", rule,
            name=f"{name}.parallel.{group}",
        )  # fmt: skip

    def _begin_to_learn(self, network: Network, built: BuiltRegion) -> None:
        """The level of a group: spikes per second of a climbing fibre, less the nuclei's share and the balance."""
        c = self.config
        if f"{built.name}.balance" in network:
            return
        balance = network.population(f"{built.name}.balance", 1, pacemaker(period_ms=1e3 / PACEMAKER_HZ))
        for group in range(c.groups):
            level = f"{built.name}.{CLIMBING}.{group}"
            fibres = np.arange(*_part(c.climbing, group, c.groups))
            outputs = np.arange(*_part(c.nuclei, group, c.groups))
            # A level is raised by whole populations, so each group has one of its own.
            teachers = network.population(
                f"{built.name}.teachers.{group}",
                len(fibres),
                olivary_cell(own_hz=c.nuclei_to_climbing * c.usual_hz),
                left=Uniform(-0.5, 0.5),
            )
            network.connect(built.populations[CLIMBING], teachers, Explicit(fibres, np.arange(len(fibres))), 1.0, 1.0)
            brake = -c.nuclei_to_climbing / len(outputs)
            every = Explicit(np.tile(outputs, len(fibres)), np.repeat(np.arange(len(fibres)), len(outputs)))
            network.connect(built.populations["nuclei"], teachers, every, brake, 1.0)
            network.modulate(teachers, level, 1.0 / len(fibres))
            network.modulate(balance, level, -c.balance_hz / PACEMAKER_HZ)


def create_cerebellum_region(
    config: CerebellumConfig | Mapping[str, Any] | None = None, device: str = "cpu"
) -> Cerebellum:
    """A cerebellum from its configuration. It is made of neurons of the network, which run where the network does."""
    return Cerebellum(as_config(CerebellumConfig, config, "cerebellum"))


def _part(n: int, group: int, groups: int) -> tuple[int, int]:
    """Where a group begins and ends, as connection rules divide a population."""
    return group * n // groups, (group + 1) * n // groups
