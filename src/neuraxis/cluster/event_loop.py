"""The thread in which Dask's client and scheduler live.

Dask would start one by itself, but leave it running where a client cannot connect, or gives up a scheduler that was
lost. One that is ours ends when the cluster is stopped, whatever has happened to it.

Worker processes are started from here and inherit which signals are blocked: Ctrl-C on a terminal, which reaches all
processes of a program, must not end one that is still loading its modules (see `worker_process`).
"""

from __future__ import annotations

import asyncio
import signal
import threading
from multiprocessing import resource_tracker

from tornado.ioloop import IOLoop

from neuraxis.errors import ClusterError

__all__ = ["EventLoop"]

_LIMIT_S = 20.0


class EventLoop:
    """An event loop in a thread of its own, from when it is made until `close`."""

    io_loop: IOLoop

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="neuraxis-cluster", daemon=True)
        self._thread.start()
        if not self._ready.wait(_LIMIT_S):
            raise ClusterError(f"an event loop has not started within {_LIMIT_S:g} s")

    async def _live(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # It comes with the first worker, and starting it unblocks this signal.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._end = asyncio.Event()
        self.io_loop = IOLoop.current()
        self._ready.set()
        await self._end.wait()

    def close(self) -> None:
        """End it; what is still under way in it is cancelled."""
        self.io_loop.add_callback(self._end.set)
        self._thread.join(_LIMIT_S)
