"""No sample is lost or repeated in an epoch, for any changes of the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType
from neuraxis.training import ShardSampler


@dataclass(frozen=True)
class Place:
    """All that a sampler asks of a group."""

    rank: int
    size: int


def samplers(size: int, length: int, **options: Any) -> list[ShardSampler]:
    return [ShardSampler(length, group=Place(rank, size), **options) for rank in range(size)]  # type: ignore[arg-type]


@given(st.integers(0, 200), st.integers(1, 9), st.booleans(), st.integers(0, 2**70), st.integers(0, 5))
def test_every_sample_is_somebodys_once(length: int, size: int, shuffle: bool, seed: int, epoch: int) -> None:
    parts = []
    for sampler in samplers(size, length, shuffle=shuffle, seed=seed):
        sampler.set_epoch(epoch)
        parts.append(list(sampler))
        assert len(sampler) == len(parts[-1])
    assert sorted(sample for part in parts for sample in part) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(
    st.integers(0, 120),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(0, 4)), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 9),
)
def test_a_state_resumes_on_any_number_of_ranks(
    length: int, stretches: list[tuple[int, int, int]], last_size: int, seed: int
) -> None:
    """Stretches of (ranks, batch size, steps), each resumed by the next; then the rest of the epoch."""
    taken: list[int] = []
    state = {"epoch": 3, "position": 0, "seed": seed, "shuffle": True, "length": length}
    for size, batch, steps in stretches:
        for sampler in samplers(size, length):
            sampler.load_state_dict(state)
            taken += list(sampler)[: batch * steps]
        state["position"] = min(length, state["position"] + size * batch * steps)
    for sampler in samplers(last_size, length):
        sampler.load_state_dict(state)
        taken += list(sampler)
    assert sorted(taken) == list(range(length))


def test_the_order_is_that_of_seed_and_epoch() -> None:
    first, again = samplers(1, 100, seed=1)[0], samplers(1, 100, seed=1)[0]
    assert list(first) == list(first) == list(again)
    orders = {tuple(sampler) for sampler in samplers(1, 100, seed=1) + samplers(1, 100, seed=2)}
    first.set_epoch(1)
    orders.add(tuple(first))
    assert len(orders) == 3
    assert list(samplers(1, 5, shuffle=False)[0]) == [0, 1, 2, 3, 4]


def test_the_epoch_that_a_state_is_in_goes_on_and_another_begins() -> None:
    for epoch, expected in ((3, [7, 9]), (4, [1, 3, 5, 7, 9])):
        sampler = samplers(2, 10, shuffle=False)[1]
        sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "position": 6})
        sampler.set_epoch(epoch)
        assert list(sampler) == expected
        sampler.set_epoch(epoch)
        assert list(sampler) == [1, 3, 5, 7, 9]


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(InvalidType, match="has no length"):
        ShardSampler(iter([1, 2]))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="position 11"):
        ShardSampler(10).seek(0, 11)
    saved = ShardSampler([1, 2, 3]).state_dict()
    with pytest.raises(CheckpointError, match="length=3"):
        ShardSampler([1, 2]).load_state_dict(saved)
    with pytest.raises(CheckpointError, match="shuffle=True"):
        ShardSampler([1, 2, 3], shuffle=False).load_state_dict(saved)
