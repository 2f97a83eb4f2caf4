"""What the tests of remote calls share: ranks that call each other, over each backend."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuraxis.rpc import RpcContext
from tests.crew import Crew, _free_port
from tests.crew.nursery import SEARCH_PATH, nursery

SIZE = 3
BACKENDS = ["zenoh", "shm", "gloo", "tensorpipe", pytest.param("mpi", marks=pytest.mark.slow)]


class Callers(Crew):
    """A crew whose ranks have an RPC context instead of a distributed one, with one thread that serves."""

    def _spawn(self, address: str) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMIX_", "SLURM_", "MASTER_"))
        }
        environment.update(PYTHONPATH=SEARCH_PATH, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
        if self.backend == "mpi":
            mpirun = Path(sys.executable).with_name("mpirun")
            launcher = [str(mpirun) if mpirun.exists() else "mpirun"]
            launcher += ["--allow-run-as-root", "--oversubscribe", "-n", str(self.size)]
            command = [sys.executable, "-m", "tests.rpc.caller", address, self.backend]
            self._processes.append(self._popen([*launcher, *command], environment))
            return
        environment.update(
            WORLD_SIZE=str(self.size),
            LOCAL_WORLD_SIZE=str(self.size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(_free_port()),
            NEURAXIS_JOB=secrets.token_hex(8),
        )
        assert self._folder is not None
        for rank in range(self.size):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            arguments = (address, self.backend)
            forked = nursery(torch=True).fork("tests.rpc.caller", "main", arguments, own, self._folder / "output")
            self._processes.append(forked)


@pytest.fixture(scope="session", autouse=True)
def _ready(nurseries: None) -> None:
    """The nurseries are there, and Zenoh has opened what it keeps for the life of a process."""
    mesh = f"warm-{os.getpid()}"
    with RpcContext(name="first", mesh=mesh) as first, RpcContext(name="second", mesh=mesh) as second:
        first.register_function("nothing", print)
        assert second.wait_for(["first"], 10) == []
        second.rpc_sync("first", "nothing")


@pytest.fixture(scope="session", params=BACKENDS)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    """Three ranks that call each other, alive from test to test."""
    crew = Callers(request.param, SIZE)
    yield crew
    crew.close()
