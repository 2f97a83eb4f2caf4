"""The patterns in the order of the page: title, code, explanation and use of each."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOGUE", "Entry"]


@dataclass(frozen=True)
class Entry:
    """Texts of a pattern; the fields are those of `PatternRun`."""

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
        "Every rank sends its data to rank 0, which adds the values element by element; the others keep their data.",
        "When one rank keeps the totals: the loss of a step, or the spike count of a whole brain.",
        reduces=True,
    ),
    Entry(
        "all_reduce",
        "All-Reduce",
        "AllReduce (sum)",
        "dist.all_reduce(data, op=dist.ReduceOp.SUM)",
        "The data of all ranks is added element by element, and every rank gets the same sum.",
        "The core of data-parallel training: gradients are summed after each backward pass, so that all "
        "replicas take "
        "the same step.",
        reduces=True,
    ),
    Entry(
        "barrier",
        "Barrier",
        "Barrier",
        "dist.barrier()",
        "A rank that arrives waits until all ranks have arrived; then all continue. No data moves.",
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
        "Rank 0 collects the data of all ranks in a list, in the order of ranks; the other ranks keep their data.",
        "To bring predictions to the rank that scores them, or recorded spikes to the rank that writes the file.",
    ),
    Entry(
        "all_gather",
        "All-Gather",
        "AllGather",
        "result = [np.zeros_like(data) for _ in range(n)]\ndist.all_gather(result, data)",
        "Every rank collects the data of all ranks in a list, in the order of ranks.",
        "To assemble the sharded weights of a layer, or to send every part of a brain the spikes of the others.",
    ),
    Entry(
        "scatter",
        "Scatter",
        "Scatter",
        "data = [create_data(i) for i in range(n)] if rank == 0 else None\ndist.scatter(result, data, src=0)",
        "Rank 0 distributes a list: the first tensor to rank 0, the second to rank 1, and so on. It is the "
        "reverse of Gather.",
        "To distribute the shards of a batch, or stimuli to sensory regions.",
    ),
    Entry(
        "all_to_all",
        "All-to-All",
        "All-to-All",
        "data = [create_data(rank * n + i) for i in range(n)]\ndist.all_to_all(result, data)",
        "Every rank distributes its own list, and collects the tensors that the others send to it, as in the "
        "transposition of a matrix.",
        "To route tokens to experts and back, and to exchange spikes when each rank has different data for "
        "every other.",
    ),
    Entry(
        "reduce_scatter",
        "Reduce-Scatter",
        "ReduceScatter (sum)",
        "data = [create_data(rank * n + i) for i in range(n)]\ndist.reduce_scatter(result, data, op=dist.ReduceOp.SUM)",
        "The first tensors of all lists are added for rank 0, the second ones for rank 1, and so on.",
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
        "Every rank sends its data to the next one and receives from the previous one; the last sends to the first.",
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
        "Only the even ranks add their data, on rank 0; the odd ranks are not in the group and continue at once.",
        "When a subset of the ranks communicates: the replicas of one model shard, or the regions of one hemisphere.",
        reduces=True,
    ),
)
