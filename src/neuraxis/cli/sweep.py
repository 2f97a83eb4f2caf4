"""`neuraxis sweep brain.toml --set ... --seeds ...`: a grid of brains on a cluster, and one table of it all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from neuraxis.cli.brain_options import check_page, make_importable, tell_error, tell_first_time, tell_interrupt
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.machine import usable_cores
from neuraxis.network.arguments import positive, whole

if TYPE_CHECKING:
    from neuraxis.cluster import DaskCluster
    from neuraxis.observe.sweep import SweepRun

__all__ = ["sweep"]

_HELP = """Run a grid of brains, and put what comes of them into one table.

Each combination of the values that --set gives, with each seed, is a cell: a
brain that is run once, as `neuraxis run` would run it, with the same
fingerprint. Cells run side by side, on the cores of this machine or on a Dask
cluster. Each is kept as soon as it is done: after Ctrl-C, or kill -9, the
same command goes on where it was.
"""

_EPILOGUE = """Examples:

  How well do cortices of three sizes learn? Ten seeds each, on all cores:
    neuraxis run --write brain.toml
    neuraxis sweep brain.toml --task cue-action --trials 300 \\
        --set regions.cortex.config.neurons=80,160,320 --seeds 10

  Two settings at once make a grid; a pathway is named by its ends:
    neuraxis sweep brain.toml --task delayed --out delayed.parquet \\
        --set 'pathways[prefrontal->striatum].delay_ms=2,4,8' \\
        --set reward.dopamine=0.5,1,2 --seeds 1,2,3

  Rates without a task, for a second of model time each:
    neuraxis sweep brain.toml --set sensors.cue.rate_hz=20,40,60 --time-ms 1000

  On a cluster that runs already (its workers need the same neuraxis; what a
  worker is sent it runs: use one that you trust):
    dask scheduler --host 127.0.0.1 --port 8786
    dask worker tcp://127.0.0.1:8786 --nworkers 8 --nthreads 1
    neuraxis sweep brain.toml --seeds 100 --scheduler tcp://127.0.0.1:8786

A field is named as in errors about the file: regions.NAME.config.FIELD,
pathways[NUMBER].weight. Values are written as in TOML, with commas between;
a text needs no quotes. Cells are kept in the folder OUT.cells; more values
or seeds later run only what is new. After a change of Python code that a
brain's file names, say --fresh.

Exit status: 0 when every cell is there, 1 when some failed (they are listed,
and in the table with their error), 2 when it cannot be run as asked, 130 when
Ctrl-C ended it early."""

sweep = App(name="sweep", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@sweep.default
def _sweep(
    file: Path | None = None,
    *,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
    seeds: str = "1",
    seed: int | None = None,
    task: Literal["cue-action", "delayed", "reversal"] | None = None,
    trials: int = 300,
    stimulus: Path | None = None,
    time_ms: float | None = None,
    workers: int | None = None,
    threads: int = 1,
    memory_limit: str = "auto",
    scheduler: str | None = None,
    connect_timeout_s: float = 60.0,
    no_workers_s: float = 600.0,
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    out: Path = Path("sweep.csv"),
    plot: Path | None = None,
    retry_failed: Annotated[bool, Parameter(negative=())] = False,
    fresh: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run a grid of brains.

    Parameters
    ----------
    file
        The TOML file; without one, the default brain.
    settings
        A field of the file and the values that it takes: path=1,2,3. May be said several times.
    seeds
        How many seeds, from the file's own on; or which: 3,5,8.
    seed
        The first seed, instead of the one in the file.
    task
        What to learn by reward: cue-action, delayed or reversal.
    trials
        How many trials of the task.
    stimulus
        A file with what the sensors see.
    time_ms
        Model time of each cell, in ms; with a stimulus, by default as long as that is, else 1000.
    workers
        How many worker processes to start; by default as many as there are cores.
    threads
        How many cells each worker runs at a time.
    memory_limit
        Memory of each worker, such as 4GB; by default an even share.
    scheduler
        Run on the Dask cluster with this address instead: tcp://HOST:PORT.
    connect_timeout_s
        How long starting workers, or a sign of life from the scheduler, may take.
    no_workers_s
        How long to go on, in seconds, while the cluster has no worker at all.
    tls_ca
        For a cluster with TLS: the certificate of its authority.
    tls_cert
        For a cluster with TLS: our certificate.
    tls_key
        For a cluster with TLS: our key.
    out
        Where the table goes: a name that ends in .csv or .parquet.
    plot
        Where the picture goes (PNG); by default beside the table.
    retry_failed
        Run cells again that failed before.
    fresh
        Forget what was kept of these cells, and run them all.
    as_json
        Print one JSON object instead of text.
    """
    from neuraxis.brain import default_brain, read_spec
    from neuraxis.observe.sweep import run_sweep
    from neuraxis.observe.sweep_folder import SweepFolder
    from neuraxis.observe.sweep_plan import Job, digest_of_file, plan_cells
    from neuraxis.observe.sweep_settings import parse_seeds, parse_settings
    from neuraxis.observe.sweep_table import check_table_path

    plot = out.with_suffix(".png") if plot is None else plot
    try:
        _check(task, stimulus, time_ms, trials)
        positive(no_workers_s, "--no-workers-s")
        for path, option in ((out, "--out"), (plot, "--plot")):
            check_page(path, option)
        check_table_path(out)
        if plot.suffix != ".png":
            raise InvalidArgument(f"--plot {plot}: a name that ends in .png is expected")
        cluster = _cluster(workers, threads, memory_limit, scheduler, connect_timeout_s, (tls_ca, tls_cert, tls_key))
        make_importable(file)
        spec = default_brain() if file is None else read_spec(file)
        first = spec.seed if seed is None else whole(seed, "--seed", 0)
        job = Job(
            task=task,
            trials=trials,
            stimulus=None if stimulus is None else str(stimulus.resolve()),
            stimulus_digest="" if stimulus is None else digest_of_file(stimulus),
            time_ms=time_ms,
            where=None if file is None else str(file.resolve()),
        )
        cells = plan_cells(spec, parse_settings(settings), parse_seeds(seeds, first), job)
        tell_first_time()
        with SweepFolder(out.with_name(out.name + ".cells")) as folder:
            again = {"retry_failed": retry_failed, "fresh": fresh}
            run = run_sweep(cells, job, folder, cluster, **again, no_workers_s=no_workers_s)
            _write(run, spec.name, out, plot)
    except (NeuraxisError, OSError) as error:
        return tell_error("sweep", error, True)
    _tell(run, out, plot, as_json)
    if run.interrupted:
        done = sum(record is not None for record in run.records)
        return tell_interrupt(True, f"after {done} of {len(cells)} cells; the same command goes on from there")
    return 1 if run.failed else 0


