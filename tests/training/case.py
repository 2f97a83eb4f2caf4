"""The training of these tests: a small net, data that ranks share unevenly, and the reference in one process.

The convolution before batch norm has no bias: its gradient would be 0 up to rounding, which AdamW divides by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuraxis.training import DataParallel, SyncBatchNorm

CHANNELS, LENGTH, CLASSES = 2, 6, 5

# Rows of each rank, step by step; ranks beyond the list start from its beginning.
EVEN = [[4]]
UNEVEN = [[3, 5, 1, 2, 4], [1, 4, 2, 3, 1], [2, 2, 6, 1, 5]]
SOME_EMPTY = [[5, 0, 3, 0, 2], [0, 4, 2, 1, 0], [0, 6, 0, 0, 3], [2, 3, 0, 4, 1]]
SPLITS = {"even": EVEN, "uneven": UNEVEN, "some empty": SOME_EMPTY}


class Net(nn.Module):
    """Convolution, batch norm, two linear layers; one layer that nobody uses, and one that is not trained."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(CHANNELS, 4, 3, padding=1, bias=False)
        self.norm = norm(4)
        self.hidden = nn.Linear(4 * LENGTH, 12)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(12, 12)
        self.output = nn.Linear(12, CLASSES)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.convolution(x)))
        x = torch.tanh(self.hidden(x.flatten(1)))
        result: Tensor = self.output(self.frozen(x))
        return result


def net(norm: Callable[[int], nn.Module] = nn.BatchNorm1d, dtype: torch.dtype = torch.float64, seed: int = 1) -> Net:
    torch.manual_seed(seed)
    return Net(norm).to(dtype)


def plain_net(seed: int = 1) -> nn.Sequential:
    """Without batch norm, so that each row counts by itself."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def rows_of(split: list[list[int]], step: int, size: int) -> list[int]:
    rows = split[step % len(split)]
    return [rows[rank % len(rows)] for rank in range(size)]


def mine(rows: list[int], rank: int) -> slice:
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])


def batch(step: int, rows: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Values that differ in every step; far from 0 where there are digits enough for it."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(rows, CHANNELS, LENGTH, generator=generator, dtype=torch.float64)
    x += 20 if dtype is torch.float64 else 1
    return x.to(dtype), torch.randint(0, CLASSES, (rows,), generator=generator)


def numbers(step: int, rows: int) -> tuple[Tensor, Tensor]:
    """For `plain_net`."""
    generator = torch.Generator().manual_seed(2000 + step)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    return torch.randn(rows, 3, **options), torch.randn(rows, 2, **options)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def train_whole(
    model: nn.Module, optimizer: str, split: list[list[int]], size: int, steps: int, dtype: torch.dtype
) -> None:
    """One process, on the batches of all ranks together."""
    optimiser = OPTIMIZERS[optimizer](model.parameters())
    for step in range(steps):
        x, y = batch(step, sum(rows_of(split, step, size)), dtype)
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()


def train_part(
    model: DataParallel, optimizer: str, split: list[list[int]], rank: int, size: int, steps: int, dtype: torch.dtype
) -> None:
    """A rank, on its own rows of them."""
    optimiser = OPTIMIZERS[optimizer](model.parameters())
    for step in range(steps):
        rows = rows_of(split, step, size)
        x, y = batch(step, sum(rows), dtype)
        part = mine(rows, rank)
        optimiser.zero_grad()
        functional.cross_entropy(model(x[part]), y[part]).backward()
        optimiser.step()


def difference(model: nn.Module, other: nn.Module) -> float:
    """The largest between parameters and buffers of the same names, relative to those above 1."""
    first, second = model.state_dict(), other.state_dict()
    assert first.keys() == second.keys(), (list(first), list(second))
    return max(
        float(((first[name].double() - second[name].double()) / second[name].double().abs().clamp(min=1)).abs().max())
        for name in first
    )


def same_on_all_ranks(model: nn.Module, group: Any) -> bool:
    """Return True if parameters and buffers have the same bits on all ranks."""
    flat = torch.cat([value.double().flatten() for value in model.state_dict().values()])
    everybody = [torch.empty_like(flat) for _ in range(group.size)]
    group.all_gather(everybody, flat)
    return all(torch.equal(theirs, flat) for theirs in everybody)


def synchronised(seed: int, dtype: torch.dtype) -> Net:
    return net(SyncBatchNorm, dtype, seed)
