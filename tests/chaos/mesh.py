"""The mesh under faults: nodes that are killed, stopped or cut off, and frames from strangers.

After every fault all living nodes see each other again and hear each other, without a newcomer. What each node
received of each life of another, and what it was told is missing, add up to what was sent in between.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import combinations
from typing import Any

from tests.chaos.storm import Room, Talker, scenario
from tests.ranks.stopping import resume, stop

HEAL_S = 15.0  # five on a quiet machine; this one is under load
NAMES = ("alpha", "beta", "gamma", "delta")


def main(name: str, mesh: str, router: str = "") -> None:
    """A node that publishes a counter at 100 Hz, subscribes to all others, and answers each line with its counts."""
    from neuraxis.mesh import Node, Topology

    topology = Topology.from_options([router]) if router else None
    heard: dict[str, list[int]] = {}  # sender and life → first, last, received, lost, out of order
    lock = threading.Lock()

    def hear(message: Any) -> None:
        if not message.node:
            return  # of a stranger, which numbers nothing
        with lock:
            life = heard.setdefault(f"{message.node} {message.incarnation}", [message.sequence, -1, 0, 0, 0])
            if life[1] >= 0:
                life[3] += message.lost
                life[4] += message.sequence <= life[1]
            life[1] = message.sequence
            life[2] += 1

    with Node(name, mesh=mesh, topology=topology) as node:
        node.subscribe("*/count", hear)
        ended = threading.Event()

        def count() -> None:
            number = 0
            while not ended.wait(0.01):
                node.publish("count", number)
                number += 1

        counting = threading.Thread(target=count)
        counting.start()
        print(json.dumps({"incarnation": node.incarnation}), flush=True)
        for _ in sys.stdin:
            with lock:
                seen = {key: list(value) for key, value in heard.items()}
            peers = {peer.name: peer.incarnation for peer in node.peers(ask=False)}
            print(json.dumps({"peers": peers, "heard": seen}), flush=True)
        ended.set()
        counting.join()


@scenario("mesh", isolated=True, weight=3)
def peers_under_faults(room: Room, chance: random.Random) -> None:
    mesh = _Mesh(room, "")
    for _ in range(4):
        fault = chance.choice((mesh.kill, mesh.stop, mesh.cut, mesh.cut_two, mesh.kill_the_first, mesh.attack))
        began = time.monotonic()
        fault(chance)
        mesh.check_all_hear_all()
        room.noticed(began)
    mesh.check_accounts()


@scenario("mesh", isolated=True)
def clients_under_faults(room: Room, chance: random.Random) -> None:
    endpoint = f"tcp/127.0.0.1:{chance.randint(7000, 9000)}"
    router = room.start("neuraxis", "router", "--listen", endpoint)
    mesh = _Mesh(room, endpoint)
    for _ in range(3):
        fault = chance.choice(("kill", "stop", "router", "attack"))
        began = time.monotonic()
        if fault == "router":
            room.fault("kill the router")
            router.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            router = room.start("neuraxis", "router", "--listen", endpoint)
        else:
            getattr(mesh, fault)(chance)
        mesh.check_all_hear_all()
        room.noticed(began)
    mesh.check_accounts()


class _Mesh:
    """Four nodes, the faults that can be done to them, and what must hold afterwards."""

    def __init__(self, room: Room, router: str) -> None:
        self._room = room
        self._router = router
        self._mesh = f"chaos-{os.getpid()}-{time.monotonic_ns()}"
        self._lives: dict[str, int] = {}
        self._nodes: dict[str, Talker] = {}
        for name in NAMES:
            self._join(name)
        self.check_all_hear_all()

    def _join(self, name: str) -> None:
        node = self._room.start("tests.chaos.mesh", name, self._mesh, *filter(None, (self._router,)))
        self._nodes[name] = node
        self._lives[name] = node.receive(60.0)["incarnation"]

    # --- faults ---

    def kill(self, chance: random.Random) -> None:
        self._kill(chance.choice(NAMES), chance)

    def kill_the_first(self, chance: random.Random) -> None:
        """Kill the seed node, through which the others joined."""
        self._kill(next(iter(self._nodes)), chance)

    def stop(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        self._room.fault("stop")
        stop(self._nodes[name].pid)
        time.sleep(chance.uniform(0.2, 3.0))
        resume(self._nodes[name].pid)

    def cut(self, chance: random.Random) -> None:
        self._cut(chance.sample(list(combinations(NAMES, 2)), 1))

    def cut_two(self, chance: random.Random) -> None:
        self._cut(chance.sample(list(combinations(NAMES, 2)), 2))

    def attack(self, chance: random.Random) -> None:
        """Send what no node would: random bytes, forged heads, invented nodes."""
        self._room.fault("hostile frames", 200)
        address = self._router or f"tcp/127.0.0.1:{_port(self._nodes[chance.choice(NAMES)].pid)}"
        stranger = self._room.start("tests.chaos.hostile", address, self._mesh, chance.randrange(2**32), 200)
        assert stranger.receive(60.0) == {"sent": 200}, stranger.errors()
        assert stranger.end() == 0, stranger.errors()

    def _kill(self, name: str, chance: random.Random) -> None:
        self._room.fault("kill")
        self._nodes.pop(name).kill()
        if chance.random() < 0.5:
            self.check_all_hear_all()
        self._join(name)

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            for local, remote in _links(*(self._nodes[name].pid for name in pair)):
                self._room.fault("cut")
                what = f"sport = :{local} and dport = :{remote}"
                subprocess.run(["ss", "-K", what], capture_output=True, timeout=20, check=True)

    # --- what must hold ---

    def check_all_hear_all(self) -> None:
        names = list(self._nodes)
        expected = {name: self._lives[name] for name in names}
        before = {name: self._look(name)["heard"] for name in names}

        def hears(name: str, other: str, seen: dict[str, Any]) -> bool:
            life = f"{other} {self._lives[other]}"
            return life in seen and seen[life][2] > before[name].get(life, [0, 0, 0])[2] + 5

        def whole() -> bool:
            self._looks = {name: self._look(name) for name in names}
            return all(
                look["peers"] == {other: life for other, life in expected.items() if other != name}
                and all(hears(name, other, look["heard"]) for other in names if other != name)
                for name, look in self._looks.items()
            )

        try:
            self._room.until(whole, "all nodes see and hear each other", HEAL_S)
        except AssertionError as error:
            raise AssertionError(f"expected {expected}, saw {json.dumps(self._looks, indent=1)}\n{error}") from None

    def check_accounts(self) -> None:
        for name in self._nodes:
            for life, (first, last, received, lost, out_of_order) in self._look(name)["heard"].items():
                story = f"{name} heard of {life}: {first}..{last}, {received} received, {lost} lost"
                assert out_of_order == 0, story
                assert received + lost == last - first + 1, story

    def _look(self, name: str) -> Any:
        return self._nodes[name].ask("look", 30.0)


def _links(a: int, b: int) -> list[tuple[int, int]]:
    """Return the TCP connections between two processes, as local and remote ports seen from the first."""
    ports: dict[int, set[tuple[int, int]]] = {a: set(), b: set()}
    listed = subprocess.run(["ss", "-Htnp", "state", "established"], capture_output=True, text=True, timeout=20).stdout
    for line in listed.splitlines():
        for pid in (a, b):
            if f"pid={pid}," in line:
                local, remote = re.findall(r":(\d+)\s", line)[:2]
                ports[pid].add((int(local), int(remote)))
    return sorted(pair for pair in ports[a] if pair[::-1] in ports[b])


def _port(pid: int) -> int:
    """Return a port on which a process listens."""
    listed = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, timeout=20).stdout
    for line in listed.splitlines():
        if f"pid={pid}," in line and (found := re.search(r"127\.0\.0\.1:(\d+)", line)):
            return int(found[1])
    raise AssertionError(f"process {pid} listens nowhere:\n{listed}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(*sys.argv[1:])
