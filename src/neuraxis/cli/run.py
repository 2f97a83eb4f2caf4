"""`neuraxis run brain.toml`: run any brain on a task or a stimulus."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from neuraxis.arguments import positive, whole
from neuraxis.cli.brain_options import (
    Lockstep,
    announce_compilation,
    brain_workers,
    check_writable,
    interrupted_status,
    is_first_rank,
    lockstep_ranks,
    make_importable,
    mesh_nodes,
    region_topologies,
    report_error,
)
from neuraxis.cli.mesh_options import MeshOptions
from neuraxis.errors import InvalidArgument, NeuraxisError

if TYPE_CHECKING:
    from neuraxis.brain.runs import TaskRun
    from neuraxis.brain.spec import BrainSpec
    from neuraxis.brain.tasks import CueActionTask

__all__ = ["run"]

_HELP = """Run a brain that a TOML file describes.

It runs on a task that it can learn by reward, on a stimulus file with the
input of its sensors, or for some time without input. The result is
bit-identical in one process and in many.
"""

_EPILOGUE = """Examples:

  Get a file to start from, and run it for a second:
    neuraxis run --write brain.toml
    neuraxis run brain.toml --time-ms 1000

  Let it learn on all cores, with a report:
    neuraxis run brain.toml --task cue-action --trials 300 --html report.html

  Save the state, stop with Ctrl-C, and resume later:
    neuraxis run brain.toml --task delayed --checkpoint state/
    neuraxis run brain.toml --task delayed --checkpoint state/ --resume

  Run it on a stimulus, and record all spikes:
    neuraxis run brain.toml --stimulus cues.csv --record spikes.h5

  As ranks that exchange spikes by collectives: on one host, on two (the
  same on the other one, with --node-rank 1), under MPI. Options of the
  brain come after "run"; rank 0 prints and writes files:
    neuraxis launch -n 4 -m neuraxis run brain.toml --lockstep gloo
    neuraxis launch -n 4 --nodes 2 --node-rank 0 --master-addr 10.0.0.1 \\
        -m neuraxis run brain.toml --lockstep gloo
    mpirun -n 4 neuraxis run brain.toml --lockstep mpi

  As nodes of a mesh, one for each region, on this machine or several; the
  result is the same, and the other regions survive one that dies:
    neuraxis run brain.toml --mesh --time-ms 2000
    neuraxis run brain.toml --mesh --remote cortex --connect tcp/127.0.0.1:7447
    neuraxis run brain.toml --mesh --clock realtime --time-ms 10000

A stimulus is a CSV file with the columns start_ms, stop_ms, sensor, group
and value (sensor "reward" delivers one), or a SONATA file of spikes of
sensors. A brain's file can name Python code (kind = "python", a module
beside the file or installed), which runs: use only files that you trust.

