"""A process that runs `driven()` until it is interrupted or killed, and prints its progress.

    python -m tests.simulation.long_run WORKERS [RECORD_TO]

It prints a line of JSON when it runs ({"pids": of its workers}), and another one when Ctrl-C has ended the run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuraxis.simulation import ParallelExecutor, Simulation
from tests.simulation.networks import driven

ROOT = Path(__file__).resolve().parents[2]
NEURONS = 150  # with two workers, a shard for each


def worker_pids(simulation: Simulation) -> tuple[int, ...]:
    executor = simulation._executor
    return executor._team.pids if isinstance(executor, ParallelExecutor) and executor._team else ()


@contextmanager
def started(*arguments: object, module: str = "tests.simulation.long_run") -> Iterator[subprocess.Popen[str]]:
    """The process, in a group of its own as a terminal would make one; killed at the end with all that is in it."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, as it should
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> Any:
    """Return the next line of the process, decoded from JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(f"it ended with {process.wait()} and printed:\n{process.communicate()[1]}")
    return json.loads(line)


def main(workers: int, record_to: str | None) -> None:
    with Simulation(driven(n=NEURONS), workers, record_to=record_to) as simulation:
        simulation.step(10)
        try:
            # Within the block, because Ctrl-C may follow as soon as the test reads this.
            print(json.dumps({"pids": worker_pids(simulation)}), flush=True)
            simulation.run(2e8)
        except KeyboardInterrupt:
            kept = None if record_to else len(simulation.spikes("cells")[0])
            answer = {"steps": simulation.steps, "fingerprint": simulation.fingerprint(), "spikes": kept}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3] or [None])
