"""Rendezvous: ranks that know only an address connect and exchange data to set up a backend.

Rank 0 listens and the others connect to it. This star of connections carries a few exchanges, in which the ranks set up
a backend, and is then closed. No key-value server stays behind.

The port: `tcp://host:port` names it. Under a launcher (`env://`) MASTER_PORT belongs to torch.distributed, which the
same program may use before or after, and torchrun itself listens on it. So MASTER_PORT, together with the name of the
job, only selects a short list of other ports. Rank 0 listens on the first free one, and the others try them in turn. In
the handshake the listener sends a nonce and the client proves with it that it knows the job's name, so other programs
and ranks of other jobs on these ports are recognized and skipped. Nothing received here is unpickled.
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

from neuraxis.errors import InvalidArgument, RendezvousError, RendezvousTimeout
from neuraxis.machine import OUT_OF_FILES, out_of_files
from neuraxis.process.environment import Launch

__all__ = ["Rendezvous", "RendezvousAddress", "rendezvous_address"]

_GREETING = b"neuraxis rendezvous 1\n"
_NONCE_BYTES = 16
_CANDIDATES = 16
_MAX_FRAME = 64 * 2**20
_MAX_HELLO = 4096
_MISMATCH = "the ranks were started with different settings, or one has failed"
_NOT_CONNECTED, _NOT_READY = "timeout", "not ready"  # what ranks failed to do in time, as rank 0 reports it


@dataclass(frozen=True)
class RendezvousAddress:
    """Meeting point of the ranks: a host and candidate ports, or a file to which rank 0 writes its address."""

    host: str
    ports: tuple[int, ...]
    job: str
    file: Path | None = None

    def __str__(self) -> str:
        return f"file {self.file}" if self.file else f"{self.host}:{self.ports[0]}"


class _Hello(msgspec.Struct):
    """First message of a rank to rank 0; `proof` shows that it knows the name of the job."""

    rank: int
    size: int
    proof: bytes


class _Response(msgspec.Struct):
    """Message of rank 0 to the others: the contents of an exchange, or the reason of a failure."""

    error: str = ""
    timeout: bool = False
    missing: list[int] = []
    contents: list[bytes] = []


def rendezvous_address(init_method: str | None, launch: Launch) -> RendezvousAddress:
    """Return the address that an init_method names; without one, the launcher's."""
    url = urlparse(init_method or "env://")
    if url.scheme == "tcp":
        try:
            port = url.port
        except ValueError:
            port = None
        if not url.hostname or not port:
            raise InvalidArgument(f"init_method {init_method!r} must have the form tcp://host:port")
        return RendezvousAddress(url.hostname, (port,), _job_key(url.hostname, launch.job))
    if url.scheme == "file":
        path = Path(url.netloc + url.path)
        if not path.is_absolute() or not path.parent.is_dir():
            raise InvalidArgument(
                f"init_method {init_method!r} must have the form file:///path/to/file in an existing folder"
            )
        host = launch.master_addr or "127.0.0.1"
        return RendezvousAddress(host, (0,), _job_key(host, launch.job), path)
    if url.scheme == "env":
        return _address_from_environment(launch)
    raise InvalidArgument(f"init_method {init_method!r} must begin with env://, tcp:// or file://")


def _address_from_environment(launch: Launch) -> RendezvousAddress:
    several_hosts = launch.local_world_size < launch.world_size
    host = launch.master_addr
    if host is None:
        if several_hosts:
            raise InvalidArgument(
                f"the {launch.world_size} ranks are on several hosts and MASTER_ADDR is not set. "
                "Set it to rank 0's address, or give init_method='tcp://host:port'"
            )
        host = "127.0.0.1"
    if launch.master_port is None and not launch.job:
        raise InvalidArgument(
            "MASTER_PORT is not set, so the ranks cannot find each other. Start them with `neuraxis launch`, "
            "set MASTER_ADDR and MASTER_PORT, or give init_method='tcp://host:port'"
        )
    key = _job_key(host, f"{launch.master_port}/{launch.job}")
    # Below the ephemeral ports, which systems use for outgoing connections.
    ports = tuple(
        10000 + int.from_bytes(hashlib.sha256(f"{key}/{attempt}".encode()).digest()[:4], "big") % 20000
        for attempt in range(_CANDIDATES)
    )
    return RendezvousAddress(host, ports, key)


