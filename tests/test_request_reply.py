"""A request ends with its reply, an error of its own, or at its deadline, whoever receives the reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from neuraxis.request_reply import Exchange, PendingRequests, wait_for_completion, wait_for_reply

LIMIT_S = 20.0


class Scripted(Exchange[str]):
    """An exchange whose replies and losses are given: an exception is raised, None is no reply."""

    def __init__(self, replies: Iterator[str | None], losses: Iterator[bool | Exception]) -> None:
        self.sent: list[float] = []
        self._replies = replies
        self._losses = losses

    def send(self, timeout: float) -> None:
        self.sent.append(timeout)

    def receive(self, timeout: float) -> str | None:
        time.sleep(0.001)
        return next(self._replies)

    def must_resend(self) -> bool:
        lost = next(self._losses)
        if isinstance(lost, Exception):
            raise lost
        return lost

    def too_late(self) -> Exception:
        return TimeoutError("too late")


def for_ever(value: Any) -> Iterator[Any]:
    while True:
        yield value


def test_a_lost_request_is_sent_again_with_the_time_that_is_left() -> None:
    exchange = Scripted(iter([None, None, None, "reply"]), iter([False, True, False]))
    assert wait_for_reply(exchange, LIMIT_S) == "reply"
    assert len(exchange.sent) == 2
    assert exchange.sent[1] < exchange.sent[0] == LIMIT_S


def test_stray_messages_do_not_move_the_deadline() -> None:
    """A transport returns None for a message that is no reply, however many come."""
    exchange = Scripted(for_ever(None), for_ever(False))
    with pytest.raises(TimeoutError, match="too late"):
        wait_for_reply(exchange, 0.05)
    assert len(exchange.sent) == 1


def test_a_peer_that_is_gone_ends_the_wait() -> None:
    exchange = Scripted(for_ever(None), iter([False, ConnectionError("gone")]))
    with pytest.raises(ConnectionError, match="gone"):
        wait_for_reply(exchange, LIMIT_S)


@pytest.fixture
def pending() -> Iterator[PendingRequests[int, str]]:
    requests: PendingRequests[int, str] = PendingRequests(lambda key: InterruptedError(f"request {key}"))
    yield requests
    requests.close()


def test_pending_requests_end_once_and_late_replies_are_known(pending: PendingRequests[int, str]) -> None:
    ends: dict[int, list[Any]] = {number: [] for number in range(5)}
    late = threading.Event()

    def add(number: int, losses: Iterator[bool | Exception], timeout: float) -> Scripted:
        exchange = Scripted(iter(()), losses)

        def done(reply: str | None, error: BaseException | None) -> None:
            ends[number].append(reply if error is None else str(error))
            if number == 2:
                late.set()

        pending.add(number, exchange, timeout, done)
        return exchange

    add(0, for_ever(False), LIMIT_S)
    add(1, iter([ConnectionError("gone")]), LIMIT_S)
    add(2, for_ever(False), 0.3)
    resent = add(3, iter([True, *[False] * 1000]), LIMIT_S)
    add(4, for_ever(False), LIMIT_S)
    assert pending.complete(0, "reply")
    assert not pending.complete(0, "second reply")
    assert late.wait(LIMIT_S)
    assert not pending.complete(2, "late reply")
    assert [pending.take_abandoned(number) for number in (0, 1, 2, 2)] == [False, True, True, False]
    assert len(resent.sent) == 1
    assert pending.complete(3, "reply to the second")
    pending.close()
    assert ends == {0: ["reply"], 1: ["gone"], 2: ["too late"], 3: ["reply to the second"], 4: ["request 4"]}
    with pytest.raises(InterruptedError):
        add(0, for_ever(False), LIMIT_S)


def test_a_reply_of_another_thread_is_waited_for() -> None:
    def too_late() -> Exception:
        return TimeoutError("too late")

    def answer(done: Any) -> None:
        threading.Timer(0.01, done, ("reply", None)).start()

    assert wait_for_completion(answer, LIMIT_S, too_late) == "reply"
    with pytest.raises(ConnectionError, match="gone"):
        wait_for_completion(lambda done: done(None, ConnectionError("gone")), LIMIT_S, too_late)
