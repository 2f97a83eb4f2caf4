"""A Zenoh router in this process, which connects clients and enforces access rules.

**Refusals.** Zenoh reports refused handshakes and denied keys only in its log, which its Python package writes to the
standard output of the process. While a `RouterLog` is entered, a thread reads those lines from a pipe in place of the
standard output, counts them, and logs each reason at most once per interval. It reads some 100,000 lines per second; a
faster flood blocks in the pipe, because Zenoh would complain on standard error about every line that it cannot write.
Denied keys appear at the lowest log level, at which Zenoh also writes a line for every allowed message. Those lines are
skipped unread, but writing them costs the router some microseconds per message.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from neuraxis.arguments import path_of
from neuraxis.errors import InvalidArgument, InvalidType, MeshError
from neuraxis.mesh.access import without_revoked
from neuraxis.mesh.certificates import read_revoked
from neuraxis.mesh.limits import INTERVAL_S, Refusals
from neuraxis.mesh.topology import Tls, Topology, open_session, read_acl, with_port

__all__ = ["DEFAULT_LISTEN", "Router", "RouterLog"]

_log = logging.getLogger("neuraxis.mesh")
_refusal_log = logging.getLogger("neuraxis.router")

DEFAULT_LISTEN = "tcp/127.0.0.1:7447"
_MESH = "router"  # a router serves all meshes; its own session belongs to none
_TRIES = 20  # another process may take a port that was just found free
_RELOAD_S = 5.0  # how long a restarting router waits for its own port

_LINKS = "error,zenoh_link_tls=debug,zenoh_link_quic=debug,zenoh::net::routing::interceptor::access_control"
_CHUNK = 1 << 16
_PIPE_BYTES = 1 << 20
_CACHED = 9  # lines in which Zenoh precomputes its decisions for a key, before any message arrives
_MAX_SESSIONS = 10_000

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(
    r"^\S+\s+(?P<level>[A-Z]+)\s+(?:\S+\s+)?ThreadId\((?P<thread>\d+)\)\s+(?P<target>[\w:]+): (?P<text>.*)$"
)
_ACCEPTED = re.compile(r"^Accepted \w+ connection .*Common Name: (?P<name>.*)\.$")
_NO_RULE = re.compile(r"^(?P<session>[0-9a-f]+) did not match any configured ACL subject")
_DENIED = re.compile(
    r"^(?:Using cached result: )?(?P<session>[0-9a-f]+)(?: on \S*CertCommonName\((?P<name>[^)]*)\)\S*| on \S+)? "
    r"is unauthorized to (?P<action>.+) \(ingress\) on (?P<key>.*)$"
)


class RouterLog:
    """A context manager that counts and logs the refusals of this process's router; at most one per process.

    Parameters
    ----------
    denials : bool
        Count denied keys as well; useful with access rules only.
    interval_s : float
        Seconds between two lines about the same reason.
    """

    def __init__(self, denials: bool = False, interval_s: float = INTERVAL_S) -> None:
        self.refusals = Refusals(_refusal_log, "router", interval_s)
        self._filter = f"{_LINKS}={'trace' if denials else 'info'}"
        self._thread: threading.Thread | None = None
        self._saved = -1
        self._stdout: TextIO | None = None
        self._parser = _LogParser(self.refusals)

    def __enter__(self) -> RouterLog:
        import zenoh

        if "RUST_LOG" in os.environ:  # the user wants to see the lines themselves
            zenoh.try_init_log_from_env()  # type: ignore[no-untyped-call]
            return self
        sys.stdout.flush()
        read_end, write_end = os.pipe()
        with suppress(OSError, AttributeError):  # as far as the system allows
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._saved = os.dup(1)
        os.dup2(write_end, 1)
        os.close(write_end)
        self._stdout, sys.stdout = sys.stdout, os.fdopen(os.dup(self._saved), "w", buffering=1, encoding="utf-8")
        zenoh.init_log_from_env_or(self._filter)
        self._thread = threading.Thread(target=self._read, args=(read_end,), name="neuraxis router log", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None or self._stdout is None:
            return
        sys.stdout.close()
        sys.stdout = self._stdout
        os.dup2(self._saved, 1)  # closes the only write end of the pipe, which ends the reader
        os.close(self._saved)
        self._thread.join(1.0)
        self.refusals.close()

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            rest = b""
            while chunk := pipe.read(_CHUNK):
                lines, newline, tail = (rest + chunk).rpartition(b"\n")
                rest = tail[-_CHUNK:]
                if newline:
                    try:
                        self._parser.parse(lines)
                    except Exception:  # the format of another version of Zenoh: the router continues
                        _refusal_log.debug("router: a log line of Zenoh cannot be parsed", exc_info=True)


class _LogParser:
    """Finds refusals among Zenoh's log lines."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._accepted: deque[str] = deque(maxlen=8)  # common names of the last certificates
        self._names: dict[str, str] = {}  # by session
        self._to_skip: dict[str, int] = {}  # by thread

    def parse(self, lines: bytes) -> None:
        """Parse whole lines. Most report allowed messages, and are skipped without a regular expression."""
        for line in lines.split(b"\n"):
            if b"TRACE" in line and b"is unauthorized to" not in line and b"caching permissions" not in line:
                if b"is authorized to" in line and b"Using cached" not in line and self._to_skip:
                    self._is_precomputed(_LINE.match(_COLOURS.sub("", line.decode("utf-8", "replace"))))
                continue
            found = _LINE.match(_COLOURS.sub("", line.decode("utf-8", "replace")))
            if found is not None:
                self._handle(found)

    def _is_precomputed(self, found: re.Match[str] | None) -> bool:
        """Return True, and count the line down, if it reports a precomputed decision."""
        left = 0 if found is None else self._to_skip.pop(found["thread"], 0)
        if found is not None and left > 1:
            self._to_skip[found["thread"]] = left - 1
        return left > 0

    def _handle(self, found: re.Match[str]) -> None:
        text, thread = found["text"], found["thread"]
        if found["level"] == "TRACE":
            if "caching permissions" in text:
                self._to_skip[thread] = _CACHED
            elif text.startswith("Using cached") or not self._is_precomputed(found):
                self._handle_denial(text)
        elif accepted := _ACCEPTED.match(text):
            self._accepted.append(accepted["name"])
        elif _NO_RULE.match(text):
            # Zenoh does not name the certificate, and several clients may connect at the same moment.
            names = ", ".join(sorted(set(self._accepted)))
            self._refusals.add("a certificate without access rules, or a revoked one", f"last connections: {names}")
        elif found["level"] in ("WARN", "ERROR"):
            text = text.partition(". Hint: increase the system open file limit")[0]
            link = found["target"].startswith(("zenoh_link_tls", "zenoh_link_quic"))
            self._refusals.add("a TLS connection" if link else f"Zenoh reports ({found['target']})", text)

    def _handle_denial(self, text: str) -> None:
        denied = _DENIED.match(text)
        if denied is None:
            return
        if denied["name"]:
            if len(self._names) >= _MAX_SESSIONS:
                self._names.clear()
            self._names[denied["session"]] = denied["name"]
        name = self._names.get(denied["session"], denied["session"])
        self._refusals.add(
            f"a message that the access rules deny to {name!r}", f"{denied['action']} on {denied['key']}"
        )


