"""The hippocampus: one-shot storage of patterns, and pattern completion.

    EC -> DG -> CA3 -> CA1        EC -> CA3, EC -> CA1, CA3 -> CA3        CA3 -| septum (enables plasticity)

The dentate gyrus (DG) separates patterns: inhibition lets only the cells with the strongest input fire. Its mossy
fibres are few and strong, and select the cells of CA3 that represent a pattern; at the same time the synapses from the
entorhinal cortex (EC) to these cells (perforant path), between them (recurrent) and from them to CA1 (Schaffer
collaterals) are potentiated. Later, part of the pattern in EC activates some of the cells in CA3 by the perforant path,
and these the others (Marr 1971; Treves and Rolls 1992). CA1 receives EC and CA3, and fires most where both agree: its
rate in the retrieval phase measures how well the recalled pattern matches the input.

Encoding and retrieval alternate within each theta cycle (Hasselmo, Bodelon and Wyble 2002; for CA3: Kunec, Hasselmo and
Kopell 2005). At the trough the afferents (mossy fibres in CA3, EC in DG and CA1) have full effect, and associative
synapses (perforant path and recurrent ones in CA3, Schaffer collaterals in CA1) have little effect and learn. At the
peak it is the reverse, and nothing is learned.

Storage stays stable because only novel patterns are stored. The septum enables plasticity at the trough if there was
input in EC at the preceding peak, and the less, the more CA3 recalled then (like acetylcholine, which falls when recall
succeeds: Hasselmo, Wyble and Wallenstein 1996; Meeter, Murre and Talamini 2004). A pattern that persists or repeats is
therefore learned less and less, and a full memory stores little until part of it has decayed, as all weights do slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from neuraxis.arguments import label, not_negative, positive, whole
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
from neuraxis.network.arithmetic import exp, log
from neuraxis.network.models.lif import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = [
    "Hippocampus",
    "HippocampusConfig",
    "create_hippocampus_region",
    "potential_height",
    "septal_cell",
    "theta_cell",
]


class HippocampusConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a hippocampus. Weights are peak heights of the postsynaptic potential, in mV; threshold 15 mV.

    Simplifications: one kind of inhibitory cell in each field, for feedback only; feedforward inhibition comes from EC
    itself, by negative weights without interneurons; the septum is one pool of regularly firing cells, and its
    acetylcholine reaches this region only; no subiculum and no projection back to EC; no place or grid cells; no
    replay; synaptic currents instead of conductances; no depression except decay with time. Recall degrades with the
    number of patterns (overlap 0.84 with three, 0.76 with five, 0.70 with eight, which then mix). If there are fewer
    sources than an in-degree, weights are scaled up accordingly. "Tuned" values were chosen by simulation, for the
    stated result.

    Attributes
    ----------
    ec, dg, ca3, ca1 : int
        Number of cells. DG has five times as many as EC (as in Thalia; about as in the rat: Amaral, Ishizuka and
        Claiborne 1990).
    dg_inhibitory, ca3_inhibitory, ca1_inhibitory : int
        Number of inhibitory cells (5 to 10 %).
    groups : int
        Number of equal parts of EC and CA1; the direct synapses from EC to CA1 connect equal groups.
    rhythm : str
        Rhythm of the network to follow; the region declares it if the network has none of this name.
    frequency_hz : float
        Frequency of the rhythm, if the region declares it. 8 Hz: theta of a running rat.
    plastic : bool
        False: no learning, and no septum.
    learning_rate : float
        Weight change, as a share of the largest weight, by two simultaneous spikes in the middle of the encoding phase.
        Tuned: a pattern that is presented for a second (eight cycles) is stored; of three stored patterns, half of each
        recalls it with an overlap of 0.84 on average (six seeds; 0.82 on eight others).
    pairing_ms : float
        Time constant of coincidence (10 to 20 ms: Bi and Poo 1998), in either order (as in recurrent synapses of CA3:
        Mishra et al. 2016).
    familiar : float
        Spikes of CA3 around the peak, for each of its cells, that suppress learning in the next trough. Tuned: with
        0.15 too little is stored (overlaps lower by 0.05), with more CA3 fires more (6.4 Hz on average in the default
        brain).
    forget_s : float
        Time constant of the decay of learned weights, in s. Tuned: mean weights stay below half of the largest with an
        endless sequence of new patterns.
    dg_in_degree, dg_mv, dg_feedforward_mv : int / float / float
        Synapses from EC on a cell of DG, their weight, and the feedforward inhibition by each spike of EC. Tuned: 2 to
        3 % of DG fire in each cycle, whether 10 or 25 cells of EC fire, at 13 or 27 Hz, independently or synchronously
        (without the inhibition: 1 to 12 %).
    mossy_in_degree, mossy_mv : int / float
        Synapses from DG on a cell of CA3, and their weight: few (46 in the rat: Amaral et al. 1990) and strong, with
        facilitation (Salin et al. 1996): the first spike has 0.2 of the weight. Tuned: a pattern has 17 to 40 cells in
        CA3.
    perforant_in_degree, perforant_mv : int / float
        Synapses from EC on a cell of CA3, and their largest weight; the initial one is 0, as in the next two.
    ca3_feedforward_mv : float
        Inhibition of CA3 by each spike of EC in the retrieval phase. Tuned together with perforant_mv: half of a
        pattern makes most of its cells in CA3 fire; a fifth of one among others (the overlap of two patterns) does not.
    recurrent_in_degree, recurrent_mv : int / float
        Synapses from CA3 on a cell of CA3, and their largest weight. Tuned: half of a pattern's cells, at 50 Hz, make
        some of the others fire; without them, the overlap above is lower by about 0.1.
    direct_in_degree, direct_mv : int / float
        Synapses from EC on a cell of CA1, and their weight. Tuned: about 20 % of CA1 fire in each cycle.
    schaffer_in_degree, schaffer_mv : int / float
        Synapses from CA3 on a cell of CA1, and their largest weight. Tuned: known patterns cause three to four times as
        many spikes of CA1 in the retrieval phase as new ones.
    afferent_in_degree, afferent_mv : int / float
        Defaults of a pathway to EC: synapses on a cell, and their summed weight (at most 20 mV each, which relays each
        spike that does not follow another too soon). Tuned: a source at 20 Hz gives about 18 Hz, synchronous or not.

    Raises
    ------
    InvalidArgument, InvalidType
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> HippocampusConfig(dg=1000).rhythm
    'theta'
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


# Weight of a synapse on a cell of EC that relays every spike.
LARGEST_AFFERENT_MV = 20.0

# The septum: number of cells; rate of each at the trough; decay of its neuromodulator (short within a cycle); spikes of
# EC around the peak, for each of its cells, that count as input (tuned: half of those of a pattern).
SEPTUM = 10
SEPTUM_HZ = 100.0
ENCODING_MS = 10.0
INPUT_SHARE = 0.08

# Number of cells of EC that inhibit a cell of DG or CA3.
FEEDFORWARD_IN_DEGREE = 100

# Interval between weight updates, and decay of eligibility: so short that pairs of one half of a cycle have decayed in
# the other.
LEARNING_MS = 20.0
ELIGIBILITY_MS = 8.0

# Cells of DG: slow membranes (Schmidt-Hieber, Jonas and Bischofberger 2007). A cell that fired stays more excitable for
# a cycle: without this, noise in EC selects other cells in each cycle.
GRANULE = {
    "tau_m_ms": 30.0, "tau_afferent_ms": 5.0, "depth_afferent": 0.8, "fatigue_step_mv": -5.0, "tau_fatigue_ms": 100.0
}  # fmt: skip
# Pyramidal cells adapt, so that recall causes one or two spikes in each cycle and ends with it.
CA3_CELL = {"depth_afferent": 0.9, "depth_associative": 0.95, "fatigue_step_mv": 8.0, "tau_fatigue_ms": 30.0}
CA1_CELL = {**CA3_CELL, "depth_afferent": 0.6}
# Cells of EC have a long refractory time, which keeps their rate below 33 Hz (sources at 20, 40 and 100 Hz give 13, 18
# and 25 Hz).
EC_CELL = {"tau_m_ms": 10.0, "tau_afferent_ms": 2.0, "refractory_ms": 30.0}
FAST_CELL = {"tau_m_ms": 10.0, "tau_afferent_ms": 2.0, "refractory_ms": 2.0}

# Feedback inhibition of each field: in-degree and weight (mV) onto an inhibitory cell, and of its inhibition. Tuned:
# about 10 simultaneous cells of DG, or 15 of CA3, silence the others for 10 to 20 ms.
INHIBITION = {"DG": (100, 8.0, 10, -12.0), "CA3": (100, 1.6, 8, -12.0), "CA1": (40, 3.0, 6, -10.0)}


class Hippocampus(Region):
    """A hippocampus. Ports: EC in; CA1, CA3, DG and EC out."""

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
        """Connect a pathway to EC, with static weights; its default summed weight does not depend on their number."""
        if afferent.plasticity not in (None, "none"):
            raise InvalidArgument(
                f"{afferent.name}: plasticity={afferent.plasticity!r}: pathways to EC do not learn; use 'none'"
            )
        rule, count = afferent_rule(afferent, built, self.config.afferent_in_degree)
        weight = afferent.weight
        if weight is None:
            weight = min(LARGEST_AFFERENT_MV, self.config.afferent_mv / count)
        target = built.input(afferent.port)
        return [network.connect(afferent.source, target, rule, weight, afferent.delay_ms, name=afferent.name)]

    def _rhythm(self, network: Network) -> str:
        """Return the name of the rhythm to follow, which is declared if it does not exist."""
        c = self.config
        known = {rhythm.name for rhythm in network.rhythms}
        return c.rhythm if c.rhythm in known else network.rhythm(c.rhythm, c.frequency_hz).name

    def _septum(self, network: Network, name: str, cells: dict[str, Population], theta: str) -> str:
        """Add the cells that enable plasticity, unless CA3 recalls; return the name of the level that they raise."""
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
    """Return a hippocampus.

    Parameters
    ----------
    config : HippocampusConfig or mapping, optional
        The configuration, or the fields that differ from the defaults.
    device : str
        Not used: `Brain(..., device=...)` selects the device of all neurons.

    Raises
    ------
    InvalidArgument
        The configuration is wrong.

    Examples
    --------
    >>> create_hippocampus_region({"dg": 1000}).config.dg
    1000
    """
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
    """Return the factor for weights if there are fewer sources than the in-degree."""
    return max(1.0, k / _available(pre, post, groups))


# --- Neuron models ---


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    kinds = ("afferent", "associative", "in")
    check_positive(p, "tau_m_ms", *(f"tau_{kind}_ms" for kind in kinds))
    unit = {**p, "e_rest_mv": 0.0, "c_m_pf": 1.0}
    constants = leak_constants(unit, dt_ms)
    for kind in kinds:
        tau = p[f"tau_{kind}_ms"]
        constants[f"decay_{kind}"] = exp(-dt_ms / tau)
        constants[f"per_{kind}"] = float(current_propagator(unit, tau, dt_ms) / potential_height(p["tau_m_ms"], tau))
    return constants


def potential_height(tau_m_ms: float, tau_syn_ms: float) -> float:
    """Return the peak depolarisation by an exponentially decaying current of amplitude 1, for a capacitance of 1."""
    if abs(tau_m_ms - tau_syn_ms) < 1e-9 * tau_m_ms:
        return tau_m_ms * exp(-1.0)
    when = log(tau_m_ms / tau_syn_ms) * tau_m_ms * tau_syn_ms / (tau_m_ms - tau_syn_ms)
    return tau_syn_ms * tau_m_ms / (tau_m_ms - tau_syn_ms) * (exp(-when / tau_m_ms) - exp(-when / tau_syn_ms))


@neuron_model(
    states={"v_mv": 0.0, "afferent": 0.0, "inhibition": 0.0, "associative": 0.0, "fatigue_mv": 0.0, "refractory": 0},
    receptors=("afferent_mv", "in_mv", "associative_mv"),
    parameters={
        "tau_m_ms": 20.0, "tau_afferent_ms": 3.0, "tau_in_ms": 8.0, "tau_associative_ms": 5.0, "v_threshold_mv": 15.0,
        "v_reset_mv": 0.0, "v_lowest_mv": -10.0, "refractory_ms": 3.0, "depth_afferent": 0.0, "depth_associative": 0.0,
        "fatigue_step_mv": 0.0, "tau_fatigue_ms": 50.0,
    },
    signals={"theta": 0.0},
    constants=lambda p, dt_ms: {**_constants(p, dt_ms), "decay_fatigue": exp(-dt_ms / p["tau_fatigue_ms"])},
)  # fmt: skip
def theta_cell(
    v_mv, afferent, inhibition, associative, fatigue_mv, refractory, afferent_mv, in_mv, associative_mv, theta, decay,
    decay_afferent, decay_in, decay_associative, decay_fatigue, per_afferent, per_in, per_associative, depth_afferent,
    depth_associative, v_threshold_mv, v_reset_mv, v_lowest_mv, fatigue_step_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire cell relative to rest; a weight is the peak height of the potential of a spike, in mV.

    At theta's trough (-1) afferent spikes have full weight and associative ones 1 - depth_associative of it; at its
    peak (1) associative spikes have full weight and afferent ones 1 - depth_afferent of it. Each spike of the cell
    raises its threshold by `fatigue_step_mv`, which decays with `tau_fatigue_ms`.
    """
    held = refractory > 0
    v = v_mv * decay + afferent * per_afferent + associative * per_associative + inhibition * per_in
    v = v_mv if held else max(v, v_lowest_mv)
    spike = v >= v_threshold_mv + fatigue_mv
    left = refractory - 1 if held else 0
    afferent = afferent * decay_afferent + afferent_mv * (1.0 - depth_afferent * 0.5 * (1.0 + theta))
    associative = associative * decay_associative + associative_mv * (1.0 - depth_associative * 0.5 * (1.0 - theta))
    inhibition = inhibition * decay_in + in_mv
    fatigue = fatigue_step_mv if spike else fatigue_mv * decay_fatigue
    v = v_reset_mv if spike else v
    return spike, v, afferent, inhibition, associative, fatigue, refractory_steps if spike else left


@neuron_model(
    states={"due": 0.0, "present": 0.0, "familiar": 0.0},
    receptors=("input", "recalled"),
    parameters={"highest_hz": 100.0, "tau_ms": 80.0},
    signals={"theta": 0.0},
    constants=lambda p, dt_ms: {
        "per_step": p["highest_hz"] * dt_ms * 1e-3, "decay": exp(-dt_ms / positive(p["tau_ms"], "tau_ms"))
    },
)  # fmt: skip
def septal_cell(due, present, familiar, input, recalled, theta, per_step, decay):
    """Cell that fires in the lower half of theta if the preceding upper half had input without recall.

    Input and recall of the upper half are summed and decay with `tau_ms`; a sum of 1 is full input, or full recall.
    """
    due = due + per_step * max(-theta, 0.0) * max(min(present, 1.0) - familiar, 0.0)
    spike = due >= 1.0
    upper = max(theta, 0.0)
    present = present * decay + input * upper
    familiar = familiar * decay + recalled * upper
    return spike, due - 1.0 if spike else due, present, familiar
