"""A loader of this rank's batches that knows how far all ranks have come.

In step k all ranks together take the next size x batch_size samples of the epoch's order (a round), each its part. What
counts as taken is what was handed out: workers that fetch ahead do not move the position.

Two things would make a run that resumes differ from one that was not disturbed, and are therefore drawn from (seed,
epoch, position, rank) instead of from the process's random stream: the seeds of the workers, and what a worker draws
for a batch.
"""

from __future__ import annotations

import copy
import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.training.arguments import whole_number
from neuraxis.training.chosen_group import group_or_world
from neuraxis.training.empty_batches import Collating, NoRows
from neuraxis.training.sampler import ShardSampler, mixed_seed

__all__ = ["ShardLoader", "shard"]

Uneven = Literal["empty", "drop", "short"]

_TAKEN = frozenset({"sampler", "batch_sampler", "drop_last", "generator"})  # what the loader sets itself


def shard(
    dataset: Any,
    batch_size: int = 1,
    *,
    shuffle: bool = True,
    seed: int = 0,
    uneven: Uneven = "empty",
    empty: Callable[[Any], Any] | None = None,
    group: Communicator | None = None,
    **loader_options: Any,
) -> ShardLoader:
    """This rank's batches of a data set; see ShardLoader."""
    return ShardLoader(
        dataset, batch_size, shuffle=shuffle, seed=seed, uneven=uneven, empty=empty, group=group, **loader_options
    )


