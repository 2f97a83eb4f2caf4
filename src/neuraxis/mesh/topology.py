"""How a process reaches the others: a topology, and the Zenoh session that follows from it.

**local**: peers on loopback. Every node listens on a port of its own, and all of them want one more, the *seed port*,
which follows from the user and the mesh's name: one has it, the others reach the mesh through it and hear of each other
there. When whoever has it ends, the next node that comes takes it, and those that are there find that one. So nothing
must be started first, and no node is special.

**client** of one or more routers: on several machines, and wherever access control is wanted: a router can filter what
goes through it, peers do as they like. **peer**: connected by hand. **router**: see `neuraxis.mesh.router`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neuraxis.errors import InvalidArgument, MeshError
from neuraxis.mesh.keys import check_mesh

__all__ = [
    "LARGEST_MESSAGE",
    "Tls",
    "Topology",
    "is_loopback",
    "open_session",
    "others_here",
    "session_config",
    "wait_for_links",
]

LARGEST_MESSAGE = 64 * 2**20
LEASE_MS = 1000  # a process that is stopped, or a cable that is cut, is noticed after this
_HEADERS = 2**20  # around a message: its key, encoding and attachment
_QUIET_S = 0.03
_MODES = ("local", "client", "peer", "router")


@dataclass(frozen=True)
class Tls:
    """The files by which a process shows who it is and knows the others; `neuraxis mesh keys init` makes them."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def from_folder(cls, folder: str | Path, role: str) -> Tls:
        """Those of a role in a folder that `neuraxis mesh keys init` made."""
        folder = Path(folder)
        tls = cls(folder / "ca.pem", folder / f"{role}.pem", folder / f"{role}.key")
        for path in (tls.authority, tls.certificate, tls.key):
            if not path.is_file():
                raise MeshError(
                    f"{path}: there is no such file; make it: neuraxis mesh keys init {folder} --roles {role}"
                )
        return tls


