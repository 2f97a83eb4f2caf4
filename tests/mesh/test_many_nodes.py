"""Many nodes on one machine, each a process: they discover each other, and half of them may die at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.mesh.conftest import Child
from tests.mesh.raw import until

COUNT = 20
FIND_S = 10.0
START_S = 120.0
RATE_HZ = 20.0

# It advances at its rate, publishes spikes after each step, subscribes to its neighbour, and reports on request.
STEPPING = """
import numpy as np
name, neighbour, rate_hz = arguments
def see(wanted, limit_s):
    deadline = time.monotonic() + limit_s
    while (seen := {peer.name for peer in node.peers(ask=False)}) != set(wanted) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(seen)
def step():
    begun = time.monotonic()
    while not ended.wait(max(0.0, begun + node.step / rate_hz - time.monotonic())):
        node.publish("spikes", np.arange(node.step % 50, dtype=np.int32), step=node.step)
        node.step += 1
ended = threading.Event()
with Node(name, mesh=mesh) as node:
    node.step = 0
    heard = node.subscribe(f"{neighbour}/spikes", lambda message: None)
    stepping = threading.Thread(target=step)
    stepping.start()
    send("ready")
    while (wanted := receive()) is not None:
        if isinstance(wanted, list):
            send(see(*wanted))
        else:
            send([node.step, heard.counts().received, heard.counts().malformed])
    ended.set()
    stepping.join()
send("left")
"""


def test_half_of_many_nodes_may_die(child: Callable[..., Child]) -> None:
    names = [f"node-{number}" for number in range(COUNT)]
    began = time.monotonic()
    nodes = {name: child(STEPPING, [name, names[number - 1], RATE_HZ], bufsize=0) for number, name in enumerate(names)}
    for one in nodes.values():
        assert one.receive(START_S) == "ready"
    print(f"{COUNT} started in {time.monotonic() - began:.1f} s")
    assert found_within(nodes) <= FIND_S

    chosen = random.Random(COUNT).sample(names, COUNT // 2)
    before = {name: how_is(one) for name, one in nodes.items()}
    for name in chosen:
        nodes[name].process.kill()
    rest = {name: one for name, one in nodes.items() if name not in chosen}
    assert found_within(rest) <= FIND_S

    # Two seconds of steps more, and what a living neighbour says still arrives.
    def gone_on() -> bool:
        now = {name: how_is(one) for name, one in rest.items()}
        neighbours = {name: names[number - 1] for number, name in enumerate(names)}
        return all(
            now[name][0] > before[name][0] + 2 * RATE_HZ
            and (neighbours[name] in chosen or now[name][1] > before[name][1] + RATE_HZ)
            for name in rest
        )

    until(gone_on, "the rest to go on")
    for one in rest.values():
        assert how_is(one)[2] == 0
        one.send(None)
    for one in rest.values():
        assert one.receive() == "left"
        assert one.process.wait(START_S) == 0


def found_within(nodes: dict[str, Child]) -> float:
    """Assert that all of these nodes see exactly the others; how many seconds it took."""
    began = time.monotonic()
    for name, one in nodes.items():
        one.send([[other for other in nodes if other != name], FIND_S])
    for name, one in nodes.items():
        assert one.receive() == sorted(other for other in nodes if other != name), name
    took = time.monotonic() - began
    print(f"{len(nodes)} see each other after {took:.2f} s")
    return took


def how_is(one: Child) -> tuple[int, int, int]:
    """Return the step of a node, and its numbers of received and malformed messages."""
    one.send("how?")
    step, received, malformed = one.receive()
    return step, received, malformed