Exit codes: 0 when it ran to its end, 1 when it failed, 2 for wrong usage,
130 when Ctrl-C ended it early (143: SIGTERM)."""

run = App(name="run", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@run.default
def _run(
    file: Path | None = None,
    *,
    task: Literal["cue-action", "delayed", "reversal"] | None = None,
    trials: int = 300,
    stimulus: Path | None = None,
    time_ms: float | None = None,
    workers: str | None = None,
    sequential: Annotated[bool, Parameter(negative=())] = False,
    device: str = "cpu",
    lockstep: Lockstep | None = None,
    mesh: Annotated[bool, Parameter(negative=())] = False,
    clock: Literal["lockstep", "realtime"] = "lockstep",
    remote: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    silence_timeout: float = 1.0,
    region_states: Path | None = None,
    on_worker_loss: Literal["raise", "restart"] = "raise",
    check_finite: bool = True,
    seed: int | None = None,
    record: Path | None = None,
    checkpoint: Path | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    html: Path | None = None,
    write: Path | None = None,
    how: MeshOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run a brain.

    Parameters
    ----------
    file
        The TOML file; default: the default brain.
    task
        Task to learn by reward: cue-action, delayed or reversal.
    trials
        Number of trials of the task, in all.
    stimulus
        File with the input of the sensors.
    time_ms
        Model time to run, in ms; default: the length of the stimulus, else 1000.
    workers
        Number of processes, or "auto" (the default), which estimates the fastest number.
    sequential
        Run in this process alone.
    device
        Device of the neurons: cpu, cuda (a GPU), cuda:1; for several workers one for each, as in cuda,cpu.
    lockstep
        Run as ranks that a launcher has started, over this backend.
    mesh
        Run each region as a node of the mesh, in a separate process; they exchange spikes over Zenoh.
    clock
        With --mesh: lockstep (the result is that of one process), or realtime (each region follows the wall clock).
    remote
        With --mesh: a region whose node runs elsewhere (neuraxis node); can be repeated.
    silence_timeout
        With --mesh: seconds without messages after which the others treat a region as silent, until it returns.
    region_states
        With --mesh: a folder in which each region saves its own states, to restart from
        (neuraxis node --checkpoint FOLDER --resume).
    on_worker_loss
        When a worker process dies: raise an error, or restart from a saved state, with the same result.
    check_finite
        Stop when a state becomes infinite or NaN.
    seed
        Seed of everything random, instead of the one in the file.
    record
        Write all spikes to this file (SONATA, HDF5).
    checkpoint
        Save the complete state in this folder: every minute, at the end, and on Ctrl-C or SIGTERM.
    resume
        Resume from the state in that folder.
    html
        Write a report of a task to this file.
    write
        Write the description of the brain to this TOML file and do not run it.
    as_json
        Print one JSON object instead of text.
    """
    import msgspec

    from neuraxis.brain import Brain, default_brain, read_spec, write_spec
    from neuraxis.brain.runs import learn, play
    from neuraxis.brain.stimulus_file import StimulusFile, read_stimulus

    here = is_first_rank(lockstep)
    try:
        processes = brain_workers(workers, sequential, "auto", lockstep, mesh, device)
        _check_mesh(mesh, clock, remote, region_states, on_worker_loss, task, stimulus, checkpoint, record)
        if lockstep is not None and on_worker_loss == "restart":
            raise InvalidArgument(
                "--on-worker-loss restart: ranks cannot be restarted one by one; use neuraxis launch --max-restarts"
            )
        make_importable(file)
        spec = default_brain() if file is None else read_spec(file)
        if seed is not None:
            spec = msgspec.structs.replace(spec, seed=whole(seed, "--seed", 0))
        if write is not None:
            check_writable(write, "--write")
            write_spec(spec, write)
            print(f"wrote {write}")
            return 0
        if clock == "realtime":
            return _run_by_wall_clock(spec, file, time_ms, remote, silence_timeout, region_states, how, as_json)
        with lockstep_ranks(lockstep, f"run {file or ''}".rstrip()) as ranks:
            terminated = ranks.terminated
            if mesh:
                ranks = mesh_nodes(
                    spec, how or MeshOptions(), "" if file is None else str(file), remote=remote,
                    silence_timeout=positive(silence_timeout, "--silence-timeout"), checkpoint=region_states,
                )  # fmt: skip
            ranks.agree(lambda: _check(task, stimulus, time_ms, trials, checkpoint, resume, html, record))
            shown = StimulusFile() if stimulus is None else read_stimulus(stimulus, spec)
            if time_ms is None:
                time_ms = shown.steps * spec.dt_ms if stimulus is not None else 1000.0
            if ranks.leads and "cpu" in device:  # GPU kernels compile for each network, quickly
                announce_compilation()
            with Brain(
                spec,
                workers=processes,
                device=device,
                executor=ranks.executor,
                on_worker_loss=on_worker_loss,
                check_finite=check_finite,
                record_to=record,
                progress=ranks.progress,
                where=None if file is None else str(file),
            ) as brain:
                if ranks.leads and not as_json:
                    print(f"{brain!r}{': ' * bool(brain.workers_reason)}{brain.workers_reason}", file=sys.stderr)
                kept: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume}
                callbacks: dict[str, Any] = {"progress": ranks.progress, "stop": ranks.stop}
                if task is not None:
                    answer, interrupted = learn(brain, task, trials, report=_report_writer(html), **kept, **callbacks)
                else:
                    answer, interrupted = play(brain, shown, time_ms, **kept, **callbacks)
    except (NeuraxisError, OSError) as error:
        return report_error("run", error, here)
    if not here:
        return 130 if interrupted else 0
    if as_json:
        print(json.dumps(answer))
    else:
        _print(answer)
    files = "; " + ", ".join(f"{what} in {path}" for what, path in (("spikes", record), ("state", checkpoint)) if path)
    return interrupted_status(
        interrupted, f"at {answer['time_ms']:g} ms of model time{files.rstrip('; ')}", terminated()
    )


