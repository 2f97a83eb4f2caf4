"""Start, monitor and end the processes that run brains by one method."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from neuraxis.bench.mesh.runner import Assignment, Event, Job, read_events
from neuraxis.bench.mesh.workloads import make_workload, read_pid, region_names, tick_path
from neuraxis.bench.processes import (
    ContenderFailed,
    defer_signals,
    end_process,
    last_error,
    mpirun_command,
    python_command,
    start_process,
)
from neuraxis.machine import usable_cores
from neuraxis.process.processes import with_parent_death_signal

__all__ = ["Program", "ranks_of"]

_END_TIMEOUT_S = 5.0
_POLL_S = 0.005
_ROUTER_TIMEOUT_S = 20.0
_PROGRAM = "neuraxis.bench.mesh.runner"


def ranks_of(brain: str, folder: Path) -> int:
    """Return the number of ranks of a brain for methods with a launcher."""
    return len(make_workload(brain, folder, usable_cores()).placement)


class Program:
    """The processes that run the jobs of one method. On exit all of them, the router's included, have ended."""

    def __init__(self, method: str, jobs: Sequence[Job], ranks: int) -> None:
        self.method = method
        self.jobs = list(jobs)
        self._ranks = ranks
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Program:
        self._temporary = tempfile.TemporaryDirectory(prefix="neuraxis-bench-")
        self.folder = Path(self._temporary.name)
        self._log: IO[bytes] = (self.folder / "log").open("w+b")
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _start(self) -> None:
        for job in self.jobs:
            (self.folder / job.brain).mkdir()
            make_workload(job.brain, self.folder / job.brain, usable_cores(), make_files=True)
        endpoint = self._start_router() if self.method == "zenoh-router" else ""
        assignment = Assignment(self.method, self.jobs, str(self.folder), usable_cores(), self.folder.name, endpoint)
        path = self.folder / "assignment"
        path.write_bytes(msgspec.json.encode(assignment))
        command = python_command(_PROGRAM, str(path))
        if self.method == "lockstep-mpi":
            command = [*mpirun_command(self._ranks), *command]
        elif self.method.startswith("lockstep-"):
            launch = ("launch", "-n", str(self._ranks), "--grace", "1", "-m", _PROGRAM, str(path))
            command = python_command("neuraxis", *launch)
        self.main = self._popen(command, self._log)

    def _start_router(self) -> str:
        out = self.folder / "router"
        with out.open("wb") as file:
            command = python_command("neuraxis", "router", "--listen", "tcp/127.0.0.1:0", "--json")
            router = self._popen(command, file)
        deadline = time.monotonic() + _ROUTER_TIMEOUT_S
        while not (output := out.read_bytes()).endswith(b"\n"):
            if router.poll() is not None or time.monotonic() > deadline:
                raise ContenderFailed(f"the router did not start: {output.decode(errors='replace')[-300:]}")
            time.sleep(0.02)
        return str(json.loads(output)["endpoints"][0])

    def _popen(self, command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        with defer_signals():
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = start_process(
                self.method, with_parent_death_signal(command), output=output, environment=environment
            )
            self._processes.append(process)
        return process

    def events(self, rank: int = 0) -> list[Event]:
        return read_events(self.folder / f"events-{rank}")

    def all_events(self) -> list[Event]:
        return [event for rank in range(self._ranks) for event in self.events(rank)]

    def wait_for(self, what: str, brain: str, limit_s: float) -> Event:
        """Wait until the first rank has reported an event of a brain."""
        deadline = time.monotonic() + limit_s
        while True:
            ended = self.main.poll() is not None
            for event in self.events():
                if event.what == what and event.brain == brain:
                    return event
            if ended:
                raise ContenderFailed(self.last_error() or f"ended with status {self.main.returncode}")
            if time.monotonic() > deadline:
                raise ContenderFailed(f"{brain}: not done within {limit_s:g} s")
            time.sleep(_POLL_S)

    def tick_files(self, brain: str) -> dict[str, Path]:
        return {name: tick_path(self.folder / brain, name) for name in region_names(brain)}

    def pids(self, brain: str) -> dict[str, int]:
        """Return the process id of each region."""
        return {name: read_pid(path) for name, path in self.tick_files(brain).items()}

    def stop(self) -> None:
        """Let a runner that continues after a fault end."""
        (self.folder / "stop").touch()

    def wait_for_end(self) -> None:
        """Give the runner time to end by itself, and with it its workers and nodes."""
        with suppress(subprocess.TimeoutExpired):
            self.main.wait(_END_TIMEOUT_S)

    def last_error(self) -> str:
        """Return the last error that the processes printed."""
        self._log.seek(0)
        return last_error(self._log.read().decode(errors="replace"))

    def end(self) -> None:
        """End the processes that still run. Workers and nodes end with the process that started them."""
        with defer_signals():
            for process in reversed(self._processes):
                end_process(process, (signal.SIGTERM, _END_TIMEOUT_S), (signal.SIGKILL, _END_TIMEOUT_S))
            self._log.close()
            self._temporary.cleanup()
