"""A piece of sensory cortex: columns of three layers, 4 to 2/3 to 5, that learn what goes together.

Input from the thalamus arrives in layer 4 and passes to layer 2/3, which talks to other cortex, and on to layer 5,
which talks to what lies below (Douglas and Martin 2004). Every layer has inhibitory cells, which are excited by their
column and inhibit it and, more weakly, the whole layer: this keeps activity sparse. Groups are columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from neuraxis.brain.models.cortex import pyramidal_cell
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config, group_size
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, Neuromodulator, NeuronModel, Population, Projection, RewardSTDP
from neuraxis.network.arguments import label, near, not_negative, number, positive, whole
from neuraxis.network.models import lif_exp_two

__all__ = ["Cortex", "CortexConfig", "create_cortex_region"]

LAYERS = ("L4", "L23", "L5")

# What a pathway may ask for as its plasticity.
NONE, REWARD_STDP = "none", "reward_stdp"


class CortexConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a piece of cortex is made.

    Simplified: no layer 6, no excitation within a layer, one kind of inhibitory cell, which does not inhibit its like,
    no adaptation, synaptic currents instead of conductances. Cells are those of `lif_exp_two` (membrane 10 ms, 250 pF,
    threshold 15 mV above rest, excitation 2 ms: near Potjans and Diesmann 2014). A weight "in sum" is what all
    synapses of that kind on one cell add up to.

    What learns is layer 4 to 2/3 and layer 2/3 to 5: spike timing leaves traces (Bi and Poo 1998: 20 ms), and these
    change weights while a neuromodulator is above its baseline (acetylcholine: Froemke, Merzenich and Schreiner 2007).
    Causal pairs dominate in a driven column, so weights there rise to their bound and stay: bounds near the first
    weight are what keeps rates stable over any time. Below its baseline the neuromodulator would reverse learning.

    Attributes:
        neurons: excitatory cells of layer 4, and of layer 5; layer 2/3 has 1.5 times as many.
        groups: columns; all populations are divided into so many equal parts.
        inhibitory_share: inhibitory cells for each excitatory one: 20 % (Markram et al. 2004: 10 to 30 %).
        learning_modulator: what lets the forward synapses learn; they are static if this is None or if the network has
            no neuromodulator of this name.
        gain_modulator: what raises the gain of excitatory cells (noradrenaline: Servan-Schreiber, Printz and Cohen
            1990); the gain is 1 if this is None or if the network has no neuromodulator of this name.
        gain_per_level: how much a level of 1 above the baseline adds to the gain (bounds: 0.5 and 1.3). Chosen: the
            rates of a driven column rise by 20 to 80 %, those of the others stay below 3 Hz.
        background_hz, background_pa: random spikes that each excitatory cell gets. Chosen: 0.4 to 0.7 Hz at rest
            (Barth and Poulet 2012: below 1 Hz in layer 2/3).
        delay_ms: of all synapses within the region.
        tau_inhibition_ms: the decay of inhibition; 5 ms (Bartos, Vida and Jonas 2007: 2 to 8 ms for fast cells).
        afferent_in_degree, afferent_pa: the default pathway to layer 4: synapses on a cell, and their weight in sum.
            Chosen: a thalamus at 40 Hz gives 20 Hz.
        feedback_in_degree, feedback_pa: likewise to layer 2/3. Chosen: a source at 20 Hz alone gives 10 Hz.
        forward_in_degree: synapses on a cell from its column in the layer before.
        to_layer_23_pa, to_layer_5_pa: their weight in sum. Chosen: 15 Hz in layer 2/3, 20 Hz in layer 5
            where layer 4 has 20 Hz.
        across_in_degree, across_share: further synapses from any column in the layer before, and their weight in sum
            as a share of that from the own column.
        excite_in_degree, excite_pa: excitatory to inhibitory cells of a column.
        inhibit_in_degree, inhibit_pa: inhibitory to excitatory cells of a column.
        lateral_in_degree, lateral_pa: inhibitory to excitatory cells of all columns. Chosen with the two above: four
            driven columns have 0.7 to 0.9 of the rate of a single one.
        learning_rate: how much of the first weight a pair of spikes at no distance adds where the neuromodulator is 1
            above its baseline. Chosen: a weight that is used needs one to four
            minutes to its bound at a level of 0.5.
        depression: how much more a pair in the wrong order takes off. Chosen: above 1, so that chance pairs weaken.
        tau_stdp_ms, tau_eligibility_ms, learning_every_ms: see `RewardSTDP`; traces that last about half a second
            (He et al. 2015 saw seconds) bridge the delay of a prediction error.
        weakest, strongest: the bounds of a weight that learns, as shares of the first one. Chosen: after 600 s of
            learning at a level of 0.5 a driven column has 20 and 30 Hz in layers 2/3 and 5 instead of 16 and 22.
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
        """The cells of each population."""
        excitatory = {"L4": self.neurons, "L23": round(1.5 * self.neurons), "L5": self.neurons}
        inhibitory = {layer: max(self.groups, round(self.inhibitory_share * n)) for layer, n in excitatory.items()}
        return {f"{one}{kind}": n[one] for one in LAYERS for kind, n in (("e", excitatory), ("i", inhibitory))}


@dataclass(frozen=True)
class Cortex(Region):
    """Three layers of columns; see the module's text."""

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
        """Connect a pathway. By default the sum of its weights does not depend on how many there are.

        Its synapses are static by default; with plasticity "reward_stdp" they learn as those within the region do.
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
        """Connect two populations within their columns (or, with one group, everywhere)."""
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
        """The rule for synapses that begin with this weight; None where nothing could ever let them learn."""
        c = self.config
        modulator = _declared(network, c.learning_modulator)
        if modulator is None or weight <= 0:
            return None
        # A trace changes the weight at every update until it has decayed: all of them together make learning_rate.
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
    """A piece of cortex from its configuration. It is made of neurons of the network, which run where that does."""
    return Cortex(as_config(CortexConfig, config, "cortex"))


def _declared(network: Network, modulator: str | None) -> Neuromodulator | None:
    return next((one for one in network.neuromodulators if one.name == modulator), None)
