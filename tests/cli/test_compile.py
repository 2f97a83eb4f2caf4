"""`neuraxis compile`, and what a run tells of the time that it compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neuraxis.engine.precompile import OPTIONAL, parts_of
from neuraxis.network import STDP, AllToAll, Network, models

RUN = """
import json, sys
from neuraxis import Network, Simulation
from neuraxis.network import STDP, AllToAll, models
if __name__ == "__main__":
    network = Network()
    cells = network.population("cells", 4, models.izhikevich)
    network.current(cells, [1.0, 2.0, 3.0, 4.0])
    network.connect(cells, cells, AllToAll(), 1.0, 1.0, plasticity=STDP.additive(w_max=1.0))
    with Simulation(network, workers=int(sys.argv[1])) as simulation:
        summary = simulation.run(1.0)
    print(json.dumps([summary.compile_seconds, summary.build_seconds, "compiled in" in str(summary)]))
"""


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder), "NEURAXIS_CACHE_DIR": str(folder), **more},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == "", done.stderr  # nothing is drawn where there is no terminal
    return done


def test_a_network_needs_only_the_kernels_of_what_it_has() -> None:
    def needed(network: Network) -> list[str]:
        return [part.name for part in parts_of(network.final_copy()) if part in OPTIONAL]

    for precision, currents in (("float32", "currents"), ("float64", "currents_float64")):
        wide = ["float64"] if precision == "float64" else []
        network = Network(precision=precision)
        cells = network.population("cells", 4, models.lif_exp)
        network.connect(cells, cells, AllToAll(), 1.0, 1.0)
        network.current(cells, 1.0)
        assert needed(network) == wide
        network.current(cells, np.arange(4.0))
        assert needed(network) == [*wide, currents]
    network = Network()
    cells = network.population("cells", 4, models.lif_exp)
    network.connect(cells, cells, AllToAll(), 1.0, 1.0, plasticity=STDP.additive(w_max=1.0))
    assert needed(network) == ["plastic_synapses"]
    rates = network.population("rates", 4, models.rate_tanh)
    network.connect_rates(rates, rates, AllToAll(), 1.0, 1.0)
    assert needed(network) == ["plastic_synapses", "continuous_connections"]


@pytest.mark.timeout(1200)
def test_what_was_compiled_ahead_is_not_compiled_again(tmp_path: Path) -> None:
    words = ("-m", "neuraxis", "compile", "--only", "models", "--model", "spike_source")
    first = json.loads(run(tmp_path, *words, "--json").stdout)
    optional = {"plastic_synapses", "continuous_connections", "float64", "currents", "currents_float64"}
    assert {"kernels", "packing"} | optional < set(first["compiled"])
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
    *messages, last = run(tmp_path, str(script), "2", NUMBA_DEBUG_CACHE="1").stdout.splitlines()
    assert sum("data saved" in message for message in messages) == 1, messages  # the model, in one of three processes
    assert sum("data loaded" in message and "deliver_plastic" in message for message in messages) == 2  # workers
    compiled, built, reported = json.loads(last)
    assert compiled > 0
    assert built > 0
    assert reported
    assert json.loads(run(tmp_path, str(script), "1").stdout)[::2] == [0.0, False]


def test_an_unknown_model_is_wrong_usage() -> None:
    words = ["-m", "neuraxis", "compile", "--only", "models", "--model", "nothing"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("neuraxis compile: --model nothing: the built-in models are adex, ")
