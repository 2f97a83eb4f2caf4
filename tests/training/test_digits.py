"""A real data set: scikit-learn's handwritten digits, learned by two ranks as by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from neuraxis.comm import DistributedContext
from neuraxis.training import SyncBatchNorm, Trainer, shard
from tests.ranks.processes import run_ranks

EPOCHS = 6
GLOBAL_BATCH = 64
TRAINED_ON = 1437  # of 1797; the rest is for the test


def test_two_ranks_learn_the_digits_as_one_does(tmp_path: Path) -> None:
    """float64, so that what is left is only the order of additions: 1e-12 after 138 steps of AdamW."""
    from sklearn.datasets import load_digits  # seconds, which ranks that only read the file need not spend

    digits = load_digits()
    path = tmp_path / "digits.npz"
    np.savez(path, images=digits.images / 16, labels=digits.target)
    [(accuracy, parameters)] = run_ranks(_learn, 1, str(path), torch=True)
    assert accuracy >= 0.97
    for found, theirs in run_ranks(_learn, 2, str(path), torch=True):
        assert found == accuracy
        assert max(abs(a - b).max() for a, b in zip(theirs, parameters, strict=True)) < 1e-12


def accuracy_of(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).double().mean()


def _learn(path: str) -> tuple[float, list[np.ndarray]]:
    torch.set_num_threads(1)
    with np.load(path) as digits:
        images, labels = torch.from_numpy(digits["images"]).unsqueeze(1), torch.from_numpy(digits["labels"])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    learned, tested = (TensorDataset(images[part], labels[part]) for part in (order[:TRAINED_ON], order[TRAINED_ON:]))
    with DistributedContext(timeout=60) as context:
        torch.manual_seed(0)
        # No bias before a normalisation that takes it away: its gradient would be rounding errors, which AdamW scales.
        model = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1, bias=False), SyncBatchNorm(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, padding=1, bias=False), SyncBatchNorm(32), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
        ).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        trainer = Trainer(model, optimizer, nn.functional.cross_entropy, metrics={"accuracy": accuracy_of})
        trainer.fit(shard(learned, GLOBAL_BATCH // context.world_size, seed=1), EPOCHS)
        result = trainer.evaluate(shard(tested, 50, shuffle=False))
        return result["accuracy"], [parameter.detach().numpy() for parameter in model.parameters()]
