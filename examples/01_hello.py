"""Ranks, and a sum over them.

neuraxis launch -n 4 examples/01_hello.py
"""

import numpy as np

import neuraxis.distributed as dist

with dist.DistributedContext() as context:
    data = np.arange(4.0) + 4 * context.rank
    print(f"rank {context.rank} of {context.world_size} holds {data}")
    dist.all_reduce(data)
    if context.is_main_process:
        print(f"the sum over {context.backend}: {data}")
