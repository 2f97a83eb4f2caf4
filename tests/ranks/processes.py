"""Run a function in N rank processes, any of which may die, and return the outcome of each.

`neuraxis.launch.run` ends all ranks when one fails. Tests of failures need the opposite: the survivors continue, and
the outcome of every rank is recorded.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ranks.fork_server import Forked, fork_server

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """Exit status of a rank's process, and the value or exception of its function."""

    status: int
    value: Any = None
    error: BaseException | None = None
    finished: bool = False
    output: str = ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, size: int, port: int, job: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NEURAXIS_JOB": job,
        "OMP_NUM_THREADS": "1",
    }


class Ranks:
    """Running ranks; a context manager that ends them all.

    A fork server forks them, with torch loaded if `torch` is true. With a `command` prefix, or with variables in `env`
    (which modules may read at import), each rank is a new interpreter instead.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        *arguments: Any,
        env: dict[str, str] | None = None,
        command: Callable[[int], list[str]] | None = None,
        only: list[int] | None = None,
        port: int | None = None,
        job: str | None = None,
        torch: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="neuraxis-test-"))
        self.folder.chmod(0o777)  # a rank may run as another user
        self.size = size
        port = port or free_port()
        job = secrets.token_hex(8) if job is None else job
        call = pickle.dumps((function.__module__, function.__qualname__, arguments))
        (self.folder / "call").write_bytes(call)
        self.processes: dict[int, subprocess.Popen[bytes] | Forked] = {}
        for rank in only if only is not None else range(size):
            environment = {**os.environ, **rank_environment(rank, size, port, job), **(env or {})}
            log = self.folder / f"{rank}.log"
            if command is None and env is None:
                server = fork_server(torch)
                server.load(function.__module__)
                self.processes[rank] = server.fork(__name__, "_main", (self.folder, rank), environment, log)
                continue
            with log.open("wb") as output:
                self.processes[rank] = subprocess.Popen(
                    [*(command(rank) if command else ()), sys.executable, "-m", __name__, str(self.folder), str(rank)],
                    env=environment,
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    def outcomes(self, timeout: float = 60.0) -> list[Outcome]:
        """Wait for all ranks and return their outcomes. If a rank does not end, fail and show its output."""
        deadline = time.monotonic() + timeout
        for rank, process in self.processes.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} did not end within {timeout} s:\n{self.output(rank)}") from None
        return [self._outcome(rank) for rank in self.processes]

    def output(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text(errors="replace")

    def wait_for(self, name: str, timeout: float = 30.0) -> None:
        """Wait until a rank has called `mark(name)`."""
        if not _appears(self.folder / f"mark-{name}", timeout):
            logs = "\n".join(f"--- rank {rank}\n{self.output(rank)}" for rank in self.processes)
            raise AssertionError(f"no rank reached {name!r} within {timeout} s\n{logs}")

    def _outcome(self, rank: int) -> Outcome:
        status = self.processes[rank].returncode
        assert status is not None
        outcome = Outcome(status, output=self.output(rank))
        path = self.folder / f"{rank}.result"
        if path.exists():
            outcome.finished, outcome.value, outcome.error = pickle.loads(path.read_bytes())
        return outcome


def run_ranks(
    function: Callable[..., Any], size: int, *arguments: Any, timeout: float = 60.0, **options: Any
) -> list[Any]:
    """Run a function on every rank, require that each returned, and return the values."""
    with Ranks(function, size, *arguments, **options) as ranks:
        outcomes = ranks.outcomes(timeout)
    logs = "\n".join(f"--- rank {rank}, exit status {o.status}\n{o.output}" for rank, o in enumerate(outcomes))
    assert all(outcome.finished and outcome.error is None and outcome.status == 0 for outcome in outcomes), logs
    return [outcome.value for outcome in outcomes]


def mark(name: str) -> None:
    """Within a rank: tell the test that this point was reached."""
    (Path(os.environ["NEURAXIS_TEST_FOLDER"]) / f"mark-{name}").touch()


def await_mark(name: str, timeout: float = 30.0) -> None:
    """Within a rank: wait until some rank has called `mark(name)`."""
    assert _appears(Path(os.environ["NEURAXIS_TEST_FOLDER"]) / f"mark-{name}", timeout), f"no rank reached {name!r}"


def _appears(path: Path, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _main(folder: Path, rank: int) -> None:
    import importlib
    import traceback

    os.environ["NEURAXIS_TEST_FOLDER"] = str(folder)
    module, name, arguments = pickle.loads((folder / "call").read_bytes())
    function = getattr(importlib.import_module(module), name)
    result: tuple[bool, Any, BaseException | None]
    status = 0
    try:
        result = (True, function(*arguments), None)
    except BaseException as error:
        traceback.print_exc()
        result = (True, None, error)
        status = 1
    temporary = folder / f".{rank}.result"
    try:
        content = pickle.dumps(result)
    except Exception:
        content = pickle.dumps((True, None, AssertionError(repr(result[2] or result[1]))))
    temporary.write_bytes(content)
    temporary.replace(folder / f"{rank}.result")
    sys.exit(status)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
