"""The tutorial "Distributed Training with DistributedContext": ranks of a launcher, progress from the main process.

neuraxis launch -n 2 examples/18_distributed_context.py

Differences from the tutorial are marked with "instead of" and "added".
"""

import torch
from torch.nn.functional import mse_loss as loss_function
from torch.utils.data import TensorDataset

from neuraxis.distributed import DataParallel, get_rank, get_world_size, init_distributed, is_main_process, shard


# What the tutorial leaves out
def create_model():
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def create_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


# Initialize distributed training
dist_ctx = init_distributed(
    backend="auto",  # instead of "nccl": that where each rank has a GPU, else shared memory or gloo
    # instead of init_method, world_size and rank: the launcher sets them
)
inputs = torch.randn(808, 8, generator=torch.Generator().manual_seed(0))
sums = inputs.sum(1, keepdim=True)
train_loader = shard(TensorDataset(inputs, sums), batch_size=4)

# Create model and move to device
model = create_model()
device = torch.device(f"cuda:{get_rank()}" if dist_ctx.backend == "nccl" else "cpu")  # instead of always cuda
model.to(device)
model = DataParallel(model)  # added: without it each rank would train a model of its own

# Create optimizer
optimizer = create_optimizer(model)

# Training loop
for epoch in range(10):
    for batch_idx, (data, target) in enumerate(train_loader):
        # Move data to device
        data = data.to(device)
        target = target.to(device)

        # Forward pass
        output = model(data)
        loss = loss_function(output, target)

        # Backward pass
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # Print progress on main process
        if is_main_process() and batch_idx % 100 == 0:
            print(f"Epoch: {epoch}, Batch: {batch_idx}, Loss: {loss.item()}")

if is_main_process():
    with torch.no_grad():
        error = loss_function(model(inputs.to(device)).cpu(), sums).sqrt().item()
    print(f"{get_world_size()} ranks learned to add eight numbers: {error < 0.5}")

# Clean up
dist_ctx.shutdown()
