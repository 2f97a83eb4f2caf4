"""Three ranks over MPI, of which rank 1 fails.

mpirun -n 3 python -m tests.comm.fault_script_mpi FOLDER raises

First the faults that a process survives, one after another, each in a context of its own; then, by KIND, the end of
rank 1. Every rank writes down what it saw.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import neuraxis.distributed as dist
from neuraxis.errors import PeerLost

DEADLINE_S = 60.0
VICTIM = 1


class Witness:
    """Write a line for each loss that this rank observes."""

    def __init__(self, folder: Path) -> None:
        self.rank = -1
        self._folder = folder

    def saw(self, place: str, what: Any) -> None:
        reported: dict[str, Any] = {"place": place}
        if isinstance(what, PeerLost):
            reported |= {"kind": type(what).__name__, "rank": what.rank, "exit_code": what.exit_code, "text": str(what)}
        else:
            reported |= {"kind": what}
        with open(self._folder / f"rank {self.rank}", "a") as lines:
            lines.write(json.dumps(reported) + "\n")


def in_a_collective(context: dist.DistributedContext) -> None:
    if context.rank == VICTIM:
        raise KeyError("the rank's own")
    dist.all_reduce(np.ones(4))


def in_a_message(context: dist.DistributedContext) -> None:
    """Rank 0 waits for rank 2, which waits for the victim: both errors name the victim."""
    if context.rank == VICTIM:
        raise KeyError("the rank's own")
    dist.recv(np.ones(4), src=(context.rank - 1) % 3)


def with_a_call_under_way(context: dist.DistributedContext) -> None:
    """The victim has begun a call that no other rank makes; the call does not block it."""
    group = dist.new_group([0, 1, 2])
    assert group
    if context.rank == VICTIM:
        group.all_reduce(np.ones(4), async_op=True)
        time.sleep(0.05)
        raise KeyError("the rank's own")
    dist.barrier()


def by_an_exit(context: dist.DistributedContext) -> None:
    if context.rank == VICTIM:
        sys.exit(3)
    dist.all_reduce(np.ones(4))


def left_early(context: dist.DistributedContext) -> None:
    if context.rank == VICTIM:
        dist.send(np.full(4, 7.0), dst=0)
        return
    if context.rank == 0:
        time.sleep(0.2)
        last_words = np.zeros(4)
        dist.recv(last_words, src=VICTIM)
        assert last_words.tolist() == [7.0] * 4
    dist.barrier()


FAULTS = {
    function.__name__: function
    for function in (in_a_collective, in_a_message, with_a_call_under_way, by_an_exit, left_early)
}


def _survive(witness: Witness, place: str) -> None:
    with dist.DistributedContext("mpi", timeout=DEADLINE_S) as context:
        witness.rank = context.rank
        dist.barrier()
        try:
            FAULTS[place](context)
        except PeerLost as error:
            witness.saw(place, error)
            raise


def _end(witness: Witness, kind: str) -> None:
    """No `with` that would see the exception, and a group that only this function holds."""
    context = dist.init_distributed("mpi", timeout=DEADLINE_S)
    witness.rank = context.rank
    group = dist.new_group([0, 1, 2])
    assert group
    group.barrier()
    if context.rank == VICTIM:
        if kind == "exits":
            sys.exit(3)
        raise KeyError("the rank's own")
    try:
        group.barrier()
    except PeerLost as error:
        witness.saw(kind, error)
        time.sleep(0.5)  # a checkpoint is written
        witness.saw(kind, "saved")


def main(folder: str, kind: str) -> None:
    witness = Witness(Path(folder))
    with dist.DistributedContext("mpi", timeout=DEADLINE_S):
        dist.all_reduce(np.ones(4))
    if kind == "raises":
        for place in FAULTS:
            try:
                _survive(witness, place)
            except (PeerLost, KeyError, SystemExit):
                pass
    _end(witness, kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
