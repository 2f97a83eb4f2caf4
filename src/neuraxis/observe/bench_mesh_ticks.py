"""When a region came to the end of each window: noted by Python beside its neurons, read by another process.

The same in every way to run a brain, so ways can be compared. Notes lie in a file that both processes map, so they
outlive who wrote them. Their times are those of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ticker", "make_tick_file", "read_pid", "read_ticks"]

_KEPT = 1 << 16  # notes; older ones make room
_HEAD = 2  # words before them: the process, and how many notes were made
_BYTES = 8 * (_HEAD + 2 * _KEPT)


class Ticker:
    """A resident that is called at the end of each window, and answers nothing."""

    stateless = True

    def __init__(self, config: Mapping[str, Any], device: str) -> None:
        self._dt_ms = float(config["dt_ms"])
        with open(config["path"], "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._words = memoryview(self._map).cast("q")
        self._words[0] = os.getpid()

    def process_events(self, now_ms: float, events: Sequence[Any]) -> tuple[()]:
        words = self._words
        count = words[1]
        place = _HEAD + 2 * (count % _KEPT)
        words[place + 1] = time.monotonic_ns()
        words[place] = round(now_ms / self._dt_ms)
        words[1] = count + 1
        return ()


def make_tick_file(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(_BYTES)


def read_pid(path: Path) -> int:
    """The process of a region; 0 before there is one."""
    return int(np.fromfile(path, np.int64, 1)[0])


def read_ticks(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The steps at the ends of windows, and when they were reached, in ns."""
    words = np.fromfile(path, np.int64)
    count = int(words[1])
    notes = words[_HEAD:].reshape(-1, 2)
    kept = notes[:count] if count <= _KEPT else np.roll(notes, -(count % _KEPT), axis=0)
    return kept[:, 0], kept[:, 1]
