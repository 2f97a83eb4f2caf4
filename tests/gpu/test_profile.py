"""The times of launches, added up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.gpu.launcher import KernelTimes, Profile


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_count_total_mean_least_and_most(times: list[float]) -> None:
    profile = Profile()
    for time_ms in times:
        profile.add("f", time_ms)
    (found,) = profile.times().values()
    assert found.count == len(times)
    assert found.total_ms == pytest.approx(sum(times))
    assert found.mean_ms == pytest.approx(sum(times) / len(times))
    assert (found.min_ms, found.max_ms) == (min(times), max(times))


def test_kernels_are_apart_and_the_longest_comes_first() -> None:
    profile = Profile()
    for kernel, time_ms in (("short", 1.0), ("long", 5.0), ("short", 2.0)):
        profile.add(kernel, time_ms)
    assert list(profile.times().items()) == [
        ("long", KernelTimes(1, 5.0, 5.0, 5.0)),
        ("short", KernelTimes(2, 3.0, 1.0, 2.0)),
    ]
    assert Profile().times() == {}


def test_threads_may_add() -> None:
    profile = Profile()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: profile.add("f", 1.0), range(400)))
    assert profile.times()["f"] == KernelTimes(400, 400.0, 1.0, 1.0)
