"""The hippocampus: stores a pattern at once, and recalls all of it from a part.

    EC -> DG -> CA3 -> CA1        EC -> CA3, EC -> CA1, CA3 -> CA3        CA3 -| septum (lets synapses learn)

The dentate gyrus (DG) separates patterns: many cells, of which inhibition lets only those with the strongest input
fire. Its mossy fibres are few and strong, and choose the cells of CA3 that stand for a pattern; in the same moment the
synapses from the entorhinal cortex (EC) to these cells (the perforant path), among them (the recurrent ones) and from
them to CA1 (Schaffer's) are strengthened. Later a part of the pattern in EC wakes some of the cells in CA3 by the
perforant path, and these the others (Marr 1971; Treves and Rolls 1992). CA1 hears EC and CA3, and fires most where both
say the same: its rate in the phase of retrieval tells how well what is recalled matches what is there.

Storing and recalling take turns within each cycle of theta (Hasselmo, Bodelon and Wyble 2002; for CA3: Kunec, Hasselmo
and Kopell 2005). At the trough the afferents (mossy fibres in CA3, EC in DG and CA1) count fully, associative synapses
(perforant path and recurrent ones in CA3, Schaffer's in CA1) hardly, and learn. At the peak it is the other way round,
and nothing is learned.

What keeps this stable over any time is that what is new is stored, and what is known is not stored again. The septum
lets synapses learn at the trough if there was input in EC at the peak before, and the less the more CA3 recalled then
(as acetylcholine does, which falls where recall succeeds: Hasselmo, Wyble and Wallenstein 1996; Meeter, Murre and
Talamini 2004). So a pattern that is there for long, or comes again and again, is learned less and less, and a memory
that is full stores little until some of it is forgotten, which all synapses do slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from neuraxis.brain.models.hippocampus import septal_cell, theta_cell
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config
from neuraxis.errors import InvalidArgument
from neuraxis.network import (
    FixedInDegree,
    Network,
    PlasticityRule,
    Population,
    Projection,
    RewardSTDP,
    TsodyksMarkram,
    Uniform,
)
from neuraxis.network.arguments import label, not_negative, positive, whole

__all__ = ["Hippocampus", "HippocampusConfig", "create_hippocampus_region"]


class HippocampusConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a hippocampus is made.

    Simplified: one kind of inhibitory cell in each field, for feedback only; feedforward inhibition comes from EC
    itself, by negative weights, at once and without cells of its own; the septum is one pool of regular cells, and its
    acetylcholine reaches this region only; no subiculum and no way back to EC; no place or grid cells; no replay;
    synaptic currents instead of conductances; no depression but forgetting with time. With many patterns recall fails
    (overlap 0.84 with three, 0.76 with five, 0.70 with eight, which then mix). Cells are those of `theta_cell`, whose
    weights are the heights in mV of the potential that a spike causes (the threshold is at 15 mV). Where there are
    fewer sources than an in-degree says, weights are larger by as much.

    Attributes:
        ec, dg, ca3, ca1: cells; DG has five times as many as EC (as in Thalia; about as in the rat: Amaral, Ishizuka
            and Claiborne 1990).
        dg_inhibitory, ca3_inhibitory, ca1_inhibitory: inhibitory cells (5 to 10 %).
        groups: how many equal parts EC and CA1 are divided into; the direct way from EC to CA1 keeps to them.
        rhythm: the rhythm of the network to follow; if there is none of this name, the region declares it.
        frequency_hz: of the rhythm, if the region declares it. 8 Hz: theta of a running rat.
        plastic: whether it learns. If not, there is no septum.
        learning_rate: the share of the largest weight that two spikes at the same time add in the middle of the phase
            of encoding. Chosen: a pattern that is there for a second (eight cycles) is stored: of three, half of
            each recalled all with an overlap of 0.84 on average (six seeds; 0.82 on eight others).
        pairing_ms: how close two spikes must be (10 to 20 ms: Bi and Poo 1998); whichever comes first (as recurrent
            synapses of CA3 do: Mishra et al. 2016).
        familiar: how many spikes of CA3 around the peak, for each of its cells, end learning in the next trough.
            Chosen: with 0.15 too little is stored (overlaps lower by 0.05), with more CA3 fires more (6.4 Hz on average
            in the default brain).
        forget_s: the time constant with which learned weights fall to 0. Chosen: mean weights stay below a half of the
            largest when new patterns come without end.
        dg_in_degree, dg_mv, dg_feedforward_mv: EC to DG, and the feedforward inhibition by each spike of EC. Chosen: 2
            to 3 % of DG in each cycle, whether 10 or 25 cells of EC fire, at 13 or 27 Hz, independently or together
            (without the inhibition: 1 to 12 %).
        mossy_in_degree, mossy_mv: DG to CA3; few (46 in the rat: Amaral et al. 1990) and strong, with facilitation
            (Salin et al. 1996): the first spike counts 0.2 of the weight. Chosen: 17 to 40 cells of CA3 for a pattern.
        perforant_in_degree, perforant_mv: EC to CA3; the weights are 0 at first and this at most, as in the next two.
        ca3_feedforward_mv: how much each spike of EC inhibits CA3 in the phase of retrieval. Chosen with perforant_mv:
            half of a pattern makes most of its cells in CA3 fire, a fifth of one with others (what two patterns share)
            does not.
        recurrent_in_degree, recurrent_mv: CA3 to CA3. Chosen: half of a pattern's cells, at 50 Hz, make some of the
            others fire; without it, the overlap above is lower by about 0.1.
        direct_in_degree, direct_mv: EC to CA1. Chosen: about 20 % of CA1 in each cycle.
        schaffer_in_degree, schaffer_mv: CA3 to CA1. Chosen: known patterns give CA1 three to four times as many
            spikes in the phase of retrieval as new ones.
        afferent_in_degree, afferent_mv: the default pathway to EC: synapses on a cell, and their weight in sum (20 mV
            each at most, which relays each spike that does not come too soon after another). Chosen: a source at 20 Hz
            gives about 18 Hz, however synchronous it is.
    """

    ec: int = 100
    dg: int = 500
    ca3: int = 150
    ca1: int = 100
    dg_inhibitory: int = 25
    ca3_inhibitory: int = 15
    ca1_inhibitory: int = 10
    groups: int = 4
    rhythm: str = "theta"
    frequency_hz: float = 8.0
    plastic: bool = True
    learning_rate: float = 0.7
    pairing_ms: float = 15.0
    familiar: float = 0.2
    forget_s: float = 40.0
    dg_in_degree: int = 20
    dg_mv: float = 12.0
    dg_feedforward_mv: float = 3.2
    mossy_in_degree: int = 10
    mossy_mv: float = 120.0
    perforant_in_degree: int = 100
    perforant_mv: float = 8.0
    ca3_feedforward_mv: float = 2.0
    recurrent_in_degree: int = 100
    recurrent_mv: float = 2.6
    direct_in_degree: int = 10
    direct_mv: float = 8.0
    schaffer_in_degree: int = 75
    schaffer_mv: float = 1.4
    afferent_in_degree: int = 2
    afferent_mv: float = 60.0

    def __post_init__(self) -> None:
        whole(self.groups, "groups", 1)
        for name in ("ec", "ca1"):
            whole(getattr(self, name), name, self.groups)
        for name in ("dg", "dg_inhibitory", "ca3_inhibitory", "ca1_inhibitory"):
            whole(getattr(self, name), name, 1)
        whole(self.ca3, "ca3", 2)
        label(self.rhythm, "rhythm")
        for name in (
            "frequency_hz", "pairing_ms", "familiar", "forget_s", "perforant_mv", "recurrent_mv", "schaffer_mv"
        ):  # fmt: skip
            positive(getattr(self, name), name)
        for name in (
            "learning_rate", "dg_mv", "dg_feedforward_mv", "mossy_mv", "ca3_feedforward_mv", "direct_mv", "afferent_mv"
        ):  # fmt: skip
            not_negative(getattr(self, name), name)
        for name in ("dg", "mossy", "perforant", "recurrent", "direct", "schaffer", "afferent"):
            whole(getattr(self, f"{name}_in_degree"), f"{name}_in_degree", 1)


