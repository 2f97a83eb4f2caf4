"""A rank group: N long-lived processes that are the ranks of one world and run functions for a test.

Starting ranks takes seconds and a collective takes microseconds, so many tests share one group. A test passes a
module-level function; every rank calls it with its context, and the test gets the return value of each rank.
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
from typing import Any, ClassVar

import psutil

from tests.ranks.fork_server import SEARCH_PATH, Forked, fork_server

__all__ = ["BACKENDS", "RANK_GROUPS", "RankGroup", "RankGroupError"]

# Over shared memory the algorithms are ours, so it has one size more.
SIZES = {"local": (1,), "shm": (1, 2, 3, 5), "gloo": (1, 2, 3), "mpi": (1, 2, 3)}
BACKENDS = tuple(SIZES)
RANK_GROUPS = [(backend, size) for backend, sizes in SIZES.items() for size in sizes]

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 90.0
CALL_LIMIT_S = 100.0
GRACE_S = 5.0  # for the other ranks to answer after one has failed


class RankGroupError(AssertionError):
    """A rank raised, died or did not answer; the message has the traceback and output of each rank."""


class RankGroup:
    """The ranks of one world over `backend`. Started by `start`, ended by `close`."""

    program: ClassVar[str] = "tests.ranks.worker"  # module whose `main` a rank runs

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
        return f"<RankGroup {self.backend} {self.size}>"

    # --- start and end ---

    @property
    def alive(self) -> bool:
        return bool(self._connections) and not self.broken

    def start(self) -> None:
        """Start the ranks, and return when all of them have their context."""
        self.broken = False
        self.generation += 1
        self._folder = Path(tempfile.mkdtemp(prefix="rank-group-"))  # readable by its owner alone
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
        """Start the ranks unless they are running and no test has broken them."""
        if not self.alive:
            self.close()
            self.start()

    def close(self) -> None:
        """End every process and remove all files; kill processes that do not end by themselves, and then raise."""
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
                process.wait(60)  # with a busy machine in mind
            except subprocess.TimeoutExpired:
                stuck.append(process.pid)
        self._kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections.values():
            connection.close()
        output = self._output() if stuck else ""
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._folder, self._processes, self._family, self._connections = None, [], [], {}
        if stuck:
            raise RankGroupError(f"{self!r}: processes {stuck} did not end after a shutdown\n{output}")

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
        """Call `function(context, *arguments)` on every rank; return the results in rank order."""
        assert self.alive, f"{self!r} is not running"
        for connection in self._connections.values():
            connection.send((function.__module__, function.__qualname__, arguments))
        return self._answers(limit_s, f"{function.__qualname__}{arguments}")

    def check(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function that returns a list of failed checks, and fail if any rank has one."""
        failures = [line for answer in self.run(function, *arguments) for line in answer]
        shown = "\n".join(failures[:20])
        assert not failures, f"{len(failures)} failed checks in {self!r}:\n{shown}"

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
            details = "\n".join(f"--- rank {rank}: {text}" for rank, text in sorted(failures.items()))
            raise RankGroupError(f"{self!r} in {what}:\n{details}\n{self._output()}")
        return [answers[rank] for rank in range(self.size)]

    # --- processes ---

    def _spawn(self, address: str) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMIX_", "SLURM_", "MASTER_"))
        }
        environment.update(PYTHONPATH=SEARCH_PATH, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
        command = [sys.executable, "-m", self.program, address, self.backend]
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
            if self.backend == "local":  # a new interpreter, as under MPI, which imports torch only when it needs it
                self._processes.append(self._popen(command, own))
                continue
            assert self._folder is not None
            log = self._folder / "output"
            forked = fork_server(torch=True).fork(self.program, "main", (address, self.backend), own, log)
            self._processes.append(forked)

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
                    raise RankGroupError(f"{self!r} did not start: {ended}\n{self._output()}") from None
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
