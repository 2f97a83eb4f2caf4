"""A rank killed within an epoch, all restarted: the parameters equal the undisturbed run, bit for bit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from neuraxis.comm import DistributedContext
from neuraxis.training import Checkpointer, DataParallel, TopK, shard
from tests.ranks.processes import run_ranks
from tests.training import restart_script

LAUNCH = [sys.executable, "-m", "neuraxis", "launch"]


def test_a_rank_killed_in_mid_epoch_leads_to_the_same_parameters(tmp_path: Path) -> None:
    # 18 steps, 6 in each epoch; states after every third.
    folders = {name: tmp_path / name for name in ("undisturbed", "killed")}
    for folder in folders.values():
        folder.mkdir()
    run_ranks(restart_script.main, 2, str(folders["undisturbed"]), torch=True)
    done = subprocess.run(
        [*LAUNCH, "-n", "2", "--max-restarts", "1", restart_script.__file__, str(folders["killed"]), "8"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "after the failure of rank 1: attempt 2 of 2" in done.stderr
    assert "SIGKILL" in done.stderr
    assert sorted(re.findall(r"begins at step (\d+)", done.stdout)) == ["0", "0", "6", "6"]
    finals = [(folder / "final.safetensors").read_bytes() for folder in folders.values()]
    assert finals[0] == finals[1]
    assert b'"steps":"18"' in finals[0]


OPTIONS: dict[str, dict[str, Any]] = {
    "top-k with its residuals": {"compress": TopK(0.2)},
    "half precision gradients": {"compress": "fp16"},
    "local steps, in the middle of three": {"sync_every": 3},
    "bf16": {"precision": "bf16"},
    "fp16 with its scale": {"precision": "fp16"},
    "buffers of each rank's own": {"buffers": "keep"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_training_with_options_goes_on_to_the_bit(tmp_path: Path, name: str) -> None:
    for undisturbed, resumed in run_ranks(_resume_with, 2, str(tmp_path), name, torch=True):
        assert undisturbed == resumed
    # Another number of ranks goes on too; what it comes to depends on its random streams.
    assert run_ranks(_resume_elsewhere, 3, str(tmp_path), name, torch=True) == [7] * 3


def _resume_with(folder: str, name: str) -> tuple[list[float], list[float]]:
    """The values of a model that was saved and went on, and of one that was restored in between."""
    with DistributedContext("shm", timeout=60):
        undisturbed = _Training(folder, OPTIONS[name])
        undisturbed.run(7)
        undisturbed.checkpointer.save(7)
        undisturbed.run(12)
        resumed = _Training(folder, OPTIONS[name])
        resumed.step = resumed.checkpointer.restore() or 0
        resumed.run(12)
        return undisturbed.values(), resumed.values()


def _resume_elsewhere(folder: str, name: str) -> int:
    with DistributedContext("shm", timeout=60) as context:
        resumed = _Training(folder, OPTIONS[name])
        found = resumed.step = resumed.checkpointer.restore() or 0
        resumed.run(12)
        values = torch.tensor(resumed.values())
        assert values.isfinite().all()
        if "sync_every" not in OPTIONS[name] and "buffers" not in OPTIONS[name]:
            everybody = torch.zeros(context.world_size, len(values))
            context.world.all_gather_into_tensor(everybody, values)
            assert torch.equal(everybody, values.expand_as(everybody))
        return found


class _Training:
    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        torch.manual_seed(int(os.environ["RANK"]))
        net = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 1))
        self.model = DataParallel(net, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        inputs = torch.randn(41, 4, generator=torch.Generator().manual_seed(1))
        self.loader = shard(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 4, seed=2, uneven="drop")
        self.checkpointer = Checkpointer(
            folder, model=self.model, optimizer=self.optimizer, loader=self.loader, scaler=self.model.scaler
        )
        self.step = 0

    def run(self, until: int) -> None:
        self.loader.load_state_dict(self.loader.state_dict())  # go on in the epoch that was left
        while self.step < until:
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.mse_loss(self.model(x).float(), y)
                self.model.scaler.scale(loss).backward()
                self.model.scaler.step(self.optimizer)
                self.model.scaler.update()
                self.step += 1
                if self.step == until:
                    break

    def values(self) -> list[float]:
        values: list[float] = torch.cat([one.double().flatten() for one in self.model.state_dict().values()]).tolist()
        return [*values, self.model.scaler.get_scale()]
