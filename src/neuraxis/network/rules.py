"""Connection rules: the pairs of neurons that a projection connects.

Every rule has these methods, which take the sizes of the two populations (`same_population`: they are the same one):

* `check(n_pre, n_post, same_population)` raises if the rule cannot be applied;
* `expected_synapses(n_pre, n_post, same_population)` returns the mean number of synapses;
* `largest_in_degree(n_pre, n_post)` returns a bound of the number of synapses onto one neuron, which holds with
  overwhelming probability where the number is random;
* `mean_in_degree(n_pre, n_post)` returns the mean number of synapses onto one neuron, or the largest if it is known;
* `value_count(n_pre, n_post)` returns the number of values in an array of weights or delays, or None if the rule draws
  its synapses and takes no arrays.

A *multapse* is a further synapse between the same two neurons, an *autapse* a synapse from a neuron to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.arguments import (
    Floats,
    HoldsArrays,
    Integers,
    ShortRepr,
    check_ids,
    flag,
    float_array,
    id_array,
    number,
    set_fields,
    whole,
)
from neuraxis.errors import InvalidArgument, InvalidType

__all__ = [
    "AllToAll",
    "ConnectionRule",
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

# Distinct pairs are drawn by number.
LARGEST_PAIRS = 2**40


class ConnectionRule:
    """Methods of every rule, with which the network checks it and bounds the weights that can arrive at a neuron."""

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        """Raise unless the rule can connect populations of these sizes.

        Parameters
        ----------
        n_pre : int
            Number of source neurons.
        n_post : int
            Number of target neurons.
        same_population : bool
            True if sources and targets are one population.

        Raises
        ------
        InvalidArgument
            It cannot; the text says why.
        """
        raise NotImplementedError

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        """Return the number of synapses, or the mean of it if the rule draws it.

        Parameters
        ----------
        n_pre : int
            Number of source neurons.
        n_post : int
            Number of target neurons.
        same_population : bool
            True if sources and targets are one population, which may exclude autapses.

        Returns
        -------
        float
            The number.
        """
        raise NotImplementedError

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        """Return a number of synapses onto one target that is reached at most, or practically never exceeded.

        Parameters
        ----------
        n_pre : int
            Number of source neurons.
        n_post : int
            Number of target neurons.

        Returns
        -------
        float
            The number.
        """
        raise NotImplementedError

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        """Return the mean number of synapses onto one target.

        Parameters
        ----------
        n_pre : int
            Number of source neurons.
        n_post : int
            Number of target neurons.

        Returns
        -------
        float
            The mean.
        """
        raise NotImplementedError

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        """Return the number of values of an array of weights or delays.

        Parameters
        ----------
        n_pre : int
            Number of source neurons.
        n_post : int
            Number of target neurons.

        Returns
        -------
        int or None
            The number; None for rules that draw the synapses and so take no arrays.
        """
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class OneToOne(ConnectionRule, ShortRepr):
    """Connect neuron i to neuron i.

    An array of weights or delays has one value for each neuron.

    Examples
    --------
    >>> OneToOne().expected_synapses(10, 10)
    10.0
    """

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        if n_pre != n_post:
            raise InvalidArgument(
                f"OneToOne: {n_pre} neurons cannot be paired with {n_post}; use populations of equal size"
            )

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(n_post)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return 1.0

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return 1.0

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return n_post


@dataclass(frozen=True, repr=False)
class AllToAll(ConnectionRule, ShortRepr):
    """Connect every neuron to every neuron.

    An array of weights or delays has `n_pre * n_post` values, ordered by target: `values[post * n_pre + pre]`, which is
    `matrix.T.ravel()` of a matrix with a row for each `pre`. Values of pairs that are not connected are ignored.

    Parameters
    ----------
    autapses : bool
        Allow synapses from a neuron to itself; matters only if `pre` and `post` are the same population.
    groups : int
        Cut both populations into this many equal parts, in order, and connect part g to part g only.

    Examples
    --------
    >>> AllToAll(autapses=False).expected_synapses(10, 10, same_population=True)
    90.0
    """

    autapses: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        set_fields(self, autapses=flag(self.autapses, "AllToAll.autapses"), groups=_groups(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_groups(self, n_pre, n_post)

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(_pairs(n_pre, n_post, same_population, self.autapses, self.groups))

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(-(-n_pre // self.groups))

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return self.largest_in_degree(n_pre, n_post)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return n_pre * n_post


@dataclass(frozen=True, repr=False)
class PairwiseBernoulli(ConnectionRule, ShortRepr):
    """Connect every pair of neurons independently with probability `p`.

    Parameters
    ----------
    p : float
        Probability, from 0 to 1.
    autapses : bool
        Allow synapses from a neuron to itself; matters only if `pre` and `post` are the same population.
    groups : int
        Cut both populations into this many equal parts, in order, and connect part g to part g only.

    Examples
    --------
    >>> PairwiseBernoulli(0.1).expected_synapses(100, 100)
    1000.0
    """

    p: float
    autapses: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        p = number(self.p, "PairwiseBernoulli.p")
        if not 0 <= p <= 1:
            raise InvalidArgument(f"PairwiseBernoulli.p={p}: a probability is from 0 to 1")
        set_fields(self, p=p, autapses=flag(self.autapses, "PairwiseBernoulli.autapses"), groups=_groups(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_groups(self, n_pre, n_post)

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return self.p * _pairs(n_pre, n_post, same_population, self.autapses, self.groups)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(-(-n_pre // self.groups)) if self.p > 0 else 0.0

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return self.p * self.largest_in_degree(n_pre, n_post)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True, repr=False)
class FixedInDegree(ConnectionRule, ShortRepr):
    """Give every target neuron `k` synapses from sources drawn at random.

    Parameters
    ----------
    k : int
        Synapses onto each target neuron.
    multapses : bool
        Allow several synapses between the same two neurons.
    autapses : bool
        Allow synapses from a neuron to itself; matters only if `pre` and `post` are the same population.
    groups : int
        Cut both populations into this many equal parts, in order, and connect part g to part g only.

    Examples
    --------
    >>> FixedInDegree(k=100).expected_synapses(1000, 50)
    5000.0
    """

    k: int
    multapses: bool = True
    autapses: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        k = whole(self.k, "FixedInDegree.k", 0, LARGEST_DEGREE)
        set_fields(self, k=k, groups=_groups(self), **_flags(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_groups(self, n_pre, n_post)
        _check_degree(self, n_pre // self.groups, same_population, "sources")

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(self.k * n_post)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(self.k)

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return float(self.k)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True, repr=False)
class FixedOutDegree(ConnectionRule, ShortRepr):
    """Give every source neuron `k` synapses onto targets drawn at random.

    Parameters
    ----------
    k : int
        Synapses from each source neuron.
    multapses : bool
        Allow several synapses between the same two neurons.
    autapses : bool
        Allow synapses from a neuron to itself; matters only if `pre` and `post` are the same population.

    Examples
    --------
    >>> FixedOutDegree(k=100).expected_synapses(1000, 50)
    100000.0
    """

    k: int
    multapses: bool = True
    autapses: bool = True

    def __post_init__(self) -> None:
        set_fields(self, k=whole(self.k, "FixedOutDegree.k", 0, LARGEST_DEGREE), **_flags(self))

    def check(self, n_pre: int, n_post: int, same_population: bool) -> None:
        _check_degree(self, n_post, same_population, "targets")

    def expected_synapses(self, n_pre: int, n_post: int, same_population: bool = False) -> float:
        return float(self.k * n_pre)

    def largest_in_degree(self, n_pre: int, n_post: int) -> float:
        return _likely_in_degree(self.k * n_pre, n_pre, n_post, self.multapses)

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return self.k * n_pre / n_post

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True, repr=False)
class FixedTotalNumber(ConnectionRule, ShortRepr):
    """Make `n` synapses in total, each between a source and a target drawn at random.

    Parameters
    ----------
    n : int
        Number of synapses.
    multapses : bool
        Allow several synapses between the same two neurons.
    autapses : bool
        Allow synapses from a neuron to itself; matters only if `pre` and `post` are the same population.

    Examples
    --------
    >>> FixedTotalNumber(n=5000).mean_in_degree(1000, 50)
    100.0
    """

    n: int
    multapses: bool = True
    autapses: bool = True

    def __post_init__(self) -> None:
        set_fields(self, n=whole(self.n, "FixedTotalNumber.n", 0, LARGEST_TOTAL), **_flags(self))

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

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return self.n / n_post

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Explicit(ConnectionRule, HoldsArrays):
    """Connect neuron `pre_ids[i]` to neuron `post_ids[i]`, for each i.

    A pair may occur several times. An array of weights or delays has one value for each synapse, in the same order.

    Parameters
    ----------
    pre_ids, post_ids : array_like of int, shape (n_synapses,)
        Ids within the populations, from 0.

    Examples
    --------
    >>> Explicit([0, 0, 1], [2, 3, 2])
    Explicit(3 synapses)
    """

    pre_ids: Integers
    post_ids: Integers

    def __post_init__(self) -> None:
        set_fields(
            self,
            pre_ids=id_array(self.pre_ids, "Explicit.pre_ids"),
            post_ids=id_array(self.post_ids, "Explicit.post_ids"),
        )
        if self.pre_ids.size != self.post_ids.size:
            raise InvalidArgument(
                f"Explicit: {self.pre_ids.size} pre_ids and {self.post_ids.size} post_ids; a synapse needs one of each"
            )

    @classmethod
    def from_sparse(cls, matrix: Any) -> tuple[Explicit, Floats]:
        """Return the rule and the weights of a sparse matrix; `Network.connect` also takes the matrix itself.

        Parameters
        ----------
        matrix : sparse matrix, shape (n_pre, n_post)
            A SciPy matrix, or any object with `tocoo()`. Every stored entry is a synapse, stored zeros included.

        Returns
        -------
        tuple of (Explicit, array of float)
            The rule, and one weight for each synapse.

        Raises
        ------
        InvalidType
            The matrix is not sparse.
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

    def mean_in_degree(self, n_pre: int, n_post: int) -> float:
        return self.largest_in_degree(n_pre, n_post)

    def value_count(self, n_pre: int, n_post: int) -> int | None:
        return len(self)


Rule = OneToOne | AllToAll | PairwiseBernoulli | FixedInDegree | FixedOutDegree | FixedTotalNumber | Explicit
"""Any of the connection rules of this module."""


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
        raise InvalidArgument(f"{type(rule).__name__}.groups={rule.groups}: {n_pre} and {n_post} neurons are too few")


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
            + (" besides the neuron itself" if itself else "")
            + ("; allow multapses or take a smaller k" if available else "")
        )


def _likely_in_degree(synapses: int, n_pre: int, n_post: int, multapses: bool) -> float:
    """Return twice the mean in-degree plus 200, which no feasible number of draws exceeds."""
    if not synapses:
        return 0.0
    likely = 2 * synapses / n_post + 200
    return likely if multapses else min(likely, float(n_pre))
