"""A nursery: a process with all its modules loaded, of which ranks are forked in milliseconds.

To start Python and load neuraxis takes a rank half a second, and PyTorch two more, before it does what its test is
about. A nursery loads them once. It has one thread and no context, and does nothing but fork: a rank is a process as
any other, which ends as any other does. It is the parent of its ranks, so it is told when to take their exit status:
until then the dead stay visible to the living, as they do under a launcher.
"""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Forked", "Nursery", "close_nurseries", "nursery"]

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("numpy", "pytest", "neuraxis.distributed")
WITH_TORCH = (*LIGHT, "torch", "torch.distributed", "torch._dynamo")  # the last one comes with the first optimizer
# For a new Python: the tests, and what this one was told to find before what is installed.
SEARCH_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class Forked:
    """A process of a nursery, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, nursery: Nursery, pid: int, what: str) -> None:
        self.pid = pid
        self.args = what
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery._ask("reap", self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                select.select([descriptor], [], [], left)
            finally:
                os.close(descriptor)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)  # its exit status was not taken, so the number is still its own

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Nursery:
    """Forks processes that have these modules loaded. Started when first needed, ended by `close`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None

    def start(self) -> None:
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crew.forking", str(theirs.fileno()), *self._modules],
                env={**os.environ, "PYTHONPATH": SEARCH_PATH, "OMP_NUM_THREADS": "1"},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._connection = mpc.Connection(ours.detach())
        assert self._connection.recv() == "ready"

    def fork(
        self, module: str, function: str, arguments: Sequence[Any], environment: dict[str, str], log: Path
    ) -> Forked:
        """A process that calls `module.function(*arguments)` with this environment and adds its output to `log`."""
        self.start()
        pid = self._ask("fork", module, function, tuple(arguments), environment, str(log))
        return Forked(self, pid, f"{module}.{function}{tuple(arguments)}")

    def load(self, module: str) -> None:
        """Let all that are forked from now on have this module too."""
        self.start()
        self._ask("load", module)

    def close(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.wait()
            self._process = self._connection = None

    def _ask(self, *order: Any) -> Any:
        self._connection.send(order)
        answer = self._connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


_NURSERIES = {False: Nursery(LIGHT), True: Nursery(WITH_TORCH)}


def nursery(torch: bool = False) -> Nursery:
    """The nursery of this session, without or with torch."""
    return _NURSERIES[torch]


def close_nurseries() -> None:
    for each in _NURSERIES.values():
        each.close()
