"""What Dask is told for as long as any cluster of ours runs.

Dask's settings and the level of its log belong to the whole process, and each of its clients would put back what it
found. Clusters that overlap end in any order: the first to end would take the settings from the others, and the last
would put back what another had set. So they are set with the first cluster, and put back after the last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dask
from distributed.utils import silence_logging_cmgr

__all__ = ["while_a_cluster_runs"]

_SETTINGS = {
    # Dask would have workers load all data, and says so; but tensors are at hand here, and sent as they are.
    "distributed.admin.large-graph-warning-threshold": "1PB",
    # Dask's own collections compute on the cluster; a client sets it, too, and forgets what was there before another.
    "scheduler": "dask.distributed",
}

_lock = threading.Lock()
_set = ExitStack()
_users = 0


@contextmanager
def while_a_cluster_runs() -> Iterator[None]:
    """A block for each cluster; they may overlap."""
    global _users
    with _lock:
        if _users == 0:
            # What goes wrong is raised; Dask would write it to the terminal as well.
            _set.enter_context(silence_logging_cmgr(logging.CRITICAL))
            _set.enter_context(dask.config.set(_SETTINGS))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set.close()
