"""Requests end with a reply or a specific error, and none is executed twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from neuraxis.errors import (
    InvalidArgument,
    MeshClosed,
    MeshError,
    NobodyServes,
    NodeGone,
    RequestFailed,
    RequestTimeout,
)
from neuraxis.mesh import Node
from neuraxis.mesh import services as services_module
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.keys import serve_key
from neuraxis.mesh.messages import Message
from neuraxis.mesh.services import Service
from neuraxis.wire.envelope import seal_envelope
from tests.mesh.conftest import LIMIT_S, Child, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]

SERVER = """
with Node("server", mesh=mesh, announce=False) as node:
    node.serve("echo", lambda message: message.value)
    node.serve("never", lambda message: (send("asked"), time.sleep(60)))
    node.announce()
    send("ready")
    receive()
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
    """A handler that blocks requests until they are released."""

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


def test_a_request_returns_the_value_of_the_handler(pair: tuple[Node, Node]) -> None:
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


def test_thousands_of_requests_leak_nothing(pair: tuple[Node, Node]) -> None:
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
    assert len(service._answers) == 0


def test_a_service_that_is_not_known_yet_is_found(join: Join, mesh: str) -> None:
    """The presence of a node may be known before its services are."""
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


def test_each_failure_has_its_own_error(pair: tuple[Node, Node]) -> None:
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
    with pytest.raises(MeshError, match="cannot be decoded"):
        client.request("server", "typed", Sum(1, 2), type=int)
    for timeout in (LIMIT_S, 0.2):
        with pytest.raises(NobodyServes, match="does not serve 'nothing'"):
            client.request("server", "nothing", timeout=timeout)
    with pytest.raises(NodeGone, match="the node is not, or no longer, on the mesh") as gone:
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


def test_a_topic_has_one_service(pair: tuple[Node, Node]) -> None:
    server, client = pair
    first = offer(server, "count", lambda message: "first")
    with pytest.raises(InvalidArgument, match="topic='count': node 'server' serves it already"):
        server.serve("count", lambda message: "second")
    assert client.request("server", "count", timeout=LIMIT_S) == "first"
    assert (repr(first), repr(client.subscribe("server/x"))) == ("<Service 'count'>", "<Subscription to 'server/x'>")
    first.close()
    assert repr(first) == "<Service 'count', closed>"
    offer(server, "count", lambda message: "second")
    until(lambda: client.request("server", "count", timeout=LIMIT_S) == "second", "the second service")


def test_a_node_that_dies_during_a_request_is_lost(join: Join, child: Start) -> None:
    client, server = join("client"), child(SERVER)
    assert server.receive() == "ready"
    assert client.wait_for(["server"], LIMIT_S) == []
    assert client.request("server", "echo", [1], timeout=LIMIT_S) == [1]
    asking = Caller(client, "server", "never")
    assert server.receive() == "asked"
    server.process.kill()
    asking.done()
    assert isinstance(asking.error, NodeGone), asking.error
    with pytest.raises(NodeGone):
        client.request("server", "echo", 1, timeout=LIMIT_S)
    anew = child(SERVER)
    assert anew.receive() == "ready"
    assert client.wait_for(["server"], LIMIT_S) == []
    assert client.request("server", "echo", [2], timeout=LIMIT_S) == [2]


def test_a_stopped_node_is_lost_after_its_lease(join: Join, child: Start) -> None:
    client, server = join("client"), child(SERVER)
    assert server.receive() == "ready"
    assert client.wait_for(["server"], LIMIT_S) == []
    asking = Caller(client, "server", "never")
    assert server.receive() == "asked"
    server.stop()
    asking.done()
    assert isinstance(asking.error, NodeGone), asking.error


def test_closing_with_pending_requests(pair: tuple[Node, Node]) -> None:
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


def test_the_requesting_node_may_close_during_a_request(pair: tuple[Node, Node]) -> None:
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


