"""Plasticity rules: spike-timing-dependent, reward-modulated, short-term and homeostatic.

Spike-timing rules use two exponential traces. Kplus of a source increases by 1 at each of its spikes and decays with
`tau_plus_ms`; Kminus of a target increases by 1 at each of its spikes and decays with `tau_minus_ms`. In the equations
"on post" is the time when the target spikes, "on pre" the time when the spike of the source arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from neuraxis.arguments import ShortRepr, label, not_negative, number, one_of, positive, set_fields
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arithmetic import exp, expm1, power

__all__ = [
    "STDP",
    "HomeostaticScaling",
    "PlasticityRule",
    "RewardSTDP",
    "TsodyksMarkram",
    "as_plasticity",
    "nmda_saturation",
]


@dataclass(frozen=True, kw_only=True, repr=False)
class STDP(ShortRepr):
    """Spike-timing-dependent plasticity with all-to-all pairing of spikes.

    `form="bounded"`, where x = w / w_max; the exponents are 0 for additive and 1 for multiplicative changes::

        on post:  x += learning_rate * (1 - x) ** mu_plus * Kplus
        on pre:   x -= alpha * learning_rate * x ** mu_minus * Kminus

    `form="power_law"`, where mu = mu_plus::

        on post:  w += learning_rate * w0 ** (1 - mu) * w ** mu * Kplus
        on pre:   w -= learning_rate * alpha * w * Kminus

    In both, w is clipped to [0, w_max] after each change. The constructors `additive`, `multiplicative` and `power_law`
    set the parameters that belong together.

    Parameters
    ----------
    w_max : float
        Largest weight, in the unit of the weight.
    tau_plus_ms, tau_minus_ms : float
        Time constants of the presynaptic trace Kplus and the postsynaptic trace Kminus, in ms.
    learning_rate : float
        Relative size of a change.
    alpha : float
        Strength of depression relative to potentiation.
    mu_plus, mu_minus : float
        Exponents of the dependence on the weight.
    w0 : float
        Reference weight of the power law, in the unit of the weight.
    form : {"bounded", "power_law"}
        Form of the dependence on the weight.
    kind : {"pair"}
        Interaction of spikes; only pairs are implemented.

    Examples
    --------
    >>> STDP.multiplicative(w_max=2.0)
    STDP(w_max=2, mu_plus=1, mu_minus=1)
    """

    w_max: float
    tau_plus_ms: float = 20.0
    tau_minus_ms: float = 20.0
    learning_rate: float = 0.01
    alpha: float = 1.0
    mu_plus: float = 0.0
    mu_minus: float = 0.0
    w0: float = 1.0
    form: str = "bounded"
    kind: str = "pair"

    def __post_init__(self) -> None:
        _check_fields(self, positive, "w_max", "tau_plus_ms", "tau_minus_ms", "w0")
        _check_fields(self, not_negative, "learning_rate", "alpha", "mu_plus", "mu_minus")
        one_of(self.form, "STDP.form", ("bounded", "power_law"))
        one_of(self.kind, "STDP.kind", ("pair",))

    @classmethod
    def additive(
        cls,
        *,
        w_max: float,
        tau_plus_ms: float = 20.0,
        tau_minus_ms: float = 20.0,
        learning_rate: float = 0.01,
        alpha: float = 1.0,
    ) -> STDP:
        """Return a rule whose changes do not depend on the weight, apart from clipping.

        Parameters
        ----------
        w_max : float
            Largest weight, in the unit of the weight.
        tau_plus_ms : float
            Time constant of the presynaptic trace, in ms.
        tau_minus_ms : float
            Time constant of the postsynaptic trace, in ms.
        learning_rate : float
            Relative size of a change.
        alpha : float
            Strength of depression relative to potentiation.

        Returns
        -------
        STDP
            The rule.
        """
        return cls(
            w_max=w_max,
            tau_plus_ms=tau_plus_ms,
            tau_minus_ms=tau_minus_ms,
            learning_rate=learning_rate,
            alpha=alpha,
        )

    @classmethod
    def multiplicative(
        cls,
        *,
        w_max: float,
        tau_plus_ms: float = 20.0,
        tau_minus_ms: float = 20.0,
        learning_rate: float = 0.01,
        alpha: float = 1.0,
    ) -> STDP:
        """Return a rule with potentiation proportional to w_max - w and depression proportional to w.

        Parameters
        ----------
        w_max : float
            Largest weight, in the unit of the weight.
        tau_plus_ms : float
            Time constant of the presynaptic trace, in ms.
        tau_minus_ms : float
            Time constant of the postsynaptic trace, in ms.
        learning_rate : float
            Relative size of a change.
        alpha : float
            Strength of depression relative to potentiation.

        Returns
        -------
        STDP
            The rule.
        """
        return cls(
            w_max=w_max,
            tau_plus_ms=tau_plus_ms,
            tau_minus_ms=tau_minus_ms,
            learning_rate=learning_rate,
            alpha=alpha,
            mu_plus=1.0,
            mu_minus=1.0,
        )

    @classmethod
    def power_law(
        cls,
        *,
        w_max: float,
        tau_plus_ms: float = 20.0,
        tau_minus_ms: float = 20.0,
        learning_rate: float = 0.1,
        alpha: float = 1.0,
        mu: float = 0.4,
        w0: float = 1.0,
    ) -> STDP:
        """Return a rule with potentiation proportional to w**mu and depression proportional to w.

        Parameters
        ----------
        w_max : float
            Largest weight, in the unit of the weight.
        tau_plus_ms : float
            Time constant of the presynaptic trace, in ms.
        tau_minus_ms : float
            Time constant of the postsynaptic trace, in ms.
        learning_rate : float
            Relative size of a change.
        alpha : float
            Strength of depression relative to potentiation.
        mu : float
            Exponent of the dependence on the weight.
        w0 : float
            Reference weight, in the unit of the weight.

        Returns
        -------
        STDP
            The rule.
        """
        return cls(
            w_max=w_max,
            tau_plus_ms=tau_plus_ms,
            tau_minus_ms=tau_minus_ms,
            learning_rate=learning_rate,
            alpha=alpha,
            mu_plus=mu,
            mu_minus=1.0,
            w0=w0,
            form="power_law",
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class RewardSTDP(ShortRepr):
    """Reward-modulated STDP: spike timing changes an eligibility trace c, and a neuromodulator turns c into weights.

    Equations::

        on post:         c += a_plus * Kplus
        on pre:          c -= a_minus * Kminus
        every every_ms:  w = clip(w + m * c, w_min, w_max), then c *= exp(-every_ms / tau_eligibility_ms)

    m is the level of the neuromodulator `modulator` minus its baseline in that step, or the value of the rhythm of that
    name.

    Parameters
    ----------
    w_max, w_min : float
        Limits of the weight, in the unit of the weight.
    a_plus, a_minus : float
        Changes of the eligibility trace, in the unit of the weight per unit of m.
    tau_plus_ms, tau_minus_ms : float
        Time constants of the presynaptic trace Kplus and the postsynaptic trace Kminus, in ms.
    tau_eligibility_ms : float
        Time constant of the eligibility trace, in ms.
    every_ms : float
        Time between two changes of the weights, in ms.
    modulator : str
        Name of the neuromodulator or rhythm.
    tau_forget_ms : float, optional
        Time constant with which weights also decay towards w_min, independently of m, in ms.

    Examples
    --------
    >>> RewardSTDP(w_max=2.0, a_plus=0.01, a_minus=0.012)
    RewardSTDP(w_max=2, a_plus=0.01, a_minus=0.012)
    """

    w_max: float
    a_plus: float
    a_minus: float
    tau_plus_ms: float = 20.0
    tau_minus_ms: float = 20.0
    tau_eligibility_ms: float = 1000.0
    w_min: float = 0.0
    every_ms: float = 10.0
    modulator: str = "dopamine"
    tau_forget_ms: float | None = None

    def __post_init__(self) -> None:
        _check_fields(self, positive, "w_max", "tau_plus_ms", "tau_minus_ms", "tau_eligibility_ms", "every_ms")
        if self.tau_forget_ms is not None:
            _check_fields(self, positive, "tau_forget_ms")
        _check_fields(self, number, "a_plus", "a_minus")
        _check_fields(self, not_negative, "w_min")
        _check_limits(self)
        label(self.modulator, "RewardSTDP.modulator")


@dataclass(frozen=True, repr=False)
class TsodyksMarkram(ShortRepr):
    """Short-term depression and facilitation of Tsodyks and Markram.

    The state of a synapse is its utilisation U and its fraction of available resources x. The weight w stays the same.
    Equations::

        at a spike of the source:  U += u * (1 - U), the synapse delivers w * U * x, then x -= U * x
        between spikes:            dx/dt = (1 - x) / tau_recovery_ms,   dU/dt = -U / tau_facilitation_ms

    Without facilitation U is always u.

    Parameters
    ----------
    u : float
        Increment of the utilisation at a spike, above 0 and at most 1.
    tau_recovery_ms : float
        Time constant of recovery from depression, in ms.
    tau_facilitation_ms : float
        Time constant of facilitation, in ms; 0 means no facilitation.

    Examples
    --------
    >>> TsodyksMarkram(u=0.2, tau_facilitation_ms=500.0)
    TsodyksMarkram(u=0.2, tau_facilitation_ms=500)
    """

    u: float = 0.5
    tau_recovery_ms: float = 800.0
    tau_facilitation_ms: float = 0.0

    def __post_init__(self) -> None:
        _check_fields(self, positive, "u", "tau_recovery_ms")
        _check_fields(self, not_negative, "tau_facilitation_ms")
        if self.u > 1:
            raise InvalidArgument(f"TsodyksMarkram.u={self.u}: must be 1 or less")


@dataclass(frozen=True, repr=False)
class HomeostaticScaling(ShortRepr):
    """Homeostatic synaptic scaling: all weights onto a neuron are scaled to bring its firing rate to a target.

    Equation, where rate_hz is the rate of the target neuron since the last scaling::

        every every_ms:  w = clip(w * (1 + strength * (target_rate_hz - rate_hz) / target_rate_hz), w_min, w_max)

    Parameters
    ----------
    target_rate_hz : float
        Target rate, in Hz.
    w_max, w_min : float
        Limits of the weight, in the unit of the weight.
    every_ms : float
        Time between two scalings, in ms.
    strength : float
        Relative change of the weights per relative deviation of the rate.

    Examples
    --------
    >>> HomeostaticScaling(5.0, w_max=2.0)
    HomeostaticScaling(target_rate_hz=5, w_max=2)
    """

    target_rate_hz: float
    _: KW_ONLY
    w_max: float
    w_min: float = 0.0
    every_ms: float = 1000.0
    strength: float = 0.1

    def __post_init__(self) -> None:
        _check_fields(self, positive, "target_rate_hz", "w_max", "every_ms", "strength")
        _check_fields(self, not_negative, "w_min")
        _check_limits(self)


PlasticityRule = STDP | RewardSTDP | TsodyksMarkram | HomeostaticScaling
"""Any of the plasticity rules of this module."""


def as_plasticity(value: Any) -> tuple[PlasticityRule, ...]:
    """Return the rules of one projection, given None, one rule or a list of rules.

    STDP or RewardSTDP can be combined with one HomeostaticScaling. TsodyksMarkram cannot be combined.
    """
    if value is None:
        return ()
    rules: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    for rule in rules:
        if not isinstance(rule, PlasticityRule):
            raise InvalidType(f"plasticity={rule!r}: a rule such as STDP.additive(w_max=...) is expected")
    if len(rules) > 1 and any(isinstance(rule, TsodyksMarkram) for rule in rules):
        raise InvalidArgument(f"plasticity={list(rules)}: TsodyksMarkram cannot be combined with other rules")
    if sum(isinstance(rule, STDP | RewardSTDP) for rule in rules) > 1:
        raise InvalidArgument(f"plasticity={list(rules)}: at most one of STDP and RewardSTDP is allowed")
    if sum(isinstance(rule, HomeostaticScaling) for rule in rules) > 1:
        raise InvalidArgument(f"plasticity={list(rules)}: at most one HomeostaticScaling is allowed")
    return tuple(rules)


def _check_fields(rule: PlasticityRule, check: Any, *fields: str) -> None:
    for field in fields:
        set_fields(rule, **{field: check(getattr(rule, field), f"{type(rule).__name__}.{field}")})


def _check_limits(rule: RewardSTDP | HomeostaticScaling) -> None:
    if rule.w_min >= rule.w_max:
        raise InvalidArgument(f"{type(rule).__name__}.w_min={rule.w_min}: must be below w_max={rule.w_max}")


def nmda_saturation(
    tau_rise_ms: float = 2.0, tau_decay_ms: float = 100.0, alpha_per_ms: float = 0.5
) -> tuple[TsodyksMarkram, float]:
    """Return a rule that lets the NMDA receptors of a source saturate, as Brunel and Wang (2001) and Wang (2002) do.

    In these papers the open receptors s of a source follow s' = alpha x (1 - s) - s / tau_decay, where a spike adds 1
    to x, which decays with tau_rise. A spike then changes s by k0 + k1 s in all. This is short-term depression, with
    which a projection to the receptor `nmda_ns` of `lif_nmda(tau_rise_nmda_ms=0.0)` delivers these changes.

    Parameters
    ----------
    tau_rise_ms, tau_decay_ms : float, optional
        Time constants of the rise and the decay of s.
    alpha_per_ms : float, optional
        Rate at which receptors open, in 1/ms.

    Returns
    -------
    rule : TsodyksMarkram
        The rule for `Network.connect`.
    factor : float
        Factor of the weights: multiply the conductance of all receptors of a synapse, in nS, by it.

    Raises
    ------
    InvalidArgument
        The time constants and the rate are not above 0, or the rise is not shorter than the decay.

    Examples
    --------
    >>> rule, factor = nmda_saturation()
    >>> round(rule.u, 3), rule.tau_recovery_ms, round(factor, 3)
    (0.632, 100.0, 1.026)
    """
    for name, value in (("tau_rise_ms", tau_rise_ms), ("tau_decay_ms", tau_decay_ms), ("alpha_per_ms", alpha_per_ms)):
        if not value > 0:
            raise InvalidArgument(f"{name}={value!r}: a number above 0 is expected")
    if not tau_rise_ms < tau_decay_ms:
        raise InvalidArgument(f"tau_rise_ms={tau_rise_ms!r}: must be below tau_decay_ms={tau_decay_ms!r}")
    ratio, amount = tau_rise_ms / tau_decay_ms, alpha_per_ms * tau_rise_ms
    # The lower incomplete gamma function of 1 - ratio at this amount, by its series.
    order, term, total = 1.0 - ratio, 1.0 / (1.0 - ratio), 0.0
    while total + term != total:
        total += term
        order += 1.0
        term *= amount / order
    jump = power(amount, ratio) * power(amount, 1.0 - ratio) * exp(-amount) * total
    part = -expm1(-amount)
    return TsodyksMarkram(u=part, tau_recovery_ms=tau_decay_ms), float(jump / part)
