"""Topologies, and the Zenoh sessions that they describe.

**local**: peers on loopback. Every node listens on a port of its own. One of them also listens on the *seed port*,
which is derived from the user and the mesh's name: the others connect to it and discover each other by gossip. When its
holder ends, another node takes the port and the rest connect to it. So nothing has to be started first, and no node is
special. There are a few seed ports in a fixed order: a node skips those on which another program or a stopped process
listens, and all nodes connect to all of them, so that they find each other whichever port each one got.

**client** of one or more routers: for several machines, and for access control, since routers filter messages and peers
do not. **peer**: connected by explicit endpoints. **router**: see `neuraxis.mesh.router`.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import itertools
import json
import os
import selectors
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from neuraxis.arguments import flag, is_number, label, path_of, set_fields, whole
from neuraxis.deprecation import renamed_members
from neuraxis.errors import InvalidArgument, InvalidType, MeshError
from neuraxis.mesh.certificates import can_listen
from neuraxis.mesh.keys import check_mesh

__all__ = [
    "LARGEST_MESSAGE",
    "OpenedSession",
    "SeedPorts",
    "Tls",
    "Topology",
    "find_seeds",
    "is_loopback",
    "open_introducer",
    "open_links",
    "open_seed_listener",
    "open_session",
    "port_of",
    "probe_endpoints",
    "read_acl",
    "seed_port",
    "seed_ports",
    "session_config",
    "wait_for_links",
    "with_port",
]

LARGEST_MESSAGE = 64 * 2**20
LEASE_MS = 1000  # failure detection time for a stopped process or a cut cable
SEED_PORTS = 3  # number of ports that a local mesh tries, in order
MAX_PENDING = 4096  # connections in their handshake; Zenoh refuses any beyond this number
_HEADERS = 2**20  # allowance for the key, encoding and attachment of a message
_QUIET_S = 0.03  # without a new link, after which all present nodes count as linked
_TRIES = 20  # another process may take a port that was just found free
_MODES = ("local", "client", "peer", "router")


@dataclass(frozen=True)
class Tls:
    """Files for mutual TLS; `neuraxis mesh keys init` creates them.

    Attributes
    ----------
    authority : Path
        Certificate of the certificate authority (CA), which signs all others.
    certificate, key : Path
        Certificate and private key of this process.

    Examples
    --------
    >>> from pathlib import Path
    >>> tls = Tls(Path("keys/ca.pem"), Path("keys/vision.pem"), Path("keys/vision.key"))
    >>> Topology("client", ("tls/robot:7447",), tls=tls).mode
    'client'

    With the files of ``neuraxis mesh keys init``::

        node = Node("vision", topology=Topology("client", ("tls/robot:7447",), tls=Tls.from_folder("keys", "vision")))
    """

    authority: Path
    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        set_fields(self, **{name: path_of(getattr(self, name), name) for name in ("authority", "certificate", "key")})

    @classmethod
    def from_folder(cls, folder: str | Path, role: str) -> Tls:
        """Return the files of a role in a folder that `neuraxis mesh keys init` created.

        Parameters
        ----------
        folder : path
            The folder.
        role : str
            The role, whose certificate and key are `<role>.pem` and `<role>.key`.

        Returns
        -------
        Tls
            The files.

        Raises
        ------
        MeshError
            A file is missing.
        """
        folder, role = path_of(folder, "folder"), label(role, "role")
        tls = cls(folder / "ca.pem", folder / f"{role}.pem", folder / f"{role}.key")
        for path in (tls.authority, tls.certificate, tls.key):
            if not path.is_file():
                raise MeshError(
                    f"{path}: there is no such file. Create it with: neuraxis mesh keys init {folder} --roles {role}"
                )
        return tls


@renamed_members(patience_s="connect_timeout")
@dataclass(frozen=True)
class Topology:
    """Connection of a process to the mesh: its mode and its endpoints.

    Attributes
    ----------
    mode : {"local", "client", "peer", "router"}
        "local" finds peers on this machine; see the module for the others.
    connect, listen : tuple of str
        Zenoh endpoints ("tcp/127.0.0.1:7447", "tls/robot:7447").
    tls : Tls, optional
        Certificates; required for addresses beyond this machine, unless `insecure`.
    insecure : bool
        Accept addresses beyond this machine without TLS.
    acl : Path, optional
        File of access rules that a router enforces; `neuraxis mesh acl` writes it.
    zenoh_config : Path, optional
        A native Zenoh configuration (JSON5), used unchanged instead of the other fields.
    seed_port : int
        The first seed port of a local mesh; 0 derives it from the user and the mesh's name.
    connect_timeout : float
        Seconds that a client waits for a router when it starts.

    Raises
    ------
    InvalidArgument
        A field is invalid, or an address beyond this machine is used without TLS.

    Examples
    --------
    >>> Topology.local().mode
    'local'
    >>> Topology("client", ("tcp/127.0.0.1:7447",)).connect
    ('tcp/127.0.0.1:7447',)
    """

    mode: str = "local"
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    tls: Tls | None = None
    insecure: bool = False
    acl: Path | None = None
    zenoh_config: Path | None = None
    seed_port: int = 0
    connect_timeout: float = 10.0

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise InvalidArgument(f"mode={self.mode!r}: one of {', '.join(_MODES)} is expected")
        for name in ("connect", "listen"):
            endpoints = getattr(self, name)
            if not isinstance(endpoints, list | tuple) or not all(isinstance(one, str) for one in endpoints):
                kind = InvalidArgument if isinstance(endpoints, str | list | tuple) else InvalidType
                raise kind(f"{name}={endpoints!r}: a tuple of addresses such as tcp/127.0.0.1:7447 is expected")
            set_fields(self, **{name: tuple(endpoints)})
        if self.tls is not None and not isinstance(self.tls, Tls):
            raise InvalidType(f"tls={self.tls!r}: a Tls is expected, as Tls.from_folder(FOLDER, NAME)")
        flag(self.insecure, "insecure")
        for name in ("acl", "zenoh_config"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: path_of(getattr(self, name), name)})
        whole(self.seed_port, "seed_port", 0, 65535)
        if self.zenoh_config is not None:
            if self.connect or self.listen or self.tls is not None or self.acl is not None:
                raise InvalidArgument(
                    f"zenoh_config={str(self.zenoh_config)!r}: cannot be combined with connect, listen, tls or acl. "
                    "Set these in the configuration file"
                )
            return
        if not is_number(self.connect_timeout):
            raise InvalidType(f"connect_timeout={self.connect_timeout!r}: a number of seconds is expected")
        if not self.connect_timeout > 0:
            raise InvalidArgument(f"connect_timeout={self.connect_timeout!r}: a number of seconds is expected")
        if self.mode == "local" and self.connect:
            raise InvalidArgument(
                'connect: mode="local" finds peers on this machine by itself. Set mode="client" to connect to a '
                'router, or mode="peer" to connect to peers'
            )
        if self.mode == "client" and not self.connect:
            raise InvalidArgument("connect: a client needs the address of a router, such as tcp/127.0.0.1:7447")
        for endpoint in (*self.connect, *self.listen):
            _check_endpoint(endpoint, self.tls is not None, self.insecure)
        if self.tls is not None and self.listen and not can_listen(self.tls.certificate):
            raise InvalidArgument(
                f"{self.tls.certificate}: this is a client certificate, which connecting peers refuse. Listen with a "
                "router's certificate, or create one for a peer: neuraxis mesh keys init FOLDER --listeners NAME"
            )

    @cached_property
    def mode_in_use(self) -> str:
        """The mode of the session, read from the native configuration if there is one."""
        if self.zenoh_config is None:
            return self.mode
        import zenoh

        try:
            return str(json.loads(zenoh.Config.from_file(str(self.zenoh_config)).get_json("mode")) or "peer")
        except (zenoh.ZError, ValueError):
            return "peer"

    @classmethod
    def local(cls, seed_port: int = 0) -> Topology:
        """Return a topology of peers on this machine.

        Parameters
        ----------
        seed_port : int
            The first seed port; 0 derives it from the user and the name of the mesh.

        Returns
        -------
        Topology
            The topology.
        """
        return cls(seed_port=seed_port)

    @classmethod
    def from_options(
        cls,
        connect: Sequence[str] = (),
        listen: Sequence[str] = (),
        *,
        tls: Tls | None = None,
        insecure: bool = False,
        zenoh_config: str | Path | None = None,
    ) -> Topology:
        """Return the topology of command-line options.

        Parameters
        ----------
        connect : sequence of str
            Endpoints to connect to; without `listen` the node is a client.
        listen : sequence of str
            Endpoints to listen on, as a peer.
        tls : Tls, optional
            Files for mutual TLS.
        insecure : bool
            Accept addresses beyond this machine without TLS.
        zenoh_config : path, optional
            A native Zenoh configuration (JSON5), used unchanged instead of the other arguments.

        Returns
        -------
        Topology
            A topology of mode "peer", "client" or, without addresses, "local".
        """
        if isinstance(connect, str) or isinstance(listen, str):
            raise InvalidArgument("connect and listen: lists of addresses are expected")
        mode = "peer" if listen else "client" if connect else "local"
        config = None if zenoh_config is None else Path(zenoh_config)
        return cls(mode, tuple(connect), tuple(listen), tls, insecure, zenoh_config=config)

    def as_data(self) -> dict[str, Any]:
        """Return plain data for `from_data`, in another process."""
        tls = None if self.tls is None else [str(self.tls.authority), str(self.tls.certificate), str(self.tls.key)]
        paths = {
            name: None if getattr(self, name) is None else str(getattr(self, name)) for name in ("acl", "zenoh_config")
        }
        return {
            "mode": self.mode, "connect": list(self.connect), "listen": list(self.listen), "insecure": self.insecure,
            "seed_port": self.seed_port, "connect_timeout": self.connect_timeout, "tls": tls, **paths,
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Topology:
        """Return the topology that `as_data` described.

        Parameters
        ----------
        data : mapping
            What `as_data` returned.

        Returns
        -------
        Topology
            The topology.
        """
        tls = None if data["tls"] is None else Tls(*(Path(one) for one in data["tls"]))
        acl, config = (None if data[name] is None else Path(data[name]) for name in ("acl", "zenoh_config"))
        return cls(
            data["mode"], tuple(data["connect"]), tuple(data["listen"]), tls, data["insecure"], acl, config,
            data["seed_port"], data["connect_timeout"],
        )  # fmt: skip


def seed_ports(mesh: str, first: int = 0) -> tuple[int, ...]:
    """Return the seed ports of a user's local mesh, in the order in which they are tried.

    They lie below the ephemeral port range. `first` replaces the first one.
    """
    user = os.getuid() if hasattr(os, "getuid") else ""
    found = [first] if first else []
    for number in itertools.count():
        if len(found) == SEED_PORTS:
            return tuple(found)
        text = f"{user} {mesh}" if number == 0 else f"{user} {mesh} {number}"
        port = 18000 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") % 12000
        if port not in found:
            found.append(port)
    raise AssertionError("unreachable")


def seed_port(mesh: str) -> int:
    """Return the first of a local mesh's seed ports."""
    return seed_ports(mesh)[0]


