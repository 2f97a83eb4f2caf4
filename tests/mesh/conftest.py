"""Fixtures for tests of the mesh: a separate mesh per test, nodes that are closed afterwards, and child processes."""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from neuraxis.mesh import Node, Topology
from tests.ranks.stopping import resume, stop

LIMIT_S = 20.0
_NUMBERS = itertools.count()

_PRELUDE = """
import json, os, signal, sys, threading, time
mesh, arguments = sys.argv[1], json.loads(sys.argv[2])
def send(what): print(json.dumps(what), flush=True)
def receive(): return json.loads(sys.stdin.readline() or "null")
"""
_OURS = "from neuraxis.mesh import Node, Topology\n"


@pytest.fixture(scope="session", autouse=True)
def initialized_zenoh() -> None:
    """Let Zenoh open the resources that it keeps until the process ends, so that the leak check ignores them."""
    with Node("first", mesh=f"warm-{os.getpid()}") as first, Node("second", mesh=f"warm-{os.getpid()}") as second:
        second.subscribe("first/*", print).close()
        first.publish("nothing", 0, "state")
        first.peers()


@pytest.fixture
def mesh() -> str:
    """A mesh name that no other test uses."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def join(mesh: str) -> Iterator[Callable[..., Node]]:
    """Open nodes on this test's mesh; they are closed after the test."""
    with ExitStack() as stack:

        def open_node(name: str, role: str = "", **options: Any) -> Node:
            return stack.enter_context(Node(name, role, **{"mesh": mesh, **options}))

        yield open_node


def settle(*nodes: Node) -> None:
    """Return when the declarations of these nodes have reached the nodes that they see.

    Each node sends a request: a request does not overtake a declaration.
    """
    for node in nodes:
        peers = node.peers(LIMIT_S)
        assert all(peer.topics is not None for peer in peers), peers


def meet(*nodes: Node) -> None:
    """Return when these nodes see each other and have received each other's declarations."""
    names = {node.name for node in nodes}
    for node in nodes:
        assert node.wait_for(names - {node.name}, LIMIT_S) == []
    settle(*nodes)


class Child:
    """A Python process that exchanges lines of JSON with the test over its standard streams."""

    def __init__(
        self, mesh: str, script: str, arguments: Any = None, *, prefix: Sequence[str] = (), **options: Any
    ) -> None:
        script = _PRELUDE + _OURS * ("Node(" in script) + textwrap.dedent(script)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", script, mesh, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,
        )
        self._rest = b""

    def receive(self, limit_s: float = LIMIT_S) -> Any:
        """Return the next value that the process sends."""
        deadline = time.monotonic() + limit_s
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            assert ready, "the process sent nothing in time"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"the process ended with exit status {self.process.wait()}"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def send(self, what: Any = None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        stop(self.process.pid)

    def resume(self) -> None:
        resume(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


@pytest.fixture
def child(mesh: str) -> Iterator[Callable[..., Child]]:
    """Start other processes on this test's mesh: `mesh`, `arguments`, `send`, `receive`, Node, Topology are defined."""
    made: list[Child] = []

    def start(script: str, arguments: Any = None, **options: Any) -> Child:
        made.append(Child(mesh, script, arguments, **options))
        return made[-1]

    yield start
    for one in made:
        one.kill()


ROUTER = """
import zenoh
config = {"mode": "router", "listen": {"endpoints": [arguments]}, "scouting": {"multicast": {"enabled": False}}}
with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
    send("ready")
    receive()
"""


def client_of(endpoint: str, connect_timeout: float = 10.0) -> Topology:
    return Topology("client", connect=(endpoint,), connect_timeout=connect_timeout)


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp/127.0.0.1:{server.getsockname()[1]}"
