"""A brain through a router: the same result, also with a restarted router and messages of unknown programs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np
import pytest

from neuraxis.mesh import Topology
from neuraxis.mesh.router import Router
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import MeshExecutor
from neuraxis.simulation.mesh.wire import Window, pack_window
from neuraxis.wire.envelope import seal_envelope
from tests.mesh.raw import fence, router_process, session, warm
from tests.simulation.mesh.fed import UNITS, assert_was_silent_in, fed, team_of
from tests.simulation.mesh.meshes import LIMIT_S, fresh_mesh, on_the_mesh, until
from tests.simulation.mesh.test_executor import nothing_was_missed
from tests.simulation.mesh.test_faults import when


@pytest.fixture(scope="module", autouse=True)
def warmed() -> None:
    warm()


def through(endpoints: list[str]) -> Topology:
    return Topology.from_options(connect=endpoints)


@pytest.fixture(scope="module")
def expected() -> str:
    with Simulation(fed()) as simulation:
        return simulation.step(6000).fingerprint


def test_a_restarted_router_does_not_change_the_result(expected: str) -> None:
    with ExitStack() as stack:
        endpoints, process = stack.enter_context(router_process("--listen", "tcp/127.0.0.1:0"))

        def kill_and_start() -> None:
            process.kill()
            process.wait(LIMIT_S)
            again, _ = stack.enter_context(router_process("--listen", endpoints[0]))
            assert again == endpoints

        with on_the_mesh(fed(), UNITS, topology=through(endpoints)) as simulation:
            simulation.advance(500)
            with when(simulation, "b", 1500, kill_and_start):
                simulation.advance(4500)
            simulation.advance(1000)
            assert nothing_was_missed(simulation)
            assert_was_silent_in(simulation, [])
            assert simulation.fingerprint() == expected


# --- strangers ---


class Stranger:
    """Sends what it likes on the keys of regions."""

    def __init__(self, zenoh: Any, mesh: str, digest: int) -> None:
        self._zenoh, self._mesh, self.digest = zenoh, mesh, digest
        self.sent = 0

    def say(self, key: str, payload: bytes, encoding: str = "application/octet-stream", **envelope: Any) -> None:
        node = key.split("/")[0]
        attachment = None
        if envelope:
            attachment = seal_envelope(node.encode(), envelope["incarnation"], self.sent, envelope.get("step", -1))
        self._zenoh.put(f"neuraxis/{self._mesh}/{key}", payload, encoding=encoding, attachment=attachment)
        self.sent += 1

    def window(self, first: int, last: int, ids: list[int], digest: int | None = None) -> bytes:
        after = np.zeros(len(ids), np.uint16)
        digest = self.digest if digest is None else digest
        return pack_window(Window(first, last, after, np.array(ids, np.int32), 0, digest))

    def ask(self, node: str, topic: str, value: Any) -> list[bytes]:
        """The errors that it got as answers."""
        key = f"neuraxis/{self._mesh}/{node}/@serve/{topic}/@from/stranger"
        payload = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
        replies = self._zenoh.get(key, payload=payload, encoding="application/msgpack", timeout=LIMIT_S)
        return [bytes(one.err.payload) for one in replies if one.ok is None]


def test_messages_from_unknown_nodes_are_refused_and_counted(expected: str) -> None:
    mesh = fresh_mesh()
    with (
        Router(["tcp/127.0.0.1:0"]) as router,
        on_the_mesh(fed(), UNITS, mesh=mesh, topology=through(router.endpoints)) as simulation,
        session(router.endpoints) as zenoh,
    ):
        executor = simulation._executor
        assert isinstance(executor, MeshExecutor)
        simulation.advance(1000)
        stranger = Stranger(zenoh, mesh, digest_of(simulation))
        before = refused(executor)
        for wrong in windows_that_are_none(stranger):
            stranger.say("source/spikes", wrong)
            stranger.say("source/spikes", wrong, incarnation=1)  # of an earlier life
        for wrong in words_that_are_none():
            stranger.say("source/health", wrong, "application/msgpack")
            stranger.say("b/health", wrong, "application/msgpack", incarnation=1)
            stranger.say("a/health", wrong, "text/plain")
        for key in ("a/data", "b/command", "nobody/spikes", "a/spikes/more"):
            stranger.say(key, b"\xc1\x00 garbage", "application/msgpack")
            stranger.say(key, b"", "neuraxis/array;<f8;[99999999]")
        fence(zenoh)
        simulation.advance(2000)
        for node in UNITS.names:
            for value in ([], None, 7, "advance", ["close"], ["save", "/tmp/x"], ["restore", "/tmp/x", []], ["advance"],
                          ["advance", "soon"], ["read_state", 99, "v_mv"], ["read_state", 2], ["inject", "x", "y"],
                          ["write_state", 0, "nothing", [1.0]], ["level", 3], ["freeze", 5], ["silence", [99]],
                          ["silence", "a"], ["start", "x", "y"], b"\xc1", b""):  # fmt: skip
                stranger.ask(node, "command", value)
            for value in (None, {}, {"from": "x"}, {"from": []}, 5, b"\xc1"):
                stranger.ask(node, "replay", value)
                stranger.ask(node, "where", value)
            assert any(b"unknown command of a region" in one for one in stranger.ask(node, "command", ["close"]))
            for value in (["advance", 9000], ["silence", [0]], ["write_state", 0, "v_mv", [1.0]], ["publish"]):
                assert any(b"is not the driver" in one for one in stranger.ask(node, "command", value))
        simulation.advance(3000)
        assert refused(executor) > before
        assert not team_of(simulation).lost
        assert nothing_was_missed(simulation)
        assert_was_silent_in(simulation, [])
        assert simulation.fingerprint() == expected


def refused(executor: MeshExecutor) -> int:
    return sum(one["refused"] for one in executor.statistics().values())


def digest_of(simulation: Simulation) -> int:
    """Return the digest of the network, which is public in the messages of its nodes."""
    heard: list[int] = []
    node = team_of(simulation).node
    with node.subscribe("a/health", lambda message: heard.append(message.value["digest"]), recover=False):
        until(lambda: heard, "a word of a region")
    return heard[-1]


def windows_that_are_none(stranger: Stranger) -> list[bytes]:
    good = stranger.window(1, 5, [0, 1])
    head = struct.Struct("<4sIqqqQ")
    steps: list[Callable[[], bytes]] = [
        lambda: stranger.window(1001, 1005, [5], digest=stranger.digest ^ 1),  # another network
        lambda: stranger.window(1001, 1005, [170]),  # there is no such neuron
        lambda: stranger.window(1001, 1005, [100]),  # another region has it
        lambda: stranger.window(1001, 1005, [-1]),
        lambda: stranger.window(1001, 1005, [7, 7]),
        lambda: stranger.window(1001, 1005, [8, 7]),
        lambda: stranger.window(2**31 - 3, 2**31 - 2, [2**31 - 1]),
        lambda: head.pack(b"nxw1", 0, 2**62, 2**62 + 1, 0, stranger.digest),
        lambda: head.pack(b"nxw1", 2**32 - 1, 1, 2, 0, stranger.digest),
        lambda: good[:-1],
        lambda: b"",
        lambda: b"x" * 100_000,
    ]
    return [one() for one in steps]


def words_that_are_none() -> list[bytes]:
    values: list[Any] = [
        None, 5, "well", [], {}, {"step": 5}, {"step": 10**6, "digest": 3}, {"step": "x", "digest": 1},
        {"step": 1, "digest": 2, "leaving": True}, {"step": 1, "digest": 2, "hold_s": 1e300},
        {"step": 1, "digest": 2, "missing": {"a": None}},
    ]  # fmt: skip
    return [msgspec.msgpack.encode(one) for one in values] + [b"\xc1", b"\x85"]