@dataclass(frozen=True)
class SeedPorts:
    """The state of a local mesh's seed ports when a node starts.

    Attributes
    ----------
    ports : tuple of int
        All of them, in order.
    free : int or None
        The port to listen on; None if a node answered on an earlier one.
    answered : bool
        True if a node answered.
    silent : tuple of int
        Ports on which something listens that does not answer as a node: another program, or a stopped or overloaded
        node.
    """

    ports: tuple[int, ...]
    free: int | None
    answered: bool
    silent: tuple[int, ...]


def find_seeds(topology: Topology, mesh: str, timeout_s: float = 1.0) -> SeedPorts:
    """Probe the seed ports in order, until one is free or a node answers within `timeout_s` seconds.

    Raises
    ------
    MeshError
        Something listens on all of them, and nothing answers as a node.
    """
    import zenoh

    ports = seed_ports(mesh, topology.seed_port)
    silent: list[int] = []
    for port in ports:
        endpoint = f"tcp/127.0.0.1:{port}"
        if probe_endpoints([endpoint], timeout_s)[endpoint] is False:
            return SeedPorts(ports, port, False, tuple(silent))
        config = _base_config("client", [endpoint], [], int(1000 * timeout_s))
        config["connect"] |= {"timeout_ms": int(1000 * timeout_s), "exit_on_failure": True}
        try:
            probe: Any = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
            probe.close()
            return SeedPorts(ports, None, True, tuple(silent))
        except zenoh.ZError:
            silent.append(port)
    raise MeshError(
        f"the ports of the mesh {mesh!r} ({', '.join(map(str, ports))}) are taken by programs that do not answer as "
        "nodes. Stop those programs (ss -ltnp lists them), or use another mesh name"
    )


