"""Rules that count by source or in total, turned into what each target gets.

* The in-degrees of `FixedTotalNumber` are drawn down a binary tree over the targets: of the synapses of a node, a
  binomial number goes to its left half. A worker walks only the branches to its own targets.
* `FixedOutDegree`, and totals without multapses, are drawn synapse by synapse; a worker keeps those of its own targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine.drawing import distinct
from neuraxis.engine.random import PURPOSE_CONNECT, PURPOSE_COUNT, binomial, key_of, number

__all__ = ["in_degrees_of_total", "list_out_degree", "list_total", "rows_of"]

Ids = NDArray[np.int64]


def in_degrees_of_total(total: int, n_post: int, first: int, last: int, seed: int, projection: int) -> Ids:
    """How many of `total` synapses, spread over n_post targets at random, the targets first..last get."""
    counts = np.zeros(last - first, np.int64)
    _descend(total, n_post, first, last, np.uint64(seed), projection, counts)
    return counts


def list_out_degree(
    k: int, n_pre: int, n_post: int, first: int, last: int, no_self: int, all_distinct: int, seed: int, projection: int
) -> tuple[Ids, Ids]:
    """(pre, post) of the synapses onto targets first..last where every source has k of them."""
    if k == 0 or first == last:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    kept = _keep_out_degree(
        k, n_pre, n_post, first, last, no_self, all_distinct, np.uint64(seed), projection, _ROOM_TO_COUNT
    )
    pairs = np.empty((kept, 2), np.int64)
    _keep_out_degree(k, n_pre, n_post, first, last, no_self, all_distinct, np.uint64(seed), projection, pairs)
    return pairs[:, 0], pairs[:, 1]


def list_total(
    total: int, n_pre: int, n_post: int, first: int, last: int, no_self: int, seed: int, projection: int
) -> tuple[Ids, Ids]:
    """(pre, post) of those of `total` distinct pairs whose target is in first..last."""
    if total == 0 or first == last:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    arguments = (total, n_pre, n_post, first, last, no_self, np.uint64(seed), projection)
    pairs = np.empty((_keep_total(*arguments, _ROOM_TO_COUNT), 2), np.int64)
    _keep_total(*arguments, pairs)
    return pairs[:, 0], pairs[:, 1]


def rows_of(pre: Ids, local_post: Ids, n: int) -> tuple[NDArray[np.int32], Ids, Ids]:
    """Synapses sorted by target, then source, then as given: (sources, where each row starts, the order)."""
    order = np.lexsort((pre, local_post))
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(local_post, minlength=n), out=first[1:])
    return pre[order].astype(np.int32), first, order


_ROOM_TO_COUNT = np.empty((0, 2), np.int64)


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
    """Write the pairs whose target is in first..last, if there is room for any; their number."""
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
