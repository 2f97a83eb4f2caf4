"""`neuraxis sweep brain.toml --set ... --seeds ...`: run a grid of brains on a cluster into one table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from neuraxis import imports as optional
from neuraxis.arguments import positive, whole
from neuraxis.cli.brain_options import (
    announce_compilation,
    check_writable,
    interrupted_status,
    make_importable,
    report_error,
)
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.machine import check_process_count, usable_cores

if TYPE_CHECKING:
    from neuraxis.cluster import DaskCluster
    from neuraxis.sweep.run import SweepRun

__all__ = ["sweep"]

_HELP = """Run a grid of brains, and write the results into one table.

Each combination of the values of --set, with each seed, is a cell: a brain
that runs once, as `neuraxis run` would run it, with the same fingerprint.
Cells run in parallel, on the cores of this machine or on a Dask cluster. Each
result is saved as soon as its cell is done: after Ctrl-C, or kill -9, the
same command continues with the missing cells.
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

  On a cluster that runs already (its workers need the same neuraxis; workers
  run the code that they receive: use a cluster that you trust):
    dask scheduler --host 127.0.0.1 --port 8786
    dask worker tcp://127.0.0.1:8786 --nworkers 8 --nthreads 1
    neuraxis sweep brain.toml --seeds 100 --scheduler tcp://127.0.0.1:8786

A field is named as in errors about the file: regions.NAME.config.FIELD,
pathways[NUMBER].weight. Values are written as in TOML, separated by commas;
a text needs no quotes. Results are saved in the folder OUT.cells; with more
values or seeds later, only new cells run. A change of the brain's file, of the
stimulus, or of the Python code of its own regions (the module that `create`
names, and its imports from the same folder) runs the cells again.

Exit codes: 0 when every cell has a result, 1 when some failed (they are
listed, and in the table with their error) or the cluster did, 2 for wrong
usage, 130 when Ctrl-C ended it early."""

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
    connect_timeout: float = 60.0,
    no_workers_timeout: float = 600.0,
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
        The TOML file; default: the default brain.
    settings
        A field of the file and its values: path=1,2,3; can be repeated.
    seeds
        Number of seeds, starting with the file's; or the seeds: 3,5,8.
    seed
        The first seed, instead of the one in the file.
    task
        Task to learn by reward: cue-action, delayed or reversal.
    trials
        Number of trials of the task.
    stimulus
        File with the input of the sensors.
    time_ms
        Model time of each cell, in ms; default: the length of the stimulus, else 1000.
    workers
        Number of worker processes; default: one for each core.
    threads
        Number of cells that each worker runs at a time.
    memory_limit
        Memory of each worker, such as 4GB; default: an equal share.
    scheduler
        Run on the Dask cluster with this address instead: tcp://HOST:PORT.
    connect_timeout
        Seconds that starting workers, or connecting to the scheduler, may take.
    no_workers_timeout
        Seconds to wait while the cluster has no worker at all.
    tls_ca
        For a cluster with TLS: the certificate of its CA.
    tls_cert
        For a cluster with TLS: our certificate.
    tls_key
        For a cluster with TLS: our key.
    out
        File of the table; its name ends in .csv or .parquet.
    plot
        File of the plot (PNG); default: in the folder of the table.
    retry_failed
        Run failed cells again.
    fresh
        Delete the saved results of these cells, and run them all.
    as_json
        Print one JSON object instead of text.
    """
    from neuraxis.brain import default_brain, read_spec
    from neuraxis.sweep.plan import Job, digest_of_file, parse_seeds, parse_settings, plan_cells
    from neuraxis.sweep.run import SweepFolder, run_sweep
    from neuraxis.sweep.table import check_table_path

    plot = out.with_suffix(".png") if plot is None else plot
    try:
        _check(task, stimulus, time_ms, trials)
        positive(no_workers_timeout, "--no-workers-timeout")
        for path, option in ((out, "--out"), (plot, "--plot")):
            check_writable(path, option)
        check_table_path(out)
        if plot.suffix != ".png":
            raise InvalidArgument(f"--plot {plot}: the name must end in .png")
        cluster = _cluster(workers, threads, memory_limit, scheduler, connect_timeout, (tls_ca, tls_cert, tls_key))
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
        announce_compilation()
        with SweepFolder(out.with_name(out.name + ".cells")) as folder:
            again = {"retry_failed": retry_failed, "fresh": fresh}
            run = run_sweep(cells, job, folder, cluster, **again, no_workers_timeout=no_workers_timeout)
            _write(run, spec.name, out, plot)
    except (NeuraxisError, OSError) as error:
        return report_error("sweep", error, True)
    _print(run, out, plot, as_json)
    if run.interrupted:
        done = sum(record is not None for record in run.records)
        return interrupted_status(True, f"after {done} of {len(cells)} cells; the same command continues from there")
    return 1 if run.failed else 0


