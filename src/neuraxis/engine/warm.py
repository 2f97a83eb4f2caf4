"""Compile the kernels, or load them from disk, by running a tiny network that uses each."""

from __future__ import annotations

from neuraxis.engine.placement import place
from neuraxis.engine.shard import Outboxes, Shard
from neuraxis.network import STDP, AllToAll, Network, Normal
from neuraxis.network.models import lif_delta

__all__ = ["compile_kernels"]


def compile_kernels() -> None:
    network = Network()
    population = network.population("warm", 2, lif_delta, v_mv=Normal(-70.0, 1.0))
    network.poisson(population, 1000.0, 0.1)
    network.connect(population, population, AllToAll(), 0.1, 1.0)
    network.connect(population, population, AllToAll(), 10.0, 1.0, name="wide")
    network.connect(population, population, AllToAll(), 0.1, 1.0, plasticity=STDP.additive(w_max=1.0), name="plastic")
    placement = place(network, 1)
    Shard(network, placement, 0, Outboxes.private(network, placement)).advance(2, 0, 0)
