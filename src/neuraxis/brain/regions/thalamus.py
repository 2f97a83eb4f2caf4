"""The thalamus: relay cells that pass on what arrives, and a reticular nucleus that can shut them.

Every group of relay cells (a feature of a sense) has its part of the reticular nucleus. A relay cell excites the
reticular cells of its group; these inhibit the relay cells of their group weakly (the centre) and of the other groups
more (the surround), so that the strongest group stands out. What excites the whole nucleus closes the gate: axons to
the port "gate" (from prefrontal cortex, say: Crick's searchlight, 1984), or the upper half of a rhythm (alpha).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from neuraxis.brain.models.thalamus import reticular_cell
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config, group_size
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, Projection
from neuraxis.network.arguments import label, not_negative, positive, whole
from neuraxis.network.models import lif_exp_two

__all__ = ["Thalamus", "ThalamusConfig", "create_thalamus_region"]

GATE = "gate"


class ThalamusConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a thalamus is made.

    Simplified: no bursts (T-type calcium current), so that a cell released from inhibition does not fire on its own;
    no interneurons; relay cells are silent without input; synaptic currents instead of conductances. Cells are those
    of `lif_exp_two` (250 pF, threshold 15 mV above rest, excitation 2 ms). A weight "in sum" is what all synapses of
    that kind on one cell add up to.

    Attributes:
        relay: relay cells.
        reticular: reticular cells; None: a fifth of the relay cells (as in Thalia).
        groups: how many features; both populations are divided into so many equal parts.
        gate_rhythm: a rhythm of the network whose upper half closes the gate (alpha: Jensen and Mazaheri 2010); None:
            no rhythm does.
        rhythm_pa: the current into reticular cells at the top of the rhythm. Chosen: they fire at about 200 Hz.
        tau_m_ms: the membrane of both kinds; 10 ms as in `lif_exp_two`.
        tau_inhibition_ms: the decay of inhibition in relay cells. Chosen: 10 ms, longer than between reticular spikes.
        delay_ms: of all synapses within the thalamus.
        relay_in_degree, relay_pa: the default pathway to relay cells: synapses on a cell, and their weight in sum.
            Few and strong (Usrey, Reppas and Reid 1999). Chosen: sources at 20, 40, 60 Hz give 6, 28, 44 Hz.
        gate_in_degree, gate_pa: likewise the default pathway to the gate. Chosen: a source whose cells fire at 7.5 Hz
            on average (a quarter of them at 30 Hz) closes it, one at 1 Hz takes a tenth of the relay's rate.
        feedback_in_degree, feedback_pa: relay to reticular cells of a group. Chosen: as many spikes as the relay has.
        centre_in_degree, centre_pa: reticular to relay cells of a group.
        surround_in_degree, surround_pa: reticular to relay cells of all groups. Chosen with the two above: feedback
            takes 0.4 of the rate, and 75 Hz of the whole nucleus all of it.
    """

    relay: int = 160
    reticular: int | None = None
    groups: int = 4
    gate_rhythm: str | None = None
    rhythm_pa: float = 1500.0
    tau_m_ms: float = 10.0
    tau_inhibition_ms: float = 10.0
    delay_ms: float = 1.0
    relay_in_degree: int = 10
    relay_pa: float = 5000.0
    gate_in_degree: int = 40
    gate_pa: float = 40000.0
    feedback_in_degree: int = 20
    feedback_pa: float = 5000.0
    centre_in_degree: int = 4
    centre_pa: float = 200.0
    surround_in_degree: int = 10
    surround_pa: float = 750.0

    def __post_init__(self) -> None:
        whole(self.groups, "groups", 1)
        whole(self.relay, "relay", self.groups)
        if self.reticular is not None:
            whole(self.reticular, "reticular", self.groups)
        if self.gate_rhythm is not None:
            label(self.gate_rhythm, "gate_rhythm")
        for name in ("tau_m_ms", "tau_inhibition_ms", "delay_ms"):
            positive(getattr(self, name), name)
        for name in ("rhythm_pa", "relay_pa", "gate_pa", "feedback_pa", "centre_pa", "surround_pa"):
            not_negative(getattr(self, name), name)
        for name in ("relay", "gate", "feedback", "centre", "surround"):
            whole(getattr(self, f"{name}_in_degree"), f"{name}_in_degree", 1)

    @property
    def reticular_count(self) -> int:
        return max(self.groups, round(0.2 * self.relay)) if self.reticular is None else self.reticular


@dataclass(frozen=True)
class Thalamus(Region):
    """Relay cells and a reticular nucleus; see the module's text."""

    kind: ClassVar[str] = "thalamus"
    config: ThalamusConfig

    def build(self, network: Network, name: str) -> BuiltRegion:
        c = self.config
        membrane = {"tau_m_ms": c.tau_m_ms}
        tied: dict[str, Any] = {} if c.gate_rhythm is None else {"rhythm": c.gate_rhythm, "rhythm_pa": c.rhythm_pa}
        relay = network.population(f"{name}.relay", c.relay, lif_exp_two(**membrane, tau_syn_in_ms=c.tau_inhibition_ms))
        reticular = network.population(f"{name}.reticular", c.reticular_count, reticular_cell(**membrane, **tied))
        for pre, post, k, sum_pa, groups in (
            (relay, reticular, c.feedback_in_degree, c.feedback_pa, c.groups),
            (reticular, relay, c.centre_in_degree, -c.centre_pa, c.groups),
            (reticular, relay, c.surround_in_degree, -c.surround_pa, 1),
        ):
            k = min(k, group_size(pre, groups))
            rule = FixedInDegree(k, multapses=False, groups=groups)
            network.connect(pre, post, rule, weight=sum_pa / k, delay_ms=c.delay_ms)
        return BuiltRegion(
            name=name,
            kind=self.kind,
            populations={"relay": relay, "reticular": reticular},
            inputs=("relay", GATE),
            outputs=("relay",),
            inhibitory=frozenset({"reticular"}),
            groups=c.groups,
            aliases={GATE: "reticular"},
        )

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway. Its weights are static; by default their sum does not depend on how many there are."""
        c = self.config
        to_gate = afferent.port == GATE
        if afferent.plasticity not in (None, "none"):
            raise InvalidArgument(
                f"{afferent.name}: plasticity={afferent.plasticity!r}: pathways to a thalamus do not learn; say 'none'"
            )
        k, sum_pa = (c.gate_in_degree, c.gate_pa) if to_gate else (c.relay_in_degree, c.relay_pa)
        rule, count = afferent_rule(afferent, built, k)
        weight = sum_pa / count if afferent.weight is None else afferent.weight
        target = built.input(afferent.port)
        made = network.connect(
            afferent.source, target, rule, weight=weight, delay_ms=afferent.delay_ms, name=afferent.name
        )
        return [made]


def create_thalamus_region(config: ThalamusConfig | Mapping[str, Any] | None = None, device: str = "cpu") -> Thalamus:
    """A thalamus from its configuration. It is made of neurons of the network, which run where the network does."""
    return Thalamus(as_config(ThalamusConfig, config, "thalamus"))
