"""Repeated requests: each call runs once, blocks no other, and the reply cache stays bounded."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import CalleeDied, CallRefused, CallTimeout
from neuraxis.rpc import RpcContext
from neuraxis.rpc.calls import Number, Numbers
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.pool import Housekeeping
from neuraxis.rpc.server import AtMostOnce, RequestState
from neuraxis.rpc.transport import Endpoint
from tests.rpc.meeting import Join, meeting, until

ME, OTHER = Endpoint("me", 7), Endpoint("other", 9)


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


def ask_again_and_again(caller: RpcContext) -> None:
    """Repeat pending requests, as after a short loss of the link to the callee, at every moment."""
    link: Any = caller._transport._link  # type: ignore[union-attr]
    link.must_resend = lambda to, epoch: True


def requests_taken(callee: RpcContext) -> list[int]:
    """The numbers of the requests that come to a context from now on."""
    transport: Any = callee._transport
    numbers: list[int] = []
    handle = transport._handle

    def counting(frame: Any, head: Any) -> None:
        numbers.append(head.number)
        handle(frame, head)

    transport._handle = counting
    return numbers


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_repeated_request_takes_no_slot_and_gets_the_first_reply(join: Join, asynchronous: bool) -> None:
    gate = threading.Event()
    ran: list[int] = []

    def wait() -> str:
        ran.append(1)
        assert gate.wait(20)
        return "done"

    callee = join("callee", {"wait": wait, "echo": lambda value: value}, threads=2)
    eager, other = join("eager"), join("other")
    taken = requests_taken(callee)
    ask_again_and_again(eager)
    answers: list[Any] = []
    if asynchronous:
        eager.rpc_async("callee", "wait").add_done_callback(lambda future: answers.append(future.result()))
    else:
        thread = threading.Thread(target=lambda: answers.append(eager.rpc_sync("callee", "wait")))
        thread.start()
    until(lambda: len(taken) > 6, "the call to be asked again")
    assert other.call("callee", "echo", ["meanwhile"], timeout=10) == "meanwhile"
    assert not answers
    gate.set()
    until(lambda: bool(answers), "the answer")
    if not asynchronous:
        thread.join()
    assert answers == ["done"]
    assert ran == [1]


def test_with_a_third_of_all_messages_lost_each_call_runs_once_and_nothing_leaks(join: Join) -> None:
    ran: list[int] = []
    lost = random.Random(7)

    class Thing:
        def value(self) -> int:
            return 1

    callee = join("callee", {"run": lambda number: (ran.append(number), number)[1], "Thing": Thing})
    callee.register_function("use", lambda thing: thing.value())
    caller = join("caller")
    for context in (callee, caller):
        ask_again_and_again(context)
        link: Any = context._transport._link  # type: ignore[union-attr]
        link.send = lambda *what, send=link.send: lost.random() < 0.33 or send(*what)
    futures = [caller.rpc_async("callee", "run", number) for number in range(50)]
    thing = caller.remote_object("callee", "Thing")
    assert [thing.value(), caller.rpc_sync("callee", "use", thing)] == [1, 1]
    assert [future.wait(20) for future in futures] == list(range(50))
    assert sorted(ran) == list(range(50))
    del thing
    until(lambda: callee.objects_kept == 0, "the thing to be freed")


def test_one_that_cannot_be_asked_again_now_is_asked_later(join: Join) -> None:
    gate = threading.Event()
    join("callee", {"wait": lambda: gate.wait(20)})
    caller = join("caller")
    ask_again_and_again(caller)
    link: Any = caller._transport._link  # type: ignore[union-attr]
    future = caller.rpc_async("callee", "wait")
    tries: list[float] = []

    def send(to: Endpoint, channel: int, frame: Frame, timeout: float) -> None:
        tries.append(timeout)
        raise CallTimeout("the link is busy", to.name)

    link.send, before = send, link.send
    until(lambda: len(tries) > 2, "it to be asked again")
    link.send = before
    assert not future.done()
    gate.set()
    assert future.wait(20) is True
    assert max(tries) < 20  # other calls are not kept from being looked at until this one's deadline


def test_a_call_that_runs_is_not_refused_when_it_is_asked_again(join: Join) -> None:
    """Not while the callee shuts down, nor while too many wait: CallRefused says that it has not run."""
    gate, entered = threading.Event(), threading.Event()

    def wait() -> str:
        entered.set()
        assert gate.wait(20)
        return "done"

    callee, caller = join("callee", {"wait": wait}), join("caller")
    taken = requests_taken(callee)
    ask_again_and_again(caller)
    future = caller.rpc_async("callee", "wait")
    assert entered.wait(20)
    callee._transport.refuse()  # type: ignore[union-attr]
    asked = len(taken)
    until(lambda: len(taken) > asked + 2, "the call to be asked again")
    gate.set()
    assert future.wait(20) == "done"
    with pytest.raises(CallRefused, match="shutting down"):
        caller.rpc_sync("callee", "wait")


def test_queued_calls_are_refused_when_the_callee_leaves(join: Join) -> None:
    gate, entered = threading.Event(), threading.Event()
    ran: list[int] = []
    callee = join("callee", {"wait": lambda: entered.set() or gate.wait(20), "run": lambda: ran.append(1)}, threads=1)
    caller = join("caller")
    taken = requests_taken(callee)
    begun, waiting = caller.rpc_async("callee", "wait"), caller.rpc_async("callee", "run")
    assert entered.wait(20)
    until(lambda: len(taken) == 2, "the second call")
    leaving = threading.Thread(target=callee.shutdown)
    leaving.start()
    with pytest.raises(CallRefused, match="shutting down"):
        waiting.wait(20)
    gate.set()
    assert begun.wait(20) is True
    leaving.join()
    assert ran == []


def test_one_long_call_does_not_make_the_callee_remember_all_others(join: Join) -> None:
    gate = threading.Event()
    callee, caller = join("callee", {"wait": lambda: gate.wait(20), "echo": lambda value: value}), join("caller")
    long = caller.rpc_async("callee", "wait")
    for number in range(100):
        assert caller.rpc_sync("callee", "echo", number) == number
    assert callee._server.deduplication.remembered(caller._transport.me) <= 3  # type: ignore[union-attr]
    gate.set()
    assert long.wait(20) is True


def test_the_replies_to_a_lost_caller_are_dropped(join: Join) -> None:
    callee, caller = join("callee", {"echo": lambda value: value}), join("caller")
    assert caller.rpc_sync("callee", "echo", bytes(1000)) == bytes(1000)
    assert len(callee._server.deduplication) == 1
    caller.shutdown()
    until(lambda: len(callee._server.deduplication) == 0, "the caller to be forgotten")


def test_one_that_is_cut_off_for_a_while_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraxis.rpc.pool._CHECK_S", 0.02)
    once, gone = AtMostOnce(), {ME, OTHER}
    for endpoint in (ME, OTHER):
        once.begin(endpoint, 1, 1)
    looks = []

    def is_gone(endpoint: Endpoint) -> bool:
        looks.append(endpoint)
        return endpoint in gone

    housekeeping = Housekeeping([(once, 0.2)], is_gone)
    try:
        until(lambda: ME in looks, "the first look")
        gone.remove(ME)
        until(lambda: once.endpoints() == {ME}, "the other to be forgotten")
        looks.clear()
        until(lambda: len(looks) > 1, "another look")
        assert once.begin(ME, 1, 1) is RequestState.IN_PROGRESS
    finally:
        housekeeping.close(20)


def test_a_request_is_begun_once_and_answered_again() -> None:
    once, answer = AtMostOnce(), Frame(b"answer")
    assert once.begin(ME, 1, 1) is RequestState.NEW
    assert once.begin(ME, 1, 1) is RequestState.IN_PROGRESS
    once.end(ME, 1, answer)
    assert once.begin(ME, 1, 1) is answer
    assert once.begin(OTHER, 1, 1) is RequestState.NEW  # another caller's
    assert once.begin(ME, 3, 1) is RequestState.NEW
    assert once.begin(ME, 2, 1) is RequestState.NEW  # one that was overtaken
    once.end(ME, 2, answer)
    once.end(ME, 3, answer)
    assert once.begin(ME, 4, 4) is RequestState.NEW  # the caller waits for none of the others
    with pytest.raises(ConnectionError, match="no longer available"):
        once.begin(ME, 3, 1)
    assert once.remembered(ME) == 1
    assert once.nbytes == 0
    once.end(ME, 3, answer)  # too late
    assert once.nbytes == 0


def test_only_pending_requests_stay_in_the_reply_cache() -> None:
    once, answer = AtMostOnce(), Frame(b"answer")
    for number in (1, 2, 3):
        assert once.begin(ME, number, number, range(1, number)) is RequestState.NEW
    once.end(ME, 2, answer)
    once.end(ME, 3, answer)
    assert once.begin(ME, 6, 6, [1, 3, 5]) is RequestState.NEW
    assert once.remembered(ME) == 3  # 1, 3 and 6
    assert once.begin(ME, 3, 3, [1, 2]) is answer
    assert once.begin(ME, 5, 5, [1, 3]) is RequestState.NEW  # overtaken by 6, which lists it as still open
    assert once.begin(ME, 1, 1) is RequestState.IN_PROGRESS
    with pytest.raises(ConnectionError, match="no longer available"):
        once.begin(ME, 2, 2, [1])


@given(st.data())
def test_no_call_runs_twice_and_pending_ones_are_answered_in_any_order(data: st.DataObject) -> None:
    """Requests come late, twice, or not at all; the caller gives up some and goes on asking."""
    once, numbers = AtMostOnce(), Numbers()
    sent: list[Number] = []
    waited_for: set[int] = set()
    ran: dict[int, Frame | None] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["send", "come", "come", "end", "settle"]))
        running = [number for number, answer in ran.items() if answer is None]
        if step == "send" or not sent:
            sent.append(numbers.take(OTHER))
            waited_for.add(sent[-1].value)
        elif step == "come":
            number = data.draw(st.sampled_from(sent))
            try:
                standing = once.begin(ME, *number)
            except CalleeDied:
                assert number.value not in waited_for
                continue
            if standing is RequestState.NEW:
                assert number.value not in ran
                ran[number.value] = None
            elif standing is RequestState.IN_PROGRESS:
                assert ran[number.value] is None
            else:
                assert standing is ran[number.value]
        elif step == "end" and running:
            number = data.draw(st.sampled_from(running))
            ran[number] = Frame(b"%d" % number)
            once.end(ME, number, ran[number])
        elif step == "settle" and waited_for:
            number = data.draw(st.sampled_from(sorted(waited_for)))
            waited_for.remove(number)
            numbers.settle(OTHER, number)
    last = numbers.take(OTHER)
    once.begin(ME, *last)
    assert once.remembered(ME) <= len(waited_for) + 1


def test_the_oldest_replies_are_evicted_first_and_no_call_runs_again() -> None:
    once = AtMostOnce(max_bytes=100)
    for number in (1, 2, 3):
        assert once.begin(ME, number, 1) is RequestState.NEW
        once.end(ME, number, Frame(bytes(40)))
    assert once.nbytes == 80
    with pytest.raises(ConnectionError, match="no longer available"):
        once.begin(ME, 1, 1)
    assert len(once.begin(ME, 2, 1)) == 40  # type: ignore[arg-type]
    assert once.begin(ME, 4, 1) is RequestState.NEW
    once.end(ME, 4, Frame(bytes(101)))  # more than all may have
    assert once.nbytes == 80
    once.forget(ME)
    assert (once.nbytes, len(once), once.remembered(ME)) == (0, 0, 0)
    with pytest.raises(ConnectionError, match="no longer available"):  # it was only cut off, and comes back
        once.begin(ME, 4, 1)
    assert once.begin(ME, 5, 5) is RequestState.NEW
