"""Kill a process at each of its operations on files, one after the other."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["kill_at", "killed_at_each"]

FILE_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
FILE_CALLS = ("flush", "fsync", "close", "serialize_file", "__exit__")  # which no other code observes


def kill_at(operation: int, folder: str) -> None:
    """Let this process be killed just before its n-th operation on a file below `folder`."""
    count = 0

    def one_more() -> None:
        nonlocal count
        count += 1
        if count == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(folder):
            one_more()

    def profile(frame: Any, event: str, called: Any) -> None:
        written = ("store/states", "neuraxis/store/__init__", "safetensors/")
        if event == "c_call" and called.__name__ in FILE_CALLS and any(w in frame.f_code.co_filename for w in written):
            one_more()

    sys.addaudithook(audit)
    sys.setprofile(profile)


def killed_at_each(folder: Path, save: Callable[[Path], object]) -> Iterator[Path]:
    """Copies of `folder` in which a process has saved and was killed, each time a little later; at last it was not."""
    operation = 0
    survived = False
    while not survived:
        operation += 1
        trial = folder.with_name(f"{folder.name}-{operation}")
        shutil.copytree(folder, trial)
        child = os.fork()
        if child == 0:
            kill_at(operation, str(trial))
            save(trial)
            os.kill(os.getpid(), signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (-signal.SIGKILL, -signal.SIGTERM)
        survived = status == -signal.SIGTERM
        yield trial