def _check(task: str | None, stimulus: Path | None, time_ms: float | None, trials: int) -> None:
    if task is not None and (stimulus is not None or time_ms is not None):
        raise InvalidArgument("--task says how long a run is and what is shown: not with --stimulus or --time-ms")
    whole(trials, "--trials", 1)
    if time_ms is not None:
        positive(time_ms, "--time-ms")


def _cluster(
    workers: int | None, threads: int, memory: str, scheduler: str | None, limit_s: float, keys: tuple[Path | None, ...]
) -> DaskCluster:
    """The cluster that is to run the cells; nothing of it is started yet."""
    from neuraxis.cluster import DaskCluster

    security = None
    if scheduler is not None and scheduler.startswith("tls://") and not any(keys):
        raise InvalidArgument(f"--scheduler {scheduler}: keys are needed: --tls-ca, --tls-cert and --tls-key")
    if any(keys):
        if scheduler is None or not all(keys):
            raise InvalidArgument(
                "--tls-ca, --tls-cert and --tls-key: are for a --scheduler with TLS, all three together"
            )
        for option, path in zip(("--tls-ca", "--tls-cert", "--tls-key"), keys, strict=True):
            if path is not None and not path.is_file():
                raise InvalidArgument(f"{option} {path}: there is no such file")
        from distributed import Security

        ca, certificate, key = (str(path) for path in keys)
        security = Security(require_encryption=True, tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key)
    count = usable_cores() if workers is None else whole(workers, "--workers", 1)
    return DaskCluster(count, whole(threads, "--threads", 1), memory, scheduler, security=security, timeout=limit_s)


def _write(run: SweepRun, name: str, out: Path, plot: Path) -> None:
    from neuraxis.observe.sweep_plot import plot_sweep
    from neuraxis.observe.sweep_table import sweep_table, write_table, write_whole

    table = sweep_table(run)
    if table.rows:
        write_table(table, out)
        write_whole(plot, lambda path: plot_sweep(table, name).savefig(path, dpi=150))


def _tell(run: SweepRun, out: Path, plot: Path, as_json: bool) -> None:
    from neuraxis.observe.sweep_table import summary, sweep_table

    table = sweep_table(run)
    failed: list[dict[str, Any]] = [
        {**cell.settings, "seed": cell.seed, "error": record["error"]} for cell, record in run.failed
    ]
    if as_json:
        answer = {
            "cells": len(run.cells),
            "ran": run.ran,
            "failed": failed,
            "interrupted": run.interrupted,
            "out": str(out),
            "plot": str(plot),
            "rows": table.rows,
        }
        print(msgspec.json.encode(answer).decode())  # unlike Python's own: no NaN, which is no JSON, but null
        return
    if table.rows:
        print(*summary(table), sep="\n")
        kept = len(table.rows) - run.ran
        print(f"{len(run.cells)} cells: {run.ran} run now, {kept} kept from before, {len(failed)} failed")
        print(f"the table: {out}, the picture: {plot}")
    for one in failed:
        where = ", ".join(f"{name}={value}" for name, value in one.items() if name != "error")
        print(f"failed: {where}: {' '.join(one['error'].split())}", file=sys.stderr)
    if failed:
        print("run the same with --retry-failed when the reason is gone", file=sys.stderr)
