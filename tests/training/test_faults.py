"""A rank that dies, raises or leaves within a step: the others soon raise, and none hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neuraxis.distributed import DistributedContext
from neuraxis.errors import PeerLost, StepInterrupted
from neuraxis.training import DataParallel, SyncBatchNorm
from tests.ranks.processes import Ranks, run_ranks

pytestmark = pytest.mark.alone

SIZE = 3
VICTIM = 1
STEP = 3
NOTICED_WITHIN_S = 10.0  # a deadline against hangs, also on a machine with more to do than cores
TINY: dict[str, Any] = {"first_bucket_bytes": 100, "bucket_bytes": 100}


class Fault(nn.Module):
    """Passes everything on; on the victim something happens in a backward pass, or a forward one."""

    def __init__(self, place: str, kind: str) -> None:
        super().__init__()
        self.place, self.kind, self.armed = place, kind, False

    def forward(self, x: Tensor) -> Tensor:
        if self.armed and self.place == "forward":
            self.happen()
        y = x * 1
        if self.armed and self.place == "backward":
            y.register_hook(lambda gradient: self.happen())
        return y

    def happen(self) -> None:
        (Path(os.environ["NEURAXIS_TEST_FOLDER"]) / "happened").write_text(repr(time.monotonic()))
        if self.kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "exits":
            os._exit(7)
        raise KeyError("the rank's own")


def _net(fault: Fault, norm: bool) -> nn.Sequential:
    torch.manual_seed(0)
    norms = [SyncBatchNorm(8)] if norm else []
    # In the backward pass the second half is done, and sent, when the fault happens.
    return nn.Sequential(nn.Linear(4, 8), *norms, fault, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


FAULTS = [
    ("shm", "backward", "dies", TINY),
    ("shm", "forward", "dies", {}),
    ("shm", "backward", "exits", {}),
    ("shm", "backward", "raises", TINY),
    ("shm", "forward", "raises", {"compress": "fp16"}),
    ("gloo", "backward", "dies", TINY),
    ("gloo", "backward", "raises", {}),
    ("gloo", "forward", "dies", {}),
]


@pytest.mark.parametrize(("backend", "place", "kind", "options"), FAULTS)
def test_the_others_lose_their_peer(backend: str, place: str, kind: str, options: dict[str, Any]) -> None:
    with Ranks(_train_until_it_fails, SIZE, backend, place, kind, options, torch=True) as ranks:
        outcomes = ranks.outcomes(90)
        happened = float((ranks.folder / "happened").read_text())
    story = "\n".join(f"--- rank {rank}\n{outcome.output}" for rank, outcome in enumerate(outcomes))
    for rank, outcome in enumerate(outcomes):
        if rank == VICTIM:
            assert outcome.status == {"dies": -signal.SIGKILL, "exits": 7, "raises": 1}[kind], story
            if kind == "raises":
                assert isinstance(outcome.error, KeyError), story
            continue
        assert outcome.error is None, story
        name, lost, reason, steps, noticed = outcome.value
        # Those who notice leave, too; but everybody names the one that was the first.
        assert (name, lost, steps) == ("PeerLost", VICTIM, STEP), story
        if backend == "gloo":
            expected = {"dies": "killed by SIGKILL", "raises": 'raised KeyError: "the rank\'s own"'}
            assert reason == expected[kind], story
        assert noticed - happened < NOTICED_WITHIN_S, story


def _train_until_it_fails(
    backend: str, place: str, kind: str, options: dict[str, Any]
) -> tuple[str, int | None, str, int, float]:
    torch.set_num_threads(1)
    with DistributedContext(backend, timeout=30) as context:
        fault = Fault(place, kind)
        model = DataParallel(_net(fault, norm=kind == "exits"), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        context.world.barrier()
        for step in range(STEP + 1):
            fault.armed = context.rank == VICTIM and step == STEP
            try:
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
            except PeerLost as error:
                noticed = time.monotonic()
                with pytest.raises(PeerLost):  # and it stays so
                    model(torch.ones(2, 4)).sum().backward()
                return type(error).__name__, error.rank, error.reason, step, noticed
            optimizer.step()
    return "nothing", -1, "", -1, 0.0


def test_an_interrupted_backward() -> None:
    values = run_ranks(_interrupted, 2, torch=True)
    assert values[0][0] == "StepInterrupted"
    assert "after some of its gradients had been sent" in values[0][1]
    assert values[1][0] == "PeerLost"


def _interrupted() -> tuple[str, str]:
    """Rank 0 catches its own exception in mid-step, first before anything was sent, then after."""
    torch.set_num_threads(1)
    with DistributedContext("shm", timeout=30) as context:
        for overlap in (False, True):
            fault = Fault("backward", "raises")
            model = DataParallel(_net(fault, norm=False), overlap=overlap, **TINY)
            whole = _net(Fault("", ""), norm=False)
            fault.armed = True
            if context.rank == 0 or not overlap:
                with pytest.raises(KeyError):
                    model(torch.ones(2, 4)).sum().backward()
            fault.armed = False
            model.zero_grad()
            try:
                model(torch.ones(3, 4)).sum(1).mean().backward()
            except (StepInterrupted, PeerLost) as error:
                assert overlap
                with pytest.raises(type(error)):
                    model(torch.ones(2, 4)).sum().backward()
                return type(error).__name__, str(error)
            assert not overlap
            whole(torch.ones(3, 4)).sum(1).mean().backward()
            for mine, theirs in zip(model.parameters(), whole.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad)
    return "nothing", ""


class Checkpointed(nn.Module):
    """A layer that is used within a checkpoint and outside of it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = checkpoint(lambda x: torch.tanh(self.twice(x)), x, use_reentrant=self.reentrant)
        return self.last(self.twice(x))  # type: ignore[no-any-return]


def test_checkpointing_within_the_model() -> None:
    values = run_ranks(_checkpointed, 2, torch=True)
    assert [kind for kind, _ in values] == ["StepInterrupted"] * 2
    assert all("'twice." in text and "use_reentrant=False" in text for _, text in values)


def _checkpointed() -> tuple[str, str]:
    torch.set_num_threads(1)
    with DistributedContext("shm", timeout=30) as context:
        whole = Checkpointed(False)
        x = torch.arange(24.0).view(6, 4) / 10
        whole(x).square().mean().backward()
        own = x[2 * context.rank : 2 + 4 * context.rank]  # two rows and four
        for reentrant, overlap, buckets in (
            (False, True, TINY),
            (True, False, TINY),
            (True, True, {}),
            (True, True, TINY),
        ):
            model = DataParallel(Checkpointed(reentrant), overlap=overlap, **buckets)
            try:
                model(own).square().mean().backward()
            except StepInterrupted as error:
                assert (reentrant, overlap, buckets) == (True, True, TINY)
                with pytest.raises(StepInterrupted):
                    model(own)
                return type(error).__name__, str(error)
            for mine, theirs in zip(model.parameters(), whole.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad)
    return "nothing", ""
