"""Rules and distributions as numbers, for the kernels that draw synapses.

The kernels draw the synapses of each target separately. Rules that count by source or in total are converted to what
each target gets:

* The in-degrees of `FixedTotalNumber` are drawn down a binary tree over the targets: of the synapses of a node, a
  binomial number goes to its left half. A worker descends only to its own targets.
* `FixedOutDegree`, and totals without multapses, are drawn synapse by synapse; a worker keeps those of its targets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine.cpu import synapses as drawing
from neuraxis.engine.cpu.synapses import distinct
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import (
    PURPOSE_CONNECT,
    PURPOSE_COUNT,
    PURPOSE_INITIAL,
    binomial,
    key_of,
    normal_table,
    number,
)
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

__all__ = [
    "EncodedDistribution",
    "EncodedRule",
    "encode_rule",
    "in_degrees_of_total",
    "initial_values",
    "list_out_degree",
    "list_total",
    "rows_of",
]

Ids = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)
_NO_SOURCES = np.zeros(0, np.int32)
_COUNT_ONLY = np.empty((0, 2), np.int64)


@dataclass(frozen=True)
class EncodedDistribution:
    """A distribution as (kind, parameters, given values) for the kernels."""

    kind: int
    parameters: NDArray[np.float64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, distribution: Distribution) -> EncodedDistribution:
        """Return the encoded distribution; the same object for equal ones, often."""
        return cls._of(distribution) if isinstance(distribution, Values) else _encoded(distribution)

    @classmethod
    def _of(cls, distribution: Distribution) -> EncodedDistribution:
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
        return cls(kind, np.array([a, b, low, high, redraw]) + 0.0, values)  # no -0.0, which equals 0.0


@lru_cache(maxsize=1024)
def _encoded(distribution: Distribution) -> EncodedDistribution:
    return EncodedDistribution._of(distribution)


@dataclass(frozen=True, slots=True)
class EncodedRule:
    """A rule for the targets of one slice; see `synapses.draw_row`."""

    words: NDArray[np.int64]
    longest_row: int
    counts: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    listed: NDArray[np.int32] = field(default_factory=lambda: _NO_SOURCES)
    listed_first: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    listed_order: NDArray[np.int64] = field(default_factory=lambda: _NONE)


def encode_rule(projection: Projection, part: Slice, seed: int, *, totals: bool = True) -> EncodedRule:
    """Return the rule of a projection for the targets of one slice.

    Without `totals` the caller has to draw the in-degrees of a fixed total number itself.
    """
    rule, n_pre = projection.rule, projection.pre.n
    no_self = int(projection.same_population and not getattr(rule, "autapses", True))
    all_distinct = int(not getattr(rule, "multapses", True))

    def words(kind: int, share: int = 0, all_distinct: int = all_distinct) -> NDArray[np.int64]:
        groups = getattr(rule, "groups", 1)
        n_post = projection.post.n
        return np.array([kind, projection.index, n_pre, no_self, all_distinct, share, groups, n_post], np.int64)

    if isinstance(rule, OneToOne):
        return EncodedRule(words(drawing.ONE_TO_ONE), 1)
    if isinstance(rule, AllToAll):
        return EncodedRule(words(drawing.ALL_TO_ALL), n_pre)
    if isinstance(rule, PairwiseBernoulli):
        return EncodedRule(words(drawing.BERNOULLI, round(rule.p * 2**32), all_distinct=1), n_pre)
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
            rule.k, n_pre, projection.post.n, part.first, part.last, no_self, all_distinct, seed, projection.index
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
    """Return the initial values of a state (its index in the model) for the neurons `first` to `last`."""
    encoded = EncodedDistribution.of(distribution)
    if encoded.kind == drawing.VALUES:
        return encoded.values[first:last]
    if encoded.kind == drawing.CONSTANT:
        return np.full(last - first, encoded.parameters[0])
    out = np.empty(last - first)
    _draw_initial(
        encoded.kind, encoded.parameters, np.uint64(seed), population * 256 + state, first, out, normal_table()
    )
    return out


@compiled
def _draw_initial(
    kind: int,
    parameters: NDArray[np.float64],
    seed: np.uint64,
    owner: int,
    first: int,
    out: NDArray[np.float64],
    table: NDArray[np.float64],
) -> None:
    j = np.int64(0)
    for i in range(len(out)):
        key = key_of(seed, PURPOSE_INITIAL, owner, first + i)
        bits = np.uint32(number(key, j) >> np.uint64(32))
        drawn = drawing.value(kind, parameters, bits, key, j, table)
        out[i] = min(max(drawn, parameters[2]), parameters[3])


def in_degrees_of_total(total: int, n_post: int, first: int, last: int, seed: int, projection: int) -> Ids:
    """Return the in-degrees of the targets first..last if `total` synapses go to n_post targets at random."""
    counts = np.zeros(last - first, np.int64)
    _descend(total, n_post, first, last, np.uint64(seed), projection, counts)
    return counts


def list_out_degree(
    k: int, n_pre: int, n_post: int, first: int, last: int, no_self: int, all_distinct: int, seed: int, projection: int
) -> tuple[Ids, Ids]:
    """Return (pre, post) of the synapses onto targets first..last if every source has k synapses."""
    if k == 0 or first == last:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    kept = _keep_out_degree(
        k, n_pre, n_post, first, last, no_self, all_distinct, np.uint64(seed), projection, _COUNT_ONLY
    )
    pairs = np.empty((kept, 2), np.int64)
    _keep_out_degree(k, n_pre, n_post, first, last, no_self, all_distinct, np.uint64(seed), projection, pairs)
    return pairs[:, 0], pairs[:, 1]


def list_total(
    total: int, n_pre: int, n_post: int, first: int, last: int, no_self: int, seed: int, projection: int
) -> tuple[Ids, Ids]:
    """Return those of `total` distinct pairs (pre, post) whose target is in first..last."""
    if total == 0 or first == last:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    arguments = (total, n_pre, n_post, first, last, no_self, np.uint64(seed), projection)
    pairs = np.empty((_keep_total(*arguments, _COUNT_ONLY), 2), np.int64)
    _keep_total(*arguments, pairs)
    return pairs[:, 0], pairs[:, 1]


def rows_of(pre: Ids, local_post: Ids, n: int) -> tuple[NDArray[np.int32], Ids, Ids]:
    """Sort synapses by target, then source, then as given; return (sources, start of each row, order)."""
    order = np.lexsort((pre, local_post))
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(local_post, minlength=n), out=first[1:])
    return pre[order].astype(np.int32), first, order


@compiled
def _descend(total: int, n_post: int, first: int, last: int, seed: Any, projection: int, counts: Any) -> None:
    stack = np.empty((128, 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, n_post, total
    depth = 1
    while depth > 0:
        depth -= 1
        low, high, n = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        if n == 0 or high <= first or low >= last:
            continue
        if high - low == 1:
            counts[low - first] = n
            continue
        middle = (low + high) // 2
        share = ((middle - low) << 32) // (high - low)
        left = binomial(n, share, key_of(seed, PURPOSE_COUNT, projection, (low << 32) | high))
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = low, middle, left
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = middle, high, n - left
        depth += 2


@compiled
def _keep_out_degree(
    k: int, n_pre: int, n_post: int, first: int, last: int, no_self: int, all_distinct: int, seed: Any,
    projection: int, pairs: Any,
) -> int:  # fmt: skip
    """Count the pairs whose target is in first..last, and write them unless `pairs` is empty."""
    kept = 0
    n = n_post - no_self
    for source in range(n_pre):
        key = key_of(seed, PURPOSE_CONNECT, projection, source)
        for j in range(k):
            if all_distinct:
                target = distinct(key, j, n)
            else:
                target = np.int64(((number(key, j) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
            if no_self and target >= source:
                target += 1
            if first <= target < last:
                if len(pairs) > 0:
                    pairs[kept, 0], pairs[kept, 1] = source, target
                kept += 1
    return kept


@compiled
def _keep_total(
    total: int, n_pre: int, n_post: int, first: int, last: int, no_self: int, seed: Any, projection: int, pairs: Any
) -> int:
    kept = 0
    n = n_pre - no_self
    key = key_of(seed, PURPOSE_CONNECT, projection, 0)
    for j in range(total):
        pair = distinct(key, j, n * n_post)
        target = pair // n
        source = pair % n
        if no_self and source >= target:
            source += 1
        if first <= target < last:
            if len(pairs) > 0:
                pairs[kept, 0], pairs[kept, 1] = source, target
            kept += 1
    return kept
