"""The cerebellum: learns from errors which output fits which context.

    mossy -> granule -> purkinje -| nuclei          climbing -> purkinje (teaches)

Many granule cells, each with few mossy fibres and inhibited by Golgi cells, turn a context into a sparse code. Purkinje
cells sum it with the weights of their parallel fibres, and inhibit the nuclei, which fire spontaneously. Climbing
fibres signal the error of each output (group): parallel fibres that were active just before a climbing spike are
depressed, which disinhibits the nuclei; those that are active without one are potentiated (Marr 1969; Albus 1971; Ito
1989). Each group's climbing rate relative to `balance_hz` is thus the error of a delta rule: a higher rate means that
the output is too low.

The nuclei inhibit the olive, the origin of climbing fibres: the more an output fires, the less its climbing fibres do
(Medina, Nores and Mauk 2002). Weights that errors of one sign have driven towards a bound therefore return when the
errors end, and settle between their bounds, separately in each context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from neuraxis.arguments import not_negative, positive, whole
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config
from neuraxis.brain.regions.hippocampus import potential_height
from neuraxis.errors import InvalidArgument
from neuraxis.network import Explicit, FixedInDegree, Network, Population, Projection, RewardSTDP, Uniform
from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import Parameters, check_positive, current_propagator, leak_constants, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = [
    "Cerebellum",
    "CerebellumConfig",
    "cerebellar_cell",
    "create_cerebellum_region",
    "olivary_cell",
    "pacemaker",
    "purkinje_cell",
]


CLIMBING = "climbing"


class CerebellumConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a cerebellum. Weights are peak heights of the postsynaptic potential, in mV; threshold 15 mV.

    Simplifications: no stellate and basket cells; no collaterals of mossy and climbing fibres to the nuclei; the nuclei
    reduce the learning signal of the olive only, not the climbing spikes that make Purkinje cells pause; a complex
    spike is one spike and a pause; all Purkinje cells of a group learn from the mean of its climbing fibres (a
    microzone: Apps and Garwicz 2005); a parallel fibre becomes eligible by its spikes before those of the Purkinje
    cell, which is never silent for long; synaptic currents instead of conductances. If there are fewer sources than an
    in-degree, weights are scaled up accordingly. "Tuned" values were chosen by simulation, for the stated result.

    Attributes
    ----------
    mossy, granule, golgi, purkinje, nuclei, climbing : int
        Number of cells of each kind. Animals have far more granule cells.
    groups : int
        Number of outputs: equal parts of the Purkinje cells, nuclei and climbing fibres.
    mossy_in_degree, mossy_mv : int / float
        Synapses of mossy fibres on a granule cell, 4 (Eccles, Ito and Szentagothai 1967), and their weight. Tuned:
        three active ones make it fire; 30 % of the mossy fibres at 100 Hz make 15 % of the granule cells fire at 20 Hz.
    parallel_in_degree, parallel_mv, parallel_largest_mv : int / float / float
        Synapses of parallel fibres on a Purkinje cell, initial and largest weight. Tuned: Purkinje cells fire at 29 Hz
        without them, 58 Hz initially, 109 Hz at most.
    purkinje_mv : float
        Summed weight from the Purkinje cells of a group to a cell of the nuclei. Tuned: the nuclei fire at 102 Hz when
        parallel fibres have no weight, at 71 Hz initially, at 19 Hz when all have the largest.
    purkinje_drive_mv, nuclei_drive_mv : float
        Constant drive that makes these cells fire spontaneously.
    balance_hz : float
        Rate of climbing fibres at which weights do not change. 10 Hz instead of the 1 Hz of resting animals: a higher
        rate has less relative noise.
    nuclei_to_climbing : float
        Reduction of the learning signal, in Hz of climbing fibres, for each Hz of the group's nuclei above `usual_hz`.
        Tuned: in contexts without errors weights settle at 0.32 mV on average; with an error of 90 Hz for 30 ms in 19 %
        of the trials of each output, at 0.21 mV (with a third of the value: at 0.12 and 0.07 mV). In return, outputs
        miss targets far from the usual rate by some Hz.
    usual_hz : float
        Rate to which the nuclei return without errors; the initial one.
    learning_rate : float
        Approximate weight change, in mV, of a parallel fibre at 25 Hz in a second, for each Hz of climbing rate beyond
        the balance. Tuned: an error is halved in 10 to 15 trials of 150 ms.
    eligibility_ms : float
        Longest time from activity of a parallel fibre to a climbing spike that depresses it (50 to 200 ms: Ito 2001).
    plastic : bool
        False: all weights are static.
    afferent_in_degree, afferent_mv : int / float
        Defaults of a pathway to mossy fibres: synapses on each, and their summed weight (at most 20 mV each, which
        relays each spike). A pathway to climbing fibres has one synapse of 20 mV on each.

    Raises
    ------
    InvalidArgument, InvalidType
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> CerebellumConfig(granule=1000).groups
    4
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


# Weight of a synapse on a mossy or climbing fibre that relays every spike.
LARGEST_AFFERENT_MV = 20.0

# Interval between weight updates, and decay of the level that a climbing spike raises.
LEARNING_MS = 20.0
CLIMBING_MS = 20.0
PACEMAKER_HZ = 100.0
TRACE_MS = 20.0

# Eligibility of a parallel fibre at 25 Hz onto a Purkinje cell at 60 Hz, as a multiple of a_plus.
USUAL_TRACE = 25e-3 * TRACE_MS * 60e-3

# Golgi cells: (in-degree, weight in mV) from granule cells, from mossy fibres, and back to granule cells. Tuned
# together with mossy_mv.
FROM_GRANULE, FROM_MOSSY, TO_GRANULE = (40, 4.0), (10, 1.0), (3, -6.0)

# Rate (Hz) and weight (mV) of Poisson input to the nuclei, without which the cells of a group would synchronize.
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
        # Random initial potentials keep the spontaneously firing cells from synchronizing.
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

        Learning is set up with the first pathway to the climbing fibres: without one, parallel fibres would only grow.
        """
        c = self.config
        if afferent.plasticity not in (None, "none"):
            raise InvalidArgument(
                f"{afferent.name}: plasticity={afferent.plasticity!r}: such pathways do not learn; use 'none'"
            )
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
        """Connect granule cells to the Purkinje cells of a group, whose plasticity follows a level of the group."""
        c = self.config
        pre, post = cells["granule"], cells["purkinje"]
        k = min(c.parallel_in_degree, pre.n)
        growth = c.parallel_in_degree / k
        first, end = _part(post.n, group, c.groups)
        targets = np.repeat(np.arange(first, end), k)
        # Evenly spaced sources, with another offset for each Purkinje cell; the inputs of granule cells are random.
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
        """Drive the level of each group by its climbing rate, minus the part of the nuclei and the balance."""
        c = self.config
        if f"{built.name}.balance" in network:
            return
        balance = network.population(f"{built.name}.balance", 1, pacemaker(period_ms=1e3 / PACEMAKER_HZ))
        for group in range(c.groups):
            level = f"{built.name}.{CLIMBING}.{group}"
            fibres = np.arange(*_part(c.climbing, group, c.groups))
            outputs = np.arange(*_part(c.nuclei, group, c.groups))
            # Only whole populations can raise a level, so each group gets a population.
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
    """Return a cerebellum.

    Parameters
    ----------
    config : CerebellumConfig or mapping, optional
        The configuration, or the fields that differ from the defaults.
    device : str
        Not used: `Brain(..., device=...)` selects the device of all neurons.

    Raises
    ------
    InvalidArgument
        The configuration is wrong.

    Examples
    --------
    >>> create_cerebellum_region({"granule": 1000}).config.granule
    1000
    """
    return Cerebellum(as_config(CerebellumConfig, config, "cerebellum"))


def _part(n: int, group: int, groups: int) -> tuple[int, int]:
    """Return the first and the end index of a group, as connection rules divide a population."""
    return group * n // groups, (group + 1) * n // groups


# --- Neuron models ---


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_m_ms", "tau_ex_ms", "tau_in_ms")
    unit = {**p, "e_rest_mv": p["drive_mv"], "c_m_pf": 1.0}
    constants = leak_constants(unit, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_{kind}_ms"]
        constants[f"decay_{kind}"] = exp(-dt_ms / tau)
        constants[f"per_{kind}"] = float(current_propagator(unit, tau, dt_ms) / potential_height(p["tau_m_ms"], tau))
    return constants


@neuron_model(
    states={"v_mv": 0.0, "excitation": 0.0, "inhibition": 0.0, "refractory": 0},
    receptors=("ex_mv", "in_mv"),
    parameters={
        "tau_m_ms": 10.0, "tau_ex_ms": 3.0, "tau_in_ms": 8.0, "drive_mv": 0.0, "v_threshold_mv": 15.0,
        "v_reset_mv": 0.0, "v_lowest_mv": -10.0, "refractory_ms": 2.0,
    },
    constants=_constants,
)  # fmt: skip
def cerebellar_cell(
    v_mv, excitation, inhibition, refractory, ex_mv, in_mv, decay, rest, decay_ex, decay_in, per_ex, per_in,
    v_threshold_mv, v_reset_mv, v_lowest_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire cell relative to rest; it fires spontaneously if `drive_mv` is above the threshold."""
    held = refractory > 0
    v = v_mv * decay + rest + excitation * per_ex + inhibition * per_in
    v = v_mv if held else max(v, v_lowest_mv)
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    excitation = excitation * decay_ex + ex_mv
    inhibition = inhibition * decay_in + in_mv
    return spike, v_reset_mv if spike else v, excitation, inhibition, refractory_steps if spike else left


@neuron_model(
    states={"v_mv": 0.0, "excitation": 0.0, "inhibition": 0.0, "refractory": 0},
    receptors=("ex_mv", "in_mv", "climbing"),
    parameters={
        "tau_m_ms": 10.0, "tau_ex_ms": 3.0, "tau_in_ms": 8.0, "drive_mv": 0.0, "v_threshold_mv": 15.0,
        "v_reset_mv": 0.0, "v_lowest_mv": -10.0, "refractory_ms": 2.0, "pause_ms": 20.0,
    },
    constants=lambda p, dt_ms: {**_constants(p, dt_ms), "pause_steps": steps(p, "pause_ms", dt_ms)},
)  # fmt: skip
def purkinje_cell(
    v_mv, excitation, inhibition, refractory, ex_mv, in_mv, climbing, decay, rest, decay_ex, decay_in, per_ex, per_in,
    v_threshold_mv, v_reset_mv, v_lowest_mv, refractory_steps, pause_steps,
):  # fmt: skip
    """`cerebellar_cell` in which a climbing spike always causes a (complex) spike, followed by a pause."""
    held = refractory > 0
    v = v_mv * decay + rest + excitation * per_ex + inhibition * per_in
    v = v_mv if held else max(v, v_lowest_mv)
    complex_spike = climbing > 0.0
    spike = (v >= v_threshold_mv) | complex_spike
    left = refractory - 1 if held else 0
    left = refractory_steps if spike else left
    excitation = excitation * decay_ex + ex_mv
    inhibition = inhibition * decay_in + in_mv
    return spike, v_reset_mv if spike else v, excitation, inhibition, pause_steps if complex_spike else left


@neuron_model(
    states={"waiting": 0},
    parameters={"period_ms": 10.0},
    constants=lambda p, dt_ms: {"period_steps": max(1, steps(p, "period_ms", dt_ms))},
)
def pacemaker(waiting, period_steps):
    """Cell that spikes every `period_ms`."""
    spike = waiting + 1 >= period_steps
    return spike, 0 if spike else waiting + 1


@neuron_model(
    states={"left": 0.0},
    receptors=("heard",),
    parameters={"own_hz": 0.0},
    constants=lambda p, dt_ms: {"per_step": p["own_hz"] * dt_ms * 1e-3},
)
def olivary_cell(left, heard, per_step):
    """Cell whose mean rate is the sum of its input: it relays whole spikes at once and accumulates fractions."""
    total = max(left + heard + per_step, -2.0)
    spike = total >= 0.5
    return spike, total - 1.0 if spike else total
