"""Regions on several hosts, each a network namespace: delays, losses, cut cables, and routers that die."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from neuraxis.brain import Brain, write_spec
from neuraxis.mesh import Tls, Topology
from neuraxis.mesh.certificates import init_keys
from tests.mesh.namespaces import Hosts, bridged_hosts, netem_hosts, relayed_hosts
from tests.simulation.mesh.hosts_driver import MESH, REGIONS, play, round_brain

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
        return [play(brain, piece, PIECE_MS)["fingerprint"] for piece in range(3)]


class Host:
    """A process on a host that says lines of JSON."""

    def __init__(self, hosts: Hosts, name: str, *words: str) -> None:
        self.name = name
        self._rest = b""
        self.process = subprocess.Popen(
            [*hosts.on(name), sys.executable, "-m", *words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, word: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def receive(self, prefix: str = "") -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{self.name} sent nothing in time"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"{self.name} has ended, with {self.process.wait(LIMIT_S)}"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line.decode().removeprefix(prefix))

    def leave(self) -> Any:
        """Make the node leave; return its last report."""
        self.process.terminate()
        report = self.receive()
        assert self.process.wait(LIMIT_S) == 0, self.name
        return report

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Scene:
    """A brain of three regions and its driver, on a host each, and the routers that are started first."""

    def __init__(self, hosts: Hosts, brain_file: Path, silence_timeout: float, keys: Path | None = None) -> None:
        self.hosts = hosts
        self._file = brain_file
        self._silence_timeout = silence_timeout
        self._keys = keys
        self._stack = ExitStack()
        self.routers: dict[str, Host] = {}

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start_router(self, name: str, *others: str) -> None:
        words = ["--listen", self._endpoint(name), *(["--acl", str(self._keys / "acl.json5")] if self._keys else [])]
        for other in others:
            words += ["--connect", self._endpoint(other)]
        self.routers[name] = self._start(name, "neuraxis", "router", "--json", *words, *self._trust)
        assert self.routers[name].receive()["endpoints"] == [self._endpoint(name)]

    def start_brain(self) -> None:
        """Start the regions and the driver, as clients of the routers."""
        routers = [self._endpoint(name) for name in self.routers]
        words = ["--clock", "lockstep", "--json", "--mesh-name", MESH, "--silence-timeout", str(self._silence_timeout)]
        for router in routers:
            words += ["--connect", router]
        self.nodes = {
            name: self._start(name, "neuraxis", "node", str(self._file), "--region", name, *words, *self._trust)
            for name in REGIONS
        }
        tls = None if self._keys is None else Tls.from_folder(self._keys, "driver")
        topology = Topology("client", connect=tuple(routers), tls=tls, insecure=True, connect_timeout=30.0)
        options = json.dumps({"topology": topology.as_data(), "silence_timeout": self._silence_timeout})
        self.driver = self._start("driver", "tests.simulation.mesh.hosts_driver", options)

    def play(self, meanwhile: Callable[[], None] = lambda: None, time_ms: float = PIECE_MS) -> dict[str, Any]:
        """Advance; call `meanwhile` while the regions run. Return the driver's report at the end."""
        self.driver.send(time_ms)
        report = self.driver.receive()
        assert "under_way" in report, report
        meanwhile()
        answer: dict[str, Any] = self.driver.receive()
        return answer

    def partition(self, name: str) -> None:
        """Cut a host off for some seconds."""
        self.hosts.cut(name)
        time.sleep(PARTITION_S)  # what is tested is a partition of that length
        self.hosts.mend(name)

    def _endpoint(self, name: str) -> str:
        return f"{'tcp' if self._keys is None else 'tls'}/{self.hosts.addresses[name]}:7447"

    @property
    def _trust(self) -> list[str]:
        return ["--insecure"] if self._keys is None else ["--tls", str(self._keys)]

    def _start(self, name: str, *words: str) -> Host:
        started = Host(self.hosts, name, *words)
        self._stack.callback(started.kill)
        return started


def silences(answer: dict[str, Any]) -> list[Any]:
    return [
        (region, other, *silence)
        for region, story in answer["stories"].items()
        for other, heard in story["upstream"].items()
        for silence in heard["silences"]
    ]


