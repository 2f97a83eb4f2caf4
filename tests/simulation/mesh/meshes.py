"""Helpers for tests of brains on the mesh: a separate mesh per test, assignment of populations, waiting."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from neuraxis.network import Network
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import MeshExecutor, Units

__all__ = ["LIMIT_S", "fresh_mesh", "in_units", "on_the_mesh", "one_each", "until"]

LIMIT_S = 60.0  # takes a second or two on an idle machine
_NUMBERS = itertools.count()


def fresh_mesh() -> str:
    """A mesh name that no other test uses."""
    return f"brain-{os.getpid()}-{next(_NUMBERS)}"


def one_each(network: Network) -> Units:
    """Each population is a node of its own, and has its name."""
    return Units({one.name: [one.index] for one in network.populations})


def in_units(network: Network, n: int) -> Units:
    """Return `n` nodes with the populations assigned in turn, so that no node has only adjacent ones."""
    return Units({f"unit/{k}": [one.index for one in network.populations][k::n] for k in range(n)})


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait until a condition holds; what it gave."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"timed out waiting for: {what}"
        time.sleep(0.01)
    return found


@contextmanager
def on_the_mesh(network: Network, units: Units | None = None, **options: Any) -> Iterator[Simulation]:
    """A simulation with a node for each unit; its threads are all there from the beginning."""
    python_populations = options.pop("python_populations", ())
    executor = MeshExecutor(units or one_each(network), **{"mesh": fresh_mesh(), **options})
    with Simulation(network, executor=executor, python_populations=python_populations) as simulation:
        assert executor.team is not None
        pool = executor.team._pool
        all_here = threading.Barrier(pool._max_workers)
        for future in [pool.submit(all_here.wait, LIMIT_S) for _ in range(pool._max_workers)]:
            future.result(LIMIT_S)
        yield simulation
