"""A piece of sensory cortex: columns of three layers, 4 to 2/3 to 5, that learn correlations.

Thalamic input arrives in layer 4 and passes to layer 2/3, which projects to other cortex, and on to layer 5, which
projects to subcortical regions (Douglas and Martin 2004). Every layer has inhibitory cells, which are excited by their
column and inhibit it and, more weakly, the whole layer: this keeps activity sparse. Groups are columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from neuraxis.arguments import label, near, not_negative, number, positive, whole
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config, group_size
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, Neuromodulator, NeuronModel, Population, Projection, RewardSTDP
from neuraxis.network.arithmetic import exp
from neuraxis.network.models import lif_exp_two
from neuraxis.network.models.lif import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["Cortex", "CortexConfig", "create_cortex_region", "pyramidal_cell"]


LAYERS = ("L4", "L23", "L5")

# Values of a pathway's `plasticity`.
NONE, REWARD_STDP = "none", "reward_stdp"


class CortexConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a piece of cortex. Weights are in pA.

    Simplifications: no layer 6, no excitation within a layer, one kind of inhibitory cell without mutual inhibition, no
    adaptation, synaptic currents instead of conductances. Cells are those of `lif_exp_two` (membrane 10 ms, 250 pF,
    threshold 15 mV above rest, excitation 2 ms: near Potjans and Diesmann 2014). A "summed" weight is the sum over all
    synapses of that kind on one cell. "Tuned" values were chosen by simulation, for the stated result.

    The synapses from layer 4 to 2/3 and from 2/3 to 5 are plastic: spike timing leaves eligibility traces (Bi and Poo
    1998: 20 ms), which change weights while a neuromodulator is above its baseline (acetylcholine: Froemke, Merzenich
    and Schreiner 2007). Causal pairs dominate in a driven column, so weights there rise to their bound and stay: bounds
    near the initial weight keep rates stable. Below its baseline the neuromodulator would reverse learning.

    Attributes
    ----------
    neurons : int
        Excitatory cells of layer 4, and of layer 5; layer 2/3 has 1.5 times as many.
    groups : int
        Number of columns: equal parts of all populations.
    inhibitory_share : float
        Inhibitory cells for each excitatory one: 20 % (Markram et al. 2004: 10 to 30 %).
    learning_modulator : str, optional
        Neuromodulator that enables plasticity of the forward synapses; they are static if this is None or the network
        has no neuromodulator of this name.
    gain_modulator : str, optional
        Neuromodulator that raises the gain of excitatory cells (noradrenaline: Servan-Schreiber, Printz and Cohen
        1990); the gain is 1 if this is None or the network has no neuromodulator of this name.
    gain_per_level : float
        Increase of the gain for a level of 1 above the baseline (bounds: 0.5 and 1.3). Tuned: the rates of a driven
        column rise by 20 to 80 %, those of the others stay below 3 Hz.
    background_hz, background_pa : float
        Rate and weight of Poisson input to each excitatory cell. Tuned: 0.4 to 0.7 Hz at rest (Barth and Poulet 2012:
        below 1 Hz in layer 2/3).
    delay_ms : float
        Delay of all synapses within the region.
    tau_inhibition_ms : float
        Time constant of inhibition; 5 ms (Bartos, Vida and Jonas 2007: 2 to 8 ms for fast cells).
    afferent_in_degree, afferent_pa : int / float
        Defaults of a pathway to layer 4: synapses on a cell, and their summed weight. Tuned: a thalamus at 40 Hz gives
        20 Hz.
    feedback_in_degree, feedback_pa : int / float
        Likewise for a pathway to layer 2/3. Tuned: a source at 20 Hz alone gives 10 Hz.
    forward_in_degree : int
        Synapses on a cell from its column in the preceding layer.
    to_layer_23_pa, to_layer_5_pa : float
        Their summed weight. Tuned: 15 Hz in layer 2/3 and 20 Hz in layer 5 when layer 4 has 20 Hz.
    across_in_degree, across_share : int / float
        Further synapses from any column of the preceding layer, and their summed weight as a share of that from the own
        column.
    excite_in_degree, excite_pa : int / float
        Synapses from excitatory to inhibitory cells of a column, and their summed weight.
    inhibit_in_degree, inhibit_pa : int / float
        Synapses from inhibitory to excitatory cells of a column, and their summed weight.
    lateral_in_degree, lateral_pa : int / float
        Likewise across all columns. Tuned together: four driven columns have 0.7 to 0.9 of the rate of a single one.
    learning_rate : float
        Weight change, as a share of the initial weight, by a pair of simultaneous spikes at a neuromodulator level of 1
        above the baseline. Tuned: at a level of 0.5 a used weight reaches its bound in one to four minutes.
    depression : float
        Ratio of depression to potentiation. Above 1, so that chance pairs weaken a synapse.
    tau_stdp_ms, tau_eligibility_ms, learning_every_ms : float
        See `RewardSTDP`. Traces of about half a second (He et al. 2015 saw seconds) bridge the delay of a prediction
        error.
    weakest, strongest : float
        Bounds of a plastic weight, as shares of the initial one. Tuned: after 600 s of learning at a level of 0.5 a
        driven column has 20 and 30 Hz in layers 2/3 and 5 instead of 16 and 22.

    Raises
    ------
    InvalidArgument, InvalidType
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> CortexConfig(neurons=80).sizes
    {'L4e': 80, 'L4i': 16, 'L23e': 120, 'L23i': 24, 'L5e': 80, 'L5i': 16}
    """

    neurons: int = 160
    groups: int = 4
    inhibitory_share: float = 0.2
    learning_modulator: str | None = "acetylcholine"
    gain_modulator: str | None = "noradrenaline"
    gain_per_level: float = 0.15
    background_hz: float = 100.0
    background_pa: float = 550.0
    delay_ms: float = 1.0
    tau_inhibition_ms: float = 5.0
    afferent_in_degree: int = 20
    afferent_pa: float = 3800.0
    feedback_in_degree: int = 20
    feedback_pa: float = 3800.0
    forward_in_degree: int = 20
    to_layer_23_pa: float = 4500.0
    to_layer_5_pa: float = 6600.0
    across_in_degree: int = 5
    across_share: float = 0.1
    excite_in_degree: int = 20
    excite_pa: float = 8000.0
    inhibit_in_degree: int = 6
    inhibit_pa: float = 800.0
    lateral_in_degree: int = 8
    lateral_pa: float = 500.0
    learning_rate: float = 0.001
    depression: float = 1.3
    tau_stdp_ms: float = 20.0
    tau_eligibility_ms: float = 500.0
    learning_every_ms: float = 50.0
    weakest: float = 0.5
    strongest: float = 1.2

    def __post_init__(self) -> None:
        whole(self.groups, "groups", 1)
        whole(self.neurons, "neurons", self.groups)
        for name in ("learning_modulator", "gain_modulator"):
            if getattr(self, name) is not None:
                label(getattr(self, name), name)
        number(self.gain_per_level, "gain_per_level")
        for name in ("delay_ms", "tau_inhibition_ms", "tau_stdp_ms", "tau_eligibility_ms", "learning_every_ms"):
            positive(getattr(self, name), name)
        for name in ("inhibitory_share", "background_hz", "across_share", "learning_rate", "depression", "weakest"):
            not_negative(getattr(self, name), name)
        if not self.weakest <= 1 <= number(self.strongest, "strongest") or self.weakest == self.strongest:
            raise InvalidArgument(f"weakest={self.weakest}, strongest={self.strongest}: 1 must be between them")
        for name in ("afferent", "feedback", "forward", "across", "excite", "inhibit", "lateral"):
            whole(getattr(self, f"{name}_in_degree"), f"{name}_in_degree", 1)
        for name in ("background", "afferent", "feedback", "to_layer_23", "to_layer_5", "excite", "inhibit", "lateral"):
            not_negative(getattr(self, f"{name}_pa"), f"{name}_pa")

    @property
    def sizes(self) -> dict[str, int]:
        """Number of cells of each population."""
        excitatory = {"L4": self.neurons, "L23": round(1.5 * self.neurons), "L5": self.neurons}
        inhibitory = {layer: max(self.groups, round(self.inhibitory_share * n)) for layer, n in excitatory.items()}
        return {f"{one}{kind}": n[one] for one in LAYERS for kind, n in (("e", excitatory), ("i", inhibitory))}


