"""States on disk: SONATA reports, written while a network runs and read by many other tools.

What happens to a file when its process dies is told in `disk.py`. Here frames reach the disk before the time of
their end that makes them count, so `read_report` can tell the complete beginning of a `.partial` file from a torn end.
"""

from __future__ import annotations

import math
import operator
import os
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.execution.disk import GrowingFile, readable_beginning
from neuraxis.execution.sonata import checked_integers, checked_name

__all__ = ["ReportFile", "read_report"]

_BUFFERED = 262_144  # values that wait in memory: 1 MiB, or one frame where that is more
_CHUNK = 16_384  # values in a chunk of the dataset, at most: 64 KiB

_Integers = npt.NDArray[np.integer[Any]]


class ReportFile(GrowingFile):
    """A SONATA report, a state of some neurons at equal distances of time, that grows while a network runs.

    The group `/report/<population>` holds `data` (frames x neurons) and `mapping`: `node_ids` (from 0 within the
    population) and `time`, which is the start, the stop (the time of the frame after the last one) and the step in ms.
    Memory stays bounded: frames are written whenever 1 MiB of them waits. Until `close` the file is called
    `<path>.partial` (an abandoned one of that name is overwritten). As a context manager it is closed at the end, or
    left as `.partial` if the block raised.

    Args:
        path: the file to make or, at `close`, to replace; its folder must exist.
        population_name: the population of the neurons.
        node_ids: the ids of the neurons within the population, in the order of the columns of `append`.
        dt_ms: the length of a step.
        every_steps: how many steps lie between two frames.
        state: the name of the state, kept as an attribute of `data`.
        unit: its unit, or "".
        dtype: float32 or int32. Some tools, libsonata among them, read reports of float32 only.

    Raises:
        InvalidArgument: an argument cannot be, or another ReportFile is writing to `path`.
        OSError: the file cannot be made there (`PermissionError`, a full disk, ...).
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
        # A frame is cut into chunks of equal width; narrow ones share a chunk, and a buffer holds whole chunks.
        self._chunk = (max(1, _CHUNK // n), math.ceil(n / math.ceil(n / _CHUNK)))
        self._buffer = np.empty((self._chunk[0] * max(1, _BUFFERED // (self._chunk[0] * n)), n), self.dtype)
        super().__init__(path)

    def _lay_out(self) -> None:
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
        # Every neuron is one element: neuron i has the column i alone.
        mapping.create_dataset("index_pointers", data=np.arange(n + 1), dtype="<u8")
        mapping.create_dataset("element_ids", data=np.zeros(n), dtype="<u4")
        self._time = mapping.create_dataset("time", data=[0.0, 0.0, self.every_steps * self.dt_ms], dtype="<f8")
        self._time.attrs["units"] = "ms"

    @property
    def next_step(self) -> int | None:
        """The step of the frame that `append` takes next; None if it may be any, because there is none yet."""
        if self._first_step is None:
            return None
        return self._first_step + (self._written + self._waiting) * self.every_steps

    def append(self, steps: _Integers, values: npt.NDArray[Any]) -> None:
        """Add frames: in step `steps[i]` the neurons had `values[i]`.

        The first frame may be of any step, each other one comes `every_steps` after the one before. If
        this raises InvalidArgument or InvalidType, nothing of the call was taken; if OSError, perhaps a part of it.
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
        """Put what waits on the disk, in the order that the head of this module asks for."""
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
        # Only now: should a write fail, the frames wait on and the next attempt starts at the same place.
        self._written += self._waiting
        self._waiting = 0

    def __repr__(self) -> str:
        state = "open" if self._file else "closed"
        return f"<ReportFile {str(self.path)!r}, {self.state} of {len(self.node_ids)} neurons, {state}>"


def read_report(
    path: str | os.PathLike[str], population_name: str | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """(times_ms, values by time and column, the node id of each column) of a SONATA report.

    A neuron has one column, or several if the report tells its compartments apart. `population_name` must be given
    if the report has several. Of a `.partial` file that a dead process left, the complete beginning is read.
    """
    where = f"path is {str(path)!r}"
    with h5py.File(path, "r") as file:
        report = file.get("report")
        if not isinstance(report, h5py.Group):
            raise InvalidArgument(f"{where}: no SONATA report, it has no group /report")
        if population_name is None and len(report) == 1:
            (population_name,) = report
        if population_name is None or population_name not in report:
            raise InvalidArgument(f"population_name is {population_name!r}: {where} has {', '.join(report) or 'none'}")
        group = report[population_name]
        time, data, mapping = group["mapping/time"], group["data"], group["mapping"]
        units = time.attrs.get("units", "ms")
        if units not in ("ms", b"ms", "milliseconds", b"milliseconds"):  # all of these are in use
            raise InvalidArgument(f"{where}: /report/{population_name} has times in {units!r}, only ms are read")
        start_ms, stop_ms, step_ms = (float(value) for value in time[:])
        if Path(path).suffix == ".partial":
            values = readable_beginning(data)[: max(0, round((stop_ms - start_ms) / step_ms))]
        else:
            values = data[:]
        columns = np.diff(mapping["index_pointers"][:].astype(np.int64))
        node_ids = np.repeat(mapping["node_ids"][:].astype(np.uint64), columns)
        if len(node_ids) != values.shape[1]:
            raise InvalidArgument(
                f"{where}: /report/{population_name} has {values.shape[1]} columns, but {len(node_ids)} in its mapping"
            )
        times_ms = np.asarray(start_ms + np.arange(len(values)) * step_ms, np.float64)
        dt_ms = file.attrs.get("dt_ms")
        if dt_ms is not None:  # one of ours: the times are whole steps, to the last bit
            times_ms = np.rint(times_ms / dt_ms) * dt_ms
    return times_ms, values, node_ids


def _checked_node_ids(node_ids: _Integers) -> npt.NDArray[np.int64]:
    ids = checked_integers("node_ids", node_ids)
    if ids.ndim != 1 or not ids.size:
        raise InvalidArgument(f"node_ids has shape {ids.shape}: give the id of each neuron, of one at least")
    if ids.min() < 0:
        raise InvalidArgument(f"node_ids has {ids.min()}: ids count from 0")
    if np.unique(ids).size != ids.size:
        raise InvalidArgument("node_ids: an id is there more than once; give each neuron one column")
    return ids.astype(np.int64)
