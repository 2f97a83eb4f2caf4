"""Spikes on disk: SONATA spike files, written while a network runs and read by many other tools.

What is safe when a process dies: spikes go to `<path>.partial`, and only `close` gives the file its name, so that a
file under its own name is always complete and an older one stays until it is replaced. Between two calls
the partial file is a whole HDF5 file. HDF5 cannot change one in a single stroke, so a process that is killed within
the milliseconds of a write may tear it; that it can be read all the same, node ids reach the disk before the timestamps
that make them count, and a timestamp that was promised but never written reads as NaN. So `read_spikes`
can tell the complete beginning of a `.partial` file from a torn end.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument, InvalidType

if sys.platform != "win32":
    import fcntl

__all__ = ["SpikeFile", "read_spikes"]

_MAGIC = 0x0A7A
_VERSION = (0, 1)  # of the SONATA format: major, minor
_SORTING = h5py.enum_dtype({"none": 0, "by_id": 1, "by_time": 2}, basetype="u1")
_BUFFERED = 65_536  # spikes of a population that wait in memory: 1 MiB of timestamps and node ids
_CHUNK = 8_192  # spikes in a chunk of a dataset: 64 KiB, so that a population with few spikes takes little room

_Integers = npt.NDArray[np.integer[Any]]


class SpikeFile:
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

    def __init__(
        self,
        path: str | os.PathLike[str],
        populations: Sequence[tuple[str, int]],
        dt_ms: float,
        seed: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.partial_path = self.path.with_name(self.path.name + ".partial") if self.path.name else self.path
        self.populations = _checked_populations(populations)
        if not (math.isfinite(dt_ms) and dt_ms > 0):
            raise InvalidArgument(f"dt_ms is {dt_ms}: give the length of a step in ms, above 0")
        if seed is not None and not 0 <= operator.index(seed) < 2**64:
            raise InvalidArgument(f"seed is {seed}: give an integer from 0 to 2**64 - 1, or None")
        self.dt_ms = float(dt_ms)
        self._disk = _disk(self.path, self.partial_path)
        self._file = h5py.File(self._disk, "w")
        try:
            self._file.attrs["magic"] = np.uint32(_MAGIC)
            self._file.attrs["version"] = np.array(_VERSION, np.uint32)
            self._file.attrs["dt_ms"] = self.dt_ms
            if seed is not None:
                self._file.attrs["seed"] = np.uint64(seed)
            # The order of creation is kept, so that readers list the populations as the network does.
            spikes = self._file.create_group("spikes", track_order=True)
            self._streams = [_Stream(self._disk, spikes, name, n) for name, n in self.populations]
            self._file.flush()
            self._disk.commit()
        except BaseException:
            self._let_go()
            raise

    def append(self, steps: _Integers, population_index: int | _Integers, local_ids: _Integers) -> None:
        """Add spikes: the neuron `local_ids[i]` of population `population_index[i]` fired in step `steps[i]`.

        `population_index` may be one number for all. The steps of each population must not decrease, neither within
        a call nor from call to call; spikes of one step keep the order they are given in. If
        this raises InvalidArgument or InvalidType, nothing of the call was taken; if OSError, perhaps a part of it.
        """
        self._require_open()
        steps = _integers("steps", steps)
        local_ids = _integers("local_ids", local_ids)
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

    def flush(self) -> None:
        """Write all that was appended; if the process dies later, `<path>.partial` can be read up to here."""
        self._require_open()
        for stream in self._streams:
            stream.write()

    def close(self) -> None:
        """Write the rest and give the file its name, in place of any older one. Again: does nothing."""
        if not self._file:
            return
        self.abandon()
        os.replace(self.partial_path, self.path)

    def abandon(self) -> None:
        """Write the rest and close the file, but leave it as `<path>.partial` and any older file as it is."""
        if not self._file:
            return
        try:
            self.flush()
        finally:
            self._let_go()

    def __enter__(self) -> SpikeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.abandon()
        except OSError:
            pass  # most likely the disk that is full is the very error on its way to the caller

    def __repr__(self) -> str:
        state = "open" if self._file else "closed"
        return f"<SpikeFile {str(self.path)!r}, {len(self.populations)} populations, {state}>"

    def _let_go(self) -> None:
        try:
            self._file.close()
        finally:
            self._disk.close()

    def _require_open(self) -> None:
        if not self._file:
            raise InvalidArgument(f"the spike file {str(self.path)!r} is closed: make a new SpikeFile to write more")

    def _by_population(self, population_index: int | _Integers, count: int) -> list[tuple[int, Any]]:
        """The populations that occur, each with what selects its spikes."""
        indices = _integers("population_index", population_index)
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
            read = _beginning if torn else _whole
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

    def __init__(self, disk: _Disk, parent: Any, name: str, n: int) -> None:
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


def _beginning(dataset: Any) -> npt.NDArray[Any]:
    """The dataset up to the first chunk that the index names but the file does not hold."""
    parts = [np.empty(0, dataset.dtype)]
    for start in range(0, len(dataset), _CHUNK):
        try:
            parts.append(dataset[start : start + _CHUNK])
        except OSError:
            break
    return np.concatenate(parts)


def _complete(times_ms: npt.NDArray[np.float64]) -> int:
    """How many timestamps from the first on were really written: they do not fall and are no NaN."""
    if len(times_ms) == 0 or math.isnan(times_ms[0]):
        return 0
    torn = np.flatnonzero(~(times_ms[1:] >= times_ms[:-1]))
    return int(torn[0]) + 1 if len(torn) else len(times_ms)


class _Disk:
    """The file beneath HDF5: locked for its only writer, and changed by nothing but `commit`.

    HDF5 cannot live with a write that fails, as on a full disk: it may crash the process when it tries again, at the
    latest as the interpreter ends. And it changes its index in place, so that a flush that stops halfway can lose what
    earlier ones wrote. Therefore HDF5 writes to memory here, at most what one flush brings, and `commit` first
    writes what makes the file longer. If that fails the file is as it was, and another `commit` may succeed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Not emptied on opening: somebody else may be writing to it.
        self._file = open(  # noqa: SIM115 - it stays open
            path, "r+b", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666)
        )
        try:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise
        self._committed_size = 0
        self._size = 0
        self._position = 0
        self._pending: list[tuple[int, bytes]] = []

    # What HDF5 calls. It must not fail.

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int) -> bytes:
        self._file.seek(self._position)
        found = bytearray((self._file.read(count) or b"").ljust(count, b"\0"))
        for offset, data in self._pending:
            start, stop = max(offset, self._position), min(offset + len(data), self._position + count)
            if start < stop:
                found[start - self._position : stop - self._position] = data[start - offset : stop - offset]
        self._position += count
        return bytes(found)

    def readinto(self, buffer: Any) -> int:
        buffer[:] = self.read(len(buffer))
        return len(buffer)

    def write(self, data: Any) -> int:
        self._pending.append((self._position, bytes(data)))
        self._position += len(data)
        self._size = max(self._size, self._position)
        return len(data)

    def truncate(self, size: int) -> int:
        self._size = size
        return size

    def flush(self) -> None:
        pass

    # What SpikeFile calls.

    def commit(self) -> None:
        """Bring the file on disk to the state that HDF5 believes it to be in."""
        border = self._committed_size
        try:
            for offset, data in self._pending:
                if offset + len(data) > border:
                    self._put(max(offset, border), data[max(border - offset, 0) :])
            for offset, data in self._pending:
                if offset < border:
                    self._put(offset, data[: border - offset])
            self._file.truncate(self._size)
        except OSError as error:
            raise _telling(error, "cannot write spikes", self._path) from error
        self._committed_size = self._size
        self._pending.clear()

    def close(self) -> None:
        """Commit, make sure that it survives a crash of the machine, and let go."""
        try:
            self.commit()
            os.fsync(self._file.fileno())
        finally:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may hold the descriptor, and with it the lock
            self._file.close()

    def _put(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        left = memoryview(data)
        while len(left):
            left = left[self._file.write(left) :]


def _disk(path: Path, partial_path: Path) -> _Disk:
    """The file under its temporary name; all that can be known to go wrong at the end is said now."""
    where = f"path is {str(path)!r}"
    try:
        if not path.parent.is_dir():
            raise InvalidArgument(f"{where}: the folder {str(path.parent)!r} does not exist, make it first")
        if path.is_dir():
            raise InvalidArgument(f"{where}: that is a folder, give the name of a file")
        return _Disk(partial_path)
    except BlockingIOError:
        raise InvalidArgument(f"{where}: another SpikeFile is writing to it, choose another name") from None
    except OSError as error:
        raise _telling(error, "cannot make a spike file", partial_path) from error


def _telling(error: OSError, what: str, path: object) -> OSError:
    """The same error, of the same kind, that says what could not be done."""
    return OSError(error.errno, f"{what}: {error.strerror}", str(path))


def _checked_populations(populations: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    checked = []
    seen = set()
    for name, n in populations:
        if not isinstance(name, str):
            raise InvalidType(f"populations has the name {name!r}: give a string")
        if not name or name == "." or "/" in name or "\0" in name:
            raise InvalidArgument(
                f"populations has the name {name!r}: a group of an HDF5 file has a name without '/', and not '.'"
            )
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


def _integers(name: str, values: int | _Integers) -> _Integers:
    array = np.asarray(values)
    if array.size == 0 and array.dtype == np.float64:
        return array.astype(np.int64)  # what NumPy makes of an empty list
    if array.dtype.kind not in "iu":
        raise InvalidType(f"{name} has dtype {array.dtype}: give integers")
    return array
