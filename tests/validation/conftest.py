"""NEST's results for the tests of a module.

NEST is looked for in this interpreter, in the one that NEURAXIS_PEERS names, and in `.venv-peers` of the project. One
process makes all NEST runs of a module, once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def nest_results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """NEST's results for the `JOBS` of the module, by name."""
    folder = tmp_path_factory.mktemp("nest")
    jobs = {name: job.for_nest() for name, job in request.module.JOBS.items()}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [python_with_nest(), str(Path(__file__).with_name("nest_side.py")), "jobs.json", "results.json"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYNEST_QUIET": "1"}, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def python_with_nest() -> str:
    if importlib.util.find_spec("nest") is not None:
        return sys.executable
    if chosen := os.environ.get("NEURAXIS_PEERS"):
        return chosen
    beside = ROOT / ".venv-peers" / "bin" / "python"
    if beside.exists():
        return str(beside)
    pytest.fail("NEST is missing: pip install -e '.[dev]' here, or name a Python that has it in NEURAXIS_PEERS")
