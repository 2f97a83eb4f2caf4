"""Questions end with an answer or a clear error, told apart from each other; none is carried out twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from neuraxis.errors import MeshClosed, MeshError, NobodyServes, NodeGone, RequestFailed, RequestTimeout
from neuraxis.mesh import Node
from neuraxis.mesh import services as services_module
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.messages import Message
from neuraxis.mesh.services import Service
from tests.mesh.conftest import LIMIT_S, Child, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]

SERVER = """
with Node("server", mesh=mesh, announce=False) as node:
    node.serve("echo", lambda message: message.value)
    node.serve("never", lambda message: (say("asked"), time.sleep(60)))
    node.announce()
    say("ready")
    hear()
"""


class Sum(msgspec.Struct):
    left: int
    right: int


@pytest.fixture
def pair(join: Join) -> tuple[Node, Node]:
    server, client = join("server"), join("client")
    meet(server, client)
    return server, client


class Gate:
    """A handler in which questions wait until they may go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = 0
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> Any:
        with self._lock:
            self.inside += 1
            self.calls += 1
        assert self.open.wait(LIMIT_S)
        with self._lock:
            self.inside -= 1
        return message.value


class Caller(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, node: Node, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self._call = lambda: node.request(*arguments, **{"timeout": LIMIT_S, **options})
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except Exception as error:
            self.error = error

    def done(self) -> Caller:
        self.join(LIMIT_S)
        assert not self.is_alive()
        return self


def offer(node: Node, topic: str, handler: Callable[[Message], Any], **options: Any) -> Service:
    """Serve, and return when the others know."""
    made = node.serve(topic, handler, **options)
    settle(node)
    return made


# --- answers ---


def test_answers_are_what_the_handler_returned(pair: tuple[Node, Node]) -> None:
    server, client = pair
    asked: list[Message] = []
    offer(server, "echo", lambda message: (asked.append(message), message.value)[1])
    offer(server, "arm/add", lambda message: message.value.left + message.value.right, type=Sum)
    offer(server, "sum", lambda message: Sum(1, 2))
    for value in (None, 1, "text", b"raw", [1, (2, 3)], {"a": {4}}):
        assert client.request("server", "echo", value) == value
    array = client.request("server", "echo", np.arange(5.0))
    assert array.dtype == float
    assert (array == np.arange(5.0)).all()
    assert client.request("server", "arm/add", Sum(3, 4)) == 7
    assert client.request("server", "arm/add", {"left": 3, "right": 4}) == 7
    assert client.request("server", "sum", type=Sum) == Sum(1, 2)
    assert client.request("server", "echo", bytes(8 * 2**20), timeout=LIMIT_S) == bytes(8 * 2**20)
    assert server.request("server", "arm/add", Sum(1, 1)) == 2, "a node may ask itself"
    assert {(message.node, message.incarnation) for message in asked} == {("client", client.incarnation)}


def test_a_service_that_asks_back(pair: tuple[Node, Node]) -> None:
    server, client = pair
    offer(server, "count", lambda message: 0 if message.value == 0 else 1 + client_count(message.value - 1))
    offer(client, "count", lambda message: 0 if message.value == 0 else 1 + server_count(message.value - 1))

    def client_count(value: int) -> Any:
        return server.request("client", "count", value, timeout=LIMIT_S)

    def server_count(value: int) -> Any:
        return client.request("server", "count", value, timeout=LIMIT_S)

    assert server_count(7) == 7


def test_slow_answers_hold_up_others_only_when_all_threads_are_busy(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()

    def handle(message: Message) -> Any:
        return gate(message) if message.value else "quick"

    offer(server, "mixed", handle, threads=3)
    offer(server, "other", lambda message: "other", threads=1)
    slow = [Caller(client, "server", "mixed", number) for number in (1, 2)]
    until(lambda: gate.inside == 2, "two slow ones")
    for _ in range(20):
        assert client.request("server", "mixed", 0) == "quick"
    slow.append(Caller(client, "server", "mixed", 3))
    until(lambda: gate.inside == 3, "three slow ones")
    waits = Caller(client, "server", "mixed", 0)
    assert client.request("server", "other") == "other"
    assert waits.is_alive()
    gate.open.set()
    assert [one.done().answer for one in slow] == [1, 2, 3]
    assert waits.done().answer == "quick"


def test_thousands_of_questions_leave_nothing(pair: tuple[Node, Node]) -> None:
    server, client = pair
    service = offer(server, "echo", lambda message: message.value)
    for number in range(100):
        assert client.request("server", "echo", number) == number
    me = psutil.Process()
    before = me.num_threads(), me.num_fds()
    callers = [
        threading.Thread(target=lambda: [client.request("server", "echo", 1) for _ in range(700)]) for _ in "abc"
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(3 * LIMIT_S)
    until(lambda: me.num_threads() <= before[0] + 1 and me.num_fds() <= before[1], "threads and descriptors to end")
    assert service.counts() == Counts(received=2200)
    assert len(service._answered) == 0


def test_a_service_that_is_not_known_yet_is_found(join: Join, mesh: str) -> None:
    """It may be known here that a node has come before it is known what it serves."""
    base = join("base")
    answers: list[Any] = []
    base.on_join(lambda peer: answers.append(base.request(peer.name, "echo", peer.name, timeout=LIMIT_S)))
    for number in range(15):
        server = Node(f"server-{number}", mesh=mesh)
        try:
            server.serve("echo", lambda message: message.value)
            until(lambda number=number: len(answers) == number + 1, "the answer")
        finally:
            server.close()
    assert answers == [f"server-{number}" for number in range(15)]


# --- errors ---


def test_errors_are_told_apart(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()

    def fail(message: Message) -> Any:
        raise {"value": ValueError, "exit": SystemExit}[message.value]("so be it")

    failing = offer(server, "fail", fail)
    offer(server, "gate", gate)
    offer(server, "odd", lambda message: object())
    offer(server, "typed", lambda message: message.value, type=Sum)
    with pytest.raises(RequestFailed, match="'fail' of node 'server' failed: ValueError: so be it") as caught:
        client.request("server", "fail", "value")
    assert caught.value.kind == "ValueError"
    with pytest.raises(RequestFailed, match="SystemExit"):
        client.request("server", "fail", "exit")
    with pytest.raises(RequestFailed, match="KeyError"):
        client.request("server", "fail", "other")
    with pytest.raises(RequestFailed, match="NotSerializable"):
        client.request("server", "odd")
    with pytest.raises(RequestFailed, match="left"):
        client.request("server", "typed", {"left": "1", "right": 2})
    with pytest.raises(MeshError, match="cannot be read"):
        client.request("server", "typed", Sum(1, 2), type=int)
    for timeout in (LIMIT_S, 0.2):
        with pytest.raises(NobodyServes, match="does not serve 'nothing'"):
            client.request("server", "nothing", timeout=timeout)
    with pytest.raises(NodeGone, match="no such node") as gone:
        client.request("nobody", "echo", timeout=LIMIT_S)
    assert gone.value.node == "nobody"
    with pytest.raises(RequestTimeout, match=r"within 0\.2 s"):
        client.request("server", "gate", timeout=0.2)
    gate.open.set()
    assert client.request("server", "gate", 1) == 1
    assert failing.counts() == Counts(handler_errors=3)


def test_a_service_that_is_closed_is_served_no_more(pair: tuple[Node, Node]) -> None:
    server, client = pair
    with offer(server, "echo", lambda message: message.value):
        assert client.request("server", "echo", 1) == 1
    settle(server)
    with pytest.raises(NobodyServes):
        client.request("server", "echo", 1, timeout=LIMIT_S)
    offer(server, "echo", lambda message: -message.value)
    settle(server)
    assert client.request("server", "echo", 1) == -1


def test_a_node_that_dies_while_it_answers_is_gone(join: Join, child: Start) -> None:
    client, server = join("client"), child(SERVER)
    assert server.said() == "ready"
    assert client.wait_for(["server"], LIMIT_S) == []
    assert client.request("server", "echo", [1], timeout=LIMIT_S) == [1]
    asking = Caller(client, "server", "never")
    assert server.said() == "asked"
    server.process.kill()
    asking.done()
    assert isinstance(asking.error, NodeGone), asking.error
    with pytest.raises(NodeGone):
        client.request("server", "echo", 1, timeout=LIMIT_S)
    anew = child(SERVER)
    assert anew.said() == "ready"
    assert client.wait_for(["server"], LIMIT_S) == []
    assert client.request("server", "echo", [2], timeout=LIMIT_S) == [2]


def test_a_node_that_stands_still_is_gone_after_its_lease(join: Join, child: Start) -> None:
    client, server = join("client"), child(SERVER)
    assert server.said() == "ready"
    assert client.wait_for(["server"], LIMIT_S) == []
    asking = Caller(client, "server", "never")
    assert server.said() == "asked"
    server.stop()
    asking.done()
    assert isinstance(asking.error, NodeGone), asking.error


def test_closing_with_questions_under_way(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate, stuck = Gate(), threading.Event()
    offer(server, "gate", gate)
    offer(server, "stuck", lambda message: stuck.wait(LIMIT_S), threads=2)
    answered, given_up = Caller(client, "server", "gate", 1), Caller(client, "server", "stuck")
    until(lambda: gate.inside == 1, "the question")
    closing = threading.Thread(target=server.close)
    closing.start()
    until(lambda: client.peers(ask=False) == [], "the end to begin")
    gate.open.set()
    assert answered.done().answer == 1, "an answer in the making is waited for"
    given_up.done()
    assert isinstance(given_up.error, NodeGone), given_up.error
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    stuck.set()


def test_who_asks_may_be_closed_meanwhile(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()
    offer(server, "gate", gate)
    asking = Caller(client, "server", "gate")
    until(lambda: gate.inside == 1, "the question")
    client.close()
    asking.done()
    assert isinstance(asking.error, MeshClosed), asking.error
    gate.open.set()
    other = offer(server, "gate2", lambda message: message.value)
    assert server.request("server", "gate2", 3) == 3
    other.close()


def test_too_many_questions_hold_up_nothing_else(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()
    offer(server, "gate", gate, threads=1)
    offer(server, "other", lambda message: "answer")
    channel = server.subscribe("client/*")
    settle(server)
    ended: list[Any] = []
    for number in range(1500):
        client.session.get(f"neuraxis/{client.mesh}/server/@serve/gate", ended.append, payload=b"", timeout=LIMIT_S)
        if number == 0:
            until(lambda: gate.inside == 1, "the first")
    assert client.request("server", "other", timeout=LIMIT_S) == "answer"
    client.publish("number", 1)
    assert channel.get(LIMIT_S).value == 1
    gate.open.set()
    until(lambda: len(ended) == 1001, "those that could wait, and the first")
    assert gate.calls == 1001


# --- at most once ---


def test_a_question_that_is_asked_again_is_not_carried_out_again(pair: tuple[Node, Node], join: Join) -> None:
    server, client = pair
    gate = Gate()
    service = offer(server, "gate", gate)
    number = client.next_question()
    with pytest.raises(RequestTimeout):
        client.request("server", "gate", "once", timeout=0.1, again=number)
    waiting = Caller(client, "server", "gate", "once", again=number)
    gate.open.set()
    assert waiting.done().answer == "once"
    assert client.request("server", "gate", "once", again=number) == "once"
    assert gate.calls == 1
    assert service.counts().repeated == 2
    assert client.request("server", "gate", "twice", again=client.next_question()) == "twice"
    assert client.request("server", "gate", "unnumbered") == "unnumbered"
    assert client.request("server", "gate", "unnumbered") == "unnumbered"
    other = join("other")
    meet(server, other)
    assert other.request("server", "gate", "of another", again=number) == "of another"
    assert gate.calls == 5


def test_a_question_that_failed_may_be_asked_again(pair: tuple[Node, Node]) -> None:
    server, client = pair
    values = iter([ValueError("not yet"), 7])

    def handle(message: Message) -> Any:
        value = next(values)
        if isinstance(value, Exception):
            raise value
        return value

    offer(server, "moody", handle)
    number = client.next_question()
    with pytest.raises(RequestFailed, match="not yet"):
        client.request("server", "moody", again=number)
    assert client.request("server", "moody", again=number) == 7
    assert client.request("server", "moody", again=number) == 7


def test_what_a_service_remembers_is_bounded(pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "_REMEMBERED", 10)
    monkeypatch.setattr(services_module, "_REMEMBERED_BYTES", 5000)
    server, client = pair
    service = offer(server, "echo", lambda message: message.value)
    for size in (10, 1000, 3):
        for _ in range(20):
            client.request("server", "echo", bytes(size), again=client.next_question())
        assert len(service._answered) == (5 if size == 1000 else 10)
        assert service._answered_bytes == sum(len(answer) for answer, _ in service._answered.values()) <= 5000
    assert service._under_way == set()


def test_what_a_service_remembers_is_forgotten_in_time(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services_module, "_REMEMBERED_S", 0.2)
    server, client = pair
    service = offer(server, "echo", lambda message: message.value)
    first = client.next_question()
    assert client.request("server", "echo", b"first", again=first) == b"first"
    assert client.request("server", "echo", b"other", again=first) == b"first"
    time.sleep(0.3)
    client.request("server", "echo", b"last", again=client.next_question())
    assert [answer for answer, _ in service._answered.values()] == [b"last"]
    assert len(service._answered_at) == 1
    assert service._answered_bytes == len(b"last")
