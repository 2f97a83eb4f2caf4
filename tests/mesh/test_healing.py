"""Reconnection: links are cut, processes stopped and killed, and the surviving nodes find each other again.

The nodes run on a host of their own (a network namespace), so that `ss -K` can cut their TCP links one by one. All
schedules run against the same processes, one after the other. After each, within `HEAL_S` and without a newcomer, every
live node must see exactly the other live nodes and hear new messages of each.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from neuraxis.mesh import Topology
from neuraxis.mesh.topology import seed_ports
from tests.mesh.conftest import Child
from tests.mesh.namespaces import bridged_hosts, lone_host
from tests.mesh.raw import until
from tests.ranks.stopping import resume, stop

pytestmark = pytest.mark.alone

HEAL_S = 5.0
CUT_S = 5.0  # until no socket is left of links that are cut
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
        send({"alone?": node.alone, "renewed?": node._renewed}[order] if isinstance(order, str) else see(*order))
    ended.set()
    thread.join()
"""

Pair = frozenset[str]
Ends = tuple[str, str]  # the ports of a TCP connection, seen from one end


class Socket(NamedTuple):
    """One end of a TCP connection: the name of its process, and the number that the kernel gave the socket."""

    owner: str
    cookie: str


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

    def pids(self) -> dict[str, int]:
        """The processes to which faults can happen, by name."""
        return {name: child.process.pid for name, child in self.nodes.items()}

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

    def sockets(self) -> dict[Ends, Socket]:
        """The ends of established TCP connections that belong to one of the processes, by (port, other port)."""
        by_pid = {pid: name for name, pid in self.pids().items()}
        found: dict[Ends, Socket] = {}
        for line in self.run("ss", "-tnpeH", "state", "established").splitlines():
            words, pid, cookie = line.split(), re.search(r"pid=(\d+)", line), re.search(r" sk:(\w+)", line)
            if pid is not None and int(pid.group(1)) in by_pid:
                assert cookie is not None, line
                ends = words[2].rpartition(":")[2], words[3].rpartition(":")[2]
                found[ends] = Socket(by_pid[int(pid.group(1))], cookie.group(1))
        return found

    def links(self, sockets: dict[Ends, Socket] | None = None) -> dict[Pair, list[Ends]]:
        """The TCP connections between processes, by the names of both; each connection has two entries."""
        found: dict[Pair, list[Ends]] = {}
        sockets = sockets if sockets is not None else self.sockets()
        for (near, far), one in sockets.items():
            other = sockets.get((far, near))
            if other is not None and other.owner != one.owner:
                found.setdefault(frozenset((one.owner, other.owner)), []).append((near, far))
        return found

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Cut the TCP links that these pairs have now, until none of their sockets is left.

        The kernel numbers sockets (cookies). So a new link is not taken for one that was to be cut, even if it has the
        same ports, and a socket that one run of `ss -K` missed is cut by the next.
        """
        before = self.sockets()
        links = self.links(before)
        doomed = {ends: before[ends].cookie for pair in pairs for ends in links.get(pair, [])}
        deadline = time.monotonic() + CUT_S
        while doomed:
            filters = (f"( sport = :{near} and dport = :{far} )" for near, far in doomed)
            printed = self.run("ss", "-K", *" or ".join(filters).split())
            now = self.sockets()
            doomed = {ends: cookie for ends, cookie in doomed.items() if ends in now and now[ends].cookie == cookie}
            assert not doomed or time.monotonic() < deadline, f"ss cannot cut links: {doomed} are left; {printed}"

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
            while not self.links().keys() >= wanted:
                assert time.monotonic() < begun + HEAL_S, f"links are missing after {fault}"
                time.sleep(0.03)  # each look starts a process
        wrong = self.look(list(self.nodes), HEAL_S - (time.monotonic() - begun))
        assert wrong == [], f"{len(self.healed_s)} schedules went well, then {fault}: {wrong}"
        self.healed_s.append(time.monotonic() - begun)

    def __str__(self) -> str:
        times = sorted(self.healed_s)
        return (
            f"{self.mesh}: {len(times)} schedules; healed after {times[len(times) // 2]:.2f} s (median), "
            f"{times[-1]:.2f} s at most"
        )


class Routed(Mesh):
    """Clients of a router, which is one of the processes to which faults can happen."""

    ENDPOINT = "tcp/127.0.0.1:7447"

    def __init__(self, host: Sequence[str], mesh: str, names: Sequence[str]) -> None:
        self.router = self._started_router(host)
        super().__init__(host, mesh, names, Topology("client", (self.ENDPOINT,)))

    def _started_router(self, host: Sequence[str]) -> subprocess.Popen[str]:
        command = [*host, sys.executable, "-m", "neuraxis", "router", "--listen", self.ENDPOINT, "--json"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def pids(self) -> dict[str, int]:
        return {**super().pids(), "router": self.router.pid}

    def kill_router(self) -> None:
        self.router.kill()
        self.router.communicate()

    def start_router(self) -> None:
        self.router = self._started_router(self.host)

    def close(self) -> None:
        super().close()
        self.kill_router()


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
        print(mesh)


@pytest.fixture
def routed(host: list[str]) -> Iterator[Routed]:
    with ExitStack() as stack:
        mesh = Routed(host, "routed", NAMES[:3])
        stack.callback(mesh.close)
        mesh.heal("the start")
        yield mesh
        print(mesh)


def pairs_of(names: Iterable[str]) -> list[Pair]:
    return [frozenset(pair) for pair in itertools.combinations(sorted(names), 2)]


def test_every_single_link_is_cut(peers: Mesh) -> None:
    """10 schedules."""
    before = {name: renewals(child) for name, child in peers.nodes.items()}
    for pair in pairs_of(peers.nodes):
        peers.cut([pair])
        peers.heal(f"a cut between {sorted(pair)}")
    until(lambda: all(renewals(child) > before[name] for name, child in peers.nodes.items()), "new tokens of all nodes")


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


def test_random_faults(peers: Mesh, routed: Routed) -> None:
    """100 schedules of several faults, some while others heal: 60 among peers and, meanwhile, 40 through a router."""
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(run_random_faults, peers, 60), threads.submit(run_random_faults, routed, 40)]
        for run in runs:
            run.result()


def run_random_faults(mesh: Mesh, count: int) -> None:
    draw = random.Random(SEED)
    for _ in range(count):
        faults = []
        pids = mesh.pids()
        stopped = draw.sample(sorted(pids), draw.choice((0, 1, 1, 2)))
        for name in stopped:
            stop(pids[name])
            faults.append(f"{name} was stopped")
        for _ in range(draw.choice((1, 2, 3))):
            linked = sorted(mesh.links(), key=sorted)
            cut = draw.sample(linked, min(len(linked), draw.choice((1, 2, 4))))
            mesh.cut(cut)
            faults.append(f"cuts of {[sorted(pair) for pair in cut]}")
            # Part of the schedule: the next fault occurs during the repair, or after the lease of a stopped process.
            time.sleep(draw.choice((0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.3, 1.2)))
        for name in stopped:
            resume(pids[name])
        if isinstance(mesh, Routed) and draw.random() < 0.25:
            mesh.kill_router()
            mesh.start_router()
            faults.append("the router was killed")
        mesh.heal(", ".join(faults))


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


def test_clients_find_each_other_again_through_their_router(routed: Routed) -> None:
    """12 schedules: links to the router cut, the router stopped, killed and started again."""
    clients = list(routed.nodes.values())
    for number in range(12):
        links = sorted(routed.links(), key=sorted)
        assert len(links) == len(clients)
        if number % 4 == 0:
            routed.cut(links)
            routed.heal("all links to the router were cut")
        elif number % 4 == 1:
            routed.cut(links[:1])
            routed.heal("one link to the router was cut")
        elif number % 4 == 2:
            stop(routed.router.pid)
            until(lambda: all(is_alone(one) for one in clients), "them to say that they are alone")
            resume(routed.router.pid)
            routed.heal("the router was stopped")
        else:
            routed.kill_router()
            until(lambda: all(is_alone(one) for one in clients), "them to say that they are alone")
            routed.start_router()
            routed.heal("the router was started again")
        assert not any(is_alone(one) for one in clients)


def is_alone(child: Child) -> bool:
    child.send("alone?")
    return bool(child.receive())


def renewals(child: Child) -> int:
    """Return how often a node has renewed its presence token, because a link to it was restored."""
    child.send("renewed?")
    return int(child.receive())
