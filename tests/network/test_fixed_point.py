from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument
from neuraxis.network.fixed_point import (
    Contribution,
    ReceptorInputs,
    check_range,
    choose_exponent,
    choose_scales,
    likely_sum,
    poisson_count_bound,
)

magnitudes = st.floats(1e-6, 1e6)
contributions = st.lists(
    st.tuples(magnitudes, st.floats(1.0, 100.0), st.integers(0, 10**6)).map(
        lambda parts: Contribution("s", parts[0], parts[0] * parts[1], parts[2])
    ),
    max_size=4,
)


@given(contributions)
@example(  # two sources share an accumulator, and their sum leaves 0.2 % of its range
    [
        Contribution("s", 1.0, 1.0, 1),
        Contribution("s", 933976.0, 74718080.0, 724),
        Contribution("s", 999979.0, 2265577.421875, 97005),
    ]
)
def test_the_scales_are_fine_and_safe_or_refused(given_ones):
    """Every source keeps 12 bits, or as many as its own sum leaves; no sum of what can arrive together overflows."""
    relevant = [one for one in given_ones if one.matters]
    try:
        scales = choose_scales(given_ones)
    except InvalidArgument:
        # One source alone has too many spikes for its weights, or no four scales hold them all.
        assert any(one.most / one.typical >= 2**22 for one in relevant) or len(relevant) > 4
        return
    assert len(scales.places) == len(given_ones)
    if not relevant:
        assert scales.exponents == (0,)
        return
    for place, exponent in enumerate(scales.exponents):
        here = [one for one, at in zip(given_ones, scales.places, strict=True) if at == place and one.matters]
        assert here
        scale = 2.0**exponent
        smallest = min(one.typical for one in here)
        total = sum(one.most for one in here)
        assert sum(math.floor(one.largest / scale + 0.5) * one.count for one in here) < 2**31
        assert smallest / scale >= 2 ** (12 if len(here) > 1 else 8) * (1 - 1e-5)
        assert smallest / scale < 2**21 * (1 + 1e-5)  # not finer than needed
        finer = scale / 2
        if smallest / finer < 2**21 * (1 - 1e-5):  # where there are less than 20 bits, there is a reason
            assert total / finer >= 2**30 * (1 - 2**-8)
    assert scales.proven
    if len(scales.exponents) > 1:  # one scale does not hold them
        smallest, total = min(one.typical for one in relevant), sum(one.most for one in relevant)
        assert total / 2.0 ** (math.floor(math.log2(smallest)) - 12) >= 2**31 * (1 - 2**-11)


@pytest.mark.parametrize(
    ("typical", "largest", "count", "exponent"),
    [
        (1.0, 1.0, 100, -20),  # 20 bits are enough
        (1.5, 1.5, 100, -20),
        (0.75, 0.75, 100, -21),
        (1.0, 1.0, 2000, -19),  # one bit less, so that the sum is below 2**30
        (1.0, 2.0, 1000, -19),
        (1.0, 1.0, 2**18 - 100, -12),  # 12 bits and below 2**30
        (1.0, 1.0, 2**19 - 200, -12),  # 12 bits and below 2**31
        (87.8, 87.8, 20_000, -9),
    ],
)
def test_known_scales(typical, largest, count, exponent):
    assert choose_exponent([Contribution("one", typical, largest, count)]) == exponent


def test_synapses_that_deliver_nothing_do_not_count():
    silent = [Contribution("zero", 0.0, 0.0, 10**9), Contribution("nobody", 1e-9, 1.0, 0)]
    assert choose_exponent(silent) == 0
    assert choose_exponent([*silent, Contribution("one", 1.0, 1.0, 1)]) == -20


def test_the_last_bits_of_a_mean_do_not_matter():
    below, above = math.nextafter(0.5, 0.0), math.nextafter(0.5, 1.0)
    exponents = {choose_exponent([Contribution("one", typical, 1.0, 10)]) for typical in (below, 0.5, above)}
    assert exponents == {-21}


def test_very_many_keep_fewer_bits_until_they_are_too_many():
    assert choose_scales([Contribution("many", 1.0, 1.0, 2**19)]).exponents == (-11,)
    assert choose_scales([Contribution("many", 1.0, 1.0, 2**21)]).exponents == (-9,)
    with pytest.raises(InvalidArgument, match=r"'more'.*33,554,432 spikes of weight 1 .*high="):
        choose_scales([Contribution("'more'", 1.0, 1.0, 2**25)])


