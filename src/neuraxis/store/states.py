"""Saved states: a folder with a manifest and files of tensors, written by one process or by several.

    saved/manifest.json
    saved/state-4f1c09ab/shard-0.safetensors
    saved/state-4f1c09ab/shard-1.safetensors

Simulations, trainings and regions of a mesh save in this layout. Each process writes its tensors to a new data folder
(`begin`, `write_tensors`); when all files are on disk, one process renames the manifest into place (`commit`). Readers
start from the manifest, so a folder holds the old or the new state whenever a writer is killed, and saving again in the
same folder replaces a state atomically. Nothing is pickled. The manifest has these fields:

    format, version   of this layout
    written_by        the release of neuraxis
    kind, content     kind of the saved object, and the version of its tensors and metadata
    data, files       the data folder, and for each file in it the size and the CRC-32
    identity          properties that the restoring object must share, such as the description of a network
    metadata          JSON data of the writer
    crc32             of all other fields

A series of states is a folder with one such folder for each step: `step-00000120`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from neuraxis.errors import CheckpointError
from neuraxis.store import replacing, sync_folder
from neuraxis.version import __version__

__all__ = [
    "MANIFEST",
    "Kind",
    "SavedFolder",
    "begin",
    "check_replaceable",
    "commit",
    "damaged",
    "data_folder",
    "discard",
    "file_sum",
    "json_sum",
    "open_tensors",
    "prune",
    "saved_steps",
    "shard_name",
    "shard_number",
    "step_folder",
    "write_tensors",
]

FORMAT = "neuraxis saved state"
VERSION = 3
MANIFEST = "manifest.json"

_LARGEST_MANIFEST = 2**28  # bytes; much more than a state needs, and little enough for memory
_REGION_MANIFEST = "region.json"  # of regions in release 0.1
_DATA = r"state-(?:\d+-)?[0-9a-f]{8}"  # release 0.1 put the step before the token
_SHARD = r"shard-\d+\.safetensors"
_TRAINING_SHARD = r"shard-\d+-of-\d+-[0-9a-f]{8}\.safetensors"  # release 0.1 put those of trainings beside the manifest
_STEP = re.compile(r"step-(\d+)")
_OURS = re.compile(
    rf"{_DATA}|\.manifest\.\d+\.tmp\.json"
    # release 0.1:
    rf"|\.manifest\.json\.[0-9a-f]{{8}}|{_TRAINING_SHARD}|\.{_TRAINING_SHARD}\.unfinished"
)
_WRITTEN = re.compile(rf"{_SHARD}|\.tmp\w+")  # safetensors writes a file under a temporary name first


@dataclass(frozen=True)
class Kind:
    """Kind of owner of a state, with the version of the tensors and metadata that this release writes and reads."""

    name: str
    version: int


@dataclass(frozen=True)
class SavedFolder:
    """A complete saved state, as its manifest describes it.

    Attributes
    ----------
    folder, data : Path
        Folder of the manifest, and of the files.
    files : dict of str to (int or None, int)
        Size in bytes (None where release 0.1 did not store it) and CRC-32 of each file.
    identity, metadata : dict
        JSON data, as `commit` was given it.
    """

    folder: Path
    data: Path
    files: dict[str, tuple[int | None, int]]
    identity: dict[str, Any]
    metadata: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, kind: Kind) -> SavedFolder:
        """Read the manifest of a state of this kind.

        Raises
        ------
        CheckpointError
            The folder holds no state, a damaged one, one of another kind, or one that another release wrote in a
            version that this one cannot read.
        """
        path = folder / MANIFEST
        if not path.exists() and (folder / _REGION_MANIFEST).exists():
            path = folder / _REGION_MANIFEST
        try:
            body = _fields(_read_json(path), path)
            data = folder / body["data"]
            files = {
                str(name): (None if size is None else int(size), int(crc))
                for name, (size, crc) in body["files"].items()
            }
            identity, metadata = dict(body["identity"]), dict(body["metadata"])
            named = [
                body["data"] == "" or re.fullmatch(_DATA, body["data"]),
                *(re.fullmatch(f"{_SHARD}|{_TRAINING_SHARD}", name) for name in files),
            ]
            found, version, writer = str(body["kind"]), body["content"], body.get("written_by", "an earlier release")
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder}: holds no saved state ({MANIFEST} is missing). Give the folder of a complete save"
            ) from error
        except CheckpointError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise damaged(path, f"or not a saved state: {error!r:.300}") from error
        if found != kind.name:
            raise CheckpointError(
                f"{folder}: holds the state of a {found:.40}, not of a {kind.name}. Use another folder"
            )
        if version != kind.version:
            raise CheckpointError(
                f"{path}: version {version!r:.40} of the state of a {kind.name}, written by {writer!s:.40}; neuraxis "
                f"{__version__} reads version {kind.version}. Restore it with the release that wrote it"
            )
        if not files or not all(named):
            raise damaged(path, "it names files outside its folder, or none")
        return cls(folder, data, files, identity, metadata)

    def require_identity(self, here: Mapping[str, Any], what: str, otherwise: str) -> None:
        """Raise CheckpointError, with the first field that differs, unless the state is of the same `what`.

        For a field named `digest`, whose values tell a reader nothing, the message has `otherwise`.
        """
        for field, value in here.items():
            was = self.identity.get(field)
            if was != value:
                difference = otherwise if field == "digest" else f"{field} was {was!r:.300}, here it is {value!r:.300}"
                raise CheckpointError(
                    f"{self.folder}: was saved from another {what}: {difference}. Restore it into the {what} it is from"
                )

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Raise CheckpointError if a file has changed since it was written; check only `names`, if given."""
        for name in self.files if names is None else names:
            size, crc = self.files[name]
            found_size, found_crc = file_sum(self.data / name)
            if found_crc != crc or size not in (None, found_size):
                raise damaged(self.data / name, "its size or checksum differs")


