"""The report of a brain on a task, which `neuraxis demo` and `neuraxis run --html` write."""

from __future__ import annotations

import math
import platform
import tempfile

import numpy as np

from neuraxis.brain import Brain
from neuraxis.brain.diagnostics import Diagnostics
from neuraxis.brain.runs import ACCURACY_WINDOW, TaskRun
from neuraxis.brain.tasks import CueActionTask, Trial
from neuraxis.machine import usable_cores
from neuraxis.report.brain.model import (
    BrainReport,
    GraphEdge,
    GraphNode,
    LearningCurve,
    Raster,
    RasterRegion,
    RegionGraph,
    WorkerLoad,
)
from neuraxis.version import __version__

__all__ = ["headline", "learning_curve_of", "task_report"]

_CURVE_WINDOW = 25  # trials of the running accuracy


def task_report(task: CueActionTask, run: TaskRun, *, target: float | None = None) -> BrainReport:
    """Return the data of the report. A copy of the brain runs one more trial, whose spikes the report shows.

    Where ranks run the brain together, all must call this; only the report of the leading process is complete.

    Parameters
    ----------
    task : CueActionTask
        The task, after its trials.
    run : TaskRun
        The result of these trials.
    target : float, optional
        Accuracy from which on the task counts as learned, from 0 to 1.
    """
    brain = task.brain
    health = brain.diagnostics()
    return BrainReport(
        title=headline(task, run, target),
        subtitle=(
            f"{brain.neuron_count:,} spiking neurons in {len(brain.spec.regions)} regions, {run.trials} trials, "
            f"{run.accuracy:.0%} of the last {min(ACCURACY_WINDOW, max(1, run.trials))} right"
        ),
        curve=learning_curve_of(task, target),
        raster=_raster(task),
        graph=_graph(brain, health),
        workers=_workers(health),
        facts=_facts(task, run),
    )


def learning_curve_of(task: CueActionTask, target: float | None = None) -> LearningCurve:
    """Return the learning curve of a task so far."""
    return LearningCurve(
        correct=tuple(trial.correct for trial in task.trials),
        chance=1 / task.actions,
        window=_CURVE_WINDOW,
        target=target,
        reversal_at=task.reverse_at,
    )


def headline(task: CueActionTask, run: TaskRun, target: float | None) -> str:
    """Return a headline that claims no more than the accuracy of the last trials shows."""
    chance, trials = 1 / task.actions, min(ACCURACY_WINDOW, run.trials)
    # Two standard errors of guessing: less could be luck.
    above_chance = trials > 0 and run.accuracy > chance + 2 * math.sqrt(chance * (1 - chance) / trials)
    if above_chance and target is not None and run.accuracy >= target:
        progress = "has learned"
    elif above_chance:
        progress = "is learning"
    else:
        progress = "has not yet learned"
    title = f"The {task.brain.spec.name} brain {progress} to map {task.cues} cues to {task.actions} actions"
    return f"{title}, with a gap between cue and action" if task.delayed else title


def _raster(task: CueActionTask) -> Raster:
    """Run the next trial on a copy of the brain that records, and return its spikes."""
    brain, timing = task.brain, task.times
    with tempfile.TemporaryDirectory(prefix="neuraxis-demo-") as folder:
        brain.save(folder, task.save())
        if not brain.leads:
            return Raster((), 0.0, timing.total_ms)  # only the leading rank draws
        with Brain(brain.spec, record=True) as copy:
            again = CueActionTask(copy, task.delayed, task.reverse_at, timing, task.sensor)
            again.restore(copy.restore(folder))
            start_ms = copy.time_ms
            trial = again.run_trial()
            regions = []
            for name, built in copy.lowered.regions.items():
                times_ms, ids = copy.spikes(name)
                cells = sum(one.n for one in built.populations.values())
                regions.append(RasterRegion(name, cells, None, times_ms - start_ms, ids))
            stop_ms = copy.time_ms - start_ms
    choice_ms = timing.cue_ms + timing.gap_ms
    marks = [(0.0, f"cue {trial.cue + 1}"), (choice_ms, f"action {trial.action + 1}")]
    if timing.gap_ms:
        marks.insert(1, (timing.cue_ms, "gap"))
    marks.append((choice_ms + timing.action_ms, _outcome(trial)))
    return Raster(tuple(regions), 0.0, stop_ms, tuple(marks))


def _outcome(trial: Trial) -> str:
    return "reward" if trial.reward else "no reward"


def _graph(brain: Brain, health: Diagnostics) -> RegionGraph:
    lowered = brain.lowered
    seconds = max(brain.time_ms * 1e-3, 1e-9)
    counts = brain.spike_totals()
    nodes = tuple(
        GraphNode(name, built.kind, sum(one.n for one in built.populations.values()), health.regions[name].rate_hz)
        for name, built in lowered.regions.items()
    )
    edges: dict[tuple[str, str], GraphEdge] = {}
    for pathway in lowered.pathways:
        traffic = counts[pathway.source_population.name] / seconds
        plastic = any(one.has_changing_weights for one in pathway.projections)
        known = edges.get((pathway.source, pathway.target))
        if known is not None:
            traffic, plastic = traffic + known.spikes_per_s, plastic or known.plastic
        edges[pathway.source, pathway.target] = GraphEdge(
            pathway.source, pathway.target, pathway.delay_ms, traffic, plastic
        )
    return RegionGraph(nodes, tuple(edges.values()))


def _workers(health: Diagnostics) -> tuple[WorkerLoad, ...]:
    loads = []
    for one in health.workers:
        waiting = one.shares["waiting"]
        busy = max(0.0, 1.0 - waiting) if any(one.shares.values()) else 0.0
        loads.append(
            WorkerLoad(
                worker=one.worker,
                regions=one.regions,
                busy=busy,
                waiting=waiting,
                spikes_out=one.spikes_out,
                spikes_in=one.spikes_in,
                memory_bytes=one.memory_bytes,
                by_region=tuple((name, busy * share) for name, share in one.load_by_region.items()),
            )
        )
    return tuple(loads)


def _facts(task: CueActionTask, run: TaskRun) -> tuple[tuple[str, str], ...]:
    brain = task.brain
    surprise = np.mean([abs(trial.surprise) for trial in task.trials[-ACCURACY_WINDOW:]]) if task.trials else 0.0
    processes = "one process" if brain.workers == 1 else f"{brain.workers} worker processes"
    if brain.device != "cpu":
        processes += f" ({brain.device})"
    return (
        ("neurons", f"{brain.neuron_count:,}"),
        ("synapses", f"{brain.synapse_count:,}"),
        ("real-time factor", f"{run.real_time_factor:.3f}"),
        ("trials", f"{run.trials:,}"),
        (f"right of the last {ACCURACY_WINDOW}", f"{run.accuracy:.1%}"),
        ("mean absolute prediction error of these", f"{surprise:.2f}"),
        ("model time", f"{brain.time_ms * 1e-3:,.1f} s"),
        ("wall time", f"{run.seconds:,.1f} s"),
        ("run by", processes),
        ("seed", str(brain.spec.seed)),
        ("step", f"{brain.spec.dt_ms:g} ms"),
        ("fingerprint", brain.fingerprint()),
        ("neuraxis", __version__),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}, {usable_cores()} cores usable"),
    )
