"""Spikes on disk: SONATA spike files, written while a network runs and read by many other tools.

What happens to a file when its process dies is told in `disk.py`. Here node ids reach the disk before the timestamps
that make them count, and a timestamp that was promised but never written reads as NaN. So `read_spikes`
can tell the complete beginning of a `.partial` file from a torn end.
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
from neuraxis.execution.disk import Disk, GrowingFile, readable_beginning

__all__ = ["SpikeFile", "checked_integers", "checked_name", "read_spikes"]

_SORTING = h5py.enum_dtype({"none": 0, "by_id": 1, "by_time": 2}, basetype="u1")
_BUFFERED = 65_536  # spikes of a population that wait in memory: 1 MiB of timestamps and node ids
_CHUNK = 8_192  # spikes in a chunk of a dataset: 64 KiB, so that a population with few spikes takes little room

_Integers = npt.NDArray[np.integer[Any]]


class SpikeFile(GrowingFile):
    """A SONATA spike file that grows while a network runs.

    The group `/spikes/<population>` holds `timestamps` (float64, ms, step x `dt_ms`) and `node_ids` (uint64, from
    0 within the population), sorted by time. Memory stays bounded: a population's spikes are written
    whenever 65,536 of them wait. Until `close` the file is called `<path>.partial` (an abandoned one of that name is
    overwritten). As a context manager it is closed at the end, or left as `.partial` if the block raised.

    Args:
        path: the file to make or, at `close`, to replace; its folder must exist.
        populations: name and number of neurons of each; their order gives the `population_index` of `append`.
        dt_ms: the length of a step.
        seed: the network's seed, kept as an attribute of the file.

    Raises:
        InvalidArgument: an argument cannot be, or another SpikeFile is writing to `path`.
        OSError: the file cannot be made there (`PermissionError`, a full disk, ...).
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

    def _lay_out(self) -> None:
        self._file.attrs["dt_ms"] = self.dt_ms
        if self._seed is not None:
            self._file.attrs["seed"] = np.uint64(self._seed)
        # The order of creation is kept, so that readers list the populations as the network does.
        spikes = self._file.create_group("spikes", track_order=True)
        self._streams = [_Stream(self._disk, spikes, name, n) for name, n in self.populations]

    def append(self, steps: _Integers, population_index: int | _Integers, local_ids: _Integers) -> None:
        """Add spikes: the neuron `local_ids[i]` of population `population_index[i]` fired in step `steps[i]`.

        `population_index` may be one number for all. The steps of each population must not decrease, neither within
        a call nor from call to call; spikes of one step keep the order they are given in. If
        this raises InvalidArgument or InvalidType, nothing of the call was taken; if OSError, perhaps a part of it.
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
        """The populations that occur, each with what selects its spikes."""
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
    """The spikes of a SONATA file: for each population its `times_ms` and `node_ids`, in the file's order.

    Of a `.partial` file that a dead process left, the complete beginning is read.
    """
    spikes: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64]]] = {}
    torn = Path(path).suffix == ".partial"
    with h5py.File(path, "r") as file:
        if not isinstance(file.get("spikes"), h5py.Group):
            raise InvalidArgument(f"path is {str(path)!r}: no SONATA spike file, it has no group /spikes")
        for name, group in file["spikes"].items():
            units = group["timestamps"].attrs.get("units", "ms")
            if units not in ("ms", b"ms", "milliseconds", b"milliseconds"):  # all of these are in use
                raise InvalidArgument(f"path is {str(path)!r}: /spikes/{name} has times in {units!r}, only ms are read")
            read = readable_beginning if torn else _whole
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


class _Stream:
    """One population's group in the file, and its spikes that are not written yet."""

    def __init__(self, disk: Disk, parent: Any, name: str, n: int) -> None:
        self._disk = disk
        self._name = name
        self._n = n
        self._last_step: int | None = None
        self._written = 0
        self._waiting = 0
        self._times_ms = np.empty(_BUFFERED, np.float64)
        self._node_ids = np.empty(_BUFFERED, np.uint64)
        group = parent.create_group(name)
        group.attrs.create("sorting", 2, dtype=_SORTING)
        group.attrs["size"] = np.uint64(n)
        growing = {"shape": (0,), "maxshape": (None,), "chunks": (_CHUNK,)}
        self._node_ids_on_disk = group.create_dataset("node_ids", dtype="<u8", **growing)
        self._times_on_disk = group.create_dataset("timestamps", dtype="<f8", fillvalue=np.nan, **growing)
        self._times_on_disk.attrs["units"] = "ms"

    def check(self, steps: _Integers, local_ids: _Integers) -> None:
        """Raise unless these may come next."""
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
            if self._waiting == _BUFFERED:
                self.write()
            count = min(_BUFFERED - self._waiting, len(times_ms) - taken)
            here = slice(self._waiting, self._waiting + count)
            self._times_ms[here] = times_ms[taken : taken + count]
            self._node_ids[here] = local_ids[taken : taken + count]
            self._waiting += count
            taken += count

    def write(self) -> None:
        """Put what waits on the disk, in the order that the head of this module asks for."""
        if not self._waiting:
            return
        for on_disk, waiting in ((self._node_ids_on_disk, self._node_ids), (self._times_on_disk, self._times_ms)):
            on_disk.resize((self._written + self._waiting,))
            on_disk[self._written :] = waiting[: self._waiting]
            on_disk.file.flush()
            self._disk.commit()
        # Only now: should a write fail, the spikes wait on and the next attempt starts at the same place.
        self._written += self._waiting
        self._waiting = 0


def _whole(dataset: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = dataset[:]
    return values


def _complete(times_ms: npt.NDArray[np.float64]) -> int:
    """How many timestamps from the first on were really written: they do not fall and are no NaN."""
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


def checked_name(name: object, said: str) -> str:
    """The name of a population, if it can be that of a group of an HDF5 file; `said` begins the error."""
    if not isinstance(name, str):
        raise InvalidType(f"{said} {name!r}: give a string")
    if not name or name == "." or "/" in name or "\0" in name:
        raise InvalidArgument(f"{said} {name!r}: a group of an HDF5 file has a name without '/', and not '.'")
    return name


def checked_integers(name: str, values: int | _Integers) -> _Integers:
    """The values of the argument `name` as an array, if they are integers."""
    array = np.asarray(values)
    if array.size == 0 and array.dtype == np.float64:
        return array.astype(np.int64)  # what NumPy makes of an empty list
    if array.dtype.kind not in "iu":
        raise InvalidType(f"{name} has dtype {array.dtype}: give integers")
    return array