def damaged(path: Path, reason: str) -> CheckpointError:
    """Return the error for a saved state, or a file of it, with invalid content."""
    return CheckpointError(
        f"{path}: damaged{', ' if reason.startswith('or ') else ': '}{reason}. Restore an earlier one"
    )


def _read_json(path: Path) -> Any:
    """Read a manifest; raise ValueError, before memory is allocated, if the file is too large to be one."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST_MANIFEST:
            raise ValueError(f"it has {size:,} bytes; a manifest has at most {_LARGEST_MANIFEST:,}")
        return json.loads(file.read(_LARGEST_MANIFEST))


def _fields(manifest: Any, path: Path) -> Mapping[str, Any]:
    """Return the fields of a manifest whose version and checksum are right."""
    if "format" not in manifest or manifest["format"] != FORMAT:
        return _converted(manifest, path)
    if manifest["version"] != VERSION:
        raise CheckpointError(
            f"{path}: version {manifest['version']!r:.40} of the layout of saved states, written by "
            f"{manifest.get('written_by')!s:.40}; neuraxis {__version__} reads version {VERSION} and those of release "
            "0.1. Restore it with the release that wrote it"
        )
    fields = {name: value for name, value in manifest.items() if name != "crc32"}
    _check_sum(fields, manifest["crc32"])
    return fields


def _converted(manifest: Any, path: Path) -> Mapping[str, Any]:
    """Convert a manifest of release 0.1, in which each kind of state had another layout."""
    if path.name == _REGION_MANIFEST:
        return {
            "kind": "region", "content": 1, "data": "", "files": {manifest["file"]: [None, manifest["checksum"]]},
            "identity": {"digest": manifest["digest"]}, "metadata": manifest,
        }  # fmt: skip
    if "network" in manifest:
        sums = dict(manifest["checksums"])
        return {
            "kind": "simulation", "content": manifest["format"], "data": manifest["state"],
            "files": {name: [None, sums[name]] for name in manifest["files"]},
            "identity": manifest["network"], "metadata": manifest,
        }  # fmt: skip
    if "content" in manifest:
        content = dict(manifest["content"])
        _check_sum(content, manifest["crc32"])
        return {
            "kind": "training", "content": content["format"], "data": "", "files": content["files"],
            "identity": {}, "metadata": content,
        }  # fmt: skip
    raise ValueError("its format is unknown")


def _check_sum(fields: Mapping[str, Any], expected: Any) -> None:
    if json_sum(fields) != expected:
        raise ValueError("its checksum differs")


# --- Writing ---


def data_folder(folder: Path, token: str) -> Path:
    """Return the data folder of a state that several processes save together; `token` has 8 hex digits."""
    return folder / f"state-{token}"


def begin(folder: Path, token: str | None = None) -> Path:
    """Make and return a data folder for a new state; one with a `token` may be there already."""
    data = data_folder(folder, token or secrets.token_hex(4))
    try:
        data.mkdir(parents=True, exist_ok=token is not None)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror}") from error
    return data


def shard_name(shard: int) -> str:
    """Return the name of the file of one process."""
    return f"shard-{shard}.safetensors"


def shard_number(name: str) -> int:
    """Return the number of the process that wrote a file."""
    return int(re.split(r"[-.]", name)[1])


def write_tensors(
    path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str], framework: str = "numpy"
) -> None:
    """Write a safetensors file of NumPy arrays or, with `framework="torch"`, of tensors, and flush it to disk."""
    try:
        import_module(f"safetensors.{framework}").save_file(dict(tensors), path, metadata=dict(metadata))
        with open(path, "rb") as file:
            # save_file lets only the owner read the file; the umask decides, as for the manifest.
            with suppress(OSError):
                os.chmod(path, path.parent.stat().st_mode & 0o666)
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error


def open_tensors(path: Path, framework: str = "numpy") -> Any:
    """Open a safetensors file for reading, as a context manager."""
    try:
        return safe_open(path, framework=framework)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def check_replaceable(folder: Path, kind: Kind) -> None:
    """Raise CheckpointError if the folder has a manifest.json that is not that of a state of this kind."""
    path = folder / MANIFEST
    reason = ""
    try:
        manifest = _read_json(path)
        ours = (
            manifest["kind"] == kind.name
            if manifest.get("format") == FORMAT
            else {"state", "network"} <= manifest.keys()
        )
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        ours, reason = False, f": {error!r:.300}"
    if not ours:
        raise CheckpointError(
            f"{path}: exists and is not the manifest of a {kind.name}'s state{reason}. Use another folder"
        )


def commit(
    data: Path,
    kind: Kind,
    files: Mapping[str, tuple[int, int]],
    metadata: Mapping[str, Any],
    identity: Mapping[str, Any] | None = None,
) -> None:
    """Make `data` the state of the folder that it is in; remove the previous state and the leftovers of killed saves.

    Call this in one process, when all have written. `files` has the `file_sum` of each file in `data`.
    """
    folder = data.parent
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": f"neuraxis {__version__}",
        "kind": kind.name,
        "content": kind.version,
        "data": data.name,
        "files": {name: list(sums) for name, sums in files.items()},
        "identity": dict(identity or {}),
        "metadata": dict(metadata),
    }
    body = json.loads(json.dumps(body))  # the checksum is that of the fields as they are read
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in (body | {"crc32": json_sum(body)}).items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if len(text) > _LARGEST_MANIFEST:
        raise CheckpointError(
            f"{folder / MANIFEST}: cannot be written: the manifest would have {len(text):,} bytes, more than the "
            f"{_LARGEST_MANIFEST:,} that can be read again. Keep large data in tensors, not in the metadata"
        )
    try:
        with replacing(folder / MANIFEST) as new:
            new.write_text(text)
            for written in (data, folder):
                sync_folder(written)
        sync_folder(folder.parent)
    except OSError as error:
        raise CheckpointError(f"{folder / MANIFEST}: cannot be written: {error}") from error
    _remove_all_but(folder, {data.name})


def discard(data: Path) -> None:
    """Remove a data folder that was not committed, and the folder of its step if nothing else is in it."""
    folder = data.parent
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        if _read_json(folder / MANIFEST).get("data") == data.name:
            return
    shutil.rmtree(data, ignore_errors=True)
    if _STEP.fullmatch(folder.name):
        with suppress(OSError):
            folder.rmdir()


def json_sum(content: Any) -> int:
    """Return the CRC-32 of JSON data."""
    return zlib.crc32(json.dumps(content).encode())


def file_sum(path: Path) -> tuple[int, int]:
    """Return the size in bytes and the CRC-32 of a file."""
    size = total = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 22):
                size += len(piece)
                total = zlib.crc32(piece, total)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return size, total


# --- Series of states ---


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of one step in a series."""
    return folder / f"step-{step:08d}"


