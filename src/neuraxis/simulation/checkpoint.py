"""Saved states of a simulation: one file of arrays from each shard, in the layout of `neuraxis.store.states`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from neuraxis.engine.cpu.rates import Outputs
from neuraxis.engine.spikes import longest_rate_lag, rate_sources
from neuraxis.engine.state import COUNTS, STREAM, ShardState
from neuraxis.network import Network, RewardSTDP, Values
from neuraxis.network.parameters import value_text
from neuraxis.store.states import (
    Kind,
    SavedFolder,
    begin,
    check_replaceable,
    commit,
    damaged,
    file_sum,
    open_tensors,
    shard_name,
    write_tensors,
)

__all__ = ["SavedState", "begin_state", "commit_state", "describe_network", "find_state", "saved_note", "write_shard"]

# Increased also when a change of the engine draws other synapses from a seed: synapses are not saved but drawn again.
KIND = Kind("simulation", 2)

# Of lif_cond_exp, whose factor of 1/6 is exact in float64 since release 0.2.
_SOURCES_OF_0_1 = {"v = v_mv + h * (1.0 / 6.0) * (a + 2.0": "v = v_mv + h * 0.16666667 * (a + 2.0"}

_PYTHON_STATE = "resident/"  # prefix of the states of Python populations; part of the file format

Array = NDArray[np.generic]


def write_shard(folder: Path, state: ShardState, shard: int, python_states: Mapping[str, Array] | None = None) -> str:
    """Write the state of one shard and of its Python populations to a file in `folder`, and return its name."""
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
    for index, outputs in state.outputs.items():
        arrays[f"output/{index}/{outputs.first}/{outputs.last}/values"] = outputs.values
    for index, sources in state.sources.items():
        for name, array in sources.items():
            arrays[f"sources/{index}/{name}"] = array
    arrays |= {f"{_PYTHON_STATE}{key}": array for key, array in (python_states or {}).items()}
    name = shard_name(shard)
    totals = {"step": str(state.step), "events": str(state.events), "spike_hash": str(state.spike_hash)}
    # ascontiguousarray would turn a scalar into an array of one element.
    whole = {key: np.ascontiguousarray(value) if value.ndim else value for key, value in arrays.items()}
    write_tensors(folder / name, whole, totals)
    return name


class SavedState:
    """A saved state, read in pieces; implements `neuraxis.engine.state.Saved`."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self._stack = ExitStack()
        # (kind, index) -> pieces in the order of neurons: (first, last, file, names)
        self._pieces: dict[tuple[str, int], list[tuple[int, int, Any, set[str]]]] = {}
        try:
            self._files = [self._stack.enter_context(open_tensors(folder / name)) for name in files]
            self._folder, self._names = folder, files
            self._read_totals()
            self._find_pieces()
        except (KeyError, ValueError, TypeError, SafetensorError) as error:
            self._stack.close()
            raise damaged(folder, repr(error)) from error
        except BaseException:
            self._stack.close()
            raise

    def _read_totals(self) -> None:
        totals = [self._read(file, _totals) for file in self._files]
        steps = {step for step, _, _ in totals}
        if len(steps) != 1:
            raise damaged(self._folder, f"its files were saved at different steps: {sorted(steps)}")
        self.step = steps.pop()
        self.events = sum(events for _, events, _ in totals)
        self.spike_hash = sum(spike_hash for _, _, spike_hash in totals) % 2**64
        self.spike_steps = np.concatenate([file.get_tensor("spike_steps") for file in self._files])
        self.spike_ids = np.concatenate([file.get_tensor("spike_ids") for file in self._files])
        self.spike_counts = np.sum([file.get_tensor("spike_counts") for file in self._files], axis=0)
        self.pending_steps = np.concatenate([file.get_tensor("pending_steps") for file in self._files])
        self.pending_ids = np.concatenate([file.get_tensor("pending_ids") for file in self._files])
        # Several shards hold the same values of these.
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
        """Call `how` with a file; an error names the file."""
        try:
            return how(file)
        except (KeyError, ValueError, TypeError) as error:
            path = self._folder / self._names[self._files.index(file)]
            raise damaged(path, repr(error)) from error

    def check(self, network: Network) -> None:
        """Raise unless the state holds every array that the shards of a network need, in the right sizes."""
        try:
            self._check(network)
        except (KeyError, ValueError, TypeError, IndexError, SafetensorError) as error:
            raise damaged(self._folder, repr(error)) from error

    def _check(self, network: Network) -> None:
        driven = {one.population.index for one in network.poisson_inputs}
        self._require(self.levels.shape == (max(1, len(network.neuromodulators)),), "levels of neuromodulators")
        self._require(self.spike_counts.shape == (len(network.populations),), "counts of spikes")
        self._require(self.spike_steps.shape == self.spike_ids.shape, "spikes in flight")
        within = (self.spike_ids >= 0) & (self.spike_ids < network.neuron_count)
        self._require(bool(within.all()), "ids of spikes in flight")
        self._require(self.pending_steps.shape == self.pending_ids.shape, "injected spikes")
        within = (self.pending_ids >= 0) & (self.pending_ids < network.neuron_count)
        self._require(bool(within.all()), "ids of injected spikes")
        for population in network.populations:
            names = {*population.model.states, COUNTS}
            if population.index in driven or population.model.draws:
                names.add(STREAM)
            if names:
                self._check_pieces("population", population.index, population.n, names, population.name)
        depth = longest_rate_lag(network)
        for index in sorted(rate_sources(network)):
            population = network.populations[index]
            self._check_pieces("output", index, population.n, {"values"}, f"outputs of {population.name}")
            for one in self.outputs(index):
                self._require(one.values.shape[1:] == (depth,), f"outputs of {population.name}")
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
            raise damaged(self._folder, f"{what}: missing or of the wrong size")

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
                # Shards may keep different numbers of spikes; the newest are last.
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

    def outputs(self, population: int) -> list[Outputs]:
        return [
            Outputs(first, last, file.get_tensor(f"output/{population}/{first}/{last}/values"))
            for first, last, file, _ in self._pieces.get(("output", population), [])
        ]

    def python_populations(self) -> dict[str, Array]:
        """Return the states of all Python populations, by "name/key"."""
        prefix = _PYTHON_STATE
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
    """Return some rows of an array in a file; safetensors cannot return an empty slice."""
    if first == last:
        return file.get_tensor(name)[:0]  # type: ignore[no-any-return]
    return file.get_slice(name)[first:last]  # type: ignore[no-any-return]


