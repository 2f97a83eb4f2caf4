"""Maps: rules with `groups` connect part g of one population to part g of another only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import AllToAll, FixedInDegree, Network, PairwiseBernoulli
from neuraxis.simulation import Simulation
from tests.engine.running import adder
from tests.simulation.by_turns import ByTurns

RULES = {"all": AllToAll, "some": PairwiseBernoulli, "degree": FixedInDegree}


def drawn(rule: Any, n_pre: int, n_post: int, workers: int = 1, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The synapses of a projection from one population to another; within one where n_post is 0."""
    network = Network(seed=seed)
    pre = network.population("pre", n_pre, adder)
    post = network.population("post", n_post, adder) if n_post else pre
    network.connect(pre, post, rule, 1.0, name="map")
    with Simulation(network, executor=ByTurns(workers)) as simulation:
        found = simulation.synapses("map")
        assert simulation.build.synapses == len(found["pre"])
        return found["pre"], found["post"]


def group_of(ids: Any, n: int, groups: int) -> np.ndarray:
    """Parts are cut at g * n // groups."""
    return np.repeat(np.arange(groups), np.diff([g * n // groups for g in range(groups + 1)]))[ids]


@st.composite
def maps(draw: Any) -> tuple[Any, int, int]:
    """A rule with groups and the sizes of two populations, or of one (n_post 0)."""
    n_pre, n_post = draw(st.integers(1, 40)), draw(st.sampled_from([0, 1, 2, 7, 16, 31]))
    groups = draw(st.integers(1, min(n_pre, n_post or n_pre)))
    smallest = n_pre // groups
    autapses = draw(st.booleans())
    kind = draw(st.sampled_from(sorted(RULES)))
    if kind == "all":
        return AllToAll(autapses=autapses, groups=groups), n_pre, n_post
    if kind == "some":
        return PairwiseBernoulli(draw(st.sampled_from([0.0, 0.3, 1.0])), autapses, groups), n_pre, n_post
    multapses = draw(st.booleans())
    available = smallest - (n_post == 0 and not autapses)
    k = draw(st.integers(0, 2 * smallest if multapses and available else available))
    return FixedInDegree(k, multapses, autapses, groups), n_pre, n_post


@settings(max_examples=40)
@given(maps(), st.integers(1, 5))
def test_every_synapse_is_within_its_group_and_follows_the_rule(given_map: Any, workers: int) -> None:
    rule, n_pre, n_post = given_map
    size = n_post or n_pre
    pre, post = drawn(rule, n_pre, n_post, workers)
    assert np.array_equal(group_of(pre, n_pre, rule.groups), group_of(post, size, rule.groups))
    in_degrees = np.bincount(post, minlength=size)
    assert in_degrees.max() <= rule.largest_in_degree(n_pre, size)
    without_itself = n_post == 0 and not rule.autapses
    if without_itself:
        assert not (pre == post).any()
    if not isinstance(rule, FixedInDegree) or not rule.multapses:
        assert len(set(zip(pre.tolist(), post.tolist(), strict=True))) == len(pre)
    expected = rule.expected_synapses(n_pre, size, n_post == 0)
    if isinstance(rule, FixedInDegree):
        assert (in_degrees == rule.k).all()
    every = {
        (i, j)
        for i, g in enumerate(group_of(np.arange(n_pre), n_pre, rule.groups))
        for j, h in enumerate(group_of(np.arange(size), size, rule.groups))
        if g == h and not (without_itself and i == j)
    }
    if isinstance(rule, AllToAll) or getattr(rule, "p", 0) == 1.0:
        assert set(zip(pre.tolist(), post.tolist(), strict=True)) == every
    if isinstance(rule, PairwiseBernoulli):
        assert expected == pytest.approx(rule.p * len(every))
        assert abs(len(pre) - expected) <= 6 * np.sqrt(len(every) * rule.p * (1 - rule.p)) + 1e-9
    else:
        assert len(pre) == expected


@pytest.mark.parametrize(
    "rule",
    [
        AllToAll(autapses=False, groups=13),
        PairwiseBernoulli(0.4, groups=13),
        FixedInDegree(9, groups=13),
        FixedInDegree(9, multapses=False, autapses=False, groups=13),
    ],
    ids=str,
)
def test_a_map_does_not_depend_on_how_it_is_cut(rule: Any) -> None:
    expected = drawn(rule, 200, 0)
    for workers in (2, 7):
        found = drawn(rule, 200, 0, workers)
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[1], expected[1])
    same_for_every_seed = np.array_equal(drawn(rule, 200, 0, seed=2)[0], expected[0])
    assert same_for_every_seed == isinstance(rule, AllToAll)


def test_the_sources_of_a_group_are_drawn_alike() -> None:
    """Each of the 10 sources of a part is as likely as the others, its first and last as well."""
    pre, _ = drawn(FixedInDegree(100, groups=4), 40, 400)
    counts = np.bincount(pre, minlength=40)
    assert counts.sum() == 40_000
    assert (abs(counts - 1000) < 6 * np.sqrt(1000 * 0.9)).all()


def test_values_given_for_all_pairs_land_at_the_synapses_that_there_are() -> None:
    network = Network()
    pre, post = network.population("pre", 7, adder), network.population("post", 5, adder)
    values = np.arange(1.0, 36.0)
    network.connect(pre, post, AllToAll(groups=3), weight=values, name="map")
    with Simulation(network, executor=ByTurns(2)) as simulation:
        found = simulation.synapses("map")
        assert len(found["weight"]) == 2 * 1 + 2 * 2 + 3 * 2
        assert np.array_equal(found["weight"], values[found["post"] * 7 + found["pre"]])


@pytest.mark.parametrize(
    ("rule", "sizes", "expected", "largest"),
    [
        (AllToAll(groups=3), (7, 5), 12, 3),
        (AllToAll(groups=3, autapses=False), (7, 7), 2 * 2 + 2 * 2 + 3 * 3 - 7, 3),
        (PairwiseBernoulli(0.5, groups=3), (7, 5), 6.0, 3),
        (PairwiseBernoulli(0.0, groups=3), (7, 5), 0.0, 0),
        (FixedInDegree(4, groups=3), (7, 5), 20, 4),
    ],
)
def test_sizes_that_do_not_divide_are_counted_part_by_part(
    rule: Any, sizes: tuple[int, int], expected: float, largest: int
) -> None:
    assert rule.expected_synapses(*sizes, sizes[0] == sizes[1]) == expected
    assert rule.largest_in_degree(*sizes) == largest


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda kind: kind(groups=0), InvalidArgument, r"groups=0"),
        (lambda kind: kind(groups=-2), InvalidArgument, r"groups=-2"),
        (lambda kind: kind(groups=1.5), InvalidType, r"groups=1\.5"),
        (lambda kind: kind(groups=True), InvalidType, r"groups=True"),
        (lambda kind: kind(groups=5).check(4, 9, False), InvalidArgument, r"groups=5: 4 and 9 neurons are too few"),
        (lambda kind: kind(groups=5).check(9, 4, False), InvalidArgument, r"groups=5: 9 and 4 neurons are too few"),
    ],
)
@pytest.mark.parametrize("kind", RULES)
def test_groups_that_cannot_be(kind: str, make: Any, error: type[Exception], message: str) -> None:
    def of_kind(**groups: Any) -> Any:
        given = {"all": {}, "some": {"p": 0.5}, "degree": {"k": 1}}[kind]
        return RULES[kind](**given, **groups)  # type: ignore[arg-type]

    with pytest.raises(error, match=message):
        make(of_kind)


@pytest.mark.parametrize(
    ("rule", "same", "message"),
    [
        (FixedInDegree(4, multapses=False, groups=3), False, "k=4: there are only 3 sources"),
        (FixedInDegree(3, multapses=False, autapses=False, groups=3), True, "k=3: there are only 2 sources besides"),
        (FixedInDegree(1, autapses=False, groups=10), True, "only 0 sources besides"),
    ],
)
def test_degrees_that_the_smallest_group_cannot_give(rule: FixedInDegree, same: bool, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        rule.check(10, 10, same)