class Router:
    """A Zenoh router that runs in this process until it is closed. A context manager.

    Parameters
    ----------
    listen : sequence of str, optional
        Endpoints for clients and other routers; port 0 selects a free port. By default on this machine only.
    connect : sequence of str
        Endpoints of other routers, which may start later and restart.
    tls : Tls, optional
        Certificates; required for addresses beyond this machine, unless `insecure`.
    insecure : bool
        Accept addresses beyond this machine without TLS.
    acl : path, optional
        File of access rules; `neuraxis mesh acl` writes it.
    zenoh_config : path, optional
        A native Zenoh configuration (JSON5), used unchanged instead of all other options.
    revoked : path, optional
        List of revoked certificates, which need not exist yet; `neuraxis mesh keys revoke` writes it. It needs `acl`,
        because access rules refuse the certificates. A revoked certificate stays revoked until the router is closed,
        whatever becomes of the list.

    Raises
    ------
    InvalidArgument
        An address is invalid, or beyond this machine without TLS.
    MeshError
        The router cannot listen there, or a file cannot be read.

    Examples
    --------
    >>> with Router(["tcp/127.0.0.1:0"]) as router:
    ...     router.is_open
    True
    """

    def __init__(
        self,
        listen: Sequence[str] | None = None,
        connect: Sequence[str] = (),
        tls: Tls | None = None,
        insecure: bool = False,
        acl: str | Path | None = None,
        zenoh_config: str | Path | None = None,
        *,
        revoked: str | Path | None = None,
    ) -> None:
        self._session: Any = None
        self._topology: Topology | None = None
        acl, revoked, zenoh_config = (
            None if one is None else path_of(one, name)
            for one, name in ((acl, "acl"), (revoked, "revoked"), (zenoh_config, "zenoh_config"))
        )
        self._rules = _Rules(acl, revoked)
        if zenoh_config is not None:
            if listen or connect or tls is not None or insecure or acl is not None or revoked is not None:
                raise InvalidArgument(
                    f"zenoh_config={str(zenoh_config)!r}: cannot be combined with other options. Set them in that file"
                )
            self.endpoints = _endpoints_of(Path(zenoh_config))
            self._session = open_session(Topology("router", zenoh_config=Path(zenoh_config)), _MESH)
            return
        _check_list(listen, "listen")
        _check_list(connect, "connect")
        if acl is not None and tls is None:
            raise InvalidArgument(
                "acl: access rules identify nodes by their certificates. Pass the keys as well (--tls FOLDER)"
            )
        wanted = (DEFAULT_LISTEN,) if listen is None else tuple(listen)
        if not wanted:
            raise InvalidArgument("listen: an address is expected, such as tcp/127.0.0.1:7447")
        topology = Topology("router", tuple(connect), wanted, tls, insecure)
        self._rules.read()
        try:
            self._session, self.endpoints = _open(replace(topology, acl=self._rules.file()))
        finally:
            self._rules.remove_file()
        self._topology = replace(topology, listen=self.endpoints)

    endpoints: tuple[str, ...]
    """The endpoints on which it listens, with the selected port in place of 0."""

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self._session is not None

    def peer_count(self) -> int:
        """Return the number of connected routers, clients and peers."""
        if self._session is None:
            return 0
        return len({str(link.zid) for link in self._session.info.links()})

    def reload(self) -> bool:
        """Read the access rules and the list of revoked certificates again, and enforce them if they have changed.

        Zenoh reads rules when a session is opened. So the router restarts at the same addresses, which disconnects all
        clients for a moment; nodes reconnect automatically.

        Returns
        -------
        bool
            True if anything had changed.

        Raises
        ------
        InvalidArgument, MeshError
            A file cannot be read, and the router keeps its present rules. Or its addresses are taken.
        """
        if self._session is None or self._topology is None or not self._rules.read():
            return False
        self._session.close()
        self._session = None
        try:
            topology = replace(self._topology, acl=self._rules.file())
            deadline = time.monotonic() + _RELOAD_S
            while self._session is None:
                try:
                    self._session, _ = _open(topology)
                except MeshError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        finally:
            self._rules.remove_file()
        return True

    def close(self) -> None:
        """Stop the router and disconnect all clients; idempotent."""
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


