"""DDP, FSDP2 and checkpoints over backend shm give the results of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.ranks.processes import run_ranks
from tests.torch.groups import process_group

STEPS = 4
ROWS = 6  # a batch that 2 and 3 ranks can share equally


class Model(nn.Module):
    """Two layers, and one that a forward pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.unused = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return result


def _model() -> Model:
    torch.manual_seed(1)
    return Model()


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 8, generator=generator), torch.randn(ROWS, 4, generator=generator)


def _train(model: nn.Module, rank: int = 0, size: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    share = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for step in range(STEPS):
        x, y = _batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[share]), y[share]).backward()
        optimizer.step()


def _assert_close(state: dict[str, Any], expected: dict[str, Any]) -> None:
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6)


# --- DDP ---


def test_ddp_trains_as_one_process_on_the_whole_batch() -> None:
    assert run_ranks(_ddp, 3, torch=True) == [None] * 3


def _ddp() -> None:
    single = _model()
    _train(single)
    for options in (
        {"find_unused_parameters": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
        {"static_graph": True},
    ):
        with process_group() as (rank, size):
            model = _model()
            if rank:  # DDP begins with rank 0's parameters
                nn.init.zeros_(model.first.weight)
            wrapped = DistributedDataParallel(model, **options)
            _train(wrapped, rank, size)
            _assert_close(model.state_dict(), single.state_dict())
            for parameter in model.parameters():
                everybody = [torch.empty_like(parameter) for _ in range(size)]
                dist.all_gather(everybody, parameter.detach())
                assert all(torch.equal(other, parameter) for other in everybody)


def test_ddp_with_hooks_that_call_the_group_from_callbacks() -> None:
    assert run_ranks(_ddp_hooks, 2, torch=True) == [None] * 2


def _ddp_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    with process_group() as (rank, size):
        for state, hook in (
            (None, default_hooks.fp16_compress_hook),
            (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
        ):
            model = _model()
            wrapped = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.0001)
            wrapped.register_comm_hook(state, hook)
            _train(wrapped, rank, size)
            parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            everybody = [torch.empty_like(parameters) for _ in range(size)]
            dist.all_gather(everybody, parameters)
            assert all(torch.equal(other, parameters) for other in everybody)


# --- FSDP2 ---


def test_fsdp2_trains_as_one_process_on_the_whole_batch() -> None:
    # Three ranks share 16 and 4 rows unequally.
    assert run_ranks(_fsdp2, 3, torch=True) == [None] * 3


def _fsdp2() -> None:
    single = _model()
    _train(single)
    with process_group() as (rank, size):
        mesh = init_device_mesh("cpu", (size,))
        model = _model()
        for layer in (model.first, model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(model.first.weight, DTensor)
        _train(model, rank, size)
        full = {name: value.full_tensor() for name, value in model.state_dict().items()}
        _assert_close(full, single.state_dict())


# --- checkpoints ---


def test_checkpoint_saved_by_two_ranks_is_loaded_by_three(tmp_path: Path) -> None:
    run_ranks(_save, 2, str(tmp_path), torch=True)
    run_ranks(_load, 3, str(tmp_path), torch=True)


def _state() -> dict[str, Any]:
    return {"plain": torch.arange(7.0), "matrix": torch.arange(24.0).reshape(6, 4), "step": 12}


def _save(folder: str) -> None:
    with process_group() as (_, size):
        mesh = init_device_mesh("cpu", (size,))
        state = _state()
        state["matrix"] = distribute_tensor(state["matrix"], mesh, [Shard(0)])
        model = _model()
        fully_shard(model, mesh=mesh)
        checkpoint.save({"state": state, "model": get_model_state_dict(model)}, checkpoint_id=folder)


def _load(folder: str) -> None:
    with process_group() as (_, size):
        mesh = init_device_mesh("cpu", (size,))
        model = _model()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        fully_shard(model, mesh=mesh)
        state: dict[str, Any] = {
            "plain": torch.zeros(7),
            "matrix": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)]),
            "step": 0,
        }
        whole = {"state": state, "model": get_model_state_dict(model)}
        checkpoint.load(whole, checkpoint_id=folder)
        set_model_state_dict(model, whole["model"])
        expected = _state()
        assert torch.equal(state["plain"], expected["plain"])
        assert torch.equal(state["matrix"].full_tensor(), expected["matrix"])
        assert whole["state"]["step"] == 12
        full = {name: value.full_tensor() for name, value in model.state_dict().items()}
        for name, value in _model().state_dict().items():
            assert torch.equal(full[name], value), name
