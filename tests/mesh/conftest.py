"""What tests of the mesh share: a mesh of their own for each, nodes that are closed after it, and other processes."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from neuraxis.mesh import Node, Topology
from tests.crew.stopping import go_on, stop

LIMIT_S = 20.0
_NUMBERS = itertools.count()

_PRELUDE = """
import json, os, signal, sys, threading, time
mesh, arguments = sys.argv[1], json.loads(sys.argv[2])
def say(what): print(json.dumps(what), flush=True)
def hear(): return json.loads(sys.stdin.readline() or "null")
"""
_OURS = "from neuraxis.mesh import Node, Topology\n"


@pytest.fixture(scope="session", autouse=True)
def zenoh_is_warm() -> None:
    """Let Zenoh open what it keeps for the life of a process, so that no test is blamed for it."""
    with Node("first", mesh=f"warm-{os.getpid()}") as first, Node("second", mesh=f"warm-{os.getpid()}") as second:
        second.subscribe("first/*", print).close()
        first.publish("nothing", 0, "state")
        first.peers()


@pytest.fixture
def mesh() -> str:
    """A name that nobody else uses."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def join(mesh: str) -> Iterator[Callable[..., Node]]:
    """Opens nodes on this test's mesh, which are closed after it."""
    with ExitStack() as stack:

        def open_node(name: str, role: str = "", **options: Any) -> Node:
            return stack.enter_context(Node(name, role, **{"mesh": mesh, **options}))

        yield open_node


def settle(*nodes: Node) -> None:
    """Return when all that these nodes have declared has reached the nodes that they see.

    They ask them something: a question does not overtake a declaration.
    """
    for node in nodes:
        peers = node.peers(LIMIT_S)
        assert all(peer.topics is not None for peer in peers), peers


def meet(*nodes: Node) -> None:
    """Return when these nodes see each other, and know of each other what they have declared."""
    names = {node.name for node in nodes}
    for node in nodes:
        assert node.wait_for(names - {node.name}, LIMIT_S) == []
    settle(*nodes)


class Child:
    """A Python process that says and hears lines of JSON."""

    def __init__(self, mesh: str, script: str, arguments: Any = None, **options: Any) -> None:
        script = _PRELUDE + _OURS * ("Node(" in script) + textwrap.dedent(script)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, mesh, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,
        )
        self._rest = b""

    def said(self, limit_s: float = LIMIT_S) -> Any:
        """The next thing it says."""
        deadline = time.monotonic() + limit_s
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            assert ready, "it says nothing"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"it has ended, with {self.process.wait()}"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def tell(self, what: Any = None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        stop(self.process.pid)

    def go_on(self) -> None:
        go_on(self.process.pid)

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
    """Starts other processes on this test's mesh: `mesh`, `arguments`, `say`, `hear`, Node and Topology are there."""
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
    say("ready")
    hear()
"""


def client_of(endpoint: str, patience_s: float = 10.0) -> Topology:
    return Topology("client", connect=(endpoint,), patience_s=patience_s)
