"""A rank that raises over MPI: the others get an error and can save; if it dies, mpirun ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks.fork_server import SEARCH_PATH
from tests.training import fault_script

pytestmark = pytest.mark.alone

NOTICED_WITHIN_S = 30.0  # a deadline against hangs, also on a machine with more to do than cores


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("dies", 128 + signal.SIGKILL, ""),
        ("raises", 1, 'raised KeyError: "the rank\'s own"'),
        ("exits", 3, "left by sys.exit(3)"),
    ],
)
def test_the_other_ranks_get_an_error(kind: str, status: int, reason: str) -> None:
    mpirun = Path(sys.executable).with_name("mpirun")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    process = subprocess.Popen(
        [
            *(str(mpirun) if mpirun.exists() else "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"),
            *(sys.executable, fault_script.__file__, kind),
        ],
        env={**kept, "PYTHONPATH": SEARCH_PATH, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    times = {}
    lines = []
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            lines.append(line)
            times.setdefault("lost rank" if "lost rank" in line else line.strip(), time.monotonic())
    output = "".join(lines)
    assert process.returncode == status, output
    assert "it happens" in times, output
    assert "a rank went on" not in times, output
    if kind == "dies":  # mpirun ends the others
        assert time.monotonic() - times["it happens"] < fault_script.DEADLINE_S / 2, output
        assert "rank 1" in output
    else:  # they get a signal, and mpirun lets them save what they have
        assert times["lost rank"] - times["it happens"] < NOTICED_WITHIN_S, output
        for rank in (0, 2):
            assert f"rank {rank} lost rank 1: {reason}" in output, output
        assert output.count("saved") == 2, output
