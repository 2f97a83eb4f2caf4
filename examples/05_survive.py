"""A rank dies; the others get an error and continue without it.

python examples/05_survive.py
"""

import os
import signal
import subprocess
import sys
import tempfile

import numpy as np

import neuraxis.distributed as dist
from neuraxis.errors import PeerLost


def work(rank: int, size: int, folder: str, attempt: int = 0) -> None:
    place = f"file://{folder}/meet-{attempt}"
    try:
        with dist.DistributedContext(init_method=place, world_size=size, rank=rank, timeout=30):
            for step in range(5):
                if attempt == 0 and rank == 1 and step == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                total = np.ones(1)
                dist.all_reduce(total)
            print(f"rank {rank} of {size} finished: {total[0]:g} ranks took part in the last step", flush=True)
    except PeerLost as lost:
        print(f"rank {rank}: {lost}", flush=True)
        survivors = [r for r in range(size) if r != lost.rank]
        work(survivors.index(rank), size - 1, folder, attempt + 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]), 3, sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as meeting_place:
            ranks = [subprocess.Popen([sys.executable, __file__, str(rank), meeting_place]) for rank in range(3)]
            print("exit statuses:", [rank.wait() for rank in ranks])
