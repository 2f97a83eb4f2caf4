"""Loader of this rank's batches that tracks the position of all ranks in an epoch.

In each step all ranks together take the next size x batch_size samples of the epoch's order (a round), each its share.
The position counts samples that were returned, so workers that prefetch do not move it.

To make a resumed run equal to an uninterrupted one, the seeds of the workers and what a worker draws for a batch come
from (seed, epoch, position, rank) instead of the process's random state.

A rank without samples in the last round gets a batch with 0 rows. Which dimension of a batch holds the rows cannot be
seen from one batch: a list of one tensor may be one sample or one column. So the same sample is collated once and
twice. What has doubled along one dimension, or in number, are rows; what is equal is structure. Anything else (a number
that counts the rows, for example) is refused, because a rank must not train on a malformed batch.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from neuraxis.arguments import whole
from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.training.data.sampler import ShardSampler, mixed_seed
from neuraxis.training.parallel.group import group_or_world

__all__ = ["ShardLoader", "shard"]


Uneven = Literal["empty", "drop", "short"]

_TAKEN = frozenset({"sampler", "batch_sampler", "drop_last", "generator"})  # options that the loader sets itself


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
    """Return a loader of this rank's batches of a data set; see `ShardLoader`.

    Parameters
    ----------
    dataset : Dataset, sequence or IterableDataset
        Data set for a torch DataLoader.
    batch_size : int
        Samples per rank and step.
    shuffle : bool
        Draw a new order in each epoch.
    seed : int
        Seed of the order; the same on all ranks.
    uneven : {"empty", "short", "drop"}
        Handling of an incomplete last round.
    empty : callable, optional
        Turns a batch of one row into one of 0 rows.
    group : Communicator, optional
        Ranks that share the samples; the world by default.
    **loader_options
        Options of the DataLoader.

    Returns
    -------
    ShardLoader
        The loader.

    Raises
    ------
    InvalidArgument, InvalidType
        As for `ShardLoader`.

    Examples
    --------
    >>> import torch
    >>> from neuraxis.training import shard
    >>> loader = shard(torch.arange(5), batch_size=2, shuffle=False)
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """
    return ShardLoader(
        dataset, batch_size, shuffle=shuffle, seed=seed, uneven=uneven, empty=empty, group=group, **loader_options
    )


class ShardLoader:
    """Loader of this rank's batches; in each epoch the ranks together take every sample once.

    Each iteration over it is an epoch.

    Parameters
    ----------
    dataset : Dataset, sequence or IterableDataset
        Data set for a torch DataLoader. Of an IterableDataset every rank reads all items and keeps its share, so it
        must yield the same items in the same order on every rank and in every worker.
    batch_size : int
        Samples per rank and step.
    shuffle : bool
        Draw a new order in each epoch. Ignored for an IterableDataset.
    seed : int
        Seed of the order; the same on all ranks.
    uneven : {"empty", "short", "drop"}
        Handling of an incomplete last round. "empty": every rank makes the same number of steps, and its last batch may
        have fewer rows or none. "short": ranks may make fewer steps (see `DataParallel.join`). "drop": the round is
        left out.
    empty : callable, optional
        Turns a batch of one row into one of 0 rows. By default this is derived for tensors, arrays and plain values in
        lists, tuples, mappings and dataclasses.
    group : Communicator, optional
        Ranks that share the samples; the world by default.
    **loader_options
        Options of the DataLoader: num_workers, collate_fn, pin_memory, persistent_workers, ...

    Attributes
    ----------
    epoch : int
        Current epoch, or the next one between epochs.
    position : int
        Samples of the epoch that all ranks together have been given.

    Raises
    ------
    InvalidArgument
        If an option is out of range or set by the loader itself; while iterating, if a batch with 0 rows cannot be
        made.
    InvalidType
        If `dataset` has no length and is no IterableDataset.

    Examples
    --------
    >>> import torch
    >>> from neuraxis.training import ShardLoader
    >>> loader = ShardLoader(torch.arange(6), batch_size=4, seed=1)
    >>> len(loader), loader.steps_left
    (2, 2)
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
            raise InvalidArgument(f"shard: {', '.join(sorted(taken))} cannot be set, because shard sets it")
        self.dataset = dataset
        self.batch_size = whole(batch_size, "shard: batch_size", 1)
        self.uneven: Uneven = uneven
        members = group_or_world(group, "shard")
        self.rank, self.size = (members.rank, members.size) if members is not None else (0, 1)
        self._generator = torch.Generator()
        self._begun = 0  # number of iterations
        self._resumes = True  # the next iteration starts at `position` instead of a new epoch
        self._restored: int | None = None  # epoch of a loaded state, until an iteration begins
        self._stream = isinstance(dataset, IterableDataset)
        if not self._stream and not hasattr(dataset, "__len__"):
            raise InvalidType(
                f"shard: a {type(dataset).__name__} has no length. Pass a data set with `__len__` and `__getitem__`, "
                "or an IterableDataset"
            )
        # The length of a stream is unknown, so its positions are not checked.
        length = 0 if self._stream else len(dataset)
        self._sampler = ShardSampler(length, shuffle=shuffle and not self._stream, seed=seed, group=group)
        self.epoch = 0
        self.position = 0
        collate = _Collate(loader_options.get("collate_fn") or default_collate, empty)
        options = {**loader_options, "generator": self._generator}
        self._place = torch.zeros(3, dtype=torch.int64)
        if self._stream:
            if options.get("num_workers"):
                self._place.share_memory_()
            stream = _StreamShard(dataset, self.rank, self.size, batch_size, uneven, collate, self._place)
            options.update(dataset=stream, batch_size=None, collate_fn=_identity)
        else:
            options.update(dataset=_SeededBatches(dataset), batch_sampler=_Rounds(self), collate_fn=collate)
        self._loader: DataLoader[Any] = DataLoader(**options)

    # --- batches ---

    def __iter__(self) -> Iterator[Any]:
        if not self._resumes:  # an epoch that the caller left early counts as taken
            self._seek(self.epoch + 1, 0)
        self._resumes, self._restored = False, None
        self._begun += 1
        return self._batches(self._begun)

    def _batches(self, mine: int) -> Iterator[Any]:
        self._generator.manual_seed(mixed_seed(self.seed, self.epoch, self.position, self.rank, "workers"))
        self._place[:] = torch.tensor([self.epoch, self.position, mixed_seed(self.seed)])
        for batch in self._loader:
            if self._begun != mine:
                raise InvalidArgument("shard: another iteration of this loader has begun. Only the newest can go on")
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
        """Return the steps of an epoch on this rank; TypeError for a stream."""
        return self._steps_from(0)

    @property
    def steps_left(self) -> int:
        """Remaining steps of this epoch on this rank."""
        return self._steps_from(self.position)

    def _steps_from(self, position: int) -> int:
        if self._stream:
            raise TypeError("a stream (IterableDataset) has no length")
        rounds = self._rounds_from(position)
        left_out = self.uneven == "short" and len(rounds) > 0 and not self._own_indices(rounds[-1])
        return len(rounds) - left_out

    def _rounds_from(self, position: int) -> range:
        """Return the start positions of the remaining rounds of this epoch."""
        end = self._sampler.length
        if self.uneven == "drop":
            end = position + (end - position) // self.round_size * self.round_size
        return range(position, end, self.round_size)

    def _own_indices(self, start: int) -> range:
        """Return this rank's indices into the order, of the round that begins at `start`."""
        return range(start + self.rank, min(start + self.round_size, self._sampler.length), self.size)

    # --- position ---

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of an epoch, or where a loaded state is within it.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0; the same on all ranks.
        """
        if epoch != self._restored:
            self._seek(epoch, 0)

    def _seek(self, epoch: int, position: int) -> None:
        if epoch < 0 or position < 0:
            raise InvalidArgument(f"shard: epoch {epoch} and position {position} must not be negative")
        self.epoch, self.position = epoch, position
        self._resumes, self._restored = True, None

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for `load_state_dict`.

        Returns
        -------
        dict
            Epoch, position, seed, shuffling and length of the data set.
        """
        return {**self._sampler.state_dict(), "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where another loader was, on any number of ranks and with any batch size.

        Parameters
        ----------
        state : mapping
            State from `state_dict`.
        """
        self._sampler.load_state_dict({**state, "epoch": 0, "position": 0})
        self._begun += 1  # ends a running iteration
        self._seek(state["epoch"], state["position"])
        self._restored = self.epoch

    def order(self) -> list[int]:
        """Return all samples in the order of this epoch."""
        self._sampler.set_epoch(self.epoch)
        return self._sampler.order()


# --- map-style data sets ---


class _Rounds:
    """Batch sampler that yields [seed, has rows, *samples] for each step."""

    def __init__(self, loader: ShardLoader) -> None:
        self._loader: ShardLoader = weakref.proxy(loader)  # so that the workers end with the loader

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._loader
        order, epoch = loader.order(), loader.epoch
        for start in loader._rounds_from(loader.position):
            mine = loader._own_indices(start)
            if mine or loader.uneven != "short":
                # A batch with 0 rows is made from any sample, and then loses its row.
                samples = [order[place] for place in mine] or [order[start]]
                yield [mixed_seed(loader.seed, epoch, start, loader.rank), int(bool(mine)), *samples]

    def __len__(self) -> int:
        return self._loader.steps_left


class _SeededBatches(Dataset[Any]):  # type: ignore[misc]
    """Data set that seeds a worker before it reads a batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, order: list[int]) -> Any:
        seed, has_rows, *samples = order
        _seed_worker(seed)
        return self._items(samples) if has_rows else _EmptyBatch(self._items(samples), self._items(samples * 2))

    def _items(self, samples: list[int]) -> Any:
        whole = getattr(self._dataset, "__getitems__", None)
        return whole(samples) if whole is not None else [self._dataset[sample] for sample in samples]

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _seed_worker(seed: int) -> None:
    """Make a worker's random numbers depend on the batch only. (In the main process they are the user's.)"""
    if get_worker_info() is not None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


