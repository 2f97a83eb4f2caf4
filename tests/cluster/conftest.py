"""Clusters for the tests of this folder, and schedulers of others to join."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest

from neuraxis.cluster import DaskCluster
from tests.crew.nursery import SEARCH_PATH

LIMIT_S = 30


@pytest.fixture(scope="session", autouse=True)
def helpers_of_dask() -> None:
    """What Python and Dask start when they are first used, and keep until the process ends."""
    resource_tracker.ensure_running()
    with DaskCluster(n_workers=1, threads_per_worker=1) as cluster:
        (there,) = cluster.scatter([np.zeros(10_000_000, np.uint8)])
        cluster.gather(cluster.submit(np.copy, there))


@pytest.fixture
def cluster() -> Iterator[DaskCluster]:
    """One for each test: it starts in half a second, and how many connections Dask keeps open nobody can foresee."""
    with DaskCluster(n_workers=2, threads_per_worker=1) as cluster:
        yield cluster


class Others:
    """A scheduler, and workers of it, that somebody else has started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        says = self._folder / "scheduler.json"
        process = self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(says))
        deadline = time.monotonic() + LIMIT_S
        while not self.address:
            assert time.monotonic() < deadline
            assert process.poll() is None
            try:
                self.address = json.loads(says.read_text())["address"]
            except (OSError, ValueError):
                time.sleep(0.02)
        return process

    def start_worker(self) -> subprocess.Popen[bytes]:
        folder = str(self._folder)
        return self._start("dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--local-directory", folder)

    def _start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{program}", *words, "--host", "127.0.0.1", "--no-dashboard"],
            env={**os.environ, "PYTHONPATH": SEARCH_PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Others]:
    with others_in(tmp_path) as others:
        yield others


@contextmanager
def others_in(folder: Path) -> Iterator[Others]:
    others = Others(folder)
    try:
        yield others
    finally:
        for process in reversed(others.processes):
            process.kill()
            process.wait()
