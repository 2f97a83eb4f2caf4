"""Deferred and delivered Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from neuraxis.process.signals import Interrupts


@pytest.fixture(autouse=True)
def handler() -> Iterator[object]:
    old = signal.getsignal(signal.SIGINT)
    yield old
    assert signal.getsignal(signal.SIGINT) is old
    signal.signal(signal.SIGINT, old)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def press_within(interrupts: Interrupts, reached: list[str], *, then_wait: bool) -> None:
    with interrupts:
        press()
        reached.append("after the press")
        if then_wait:
            with interrupts.let_through:
                reached.append("in the wait")
        reached.append("at the end")


def test_an_interrupt_is_raised_at_exit_at_the_latest():
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        press_within(Interrupts(), reached, then_wait=False)
    assert reached == ["after the press", "at the end"]


def test_an_interrupt_is_raised_before_the_next_wait():
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        press_within(Interrupts(), reached, then_wait=True)
    assert reached == ["after the press"]


def test_an_interrupt_is_raised_at_once_in_a_wait_only():
    interrupts = Interrupts()
    reached: list[str] = []

    def wait() -> None:
        with interrupts.let_through:
            press()
            reached.append("never")

    with interrupts:
        with pytest.raises(KeyboardInterrupt):
            wait()
        with interrupts.let_through:
            pass
        reached.append("still inside")
    assert reached == ["still inside"]


def test_an_interrupt_is_raised_once():
    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        press_within(interrupts, [], then_wait=False)
    with interrupts, interrupts.let_through:
        pass


def test_the_users_own_handler_gets_it():
    pressed: list[int] = []
    old = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        with Interrupts():
            press()
            assert pressed == []
        assert pressed == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, old)


def test_ignored_stays_ignored():
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            press()
    finally:
        signal.signal(signal.SIGINT, old)


def test_nested():
    interrupts = Interrupts()
    reached: list[str] = []

    def nested() -> None:
        with interrupts:
            with interrupts:
                press()
            reached.append("between")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert reached == ["between"]


def test_another_thread_changes_nothing(handler):
    seen: list[object] = []

    def look() -> None:
        with Interrupts() as interrupts:
            seen.append(signal.getsignal(signal.SIGINT))
            assert interrupts is None

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [handler]
