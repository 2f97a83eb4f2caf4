"""The prefrontal cortex: working memory, held by dopamine and cleared by noradrenaline.

Excitatory cells form clusters, one for each item, and all clusters share the inhibitory cells. A cue makes its cluster
fire; slow excitation within the cluster then sustains its activity after the cue (Wang 1999, J Neurosci 19:9587; Brunel
and Wang 2001, J Comput Neurosci 11:63), and the shared inhibition silences the others. A later cue for another cluster
replaces it.

* Dopamine scales the slow excitation, as D1 receptors do (Durstewitz, Seamans and Sejnowski 2000, J Neurophysiol
  83:1733): at a level of 0 nothing is held; the effect saturates at `full_gate` of the model (0.6), so that bursts
  cannot ignite a cluster. The receptors follow the level within 0.5 s (`tau_gate_ms`), so that a dip after a missing
  reward does not delete the memory.
* Noradrenaline, released in a burst, makes the slow excitation decay at once: the "network reset" of Bouret and Sara
  (2005, Trends Neurosci 28:574).

A modulator that the network does not declare counts as being at its normal level (dopamine 1, noradrenaline 0).

Simplifications: the slow current stands for NMDA receptors without their dependence on voltage, and saturates for a
whole cell instead of for each synapse; there are no layers and no fast excitation between the cells of a cluster; the
reset acts on the current itself, where noradrenaline acts on several channels; dopamine's inverted U has its left half
only.

Sources of the numbers: time constants of the membrane (20 ms), the slow current (100 ms) and inhibition (10 ms) and the
ratio of excitatory to inhibitory cells (4 to 1) are those of Brunel and Wang (2001). Tuned by simulation: the weights
and in-degrees, so that a cluster sustains 30 to 40 Hz, with margin (recurrent_pa from 3.5 to 5 pA), and a cue of 40
cells at 10 Hz or more ignites it in 250 ms, while 4 Hz in all cells for 20 s do not; the background (200 Hz of 25 pA),
so that cells are noisy but silent at rest; tau_gate_ms (500 ms), longer than phasic dopamine and shorter than a
session; tau_reset_ms (8 ms at a level of 1), so that a release of 1 with a tau of 50 ms clears the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from neuraxis.arguments import one_of
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, as_config
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, PairwiseBernoulli, Projection, Rule
from neuraxis.network.arithmetic import exp
from neuraxis.network.models import lif_exp_two
from neuraxis.network.models.lif import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["Prefrontal", "PrefrontalConfig", "create_pfc_region", "memory_cell"]


class PrefrontalConfig(RegionConfig, frozen=True, kw_only=True):
    """Configuration of a prefrontal cortex. Weights are in pA; the module's text has the sources of the numbers.

    Attributes
    ----------
    memory : int
        Number of excitatory cells, in `groups` equal clusters.
    inhibitory : int
        Number of inhibitory cells, shared by all clusters.
    groups : int
        Number of clusters.
    gate_modulator : str
        Neuromodulator that scales the slow excitation.
    reset_modulator : str
        Neuromodulator that clears it.
    recurrent_in_degree, recurrent_pa : int / float
        Slow excitatory synapses on a cell from its cluster, and their weight.
    excitation_in_degree, excitation_pa : int / float
        Synapses on an inhibitory cell from each cluster (on average), and their weight.
    inhibition_in_degree, inhibition_pa : int / float
        Synapses on a memory cell from inhibitory cells, and their weight.
    background_hz, background_pa : float
        Rate and weight of Poisson input to each memory cell.
    afferent_in_degree, afferent_pa : int / float
        Defaults of a pathway: synapses on a cell, and their weight, which is larger with fewer sources.
    delay_ms : float
        Delay of all synapses within the region.

    Raises
    ------
    InvalidArgument
        `create_pfc_region`, if the cells cannot form equal clusters.

    Examples
    --------
    >>> PrefrontalConfig(memory=480).groups
    4
    """

    memory: int = 240
    inhibitory: int = 60
    groups: int = 4
    gate_modulator: str = "dopamine"
    reset_modulator: str = "noradrenaline"
    recurrent_in_degree: int = 40
    recurrent_pa: float = 4.5
    excitation_in_degree: int = 10
    excitation_pa: float = 90.0
    inhibition_in_degree: int = 30
    inhibition_pa: float = -8.0
    background_hz: float = 200.0
    background_pa: float = 25.0
    afferent_in_degree: int = 40
    afferent_pa: float = 50.0
    delay_ms: float = 1.0


class Prefrontal(Region):
    """Working memory. Port `memory`, in and out: the excitatory cells, in `groups` clusters."""

    kind: ClassVar[str] = "prefrontal"
    config: PrefrontalConfig

    def __init__(self, config: PrefrontalConfig | Mapping[str, Any] | None = None, device: str = "cpu") -> None:
        self.config = as_config(PrefrontalConfig, config, "prefrontal")
        self.device = device
        if self.config.groups < 1 or self.config.memory % self.config.groups:
            raise InvalidArgument(
                f"prefrontal: memory={self.config.memory} cells cannot form groups={self.config.groups} equal clusters"
            )

    def build(self, network: Network, name: str) -> BuiltRegion:
        c = self.config
        baselines = {modulator.name: modulator.baseline for modulator in network.neuromodulators}
        tied = {
            signal: modulator
            for signal, modulator in (("gate", c.gate_modulator), ("reset", c.reset_modulator))
            if modulator in baselines
        }
        memory = network.population(
            f"{name}.memory", c.memory, memory_cell(**tied), d1=baselines.get(c.gate_modulator, 1.0)
        )
        inhibitory = network.population(
            f"{name}.inhibitory", c.inhibitory, lif_exp_two(c_m_pf=100.0, tau_syn_ex_ms=5.0, tau_syn_in_ms=10.0)
        )
        within = FixedInDegree(c.recurrent_in_degree, autapses=False, groups=c.groups)
        network.connect(memory, memory, within, c.recurrent_pa, c.delay_ms, "nmda_pa")
        network.connect(
            memory, inhibitory, FixedInDegree(c.excitation_in_degree * c.groups), c.excitation_pa, c.delay_ms
        )
        network.connect(inhibitory, memory, FixedInDegree(c.inhibition_in_degree), c.inhibition_pa, c.delay_ms)
        network.poisson(memory, c.background_hz, c.background_pa)
        return BuiltRegion(
            name,
            self.kind,
            populations={"memory": memory, "inhibitory": inhibitory},
            inputs=("memory",),
            outputs=("memory",),
            inhibitory=frozenset({"inhibitory"}),
            groups=c.groups,
        )

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway to the memory cells, through their fast receptors: group g to cluster g if topographic."""
        c = self.config
        what = f"pathway {afferent.name!r} to {built.name!r}"
        if afferent.plasticity is not None:
            one_of(afferent.plasticity, f"{what}: plasticity", ("none",))
        if afferent.options:
            raise InvalidArgument(f"{what}: there is no option {next(iter(afferent.options))!r}; remove it")
        if afferent.topographic and afferent.source_groups != c.groups:
            raise InvalidArgument(
                f"{what}: a source in {afferent.source_groups} groups cannot be mapped to {c.groups} clusters"
            )
        target = built.input(afferent.port)
        groups = c.groups if afferent.topographic else 1
        rule: Rule
        if afferent.probability is not None:
            rule = PairwiseBernoulli(afferent.probability, groups=groups)
            in_degree = afferent.probability * afferent.source.n / groups
        else:
            available = afferent.source.n // groups
            k = min(c.afferent_in_degree, available) if afferent.in_degree is None else afferent.in_degree
            rule, in_degree = FixedInDegree(k, multapses=k > available, groups=groups), float(k)
        weight = afferent.weight
        if weight is None:
            weight = c.afferent_pa * c.afferent_in_degree / in_degree if in_degree else 0.0
        return [network.connect(afferent.source, target, rule, weight, afferent.delay_ms, name=afferent.name)]


