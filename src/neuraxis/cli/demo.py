"""`neuraxis demo`: the default brain learns a task on all cores and writes a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from neuraxis.arguments import whole
from neuraxis.cli.brain_options import (
    Lockstep,
    announce_compilation,
    brain_workers,
    check_writable,
    interrupted_status,
    is_first_rank,
    lockstep_ranks,
    mesh_nodes,
    report_error,
)
from neuraxis.cli.mesh_options import MeshOptions
from neuraxis.errors import NeuraxisError

__all__ = ["demo"]

_HELP = """Watch a brain learn.

The default brain (thalamus, cortex, hippocampus, prefrontal cortex, striatum
and cerebellum, all of spiking neurons) is shown one of four cues at a time
and learns from reward alone which of four actions is right for each. It runs
on all cores and writes a page with the learning curve, the spikes of a trial,
the regions and their pathways, and the load of the workers. The result is
bit-identical on any number of workers: compare the fingerprints.
"""

_EPILOGUE = """Examples:

  Learn, then open neuraxis-demo.html:
    neuraxis demo

  The same in one process; the fingerprint is the same:
    neuraxis demo --sequential

  The cue is gone for a second before the choice:
    neuraxis demo --task delayed

  The right actions change half way:
    neuraxis demo --task reversal --trials 600

  As ranks that exchange spikes by collectives; the fingerprint is the
  same (under MPI: mpirun -n 4 neuraxis demo --lockstep mpi):
    neuraxis launch -n 4 -m neuraxis demo --lockstep gloo

  As nodes of a mesh, one for each region, which discover each other; the
  fingerprint is the same:
    neuraxis demo --mesh

  For a program:
    neuraxis demo --json | jq .accuracy

Exit codes: 0 when it ran to its end, 1 when it failed, 2 for wrong usage,
130 when Ctrl-C ended it early (the page then shows the trials so far)."""

_TARGETS = {"cue-action": 0.85, "delayed": 0.70, "reversal": 0.85}

demo = App(name="demo", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@demo.default
def _demo(
    *,
    workers: str | None = None,
    sequential: Annotated[bool, Parameter(negative=())] = False,
    device: str = "cpu",
    lockstep: Lockstep | None = None,
    mesh: Annotated[bool, Parameter(negative=())] = False,
    trials: int = 300,
    seed: int = 1,
    task: Literal["cue-action", "delayed", "reversal"] = "cue-action",
    html: Path = Path("neuraxis-demo.html"),
    how: MeshOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Train the default brain.

    Parameters
    ----------
    workers
        Number of processes, or "auto"; default: one for each core.
    sequential
        Run in this process alone.
    device
        Device of the neurons: cpu, cuda (a GPU), cuda:1; for several workers one for each, as in cuda,cpu.
    lockstep
        Run as ranks that a launcher has started, over this backend.
    mesh
        Run each region as a node of the mesh, in a separate process; they exchange spikes over Zenoh.
    trials
        Number of trials.
    seed
        Seed of everything random: the brain, the cues, the right actions.
    task
        Task to learn: cue-action, delayed (the cue is gone for 1 s before the choice), reversal (the right actions
        change half way).
    html
        File of the report.
    as_json
        Print one JSON object instead of text.
    """
    from neuraxis.brain import Brain, default_brain
    from neuraxis.brain.runs import run_task
    from neuraxis.brain.tasks import CueActionTask
    from neuraxis.report.brain.page import write_report
    from neuraxis.report.brain.task_report import task_report

    here = is_first_rank(lockstep)
    try:
        whole(trials, "--trials", 1)
        whole(seed, "--seed", 0)
        processes = brain_workers(workers, sequential, lockstep=lockstep, mesh=mesh, device=device)
        with lockstep_ranks(lockstep, "demo") as ranks:
            if mesh:
                ranks = mesh_nodes(default_brain(seed), how or MeshOptions())
            ranks.agree(lambda: check_writable(html))
            if ranks.leads and "cpu" in device:  # GPU kernels compile for each network, quickly
                announce_compilation()
            with Brain.default(
                seed, workers=processes, device=device, executor=ranks.executor, progress=ranks.progress
            ) as brain:
                if ranks.leads and not as_json:
                    print(f"{brain!r}: {brain.workers_reason or 'learning ' + task}", file=sys.stderr)
                learned = CueActionTask(
                    brain, delayed=task == "delayed", reverse_at=trials // 2 if task == "reversal" else None
                )
                session = run_task(learned, trials, progress=ranks.progress, stop=ranks.stop)
                report = task_report(learned, session, target=_TARGETS[task])
                if brain.leads:
                    write_report(report, html)
                fingerprint, workers_used, neurons = brain.fingerprint(), brain.workers, brain.neuron_count
                where, compiled, built = brain.device, brain.compile_seconds, brain.build_seconds
    except (NeuraxisError, OSError) as error:
        return report_error("demo", error, here)
    if not here:
        return 130 if session.interrupted else 0
    answer = {
        "accuracy": session.accuracy,
        "trials": session.trials,
        "real_time_factor": session.real_time_factor,
        "fingerprint": fingerprint,
        "task": task,
        "seed": seed,
        "workers": workers_used,
        "device": where,
        "neurons": neurons,
        "seconds": session.seconds,
        "compile_seconds": compiled,
        "build_seconds": built,
    }
    if as_json:
        print(json.dumps(answer))
    else:
        if compiled:
            print(f"compiled in {compiled:.0f} s (kept for the next runs), built in {built:.1f} s")
        print(
            f"{session.trials} trials in {session.seconds:.0f} s (real-time factor {session.real_time_factor:.2f}): "
            f"{session.accuracy:.0%} of the last {min(100, session.trials)} right (chance 25%)\n"
            f"fingerprint {fingerprint} (the same on any number of workers)\nthe report: {html}"
        )
    return interrupted_status(session.interrupted, f"after trial {session.trials}; the report shows these: {html}")
