"""Process groups beyond collectives: devices, timeouts, sequence numbers, profiling, torch.compile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from neuraxis.errors import BackendUnavailable, CollectiveTimeout, InvalidArgument, InvalidType, MonitoredBarrierTimeout
from tests.ranks.fork_server import SEARCH_PATH
from tests.ranks.processes import run_ranks
from tests.torch.groups import process_group

CPU = torch.device("cpu")


def test_a_group_implements_the_queries_of_torch(tmp_path: Path) -> None:
    assert run_ranks(_answers, 2, str(tmp_path), torch=True) == [None] * 2


def _answers(folder: str) -> None:
    with process_group() as (rank, size):
        group: Any = dist.group.WORLD
        assert group._device_types == [CPU]
        assert group._get_backend(CPU) is group
        with pytest.raises(BackendUnavailable):
            group._get_backend(torch.device("cuda"))
        _numbers(group)
        _profile(rank)
        _sparse(rank, size)
        _state_dicts(rank, size, folder)
        _deadlines(group, rank)


def _numbers(group: Any) -> None:
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(2))
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 2


def _profile(rank: int) -> None:
    """Collectives are spans of the profiler, with shapes; async ones last until they are done."""
    tensor = torch.ones(3, 4)
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.broadcast(tensor, 0)
        dist.all_gather([torch.empty(3, 4) for _ in range(2)], tensor)
        dist.barrier()
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
    spans = [event for event in profile.function_events if event.name.startswith("shm:")]
    message = "shm:send" if rank == 0 else "shm:recv"
    expected = ["shm:all_reduce", "shm:all_reduce", "shm:broadcast", "shm:all_gather", "shm:barrier", message]
    assert [span.name for span in spans] == expected
    assert spans[0].input_shapes == [[3, 4]]
    assert spans[1].is_async


def _sparse(rank: int, size: int) -> None:
    """Sums of COO tensors, with and without dense dimensions, and gradients of sparse embeddings."""
    for shape in ((6,), (6, 2)):
        values = torch.arange(3.0 * (shape[1] if len(shape) > 1 else 1)).reshape(3, *shape[1:]) + rank
        tensor = torch.sparse_coo_tensor(torch.tensor([[0, 1 + rank, 1]]), values, shape, check_invariants=True)
        dense = tensor.to_dense()
        dist.all_reduce(dense)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.to_dense(), dense)
    with pytest.raises(InvalidType, match="sparse"):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    model = DistributedDataParallel(nn.Embedding(10, 3, sparse=True))
    model(torch.tensor([rank, 5])).sum().backward()
    rows = model.module.weight.grad.to_dense().sum(1)
    assert rows.tolist() == [3 / size, 3 / size, 0, 0, 0, 3, 0, 0, 0, 0]


def _state_dicts(rank: int, size: int, folder: str) -> None:
    """A state that only rank 0 has is given to all; a checkpoint is written in the background."""
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(rank)
    full = nn.Linear(4, 4).state_dict()
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=mesh)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full if rank == 0 else {}, options=options)
    torch.manual_seed(0)
    assert torch.equal(model.weight.full_tensor(), nn.Linear(4, 4).weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates storage types that it uses itself
        saved = checkpoint.async_save(
            {"model": model.state_dict()}, checkpoint_id=folder, process_group=dist.new_group()
        )
        saved.result(timeout=60)
        assert Path(folder, ".metadata").exists()


def _deadlines(group: Any, rank: int) -> None:
    if rank == 0:
        started = time.monotonic()
        with pytest.raises(MonitoredBarrierTimeout, match="Rank 1 failed to pass monitoredBarrier") as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        assert isinstance(caught.value, RuntimeError)
        assert time.monotonic() - started < 20
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)

    other: Any = dist.new_group()  # a failed group stays failed
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.2), other)
    if rank == 0:
        with pytest.raises(CollectiveTimeout, match=r"within 0\.2 s"):
            dist.all_reduce(torch.ones(1), group=other)
    dist.barrier()


def test_a_group_has_one_backend() -> None:
    for backend in ("cpu:shm,cuda:nccl", "cuda:nccl,cpu:shm", "cuda:shm"):
        with pytest.raises(InvalidArgument, match="no second backend"):
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()


@pytest.mark.timeout(200)
def test_torch_compile_takes_ddp_and_fsdp2() -> None:
    assert run_ranks(_compiled, 2, "aot_eager", torch=True, timeout=180) == [None] * 2


@pytest.mark.timeout(200)
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler")
def test_torch_compile_by_inductor_takes_ddp(tmp_path: Path) -> None:
    assert run_ranks(_compiled_by_inductor, 2, str(tmp_path), torch=True, timeout=180) == [None] * 2
    assert list(tmp_path.rglob("*.so"))


def _compiled_by_inductor(cache: str) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes, which would outlive this rank
    import torch._inductor.config as inductor

    # Compile only the two kernels: no headers, and no programs that try what this processor can do.
    inductor.cpp_cache_precompile_headers = False
    inductor.cpp.simdlen = 1
    _compiled("inductor", DistributedDataParallel)


def _compiled(backend: str, *wrappers: Callable[[nn.Module], Any]) -> None:
    """Compiled models have the losses that they have without."""
    graphs = torch._dynamo.utils.counters["stats"]
    with process_group():
        for wrap in wrappers or (DistributedDataParallel, fully_shard):
            plain = _losses(wrap(_Layers()))
            graphs.clear()
            assert _losses(torch.compile(wrap(_Layers()), backend=backend)) == pytest.approx(plain)
            assert graphs["unique_graphs"] == 1


class _Layers(nn.Module):
    """Layers with buffers, which DDP broadcasts before the compiled forward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # the compiler skips functions of torch itself
        return self.layers(x)


def _losses(model: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_installing_neuraxis_registers_the_backend_and_cannot_break_torch(tmp_path: Path) -> None:
    """`import torch` alone knows shm; where neuraxis is broken, it says so and goes on."""
    metadata = tmp_path / "site" / "neuraxis_entry-1.0.dist-info"  # an installation, wherever this one comes from
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: neuraxis-entry\nVersion: 1.0\n")
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points."torch.backends"]\nneuraxis = "neuraxis.torch_autoload:load"' in project
    (metadata / "entry_points.txt").write_text("[torch.backends]\nneuraxis-entry = neuraxis.torch_autoload:load\n")
    use = (
        "import sys, torch\n"
        "print('loaded', sorted(name for name in sys.modules if name in ('numba', 'zenoh', 'torch._dynamo')))\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('shm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "tensor = torch.ones(2)\ndist.all_reduce(tensor)\ndist.destroy_process_group()\nprint(tensor.tolist())\n"
    )
    path = os.pathsep.join((str(tmp_path / "site"), SEARCH_PATH, str(Path(__file__).parents[2] / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    run = [sys.executable, "-c"]
    ended = subprocess.run([*run, use], env=environment, capture_output=True, text=True, timeout=100)
    assert ended.stdout.splitlines() == ["loaded []", "[1.0, 1.0]"], ended.stderr
    broken = "import sys; sys.modules['neuraxis.errors'] = None\nimport torch; print(torch.ones(1).item())"
    ended = subprocess.run([*run, broken], env=environment, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "1.0\n"), ended.stderr
    assert "backend 'shm' of torch.distributed is not available" in ended.stderr
