"""Run a command with an environment variable that marks all its descendants, and check that none outlives it."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence

import psutil

MARK = "NEURAXIS_TEST_MARK"


def run_marked(command: Sequence[str], limit_s: float, **variables: str) -> subprocess.CompletedProcess[str]:
    mark = uuid.uuid4().hex
    done = subprocess.run(
        command,
        env={**os.environ, **variables, MARK: mark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert not marked(mark)
    return done


def marked(mark: str, word: str = "") -> list[psutil.Process]:
    """Return the living processes with this mark that have `word` in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.environ().get(MARK) != mark:
                continue
            if word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            pass
    return found
