"""Exhausted resources: a full shared-memory folder and no file descriptors left raise errors, or use gloo."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis import launch
from neuraxis.comm.backends.shm import backend as shm
from neuraxis.comm.backends.shm import kernels
from neuraxis.comm.backends.shm import memory as arena
from neuraxis.errors import BackendUnavailable, InvalidArgument, PeerLost, ResourceExhausted
from neuraxis.simulation import Simulation
from tests.ranks.fork_server import SEARCH_PATH
from tests.ranks.processes import ROOT, free_port, run_ranks
from tests.simulation.networks import driven

SIZE = 2
FOLDER_MIB = 2
# A folder for shared memory of its own, for what this command runs and nothing else.
SMALL_FOLDER = (
    "unshare",
    "--mount",
    *(() if os.geteuid() == 0 else ("--map-root-user",)),
    "sh",
    "-c",
    f'mount -t tmpfs -o size={FOLDER_MIB}m tmpfs /dev/shm && exec "$@"',
    "sh",
)


def _fill(backend: str) -> dict[str, Any]:
    """Make groups until one finds no room, or is of another backend."""
    seen: dict[str, Any] = {"error": "", "kinds": []}
    with warnings.catch_warnings(record=True) as caught, dist.DistributedContext(backend, timeout=60) as context:
        warnings.simplefilter("always")
        groups = []
        for _ in range(100):
            try:
                group = dist.new_group()
            except BackendUnavailable as error:
                seen["error"] = str(error)
                break
            assert isinstance(group, dist.Communicator)
            groups.append(group)
            seen["kinds"].append(group.backend_name)
            if group.backend_name != "shm":
                break
        # Every group works, the world too, also for arrays whose slots the folder has no room for.
        for group in [*groups[-2:], context.world]:
            data = np.full(300_000, context.rank + 1.0)
            group.all_reduce(data)
            assert (data == 3.0).all()
            pieces = [np.full(50_000, context.rank * 10.0 + to) for to in range(SIZE)]
            room = [np.empty(50_000) for _ in range(SIZE)]
            group.all_to_all(room, pieces)
            assert [piece[-1] for piece in room] == [10.0 * source + context.rank for source in range(SIZE)]
    seen["warnings"] = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return seen


def _fill_twice() -> tuple[dict[str, Any], dict[str, Any]]:
    return _fill("shm"), _fill("auto")


def _fill_a_small_folder() -> None:
    for rank, (explicit, automatic) in enumerate(launch.run(_fill_twice, SIZE, timeout=100)):
        assert f"MiB of its {FOLDER_MIB}.0 MiB are free" in explicit["error"], explicit
        assert "docker run --shm-size" in explicit["error"], explicit
        assert len(explicit["kinds"]) >= 4, explicit
        assert not automatic["error"], automatic
        assert automatic["kinds"][-1] == "gloo", automatic
        assert len(automatic["warnings"]) == (1 if rank == 0 else 0), automatic
        for warning in automatic["warnings"]:
            assert "MiB are free" in warning
            assert "uses gloo for the group of ranks 0, 1" in warning


def _simulate_in_a_full_folder() -> None:
    with Path("/dev/shm/filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, FOLDER_MIB * 2**20 - 8192)
        with pytest.raises(ResourceExhausted, match=r"MiB are free.*workers=1"):
            Simulation(driven(n=50), 2)
        with Simulation(driven(n=50), 1) as simulation:
            simulation.step(10)


def _run_in_a_small_folder(what: str) -> None:
    ended = subprocess.run(
        [*SMALL_FOLDER, sys.executable, "-m", __name__, what],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_small_folder_is_an_error_with_the_sizes_or_gloo_with_a_warning() -> None:
    _run_in_a_small_folder("groups")


def test_a_simulation_without_shared_memory_names_the_sizes_and_the_way_out() -> None:
    _run_in_a_small_folder("simulation")


def _many_groups(limit: int) -> tuple[int, str, float]:
    with dist.DistributedContext("shm", timeout=60) as context:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        groups: list[object] = []
        text = ""
        while len(groups) < 100:
            try:
                groups.append(dist.new_group())
            except OSError as error:
                text = f"{type(error).__name__}: {error}"
                break
        data = np.full(3, context.rank + 1.0)
        dist.all_reduce(data)
        return len(groups), text, float(data[0])


def test_running_out_of_descriptors_names_the_limit() -> None:
    for made, text, total in run_ranks(_many_groups, 3, 64):
        assert 10 < made < 100
        assert text.startswith(f"{ResourceExhausted.__name__}: ")
        assert "(ulimit -n) is 64" in text
        assert total == 6.0  # the world stays usable


def _one_without_descriptors() -> list[tuple[str, str, bool, float]]:
    """Return each rank's error when one rank alone can open too few files for a group; the world stays usable."""
    seen = []
    with dist.DistributedContext("gloo", timeout=60) as context:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for poor in (0, 2):
            dist.barrier()
            if context.rank == poor:
                resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
            started = time.monotonic()
            with pytest.raises(ResourceExhausted) as caught:
                dist.new_group()
            early = time.monotonic() - started < 30
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            data = np.full(3, context.rank + 1.0)
            dist.all_reduce(data)
            seen.append((type(caught.value).__name__, str(caught.value), early, float(data[0])))
        group = dist.new_group()
        assert isinstance(group, dist.Communicator)
        group.barrier()
    return seen


