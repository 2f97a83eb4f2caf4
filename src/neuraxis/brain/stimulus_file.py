"""Stimulus files: the input of a brain's sensors over time.

A CSV file has a header with these columns, and rows in any order:

    start_ms,stop_ms,sensor,group,value
    0,250,cue,2,1.0
    600,850,cue,0,0.5
    870,,reward,,1

A row presents `value` (0: background, 1: full rate) to a group of a sensor, counted from 0; an empty group means all.
The values of overlapping rows add up. The sensor "reward" delivers its value as a reward at `start_ms`. Times count
from the start of the stimulus.

A SONATA spike file (`.h5`) holds the spikes of sensors instead, in populations called like them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import Floats, Integers, near
from neuraxis.brain.brain import Brain
from neuraxis.brain.spec import BrainSpec
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.network.grid import array_on_grid, array_to_steps, at_least_one_step, on_grid, to_steps
from neuraxis.simulation import read_spikes

__all__ = ["REWARD", "StimulusFile", "read_stimulus"]

REWARD = "reward"
_LONGEST_MS = 1e12
_COLUMNS = ("start_ms", "stop_ms", "sensor", "group", "value")


@dataclass(frozen=True)
class Presentation:
    """A value that groups of a sensor get from one step to another."""

    first: int
    last: int
    sensor: str
    groups: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class StimulusFile:
    """The contents of a stimulus file; times are steps from its start."""

    shown: tuple[Presentation, ...] = ()
    rewards: tuple[tuple[int, float], ...] = ()
    spikes: tuple[tuple[str, NDArray[np.int64], NDArray[np.int64]], ...] = ()

    @property
    def steps(self) -> int:
        """Length of the stimulus, in steps."""
        ends = [one.last for one in self.shown] + [step + 1 for step, _ in self.rewards]
        return max([*ends, *(int(steps.max(initial=-1)) + 1 for _, steps, _ in self.spikes)], default=0)

    def play(self, brain: Brain, first: int, last: int) -> None:
        """Run a brain through the stimulus from its step `first` to its step `last`."""
        stops = {first, last, *(one.first for one in self.shown), *(one.last for one in self.shown)}
        stops |= {step for step, _ in self.rewards}
        times = sorted(step for step in stops if first <= step <= last)
        for start, stop in zip(times, [*times[1:], last], strict=True):
            for step, value in self.rewards:
                if step == start and start < last:
                    brain.deliver_reward(value)
            if stop > start:
                brain.step(self._at(brain.spec, start, stop), stop - start)

    def _at(self, spec: BrainSpec, start: int, stop: int) -> dict[str, NDArray[np.float64]]:
        """Return the input from one step to another, between which it is constant."""
        given: dict[str, NDArray[np.float64]] = {}
        for one in self.shown:
            if one.first <= start < one.last:
                values = given.setdefault(one.sensor, np.zeros(spec.sensors[one.sensor].groups))
                values[list(one.groups)] += one.value
        for sensor, steps, ids in self.spikes:
            here = (steps >= start) & (steps < stop)
            table = np.zeros((stop - start, spec.sensors[sensor].neurons))
            table[steps[here] - start, ids[here]] = 1
            given[sensor] = table
        return given


def read_stimulus(path: str | Path, spec: BrainSpec) -> StimulusFile:
    """Read a stimulus file for a brain; raise SpecError, with file and line, if it is wrong."""
    path = Path(path)
    if path.suffix in (".h5", ".hdf5"):
        return _read_spikes(path, spec)
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            if not set(_COLUMNS) <= set(reader.fieldnames or ()):
                raise SpecError(f"the columns {', '.join(_COLUMNS)} are expected", str(path), "line 1")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"cannot be read: {error}", str(path)) from error
    shown: list[Presentation] = []
    rewards: list[tuple[int, float]] = []
    for number, row in rows:
        where = f"line {number}"
        missing = [name for name in _COLUMNS if row.get(name) is None]
        if missing or None in row:
            raise SpecError(f"the columns {', '.join(_COLUMNS)} are expected", str(path), where)
        try:
            start = _steps(row["start_ms"], spec, f"{where}: start_ms")
            value = float(row["value"])
            if not np.isfinite(value):
                raise ValueError(f"{value}")
            if row["sensor"] == REWARD and REWARD not in spec.sensors:
                rewards.append((start, value))
                continue
            stop = _steps(row["stop_ms"], spec, f"{where}: stop_ms")
        except ValueError as error:
            raise SpecError(f"numbers are expected: {error}", str(path), where) from None
        shown.append(Presentation(start, stop, row["sensor"], _groups(row, spec, path, where), value))
        if not 0 <= start < stop or not 0 <= value < np.inf:
            raise SpecError("start_ms before stop_ms, and a value of 0 or more, are expected", str(path), where)
    return StimulusFile(tuple(shown), tuple(sorted(rewards)))


def _groups(row: dict[str, str], spec: BrainSpec, path: Path, where: str) -> tuple[int, ...]:
    sensor = spec.sensors.get(row["sensor"])
    if sensor is None:
        raise SpecError(f"no sensor {row['sensor']!r}; {near(row['sensor'], spec.sensors)}", str(path), where)
    if not row["group"].strip():
        return tuple(range(sensor.groups))
    try:
        group = int(row["group"])
    except ValueError:
        group = -1
    if not 0 <= group < sensor.groups:
        raise SpecError(f"group {row['group']!r}: from 0 to {sensor.groups - 1} is expected", str(path), where)
    return (group,)


def _read_spikes(path: Path, spec: BrainSpec) -> StimulusFile:
    found = []
    try:
        recorded = read_spikes(path)
    except OSError as error:
        raise SpecError(f"cannot be read: {error}", str(path)) from error
    for name in recorded:
        sensor = name.removesuffix(".cells")
        if sensor not in spec.sensors:
            continue
        times_ms, ids = recorded[name]
        if len(ids) and int(ids.max()) >= spec.sensors[sensor].neurons:
            raise SpecError(f"neuron {int(ids.max())}: sensor {sensor!r} has {spec.sensors[sensor].neurons}", str(path))
        if not np.isfinite(times_ms).all() or (len(times_ms) and abs(times_ms).max() > _LONGEST_MS):
            raise SpecError(f"sensor {sensor!r}: spike times must be finite and in ms", str(path))
        found.append((sensor, _spike_steps(times_ms, spec, path, sensor) - 1, ids.astype(np.int64)))
    if not found:
        raise InvalidArgument(
            f"{path}: has no spikes of a sensor of the brain; its populations are: {', '.join(recorded) or 'none'}"
        )
    return StimulusFile(spikes=tuple(found))


def _spike_steps(times_ms: Floats, spec: BrainSpec, path: Path, sensor: str) -> Integers:
    """Convert spike times to steps, the first of which is 1; warn if some have to be rounded."""
    name = f"{path}: sensor {sensor!r}: times_ms"
    try:
        if len(times_ms):
            at_least_one_step(float(times_ms.min()), spec.dt_ms, f"{name} (its lowest)")
        return array_to_steps(array_on_grid(times_ms, spec.dt_ms, name), spec.dt_ms, name)
    except InvalidArgument as error:
        raise SpecError(str(error).removeprefix(f"{path}: "), str(path)) from None


def _steps(text: str, spec: BrainSpec, name: str) -> int:
    """Convert a time in ms to steps; warn if it has to be rounded."""
    return to_steps(on_grid(float(text), spec.dt_ms, name), spec.dt_ms, name)
