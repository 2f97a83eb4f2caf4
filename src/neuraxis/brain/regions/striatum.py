"""The striatum: learns by dopamine the value of each action, and the reward to expect.

Medium spiny cells of two kinds, D1 ("go") and D2 ("no go"), form a group for each action; the value of an action is the
rate of its D1 cells minus that of its D2 cells. A pathway from the cortex ends on all of them and on the `critic`
(striosomes), whose rate is the expected reward (Houk, Adams and Barto 1995). All three learn by `RewardSTDP`:
coincident spikes make a synapse eligible. Dopamine above its baseline (more reward than expected) strengthens eligible
synapses on D1 and critic cells and weakens those on D2 cells; dopamine below its baseline does the opposite (Shen et
al. 2008, Science 321:848; Frank 2005, J Cogn Neurosci 17:51). `Brain.deliver_reward` releases the dopamine.

An efference copy assigns credit to the action that was taken (Fee 2014, Curr Opin Neurobiol 25:194): the motor command
returns through the port `efference` to relay cells (which stand for the thalamus, and turn any rate of the motor cells
into about 90 Hz). These make the D1 and D2 cells of that action fire, drive the critic and, through the fast-spiking
cells, silence the other actions. The outcome should arrive after that, and action values be read before.

Fast-spiking cells follow the sum of all pathways and shunt the medium spiny cells, i.e. divide their excitation (Koos
and Tepper 1999, Nat Neurosci 2:467; chloride reverses near the threshold of these cells): values depend on learned
weights more than on the number and rates of pathways. Medium spiny cells inhibit one another (Taverna, Ilijic and
Surmeier 2008, J Neurosci 28:5504). Dopamine makes D1 cells more excitable and D2 cells less.

Simplifications: cells have one compartment and no up and down states; collaterals are the same between D1 and D2 cells
and within and between actions; pathways learn only from a source spike before a target spike (a_minus is 0), within 20
ms; the rest of the basal ganglia (pallidum, thalamus) is missing.

Sources of the numbers. Rest at -80 mV and the threshold 20 mV above: Wilson and Kawaguchi 1996, J Neurosci 16:2397.
Eligibility: Yagishita et al. 2014, Science 345:1616, find an effect of dopamine up to 2 s after the spikes; 200 ms
here, since trials follow one another within a second. Time constant of coincidence 20 ms: as in STDP (Bi and Poo 1998,
J Neurosci 18:10464). Ten relay cells and 25 of each kind for an action: few, but enough to average over. Weights and
in-degrees: tuned by simulation, so that a new cue (15 of 60 sources at 25 Hz) gives about 5 Hz (and 15 Hz in the
critic, which only the fast-spiking cells inhibit), a learned one about 40 Hz. Learning rates: tuned so that four cues
are learned in about 50 trials; the critic is slower than the actors, or its expectation would vanish before they have
unlearned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from neuraxis.arguments import one_of
from neuraxis.brain.region import Afferent, BuiltRegion, Region, RegionConfig, as_config
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, PairwiseBernoulli, Projection, RewardSTDP, Rule, Uniform
from neuraxis.network.arithmetic import exp
from neuraxis.network.models import lif_exp_two
from neuraxis.network.models.lif import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["Striatum", "StriatumConfig", "create_striatum_region", "medium_spiny"]


# Weights of a pathway are for a source with this many groups, one of which is active at a time.
USUAL_SOURCE_GROUPS = 4


class StriatumConfig(RegionConfig, frozen=True, kw_only=True):
    """Configuration of a striatum. Weights are in pA; the module's text has the sources of the numbers.

    Weights and learning rates of pathways are for sources in 4 groups; they are scaled for other numbers of groups and
    of sources.

    Attributes
    ----------
    actions : int
        Number of actions.
    cells_per_action : int
        Number of D1 cells, and of D2 cells, for each action.
    fast_spiking, critic : int
        Number of cells.
    efference_per_action : int
        Number of relay cells for each action.
    modulator : str
        Neuromodulator that controls learning; without it in the network all weights are static.
    dopamine_gain : float
        Change of excitability, up for D1 and down for D2 cells, for a level of 1 above 1.
    bias_pa, fast_bias_pa : float
        Constant currents into medium spiny and fast-spiking cells.
    afferent_in_degree, afferent_pa : int / float
        Defaults of a pathway: synapses on a cell, and their initial weight.
    largest_pa : float
        Largest weight.
    actor_rate_pa, critic_rate_pa : float
        Learning rate `a_plus` of D1 (negative for D2) and of the critic.
    tau_coincidence_ms, tau_eligibility_ms, every_ms : float
        Time constants and update interval of `RewardSTDP`.
    fast_in_degree, fast_pa : int / float
        Synapses of a pathway on a fast-spiking cell, and their weight.
    shunting_in_degree, shunting : int / float
        Synapses of fast-spiking cells on a medium spiny cell, and their weight; excitation is divided by 1 + sum.
    lateral_in_degree, lateral_pa : int / float
        Synapses on a medium spiny cell from the D1 cells of each action (on average) and from the D2 cells.
    efference_in_degree, command_pa : int / float
        Synapses of the motor cells of an action on a relay cell, and their weight.
    efference_pa : float
        Weight from each relay cell of an action to its D1 and D2 cells.
    efference_others : int
        Synapses on a critic or fast-spiking cell from the relay cells of each action (on average).
    efference_critic_pa, efference_fast_pa : float
        Their weights.
    delay_ms : float
        Delay of all synapses within the region.

    Raises
    ------
    InvalidArgument
        `create_striatum_region`, if there are no cells of a kind.

    Examples
    --------
    >>> StriatumConfig(actions=2).cells_per_action
    25
    """

    actions: int = 4
    cells_per_action: int = 25
    fast_spiking: int = 20
    critic: int = 40
    efference_per_action: int = 10
    modulator: str = "dopamine"
    dopamine_gain: float = 0.2
    bias_pa: float = 80.0
    fast_bias_pa: float = 130.0
    afferent_in_degree: int = 60
    afferent_pa: float = 180.0
    largest_pa: float = 420.0
    actor_rate_pa: float = 1.2
    critic_rate_pa: float = 0.4
    tau_coincidence_ms: float = 20.0
    tau_eligibility_ms: float = 200.0
    every_ms: float = 10.0
    fast_in_degree: int = 30
    fast_pa: float = 125.0
    shunting_in_degree: int = 10
    shunting: float = 0.22
    lateral_in_degree: int = 5
    lateral_pa: float = -20.0
    efference_in_degree: int = 10
    command_pa: float = 150.0
    efference_pa: float = 500.0
    efference_others: int = 5
    efference_critic_pa: float = 600.0
    efference_fast_pa: float = 150.0
    delay_ms: float = 1.0


class Striatum(Region):
    """A striatum: action values and expected reward.

    Ports in: `D1` (the default) for cues, which also ends on D2, critic and fast-spiking cells; `efference` for the
    motor command, in `actions` groups. Ports out: `D1` and `D2`, in `actions` groups.
    """

    kind: ClassVar[str] = "striatum"
    config: StriatumConfig

    def __init__(self, config: StriatumConfig | Mapping[str, Any] | None = None, device: str = "cpu") -> None:
        self.config = as_config(StriatumConfig, config, "striatum")
        self.device = device
        for field in ("actions", "cells_per_action", "fast_spiking", "critic", "efference_per_action"):
            if getattr(self.config, field) < 1:
                raise InvalidArgument(f"striatum: {field}={getattr(self.config, field)}: must be 1 or more")

    def build(self, network: Network, name: str) -> BuiltRegion:
        c = self.config
        tied = {"dopamine": c.modulator} if self._has_modulator(network) else {}
        spiny = c.actions * c.cells_per_action
        relays = c.actions * c.efference_per_action
        quick = lif_exp_two(c_m_pf=100.0, tau_syn_ex_ms=5.0, refractory_ms=1.0)
        d1 = network.population(f"{name}.D1", spiny, medium_spiny(dopamine_gain=c.dopamine_gain, **tied))
        d2 = network.population(f"{name}.D2", spiny, medium_spiny(dopamine_gain=-c.dopamine_gain, **tied))
        critic = network.population(f"{name}.critic", c.critic, medium_spiny)
        fast = network.population(f"{name}.fast", c.fast_spiking, quick)
        # A long refractory time makes the rate nearly independent of the strength of the command.
        efference = network.population(f"{name}.efference", relays, quick(refractory_ms=8.0))

        network.current(fast, c.fast_bias_pa)
        for post in (d1, d2, critic):
            network.current(post, c.bias_pa)
            network.connect(fast, post, FixedInDegree(c.shunting_in_degree), c.shunting, c.delay_ms, "shunting")
        lateral = FixedInDegree(c.lateral_in_degree * c.actions, autapses=False)
        for pre in (d1, d2):
            for post in (d1, d2):
                network.connect(pre, post, lateral, c.lateral_pa, c.delay_ms)
        own = FixedInDegree(c.efference_per_action, multapses=False, groups=c.actions)
        others = FixedInDegree(c.efference_others * c.actions)
        for post, rule, weight in (
            (d1, own, c.efference_pa),
            (d2, own, c.efference_pa),
            (critic, others, c.efference_critic_pa),
            (fast, others, c.efference_fast_pa),
        ):
            network.connect(efference, post, rule, weight, c.delay_ms)
        return BuiltRegion(
            name,
            self.kind,
            populations={"D1": d1, "D2": d2, "critic": critic, "fast": fast, "efference": efference},
            inputs=("D1", "efference"),
            outputs=("D1", "D2"),
            inhibitory=frozenset({"D1", "D2", "critic", "fast"}),
            groups=c.actions,
        )

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway, or the motor command at the port `efference`.

        A pathway "p" makes the projections "p->D1", "p->D2" and "p->critic", which learn unless its plasticity is
        "none", and "p->fast".
        """
        what = f"pathway {afferent.name!r} to {built.name!r}"
        if afferent.options:
            raise InvalidArgument(f"{what}: there is no option {next(iter(afferent.options))!r}; remove it")
        if built.input(afferent.port) is built.populations["efference"]:
            return [self._receive_command(network, built, afferent, what)]
        if afferent.plasticity is not None:
            one_of(afferent.plasticity, f"{what}: plasticity", ("reward", "none"))
        if afferent.topographic:
            raise InvalidArgument(f"{what}: cannot be topographic, since its mapping to actions is learned")
        return self._receive_plastic(network, built, afferent)

    def _receive_plastic(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        c, source, name = self.config, afferent.source, afferent.name
        rule, in_degree = _rule(afferent, c.afferent_in_degree)
        # One active group shall drive a cell like 15 of 60 sources.
        groups = afferent.source_groups if afferent.source_groups > 1 else USUAL_SOURCE_GROUPS
        share = groups / USUAL_SOURCE_GROUPS
        weight = afferent.weight
        if weight is None:
            weight = c.afferent_pa * share * c.afferent_in_degree / in_degree if in_degree else 0.0
        scale = weight / c.afferent_pa
        learns = scale > 0 and afferent.plasticity != "none"
        # With "reward" requested explicitly, `connect` raises for a missing neuromodulator.
        learns = learns and (afferent.plasticity == "reward" or self._has_modulator(network))
        made = []
        for short, rate_pa in (("D1", c.actor_rate_pa), ("D2", -c.actor_rate_pa), ("critic", c.critic_rate_pa)):
            made.append(
                network.connect(
                    source,
                    built.populations[short],
                    rule,
                    Uniform(0.9 * weight, 1.1 * weight) if weight else 0.0,
                    afferent.delay_ms,
                    "ex_pa",
                    self._learning(rate_pa, scale) if learns else None,
                    name=f"{name}->{short}",
                )
            )
        k = min(c.fast_in_degree, source.n)
        fast_pa = c.fast_pa * share * c.fast_in_degree / k
        to_fast = FixedInDegree(k, multapses=False)
        fast = built.populations["fast"]
        made.append(network.connect(source, fast, to_fast, fast_pa, afferent.delay_ms, name=f"{name}->fast"))
        return made

    def _receive_command(self, network: Network, built: BuiltRegion, afferent: Afferent, what: str) -> Projection:
        c = self.config
        if afferent.plasticity is not None:
            one_of(afferent.plasticity, f"{what}: plasticity", ("none",))
        if afferent.source_groups != c.actions:
            raise InvalidArgument(
                f"{what}: the motor command needs a group for each of {c.actions} actions, not {afferent.source_groups}"
            )
        rule, in_degree = _rule(afferent, c.efference_in_degree, groups=c.actions)
        weight = afferent.weight
        if weight is None:
            weight = c.command_pa * c.efference_in_degree / in_degree if in_degree else 0.0
        target = built.populations["efference"]
        return network.connect(afferent.source, target, rule, weight, afferent.delay_ms, name=afferent.name)

    def _learning(self, rate_pa: float, scale: float) -> RewardSTDP:
        c = self.config
        return RewardSTDP(
            w_max=c.largest_pa * scale,
            a_plus=rate_pa * scale,
            a_minus=0.0,
            tau_plus_ms=c.tau_coincidence_ms,
            tau_eligibility_ms=c.tau_eligibility_ms,
            every_ms=c.every_ms,
            modulator=c.modulator,
        )

    def _has_modulator(self, network: Network) -> bool:
        return any(modulator.name == self.config.modulator for modulator in network.neuromodulators)


def create_striatum_region(config: StriatumConfig | Mapping[str, Any] | None = None, device: str = "cpu") -> Striatum:
    """Return a striatum.

    Parameters
    ----------
    config : StriatumConfig or mapping, optional
        The configuration, or the fields that differ from the defaults.
    device : str
        Not used: `Brain(..., device=...)` selects the device of all neurons.

    Raises
    ------
    InvalidArgument
        The configuration is wrong.

    Examples
    --------
    >>> create_striatum_region({"actions": 2}).config.actions
    2
    """
    return Striatum(config, device)


def _rule(afferent: Afferent, usual: int, groups: int = 1) -> tuple[Rule, float]:
    """Return the connection rule of a pathway, and the mean number of sources of a target neuron."""
    available = afferent.source.n // groups
    if afferent.probability is not None:
        return PairwiseBernoulli(afferent.probability, groups=groups), afferent.probability * available
    k = min(usual, available) if afferent.in_degree is None else afferent.in_degree
    return FixedInDegree(k, multapses=k > available, groups=groups), float(k)


# --- Neuron models ---


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_ex_ms", "tau_in_ms")
    return {
        **leak_constants(p, dt_ms),
        "decay_ex": exp(-dt_ms / p["tau_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_in_ms"], dt_ms),
    }


@neuron_model(
    states={"v_mv": -80.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "shunt": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa", "shunting"),
    parameters={
        "tau_m_ms": 20.0, "c_m_pf": 200.0, "tau_ex_ms": 5.0, "tau_in_ms": 10.0, "e_rest_mv": -80.0,
        "v_threshold_mv": -60.0, "v_reset_mv": -75.0, "refractory_ms": 5.0, "dopamine_gain": 0.0,
    },
    signals={"dopamine": 1.0},
    constants=_constants,
)  # fmt: skip
def medium_spiny(
    v_mv, i_ex_pa, i_in_pa, shunt, refractory, ex_pa, in_pa, shunting, current_pa, dopamine, decay, rest, per_pa,
    decay_ex, decay_in, per_pa_ex, per_pa_in, v_threshold_mv, v_reset_mv, refractory_steps, dopamine_gain,
):  # fmt: skip
    """Leaky integrate-and-fire cell; its excitation is scaled by (1 + dopamine_gain * (dopamine - 1)) / (1 + shunt).

    dopamine_gain is positive in cells with D1 receptors and negative in those with D2 receptors; dopamine is limited to
    0 to 2, so that the scale stays near 1. Input to `shunting` adds to the shunt, which has no unit and decays with
    tau_in_ms: divisive inhibition.
    """
    held = refractory > 0
    scale = (1.0 + dopamine_gain * (min(max(dopamine, 0.0), 2.0) - 1.0)) / (1.0 + shunt)
    v = v_mv * decay + scale * i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    shunt_next = shunt * decay_in + shunting
    return spike, v_reset_mv if spike else v, i_ex, i_in, shunt_next, refractory_steps if spike else left
