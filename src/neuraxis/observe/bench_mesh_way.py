"""One way to run brains: the program of its processes. Every rank of a launcher runs it alike.

What to do is in a file; what came of it is written to another, a line of JSON for each brain, as it comes. Times are
those of the monotonic clock, in ns.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from neuraxis.errors import NeuraxisError
from neuraxis.execution import Simulation
from neuraxis.execution.executor import Executor
from neuraxis.execution.mesh import MeshExecutor
from neuraxis.mesh.topology import Topology
from neuraxis.observe.bench_mesh_brains import Workload, make_workload

__all__ = ["Job", "Order", "Said", "read_said"]

_FAULT_PIECE_STEPS = 2000
_FAULT_LIMIT_S = 60.0


class Job(msgspec.Struct, frozen=True):
    """A brain to run: `warm_steps` that do not count, then stretches. `fault`: go on until somebody is killed."""

    brain: str
    warm_steps: int
    stretch_steps: int
    stretches: int
    fault: bool = False


class Order(msgspec.Struct, frozen=True):
    """All that one way is to do. `mesh`: a name of its own; `endpoint`: of the router, where there is one."""

    way: str
    jobs: list[Job]
    folder: str
    cores: int
    mesh: str = ""
    endpoint: str = ""


class Said(msgspec.Struct):
    """What a process says.

    Attributes:
        what: "ran" (with all but the last three), "waits" (somebody may be killed now), "raised" or "went on".
        stretches: begin and end of each.
        at: when.
        error: its kind and its first line.
        silences: by region, what it missed: [of whom, from which step, to which, why].
    """

    what: str
    brain: str
    at: int = 0
    start_seconds: float = 0.0
    processes: int = 1
    stretches: list[tuple[int, int]] = []
    steps: int = 0
    fingerprint: str = ""
    window_steps: int = 0
    dt_ms: float = 0.0
    neurons: int = 0
    error: str = ""
    silences: dict[str, list[Any]] = {}


def read_said(path: Path) -> list[Said]:
    """What was written so far; a line that is not complete is left for the next time."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Said) for line in lines]


def main(path: str) -> None:
    order = msgspec.json.decode(Path(path).read_bytes(), type=Order)
    rank = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    with (Path(order.folder) / f"said-{rank}").open("ab", buffering=0) as said, _ranks(order.way) as world:
        for job in order.jobs:
            # The files are there before anybody needs them: who leads makes them, and the others meet it first.
            folder = Path(order.folder) / job.brain
            load = make_workload(job.brain, folder, order.cores)
            begun = time.monotonic()
            executor = _executor(order, load, world)
            with Simulation(
                load.network, executor=executor, residents=load.residents, progress=False, **_options(order.way, load)
            ) as simulation:
                try:
                    _run(job, load, simulation, time.monotonic() - begun, said)
                    if job.fault:
                        _go_on(job, simulation, executor, said)
                except NeuraxisError as error:
                    lines = str(error).strip().splitlines() or [""]
                    text = f"{type(error).__name__}: {lines[0]}"
                    _say(said, Said("raised", job.brain, time.monotonic_ns(), error=text))
                    raise


def _run(job: Job, load: Workload, simulation: Simulation, start_seconds: float, said: BinaryIO) -> None:
    load.show(simulation)
    simulation.advance(job.warm_steps)
    stretches = []
    for _ in range(job.stretches):
        begun = time.monotonic_ns()
        simulation.advance(job.stretch_steps)
        stretches.append((begun, time.monotonic_ns()))
    ran = Said(
        "ran", job.brain, time.monotonic_ns(), start_seconds, simulation.workers, stretches, job.stretch_steps,
        simulation.fingerprint(), load.window_steps, load.network.dt_ms, load.network.neuron_count,
    )  # fmt: skip
    _say(said, ran)


def _go_on(job: Job, simulation: Simulation, executor: Executor | None, said: BinaryIO) -> None:
    """Run until the parent has seen enough, whoever dies meanwhile."""
    _say(said, Said("waits", job.brain, time.monotonic_ns()))
    enough = Path(said.name).parent / "enough"
    deadline = time.monotonic() + _FAULT_LIMIT_S
    while not enough.exists() and time.monotonic() < deadline:
        simulation.advance(_FAULT_PIECE_STEPS)
    went_on = Said("went on", job.brain, time.monotonic_ns(), fingerprint=simulation.fingerprint())
    stories: dict[str, Any] = executor.stories() if isinstance(executor, MeshExecutor) else {}
    went_on.silences = {
        name: [[other, *silence] for other, seen in story["upstream"].items() for silence in seen["silences"]]
        for name, story in stories.items()
    }
    _say(said, went_on)


def _say(said: BinaryIO, what: Said) -> None:
    said.write(msgspec.json.encode(what) + b"\n")


@contextmanager
def _ranks(way: str) -> Iterator[Any]:
    """The other ranks, in ways that have such."""
    if not way.startswith("lockstep-"):
        yield None
        return
    from neuraxis.comm import DistributedContext

    with DistributedContext(backend=way.removeprefix("lockstep-"), check_calls=False) as context:
        yield context.world


def _executor(order: Order, load: Workload, world: Any) -> Executor | None:
    """Who runs the brain; None: the simulation's own."""
    if world is not None:
        from neuraxis.execution import LockstepExecutor

        return LockstepExecutor(world, load.placement)
    if not order.way.startswith("zenoh-"):
        return None
    topology = Topology.from_options([order.endpoint]) if order.endpoint else Topology.local()
    return MeshExecutor(load.units, mesh=order.mesh, topology=topology)


def _options(way: str, load: Workload) -> dict[str, Any]:
    if not way.startswith("shm"):
        return {}
    loss = "restart" if way == "shm-restart" else "raise"
    return {"workers": len(load.placement), "placement": load.placement, "on_worker_loss": loss}


if __name__ == "__main__":
    main(sys.argv[1])
