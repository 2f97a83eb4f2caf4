"""`neuraxis run brain.toml`: run any brain, on a task or a stimulus."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from neuraxis.cli.brain_options import (
    Lockstep,
    brain_workers,
    check_page,
    is_told_here,
    lockstep_ranks,
    make_importable,
    mesh_nodes,
    region_topologies,
    tell_error,
    tell_first_time,
    tell_interrupt,
)
from neuraxis.cli.mesh_options import MeshOptions
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.network.arguments import positive, whole

if TYPE_CHECKING:
    from neuraxis.brain.spec import BrainSpec

__all__ = ["run"]

_HELP = """Run a brain that a TOML file describes.

On a task that it can learn by reward, on a stimulus file that says what its
sensors see, or for some time with nothing but itself. In one process or in
many, the result is the same to the bit.
"""

_EPILOGUE = """Examples:

  Get a file to start from, and run it for a second:
    neuraxis run --write brain.toml
    neuraxis run brain.toml --time-ms 1000

  Let it learn on all cores, with a report:
    neuraxis run brain.toml --task cue-action --trials 300 --html report.html

  Keep the state, stop with Ctrl-C, and go on later:
    neuraxis run brain.toml --task delayed --checkpoint state/
    neuraxis run brain.toml --task delayed --checkpoint state/ --resume

  Show it something, and keep all spikes:
    neuraxis run brain.toml --stimulus cues.csv --record spikes.h5

  As ranks that exchange spikes by collectives: on one host, on two (the
  same on the other one, with --node-rank 1), under MPI. What is the
  brain's own comes after "run"; rank 0 prints and writes files:
    neuraxis launch -n 4 -m neuraxis run brain.toml --lockstep gloo
    neuraxis launch -n 4 --nodes 2 --node-rank 0 --master-addr 10.0.0.1 \\
        -m neuraxis run brain.toml --lockstep gloo
    mpirun -n 4 neuraxis run brain.toml --lockstep mpi

  As nodes of a mesh, one for each region, on this machine or several; the
  result is the same, and a region that dies harms no other:
    neuraxis run brain.toml --mesh --time-ms 2000
    neuraxis run brain.toml --mesh --remote cortex --connect tcp/127.0.0.1:7447
    neuraxis run brain.toml --mesh --clock realtime --time-ms 10000

A stimulus is a CSV file with the columns start_ms, stop_ms, sensor, group
and value (sensor "reward" delivers one), or a SONATA file of spikes of
sensors. A brain's file may name Python code of yours to run (kind =
"python", a module beside the file or installed): run only files that you
trust.

Exit status: 0 when it ran to its end, 2 when it cannot be run as asked, 130
when Ctrl-C ended it early."""

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
    patience_s: float = 1.0,
    region_states: Path | None = None,
    on_worker_loss: Literal["raise", "restart"] = "raise",
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
        The TOML file; without one, the default brain.
    task
        What to learn by reward: cue-action, delayed or reversal.
    trials
        How many trials of the task, in all.
    stimulus
        A file with what the sensors see.
    time_ms
        Model time to run, in ms; with a stimulus, by default as long as that is, else 1000.
    workers
        How many processes, or "auto"; by default as many as pay.
    sequential
        Run in this process alone.
    device
        Where the neurons are: cpu, cuda (a GPU), cuda:1; for several workers one for each, as in cuda,cpu.
    lockstep
        Run as ranks that a launcher has started, over this backend.
    mesh
        Start a node of the mesh for each region, in a process of its own; they exchange spikes over Zenoh.
    clock
        With --mesh: lockstep (the result is that of one process), or realtime (each region follows the wall clock).
    remote
        With --mesh: a region whose node runs elsewhere (neuraxis node), and is waited for; may be said several times.
    patience_s
        With --mesh: a region that has said nothing for so long is silence to the others, until it comes back.
    region_states
        With --mesh: a folder in which each region keeps states of its own, to be started again from
        (neuraxis node --checkpoint FOLDER --resume).
    on_worker_loss
        When a worker process dies: raise, or restart from a state kept on the way, with the same result.
    seed
        Draw everything random from it, instead of the seed in the file.
    record
        Write all spikes to this file (SONATA, HDF5).
    checkpoint
        Keep the complete state in this folder: every minute, at the end, and on Ctrl-C.
    resume
        Go on from the state in that folder.
    html
        Write a report of a task to this file.
    write
        Write the description of the brain to this TOML file, and run nothing.
    as_json
        Print one JSON object instead of text.
    """
    import msgspec

    from neuraxis.brain import Brain, default_brain, read_spec, write_spec
    from neuraxis.brain.stimulus_file import StimulusFile, read_stimulus
    from neuraxis.observe.brain_run import learn, play

    here = is_told_here(lockstep)
    try:
        processes = brain_workers(workers, sequential, "auto", lockstep, mesh, device)
        _check_mesh(mesh, clock, remote, region_states, on_worker_loss, task, stimulus, checkpoint, record)
        if lockstep is not None and on_worker_loss == "restart":
            raise InvalidArgument("--on-worker-loss restart: not with --lockstep; see neuraxis launch --max-restarts")
        make_importable(file)
        spec = default_brain() if file is None else read_spec(file)
        if seed is not None:
            spec = msgspec.structs.replace(spec, seed=whole(seed, "--seed", 0))
        if write is not None:
            check_page(write, "--write")
            write_spec(spec, write)
            print(f"wrote {write}")
            return 0
        if clock == "realtime":
            return _run_by_the_clock(spec, file, time_ms, remote, patience_s, region_states, how, as_json)
        with lockstep_ranks(lockstep, f"run {file or ''}".rstrip()) as ranks:
            if mesh:
                ranks = mesh_nodes(
                    spec, how or MeshOptions(), "" if file is None else str(file), remote=remote,
                    patience_s=positive(patience_s, "--patience-s"), checkpoint=region_states,
                )  # fmt: skip
            ranks.agree(lambda: _check(task, stimulus, time_ms, trials, checkpoint, resume, html, record))
            shown = StimulusFile() if stimulus is None else read_stimulus(stimulus, spec)
            if time_ms is None:
                time_ms = shown.steps * spec.dt_ms if stimulus is not None else 1000.0
            if ranks.leads and "cpu" in device:  # (the kernels of a GPU are compiled for each network, in no time)
                tell_first_time()
            with Brain(
                spec,
                workers=processes,
                device=device,
                executor=ranks.executor,
                on_worker_loss=on_worker_loss,
                record_to=record,
                progress=ranks.progress,
                where=None if file is None else str(file),
            ) as brain:
                if ranks.leads and not as_json:
                    print(f"{brain!r}{': ' * bool(brain.workers_reason)}{brain.workers_reason}", file=sys.stderr)
                kept: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume}
                told: dict[str, Any] = {"progress": ranks.progress, "stop": ranks.stop}
                if task is not None:
                    answer, interrupted = learn(brain, task, trials, html=html, **kept, **told)
                else:
                    answer, interrupted = play(brain, shown, time_ms, **kept, **told)
    except (NeuraxisError, OSError) as error:
        return tell_error("run", error, here)
    if not here:
        return 130 if interrupted else 0
    if as_json:
        print(json.dumps(answer))
    else:
        _print(answer)
    files = "; " + ", ".join(f"{what} in {path}" for what, path in (("spikes", record), ("state", checkpoint)) if path)
    return tell_interrupt(interrupted, f"at {answer['time_ms']:g} ms of model time{files.rstrip('; ')}")


