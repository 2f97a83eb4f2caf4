"""Saved states: a folder with a manifest, and a file of arrays for each shard that saved.

`manifest.json` is the only name that a reader starts from. It is replaced last, by renaming, so a folder holds the new
state or, whatever happened while it was being written, the old one. The arrays are safetensors files: numbers
and names, nothing that could be executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from neuraxis.engine.state import COUNTS, STREAM, ShardState
from neuraxis.errors import CheckpointError
from neuraxis.network import Network, RewardSTDP

__all__ = ["SavedState", "check_sums", "describe_network", "read_manifest", "write_manifest", "write_shard"]

MANIFEST = "manifest.json"
# Raised, too, when a change of the engine draws other synapses from a seed: they are not saved but drawn again.
FORMAT = 2

_STATE = re.compile(r"state-\d+-[0-9a-f]{8}")
_SHARD = re.compile(r"shard-\d+\.safetensors")

Array = NDArray[np.generic]


def write_shard(folder: Path, state: ShardState, shard: int, residents: Mapping[str, Array] | None = None) -> str:
    """Write one shard's state, and what its residents remember, to a file in `folder`; its name."""
    arrays: dict[str, Array] = {
        "spike_steps": state.spike_steps,
        "spike_ids": state.spike_ids,
        "levels": state.levels,
        "spike_counts": state.spike_counts,
        "pending_steps": state.pending_steps,
        "pending_ids": state.pending_ids,
        "silent": state.silent,
        "frozen": state.frozen,
    }
    for kind, pieces in (("population", state.populations), ("projection", state.projections)):
        for index, piece in pieces.items():
            for name, array in piece.arrays.items():
                arrays[f"{kind}/{index}/{piece.first}/{piece.last}/{name}"] = array
    for index, sources in state.sources.items():
        for name, array in sources.items():
            arrays[f"sources/{index}/{name}"] = array
    arrays |= {f"resident/{key}": array for key, array in (residents or {}).items()}
    name = f"shard-{shard}.safetensors"
    totals = {"step": str(state.step), "events": str(state.events), "spike_hash": str(state.spike_hash)}
    path = folder / name
    try:
        # (A single number would become an array of one.)
        whole = {key: np.ascontiguousarray(value) if value.ndim else value for key, value in arrays.items()}
        save_file(whole, path, metadata=totals)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    return name