def session_config(topology: Topology, mesh: str, seeds: SeedPorts | None = None) -> dict[str, Any]:
    """Return the Zenoh configuration of a topology, as plain data.

    `seeds` is the state of a local mesh's seed ports; without it the first one is assumed to be free.
    """
    connect, listen = list(topology.connect), list(topology.listen)
    mode = topology.mode
    # A client tries the next router soon; peers that all start at the same moment need more time.
    open_ms = 1000
    if mode == "local":
        if seeds is None:
            ports = seed_ports(mesh, topology.seed_port)
            seeds = SeedPorts(ports, ports[0], False, ())
        connect = [f"tcp/127.0.0.1:{port}" for port in seeds.ports]
        listen = listen or ["tcp/127.0.0.1:0"]
        if seeds.free is not None:
            # Failing is fine: another node may have taken the port first.
            listen.append(f"tcp/127.0.0.1:{seeds.free}#exit_on_failure=false")
    if mode in ("local", "peer"):
        mode = "peer"
        # Closing a session waits for its connection attempts to ports that do not answer.
        open_ms = 2000 if seeds is not None and seeds.silent else 10_000
    config = _base_config(mode, connect, listen, open_ms)
    if mode == "client":
        config["connect"] |= {"timeout_ms": int(1000 * topology.connect_timeout), "exit_on_failure": True}
    if topology.tls is not None:
        config["transport"]["link"]["tls"] = _tls_config(topology.tls)
    if topology.acl is not None:
        config["access_control"] = read_acl(topology.acl)
    return config


