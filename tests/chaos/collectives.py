"""Collectives under faults: ranks that are killed, raise, stop or pause, and machines without room for them.

Every rank makes the same random sequence of calls and checks each result against what the arguments imply, so a
survivor that goes on has shown that its state is right.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import neuraxis.distributed as dist
from neuraxis.errors import BackendUnavailable, CollectiveTimeout, NeuraxisError, PeerLost, ResourceExhausted
from tests.chaos.storm import ROOT, Room, scenario
from tests.ranks.processes import Outcome, Ranks, mark
from tests.ranks.stopping import resume, stop

SHM = Path("/dev/shm")
NOTICE_S = 1.0  # as documented: rounds run one at a time, so no other load comes from the storm itself
PATTERNS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier", "gather", "scatter")


# --- in the ranks ---


def call(pattern: str, number: int, rank: int, size: int, count: int) -> None:
    """Make one call whose arguments follow from its number, and check what it returned."""
    data = np.full(count, float(number + rank), np.float64)
    pieces = [np.full(count, float(number + 10 * rank + to)) for to in range(size)]
    room = [np.empty(count) for _ in range(size)]
    root = number % size
    total = float(size * number + size * (size - 1) // 2)
    if pattern == "all_reduce":
        dist.all_reduce(data)
        assert (data == total).all()
    elif pattern == "broadcast":
        dist.broadcast(data, src=root)
        assert (data == number + root).all()
    elif pattern == "all_gather":
        dist.all_gather(room, data)
        assert all((one == number + other).all() for other, one in enumerate(room))
    elif pattern == "reduce_scatter":
        dist.reduce_scatter(data, pieces)
        assert (data == sum(number + 10 * other + rank for other in range(size))).all()
    elif pattern == "all_to_all":
        dist.all_to_all(room, pieces)
        assert all((one == number + 10 * other + rank).all() for other, one in enumerate(room))
    elif pattern == "gather":
        dist.gather(data, room if rank == root else None, dst=root)
        assert rank != root or all((one == number + other).all() for other, one in enumerate(room))
    elif pattern == "scatter":
        dist.scatter(data, pieces if rank == root else None, src=root)
        assert (data == number + 10 * root + rank).all()
    else:
        dist.barrier()


def make_calls(seed: int, calls: int, backend: str, timeout: float, raises: tuple[int, int] | None) -> dict[str, Any]:
    """Make `calls` random calls (-1: without end); `raises` are a rank and the number of the call before which it does.

    Returns the error that ended them, if one did, and when.
    """
    chance = random.Random(seed)
    done = 0
    try:
        with dist.DistributedContext(backend=backend, timeout=timeout) as context:
            while done != calls:
                if (context.rank, done) == raises:
                    raise KeyError("a reason of its own")
                size = chance.choice((1, 50, 4000, 200_000))
                call(chance.choice(PATTERNS), done, context.rank, context.world_size, size)
                done += 1
                if done == 20:
                    mark(f"busy-{context.rank}")
    except ConnectionError as error:  # PeerLost is one
        if not isinstance(error, PeerLost):
            raise
        return {
            "error": type(error).__name__, "rank": error.rank, "signal": error.signal, "text": str(error),
            "at": time.monotonic(), "done": done,
        }  # fmt: skip
    except KeyError as error:
        return {"error": "KeyError", "text": str(error), "at": time.monotonic(), "done": done}
    return {"error": None, "at": time.monotonic(), "done": done}


def make_groups(limited: int, descriptors: int) -> dict[str, Any]:
    """Make groups without end on ranks of which one has few descriptors; say what ended that."""
    made = 0
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with dist.DistributedContext(backend="shm", timeout=20) as context:
            if context.rank == limited:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, most))
            groups = []
            while made < 200:
                groups.append(dist.new_group())
                total = np.ones(3)
                dist.all_reduce(total, group=groups[-1])
                assert (total == context.world_size).all()
                made += 1
    except NeuraxisError as error:
        return {"made": made, "error": type(error).__name__, "text": str(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))  # the answer is written to a file
    return {"made": made, "error": None, "text": ""}


def meet(backend: str) -> dict[str, Any]:
    """Start a context and make one call; say over which backend, or the error."""
    try:
        with dist.DistributedContext(backend=backend, timeout=20) as context:
            total = np.ones(100_000)
            dist.all_reduce(total)
            assert (total == context.world_size).all()
            return {"backend": context.backend, "error": None, "text": ""}
    except NeuraxisError as error:
        return {"backend": "", "error": type(error).__name__, "text": str(error)}


# --- scenarios ---


@scenario("collectives", weight=4)
def kill_a_rank(room: Room, chance: random.Random) -> None:
    size, victim = _draw_victim(chance)
    with Ranks(make_calls, size, chance.random(), -1, "shm", 60.0, None) as ranks:
        _wait_until_busy(ranks)
        time.sleep(chance.uniform(0.0, 0.2))
        room.fault("kill")
        killed = time.monotonic()
        ranks.processes[victim].kill()
        for outcome in _survivors(ranks, victim):
            seen = outcome.value
            assert (seen["error"], seen["rank"], seen["signal"]) == ("PeerLost", victim, signal.SIGKILL), seen
            room.noticed(killed, seen["at"])
            assert seen["at"] - killed < NOTICE_S, seen


@scenario("collectives", weight=2)
def raise_on_a_rank(room: Room, chance: random.Random) -> None:
    size, victim = _draw_victim(chance)
    raises = (victim, chance.randrange(20, 200))
    room.fault("exception")
    with Ranks(make_calls, size, chance.random(), -1, "shm", 60.0, raises) as ranks:
        for rank, outcome in enumerate(ranks.outcomes(120)):
            assert outcome.error is None, outcome.output
            if rank != victim:
                seen = outcome.value
                assert (seen["error"], seen["rank"]) == ("PeerLost", victim), seen
                assert "KeyError" in seen["text"], seen
                assert "a reason of its own" in seen["text"], seen


@scenario("collectives")
def kill_a_rank_over_gloo(room: Room, chance: random.Random) -> None:
    size, victim = _draw_victim(chance)
    with Ranks(make_calls, size, chance.random(), -1, "gloo", 60.0, None, torch=True) as ranks:
        _wait_until_busy(ranks)
        room.fault("kill")
        killed = time.monotonic()
        ranks.processes[victim].kill()
        for outcome in _survivors(ranks, victim):
            assert (outcome.value["error"], outcome.value["rank"]) == ("PeerLost", victim), outcome.value
            room.noticed(killed, outcome.value["at"])
            assert outcome.value["at"] - killed < NOTICE_S, outcome.value


@scenario("collectives")
def stop_a_rank_beyond_the_deadline(room: Room, chance: random.Random) -> None:
    size, victim = _draw_victim(chance)
    with Ranks(make_calls, size, chance.random(), -1, "shm", 3.0, None) as ranks:
        _wait_until_busy(ranks)
        room.fault("stop")
        stopped = time.monotonic()
        stop(ranks.processes[victim].pid)
        others = [rank for rank in range(size) if rank != victim]
        for rank in others:
            ranks.processes[rank].wait(60)
        resume(ranks.processes[victim].pid)
        outcomes = ranks.outcomes(60)
        for rank in others:
            seen = outcomes[rank].value
            assert outcomes[rank].error is None, outcomes[rank].output
            # A rank that waited for one that gave up on the stopped rank gets the stopped rank as the cause.
            assert seen["error"] in (CollectiveTimeout.__name__, PeerLost.__name__), seen
            assert seen["rank"] == victim, seen
            assert 2.0 < seen["at"] - stopped < 3.0 + NOTICE_S, seen
        assert outcomes[victim].value["error"] in ("PeerLost", "CollectiveTimeout"), outcomes[victim].output


@scenario("collectives")
def pause_ranks(room: Room, chance: random.Random) -> None:
    size = chance.randint(2, 4)
    calls = 3000
    with Ranks(make_calls, size, chance.random(), calls, "shm", 60.0, None) as ranks:
        _wait_until_busy(ranks)
        for _ in range(3):
            process = ranks.processes[chance.randrange(size)]
            if process.poll() is not None:
                break
            room.fault("pause")
            with suppress(ProcessLookupError):  # it may have made all its calls by now
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(chance.uniform(0.05, 0.4))
                os.kill(process.pid, signal.SIGCONT)
        for outcome in ranks.outcomes(120):
            assert outcome.error is None, outcome.output
            assert (outcome.value["error"], outcome.value["done"]) == (None, calls), outcome.value


@scenario("collectives")
def few_descriptors(room: Room, chance: random.Random) -> None:
    limited = chance.randrange(2)
    room.fault("few descriptors")
    with Ranks(make_groups, 2, limited, chance.randint(20, 70)) as ranks:
        outcomes = ranks.outcomes(120)
    for outcome in outcomes:  # every rank of the group that was not made, with the number of the rank that is the cause
        assert outcome.error is None, outcome.output
        assert outcome.value["error"] == ResourceExhausted.__name__, outcome.value
        assert f"(rank {limited})" in outcome.value["text"], outcome.value
        assert "(ulimit -n)" in outcome.value["text"], outcome.value


@scenario("collectives", isolated=True)
def full_shared_memory(room: Room, chance: random.Random) -> None:
    size = chance.randint(2, 3)
    room.fault("full /dev/shm")
    with _filled(SHM, leave=chance.choice((0, 4096, 60_000))):
        with Ranks(meet, size, "shm") as ranks:
            for outcome in ranks.outcomes(120):
                assert outcome.error is None, outcome.output
                assert outcome.value["error"] == BackendUnavailable.__name__, outcome.value
                assert "/dev/shm has no room" in outcome.value["text"], outcome.value
        with Ranks(meet, size, "auto", torch=True) as ranks:
            for outcome in ranks.outcomes(120):
                assert outcome.error is None, outcome.output
                assert (outcome.value["backend"], outcome.value["error"]) == ("gloo", None), outcome.output


@scenario("collectives", isolated=True)
def read_only_cache(room: Room, chance: random.Random) -> None:
    """A read-only installation and no home: there is no folder to keep compiled code in, so a process keeps none."""
    home = room.small_disk(1, options="ro")
    sources = ROOT / "src"
    room.fault("read-only cache")
    subprocess.run(["mount", "--bind", str(sources), str(sources)], check=True, timeout=20)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(sources)], check=True, timeout=20)
        variables = {"NUMBA_CACHE_DIR": str(home), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
        one = room.start("tests.chaos.collectives", **variables)
        assert one.receive(300.0) == {"sum": 3.0, "cached": False}
        assert one.end() == 0
    finally:
        subprocess.run(["umount", "-l", str(sources)], check=True, timeout=20)


# --- helpers ---


def _draw_victim(chance: random.Random) -> tuple[int, int]:
    size = chance.randint(2, 4)
    return size, chance.randrange(size)


def _wait_until_busy(ranks: Ranks) -> None:
    for rank in range(ranks.size):
        ranks.wait_for(f"busy-{rank}", 90.0)


def _survivors(ranks: Ranks, victim: int) -> list[Outcome]:
    outcomes = ranks.outcomes(120)
    assert outcomes[victim].status == -signal.SIGKILL, outcomes[victim].output
    survivors = [outcome for rank, outcome in enumerate(outcomes) if rank != victim]
    for outcome in survivors:
        assert outcome.error is None, outcome.output
        assert outcome.value["error"] is not None, outcome.value
    return survivors


@contextmanager
def _filled(folder: Path, leave: int) -> Any:
    """Fill a file system but for `leave` bytes."""
    filler = folder / "filler"
    free = os.statvfs(folder)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
    try:
        yield
    finally:
        filler.unlink()


def _compile() -> None:
    import json

    from neuraxis.compiled import compiled

    @compiled
    def add(x: float, y: float) -> float:
        return x + y

    total = add(1.0, 2.0)
    print(json.dumps({"sum": total, "cached": bool(add.stats.cache_path)}), flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    _compile()
