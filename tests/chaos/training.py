"""Training under faults: a rank killed at any moment, states on a full disk; the result is the undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil

from tests.chaos.storm import Room, scenario
from tests.training import restart_script

_undisturbed: list[bytes] = []


@scenario("training", weight=2)
def kill_a_training_rank(room: Room, chance: random.Random) -> None:
    expected = _result_of_an_undisturbed_run(room)
    folder = room.folder / "killed"
    folder.mkdir()
    job = room.start("neuraxis", "launch", "-n", 2, "--max-restarts", 3, restart_script.__file__, folder)
    ranks = room.until(lambda: _ranks(job.pid), "the ranks are started", 60.0)
    room.until(lambda: list(folder.glob("states/*")) or job.process.poll() is not None, "a first state", 120.0)
    time.sleep(chance.uniform(0.0, 0.3))
    room.fault("kill")
    killed = time.monotonic()
    try:
        os.kill(chance.choice(ranks), signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has finished: the round shows nothing more than an undisturbed run
    assert job.end(180.0) == 0, job.errors()
    room.noticed(killed)
    assert (folder / "final.safetensors").read_bytes() == expected
    temporary = [
        path.name for path in (folder / "states").rglob("*") if path.name.startswith(".") or "tmp" in path.name
    ]
    assert temporary == [], temporary


@scenario("training", isolated=True)
def states_on_a_full_disk(room: Room, chance: random.Random) -> None:
    """Saving fails with an error of ours on every rank; what was saved before can be read."""
    disk = room.small_disk(1)
    room.fault("full disk")
    with (disk / "filler").open("wb") as file:
        free = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - chance.choice((0, 8192, 16384)))
    job = room.start("neuraxis", "launch", "-n", 2, restart_script.__file__, disk)
    assert job.end(180.0) != 0, job.errors()
    assert "CheckpointError" in job.errors(), job.errors()
    (disk / "filler").unlink()
    expected = _result_of_an_undisturbed_run(room)
    job = room.start("neuraxis", "launch", "-n", 2, restart_script.__file__, disk)
    assert job.end(180.0) == 0, job.errors()
    assert (disk / "final.safetensors").read_bytes() == expected


def _result_of_an_undisturbed_run(room: Room) -> bytes:
    if not _undisturbed:
        folder = room.folder / "undisturbed"
        folder.mkdir()
        job = room.start("neuraxis", "launch", "-n", 2, restart_script.__file__, folder)
        assert job.end(180.0) == 0, job.errors()
        _undisturbed.append(Path(folder, "final.safetensors").read_bytes())
    return _undisturbed[0]


def _ranks(launcher: int) -> list[int]:
    """Return the processes of the ranks, once both are there."""
    try:
        found = []
        for child in psutil.Process(launcher).children(recursive=True):
            if child.environ().get("RANK") is not None:
                found.append(child.pid)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
    return found if len(found) >= 2 else []