def test_rounding_upwards_is_counted():
    weight = 4096.5 / 4096  # with 12 bits 4097, which is what is summed
    assert 524_200 * weight * 2**12 < 2**31 < 524_200 * 4097
    (exponent,) = choose_scales([Contribution("many", weight, weight, 524_200)]).exponents
    assert 524_200 * round(weight / 2.0**exponent) < 2**31


def test_sources_far_apart_have_accumulators_of_their_own():
    weak = Contribution("weak", 0.001, 0.001, 10)
    strong = Contribution("strong", 10.0, 100.0, 90)
    medium = Contribution("medium", 5.0, 5.0, 10)
    assert choose_scales([strong, medium]).exponents == choose_scales([strong]).exponents
    scales = choose_scales([weak, strong, medium])
    assert scales.places == (1, 0, 0)
    assert scales.exponents[1] == choose_scales([weak]).exponents[0]
    assert choose_exponent([weak, strong, medium]) == scales.exponents[0]


def test_a_range_beyond_four_accumulators_is_refused_and_names_both_projections():
    far_apart = [Contribution(f"projection 'w{i}'", 1e7**-i, 1e7**-i, 1e5) for i in range(5)]
    assert len(choose_scales(far_apart[:4]).exponents) == 4
    with pytest.raises(InvalidArgument, match=r"'ex' of population 'E'.*'w4'.*1e-28.*'w0' of up to 1 .*receptor"):
        check_range("E", "ex", far_apart)


@given(contributions, st.randoms())
def test_one_after_the_other_and_in_any_order_need_the_same(given_ones, random):
    inputs = ReceptorInputs()
    try:
        for index, one in enumerate(given_ones):
            inputs.add(("projection", index), one)
    except InvalidArgument:
        return
    scales = choose_scales(given_ones)
    assert (inputs.exponents, inputs.proven) == (scales.exponents, scales.proven)
    assert [inputs.accumulator_of(("projection", i)) for i in range(len(given_ones))] == list(scales.places)
    assert inputs.accumulator_of(("poisson", 0)) == 0
    if len(scales.exponents) == 1:
        assert choose_scales(random.sample(given_ones, len(given_ones))).exponents == scales.exponents


def test_what_cannot_be_added_changes_nothing():
    inputs = ReceptorInputs()
    inputs.add(("projection", 0), Contribution("strong", 1.0, 1.0, 1e5))
    before = inputs.exponents
    copied = inputs.copy()
    for index in range(2):
        with pytest.raises(InvalidArgument, match=r"'weak'.*64 accumulators, and 63 are the most"):
            inputs.add(("poisson", index), Contribution("'weak'", 1e-7, 1e-7, 1), taken=62)
        assert inputs.exponents == before
    copied.add(("poisson", 0), Contribution("'weak'", 1e-7, 1e-7, 1))
    assert (len(copied.exponents), copied.accumulator_of(("poisson", 0))) == (2, 1)
    assert (inputs.exponents, inputs.accumulator_of(("poisson", 0))) == (before, 0)


@pytest.mark.parametrize(("count", "p"), [(1000, 1.0), (100_000, 0.01), (50, 1.0), (10**6, 1e-4)])
def test_random_sums_stay_below_the_likely_bound(count, p):
    rng = np.random.default_rng(4)
    weights = np.exp(-0.7 + 0.94 * np.clip(rng.standard_normal(count), -6.5, 6.5))
    sums = [weights[rng.random(count) < p].sum() for _ in range(50)]
    bound = likely_sum(count * p, 0.77, float(np.exp(-0.7 + 0.94 * 6.5)))
    assert max(sums) < bound
    mean = count * p * 0.77
    assert bound < 2 * mean + 200 * mean**0.5 + 20_000


@pytest.mark.parametrize("weight", [1e-35, 1e35, 1e308])
def test_weights_beyond_float32_are_refused(weight):
    with pytest.raises(InvalidArgument, match="weights"):
        choose_exponent([Contribution("odd", weight, weight, 30)])


def test_poisson_counts_are_bounded_beyond_likelihood():
    assert poisson_count_bound(0.0, 0.1) == 0.0
    assert poisson_count_bound(10_000.0, 0.1) == 1 + 12 + 30
    assert poisson_count_bound(40_000.0, 0.1) == 4 + 24 + 30