@dataclass(frozen=True)
class Topology:
    """How to reach the mesh.

    Attributes:
        mode: "local", "client", "peer" or "router".
        connect, listen: Zenoh endpoints ("tcp/127.0.0.1:7447", "tls/robot:7447").
        tls: keys; needed for addresses beyond this machine, unless `insecure`.
        insecure: accept addresses beyond this machine without TLS.
        acl: a file with the rules of access that a router enforces; `neuraxis mesh acl` writes it.
        zenoh_config: a native Zenoh configuration (JSON5), used as it is; nothing else here counts then.
        seed_port: the local mesh's common port; 0: what follows from the user and the mesh's name.
        patience_s: how long a client waits for a router when it starts.
    """

    mode: str = "local"
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    tls: Tls | None = None
    insecure: bool = False
    acl: Path | None = None
    zenoh_config: Path | None = None
    seed_port: int = 0
    patience_s: float = 10.0

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise InvalidArgument(f"mode={self.mode!r}: one of {', '.join(_MODES)} is expected")
        for name in ("connect", "listen"):
            endpoints = getattr(self, name)
            if isinstance(endpoints, str) or not all(isinstance(one, str) for one in endpoints):
                raise InvalidArgument(
                    f"{name}={endpoints!r}: addresses such as tcp/127.0.0.1:7447 are expected, in a tuple"
                )
        if self.zenoh_config is not None:
            if self.connect or self.listen or self.tls is not None or self.acl is not None:
                raise InvalidArgument(
                    f"zenoh_config={str(self.zenoh_config)!r}: is used as it is: not with connect, listen, tls or acl"
                )
            return
        if not self.patience_s > 0:
            raise InvalidArgument(f"patience_s={self.patience_s!r}: a number of seconds is expected")
        if self.mode == "client" and not self.connect:
            raise InvalidArgument("connect: a client needs the address of a router, such as tcp/127.0.0.1:7447")
        for endpoint in (*self.connect, *self.listen):
            _check_endpoint(endpoint, self.tls is not None, self.insecure)

    @cached_property
    def mode_in_use(self) -> str:
        """How the session reaches the others: the mode, or that of the native configuration."""
        if self.zenoh_config is None:
            return self.mode
        import zenoh

        try:
            return str(json.loads(zenoh.Config.from_file(str(self.zenoh_config)).get_json("mode")) or "peer")
        except (zenoh.ZError, ValueError):
            return "peer"

    @classmethod
    def local(cls, seed_port: int = 0) -> Topology:
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
        """What command-line options mean: nothing is local, `connect` a client, `listen` a peer."""
        if isinstance(connect, str) or isinstance(listen, str):
            raise InvalidArgument("connect and listen: lists of addresses are expected")
        mode = "peer" if listen else "client" if connect else "local"
        config = None if zenoh_config is None else Path(zenoh_config)
        return cls(mode, tuple(connect), tuple(listen), tls, insecure, zenoh_config=config)

    def as_data(self) -> dict[str, Any]:
        """Plain data from which `from_data` makes it again, in another process."""
        tls = None if self.tls is None else [str(self.tls.authority), str(self.tls.certificate), str(self.tls.key)]
        paths = {
            name: None if getattr(self, name) is None else str(getattr(self, name)) for name in ("acl", "zenoh_config")
        }
        return {
            "mode": self.mode, "connect": list(self.connect), "listen": list(self.listen), "insecure": self.insecure,
            "seed_port": self.seed_port, "patience_s": self.patience_s, "tls": tls, **paths,
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Topology:
        tls = None if data["tls"] is None else Tls(*(Path(one) for one in data["tls"]))
        acl, config = (None if data[name] is None else Path(data[name]) for name in ("acl", "zenoh_config"))
        return cls(
            data["mode"], tuple(data["connect"]), tuple(data["listen"]), tls, data["insecure"], acl, config,
            data["seed_port"], data["patience_s"],
        )  # fmt: skip


def seed_port(mesh: str) -> int:
    """The port that all nodes of a user's local mesh want to have, below those that the system hands out."""
    digest = hashlib.sha256(f"{os.getuid() if hasattr(os, 'getuid') else ''} {mesh}".encode()).digest()
    return 18000 + int.from_bytes(digest[:4], "little") % 12000


def session_config(topology: Topology, mesh: str) -> dict[str, Any]:
    """The Zenoh configuration of a topology, as plain data."""
    connect, listen = list(topology.connect), list(topology.listen)
    mode = topology.mode
    timeout_ms = -1
    if mode == "local":
        mode = "peer"
        seed = f"tcp/127.0.0.1:{topology.seed_port or seed_port(mesh)}"
        connect, listen = [seed], ["tcp/127.0.0.1:0", seed]
    elif mode == "client":
        timeout_ms = int(1000 * topology.patience_s)
    # A client turns soon to another router; peers that all start at the same moment need their time.
    open_ms = 10_000 if mode == "peer" else 1000
    config: dict[str, Any] = {
        "mode": mode,
        "connect": {
            "endpoints": connect,
            "timeout_ms": timeout_ms,
            "exit_on_failure": mode == "client",
            "retry": {"period_init_ms": 50, "period_max_ms": 500, "period_increase_factor": 2},
        },
        # On a local mesh the seed port may be taken, which is well.
        "listen": {"endpoints": listen, "timeout_ms": 0, "exit_on_failure": topology.mode != "local"},
        # Of two peers that hear of each other one connects: two links at once, on a busy machine, have been seen to end
        # in one over which half of what was declared is unknown.
        "scouting": {
            "delay": 0,
            "multicast": {"enabled": False},
            "gossip": {
                "enabled": mode == "peer",
                "autoconnect_strategy": {"peer": {"to_router": "always", "to_peer": "greater-zid"}},
            },
        },
        "timestamping": {"enabled": True},
        "queries_default_timeout": 2000,
        "transport": {
            "unicast": {"open_timeout": open_ms, "accept_timeout": open_ms, "max_sessions": 10000},
            "link": {
                "tx": {
                    "lease": LEASE_MS,
                    "keep_alive": 4,
                    "queue": {
                        "congestion_control": {
                            "drop": {"wait_before_drop": 10_000},
                            "block": {"wait_before_close": 1_000_000},
                        },
                        # Batches of 64 KB that may wait: of the kinds that drop, more than the usual 2, so that a burst
                        # finds room. They are made when they are needed.
                        "size": {"real_time": 16, "interactive_high": 16},
                    },
                },
                "rx": {"max_message_size": LARGEST_MESSAGE + _HEADERS},
            },
            "shared_memory": {"enabled": False},
        },
    }
    if topology.tls is not None:
        tls = topology.tls
        config["transport"]["link"]["tls"] = {
            "root_ca_certificate": str(tls.authority),
            "listen_certificate": str(tls.certificate),
            "listen_private_key": str(tls.key),
            "connect_certificate": str(tls.certificate),
            "connect_private_key": str(tls.key),
            "enable_mtls": True,
            "verify_name_on_connect": True,
        }
    if topology.acl is not None:
        config["access_control"] = _read_acl(topology.acl)
    return config


def open_session(topology: Topology, mesh: str) -> Any:
    """A Zenoh session, which its caller closes."""
    import zenoh

    check_mesh(mesh)
    try:
        if topology.zenoh_config is not None:
            config = zenoh.Config.from_file(str(topology.zenoh_config))
        else:
            config = zenoh.Config.from_json5(json.dumps(session_config(topology, mesh)))
    except zenoh.ZError as error:
        raise MeshError(
            f"{topology.zenoh_config or 'the mesh'}: Zenoh cannot read the configuration: {error}"
        ) from None
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = str(error).split(" at /")[0]
        if topology.mode == "client":
            raise MeshError(
                f"no router answered at {', '.join(topology.connect)} within {topology.patience_s:g} s ({reason}); "
                "start one (neuraxis router), or see whether the address and the keys are right"
            ) from None
        raise MeshError(f"the mesh cannot be opened: {reason}") from None


def others_here(topology: Topology, mesh: str) -> bool:
    """Whether somebody has the seed port of a local mesh: then there are nodes to be connected with."""
    if topology.mode != "local" or topology.zenoh_config is not None:
        return False
    try:
        socket.create_connection(("127.0.0.1", topology.seed_port or seed_port(mesh)), timeout=0.5).close()
        return True
    except OSError:
        return False


def wait_for_links(session: Any, timeout_s: float) -> bool:
    """Wait until this session is connected to the others it hears of: before that it neither hears nor is heard.

    The first link tells of the others, so it is over when no new link has come for a moment. False if none has come.
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
    """Whether an endpoint is on this machine alone."""
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
        raise InvalidArgument(f"{endpoint}: TLS needs keys: say where they are (--tls FOLDER; neuraxis mesh keys init)")
    if not encrypted and not is_loopback(endpoint) and not insecure:
        raise InvalidArgument(
            f"{endpoint}: beyond this machine everybody could listen and speak. Use keys (tls/…, --tls FOLDER), "
            "or say --insecure if the network is yours alone"
        )


def _read_acl(path: Path) -> Any:
    import zenoh

    try:
        rules = json.loads(zenoh.Config.from_json5(path.read_text()).get_json("access_control"))
    except (OSError, ValueError, zenoh.ZError) as error:
        raise MeshError(f"{path}: the rules of access cannot be read: {error}") from None
    if not rules.get("enabled"):
        raise MeshError(f"{path}: it has no access_control that is enabled; neuraxis mesh acl writes such a file")
    return rules