def test_too_many_requests_do_not_block_other_topics(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()
    offer(server, "gate", gate, threads=1)
    offer(server, "other", lambda message: "answer")
    channel = server.subscribe("client/*")
    settle(server)
    ended: list[Any] = []
    for number in range(1500):
        client.session.get(
            f"neuraxis/{client.mesh}/server/@serve/gate/@from/client", ended.append, payload=b"", timeout=LIMIT_S
        )
        if number == 0:
            until(lambda: gate.inside == 1, "the first")
    assert client.request("server", "other", timeout=LIMIT_S) == "answer"
    client.publish("number", 1)
    assert channel.get(LIMIT_S).value == 1
    gate.open.set()
    until(lambda: len(ended) == 1001, "those that could wait, and the first")
    assert gate.calls == 1001


def test_an_error_that_cannot_be_written_reaches_the_requester_and_the_log(
    pair: tuple[Node, Node], caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

        __repr__ = __str__

    server, client = pair
    errors = iter([Mute(), Mute(), ValueError("not valid: \ud800"), ValueError("x" * 100_000)])

    def handle(message: Message) -> None:
        raise next(errors)

    service = offer(server, "fail", handle)
    for _ in "ab":
        with pytest.raises(RequestFailed, match=r"failed: Mute: \(str\(\) of the exception raised") as caught:
            client.request("server", "fail")
    assert caught.value.kind == "Mute"
    with pytest.raises(RequestFailed, match=r"failed: ValueError: not valid: \\ud800"):
        client.request("server", "fail")
    with pytest.raises(RequestFailed) as caught:
        client.request("server", "fail")
    assert len(str(caught.value)) < 21_000
    assert service.counts().handler_errors == 4
    assert "in handle\n    raise next(errors)" in caplog.text  # one traceback in ten seconds


def test_old_names_work_for_now(pair: tuple[Node, Node]) -> None:
    with pytest.deprecated_call(match="next_request_number"):
        first = pair[0].next_question()
    assert pair[0].next_request_number() == first + 1
    with pytest.deprecated_call(match="incarnations"):
        assert pair[0].lives("client") == pair[0].incarnations("client") == [pair[0].peer("client")]


# --- at most once ---


def test_a_question_that_is_asked_again_is_not_carried_out_again(pair: tuple[Node, Node], join: Join) -> None:
    server, client = pair
    gate = Gate()
    service = offer(server, "gate", gate)
    number = client.next_request_number()
    with pytest.raises(RequestTimeout):
        client.request("server", "gate", "once", timeout=0.1, again=number)
    waiting = Caller(client, "server", "gate", "once", again=number)
    gate.open.set()
    assert waiting.done().answer == "once"
    assert client.request("server", "gate", "once", again=number) == "once"
    assert gate.calls == 1
    assert service.counts().repeated == 2
    assert client.request("server", "gate", "twice", again=client.next_request_number()) == "twice"
    assert client.request("server", "gate", "unnumbered") == "unnumbered"
    assert client.request("server", "gate", "unnumbered") == "unnumbered"
    other = join("other")
    meet(server, other)
    assert other.request("server", "gate", "of another", again=number) == "of another"
    assert gate.calls == 5


def test_repeats_of_a_question_that_hangs_take_no_threads(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()
    service = offer(server, "gate", lambda message: "quick" if message.value == "other" else gate(message), threads=2)
    number = client.next_request_number()
    first = Caller(client, "server", "gate", "hangs", again=number)
    until(lambda: gate.inside == 1, "the first question to begin")
    repeats = [Caller(client, "server", "gate", "hangs", again=number) for _ in range(6)]
    try:
        until(lambda: service.counts().repeated >= 6, "the repeats to come")
        assert client.request("server", "gate", "other", timeout=LIMIT_S) == "quick"
        with service._changed:
            assert [len(parked) for parked in service._in_progress.values()] == [4]  # the others ask again
    finally:
        gate.open.set()
    assert first.done().answer == "hangs"
    assert [one.done().answer for one in repeats] == ["hangs"] * 6
    assert gate.calls == 1
    assert service._in_progress == {}


def test_repeats_of_a_question_that_fails_get_its_error_and_do_not_run_it(pair: tuple[Node, Node]) -> None:
    server, client = pair
    gate = Gate()

    def handle(message: Message) -> None:
        gate(message)
        raise ValueError("no luck")

    service = offer(server, "gate", handle, threads=2)
    number = client.next_request_number()
    callers = [Caller(client, "server", "gate", "fails", again=number) for _ in range(3)]
    try:
        until(lambda: service.counts().repeated == 2, "the repeats to come")
    finally:
        gate.open.set()
    assert ["no luck" in str(one.done().error) for one in callers] == [True] * 3
    assert gate.calls == 1


def test_a_question_that_failed_may_be_asked_again(pair: tuple[Node, Node]) -> None:
    server, client = pair
    values = iter([ValueError("not yet"), 7])

    def handle(message: Message) -> Any:
        value = next(values)
        if isinstance(value, Exception):
            raise value
        return value

    offer(server, "moody", handle)
    number = client.next_request_number()
    with pytest.raises(RequestFailed, match="not yet"):
        client.request("server", "moody", again=number)
    assert client.request("server", "moody", again=number) == 7
    assert client.request("server", "moody", again=number) == 7


def test_the_reply_cache_is_bounded(pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "_REMEMBERED", 10)
    monkeypatch.setattr(services_module, "_REMEMBERED_BYTES", 5000)
    server, client = pair
    service = offer(server, "echo", lambda message: message.value)
    for size in (10, 1000, 3):
        for _ in range(20):
            client.request("server", "echo", bytes(size), again=client.next_request_number())
        answered = service._answers
        assert len(answered) == (5 if size == 1000 else 10)
        assert answered.nbytes == sum(len(answer) for _, (answer, _), _, _ in answered._entries.values()) <= 5000
    assert service._in_progress == {}


def test_the_reply_cache_expires(pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "_REMEMBERED_S", 0.2)
    server, client = pair
    service = offer(server, "echo", lambda message: message.value)
    first = client.next_request_number()
    assert client.request("server", "echo", b"first", again=first) == b"first"
    assert client.request("server", "echo", b"other", again=first) == b"first"
    time.sleep(0.3)
    client.request("server", "echo", b"last", again=client.next_request_number())
    assert [answer for _, (answer, _), _, _ in service._answers._entries.values()] == [b"last"]
    assert service._answers.nbytes == len(b"last")


def test_one_sender_cannot_evict_the_cached_replies_of_another(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services_module, "_REMEMBERED", 10)
    monkeypatch.setattr(services_module, "_REMEMBERED_BYTES", 5000)
    server, client = pair
    calls: list[Any] = []
    offer(server, "echo", lambda message: calls.append(message.node) or message.value)
    first = client.next_request_number()
    assert client.request("server", "echo", b"first", again=first) == b"first"
    for _ in range(30):  # another sender, with more replies and bytes than the cache holds
        server.request("server", "echo", bytes(1000), again=server.next_request_number())
    assert client.request("server", "echo", b"again", again=first) == b"first"
    assert calls == ["client", *["server"] * 30]


def test_the_sender_of_a_request_is_taken_from_its_key(pair: tuple[Node, Node]) -> None:
    server, client = pair
    calls: list[Any] = []
    service = offer(server, "act", lambda message: calls.append(message.node))
    key = serve_key(server.mesh, "server", "act", "client")
    start = key.removesuffix("client")
    assert client.request("server", "act", again=7) is None
    forged = seal_envelope(b"console", client.incarnation, 7, -1)
    for wrong in (key, f"{start}*", f"{start}**", key.replace("/act/", "/*/"), key.replace("server", "*")):
        assert list(client.session.get(wrong, payload=b"", attachment=forged, timeout=LIMIT_S)) == []
    assert client.request("server", "act", again=7) is None  # a repeated request
    assert client.request("server", "act") is None
    assert calls == ["client", "client"]
    assert sum(service.refused().values()) == service.counts().malformed == 5


def test_the_time_of_a_request_is_bounded(pair: tuple[Node, Node]) -> None:
    server, client = pair
    ages: list[float] = []
    offer(server, "act", lambda message: ages.append(message.age))
    key = serve_key(server.mesh, "server", "act", "client")
    for number, sent_ns in enumerate((-(2**63), 10**18 * 4)):
        forged = seal_envelope(b"client", client.incarnation, number + 1, -1, 0, sent_ns)
        assert len(list(client.session.get(key, payload=b"\xc0", attachment=forged, timeout=LIMIT_S))) == 1
    assert 86_400 <= ages[0] < 86_400 + LIMIT_S
    assert 0 <= ages[1] < LIMIT_S
