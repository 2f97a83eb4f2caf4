"""Programs written for `torch.distributed` run on `neuraxis.distributed` with only the import changed."""

from __future__ import annotations

import doctest
import io
import os
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed

import neuraxis.distributed as dist
from neuraxis.comm import device_mesh, process_groups
from neuraxis.errors import InvalidArgument, MonitoredBarrierTimeout
from tests.ranks.processes import run_ranks

SCRIPTS = Path(__file__).parent / "scripts"
IMPORT = "import torch.distributed as dist\n"

# Names of torch.distributed that a program for it may use and that are missing here, as docs/torch.md tells.
ABSENT = {
    "AllToAllOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BackendConfig",
    "BarrierOptions",
    "BroadcastOptions",
    "DebugLevel",
    "GatherOptions",
    "GroupName",
    "PrefixStore",
    "ProcessGroupGloo",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "get_debug_level",
    "record_comm",
    "shrink_group",
    "split_group",
}


def test_every_documented_name_is_here_or_listed_as_absent() -> None:
    names = set(torch.distributed.distributed_c10d.__all__) | {"init_device_mesh", "DeviceMesh", "is_available"}
    missing = {name for name in names if name not in dist.__all__}
    assert missing - {"ProcessGroupNCCL", "ProcessGroupMPI"} == ABSENT
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    assert [name for name in sorted(ABSENT) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_the_output_is_that_of_torch_over_gloo(script: str) -> None:
    source = (SCRIPTS / script).read_text()
    assert source.count(IMPORT) == 1
    expected = run_ranks(_run_script, 3, source, "gloo", torch=True)
    assert all(len(lines) > 3 for lines in expected)
    changed = source.replace(IMPORT, "import neuraxis.distributed as dist\n")
    for backend in ("gloo", "shm"):
        assert run_ranks(_run_script, 3, changed, backend, torch=True) == expected


def _run_script(source: str, backend: str) -> list[str]:
    import torch

    torch.set_num_threads(1)
    os.environ["BACKEND"] = backend
    output = io.StringIO()
    with redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of deprecated names
        exec(compile(source, "script", "exec"), {"__name__": "__main__"})
    return output.getvalue().splitlines()


def test_on_arrays_and_in_a_grid() -> None:
    assert run_ranks(_arrays, 4) == [None] * 4


def _arrays() -> None:
    dist.init_process_group("shm", timeout=60.0)
    rank = dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    assert (mesh.shape, mesh.ndim, mesh.size(), mesh.size("shard")) == ((2, 2), 2, 4, 2)
    assert mesh.get_coordinate() == [rank // 2, rank % 2]
    for dim, expected in (("replica", rank % 2 * 2 + 2), ("shard", rank // 2 * 4 + 1)):
        array = np.array([float(rank)])
        dist.all_reduce(array, group=mesh[dim].get_group())
        assert array[0] == expected, (dim, array)
    assert mesh["shard", "replica"].mesh.tolist() == [[0, 2], [1, 3]]
    assert dist.get_global_rank(mesh.get_group("replica"), 1) == rank % 2 + 2

    received = np.zeros(2)
    operations = [
        dist.P2POp(dist.irecv, received, group_peer=(rank + 3) % 4),
        dist.P2POp(dist.isend, np.array([rank, 10.0 * rank]), peer=(rank + 1) % 4),
    ]
    assert [work.wait() for work in dist.batch_isend_irecv(operations)] == [True, True]
    assert received.tolist() == [(rank + 3) % 4, 10.0 * ((rank + 3) % 4)]

    mine, groups = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    assert dist.get_process_group_ranks(mine) == ([0, 3] if rank in (0, 3) else [1, 2])
    assert dist.get_pg_count() == 4
    assert len(groups) == 2

    dist.barrier(device_ids=[0])
    if rank != 2:
        with pytest.raises(MonitoredBarrierTimeout, match="Ranks 2 failed" if rank == 0 else "from rank 0") as caught:
            dist.monitored_barrier(timeout=0.3, wait_all_ranks=True)
        assert caught.value.ranks == ((2,) if rank == 0 else ())
        assert isinstance(caught.value, RuntimeError)
    dist.barrier()
    dist.monitored_barrier()  # messages that the failed one has left do no harm
    with pytest.raises(InvalidArgument, match="use_local_synchronization"):
        dist.new_group([0], use_local_synchronization=True)
    with pytest.raises(InvalidArgument, match="store"):
        dist.init_process_group("shm", store=object())
    dist.destroy_process_group()


def test_a_group_over_another_backend_than_the_world() -> None:
    assert run_ranks(_other_backend, 3, torch=True) == [None] * 3


def _other_backend() -> None:
    dist.init_process_group("gloo", timeout=60.0)
    rank = dist.get_rank()
    group: Any = dist.new_group([0, 2], backend="shm")
    if rank != 1:
        assert dist.get_backend(group) == "shm"
        array = np.array([rank + 1.0])
        dist.all_reduce(array, group=group)
        assert array[0] == 4.0
    dist.destroy_process_group()


def test_the_examples_of_the_docstrings() -> None:
    for module in (process_groups, device_mesh):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed
