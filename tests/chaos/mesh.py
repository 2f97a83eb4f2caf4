"""The mesh under faults: nodes that are killed, stopped or cut off, and frames from strangers.

After every fault all living nodes see each other again, hear each other and answer each other, without a newcomer. What
each node received of each life of another, and what it was told is missing, add up to what was sent in between. After
an attack the nodes' own counters show that its frames have reached them and were refused.
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
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import psutil

from neuraxis.mesh.counts import Counts
from tests.chaos import hostile
from tests.chaos.storm import Room, Talker, scenario
from tests.ranks.processes import free_port
from tests.ranks.stopping import resume, stop

HEAL_S = 5.0  # as documented: rounds run one at a time, so no other load comes from the storm itself
NAMES = ("alpha", "beta", "gamma", "delta")
HOSTILE_FRAMES = 200  # in one attack


def main(name: str, mesh: str, router: str = "") -> None:
    """A node that publishes a counter at 100 Hz and serves an echo. It answers each line with what it has counted."""
    from neuraxis.errors import MeshError
    from neuraxis.mesh import Node, Topology

    topology = Topology.from_options([router]) if router else None
    heard: dict[str, _Life] = {}  # by sender and incarnation
    lock = threading.Lock()

    def hear(message: Any) -> None:
        if message.node:  # strangers without an envelope number nothing
            with lock:
                heard.setdefault(f"{message.node} {message.incarnation}", _Life()).add(message)

    with Node(name, mesh=mesh, topology=topology) as node:
        node.subscribe(f"*/{hostile.TOPIC}", hear)
        service = node.serve(hostile.SERVICE, lambda message: message.value)
        ended = threading.Event()

        def count() -> None:
            number = 0
            while not ended.wait(0.01):
                node.publish(hostile.TOPIC, number)
                number += 1

        def echoes() -> dict[str, str]:
            """Send a request to every other node; return the errors by name."""
            wrong = {}
            for peer in node.peers(ask=False):
                try:
                    if node.request(peer.name, hostile.SERVICE, name, timeout=1.0) != name:
                        wrong[peer.name] = "another answer"
                except MeshError as error:
                    wrong[peer.name] = repr(error)
            return wrong

        counting = threading.Thread(target=count)
        counting.start()
        print(json.dumps({"incarnation": node.incarnation}), flush=True)
        for line in sys.stdin:
            with lock:
                seen = {key: life.as_data() for key, life in heard.items()}
            answer: dict[str, Any] = {"peers": {peer.name: peer.incarnation for peer in node.peers(ask=False)}}
            if line.strip() == "echoes":
                answer["wrong"] = echoes()
            elif line.strip() == "refused":
                answer["refused"] = _refused(node, service)
            else:
                answer["heard"] = seen
            print(json.dumps(answer), flush=True)
        ended.set()
        counting.join()


class _Life:
    """What a node has heard of one life of another, in which every message's value is its number.

    Messages with other values are forged. A stranger that sends in the name of a node uses up numbers of it, so the
    numbers of such a life arrive out of order; none may be delivered twice, and none may be missing without account.
    """

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.lost = self.repeated = self.out_of_order = self.forged = 0

    def add(self, message: Any) -> None:
        number = message.sequence
        if self.numbers or self.forged:
            self.lost += message.lost
        if message.value != number:
            self.forged += 1
            return
        self.repeated += number in self.numbers
        self.out_of_order += bool(self.numbers) and number < self.last
        self.numbers.add(number)
        self.last = max(number, self.last) if len(self.numbers) > 1 else number

    def as_data(self) -> dict[str, int]:
        first, last = (min(self.numbers), max(self.numbers)) if self.numbers else (0, -1)
        return {
            "first": first, "last": last, "received": len(self.numbers), "lost": self.lost, "repeated": self.repeated,
            "out_of_order": self.out_of_order, "forged": self.forged,
        }  # fmt: skip


def _refused(node: Any, service: Any) -> dict[str, int]:
    """Return the counters of a node that a hostile frame can raise, by the names that `hostile` uses."""
    subscribed, served = sum(node.counts().values(), Counts()), service.counts()
    return {
        "subscription malformed": subscribed.malformed,
        "subscription misnumbered": subscribed.misnumbered,
        "subscription oversized": subscribed.oversized,
        "subscription repeated": subscribed.repeated,
        "subscription skewed": subscribed.skewed,
        "service malformed": served.malformed,
        "service repeated": served.repeated,
        "service refused": sum(service.refused().values()),
        "presence malformed": node._membership.malformed,
    }


@scenario("mesh", weight=2)
def peers_that_die_or_stop(room: Room, chance: random.Random) -> None:
    _strike_peers(room, chance, "kill", "stop", "kill_the_first", "attack")


@scenario("mesh", isolated=True, weight=3)
def peers_under_faults(room: Room, chance: random.Random) -> None:
    """The same with cut links, which need a network of their own."""
    _strike_peers(room, chance, "kill", "stop", "cut", "cut_two", "kill_the_first", "attack")


def _strike_peers(room: Room, chance: random.Random, *faults: str) -> None:
    mesh = _Mesh(room, "")
    for _ in range(4):
        began = time.monotonic()
        getattr(mesh, chance.choice(faults))(chance)
        mesh.check_all_hear_all()
        room.noticed(began)
    mesh.check_accounts()


@scenario("mesh")
def clients_under_faults(room: Room, chance: random.Random) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
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
        self._lives: dict[str, int] = {}  # incarnations by name
        self._genuine: set[str] = set()  # all lives that there were
        self._nodes: dict[str, Talker] = {}
        for name in NAMES:
            self._join(name)
        self.check_all_hear_all()

    def _join(self, name: str) -> None:
        node = self._room.start("tests.chaos.mesh", name, self._mesh, *filter(None, (self._router,)))
        self._nodes[name] = node
        self._lives[name] = node.receive(60.0)["incarnation"]
        self._genuine.add(f"{name} {self._lives[name]}")

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
        """Send what no node would: forged numbers, lives, clocks and nodes, damaged frames, noise."""
        address = self._router or f"tcp/127.0.0.1:{listening_port(self._nodes[chance.choice(NAMES)].pid)}"
        receivers = "subscription,service,presence,status"
        attack(self._room, chance, address, self._mesh, receivers, self._nodes)

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
        """Wait until all nodes see exactly the others, hear more of each, and get answers from each."""
        names = list(self._nodes)
        expected = {name: self._lives[name] for name in names}
        before = {name: self._look(name)["heard"] for name in names}

        def hears(name: str, other: str, seen: dict[str, Any]) -> bool:
            life = f"{other} {self._lives[other]}"
            return life in seen and seen[life]["received"] > before[name].get(life, {"received": 0})["received"] + 5

        def whole() -> bool:
            self._looks = {name: self._look(name) for name in names}
            if not all(
                look["peers"] == {other: life for other, life in expected.items() if other != name}
                and all(hears(name, other, look["heard"]) for other in names if other != name)
                for name, look in self._looks.items()
            ):
                return False
            self._looks = {name: self._nodes[name].ask("echoes", 30.0) for name in names}
            return not any(look["wrong"] for look in self._looks.values())

        try:
            self._room.until(whole, "all nodes see, hear and answer each other", HEAL_S)
        except AssertionError as error:
            raise AssertionError(f"expected {expected}, saw {json.dumps(self._looks, indent=1)}\n{error}") from None

    def check_accounts(self) -> None:
        """Check that every number of each real life was received or counted as lost, and none was received twice."""
        for name in self._nodes:
            for life, seen in self._look(name)["heard"].items():
                if life not in self._genuine or not seen["received"]:
                    continue
                story = f"{name} heard of {life}: {seen}"
                sent = seen["last"] - seen["first"] + 1
                assert seen["repeated"] == 0, story
                if seen["forged"]:  # a forged message with a number of this life counts as one of it
                    assert seen["received"] + seen["forged"] + seen["lost"] >= sent, story
                    assert seen["lost"] < 10**6 * (1 + seen["forged"]), story  # what it can make a node believe
                else:
                    assert seen["out_of_order"] == 0, story
                    assert seen["received"] + seen["lost"] == sent, story

    def _look(self, name: str) -> Any:
        return self._nodes[name].ask("look", 30.0)


def attack(
    room: Room, chance: random.Random, address: str, mesh: str, receivers: str, nodes: Mapping[str, Talker]
) -> None:
    """Let a stranger attack the nodes; check that its frames have reached them, by their counters of refused ones."""
    room.fault("attack")
    before = {name: node.ask("refused")["refused"] for name, node in nodes.items()}
    seed = chance.randrange(2**32)
    stranger = room.start("tests.chaos.hostile", address, mesh, seed, HOSTILE_FRAMES, receivers, *nodes)
    told = stranger.receive(60.0)
    assert stranger.end() == 0, stranger.errors()
    assert told["expected"], told
    room.hostile_frames += sum(told["sent"].values())
    grown: dict[str, int] = {}

    def reach(counter: str) -> int:
        """Return how many nodes receive such a frame at least: a publication all but the one in whose name it is."""
        kind = counter.partition(" ")[0]
        return {"subscription": len(nodes) - 1, "presence": len(nodes)}.get(kind, 1)

    by_node: dict[str, dict[str, int]] = {}

    def reached() -> bool:
        grown.clear()
        for name, node in nodes.items():
            now = node.ask("refused")["refused"]
            by_node[name] = {counter: value - before[name].get(counter, 0) for counter, value in now.items()}
            for counter, more in by_node[name].items():
                grown[counter] = grown.get(counter, 0) + more
        return all(grown.get(counter, 0) >= least * reach(counter) for counter, least in told["expected"].items())

    try:
        room.until(reached, "the nodes have counted the hostile frames", HEAL_S)
    except AssertionError as error:
        each = json.dumps(by_node, indent=1)
        raise AssertionError(f"of {told} the nodes have counted {grown}: {each}\n{error}") from None


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


def listening_port(pid: int) -> int:
    """Return a port of 127.0.0.1 on which a process listens."""
    for one in psutil.Process(pid).net_connections("tcp4"):
        if one.status == psutil.CONN_LISTEN and one.laddr.ip == "127.0.0.1":
            return int(one.laddr.port)
    raise AssertionError(f"process {pid} listens nowhere")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(*sys.argv[1:])