# One synapse on a cell of EC: 20 mV or more are a spike for a spike.
LARGEST_AFFERENT_MV = 20.0

# The septum: cells; how often each fires at the trough; how long what it releases lasts (short within a cycle); how
# many spikes of EC around the peak, for each of its cells, count as input (chosen: half of what a pattern gives).
SEPTUM = 10
SEPTUM_HZ = 100.0
ENCODING_MS = 10.0
INPUT_SHARE = 0.08

# The cells of EC that a cell of DG or CA3 is inhibited by.
FEEDFORWARD_IN_DEGREE = 100

# How often learning takes effect, and how long it is remembered which spikes were paired: so short that what is paired
# in one half of a cycle is forgotten in the other.
LEARNING_MS = 20.0
ELIGIBILITY_MS = 8.0

# Cells of DG: slow membranes (Schmidt-Hieber, Jonas and Bischofberger 2007). One that has fired stays more excitable
# for a cycle (chosen: without it, noise in EC gives another choice of cells in each cycle).
GRANULE = {
    "tau_m_ms": 30.0, "tau_afferent_ms": 5.0, "depth_afferent": 0.8, "fatigue_step_mv": -5.0, "tau_fatigue_ms": 100.0
}  # fmt: skip
# Pyramidal cells tire, so that recall gives one or two spikes in each cycle and ends with it (chosen).
CA3_CELL = {"depth_afferent": 0.9, "depth_associative": 0.95, "fatigue_step_mv": 8.0, "tau_fatigue_ms": 30.0}
CA1_CELL = {**CA3_CELL, "depth_afferent": 0.6}
# Cells of EC rest after a spike, so that their rate stays below 33 Hz however strong their input is (chosen: sources at
# 20, 40 and 100 Hz give 13, 18 and 25 Hz).
EC_CELL = {"tau_m_ms": 10.0, "tau_afferent_ms": 2.0, "refractory_ms": 30.0}
FAST_CELL = {"tau_m_ms": 10.0, "tau_afferent_ms": 2.0, "refractory_ms": 2.0}

