"""Projections: the synapses that one connection rule makes from one population to another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuraxis.arguments import near, one_of
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.distributions import Constant, Distribution, Values, as_distribution
from neuraxis.network.fixed_point import Contribution, likely_sum
from neuraxis.network.grid import as_delay, period
from neuraxis.network.plasticity import (
    STDP,
    HomeostaticScaling,
    PlasticityRule,
    RewardSTDP,
    TsodyksMarkram,
    as_plasticity,
)
from neuraxis.network.population import LARGEST_FLOAT32, Population
from neuraxis.network.rules import (
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    OneToOne,
    PairwiseBernoulli,
    Rule,
)

__all__ = ["Projection", "RateProjection", "choose_receptor", "make_projection", "make_rate_projection"]

# Indices of rate projections begin here. Synapses are drawn from random numbers of the index, and those of a projection
# of spikes must not repeat in one of rates.
FIRST_RATE_INDEX = 1 << 32

_RULES = [one.__name__ for one in (
    AllToAll, Explicit, FixedInDegree, FixedOutDegree, FixedTotalNumber, OneToOne, PairwiseBernoulli,
)]  # fmt: skip


@dataclass(frozen=True, repr=False)
class Projection:
    """Synapses from one population to another; `Network.connect` makes it.

    Parameters
    ----------
    name : str
        Unique name.
    pre, post : Population
        Source and target.
    rule : Rule
        Connection rule.
    weight : Distribution
        Weights, in the unit of the receptor.
    delay_ms : Distribution
        Delays in ms; drawn values are rounded to whole steps, at least one.
    receptor : str
        Receptor of the target's model.
    plasticity : tuple of PlasticityRule
        Plasticity rules; empty for static synapses.
    index : int
        Position among the network's projections.

    Examples
    --------
    >>> from neuraxis.network import FixedInDegree, Network
    >>> from neuraxis.network.models import lif_exp
    >>> network = Network()
    >>> cells = network.population("E", 100, lif_exp)
    >>> network.connect(cells, cells, FixedInDegree(k=10), weight=0.5, delay_ms=1.5)
    Projection('E->E', FixedInDegree(k=10), weight=0.5, delay_ms=1.5, receptor='input_pa')
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

    def __repr__(self) -> str:
        values = [f"weight={_short(self.weight)}", f"delay_ms={_short(self.delay_ms)}", f"receptor={self.receptor!r}"]
        plasticity = [" + ".join(map(repr, self.plasticity))] if self.plasticity else []
        return f"{type(self).__name__}({', '.join([repr(self.name), repr(self.rule), *values, *plasticity])})"

    @property
    def same_population(self) -> bool:
        """True if a population is connected to itself."""
        return self.pre.index == self.post.index

    @property
    def expected_synapses(self) -> float:
        """Mean number of synapses that the rule makes."""
        return self.rule.expected_synapses(self.pre.n, self.post.n, self.same_population)

    @property
    def pairing(self) -> STDP | RewardSTDP | None:
        """The spike-timing rule, if there is one."""
        return next((rule for rule in self.plasticity if isinstance(rule, STDP | RewardSTDP)), None)

    @property
    def scaling(self) -> HomeostaticScaling | None:
        """The homeostatic rule, if there is one."""
        return next((rule for rule in self.plasticity if isinstance(rule, HomeostaticScaling)), None)

    @property
    def short_term(self) -> TsodyksMarkram | None:
        """The rule of short-term plasticity, if there is one."""
        return next((rule for rule in self.plasticity if isinstance(rule, TsodyksMarkram)), None)

    @property
    def has_changing_weights(self) -> bool:
        """True if the weights themselves change; short-term plasticity does not change them."""
        return bool(self.plasticity) and (self.pairing is not None or self.scaling is not None)

    @property
    def largest_weight(self) -> float:
        """Largest magnitude that a weight can have, initially or after learning."""
        low, high = self.weight.bounds()
        limits = [rule.w_max for rule in self.plasticity if isinstance(rule, STDP | RewardSTDP | HomeostaticScaling)]
        return max(-low, high, *limits, 0.0)

    @property
    def typical_weight(self) -> float:
        """Mean magnitude of the initial weights; for plastic weights that start at zero, the largest."""
        # The only known size of weights that start at zero is the one that they can grow to.
        largest = self.largest_weight
        return min(self.weight.expected_magnitude() or largest, largest)

    def contribution(self) -> Contribution:
        """Return what can arrive at one target in one step; each synapse delivers at most one spike in a step."""
        largest, typical = self.largest_weight, self.typical_weight
        count = self.rule.largest_in_degree(self.pre.n, self.post.n)
        return Contribution(f"projection {self.name!r}", typical, largest, count, self._likely_sum(typical, largest))

    def _likely_sum(self, typical: float, largest: float) -> float:
        """Return the largest sum of the weights onto one target: exact for arrays, else a bound (see `likely_sum`)."""
        if self.has_changing_weights:
            typical = largest  # all of them can grow
        elif isinstance(self.weight, Values) and len(self.weight):
            given = np.abs(self.weight.array)
            if isinstance(self.rule, Explicit):
                given = np.bincount(self.rule.post_ids, weights=given)
            elif isinstance(self.rule, AllToAll):
                given = given.reshape(self.post.n, self.pre.n).sum(axis=1)
            return float(given.max())
        return likely_sum(self.rule.mean_in_degree(self.pre.n, self.post.n), typical, largest)


