"""A fork server: a process with all modules loaded that forks ranks in milliseconds.

Starting Python and importing neuraxis takes half a second, and importing PyTorch two more. A fork server imports them
once. It has one thread and no context, and only forks, so a rank is an ordinary process and ends like one. The server
is the parent of its ranks and reaps one only on request: until then a dead rank stays a zombie, which the other ranks
can see, as under a launcher.
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

__all__ = ["ForkServer", "Forked", "close_fork_servers", "fork_server"]

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("numpy", "pytest", "neuraxis.distributed")
WITH_TORCH = (*LIGHT, "torch", "torch.distributed", "torch._dynamo")  # the last one comes with the first optimizer
# PYTHONPATH of a new interpreter: the tests first, then the PYTHONPATH of this process.
SEARCH_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class Forked:
    """A process started by a fork server, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, fork_server: ForkServer, pid: int, what: str) -> None:
        self.pid = pid
        self.args = what
        self.returncode: int | None = None
        self._server = fork_server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server._ask("reap", self.pid)
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
            os.kill(self.pid, number)  # not reaped yet, so no other process can have this pid

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """Fork processes that have these modules loaded. Starts when first needed; `close` ends it."""

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
                [sys.executable, "-m", "tests.ranks.fork_server_main", str(theirs.fileno()), *self._modules],
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
        """Fork a process that calls `module.function(*arguments)` and appends its output to `log`."""
        self.start()
        pid = self._ask("fork", module, function, tuple(arguments), environment, str(log))
        return Forked(self, pid, f"{module}.{function}{tuple(arguments)}")

    def load(self, module: str) -> None:
        """Import a module, so that every process forked from now on has it."""
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


_FORK_SERVERS = {False: ForkServer(LIGHT), True: ForkServer(WITH_TORCH)}


def fork_server(torch: bool = False) -> ForkServer:
    """Return the fork server of this test session, without or with torch."""
    return _FORK_SERVERS[torch]


def close_fork_servers() -> None:
    for each in _FORK_SERVERS.values():
        each.close()
