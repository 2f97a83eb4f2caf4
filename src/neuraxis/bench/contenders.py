"""Groups of ranks that measure what the benchmark requests.

The ranks of a contender start once and stay until the end. Between measurements they block on a socket, so that only
one contender uses the machine at a time. They end by themselves when the benchmark's end of the socket closes.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from neuraxis.bench.harness import LeftOut
from neuraxis.bench.processes import (
    ContenderFailed,
    defer_signals,
    find_mpirun,
    last_error,
    mpirun_command,
    python_command,
    signal_group,
    start_process,
    wait_for_all,
)
from neuraxis.bench.rank import ADDRESS, CONTENDER, TOKEN, Hello, Reply, Request
from neuraxis.errors import BackendUnavailable, LaunchError
from neuraxis.imports import install_command, installed
from neuraxis.process.environment import Placement, free_port, new_job_secret, rank_environment

__all__ = ["OURS", "PEERS", "Contender", "Contenders", "left_out"]

OURS = ("shm", "torch-shm")
PEERS = ("gloo", "mpi")

_REPLY_TIMEOUT_S = 120.0
_STRAGGLER_TIMEOUT_S = 3.0  # for the other ranks to reply after one reported a problem
_END_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 90.0
_POLL_S = 0.2  # interval of checks for processes that died before their handshake


def left_out(contender: str) -> LeftOut | None:
    """Return why a contender cannot be measured here, as far as can be known without starting it."""
    if contender in ("gloo", "torch-shm") and not installed("torch"):
        return LeftOut(contender, "torch is not installed", install_command("torch"))
    if contender == "torch-shm" and not installed("neuraxis.torch"):
        return LeftOut(contender, "this installation has no neuraxis.torch")
    if contender == "mpi":
        remedy = install_command("bench")
        if not installed("mpi4py"):
            return LeftOut(contender, "mpi4py is not installed", remedy)
        if find_mpirun() is None:
            return LeftOut(contender, "there is no mpirun in the folder of this Python or on PATH", remedy)
    return None


class Contenders:
    """Contenders whose ranks run while this context is entered.

    Attributes:
        running: contenders that accept requests, by name.
        failed: the reason, by name, of those that could not be started or failed later.
    """

    def __init__(self, names: Sequence[str], ranks: int, program: str) -> None:
        self.running: dict[str, Contender] = {}
        self.failed: dict[str, str] = {}
        self._names, self._ranks, self._program = names, ranks, program
        self._token = secrets.token_hex(16)

    def __enter__(self) -> Contenders:
        if not hasattr(socket, "AF_UNIX"):
            raise BackendUnavailable("shm", "this benchmark needs Unix sockets, which this system lacks")
        # Only this user can open the folder, and with it the socket.
        with tempfile.TemporaryDirectory(prefix="neuraxis-") as folder:
            address = str(Path(folder) / "bench")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(address)
                listener.listen(len(self._names) * self._ranks)
                try:
                    self._start(address)
                    self._accept_all(listener)
                except BaseException:
                    self.end()
                    raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def fail(self, name: str, reason: str) -> None:
        """End a contender; the others continue."""
        self.failed[name] = reason
        with defer_signals():
            if name in self.running:
                self.running.pop(name).end()

    def end(self) -> None:
        with defer_signals():
            for contender in self.running.values():
                contender.request_end()
            while self.running:
                self.running.popitem()[1].end()

    def _start(self, address: str) -> None:
        with defer_signals():
            for name in self._names:
                try:
                    self.running[name] = Contender(name, self._ranks, address, self._token, self._program)
                except LaunchError as error:
                    self.failed[name] = str(error)

    def _accept_all(self, listener: socket.socket) -> None:
        """Wait until each contender's ranks have all reported that their group is complete."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        unidentified: list[Connection] = []
        try:
            while not all(contender.complete for contender in self.running.values()):
                for ready in wait([listener, *unidentified], _POLL_S):
                    if isinstance(ready, Connection):
                        unidentified.remove(ready)
                        self._identify(ready)
                    else:
                        unidentified.append(Connection(listener.accept()[0].detach()))
                for name, contender in list(self.running.items()):
                    if contender.died:
                        self.fail(name, contender.last_error() or "a rank died before its group was complete")
                    elif time.monotonic() > deadline and not contender.complete:
                        self.fail(name, f"its ranks did not form a group within {_START_TIMEOUT_S:.0f} s")
        finally:
            for connection in unidentified:
                connection.close()

    def _identify(self, connection: Connection) -> None:
        hello = Hello("", "")
        with suppress(EOFError, OSError, msgspec.MsgspecError):
            hello = msgspec.msgpack.decode(connection.recv_bytes(), type=Hello)
        contender = self.running.get(hello.contender)
        if contender is None or not hmac.compare_digest(hello.token, self._token):
            connection.close()  # another program, a rank that died, or one whose contender has failed
        elif hello.problem:
            connection.close()
            self.fail(hello.contender, hello.problem)
        else:
            contender.connections[hello.rank] = connection


