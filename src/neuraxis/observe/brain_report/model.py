"""The data of a report: plain values, checked when they are made. Nothing here knows how they are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument

__all__ = [
    "BrainReport",
    "GraphEdge",
    "GraphNode",
    "LearningCurve",
    "Raster",
    "RasterRegion",
    "RegionGraph",
    "WorkerLoad",
]

_CLOCK_NOISE = 0.02  # shares of time that are measured apart may exceed their sum by this much


@dataclass(frozen=True)
class LearningCurve:
    """Right and wrong answers, trial by trial.

    Attributes:
        correct: whether each trial's answer was right.
        chance: the share that guessing gets right, from 0 to 1.
        window: the number of trials that the running accuracy looks back on.
        target: the accuracy to reach, from 0 to 1.
        reversal_at: the index of the first trial under the new rule, so also the number of trials before it.
    """

    correct: tuple[bool, ...]
    chance: float
    window: int
    target: float | None = None
    reversal_at: int | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidArgument(f"LearningCurve.window is {self.window}: give 1 or more trials")
        for name, share in (("chance", self.chance), ("target", self.target)):
            if share is not None and not 0 <= share <= 1:
                raise InvalidArgument(f"LearningCurve.{name} is {share}: give a share from 0 to 1")
        if self.reversal_at is not None and self.reversal_at < 0:
            raise InvalidArgument(f"LearningCurve.reversal_at is {self.reversal_at}: give the index of a trial")

    def accuracy(self) -> npt.NDArray[np.float64]:
        """For each trial the share of right answers in the window that ends with it; the first windows are shorter."""
        right = np.concatenate([[0], np.cumsum(np.asarray(self.correct, np.int64))])
        ends = np.arange(1, len(self.correct) + 1)
        starts = np.maximum(0, ends - self.window)
        return np.asarray((right[ends] - right[starts]) / (ends - starts), np.float64)

    def reached_at(self, first: int = 0) -> int | None:
        """The index of the trial at which a whole window that began at trial `first` or later is on target."""
        if self.target is None:
            return None
        whole = np.arange(len(self.correct)) >= first + self.window - 1
        reached = np.flatnonzero(whole & (self.accuracy() >= self.target - 1e-12))
        return int(reached[0]) if len(reached) else None

    @property
    def reversed_at(self) -> int | None:
        """The first trial under the new rule, if there were trials before it and this one."""
        at = self.reversal_at
        return at if at is not None and 0 < at < len(self.correct) else None


@dataclass(frozen=True, eq=False)
class RasterRegion:
    """The spikes of one region.

    Attributes:
        neurons: how many neurons the region has.
        inhibitory_from: the neurons with this id or a higher one are inhibitory; None where that says nothing.
        times_ms: when each spike was, in any order.
        ids: whose spike it was, from 0 to neurons - 1.
    """

    name: str
    neurons: int
    inhibitory_from: int | None
    times_ms: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.times_ms.ndim != 1 or self.times_ms.shape != self.ids.shape:
            raise InvalidArgument(
                f"RasterRegion {self.name!r} has times of shape {self.times_ms.shape} and ids of shape "
                f"{self.ids.shape}: give one of each a spike"
            )
        if len(self.ids) and not (self.ids.min() >= 0 and self.ids.max() < self.neurons):
            wrong = self.ids.min() if self.ids.min() < 0 else self.ids.max()
            raise InvalidArgument(
                f"RasterRegion {self.name!r} has a spike of neuron {wrong}: it has {self.neurons} neurons, from 0 on"
            )


@dataclass(frozen=True, eq=False)
class Raster:
    """The spikes of one trial. What is outside [start_ms, stop_ms) is not shown.

    Attributes:
        regions: from top to bottom.
        marks: moments with their names, e.g. (0.0, "cue"), (420.0, "action").
    """

    regions: tuple[RasterRegion, ...]
    start_ms: float
    stop_ms: float
    marks: tuple[tuple[float, str], ...] = ()

    def __post_init__(self) -> None:
        if not (self.start_ms < self.stop_ms and math.isfinite(self.stop_ms - self.start_ms)):
            raise InvalidArgument(
                f"Raster goes from {self.start_ms} ms to {self.stop_ms} ms: give a start before the end"
            )


@dataclass(frozen=True)
class GraphNode:
    """A region, sensor or effector. `kind` "sensor" stands first and "effector" last; any other is a region's."""

    name: str
    kind: str
    neurons: int
    rate_hz: float


@dataclass(frozen=True)
class GraphEdge:
    """A pathway. `spikes_per_s` is what it carried; a `plastic` one learns."""

    source: str
    target: str
    delay_ms: float
    spikes_per_s: float
    plastic: bool


@dataclass(frozen=True)
class RegionGraph:
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(f"RegionGraph has two nodes with the name {name!r}")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in names:
                    raise InvalidArgument(
                        f"RegionGraph has an edge {edge.source!r} → {edge.target!r} but no node {end!r}"
                    )


@dataclass(frozen=True)
class WorkerLoad:
    """What one worker process did.

    Attributes:
        worker: its number.
        regions: the regions that it ran.
        busy: the share of the run's time in which it computed, from 0 to 1.
        waiting: the share in which it waited for others.
        spikes_out: spikes that it sent to other workers.
        spikes_in: spikes that it got from other workers.
        memory_bytes: the memory that it used.
        by_region: the share of the run's time that each region took; together at most `busy`.
    """

    worker: int
    regions: tuple[str, ...]
    busy: float
    waiting: float
    spikes_out: int
    spikes_in: int
    memory_bytes: int
    by_region: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        shares = [("busy", self.busy), ("waiting", self.waiting), *self.by_region]
        for name, share in shares:
            if not (math.isfinite(share) and share >= 0):
                raise InvalidArgument(f"WorkerLoad of worker {self.worker} has {share} for {name!r}: give 0 or more")
        if self.busy + self.waiting > 1 + _CLOCK_NOISE:
            raise InvalidArgument(
                f"WorkerLoad of worker {self.worker} is busy for {self.busy} and waits for {self.waiting} of the time: "
                "give shares that are at most 1 together"
            )
        if sum(share for _, share in self.by_region) > self.busy + _CLOCK_NOISE:
            raise InvalidArgument(
                f"WorkerLoad of worker {self.worker} has regions that take more time than it is busy, {self.busy}"
            )


@dataclass(frozen=True, eq=False)
class BrainReport:
    """Everything that the page shows. `facts` are (name, value): what ran, where and how."""

    title: str
    subtitle: str
    curve: LearningCurve
    raster: Raster
    graph: RegionGraph
    workers: tuple[WorkerLoad, ...]
    facts: tuple[tuple[str, str], ...]
