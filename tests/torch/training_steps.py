"""Training steps of models over a process group of torch, with points at which a rank can fail.

`tests.comm.storm` runs them; the points reach into the forward pass, the backward pass and the optimizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

__all__ = ["DDP_MODELS", "FSDP2_MODELS", "POINTS", "Training"]

WIDTH = 32
POINTS = ["between steps", "in forward", "before backward", "in backward", "before the optimizer", "in the optimizer"]
DDP_MODELS = ["DDP", "DDP, many buckets", "DDP, static graph", "DDP, hook", "DDP, own group"]
FSDP2_MODELS = ["FSDP2", "FSDP2, layers", "FSDP2, own group", "FSDP2, replicated"]


class Training:
    """A model under training in the default group.

    Parameters
    ----------
    name : str
        One of `DDP_MODELS` or `FSDP2_MODELS`. The last of these has two groups of half of the ranks each, so it needs
        an even number of them.
    reach : callable
        Called with the number of the step and each of `POINTS` in turn.
    """

    def __init__(self, name: str, reach: Callable[[int, str], None]) -> None:
        self._reach = reach
        self.step = 0
        self.phase = "setup"  # in which the rank is
        torch.manual_seed(1)
        self._sharded = name in FSDP2_MODELS
        layers = _Layers(self._reach_point)
        self._model = _sharded(name, layers) if self._sharded else _replicated(name, layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._optimizer.register_step_pre_hook(lambda *_: self._reach_point("in the optimizer"))

    def run(self) -> None:
        """Train until a call raises."""
        for self.step in itertools.count():
            self.phase = "between steps"
            if self.step % 2:
                dist.all_reduce(torch.ones(1))  # such as the mean of a loss
            self._reach_point("between steps")
            self.phase = "forward"
            loss = self._model(torch.ones(4, WIDTH)).square().mean()
            self._reach_point("before backward")
            self.phase = "backward"
            loss.backward()
            self._reach_point("before the optimizer")
            self.phase = "optimizer"
            if self._sharded:
                nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)  # sums over the ranks
            self._optimizer.step()
            self._optimizer.zero_grad()

    def _reach_point(self, point: str) -> None:
        self._reach(self.step, point)


class _Layers(nn.Module):
    """Layers with buffers, which DDP broadcasts in the forward pass."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        super().__init__()
        self._reach = reach
        self.before = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self.after = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        self._reach("in forward")
        x.register_hook(lambda _: self._reach("in backward"))
        return self.after(x)


def _replicated(name: str, layers: _Layers) -> Any:
    options: dict[str, Any] = {
        "DDP, many buckets": {"bucket_cap_mb": 0.001, "find_unused_parameters": True},
        "DDP, static graph": {"static_graph": True, "gradient_as_bucket_view": True},
        "DDP, own group": {"process_group": dist.new_group() if name == "DDP, own group" else None},
    }.get(name, {})
    model = DistributedDataParallel(layers, **options)
    if name == "DDP, hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def _sharded(name: str, layers: _Layers) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if name == "FSDP2, own group":
        mesh = DeviceMesh.from_group(dist.new_group(), "cpu")
    if name == "FSDP2, replicated":
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    if name == "FSDP2, layers":
        for part in (*layers.before, *layers.after):
            if list(part.parameters()):
                fully_shard(part, mesh=mesh)
    return fully_shard(layers, mesh=mesh)