class Contender:
    """The processes of one contender and the connections to them. `program` is the module that each rank runs."""

    def __init__(self, name: str, ranks: int, address: str, token: str, program: str) -> None:
        self.name = name
        self.connections: dict[int, Connection] = {}
        self._ranks = ranks
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._processes: list[subprocess.Popen[bytes]] = []
        variables = {**os.environ, ADDRESS: address, CONTENDER: name, TOKEN: token, "OMP_NUM_THREADS": "1"}
        command = python_command(program)
        try:
            if name == "mpi":
                self._start([*mpirun_command(ranks), *command], variables)
                return
            place = Placement(ranks, 1, 0, "127.0.0.1", free_port(), new_job_secret())
            for rank in range(ranks):
                self._start(command, rank_environment(place, rank, variables))
        except BaseException:
            self.end()
            raise

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._processes.append(start_process(self.name, command, output=self._log, environment=environment))

    @property
    def complete(self) -> bool:
        return len(self.connections) == self._ranks

    @property
    def died(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def request(self, request: Request) -> Reply:
        """Send a request to all ranks; return the longest time, the largest of each fact, and the first problem."""
        message = msgspec.msgpack.encode(request)
        waiting = dict(self.connections)
        deadline = time.monotonic() + _REPLY_TIMEOUT_S
        answer = Reply()
        try:
            for connection in waiting.values():
                connection.send_bytes(message)
            while waiting:
                ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
                if not ready:
                    names = ", ".join(map(str, waiting))
                    raise ContenderFailed(answer.problem or f"no reply from rank {names} in {request.pattern}")
                for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                    reply = msgspec.msgpack.decode(waiting.pop(rank).recv_bytes(), type=Reply)
                    answer.seconds = max(answer.seconds, reply.seconds)
                    for fact, value in reply.facts.items():
                        answer.facts[fact] = max(value, answer.facts.get(fact, value))
                    if reply.problem and not answer.problem:
                        answer.problem = reply.problem
                        deadline = min(deadline, time.monotonic() + _STRAGGLER_TIMEOUT_S)
        except (EOFError, OSError) as error:
            reason = answer.problem or self.last_error() or "no message"
            raise ContenderFailed(f"a rank died in {request.pattern}: {reason}") from error
        return answer

    def last_error(self) -> str:
        """Return the last error that the processes printed."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        return last_error(self._log.read().decode(errors="replace"))

    def pause(self) -> None:
        """Stop the ranks: some libraries poll while they wait, and would use the other contenders' cores.

        A paused rank does not notice that the benchmark has ended: it must call `process.parent_death.die_with_parent`.
        """
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            signal_group(process, number)

    def request_end(self) -> None:
        """Let the ranks end by themselves."""
        self.resume()
        for connection in self.connections.values():
            with suppress(OSError):
                connection.send_bytes(msgspec.msgpack.encode(Request()))

    def end(self) -> None:
        """Ask the ranks to end, then kill them; no process is left afterwards."""
        self.request_end()
        if self.complete:
            wait_for_all(self._processes, _END_TIMEOUT_S)
        for connection in self.connections.values():
            connection.close()  # ends a rank even in the middle of a call
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            wait_for_all(self._processes, _END_TIMEOUT_S)
        self.connections.clear()
        self._log.close()
