"""What a worker process of a cluster does before its first task. Dask calls `dask_setup` there.

A worker ends with the process that started it. Dask has a thread in the worker that waits for the other end of a pipe
to go, but a task that holds Python's lock (a call into C that does not let go of it) holds up that thread, too. So the
kernel is asked as well.

Ctrl-C reaches all processes of a terminal. It is for the process that the user has started, which then stops its
workers; a worker that took it for its own would end in the middle of a message.

What a task raises is raised where its result is asked for, so a worker does not write it to the terminal as well. That
its memory gets short it does write.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from typing import Any

from neuraxis.launch.tether import tether

__all__ = ["dask_setup"]


def dask_setup(worker: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)
    logging.getLogger("distributed.worker.memory").setLevel(logging.WARNING)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        tether(parent.pid)
