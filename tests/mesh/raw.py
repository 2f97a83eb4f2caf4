"""Zenoh as a stranger uses it: sessions without our code, and how tests wait for what they see."""

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
    """Wait until a condition holds; what it gave."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.005)
    return found


def warm() -> None:
    """Let Zenoh open what it keeps for the life of a process, so that no test is blamed for it."""
    with Router(["tcp/127.0.0.1:0"]) as router, session(router.endpoints):
        pass


@contextmanager
def session(
    connect: Sequence[str],
    *,
    mode: str = "client",
    authority: Path | None = None,
    keys: tuple[Path, str] | None = None,
    patience_ms: int = 3000,
) -> Iterator[Any]:
    """A session; `keys` are the folder and the name of its certificate, `authority` whom it believes."""
    tls: dict[str, Any] = {}
    if authority is not None:
        tls["root_ca_certificate"] = str(authority)
    if keys is not None:
        folder, role = keys
        tls |= {"connect_certificate": str(folder / f"{role}.pem"), "connect_private_key": str(folder / f"{role}.key")}
        tls["enable_mtls"] = True
    config = {
        "mode": mode,
        "connect": {"endpoints": list(connect), "timeout_ms": patience_ms, "exit_on_failure": True},
        "listen": {"endpoints": []},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {"link": {"tls": tls}, "shared_memory": {"enabled": False}},
    }
    opened = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    try:
        yield opened
    finally:
        opened.close()


class Ear:
    """All that came from others on a key expression, as (key, text)."""

    def __init__(self, session: Any, expression: str) -> None:
        channel = zenoh.handlers.FifoChannel(1000)
        self._subscriber = session.declare_subscriber(expression, channel, allowed_origin=zenoh.Locality.REMOTE)
        self._heard: list[tuple[str, str]] = []

    @property
    def heard(self) -> list[tuple[str, str]]:
        while (sample := self._subscriber.try_recv()) is not None:
            self._heard.append((str(sample.key_expr), bytes(sample.payload).decode()))
        return self._heard

    def wait(self, text: str) -> list[tuple[str, str]]:
        """All that was heard when a text comes."""
        until(lambda: any(one == text for _, one in self.heard), f"to hear {text!r}; heard {self._heard}")
        return self.heard


def say_until_heard(publisher: Any, ear: Ear, text: str) -> None:
    """Say it again until it arrives: routers that have just met know of each other's subscribers before their ways."""

    def once() -> bool:
        publisher.put(text)
        return any(one == text for _, one in ear.heard)

    until(once, f"{text!r} to be heard")


def fence(session: Any) -> None:
    """Return when the router has handled all that a session has sent, whatever became of it.

    A question that nobody may answer is ended by the router, after everything that came before it on the same link.
    """
    for _ in session.get("neuraxis/nowhere", timeout=LIMIT_S):
        pass


@contextmanager
def router_process(*words: str) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """`neuraxis router` in a process of its own, and where it listens."""
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