class SavedState:
    """A saved state, read piece by piece; see `neuraxis.engine.state.Saved`."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self._stack = ExitStack()
        # (kind, index) -> pieces in the order of neurons: (first, last, file, names)
        self._pieces: dict[tuple[str, int], list[tuple[int, int, Any, set[str]]]] = {}
        try:
            self._files = [self._stack.enter_context(_open(folder / name)) for name in files]
            self._folder, self._names = folder, files
            self._read_totals()
            self._find_pieces()
        except (KeyError, ValueError, TypeError, SafetensorError) as error:
            self._stack.close()
            raise CheckpointError(f"{folder}: damaged: {error!r}") from error
        except BaseException:
            self._stack.close()
            raise

    def _read_totals(self) -> None:
        totals = [self._read(file, _totals) for file in self._files]
        steps = {step for step, _, _ in totals}
        if len(steps) != 1:
            raise CheckpointError(f"{self._folder}: its files were saved at different steps: {sorted(steps)}")
        self.step = steps.pop()
        self.events = sum(events for _, events, _ in totals)
        self.spike_hash = sum(spike_hash for _, _, spike_hash in totals) % 2**64
        self.spike_steps = np.concatenate([file.get_tensor("spike_steps") for file in self._files])
        self.spike_ids = np.concatenate([file.get_tensor("spike_ids") for file in self._files])
        self.spike_counts = np.sum([file.get_tensor("spike_counts") for file in self._files], axis=0)
        self.pending_steps = np.concatenate([file.get_tensor("pending_steps") for file in self._files])
        self.pending_ids = np.concatenate([file.get_tensor("pending_ids") for file in self._files])
        # What several shards hold alike.
        levels = np.stack([file.get_tensor("levels") for file in self._files])
        self.levels = np.take_along_axis(levels, np.isnan(levels).argmin(axis=0)[None], axis=0)[0]
        self.silent = self._files[0].get_tensor("silent")
        self.frozen = self._files[0].get_tensor("frozen")

    def _find_pieces(self) -> None:
        for file in self._files:
            for (kind, index, first, last), names in self._read(file, _names).items():
                self._pieces.setdefault((kind, index), []).append((first, last, file, names))
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece[0])

    def _read(self, file: Any, how: Callable[[Any], Any]) -> Any:
        """What `how` reads from a file; an error names the file."""
        try:
            return how(file)
        except (KeyError, ValueError, TypeError) as error:
            path = self._folder / self._names[self._files.index(file)]
            raise CheckpointError(f"{path}: damaged: {error!r}") from error

    def check(self, network: Network) -> None:
        """Raise unless everything is there that a network's shards will ask for, in the right sizes."""
        try:
            self._check(network)
        except (KeyError, ValueError, TypeError, IndexError, SafetensorError) as error:
            raise CheckpointError(f"{self._folder}: damaged: {error!r}") from error

    def _check(self, network: Network) -> None:
        driven = {one.population.index for one in network.poisson_inputs}
        self._require(self.levels.shape == (max(1, len(network.neuromodulators)),), "levels of neuromodulators")
        self._require(self.spike_counts.shape == (len(network.populations),), "counts of spikes")
        self._require(self.spike_steps.shape == self.spike_ids.shape, "spikes under way")
        within = (self.spike_ids >= 0) & (self.spike_ids < network.neuron_count)
        self._require(bool(within.all()), "ids of spikes under way")
        self._require(self.pending_steps.shape == self.pending_ids.shape, "injected spikes")
        within = (self.pending_ids >= 0) & (self.pending_ids < network.neuron_count)
        self._require(bool(within.all()), "ids of injected spikes")
        for population in network.populations:
            names = {*population.model.states, COUNTS}
            if population.index in driven or population.model.takes_uniform:
                names.add(STREAM)
            if names:
                self._check_pieces("population", population.index, population.n, names, population.name)
        for projection in network.projections:
            if projection.plasticity:
                names = {"weights", "in_degrees", "scale_count"}
                if projection.pairing is not None:
                    names |= {"post_steps", "post_traces", "post_counts"}
                if isinstance(projection.pairing, RewardSTDP):
                    names.add("eligibilities")
                self._check_pieces("projection", projection.index, projection.post.n, names, projection.name)
                if projection.pairing is not None or projection.short_term is not None:
                    found = self.sources(projection.index)
                    self._require(
                        {"last", "applied", "trace", "resource"} <= set(found), f"sources of {projection.name}"
                    )

    def _check_pieces(self, kind: str, index: int, n: int, names: set[str], what: str) -> None:
        end = 0
        for first, last, file, found in self._pieces.get((kind, index), []):
            self._require(first == end and last > first, f"neurons {end} and on of {what}")
            self._require(names <= found, f"{', '.join(sorted(names - found))} of {what}")
            end = last
            key = f"{kind}/{index}/{first}/{last}"
            synapses = last - first
            if kind == "projection":
                synapses = int(file.get_tensor(f"{key}/in_degrees").sum())
            for name in names:
                wanted = synapses if name in ("weights", "eligibilities") else last - first
                shape = file.get_slice(f"{key}/{name}").get_shape()
                self._require(bool(shape) and shape[0] == wanted, f"{name} of {what}")
        self._require(end == n, f"neurons {end} and on of {what}")

    def _require(self, fulfilled: bool, what: str) -> None:
        if not fulfilled:
            raise CheckpointError(f"{self._folder}: damaged: {what}: missing or of the wrong size")

    def neurons(self, population: int, first: int, last: int) -> Mapping[str, Array]:
        collected: dict[str, list[Array]] = {}
        for start, end, file, names, key in self._overlapping("population", population, first, last):
            low, high = max(first, start) - start, min(last, end) - start
            for name in names:
                collected.setdefault(name, []).append(_rows(file, f"{key}/{name}", low, high))
        return {name: np.concatenate(arrays) for name, arrays in collected.items()}

    def synapses(self, projection: int, first: int, last: int) -> Mapping[str, Array]:
        collected: dict[str, list[Array]] = {}
        for start, end, file, names, key in self._overlapping("projection", projection, first, last):
            low, high = max(first, start) - start, min(last, end) - start
            ends = np.concatenate(([0], np.cumsum(file.get_tensor(f"{key}/in_degrees"))))
            for name in names:
                if name in ("weights", "eligibilities"):
                    part = _rows(file, f"{key}/{name}", int(ends[low]), int(ends[high]))
                else:
                    part = _rows(file, f"{key}/{name}", low, high)
                collected.setdefault(name, []).append(part)
        for name in ("post_steps", "post_traces"):
            if name in collected:
                # Shards may have kept different numbers of spikes; the newest are last.
                longest = max(part.shape[1] for part in collected[name])
                collected[name] = [np.pad(part, ((0, 0), (longest - part.shape[1], 0))) for part in collected[name]]
        return {name: np.concatenate(arrays) for name, arrays in collected.items()}

    def sources(self, projection: int) -> Mapping[str, Array]:
        for file in self._files:
            prefix = f"sources/{projection}/"
            names = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118
            if names:
                return {key.removeprefix(prefix): file.get_tensor(key) for key in names}
        return {}

    def residents(self) -> dict[str, Array]:
        """What all residents remember, by "name/key"."""
        prefix = "resident/"
        return {
            key.removeprefix(prefix): file.get_tensor(key)
            for file in self._files
            for key in file.keys()  # noqa: SIM118
            if key.startswith(prefix)
        }

    def _overlapping(
        self, kind: str, index: int, first: int, last: int
    ) -> Iterator[tuple[int, int, Any, set[str], str]]:
        for start, end, file, names in self._pieces.get((kind, index), []):
            if start < last and end > first:
                yield start, end, file, names, f"{kind}/{index}/{start}/{end}"

    def __enter__(self) -> SavedState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


