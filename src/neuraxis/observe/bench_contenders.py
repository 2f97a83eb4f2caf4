"""All contenders of a benchmark: which can run here, starting them together, ending them whatever happens."""

from __future__ import annotations

import hmac
import importlib.util
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType

import msgspec

from neuraxis.errors import BackendUnavailable, InvalidArgument, LaunchError
from neuraxis.observe.bench_contender import Contender, find_mpirun
from neuraxis.observe.bench_rank import Hello

__all__ = ["OURS", "PEERS", "Contenders", "LeftOut", "left_out", "parse_peers"]

OURS = ("shm", "torch-shm")
PEERS = ("gloo", "mpi")

_START_LIMIT_S = 90.0
_GLANCE_S = 0.2  # how often to look whether a process died before it said hello


class LeftOut(msgspec.Struct):
    """A contender that is not measured, why, and the line that would bring it (if one does)."""

    contender: str
    reason: str
    remedy: str = ""


def parse_peers(text: str) -> tuple[str, ...]:
    """Peers from "gloo,mpi"; "none" for none."""
    wanted = {word.strip() for word in text.split(",")} - {"none"}
    unknown = sorted(wanted - set(PEERS))
    if unknown:
        raise InvalidArgument(f"--peers: {unknown[0]!r} is not one of {', '.join(PEERS)}, none")
    return tuple(peer for peer in PEERS if peer in wanted)


def left_out(contender: str) -> LeftOut | None:
    """Why a contender cannot be measured here, as far as can be known without starting it."""
    if contender in ("gloo", "torch-shm") and importlib.util.find_spec("torch") is None:
        return LeftOut(contender, "torch is not installed", "pip install 'neuraxis[torch]'")
    if contender == "torch-shm" and importlib.util.find_spec("neuraxis.torch") is None:
        return LeftOut(contender, "this installation has no neuraxis.torch")
    if contender == "mpi":
        remedy = "pip install 'neuraxis[bench]'"
        if importlib.util.find_spec("mpi4py") is None:
            return LeftOut(contender, "mpi4py is not installed", remedy)
        if find_mpirun() is None:
            return LeftOut(contender, "there is no mpirun beside this Python or on PATH", remedy)
    return None


@contextmanager
def signals_later() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM back until the end of the block.

    An exception in the middle of starting or ending a process would leave one that nobody knows of.
    """
    came: list[int] = []
    old = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


class Contenders:
    """Contenders whose ranks run while this is entered.

    Attributes:
        running: those that can be asked.
        failed: name → reason of those that could not be started or were given up.
    """

    def __init__(self, names: Sequence[str], ranks: int, program: str = "neuraxis.observe.bench_rank") -> None:
        self.running: dict[str, Contender] = {}
        self.failed: dict[str, str] = {}
        self._names, self._ranks, self._program = names, ranks, program
        self._token = secrets.token_hex(16)

    def __enter__(self) -> Contenders:
        if not hasattr(socket, "AF_UNIX"):
            raise BackendUnavailable("shm", "this benchmark needs Unix sockets, which this system lacks")
        # The folder, and so the socket in it, can be opened by this user alone.
        with tempfile.TemporaryDirectory(prefix="neuraxis-") as folder:
            address = str(Path(folder) / "bench")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(address)
                listener.listen(len(self._names) * self._ranks)
                try:
                    self._start(address)
                    self._meet(listener)
                except BaseException:
                    self.end()
                    raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def fail(self, name: str, reason: str) -> None:
        """End a contender; the others go on."""
        self.failed[name] = reason
        with signals_later():
            if name in self.running:
                self.running.pop(name).end()

    def end(self) -> None:
        with signals_later():
            for contender in self.running.values():
                contender.ask_to_end()
            while self.running:
                self.running.popitem()[1].end()

    def _start(self, address: str) -> None:
        with signals_later():
            for name in self._names:
                try:
                    self.running[name] = Contender(name, self._ranks, address, self._token, self._program)
                except LaunchError as error:
                    self.failed[name] = str(error)

    def _meet(self, listener: socket.socket) -> None:
        """Wait until each contender's ranks have all said that their group is complete."""
        deadline = time.monotonic() + _START_LIMIT_S
        silent: list[Connection] = []
        try:
            while not all(contender.complete for contender in self.running.values()):
                for ready in wait([listener, *silent], _GLANCE_S):
                    if isinstance(ready, Connection):
                        silent.remove(ready)
                        self._hear(ready)
                    else:
                        silent.append(Connection(listener.accept()[0].detach()))
                for name, contender in list(self.running.items()):
                    if contender.died:
                        self.fail(name, contender.last_words() or "a rank died before its group was complete")
                    elif time.monotonic() > deadline and not contender.complete:
                        self.fail(name, f"not all ranks had met within {_START_LIMIT_S:.0f} s")
        finally:
            for connection in silent:
                connection.close()

    def _hear(self, connection: Connection) -> None:
        hello = Hello("", "")
        with suppress(EOFError, OSError, msgspec.MsgspecError):
            hello = msgspec.msgpack.decode(connection.recv_bytes(), type=Hello)
        contender = self.running.get(hello.contender)
        if contender is None or not hmac.compare_digest(hello.token, self._token):
            connection.close()  # a stranger, a rank that died, or one whose contender was given up
        elif hello.problem:
            connection.close()
            self.fail(hello.contender, hello.problem)
        else:
            contender.connections[hello.rank] = connection
