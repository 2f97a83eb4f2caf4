"""The examples are the manual: each runs, and says what it promises."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = [sys.executable, "-m", "neuraxis", "launch"]

HAS_CUDA = importlib.util.find_spec("cupy") is not None and any(Path("/dev").glob("nvidia[0-9]*"))

EXAMPLES = {
    "01_hello.py": ([*LAUNCH, "-n", "4"], "the sum over shm: [24. 28. 32. 36.]"),
    "02_article.py": ([*LAUNCH, "-n", "4"], "group: rank 0 has [8, 10, 12, 14]"),
    "03_groups.py": ([*LAUNCH, "-n", "4"], "rank 3 at (1, 1): row sum 5, column sum 4"),
    "04_overlap.py": ([*LAUNCH, "-n", "2"], "four layers averaged"),
    "05_survive.py": ([sys.executable], "exit statuses: [0, -9, 0]"),
    "06_torch_ddp.py": ([*LAUNCH, "-n", "2"], "step 100"),
    "07_restart.py": ([*LAUNCH, "-n", "2", "--max-restarts", "1"], "finished at step 10 with 45"),
    "08_run_function.py": ([sys.executable], "a rank's own exception: 13 is not a number I like"),
    "09_brunel.py": ([sys.executable], "fingerprint"),
    "10_microcircuit.py": ([sys.executable], "L23E"),
    "11_hpc_benchmark.py": ([sys.executable], "synaptic events"),
    "12_own_neuron.py": ([sys.executable], "half a period (10 ms) apart: 0 spikes"),
    "13_learn.py": ([sys.executable], "neurons in 6 regions"),
    "14_own_region.py": ([sys.executable], "the light is in column 3"),
    "15_nodes.py": ([sys.executable], "still here: counter"),
    "16_brain_on_the_mesh.py": ([sys.executable], "prefrontal was killed; cortex went on"),
    "17_data_parallel.py": ([*LAUNCH, "-n", "2"], "more than 99 % are known: True"),
    "18_distributed_context.py": ([*LAUNCH, "-n", "2"], "2 ranks learned to add eight numbers: True"),
    "19_digits.py": ([*LAUNCH, "-n", "2"], "97 % or more of 360 unseen digits are right: True"),
    "20_resume.py": ([*LAUNCH, "-n", "2", "--max-restarts", "1"], "resumed in epoch 2, after step 10"),
    "21_parameter_server.py": ([sys.executable], "0.5 · 0.8 is about 0.4"),
    "22_partition.py": ([*LAUNCH, "-n", "2"], "stages and whole agree: True"),
    "23_rpc.py": ([*LAUNCH, "-n", "2"], "an error of the other side: -1 has no real root"),
    "24_inference.py": ([sys.executable], "400 requests, 400 answers, 400 of them right"),
    "25_dask.py": ([sys.executable], "4 chunks of (1000, 16), each with mean 0 and deviation 1: True"),
    "26_cuda_kernel.py": (
        [sys.executable],
        "the same as NumPy, to the bit: True" if HAS_CUDA else "CUDA cannot be used here",
    ),
}
# Small enough for a test; where there is a raster, it goes to a file.
ARGUMENTS = {
    "09_brunel.py": ["--order", "50", "--time-ms", "50", "--workers", "2"],
    "10_microcircuit.py": ["--scale", "0.01", "--time-ms", "50", "--json", "--plot", "raster.png"],
    "11_hpc_benchmark.py": ["--scale", "0.02", "--time-ms", "20"],
    "13_learn.py": ["--trials", "2"],
}
# Where an example that is killed saves what it goes on from.
STATES = {"07_restart.py": "state.npy", "20_resume.py": "states"}


def test_every_example_is_run() -> None:
    assert sorted(path.name for path in (ROOT / "examples").glob("[0-9]*.py")) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    command, words = EXAMPLES[name]
    arguments = [str(tmp_path / STATES[name])] if name in STATES else ARGUMENTS.get(name, [])
    done = subprocess.run(
        [*command, str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert words in done.stdout, done.stdout + done.stderr
