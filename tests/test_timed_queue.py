"""The queue whose timed wait ends on time."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from neuraxis.threads import Empty, TimedQueue


@pytest.fixture
def slow_signal() -> Iterator[None]:
    """A signal that comes soon, whose handler takes longer than the wait that it interrupts."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: time.sleep(0.1))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def test_a_wait_ends_though_a_signal_was_handled_past_its_deadline(slow_signal: None) -> None:
    waiting: TimedQueue[str] = TimedQueue()
    rescue = threading.Timer(10.0, waiting.put, ["too late"])
    rescue.start()
    try:
        with pytest.raises(Empty):
            waiting.get(timeout=0.05)
    finally:
        rescue.cancel()
        rescue.join()


def test_things_come_out_in_the_order_in_which_they_were_put_in() -> None:
    things: TimedQueue[int] = TimedQueue()
    assert things.empty()
    for thing in range(5):
        things.put(thing)
    assert things.qsize() == 5
    assert [things.get(timeout=0.0), things.get(), things.get_nowait(), things.get(1.0), things.get(0.0)] == [*range(5)]
    assert things.empty()
    with pytest.raises(Empty):
        things.get_nowait()
    with pytest.raises(Empty):
        things.get(timeout=0.0)


def test_every_thing_reaches_one_reader_of_many() -> None:
    things: TimedQueue[int | None] = TimedQueue()
    taken: list[list[int]] = [[] for _ in range(4)]

    def read(mine: list[int]) -> None:
        while (thing := things.get(timeout=30.0)) is not None:
            mine.append(thing)

    def write(first: int) -> None:
        for thing in range(first, 20_000, 4):
            things.put(thing)

    readers = [threading.Thread(target=read, args=(mine,)) for mine in taken]
    writers = [threading.Thread(target=write, args=(first,)) for first in range(4)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    for _ in readers:
        things.put(None)
    for thread in readers:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in readers)
    assert sorted(thing for mine in taken for thing in mine) == [*range(20_000)]


def test_one_ring_for_two_things_wakes_two_readers() -> None:
    things: TimedQueue[int] = TimedQueue()
    taken: list[int] = []
    readers = [threading.Thread(target=lambda: taken.append(things.get(timeout=30.0))) for _ in range(2)]
    for thread in readers:
        thread.start()
    things._items.extend([1, 2])  # as if the second had come before the first was heard
    things._notify()
    for thread in readers:
        thread.join(10.0)
    assert sorted(taken) == [1, 2]
