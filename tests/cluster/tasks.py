"""Functions that workers run in the tests."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import numpy as np


def square(x: int) -> int:
    return x * x


def scaled(x: int, by: int, plus: int = 0) -> int:
    return x * by + plus


def pid(_: int = 0) -> int:
    return os.getpid()


def refuse(x: int) -> int:
    raise LookupError(f"{x} is not here")


def read_nothing() -> bytes:
    return Path("/there/is/no/such/file").read_bytes()


def end_the_process() -> None:
    os._exit(3)


def wait_for(path: str) -> int:
    """Return the number of this process, once the file exists."""
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)
    return os.getpid()


def note_and_wait(block: np.ndarray, folder: str) -> np.ndarray:
    """The squares of a block, once there is a file `go`; before, a file says which process is at it."""
    Path(folder, f"pid-{os.getpid()}").touch()
    wait_for(os.path.join(folder, "go"))
    return block**2


def hold_the_lock_of_python(folder: str) -> None:
    """A call into C that does not let go of Python's lock, so that no other thread of the process runs."""
    Path(folder, f"deaf-{os.getpid()}").touch()
    ctypes.PyDLL(None).sleep(60)
