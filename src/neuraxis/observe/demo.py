"""The report of a brain that learned a task: what `neuraxis demo` writes."""

from __future__ import annotations

import platform
import tempfile

import numpy as np

from neuraxis.brain import Brain
from neuraxis.brain.diagnostics import Diagnostics
from neuraxis.brain.tasks import CueActionTask, Trial
from neuraxis.machine import usable_cores
from neuraxis.observe.brain_report.model import (
    BrainReport,
    GraphEdge,
    GraphNode,
    LearningCurve,
    Raster,
    RasterRegion,
    RegionGraph,
    WorkerLoad,
)
from neuraxis.observe.brain_session import WINDOW, TaskRun
from neuraxis.version import __version__

__all__ = ["brain_report"]

_CURVE_WINDOW = 25


def brain_report(task: CueActionTask, session: TaskRun, *, target: float | None = None) -> BrainReport:
    """Everything that the report shows. One more trial is run, on a copy of the brain, to draw its spikes.

    Where ranks run the brain together, all make the report, and only that of the process that leads is whole.
    """
    brain = task.brain
    health = brain.diagnostics()
    return BrainReport(
        title=f"The {brain.spec.name} brain learns {_task_name(task)}",
        subtitle=(
            f"{brain.neuron_count:,} spiking neurons in {len(brain.spec.regions)} regions, {session.trials} trials, "
            f"{session.accuracy:.0%} of the last {min(WINDOW, max(1, session.trials))} right"
        ),
        curve=learning_curve_of(task, target),
        raster=_raster(task),
        graph=_graph(brain, health),
        workers=_workers(health),
        facts=_facts(task, session),
    )


def learning_curve_of(task: CueActionTask, target: float | None = None) -> LearningCurve:
    """The learning curve of a task so far."""
    return LearningCurve(
        correct=tuple(trial.correct for trial in task.trials),
        chance=1 / task.actions,
        window=_CURVE_WINDOW,
        target=target,
        reversal_at=task.reverse_at,
    )


def _task_name(task: CueActionTask) -> str:
    name = f"{task.cues} cues to {task.actions} actions"
    return f"{name}, with a gap between cue and action" if task.delayed else name


def _raster(task: CueActionTask) -> Raster:
    """The spikes of the trial that would come next, run on a copy of the brain that records."""
    brain, timing = task.brain, task.times
    with tempfile.TemporaryDirectory(prefix="neuraxis-demo-") as folder:
        brain.save_checkpoint(folder, task.state())
        if not brain.leads:
            return Raster((), 0.0, timing.total_ms)  # where ranks run the brain together, the first draws
        with Brain(brain.spec, record=True) as copy:
            again = CueActionTask(copy, task.delayed, task.reverse_at, timing, task.sensor)
            again.restore(copy.load_checkpoint(folder))
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


def _facts(task: CueActionTask, session: TaskRun) -> tuple[tuple[str, str], ...]:
    brain = task.brain
    surprise = np.mean([abs(trial.surprise) for trial in task.trials[-WINDOW:]]) if task.trials else 0.0
    how = "one process" if brain.workers == 1 else f"{brain.workers} worker processes"
    if brain.device != "cpu":
        how += f" ({brain.device})"
    return (
        ("neurons", f"{brain.neuron_count:,}"),
        ("synapses", f"{brain.synapse_count:,}"),
        ("real-time factor", f"{session.real_time_factor:.3f}"),
        ("trials", f"{session.trials:,}"),
        (f"right of the last {WINDOW}", f"{session.accuracy:.1%}"),
        ("mean surprise of these", f"{surprise:.2f}"),
        ("model time", f"{brain.time_ms * 1e-3:,.1f} s"),
        ("wall time", f"{session.seconds:,.1f} s"),
        ("run by", how),
        ("seed", str(brain.spec.seed)),
        ("step", f"{brain.spec.dt_ms:g} ms"),
        ("fingerprint", brain.fingerprint()),
        ("neuraxis", __version__),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}, {usable_cores()} cores usable"),
    )
