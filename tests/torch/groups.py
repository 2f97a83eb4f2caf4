"""Helpers for ranks of these tests: a process group that must not leak."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import neuraxis.torch  # noqa: F401  (registers the backend)

TIMEOUT_S = 30.0


@contextmanager
def process_group(backend: str = "shm", **options: Any) -> Iterator[tuple[int, int]]:
    """Rank and size in a default group, which is destroyed at the end."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S), **options)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()
    assert_nothing_left()


def assert_nothing_left() -> None:
    """No thread and no shared memory of ours is left in this process."""
    threads = [thread for thread in threading.enumerate() if "neuraxis" in thread.name]
    assert not threads, threads
    maps = Path("/proc/self/maps")
    if maps.exists():
        segments = [line for line in maps.read_text().splitlines() if re.search(r"/neuraxis-[^/]+$|/dev/shm/#", line)]
        assert not [line for line in segments if "/dev/shm" in line], segments
