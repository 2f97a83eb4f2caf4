"""Real launchers in real processes; after each test nothing that it started may be left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.crew.marked import MARK, marked

LIMIT_S = 30


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
    """Writes scripts, launches them, and knows every process that came of it by a mark in the environment."""

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
        """Every living process that has the mark, however it was started and whoever adopted it."""
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
    """`run` leaves no child, thread or descriptor in the calling process."""
    me = psutil.Process()
    before = _held(me)
    yield
    assert _held(me) == before


def _held(me: psutil.Process) -> tuple[list[int], int, int]:

    return [child.pid for child in me.children(recursive=True)], me.num_threads(), me.num_fds()