def _rows(file: Any, name: str, first: int, last: int) -> Array:
    """Some rows of an array in a file; safetensors itself cannot give none."""
    if first == last:
        return file.get_tensor(name)[:0]  # type: ignore[no-any-return]
    return file.get_slice(name)[first:last]  # type: ignore[no-any-return]


def _totals(file: Any) -> tuple[int, int, int]:
    given = file.metadata() or {}
    return int(given["step"]), int(given["events"]), int(given["spike_hash"])


def _names(file: Any) -> dict[tuple[str, int, int, int], set[str]]:
    """The arrays in a file, by (kind, index, first, last neuron)."""
    found: dict[tuple[str, int, int, int], set[str]] = {}
    for key in file.keys():  # noqa: SIM118  (a safetensors file is no mapping)
        kind, *rest = key.split("/")
        if kind in ("population", "projection"):
            index, first, last, name = rest
            found.setdefault((kind, int(index), int(first), int(last)), set()).add(name)
    return found


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def new_state_folder(folder: Path, step: int) -> Path:
    """A new folder for the files of one state, inside the checkpoint's folder."""
    try:
        made = folder / f"state-{step}-{secrets.token_hex(4)}"
        made.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror}") from error
    return made


def write_manifest(
    folder: Path, state: Path, files: list[str], network: Network, step: int, fingerprint: str,
    note: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Make `state` the state that the folder holds."""
    _state_named(folder / MANIFEST)  # raises where a manifest of somebody else would be written over
    manifest = {
        "format": FORMAT,
        "step": step,
        "time_ms": step * network.dt_ms,
        "fingerprint": fingerprint,
        "network": describe_network(network),
        "state": state.name,
        "files": files,
        "checksums": {name: _checksum(state / name) for name in files},
        "note": dict(note or {}),
    }
    new = folder / f".{MANIFEST}.{secrets.token_hex(4)}"
    try:
        with open(new, "w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / MANIFEST)
        _sync_folder(folder)  # before the state that it named so far is removed
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise CheckpointError(f"{folder / MANIFEST}: cannot be written: {error}") from error


def remove_other_states(folder: Path, state: Path) -> None:
    """Remove the states before, and what saves that were killed have left: folders that are surely ours."""
    for other in folder.iterdir():
        if other.name != state.name and _STATE.fullmatch(other.name) and other.is_dir():
            if all(_SHARD.fullmatch(file.name) for file in other.iterdir()):
                shutil.rmtree(other, ignore_errors=True)


def discard_state(folder: Path, state: Path) -> None:
    """Remove the files of a state that was not saved to the end, unless the manifest names it already."""
    try:
        named = _state_named(folder / MANIFEST)
    except CheckpointError:
        named = ""
    if named != state.name:
        shutil.rmtree(state, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    if os.name == "posix":
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _state_named(path: Path) -> str:
    """The folder of the state that a manifest names, "" if there is none; an error if the file is none of ours."""
    try:
        manifest = json.loads(path.read_text())
        name, ours = str(manifest["state"]), "network" in manifest and "format" in manifest
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: is there already and is no manifest of a saved state: {error!r}") from error
    if not ours:
        raise CheckpointError(f"{path}: is there already and is no manifest of a saved state")
    return "" if _is_elsewhere(name) or not name.startswith("state-") else name


def check_sums(folder: Path) -> None:
    """Raise if a file of the saved state is not, to the bit, what was written."""
    manifest = json.loads((folder / MANIFEST).read_text())
    expected = manifest.get("checksums")
    for name in manifest["files"]:
        path = folder / manifest["state"] / name
        if not isinstance(expected, dict) or _checksum(path) != expected.get(name):
            raise CheckpointError(f"{path}: damaged: it is not what was written (its checksum differs)")


def _checksum(path: Path) -> int:
    total = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 22):
                total = zlib.crc32(piece, total)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return total


def read_manifest(folder: Path, network: Network) -> tuple[Path, list[str], dict[str, Any]]:
    """The folder and the names of the files of the saved state, and its note; an error if it is another network's."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        saved, name, files = dict(manifest["network"]), str(manifest["state"]), [str(f) for f in manifest["files"]]
        note = dict(manifest.get("note") or {})
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no saved state here ({MANIFEST} is missing)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a saved state: {error!r}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {manifest.get('format')!r}; this version reads format {FORMAT}")
    if any(_is_elsewhere(one) for one in (name, *files)) or not files:
        raise CheckpointError(f"{path}: names files outside its folder")
    here = describe_network(network)
    if saved.get("digest") != here["digest"]:
        here["digest"] = "another: models, inputs, rules, weights, delays or plasticity differ"
    for field in ("seed", "dt_ms", "populations", "projections", "digest"):
        if saved.get(field) != here[field]:
            raise CheckpointError(
                f"{folder}: was saved from another network: {field} was {saved.get(field)!r}, "
                f"here it is {here[field]!r}"
            )
    return folder / name, files, note


def _is_elsewhere(name: str) -> bool:
    """Whether a name is more than that of something in a folder."""
    return Path(name).name != name or name in ("", ".", "..")


def describe_network(network: Network) -> dict[str, Any]:
    """What tells one network from another, for a person and (`digest`) in full but for probes."""
    digest = hashlib.sha256()
    for population in network.populations:
        model = population.model
        constants = sorted(model.values(network.dt_ms).items())
        _digest(digest, population.name, population.n, model.source, constants, *population.initial.items())
        _digest(digest, sorted(model.globals_used.items()), list(model.states.items()), model.receptors)
        _digest(digest, list(model.signals.items()))
    for p in network.projections:
        _digest(digest, p.name, p.pre.name, p.post.name, p.receptor, p.plasticity, p.rule, p.weight, p.delay_ms)
    for poisson in network.poisson_inputs:
        _digest(digest, poisson.population.name, poisson.rate_hz, poisson.weight, poisson.receptor)
        _digest(digest, poisson.start_ms, poisson.stop_ms)
    for spikes in network.spike_inputs:
        _digest(digest, spikes.population.name, spikes.times_ms, spikes.ids)
    for current in network.current_inputs:
        _digest(digest, current.population.name, current.amplitude_pa, current.start_ms, current.stop_ms)
    for modulation in network.modulations:
        _digest(digest, modulation.population.name, modulation.modulator, modulation.amount, modulation.delay_ms)
    _digest(digest, *network.neuromodulators, *network.rhythms)
    return {
        "seed": network.seed,
        "dt_ms": network.dt_ms,
        "populations": {p.name: p.n for p in network.populations},
        "projections": [p.name for p in network.projections],
        "digest": digest.hexdigest(),
    }


def _digest(digest: Any, *values: object) -> None:
    """Add values to a digest: arrays in full, dataclasses field by field, anything else as it prints."""
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, tuple | list):
            _digest(digest, *value)
        elif is_dataclass(value) and not isinstance(value, type):
            digest.update(type(value).__name__.encode())
            _digest(digest, *(getattr(value, field.name) for field in fields(value)))
        else:
            digest.update(repr(value).encode() + b"\0")
