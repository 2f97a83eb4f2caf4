"""Regions on several hosts, each a network namespace: delays, losses, cut cables, and routers that die."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from neuraxis.brain import Brain, write_spec
from neuraxis.mesh import Topology
from neuraxis.mesh.certificates import make_keys
from tests.execution.mesh.hosts_driver import MESH, REGIONS, play, round_brain
from tests.mesh.namespaces import Hosts, bridged_hosts, netem_hosts, relayed_hosts

ROOT = Path(__file__).parents[3]
HOSTS = ("router", "spare", "driver", *REGIONS)
PIECE_MS = 1000.0
LIMIT_S = 60.0
PARTITION_S = 5.0


@pytest.fixture(scope="module")
def brain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("brain") / "round.toml"
    write_spec(round_brain(), path)
    return path


@pytest.fixture(scope="module")
def wanted() -> list[str]:
    """The fingerprints after each piece, in one process."""
    with Brain(round_brain()) as brain:
        return [play(brain, piece, PIECE_MS)["fingerprint"] for piece in range(4)]


class Host:
    """A process on a host that says lines of JSON."""

    def __init__(self, hosts: Hosts, name: str, *words: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [*hosts.on(name), sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, word: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def said(self) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
        assert ready, f"{self.name} says nothing"
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended, with {self.process.wait(LIMIT_S)}"
        return json.loads(line)

    def leave(self) -> Any:
        """Tell it to leave; the last thing it says."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, self.name
        return json.loads(out)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Scene:
    """A brain of three regions and its driver, on a host each, and one or two routers."""

    def __init__(self, hosts: Hosts, brain_file: Path, patience_s: float, keys: Path | None = None) -> None:
        self.hosts = hosts
        self.patience_s = patience_s
        self._file = brain_file
        self._keys = keys
        self._stack = ExitStack()
        self.routers: dict[str, Host] = {}
        self.nodes: dict[str, Host] = {}
        self.pieces = 0

    def endpoint(self, name: str) -> str:
        return f"{'tcp' if self._keys is None else 'tls'}/{self.hosts.addresses[name]}:7447"

    def start_router(self, name: str, *others: str) -> None:
        words = ["neuraxis", "router", "--listen", self.endpoint(name), "--json", *self._trust("router")]
        for other in others:
            words += ["--connect", self.endpoint(other)]
        self.routers[name] = self._start(name, *[word for word in words if word != "--role" and word != "router:"])
        assert self.routers[name].said()["endpoints"] == [self.endpoint(name)]

    def start(self) -> None:
        """Start the regions and the driver, at the routers that there are."""
        connect = [self.endpoint(name) for name in self.routers]
        for name in REGIONS:
            words = ["neuraxis", "node", str(self._file), "--region", name, "--clock", "lockstep", "--json"]
            words += ["--mesh-name", MESH, "--patience-s", str(self.patience_s), *self._trust(name)]
            for endpoint in connect:
                words += ["--connect", endpoint]
            self.nodes[name] = self._start(name, *words)
        tls = None if self._keys is None else Tls.from_folder(self._keys, "driver")
        topology = Topology("client", connect=tuple(connect), tls=tls, insecure=self._keys is None)
        options = {"topology": topology.as_data(), "patience_s": self.patience_s}
        self.driver = self._start("driver", "tests.execution.mesh.hosts_driver", json.dumps(options))

    def play(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run a piece; `meanwhile` is done when it is under way."""
        self.driver.tell(PIECE_MS)
        said = self.driver.said()
        assert "under_way" in said, said
        meanwhile()
        self.pieces += 1
        answer: dict[str, Any] = self.driver.said()
        return answer

    def _trust(self, role: str) -> list[str]:
        return ["--insecure"] if self._keys is None else ["--tls", str(self._keys)]

    def _start(self, name: str, *words: str) -> Host:
        started = Host(self.hosts, name, *words)
        self._stack.callback(started.kill)
        return started

    def close(self) -> None:
        self._stack.close()
