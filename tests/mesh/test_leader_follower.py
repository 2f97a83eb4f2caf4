"""Leader/follower threads of one channel: short tasks stay in one thread, long ones block no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from neuraxis.threads import LeaderFollower
from tests.mesh.conftest import LIMIT_S

Work = Callable[[], object]


class Gang:
    """Threads that take tasks from a queue in turns; `done` has (task, thread), in the order of completion."""

    def __init__(self, threads: int) -> None:
        self.leadership = LeaderFollower()
        self.queue: queue.SimpleQueue[tuple[str, Work] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.listening = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, name=f"{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        self.leadership.lead()
        while (work := self._next()) is not None:
            began = self.leadership.begin()
            work[1]()
            self.done.put((work[0], threading.current_thread().name))
            self.leadership.end(began)
        self.queue.put(None)  # for the next one
        self.leadership.resign()

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


def test_short_tasks_run_in_the_leader_thread(gang: Gang) -> None:
    for number in range(20):
        gang.queue.put((f"{number}", lambda: None))
    done = [gang.done.get(timeout=LIMIT_S) for _ in range(20)]
    assert [what for what, _ in done] == [f"{number}" for number in range(20)]
    assert gang.listening.acquire(timeout=LIMIT_S)
    # Where the machine is busy, a thread may be taken for a slow one and lose its turn; it is no rule.
    assert len({who for _, who in done}) <= 2


def test_a_task_that_never_ends_does_not_block_the_others(gang: Gang) -> None:
    resume = threading.Event()
    gang.queue.put(("long", lambda: resume.wait(LIMIT_S)))
    for number in range(50):
        gang.queue.put((f"{number}", lambda: None))
    done = [gang.done.get(timeout=LIMIT_S) for _ in range(50)]
    assert [what for what, _ in done] == [f"{number}" for number in range(50)]
    resume.set()
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
    began = gang.leadership._mean_s
    assert began > 3e-4
    resume = threading.Event()
    gang.queue.put(("last", lambda: resume.wait(LIMIT_S)))
    assert gang.listening.acquire(timeout=LIMIT_S)
    resume.set()
    assert gang.done.get(timeout=LIMIT_S)[0] == "last"


def test_a_task_that_never_ends_is_detected_after_an_idle_period(gang: Gang) -> None:
    gang.queue.put(("first", lambda: None))
    gang.done.get(timeout=LIMIT_S)
    time.sleep(0.3)  # no thread checks the clock now
    test_a_task_that_never_ends_does_not_block_the_others(gang)