def _check(
    task: str | None, stimulus: Path | None, time_ms: float | None, trials: int, checkpoint: Path | None, resume: bool,
    html: Path | None, record: Path | None,
) -> None:  # fmt: skip
    """Raise `InvalidArgument` before anything starts if options contradict each other."""
    if task is not None and (stimulus is not None or time_ms is not None):
        raise InvalidArgument("--task defines the length and the input of a run; leave out --stimulus and --time-ms")
    if task is None and html is not None:
        raise InvalidArgument("--html writes the report of a task; add --task")
    if resume and checkpoint is None:
        raise InvalidArgument("--resume: the folder is missing; name it with --checkpoint")
    whole(trials, "--trials", 1)
    if time_ms is not None:
        positive(time_ms, "--time-ms")
    for path, option in ((html, "--html"), (record, "--record")):
        if path is not None:
            check_writable(path, option)
    if checkpoint is not None and checkpoint.exists() and not checkpoint.is_dir():
        raise InvalidArgument(f"--checkpoint {checkpoint}: this is a file; name a folder")
    if resume and checkpoint is not None and not checkpoint.is_dir():
        raise InvalidArgument(f"--resume: there is no folder {checkpoint}")


def _check_mesh(
    mesh: bool, clock: str, remote: tuple[str, ...], region_states: Path | None, on_worker_loss: str,
    task: str | None, stimulus: Path | None, checkpoint: Path | None, record: Path | None,
) -> None:  # fmt: skip
    """Raise `InvalidArgument` for options that need --mesh without it, or that exclude it."""
    given = {"--clock realtime": clock == "realtime", "--remote": bool(remote), "--region-states": region_states}
    if not mesh:
        for option, there in given.items():
            if there:
                raise InvalidArgument(f"{option}: this option is for nodes of the mesh; add --mesh")
        return
    if on_worker_loss == "restart":
        raise InvalidArgument(
            "--on-worker-loss restart: with --mesh the other regions continue; restart the region with neuraxis node "
            "--resume (see --region-states)"
        )
    if clock == "realtime" and (task or stimulus or checkpoint or record):
        raise InvalidArgument(
            "--clock realtime: no process drives the regions; leave out --task, --stimulus, --checkpoint and --record, "
            "publish to sensors (neuraxis pub), and save states with --region-states"
        )


def _report_writer(html: Path | None) -> Callable[[CueActionTask, TaskRun], None] | None:
    if html is None:
        return None
    from neuraxis.report.brain.page import write_report
    from neuraxis.report.brain.task_report import task_report

    def write(task: CueActionTask, run: TaskRun) -> None:
        report = task_report(task, run)
        if task.brain.leads:
            write_report(report, html)

    return write


def _run_by_wall_clock(
    spec: BrainSpec, file: Path | None, time_ms: float | None, remote: tuple[str, ...], silence_timeout: float,
    region_states: Path | None, how: MeshOptions | None, as_json: bool,
) -> int:  # fmt: skip
    from neuraxis.brain.mesh import region_setups
    from neuraxis.brain.runs import run_by_wall_clock
    from neuraxis.network.grid import whole_steps
    from neuraxis.report.mesh import print_clock_reports

    options = how or MeshOptions()
    until = whole_steps(positive(1000.0 if time_ms is None else time_ms, "--time-ms"), spec.dt_ms, "--time-ms")
    announce_compilation()
    topology = options.topology("driver")
    topologies = {name: one.as_data() for name, one in region_topologies(spec, options, remote).items()}
    setups = region_setups(
        spec, "" if file is None else str(file), mesh=options.mesh_name, topology=topology.as_data(),
        topologies=topologies,
        clock="realtime", stays=True, silence_timeout=positive(silence_timeout, "--silence-timeout"),
        checkpoint=None if region_states is None else str(region_states.resolve()),
    )  # fmt: skip
    reports, interrupted = run_by_wall_clock(setups, until, spec.dt_ms, topology, remote)
    if as_json:
        print(json.dumps(reports))
    else:
        print_clock_reports(reports, spec.dt_ms)
    return interrupted_status(interrupted, "before its time was over")


def _print(answer: dict[str, Any]) -> None:
    if "accuracy" in answer:
        last = min(100, answer["trials"])
        print(f"{answer['trials']} trials: {answer['accuracy']:.0%} of the last {last} right")
    for region, rate in answer.get("rates_hz", {}).items():
        print(f"  {region:<16} {rate:6.2f} Hz")
    print(
        f"{answer['time_ms']:,.0f} ms of {answer['neurons']:,} neurons on {answer['workers']} "
        f"worker{'s' * (answer['workers'] != 1)}{' (' + answer['device'] + ')' if answer['device'] != 'cpu' else ''}, "
        f"real-time factor {answer['real_time_factor']:.3f}"
    )
    print(f"fingerprint {answer['fingerprint']}")
