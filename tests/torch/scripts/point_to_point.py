"""Messages between ranks, blocking and not, in batches, and an all-reduce made of them on a ring."""

import os

import torch
import torch.distributed as dist


def ring_all_reduce(send):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = send.clone()
    buffer = send.clone()
    for _ in range(size - 1):
        incoming = torch.zeros_like(send)
        request = dist.isend(buffer, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        request.wait()
        total += incoming
        buffer = incoming
    return total


def main():
    dist.init_process_group(os.environ["BACKEND"])
    rank, size = dist.get_rank(), dist.get_world_size()

    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        source = dist.recv(tensor=tensor, src=0)
        print("received from", source)
    print("rank", rank, "has", tensor.item())

    tensor = torch.full((2,), float(rank))
    if rank == 0:
        request = dist.isend(tensor=tensor, dst=size - 1, tag=3)
        request.wait()
    elif rank == size - 1:
        request = dist.irecv(tensor=tensor, src=0, tag=3)
        request.wait()
        print(request.is_completed(), tensor.tolist())

    outgoing = torch.arange(2, dtype=torch.float32) + 2 * rank
    incoming = torch.zeros(2)
    operations = [
        dist.P2POp(dist.isend, outgoing, (rank + 1) % size),
        dist.P2POp(dist.irecv, incoming, (rank - 1) % size),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    print("from the left", incoming.tolist())

    if rank == 0:
        dist.send_object_list([{"step": 3}, "text", [1.5, None]], dst=1)
    elif rank == 1:
        objects = [None, None, None]
        print("objects from", dist.recv_object_list(objects, src=0), objects)

    print("ring", ring_all_reduce(torch.ones(3) * (rank + 1)).tolist())
    dist.barrier()
    dist.destroy_process_group()
    print("initialized", dist.is_initialized())


if __name__ == "__main__":
    main()
