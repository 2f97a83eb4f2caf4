"""The processes of one way to run brains: started, followed, and ended whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from neuraxis.errors import LaunchError
from neuraxis.launch.processes import tethered
from neuraxis.machine import usable_cores
from neuraxis.observe.bench_contender import ContenderFailed, find_mpirun
from neuraxis.observe.bench_contenders import signals_later
from neuraxis.observe.bench_mesh_brains import make_workload, region_names, tick_path
from neuraxis.observe.bench_mesh_ticks import read_pid
from neuraxis.observe.bench_mesh_way import Job, Order, Said, read_said

__all__ = ["Program", "ranks_of"]

_END_S = 5.0
_LOOK_S = 0.005
_ROUTER_S = 20.0
_PROGRAM = "neuraxis.observe.bench_mesh_way"


def ranks_of(brain: str, folder: Path) -> int:
    """How many ranks a brain has where a launcher starts them."""
    return len(make_workload(brain, folder, usable_cores()).placement)


class Program:
    """One way at work on its jobs. All its processes, the router's included, are gone when it is left."""

    def __init__(self, way: str, jobs: Sequence[Job], ranks: int) -> None:
        self.way = way
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
        endpoint = self._start_router() if self.way == "zenoh-router" else ""
        order = Order(self.way, self.jobs, str(self.folder), usable_cores(), self.folder.name, endpoint)
        path = self.folder / "order"
        path.write_bytes(msgspec.json.encode(order))
        # -P: a file of the user's working folder must not be taken for a module.
        python = [sys.executable, "-P"]
        if self.way == "lockstep-mpi":
            command = [*_mpirun(self._ranks), *python, "-m", _PROGRAM, str(path)]
        elif self.way.startswith("lockstep-"):
            launch = ["-m", "neuraxis", "launch", "-n", str(self._ranks), "--grace", "1", "-m", _PROGRAM, str(path)]
            command = [*python, *launch]
        else:
            command = [*python, "-m", _PROGRAM, str(path)]
        self.main = self._popen(command, self._log)

    def _start_router(self) -> str:
        words = ["router", "--listen", "tcp/127.0.0.1:0", "--json"]
        out = self.folder / "router"
        with out.open("wb") as file:
            router = self._popen([sys.executable, "-P", "-m", "neuraxis", *words], file)
        deadline = time.monotonic() + _ROUTER_S
        while not (said := out.read_bytes()).endswith(b"\n"):
            if router.poll() is not None or time.monotonic() > deadline:
                raise ContenderFailed(f"the router did not start: {said.decode(errors='replace')[-300:]}")
            time.sleep(0.02)
        return str(json.loads(said)["endpoints"][0])

    def _popen(self, command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        with signals_later():
            try:
                process = subprocess.Popen(
                    tethered(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
            except OSError as error:
                raise LaunchError(f"{self.way}: {command[0]} could not be started: {error.strerror}") from error
            self._processes.append(process)
        return process

    # --- to follow --------------------------------------------------------------------------------------------

    def said(self, rank: int = 0) -> list[Said]:
        return read_said(self.folder / f"said-{rank}")

    def all_said(self) -> list[Said]:
        """What all its ranks said."""
        return [said for rank in range(self._ranks) for said in self.said(rank)]

    def wait_for(self, what: str, brain: str, limit_s: float) -> Said:
        """Wait until the first rank has said something of a brain."""
        deadline = time.monotonic() + limit_s
        while True:
            ended = self.main.poll() is not None
            for said in self.said():
                if said.what == what and said.brain == brain:
                    return said
            if ended:
                raise ContenderFailed(self.last_words() or f"ended with status {self.main.returncode}")
            if time.monotonic() > deadline:
                raise ContenderFailed(f"{brain}: not done within {limit_s:g} s")
            time.sleep(_LOOK_S)

    def tick_files(self, brain: str) -> dict[str, Path]:
        return {name: tick_path(self.folder / brain, name) for name in region_names(brain)}

    def pids(self, brain: str) -> dict[str, int]:
        """By region, the process that has it."""
        return {name: read_pid(path) for name, path in self.tick_files(brain).items()}

    def say_enough(self) -> None:
        (self.folder / "enough").touch()

    def wait_for_end(self) -> None:
        """Let it end by itself, if it does so soon: then its workers and nodes are gone as well."""
        with suppress(subprocess.TimeoutExpired):
            self.main.wait(_END_S)

    def last_words(self) -> str:
        """The last line that the processes printed: of a traceback, the error itself."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        spoken = [line for line in lines if line and not line.startswith("---")]
        errors = [line for line in spoken if re.match(r"(\[rank \d+\] )?(neuraxis\.errors\.\w+|\w*Error\b)", line)]
        return (errors or spoken or [""])[-1][:300]

    # --- to end -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End what still runs. Workers and nodes end with the process that started them."""
        with signals_later():
            for process in reversed(self._processes):
                for number in (signal.SIGTERM, signal.SIGKILL):
                    if process.poll() is None:
                        with suppress(ProcessLookupError):
                            os.killpg(process.pid, number)
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(_END_S)
            self._log.close()
            self._temporary.cleanup()


def _mpirun(ranks: int) -> list[str]:
    command = [find_mpirun() or "/usr/bin/mpirun", "-n", str(ranks)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > usable_cores():
        command.append("--oversubscribe")  # not otherwise: it also stops Open MPI from binding ranks to cores
    return command