class _Rules:
    """The access rules that a router enforces: those of a file, without revoked certificates."""

    def __init__(self, acl: str | Path | None, revoked: str | Path | None) -> None:
        self._acl = None if acl is None else Path(acl)
        self._revoked = None if revoked is None else Path(revoked)
        self._read: tuple[str, frozenset[str]] | None = None
        self._refusals = Refusals(_log, "router")
        self._rules: dict[str, Any] = {}
        self._file: Path | None = None

    def read(self) -> bool:
        """Read the files; return True if they have changed."""
        if self._revoked is None and self._acl is None:
            return False
        revoked = frozenset() if self._revoked is None else read_revoked(self._revoked)
        before = frozenset() if self._read is None else self._read[1]
        if before - revoked:
            # A missing or shorter file is more likely being copied than intended.
            self._refusals.add(
                "a list of revoked certificates that lacks earlier entries; they stay revoked until the router is "
                "restarted",
                f"{self._revoked}: {', '.join(sorted(before - revoked))}",
            )
            revoked |= before
        if self._acl is None:
            if revoked:
                raise InvalidArgument(
                    f"{self._revoked}: access rules refuse revoked certificates, and there are none. Pass --acl FILE"
                )
            return False
        try:
            read = (self._acl.read_text(encoding="utf-8"), revoked)
        except (OSError, UnicodeDecodeError) as error:
            raise MeshError(f"{self._acl}: the access rules cannot be read: {error}") from None
        if read == self._read:
            return False
        self._rules = without_revoked(read_acl(self._acl), revoked)
        self._read = read
        return True

    def file(self) -> Path | None:
        """Write the rules to a temporary file that only this user can change; return its path."""
        if self._acl is None:
            return None
        descriptor, path = tempfile.mkstemp(prefix="neuraxis-acl-", suffix=".json")
        self._file = Path(path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"access_control": self._rules}, file)
        return self._file

    def remove_file(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None


def _open(topology: Topology) -> tuple[Any, tuple[str, ...]]:
    # Zenoh does not report the port that it got for port 0, so a free one is selected here.
    for left in reversed(range(_TRIES)):
        try:
            endpoints = tuple(with_port(endpoint) for endpoint in topology.listen)
        except OSError as error:
            where = ", ".join(topology.listen)
            raise MeshError(f"a router cannot listen at {where}: {error.strerror or error}") from None
        try:
            return open_session(replace(topology, listen=endpoints), _MESH), endpoints
        except MeshError as error:
            taken = "in use" in str(error)
            if taken and left and endpoints != topology.listen:
                continue
            where = ", ".join(endpoints)
            reason = "the address is in use. Is another router running there?" if taken else str(error)
            raise MeshError(f"a router cannot listen at {where}: {reason}") from None
    raise AssertionError("unreachable")


def _endpoints_of(path: Path) -> tuple[str, ...]:
    """Return the endpoints of a native configuration, which must have the mode "router"."""
    import zenoh

    try:
        config = zenoh.Config.from_file(str(path))
        mode, listen = json.loads(config.get_json("mode")), json.loads(config.get_json("listen/endpoints"))
    except zenoh.ZError as error:
        raise MeshError(f"{path}: Zenoh cannot read it: {str(error).split(' at /')[0]}") from None
    if mode != "router":
        raise MeshError(f'{path}: its mode is {mode or "missing"}. Set mode: "router"')
    if isinstance(listen, dict):
        listen = listen.get("router")
    if listen is None:
        listen = ["tcp/[::]:7447"]  # Zenoh's own default
    return tuple(str(endpoint) for endpoint in listen)


def _check_list(endpoints: object, what: str) -> None:
    if endpoints is not None and not isinstance(endpoints, list | tuple):
        kind = InvalidArgument if isinstance(endpoints, str) else InvalidType
        raise kind(f"{what}={endpoints!r}: a list of addresses is expected")
