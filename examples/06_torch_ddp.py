"""DistributedDataParallel on shared memory: nothing but the name of the backend is new.

neuraxis launch -n 2 examples/06_torch_ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import neuraxis.torch  # noqa: F401  (registers the backend "shm")

dist.init_process_group("shm")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(1 + dist.get_rank())  # each rank has data of its own
inputs = torch.randn(256, 8)
targets = inputs.sum(dim=1, keepdim=True)
for step in range(101):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 25 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")

everywhere = [torch.zeros(8 * 32) for _ in range(dist.get_world_size())]
dist.all_gather(everywhere, next(model.parameters()).detach().view(-1))
assert all(torch.equal(replica, everywhere[0]) for replica in everywhere)
dist.destroy_process_group()