def _check(task: str | None, stimulus: Path | None, time_ms: float | None, trials: int) -> None:
    if task is not None and (stimulus is not None or time_ms is not None):
        raise InvalidArgument("--task defines the length and the input of a run; leave out --stimulus and --time-ms")
    whole(trials, "--trials", 1)
    if time_ms is not None:
        positive(time_ms, "--time-ms")


def _cluster(
    workers: int | None, threads: int, memory: str, scheduler: str | None, limit_s: float, keys: tuple[Path | None, ...]
) -> DaskCluster:
    """Return the cluster for the cells; it is not started yet."""
    from neuraxis.cluster import DaskCluster

    security = None
    if scheduler is not None and scheduler.startswith("tls://") and not any(keys):
        raise InvalidArgument(f"--scheduler {scheduler}: keys are missing; add --tls-ca, --tls-cert and --tls-key")
    if any(keys):
        if scheduler is None or not all(keys):
            raise InvalidArgument(
                "--tls-ca, --tls-cert and --tls-key are for a --scheduler with TLS; give all three together"
            )
        for option, path in zip(("--tls-ca", "--tls-cert", "--tls-key"), keys, strict=True):
            if path is not None and not path.is_file():
                raise InvalidArgument(f"{option} {path}: there is no such file")
        ca, certificate, key = (str(path) for path in keys)
        distributed = optional.require("distributed", extra="dask", purpose="--scheduler")
        security = distributed.Security(
            require_encryption=True, tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key
        )
    count = usable_cores() if workers is None else whole(workers, "--workers", 1)
    check_process_count(count, "--workers")
    return DaskCluster(count, whole(threads, "--threads", 1), memory, scheduler, security=security, timeout=limit_s)


def _write(run: SweepRun, name: str, out: Path, plot: Path) -> None:
    from neuraxis.store import replacing
    from neuraxis.sweep.plot import plot_sweep
    from neuraxis.sweep.table import sweep_table, write_table

    table = sweep_table(run)
    if table.rows:
        write_table(table, out)
        with replacing(plot) as new:
            plot_sweep(table, name).savefig(new, dpi=150)


def _print(run: SweepRun, out: Path, plot: Path, as_json: bool) -> None:
    from neuraxis.sweep.table import summary, sweep_table

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
        print(msgspec.json.encode(answer).decode())  # writes null for NaN, which JSON does not have
        return
    if table.rows:
        print(*summary(table), sep="\n")
        kept = len(table.rows) - run.ran
        print(f"{len(run.cells)} cells: {run.ran} run, {kept} from an earlier run, {len(failed)} failed")
        print(f"table: {out}, plot: {plot}")
    for one in failed:
        where = ", ".join(f"{name}={value}" for name, value in one.items() if name != "error")
        print(f"failed: {where}: {' '.join(one['error'].split())}", file=sys.stderr)
    if failed:
        print("fix the reason and run the same command with --retry-failed", file=sys.stderr)
