"""Pieces of tensors: which rank writes which part of a state that all ranks share, and how the parts are joined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from neuraxis.errors import CheckpointError
from neuraxis.store.states import open_tensors, write_tensors
from neuraxis.training.checkpoint.tree import torch_type

__all__ = ["LARGE_BYTES", "Piece", "SavedTensor", "assign_pieces", "elements_in_order", "read_pieces", "write_pieces"]

LARGE_BYTES = 1 << 20  # larger tensors are split, and every rank writes a part


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of a tensor in the order of `elements_in_order`, written by one rank."""

    tensor: str
    rank: int
    start: int
    stop: int
    own: bool = False  # True if every rank writes its own version

    @property
    def key(self) -> str:
        return f"{self.tensor}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class SavedTensor:
    """Type and layout of a tensor in a manifest."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None  # if the elements are dense but not in row-major order

    @classmethod
    def of(cls, tensor: Tensor) -> SavedTensor:
        stride = None if tensor.is_contiguous() or not _is_dense(tensor) else tuple(tensor.stride())
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), stride)


# --- Distributing tensors over ranks ---


def assign_pieces(
    bytes_of: Mapping[str, int], elements_of: Mapping[str, int], differing: Iterable[str], size: int
) -> list[Piece]:
    """Assign pieces to ranks so that all write about the same number of bytes; the same on all ranks.

    Large tensors are split, small ones go to the rank with the least. Each rank writes its own version of the tensors
    in `differing`.
    """
    own = set(differing)
    pieces = [
        Piece(name, rank, 0, elements_of[name], own=True) for name in bytes_of if name in own for rank in range(size)
    ]
    written = [0] * size
    for name in sorted(bytes_of.keys() - own, key=lambda name: (-bytes_of[name], name)):
        elements = elements_of[name]
        if size > 1 and bytes_of[name] >= LARGE_BYTES:
            borders = [elements * rank // size for rank in range(size + 1)]
            pieces += [Piece(name, rank, borders[rank], borders[rank + 1]) for rank in range(size)]
        else:
            rank = written.index(min(written))
            written[rank] += bytes_of[name]
            pieces.append(Piece(name, rank, 0, elements))
    return pieces


# --- Tensors ---


def write_pieces(path: Path, tensors: Mapping[str, Tensor], pieces: Iterable[Piece]) -> None:
    """Write pieces of tensors to a file, flushed to disk."""
    content = {}
    for piece in pieces:
        flat = elements_in_order(tensors[piece.tensor])[piece.start : piece.stop]
        content[piece.key] = _as_known(flat).cpu().clone()
    write_tensors(path, content, {}, framework="torch")


def read_pieces(
    files: Mapping[int, Path], pieces: Iterable[Piece], described: Mapping[str, SavedTensor]
) -> dict[str, Tensor]:
    """Read pieces and return the tensors that they form."""
    made: dict[str, Tensor] = {}
    by_rank: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_rank.setdefault(piece.rank, []).append(piece)
    there = sum(path.stat().st_size for path in files.values() if path.exists())
    for rank, wanted in by_rank.items():
        try:
            path = files[rank]
            with open_tensors(path, framework="torch") as file:
                for piece in wanted:
                    if piece.tensor not in made:
                        made[piece.tensor] = _empty(described[piece.tensor], there)
                    whole = elements_in_order(made[piece.tensor])
                    whole[piece.start : piece.stop] = file.get_tensor(piece.key).view(whole.dtype)
        except CheckpointError:
            raise
        except (OSError, SafetensorError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{files.get(rank)}: cannot be read: {error}") from error
    return made


def elements_in_order(tensor: Tensor) -> Tensor:
    """Return all elements in one dimension: in memory order if they are dense, else in row-major order."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,)) if _is_dense(tensor) else tensor.contiguous().view(-1)


def _is_dense(tensor: Tensor) -> bool:
    """Return True if the elements fill their memory without gaps and overlaps, in any order."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True


def _empty(described: SavedTensor, there: int) -> Tensor:
    """Allocate a tensor, unless it claims more bytes than the files hold."""
    dtype = torch_type(described.dtype)
    count = math.prod(described.shape)
    extent = 1 + sum((n - 1) * step for n, step in zip(described.shape, described.stride or (), strict=False))
    if max(count, extent if count else 0) * dtype.itemsize > there:
        raise CheckpointError(f"damaged: a tensor claims the shape {described.shape!s:.80}, but its files are smaller")
    if described.stride is None:
        return torch.empty(described.shape, dtype=dtype)
    return torch.empty_strided(described.shape, described.stride, dtype=dtype)


def _as_known(flat: Tensor) -> Tensor:
    """Return the elements in a type that safetensors supports."""
    return flat.view(torch.float64) if flat.dtype == torch.complex128 else flat
