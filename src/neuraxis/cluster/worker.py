"""Setup of a Dask worker process, and checks of the neuraxis version that workers have.

Dask calls `dask_setup` before the first task. It makes a worker end with the process that started it. Dask has a thread
in the worker that waits for the other end of a pipe to close, but a task that holds the GIL (a call into C) blocks that
thread, so the kernel sends a parent-death signal as well.

Ctrl-C reaches all processes of a terminal. The process that the user started handles it and stops its workers; a
worker that handled it would end in the middle of a message.

Errors of tasks are raised where their results are fetched, so a worker does not log them. It does log that memory is
low.

Functions of a module are sent by name. A worker that cannot import the module loses its connection to the scheduler and
ends; the scheduler gives the task to the next one, and when all are gone the client waits forever. So the functions
that check versions are closures, which are sent by value: any worker can run them.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from typing import Any

from neuraxis.process.parent_death import die_with_parent
from neuraxis.version import __version__

__all__ = ["as_code", "dask_setup", "describe_mismatches", "version_probe"]


def as_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a public function of neuraxis so that it can be sent to any worker.

    There it raises an ImportError with the name of the worker's host if neuraxis is missing or has another version.
    """
    module, name, wanted = function.__module__, function.__qualname__, __version__

    def call(*args: Any, **kwargs: Any) -> Any:
        import importlib
        import socket

        where = f"the worker on {socket.gethostname()}"
        try:
            found = importlib.import_module("neuraxis.version").__version__
            loaded = getattr(importlib.import_module(module), name) if found == wanted else None
        except ImportError as error:
            raise ImportError(f"{where} cannot import neuraxis ({error})") from None
        if loaded is None:
            raise ImportError(f"{where} has neuraxis {found}, and this program {wanted}. Install the same version")
        return loaded(*args, **kwargs)

    return call


def version_probe() -> Callable[[], str | None]:
    """Return a function that returns the version of neuraxis on a worker, or None if there is none."""

    def version() -> str | None:
        import importlib

        try:
            return str(importlib.import_module("neuraxis.version").__version__)
        except ImportError:
            return None

    return version


def describe_mismatches(found: Mapping[str, Any]) -> str:
    """Describe workers whose version differs; "" if there are none. `found` has the results of the probe by address."""
    wrong = []
    for worker, version in found.items():
        if version is None:
            wrong.append(f"{worker} has no neuraxis")
        elif isinstance(version, BaseException):  # it cannot run the probe; most likely another Python version
            wrong.append(f"{worker} cannot be checked ({type(version).__name__}: {version})")
        elif version != __version__:
            wrong.append(f"{worker} has neuraxis {version}")
    return "; ".join(wrong)


def dask_setup(worker: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)
    logging.getLogger("distributed.worker.memory").setLevel(logging.WARNING)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
