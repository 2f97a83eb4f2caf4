"""How ranks that know only an address find each other.

Rank 0 listens, the others connect, and the star of connections carries a few exchanges in which a backend is set
up; then it is closed. No key-value server stays behind.

Which port: `tcp://host:port` names it. Under a launcher (`env://`) MASTER_PORT belongs to torch.distributed, which
may be used in the same program before or after us, and torchrun itself listens on it. So MASTER_PORT (with the
job's name) only picks a short list of other ports; rank 0 listens on the first that is free, and the others try
them in turn. The listener speaks first and both sides prove that they know the job's name, so a stranger on one of
these ports, or a rank of another job, is told apart and passed over. Nothing that arrives here is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import selectors
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlparse

import msgspec

from neuraxis.comm.environment import Launch
from neuraxis.errors import InvalidArgument, RendezvousError, RendezvousTimeout

__all__ = ["Place", "Rendezvous", "place_of"]

_GREETING = b"neuraxis rendezvous 1\n"
_NONCE_BYTES = 16
_CANDIDATES = 16
_MAX_FRAME = 64 * 2**20


@dataclass(frozen=True)
class Place:
    """Where to meet: a host and the ports to try, or a file in which rank 0 writes them."""

    host: str
    ports: tuple[int, ...]
    job: str
    file: Path | None = None

    def __str__(self) -> str:
        return f"file {self.file}" if self.file else f"{self.host}:{self.ports[0]}"


class _Hello(msgspec.Struct):
    rank: int
    size: int
    proof: bytes


class _Verdict(msgspec.Struct):
    """What rank 0 says: go on, or why not."""

    error: str = ""
    timeout: bool = False
    missing: list[int] = []
    contents: list[bytes] = []


def place_of(init_method: str | None, launch: Launch) -> Place:
    """The meeting place that an init_method names; without one, the launcher's."""
    url = urlparse(init_method or "env://")
    if url.scheme == "tcp":
        try:
            port = url.port
        except ValueError:
            port = None
        if not url.hostname or not port:
            raise InvalidArgument(f"init_method {init_method!r} must have the form tcp://host:port")
        return Place(url.hostname, (port,), _job_key(url.hostname, launch.job))
    if url.scheme == "file":
        path = Path(url.netloc + url.path)
        if not path.is_absolute() or not path.parent.is_dir():
            raise InvalidArgument(
                f"init_method {init_method!r} must have the form file:///path/to/file in an existing folder"
            )
        host = launch.master_addr or "127.0.0.1"
        return Place(host, (0,), _job_key(host, launch.job), path)
    if url.scheme == "env":
        return _place_from_environment(launch)
    raise InvalidArgument(f"init_method {init_method!r} must begin with env://, tcp:// or file://")


def _place_from_environment(launch: Launch) -> Place:
    several_hosts = launch.local_world_size < launch.world_size
    host = launch.master_addr
    if host is None:
        if several_hosts:
            raise InvalidArgument(
                f"the {launch.world_size} ranks are on several hosts and MASTER_ADDR is not set: "
                "set it to rank 0's address, or give init_method='tcp://host:port'"
            )
        host = "127.0.0.1"
    if launch.master_port is None and not launch.job:
        raise InvalidArgument(
            "MASTER_PORT is not set, so the ranks cannot find each other: start them with `neuraxis launch`, "
            "set MASTER_ADDR and MASTER_PORT, or give init_method='tcp://host:port'"
        )
    key = _job_key(host, f"{launch.master_port}/{launch.job}")
    # Below the range from which systems take ports for outgoing connections.
    ports = tuple(
        10000 + int.from_bytes(hashlib.sha256(f"{key}/{attempt}".encode()).digest()[:4], "big") % 20000
        for attempt in range(_CANDIDATES)
    )
    return Place(host, ports, key)


def _job_key(host: str, job: str) -> str:
    """What the ranks of a job have in common. On one host that includes the user: two users who were both told the
    same port do not meet. (Between hosts one person may have two names.)"""
    one_host = host == "localhost" or host == "::1" or host.startswith("127.")
    return f"{job}/user {os.getuid()}" if one_host and hasattr(os, "getuid") else job


