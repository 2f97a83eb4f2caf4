"""A stimulus in a file: what a brain's sensors see, and when.

CSV, with a header and these columns, in any order of rows:

    start_ms,stop_ms,sensor,group,value
    0,250,cue,2,1.0
    600,850,cue,0,0.5
    870,,reward,,1

A row shows `value` (0: background, 1: full rate) to a group of a sensor, counted from 0; an empty group means all.
Rows that overlap add up. The sensor "reward" delivers its value as a reward at `start_ms`. Times are from where the
brain stands when the stimulus begins.

A file of spikes (SONATA, `.h5`) has the spikes of sensors, in populations called like them, instead.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuraxis.brain.brain import Brain
from neuraxis.brain.spec import BrainSpec
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.execution import read_spikes
from neuraxis.network.arguments import near
from neuraxis.network.grid import to_steps

__all__ = ["REWARD", "StimulusFile", "read_stimulus"]

REWARD = "reward"
_COLUMNS = ("start_ms", "stop_ms", "sensor", "group", "value")


@dataclass(frozen=True)
class Shown:
    """A value that is shown to groups of a sensor from one step to another."""

    first: int
    last: int
    sensor: str
    groups: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class StimulusFile:
    """Everything that a file shows, in steps from its beginning."""

    shown: tuple[Shown, ...] = ()
    rewards: tuple[tuple[int, float], ...] = ()
    spikes: tuple[tuple[str, NDArray[np.int64], NDArray[np.int64]], ...] = ()

    @property
    def steps(self) -> int:
        """How long it is."""
        ends = [one.last for one in self.shown] + [step + 1 for step, _ in self.rewards]
        return max([*ends, *(int(steps.max(initial=-1)) + 1 for _, steps, _ in self.spikes)], default=0)

    def play(self, brain: Brain, first: int, last: int) -> None:
        """Run a brain from step `first` of the stimulus to step `last` of it."""
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
        """What is shown from one step to another, between which nothing changes."""
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
    """Read a stimulus for a brain; what is wrong is said with file and line."""
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
    shown: list[Shown] = []
    rewards: list[tuple[int, float]] = []
    for number, row in rows:
        where = f"line {number}"
        missing = [name for name in _COLUMNS if row.get(name) is None]
        if missing or None in row:
            raise SpecError(f"the columns {', '.join(_COLUMNS)} are expected", str(path), where)
        try:
            start = to_steps(float(row["start_ms"]), spec.dt_ms, "start_ms")
            value = float(row["value"])
            if not np.isfinite(value):
                raise ValueError(f"{value}")
            if row["sensor"] == REWARD and REWARD not in spec.sensors:
                rewards.append((start, value))
                continue
            stop = to_steps(float(row["stop_ms"]), spec.dt_ms, "stop_ms")
        except ValueError as error:
            raise SpecError(f"numbers are expected: {error}", str(path), where) from None
        shown.append(Shown(start, stop, row["sensor"], _groups(row, spec, path, where), value))
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
        found.append((sensor, np.floor(times_ms / spec.dt_ms + 0.5).astype(np.int64) - 1, ids.astype(np.int64)))
    if not found:
        raise InvalidArgument(f"{path}: has spikes of {', '.join(recorded) or 'nobody'}, and of no sensor of the brain")
    return StimulusFile(spikes=tuple(found))