def _base_config(mode: str, connect: Sequence[str], listen: Sequence[str], open_ms: int) -> dict[str, Any]:
    """Return the settings common to all sessions: they connect in the background, and retry without end."""
    return {
        "mode": mode,
        "connect": {
            "endpoints": list(connect),
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 50, "period_max_ms": 500, "period_increase_factor": 2},
        },
        "listen": {"endpoints": list(listen), "timeout_ms": 0, "exit_on_failure": True},
        # Of two peers that discover each other, one connects. On a busy machine two simultaneous links have been
        # observed to collapse into one that lacks half of the declarations.
        "scouting": {
            "delay": 0,
            "multicast": {"enabled": False},
            "gossip": {
                "enabled": mode == "peer",
                "autoconnect_strategy": {"peer": {"to_router": "always", "to_peer": "greater-zid"}},
            },
        },
        # Zenoh's advanced subscriber drops a message whose time is older than the last one of the same process, on any
        # key: a bulk message that a stream has overtaken, without a trace.
        "timestamping": {"enabled": False},
        "queries_default_timeout": 2000,
        "transport": {
            "unicast": {
                "open_timeout": open_ms,
                "accept_timeout": open_ms,
                "accept_pending": _max_pending(),
                "max_sessions": 10000,
            },
            "link": {
                "tx": {
                    "lease": LEASE_MS,
                    "keep_alive": 4,
                    "queue": {
                        "congestion_control": {
                            "drop": {"wait_before_drop": 10_000},
                            "block": {"wait_before_close": 1_000_000},
                        },
                        # Queued batches of 64 KB: more than the default of 2 for the kinds that drop, so that a burst
                        # fits. They are allocated on demand.
                        "size": {"real_time": 16, "interactive_high": 16},
                    },
                },
                # Zenoh drops larger messages silently; the receiver counts those that are only slightly too large.
                "rx": {"max_message_size": 2 * LARGEST_MESSAGE + _HEADERS},
            },
            "shared_memory": {"enabled": False},
        },
    }


