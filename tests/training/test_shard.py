"""A loader yields the batches of its rank, and its position counts the yielded ones."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType
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


def test_all_ranks_together_take_the_samples_of_one_rank() -> None:
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


def test_an_outdated_iterator_raises() -> None:
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


@dataclass(frozen=True)
class Record:
    x: Tensor
    names: tuple[str, ...]
    classes: int = 3


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


def padded(items: list[Any]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(items)  # (length, rows)


# Of samples that are tensors of shape (2,): how a batch is made, and what it is without rows.
FORMS: dict[str, tuple[Callable[[list[Any]], Any], Any]] = {
    "the samples themselves": (list, []),
    "a tuple of samples": (lambda items: tuple(zip(items, [7] * len(items), strict=True)), ()),
    "columns of samples": (lambda items: (tuple(items), [{"boxes": item} for item in items]), ((), [])),
    "a dataclass": (
        lambda items: Record(torch.stack(items), ("a",) * len(items)),
        Record(torch.zeros(0, 2), ()),
    ),
    "a named tuple": (lambda items: Pair(torch.stack(items), torch.ones(2)), Pair(torch.zeros(0, 2), torch.ones(2))),
    "a mapping": (lambda items: UserDict(x=torch.stack(items)), UserDict(x=torch.zeros(0, 2))),
    "rows along another dimension": (padded, torch.zeros(2, 0)),
    "rows that are joined": (lambda items: torch.cat(items), torch.zeros(0)),
    "arrays": (lambda items: {"x": np.stack(items), "scale": 2.5, "none": None}, {"x": np.zeros((0, 2)), "scale": 2.5}),
}


def plain(value: Any) -> Any:
    """For comparing: tensors and arrays as their shapes and numbers, and the type of what they are in."""
    if isinstance(value, Tensor | np.ndarray):
        return type(value), tuple(value.shape), value.tolist()
    if isinstance(value, dict | UserDict):
        return type(value), {key: plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return type(value), [plain(part) for part in value]
    return (type(value), plain(vars(value))) if isinstance(value, Record) else value


class Vectors(Dataset[Any]):
    """Five samples; those of `stream()` come one after the other."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((2,), float(index))

    def stream(self) -> Any:
        return Items([self[index] for index in range(5)])


class Items(IterableDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["samples", "stream"])
def test_whatever_its_form_an_empty_batch_has_no_row(form: str, kind: str) -> None:
    """Rank 0 has samples 0, 2, 4 of 5 and rank 1 has 1, 3: none in the last round."""
    collate, expected = FORMS[form]
    data = Vectors() if kind == "samples" else Vectors().stream()
    batches = list(loaders(data, 2, 2, shuffle=False, collate_fn=collate)[1])
    assert [plain(batch) for batch in batches] == [
        plain(collate([Vectors()[1], Vectors()[3]])),
        plain(expected),
    ]


@pytest.mark.parametrize(
    ("collate", "where"),
    [
        (lambda items: {"x": torch.stack(items), "rows": len(items)}, r"batch\['rows'\].*builtins.int"),
        (lambda items: [torch.stack(items), torch.tensor(len(items))], r"batch\[1\].*torch.Tensor"),
        (lambda items: torch.nn.utils.rnn.pack_sequence(items), r"batch.batch_sizes"),
        (lambda items: {id(item): item for item in map(torch.clone, items)}, r"value of batch"),
        (lambda items: torch.ones(len(items), len(items)), r"value of batch"),
        (lambda items: Vectors(), r"Vectors"),
    ],
)
def test_unknown_batch_types_are_refused_without_a_split_function(collate: Any, where: str) -> None:
    made = {"shuffle": False, "collate_fn": collate}
    with pytest.raises(InvalidArgument, match=rf'{where}.*uneven="drop".*empty='):
        list(loaders(Vectors(), 2, 2, **made)[1])
    assert len(list(loaders(Vectors(), 2, 2, uneven="drop", **made)[1])) == 1
    assert list(loaders(Vectors(), 2, 2, empty=lambda one: "nothing", **made)[1])[1] == "nothing"
    assert "nothing" not in [str(batch) for batch in loaders(Vectors(), 2, 2, empty=lambda one: "nothing", **made)[0]]


def test_the_epoch_that_a_state_is_in_goes_on_and_another_begins() -> None:
    loader = loaders(numbers(12), 2, 2, shuffle=False)[0]
    next(iter(loader))
    state = loader.state_dict()
    for epoch, begins in ((0, 4), (1, 0)):
        again = loaders(numbers(12), 2, 2, shuffle=False)[0]
        again.load_state_dict(state)
        again.set_epoch(epoch)
        assert values(next(iter(again)))[0] == begins
        again.set_epoch(epoch)  # now it is that which is under way, and begins anew
        assert values(next(iter(again)))[0] == 0


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
def test_random_numbers_of_a_batch_do_not_depend_on_resuming(workers: int) -> None:
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


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="batch_size=0"):
        shard(numbers(3), 0)
    with pytest.raises(InvalidType, match="batch_size='2': a whole number"):
        shard(numbers(3), "2")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="a int has no length"):
        shard(5)
    with pytest.raises(InvalidArgument, match="'padded'"):
        shard(numbers(3), uneven="padded")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="drop_last"):
        shard(numbers(3), drop_last=True)
    with pytest.raises(CheckpointError, match="length=3"):
        shard(numbers(4)).load_state_dict(shard(numbers(3)).state_dict())
    with pytest.raises(TypeError, match="no length"):
        len(shard(Stream(3)))
