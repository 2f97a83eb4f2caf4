"""Real launchers in real processes, with a leak check after each test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ranks.marked_processes import MARK, marked

LIMIT_S = 30
ENDING_S = 5.0


class Job:
    """A launcher that runs in the background, with its output in pipes."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen

    def line(self) -> str:
        """The next line of its standard output: how a test waits until something has happened."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def lines(self, count: int) -> list[str]:
        return sorted(self.line() for _ in range(count))

    def end(self) -> tuple[int, str, str]:
        out, err = self.popen.communicate(timeout=LIMIT_S)
        return self.popen.returncode, out, err


class Launcher:
    """Write and launch scripts; find all their processes by a mark in the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark}
        self.environment.pop("OMP_NUM_THREADS", None)
        self.jobs: list[Job] = []

    def script(self, text: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text("import os, signal, subprocess, sys, time\n" + textwrap.dedent(text))
        return str(path)

    def start(self, *words: str, prefix: tuple[str, ...] = (), **options: object) -> Job:
        popen: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
            [*prefix, sys.executable, "-m", "neuraxis", "launch", *words],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "errors": "replace",
                "env": self.environment,
                "cwd": self.folder,
                **options,
            },
        )
        self.jobs.append(Job(popen))
        return self.jobs[-1]

    def __call__(self, *words: str, **options: object) -> tuple[int, str, str]:
        return self.start(*words, **options).end()

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return every living process with the mark, also re-parented ones."""
        return marked(self.mark, word)

    def all_gone(self, within_s: float = 10.0) -> bool:
        return not psutil.wait_procs(self.processes(), timeout=within_s)[1] and not self.processes()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    left = [p for p in launcher.processes() if p.pid not in {job.popen.pid for job in launcher.jobs}]
    for job in launcher.jobs:
        if job.popen.poll() is None:
            job.popen.kill()
        job.popen.communicate()
    for process in left:
        process.send_signal(signal.SIGKILL)
    assert not left, f"left behind: {left}"


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail a test after which this process has a child, thread or descriptor that it did not have before.

    They are compared one by one: what an earlier test left and ends meanwhile neither fails a test nor makes room for
    a leak. Threads of the system get a moment: `Thread.join` returns a little before the system's thread has ended.
    """
    before = _held()
    yield
    left = _held() - before
    deadline = time.monotonic() + ENDING_S
    while left and all(kind == "system thread" for kind, *_ in left) and time.monotonic() < deadline:
        time.sleep(0.001)
        left = _held() - before
    assert not left


def _held() -> set[tuple[object, ...]]:
    """Return what this process holds: for each, its kind and what identifies it."""
    held: set[tuple[object, ...]] = {("thread", thread) for thread in threading.enumerate()}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            held.add(("child", child.pid, child.create_time()))
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            # Thread ids are reused; the start time (field 22) distinguishes them.
            start = (task / "stat").read_text().rpartition(")")[2].split()[19]
            held.add(("system thread", task.name, start))
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists this folder is closed by now
            held.add(("descriptor", link.name, os.readlink(link)))
    return held
