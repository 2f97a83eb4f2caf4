"""The patterns in words and in their order: what each is called, how it is called, and what it is good for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOGUE", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A pattern in words; see PatternRun for what each field means."""

    name: str
    title: str
    label: str
    call: str
    caption: str
    use: str
    reduces: bool = False


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "broadcast",
        "Broadcast",
        "Broadcast",
        "dist.broadcast(data, src=0)",
        "Rank 0 sends its data to every rank, and each overwrites its own data with it.",
        "At the start of training, so that every replica begins with the same weights; in a brain, to "
        "hand one "
        "region's set-up or a common clock to all others.",
    ),
    Entry(
        "reduce",
        "Reduce",
        "Reduce (sum)",
        "dist.reduce(data, dst=0, op=dist.ReduceOp.SUM)",
        "Every rank sends its data to rank 0, which adds it up place by place; the others keep what they had.",
        "When one rank keeps the books: the total loss of a step, or the spike count of a whole brain.",
        reduces=True,
    ),
    Entry(
        "all_reduce",
        "All-Reduce",
        "AllReduce (sum)",
        "dist.all_reduce(data, op=dist.ReduceOp.SUM)",
        "Everybody's data is added up place by place, and every rank ends with the same sum.",
        "The heart of data-parallel training: gradients are summed after each backward pass, so that all "
        "replicas take "
        "the same step.",
        reduces=True,
    ),
    Entry(
        "barrier",
        "Barrier",
        "Barrier",
        "dist.barrier()",
        "A rank that arrives waits until all have arrived, and then all go on together. No data moves.",
        "Before a clock is read, or before a file is read that another rank has written. Collectives wait "
        "for each other "
        "anyway, so a barrier is seldom needed between them.",
    ),
    Entry(
        "gather",
        "Gather",
        "Gather",
        "result = [np.zeros_like(data) for _ in range(n)] if rank == 0 else None\n"
        "dist.gather(data, gather_list=result, dst=0)",
        "Rank 0 collects everybody's data in a list, in the order of ranks; the others keep what they had.",
        "To bring predictions to the rank that scores them, or recorded spikes to the rank that writes the file.",
    ),
    Entry(
        "all_gather",
        "All-Gather",
        "AllGather",
        "result = [np.zeros_like(data) for _ in range(n)]\ndist.all_gather(result, data)",
        "Every rank collects everybody's data in a list, in the order of ranks.",
        "To put sharded weights together for a layer, or to tell every part of a brain which neurons fired elsewhere.",
    ),
    Entry(
        "scatter",
        "Scatter",
        "Scatter",
        "data = [create_data(i) for i in range(n)] if rank == 0 else None\ndist.scatter(result, data, src=0)",
        "Rank 0 deals out a list: the first tensor to rank 0, the second to rank 1, and so on. It is "
        "Gather in reverse.",
        "To deal out the shards of a batch, or stimuli to the regions that take them in.",
    ),
    Entry(
        "all_to_all",
        "All-to-All",
        "All-to-All",
        "data = [create_data(rank * n + i) for i in range(n)]\ndist.all_to_all(result, data)",
        "Every rank deals out its own list, and collects what the others deal to it: rows become columns, "
        "as when a matrix "
        "is transposed.",
        "To route tokens to experts and back, and to exchange spikes when each rank has something else to "
        "say to every other.",
    ),
    Entry(
        "reduce_scatter",
        "Reduce-Scatter",
        "ReduceScatter (sum)",
        "data = [create_data(rank * n + i) for i in range(n)]\ndist.reduce_scatter(result, data, op=dist.ReduceOp.SUM)",
        "The first tensors of all lists are added up for rank 0, the second ones for rank 1, and so on.",
        "In sharded training each rank needs the summed gradient of its own shard only; with All-Gather "
        "after it, it makes "
        "an All-Reduce.",
        reduces=True,
    ),
    Entry(
        "send_recv",
        "Send and receive: a ring",
        "Send / Recv",
        "request = dist.isend(data, dst=(rank + 1) % n)\ndist.recv(result, src=(rank - 1) % n)\nrequest.wait()",
        "Every rank sends its data to the next one and receives from the one before; the last sends to the first.",
        "For pipelines, where a layer or region feeds the next one, and for rings from which larger "
        "patterns are built.",
    ),
    Entry(
        "group",
        "A group: even ranks only",
        "Reduce (sum), group",
        "group = dist.new_group(ranks=even_ranks)\n"
        "if rank % 2 == 0:\n"
        "    dist.reduce(data, dst=0, op=dist.ReduceOp.SUM, group=group)",
        "Only the even ranks add up their data, on rank 0; the odd ranks are not in the group and go on at once.",
        "When a part of the ranks has business of its own: the replicas of one model shard, or the "
        "regions of one hemisphere.",
        reduces=True,
    ),
)