def test_lockstep_waits_for_a_new_router_and_a_cut_cable(brain_file: Path, wanted: list[str]) -> None:
    with bridged_hosts(HOSTS) as hosts, Scene(hosts, brain_file, silence_timeout=15.0) as scene:
        scene.start_router("router")
        scene.start_brain()
        assert scene.play()["fingerprint"] == wanted[0]

        def restart_router() -> None:
            scene.routers["router"].kill()
            scene.start_router("router")

        after = scene.play(restart_router)
        assert (after["fingerprint"], silences(after)) == (wanted[1], [])
        after = scene.play(lambda: scene.partition("cortex"))
        assert (after["fingerprint"], silences(after)) == (wanted[2], [])
        for name, node in scene.nodes.items():
            story = node.leave()
            assert (story["region"], story["step"]) == (name, after["step"])
            assert [one["lost"] for one in story["upstream"].values()] == [0]


def test_who_waits_less_goes_on_with_recorded_silence(brain_file: Path) -> None:
    with bridged_hosts(HOSTS) as hosts, Scene(hosts, brain_file, silence_timeout=1.0) as scene:
        scene.start_router("router")
        scene.start_brain()
        before = scene.play()
        cut = scene.play(lambda: scene.partition("cortex"))
        assert cut["step"] == 2 * before["step"]
        first = next(one[2] for one in silences(cut) if one[:2] == ("association", "cortex"))
        assert before["step"] < first <= cut["step"]
        # The cable is whole again: some pieces later so is the brain.
        for _ in range(20):
            healed = scene.play()
            # A region that is back executes older commands first, and answers questions meanwhile.
            steps = [story["step"] for story in healed["stories"].values()]
            if steps == len(REGIONS) * [healed["step"]] and all(one[3] is not None for one in silences(healed)):
                break
        assert steps == len(REGIONS) * [healed["step"]]
        assert all(one[3] is not None for one in silences(healed))
        last = next(one[3] for one in silences(healed) if one[:3] == ("association", "cortex", first))
        assert first <= last < healed["step"]
        again = scene.play()
        assert len(silences(again)) == len(silences(healed))


@pytest.mark.parametrize("rough_hosts", [netem_hosts, relayed_hosts])
def test_delays_losses_and_the_death_of_a_router_change_nothing(
    rough_hosts: Callable[..., AbstractContextManager[Hosts]], brain_file: Path, wanted: list[str], tmp_path: Path
) -> None:
    """Over TLS, with access rules that permit each region only the keys that it needs."""
    with rough_hosts(HOSTS, delay_ms=5.0, jitter_ms=2.0, loss=0.01) as hosts:
        init_keys(tmp_path, [*REGIONS, "driver"], [hosts.addresses["router"], hosts.addresses["spare"]])
        words = ["acl", str(brain_file), "--mesh-name", MESH, "--out", str(tmp_path / "acl.json5")]
        subprocess.run([sys.executable, "-m", "neuraxis", "mesh", *words], check=True, timeout=LIMIT_S)
        with Scene(hosts, brain_file, silence_timeout=15.0, keys=tmp_path) as scene:
            scene.start_router("router")
            scene.start_router("spare", "router")
            scene.start_brain()
            after = scene.play()
            assert (after["fingerprint"], silences(after)) == (wanted[0], [])
            after = scene.play(scene.routers["router"].kill)
            assert (after["fingerprint"], silences(after)) == (wanted[1], [])


def test_ranks_on_two_hosts_move_together(brain_file: Path, tmp_path: Path) -> None:
    stimulus = tmp_path / "cues.csv"
    stimulus.write_text("start_ms,stop_ms,sensor,group,value\n0,200,cue,1,1\n200,300,cue,3,1\n")
    run = ["-m", "neuraxis", "run", str(brain_file), "--stimulus", str(stimulus), "--json"]
    alone = subprocess.run([sys.executable, *run, "--sequential"], capture_output=True, check=True, timeout=LIMIT_S)
    with bridged_hosts(("router", "spare")) as hosts, ExitStack() as stack:
        ranks = []
        for number, name in enumerate(hosts.namespaces):
            words = ["-n", "1", "--nodes", "2", "--node-rank", str(number), "--master-addr", hosts.addresses["router"]]
            ranks.append(Host(hosts, name, "neuraxis", "launch", *words, *run, "--lockstep", "gloo"))
            stack.callback(ranks[-1].kill)
        assert ranks[0].receive("[rank 0] ")["fingerprint"] == json.loads(alone.stdout)["fingerprint"]
        assert [rank.process.wait(LIMIT_S) for rank in ranks] == [0, 0]
