"""Compiled code on disk is used only for the sources from which it was compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import neuraxis

PROGRAM = """
import numpy as np
from neuraxis.comm.backends.shm.array_kernels import address_of_array
array = np.zeros(1)
assert address_of_array(id(array)) == array.ctypes.data
stats = address_of_array.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def _run(package: Path) -> str:
    """Return the numbers of cache hits and misses."""
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
    for changed in ("compiled/atomics.py", "engine/tables.py"):  # a module with functions, and one with constants
        with (package / changed).open("a") as source:
            source.write("# changed\n")
        assert _run(package) == "0 1"
    with (package / "errors.py").open("a") as source:  # no machine code is made of this one
        source.write("# changed\n")
    assert _run(package) == "1 0"


INNER = """
from numba import njit
from neuraxis.compiled import inner_function

@inner_function
def half(x, y):
    return x // y

@inner_function(inline=True)
def share(x, y):
    return half(x, 1) / y

@njit
def kernel(x, y):
    return half(x, y), share(x, y)

assert kernel(7, 2) == (3, 3.5)
assert half.py_func(7, 2) == 3
assert kernel(7, 0) == (0, float("inf"))  # as in NumPy: a check and an exception would have to be compiled
try:
    half(7, 2)
except TypeError as error:
    print(error)
"""


def test_inner_functions_are_compiled_into_kernels_and_python_cannot_call_them() -> None:
    done = subprocess.run([sys.executable, "-c", INNER], capture_output=True, text=True, timeout=60)
    refused = "half is called by compiled functions only. Call its py_func instead"
    assert done.stdout.splitlines() == [refused], done.stderr
