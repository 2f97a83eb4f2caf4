"""Memory, threads and descriptors of the soak's processes, and whether they grow.

Two kinds vary in a process that leaks nothing, and are counted apart from the rest:

- *Runtime threads* belong to Zenoh. Its runtimes start more of them when many tasks block, and end those that were idle
  for ten seconds.
- *Links* are established TCP connections. Two nodes that connect to each other at the same moment (both lost the link
  between them, say) can keep both connections. A connection to a process that has ended is not established.

Nodes also open sockets for a moment, to check if a process listens at a port. So only descriptors count that are
present in several consecutive samples.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Sample", "Starvation", "sample", "usage"]

PARTS = 6
LOOKS, LOOK_S = 3, 0.05
# How much more there may be at the end. A message that waits takes 9 to 50 KB, however small it is, and the heap keeps
# much of what a backlog needed. Of what a region's engine has reserved for spikes, a part is used for the first time
# when there are more of them than ever before.
MORE_BYTES, MORE_SHARE, MOST_MORE_BYTES = 4 * 2**20, 0.05, 32 * 2**20
ENGINE_BYTES = 12 * 2**20
MORE_THREADS, MORE_DESCRIPTORS = 2, 1
MORE_LINKS = 4  # a second connection to each peer
MORE_RUNTIME_THREADS = 12
_RUNTIME = re.compile(r"(app|acc|net|rx|tx)-\d+")
_ESTABLISHED = "01"

Sample = Sequence[float]  # seconds, bytes, threads, descriptors, runtime threads, links


def sample(processes: Sequence[psutil.Process], at_s: float) -> list[Sample]:
    """Return what each process uses; it takes a tenth of a second."""
    lasting = [_descriptors(process.pid) for process in processes]
    for _ in range(LOOKS - 1):
        time.sleep(LOOK_S)
        for held, process in zip(lasting, processes, strict=True):
            held &= _descriptors(process.pid)
    samples = []
    for held, process in zip(lasting, processes, strict=True):
        established = _established(process.pid)
        links = sum(target in established for _, target in held)
        names = _thread_names(process.pid)
        runtime = sum(bool(_RUNTIME.fullmatch(name)) for name in names)
        used = process.memory_info().rss, len(names) - runtime, len(held) - links, runtime, links
        samples.append((at_s, *used))
    return samples


def usage(name: str, samples: Sequence[Sample], warm_s: float) -> dict[str, Any]:
    """Return what a process used, in equal parts of what was seen after all was warm, and what has grown.

    Of memory it is the least, of threads the median: what a busy moment needs is no growth. Of descriptors and links it
    is the most: there are fewer while one is away. What grows does so from part to part; a single step in memory may
    stay.
    """
    counted = [one for one in samples if one[0] >= warm_s]
    found: dict[str, Any] = {"process": name, "warm": [0] * 5, "end": [0] * 5, "samples": samples, "faults": []}
    if len(counted) < PARTS:
        return found | {"faults": ["hardly looked at"]}
    parts = []
    for number in range(PARTS):
        part = counted[number * len(counted) // PARTS : (number + 1) * len(counted) // PARTS]
        _, memory, threads, descriptors, runtime, links = zip(*part, strict=True)
        parts.append(
            [min(memory), statistics.median(threads), max(descriptors), statistics.median(runtime), max(links)]
        )
    warm, end = parts[0], parts[-1]
    faults = []
    growth = [(PARTS - 1) * statistics.median(b[i] - a[i] for a, b in pairwise(parts)) for i in range(5)]
    reserved = ENGINE_BYTES if name.startswith("brain: ") else 0
    if growth[0] > warm[0] * MORE_SHARE + MORE_BYTES + reserved:
        faults.append(f"memory grows, by {growth[0] / 2**20:.1f} MiB so far")
    if end[0] > warm[0] + MOST_MORE_BYTES:
        faults.append(f"{(end[0] - warm[0]) / 2**20:.1f} MiB more memory")
    kinds = (
        ("threads", MORE_THREADS),
        ("descriptors", MORE_DESCRIPTORS),
        ("runtime threads", MORE_RUNTIME_THREADS),
        ("links", MORE_LINKS),
    )
    for i, (what, more) in enumerate(kinds, 1):
        if end[i] > warm[i] + more or growth[i] > more:
            faults.append(f"{end[i] - warm[i]:g} more {what}")
    return found | {"warm": warm, "end": end, "faults": faults}


class Starvation:
    """The time for which threads of processes were ready to run and got no core, as counted by the kernel."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._before = self._read()

    def worst_s(self) -> float:
        """Return the longest time that one thread has waited for a core, in all, since the last call."""
        before, self._before = self._before, self._read()
        return max((waited - before.get(thread, waited) for thread, waited in self._before.items()), default=0.0)

    def _read(self) -> dict[tuple[int, str], float]:
        waited = {}
        for process in self._processes:
            for number in os.listdir(f"/proc/{process.pid}/task"):
                try:
                    fields = Path(f"/proc/{process.pid}/task/{number}/schedstat").read_text().split()
                except (FileNotFoundError, ProcessLookupError):
                    continue  # ended meanwhile, or a kernel that does not count
                waited[process.pid, number] = int(fields[1]) * 1e-9
        return waited


def _descriptors(pid: int) -> set[tuple[str, str]]:
    """Return the descriptors of a process, with what they refer to."""
    held = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            held.add((number, os.readlink(f"/proc/{pid}/fd/{number}")))
        except FileNotFoundError:
            pass  # closed meanwhile
    return held


def _established(pid: int) -> set[str]:
    """Return the established TCP connections of a process's network, as descriptors refer to them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                found.add(f"socket:[{fields[9]}]")
    return found


def _thread_names(pid: int) -> list[str]:
    names = []
    for number in os.listdir(f"/proc/{pid}/task"):
        try:
            names.append(Path(f"/proc/{pid}/task/{number}/comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):
            pass  # ended meanwhile
    return names
