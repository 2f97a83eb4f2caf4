"""Failures: a dead rank soon raises on the others, and a group never leaks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from neuraxis.errors import CollectiveMismatch, CommunicatorClosed, ForkedProcess, PeerLost
from tests.ranks.processes import Ranks, run_ranks
from tests.torch.groups import assert_nothing_left, process_group

pytestmark = pytest.mark.alone

NOTICED_WITHIN_S = 3.0  # a second is promised; the rest is for a machine with more to do than cores


def test_a_killed_rank_is_peer_lost_in_every_kind_of_call() -> None:
    with Ranks(_lose_the_last, 3, torch=True) as ranks:
        outcomes = ranks.outcomes(timeout=100)
    story = [outcome.output for outcome in outcomes]
    assert [outcome.status for outcome in outcomes] == [0, 0, -signal.SIGKILL], story
    for rank, count in ((0, 8), (1, 7)):
        took = outcomes[rank].value
        assert len(took) == count, story
        assert max(took.values()) < NOTICED_WITHIN_S, took


def _lose_the_last() -> dict[str, float]:
    """Return, for each call, the time until the survivors of rank 2 raised."""
    torch.set_num_threads(1)
    dist.init_process_group("shm")
    rank = dist.get_rank()
    calls: dict[str, Callable[[Any], object]] = {  # each in a group of its own, because a failed group stays failed
        "async": lambda group: dist.all_reduce(torch.ones(4), group=group, async_op=True).wait(),
        "future": lambda group: dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().wait(),
        "functional": lambda group: functional.all_reduce(torch.ones(4), "sum", group) + 1,
        "receive": lambda group: dist.recv(torch.ones(4), 2, group=group),
        "some ranks": lambda group: dist.all_reduce(torch.ones(4), group=group),
        "ddp": lambda group: model(torch.ones(2, 4)).sum().backward(),
        "sync": lambda group: dist.all_reduce(torch.ones(4), group=group),
        "new group": lambda group: dist.new_group(),
    }
    groups = {name: dist.new_group([0, 2] if name == "some ranks" else [0, 1, 2]) for name in calls}
    model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=groups["ddp"])
    calls["ddp"](None)
    calls["functional"](groups["functional"])
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    took = {}
    for name, call in calls.items():
        if name == "some ranks" and rank == 1:
            continue
        started = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            call(groups[name])
        took[name] = time.monotonic() - started
        assert (caught.value.rank, caught.value.signal) == (2, signal.SIGKILL), (name, caught.value)
    dist.destroy_process_group()
    assert_nothing_left()
    return took


def test_backward_raises_peer_lost_in_every_mode_of_ddp_and_in_fsdp2() -> None:
    with Ranks(_lose_the_last_in_backward, 3, torch=True) as ranks:
        outcomes = ranks.outcomes(timeout=100)
    story = [outcome.output for outcome in outcomes]
    assert [outcome.status for outcome in outcomes] == [0, 0, -signal.SIGKILL], story
    for outcome in outcomes[:2]:
        assert outcome.value == dict.fromkeys(outcome.value, "PeerLost of rank 2"), outcome.value
        assert len(outcome.value) == 13


def _lose_the_last_in_backward() -> dict[str, str]:
    """Return what `backward()` raised in each mode, when rank 2 had died after the forward pass."""
    torch.set_num_threads(1)
    dist.init_process_group("shm")
    wrap: dict[str, Callable[[Any], Any]] = {
        "plain": lambda group: _ddp(group),
        "many buckets": lambda group: _ddp(group, bucket_cap_mb=0.001),
        "static graph": lambda group: _ddp(group, static_graph=True),
        "unused": lambda group: _ddp(group, find_unused_parameters=True),
        "bucket view": lambda group: _ddp(group, gradient_as_bucket_view=True),
        "after no_sync": lambda group: _ddp(group),
        "join": lambda group: _ddp(group),
        "hook": lambda group: _ddp(group, hook=default_hooks.allreduce_hook),
        "fp16 hook": lambda group: _ddp(group, hook=default_hooks.fp16_compress_hook),
        "wrapped hook": lambda group: _ddp(group, hook=default_hooks.fp16_compress_wrapper(_two_steps_hook)),
        "powerSGD": lambda group: _ddp(group, hook=powerSGD_hook.powerSGD_hook, state=_power_sgd(group)),
        "built-in hook": lambda group: _ddp(group, builtin=dist.BuiltinCommHookType.ALLREDUCE),
        "fsdp2": lambda group: fully_shard(_layers(), mesh=DeviceMesh.from_group(group, "cpu")),
    }
    # A failed group stays failed, so each mode has its own.
    models = {mode: make(dist.new_group()) for mode, make in wrap.items()}
    x = torch.ones(2, 16)
    losses, joined = {}, ExitStack()
    for mode, model in models.items():
        for _ in range(3):  # DDP reorders its buckets after the first step
            model(x).sum().backward()
        if mode == "after no_sync":
            with model.no_sync():
                model(x).sum().backward()
        if mode == "join":
            joined.enter_context(model.join())
        losses[mode] = model(x).sum()
    dist.barrier()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    raised = {}
    for mode, loss in losses.items():
        try:
            loss.backward()
            raised[mode] = "nothing"
        except ConnectionError as error:
            raised[mode] = f"{type(error).__name__} of rank {getattr(error, 'rank', None)}"
        except Exception as error:
            raised[mode] = f"{type(error).__name__}: {error}"
    with pytest.raises(PeerLost):  # leaving `join` waits for the others
        joined.close()
    dist.destroy_process_group()
    assert_nothing_left()
    return raised


def _layers() -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])


def _ddp(group: Any, hook: Any = None, state: Any = None, builtin: Any = None, **options: Any) -> Any:
    model = DistributedDataParallel(_layers(), process_group=group, **options)
    if hook is not None:
        model.register_comm_hook(group if state is None else state, hook)
    if builtin is not None:
        model._register_builtin_comm_hook(builtin)
    return model


def _power_sgd(group: Any) -> Any:
    return powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)


def _two_steps_hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0]).then(lambda done: done.value() / 2)


def test_a_rank_that_leaves_all_groups_after_a_loss_names_the_lost_rank_in_each() -> None:
    with Ranks(_lose_through_another_rank, 3, torch=True) as ranks:
        outcomes = ranks.outcomes(timeout=100)
    story = [outcome.output for outcome in outcomes]
    assert [outcome.status for outcome in outcomes] == [-signal.SIGKILL, 0, 0], story
    assert [outcome.value for outcome in outcomes[1:]] == [(0, signal.SIGKILL)] * 2, story


def _lose_through_another_rank() -> tuple[int | None, int | None]:
    """Return the rank that this one has lost, with its signal. Rank 2 has no group with rank 0 in use."""
    dist.init_process_group("shm")
    rank = dist.get_rank()
    # torch closes the newest group first: rank 1 ends the one that has lost a rank before the one with rank 2.
    with_the_last, with_the_first = dist.new_group([1, 2]), dist.new_group([0, 1])
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLost) as caught:
        dist.all_reduce(torch.ones(4), group=with_the_first if rank == 1 else with_the_last)
    dist.destroy_process_group()  # after the exception was handled
    assert_nothing_left()
    return caught.value.rank, caught.value.signal


def test_groups_end_and_begin_again() -> None:
    assert run_ranks(_again, 2, torch=True) == [None] * 2


def _again() -> None:
    # One store for all: with env:// each group has a store of its own, and a rank that is ahead of rank 0 would
    # still find that of the group before. It also shows that nobody reads what an earlier group has left there.
    store, _, _ = next(dist.rendezvous("env://"))
    here = {"store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    for backend in ("shm", "cpu:shm", "shm"):
        with process_group(backend, **here) as (rank, size):
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor)
            assert tensor.item() == sum(range(size))
            dist.all_reduce(tensor, async_op=True).wait()
    for check in (_wrong_call, _aborted, _forked):
        with process_group(**here) as (rank, _):
            check(rank)


def _wrong_call(rank: int) -> None:
    with pytest.raises(CollectiveMismatch):
        dist.all_reduce(torch.ones(2 + rank))
    with pytest.raises((CollectiveMismatch, PeerLost)):
        dist.barrier()


def _aborted(rank: int) -> None:
    """A wait for a rank that never arrives ends when its group is aborted."""
    group = dist.new_group()
    assert group is not None
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        group.abort()
        with pytest.raises((CommunicatorClosed, PeerLost)):
            work.wait()
    dist.barrier()


def _forked(rank: int) -> None:
    """A child (such as a DataLoader's worker) has no rank of its own, and does its parent no harm."""
    child = os.fork()
    if child == 0:
        try:
            dist.barrier()
        except ForkedProcess:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    dist.barrier()
