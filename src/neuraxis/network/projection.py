"""A projection: the synapses from one population to another that one rule makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import one_of
from neuraxis.network.delays import as_delay
from neuraxis.network.distributions import Distribution, Values, as_distribution
from neuraxis.network.fixed_point import Contribution
from neuraxis.network.plasticity import (
    STDP,
    HomeostaticScaling,
    PlasticityRule,
    RewardSTDP,
    TsodyksMarkram,
    as_plasticity,
)
from neuraxis.network.population import Population
from neuraxis.network.rules import Explicit, Rule

__all__ = ["Projection", "choose_receptor", "make_projection"]


@dataclass(frozen=True)
class Projection:
    """Synapses between two populations; `Network.connect` makes it.

    Attributes:
        weight: in the unit of the receptor.
        delay_ms: drawn values are rounded to whole steps, one or more.
        receptor: the receptor of the target's model where the weight arrives.
        plasticity: the rules by which the synapses change; empty if they do not.
        index: the place among the network's projections.
    """

    name: str
    pre: Population
    post: Population
    rule: Rule
    weight: Distribution
    delay_ms: Distribution
    receptor: str
    plasticity: tuple[PlasticityRule, ...]
    index: int

    @property
    def same_population(self) -> bool:
        return self.pre.index == self.post.index

    @property
    def expected_synapses(self) -> float:
        return self.rule.expected_synapses(self.pre.n, self.post.n, self.same_population)

    @property
    def pairing(self) -> STDP | RewardSTDP | None:
        """The rule that depends on the times of spikes, if there is one."""
        return next((rule for rule in self.plasticity if isinstance(rule, STDP | RewardSTDP)), None)

    @property
    def scaling(self) -> HomeostaticScaling | None:
        return next((rule for rule in self.plasticity if isinstance(rule, HomeostaticScaling)), None)

    @property
    def short_term(self) -> TsodyksMarkram | None:
        return next((rule for rule in self.plasticity if isinstance(rule, TsodyksMarkram)), None)

    @property
    def has_changing_weights(self) -> bool:
        """Whether the weights themselves change; short-term plasticity leaves them as they are."""
        return self.pairing is not None or self.scaling is not None

    @property
    def largest_weight(self) -> float:
        """The largest magnitude that a weight can have, now or after learning."""
        low, high = self.weight.bounds()
        limits = [rule.w_max for rule in (self.pairing, self.scaling) if rule is not None]
        return max(-low, high, *limits, 0.0)

    def contribution(self) -> Contribution:
        """What can arrive at one target in one step: each synapse delivers one spike in a step, at most."""
        # Weights that start at zero and grow have no typical size yet but the one that they can grow to.
        largest = self.largest_weight
        typical = min(self.weight.expected_magnitude() or largest, largest)
        count = self.rule.largest_in_degree(self.pre.n, self.post.n)
        return Contribution(f"projection {self.name!r}", typical, largest, count)


def make_projection(
    *,
    name: str,
    pre: Population,
    post: Population,
    rule: Any,
    weight: Any,
    delay_ms: Any,
    synapse: str | None,
    plasticity: Any,
    index: int,
    dt_ms: float,
) -> Projection:
    """A projection of checked arguments."""
    what = f"projection {name!r}"
    if hasattr(rule, "tocoo"):
        rule, weight = _from_sparse(rule, weight, pre, post, what)
    if not isinstance(rule, Rule):
        hint = ", not the class itself" if isinstance(rule, type) else ""
        raise InvalidType(f"{what}: rule={rule!r}: a rule such as FixedInDegree(k=100) is expected{hint}")
    try:
        rule.check(pre.n, post.n, pre is post)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    if weight is None:
        raise InvalidArgument(f"{what}: weight=None: a weight must be given")
    weights = as_distribution(weight, f"{what}: weight")
    _check_values(weights, rule, pre, post, f"{what}: weight")
    delays = as_delay(delay_ms, dt_ms, f"{what}: delay_ms")
    _check_values(delays, rule, pre, post, f"{what}: delay_ms")
    rules = as_plasticity(plasticity)
    _check_plastic_weights(rules, weights, what)
    receptor = choose_receptor(post, synapse, weights, what)
    return Projection(name, pre, post, rule, weights, delays, receptor, rules, index)


def choose_receptor(post: Population, synapse: str | None, weight: Distribution, what: str) -> str:
    """The receptor that was asked for, or the one for the sign of the weights."""
    model = post.model
    if synapse is not None:
        return one_of(synapse, f"{what}: synapse", model.receptors)
    low, high = weight.bounds()
    positive, negative = model.receptor_for(1), model.receptor_for(-1)
    if low < 0 < high and positive != negative:
        raise InvalidArgument(
            f"{what}: weight={weight}: can be of either sign, and {model.name} has {positive!r} for positive and "
            f"{negative!r} for negative weights; say which with synapse=, or cut the weight with low= or high="
        )
    return negative if low < 0 else positive


def _from_sparse(matrix: Any, weight: Any, pre: Population, post: Population, what: str) -> tuple[Explicit, Any]:
    """The rule of a sparse matrix, and its weights unless others are given."""
    if tuple(matrix.shape) != (pre.n, post.n):
        raise InvalidArgument(
            f"{what}: the matrix has shape {tuple(matrix.shape)}; {pre.n} rows (pre) and {post.n} columns (post) "
            "are expected"
        )
    rule, weights = Explicit.from_sparse(matrix)
    return rule, weights if weight is None else weight


def _check_values(given: Distribution, rule: Rule, pre: Population, post: Population, name: str) -> None:
    if not isinstance(given, Values):
        return
    count = rule.value_count(pre.n, post.n)
    if count is None:
        raise InvalidArgument(
            f"{name}: an array does not go with {type(rule).__name__}, whose synapses are drawn; "
            "use Explicit, OneToOne or AllToAll, or a distribution"
        )
    if count != len(given):
        raise InvalidArgument(f"{name}: {len(given)} values for {count} synapses; give one for each")


def _check_plastic_weights(rules: tuple[PlasticityRule, ...], weight: Distribution, what: str) -> None:
    """Weights that learn must start between the limits of their rule."""
    low, high = weight.bounds()
    for rule in rules:
        if isinstance(rule, TsodyksMarkram):
            continue
        lowest = 0.0 if isinstance(rule, STDP) else rule.w_min
        if low < lowest or high > rule.w_max:
            raise InvalidArgument(
                f"{what}: weight={weight}: from {low:g} to {high:g}; with {type(rule).__name__} weights must be "
                f"from {lowest:g} to w_max={rule.w_max:g}; cut the weight with low= and high="
            )
