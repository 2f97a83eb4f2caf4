"""Clusters for the tests of this folder, and external schedulers to join."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest
from distributed import Security

from neuraxis.cluster import DaskCluster
from tests.ranks.fork_server import SEARCH_PATH

LIMIT_S = 30


@pytest.fixture(scope="session", autouse=True)
def helpers_of_dask() -> None:
    """Start the threads and processes that Python and Dask keep until the process ends."""
    resource_tracker.ensure_running()
    with DaskCluster(n_workers=1, threads_per_worker=1) as cluster:
        (there,) = cluster.scatter([np.zeros(10_000_000, np.uint8)])
        cluster.gather(cluster.submit(np.copy, there))


@pytest.fixture
def cluster() -> Iterator[DaskCluster]:
    """A new cluster per test: it starts in half a second, and the number of connections that Dask keeps open varies."""
    with DaskCluster(n_workers=2, threads_per_worker=1) as cluster:
        yield cluster


@dataclass(frozen=True)
class Keys:
    """Files of one cluster: its CA certificate, and the certificate and key of its members."""

    ca: Path
    certificate: Path
    key: Path


def keys_in(folder: Path) -> Keys:
    """Keys that Dask makes, as files."""
    made = Security.temporary()
    keys = Keys(folder / "ca.pem", folder / "our.pem", folder / "our.key")
    for path, content in zip(
        (keys.ca, keys.certificate, keys.key),
        (made.tls_ca_file, made.tls_client_cert, made.tls_client_key),
        strict=True,
    ):
        path.write_text(content)
    return keys


class Others:
    """An external scheduler with workers; with TLS if there are keys."""

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        self._folder = folder
        self._keys = keys
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        says = self._folder / "scheduler.json"
        process = self._start(SEARCH_PATH, "dask_scheduler", "--port", "0", "--scheduler-file", str(says))
        deadline = time.monotonic() + LIMIT_S
        while not self.address:
            assert time.monotonic() < deadline
            assert process.poll() is None
            try:
                self.address = json.loads(says.read_text())["address"]
            except (OSError, ValueError):
                time.sleep(0.02)
        return process

    def start_worker(self, search_path: str = SEARCH_PATH) -> subprocess.Popen[bytes]:
        words = [self.address, "--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder)]
        return self._start(search_path, "dask_worker", *words)

    def _start(self, search_path: str, program: str, *words: str) -> subprocess.Popen[bytes]:
        keys = []
        if self._keys is not None:
            keys = ["--protocol", "tls", "--tls-ca-file", str(self._keys.ca), "--tls-cert", str(self._keys.certificate)]
            keys += ["--tls-key", str(self._keys.key)]
        command = [sys.executable, "-m", f"distributed.cli.{program}", *words, *keys]
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--no-dashboard"],
            env={**os.environ, "PYTHONPATH": search_path},
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
def others_in(folder: Path, keys: Keys | None = None) -> Iterator[Others]:
    others = Others(folder, keys)
    try:
        yield others
    finally:
        for process in reversed(others.processes):
            process.kill()
            process.wait()
