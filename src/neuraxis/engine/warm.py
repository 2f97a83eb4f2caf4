"""Compile the kernels, or load them from disk, before the first network needs them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from neuraxis.compiled import after_the_first, digest_of_sources
from neuraxis.engine.generated import cache_folder
from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.packing import warm_up_packing
from neuraxis.engine.placement import place
from neuraxis.engine.shard import Shard
from neuraxis.network import STDP, AllToAll, Network, Normal
from neuraxis.network.models import lif_delta

__all__ = ["is_compiled", "warm_up"]


@cache
def warm_up() -> None:
    """Have every kernel in memory. Of the processes that find nothing on disk, one compiles and the others wait."""
    done = _mark()
    if done is not None and done.exists():
        _run_each_kernel()
        return
    with after_the_first(__file__):
        _run_each_kernel()
    if done is not None:
        try:
            done.touch()
        except OSError:
            pass  # the next process waits for its turn once more


def is_compiled() -> bool:
    """Whether this version's kernels were compiled on this machine before, as far as that can be known."""
    done = _mark()
    return done is None or done.exists()


def _mark() -> Path | None:
    """The file that says so; None where nothing can be kept."""
    folder = cache_folder()
    return None if folder is None else folder / f"compiled-{digest_of_sources().hex()[:20]}"


def _run_each_kernel() -> None:
    """Run a tiny network that uses each."""
    network = Network()
    population = network.population("warm", 2, lif_delta, v_mv=Normal(-70.0, 1.0))
    network.poisson(population, 1000.0, 0.1)
    network.connect(population, population, AllToAll(), 0.1, 1.0)
    network.connect(population, population, AllToAll(), 10.0, 1.0, name="wide")
    network.connect(population, population, AllToAll(), 0.1, 1.0, plasticity=STDP.additive(w_max=1.0), name="plastic")
    placement = place(network, 1)
    Shard(network, placement, 0, Outboxes.private(network, placement)).advance(2, 0, 0)
    warm_up_packing()
