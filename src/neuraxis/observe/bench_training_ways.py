"""One rank's side of `neuraxis bench training`: a model in each way to train it, step by step."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from neuraxis.comm import init_distributed
from neuraxis.launch.environment import free_port
from neuraxis.observe.bench_training_models import make_batch, make_model
from neuraxis.observe.bench_training_plan import MODELS, WAYS
from neuraxis.training import DataParallel, TopK

__all__ = ["Crew", "Training"]

_LEARNING_RATE, _MOMENTUM = 0.01, 0.9


class Training(Protocol):
    """A model that is trained on one batch, again and again."""

    def step(self) -> None: ...

    def facts(self) -> dict[str, float]:
        """What came of the steps so far.

        `moved` and `along`: how far the parameters have come, and how far in one direction, whose numbers are drawn at
        random and about 1. `bytes`: what this rank hands over in a step. `error`: of compression, in the last step.
        """


class Crew:
    """One rank of the processes that share a context, with every model in every way that was asked for."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._cuda = name == "cuda"
        if not self._cuda:
            torch.set_num_threads(1)
        self._context = init_distributed("nccl" if self._cuda else name, timeout=timeout_s)
        self.rank = self._context.rank
        self._trainings: dict[tuple[str, str], Training] = {}
        self._torch_shm: Any = None
        if name != "gloo":
            self._join_torch(timeout_s)

    def _join_torch(self, timeout_s: float) -> None:
        """torch's own group for its own DDP, on a port that nobody has: the launcher's was used for the context."""
        port = [free_port()]
        self._context.world.broadcast_object_list(port)
        torch.distributed.init_process_group(
            "nccl" if self._cuda else "gloo",
            init_method=f"tcp://127.0.0.1:{port[0]}",
            rank=self.rank,
            world_size=self._context.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        if not self._cuda:
            importlib.import_module("neuraxis.torch")  # registers the backend
            self._torch_shm = torch.distributed.new_group(backend="shm")

    def training(self, model: str, way: str) -> Training:
        """The model in that way; made when it is first asked for, by all ranks."""
        if (model, way) not in self._trainings:
            self._trainings[model, way] = self._make(model, way)
        return self._trainings[model, way]

    def _make(self, model: str, way: str) -> Training:
        module = make_model(model)
        rows = MODELS[model].rows
        if self._cuda:
            module = module.cuda()
            rows = MODELS[model].gpu_rows
        x, y = (part.cuda() if self._cuda else part for part in make_batch(model, rows, seed=self.rank))
        return _Training(module, self._wrapped(module, way), x, y, no_sync=way == "unsent", scaled=way == "cuda-fp16")

    def _wrapped(self, module: nn.Module, way: str) -> nn.Module:
        match way:
            case "one" | "cuda-one":
                return module
            case "shm" | "gloo" | "unsent":
                return DataParallel(module)
            case "shm-late" | "gloo-late":
                return DataParallel(module, overlap=False)
            case "shm-fp16":
                return DataParallel(module, compress="fp16")
            case "shm-topk":
                return DataParallel(module, compress=TopK(0.01))
            case "ddp-gloo" | "cuda-ddp":
                return DistributedDataParallel(module)
            case "ddp-shm":
                return DistributedDataParallel(module, process_group=self._torch_shm)
            case "cuda-fp32":
                return DataParallel(module, [torch.cuda.current_device()])
            case "cuda-bf16":
                return DataParallel(module, [torch.cuda.current_device()], precision="bf16")
            case "cuda-fp16":
                return DataParallel(module, [torch.cuda.current_device()], precision="fp16")
        raise ValueError(f"{way!r} is not one of {', '.join(WAYS)}")

    def meet(self) -> None:
        """Wait for the other ranks, and for the GPU."""
        self._context.world.barrier()
        self.settle()

    def settle(self) -> None:
        """Wait for the GPU, if there is one."""
        if self._cuda:
            torch.cuda.synchronize()

    def same_everywhere(self, values: list[float]) -> bool:
        """Whether all ranks have the same numbers."""
        everybody: list[Any] = [None] * self._context.world_size
        self._context.world.all_gather_object(everybody, values)
        return all(theirs == values for theirs in everybody)

    def close(self) -> None:
        self._trainings.clear()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._context.shutdown()


class _Training:
    """A step as users write it: gradients to None, forward, loss, backward, SGD with momentum."""

    def __init__(
        self, module: nn.Module, model: nn.Module, x: Tensor, y: Tensor, *, no_sync: bool, scaled: bool
    ) -> None:
        self._model = model
        self._parameters = list(module.parameters())
        self._began = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)
        self._x, self._y = x, y
        self._around: Callable[[], AbstractContextManager[Any]] = model.no_sync if no_sync else nullcontext
        self._scaler = model.scaler if scaled else None

    def step(self) -> None:
        self._optimizer.zero_grad()
        with self._around():
            loss = nn.functional.mse_loss(self._model(self._x).to(self._y.dtype), self._y)
            if self._scaler is None:
                loss.backward()
                self._optimizer.step()
                return
            self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def facts(self) -> dict[str, float]:
        moved = torch.cat(
            [(now.detach() - then).flatten() for now, then in zip(self._parameters, self._began, strict=True)]
        ).double()
        direction = torch.randn(len(moved), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        return {"moved": moved.norm().item(), "along": (moved.cpu() @ direction).item(), **self._traffic()}

    def _traffic(self) -> dict[str, float]:
        if isinstance(self._model, DataParallel):
            traffic = self._model.traffic()
            return {"bytes": traffic.bytes_sent / max(1, traffic.steps), "error": traffic.relative_error}
        if isinstance(self._model, DistributedDataParallel):
            return {"bytes": float(sum(one.numel() * one.element_size() for one in self._parameters)), "error": 0.0}
        return {"bytes": 0.0, "error": 0.0}
