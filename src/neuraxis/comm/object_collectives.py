"""Collectives for Python objects: `wire.objects` serializes them without pickle, and they travel as arrays of bytes.

Ranks first exchange lengths, and pad their bytes to the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuraxis.comm.buffers import Arguments
from neuraxis.comm.docstrings import complete_docstring
from neuraxis.errors import InvalidArgument
from neuraxis.wire.objects import decode, encode

__all__ = ["ObjectCollectives"]

_OBJECTS_TAG = 32765


class ObjectCollectives:
    """Mixin with the object collectives, for a class that has the array collectives."""

    rank: int
    size: int
    ranks: tuple[int, ...]
    allow_pickle: bool
    _arguments: Arguments

    # The array operations of the class.
    send: Callable[..., None]
    recv: Callable[..., int]
    broadcast: Callable[..., Any]
    all_gather: Callable[..., Any]
    gather: Callable[..., Any]
    scatter: Callable[..., Any]

    @complete_docstring()
    def broadcast_object_list(
        self, object_list: list[Any], src: int | None = None, group_src: int | None = None
    ) -> None:
        """Replace the elements of `object_list` with those of rank `src`.

        Parameters
        ----------
        object_list : list
            Same length on every rank.
        """
        root = self._arguments.root("src", src, group_src)
        content = b""
        if self.rank == root:
            content = encode(list(object_list), self.allow_pickle)
        length = np.array([len(content), len(object_list)], np.int64)
        self.broadcast(length, group_src=root)
        if length[1] != len(object_list):
            raise InvalidArgument(
                f"broadcast_object_list: object_list has {len(object_list)} elements here "
                f"and {length[1]} on rank {self.ranks[root]}. Give the same length on every rank"
            )
        data = np.frombuffer(content, np.uint8).copy() if self.rank == root else np.empty(length[0], np.uint8)
        self.broadcast(data, group_src=root)
        if self.rank != root:
            object_list[:] = decode(data, self.allow_pickle)

    @complete_docstring()
    def send_object_list(self, object_list: list[Any], dst: int | None = None, group_dst: int | None = None) -> None:
        """Send objects to rank `dst`, which calls `recv_object_list`."""
        content = encode(list(object_list), self.allow_pickle)
        peer = self._arguments.peer("dst", dst, group_dst)
        self.send(np.array([len(content), len(object_list)], np.int64), group_dst=peer, tag=_OBJECTS_TAG)
        self.send(np.frombuffer(content, np.uint8), group_dst=peer, tag=_OBJECTS_TAG)

    @complete_docstring()
    def recv_object_list(self, object_list: list[Any], src: int | None = None, group_src: int | None = None) -> int:
        """Receive objects into `object_list` from a rank, by default any; return its world rank."""
        header = np.zeros(2, np.int64)
        source = self.recv(header, src, _OBJECTS_TAG, group_src)
        content = np.empty(int(header[0]), np.uint8)
        self.recv(content, source, _OBJECTS_TAG)
        if header[1] != len(object_list):
            raise InvalidArgument(
                f"recv_object_list: object_list has {len(object_list)} elements here and {header[1]} on rank {source}. "
                "Give a list of the length that is sent"
            )
        object_list[:] = decode(content, self.allow_pickle)
        return source

    @complete_docstring()
    def all_gather_object(self, object_list: list[Any], obj: Any) -> None:
        """Collect every rank's `obj` in `object_list` on every rank.

        Parameters
        ----------
        object_list : list
            One element per rank; its elements are replaced.
        """
        self._arguments.check_length("object_list", object_list)
        padded, lengths = self._padded(encode(obj, self.allow_pickle))
        rows = np.empty((self.size, padded.size), np.uint8)
        self.all_gather(list(rows), padded)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            object_list[index] = decode(row[:length], self.allow_pickle)

    @complete_docstring()
    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
    ) -> None:
        """Collect every rank's `obj` in `object_gather_list` on rank `dst`.

        Parameters
        ----------
        object_gather_list : list, optional
            On the root: one element per rank. None on other ranks.
        """
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

    @complete_docstring()
    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group_src: int | None = None,
    ) -> None:
        """Replace the first element of the output list with the i-th of rank `src`'s input list, on rank i.

        Parameters
        ----------
        scatter_object_output_list : list
            Its first element is replaced with this rank's object.
        scatter_object_input_list : list, optional
            On the root: one object per rank. None on other ranks.
        """
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
        """Return this rank's bytes, padded to the longest of all ranks, and the lengths of all ranks."""
        lengths = np.zeros(self.size, np.int64)
        self.all_gather([lengths[i : i + 1] for i in range(self.size)], np.array([len(content)], np.int64))
        return np.frombuffer(content.ljust(int(lengths.max()), b"\0"), np.uint8), lengths
