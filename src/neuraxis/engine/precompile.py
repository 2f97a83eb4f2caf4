"""Compile what a network needs, before its workers start.

Most kernels of the engine are the same for all networks; some are compiled only for networks that need them
(`engine/cpu/optional.py`). Each combination of a neuron model with its inputs and
constants adds a generated function (`engine/codegen.py`). One process compiles what is missing, because the workers
would compile the same functions at the same time; they load them from the cache. A file in the cache folder marks each
part that is there.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name

from neuraxis.compiled import cache_path, compile_once, digest_of_sources, watch_compilation
from neuraxis.engine.codegen import BlockLayout, Generated, cache_folder, generated_update
from neuraxis.engine.cpu import optional
from neuraxis.engine.cpu.advance import advance
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.placement import place
from neuraxis.engine.random import poisson_kernel, poisson_table
from neuraxis.engine.spikes import SpikeBuffers, warm_up_packing
from neuraxis.network import AllToAll, Network, Normal
from neuraxis.network.models import lif_delta
from neuraxis.progress import ProgressLine

__all__ = [
    "KERNELS",
    "OPTIONAL",
    "PACKING",
    "Part",
    "compile_missing",
    "kernel_cache",
    "missing_parts",
    "parts_of",
    "warm_up",
]


@dataclass(frozen=True)
class Part:
    """Something that is compiled together; `functions` is about how many functions it has, for the progress line."""

    name: str
    run: Callable[[], object]
    functions: int = 3

    @property
    def mark(self) -> Path | None:
        """The file which says that this part is in the cache; None if there is no cache folder."""
        folder = cache_folder()
        return None if folder is None else folder / f"{self.name}.{_machine()}.compiled"


def warm_up(network: Network | None = None, *, packing: bool = False) -> None:
    """Load the kernels of a network, and with `packing` those for spikes that travel as messages.

    What is not in the cache is compiled, by one process if several call this at the same time. Functions of neuron
    models are not loaded. Without a network these are the kernels that all networks use.
    """
    parts = _kernels_of(network) if network is not None else [KERNELS]
    if packing:
        parts.append(PACKING)
    parts = [part for part in parts if part.name not in _loaded]
    compile_missing(parts, show=False)
    for part in parts:
        part.run()
        _loaded.add(part.name)


def _kernels_of(network: Network) -> list[Part]:
    needed = {group.name for group in optional.needed_by(network)}
    return [KERNELS, *(part for part in OPTIONAL if part.name in needed)]


def parts_of(network: Network) -> list[Part]:
    """Return the parts that a network needs on CPUs."""
    driven = {one.population.index for one in network.poisson_inputs}
    own_current = {one.population.index for one in network.current_inputs if isinstance(one.amplitude_pa, np.ndarray)}
    generated: list[Generated | None] = []
    for population in network.populations:
        model = population.model
        layout = BlockLayout.of(model, poisson=population.index in driven, current=population.index in own_current)
        extra = tuple(row.receptor for row in network.accumulators(population)[len(model.receptors) :])
        generated.append(generated_update(model, layout, model.values(network.dt_ms), extra))
    for one in network.poisson_inputs:
        generated.append(
            poisson_kernel(poisson_table(np.asarray(one.rate_hz) * network.dt_ms * 1e-3, one.population.n))
        )
    distinct = {each.key: each for each in generated if each is not None}
    return [*_kernels_of(network), *(Part(key, each.compiled) for key, each in distinct.items())]


def missing_parts(parts: Sequence[Part]) -> list[Part]:
    """Return those of the parts that are not in the cache; none if there is no cache that could have them."""
    if cache_folder() is None or not cache_path(advance):
        return []
    return [part for part in parts if part.mark is not None and not part.mark.exists()]


def kernel_cache() -> str:
    """Return the folder of compiled kernels; empty if there is none that can be written."""
    return cache_path(advance)


def compile_missing(parts: Sequence[Part], show: bool | None = None) -> float:
    """Compile the parts that are not in the cache, and return how long that took in seconds; 0 if all are there.

    If several processes find the same parts missing, one compiles and the others wait for it. `show` draws a progress
    line on standard error; by default if that is a terminal.
    """
    if not missing_parts(parts):
        return 0.0
    begun = time.perf_counter()
    with compile_once(__file__):
        missing = missing_parts(parts)
        with (
            ProgressLine("compiling, once", sum(part.functions for part in missing) or 1, show) as line,
            watch_compilation(lambda name: line.advance(1, name)),
        ):
            for part in missing:
                part.run()
                _set_mark(part)
    return time.perf_counter() - begun


def _set_mark(part: Part) -> None:
    try:
        if part.mark is not None:
            part.mark.touch()
    except OSError:
        pass  # the next process compiles the part again, which only costs time


@cache
def _machine() -> str:
    """Return a digest of everything that machine code in the cache depends on."""
    facts = (digest_of_sources().hex(), get_host_cpu_name(), numba.__version__, sys.version, cache_path(advance))
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]


def _run_kernels() -> None:
    """Run a tiny network that uses the kernels of all networks, and no others."""
    network = Network()
    population = network.population("warm", 2, lif_delta, v_mv=Normal(-70.0, 1.0))
    network.poisson(population, [1000.0, 2000.0], 0.1)  # two rates need no generated function
    network.connect(population, population, AllToAll(), 0.1, 1.0)
    placement = place(network, 1)
    shard = Shard(network, placement, 0, SpikeBuffers.private(network, placement))
    shard.advance(2, 0, 0)
    shard.jump(3)


_loaded: set[str] = set()  # names of parts whose kernels this process has run

KERNELS = Part("kernels", _run_kernels, 45)
OPTIONAL = [Part(group.name, group.compile, len(group.kernels)) for group in optional.GROUPS]
PACKING = Part("packing", warm_up_packing, 8)  # for spikes that travel as messages
