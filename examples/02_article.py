"""The communication patterns as PyTorch's tutorials write them: only the import is ours.

neuraxis launch -n 4 examples/02_article.py
"""

import torch

import neuraxis.distributed as dist


def create_data(worker_id: int | None = None, dim: int = 4) -> torch.Tensor:
    worker_id = worker_id if worker_id is not None else dist.get_rank()
    return torch.arange(dim) + worker_id * dim


def show(pattern: str, value: object) -> None:
    print(f"{pattern:>10}: rank {dist.get_rank()} has {value}")


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    data = create_data()
    dist.broadcast(data, src=0)
    show("broadcast", data.tolist())

    data = create_data()
    dist.reduce(data, dst=0, op=dist.ReduceOp.SUM)
    show("reduce", data.tolist())

    data = create_data()
    dist.all_reduce(data, op=dist.ReduceOp.SUM)
    show("all_reduce", data.tolist())

    data = create_data()
    result = [torch.zeros_like(data) for _ in range(size)] if rank == 0 else None
    dist.gather(data, dst=0, gather_list=result)
    show("gather", [part.tolist() for part in result] if result else None)

    data = create_data()
    result = [torch.zeros_like(data) for _ in range(size)]
    dist.all_gather(result, data)
    show("all_gather", [part.tolist() for part in result])

    pieces = [create_data(worker_id=i) for i in range(size)] if rank == 0 else None
    piece = torch.zeros(4, dtype=torch.int64)
    dist.scatter(piece, pieces)
    show("scatter", piece.tolist())

    pieces = [create_data() + i / size for i in range(size)]
    result = [torch.zeros(4) for _ in range(size)]
    dist.all_to_all(result, pieces)
    show("all_to_all", [[round(x, 2) for x in part.tolist()] for part in result])

    dist.barrier()

    even_ranks = {i for i in range(size) if i % 2 == 0}
    group = dist.new_group(ranks=even_ranks)
    if rank % 2 == 0:  # only the group needs to take part
        data = create_data()
        dist.reduce(data, op=dist.ReduceOp.SUM, group=group)
        show("group", data.tolist())


with dist.DistributedContext():
    main()