class ShardLoader:
    """Batches for this rank; each `for` over it is an epoch, and the ranks' epochs hold every sample once.

    Args:
        dataset: what a torch DataLoader takes. Of an IterableDataset every rank reads all and keeps its share: it must
            bring the same items in the same order on every rank and in every worker.
        batch_size: samples of one rank in one step.
        shuffle: a new order in each epoch (never for an IterableDataset, which has its own).
        uneven: what happens in the last round of an epoch where samples are missing. "empty": every rank makes the same
            number of steps, and its last batch may have fewer rows, or none. "short": ranks may make fewer steps (see
            `DataParallel.join`). "drop": such a round is left out.
        empty: makes a batch without rows of one that has a row. By default that is found out, for tensors, arrays and
            plain values in lists, tuples, mappings and dataclasses; another form is refused.
        loader_options: for the DataLoader: num_workers, collate_fn, pin_memory, persistent_workers, ...

    Attributes:
        epoch: the one under way, or the next if none is.
        position: how many samples of it all ranks together were handed.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = True,
        seed: int = 0,
        uneven: Uneven = "empty",
        empty: Callable[[Any], Any] | None = None,
        group: Communicator | None = None,
        **loader_options: Any,
    ) -> None:
        if uneven not in get_args(Uneven):
            raise InvalidArgument(f"shard: uneven={uneven!r} is not one of {', '.join(get_args(Uneven))}")
        if taken := _TAKEN & loader_options.keys():
            raise InvalidArgument(f"shard: {', '.join(sorted(taken))}: cannot be given, it is what shard decides")
        self.dataset = dataset
        self.batch_size = whole_number(batch_size, "shard: batch_size")
        self.uneven: Uneven = uneven
        members = group_or_world(group, "shard")
        self.rank, self.size = (members.rank, members.size) if members is not None else (0, 1)
        self._generator = torch.Generator()
        self._begun = 0  # how many iterations were
        self._resumes = True  # the next iteration begins at `position`, and not with a new epoch
        self._restored: int | None = None  # the epoch that a state has put us into, until an iteration begins
        self._stream = isinstance(dataset, IterableDataset)
        if not self._stream and not hasattr(dataset, "__len__"):
            raise InvalidType(
                f"shard: a {type(dataset).__name__} has no length; a data set with `__len__` and `__getitem__`, or an "
                "IterableDataset, is expected"
            )
        # Of a stream the length is not known; its positions are checked against nothing.
        length = 0 if self._stream else len(dataset)
        self._sampler = ShardSampler(length, shuffle=shuffle and not self._stream, seed=seed, group=group)
        self.epoch = 0
        self.position = 0
        collate = Collating(loader_options.get("collate_fn") or default_collate, empty)
        options = {**loader_options, "generator": self._generator}
        self._place = torch.zeros(3, dtype=torch.int64)
        if self._stream:
            if options.get("num_workers"):
                self._place.share_memory_()
            dealt = _DealtStream(dataset, self.rank, self.size, batch_size, uneven, collate, self._place)
            options.update(dataset=dealt, batch_size=None, collate_fn=_as_it_is)
        else:
            options.update(dataset=_SeededBatches(dataset), batch_sampler=_Rounds(self), collate_fn=collate)
        self._loader: DataLoader[Any] = DataLoader(**options)

    # --- batches ---

    def __iter__(self) -> Iterator[Any]:
        if not self._resumes:  # an epoch that was left in the middle counts as begun
            self._seek(self.epoch + 1, 0)
        self._resumes, self._restored = False, None
        self._begun += 1
        return self._batches(self._begun)

    def _batches(self, mine: int) -> Iterator[Any]:
        self._generator.manual_seed(mixed_seed(self.seed, self.epoch, self.position, self.rank, "workers"))
        self._place[:] = torch.tensor([self.epoch, self.position, mixed_seed(self.seed)])
        for batch in self._loader:
            if self._begun != mine:
                raise InvalidArgument("shard: another iteration of this loader has begun; only the newest can go on")
            if self._stream:
                taken, batch = batch
            else:
                taken = min(self.round_size, self._sampler.length - self.position)
            self.position += taken
            yield batch
        if self._begun == mine:
            self._seek(self.epoch + 1, 0)

    @property
    def round_size(self) -> int:
        """Samples that all ranks together take in one step."""
        return self.size * self.batch_size

    @property
    def seed(self) -> int:
        return self._sampler.seed

    def __len__(self) -> int:
        """Steps of a whole epoch on this rank."""
        return self._steps_from(0)

    @property
    def steps_left(self) -> int:
        """Steps of this epoch that are still to come on this rank."""
        return self._steps_from(self.position)

    def _steps_from(self, position: int) -> int:
        if self._stream:
            raise TypeError("a stream (IterableDataset) has no length")
        rounds = self._rounds_from(position)
        left_out = self.uneven == "short" and len(rounds) > 0 and not self._mine_of(rounds[-1])
        return len(rounds) - left_out

    def _rounds_from(self, position: int) -> range:
        """Where the rounds begin that this epoch still has."""
        end = self._sampler.length
        if self.uneven == "drop":
            end = position + (end - position) // self.round_size * self.round_size
        return range(position, end, self.round_size)

    def _mine_of(self, start: int) -> range:
        """The places in the order that this rank has of the round that begins at `start`."""
        return range(start + self.rank, min(start + self.round_size, self._sampler.length), self.size)

    # --- the position ---

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin this epoch; or go on in it, if a state was loaded that is within it.

        The same on all ranks.
        """
        if epoch != self._restored:
            self._seek(epoch, 0)

    def _seek(self, epoch: int, position: int) -> None:
        if epoch < 0 or position < 0:
            raise InvalidArgument(f"shard: there is no epoch {epoch} and position {position}")
        self.epoch, self.position = epoch, position
        self._resumes, self._restored = True, None

    def state_dict(self) -> dict[str, Any]:
        return {**self._sampler.state_dict(), "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader was, on any number of ranks and with any batch size."""
        self._sampler.load_state_dict({**state, "epoch": 0, "position": 0})
        self._begun += 1  # an iteration under way ends here
        self._seek(state["epoch"], state["position"])
        self._restored = self.epoch

    def order(self) -> list[int]:
        """All samples in the order of this epoch."""
        self._sampler.set_epoch(self.epoch)
        return self._sampler.order()


# --- a data set that can be asked for any sample ---


class _Rounds:
    """What is asked of the data set for each step: a seed, whether there are rows, then the samples."""

    def __init__(self, loader: ShardLoader) -> None:
        self._of: ShardLoader = weakref.proxy(loader)  # whose workers end when nobody has it any more

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._of
        order, epoch = loader.order(), loader.epoch
        for start in loader._rounds_from(loader.position):
            mine = loader._mine_of(start)
            if mine or loader.uneven != "short":
                # An empty batch has the form of a full one: it is made of any sample, and then loses its rows.
                samples = [order[place] for place in mine] or [order[start]]
                yield [mixed_seed(loader.seed, epoch, start, loader.rank), int(bool(mine)), *samples]

    def __len__(self) -> int:
        return self._of.steps_left


class _SeededBatches(Dataset[Any]):  # type: ignore[misc]
    """The data set as a worker asks it, batch by batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, order: list[int]) -> Any:
        seed, has_rows, *samples = order
        _seed_worker(seed)
        return self._items(samples) if has_rows else NoRows(self._items(samples), self._items(samples * 2))

    def _items(self, samples: list[int]) -> Any:
        whole = getattr(self._dataset, "__getitems__", None)
        return whole(samples) if whole is not None else [self._dataset[sample] for sample in samples]

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _seed_worker(seed: int) -> None:
    """Make what a worker draws depend on the batch alone. (In the main process the random states are the user's.)"""
    if get_worker_info() is not None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


# --- a stream ---


class _DealtStream(IterableDataset[Any]):  # type: ignore[misc]
    """Of a stream, the batches of this rank (and of this worker), each with the size of its round.

    `place` says where to begin: epoch, position, seed. Workers that outlive an epoch see it change.
    """

    def __init__(
        self, dataset: Any, rank: int, size: int, batch_size: int, uneven: Uneven, collate: Collating, place: Tensor
    ) -> None:
        self._dataset = dataset
        self._rank, self._size = rank, size
        self._round_size = size * batch_size
        self._uneven = uneven
        self._collate = collate
        self._place = place

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        worker = get_worker_info()
        turn, turns = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        epoch, position, seed = self._place.tolist()
        stream = iter(self._dataset)
        for _ in _at_most(stream, position):
            pass  # what was handed out before
        number = 0  # of a batch that this rank gives: of these a worker gives every turns-th
        while True:
            _seed_worker(mixed_seed(seed, epoch, position, self._rank))
            taken, mine, first = self._round(stream)
            items = mine or NoRows(first, [copy.copy(item) for item in first * 2])  # a collate_fn may change them
            if not taken or (self._uneven == "drop" and taken < self._round_size):
                return
            if mine or self._uneven != "short":
                if number % turns == turn:
                    yield taken, self._collate(items)
                number += 1
            position += taken

    def _round(self, stream: Iterator[Any]) -> tuple[int, list[Any], list[Any]]:
        """How many items a round has, those of this rank, and the first."""
        taken, mine, first = 0, [], []
        for item in _at_most(stream, self._round_size):
            if not taken:
                first = [item]
            if taken % self._size == self._rank:
                mine.append(item)
            taken += 1
        return taken, mine, first


def _at_most(stream: Iterator[Any], count: int) -> Iterator[Any]:
    for _, item in zip(range(count), stream, strict=False):
        yield item


def _as_it_is(item: Any) -> Any:
    return item
