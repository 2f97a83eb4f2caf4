"""Compiled code on disk is used only for the sources that it was made of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import neuraxis

PROGRAM = """
import numpy as np
from neuraxis.comm.array_kernels import address_of_array
array = np.zeros(1)
assert address_of_array(id(array)) == array.ctypes.data
stats = address_of_array.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def _run(package: Path) -> str:
    """How often the result was found on disk, and how often it was not."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_change_in_another_file_is_noticed(tmp_path: Path) -> None:
    """array_kernels has atomics compiled into it; Numba's own cache would not notice a change there."""
    package = tmp_path / "neuraxis"
    shutil.copytree(Path(neuraxis.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert _run(package) == "0 1"
    assert _run(package) == "1 0"
    with (package / "comm" / "atomics.py").open("a") as source:
        source.write("# changed\n")
    assert _run(package) == "0 1"
    with (package / "errors.py").open("a") as source:  # no machine code is made of this one
        source.write("# changed\n")
    assert _run(package) == "1 0"