def saved_steps(folder: Path) -> dict[int, Path]:
    """Return the folder of each step of a series that has a manifest, in ascending order."""
    try:
        found = [path for path in folder.iterdir() if _STEP.fullmatch(path.name)]
        complete = [path for path in found if any((path / name).is_file() for name in (MANIFEST, _REGION_MANIFEST))]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from error
    steps = [(int(path.name.removeprefix("step-")), path) for path in complete]
    return dict(
        sorted(steps, key=lambda step: (step[0], len(step[1].name)))
    )  # release 0.1 did not pad those of regions


def prune(folder: Path, keep: Iterable[int]) -> None:
    """Remove all steps of a series except `keep`; files with other names stay.

    Call this when all processes have written, so that steps without a manifest are certainly leftovers.
    """
    steps = saved_steps(folder)
    kept = {steps[step] for step in keep if step in steps}
    for path in folder.iterdir():
        if _STEP.fullmatch(path.name) and path.is_dir():
            if (path / _REGION_MANIFEST).exists() and path not in kept:
                shutil.rmtree(path, ignore_errors=True)
            elif path not in kept:
                with suppress(OSError):
                    (path / MANIFEST).unlink(missing_ok=True)  # first: from here on, the step is not there
                    _remove_all_but(path, set())
                    path.rmdir()
            else:
                with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                    manifest = _read_json(path / MANIFEST)
                    if manifest.get("format") == FORMAT:
                        _remove_all_but(path, {str(manifest["data"])})


def _remove_all_but(folder: Path, keep: set[str]) -> None:
    """Remove data and leftovers of killed saves from the folder of a state, but nothing that could be a user's."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name in keep or not _OURS.fullmatch(path.name):
                continue
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif path.name.startswith(".") or all(_WRITTEN.fullmatch(file.name) for file in path.iterdir()):
                shutil.rmtree(path, ignore_errors=True)
