"""A crew: N persistent processes that are the ranks of one world, driven by a test.

Starting ranks costs seconds and a collective microseconds, so a crew lives through many tests. A test hands it
a module-level function, which every rank calls with its live context; the test gets every rank's answer.
"""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.crew.nursery import SEARCH_PATH, Forked, nursery

__all__ = ["BACKENDS", "CREWS", "Crew", "CrewError"]

SIZES = (1, 2, 3, 5)
BACKENDS = ("local", "shm", "gloo", "mpi")
CREWS = [("local", 1)] + [(backend, size) for backend in BACKENDS[1:] for size in SIZES]

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 90.0
CALL_LIMIT_S = 100.0
GRACE_S = 5.0  # what the other ranks get to answer once one has failed


class CrewError(AssertionError):
    """A rank raised, died or did not answer; the text has every rank's story."""


class Crew:
    """The ranks of one world over `backend`. Started by `start`, ended by `close`."""

    def __init__(self, backend: str, size: int) -> None:
        self.backend = backend
        self.size = size
        self.broken = False
        self.generation = 0  # how often it was started
        self._folder: Path | None = None
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._family: list[psutil.Process] = []
        self._connections: dict[int, Any] = {}

    def __repr__(self) -> str:
        return f"<Crew {self.backend} {self.size}>"

    # --- life ---

    @property
    def alive(self) -> bool:
        return bool(self._connections) and not self.broken

    def start(self) -> None:
        """Start the ranks, and return when all of them have their context."""
        self.broken = False
        self.generation += 1
        self._folder = Path(tempfile.mkdtemp(prefix="crew-"))  # readable by its owner alone
        address = str(self._folder / "socket")
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(address)
                server.listen(self.size)
                server.settimeout(0.2)
                self._spawn(address)
                self._accept(server)
            self._answers(START_LIMIT_S, "start")
            self._family = [psutil.Process(process.pid) for process in self._processes]
            self._family += [child for process in self._family for child in process.children(recursive=True)]
        except BaseException:
            self.broken = True
            self.close()
            raise

    def ensure(self) -> None:
        """Start the ranks unless they are there and well."""
        if not self.alive:
            self.close()
            self.start()

    def close(self) -> None:
        """End every process and remove every trace; kills what does not end by itself, and then says so."""
        stuck = []
        for connection in self._connections.values():
            if not self.broken:
                try:
                    connection.send(None)
                except OSError:
                    pass  # that rank is gone already
        if self.broken and self.backend == "mpi":
            for mpirun in self._processes:
                mpirun.terminate()  # it ends its ranks and removes what they shared
        elif self.broken:
            self._kill()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                stuck.append(process.pid)
        self._kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections.values():
            connection.close()
        story = self._output() if stuck else ""
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._folder, self._processes, self._family, self._connections = None, [], [], {}
        if stuck:
            raise CrewError(f"{self!r}: processes {stuck} did not end after a shutdown\n{story}")

    def _kill(self) -> None:
        for process in self._family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        for started in self._processes:
            started.kill()

    # --- calls ---

    def run(self, function: Callable[..., Any], *arguments: Any, limit_s: float = CALL_LIMIT_S) -> list[Any]:
        """`function(context, *arguments)` on every rank; their answers in rank order."""
        assert self.alive, f"{self!r} is not running"
        for connection in self._connections.values():
            connection.send((function.__module__, function.__qualname__, arguments))
        return self._answers(limit_s, f"{function.__qualname__}{arguments}")

    def check(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function that answers with a list of complaints, of which there must be none."""
        complaints = [line for answer in self.run(function, *arguments) for line in answer]
        shown = "\n".join(complaints[:20])
        assert not complaints, f"{len(complaints)} complaints of {self!r}:\n{shown}"

    def _answers(self, limit_s: float, what: str) -> list[Any]:
        deadline = time.monotonic() + limit_s
        waiting = {connection: rank for rank, connection in self._connections.items()}
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        while waiting:
            ready = mpc.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    succeeded, value = connection.recv()
                except (EOFError, OSError):
                    succeeded, value = False, "ended without an answer"
                if succeeded:
                    answers[rank] = value
                else:
                    failures[rank] = value
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        for rank in waiting.values():
            failures[rank] = "gave no answer in time"
        if failures:
            self.broken = True
            story = "\n".join(f"--- rank {rank}: {text}" for rank, text in sorted(failures.items()))
            raise CrewError(f"{self!r} in {what}:\n{story}\n{self._output()}")
        return [answers[rank] for rank in range(self.size)]

    # --- how the ranks are started ---

    def _spawn(self, address: str) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMIX_", "SLURM_", "MASTER_"))
        }
        environment.update(PYTHONPATH=SEARCH_PATH, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
        command = [sys.executable, "-m", "tests.crew.worker", address, self.backend]
        if self.backend == "mpi":
            mpirun = Path(sys.executable).with_name("mpirun")
            launcher = [str(mpirun) if mpirun.exists() else "mpirun"]
            launcher += ["--allow-run-as-root", "--oversubscribe", "-n", str(self.size)]
            self._processes.append(self._popen([*launcher, *command], environment))
            return
        environment.update(
            WORLD_SIZE=str(self.size),
            LOCAL_WORLD_SIZE=str(self.size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(_free_port()),
            NEURAXIS_JOB=secrets.token_hex(8),
        )
        for rank in range(self.size):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if self.backend == "local":  # as over mpi: a new Python, in which torch comes when it is needed, or never
                self._processes.append(self._popen(command, own))
                continue
            assert self._folder is not None
            here = nursery(torch=True)
            self._processes.append(
                here.fork("tests.crew.worker", "main", (address, self.backend), own, self._folder / "output")
            )

    def _popen(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        assert self._folder is not None
        with open(self._folder / "output", "ab") as output:
            return subprocess.Popen(
                command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _accept(self, server: socket.socket) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while len(self._connections) < self.size:
            try:
                peer, _ = server.accept()
            except TimeoutError:
                ended = [process.args for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    raise CrewError(f"{self!r} did not start: {ended}\n{self._output()}") from None
                continue
            peer.setblocking(True)
            connection = mpc.Connection(peer.detach())
            self._connections[connection.recv()] = connection

    def _output(self) -> str:
        if self._folder is None:
            return ""
        return "output:\n" + (self._folder / "output").read_text(errors="replace")[-6000:]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