def _max_pending() -> int:
    """Return the limit on connections in their handshake.

    With Zenoh's default of 100, a hundred idle connections block all new ones. Each takes a file descriptor, so half of
    the descriptors are left for the rest of the process.
    """
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        return MAX_PENDING
    return MAX_PENDING if files == resource.RLIM_INFINITY else max(100, min(MAX_PENDING, files // 2))


@dataclass(frozen=True)
class OpenedSession:
    """A session with its endpoints.

    Attributes
    ----------
    session : zenoh.Session
        The Zenoh session.
    own : str or None
        An endpoint of this session that is reachable from this process; None for clients and native configurations.
    ports : frozenset of int
        The ports on which it listens.
    seeds : SeedPorts or None
        The state of the seed ports; None unless the topology is "local".
    """

    session: Any
    own: str | None
    ports: frozenset[int]
    seeds: SeedPorts | None


def open_session(topology: Topology, mesh: str) -> Any:
    """Open a Zenoh session; the caller closes it."""
    return open_links(topology, mesh).session


def open_links(topology: Topology, mesh: str) -> OpenedSession:
    """Open a Zenoh session with its endpoints; the caller closes it.

    Raises
    ------
    MeshError
        The configuration cannot be read, no router answers, a port is taken, or no seed port is usable.
    """
    import zenoh

    check_mesh(mesh)
    native = topology.zenoh_config is not None
    seeds = find_seeds(topology, mesh) if topology.mode == "local" and not native else None
    wanted = ("tcp/127.0.0.1:0",) if seeds is not None else topology.listen
    for left in reversed(range(_TRIES)):
        try:
            listen = tuple(with_port(endpoint) for endpoint in wanted)
        except OSError as error:
            raise MeshError(f"the mesh cannot be opened: {error}") from None
        try:
            if native:
                config = zenoh.Config.from_file(str(topology.zenoh_config))
            else:
                data = session_config(replace(topology, listen=listen), mesh, seeds)
                config = zenoh.Config.from_json5(json.dumps(data))
        except zenoh.ZError as error:
            raise MeshError(
                f"{topology.zenoh_config or 'the mesh'}: Zenoh cannot read the configuration: {error}"
            ) from None
        try:
            session = zenoh.open(config)
        except zenoh.ZError as error:
            reason = str(error).split(" at /")[0]
            if left and listen != wanted and "in use" in reason:
                continue  # a port that was free a moment ago
            if topology.mode == "client":
                raise MeshError(
                    f"no router answered at {', '.join(topology.connect)} within {topology.connect_timeout:g} s "
                    f"({reason}). Start one (neuraxis router), or check the address and the keys"
                ) from None
            raise MeshError(f"the mesh cannot be opened: {reason}") from None
        ports = frozenset(filter(None, map(port_of, listen)))
        if seeds is not None and seeds.free is not None:
            ports |= {seeds.free}
        own = _reachable(listen[0]) if listen and not native and topology.mode in ("local", "peer") else None
        return OpenedSession(session, own, ports, seeds)
    raise AssertionError("unreachable")


def open_introducer(topology: Topology, endpoints: Sequence[str]) -> Any:
    """Open a session that connects to peers and introduces them to each other by gossip, and does nothing else.

    An open Zenoh session offers no way to connect to another endpoint, but a peer connects to peers that it learns of.
    """
    import zenoh

    config = _base_config("peer", endpoints, [], 800)
    config["connect"]["retry"] = {"period_init_ms": 60_000, "period_max_ms": 60_000, "period_increase_factor": 1}
    config["scouting"]["gossip"]["autoconnect"] = []
    if topology.tls is not None:
        # It connects to its own process by an address that need not be in the certificate.
        config["transport"]["link"]["tls"] = _tls_config(topology.tls) | {"verify_name_on_connect": False}
    return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))


def open_seed_listener(port: int) -> Any | None:
    """Open a session that listens on a seed port and introduces the nodes that connect to each other.

    It tries to listen once: a session that keeps trying takes ten seconds to close.

    Returns
    -------
    zenoh.Session or None
        The session, which the caller closes; None if another process has the port.
    """
    import zenoh

    config = _base_config("peer", [], [f"tcp/127.0.0.1:{port}"], 1000)
    config["scouting"]["gossip"]["autoconnect"] = []
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    except zenoh.ZError:
        return None


def wait_for_links(session: Any, timeout_s: float) -> bool:
    """Wait until this session is connected to the peers that it learns of; return False if there is none.

    Through the first link it learns of the others, so the wait ends when no link was added for a moment.
    """
    deadline = time.monotonic() + timeout_s
    links, quiet_since = 0, time.monotonic()
    while time.monotonic() < deadline:
        now = len(list(session.info.peers_zid()))
        if now != links:
            links, quiet_since = now, time.monotonic()
        if links and time.monotonic() - quiet_since > _QUIET_S:
            return True
        time.sleep(0.002)
    return links > 0


