"""How synapses change: by the times of spikes, with a reward, with use, and to keep a rate.

Traces: Kplus of a source jumps by 1 at each of its spikes and decays with tau_plus_ms; Kminus of a target jumps by 1
at each of its spikes and decays with tau_minus_ms. "On post" is when the target spikes, "on pre" when the source's
spike arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import label, not_negative, number, one_of, positive, settle

__all__ = ["STDP", "HomeostaticScaling", "PlasticityRule", "RewardSTDP", "TsodyksMarkram", "as_plasticity"]


@dataclass(frozen=True, kw_only=True)
class STDP:
    """Spike-timing-dependent plasticity, with all pairs of spikes counted (by traces).

    `form="bounded"` (with mu 0 additive, with mu 1 multiplicative, others between), where x = w / w_max:

        on post:  x += learning_rate * (1 - x) ** mu_plus * Kplus
        on pre:   x -= alpha * learning_rate * x ** mu_minus * Kminus

    `form="power_law"`, where mu = mu_plus:

        on post:  w += learning_rate * w0 ** (1 - mu) * w ** mu * Kplus
        on pre:   w -= learning_rate * alpha * w * Kminus

    In both, w is clipped to [0, w_max] after each change. `w_max` is in the unit of the weight. The constructors
    `additive`, `multiplicative` and `power_law` set what belongs together.
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
        _settle_all(self, positive, "w_max", "tau_plus_ms", "tau_minus_ms", "w0")
        _settle_all(self, not_negative, "learning_rate", "alpha", "mu_plus", "mu_minus")
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
        """Changes that do not depend on the weight (until it is clipped)."""
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
        """Changes in proportion to the room that is left: above for facilitation, below for depression."""
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
        """Facilitation with a power of the weight, depression in proportion to it; w0 is the reference weight."""
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


@dataclass(frozen=True, kw_only=True)
class RewardSTDP:
    """Spike timing that takes effect when a neuromodulator says so, by way of an eligibility trace c.

        on post:         c += a_plus * Kplus
        on pre:          c -= a_minus * Kminus
        every every_ms:  w = clip(w + m * c, w_min, w_max), then c *= exp(-every_ms / tau_eligibility_ms)

    m is the level of the neuromodulator named `modulator` above its baseline in that step, or the value of the rhythm
    of that name. With `tau_forget_ms`, weights also fall back towards w_min with this time constant, whatever m is.
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
        _settle_all(self, positive, "w_max", "tau_plus_ms", "tau_minus_ms", "tau_eligibility_ms", "every_ms")
        if self.tau_forget_ms is not None:
            _settle_all(self, positive, "tau_forget_ms")
        _settle_all(self, number, "a_plus", "a_minus")
        _settle_all(self, not_negative, "w_min")
        _check_room(self)
        label(self.modulator, "RewardSTDP.modulator")


@dataclass(frozen=True)
class TsodyksMarkram:
    """Short-term plasticity: a synapse tires with use and recovers, and may facilitate.

    At each spike of the source: u += u0 * (1 - u) with `u0` the field `u` (without facilitation u is u0), the weight
    that arrives is w * u * x, then x -= u * x. Between spikes x returns to 1 with tau_recovery_ms and u to 0 with
    tau_facilitation_ms; 0 means no facilitation. The weight itself does not change.
    """

    u: float = 0.5
    tau_recovery_ms: float = 800.0
    tau_facilitation_ms: float = 0.0

    def __post_init__(self) -> None:
        _settle_all(self, positive, "u", "tau_recovery_ms")
        _settle_all(self, not_negative, "tau_facilitation_ms")
        if self.u > 1:
            raise InvalidArgument(f"TsodyksMarkram.u={self.u}: must be 1 or less")


@dataclass(frozen=True)
class HomeostaticScaling:
    """All weights of a target are scaled so that it comes near a rate.

    every every_ms:  w = clip(w * (1 + strength * (target_rate_hz - rate_hz) / target_rate_hz), w_min, w_max), where
    rate_hz is the target's rate since the last scaling.
    """

    target_rate_hz: float
    _: KW_ONLY
    w_max: float
    w_min: float = 0.0
    every_ms: float = 1000.0
    strength: float = 0.1

    def __post_init__(self) -> None:
        _settle_all(self, positive, "target_rate_hz", "w_max", "every_ms", "strength")
        _settle_all(self, not_negative, "w_min")
        _check_room(self)


PlasticityRule = STDP | RewardSTDP | TsodyksMarkram | HomeostaticScaling


def as_plasticity(value: Any) -> tuple[PlasticityRule, ...]:
    """The rules of one projection: none, one, or a list.

    At most one of STDP and RewardSTDP and at most one HomeostaticScaling go together; TsodyksMarkram is alone.
    """
    if value is None:
        return ()
    rules: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    for rule in rules:
        if not isinstance(rule, PlasticityRule):
            raise InvalidType(f"plasticity={rule!r}: a rule such as STDP.additive(w_max=...) is expected")
    if len(rules) > 1 and any(isinstance(rule, TsodyksMarkram) for rule in rules):
        raise InvalidArgument(f"plasticity={list(rules)}: TsodyksMarkram goes with no other rule")
    if sum(isinstance(rule, STDP | RewardSTDP) for rule in rules) > 1:
        raise InvalidArgument(f"plasticity={list(rules)}: at most one of STDP and RewardSTDP")
    if sum(isinstance(rule, HomeostaticScaling) for rule in rules) > 1:
        raise InvalidArgument(f"plasticity={list(rules)}: at most one HomeostaticScaling")
    return tuple(rules)


def _settle_all(rule: PlasticityRule, check: Any, *fields: str) -> None:
    for field in fields:
        settle(rule, **{field: check(getattr(rule, field), f"{type(rule).__name__}.{field}")})


def _check_room(rule: RewardSTDP | HomeostaticScaling) -> None:
    if rule.w_min >= rule.w_max:
        raise InvalidArgument(f"{type(rule).__name__}.w_min={rule.w_min}: must be below w_max={rule.w_max}")
