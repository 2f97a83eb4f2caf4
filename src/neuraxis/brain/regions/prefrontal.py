"""The prefrontal cortex: working memory, held by dopamine and cleared by noradrenaline.

Excitatory cells in clusters, one for each thing that can be remembered, and inhibitory cells that all clusters share. A
cue makes its cluster fire; slow excitation between the cells of the cluster then keeps it firing when the cue is gone
(Wang 1999, J Neurosci 19:9587; Brunel and Wang 2001, J Comput Neurosci 11:63), and the shared inhibition keeps the
others silent. A later cue for another cluster takes its place.

* Dopamine scales the slow excitation, as D1 receptors do (Durstewitz, Seamans and Sejnowski 2000, J Neurophysiol
  83:1733): at a level of 0 nothing is held; from `full_gate` of the model (0.6) on, more adds nothing, so that bursts
  ignite nothing. The receptors follow the level within 0.5 s (`tau_gate_ms`), so that a dip after a disappointment does
  not delete the memory.
* Noradrenaline, released in a burst, lets the slow excitation decay at once: the "network reset" of Bouret and Sara
  (2005, Trends Neurosci 28:574).

A modulator that the network does not declare counts as being at its normal level (dopamine 1, noradrenaline 0).

Simplified: the slow current stands for NMDA receptors without their dependence on voltage, and saturates for a whole
cell instead of for each synapse; there are no layers and no fast excitation between the cells of a cluster; the reset
acts on the current itself, where noradrenaline acts on several channels; dopamine's inverted U has its left half only.

Where the numbers come from: tau of the membrane 20 ms, of the slow current 100 ms, of inhibition 10 ms and the four to
one ratio of excitatory to inhibitory cells are Brunel and Wang's (2001). Chosen: the weights and in-degrees, so that a
cluster holds at 30 to 40 Hz, with room (3.5 to 5 pA of recurrent_pa hold), and a cue of 40 cells at 10 Hz or more
ignites it in 250 ms while 4 Hz in all cells for 20 s do not; the background (200 Hz of 25 pA), so that cells are noisy
but silent at rest; tau_gate_ms (500 ms), longer than phasic dopamine and shorter than a session; tau_reset_ms (8 ms at
a level of 1), so that a release of 1 with a tau of 50 ms leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from neuraxis.brain.models.prefrontal import memory_cell
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, as_config
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, PairwiseBernoulli, Projection, Rule
from neuraxis.network.arguments import one_of
from neuraxis.network.models import lif_exp_two

__all__ = ["Prefrontal", "PrefrontalConfig", "create_pfc_region"]


class PrefrontalConfig(RegionConfig, frozen=True, kw_only=True):
    """Weights are in pA; see the module's text for where the numbers come from.

    Attributes:
        memory: excitatory cells, in `groups` equal clusters.
        inhibitory: inhibitory cells, shared by all clusters.
        gate_modulator: what scales the slow excitation.
        reset_modulator: what clears it.
        recurrent_in_degree, recurrent_pa: slow excitation within a cluster.
        excitation_in_degree, excitation_pa: from each cluster (on average) to an inhibitory cell.
        inhibition_in_degree, inhibition_pa: from inhibitory cells to a memory cell.
        background_hz, background_pa: random spikes into each memory cell.
        afferent_in_degree, afferent_pa: of a pathway that says nothing else; with fewer sources the weight is larger.
        delay_ms: within the region.
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
            raise InvalidArgument(f"{what}: there is no option {next(iter(afferent.options))!r}")
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
    """A prefrontal cortex, from its configuration or the fields to change."""
    return Prefrontal(config, device)
