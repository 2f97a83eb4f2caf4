"""Forged frames by a raw Zenoh client: unauthenticated claims have no effect.

With keys and access rules the router drops what a role sends under another name. Where there are none, a frame must at
least name one sender in its key and its content, and a forged number is refused or recovered from.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuraxis.errors import CalleeDied, CallRefused
from neuraxis.mesh.access import with_calls, write_access
from neuraxis.mesh.certificates import init_keys
from neuraxis.mesh.keys import call_key
from neuraxis.mesh.topology import Tls, Topology, session_config
from neuraxis.rpc import RpcContext
from neuraxis.rpc.messages import Kind, Operation, pack_head
from neuraxis.rpc.server import MAX_AHEAD
from neuraxis.rpc.transport import Endpoint
from tests.mesh.raw import fence, router_process, session, until

CALLS = [("console", "server"), ("arm", "server"), ("console", "arm")]


def frame(kind: Kind, number: int, receiver: Endpoint, sender: Endpoint, value: Any = None, channel: int = 0) -> bytes:
    body = b"" if value is None else msgspec.msgpack.encode(value)
    return pack_head(kind, channel, number, number, receiver.incarnation, sender, len(body)) + body


def call(number: int, receiver: Endpoint, sender: Endpoint, name: str = "move", *args: Any) -> bytes:
    return frame(Kind.CALL, number, receiver, sender, [int(Operation.CALL), name, list(args), {}])


def endpoint(context: RpcContext) -> Endpoint:
    assert context._transport is not None
    return context._transport.me


def refused(context: RpcContext) -> int:
    """Number of frames that a context has dropped because of their sender."""
    return int(context._transport._link._refusals.total())  # type: ignore[union-attr]


@dataclass
class Lab:
    """A server that a console and an arm may call, behind a router with keys and rules in another process."""

    endpoints: list[str]
    keys: Path
    stack: ExitStack
    moved: list[Any] = field(default_factory=list)

    def join(self, name: str) -> RpcContext:
        tls = Tls.from_folder(self.keys, name)
        topology = Topology("client", connect=tuple(self.endpoints), tls=tls)
        context = RpcContext(name=name, mesh="lab", topology=topology, timeout=10)
        context.register_function("move", lambda *what: self.moved.append((name, *what)))
        context.register_function("name", lambda: name)
        context.register_factory("list", lambda: [1, 2])
        return self.stack.enter_context(context)

    def raw(self, role: str) -> Any:
        return self.stack.enter_context(session(self.endpoints, authority=self.keys / "ca.pem", keys=(self.keys, role)))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    keys = tmp_path
    init_keys(keys, ["console", "server", "arm"])
    write_access(keys / "acl.json5", "lab", with_calls([], CALLS))
    words = ("--listen", "tls/127.0.0.1:0", "--tls", str(keys), "--acl", str(keys / "acl.json5"))
    with router_process(*words) as (endpoints, _), ExitStack() as stack:
        yield Lab(endpoints, keys, stack)


def test_the_key_of_one_role_cannot_impersonate_another(lab: Lab) -> None:
    server, console = lab.join("server"), lab.join("console")
    assert console.wait_for(["server"], 20) == []
    assert console.rpc_sync("server", "name") == "server"
    held = console.remote_object("server", "list")
    me, him = endpoint(server), endpoint(console)
    arm = lab.raw("arm")
    his_channels = range(len(console._transport._idle_channels) + 1)  # type: ignore[union-attr]
    forged = [call(number, me, him, "move", "forged") for number in (2, 3, 2**20, 2**40, 2**62, 2**64 - 1)]
    forged.append(frame(Kind.CONTROL, 4, me, him, [int(Operation.RELEASE), "", [1, him.name, him.incarnation], {}]))
    forged.append(frame(Kind.CONTROL, 5, me, him, [int(Operation.CANCEL), "", [6], {}]))
    forged.append(frame(Kind.BYE, 0, me, him))
    for content in forged:
        # In its own name, in the other's, and in any: the router passes on the first alone.
        for sender in ("arm", "console", "*", "**"):
            arm.put(call_key("lab", "server", 0, sender), content)
    # Replies to the console, as if the server had answered.
    reply = frame(Kind.REPLY, 2, him, me, [True, "forged"])
    for channel in his_channels:
        for sender in ("arm", "server", "**"):
            arm.put(call_key("lab", "console", channel, sender), reply)
    fence(arm)
    for _ in range(20):  # with all numbers that were forged
        assert console.rpc_sync("server", "name") == "server"
        assert console.rpc_async("server", "name").wait() == "server"
    assert held.count(1) == 1
    assert server.rpc_sync("console", "name") == "console"
    assert lab.moved == []
    # What came through was in the arm's own name, and named another sender.
    assert refused(server) == len(forged)
    assert refused(console) == len(his_channels)
    # The arm calls as itself, and may do to itself what it likes.
    other = Endpoint("arm", 7)
    arm.put(call_key("lab", "server", 0, "arm"), call(1, me, other, "move", "by arm"))
    until(lambda: lab.moved == [("server", "by arm")], "its own call")
    arm.put(call_key("lab", "server", 0, "arm"), call(2**62, me, other, "move", "too far"))
    arm.put(call_key("lab", "server", 0, "arm"), call(2, me, other, "move", "again"))
    until(lambda: lab.moved == [("server", "by arm"), ("server", "again")], "its next call")
    assert console.rpc_sync("server", "name") == "server"


# --- without rules ---


@pytest.fixture
def pair() -> Iterator[tuple[RpcContext, RpcContext, Any]]:
    """A server and a console on a local mesh, and a session of a stranger on it."""
    mesh = f"rpc-forgery-{os.getpid()}"
    with ExitStack() as stack:
        made = []
        for name in ("server", "console"):
            context = RpcContext(name=name, mesh=mesh, timeout=10)
            context.register_function("name", lambda name=name: name)
            context.register_factory("list", lambda: [1, 2])
            made.append(stack.enter_context(context))
        assert made[1].wait_for(["server"], 20) == []
        seed = session_config(Topology.local(), mesh)["connect"]["endpoints"][:1]
        yield made[0], made[1], stack.enter_context(session(seed, mode="peer"))


def test_a_flood_of_bad_frames_is_counted_and_logged_once(
    pair: tuple[RpcContext, RpcContext, Any], caplog: pytest.LogCaptureFixture
) -> None:
    server, console, stranger = pair
    me, him = endpoint(server), endpoint(console)
    mesh = server._transport._link._node.mesh  # type: ignore[union-attr]
    publisher = stranger.declare_publisher(call_key(mesh, "server", 0, "stranger"))
    until(lambda: publisher.matching_status.matching, "the server to be reached")
    with caplog.at_level(logging.WARNING, "neuraxis"):
        for index in range(1000):
            publisher.put(os.urandom(index % 200))
            publisher.put(call(2**62, me, him))
            publisher.put(pack_head(Kind.CALL, 0, index, 0, me.incarnation, Endpoint("stranger", 1), 2**31))
            publisher.put(pack_head(99, 0, index, 0, me.incarnation, Endpoint("stranger", 1)))
        transport: Any = server._transport
        until(lambda: refused(server) == 2000, "all of them")
        until(lambda: transport._refusals.total() == 2000, "all of them")
        assert console.rpc_sync("server", "name") == "server"
    lines = [record for record in caplog.records if "refused" in record.message]
    assert 2 <= len(lines) <= 12  # two reasons, at most once in ten seconds each
    assert transport._refusals.counts() == {"a malformed frame": 2000}


def test_forged_numbers_are_bounded_reported_and_recovered_from(
    pair: tuple[RpcContext, RpcContext, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Without rules anybody can use another's name; then at most one call fails, and says why."""
    server, console, stranger = pair
    me, him = endpoint(server), endpoint(console)
    mesh = server._transport._link._node.mesh  # type: ignore[union-attr]
    assert console.rpc_sync("server", "name") == "server"
    once = server._server.deduplication
    publisher = stranger.declare_publisher(call_key(mesh, "server", 0, "console"))
    until(lambda: publisher.matching_status.matching, "the server to be reached")
    publisher.put(call(2**62, me, him, "name"))  # refused: it is too far ahead
    publisher.put(call(MAX_AHEAD, me, him, "name"))  # believed, since nothing proves it false
    until(lambda: once._callers[him].newest == MAX_AHEAD, "the number to be believed")
    with caplog.at_level(logging.WARNING, "neuraxis"), pytest.raises(CalleeDied, match="no longer available") as raised:
        console.rpc_sync("server", "name")
    assert raised.value.newest == MAX_AHEAD
    assert "has run a call with the number 1048576 in the name of 'console'" in caplog.text
    for _ in range(10):
        assert console.rpc_sync("server", "name") == "server"


def test_only_holders_can_use_and_release_an_object(pair: tuple[RpcContext, RpcContext, Any]) -> None:
    server, console, _ = pair
    me = endpoint(server)
    held = console.remote_object("server", "list")
    third = RpcContext(name="third", mesh=server._transport._link._node.mesh, timeout=10)  # type: ignore[union-attr]
    with third:
        assert third.wait_for(["server"], 20) == []
        for operation, args in (
            (Operation.RELEASE, [held._number, "console", endpoint(console).incarnation]),
            (Operation.RETAIN, [held._number, "third", endpoint(third).incarnation]),
        ):
            with pytest.raises(CallRefused, match=r"holds no|cannot release"):
                third._calls.control(me, operation, args)
        with pytest.raises(CallRefused, match="holds no reference"):
            third._call_method(_stolen(third, held), "count", [1], {})
    assert held.count(1) == 1
    assert server.objects_kept == 1


def _stolen(context: RpcContext, held: Any) -> Any:
    """A handle made up from what can be guessed."""
    stolen = context._references._handle(held._owner, held._number, held._kind)
    stolen._detach()
    return stolen
