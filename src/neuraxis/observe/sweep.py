"""Run the cells of a sweep on a cluster, and keep each as soon as it is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neuraxis.errors import ClusterError, NeuraxisError, TaskLost
from neuraxis.execution.progress import ProgressLine
from neuraxis.observe.sweep_cell import cell_work, run_cell
from neuraxis.observe.sweep_folder import SweepFolder
from neuraxis.observe.sweep_plan import Cell, Job

if TYPE_CHECKING:
    from neuraxis.cluster import DaskCluster

__all__ = ["SweepRun", "run_sweep"]

Record = dict[str, Any]


@dataclass(frozen=True)
class SweepRun:
    """What is known when a sweep has ended.

    Attributes:
        records: what came of each cell, in their order; None: it was not run.
        ran: how many were run this time.
        interrupted: Ctrl-C ended it early.
    """

    cells: Sequence[Cell]
    records: Sequence[Record | None]
    ran: int
    interrupted: bool

    @property
    def failed(self) -> list[tuple[Cell, Record]]:
        pairs = zip(self.cells, self.records, strict=True)
        return [(cell, record) for cell, record in pairs if record is not None and "error" in record]


def run_sweep(
    cells: Sequence[Cell],
    job: Job,
    folder: SweepFolder,
    cluster: DaskCluster,
    *,
    retry_failed: bool = False,
    progress: bool | None = None,
) -> SweepRun:
    """Run the cells of which nothing is known yet (and, if wanted, those that failed); Ctrl-C ends it.

    The cluster is started if there is anything to run, and stopped.
    """
    known = [folder.read(cell) for cell in cells]
    open_ones = [i for i, one in enumerate(known) if one is None or (retry_failed and "error" in one)]
    ran = 0
    interrupted = False
    with ProgressLine("sweeping", max(1, len(cells)), progress) as line:
        try:
            if open_ones:
                with cluster:
                    if not cluster.get_worker_info():
                        print(f"{cluster.scheduler_address} has no workers yet: waiting for one", file=sys.stderr)
                    for i, record in _results(cluster, cells, open_ones, job):
                        folder.write(cells[i], record)
                        known[i] = record
                        ran += 1
                        line.update(len(cells) - len(open_ones) + ran, _says(known))
        except KeyboardInterrupt:
            interrupted = True
    return SweepRun(cells, known, ran, interrupted)


def _results(
    cluster: DaskCluster, cells: Sequence[Cell], wanted: Sequence[int], job: Job
) -> Iterator[tuple[int, Record]]:
    """(number of the cell, what came of it), as they finish."""
    futures = cluster.map(run_cell, [cell_work(cells[i], job) for i in wanted], pure=False)
    number = {future.key: i for future, i in zip(futures, wanted, strict=True)}
    order = cluster.completed(futures)
    del futures  # a result is let go of on the cluster when nobody has its future any more
    for future in order:
        try:
            record = cluster.gather(future)
        except TaskLost as error:
            record = {"error": f"TaskLost: {error}", "traceback": ""}
        except NeuraxisError:
            raise
        except Exception as error:  # a cell's own errors are answers: this one is of the cluster
            raise ClusterError(
                f"the cluster could not run a cell: {type(error).__name__}: {error}; its scheduler and workers need "
                "the same neuraxis and Dask as this program"
            ) from error
        yield number[future.key], record


def _says(known: Sequence[Record | None]) -> str:
    done = sum(one is not None for one in known)
    failed = sum(one is not None and "error" in one for one in known)
    return f"{done}/{len(known)} cells" + (f", {failed} failed" if failed else "")
