"""Run a function on several ranks, without a script: the values of all ranks, or an exception, are returned.

python examples/08_run_function.py
"""

import numpy as np

import neuraxis.distributed as dist
import neuraxis.launch


def estimate_pi(samples: int) -> float:
    with dist.DistributedContext() as context:
        points = np.random.default_rng(context.rank).random((samples, 2))
        inside = np.array([np.count_nonzero((points**2).sum(axis=1) < 1)])
        dist.all_reduce(inside)
        return 4 * float(inside[0]) / (samples * context.world_size)


def fail(samples: int) -> float:
    raise ValueError(f"{samples} is not a number I like")


if __name__ == "__main__":
    print("pi, as every rank has it:", neuraxis.launch.run(estimate_pi, 3, 200_000))
    try:
        neuraxis.launch.run(fail, 2, 13)
    except ValueError as error:
        print("a rank's own exception:", error)
