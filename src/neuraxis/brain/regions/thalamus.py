"""The thalamus: relay cells, and a reticular nucleus that can inhibit them.

Every group of relay cells (a sensory feature) has its part of the reticular nucleus. A relay cell excites the reticular
cells of its group; these inhibit the relay cells of their group weakly (the centre) and of the other groups more (the
surround), so that the strongest group stands out. Excitation of the whole nucleus closes the gate: by axons to the port
"gate" (for example from prefrontal cortex: Crick's searchlight, 1984), or by the upper half of a rhythm (alpha).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from neuraxis.arguments import label, not_negative, positive, whole
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, afferent_rule, as_config, group_size
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, Projection
from neuraxis.network.arithmetic import exp
from neuraxis.network.models import lif_exp_two
from neuraxis.network.models.lif import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["Thalamus", "ThalamusConfig", "create_thalamus_region", "reticular_cell"]


GATE = "gate"


class ThalamusConfig(RegionConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a thalamus. Weights are in pA.

    Simplifications: no bursts (T-type calcium current), so that a cell released from inhibition does not fire; no
    interneurons; relay cells are silent without input; synaptic currents instead of conductances. Cells are those of
    `lif_exp_two` (250 pF, threshold 15 mV above rest, excitation 2 ms). A "summed" weight is the sum over all synapses
    of that kind on one cell. "Tuned" values were chosen by simulation, for the stated result.

    Attributes
    ----------
    relay : int
        Number of relay cells.
    reticular : int, optional
        Number of reticular cells; None: a fifth of the relay cells (as in Thalia).
    groups : int
        Number of features: equal parts of both populations.
    gate_rhythm : str, optional
        Rhythm of the network whose upper half closes the gate (alpha: Jensen and Mazaheri 2010); None: no rhythm.
    rhythm_pa : float
        Current into reticular cells at the peak of the rhythm. Tuned: they fire at about 200 Hz.
    tau_m_ms : float
        Membrane time constant of both kinds; 10 ms as in `lif_exp_two`.
    tau_inhibition_ms : float
        Time constant of inhibition in relay cells; 10 ms is longer than the interval between reticular spikes.
    delay_ms : float
        Delay of all synapses within the thalamus.
    relay_in_degree, relay_pa : int / float
        Defaults of a pathway to relay cells: synapses on a cell, and their summed weight. Few and strong (Usrey, Reppas
        and Reid 1999). Tuned: sources at 20, 40, 60 Hz give 6, 28, 44 Hz.
    gate_in_degree, gate_pa : int / float
        Likewise for a pathway to the gate. Tuned: a source whose cells fire at 7.5 Hz on average (a quarter of them at
        30 Hz) closes it; one at 1 Hz lowers the rate of the relay cells by a tenth.
    feedback_in_degree, feedback_pa : int / float
        Synapses from relay to reticular cells of a group, and their summed weight. Tuned: both have the same rate.
    centre_in_degree, centre_pa : int / float
        Synapses from reticular to relay cells of a group, and their summed weight.
    surround_in_degree, surround_pa : int / float
        Likewise across all groups. Tuned together: feedback lowers the rate by 0.4, and 75 Hz in the whole nucleus
        silences the relay cells.

    Raises
    ------
    InvalidArgument, InvalidType
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> ThalamusConfig(relay=400).reticular_count
    80
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
    """Relay cells and a reticular nucleus. Ports: relay and gate in; relay out."""

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
        """Connect a pathway, with static weights; its default summed weight does not depend on their number."""
        c = self.config
        to_gate = afferent.port == GATE
        if afferent.plasticity not in (None, "none"):
            raise InvalidArgument(
                f"{afferent.name}: plasticity={afferent.plasticity!r}: pathways to a thalamus do not learn; use 'none'"
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
    """Return a thalamus.

    Parameters
    ----------
    config : ThalamusConfig or mapping, optional
        The configuration, or the fields that differ from the defaults.
    device : str
        Not used: `Brain(..., device=...)` selects the device of all neurons.

    Raises
    ------
    InvalidArgument
        The configuration is wrong.

    Examples
    --------
    >>> create_thalamus_region({"relay": 80}).config.relay
    80
    """
    return Thalamus(as_config(ThalamusConfig, config, "thalamus"))


# --- Neuron models ---


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms")
    leak = leak_constants(p, dt_ms)
    return {
        **leak,
        "decay_ex": exp(-dt_ms / p["tau_syn_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_syn_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_syn_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_syn_in_ms"], dt_ms),
        "per_rhythm": float(p["rhythm_pa"] * leak["per_pa"]),
    }


@neuron_model(
    states={"v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa"),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0, "e_rest_mv": -70.0,
        "v_threshold_mv": -55.0, "v_reset_mv": -70.0, "refractory_ms": 2.0, "rhythm_pa": 0.0,
    },
    signals={"rhythm": 0.0},
    constants=_constants,
)  # fmt: skip
def reticular_cell(
    v_mv, i_ex_pa, i_in_pa, refractory, ex_pa, in_pa, current_pa, rhythm, decay, rest, per_pa, decay_ex, decay_in,
    per_pa_ex, per_pa_in, per_rhythm, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """`lif_exp_two` with an additional current of `rhythm_pa` times the positive part of the rhythm."""
    held = refractory > 0
    driven = rest + current_pa * per_pa + max(rhythm, 0.0) * per_rhythm
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + driven
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    return spike, v_reset_mv if spike else v, i_ex, i_in, refractory_steps if spike else left
