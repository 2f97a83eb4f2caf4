"""The launcher under faults: a rank, or the launcher itself, is killed, interrupted or ended."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.chaos.storm import Room, Talker, scenario

STEPS, ENDLESS = 40, 10**9
SCRIPT = Path(__file__)


def main(folder: str, steps: int) -> None:
    """The launched script: reduce over all ranks, step by step, and write each step to disk."""
    import numpy as np

    import neuraxis.distributed as dist

    kept = Path(folder, "kept.npy")
    with dist.DistributedContext("shm", timeout=60) as context:
        Path(folder, f"pid-{context.rank}-{os.environ['NEURAXIS_RESTART']}").write_text(str(os.getpid()))
        state = np.zeros(2)
        if context.is_main_process and kept.exists():
            state = np.load(kept)
        dist.broadcast(state, src=0)
        while state[0] < steps:
            share = np.array([state[0] * (context.rank + 1)])
            dist.all_reduce(share)
            state += (1, share[0])
            if context.is_main_process:
                temporary = kept.with_suffix(".tmp.npy")
                np.save(temporary, state)
                temporary.replace(kept)
            time.sleep(0.01)
        if context.is_main_process:
            Path(folder, "result").write_text(json.dumps(state.tolist()))


@scenario("launcher")
def kill_a_rank_and_start_again(room: Room, chance: random.Random) -> None:
    size = chance.randint(2, 3)
    job = _launch(room, size, STEPS, "--max-restarts", "1")
    victim = _rank(room, chance.randrange(size))
    time.sleep(chance.uniform(0.0, 0.3))
    room.fault("kill")
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert job.end(120.0) == 0, job.errors()
    room.noticed(killed)
    expected = sum(step * (rank + 1) for step in range(STEPS) for rank in range(size))
    assert json.loads((room.folder / "result").read_text()) == [STEPS, expected]


@scenario("launcher")
def kill_a_rank_for_good(room: Room, chance: random.Random) -> None:
    size = chance.randint(2, 3)
    job = _launch(room, size, ENDLESS)
    rank = chance.randrange(size)
    victim = _rank(room, rank)
    room.fault("kill")
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert job.end(60.0) == 128 + signal.SIGKILL, job.errors()
    room.noticed(killed)
    assert f"rank {rank} (pid {victim})" in job.errors(), job.errors()
    assert "SIGKILL" in job.errors(), job.errors()


@scenario("launcher")
def end_the_launcher(room: Room, chance: random.Random) -> None:
    size = chance.randint(2, 3)
    job = _launch(room, size, ENDLESS)
    pids = [_rank(room, rank) for rank in range(size)]
    number = chance.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    room.fault(f"{number.name} to the launcher")
    ended = time.monotonic()
    job.process.send_signal(number)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert job.end(60.0) == expected, job.errors()
    room.until(lambda: not any(_lives(pid) for pid in pids), "all ranks end with their launcher", 30.0)
    room.noticed(ended)


def _launch(room: Room, size: int, steps: int, *options: str) -> Talker:
    return room.start("neuraxis", "launch", "-n", size, *options, SCRIPT, room.folder, steps)


def _rank(room: Room, rank: int) -> int:
    """Return the process of a rank of the first attempt, once it is at work."""
    path = room.folder / f"pid-{rank}-0"
    room.until(lambda: path.exists() and path.read_text() and (room.folder / "kept.npy").exists(), "work", 90.0)
    return int(path.read_text())


def _lives(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
