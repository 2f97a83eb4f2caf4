"""A Zenoh router in this process: clients meet there, and it enforces who may say and hear what."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from neuraxis.errors import InvalidArgument, MeshError
from neuraxis.mesh.topology import Tls, Topology, open_session

__all__ = ["DEFAULT_LISTEN", "Router"]

DEFAULT_LISTEN = "tcp/127.0.0.1:7447"
_MESH = "router"  # a router serves all meshes; its own session is on none
_TRIES = 20  # a port that was free a moment ago may be taken


class Router:
    """A router, from when it is made until it is closed.

    Args:
        listen: where clients and other routers reach it; with port 0, on a free port. By default on this machine only.
        connect: other routers. They need not be there yet, and may go and come back.
        tls: keys; needed for addresses beyond this machine, unless `insecure`.
        acl: a file with the rules of access; `neuraxis mesh acl` writes it.
        zenoh_config: a native Zenoh configuration (JSON5), used as it is, in place of all the above.

    Raises:
        InvalidArgument: an address is wrong, or beyond this machine without TLS.
        MeshError: it cannot listen there; a file cannot be read.
    """

    def __init__(
        self,
        listen: Sequence[str] | None = None,
        connect: Sequence[str] = (),
        tls: Tls | None = None,
        insecure: bool = False,
        acl: str | Path | None = None,
        zenoh_config: str | Path | None = None,
    ) -> None:
        self._session: Any = None
        if zenoh_config is not None:
            if listen or connect or tls is not None or insecure or acl is not None:
                raise InvalidArgument(
                    f"zenoh_config={str(zenoh_config)!r}: it is used as it is: not with other options"
                )
            self.endpoints = _endpoints_of(Path(zenoh_config))
            self._session = open_session(Topology("router", zenoh_config=Path(zenoh_config)), _MESH)
            return
        _refuse_words(listen, "listen")
        _refuse_words(connect, "connect")
        if acl is not None and tls is None:
            raise InvalidArgument(
                "acl: whom a rule is about is known by their certificate: keys are needed (--tls FOLDER)"
            )
        wanted = (DEFAULT_LISTEN,) if listen is None else tuple(listen)
        if not wanted:
            raise InvalidArgument("listen: an address is expected, such as tcp/127.0.0.1:7447")
        topology = Topology(
            "router", tuple(connect), wanted, tls, insecure, acl=None if acl is None else Path(acl)
        )  # fmt: skip
        self._session, self.endpoints = _open(topology)

    endpoints: tuple[str, ...]
    """Where it listens, with the port that was found where 0 was asked for."""

    def peer_count(self) -> int:
        """How many routers, clients and peers are connected."""
        if self._session is None:
            return 0
        return len({str(link.zid) for link in self._session.info.links()})

    def close(self) -> None:
        """Stop; whoever is connected is cut off. A second call does nothing."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Router at {', '.join(self.endpoints)}{', closed' * (self._session is None)}>"


def _open(topology: Topology) -> tuple[Any, tuple[str, ...]]:
    # Zenoh does not say which port it got, so a free one is looked for here.
    found = any(_wants_port(endpoint) for endpoint in topology.listen)
    for left in reversed(range(_TRIES if found else 1)):
        endpoints = tuple(_with_port(endpoint) for endpoint in topology.listen)
        chosen = Topology(
            "router", topology.connect, endpoints, topology.tls, topology.insecure, acl=topology.acl
        )  # fmt: skip
        try:
            return open_session(chosen, _MESH), endpoints
        except MeshError as error:
            taken = "in use" in str(error)
            if taken and left:
                continue
            where = ", ".join(endpoints)
            reason = "the address is taken; is another router running there?" if taken else str(error)
            raise MeshError(f"a router cannot listen at {where}: {reason}") from None
    raise AssertionError("unreachable")


def _wants_port(endpoint: str) -> bool:
    return endpoint.split("?")[0].split("#")[0].endswith(":0")


def _with_port(endpoint: str) -> str:
    """An endpoint with a free port where it asks for port 0."""
    if not _wants_port(endpoint):
        return endpoint
    address = endpoint.split("?")[0].split("#")[0]
    protocol, _, place = address.partition("/")
    host = place.removesuffix(":0")
    kind = socket.SOCK_DGRAM if protocol in ("udp", "quic") else socket.SOCK_STREAM
    try:
        family, _, _, _, where = socket.getaddrinfo(host.strip("[]"), 0, type=kind)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
            port = probe.getsockname()[1]
    except OSError as error:
        raise MeshError(f"a router cannot listen at {endpoint}: {error.strerror or error}") from None
    return f"{protocol}/{host}:{port}{endpoint[len(address) :]}"


def _endpoints_of(path: Path) -> tuple[str, ...]:
    """Where a native configuration listens, as far as it says so; that it makes a router is required."""
    import zenoh

    try:
        config = zenoh.Config.from_file(str(path))
        mode, listen = json.loads(config.get_json("mode")), json.loads(config.get_json("listen/endpoints"))
    except zenoh.ZError as error:
        raise MeshError(f"{path}: Zenoh cannot read it: {str(error).split(' at /')[0]}") from None
    if mode != "router":
        raise MeshError(f'{path}: its mode is {mode or "not said"}; a router needs mode: "router"')
    if isinstance(listen, dict):
        listen = listen.get("router")
    if listen is None:
        listen = ["tcp/[::]:7447"]  # Zenoh's own default
    return tuple(str(endpoint) for endpoint in listen)


def _refuse_words(endpoints: object, what: str) -> None:
    if isinstance(endpoints, str):
        raise InvalidArgument(f"{what}={endpoints!r}: a list of addresses is expected")
