"""A network on a device compared with the CPU's engine: all counts, recordings and states, with ==."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.cuda.device import Device
from neuraxis.engine.cuda.shard import CudaShard
from neuraxis.engine.placement import place
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.state import state_hash
from neuraxis.network import Network

__all__ = ["assert_same_as_cpu"]


def assert_same_as_cpu(network: Network, steps: list[int], device: Device) -> CudaShard:
    """Run in stretches to these steps there, and at once to the last one here."""
    cpu, counted, recorded = _run(Shard, network, steps[-1:])
    gpu, counted_there, recorded_there = _run(CudaShard, network, steps, device=device)
    assert counted_there == counted
    for there, here in zip(recorded_there, recorded, strict=True):
        np.testing.assert_array_equal(there, here)
    assert state_hash(gpu) == state_hash(cpu)
    for made in (gpu, cpu):
        made.take_over(weights=True)  # after all was brought to the host, back to the device
        made.advance(steps[-1] + 20, 0, 0)
    assert (gpu.events, gpu.spike_hash, state_hash(gpu)) == (cpu.events, cpu.spike_hash, state_hash(cpu))
    assert isinstance(gpu, CudaShard)
    return gpu


def _run(
    kind: type[Shard], network: Network, steps: list[int], **options: Any
) -> tuple[Shard, tuple[Any, ...], list[Any]]:
    """The shard, and all that it counted and recorded."""
    placement = place(network, 1)
    made = kind(network, placement, 0, SpikeBuffers.private(network, placement), **options)
    taken = []
    for step in steps:
        while made.advance(step, 0, 0):
            taken.append(made.take_recorded())
    taken.append(made.take_recorded())
    recorded = [np.concatenate([one[i] for one in taken]) for i in range(3)]
    counted = (made.static_synapses, made.found.tallies.tolist(), *made.spike_counts, made.events, made.spike_hash)
    return made, counted, recorded