@dataclass(frozen=True, repr=False)
class RateProjection(Projection):
    """Continuous connections from one population to another; `Network.connect_rates` makes it.

    Each synapse adds weight x output of its source, delayed, to an input of its target in every step.

    Parameters
    ----------
    name : str
        Unique name.
    pre, post : Population
        Source and target.
    rule : Rule
        Connection rule.
    weight : Distribution
        Weights: the unit of the target's input divided by that of the source's output.
    delay_ms : Distribution
        Delays in ms; drawn values are rounded to whole steps, at least one.
    receptor : str
        Rate input of the target's model.
    plasticity : tuple
        Empty.
    index : int
        Number that is no other projection's.

    Examples
    --------
    >>> from neuraxis.network import AllToAll, Network
    >>> from neuraxis.network.models import rate_tanh
    >>> network = Network()
    >>> units = network.population("units", 100, rate_tanh)
    >>> network.connect_rates(units, units, AllToAll(), weight=0.01, delay_ms=2.0)
    RateProjection('units->units', AllToAll(), weight=0.01, delay_ms=2, receptor='input')
    """

    @property
    def place(self) -> int:
        """Position among the rate projections of the network."""
        return self.index - FIRST_RATE_INDEX


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
    """Check the arguments and return a projection."""
    what = f"projection {name!r}"
    used, weights, delays = _checked(pre, post, rule, weight, delay_ms, dt_ms, what)
    rules = tuple(_on_grid(rule, dt_ms) for rule in as_plasticity(plasticity))
    _check_plastic_weights(rules, weights, what)
    receptor = choose_receptor(post, synapse, weights, what)
    return Projection(name, pre, post, used, weights, delays, receptor, rules, index)


def make_rate_projection(
    *,
    name: str,
    pre: Population,
    post: Population,
    rule: Any,
    weight: Any,
    delay_ms: Any,
    rate_input: str | None,
    place: int,
    dt_ms: float,
) -> RateProjection:
    """Check the arguments and return a rate projection, number `place` of its network."""
    what = f"projection {name!r}"
    if pre.model.output is None:
        raise InvalidArgument(
            f"{what}: {pre.model.name} has no output to transmit. Use a rate model, such as rate_linear, or give your "
            "model one: neuron_model(..., output=...)"
        )
    if not post.model.rate_inputs:
        raise InvalidArgument(
            f"{what}: {post.model.name} has no rate inputs. Use a rate model, such as rate_linear, or give your model "
            "one: neuron_model(..., rate_inputs=...)"
        )
    used, weights, delays = _checked(pre, post, rule, weight, delay_ms, dt_ms, what)
    low, high = weights.bounds()
    if max(-low, high) > LARGEST_FLOAT32:
        raise InvalidArgument(f"{what}: weight={weight}: beyond the range of float32")
    inputs = post.model.rate_inputs
    chosen = inputs[0] if rate_input is None else one_of(rate_input, f"{what}: rate_input", inputs)
    return RateProjection(name, pre, post, used, weights, delays, chosen, (), FIRST_RATE_INDEX + place)


