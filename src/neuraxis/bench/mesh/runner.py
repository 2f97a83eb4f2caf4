"""The program that runs brains by one method. Every rank of a launcher runs the same program.

It reads its assignment from a file and appends events to another, one line of JSON each. Times are those of the
monotonic clock, in ns.
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

from neuraxis.bench.mesh.workloads import Workload, make_workload
from neuraxis.errors import NeuraxisError
from neuraxis.mesh.topology import Topology
from neuraxis.simulation import Simulation
from neuraxis.simulation.executor import Executor
from neuraxis.simulation.mesh import MeshExecutor

__all__ = ["Assignment", "Event", "Job", "read_events"]

_FAULT_PIECE_STEPS = 2000
_FAULT_TIMEOUT_S = 60.0


class Job(msgspec.Struct, frozen=True):
    """A brain to run: `warm_steps` that do not count, then stretches; with `fault`, until a process is killed."""

    brain: str
    warm_steps: int
    stretch_steps: int
    stretches: int
    fault: bool = False


class Assignment(msgspec.Struct, frozen=True):
    """The jobs of one method. `mesh` is a unique mesh name, `endpoint` that of the router, if there is one."""

    method: str
    jobs: list[Job]
    folder: str
    cores: int
    mesh: str = ""
    endpoint: str = ""


class Event(msgspec.Struct):
    """An event that a process reports.

    Attributes:
        what: "ran" (with all fields but the last two), "ready" (a process may be killed now), "raised" or "continued".
        at: its time.
        stretches: begin and end of each.
        error: the type and the first line of an exception.
        silences: by region, the gaps in what it received: [region, first step, last step, reason].
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


def read_events(path: Path) -> list[Event]:
    """Return the events that a file has so far; an incomplete line is left for the next time."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Event) for line in lines]


def main(path: str) -> None:
    assignment = msgspec.json.decode(Path(path).read_bytes(), type=Assignment)
    rank = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    with (
        (Path(assignment.folder) / f"events-{rank}").open("ab", buffering=0) as log,
        _ranks(assignment.method) as world,
    ):
        for job in assignment.jobs:
            folder = Path(assignment.folder) / job.brain
            load = make_workload(job.brain, folder, assignment.cores)
            begun = time.monotonic()
            executor = _executor(assignment, load, world)
            with Simulation(
                load.network,
                executor=executor,
                python_populations=load.python_populations,
                progress=False,
                **_options(assignment.method, load),
            ) as simulation:
                try:
                    _run(job, load, simulation, time.monotonic() - begun, log)
                    if job.fault:
                        _run_until_stopped(job, simulation, executor, log)
                except NeuraxisError as error:
                    lines = str(error).strip().splitlines() or [""]
                    text = f"{type(error).__name__}: {lines[0]}"
                    _report(log, Event("raised", job.brain, time.monotonic_ns(), error=text))
                    raise


def _run(job: Job, load: Workload, simulation: Simulation, start_seconds: float, log: BinaryIO) -> None:
    load.show(simulation)
    simulation.advance(job.warm_steps)
    stretches = []
    for _ in range(job.stretches):
        begun = time.monotonic_ns()
        simulation.advance(job.stretch_steps)
        stretches.append((begun, time.monotonic_ns()))
    ran = Event(
        "ran", job.brain, time.monotonic_ns(), start_seconds, simulation.workers, stretches, job.stretch_steps,
        simulation.fingerprint(), load.window_steps, load.network.dt_ms, load.network.neuron_count,
    )  # fmt: skip
    _report(log, ran)


def _run_until_stopped(job: Job, simulation: Simulation, executor: Executor | None, log: BinaryIO) -> None:
    """Run until the benchmark stops it, whichever process dies meanwhile."""
    _report(log, Event("ready", job.brain, time.monotonic_ns()))
    stop = Path(log.name).parent / "stop"
    deadline = time.monotonic() + _FAULT_TIMEOUT_S
    while not stop.exists() and time.monotonic() < deadline:
        simulation.advance(_FAULT_PIECE_STEPS)
    continued = Event("continued", job.brain, time.monotonic_ns(), fingerprint=simulation.fingerprint())
    statistics: dict[str, Any] = executor.statistics() if isinstance(executor, MeshExecutor) else {}
    continued.silences = {
        name: [[other, *silence] for other, seen in one["upstream"].items() for silence in seen["silences"]]
        for name, one in statistics.items()
    }
    _report(log, continued)


def _report(log: BinaryIO, event: Event) -> None:
    log.write(msgspec.json.encode(event) + b"\n")


@contextmanager
def _ranks(method: str) -> Iterator[Any]:
    """Join the other ranks and yield their communicator for lockstep methods; yield None for others."""
    if not method.startswith("lockstep-"):
        yield None
        return
    from neuraxis.comm import DistributedContext

    with DistributedContext(backend=method.removeprefix("lockstep-"), check_calls=False) as context:
        yield context.world


def _executor(assignment: Assignment, load: Workload, world: Any) -> Executor | None:
    """Return the executor of a method; None for the default of the simulation."""
    if world is not None:
        from neuraxis.simulation import LockstepExecutor

        return LockstepExecutor(world, load.placement)
    if not assignment.method.startswith("zenoh-"):
        return None
    topology = Topology.from_options([assignment.endpoint]) if assignment.endpoint else Topology.local()
    return MeshExecutor(load.units, mesh=assignment.mesh, topology=topology)


def _options(method: str, load: Workload) -> dict[str, Any]:
    if not method.startswith("shm"):
        return {}
    loss = "restart" if method == "shm-restart" else "raise"
    return {"workers": len(load.placement), "placement": load.placement, "on_worker_loss": loss}


if __name__ == "__main__":
    main(sys.argv[1])
