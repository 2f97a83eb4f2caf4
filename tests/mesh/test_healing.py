"""Reconnection: links are cut, processes stopped and killed, and the surviving nodes find each other again.

The nodes run on a host of their own (a network namespace), so that `ss -K` can cut their TCP links one by one. All
schedules run against the same processes, one after the other. After each, within `HEAL_S` and without a newcomer, every
live node must see exactly the other live nodes and hear new messages of each.
"""

from __future__ import annotations

import itertools
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from neuraxis.mesh import Topology
from neuraxis.mesh.topology import seed_ports
from tests.mesh.conftest import Child
from tests.mesh.namespaces import bridged_hosts, lone_host
from tests.mesh.raw import until

pytestmark = pytest.mark.alone

HEAL_S = 5.0
START_S = 60.0
NAMES = ("n0", "n1", "n2", "n3", "n4")
SEED = 17

# It publishes at 50 Hz, and reports when it sees exactly the expected nodes and has received ten messages of each.
NODE = """
name, reached_by = arguments
heard = {}
def hear_beat(message):
    heard[message.node] = heard.get(message.node, 0) + 1
def beat():
    while not ended.wait(0.02):
        node.publish("beat", 1)
def see(wanted, limit_s):
    heard.clear()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        seen = sorted(peer.name for peer in node.peers(ask=False))
        if seen == wanted and all(heard.get(one, 0) >= 10 for one in wanted):
            return None
        time.sleep(0.01)
    return [name, "sees", seen, "and heard", dict(heard), "alone" if node.alone else ""]
ended = threading.Event()
with Node(name, mesh=mesh, topology=Topology.from_data(reached_by)) as node:
    node.subscribe("*/beat", hear_beat)
    thread = threading.Thread(target=beat)
    thread.start()
    send("ready")
    while (order := receive()) is not None:
        send(node.alone if order == "alone?" else see(*order))
    ended.set()
    thread.join()
"""

Pair = frozenset[str]