# Feedback inhibition of each field: cells that an inhibitory cell hears and their weight; the way back. Chosen: about
# 10 cells of DG, or 15 of CA3, at the same time silence the others for 10 to 20 ms.
INHIBITION = {"DG": (100, 8.0, 10, -12.0), "CA3": (100, 1.6, 8, -12.0), "CA1": (40, 3.0, 6, -10.0)}


class Hippocampus(Region):
    """Ports: EC in; CA1, CA3, DG and EC out."""

    kind: ClassVar[str] = "hippocampus"

    def __init__(self, config: HippocampusConfig) -> None:
        self.config: HippocampusConfig = config

    def build(self, network: Network, name: str) -> BuiltRegion:
        c = self.config
        theta = self._rhythm(network)
        models = {
            "EC": (c.ec, theta_cell(**EC_CELL)),
            "DG": (c.dg, theta_cell(theta=theta, **GRANULE)),
            "CA3": (c.ca3, theta_cell(theta=theta, **CA3_CELL)),
            "CA1": (c.ca1, theta_cell(theta=theta, **CA1_CELL)),
            "DGi": (c.dg_inhibitory, theta_cell(**FAST_CELL)),
            "CA3i": (c.ca3_inhibitory, theta_cell(**FAST_CELL)),
            "CA1i": (c.ca1_inhibitory, theta_cell(**FAST_CELL)),
        }
        cells = {short: network.population(f"{name}.{short}", n, model) for short, (n, model) in models.items()}
        encoding = self._septum(network, name, cells, theta) if c.plastic else ""

        def connect(
            pre: str, post: str, k: int, mv: float, receptor: str = "afferent_mv", rule: PlasticityRule | None = None,
            groups: int = 1,
        ) -> None:  # fmt: skip
            _connect(network, cells[pre], cells[post], k, mv, receptor, rule, groups)

        def learn(pre: str, post: str, k: int, largest_mv: float) -> None:
            largest_mv *= _growth(cells[pre], cells[post], k)
            rule = self._learning(largest_mv, encoding)
            connect(pre, post, k, 0.0, "associative_mv", rule)

        connect("EC", "DG", c.dg_in_degree, c.dg_mv)
        connect("EC", "DG", FEEDFORWARD_IN_DEGREE, -c.dg_feedforward_mv)
        connect("DG", "CA3", c.mossy_in_degree, c.mossy_mv, rule=TsodyksMarkram(0.2, 50.0, 300.0))
        learn("EC", "CA3", c.perforant_in_degree, c.perforant_mv)
        connect("EC", "CA3", FEEDFORWARD_IN_DEGREE, -c.ca3_feedforward_mv, "associative_mv")
        learn("CA3", "CA3", c.recurrent_in_degree, c.recurrent_mv)
        connect("EC", "CA1", c.direct_in_degree, c.direct_mv, groups=c.groups)
        learn("CA3", "CA1", c.schaffer_in_degree, c.schaffer_mv)
        for field, (k_to, mv_to, k_from, mv_from) in INHIBITION.items():
            connect(field, f"{field}i", k_to, mv_to)
            connect(f"{field}i", field, k_from, mv_from, "in_mv")
        return BuiltRegion(
            name, self.kind, cells, ("EC",), ("CA1", "CA3", "DG", "EC"), frozenset({"DGi", "CA3i", "CA1i"}), c.groups
        )

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway to EC. Its weights are static, in mV; by default their sum does not depend on how many."""
        if afferent.plasticity not in (None, "none"):
            raise InvalidArgument(f"{afferent.name}: plasticity={afferent.plasticity!r}: only 'none' is known to EC")
        rule, count = afferent_rule(afferent, built, self.config.afferent_in_degree)
        weight = afferent.weight
        if weight is None:
            weight = min(LARGEST_AFFERENT_MV, self.config.afferent_mv / count)
        target = built.input(afferent.port)
        return [network.connect(afferent.source, target, rule, weight, afferent.delay_ms, name=afferent.name)]

    def _rhythm(self, network: Network) -> str:
        """The name of the rhythm to follow."""
        c = self.config
        known = {rhythm.name for rhythm in network.rhythms}
        return c.rhythm if c.rhythm in known else network.rhythm(c.rhythm, c.frequency_hz).name

    def _septum(self, network: Network, name: str, cells: dict[str, Population], theta: str) -> str:
        """The cells that let synapses learn, by a level of the region's own, unless CA3 recalls; the level's name."""
        c = self.config
        septum = cells["septum"] = network.population(
            f"{name}.septum", SEPTUM, septal_cell(theta=theta, highest_hz=SEPTUM_HZ), due=Uniform(0.0, 1.0)
        )
        for pre, share, receptor in (("EC", INPUT_SHARE, "input"), ("CA3", c.familiar, "recalled")):
            n = cells[pre].n
            network.connect(cells[pre], septum, FixedInDegree(n, multapses=False), 1.0 / (share * n), 1.0, receptor)
        level = network.neuromodulator(f"{name}.encoding", tau_ms=ENCODING_MS)
        network.modulate(septum, level, 1.0 / (SEPTUM * SEPTUM_HZ * 1e-3 * ENCODING_MS), 1.0)
        return level.name

    def _learning(self, largest_mv: float, encoding: str) -> RewardSTDP | None:
        c = self.config
        if not c.plastic:
            return None
        step = c.learning_rate * largest_mv
        return RewardSTDP(
            w_max=largest_mv, a_plus=step, a_minus=-step, tau_plus_ms=c.pairing_ms, tau_minus_ms=c.pairing_ms,
            tau_eligibility_ms=ELIGIBILITY_MS, every_ms=LEARNING_MS, modulator=encoding, tau_forget_ms=c.forget_s * 1e3,
        )  # fmt: skip


def create_hippocampus_region(
    config: HippocampusConfig | Mapping[str, Any] | None = None, device: str = "cpu"
) -> Hippocampus:
    """A hippocampus from its configuration. It is made of neurons of the network, which run where the network does."""
    return Hippocampus(as_config(HippocampusConfig, config, "hippocampus"))


def _connect(
    network: Network,
    pre: Population,
    post: Population,
    k: int,
    mv: float,
    receptor: str,
    rule: PlasticityRule | None,
    groups: int,
) -> None:
    available = _available(pre, post, groups)
    delay_ms = 0.5 if receptor == "in_mv" else 1.0
    network.connect(
        pre,
        post,
        FixedInDegree(min(k, available), multapses=False, autapses=False, groups=groups),
        mv * _growth(pre, post, k, groups),
        delay_ms,
        receptor,
        rule,
    )


def _available(pre: Population, post: Population, groups: int) -> int:
    return pre.n // groups - (pre is post)


def _growth(pre: Population, post: Population, k: int, groups: int = 1) -> float:
    """By how much weights are larger because there are fewer sources than wanted."""
    return max(1.0, k / _available(pre, post, groups))
