"""Plain Zenoh sessions without neuraxis, and helpers that wait for a condition."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zenoh

from neuraxis.mesh.router import Router

LIMIT_S = 20.0


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait until a condition is true; return its value."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"timed out waiting for: {what}"
        time.sleep(0.005)
    return found


def warm() -> None:
    """Let Zenoh open the resources that it keeps until the process ends, so that the leak check ignores them."""
    with Router(["tcp/127.0.0.1:0"]) as router, session(router.endpoints):
        pass


@contextmanager
def session(
    connect: Sequence[str],
    *,
    mode: str = "client",
    authority: Path | None = None,
    keys: tuple[Path, str] | None = None,
    connect_timeout_ms: int = 3000,
) -> Iterator[Any]:
    """Open a session; `keys` are the folder and name of its certificate, `authority` the CA certificate it trusts."""
    tls: dict[str, Any] = {}
    if authority is not None:
        tls["root_ca_certificate"] = str(authority)
    if keys is not None:
        folder, role = keys
        tls |= {"connect_certificate": str(folder / f"{role}.pem"), "connect_private_key": str(folder / f"{role}.key")}
        tls["enable_mtls"] = True
    config = {
        "mode": mode,
        "connect": {"endpoints": list(connect), "timeout_ms": connect_timeout_ms, "exit_on_failure": True},
        "listen": {"endpoints": []},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {"link": {"tls": tls}, "shared_memory": {"enabled": False}},
    }
    opened = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    try:
        yield opened
    finally:
        opened.close()


class Recorder:
    """Record all messages of other sessions on a key expression, as (key, text)."""

    def __init__(self, session: Any, expression: str) -> None:
        channel = zenoh.handlers.FifoChannel(1000)
        self._subscriber = session.declare_subscriber(expression, channel, allowed_origin=zenoh.Locality.REMOTE)
        self._received: list[tuple[str, str]] = []

    @property
    def received(self) -> list[tuple[str, str]]:
        while (sample := self._subscriber.try_recv()) is not None:
            self._received.append((str(sample.key_expr), bytes(sample.payload).decode()))
        return self._received

    def wait(self, text: str) -> list[tuple[str, str]]:
        """Wait for a text; return all messages received by then."""
        until(lambda: any(one == text for _, one in self.received), f"{text!r}; received {self._received}")
        return self.received


def publish_until_received(publisher: Any, recorder: Recorder, text: str) -> None:
    """Publish a text until it arrives: routers that have just connected learn of subscribers before their routes."""

    def once() -> bool:
        publisher.put(text)
        return any(one == text for _, one in recorder.received)

    until(once, f"{text!r} to be received")


def fence(session: Any) -> None:
    """Return when the router has handled, or refused, everything that a session has sent.

    The router ends a query that has no queryable after everything that was sent before it on the same link.
    """
    for _ in session.get("neuraxis/nowhere", timeout=LIMIT_S):
        pass


@contextmanager
def router_process(*words: str) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """Run `neuraxis router` in its own process; yield its endpoints and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "neuraxis", "router", *words, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line)["endpoints"], process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
