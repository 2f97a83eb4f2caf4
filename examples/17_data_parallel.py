"""The tutorial "Multi-GPU Training with DataParallel", word for word: on one CPU, several GPUs, or several ranks.

python examples/17_data_parallel.py
neuraxis launch -n 2 examples/17_data_parallel.py
"""

import torch
from torch.nn import Linear, Module
from torch.nn.functional import cross_entropy as loss_function
from torch.optim import SGD
from torch.utils.data import TensorDataset

from neuraxis.distributed import DataParallel, init_distributed, shard

init_distributed()  # for several ranks; the tutorial has one process

# What the tutorial leaves out: pictures of 28 x 28, in ten kinds, and their batches. With several ranks each has its
# share; every rank draws the same pictures.
generator = torch.Generator().manual_seed(0)
kinds = torch.randn(10, 784, generator=generator)
labels = torch.arange(800) % 10
pictures = kinds[labels] + 2 * torch.randn(800, 784, generator=generator)
train_loader = shard(TensorDataset(pictures, labels), batch_size=8)


# Create a simple model
class SimpleModel(Module):
    def __init__(self):
        super().__init__()
        self.fc1 = Linear(784, 256)
        self.fc2 = Linear(256, 10)

    def forward(self, x):
        x = self.fc1(x).relu()
        x = self.fc2(x)
        return x  # noqa: RET504  (as the tutorial has it)


# Create model
model = SimpleModel()

# Wrap model with DataParallel
model = DataParallel(model)

# Create optimizer
optimizer = SGD(model.parameters(), lr=0.01)

# Training loop
for epoch in range(10):
    for batch_idx, (data, target) in enumerate(train_loader):
        # Forward pass
        output = model(data)
        loss = loss_function(output, target)

        # Backward pass
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if batch_idx % 100 == 0:
            print(f"Epoch: {epoch}, Batch: {batch_idx}, Loss: {loss.item()}")

with torch.no_grad():
    right = (model(pictures).argmax(1) == labels).float().mean().item()
print(f"more than 99 % are known: {right > 0.99}")
