"""Runs PyTorch's own distributed tests (`DistributedTest._DistTestBase`, in the torch wheel) over backend shm.

PyTorch starts new processes for each of its tests. Here the ranks stay, and each test has a process group and a
folder of its own, as PyTorch's driver gives it. Its decorators decide by the name of the backend what applies; a
name they do not know would skip much that does, so they get the name "gloo", the other backend for CPU tensors, while
the group that the test gets is shm. What then fails only because it is not gloo is listed in NOT_FOR_SHM.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
import unittest
from collections.abc import Collection
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

_CUDA = "needs CUDA devices (PyTorch's own test lacks the decorator that says so)"
_TEXT = "asks for the words of gloo's timeout error; shm raises CollectiveTimeout or PeerLost, which name the rank"
NOT_FOR_SHM: dict[str, str] = {
    "test_all_to_all_cuda": _CUDA,
    "test_all_to_all_cuda_complex": _CUDA,
    "test_all_to_all_full_group_cuda": _CUDA,
    "test_all_to_all_group_cuda": _CUDA,
    "test_barrier_full_group_cuda": _CUDA,
    "test_barrier_group_cuda": _CUDA,
    "test_batch_isend_irecv_op_err": _CUDA,
    "test_batch_isend_irecv_mixed_backend_err": "needs NCCL",
    "test_barrier_timeout_full_group": _TEXT,
    "test_barrier_timeout_global": _TEXT,
    "test_barrier_timeout_group": _TEXT,
    "test_SyncBatchNorm_process_group": "needs torchvision",
}
"""Tests that PyTorch does not skip for gloo and that do not apply to shm, with the reason."""

ASKS_FOR_THE_NAME = {"test_get_backend", "test_backend_apis"}
NEEDS_FOUR_RANKS = {"test_new_subgroups_with_group_param"}  # besides those that skip themselves with fewer
NEEDS_THREE_RANKS = {"test_monitored_barrier_failure_order"}  # besides those of the group of ranks 1 and 2

TIMEOUT_S = 30

Outcome = tuple[str, str]
"""("passed" | "skipped" | "failed", why)"""


@cache
def _suite() -> Any:
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", "3")
    os.environ.setdefault("TEMP_DIR", os.getcwd())
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        """PyTorch's tests, without its way of starting processes."""

    return distributed_test, Suite


def run_tests(folder: str, only: Collection[str] | None = None, backend: str = "shm") -> dict[str, Outcome]:
    """Called by every rank: run all tests that apply with so many ranks, or `only` some, one after the other."""
    import torch

    import neuraxis.torch  # noqa: F401

    torch.set_num_threads(1)
    _, suite = _suite()
    size = int(os.environ["WORLD_SIZE"])
    names = {name for name in dir(suite) if name.startswith("test_")} - NOT_FOR_SHM.keys()
    if size < 4:
        names -= NEEDS_FOUR_RANKS
    if size < 3:
        names -= NEEDS_THREE_RANKS
        # With any backend these fail on two ranks: they make a group of ranks 1 and 2.
        names -= {
            name for name in names if "_init_group_test" in inspect.getsource(inspect.unwrap(getattr(suite, name)))
        }
    chosen = sorted(names if only is None else names.intersection(only))
    return {name: _run_one(name, Path(folder) / name, backend) for name in chosen}


def _run_one(name: str, folder: Path, backend: str) -> Outcome:
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed

    module, suite = _suite()
    started = time.perf_counter()
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    os.environ["INIT_METHOD"] = f"file://{folder}/init_dir/shared_init_file"
    module.Barrier.barrier_id = 0
    # Tests of groups want 8 ranks, or MPI, though three are enough for them: see skip_if_small_worldsize.
    os.environ["BACKEND"] = "mpi"
    module.BACKEND = backend if name in ASKS_FOR_THE_NAME else "gloo"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        set_rng_seed(1234)  # each of PyTorch's tests runs in a fresh process, with the same numbers on all ranks
        test = suite(name)
        test.rank, test.file_name = rank, f"{folder}/file"
        getattr(test, name)()
        test._barrier()
        return "passed", ""
    except unittest.SkipTest as skipped:
        return "skipped", str(skipped)
    except SystemExit as ended:
        reasons = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
        reason = reasons.get(ended.code)
        return ("skipped", reason) if reason else ("failed", f"sys.exit({ended.code})")
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        print(f"[{rank}] {name} {time.perf_counter() - started:.1f}", file=sys.stderr, flush=True)


def of_all_ranks(outcomes: list[dict[str, Outcome]]) -> dict[str, Outcome]:
    """One outcome a test: failed if it failed anywhere, skipped if it was skipped anywhere, else passed."""
    together = {}
    for name in outcomes[0]:
        ranks = [outcome[name] for outcome in outcomes]
        for kind in ("failed", "skipped", "passed"):
            found = [why for outcome, why in ranks if outcome == kind]
            if found:
                together[name] = (kind, found[0])
                break
    return together
