"""Handwritten digits, learned by several ranks as by one: the Trainer deals out batches, averages and measures.

python examples/19_digits.py
neuraxis launch -n 2 examples/19_digits.py
neuraxis launch -n 2 examples/19_digits.py --plot digits.png
"""

import argparse
import sys

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import TensorDataset

from neuraxis.distributed import SyncBatchNorm, Trainer, init_distributed, shard

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("the digits come with scikit-learn: pip install scikit-learn")

parser = argparse.ArgumentParser()
parser.add_argument("--plot", help="draw unseen digits and what the model takes them for to this file")
plot = parser.parse_args().plot
context = init_distributed()
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train, test = (TensorDataset(images[part], labels[part]) for part in (order[:1437], order[1437:]))

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False),  # the normalisation would take a bias away
    SyncBatchNorm(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, bias=False),
    SyncBatchNorm(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 10),
)
trainer = Trainer(
    model,
    torch.optim.AdamW(model.parameters(), lr=3e-3),
    nn.functional.cross_entropy,
    metrics={"accuracy": lambda output, label: (output.argmax(1) == label).float().mean()},
)
unseen = shard(test, 60, shuffle=False)
batch = 64 // context.world_size  # of one rank: together they are the same on any number
history = trainer.fit(shard(train, batch, seed=0), epochs=6, validate=unseen)
if context.is_main_process:
    for record in history:
        print(f"epoch {record['epoch'] + 1:.0f}: loss {record['loss']:.3f}, {record['val_accuracy']:.1%} of the unseen")
    print("97 % or more of 360 unseen digits are right:", history[-1]["val_accuracy"] >= 0.97)
    if plot is not None:
        with torch.no_grad():
            seen = trainer.model.eval()(test.tensors[0]).argmax(1)
        figure, axes = plt.subplots(3, 8, figsize=(7, 3.2), layout="constrained")
        for number, axis in enumerate(axes.flat):
            axis.imshow(test.tensors[0][number, 0].numpy(), cmap="gray_r")
            axis.set_title(int(seen[number]), color="green" if seen[number] == test.tensors[1][number] else "red")
            axis.axis("off")
        figure.savefig(plot)
context.close()
