"""Requests to a role: the answering node, the fallback, and the error without an answer."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from roles import request_role

from neuraxis.errors import InvalidArgument, MeshError, NobodyAnswered, RequestFailed, RouterLost
from neuraxis.mesh import Node, Router, Topology
from tests.mesh.raw import until
from tests.mesh.role_node import killed_when_asked, role_node, warm

LONG_S = 20.0  # so long that nothing here depends on how fast the machine is


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@pytest.fixture
def mesh() -> str:
    return f"roles-{uuid.uuid4().hex[:8]}"


class Band:
    """Nodes that answer "work" with their own names, and record the requests."""

    def __init__(self, stack: ExitStack, mesh: str) -> None:
        self.stack, self.mesh = stack, mesh
        self.asked: list[tuple[str, object]] = []
        self.caller = stack.enter_context(Node("caller", mesh=mesh))

    def add(self, name: str, role: str = "", roles: tuple[str, ...] = (), serves: str | None = "work") -> Node:
        node: Node = self.stack.enter_context(Node(name, role, self.mesh, roles=roles))
        if serves is not None:
            node.serve(serves, lambda message: self.asked.append((name, message.value)) or name)
        assert self.caller.wait_for([name], LONG_S) == []
        return node


@pytest.fixture
def band(mesh: str) -> Iterator[Band]:
    with ExitStack() as stack:
        yield Band(stack, mesh)


def test_a_node_without_its_router_does_not_say_that_nobody_has_the_role(mesh: str):
    with Router(["tcp/127.0.0.1:0"]) as router:
        topology = Topology("client", router.endpoints)
        with Node("caller", mesh=mesh, topology=topology) as caller, Node("adam", "language", mesh, topology=topology):
            assert caller.wait_for("adam", LONG_S) == []
            router.close()
            until(lambda: not caller.connected and not caller.with_role("language"), "the link to be gone")
            for default_node in (None, "adam"):
                with pytest.raises(RouterLost, match="'caller' has lost its connection to the router"):
                    request_role(caller, "language", "work", timeout=1.0, default_node=default_node)


def test_the_first_that_came_with_the_role_answers(band: Band):
    band.add("zoe", "language")
    band.add("adam", "language")
    band.add("eye", "vision")
    assert request_role(band.caller, "language", "work", {"x": 1}) == ("zoe", "zoe")
    assert request_role(band.caller, "vision", "work", 2) == ("eye", "eye")
    assert band.asked == [("zoe", {"x": 1}), ("eye", 2)]


def test_a_second_declared_role_counts(band: Band):
    band.add("other", "motor")
    band.add("ear", "audio", roles=("speech", "language"))
    assert request_role(band.caller, "language", "work") == ("ear", "ear")


def test_one_that_has_left_is_not_asked(band: Band):
    first = band.add("first", "language")
    band.add("second", "language")
    first.close()
    assert request_role(band.caller, "language", "work") == ("second", "second")
    assert band.asked == [("second", None)]


def test_one_that_is_killed_while_it_answers_makes_room_for_the_next(band: Band, mesh: str):
    with role_node(mesh, "first", "language", "hangs") as process:
        assert band.caller.wait_for(["first"], LONG_S) == []
        band.add("second", "language")
        begun = time.monotonic()
        with killed_when_asked(process):
            assert request_role(band.caller, "language", "work", 5, timeout=2 * LONG_S) == ("second", "second")
        assert time.monotonic() - begun < LONG_S  # it was noticed, not waited for
    assert band.asked == [("second", 5)]


def test_one_that_does_not_serve_the_topic_makes_room_and_then_the_default_node_is_asked(band: Band):
    band.add("first", "language", serves="other")
    band.add("second", "language", serves=None)
    band.add("lang", "fallback")
    assert request_role(band.caller, "language", "work", 1, LONG_S, default_node="lang") == ("lang", "lang")
    assert request_role(band.caller, "nobody-has-this", "work", 2, LONG_S, default_node="lang") == ("lang", "lang")
    assert band.asked == [("lang", 1), ("lang", 2)]


def test_a_stuck_node_leaves_time_to_ask_the_others(band: Band):
    release = threading.Event()
    stuck = band.add("stuck", "language", serves=None)
    stuck.serve("work", lambda message: release.wait(LONG_S))
    band.add("next", "language")
    try:
        assert request_role(band.caller, "language", "work", 1, 1.0) == ("next", "next")
        stuck.serve("slow", lambda message: release.wait(LONG_S))
        with pytest.raises(NobodyAnswered, match=r"no answer within .*does not serve 'slow'") as caught:
            request_role(band.caller, "language", "slow", 1, 1.0)
        assert list(caught.value.tried) == ["stuck", "next"]
    finally:
        release.set()


def test_the_timeout_is_for_all_together(band: Band):
    release = threading.Event()
    for number in range(4):
        band.add(f"n{number}", "language", serves=None).serve("work", lambda message: release.wait(LONG_S))
    try:
        begun = time.monotonic()
        with pytest.raises(NobodyAnswered) as caught:
            request_role(band.caller, "language", "work", None, 0.8)
        took = time.monotonic() - begun
        assert 0.7 < took < 3.0  # not 4 times 0.8
        assert list(caught.value.tried) == ["n0", "n1", "n2", "n3"]
        assert all("no answer within" in why for why in caught.value.tried.values())
    finally:
        release.set()


def test_an_error_of_a_handler_is_its_answer(band: Band):
    first = band.add("first", "language", serves=None)
    first.serve("work", lambda message: {}[message.value])
    band.add("second", "language")
    with pytest.raises(RequestFailed, match="'work' of node 'first' failed: KeyError: 'cup'"):
        request_role(band.caller, "language", "work", "cup")
    assert band.asked == []


def test_a_role_without_nodes(band: Band):
    band.add("eye", "vision")
    with pytest.raises(NobodyAnswered, match="no node here has it, and there is no default node") as caught:
        request_role(band.caller, "language", "work")
    assert (caught.value.role, caught.value.topic, caught.value.tried) == ("language", "work", {})
    assert isinstance(caught.value, MeshError)


def test_the_default_node_is_not_here_either(band: Band):
    band.add("first", "language", serves=None)
    with pytest.raises(NobodyAnswered) as caught:
        request_role(band.caller, "language", "work", default_node="lang")
    assert list(caught.value.tried) == ["first", "lang"]
    assert "is on the mesh, but does not serve 'work'" in caught.value.tried["first"]
    assert "no longer, on the mesh" in caught.value.tried["lang"]
    assert all(word in str(caught.value) for word in ("first: ", "lang: ", "'language'"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.tried) == (str(caught.value), caught.value.tried)


def test_a_node_can_be_its_own_default(band: Band):
    band.caller.serve("work", lambda message: message.value + 1)
    assert request_role(band.caller, "language", "work", 41, default_node="caller") == (42, "caller")


@pytest.mark.parametrize("timeout", [0, -1.0, True, "1", float("nan")])
def test_a_timeout_is_a_number_of_seconds(band: Band, timeout: object):
    with pytest.raises(InvalidArgument, match="timeout="):
        request_role(band.caller, "language", "work", None, timeout)  # type: ignore[arg-type]


def test_names_are_checked(band: Band):
    with pytest.raises(InvalidArgument, match="role="):
        request_role(band.caller, "a b", "work")
    with pytest.raises(InvalidArgument, match="default_node="):
        request_role(band.caller, "language", "work", default_node="*")