def _check(
    task: str | None, stimulus: Path | None, time_ms: float | None, trials: int, checkpoint: Path | None, resume: bool,
    html: Path | None, record: Path | None,
) -> None:  # fmt: skip
    """Refuse what cannot work before anything is started."""
    if task is not None and (stimulus is not None or time_ms is not None):
        raise InvalidArgument("--task says how long a run is and what is shown: not with --stimulus or --time-ms")
    if task is None and html is not None:
        raise InvalidArgument("--html is the report of a task: say --task")
    if resume and checkpoint is None:
        raise InvalidArgument("--resume: say with --checkpoint from which folder")
    whole(trials, "--trials", 1)
    if time_ms is not None:
        positive(time_ms, "--time-ms")
    for path, option in ((html, "--html"), (record, "--record")):
        if path is not None:
            check_page(path, option)
    if checkpoint is not None and checkpoint.exists() and not checkpoint.is_dir():
        raise InvalidArgument(f"--checkpoint {checkpoint}: is a file; a folder is expected")
    if resume and checkpoint is not None and not checkpoint.is_dir():
        raise InvalidArgument(f"--resume: there is no folder {checkpoint}")


def _check_mesh(
    mesh: bool, clock: str, remote: tuple[str, ...], region_states: Path | None, on_worker_loss: str,
    task: str | None, stimulus: Path | None, checkpoint: Path | None, record: Path | None,
) -> None:  # fmt: skip
    """Refuse what means nothing off the mesh, or on it."""
    given = {"--clock realtime": clock == "realtime", "--remote": bool(remote), "--region-states": region_states}
    if not mesh:
        for option, there in given.items():
            if there:
                raise InvalidArgument(f"{option}: is for nodes of the mesh: say --mesh")
        return
    if on_worker_loss == "restart":
        raise InvalidArgument(
            "--on-worker-loss restart: not with --mesh, where others go on; start the region again with neuraxis node "
            "--resume (see --region-states)"
        )
    if clock == "realtime" and (task or stimulus or checkpoint or record):
        raise InvalidArgument(
            "--clock realtime: nobody drives the regions: not with --task, --stimulus, --checkpoint or --record; "
            "sensors hear their keys (neuraxis pub), and --region-states keeps states"
        )


def _run_by_the_clock(
    spec: BrainSpec, file: Path | None, time_ms: float | None, remote: tuple[str, ...], patience_s: float,
    region_states: Path | None, how: MeshOptions | None, as_json: bool,
) -> int:  # fmt: skip
    from neuraxis.brain.mesh import region_setups
    from neuraxis.network.grid import to_steps
    from neuraxis.observe.mesh_run import print_stories, run_by_the_clock

    options = how or MeshOptions()
    until = to_steps(positive(1000.0 if time_ms is None else time_ms, "--time-ms"), spec.dt_ms, "--time-ms")
    tell_first_time()
    topology = options.topology("driver")
    ways = {name: one.as_data() for name, one in region_topologies(spec, options, remote).items()}
    setups = region_setups(
        spec, "" if file is None else str(file), mesh=options.mesh_name, topology=topology.as_data(),
        topologies=ways,
        clock="realtime", stays=True, patience_s=positive(patience_s, "--patience-s"),
        checkpoint=None if region_states is None else str(region_states.resolve()),
    )  # fmt: skip
    stories, interrupted = run_by_the_clock(setups, until, spec.dt_ms, topology, remote)
    if as_json:
        print(json.dumps(stories))
    else:
        print_stories(stories, spec.dt_ms)
    return tell_interrupt(interrupted, "before its time was over")


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
