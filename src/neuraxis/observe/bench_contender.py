"""One contender's processes, and what they answer.

Its ranks are started once and stay until the end. Between measurements they sleep on a socket, so that only
one contender uses the machine at a time. They are in sessions of their own: Ctrl-C reaches the parent alone,
which ends them in order; and they end by themselves when the parent's end of the socket closes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

import msgspec

from neuraxis.errors import LaunchError, NeuraxisError
from neuraxis.launch.environment import (
    Placement,
    free_port,
    new_job_secret,
    rank_environment,
)
from neuraxis.machine import usable_cores
from neuraxis.observe.bench_rank import ADDRESS, CONTENDER, TOKEN, Ask, Reply

__all__ = ["Contender", "ContenderFailed", "find_mpirun"]

_ASK_LIMIT_S = 120.0
_STRAGGLER_LIMIT_S = 3.0  # how long the others have to reply after a rank reported a problem
_END_LIMIT_S = 5.0


class ContenderFailed(NeuraxisError, RuntimeError):
    """A contender's processes died, or do not answer any more; it cannot be measured further."""


class Contender:
    """The processes of one contender and the lines to them. `program` is the module that a rank runs."""

    def __init__(
        self, name: str, ranks: int, address: str, token: str, program: str = "neuraxis.observe.bench_rank"
    ) -> None:
        self.name = name
        self.connections: dict[int, Connection] = {}
        self._ranks = ranks
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._processes: list[subprocess.Popen[bytes]] = []
        variables = {ADDRESS: address, CONTENDER: name, TOKEN: token, "OMP_NUM_THREADS": "1"}
        # -P: a file of the user's working folder must not be taken for a module.
        command = [sys.executable, "-P", "-m", program]
        try:
            if name == "mpi":
                self._start([*_mpirun(ranks), *command], {**os.environ, **variables})
                return
            place = Placement(ranks, 1, 0, "127.0.0.1", free_port(), new_job_secret())
            for rank in range(ranks):
                self._start(command, rank_environment(place, rank, {**os.environ, **variables}))
        except BaseException:
            self.end()
            raise

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{self.name}: {command[0]} could not be started: {error.strerror}") from error
        self._processes.append(process)

    @property
    def complete(self) -> bool:
        return len(self.connections) == self._ranks

    @property
    def died(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def ask(self, ask: Ask) -> Reply:
        """What all ranks say to `ask`: the longest time, the largest of each fact, or the first problem."""
        message = msgspec.msgpack.encode(ask)
        waiting = dict(self.connections)
        deadline = time.monotonic() + _ASK_LIMIT_S
        answer = Reply()
        try:
            for connection in waiting.values():
                connection.send_bytes(message)
            while waiting:
                ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
                if not ready:
                    names = ", ".join(map(str, waiting))
                    raise ContenderFailed(answer.problem or f"no answer from rank {names} in {ask.pattern}")
                for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                    reply = msgspec.msgpack.decode(waiting.pop(rank).recv_bytes(), type=Reply)
                    answer.seconds = max(answer.seconds, reply.seconds)
                    for fact, value in reply.facts.items():
                        answer.facts[fact] = max(value, answer.facts.get(fact, value))
                    if reply.problem and not answer.problem:
                        answer.problem = reply.problem
                        deadline = min(deadline, time.monotonic() + _STRAGGLER_LIMIT_S)
        except (EOFError, OSError) as error:
            reason = answer.problem or self.last_words() or "no message"
            raise ContenderFailed(f"a rank died in {ask.pattern}: {reason}") from error
        return answer

    def last_words(self) -> str:
        """The last line that the processes printed: of a traceback, the error itself."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        # mpirun frames its own report with rulers, and prints it after what the rank said.
        spoken = [line for line in lines if line and not line.startswith("---")]
        errors = [line for line in spoken if "Error" in line.split(":")[0]]
        return (errors or spoken or [""])[-1]

    def pause(self) -> None:
        """Keep the ranks from running: some libraries turn in circles while they wait, and take the others' cores.

        A paused rank does not notice that its parent is gone: it must be tethered (`launch.tether`).
        """
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def ask_to_end(self) -> None:
        """Let the ranks end by themselves."""
        self.resume()
        for connection in self.connections.values():
            with suppress(OSError):
                connection.send_bytes(msgspec.msgpack.encode(Ask()))

    def end(self) -> None:
        """Ask the ranks to end, then make them; nothing is left afterwards."""
        self.ask_to_end()
        if self.complete:
            self._wait(_END_LIMIT_S)
        for connection in self.connections.values():
            connection.close()  # ends a rank wherever it is
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            self._wait(_END_LIMIT_S)
        self.connections.clear()
        self._log.close()

    def _wait(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def find_mpirun() -> str | None:
    """The mpirun of this Python's environment, or the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")


def _mpirun(ranks: int) -> list[str]:
    mpirun = find_mpirun()
    if mpirun is None:
        raise LaunchError("mpi: no mpirun beside this Python or on PATH")
    command = [mpirun, "-n", str(ranks)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > usable_cores():
        # Not otherwise: it also stops Open MPI from binding ranks to cores, which makes it slower.
        command.append("--oversubscribe")
    return command
