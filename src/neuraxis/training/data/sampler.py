"""Distribution of samples over the ranks.

All ranks draw the same order from (seed, epoch). From a position on, rank r takes every size-th sample, starting with
the r-th. After any number of rounds in which each rank took equally many, the taken samples are a prefix of the order.
So one number is the position in an epoch, and any number of ranks can resume there without losing or repeating a
sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from neuraxis.arguments import is_whole
from neuraxis.comm import Communicator
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType
from neuraxis.training.parallel.group import group_or_world

__all__ = ["ShardSampler", "mixed_seed"]


class ShardSampler(Sampler[int]):  # type: ignore[misc]
    """Sampler of this rank's samples in an epoch, for a torch `DataLoader`.

    Equal seeds give equal orders on all ranks, and the ranks' numbers of samples differ by at most one. `shard` makes a
    complete loader, which also tracks its position.

    Parameters
    ----------
    data : sized or int
        Data set, or its number of samples.
    shuffle : bool
        Draw a new order from `seed` in each epoch; otherwise keep the order of the data set.
    seed : int
        Seed of the order; the same on all ranks.
    group : Communicator, optional
        Ranks that share the samples; the world by default.

    Attributes
    ----------
    epoch, position : int
        Start of the next iteration; `position` counts the samples that all ranks together have taken.

    Raises
    ------
    InvalidType
        If `data` has no length.
    InvalidArgument
        If the length is negative.

    Examples
    --------
    >>> from neuraxis.training import ShardSampler
    >>> list(ShardSampler(5, shuffle=False))
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self, data: Sized | int, *, shuffle: bool = True, seed: int = 0, group: Communicator | None = None
    ) -> None:
        if not is_whole(data) and not hasattr(data, "__len__"):
            raise InvalidType(f"ShardSampler: a {type(data).__name__} has no length. Use shard() for a stream")
        self.length = len(data) if isinstance(data, Sized) else int(data)
        if self.length < 0:
            raise InvalidArgument(f"ShardSampler: data={self.length} is negative")
        self.shuffle = shuffle
        self.seed = seed
        members = group_or_world(group, "ShardSampler")
        self.rank, self.size = (members.rank, members.size) if members is not None else (0, 1)
        self.epoch = 0
        self.position = 0
        self._restored: int | None = None  # epoch of a loaded state, until an iteration begins

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of an epoch, or where a loaded state is within it.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0; the same on all ranks.
        """
        if epoch != self._restored:
            self.seek(epoch, 0)

    def seek(self, epoch: int, position: int) -> None:
        """Start the next iteration at a position of an epoch. Call it with the same values on all ranks.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.
        position : int
            Number of samples of that epoch that all ranks together have taken.

        Raises
        ------
        InvalidArgument
            There is no such position.
        """
        if epoch < 0 or not 0 <= position <= self.length:
            raise InvalidArgument(f"epoch {epoch}, position {position}: must be within 0 and {self.length} samples")
        self.epoch, self.position = epoch, position
        self._restored = None

    def order(self) -> list[int]:
        """Return all samples in the order of this epoch, which is equal on all ranks."""
        if not self.shuffle:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, self.epoch))
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        self._restored = None
        return iter(self.order()[self.position + self.rank :: self.size])

    def __len__(self) -> int:
        return len(range(self.position + self.rank, self.length, self.size))

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for `load_state_dict`.

        Returns
        -------
        dict
            Epoch, position, seed, shuffling and length of the data set.
        """
        return {name: getattr(self, name) for name in ("epoch", "position", "seed", "shuffle", "length")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where another sampler was, on any number of ranks, with its seed and thus its order.

        Parameters
        ----------
        state : mapping
            State from `state_dict`.

        Raises
        ------
        CheckpointError
            If the state belongs to a data set of another length, or to another `shuffle`.
        """
        for name in ("length", "shuffle"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the saved position belongs to {name}={state[name]}, and this sampler has "
                    f"{name}={getattr(self, name)}. Resume with the same data and options"
                )
        self.seed = state["seed"]
        self.seek(state["epoch"], state["position"])
        self._restored = self.epoch


def mixed_seed(*parts: object) -> int:
    """Return a 63-bit hash of the parts as a seed."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
