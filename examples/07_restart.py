"""Killed in the middle, started again from its checkpoint.

neuraxis launch -n 2 --max-restarts 1 examples/07_restart.py [checkpoint.npy]
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

import neuraxis.distributed as dist

first_attempt = os.environ.get("NEURAXIS_RESTART", "0") == "0"
checkpoint = Path(sys.argv[1] if len(sys.argv) > 1 else Path(tempfile.gettempdir()) / "neuraxis-restart.npy")

with dist.DistributedContext(timeout=30) as context:
    state = np.zeros(2)  # the step, and a sum that grows with it
    if context.is_main_process and checkpoint.exists() and not first_attempt:
        state = np.load(checkpoint)
    dist.broadcast(state, src=0)
    while state[0] < 10:
        if first_attempt and context.rank == 1 and state[0] == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        share = np.array([state[0] * context.rank])
        dist.all_reduce(share)
        state += (1, share[0])
        if context.is_main_process:
            temporary = checkpoint.with_suffix(".tmp.npy")
            np.save(temporary, state)
            temporary.replace(checkpoint)  # a checkpoint is there whole or not at all
        dist.barrier()
    if context.is_main_process:
        print(f"finished at step {state[0]:g} with {state[1]:g}")
        checkpoint.unlink()
