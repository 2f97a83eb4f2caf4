"""A saved state on disk: a folder with a manifest and one file of tensors from each rank.

    step-00000120/manifest.json
    step-00000120/shard-0-of-2-4f1c09ab.safetensors
    step-00000120/shard-1-of-2-4f1c09ab.safetensors

`manifest.json` is the only name that a reader starts from. It comes last, by renaming, when all that it names is on the
disk; and it goes first when a state is removed. So a folder with a manifest is complete, whatever happened to whoever
wrote it, and saving a step again replaces the older state in one stroke: the files of both lie side by side until then.
The manifest has the size and the CRC-32 of each file, and its own.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from neuraxis.errors import CheckpointError
from neuraxis.training.state_tree import torch_type

__all__ = [
    "Piece",
    "SavedTensor",
    "check_file",
    "complete_steps",
    "deal",
    "elements_in_order",
    "json_sum",
    "prune",
    "read_manifest",
    "read_pieces",
    "remove_files",
    "step_folder",
    "write_manifest",
    "write_shard",
]

FORMAT = 1
MANIFEST = "manifest.json"
LARGE_BYTES = 1 << 20  # from here on a tensor is cut, and every rank writes a part of it

_STEP = re.compile(r"step-(\d{8,})")
_SHARD = re.compile(r"shard-\d+-of-\d+-[0-9a-f]{8}\.safetensors")
_OURS = re.compile(rf"{_SHARD.pattern}|{re.escape(MANIFEST)}|\.{re.escape(MANIFEST)}\.[0-9a-f]{{8}}")


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of a tensor, counted as they lie in it, written by one rank."""

    tensor: str
    rank: int
    start: int
    stop: int
    own: bool = False  # one of as many versions as there are ranks

    @property
    def key(self) -> str:
        return f"{self.tensor}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class SavedTensor:
    """What a manifest says of a tensor besides its pieces."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None  # where the elements are dense but in another order

    @classmethod
    def of(cls, tensor: Tensor) -> SavedTensor:
        stride = None if tensor.is_contiguous() or not _is_dense(tensor) else tuple(tensor.stride())
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), stride)


# --- who writes what ---


def deal(
    bytes_of: Mapping[str, int], elements_of: Mapping[str, int], differing: Iterable[str], size: int
) -> list[Piece]:
    """Let every rank write about the same: large tensors are cut, small ones dealt; the same on all ranks.

    A tensor that differs between ranks is written by each of them.
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


# --- tensors ---


def write_shard(
    folder: Path, rank: int, size: int, token: str, tensors: Mapping[str, Tensor], pieces: Iterable[Piece]
) -> tuple[str, int, int]:
    """Write this rank's pieces; the file's name, size and CRC-32, when it is safe on the disk."""
    name = f"shard-{rank}-of-{size}-{token}.safetensors"
    path = folder / name
    content = {}
    for piece in pieces:
        flat = elements_in_order(tensors[piece.tensor])[piece.start : piece.stop]
        content[piece.key] = _as_known(flat).cpu().clone()
    try:
        save_file(content, path, metadata={"rank": str(rank), "size": str(size)})
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        return name, *_sum_of(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error


def read_pieces(
    folder: Path, files: Mapping[int, str], pieces: Iterable[Piece], described: Mapping[str, SavedTensor]
) -> dict[str, Tensor]:
    """The tensors that these pieces make."""
    made: dict[str, Tensor] = {}
    by_rank: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_rank.setdefault(piece.rank, []).append(piece)
    for rank, wanted in by_rank.items():
        path = folder / files[rank]
        try:
            with safe_open(path, framework="pt") as file:
                for piece in wanted:
                    if piece.tensor not in made:
                        made[piece.tensor] = _empty(described[piece.tensor])
                    whole = elements_in_order(made[piece.tensor])
                    whole[piece.start : piece.stop] = file.get_tensor(piece.key).view(whole.dtype)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return made


def elements_in_order(tensor: Tensor) -> Tensor:
    """All elements in one dimension: as they lie in memory where they are dense there, else in order of indices."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,)) if _is_dense(tensor) else tensor.contiguous().view(-1)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps and without overlapping, in whatever order."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True


def _empty(described: SavedTensor) -> Tensor:
    dtype = torch_type(described.dtype)
    if described.stride is None:
        return torch.empty(described.shape, dtype=dtype)
    return torch.empty_strided(described.shape, described.stride, dtype=dtype)


def _as_known(flat: Tensor) -> Tensor:
    """The elements as a type that safetensors files have."""
    return flat.view(torch.float64) if flat.dtype == torch.complex128 else flat


# --- the manifest ---


def step_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def write_manifest(folder: Path, token: str, content: Mapping[str, Any]) -> None:
    """Make a state complete, and the newest of its step."""
    body = {"format": FORMAT, **content}
    new = folder / f".{MANIFEST}.{token}"
    try:
        with open(new, "w") as file:
            json.dump({"crc32": json_sum(body), "content": body}, file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(folder)  # the names of the shards
        os.replace(new, folder / MANIFEST)
        _sync_folder(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise CheckpointError(f"{folder / MANIFEST}: cannot be written: {error}") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` was given; CheckpointError if it is not to the letter."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        content, expected = dict(manifest["content"]), manifest["crc32"]
        found = content["format"]
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no complete state here ({MANIFEST} is missing)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged: {error!r}") from error
    if found != FORMAT:
        raise CheckpointError(f"{path}: format {found!r}; this version reads format {FORMAT}")
    if json_sum(content) != expected:
        raise CheckpointError(f"{path}: damaged: it is not what was written (its checksum differs)")
    if not all(_SHARD.fullmatch(str(name)) for name in content["files"]):
        raise CheckpointError(f"{path}: names files that are none of a saved state")
    return content


def check_file(path: Path, expected_bytes: int, expected_sum: int) -> None:
    """CheckpointError unless the file is, to the bit, what was written."""
    try:
        if _sum_of(path) == (expected_bytes, expected_sum):
            return
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    raise CheckpointError(f"{path}: damaged: it is not what was written (its size or checksum differs)")


def complete_steps(folder: Path) -> list[int]:
    """The steps that have a manifest, in ascending order."""
    try:
        names = [path.name for path in folder.iterdir() if (path / MANIFEST).is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)


def json_sum(content: Any) -> int:
    """The CRC-32 of plain data."""
    return zlib.crc32(json.dumps(content, allow_nan=False).encode())


def _sum_of(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    size = total = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            size += len(piece)
            total = zlib.crc32(piece, total)
    return size, total


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    if os.name == "posix":
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


# --- what is not needed any more ---


def prune(folder: Path, keep: Iterable[int]) -> None:
    """Remove all steps but these, and what saves that were killed have left. Only names that are ours are touched."""
    kept = set(keep)
    for path in folder.iterdir():
        found = _STEP.fullmatch(path.name)
        if found is None or not path.is_dir():
            continue
        if int(found[1]) not in kept:
            with suppress(OSError):
                (path / MANIFEST).unlink(missing_ok=True)
                remove_files(path, (file.name for file in path.iterdir() if _OURS.fullmatch(file.name)))
                path.rmdir()
            continue
        with suppress(OSError, CheckpointError):
            named = {MANIFEST, *read_manifest(path)["files"]}
            remove_files(path, [f.name for f in path.iterdir() if _OURS.fullmatch(f.name) and f.name not in named])


def remove_files(folder: Path, names: Iterable[str]) -> None:
    for name in list(names):
        (folder / name).unlink(missing_ok=True)
