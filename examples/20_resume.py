"""A rank is killed in mid-epoch; all start again from the last state, and end where an undisturbed run would.

neuraxis launch -n 2 --max-restarts 1 examples/20_resume.py [folder]
"""

import os
import shutil
import signal
import sys
import tempfile
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from neuraxis.distributed import Checkpointer, DataParallel, init_distributed, shard

first_attempt = os.environ.get("NEURAXIS_RESTART", "0") == "0"
own_folder = Path(tempfile.gettempdir()) / "neuraxis-resume"
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else own_folder

context = init_distributed(timeout=60)
torch.manual_seed(0)
model = DataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
inputs = torch.randn(100, 8)
loader = shard(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, seed=0)  # 7 steps on 2 ranks

# The loader is a part: its position is saved. Random states are saved too, for the dropout.
checkpointer = Checkpointer(folder, keep=2, model=model, optimizer=optimizer, loader=loader)
step = checkpointer.restore() or 0
if step and context.is_main_process:
    print(f"resumed in epoch {loader.epoch + 1}, after step {step} and {loader.position} samples of it", flush=True)
while loader.epoch < 3:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            checkpointer.save(step)
        if first_attempt and context.rank == 1 and step == 12:
            os.kill(os.getpid(), signal.SIGKILL)

if context.is_main_process:
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"finished at step {step}: parameters {zlib.crc32(parameters.numpy().tobytes()):08x}")
    if folder == own_folder:
        shutil.rmtree(folder)  # else the next run would find that it is over
context.close()
