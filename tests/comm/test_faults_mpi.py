"""Failures over MPI: the other ranks learn that a rank raised or left, and continue; mpirun kills none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.comm import fault_script_mpi
from tests.ranks.fork_server import SEARCH_PATH
from tests.ranks.processes import ROOT

pytestmark = pytest.mark.alone

# The reported reason, by kind of failure.
RAISED, LEFT = 'rank 1 raised KeyError: "the rank\'s own"', "rank 1 has left this group"
REASONS = {"by_an_exit": "rank 1 left by sys.exit(3)", "left_early": LEFT, "exits": LEFT}


@pytest.mark.parametrize(("kind", "status"), [("raises", 1), ("exits", 3)])
def test_the_other_ranks_get_an_error_and_can_save_their_state(tmp_path: Path, kind: str, status: int) -> None:
    with _mpirun(tmp_path, kind) as process:
        output, _ = process.communicate(timeout=90)
    assert process.returncode == status, output
    assert ('KeyError: "the rank\'s own"' in output) == (kind == "raises"), output
    places = [*(fault_script_mpi.FAULTS if kind == "raises" else ()), kind]
    for rank in (0, 2):
        seen = _seen(tmp_path, rank)
        assert list(seen) == places, output
        for place in places:
            reported = seen[place][0]
            assert (reported["kind"], reported["rank"]) == ("PeerLost", fault_script_mpi.VICTIM), reported
            assert reported["exit_code"] == (3 if place == "by_an_exit" else None), reported
            assert reported["text"].startswith(REASONS.get(place, RAISED)), reported
        assert [reported["kind"] for reported in seen[kind]] == ["PeerLost", "saved"], output


@contextmanager
def _mpirun(folder: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    mpirun = Path(sys.executable).with_name("mpirun")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    process = subprocess.Popen(
        [
            *(str(mpirun) if mpirun.exists() else "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"),
            *(sys.executable, "-m", fault_script_mpi.__name__, str(folder), kind),
        ],
        env={**kept, "PYTHONPATH": SEARCH_PATH, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()  # it ends its ranks, if they are not at their end


def _seen(folder: Path, rank: int) -> dict[str, list[dict[str, Any]]]:
    seen: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / f"rank {rank}").read_text().splitlines():
        reported = json.loads(line)
        seen.setdefault(reported["place"], []).append(reported)
    return seen
