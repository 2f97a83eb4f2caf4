"""A node in its own process, which a test can kill: it answers, or hangs in, requests, prompts and proposals.

`python -m tests.mesh.role_node MESH NAME ROLE answers|hangs` prints "ready", and "asked" at each request.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from agreement import vote
from prompts import Prompts

from neuraxis.mesh import Node


def main() -> None:
    mesh, name, role, behaviour = sys.argv[1:]

    def work(question: object) -> str:
        print("asked", flush=True)
        if behaviour == "hangs":
            threading.Event().wait()
        return f"{name} says"

    with Node(name, role, mesh) as node:
        node.serve("work", work)
        Prompts(node, work)
        vote(node, "move", lambda proposal: bool(work(proposal)))
        print("ready", flush=True)
        sys.stdin.read()  # until the parent closes the pipe


def warm() -> None:
    """Let Zenoh open the resources that it keeps until the process ends, so that the leak check ignores them."""
    mesh = f"warm-{uuid.uuid4().hex[:8]}"
    with Node("a", mesh=mesh) as node, Node("b", mesh=mesh):
        node.wait_for(["b"], 10.0)


@contextmanager
def role_node(mesh: str, name: str, role: str, behaviour: str) -> Iterator[subprocess.Popen[str]]:
    """Start such a process and wait until it is ready; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.mesh.role_node", mesh, name, role, behaviour],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextmanager
def killed_when_asked(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the process as soon as it prints that it was asked."""
    assert process.stdout is not None
    lines: list[str] = []

    def kill() -> None:
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        process.kill()
        thread.join()
    assert lines == ["asked\n"]


if __name__ == "__main__":
    main()
