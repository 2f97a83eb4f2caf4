"""A rank of `neuraxis bench training`: small models of three kinds, trained step by step by each method."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from itertools import repeat
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from neuraxis.bench.rank import Reply, Request, no_garbage_collection, serve_rank
from neuraxis.bench.training.measure import METHODS, MODELS
from neuraxis.comm import init_distributed
from neuraxis.process.environment import free_port
from neuraxis.training import DataParallel, TopK

__all__ = ["CHECKED_STEPS", "Rank", "Training", "make_batch", "make_model", "measure_steps"]

CHECKED_STEPS = 5  # steps after which methods that should be equal are compared

_LEARNING_RATE, _MOMENTUM = 0.01, 0.9


def make_model(name: str) -> nn.Module:
    """Return a model with the same parameters in every process."""
    torch.manual_seed(1)
    return _MODELS[name]()


def make_batch(name: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets for a mean squared error."""
    generator = torch.Generator().manual_seed(seed)
    shape_in, shape_out = _SHAPES[name]
    return torch.randn(rows, *shape_in, generator=generator), torch.randn(rows, *shape_out, generator=generator)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _transformer() -> nn.Module:
    # Without dropout, because the learned parameters of the methods are compared.
    return nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)


_MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": _mlp, "conv": _conv, "transformer": _transformer}
_SHAPES = {"mlp": ((64,), (10,)), "conv": ((1, 28, 28), (10,)), "transformer": ((32, 256), (32, 256))}


class Training(Protocol):
    """A model that is trained repeatedly on one batch."""

    def step(self) -> None: ...

    def facts(self) -> dict[str, float]:
        """Return figures about the steps so far.

        `moved` and `along`: the distance from the initial parameters, and its projection on a random direction.
        `bytes`: that this rank sends in a step. `error`: of compression in the last step.
        """


class Rank:
    """One rank of a process group, with every requested combination of model and method."""

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
        """Create torch's process group for its DDP, on another port than the launcher's, which the context uses."""
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

    def training(self, model: str, method: str) -> Training:
        """Return the training of a model by a method; all ranks build it at the first request."""
        if (model, method) not in self._trainings:
            self._trainings[model, method] = self._make(model, method)
        return self._trainings[model, method]

    def _make(self, model: str, method: str) -> Training:
        module = make_model(model)
        rows = MODELS[model].rows
        if self._cuda:
            module = module.cuda()
            rows = MODELS[model].gpu_rows
        x, y = (part.cuda() if self._cuda else part for part in make_batch(model, rows, seed=self.rank))
        return _Training(
            module, self._wrapped(module, method), x, y, no_sync=method == "unsent", scaled=method == "cuda-fp16"
        )

    def _wrapped(self, module: nn.Module, method: str) -> nn.Module:
        match method:
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
        raise ValueError(f"{method!r} is not one of {', '.join(METHODS)}")

    def meet(self) -> None:
        """Wait for the other ranks, and for the GPU."""
        self._context.world.barrier()
        self.settle()

    def settle(self) -> None:
        """Wait for the GPU, if there is one."""
        if self._cuda:
            torch.cuda.synchronize()

    def same_everywhere(self, values: list[float]) -> bool:
        """Return True if all ranks have the same numbers."""
        gathered: list[Any] = [None] * self._context.world_size
        self._context.world.all_gather_object(gathered, values)
        return all(theirs == values for theirs in gathered)

    def close(self) -> None:
        self._trainings.clear()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._context.close()


class _Training:
    """A training step as users write it: gradients to None, forward, loss, backward, SGD with momentum."""

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


def measure_steps(rank: Rank, request: Request) -> Reply:
    """Time steps; the pattern is model/method. With `check`, make the first steps and return facts about them."""
    model, method = request.pattern.split("/")
    training = rank.training(model, method)
    if request.check:
        for _ in repeat(None, CHECKED_STEPS):
            training.step()
        facts = training.facts()
        if METHODS[method].equal and not rank.same_everywhere([facts["moved"], facts["along"]]):
            return Reply(problem=f"{request.pattern}: the ranks' parameters differ after {CHECKED_STEPS} steps")
        return Reply(facts=facts)
    for _ in repeat(None, request.warmups):
        training.step()
    with no_garbage_collection():
        rank.meet()
        start = time.perf_counter()
        for _ in repeat(None, request.iterations):
            training.step()
        rank.settle()
        seconds = time.perf_counter() - start
    return Reply(seconds)


if __name__ == "__main__":
    serve_rank(Rank, measure_steps)