class Mesh:
    """Node processes on one host, and the faults that can happen to them."""

    def __init__(self, host: Sequence[str], mesh: str, names: Sequence[str], topology: Topology | None = None) -> None:
        self.host = host
        self.mesh = mesh
        self.topology = topology or Topology.local()
        self.nodes: dict[str, Child] = {}
        self.healed_s: list[float] = []
        for name in names:
            self.start(name)

    def start(self, name: str, host: Sequence[str] | None = None) -> None:
        arguments = [name, self.topology.as_data()]
        self.nodes[name] = Child(self.mesh, NODE, arguments, prefix=host or self.host)
        assert self.nodes[name].receive(START_S) == "ready"

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def stop(self, name: str) -> None:
        """Stop a process, until the others do not see it any more."""
        self.nodes[name].stop()
        assert self.look([one for one in self.nodes if one != name], HEAL_S) == []

    def close(self) -> None:
        for one in self.nodes.values():
            one.resume()
            one.kill()

    def run(self, *words: str) -> str:
        return subprocess.run([*self.host, *words], check=True, capture_output=True, text=True, timeout=10).stdout

    def seed_holder(self) -> str:
        """Return the node that listens on a seed port; any node if none does."""
        by_pid = {child.process.pid: name for name, child in self.nodes.items()}
        for line in self.run("ss", "-ltnpH").splitlines():
            port, pid = int(line.split()[3].rpartition(":")[2]), re.search(r"pid=(\d+)", line)
            if port in seed_ports(self.mesh) and pid is not None and int(pid.group(1)) in by_pid:
                return by_pid[int(pid.group(1))]
        return next(iter(self.nodes))

    def links(self) -> dict[Pair, list[tuple[str, str]]]:
        """The TCP connections between nodes, as (port, port), by the names of both."""
        by_pid = {child.process.pid: name for name, child in self.nodes.items()}
        owner: dict[tuple[str, str], str] = {}
        for line in self.run("ss", "-tnpH", "state", "established").splitlines():
            words, pid = line.split(), re.search(r"pid=(\d+)", line)
            if pid is not None and int(pid.group(1)) in by_pid:
                ends = words[2].rpartition(":")[2], words[3].rpartition(":")[2]
                owner[ends] = by_pid[int(pid.group(1))]
        found: dict[Pair, list[tuple[str, str]]] = {}
        for (near, far), name in owner.items():
            other = owner.get((far, near))
            if other is not None and other != name:
                found.setdefault(frozenset((name, other)), []).append((near, far))
        return found

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Cut all TCP links between these pairs."""
        links = self.links()
        ends = [f"( sport = :{near} and dport = :{far} )" for pair in pairs for near, far in links.get(pair, [])]
        if not ends:  # the links that were there when the schedule was drawn are down already
            return
        self.run("ss", "-K", *" or ".join(ends).split())
        left = set(itertools.chain.from_iterable(self.links().values()))
        assert not any(f"( sport = :{near} and dport = :{far} )" in ends for near, far in left), "ss cannot cut links"

    def look(self, names: Sequence[str], limit_s: float) -> list[object]:
        """Return an error for each node that does not see exactly the others within a time."""
        for name in names:
            self.nodes[name].send([sorted(set(names) - {name}), limit_s])
        return [reported for name in names if (reported := self.nodes[name].receive(limit_s + 10)) is not None]

    def heal(self, fault: str) -> None:
        """Assert that all nodes see each other and receive messages soon after a fault."""
        begun = time.monotonic()
        if self.topology.mode == "local":
            wanted = {frozenset(pair) for pair in itertools.combinations(self.nodes, 2)}
            until(lambda: self.links().keys() >= wanted, f"all links after {fault}", HEAL_S)
        wrong = self.look(list(self.nodes), HEAL_S - (time.monotonic() - begun))
        assert wrong == [], f"{len(self.healed_s)} schedules went well, then {fault}: {wrong}"
        self.healed_s.append(time.monotonic() - begun)


@pytest.fixture(scope="module")
def host() -> Iterator[list[str]]:
    with lone_host() as found:
        yield found


@pytest.fixture(scope="module")
def peers(host: list[str]) -> Iterator[Mesh]:
    with ExitStack() as stack:
        mesh = Mesh(host, "heals", NAMES)
        stack.callback(mesh.close)
        mesh.heal("the start")
        yield mesh
        times = sorted(mesh.healed_s)
        print(
            f"{len(times)} schedules; healed after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s at most"
        )


def pairs_of(names: Iterable[str]) -> list[Pair]:
    return [frozenset(pair) for pair in itertools.combinations(sorted(names), 2)]


def test_every_single_link_is_cut(peers: Mesh) -> None:
    """10 schedules."""
    for pair in pairs_of(peers.nodes):
        peers.cut([pair])
        peers.heal(f"a cut between {sorted(pair)}")


def test_every_pair_of_links_is_cut(peers: Mesh) -> None:
    """45 schedules."""
    for two in itertools.combinations(pairs_of(peers.nodes), 2):
        peers.cut(two)
        peers.heal(f"cuts of {[sorted(pair) for pair in two]}")


def test_a_node_is_cut_off_and_a_process_is_stopped(peers: Mesh) -> None:
    """11 schedules: all links of each node at once, each process stopped, and everything cut."""
    for name in NAMES:
        peers.cut(pair for pair in pairs_of(peers.nodes) if name in pair)
        peers.heal(f"all links of {name} were cut")
        peers.stop(name)
        peers.nodes[name].resume()
        peers.heal(f"{name} was stopped and went on")
    peers.cut(pairs_of(peers.nodes))
    peers.heal("all links were cut")


def test_the_seed_holder_is_killed(host: list[str]) -> None:
    """10 schedules: the holder is killed and another fault follows; the rest heals before a newcomer comes."""
    peers = Mesh(host, "seeds", NAMES)
    with ExitStack() as stack:
        stack.callback(peers.close)
        peers.heal("the start")
        kill_seed_holders(peers, random.Random(SEED))


def kill_seed_holders(peers: Mesh, draw: random.Random) -> None:
    for number in range(10):
        holder = peers.seed_holder()
        peers.kill(holder)
        other = draw.choice(sorted(peers.nodes))
        if number % 2:
            peers.stop(other)
            peers.nodes[other].resume()
            fault = f"{other} was stopped"
        else:
            cut = draw.sample(pairs_of(peers.nodes), draw.choice((1, 2, 6)))
            peers.cut(cut)
            fault = f"cuts of {[sorted(pair) for pair in cut]}"
        peers.heal(f"{holder}, which held the seed port, was killed and {fault}")
        peers.start(holder)
        assert peers.look(list(peers.nodes), HEAL_S) == []


def test_random_faults(peers: Mesh) -> None:
    """24 schedules of several faults, some while others heal."""
    draw = random.Random(SEED)
    for _ in range(24):
        faults = []
        stopped = draw.sample(sorted(peers.nodes), draw.choice((0, 1, 1, 2)))
        for name in stopped:
            peers.nodes[name].stop()
        for _ in range(draw.choice((1, 2, 3))):
            linked = sorted(peers.links(), key=sorted)
            cut = draw.sample(linked, min(len(linked), draw.choice((1, 2, 4))))
            peers.cut(cut)
            faults.append(f"cuts of {[sorted(pair) for pair in cut]}")
            time.sleep(draw.choice((0.0, 0.3, 0.8)))  # part of the schedule: the next fault occurs during the repair
        for name in stopped:
            peers.nodes[name].resume()
        peers.heal(f"{stopped} were stopped, {', '.join(faults)}")


# --- other topologies ---


def test_peers_on_three_hosts_find_each_other_again_after_a_cable_was_pulled() -> None:
    """3 schedules: the cable of each host is pulled, until the other two do not see it, and plugged in again."""
    with bridged_hosts(NAMES[:3]) as hosts, ExitStack() as stack:
        first = f"tcp/{hosts.addresses['n0']}:7447"
        mesh = Mesh((), "cables", (), Topology("peer", (first,), ("tcp/0.0.0.0:7447",), insecure=True))
        stack.callback(mesh.close)
        for name in NAMES[:3]:
            mesh.start(name, hosts.on(name))
        mesh.heal("the start")
        for name in NAMES[:3]:
            hosts.cut(name)
            assert mesh.look([one for one in mesh.nodes if one != name], HEAL_S) == []
            hosts.mend(name)
            mesh.heal(f"the cable of {name} was pulled")


def test_clients_find_each_other_again_through_their_router(host: list[str]) -> None:
    """12 schedules: links to the router cut, the router stopped, killed and started again."""
    endpoint = "tcp/127.0.0.1:7447"
    with ExitStack() as stack:

        def start_router() -> subprocess.Popen[str]:
            command = [*host, sys.executable, "-m", "neuraxis", "router", "--listen", endpoint, "--json"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            stack.callback(lambda: (process.kill(), process.communicate()))
            assert process.stdout is not None
            assert process.stdout.readline()
            return process

        router = start_router()
        mesh = Mesh(host, "routed", NAMES[:3], Topology("client", (endpoint,)))
        stack.callback(mesh.close)
        mesh.heal("the start")
        for number in range(12):
            if number % 4 == 0:
                mesh.run("ss", "-K", "dport", "=", ":7447")
                mesh.heal("all links to the router were cut")
            elif number % 4 == 1:
                ends = [line.split()[2] for line in mesh.run("ss", "-tnH", "state", "established").splitlines()]
                port = next(end.rpartition(":")[2] for end in sorted(ends) if not end.endswith(":7447"))
                mesh.run("ss", "-K", "sport", "=", f":{port}")
                mesh.heal("one link to the router was cut")
            elif number % 4 == 2:
                router.send_signal(signal.SIGSTOP)
                until(lambda: all(is_alone(one) for one in mesh.nodes.values()), "them to say that they are alone")
                router.send_signal(signal.SIGCONT)
                mesh.heal("the router was stopped")
            else:
                router.kill()
                router.wait()
                until(lambda: all(is_alone(one) for one in mesh.nodes.values()), "them to say that they are alone")
                router = start_router()
                mesh.heal("the router was started again")
            assert not any(is_alone(one) for one in mesh.nodes.values())


def is_alone(child: Child) -> bool:
    child.send("alone?")
    return bool(child.receive())