# --- streams ---


class _StreamShard(IterableDataset[Any]):  # type: ignore[misc]
    """Batches of a stream for this rank and worker, each with the size of its round.

    `place` holds epoch, position and seed at which to start. Persistent workers see it change.
    """

    def __init__(
        self, dataset: Any, rank: int, size: int, batch_size: int, uneven: Uneven, collate: _Collate, place: Tensor
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
            pass  # skip items before the position
        number = 0  # batches of this rank; worker `turn` yields every turns-th
        while True:
            _seed_worker(mixed_seed(seed, epoch, position, self._rank))
            taken, mine, first = self._round(stream)
            items = mine or _EmptyBatch(first, [copy.copy(item) for item in first * 2])  # a collate_fn may change them
            if not taken or (self._uneven == "drop" and taken < self._round_size):
                return
            if mine or self._uneven != "short":
                if number % turns == turn:
                    yield taken, self._collate(items)
                number += 1
            position += taken

    def _round(self, stream: Iterator[Any]) -> tuple[int, list[Any], list[Any]]:
        """Return the number of items of a round, those of this rank, and the first one."""
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


def _identity(item: Any) -> Any:
    return item


# --- batches with 0 rows ---


@dataclasses.dataclass(frozen=True)
class _EmptyBatch:
    """Request for a batch with 0 rows: a sample of another rank, once and twice."""

    one: Any
    two: Any


class _Collate:
    """Wrapper of a `collate_fn` that also makes batches with 0 rows; `empty` overrides how those are made."""

    def __init__(self, collate: Callable[[Any], Any], empty: Callable[[Any], Any] | None) -> None:
        self._collate = collate
        self._empty = empty

    def __call__(self, items: Any) -> Any:
        if not isinstance(items, _EmptyBatch):
            return self._collate(items)
        one = self._collate(items.one)
        return self._empty(one) if self._empty is not None else _drop_rows(one, self._collate(items.two), "batch")


def _drop_rows(one: Any, two: Any, path: str) -> Any:
    """Return `one`, a batch of one sample, without its row; `two` is the batch that has this sample twice."""
    if type(one) is type(two):
        if isinstance(one, Tensor | np.ndarray):
            return _drop_array_rows(one, two, path)
        if isinstance(one, Mapping) and one.keys() == two.keys():
            parts = {key: _drop_rows(one[key], two[key], f"{path}[{key!r}]") for key in one}
            return _mapping_like(one, parts)
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            names = [field.name for field in dataclasses.fields(one) if field.init]
            return dataclasses.replace(
                one,
                **{name: _drop_rows(getattr(one, name), getattr(two, name), f"{path}.{name}") for name in names},
            )
        if isinstance(one, tuple) and hasattr(one, "_fields"):
            fields = zip(one._fields, one, two, strict=True)
            return type(one)(*(_drop_rows(mine, twice, f"{path}.{name}") for name, mine, twice in fields))
        if type(one) in (list, tuple) and len(two) == len(one):
            columns = enumerate(zip(one, two, strict=True))
            return type(one)(_drop_rows(mine, twice, f"{path}[{place}]") for place, (mine, twice) in columns)
        if type(one) in (list, tuple) and len(two) == 2 * len(one):
            return type(one)()
        if one is None or (isinstance(one, str | bytes | int | float) and one == two):
            return one
    raise _unknown(one, path)


def _drop_array_rows(one: Any, two: Any, path: str) -> Any:
    if one.ndim == two.ndim:
        lengths = enumerate(zip(one.shape, two.shape, strict=True))
        changed = {place: pair for place, pair in lengths if pair[0] != pair[1]}
        doubled = [place for place, (once, twice) in changed.items() if twice == 2 * once]
        if len(changed) == len(doubled) == 1:
            return one[(slice(None),) * doubled[0] + (slice(0, 0),)]
        if doubled == [0] and one.shape[0] == 1:  # padding may change the other lengths from batch to batch
            return one[:0]
        if not changed and (torch.equal(one, two) if isinstance(one, Tensor) else np.array_equal(one, two)):
            return one
    raise _unknown(one, path)


def _mapping_like(one: Mapping[Any, Any], parts: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(one) is dict or not isinstance(one, MutableMapping):
        return parts
    made = copy.copy(one)
    made.update(parts)
    return made


def _unknown(one: Any, path: str) -> InvalidArgument:
    return InvalidArgument(
        f"shard: this rank has no sample in the last round of the epoch, and the value of {path} without rows (a "
        f"{type(one).__module__}.{type(one).__qualname__}) cannot be derived. Leave that round out with "
        'uneven="drop", or pass empty=, a function that turns a batch of one row into one of 0 rows'
    )
