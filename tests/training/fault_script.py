"""A training over MPI in which rank 1 ends within a step.

mpirun -n 3 python fault_script.py raises
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

from neuraxis.distributed import DistributedContext
from neuraxis.errors import PeerLost
from neuraxis.training import DataParallel

DEADLINE_S = 60.0
VICTIM = 1


def main(kind: str) -> None:
    torch.set_num_threads(1)
    with DistributedContext("mpi", timeout=DEADLINE_S) as context:
        middle = nn.Tanh()
        model = DataParallel(
            nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 3)), first_bucket_bytes=100, bucket_bytes=100
        )
        try:
            for step in range(4):
                if (context.rank, step) == (VICTIM, 3):
                    middle.register_full_backward_hook(lambda *_: _happen(kind))
                model(torch.ones(2, 4)).sum().backward()
        except PeerLost as error:
            print(f"rank {context.rank} lost rank {error.rank}: {error.reason}", flush=True)
            time.sleep(0.5)  # a checkpoint is written
            print("saved", flush=True)
            return
        print("a rank went on", flush=True)


def _happen(kind: str) -> None:
    """In the backward pass, when a part of the gradients has been sent."""
    print("it happens", flush=True)
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exits":
        sys.exit(3)
    raise KeyError("the rank's own")


if __name__ == "__main__":
    main(sys.argv[1])
