from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import (
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    OneToOne,
    PairwiseBernoulli,
)


class Coordinates:
    """Like SciPy's sparse matrices, without SciPy."""

    def __init__(self, matrix):
        dense = np.asarray(matrix)
        self.shape = dense.shape
        self.row, self.col = (ids.astype(np.int32) for ids in np.nonzero(dense))
        self.data = dense[self.row, self.col]

    def tocoo(self):
        return self


@pytest.mark.parametrize(
    ("rule", "n_pre", "n_post", "between_two", "within_one"),
    [
        (OneToOne(), 6, 6, 6, 6),
        (AllToAll(), 6, 6, 36, 36),
        (AllToAll(autapses=False), 6, 6, 36, 30),
        (PairwiseBernoulli(0.25), 8, 8, 16, 16),
        (PairwiseBernoulli(0.25, autapses=False), 8, 8, 16, 14),
        (FixedInDegree(3), 4, 4, 12, 12),
        (FixedOutDegree(3), 4, 4, 12, 12),
        (FixedTotalNumber(17), 4, 4, 17, 17),
        (Explicit([0, 1, 1], [0, 0, 0]), 2, 2, 3, 3),
        (Explicit([], []), 2, 2, 0, 0),
    ],
)
def test_expected_synapses(rule, n_pre, n_post, between_two, within_one):
    assert rule.expected_synapses(n_pre, n_post) == between_two
    assert rule.expected_synapses(n_pre, n_post, True) == within_one


def test_degrees_count_on_their_own_side():
    assert FixedInDegree(3).expected_synapses(10, 4) == 12
    assert FixedOutDegree(3).expected_synapses(10, 4) == 30
    assert AllToAll().expected_synapses(10, 4) == 40


@pytest.mark.parametrize(
    ("rule", "largest"),
    [
        (OneToOne(), 1),
        (AllToAll(), 100),
        (PairwiseBernoulli(0.01), 100),
        (PairwiseBernoulli(0.0), 0),
        (FixedInDegree(7), 7),
        (FixedOutDegree(10), 2 * 10 * 100 / 50 + 200),
        (FixedOutDegree(10, multapses=False), 100),
        (FixedOutDegree(0), 0),
        (FixedTotalNumber(1000), 2 * 1000 / 50 + 200),
        (Explicit([0, 1, 2, 3], [4, 4, 4, 1]), 3),
        (Explicit([], []), 0),
    ],
)
def test_largest_in_degree(rule, largest):
    assert rule.largest_in_degree(100, 50) == largest


def test_values_can_be_given_where_synapses_are_listed():
    assert OneToOne().value_count(5, 5) == 5
    assert AllToAll(autapses=False).value_count(4, 5) == 20
    assert Explicit([0, 0], [1, 1]).value_count(4, 5) == 2
    drawn = [PairwiseBernoulli(0.1), FixedInDegree(1), FixedOutDegree(1), FixedTotalNumber(1)]
    assert [rule.value_count(4, 5) for rule in drawn] == [None] * 4


