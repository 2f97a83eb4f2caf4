"""Data-parallel training by hand: each rank has a share of the data, and gradients are averaged."""

import os

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def main():
    dist.init_process_group(os.environ["BACKEND"])
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("data",))
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1234)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(7))
    y = x.sum(1, keepdim=True)
    mine = slice(rank * 24 // size, (rank + 1) * 24 // size)
    for epoch in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        average_gradients(model)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=mesh.get_group("data"))
        print("rank", mesh.get_local_rank("data"), "epoch", epoch, f"loss {total.item() / size:.5f}")
    torch.set_default_dtype(torch.float32)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
