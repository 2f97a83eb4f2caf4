"""Connection rules: which neurons of one population a projection connects to which of another.

A rule answers four questions, given the sizes of the two populations (`same_population`: they are one):

* `check(n_pre, n_post, same_population)` raises if it cannot be followed there;
* `expected_synapses(n_pre, n_post, same_population)`: how many synapses it makes, on average;
* `largest_in_degree(n_pre, n_post)`: how many synapses one neuron can receive, at most (or beyond all likelihood);
* `value_count(n_pre, n_post)`: how many weights or delays can be given one by one, as `Values`; None if they cannot.

A *multapse* is a second synapse between the same two neurons, an *autapse* one from a neuron to itself.
`autapses=False` matters only where a population is connected to itself. With `groups`, both populations are cut into
that many equal parts, in order, and part g is connected to part g only: a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import check_ids, flag, float_array, id_array, number, settle, whole
from neuraxis.network.arrays import Floats, HoldsArrays, Integers

__all__ = [
    "AllToAll",
    "Explicit",
    "FixedInDegree",
    "FixedOutDegree",
    "FixedTotalNumber",
    "OneToOne",
    "PairwiseBernoulli",
    "Rule",
]

LARGEST_DEGREE = 2**31 - 1
LARGEST_TOTAL = 2**62

# Drawing a total number of distinct pairs needs the pairs to be numbered.
LARGEST_PAIRS = 2**40


@dataclass(frozen=True)
class OneToOne:
    """Neuron i to neuron i. Values: one for each neuron."""

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        if n_pre != n_post:
            raise InvalidArgument(f"OneToOne: {n_pre} neurons cannot be paired with {n_post}; the sizes must be equal")

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(n_post)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return 1.0

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return n_post


@dataclass(frozen=True)
class AllToAll:
    """Every neuron to every neuron.

    Values: `n_pre * n_post`, target by target: `values[post * n_pre + pre]`, which is `matrix.T.ravel()` of a matrix
    with a row for each `pre`. Those of autapses and between groups that are not made are there, and ignored.
    """

    autapses: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        settle(self, autapses=flag(self.autapses, "AllToAll.autapses"), groups=_groups(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_groups(self, n_pre, n_post)

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(_pairs(n_pre, n_post, same_population, self.autapses, self.groups))

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(-(-n_pre // self.groups))

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return n_pre * n_post


@dataclass(frozen=True)
class PairwiseBernoulli:
    """Every pair of neurons with probability `p`, each on its own."""

    p: float
    autapses: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        p = number(self.p, "PairwiseBernoulli.p")
        if not 0 <= p <= 1:
            raise InvalidArgument(f"PairwiseBernoulli.p={p}: a probability is from 0 to 1")
        settle(self, p=p, autapses=flag(self.autapses, "PairwiseBernoulli.autapses"), groups=_groups(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_groups(self, n_pre, n_post)

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return self.p * _pairs(n_pre, n_post, same_population, self.autapses, self.groups)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(-(-n_pre // self.groups)) if self.p > 0 else 0.0

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True)
class FixedInDegree:
    """Every target gets `k` synapses, from sources drawn at random."""

    k: int
    multapses: bool = True
    autapses: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        k = whole(self.k, "FixedInDegree.k", 0, LARGEST_DEGREE)
        settle(self, k=k, groups=_groups(self), **_flags(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_groups(self, n_pre, n_post)
        _check_degree(self, n_pre // self.groups, same_population, "sources")

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(self.k * n_post)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(self.k)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True)
class FixedOutDegree:
    """Every source makes `k` synapses, on targets drawn at random."""

    k: int
    multapses: bool = True
    autapses: bool = True

    def __post_init__(self) -> None:
        settle(self, k=whole(self.k, "FixedOutDegree.k", 0, LARGEST_DEGREE), **_flags(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_degree(self, n_post, same_population, "targets")

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(self.k * n_pre)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return _likely_in_degree(self.k * n_pre, n_pre, n_post, self.multapses)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True)
class FixedTotalNumber:
    """`n` synapses in all, each between a source and a target drawn at random."""

    n: int
    multapses: bool = True
    autapses: bool = True

    def __post_init__(self) -> None:
        settle(self, n=whole(self.n, "FixedTotalNumber.n", 0, LARGEST_TOTAL), **_flags(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        pairs = _pairs(n_pre, n_post, same_population, self.autapses)
        if self.n and not pairs:
            raise InvalidArgument(f"FixedTotalNumber.n={self.n}: there is no pair of neurons to connect")
        if self.multapses:
            return
        if self.n > pairs:
            raise InvalidArgument(
                f"FixedTotalNumber.n={self.n}: without multapses there are only {pairs} pairs to connect"
            )
        if n_pre * n_post > LARGEST_PAIRS:
            raise InvalidArgument(
                f"FixedTotalNumber.multapses=False: not supported for {n_pre} x {n_post} neurons; "
                "use PairwiseBernoulli or multapses=True"
            )

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(self.n)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return _likely_in_degree(self.n, n_pre, n_post, self.multapses)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Explicit(HoldsArrays):
    """Given synapses: neuron `pre_ids[i]` to neuron `post_ids[i]`, counted within their populations.

    A pair may be there several times. Values: one for each synapse, in the order given.
    """

    pre_ids: Integers
    post_ids: Integers

    def __post_init__(self) -> None:
        settle(
            self,
            pre_ids=id_array(self.pre_ids, "Explicit.pre_ids"),
            post_ids=id_array(self.post_ids, "Explicit.post_ids"),
        )
        if self.pre_ids.size != self.post_ids.size:
            raise InvalidArgument(
                f"Explicit: {self.pre_ids.size} pre_ids and {self.post_ids.size} post_ids; one of each makes a synapse"
            )

    @classmethod
    def from_sparse(cls, matrix: Any) -> tuple[Explicit, Floats]:
        """The rule and the weights of a sparse matrix (SciPy's, or any with `tocoo()`): rows are pre, columns post.

        Every stored entry is a synapse, also one that holds zero. `Network.connect` takes the matrix itself, too.
        """
        if not hasattr(matrix, "tocoo"):
            raise InvalidType(f"matrix: a sparse matrix is expected, not {type(matrix).__name__}")
        entries = matrix.tocoo()
        return cls(entries.row, entries.col), float_array(entries.data, "matrix.data")

    def __len__(self) -> int:
        return int(self.pre_ids.size)

    def __repr__(self) -> str:
        return f"Explicit({len(self):,} synapses)"

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        check_ids(self.pre_ids, "Explicit.pre_ids", n_pre)
        check_ids(self.post_ids, "Explicit.post_ids", n_post)

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(len(self))

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(np.bincount(self.post_ids).max()) if len(self) else 0.0

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return len(self)


Rule = OneToOne | AllToAll | PairwiseBernoulli | FixedInDegree | FixedOutDegree | FixedTotalNumber | Explicit


def _flags(rule: FixedInDegree | FixedOutDegree | FixedTotalNumber) -> dict[str, object]:
    kind = type(rule).__name__
    return {
        "multapses": flag(rule.multapses, f"{kind}.multapses"),
        "autapses": flag(rule.autapses, f"{kind}.autapses"),
    }


def _groups(rule: AllToAll | PairwiseBernoulli | FixedInDegree) -> int:
    return whole(rule.groups, f"{type(rule).__name__}.groups", 1)


def _check_groups(rule: AllToAll | PairwiseBernoulli | FixedInDegree, n_pre: int, n_post: int) -> None:
    if rule.groups > min(n_pre, n_post):
        raise InvalidArgument(
            f"{type(rule).__name__}.groups={rule.groups}: {n_pre} and {n_post} neurons cannot be cut into so many"
        )


def _pairs(n_pre: int, n_post: int, same_population: bool, autapses: bool, groups: int = 1) -> int:
    pairs = n_pre * n_post
    if groups > 1:
        sizes = [[(g + 1) * n // groups - g * n // groups for g in range(groups)] for n in (n_pre, n_post)]
        pairs = sum(pre * post for pre, post in zip(*sizes, strict=True))
    return pairs - (n_pre if same_population and not autapses else 0)


def _check_degree(rule: FixedInDegree | FixedOutDegree, n: int, same_population: bool, others: str) -> None:
    itself = same_population and not rule.autapses
    available = n - 1 if itself else n
    if rule.k > available and not (rule.multapses and available):
        raise InvalidArgument(
            f"{type(rule).__name__}.k={rule.k}: there are only {available} {others}"
            + (" beside the neuron itself" if itself else "")
            + ("; allow multapses or take a smaller k" if available else "")
        )


def _likely_in_degree(synapses: int, n_pre: int, n_post: int, multapses: bool) -> float:
    """Twice the mean and 200: no draw of a network that anyone can build goes beyond."""
    if not synapses:
        return 0.0
    likely = 2 * synapses / n_post + 200
    return likely if multapses else min(likely, float(n_pre))
