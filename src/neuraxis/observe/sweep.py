"""Run the cells of a sweep on a cluster, and keep each as soon as it is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neuraxis.cluster.software import as_code
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
    fresh: bool = False,
    no_workers_s: float = 600.0,
    progress: bool | None = None,
) -> SweepRun:
    """Run the cells of which nothing is known yet (and, if wanted, those that failed, or all); Ctrl-C ends it.

    The cluster is started if there is anything to run, and stopped. A ClusterError says which of its workers lack the
    neuraxis of this program, or that there has been none for `no_workers_s` seconds.

    Args:
        retry_failed: run those again that failed.
        fresh: run all; what is known of them is forgotten once the cluster is there.
    """
    known = [None if fresh else folder.read(cell) for cell in cells]
    open_ones = [i for i, one in enumerate(known) if one is None or (retry_failed and "error" in one)]
    ran = 0
    interrupted = False
    with ProgressLine("sweeping", max(1, len(cells)), progress) as line:
        try:
            if open_ones:
                with cluster:
                    if not cluster.check_workers():
                        told = f"{cluster.scheduler_address} has no workers yet: waiting {no_workers_s:g} s for one"
                        print(told, file=sys.stderr)
                    if fresh:
                        folder.forget(cells)
                    for i, record in _results(cluster, cells, open_ones, job, no_workers_s):
                        folder.write(cells[i], record)
                        known[i] = folder.read(cells[i])  # as the same command would find it later
                        ran += 1
                        line.update(len(cells) - len(open_ones) + ran, _says(known))
        except KeyboardInterrupt:
            interrupted = True
    return SweepRun(cells, known, ran, interrupted)


def _results(
    cluster: DaskCluster, cells: Sequence[Cell], wanted: Sequence[int], job: Job, no_workers_s: float
) -> Iterator[tuple[int, Record]]:
    """(number of the cell, what came of it), as they finish."""
    # Workers that come while it runs may lack neuraxis.
    futures = cluster.map(as_code(run_cell), [cell_work(cells[i], job) for i in wanted], pure=False)
    number = {future.key: i for future, i in zip(futures, wanted, strict=True)}
    order = cluster.completed(futures, no_workers_s=no_workers_s)
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
                f"the cluster could not run a cell: {type(error).__name__}: {error}; its workers need the same "
                "neuraxis, and the same Python and Dask, as this program"
            ) from error
        yield number[future.key], record


def _says(known: Sequence[Record | None]) -> str:
    done = sum(one is not None for one in known)
    failed = sum(one is not None and "error" in one for one in known)
    return f"{done}/{len(known)} cells" + (f", {failed} failed" if failed else "")
