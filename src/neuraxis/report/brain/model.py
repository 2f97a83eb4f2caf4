"""The data of a report: plain values, checked on construction, independent of how they are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument
from neuraxis.notebook import html_table

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

_CLOCK_NOISE = 0.02  # shares of time are measured separately, so that their sum may be off by this much


@dataclass(frozen=True)
class LearningCurve:
    """Right and wrong answers, trial by trial.

    Attributes
    ----------
    correct : tuple of bool
        True for each trial with the right answer.
    chance : float
        Accuracy of guessing, from 0 to 1.
    window : int
        Number of trials of the running accuracy.
    target : float, optional
        Accuracy to reach, from 0 to 1.
    reversal_at : int, optional
        Index of the first trial under the reversed rule.

    Raises
    ------
    InvalidArgument
        A value is out of range.

    Examples
    --------
    >>> curve = LearningCurve(correct=(False, True, False, True, True), chance=0.25, window=3)
    >>> curve
    <LearningCurve: 5 trials, 67 % of the last 3 right (chance 25 %)>
    >>> curve.accuracy().round(2)
    array([0.  , 0.5 , 0.33, 0.67, 0.67])
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

    def __repr__(self) -> str:
        last = min(self.window, len(self.correct))
        right = f"{100 * self.accuracy()[-1]:.0f} % of the last {last} right" if last else "none right or wrong"
        return f"<LearningCurve: {len(self.correct):,} trials, {right} (chance {100 * self.chance:.0f} %)>"

    def accuracy(self) -> npt.NDArray[np.float64]:
        """Return the running accuracy: the share of right answers in the window that ends at each trial."""
        right = np.concatenate([[0], np.cumsum(np.asarray(self.correct, np.int64))])
        ends = np.arange(1, len(self.correct) + 1)
        starts = np.maximum(0, ends - self.window)
        return np.asarray((right[ends] - right[starts]) / (ends - starts), np.float64)

    def reached_at(self, first: int = 0) -> int | None:
        """Return the first trial at the end of a full window, from trial `first` on, that reaches the target.

        Parameters
        ----------
        first : int
            First trial that counts.

        Returns
        -------
        int or None
            Number of the trial; None if the target is not reached.
        """
        if self.target is None:
            return None
        whole = np.arange(len(self.correct)) >= first + self.window - 1
        reached = np.flatnonzero(whole & (self.accuracy() >= self.target - 1e-12))
        return int(reached[0]) if len(reached) else None

    @property
    def reversed_at(self) -> int | None:
        """Index of the first trial under the reversed rule; None if there were no trials before it or from it on."""
        at = self.reversal_at
        return at if at is not None and 0 < at < len(self.correct) else None


@dataclass(frozen=True, eq=False)
class RasterRegion:
    """The spikes of one region.

    Attributes
    ----------
    name : str
        Name of the region.
    neurons : int
        Number of neurons.
    inhibitory_from : int or None
        Neurons from this one on are inhibitory; None: not known.
    times_ms : array of float64, shape (spikes,)
        Spike times in ms, in any order.
    ids : array of int64, shape (spikes,)
        Neuron of each spike, from 0 to neurons - 1.
    """

    name: str
    neurons: int
    inhibitory_from: int | None
    times_ms: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int64]

    def __repr__(self) -> str:
        return f"<RasterRegion {self.name!r}: {len(self.ids):,} spikes of {self.neurons:,} neurons>"

    def __post_init__(self) -> None:
        if self.times_ms.ndim != 1 or self.times_ms.shape != self.ids.shape:
            raise InvalidArgument(
                f"RasterRegion {self.name!r} has times of shape {self.times_ms.shape} and ids of shape "
                f"{self.ids.shape}: give one of each for every spike"
            )
        if len(self.ids) and not (self.ids.min() >= 0 and self.ids.max() < self.neurons):
            wrong = self.ids.min() if self.ids.min() < 0 else self.ids.max()
            raise InvalidArgument(
                f"RasterRegion {self.name!r} has a spike of neuron {wrong}: it has {self.neurons} neurons, from 0 on"
            )


@dataclass(frozen=True, eq=False)
class Raster:
    """The spikes of one trial.

    Attributes
    ----------
    regions : tuple of RasterRegion
        Regions from top to bottom.
    start_ms, stop_ms : float
        Time to show, in ms: from `start_ms` to before `stop_ms`.
    marks : tuple of (float, str)
        Times to mark, in ms, with their labels: (0.0, "cue"), (420.0, "action").
    """

    regions: tuple[RasterRegion, ...]
    start_ms: float
    stop_ms: float
    marks: tuple[tuple[float, str], ...] = ()

    def __repr__(self) -> str:
        spikes = sum(len(region.ids) for region in self.regions)
        return (
            f"<Raster from {self.start_ms:g} to {self.stop_ms:g} ms: {spikes:,} spikes of {len(self.regions)} regions>"
        )

    def __post_init__(self) -> None:
        if not (self.start_ms < self.stop_ms and math.isfinite(self.stop_ms - self.start_ms)):
            raise InvalidArgument(
                f"Raster goes from {self.start_ms} ms to {self.stop_ms} ms: give a start before the end"
            )


@dataclass(frozen=True)
class GraphNode:
    """A region, sensor or effector; kind "sensor" is drawn first, "effector" last, any other is a region."""

    name: str
    kind: str
    neurons: int
    rate_hz: float


@dataclass(frozen=True)
class GraphEdge:
    """A pathway with its traffic in spikes per second; the weights of a `plastic` one change."""

    source: str
    target: str
    delay_ms: float
    spikes_per_s: float
    plastic: bool


@dataclass(frozen=True)
class RegionGraph:
    """The regions, sensors and effectors of a brain, and the pathways between them."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def __repr__(self) -> str:
        return f"<RegionGraph: {len(self.nodes)} nodes, {len(self.edges)} edges>"

    def _repr_html_(self) -> str:
        rows = (
            (
                edge.source,
                edge.target,
                f"{edge.delay_ms:g}",
                f"{edge.spikes_per_s:,.0f}",
                "yes" if edge.plastic else "no",
            )
            for edge in self.edges
        )
        return html_table(repr(self)[1:-1], ("source", "target", "delay (ms)", "spikes/s", "plastic"), rows)

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
    """The load of one worker process.

    Attributes
    ----------
    worker : int
        Number of the worker.
    regions : tuple of str
        Regions that it ran.
    busy, waiting : float
        Shares of the run time in which it computed and in which it waited for others, from 0 to 1.
    spikes_out, spikes_in : int
        Spikes sent to and received from other workers.
    memory_bytes : int
        Memory in use.
    by_region : tuple of (str, float)
        Share of the run time for each region; together at most `busy`.
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
    """The data of the whole page; `facts` are (name, value) pairs about the run.

    `neuraxis.report.brain.page.write_report` writes the page.
    """

    title: str
    subtitle: str
    curve: LearningCurve
    raster: Raster
    graph: RegionGraph
    workers: tuple[WorkerLoad, ...]
    facts: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"<BrainReport {self.title!r}: {self.subtitle}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.title}: {self.subtitle}", ("fact", "value"), self.facts)