def _checked(
    pre: Population, post: Population, rule: Any, weight: Any, delay_ms: Any, dt_ms: float, what: str
) -> tuple[Rule, Distribution, Distribution]:
    """Return the rule, the weights and the delays; raise unless they are possible for these populations."""
    if hasattr(rule, "tocoo"):
        rule, weight = _from_sparse(rule, weight, pre, post, what)
    if not isinstance(rule, Rule):
        hint = ", not the class itself" if isinstance(rule, type) else ""
        if isinstance(rule, str):
            words = "".join(word.capitalize() for word in rule.split("_"))  # NEST's fixed_indegree
            hint = f", not text; {near(words, _RULES)}"
        raise InvalidType(f"{what}: rule={rule!r}: a rule such as FixedInDegree(k=100) is expected{hint}")
    try:
        rule.check(pre.n, post.n, pre is post)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    if weight is None:
        raise InvalidArgument(f"{what}: weight=None: pass a weight")
    weights = as_distribution(weight, f"{what}: weight")
    _check_values(weights, rule, pre, post, f"{what}: weight")
    delays = as_delay(delay_ms, dt_ms, f"{what}: delay_ms")
    _check_values(delays, rule, pre, post, f"{what}: delay_ms")
    return rule, weights, delays


def choose_receptor(post: Population, synapse: str | None, weight: Distribution, what: str) -> str:
    """Return the receptor `synapse`, or by default the one for the sign of the weights."""
    model = post.model
    if synapse is not None:
        return one_of(synapse, f"{what}: synapse", model.receptors)
    low, high = weight.bounds()
    positive, negative = model.receptor_for(1), model.receptor_for(-1)
    if low < 0 < high and positive != negative:
        raise InvalidArgument(
            f"{what}: weight={weight}: can be of either sign, and {model.name} has {positive!r} for positive and "
            f"{negative!r} for negative weights. Select one with synapse=, or limit the weight with low= or high=."
        )
    return negative if low < 0 else positive


def _short(value: Distribution) -> str:
    return f"{value.value:g}" if isinstance(value, Constant) else repr(value)


def _on_grid(rule: PlasticityRule, dt_ms: float) -> PlasticityRule:
    """Return the rule with its period rounded to whole steps."""
    if not isinstance(rule, RewardSTDP | HomeostaticScaling):
        return rule
    return replace(rule, every_ms=period(rule.every_ms, dt_ms, f"{type(rule).__name__}.every_ms"))


def _from_sparse(matrix: Any, weight: Any, pre: Population, post: Population, what: str) -> tuple[Explicit, Any]:
    """Return the rule of a sparse matrix, and its weights unless `weight` is given."""
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
            f"{name}: an array cannot be used with {type(rule).__name__}, which draws its synapses. "
            "Use Explicit, OneToOne or AllToAll, or a distribution."
        )
    if count != len(given):
        raise InvalidArgument(f"{name}: {len(given)} values for {count} synapses; pass one for each")


def _check_plastic_weights(rules: tuple[PlasticityRule, ...], weight: Distribution, what: str) -> None:
    """Raise unless plastic weights start within the limits of their rule."""
    low, high = weight.bounds()
    for rule in rules:
        if isinstance(rule, TsodyksMarkram):
            continue
        lowest = 0.0 if isinstance(rule, STDP) else rule.w_min
        if low < lowest or high > rule.w_max:
            raise InvalidArgument(
                f"{what}: weight={weight}: from {low:g} to {high:g}; with {type(rule).__name__} weights must be "
                f"from {lowest:g} to w_max={rule.w_max:g}. Limit the weight with low= and high=."
            )
