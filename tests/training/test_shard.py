"""A loader's batches are those of its rank, and its position is what was handed out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.training import ShardLoader, shard
from tests.training.test_sampler import Place


class Stream(IterableDataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Noisy(Dataset[Any]):
    """Each sample is itself and a random number, as an augmentation would draw it."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(()).item()


def numbers(length: int) -> TensorDataset:
    return TensorDataset(torch.arange(length))


def loaders(data: Any, size: int, batch: int, **options: Any) -> list[ShardLoader]:
    return [shard(data, batch, group=Place(rank, size), **options) for rank in range(size)]  # type: ignore[arg-type]


def values(batch: Any) -> list[int]:
    tensor = batch if isinstance(batch, Tensor) else batch[0]
    found: list[int] = tensor.tolist()
    return found


LENGTHS = st.integers(0, 60)
SIZES = st.integers(1, 5)
BATCHES = st.integers(1, 6)


@given(LENGTHS, SIZES, BATCHES, st.integers(0, 8), SIZES, BATCHES, st.booleans())
def test_an_epoch_resumed_by_others_has_every_sample_once(
    length: int, size: int, batch: int, steps: int, new_size: int, new_batch: int, stream: bool
) -> None:
    data = Stream(length) if stream else numbers(length)
    taken: list[int] = []
    states = []
    for loader in loaders(data, size, batch, seed=5):
        loader.set_epoch(2)
        for rows in islice(loader, steps):
            taken += values(rows)
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states), states
    if states[0]["epoch"] == 2:  # else the first ranks have ended it
        for loader in loaders(data, new_size, new_batch, seed=77):  # whose seed gives way to the saved one
            loader.load_state_dict(states[0])
            for rows in loader:
                taken += values(rows)
            assert (loader.epoch, loader.position) == (3, 0)
    assert sorted(taken) == list(range(length))


@given(LENGTHS, SIZES, BATCHES, st.sampled_from(["empty", "short", "drop"]), st.booleans())
def test_how_many_steps_an_uneven_epoch_has(length: int, size: int, batch: int, uneven: str, stream: bool) -> None:
    data = Stream(length) if stream else numbers(length)
    rows = []
    for loader in loaders(data, size, batch, uneven=uneven):
        rows.append([len(values(one)) for one in loader])
        if not stream:
            assert len(loader) == loader.steps_left == len(rows[-1])
    rounds = length // (size * batch) if uneven == "drop" else -(-length // (size * batch))
    if uneven == "short":
        assert max(map(len, rows)) == rounds
        assert all(count for each in rows for count in each)
    else:
        assert [len(each) for each in rows] == [rounds] * size
    assert sum(map(sum, rows)) == (rounds * size * batch if uneven == "drop" else length)


def test_ranks_together_take_what_one_rank_takes() -> None:
    """Step by step the same samples, so that training on N ranks is training on one with N times the batch."""
    one = [sorted(values(batch)) for batch in loaders(numbers(23), 1, 6, seed=3)[0]]
    three = list(zip(*loaders(numbers(23), 3, 2, seed=3), strict=True))
    assert [sorted(chain(*map(values, step))) for step in three] == one


def test_each_iteration_is_the_next_epoch() -> None:
    loader = loaders(numbers(8), 1, 4)[0]
    epochs = [[values(batch) for batch in loader] for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    for _ in loader:
        break
    assert (loader.epoch, loader.position, loader.steps_left) == (3, 4, 1)
    assert next(iter(loader)) is not None
    assert loader.epoch == 4
    loader.set_epoch(1)
    assert [values(batch) for batch in loader] == epochs[1]


def test_an_iteration_that_was_overtaken_says_so() -> None:
    loader = loaders(numbers(8), 1, 2)[0]
    old = iter(loader)
    next(old)
    next(iter(loader))
    with pytest.raises(InvalidArgument, match="another iteration"):
        next(old)


def test_an_empty_batch_has_the_form_of_a_full_one() -> None:
    data = [{"image": torch.ones(2, 3), "label": 7, "name": "seven", "pair": (torch.zeros(4), 1.5)}]
    full, empty = (next(iter(loader)) for loader in loaders(data, 2, 1))
    assert full["image"].shape == (1, 2, 3)
    assert empty["image"].shape == (0, 2, 3)
    assert empty["label"].shape == (0,)
    assert empty["label"].dtype == torch.int64
    assert empty["name"] == []
    assert [part.shape for part in empty["pair"]] == [(0, 4), (0,)]


@pytest.mark.parametrize("data", [numbers(17), Stream(17)], ids=["samples", "stream"])
def test_workers_give_the_same_batches_and_do_not_move_the_position(data: Any) -> None:
    plain = loaders(data, 2, 2)[1]
    helped = loaders(data, 2, 2, num_workers=2, prefetch_factor=4, persistent_workers=True)[1]
    expected = [values(batch) for batch in plain]
    found = []
    for number, batch in enumerate(helped, 1):
        assert helped.position == min(4 * number, 17)
        found.append(values(batch))
    assert found == expected
    # Workers that stay see where an epoch begins.
    state = {**helped.state_dict(), "epoch": 1, "position": 8}
    for loader in (plain, helped):
        loader.load_state_dict(state)
    rest = [values(batch) for batch in plain]
    assert [values(batch) for batch in helped] == rest
    assert len(rest) == 3
    assert [values(batch) for batch in helped] == [values(batch) for batch in plain]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_drawn_for_a_batch_does_not_depend_on_where_one_resumed(workers: int) -> None:
    """In the main process, too: a loader draws nothing from the process's random stream."""
    whole = shard(Noisy(), 2, num_workers=workers)
    torch.manual_seed(1)
    drawn, state, random = [], {}, torch.get_rng_state()
    for number, batch in enumerate(whole):
        drawn.append(batch)
        if number == 1:
            state, random = whole.state_dict(), torch.get_rng_state()
    later = shard(Noisy(), 2, num_workers=workers)
    torch.manual_seed(2)
    later.load_state_dict(state)
    torch.set_rng_state(random)
    for (sample, noise), (expected, same_noise) in zip(later, drawn[2:], strict=True):
        assert torch.equal(sample, expected)
        assert torch.equal(noise, same_noise)


def test_what_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="batch_size=0"):
        shard(numbers(3), 0)
    with pytest.raises(InvalidArgument, match="'padded'"):
        shard(numbers(3), uneven="padded")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="drop_last"):
        shard(numbers(3), drop_last=True)
    with pytest.raises(CheckpointError, match="length=3"):
        shard(numbers(4)).load_state_dict(shard(numbers(3)).state_dict())
    with pytest.raises(TypeError, match="no length"):
        len(shard(Stream(3)))