@pytest.mark.parametrize(
    ("rule", "sizes", "message"),
    [
        (OneToOne(), (3, 4, False), "3 neurons cannot be paired with 4"),
        (FixedInDegree(5, multapses=False), (4, 9, False), r"FixedInDegree\.k=5.*only 4 sources"),
        (FixedInDegree(4, multapses=False, autapses=False), (4, 4, True), r"k=4.*only 3 sources besides"),
        (FixedInDegree(1, autapses=False), (1, 1, True), "only 0 sources"),
        (FixedOutDegree(5, multapses=False), (9, 4, False), r"FixedOutDegree\.k=5.*only 4 targets"),
        (FixedOutDegree(4, multapses=False, autapses=False), (4, 4, True), "only 3 targets besides"),
        (FixedTotalNumber(13, multapses=False), (3, 4, False), r"FixedTotalNumber\.n=13.*only 12 pairs"),
        (FixedTotalNumber(7, multapses=False, autapses=False), (3, 3, True), "only 6 pairs"),
        (FixedTotalNumber(1, autapses=False), (1, 1, True), "no pair"),
        (FixedTotalNumber(5, multapses=False), (2**21, 2**20, False), "not supported.*use PairwiseBernoulli"),
        (Explicit([0, 3], [0, 0]), (3, 3, False), r"Explicit\.pre_ids\[1\]=3.*from 0 to 2"),
        (Explicit([0, 0], [5, 0]), (3, 3, False), r"Explicit\.post_ids\[0\]=5"),
    ],
)
def test_rules_that_cannot_be_followed(rule, sizes, message):
    with pytest.raises(InvalidArgument, match=message):
        rule.check(*sizes)


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        (OneToOne(), (4, 4, True)),
        (AllToAll(autapses=False), (1, 1, True)),
        (PairwiseBernoulli(1.0), (4, 5, False)),
        (FixedInDegree(4, multapses=False), (4, 4, True)),
        (FixedInDegree(3, multapses=False, autapses=False), (4, 4, True)),
        (FixedInDegree(4, multapses=False, autapses=False), (4, 4, False)),
        (FixedInDegree(100), (4, 4, True)),
        (FixedInDegree(0, autapses=False), (1, 1, True)),
        (FixedOutDegree(4, multapses=False), (9, 4, False)),
        (FixedTotalNumber(12, multapses=False), (3, 4, False)),
        (FixedTotalNumber(13), (3, 4, False)),
        (FixedTotalNumber(2**41), (2**21, 2**20, False)),
        (Explicit([2, 2], [3, 3]), (3, 4, False)),
        (Explicit([], []), (1, 1, False)),
    ],
)
def test_rules_that_can_be_followed(rule, sizes):
    rule.check(*sizes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PairwiseBernoulli(-0.1), r"PairwiseBernoulli\.p=-0\.1"),
        (lambda: PairwiseBernoulli(1.01), r"PairwiseBernoulli\.p=1\.01"),
        (lambda: PairwiseBernoulli(float("nan")), r"PairwiseBernoulli\.p=nan"),
        (lambda: FixedInDegree(-1), r"FixedInDegree\.k=-1"),
        (lambda: FixedInDegree(2**31), r"FixedInDegree\.k=2147483648"),
        (lambda: FixedOutDegree(-1), r"FixedOutDegree\.k=-1"),
        (lambda: FixedTotalNumber(-5), r"FixedTotalNumber\.n=-5"),
        (lambda: Explicit([0, 1], [0]), "2 pre_ids and 1 post_ids"),
        (lambda: Explicit([0, -1], [0, 0]), r"Explicit\.pre_ids\[1\]=-1"),
        (lambda: Explicit([[0]], [[0]]), r"Explicit\.pre_ids has shape \(1, 1\)"),
    ],
)
def test_impossible_rules(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PairwiseBernoulli("0.1"), r"PairwiseBernoulli\.p='0\.1'"),
        (lambda: PairwiseBernoulli(True), r"PairwiseBernoulli\.p=True"),
        (lambda: FixedInDegree(2.0), r"FixedInDegree\.k=2\.0"),
        (lambda: FixedInDegree(True), r"FixedInDegree\.k=True"),
        (lambda: FixedInDegree(2, multapses=1), r"FixedInDegree\.multapses=1"),
        (lambda: AllToAll(autapses=None), r"AllToAll\.autapses=None"),
        (lambda: Explicit([0.0], [0]), r"Explicit\.pre_ids.*float64"),
        (lambda: Explicit([True], [0]), r"Explicit\.pre_ids.*bool"),
        (lambda: Explicit("01", [0, 1]), r"Explicit\.pre_ids"),
        (lambda: Explicit([0], None), r"Explicit\.post_ids"),
        (lambda: Explicit.from_sparse([[1.0]]), "sparse matrix"),
    ],
)
def test_rules_of_the_wrong_type(make, message):
    with pytest.raises(InvalidType, match=message):
        make()


def test_numpy_numbers_are_stored_as_python_numbers():
    assert type(FixedInDegree(np.int32(5)).k) is int
    assert type(PairwiseBernoulli(np.float32(0.5)).p) is float


def test_a_sparse_matrix_gives_synapses_and_weights():
    rule, weights = Explicit.from_sparse(Coordinates([[0.0, 1.5, 0.0], [-2.0, 0.0, 3.0]]))
    assert rule == Explicit([0, 1, 1], [1, 0, 2])
    assert weights.tolist() == [1.5, -2.0, 3.0]


def test_explicit_holds_its_own_arrays():
    pre, post = np.array([0, 1]), np.array([1, 0])
    rule = Explicit(pre, post)
    pre[0] = 9
    assert rule == Explicit([0, 1], [1, 0])
    assert rule != Explicit([0, 1], [1, 1])
    for same in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule)):
        assert same == rule
        assert hash(same) == hash(rule)
        with pytest.raises(ValueError, match="read-only"):
            same.post_ids[0] = 5