def is_loopback(endpoint: str) -> bool:
    """Return True if an endpoint is reachable from this machine only."""
    protocol, _, rest = endpoint.partition("/")
    if protocol == "unixsock-stream":
        return True
    host = rest.split("?")[0].split("#")[0].rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_endpoint(endpoint: str, has_keys: bool, insecure: bool) -> None:
    protocol, _, rest = endpoint.partition("/")
    if protocol not in ("tcp", "udp", "tls", "quic", "ws", "unixsock-stream") or not rest:
        raise InvalidArgument(f"{endpoint!r}: an address such as tcp/127.0.0.1:7447 or tls/robot:7447 is expected")
    address = rest.split("?")[0].split("#")[0]
    port = address.rpartition(":")[2]
    if protocol != "unixsock-stream" and not (":" in address and port.isdecimal() and int(port) < 65536):
        raise InvalidArgument(f"{endpoint!r}: a host and a port are expected, as in tcp/127.0.0.1:7447")
    encrypted = protocol in ("tls", "quic")
    if encrypted and not has_keys:
        raise InvalidArgument(
            f"{endpoint}: TLS needs keys. Create them with neuraxis mesh keys init, and pass --tls FOLDER (in Python: "
            "tls=Tls.from_folder(FOLDER, ROLE) of a Topology)"
        )
    if not encrypted and not is_loopback(endpoint) and not insecure:
        raise InvalidArgument(
            f"{endpoint}: anyone on the network could read and send messages. Use keys (tls/…, --tls FOLDER), or pass "
            "--insecure (in Python: insecure=True of a Topology) if you trust everyone on the network"
        )


def _tls_config(tls: Tls) -> dict[str, Any]:
    return {
        "root_ca_certificate": str(tls.authority),
        "listen_certificate": str(tls.certificate),
        "listen_private_key": str(tls.key),
        "connect_certificate": str(tls.certificate),
        "connect_private_key": str(tls.key),
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }


def _address(endpoint: str) -> tuple[str, int]:
    """Return the host and the port of an endpoint; port 0 if it has none."""
    host, _, port = endpoint.partition("/")[2].split("?")[0].split("#")[0].rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def with_port(endpoint: str) -> str:
    """Replace port 0 of an endpoint by a free port, since Zenoh does not report the port that it got.

    Raises OSError if the address does not belong to this machine.
    """
    address = endpoint.split("?")[0].split("#")[0]
    protocol, _, place = address.partition("/")
    if not place.endswith(":0"):
        return endpoint
    host = place.removesuffix(":0")
    kind = socket.SOCK_DGRAM if protocol in ("udp", "quic") else socket.SOCK_STREAM
    family, _, _, _, where = socket.getaddrinfo(host.strip("[]"), 0, type=kind)[0]
    with socket.socket(family, kind) as probe:
        probe.bind(where)
        port = probe.getsockname()[1]
    return f"{protocol}/{host}:{port}{endpoint[len(address) :]}"


def _reachable(endpoint: str) -> str:
    """Return an endpoint by which this process reaches itself if it listens on all addresses."""
    endpoint = endpoint.split("?")[0].split("#")[0]
    return endpoint.replace("/0.0.0.0:", "/127.0.0.1:").replace("/[::]:", "/[::1]:")


def port_of(endpoint: str) -> int:
    """Return the port of an endpoint; 0 if it has none."""
    return _address(endpoint)[1]


def probe_endpoints(endpoints: Iterable[str], timeout_s: float) -> dict[str, bool | None]:
    """Return for each endpoint True if something listens there, False if not, None if unknown after `timeout_s`.

    It tries all endpoints at the same time, by a TCP connection that is closed immediately. Other protocols count as
    True.
    """
    found: dict[str, bool | None] = dict.fromkeys(endpoints)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for endpoint in found:
            host, port = _address(endpoint)
            if endpoint.partition("/")[0] not in ("tcp", "tls", "ws") or not port:
                found[endpoint] = True
                continue
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.setblocking(False)
            if probe.connect_ex((host, port)) in (0, errno.EINPROGRESS):
                selector.register(probe, selectors.EVENT_WRITE, endpoint)
        deadline = time.monotonic() + timeout_s
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                found[key.data] = {0: True, errno.ECONNREFUSED: False}.get(code)
                selector.unregister(key.fileobj)
    return found


def read_acl(path: Path) -> Any:
    """Return the `access_control` section of a file, which must be enabled."""
    import zenoh

    try:
        rules = json.loads(zenoh.Config.from_json5(path.read_text()).get_json("access_control"))
    except (OSError, ValueError, zenoh.ZError) as error:
        raise MeshError(f"{path}: the access rules cannot be read: {error}") from None
    if not rules.get("enabled"):
        raise MeshError(f"{path}: access_control is missing or not enabled. Write the file with: neuraxis mesh acl")
    return rules
