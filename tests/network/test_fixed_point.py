from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument
from neuraxis.network.fixed_point import Contribution, check_range, choose_exponent, poisson_count_bound

magnitudes = st.floats(1e-6, 1e6)
contributions = st.lists(
    st.tuples(magnitudes, st.floats(1.0, 100.0), st.integers(0, 10**6)).map(
        lambda parts: Contribution("s", parts[0], parts[0] * parts[1], parts[2])
    ),
    max_size=4,
)


@given(contributions)
def test_the_scale_is_fine_and_safe_or_refused(given_ones):
    relevant = [one for one in given_ones if one.count]
    smallest = min((one.typical for one in relevant), default=1.0)
    total = sum(one.largest * one.count for one in relevant)
    try:
        exponent = choose_exponent(given_ones)
    except InvalidArgument:
        # No scale with 12 bits for the smallest weight holds the sum.
        assert total / 2.0 ** (math.floor(math.log2(smallest)) - 12) >= 2**31 * (1 - 2**-11)
        return
    if not relevant:
        assert exponent == 0
        return
    scale = 2.0**exponent
    assert sum(math.floor(one.largest / scale + 0.5) * one.count for one in relevant) < 2**31
    assert smallest / scale >= 2**12 * (1 - 1e-5)
    assert smallest / scale < 2**21 * (1 + 1e-5)  # not finer than needed
    finer = scale / 2
    if smallest / finer < 2**21 * (1 - 1e-5):  # where there are less than 20 bits, there is a reason
        assert total / finer >= 2**30 * (1 - 2**-11)


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


def test_what_never_arrives_does_not_count():
    silent = [Contribution("zero", 0.0, 0.0, 10**9), Contribution("nobody", 1e-9, 1.0, 0)]
    assert choose_exponent(silent) == 0
    assert choose_exponent([*silent, Contribution("one", 1.0, 1.0, 1)]) == -20


def test_the_last_bits_of_a_mean_do_not_matter():
    below, above = math.nextafter(0.5, 0.0), math.nextafter(0.5, 1.0)
    exponents = {choose_exponent([Contribution("one", typical, 1.0, 10)]) for typical in (below, 0.5, above)}
    assert exponents == {-21}


def test_too_many_are_refused():
    with pytest.raises(InvalidArgument, match=r"'many'.*524,288 spikes of weight 1"):
        choose_exponent([Contribution("'many'", 1.0, 1.0, 2**19)])


def test_rounding_upwards_is_counted():
    weight = 4096.5 / 4096  # with 12 bits 4097, which is what is summed
    assert 524_200 * weight * 2**12 < 2**31 < 524_200 * 4097
    with pytest.raises(InvalidArgument, match="524,200 spikes"):
        choose_exponent([Contribution("many", weight, weight, 524_200)])


def test_weights_too_far_apart_are_refused_with_both_names():
    weak, strong = (
        Contribution("projection 'weak'", 0.001, 0.001, 10),
        Contribution("projection 'strong'", 10.0, 100.0, 90),
    )
    assert choose_exponent([weak]) < choose_exponent([strong])
    with pytest.raises(
        InvalidArgument, match=r"'ex' of population 'E'.*'weak'.*0\.001.*'strong'.*90 spikes of weight 100"
    ):
        check_range("E", "ex", [strong, weak])
    check_range("E", "ex", [strong])


@pytest.mark.parametrize("weight", [1e-35, 1e35, 1e308])
def test_weights_beyond_float32_are_refused(weight):
    with pytest.raises(InvalidArgument, match="weights"):
        choose_exponent([Contribution("odd", weight, weight, 30)])


def test_poisson_counts_are_bounded_beyond_likelihood():
    assert poisson_count_bound(0.0, 0.1) == 0.0
    assert poisson_count_bound(10_000.0, 0.1) == 1 + 12 + 30
    assert poisson_count_bound(40_000.0, 0.1) == 4 + 24 + 30
