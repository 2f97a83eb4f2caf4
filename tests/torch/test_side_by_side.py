"""torch.distributed and a neuraxis context in one job: two worlds of the same processes, in either order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BOTH = """
import sys
import numpy as np, torch, torch.distributed as dist
from neuraxis.distributed import DistributedContext
import neuraxis.torch, neuraxis.torch  # a second import changes nothing

def with_torch():
    dist.init_process_group("gloo")
    for group in (None, dist.new_group(backend="shm")):
        tensor = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 3.0

def with_context():
    context = DistributedContext(timeout=30).initialize()
    array = np.array([context.rank + 1.0])
    context.world.all_reduce(array)
    assert array[0] == 3.0
    return context

order = sys.argv[1]
if order == "torch-first":
    with_torch()
    context = with_context()
else:
    context = with_context()
    with_torch()
assert dist.get_rank() == context.rank
tensor = torch.tensor([1.0])
dist.all_reduce(tensor)
context.world.all_reduce(tensor)  # the context takes tensors as well
assert tensor.item() == 4.0
if order == "torch-first":
    context.shutdown()
    dist.barrier()
    dist.destroy_process_group()
else:
    dist.destroy_process_group()
    context.world.barrier()
    context.shutdown()
print("done", flush=True)
"""

LAUNCHERS = {
    "neuraxis": ["-m", "neuraxis", "launch", "-n", "2"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}


# Both orders under torchrun are in tests/comm/test_context.py.
@pytest.mark.parametrize(
    ("launcher", "order"), [("neuraxis", "torch-first"), ("neuraxis", "context-first"), ("torchrun", "context-first")]
)
def test_two_worlds_in_one_job(launcher: str, order: str, tmp_path: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(BOTH)
    ended = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(script), order],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == 2, ended.stdout
