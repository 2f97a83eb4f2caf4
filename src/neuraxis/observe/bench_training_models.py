"""The models that are trained in a benchmark, and their data: small, of three kinds, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["make_batch", "make_model"]


def make_model(name: str) -> nn.Module:
    """A model with the same values in every process."""
    torch.manual_seed(1)
    return _MODELS[name]()


def make_batch(name: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets for a mean squared error; another seed, other data."""
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
    # Without dropout: ways are compared by what they have learned.
    return nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)


_MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": _mlp, "conv": _conv, "transformer": _transformer}
_SHAPES = {"mlp": ((64,), (10,)), "conv": ((1, 28, 28), (10,)), "transformer": ((32, 256), (32, 256))}
