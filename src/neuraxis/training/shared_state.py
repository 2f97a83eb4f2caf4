"""The states of all ranks as one: what they have alike, what differs, and who writes which part of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuraxis.training.shard_files import (
    Piece,
    SavedTensor,
    deal,
    elements_in_order,
    json_sum,
    read_pieces,
    write_shard,
)

__all__ = ["CollectedState", "StoredState"]


class CollectedState:
    """What a rank has to save: trees of plain data by name, and the tensors that they name."""

    def __init__(self, trees: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.trees = trees
        self.tensors = tensors
        self.described = {name: SavedTensor.of(tensor) for name, tensor in tensors.items()}

    def layout(self) -> list[Any]:
        """What must be alike on all ranks for them to write one state."""
        return [[name, one.dtype, list(one.shape), list(one.stride or ())] for name, one in self.described.items()]

    def layout_sum(self) -> int:
        return json_sum(self.layout())

    def trees_sum(self) -> int:
        return json_sum(self.trees)

    def tensor_sums(self) -> list[int]:
        """A CRC-32 for each tensor: ranks whose sums are equal have the same values."""
        return [_crc(tensor) for tensor in self.tensors.values()]

    def dealt(self, differing: Iterable[str], size: int) -> list[Piece]:
        """Who writes what."""
        elements = {name: tensor.numel() for name, tensor in self.tensors.items()}
        weights = {name: tensor.numel() * tensor.element_size() for name, tensor in self.tensors.items()}
        return deal(weights, elements, differing, size)

    def write(self, folder: Path, rank: int, size: int, token: str, pieces: Iterable[Piece]) -> tuple[str, int, int]:
        """Write one rank's pieces; the file's name, size and CRC-32."""
        folder.mkdir(parents=True, exist_ok=True)
        return write_shard(folder, rank, size, token, self.tensors, [piece for piece in pieces if piece.rank == rank])


class StoredState:
    """The tensors of a saved state, as its manifest describes them."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self._folder = folder
        self._size = int(manifest["size"])
        self._files = {int(name.split("-")[1]): name for name in manifest["files"]}
        self._described = {
            name: SavedTensor(dtype, tuple(shape), None if stride is None else tuple(stride))
            for name, (dtype, shape, stride) in manifest["tensors"].items()
        }
        self._pieces = [Piece(*piece) for piece in manifest["pieces"]]

    def read(self, names: set[str], rank: int | None) -> dict[str, Tensor]:
        """These tensors, on the CPU. Of one that differed between ranks: `rank`'s, or for None what stands for all."""
        shared = [piece for piece in self._pieces if piece.tensor in names and not piece.own]
        own = [piece for piece in self._pieces if piece.tensor in names and piece.own]
        tensors = read_pieces(self._folder, self._files, shared, self._described)
        if rank is not None:
            return tensors | self._version(own, rank)
        versions = [self._version(own, one) for one in range(self._size)] if own else []
        return tensors | {name: _one_for_all([each[name] for each in versions]) for name in (versions or [{}])[0]}

    def _version(self, own: list[Piece], rank: int) -> dict[str, Tensor]:
        mine = [piece for piece in own if piece.rank == rank]
        return read_pieces(self._folder, self._files, mine, self._described)


def _one_for_all(versions: list[Tensor]) -> Tensor:
    """The mean of what can have one, in double precision; else the first."""
    first = versions[0]
    if not (first.is_floating_point() or first.is_complex()):
        return first
    wide = torch.complex128 if first.is_complex() else torch.float64
    total = torch.zeros_like(first, dtype=wide)
    for version in versions:
        total += version
    return (total / len(versions)).to(first.dtype)


def _crc(tensor: Tensor) -> int:
    flat = elements_in_order(tensor).cpu()
    return zlib.crc32(flat.view(torch.uint8).numpy()) if flat.numel() else 0
