"""Closing a group while operations are pending."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.errors import CollectiveTimeout, CommunicatorClosed
from tests.ranks.processes import run_ranks


def _pending_receive() -> str:
    context = dist.init_distributed("shm", timeout=30)
    pending = dist.irecv(np.zeros(3), src=1 - context.rank)
    context.shutdown()
    with pytest.raises(CommunicatorClosed):
        pending.wait()
    return "raised"


def test_a_receive_that_outlives_its_context_raises() -> None:
    assert run_ranks(_pending_receive, 2) == ["raised", "raised"]


def _abort_from_another_thread(operation: str) -> str:
    context = dist.init_distributed("shm", timeout=30)
    dist.barrier()
    if context.rank == 1:
        time.sleep(1.0)  # alive and elsewhere, while rank 0 waits for it
        context.shutdown()
        return "elsewhere"
    threading.Timer(0.3, context.abort).start()
    call = {"recv": lambda: dist.recv(np.zeros(1), src=1), "barrier": dist.barrier}[operation]
    with pytest.raises(CommunicatorClosed):
        call()
    return "aborted"


@pytest.mark.parametrize("operation", ["recv", "barrier"])
def test_abort_from_another_thread(operation: str) -> None:
    assert run_ranks(_abort_from_another_thread, 2, operation) == ["aborted", "elsewhere"]


def _receive_after_a_timeout() -> list[float]:
    with dist.DistributedContext("shm", timeout=0.5) as context:
        late, wanted = np.zeros(1), np.zeros(1)
        with pytest.raises(CollectiveTimeout):
            dist.recv(late, src=0)
        dist.send(np.full(1, 7.0), dst=0)
        dist.recv(wanted, src=0)
        assert context.world_size == 1
        return [float(late[0]), float(wanted[0])]


def test_a_timed_out_receive_consumes_no_later_message() -> None:
    assert run_ranks(_receive_after_a_timeout, 1) == [[0.0, 7.0]]


def _callback_that_raises() -> float:
    with dist.DistributedContext("shm", timeout=30):
        silence, threading.excepthook = threading.excepthook, lambda arguments: None
        try:
            first = dist.all_reduce(np.ones(2), async_op=True)
            assert first is not None
            first.add_done_callback(lambda work: 1 / 0)
            data = np.ones(1)
            second = dist.all_reduce(data, async_op=True)
            assert second is not None
            second.wait(20)
        finally:
            threading.excepthook = silence
        dist.barrier()
        return float(data[0])


def test_a_raising_callback_does_not_stop_the_others() -> None:
    assert run_ranks(_callback_that_raises, 2) == [2.0, 2.0]


def _timeout_of_a_group() -> float:
    with dist.DistributedContext("shm", timeout=60) as context:
        group = dist.new_group([0, 1], timeout=0.5)
        if context.rank == 1:
            dist.barrier()
            return 0.0
        started = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=r"within 0\.5 s"):
            dist.barrier(group=group)
        dist.barrier()  # the world is not harmed
        return time.monotonic() - started


def test_a_group_has_its_own_timeout() -> None:
    waited, _ = run_ranks(_timeout_of_a_group, 2)
    assert 0.5 <= waited < 30


def _nested_groups_end_with_the_context() -> str:
    with dist.DistributedContext("shm", timeout=30):
        group = dist.new_group([0, 1])
        inner = group.new_group([0, 1])
        inner.barrier()
    with pytest.raises(CommunicatorClosed):
        inner.barrier()
    return "closed"


def test_groups_within_groups_end_with_the_context() -> None:
    assert run_ranks(_nested_groups_end_with_the_context, 2) == ["closed", "closed"]
