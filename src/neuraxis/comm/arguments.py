"""A user's arguments, checked: arrays as buffers, roots as group ranks, lists with one element for each rank.

Whatever is wrong is raised here, before anything is sent, so that a bad call harms no group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuraxis.comm.buffers import Buffer, buffer_of
from neuraxis.comm.reduction import ReduceOp
from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["Arguments", "reduce_op_of"]

Buffers = list[Buffer]


class Arguments:
    """Checks arguments for one rank of one group; `device` is where its backend needs arrays to be."""

    def __init__(self, rank: int, ranks: Sequence[int], device: str) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.ranks = tuple(ranks)
        self.device = device
        self._group_rank = {world: group for group, world in enumerate(ranks)}

    def buffer(self, value: Any, what: str, *, writes: bool) -> Buffer:
        """A buffer over an array argument; `what` names it in errors."""
        return buffer_of(value, what, writes=writes, device=self.device)

    def root(self, what: str, world: int | None, group: int | None) -> int:
        """The root's group rank, from a world rank or a group rank; world rank 0 if neither is given."""
        if world is not None and group is not None:
            raise InvalidArgument(f"give {what} or group_{what}, not both")
        if group is not None:
            if not 0 <= group < self.size:
                raise InvalidArgument(f"group_{what}={group} is not a rank of this group of {self.size}")
            return int(group)
        rank = self._group_rank.get(0 if world is None else world)
        if rank is None:
            given = f"{what}={world}" if world is not None else f"{what}=0 (the default)"
            raise InvalidArgument(
                f"{given} is not a member of this group, whose ranks in the world are "
                f"{list(self.ranks)}; {what} is a world rank, group_{what} a rank within the group"
            )
        return rank

    def peer(self, what: str, world: int | None, group: int | None) -> int:
        """The other side's group rank; one of the two must be given."""
        if world is None and group is None:
            raise InvalidArgument(f"{what} (a world rank) or group_{what} must be given")
        return self.root(what, world, group)

    def check_length(self, what: str, values: Sequence[Any] | None) -> None:
        """A list must have one element for each rank."""
        if values is None:
            raise InvalidArgument(f"{what} must be given on this rank")
        if not isinstance(values, (list, tuple)):
            raise InvalidType(f"{what} must be a list with one element for each rank, not {type(values).__name__}")
        if len(values) != self.size:
            raise InvalidArgument(f"{what} has {len(values)} elements; the group has {self.size} ranks")

    def list(self, what: str, values: Sequence[Any], example: Buffer | None, *, writes: bool) -> Buffers:
        """Buffers over a list with one array for each rank, of the dtype of `example`."""
        self.check_length(what, values)
        buffers = []
        for value in values:
            try:
                buffers.append(buffer_of(value, "", writes=writes, device=self.device))
            except (InvalidArgument, InvalidType):
                buffer_of(value, f"{what}[{len(buffers)}]", writes=writes, device=self.device)  # raises with the name
                raise
        if example is not None:
            self.list_dtypes(what, buffers, example)
        return buffers

    def root_list(
        self, what: str, values: Sequence[Any] | None, root: int, example: Buffer, *, writes: bool
    ) -> Buffers:
        """The same for a list that only the root gives; empty on the others."""
        if self.rank == root:
            if values is None:
                raise InvalidArgument(f"{what} must be given on the root, rank {self.ranks[root]}")
            buffers = self.list(what, values, example, writes=writes)
            if buffers[root].count != example.count:
                raise InvalidArgument(
                    f"{what}[{root}] has {buffers[root].count} elements and this rank's tensor {example.count}"
                )
            return buffers
        if values:
            raise InvalidArgument(
                f"{what} is for the root, rank {self.ranks[root]}; this is rank {self.ranks[self.rank]}: give None"
            )
        return []

    def list_dtypes(self, what: str, buffers: Sequence[Buffer], example: Buffer) -> None:
        """All buffers must have the dtype of `example`."""
        for index, buffer in enumerate(buffers):
            if buffer.element is not example.element or buffer.item_bytes != example.item_bytes:
                raise InvalidType(
                    f"{what}[{index}] has dtype {buffer.element.label} and the other side {example.element.label}: "
                    "data is moved, not converted, so the dtypes must be the same"
                )

    def equal_parts(self, what: str, whole: Buffer, part: Buffer) -> Buffers:
        """One array as a part for each rank, each like `part`."""
        self.list_dtypes(what, [whole], part)
        if whole.count != part.count * self.size:
            raise InvalidArgument(
                f"{what} has {whole.count} elements; it needs {self.size} times the {part.count} of one rank"
            )
        return [_part(whole, index * part.count, part.count) for index in range(self.size)]

    def parts(self, what: str, whole: Buffer, value: Any, splits: Sequence[int] | None) -> Buffers:
        """One array cut along its first dimension, a part for each rank."""
        rows = int(value.shape[0]) if len(value.shape) else 1
        if splits is None or len(splits) == 0:
            if rows % self.size:
                raise InvalidArgument(f"{what} has {rows} rows, which {self.size} ranks cannot share equally")
            length = whole.count // self.size
            return [_part(whole, index * length, length) for index in range(self.size)]
        splits = [int(length) for length in splits]
        self.check_length(f"{what}_split_sizes", splits)
        if sum(splits) != rows or min(splits) < 0:
            raise InvalidArgument(f"{what}_split_sizes {splits} do not add up to {rows} rows")
        row_count = whole.count // rows if rows else 0
        parts, start = [], 0
        for length in splits:
            parts.append(_part(whole, start, length * row_count))
            start += length * row_count
        return parts


def _part(whole: Buffer, start: int, count: int) -> Buffer:
    memory = whole.memory
    if not isinstance(memory, np.ndarray) and memory is not None:
        memory = whole.torch()[start : start + count]
    return Buffer(whole.address + start * whole.item_bytes, count, whole.item_bytes, whole.element, memory, None)


def reduce_op_of(op: Any) -> ReduceOp:
    """Our ReduceOp, also from torch's, which has the same names."""
    if isinstance(op, ReduceOp):
        return op
    name = getattr(op, "name", None) or str(op).rpartition(".")[2]
    try:
        return ReduceOp[name]
    except KeyError:
        raise InvalidType(f"op must be a ReduceOp ({', '.join(o.name for o in ReduceOp)}), not {op!r}") from None
