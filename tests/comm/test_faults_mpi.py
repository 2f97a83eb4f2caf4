"""Over MPI a rank that raises or leaves is told to the others, who go on as long as they need; mpirun ends nobody."""

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
from tests.comm.ranks import ROOT
from tests.crew.nursery import SEARCH_PATH

pytestmark = pytest.mark.alone

NOTICED_WITHIN_S = 1.0
# What a rank is said to have come to, by what had happened.
RAISED, LEFT = 'rank 1 raised KeyError: "the rank\'s own"', "rank 1 has left this group"
REASONS = {"by_an_exit": "rank 1 left by sys.exit(3)", "left_early": LEFT, "exits": LEFT}


@pytest.mark.parametrize(("kind", "status"), [("raises", 1), pytest.param("exits", 3, marks=pytest.mark.slow)])
def test_the_others_are_told_and_can_save_what_they_have(tmp_path: Path, kind: str, status: int) -> None:
    with _mpirun(tmp_path, kind) as process:
        output, _ = process.communicate(timeout=90)
    assert process.returncode == status, output
    assert ('KeyError: "the rank\'s own"' in output) == (kind == "raises"), output
    places = [*(fault_script_mpi.FAULTS if kind == "raises" else ()), kind]
    for rank in (0, 2):
        seen = _seen(tmp_path, rank)
        assert list(seen) == places, output
        for place in places:
            told = seen[place][0]
            assert (told["kind"], told["rank"]) == ("PeerLost", fault_script_mpi.VICTIM), told
            assert told["exit_code"] == (3 if place == "by_an_exit" else None), told
            assert told["text"].startswith(REASONS.get(place, RAISED)), told
            happened = float((tmp_path / f"{place} happened").read_text())
            assert told["at"] - happened < NOTICED_WITHIN_S, told
        assert [told["kind"] for told in seen[kind]] == ["PeerLost", "saved"], output


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
        told = json.loads(line)
        seen.setdefault(told["place"], []).append(told)
    return seen