def create_pfc_region(config: PrefrontalConfig | Mapping[str, Any] | None = None, device: str = "cpu") -> Prefrontal:
    """Return a prefrontal cortex.

    Parameters
    ----------
    config : PrefrontalConfig or mapping, optional
        The configuration, or the fields that differ from the defaults.
    device : str
        Not used: `Brain(..., device=...)` selects the device of all neurons.

    Raises
    ------
    InvalidArgument
        The configuration is wrong.

    Examples
    --------
    >>> create_pfc_region({"memory": 480}).config.memory
    480
    """
    return Prefrontal(config, device)


# --- Neuron models ---


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    names = ("tau_ex_ms", "tau_in_ms", "tau_nmda_ms", "tau_gate_ms", "tau_reset_ms", "saturation_pa", "full_gate")
    check_positive(p, *names)
    return {
        **leak_constants(p, dt_ms),
        "decay_ex": exp(-dt_ms / p["tau_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_in_ms"]),
        "decay_nmda": exp(-dt_ms / p["tau_nmda_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_in_ms"], dt_ms),
        "follow_gate": 1.0 - exp(-dt_ms / p["tau_gate_ms"]),
        "clear_by_reset": dt_ms / p["tau_reset_ms"],
        "per_saturation": 1.0 / p["saturation_pa"],
        "per_full_gate": 1.0 / p["full_gate"],
    }


