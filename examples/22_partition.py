"""A model in stages, one per rank, partitioned by the capacity of each rank; trained as if it were whole.

neuraxis launch -n 2 examples/22_partition.py
"""

import torch
from torch import nn

from neuraxis.distributed import init_distributed, partition


class Net(nn.Module):
    """Six residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(8, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6))
        self.end = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for block in self.blocks:
            x = x + block(x)
        return self.end(x)


def main() -> None:
    torch.manual_seed(1)
    context = init_distributed()
    whole = Net()
    x = torch.randn(50, 8)
    y = x.prod(dim=1, keepdim=True)

    # Every rank measures itself; rank 0 measures the units on the example; all cut in the same places.
    pipeline = partition(whole, ranks=context.world, example=x, micro_batches=4)
    parameters = sum(parameter.numel() for parameter in pipeline.stage.parameters())
    print(f"rank {context.rank}: {parameters} parameters, stages begin at {', '.join(('begin', *pipeline.cuts))}")

    optimizer = torch.optim.SGD(pipeline.parameters(), 0.01)  # of this rank's stage
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        losses.append(pipeline.backward_step((x,), y, nn.functional.mse_loss).item())  # micro-batches, both ways
        optimizer.step()

    alone = Net()
    alone.load_state_dict(pipeline.full_state_dict())  # the names of the whole module
    difference = (pipeline(x) - alone(x)).abs().max().item()
    if context.rank == 0:
        print(f"the loss went down: {losses[-1] < losses[0]}; stages and whole agree: {difference < 1e-5}")
    context.close()


if __name__ == "__main__":
    main()
