"""Which samples are whose: an epoch's order, dealt to the ranks like cards.

All ranks draw the same order from (seed, epoch). From a position on, rank r has every size-th sample beginning with
the r-th. After any number of rounds in which each rank took equally many, what has been taken is a beginning of the
order: so one number says how far an epoch is, and any number of ranks can go on from there without losing or doubling
a sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from neuraxis.comm import Communicator
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType
from neuraxis.training.chosen_group import group_or_world

__all__ = ["ShardSampler", "mixed_seed"]


class ShardSampler(Sampler[int]):  # type: ignore[misc]
    """This rank's samples of an epoch, for a torch `DataLoader`; equal seeds give equal orders everywhere.

    The ranks' numbers of samples differ by at most one. `shard` makes a whole loader, which also knows its position.

    Args:
        data: the data set, or how many samples it has.
        shuffle: a new order in each epoch, drawn from `seed`; else the data set's own.
        group: whose ranks share the samples; the world by default.

    Attributes:
        epoch, position: where the next iteration begins; `position` counts the samples that all ranks have taken.
    """

    def __init__(
        self, data: Sized | int, *, shuffle: bool = True, seed: int = 0, group: Communicator | None = None
    ) -> None:
        if not isinstance(data, int) and not hasattr(data, "__len__"):
            raise InvalidType(f"ShardSampler: a {type(data).__name__} has no length; use shard() for a stream")
        self.length = data if isinstance(data, int) else len(data)
        if self.length < 0:
            raise InvalidArgument(f"ShardSampler: a data set of {self.length} samples")
        self.shuffle = shuffle
        self.seed = seed
        members = group_or_world(group, "ShardSampler")
        self.rank, self.size = (members.rank, members.size) if members is not None else (0, 1)
        self.epoch = 0
        self.position = 0
        self._restored: int | None = None  # the epoch that a state has put us into, until an iteration begins

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: the next iteration is its first; or go on in it, if a state was loaded that is within it.

        The same on all ranks.
        """
        if epoch != self._restored:
            self.seek(epoch, 0)

    def seek(self, epoch: int, position: int) -> None:
        """Let the next iteration begin in the middle of an epoch. The same on all ranks."""
        if epoch < 0 or not 0 <= position <= self.length:
            raise InvalidArgument(f"epoch {epoch}, position {position}: outside of {self.length} samples")
        self.epoch, self.position = epoch, position
        self._restored = None

    def order(self) -> list[int]:
        """All samples in this epoch's order; equal on all ranks."""
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
        return {name: getattr(self, name) for name in ("epoch", "position", "seed", "shuffle", "length")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler was, on any number of ranks. The seed is taken over too: it makes the order."""
        for name in ("length", "shuffle"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the position was saved with {name}={state[name]} of the data, and here it is "
                    f"{getattr(self, name)}: that is another order"
                )
        self.seed = state["seed"]
        self.seek(state["epoch"], state["position"])
        self._restored = self.epoch


def mixed_seed(*parts: object) -> int:
    """A seed of 63 bits that differs for different parts, however close they are."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
