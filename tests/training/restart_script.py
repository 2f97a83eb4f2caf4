"""A training in which rank 1 dies in the first attempt; for `neuraxis launch --max-restarts 1`.

    python restart_script.py FOLDER [STEP]

In the middle of the backward pass of STEP, rank 1 is killed. Rank 0 writes FOLDER/final.safetensors at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from neuraxis.distributed import DistributedContext
from neuraxis.training import Checkpointer, DataParallel, SyncBatchNorm, shard

EPOCHS = 3
SAVE_EVERY = 3


def main(folder: str, fatal_step: int = -1) -> None:
    torch.set_num_threads(1)
    with DistributedContext(timeout=60) as context:
        torch.manual_seed(context.rank)  # each rank's dropout is its own, and so is its model until it is wrapped
        model = DataParallel(
            nn.Sequential(nn.Linear(6, 16), SyncBatchNorm(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        inputs = torch.randn(45, 6, generator=torch.Generator().manual_seed(1))
        data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
        loader = shard(data, 4, seed=2)
        checkpointer = Checkpointer(
            Path(folder, "states"), keep=2, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader
        )
        step = checkpointer.restore() or 0
        print("begins at step", step, flush=True)
        while loader.epoch < EPOCHS:
            for x, y in loader:
                if (step, context.rank, os.environ.get("NEURAXIS_RESTART", "0")) == (fatal_step, 1, "0"):
                    next(model.parameters()).register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                step += 1
                if step % SAVE_EVERY == 0:
                    checkpointer.save(step)
            scheduler.step()
        if context.rank == 0:
            save_file(model.state_dict(), Path(folder, "final.safetensors"), metadata={"steps": str(step)})


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
