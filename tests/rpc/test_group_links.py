"""Messages between ranks when one is killed or stopped within a message, is late, or sends malformed data."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuraxis.comm.backends.shm.rings import ring_doorbell, ring_write
from neuraxis.comm.buffers import address_of
from neuraxis.errors import CalleeDied, CalleeGone, CallTimeout
from neuraxis.rpc import RpcContext, rpc_sync
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Endpoint
from tests.ranks import RankGroup
from tests.ranks.stopping import resume, stop

pytestmark = pytest.mark.alone

BIG = 3_000_000  # numbers: more than all that a connection holds back for a process that does not read


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def link_of(context: RpcContext) -> Any:
    return context._transport._link  # type: ignore[union-attr]


def killed_in_mid_message(context: RpcContext) -> None:
    """Rank 1 dies when half of a message is in rank 0's inbox; rank 0 still hears rank 2."""
    if context.rank == 1:
        endpoint = link_of(context)._group._calls.usable_backend()._endpoint
        counters, data, doorbell = endpoint._outgoing.get(0) or endpoint._open(0)
        half = np.zeros(516, np.int64)
        half[:4] = (0, 100_000, 2, 0)  # tag, bytes, their type, number: and then some of the bytes
        assert ring_write(counters, data, endpoint._capacity, address_of(half), half.nbytes) == half.nbytes
        ring_doorbell(doorbell)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    elif context.rank == 0:
        until(lambda: "rank1" not in context.names(), "its death to be known")
        for _ in range(3):
            assert rpc_sync(2, "call_on", 0, "pid") == os.getpid()
        with pytest.raises(CalleeGone):
            rpc_sync(1, "pid")


@pytest.mark.parametrize("rank_group", ["shm"], indirect=True)
def test_a_rank_killed_within_a_message_blocks_no_other_messages(rank_group: RankGroup) -> None:
    rank_group.run(killed_in_mid_message)
    rank_group.broken = True


def impatient_reply_channel(context: RpcContext) -> None:
    """Deadlines pass between the beginning of a long message and its end; then it comes whole, and the next one."""
    link = link_of(context)
    number = 77
    if context.rank == 1:
        array = np.arange(20_000_000, dtype=np.uint32)
        link.send(Endpoint("rank0", 1), number, Frame(b"\0" * 64, [array.view(np.uint8).data]), 30)
        link.send(Endpoint("rank0", 1), number, Frame(b"\1" * 64), 30)
    elif context.rank == 0:
        from neuraxis.rpc.group_transport import _GroupReplyChannel

        channel = _GroupReplyChannel(link, number)
        messages: list[bytes] = []
        late = 0
        while len(messages) < 2:
            came = channel.receive(Endpoint("rank1", 1), 1e-3)
            if came is None:
                late += 1
            else:
                messages.append(bytes(came))
        assert late, "it was meant to be too long for its deadline"
        assert messages[0][64:] == np.arange(20_000_000, dtype=np.uint32).tobytes()
        assert messages[1] == b"\1" * 64


@pytest.mark.parametrize("rank_group", ["shm"], indirect=True)
def test_a_deadline_within_a_message_keeps_the_channel_in_step(rank_group: RankGroup) -> None:
    rank_group.run(impatient_reply_channel)


def stopped_and_back(context: RpcContext) -> None:
    if context.rank != 0:
        return
    transport: Any = context._transport
    process, endpoint = rpc_sync(1, "pid"), transport.find(1)
    rpc_sync(1, "hold_one_of", 0)
    assert context.objects_kept == 1
    array = np.ones(BIG)
    stop(process)
    try:
        for _ in range(2):
            with pytest.raises(CallTimeout):
                context.call(1, "keep_extremes", [array], timeout=0.3)
        array[:] = 7  # must not change the message in flight
        assert "rank1" in context.names() or context.backend == "zenoh"  # where it may be unreachable
        assert not transport.is_gone(endpoint), "a deadline is not a death"
        assert context.objects_kept == 1
        assert rpc_sync(2, "echo", "others go on") == "others go on"
    finally:
        resume(process)
    assert rpc_sync(1, "echo", "back") == "back"
    assert {tuple(one) for one in rpc_sync(1, "extremes")} <= {(1.0, 1.0)}
    assert rpc_sync(1, "keep_extremes", np.full(BIG, 3.0)) is None
    assert tuple(rpc_sync(1, "extremes")[-1]) == (3.0, 3.0)
    rpc_sync(1, "let_go")
    until(lambda: context.objects_kept == 0, "what it held to be let go")


@pytest.mark.parametrize("rank_group", ["shm", "gloo", "zenoh", "mpi"], indirect=True)
def test_a_short_deadline_towards_a_stopped_rank_is_no_death(rank_group: RankGroup) -> None:
    rank_group.run(stopped_and_back)


def say_what_is_no_message(context: RpcContext) -> None:
    if context.rank == 0:
        group = link_of(context)._group
        for damaged in (b"\xff", b"\x04" * 17, bytes(48), b"\4\0\xff\xff" + bytes(60), b"\3" * 300, b"\1\0" * 50):
            group.send(np.frombuffer(damaged, np.uint8), group_dst=1, tag=0)
        assert rpc_sync(1, "echo", "still there") == "still there"
        assert rpc_sync(2, "call_on", 1, "pid") == rpc_sync(1, "pid")


@pytest.mark.parametrize("rank_group", ["shm"], indirect=True)
def test_malformed_messages_are_skipped(rank_group: RankGroup) -> None:
    rank_group.run(say_what_is_no_message)


def say_what_has_no_end(context: RpcContext) -> None:
    if context.rank == 0:
        link_of(context)._group.send(np.full(3072, 0xFF, np.uint8), group_dst=1, tag=0)
        with pytest.raises((CalleeDied, CalleeGone)):
            rpc_sync(1, "echo", 1)
        assert rpc_sync(2, "call_on", 1, "pid") > 0


@pytest.mark.parametrize("rank_group", ["gloo"], indirect=True)
def test_an_endless_message_stops_the_messages_of_its_rank_only(rank_group: RankGroup) -> None:
    rank_group.run(say_what_has_no_end)
    rank_group.broken = True
