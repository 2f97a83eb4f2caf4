"""Resources that the machine gives to this process, and numbers of processes that it cannot hold."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from neuraxis.errors import InvalidArgument, ResourceExhausted
from neuraxis.launch import Team, run
from neuraxis.machine import check_process_count, usable_cores
from neuraxis.process.script import LaunchOptions, launch_script
from neuraxis.report.patterns.collection import collect_patterns
from neuraxis.simulation.parallel import ParallelExecutor


def test_at_least_one_and_no_more_than_there_are() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no processor affinity")
def test_affinity_counts() -> None:
    code = (
        "import os; from neuraxis.machine import usable_cores\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


FAR_TOO_MANY = 99_999
STARTS: dict[str, Callable[[], object]] = {
    "run": lambda: run(os.getpid, FAR_TOO_MANY),
    "Team": lambda: Team(os.getpid, FAR_TOO_MANY),
    "launch": lambda: LaunchOptions(script=__file__, n=FAR_TOO_MANY),
    "patterns": lambda: collect_patterns(FAR_TOO_MANY),
    "workers": lambda: ParallelExecutor(FAR_TOO_MANY),
}


@pytest.mark.parametrize("start", STARTS)
def test_more_processes_than_the_machine_can_hold_are_refused(start: str) -> None:
    with pytest.raises(InvalidArgument, match=r"99999, but this machine can hold about \d+ more processes") as caught:
        STARTS[start]()
    assert "NEURAXIS_MAX_PROCESSES=99999" in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [["patterns", "-n", "99999"], ["launch", "-n", "99999", __file__], ["bench", "collectives", "-n", "99999"]],
    ids=lambda command: command[0],
)
def test_so_are_those_of_a_command(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "neuraxis", *command], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "but this machine can hold about" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_more_processes_than_cores_are_fine_and_the_bound_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    check_process_count(64)
    monkeypatch.setenv("NEURAXIS_MAX_PROCESSES", "3")
    check_process_count(3)
    with pytest.raises(InvalidArgument, match="workers is 4"):
        check_process_count(4, "workers")
    monkeypatch.setenv("NEURAXIS_MAX_PROCESSES", str(FAR_TOO_MANY))
    check_process_count(FAR_TOO_MANY)
    monkeypatch.setenv("NEURAXIS_MAX_PROCESSES", "many")
    with pytest.raises(InvalidArgument, match="NEURAXIS_MAX_PROCESSES"):
        check_process_count(1)


def _doubles(line: object) -> None:
    """The function of a team that never starts."""


@pytest.mark.parametrize("free", [0, 2, 3, 5, 8, 12])  # the watchdog, the selector, a port and a rank need them
@pytest.mark.parametrize(
    "start",
    [
        lambda: run(os.getpid, 40),
        lambda: Team(_doubles, 40),
        lambda: launch_script(LaunchOptions(os.devnull, n=40)),
    ],
    ids=["run", "team", "script"],
)
def test_a_start_that_runs_out_of_files_names_the_limit(
    start: Callable[[], object], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    limit = [number for number in range(soft) if number not in used][free]
    monkeypatch.setenv("NEURAXIS_MAX_PROCESSES", "64")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with pytest.raises(ResourceExhausted, match=rf"\(ulimit -n\) is {limit}") as caught:
            start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(caught.value, OSError)
