"""Collectives for Python objects: encoded without pickle (see `objects`), padded, and moved as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuraxis.comm.arguments import Arguments
from neuraxis.comm.objects import decode, encode
from neuraxis.comm.work import Work
from neuraxis.errors import InvalidArgument

__all__ = ["ObjectForms"]


class ObjectForms:
    """The object forms, for a class that has the array forms they are made of."""

    rank: int
    size: int
    ranks: tuple[int, ...]
    allow_pickle: bool
    _arguments: Arguments

    def broadcast_object_list(
        self, object_list: list[Any], src: int | None = None, group_src: int | None = None
    ) -> None:
        """Every rank's `object_list` becomes that of rank `src`, element by element."""
        root = self._arguments.root("src", src, group_src)
        content = b""
        if self.rank == root:
            content = encode(list(object_list), self.allow_pickle)
        length = np.array([len(content), len(object_list)], np.int64)
        self.broadcast(length, group_src=root)
        if length[1] != len(object_list):
            raise InvalidArgument(
                f"broadcast_object_list: object_list has {len(object_list)} elements here "
                f"and {length[1]} on rank {self.ranks[root]}"
            )
        data = np.frombuffer(content, np.uint8).copy() if self.rank == root else np.empty(length[0], np.uint8)
        self.broadcast(data, group_src=root)
        if self.rank != root:
            object_list[:] = decode(data, self.allow_pickle)

    def all_gather_object(self, object_list: list[Any], obj: Any) -> None:
        """Collect every rank's `obj` in `object_list` on every rank."""
        self._arguments.check_length("object_list", object_list)
        padded, lengths = self._padded(encode(obj, self.allow_pickle))
        rows = np.empty((self.size, padded.size), np.uint8)
        self.all_gather(list(rows), padded)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            object_list[index] = decode(row[:length], self.allow_pickle)

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
    ) -> None:
        """Collect every rank's `obj` in `object_gather_list` on rank `dst`."""
        root = self._arguments.root("dst", dst, group_dst)
        if self.rank == root:
            self._arguments.check_length("object_gather_list", object_gather_list)
        padded, lengths = self._padded(encode(obj, self.allow_pickle))
        rows = np.empty((self.size if self.rank == root else 0, padded.size), np.uint8)
        self.gather(padded, list(rows) if self.rank == root else None, group_dst=root)
        if self.rank == root:
            assert object_gather_list is not None
            for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                object_gather_list[index] = decode(row[:length], self.allow_pickle)

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group_src: int | None = None,
    ) -> None:
        """The first element of the output list becomes the i-th of rank `src`'s input list on rank i."""
        root = self._arguments.root("src", src, group_src)
        if not scatter_object_output_list:
            raise InvalidArgument("scatter_object_list: scatter_object_output_list needs at least one element")
        contents: list[bytes] = []
        if self.rank == root:
            self._arguments.check_length("scatter_object_input_list", scatter_object_input_list)
            contents = [encode(obj, self.allow_pickle) for obj in scatter_object_input_list or ()]
        lengths = np.array([len(content) for content in contents] or [0] * self.size, np.int64)
        self.broadcast(lengths, group_src=root)
        width = int(lengths.max())
        rows = [np.frombuffer(content.ljust(width, b"\0"), np.uint8) for content in contents]
        mine = np.empty(width, np.uint8)
        self.scatter(mine, rows or None, group_src=root)
        scatter_object_output_list[0] = decode(mine[: lengths[self.rank]], self.allow_pickle)

    def _padded(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """This rank's bytes, padded to the longest of all ranks, and everybody's lengths."""
        lengths = np.zeros(self.size, np.int64)
        self.all_gather([lengths[i : i + 1] for i in range(self.size)], np.array([len(content)], np.int64))
        return np.frombuffer(content.ljust(int(lengths.max()), b"\0"), np.uint8), lengths

    # --- what it is made of ---

    def broadcast(
        self, tensor: Any, src: int | None = None, async_op: bool = False, group_src: int | None = None
    ) -> Work | None:
        raise NotImplementedError

    def all_gather(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool = False) -> Work | None:
        raise NotImplementedError

    def gather(
        self,
        tensor: Any,
        gather_list: Sequence[Any] | None = None,
        dst: int | None = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        raise NotImplementedError

    def scatter(
        self,
        tensor: Any,
        scatter_list: Sequence[Any] | None = None,
        src: int | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:
        raise NotImplementedError
