"""Threads that answer what comes on one channel: short work stays with one thread, long work holds nobody up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from neuraxis.mesh.turns import Turns
from tests.mesh.conftest import LIMIT_S

Work = Callable[[], object]


class Gang:
    """Threads that take work from a queue, in turns; `done` has who did what, in the order of endings."""

    def __init__(self, threads: int) -> None:
        self.turns = Turns()
        self.queue: queue.SimpleQueue[tuple[str, Work] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.listening = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, name=f"{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        self.turns.take()
        while (work := self._next()) is not None:
            began = self.turns.begin()
            work[1]()
            self.done.put((work[0], threading.current_thread().name))
            self.turns.end(began)
        self.queue.put(None)  # for the next one
        self.turns.leave()

    def _next(self) -> tuple[str, Work] | None:
        self.listening.release()
        return self.queue.get()

    def close(self) -> None:
        self.queue.put(None)
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@pytest.fixture
def gang() -> Iterator[Gang]:
    made = Gang(4)
    yield made
    made.close()


def test_short_work_stays_with_the_thread_that_listens(gang: Gang) -> None:
    for number in range(20):
        gang.queue.put((f"{number}", lambda: None))
    done = [gang.done.get(timeout=LIMIT_S) for _ in range(20)]
    assert [what for what, _ in done] == [f"{number}" for number in range(20)]
    assert gang.listening.acquire(timeout=LIMIT_S)
    # Where the machine is busy, a thread may be taken for a slow one and lose its turn; it is no rule.
    assert len({who for _, who in done}) <= 2


def test_work_that_never_ends_holds_nobody_up(gang: Gang) -> None:
    go_on = threading.Event()
    gang.queue.put(("long", lambda: go_on.wait(LIMIT_S)))
    for number in range(50):
        gang.queue.put((f"{number}", lambda: None))
    done = [gang.done.get(timeout=LIMIT_S) for _ in range(50)]
    assert [what for what, _ in done] == [f"{number}" for number in range(50)]
    go_on.set()
    assert gang.done.get(timeout=LIMIT_S)[0] == "long"


def test_as_many_are_at_work_as_there_are_threads(gang: Gang) -> None:
    together = threading.Barrier(4)
    for _ in range(3):
        for number in range(4):
            gang.queue.put((f"{number}", lambda: together.wait(LIMIT_S)))
        done = [gang.done.get(timeout=LIMIT_S) for _ in range(4)]
        assert len({who for _, who in done}) == 4


def test_where_work_is_long_as_a_rule_others_listen_at_once(gang: Gang) -> None:
    for _ in range(20):
        gang.queue.put(("long", lambda: time.sleep(0.005)))
    for _ in range(20):
        gang.done.get(timeout=LIMIT_S)
    while gang.listening.acquire(blocking=False):
        pass
    began = gang.turns._typical_s
    assert began > 3e-4
    go_on = threading.Event()
    gang.queue.put(("last", lambda: go_on.wait(LIMIT_S)))
    assert gang.listening.acquire(timeout=LIMIT_S)
    go_on.set()
    assert gang.done.get(timeout=LIMIT_S)[0] == "last"


def test_after_a_rest_work_that_never_ends_is_noticed_as_well(gang: Gang) -> None:
    gang.queue.put(("first", lambda: None))
    gang.done.get(timeout=LIMIT_S)
    time.sleep(0.3)  # nobody looks at the clock now
    test_work_that_never_ends_holds_nobody_up(gang)