class Rendezvous:
    """The meeting: made by every rank at once, and a context manager that closes it.

    Raises RendezvousTimeout, with the ranks that are missing, when `timeout` seconds have passed.
    """

    def __init__(self, place: Place, rank: int, size: int, timeout: float) -> None:
        self.place = place
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._connections: dict[int, socket.socket] = {}
        self._hub: socket.socket | None = None
        self.host = place.host  # an address of this process that the others can reach
        try:
            if rank == 0:
                self._receive_everybody()
            else:
                self._hub = self._reach_rank_0()
                self.host = self._hub.getsockname()[0]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._hub is not None:
            self._hub.close()
            self._hub = None

    def exchange(self, content: bytes) -> list[bytes]:
        """Hand in this rank's bytes; everybody's, in rank order."""
        if self._hub is not None:
            try:
                _send(self._hub, content)
            except OSError:
                pass  # rank 0 is gone; why, it may still have said
            return self._await_verdict(self._hub).contents
        contents = {0: content}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(contents) < self.size:
                self._tick(selector, set(range(self.size)) - set(contents))
                for key, _ in selector.select(0.2):
                    rank = key.data
                    frame = self._frame_from(rank)
                    contents[rank] = frame
                    selector.unregister(key.fileobj)
        verdict = _Verdict(contents=[contents[rank] for rank in range(self.size)])
        self._tell_everybody(verdict)
        return verdict.contents

    # --- rank 0 ---------------------------------------------------------------------------------

    def _receive_everybody(self) -> None:
        listener = self._listen()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(listener, selectors.EVENT_READ)
                while len(self._connections) < self.size - 1:
                    self._tick(selector, set(range(1, self.size)) - set(self._connections))
                    for _ in selector.select(0.2):
                        self._admit(listener)
        finally:
            listener.close()
            if self.place.file is not None:
                self.place.file.unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        last: OSError | None = None
        while True:
            for port in self.place.ports:
                try:
                    listener = _bind(self.place.host, port)
                except OSError as error:
                    last = error
                    continue
                if self.place.file is not None:
                    self._write_file(listener.getsockname())
                return listener
            if time.monotonic() > self._deadline or len(self.place.ports) == 1:
                break
            time.sleep(0.1)
        taken = "port is in use by another program" if last and last.errno == 98 else str(last)
        raise RendezvousError(
            f"rank 0 cannot listen at {self.place.host}, port {self.place.ports[0]}: {taken}. "
            "Choose another port, or an address of this host"
        )

    def _write_file(self, address: tuple[str, int]) -> None:
        assert self.place.file is not None
        temporary = self.place.file.with_name(f".{self.place.file.name}.{os.getpid()}")
        temporary.write_text(f"{address[0]} {address[1]}\n")
        temporary.replace(self.place.file)

    def _admit(self, listener: socket.socket) -> None:
        """One caller: greet it, and let it in if it is one of ours."""
        connection, _ = listener.accept()
        try:
            connection.settimeout(2.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = os.urandom(_NONCE_BYTES)
            connection.sendall(_GREETING + nonce)
            hello = msgspec.msgpack.decode(_receive(connection), type=_Hello)
        except (OSError, EOFError, msgspec.MsgspecError):
            connection.close()  # a stranger, or one who gave up
            return
        if not hmac.compare_digest(hello.proof, _proof(self.place.job, nonce)):
            connection.close()  # of another job
            return
        refusal = ""
        if hello.size != self.size:
            refusal = f"rank {hello.rank} was told a world size of {hello.size}, rank 0 one of {self.size}"
        elif not 0 < hello.rank < self.size:
            refusal = f"{hello.rank} is not a rank of a world of {self.size}"
        elif hello.rank in self._connections:
            refusal = f"there are two processes with rank {hello.rank}"
        if refusal:
            self._refuse(connection, refusal)
        try:
            _send(connection, msgspec.msgpack.encode(_Verdict()))
        except OSError:
            connection.close()  # it gave up in this very moment
            return
        self._connections[hello.rank] = connection

    def _refuse(self, connection: socket.socket, reason: str) -> NoReturn:
        self._connections[-1] = connection
        self._tell_everybody(_Verdict(error=reason))
        raise RendezvousError(f"the ranks do not fit together: {reason}")

    def _tick(self, selector: selectors.BaseSelector, waited_for: set[int]) -> None:
        if time.monotonic() < self._deadline:
            return
        missing = sorted(waited_for)
        self._tell_everybody(_Verdict(error="timeout", timeout=True, missing=missing))
        raise self._late(missing)

    def _late(self, missing: list[int]) -> RendezvousTimeout:
        ranks = ", ".join(map(str, missing))
        return RendezvousTimeout(
            f"{len(missing)} of {self.size} ranks did not come to {self.place} within {self._timeout:g} s: "
            f"missing rank{'s' if len(missing) > 1 else ''} {ranks}. Were they started, with the same address?",
            tuple(missing),
        )

    def _frame_from(self, rank: int) -> bytes:
        connection = self._connections[rank]
        try:
            connection.settimeout(max(0.1, self._deadline - time.monotonic()))
            return _receive(connection)
        except (OSError, EOFError):
            connection.close()
            del self._connections[rank]
            self._tell_everybody(_Verdict(error=f"rank {rank} went away", missing=[rank]))
            raise RendezvousError(
                f"rank {rank} went away while the context was set up; its own error says why", (rank,)
            ) from None

    def _tell_everybody(self, verdict: _Verdict) -> None:
        message = msgspec.msgpack.encode(verdict)
        for connection in self._connections.values():
            try:
                connection.settimeout(5.0)
                _send(connection, message)
            except OSError:
                pass  # it is gone; whoever needs it will say so

    # --- the others -----------------------------------------------------------------------------

    def _reach_rank_0(self) -> socket.socket:
        pause = 0.01
        while True:
            for host, port in self._addresses():
                connection = self._try(host, port)
                if connection is not None:
                    return connection
            if time.monotonic() > self._deadline:
                raise RendezvousTimeout(
                    f"rank 0 did not appear at {self.place} within {self._timeout:g} s: "
                    "missing rank 0. Was it started, with the same address?",
                    (0,),
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    def _addresses(self) -> list[tuple[str, int]]:
        if self.place.file is None:
            return [(self.place.host, port) for port in self.place.ports]
        try:
            host, port = self.place.file.read_text().split()
        except (OSError, ValueError):
            return []
        return [(host, int(port))]

    def _try(self, host: str, port: int) -> socket.socket | None:
        try:
            connection = socket.create_connection((host, port), timeout=2.0)
        except OSError:
            return None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = _receive_exactly(connection, len(_GREETING) + _NONCE_BYTES)
            if not greeting.startswith(_GREETING):
                raise EOFError
            proof = _proof(self.place.job, greeting[len(_GREETING) :])
            _send(connection, msgspec.msgpack.encode(_Hello(self.rank, self.size, proof)))
            self._await_verdict(connection)
        except (OSError, EOFError) as error:
            connection.close()
            if isinstance(error, RendezvousError):
                raise
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _await_verdict(self, connection: socket.socket) -> _Verdict:
        # Rank 0 keeps the time; the margin lets its verdict arrive.
        connection.settimeout(max(0.1, self._deadline - time.monotonic()) + 5.0)
        try:
            verdict = msgspec.msgpack.decode(_receive(connection), type=_Verdict)
        except (EOFError, ConnectionError):
            if self._hub is None:
                raise
            raise RendezvousError(
                "rank 0 went away while the context was set up; its own error says why", (0,)
            ) from None
        except TimeoutError:
            raise RendezvousTimeout(f"rank 0 at {self.place} stopped answering", (0,)) from None
        if verdict.timeout:
            raise self._late(verdict.missing)
        if verdict.error:
            raise RendezvousError(f"the ranks do not fit together: {verdict.error}", tuple(verdict.missing))
        return verdict


def _bind(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _proof(job: str, nonce: bytes) -> bytes:
    return hmac.new(job.encode(), nonce, "sha256").digest()


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(struct.pack("!I", len(content)) + content)


def _receive(connection: socket.socket) -> bytes:
    (length,) = struct.unpack("!I", _receive_exactly(connection, 4))
    if length > _MAX_FRAME:
        raise EOFError
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
