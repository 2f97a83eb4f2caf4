"""SONATA spike files and reports: written while a network runs, and read by many other tools.

`neuraxis.store.growing` explains what remains when a process dies. In a spike file, node ids are committed before the
timestamps that make them valid, and a missing timestamp reads as NaN. In a report, frames are committed before the stop
time that makes them valid. So readers of a `.partial` file can find where the complete part ends.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.store.growing import CommittedFile, GrowingFile, readable_prefix, reading, whole_dataset

__all__ = ["ReportFile", "SpikeFile", "checked_integers", "checked_name", "read_report", "read_spikes"]

_SORTING = h5py.enum_dtype({"none": 0, "by_id": 1, "by_time": 2}, basetype="u1")
_BUFFERED_SPIKES = 65_536  # per population in memory: 1 MiB of timestamps and node ids
_CHUNK_SPIKES = 8_192  # per chunk of a dataset: 64 KiB, small for populations with few spikes
_BUFFERED_VALUES = 262_144  # of a report in memory: 1 MiB, or one frame if that is more
_CHUNK_VALUES = 16_384  # per chunk of a report, at most: 64 KiB

_Integers = npt.NDArray[np.integer[Any]]


class SpikeFile(GrowingFile):
    """A SONATA spike file that grows while a network runs.

    The group `/spikes/<population>` holds `timestamps` (float64, ms, step times `dt_ms`) and `node_ids` (uint64, from 0
    within the population), sorted by time. Memory is bounded: a population's spikes are written when 65,536 of them are
    buffered. Until `close` the file is named `<path>.partial`; an abandoned file of that name is overwritten. As a
    context manager it closes on exit, or stays `.partial` if the block raised.

    Parameters
    ----------
    path : path
        File to create or, at `close`, to replace; its folder must exist.
    populations : sequence of (str, int)
        Name and number of neurons of each population; their order defines `population_index` of `append`.
    dt_ms : float
        Length of a step in ms.
    seed : int, optional
        Seed of the network, stored as an attribute.

    Raises
    ------
    InvalidArgument
        An argument is invalid, or another SpikeFile is writing to `path`.
    OSError
        The file cannot be created (`PermissionError`, a full disk, ...).

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with SpikeFile(folder / "spikes.h5", [("cells", 10)], dt_ms=0.1) as file:
    ...     file.append(np.array([3, 5]), 0, np.array([7, 2]))
    >>> times_ms, node_ids = read_spikes(folder / "spikes.h5")["cells"]
    >>> node_ids.tolist()
    [7, 2]
    """

    _kind = "spike file"
    _content = "spikes"

    def __init__(
        self,
        path: str | os.PathLike[str],
        populations: Sequence[tuple[str, int]],
        dt_ms: float,
        seed: int | None = None,
    ) -> None:
        self.populations = _checked_populations(populations)
        if not (math.isfinite(dt_ms) and dt_ms > 0):
            raise InvalidArgument(f"dt_ms is {dt_ms}: give the length of a step in ms, above 0")
        if seed is not None and not 0 <= operator.index(seed) < 2**64:
            raise InvalidArgument(f"seed is {seed}: give an integer from 0 to 2**64 - 1, or None")
        self.dt_ms = float(dt_ms)
        self._seed = seed
        super().__init__(path)

    def _create_datasets(self) -> None:
        self._file.attrs["dt_ms"] = self.dt_ms
        if self._seed is not None:
            self._file.attrs["seed"] = np.uint64(self._seed)
        # Keeps the order of creation, so that readers list the populations like the network.
        spikes = self._file.create_group("spikes", track_order=True)
        self._streams = [_Stream(self._disk, spikes, name, n) for name, n in self.populations]

    def append(self, steps: _Integers, population_index: int | _Integers, local_ids: _Integers) -> None:
        """Add spikes: neuron `local_ids[i]` of population `population_index[i]` spiked in step `steps[i]`.

        The steps of each population must not decrease, within a call and between calls; spikes of one step keep their
        order. If this raises InvalidArgument or InvalidType, nothing was added; if OSError, perhaps a part.

        Parameters
        ----------
        steps : array of int, shape (spikes,)
            Steps.
        population_index : int or array of int, shape (spikes,)
            Populations; one number for all spikes, or one per spike.
        local_ids : array of int, shape (spikes,)
            Neurons within their populations.
        """
        self._require_open()
        steps = checked_integers("steps", steps)
        local_ids = checked_integers("local_ids", local_ids)
        if steps.ndim != 1 or steps.shape != local_ids.shape:
            raise InvalidArgument(
                f"steps has shape {steps.shape} and local_ids {local_ids.shape}: give one of each for every spike"
            )
        batches = [
            (self._streams[index], steps[chosen], local_ids[chosen])
            for index, chosen in self._by_population(population_index, len(steps))
        ]
        for stream, batch_steps, batch_ids in batches:
            stream.check(batch_steps, batch_ids)
        for stream, batch_steps, batch_ids in batches:
            stream.append(batch_steps, batch_steps * self.dt_ms, batch_ids)

    def _write(self) -> None:
        for stream in self._streams:
            stream.write()

    def __repr__(self) -> str:
        state = "open" if self._file else "closed"
        return f"<SpikeFile {str(self.path)!r}, {len(self.populations)} populations, {state}>"

    def _by_population(self, population_index: int | _Integers, count: int) -> list[tuple[int, Any]]:
        """Return the populations that occur, each with an index that selects its spikes."""
        indices = checked_integers("population_index", population_index)
        if indices.ndim and indices.shape != (count,):
            raise InvalidArgument(
                f"population_index has shape {indices.shape}: give one number, or one for each of {count} spikes"
            )
        present = np.unique(indices).tolist()
        if present and not 0 <= present[0] <= present[-1] < len(self._streams):
            wrong = present[0] if present[0] < 0 else present[-1]
            raise InvalidArgument(f"population_index is {wrong}: there are {len(self._streams)} populations, from 0")
        if count == 0:
            return []
        if len(present) == 1:
            return [(present[0], slice(None))]
        order = np.argsort(indices, kind="stable")
        starts = np.searchsorted(indices[order], present)
        return list(zip(present, np.split(order, starts[1:]), strict=True))


def read_spikes(
    path: str | os.PathLike[str],
) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64]]]:
    """Read a SONATA spike file.

    Of a `.partial` file that a dead process left, the complete beginning is read.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    dict
        By population: times in ms (float64) and node ids (uint64), both of shape (spikes,), in the order of the file.

    Raises
    ------
    InvalidArgument
        The file is damaged or not a SONATA spike file.
    OSError
        The file cannot be opened or is not HDF5.

    Examples
    --------
    >>> import tempfile
    >>> from neuraxis.simulation import Simulation
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import spike_source
    >>> network = Network(dt_ms=0.1)
    >>> cells = network.population("cells", 10, spike_source)
    >>> _ = network.spikes(cells, times_ms=[0.3, 0.5], ids=[7, 2])
    >>> _ = network.record(cells, "spikes")
    >>> path = Path(tempfile.mkdtemp(), "out.h5")
    >>> with Simulation(network, record_to=path) as simulation:
    ...     _ = simulation.run(1.0)
    >>> times_ms, node_ids = read_spikes(path)["cells"]
    >>> times_ms.round(1).tolist(), node_ids.tolist()
    ([0.3, 0.5], [7, 2])
    """
    spikes: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64]]] = {}
    torn = Path(path).suffix == ".partial"
    with reading(path) as file:
        if not isinstance(file.get("spikes"), h5py.Group):
            raise InvalidArgument(f"path is {str(path)!r}: not a SONATA spike file: it has no group /spikes")
        for name, group in file["spikes"].items():
            units = group["timestamps"].attrs.get("units", "ms")
            if units not in ("ms", b"ms", "milliseconds", b"milliseconds"):  # all of these are in use
                raise InvalidArgument(
                    f"path is {str(path)!r}: /spikes/{name} has times in {units!r}, only ms are supported"
                )
            read = readable_prefix if torn else whole_dataset
            times_ms = read(group["timestamps"]).astype(np.float64, copy=False)
            node_ids = read(group["node_ids"]).astype(np.uint64, copy=False)
            if torn:
                count = min(_complete(times_ms), len(node_ids))
                times_ms, node_ids = times_ms[:count], node_ids[:count]
            elif len(times_ms) != len(node_ids):
                raise InvalidArgument(
                    f"path is {str(path)!r}: /spikes/{name} has {len(times_ms)} timestamps but {len(node_ids)} node_ids"
                )
            spikes[name] = (times_ms, node_ids)
    return spikes


class ReportFile(GrowingFile):
    """A SONATA report that grows while a network runs: a state of some neurons at equidistant times.

    The group `/report/<population>` holds `data` (frames x neurons) and `mapping`: `node_ids` (from 0 within the
    population) and `time`, which is start, stop (the time of the frame after the last one) and step in ms. Memory is
    bounded: frames are written when 1 MiB of them is buffered. Until `close` the file is named `<path>.partial`; an
    abandoned file of that name is overwritten. As a context manager it closes on exit, or stays `.partial` if the block
    raised.

    Parameters
    ----------
    path : path
        File to create or, at `close`, to replace; its folder must exist.
    population_name : str
        Population of the neurons.
    node_ids : array of int, shape (neurons,)
        Neurons within the population, in the order of the columns of `append`.
    dt_ms : float
        Length of a step in ms.
    every_steps : int
        Steps between two frames.
    state : str
        Name of the state, stored as an attribute of `data`.
    unit : str
        Unit of the state, or "".
    dtype : dtype
        float32 or int32. Some tools, such as libsonata, read only float32.

    Raises
    ------
    InvalidArgument
        An argument is invalid, or another ReportFile is writing to `path`.
    OSError
        The file cannot be created (`PermissionError`, a full disk, ...).

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with ReportFile(folder / "v.h5", "cells", np.array([0, 4]), 0.1, 10, "v_mv", "mV") as file:
    ...     file.append(np.array([10, 20]), np.array([[-70.0, -65.0], [-69.0, -64.0]], np.float32))
    >>> times_ms, values, node_ids = read_report(folder / "v.h5")
    >>> times_ms.tolist(), values.shape, node_ids.tolist()
    ([1.0, 2.0], (2, 2), [0, 4])
    """

    _kind = "report"
    _content = "samples"

    def __init__(
        self,
        path: str | os.PathLike[str],
        population_name: str,
        node_ids: _Integers,
        dt_ms: float,
        every_steps: int,
        state: str,
        unit: str,
        *,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.population_name = checked_name(population_name, "population_name is")
        self.node_ids = _checked_node_ids(node_ids)
        if not (math.isfinite(dt_ms) and dt_ms > 0):
            raise InvalidArgument(f"dt_ms is {dt_ms}: give the length of a step in ms, above 0")
        self.dt_ms = float(dt_ms)
        self.every_steps = operator.index(every_steps)
        if self.every_steps < 1:
            raise InvalidArgument(f"every_steps is {every_steps}: give the steps between two frames, 1 or more")
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.int32)):
            raise InvalidType(f"dtype is {self.dtype}: a report holds float32 or int32")
        self.state = state
        self.unit = unit
        self._first_step: int | None = None
        self._written = 0  # frames
        self._waiting = 0
        n = len(self.node_ids)
        # A wide frame is split into chunks of equal width; narrow frames share a chunk. The buffer holds whole chunks.
        self._chunk = (max(1, _CHUNK_VALUES // n), math.ceil(n / math.ceil(n / _CHUNK_VALUES)))
        self._buffer = np.empty((self._chunk[0] * max(1, _BUFFERED_VALUES // (self._chunk[0] * n)), n), self.dtype)
        super().__init__(path)

    def _create_datasets(self) -> None:
        self._file.attrs["dt_ms"] = self.dt_ms
        n = len(self.node_ids)
        group = self._file.create_group(f"report/{self.population_name}")
        self._data = group.create_dataset(
            "data", shape=(0, n), maxshape=(None, n), chunks=self._chunk, dtype=self.dtype.newbyteorder("<")
        )
        self._data.attrs["units"] = self.unit
        self._data.attrs["state"] = self.state
        mapping = group.create_group("mapping")
        node_ids = mapping.create_dataset("node_ids", data=self.node_ids, dtype="<u8")
        node_ids.attrs["sorted"] = np.uint8(bool((self.node_ids[1:] > self.node_ids[:-1]).all()))
        # Every neuron has one element: column i.
        mapping.create_dataset("index_pointers", data=np.arange(n + 1), dtype="<u8")
        mapping.create_dataset("element_ids", data=np.zeros(n), dtype="<u4")
        self._time = mapping.create_dataset("time", data=[0.0, 0.0, self.every_steps * self.dt_ms], dtype="<f8")
        self._time.attrs["units"] = "ms"

    @property
    def next_step(self) -> int | None:
        """Step of the next frame, or None before the first one."""
        if self._first_step is None:
            return None
        return self._first_step + (self._written + self._waiting) * self.every_steps

    def append(self, steps: _Integers, values: npt.NDArray[Any]) -> None:
        """Add frames: in step `steps[i]` the neurons had the values `values[i]`.

        The first frame may have any step; each other one comes `every_steps` later. If this raises InvalidArgument or
        InvalidType, nothing was added; if OSError, perhaps a part.

        Parameters
        ----------
        steps : array of int, shape (frames,)
            Steps.
        values : array, shape (frames, neurons)
            Values.
        """
        self._require_open()
        steps = checked_integers("steps", steps)
        values = np.asarray(values)
        n = len(self.node_ids)
        if steps.ndim != 1 or values.shape != (len(steps), n):
            raise InvalidArgument(
                f"steps has shape {steps.shape} and values {values.shape}: give a step and {n} values for every frame"
            )
        if not np.can_cast(values.dtype, self.dtype, "same_kind"):
            raise InvalidType(f"values has dtype {values.dtype}: this report holds {self.dtype}")
        if len(steps) == 0:
            return
        expected = self.next_step
        first = int(steps[0]) if expected is None else expected
        wrong = np.flatnonzero(steps != first + self.every_steps * np.arange(len(steps)))
        if len(wrong):
            raise InvalidArgument(
                f"steps has {steps[wrong[0]]} where {first + self.every_steps * int(wrong[0])} comes next: "
                f"append a frame every {self.every_steps} steps, in the order of time"
            )
        if first < 0:
            raise InvalidArgument(f"steps has {first}: steps count from 0")
        self._first_step = first if self._first_step is None else self._first_step
        taken = 0
        while taken < len(values):
            if self._waiting == len(self._buffer):
                self._write()
            count = min(len(self._buffer) - self._waiting, len(values) - taken)
            self._buffer[self._waiting : self._waiting + count] = values[taken : taken + count]
            self._waiting += count
            taken += count

    def _write(self) -> None:
        """Write buffered data in the order that the module docstring explains."""
        end = self.next_step
        if not self._waiting or self._first_step is None or end is None:
            return
        self._data.resize(self._written + self._waiting, axis=0)
        self._data[self._written :] = self._buffer[: self._waiting]
        self._file.flush()
        self._disk.commit()
        self._time[:2] = self._first_step * self.dt_ms, end * self.dt_ms
        self._file.flush()
        self._disk.commit()
        # After a failed write the frames stay buffered, and the next attempt starts at the same place.
        self._written += self._waiting
        self._waiting = 0

    def __repr__(self) -> str:
        state = "open" if self._file else "closed"
        return f"<ReportFile {str(self.path)!r}, {self.state} of {len(self.node_ids)} neurons, {state}>"


def read_report(
    path: str | os.PathLike[str], population_name: str | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """Read a SONATA report.

    A neuron has one column, or several if the report distinguishes its compartments. Of a `.partial` file that a dead
    process left, the complete beginning is read.

    Parameters
    ----------
    path : path
        The file.
    population_name : str, optional
        The population; required if the report has several.

    Returns
    -------
    times_ms : array of float64, shape (frames,)
        Times in ms.
    values : array, shape (frames, columns)
        Values.
    node_ids : array of uint64, shape (columns,)
        Neuron of each column.

    Raises
    ------
    InvalidArgument
        The file is damaged or not a SONATA report, or `population_name` is missing or unknown.
    OSError
        The file cannot be opened or is not HDF5.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "v.h5")
    >>> with ReportFile(path, "cells", np.array([0, 4]), 0.1, 10, "v_mv", "mV") as file:
    ...     file.append(np.array([10, 20]), np.array([[-70.0, -65.0], [-69.0, -64.0]], np.float32))
    >>> times_ms, values, node_ids = read_report(path)
    >>> values.tolist()
    [[-70.0, -65.0], [-69.0, -64.0]]
    """
    where = f"path is {str(path)!r}"
    with reading(path) as file:
        report = file.get("report")
        if not isinstance(report, h5py.Group):
            raise InvalidArgument(f"{where}: not a SONATA report: it has no group /report")
        if population_name is None and len(report) == 1:
            (population_name,) = report
        if population_name is None or population_name not in report:
            raise InvalidArgument(f"population_name is {population_name!r}: {where} has {', '.join(report) or 'none'}")
        group = report[population_name]
        time, data, mapping = group["mapping/time"], group["data"], group["mapping"]
        units = time.attrs.get("units", "ms")
        if units not in ("ms", b"ms", "milliseconds", b"milliseconds"):  # all of these are in use
            raise InvalidArgument(f"{where}: /report/{population_name} has times in {units!r}, only ms are supported")
        start_ms, stop_ms, step_ms = (float(value) for value in whole_dataset(time))
        if Path(path).suffix == ".partial":
            values = readable_prefix(data)[: max(0, round((stop_ms - start_ms) / step_ms))]
        else:
            values = whole_dataset(data)
        pointers = whole_dataset(mapping["index_pointers"]).astype(np.int64)
        columns = pointers[1:] - pointers[:-1]
        mapped = sum(columns.tolist())
        if values.ndim != 2 or mapped != values.shape[1] or bool((columns < 0).any()):
            raise InvalidArgument(
                f"{where}: /report/{population_name} has {values.shape[-1]} columns, but {mapped} in its mapping"
            )
        node_ids = np.repeat(whole_dataset(mapping["node_ids"]).astype(np.uint64), columns)
        times_ms = np.asarray(start_ms + np.arange(len(values)) * step_ms, np.float64)
        dt_ms = file.attrs.get("dt_ms")
        if dt_ms is not None:  # written by neuraxis: the times are exact multiples of dt_ms
            times_ms = np.rint(times_ms / dt_ms) * dt_ms
    return times_ms, values, node_ids


class _Stream:
    """The group of one population in a spike file, and its buffered spikes."""

    def __init__(self, disk: CommittedFile, parent: Any, name: str, n: int) -> None:
        self._disk = disk
        self._name = name
        self._n = n
        self._last_step: int | None = None
        self._written = 0
        self._waiting = 0
        self._times_ms = np.empty(_BUFFERED_SPIKES, np.float64)
        self._node_ids = np.empty(_BUFFERED_SPIKES, np.uint64)
        group = parent.create_group(name)
        group.attrs.create("sorting", 2, dtype=_SORTING)
        group.attrs["size"] = np.uint64(n)
        growing = {"shape": (0,), "maxshape": (None,), "chunks": (_CHUNK_SPIKES,)}
        self._node_ids_on_disk = group.create_dataset("node_ids", dtype="<u8", **growing)
        self._times_on_disk = group.create_dataset("timestamps", dtype="<f8", fillvalue=np.nan, **growing)
        self._times_on_disk.attrs["units"] = "ms"

    def check(self, steps: _Integers, local_ids: _Integers) -> None:
        """Raise unless these spikes may come next."""
        earliest = 0 if self._last_step is None else self._last_step
        if steps[0] < earliest:
            before = "" if self._last_step is None else f" after step {self._last_step}"
            raise InvalidArgument(
                f"steps has {steps[0]}{before} in population {self._name!r}: append spikes in the order of time, from 0"
            )
        falls = np.flatnonzero(steps[1:] < steps[:-1])
        if len(falls):
            raise InvalidArgument(
                f"steps has {steps[falls[0] + 1]} after {steps[falls[0]]} in population {self._name!r}: "
                f"sort the spikes of a call by their steps"
            )
        least, most = local_ids.min(), local_ids.max()
        if least < 0 or most >= self._n:
            raise InvalidArgument(
                f"local_ids has {least if least < 0 else most}: population {self._name!r} has {self._n} neurons, from 0"
            )

    def append(self, steps: _Integers, times_ms: npt.NDArray[np.float64], local_ids: _Integers) -> None:
        self._last_step = int(steps[-1])
        taken = 0
        while taken < len(times_ms):
            if self._waiting == _BUFFERED_SPIKES:
                self.write()
            count = min(_BUFFERED_SPIKES - self._waiting, len(times_ms) - taken)
            here = slice(self._waiting, self._waiting + count)
            self._times_ms[here] = times_ms[taken : taken + count]
            self._node_ids[here] = local_ids[taken : taken + count]
            self._waiting += count
            taken += count

    def write(self) -> None:
        """Write buffered data in the order that the module docstring explains."""
        if not self._waiting:
            return
        for on_disk, waiting in ((self._node_ids_on_disk, self._node_ids), (self._times_on_disk, self._times_ms)):
            on_disk.resize((self._written + self._waiting,))
            on_disk[self._written :] = waiting[: self._waiting]
            on_disk.file.flush()
            self._disk.commit()
        # After a failed write the spikes stay buffered, and the next attempt starts at the same place.
        self._written += self._waiting
        self._waiting = 0


def _complete(times_ms: npt.NDArray[np.float64]) -> int:
    """Return the number of leading timestamps that were written: they do not decrease and are not NaN."""
    if len(times_ms) == 0 or math.isnan(times_ms[0]):
        return 0
    torn = np.flatnonzero(~(times_ms[1:] >= times_ms[:-1]))
    return int(torn[0]) + 1 if len(torn) else len(times_ms)


def _checked_populations(populations: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    checked = []
    seen = set()
    for name, n in populations:
        checked_name(name, "populations has the name")
        if name in seen:
            raise InvalidArgument(f"populations has the name {name!r} twice: each population needs its own")
        try:
            count = operator.index(n)
        except TypeError:
            raise InvalidType(f"populations has {n!r} neurons for {name!r}: give an integer") from None
        if count < 0:
            raise InvalidArgument(f"populations has {n} neurons for {name!r}: give 0 or more")
        seen.add(name)
        checked.append((name, count))
    return tuple(checked)


def checked_name(name: object, prefix: str) -> str:
    """Return `name` if it can name an HDF5 group, else raise an error that begins with `prefix`."""
    if not isinstance(name, str):
        raise InvalidType(f"{prefix} {name!r}: give a string")
    if not name or name == "." or "/" in name or "\0" in name:
        raise InvalidArgument(f"{prefix} {name!r}: a group of an HDF5 file has a name without '/', and not '.'")
    return name


def checked_integers(name: str, values: int | _Integers) -> _Integers:
    """Return the values of the argument `name` as an array; raise unless they are integers."""
    array = np.asarray(values)
    if array.size == 0 and array.dtype == np.float64:
        return array.astype(np.int64)  # NumPy's dtype for an empty list
    if array.dtype.kind not in "iu":
        raise InvalidType(f"{name} has dtype {array.dtype}: give integers")
    return array


def _checked_node_ids(node_ids: _Integers) -> npt.NDArray[np.int64]:
    ids = checked_integers("node_ids", node_ids)
    if ids.ndim != 1 or not ids.size:
        raise InvalidArgument(f"node_ids has shape {ids.shape}: give the id of at least one neuron")
    if ids.min() < 0:
        raise InvalidArgument(f"node_ids has {ids.min()}: ids count from 0")
    if np.unique(ids).size != ids.size:
        raise InvalidArgument("node_ids contains an id more than once. Give each neuron one column")
    return ids.astype(np.int64)
