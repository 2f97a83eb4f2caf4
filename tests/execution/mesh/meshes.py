"""What the tests of brains over the mesh share: a mesh of their own for each, who has which population, and waiting."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from neuraxis.execution import Simulation
from neuraxis.execution.mesh import MeshExecutor, Units
from neuraxis.network import Network

__all__ = ["LIMIT_S", "fresh_mesh", "in_units", "on_the_mesh", "one_each", "until"]

LIMIT_S = 60.0  # for what takes a second or two where nobody else works
_NUMBERS = itertools.count()


def fresh_mesh() -> str:
    """A name that nobody else uses."""
    return f"brain-{os.getpid()}-{next(_NUMBERS)}"


def one_each(network: Network) -> Units:
    """Each population is a node of its own, and has its name."""
    return Units({one.name: [one.index] for one in network.populations})


def in_units(network: Network, n: int) -> Units:
    """So many nodes, with the populations dealt out in turn: none has neighbours only."""
    return Units({f"unit/{k}": [one.index for one in network.populations][k::n] for k in range(n)})


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait until a condition holds; what it gave."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)
    return found


@contextmanager
def on_the_mesh(network: Network, units: Units | None = None, **options: Any) -> Iterator[Simulation]:
    """A simulation with a node for each unit; its threads are all there from the beginning."""
    residents = options.pop("residents", ())
    executor = MeshExecutor(units or one_each(network), **{"mesh": fresh_mesh(), **options})
    with Simulation(network, executor=executor, residents=residents) as simulation:
        assert executor.team is not None
        pool = executor.team._pool
        all_here = threading.Barrier(pool._max_workers)
        for future in [pool.submit(all_here.wait, LIMIT_S) for _ in range(pool._max_workers)]:
            future.result(LIMIT_S)
        yield simulation