def _job_key(host: str, job: str) -> str:
    """Return a text that the ranks of a job have in common, and other jobs do not.

    On one host it includes the user, so that two users who chose the same port do not meet. (Between hosts, one person
    may have two user ids.)
    """
    one_host = host == "localhost" or host == "::1" or host.startswith("127.")
    return f"{job}/user {os.getuid()}" if one_host and hasattr(os, "getuid") else job


class Rendezvous:
    """The connections between the ranks; a context manager that closes them. All ranks make it at the same time.

    Raises
    ------
    RendezvousTimeout
        Ranks are missing after `timeout` seconds; the error names them.
    RendezvousError
        The ranks disagree about the world size, or a rank disconnected.
    """

    def __init__(self, address: RendezvousAddress, rank: int, size: int, timeout: float) -> None:
        self.address = address
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._connections: dict[int, socket.socket] = {}
        self._hub: socket.socket | None = None
        self.host = address.host  # an address of this process that the other ranks can reach
        try:
            if rank == 0:
                self._accept_all()
            else:
                self._hub = self._connect_to_rank_0()
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
        """Contribute this rank's bytes, and return those of all ranks in rank order."""
        if self._hub is not None:
            try:
                _send(self._hub, content)
            except OSError:
                pass  # rank 0 has closed the connection, perhaps after sending the reason
            return self._await_response(self._hub).contents
        contents = {0: content}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(contents) < self.size:
                self._check_deadline(set(range(self.size)) - set(contents), _NOT_READY)
                for key, _ in selector.select(0.2):
                    rank = key.data
                    frame = self._frame_from(rank)
                    contents[rank] = frame
                    selector.unregister(key.fileobj)
        response = _Response(contents=[contents[rank] for rank in range(self.size)])
        self._send_to_all(response)
        return response.contents

    # --- rank 0 listens -------------------------------------------------------------------------

    def _accept_all(self) -> None:
        listener = self._listen()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(listener, selectors.EVENT_READ)
                while len(self._connections) < self.size - 1:
                    self._check_deadline(set(range(1, self.size)) - set(self._connections), _NOT_CONNECTED)
                    for _ in selector.select(0.2):
                        self._accept_rank(listener)
        finally:
            listener.close()
            if self.address.file is not None:
                self.address.file.unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        last: OSError | None = None
        while True:
            for port in self.address.ports:
                try:
                    listener = _bind(self.address.host, port)
                except OSError as error:
                    last = error
                    continue
                if self.address.file is not None:
                    self._write_file(listener.getsockname())
                return listener
            if time.monotonic() > self._deadline or len(self.address.ports) == 1:
                break
            time.sleep(0.1)
        taken = "port is in use by another program" if last and last.errno == 98 else str(last)
        raise RendezvousError(
            f"rank 0 cannot listen at {self.address.host}, port {self.address.ports[0]}: {taken}. "
            "Choose another port, or an address of this host"
        )

    def _write_file(self, address: tuple[str, int]) -> None:
        assert self.address.file is not None
        temporary = self.address.file.with_name(f".{self.address.file.name}.{os.getpid()}")
        temporary.write_text(f"{address[0]} {address[1]}\n")
        temporary.replace(self.address.file)

    def _accept_rank(self, listener: socket.socket) -> None:
        """Accept one connection, and keep it if the client is a rank of this job."""
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                self._send_to_all(_Response(error="rank 0 can open no more files"))
                raise out_of_files("the rendezvous of the ranks") from error
            raise
        try:
            connection.settimeout(2.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = os.urandom(_NONCE_BYTES)
            connection.sendall(_GREETING + nonce)
            # The deadline covers the whole message: a client that sends byte by byte must not block other ranks.
            content = _receive(connection, _MAX_HELLO, time.monotonic() + 2.0)
            hello = msgspec.msgpack.decode(content, type=_Hello)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError):
            connection.close()  # not a rank, or one that has given up
            return
        if not hmac.compare_digest(hello.proof, _proof(self.address.job, nonce)):
            connection.close()  # a rank of another job
            return
        refusal = ""
        if hello.size != self.size:
            refusal = f"rank {hello.rank} was started with world size {hello.size}, rank 0 with {self.size}"
        elif not 0 < hello.rank < self.size:
            refusal = f"{hello.rank} is not a rank of a world of {self.size}"
        elif hello.rank in self._connections:
            refusal = f"there are two processes with rank {hello.rank}"
        if refusal:
            self._refuse(connection, refusal)
        try:
            _send(connection, msgspec.msgpack.encode(_Response()))
        except OSError:
            connection.close()  # the rank has given up meanwhile
            return
        self._connections[hello.rank] = connection

    def _refuse(self, connection: socket.socket, reason: str) -> NoReturn:
        self._connections[-1] = connection
        self._send_to_all(_Response(error=reason))
        raise RendezvousError(f"{_MISMATCH}: {reason}")

    def _check_deadline(self, waited_for: set[int], stage: str) -> None:
        if time.monotonic() < self._deadline:
            return
        missing = sorted(waited_for)
        self._send_to_all(_Response(error=stage, timeout=True, missing=missing))
        raise self._timeout_error(missing, stage)

    def _timeout_error(self, missing: list[int], stage: str) -> RendezvousTimeout:
        ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        if stage == _NOT_READY:
            return RendezvousTimeout(
                f"{len(missing)} of {self.size} ranks connected to {self.address} but were not ready within "
                f"{self._timeout:g} s: missing {ranks}. Allow more time (timeout=), or look at what they do instead",
                tuple(missing),
            )
        return RendezvousTimeout(
            f"{len(missing)} of {self.size} ranks did not connect to {self.address} within {self._timeout:g} s: "
            f"missing {ranks}. Check that they were started with this address",
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
            self._send_to_all(_Response(error=f"rank {rank} disconnected", missing=[rank]))
            raise RendezvousError(
                f"rank {rank} disconnected while the context was set up. See the error of that rank", (rank,)
            ) from None

    def _send_to_all(self, response: _Response) -> None:
        message = msgspec.msgpack.encode(response)
        for connection in self._connections.values():
            try:
                connection.settimeout(5.0)
                _send(connection, message)
            except OSError:
                pass  # disconnected; an exchange that needs this rank raises

    # --- the other ranks connect ----------------------------------------------------------------

    def _connect_to_rank_0(self) -> socket.socket:
        pause = 0.01
        while True:
            for host, port in self._addresses():
                connection = self._try_connect(host, port)
                if connection is not None:
                    return connection
            if time.monotonic() > self._deadline:
                raise RendezvousTimeout(
                    f"rank 0 did not listen at {self.address} within {self._timeout:g} s: "
                    "missing rank 0. Check that it was started with this address",
                    (0,),
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    def _addresses(self) -> list[tuple[str, int]]:
        if self.address.file is None:
            return [(self.address.host, port) for port in self.address.ports]
        try:
            host, text = self.address.file.read_text().split()
            port = int(text)
        except (OSError, ValueError):
            return []
        return [(host, port)] if 0 < port < 2**16 else []

    def _try_connect(self, host: str, port: int) -> socket.socket | None:
        try:
            connection = socket.create_connection((host, port), timeout=2.0)
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                raise out_of_files("the rendezvous of the ranks") from error
            return None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = _receive_exactly(connection, len(_GREETING) + _NONCE_BYTES)
            if not greeting.startswith(_GREETING):
                raise EOFError
            proof = _proof(self.address.job, greeting[len(_GREETING) :])
            _send(connection, msgspec.msgpack.encode(_Hello(self.rank, self.size, proof)))
            self._await_response(connection)
        except (OSError, EOFError) as error:
            connection.close()
            if isinstance(error, RendezvousError):
                raise
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _await_response(self, connection: socket.socket) -> _Response:
        # Rank 0 enforces the deadline; the margin lets its response arrive.
        connection.settimeout(max(0.1, self._deadline - time.monotonic()) + 5.0)
        try:
            response = _read_response(_receive(connection))
        except (EOFError, ConnectionError):
            if self._hub is None:
                raise
            raise RendezvousError(
                "rank 0 disconnected while the context was set up. See the error of rank 0", (0,)
            ) from None
        except TimeoutError:
            raise RendezvousTimeout(
                f"rank 0 at {self.address} stopped responding. See the error of rank 0", (0,)
            ) from None
        if response.timeout:
            raise self._timeout_error(response.missing, response.error)
        if response.error:
            raise RendezvousError(f"{_MISMATCH}: {response.error}", tuple(response.missing))
        return response


def _read_response(content: bytes) -> _Response:
    try:
        return msgspec.msgpack.decode(content, type=_Response)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise EOFError from None  # not a rank 0 of neuraxis


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


def _receive(connection: socket.socket, largest: int = _MAX_FRAME, deadline: float | None = None) -> bytes:
    (length,) = struct.unpack("!I", _receive_exactly(connection, 4, deadline))
    if length > largest:
        raise EOFError
    return _receive_exactly(connection, length, deadline)


def _receive_exactly(connection: socket.socket, count: int, deadline: float | None = None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            connection.settimeout(max(1e-3, deadline - time.monotonic()))
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