def test_one_rank_without_descriptors_is_named_on_all_ranks() -> None:
    for seen in run_ranks(_one_without_descriptors, 3, torch=True):
        for poor, (kind, text, early, total) in zip((0, 2), seen, strict=True):
            assert kind == ResourceExhausted.__name__
            assert f"(rank {poor})" in text, text
            assert "ulimit -n" in text
            assert early
            assert total == 6.0


def _no_memory_for_messages(port: int) -> list[tuple[str, int, bool]]:
    """Return each rank's errors when rank 1 alone finds no memory for its first message in a group or the world."""
    seen = []
    for what in ("new_group", "send", "isend"):
        with (
            dist.DistributedContext("shm", f"tcp://127.0.0.1:{port}", timeout=60) as context,
            pytest.MonkeyPatch.context() as patch,
        ):
            dist.barrier()
            if context.rank == 1:
                patch.setattr(arena, "_allocate", _full)
            with pytest.raises((ResourceExhausted, PeerLost)) as caught:  # noqa: PT012  (in one call or another)
                if what == "new_group":
                    dist.new_group()
                elif context.rank == 2:
                    dist.barrier()
                elif context.rank == 1:
                    (dist.send if what == "send" else dist.isend)(np.ones(4), 0)
                else:
                    dist.recv(np.ones(4), src=1)
                    dist.barrier()
            with pytest.raises((ResourceExhausted, PeerLost)):  # the group has ended for all
                dist.barrier()
            kind = "ResourceExhausted" if isinstance(caught.value, ResourceExhausted) else type(caught.value).__name__
            seen.append((kind, getattr(caught.value, "rank", 1), "has no room" in str(caught.value)))
    return seen


def _full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_no_memory_for_messages_of_one_rank_ends_the_group_for_all_at_once() -> None:
    """The others raise before the deadline, which would be a CollectiveTimeout."""
    for rank, seen in enumerate(run_ranks(_no_memory_for_messages, 3, free_port(), timeout=50)):
        assert seen == [("ResourceExhausted" if rank == 1 else "PeerLost", 1, True)] * 3


def test_a_group_takes_little_memory_until_it_moves_long_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB, which containers have by default, hold more than 100 groups of eight ranks."""
    backend = object.__new__(shm.ShmBackend)
    backend.size = 8
    assert 100 * backend._reserved_bytes() < 64 * 10**6
    monkeypatch.setenv("NEURAXIS_SHM_SLOT_KIB", "64")
    assert shm._slot_bytes() == 64 * 1024
    for wrong in ("0", "much", "-1"):
        monkeypatch.setenv("NEURAXIS_SHM_SLOT_KIB", wrong)
        with pytest.raises(InvalidArgument, match="NEURAXIS_SHM_SLOT_KIB"):
            shm._slot_bytes()


def _calls_of_all_lengths() -> tuple[int, int]:
    """Calls around the lengths of the slots, in orders in which each kind of call is the first to need large ones."""
    first_to_grow = ["all_reduce", "all_gather", "broadcast", "reduce_scatter"]
    slots = (0, 0)
    with dist.DistributedContext("shm", timeout=60) as context:
        rank = context.rank
        for start in range(len(first_to_grow)):
            group = dist.new_group()
            assert isinstance(group, dist.Communicator)
            backend = group.backend
            assert isinstance(backend, shm.ShmBackend)
            before = int(backend._state[kernels.SLOT_BYTES])
            for count in (4, 4095, 4097, 30_000, 3, 200_000, 70_001, 1):
                for call in first_to_grow[start:] + first_to_grow[:start]:
                    _check_call(group, call, rank, count)
            slots = before, int(backend._state[kernels.SLOT_BYTES])
            group.close()
    return slots


def _check_call(group: dist.Communicator, call: str, rank: int, count: int) -> None:
    values = np.arange(count, dtype=np.float64)
    if call == "all_reduce":
        data = values + rank
        group.all_reduce(data)
        assert (data == 3 * values + 3).all()
    elif call == "all_gather":  # of other lengths on each rank
        rooms = [np.empty(count + source) for source in range(3)]
        group.all_gather(rooms, np.arange(count + rank) * (rank + 1.0))
        for source, room in enumerate(rooms):
            assert (room == np.arange(count + source) * (source + 1.0)).all()
    elif call == "broadcast":
        data = values + rank
        group.broadcast(data, src=1)
        assert (data == values + 1).all()
    else:
        result = np.empty(count)
        group.reduce_scatter(result, [values + 10 * rank + to for to in range(3)])
        assert (result == 3 * values + 30 + 3 * rank).all()


def test_a_group_goes_over_to_large_slots_without_a_wrong_value() -> None:
    for before, after in run_ranks(_calls_of_all_lengths, 3):
        assert (before, after) == (32 * 1024, 512 * 1024)


if __name__ == "__main__":
    {"groups": _fill_a_small_folder, "simulation": _simulate_in_a_full_folder}[sys.argv[1]]()