@dataclass(frozen=True)
class Cortex(Region):
    """A piece of cortex. Ports: L4e and L23e in; L5e and L23e out."""

    kind: ClassVar[str] = "cortex"
    config: CortexConfig

    def build(self, network: Network, name: str) -> BuiltRegion:
        c = self.config
        models = {"e": self._pyramidal(network), "i": lif_exp_two()}
        cells = {short: network.population(f"{name}.{short}", n, models[short[-1]]) for short, n in c.sizes.items()}
        for layer in LAYERS:
            excitatory, inhibitory = cells[f"{layer}e"], cells[f"{layer}i"]
            network.poisson(excitatory, c.background_hz, c.background_pa)
            self._connect(network, excitatory, inhibitory, c.excite_in_degree, c.excite_pa, c.groups)
            self._connect(network, inhibitory, excitatory, c.inhibit_in_degree, -c.inhibit_pa, c.groups)
            self._connect(network, inhibitory, excitatory, c.lateral_in_degree, -c.lateral_pa)
        for lower, upper, sum_pa in (("L4e", "L23e", c.to_layer_23_pa), ("L23e", "L5e", c.to_layer_5_pa)):
            ends = cells[lower], cells[upper]
            self._connect(network, *ends, c.forward_in_degree, sum_pa, c.groups, learns=True)
            self._connect(network, *ends, c.across_in_degree, c.across_share * sum_pa, learns=True)
        return BuiltRegion(
            name=name,
            kind=self.kind,
            populations=cells,
            inputs=("L4e", "L23e"),
            outputs=("L5e", "L23e"),
            inhibitory=frozenset(f"{layer}i" for layer in LAYERS),
            groups=c.groups,
        )

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway; its default summed weight does not depend on the number of synapses.

        Synapses are static by default; with plasticity "reward_stdp" they learn like those within the region.
        """
        c = self.config
        plasticity = afferent.plasticity or NONE
        if plasticity not in (NONE, REWARD_STDP):
            raise InvalidArgument(
                f"{afferent.name}: plasticity={plasticity!r}: {near(plasticity, (NONE, REWARD_STDP))}"
            )
        target = built.input(afferent.port)
        if target is built.populations["L4e"]:
            in_degree, sum_pa = c.afferent_in_degree, c.afferent_pa
        else:
            in_degree, sum_pa = c.feedback_in_degree, c.feedback_pa
        rule, count = afferent_rule(afferent, built, in_degree)
        weight = sum_pa / count if afferent.weight is None else afferent.weight
        learning = self._learning(network, weight) if plasticity == REWARD_STDP else None
        made = network.connect(
            afferent.source,
            target,
            rule,
            weight=weight,
            delay_ms=afferent.delay_ms,
            plasticity=learning,
            name=afferent.name,
        )
        return [made]

    def _connect(
        self,
        network: Network,
        pre: Population,
        post: Population,
        in_degree: int,
        sum_pa: float,
        groups: int = 1,
        *,
        learns: bool = False,
    ) -> None:
        """Connect two populations column by column, or across all columns with one group."""
        k = min(in_degree, group_size(pre, groups))
        network.connect(
            pre,
            post,
            FixedInDegree(k, multapses=False, groups=groups),
            weight=sum_pa / k,
            delay_ms=self.config.delay_ms,
            plasticity=self._learning(network, sum_pa / k) if learns else None,
        )

    def _pyramidal(self, network: Network) -> NeuronModel:
        c = self.config
        model = pyramidal_cell(tau_syn_in_ms=c.tau_inhibition_ms)
        modulator = _declared(network, c.gain_modulator)
        if modulator is None:
            return model
        return model(level=modulator.name, level_baseline=modulator.baseline, gain_per_level=c.gain_per_level)

    def _learning(self, network: Network, weight: float) -> RewardSTDP | None:
        """Return the plasticity rule of synapses with this initial weight; None if they are static."""
        c = self.config
        modulator = _declared(network, c.learning_modulator)
        if modulator is None or weight <= 0:
            return None
        # A trace changes the weight at every update until it has decayed; the changes add up to learning_rate.
        amount = c.learning_rate * weight * c.learning_every_ms / c.tau_eligibility_ms
        return RewardSTDP(
            w_min=c.weakest * weight,
            w_max=c.strongest * weight,
            a_plus=amount,
            a_minus=c.depression * amount,
            tau_plus_ms=c.tau_stdp_ms,
            tau_minus_ms=c.tau_stdp_ms,
            tau_eligibility_ms=c.tau_eligibility_ms,
            every_ms=c.learning_every_ms,
            modulator=modulator.name,
        )


def create_cortex_region(config: CortexConfig | Mapping[str, Any] | None = None, device: str = "cpu") -> Cortex:
    """Return a piece of cortex.

    Parameters
    ----------
    config : CortexConfig or mapping, optional
        The configuration, or the fields that differ from the defaults.
    device : str
        Not used: `Brain(..., device=...)` selects the device of all neurons.

    Raises
    ------
    InvalidArgument
        The configuration is wrong.

    Examples
    --------
    >>> create_cortex_region({"neurons": 80}).config.neurons
    80
    """
    return Cortex(as_config(CortexConfig, config, "cortex"))


def _declared(network: Network, modulator: str | None) -> Neuromodulator | None:
    return next((one for one in network.neuromodulators if one.name == modulator), None)


# --- Neuron models ---


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms", "largest_gain")
    return {
        **leak_constants(p, dt_ms),
        "decay_ex": exp(-dt_ms / p["tau_syn_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_syn_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_syn_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_syn_in_ms"], dt_ms),
        "gain_at_zero": float(1.0 - p["gain_per_level"] * p["level_baseline"]),
    }


@neuron_model(
    states={"v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa"),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0, "e_rest_mv": -70.0,
        "v_threshold_mv": -55.0, "v_reset_mv": -70.0, "refractory_ms": 2.0, "gain_per_level": 0.0,
        "level_baseline": 0.0, "smallest_gain": 0.5, "largest_gain": 1.3,
    },
    signals={"level": 0.0},
    constants=_constants,
)  # fmt: skip
def pyramidal_cell(
    v_mv, i_ex_pa, i_in_pa, refractory, ex_pa, in_pa, current_pa, level, decay, rest, per_pa, decay_ex, decay_in,
    per_pa_ex, per_pa_in, gain_at_zero, gain_per_level, smallest_gain, largest_gain, v_threshold_mv, v_reset_mv,
    refractory_steps,
):  # fmt: skip
    """`lif_exp_two` whose excitation is scaled by 1 + gain_per_level * (level - level_baseline), within bounds.

    The signal `level` is that of a neuromodulator.
    """
    held = refractory > 0
    gain = min(max(gain_at_zero + gain_per_level * level, smallest_gain), largest_gain)
    v = v_mv * decay + i_ex_pa * gain * per_pa_ex + i_in_pa * per_pa_in + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    return spike, v_reset_mv if spike else v, i_ex, i_in, refractory_steps if spike else left
