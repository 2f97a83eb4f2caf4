"""Overlap computation and communication: async_op=True returns at once; call wait() when the result is needed.

neuraxis launch -n 2 examples/04_overlap.py
"""

import time

import numpy as np

import neuraxis.distributed as dist

with dist.DistributedContext() as context:
    gradients = [np.full(2_000_000, float(context.rank + layer), np.float32) for layer in range(4)]
    matrix = np.random.default_rng(0).standard_normal((400, 400))

    dist.barrier()
    started = time.perf_counter()
    works = []
    for gradient in gradients:  # as a backward pass does: the next layer is computed while this one is reduced
        works.append(dist.all_reduce(gradient, op=dist.ReduceOp.AVG, async_op=True))
        matrix = np.tanh(matrix @ matrix.T / 400)
    for work in works:
        work.wait()
    elapsed = time.perf_counter() - started

    expected = [layer + (context.world_size - 1) / 2 for layer in range(4)]
    assert [float(gradient[0]) for gradient in gradients] == expected
    if context.is_main_process:
        print(f"four layers averaged while four products were computed, in {elapsed * 1e3:.0f} ms")