def _totals(file: Any) -> tuple[int, int, int]:
    given = file.metadata() or {}
    return int(given["step"]), int(given["events"]), int(given["spike_hash"])


def _names(file: Any) -> dict[tuple[str, int, int, int], set[str]]:
    """Return the names of the arrays in a file, by (kind, index, first, last neuron)."""
    found: dict[tuple[str, int, int, int], set[str]] = {}
    for key in file.keys():  # noqa: SIM118  (a safetensors file is not a mapping)
        kind, *rest = key.split("/")
        if kind in ("population", "projection", "output"):
            index, first, last, name = rest
            found.setdefault((kind, int(index), int(first), int(last)), set()).add(name)
    return found


def begin_state(folder: Path) -> Path:
    """Make a folder for the files of a new state inside the folder of the simulation."""
    check_replaceable(folder, KIND)
    return begin(folder)


def commit_state(
    data: Path, files: list[str], network: Network, step: int, fingerprint: str, note: Mapping[str, Any] | None = None
) -> None:
    """Make the files in `data` the state of the folder that it is in."""
    sums = {name: file_sum(data / name) for name in files}
    metadata = {
        "step": step,
        "time_ms": step * network.dt_ms,
        "fingerprint": fingerprint,
        "note": dict(note or {}),
        "parameters": _parameters(network),
    }
    commit(data, KIND, sums, metadata, describe_network(network))


def find_state(folder: Path, network: Network) -> SavedFolder:
    """Return the state in a folder; raise CheckpointError if there is none of this network."""
    found = SavedFolder.read(folder, KIND)
    what_differs = (
        _changed_parameter(found.metadata.get("parameters"), _parameters(network))
        or "precision, models, initial values, inputs, rules, weights, delays or plasticity differ"
    )
    found.require_identity(describe_network(network), "network", what_differs)
    saved_note(found)  # raises if it is damaged
    return found


def _parameters(network: Network) -> dict[str, dict[str, str]]:
    """Return the parameters of each population as text; that of different values has a digest of them."""
    return {
        one.name: {
            name: f"{value_text(value)} (sha256 {_sha256(value.array)})" if isinstance(value, Values) else repr(value)
            for name, value in one.model.parameters.items()
        }
        for one in network.populations
    }


def _sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def _changed_parameter(saved: object, here: Mapping[str, Mapping[str, str]]) -> str:
    """Return the population and parameter that differ from a saved state, if the state has them; else nothing."""
    for population, parameters in here.items():
        were = saved.get(population) if isinstance(saved, dict) else None
        if not isinstance(were, dict) or were.keys() != parameters.keys():
            continue  # another model, or a state of release 0.1
        for name, value in parameters.items():
            if were[name] != value:
                return f"population {population!r}: parameter {name} was {were[name]!s:.100}, here it is {value}"
    return ""


def saved_note(found: SavedFolder) -> dict[str, Any]:
    """Return what the user has saved with a state."""
    try:
        return dict(found.metadata.get("note") or {})
    except (TypeError, ValueError) as error:
        raise damaged(found.folder, f"its note is {error!r:.300}") from error


def describe_network(network: Network) -> dict[str, Any]:
    """Return what identifies a network: a readable part and a `digest` of everything except probes."""
    digest = hashlib.sha256(b"float64" if network.is_wide else b"")
    for population in network.populations:
        model = population.model
        constants = sorted(model.values(network.dt_ms).items())
        source = model.source if network.is_wide else _source_of_0_1(model.source)
        _digest(digest, population.name, population.n, source, constants, *population.initial.items())
        _digest(digest, sorted(model.globals_used.items()), list(model.states.items()), model.receptors)
        _digest(digest, list(model.signals.items()))
        if model.rate_inputs or model.output:
            _digest(digest, "rates", model.rate_inputs, model.output)
        _digest(digest, *((name, row.array) for name, row in model.rows.items()))
    for p in network.projections:
        _digest(digest, p.name, p.pre.name, p.post.name, p.receptor, p.plasticity, p.rule, p.weight, p.delay_ms)
    for one in network.rate_projections:
        _digest(
            digest, "rates", one.name, one.pre.name, one.post.name, one.receptor, one.rule, one.weight, one.delay_ms
        )
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
        "projections": [p.name for p in (*network.projections, *network.rate_projections)],
        "digest": digest.hexdigest(),
    }


def _source_of_0_1(source: str) -> str:
    """Return the source that a model had in release 0.1, if a float32 network computes the same bits with both.

    States of that release are restored by the digest of its sources.
    """
    for now, then in _SOURCES_OF_0_1.items():
        source = source.replace(now, then)
    return source


def _digest(digest: Any, *values: object) -> None:
    """Add values to a digest: arrays in full, dataclasses field by field, anything else by its repr."""
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