@neuron_model(
    states={"v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "i_nmda_pa": 0.0, "d1": 1.0, "refractory": 0},
    receptors=("ex_pa", "in_pa", "nmda_pa"),
    parameters={
        "tau_m_ms": 20.0, "c_m_pf": 200.0, "tau_ex_ms": 5.0, "tau_in_ms": 10.0, "tau_nmda_ms": 100.0,
        "e_rest_mv": -70.0, "v_threshold_mv": -55.0, "v_reset_mv": -65.0, "refractory_ms": 5.0,
        "saturation_pa": 400.0, "tau_gate_ms": 500.0, "full_gate": 0.6, "tau_reset_ms": 8.0,
    },
    signals={"gate": 1.0, "reset": 0.0},
    constants=_constants,
)  # fmt: skip
def memory_cell(
    v_mv, i_ex_pa, i_in_pa, i_nmda_pa, d1, refractory, ex_pa, in_pa, nmda_pa, current_pa, gate, reset, decay, rest,
    per_pa, decay_ex, decay_in, decay_nmda, per_pa_ex, per_pa_in, follow_gate, clear_by_reset, per_saturation,
    per_full_gate, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire cell with fast excitation, inhibition and a slow current that saturates.

    The slow current is multiplied by d1 / full_gate, at most 1, where d1 follows the signal `gate` (dopamine) with
    tau_gate_ms: D1 receptors act by a second messenger and saturate, so that a burst has no effect and a dip is too
    short for one. The signal `reset` (noradrenaline) makes the slow current decay faster: with tau_reset_ms at a level
    of 1.
    """
    held = refractory > 0
    open_gate = min(max(d1 * per_full_gate, 0.0), 1.0)
    slow_pa = open_gate * i_nmda_pa / (1.0 + i_nmda_pa * per_saturation)
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + (current_pa + slow_pa) * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    kept = 1.0 - min(max(reset * clear_by_reset, 0.0), 1.0)
    i_nmda = i_nmda_pa * decay_nmda * kept + nmda_pa
    d1_next = d1 + (gate - d1) * follow_gate
    return spike, v_reset_mv if spike else v, i_ex, i_in, i_nmda, d1_next, refractory_steps if spike else left
