"""Rules and distributions as numbers, for the kernels that draw synapses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine import drawing
from neuraxis.engine.listing import in_degrees_of_total, list_out_degree, list_total, rows_of
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import PURPOSE_INITIAL, key_of, normal_table, number
from neuraxis.network.distributions import Constant, Distribution, LogNormal, Normal, Uniform, Values
from neuraxis.network.projection import Projection
from neuraxis.network.rules import (
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    OneToOne,
    PairwiseBernoulli,
)

__all__ = ["Drawn", "EncodedRule", "encode_rule", "initial_values"]

_NONE = np.zeros(0, np.int64)
_NO_SOURCES = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Drawn:
    """A distribution as (kind, parameters, given values)."""

    kind: int
    parameters: NDArray[np.float64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, distribution: Distribution) -> Drawn:
        values = np.zeros(0)
        low, high, redraw = -np.inf, np.inf, 0.0
        if isinstance(distribution, Constant):
            kind, a, b = drawing.CONSTANT, distribution.value, 0.0
        elif isinstance(distribution, Uniform):
            kind, a, b = drawing.UNIFORM, distribution.low, distribution.high
        elif isinstance(distribution, Values):
            kind, a, b, values = drawing.VALUES, 0.0, 0.0, np.asarray(distribution.array)
        else:
            low = -np.inf if distribution.low is None else distribution.low
            high = np.inf if distribution.high is None else distribution.high
            redraw = float(distribution.outside == "redraw")
            if isinstance(distribution, Normal):
                kind, a, b = drawing.NORMAL, distribution.mean, distribution.sd
            elif isinstance(distribution, LogNormal):
                kind, a, b = drawing.LOG_NORMAL, distribution.mu, distribution.sigma
        return cls(kind, np.array([a, b, low, high, redraw]), values)


@dataclass(frozen=True)
class EncodedRule:
    """A rule for the targets of one slice: see `drawing.draw_row`."""

    words: NDArray[np.int64]
    longest_row: int
    counts: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    listed: NDArray[np.int32] = field(default_factory=lambda: _NO_SOURCES)
    listed_first: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    listed_order: NDArray[np.int64] = field(default_factory=lambda: _NONE)


def encode_rule(projection: Projection, part: Slice, seed: int, *, totals: bool = True) -> EncodedRule:
    """The projection's rule, for the neurons of `part` (a slice of its post population) as targets.

    Without `totals` the in-degrees that a fixed total number gives the targets are left to the caller to draw.
    """
    rule, n_pre = projection.rule, projection.pre.n
    no_self = int(projection.same_population and not getattr(rule, "autapses", True))
    distinct = int(not getattr(rule, "multapses", True))

    def words(kind: int, share: int = 0, distinct: int = distinct) -> NDArray[np.int64]:
        groups = getattr(rule, "groups", 1)
        return np.array([kind, projection.index, n_pre, no_self, distinct, share, groups, projection.post.n], np.int64)

    if isinstance(rule, OneToOne):
        return EncodedRule(words(drawing.ONE_TO_ONE), 1)
    if isinstance(rule, AllToAll):
        return EncodedRule(words(drawing.ALL_TO_ALL), n_pre)
    if isinstance(rule, PairwiseBernoulli):
        return EncodedRule(words(drawing.BERNOULLI, round(rule.p * 2**32), distinct=1), n_pre)
    if isinstance(rule, FixedInDegree):
        return EncodedRule(words(drawing.IN_DEGREE), rule.k, counts=np.full(part.n, rule.k, np.int64))
    if isinstance(rule, FixedTotalNumber) and rule.multapses:
        if not totals:
            return EncodedRule(words(drawing.IN_DEGREE), 0)
        counts = in_degrees_of_total(rule.n, projection.post.n, part.first, part.last, seed, projection.index)
        return EncodedRule(words(drawing.IN_DEGREE), int(counts.max(initial=0)), counts=counts)
    if isinstance(rule, FixedTotalNumber):
        pre, post = list_total(rule.n, n_pre, projection.post.n, part.first, part.last, no_self, seed, projection.index)
        order = np.arange(len(pre))
    elif isinstance(rule, FixedOutDegree):
        pre, post = list_out_degree(
            rule.k, n_pre, projection.post.n, part.first, part.last, no_self, distinct, seed, projection.index
        )
        order = np.arange(len(pre))
    else:
        assert isinstance(rule, Explicit)
        order = np.flatnonzero((rule.post_ids >= part.first) & (rule.post_ids < part.last))
        pre, post = rule.pre_ids[order], rule.post_ids[order]
    listed, first, by_row = rows_of(pre, post - part.first, part.n)
    return EncodedRule(
        words(drawing.LISTED),
        int(np.diff(first).max(initial=0)),
        listed=listed,
        listed_first=first,
        listed_order=order[by_row],
    )


def initial_values(
    distribution: Distribution, seed: int, population: int, state: int, first: int, last: int
) -> NDArray[np.float64]:
    """The initial values of a state (number `state` of its model) for neurons `first` to `last`."""
    drawn = Drawn.of(distribution)
    if drawn.kind == drawing.VALUES:
        return drawn.values[first:last]
    if drawn.kind == drawing.CONSTANT:
        return np.full(last - first, drawn.parameters[0])
    out = np.empty(last - first)
    _draw_initial(drawn.kind, drawn.parameters, seed, population * 256 + state, first, out, normal_table())
    return out


@compiled
def _draw_initial(
    kind: int,
    parameters: NDArray[np.float64],
    seed: int,
    owner: int,
    first: int,
    out: NDArray[np.float64],
    table: NDArray[np.float64],
) -> None:
    for i in range(len(out)):
        key = key_of(seed, PURPOSE_INITIAL, owner, first + i)
        bits = np.uint32(number(key, 0) >> np.uint64(32))
        drawn = drawing.value(kind, parameters, bits, key, 0, table)
        out[i] = min(max(drawn, parameters[2]), parameters[3])
