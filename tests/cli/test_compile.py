"""`neuraxis compile`, and what a run tells of the time that it compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, sys
from neuraxis import Network, Simulation
from neuraxis.network import models
if __name__ == "__main__":
    network = Network()
    network.population("cells", 4, models.izhikevich)
    with Simulation(network, workers=int(sys.argv[1])) as simulation:
        summary = simulation.run(1.0)
    print(json.dumps([summary.compile_seconds, summary.build_seconds, "compiled in" in str(summary)]))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder), "NEURAXIS_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == "", done.stderr  # nothing is drawn where there is no terminal
    return done


@pytest.mark.timeout(1200)
def test_what_was_compiled_ahead_is_not_compiled_again(tmp_path: Path) -> None:
    words = ("-m", "neuraxis", "compile", "--only", "models", "--model", "spike_source")
    first = json.loads(run(tmp_path, *words, "--json").stdout)
    assert {"kernels", "packing"} < set(first["compiled"])
    assert sum(name.startswith("spike_source_") for name in first["compiled"]) == 1
    assert first["present"] == []
    assert first["seconds"] > 0
    assert all(Path(folder).is_relative_to(tmp_path) for folder in first["folders"])
    assert run(tmp_path, *words).stdout.startswith(
        f"nothing to do: all {len(first['compiled'])} parts are in the cache"
    )

    # A run compiles the model that is missing, says how long that took, and does not count it as building.
    script = tmp_path / "script.py"
    script.write_text(RUN)
    compiled, built, reported = json.loads(run(tmp_path, str(script), "2").stdout)
    assert compiled > 0
    assert built > 0
    assert reported
    assert json.loads(run(tmp_path, str(script), "1").stdout)[::2] == [0.0, False]


def test_an_unknown_model_is_wrong_usage() -> None:
    words = ["-m", "neuraxis", "compile", "--only", "models", "--model", "nothing"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("neuraxis compile: --model nothing: the built-in models are adex, ")
