"""Saved simulations under faults: killed in mid-save, on a full disk, damaged afterwards."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from functools import cache
from pathlib import Path

from neuraxis.errors import CheckpointError, NeuraxisError
from neuraxis.simulation import Simulation
from tests.chaos.storm import Room, scenario
from tests.simulation.networks import driven
from tests.simulation.save_loop import NEURONS


@scenario("checkpoints")
def kill_while_it_saves(room: Room, chance: random.Random) -> None:
    folder = room.folder / "saved"
    saving = room.start("tests.simulation.save_loop", folder)
    for _ in range(chance.randint(1, 6)):
        reported = saving.receive(120.0)
    time.sleep(chance.uniform(0.0, 0.01))
    room.fault("kill")
    saving.kill()
    _check_state(folder, at_least=reported)
    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.save(folder)
    left = sorted(path.name for path in folder.iterdir())
    assert len(left) == 2, f"one state and its manifest are expected: {left}"


@scenario("checkpoints", isolated=True)
def save_to_a_full_disk(room: Room, chance: random.Random) -> None:
    disk = room.small_disk(1)
    room.fault("full disk")
    left = chance.choice((0.0, 0.3, 0.9))  # of the room that a state needs
    reported = room.start("tests.chaos.checkpoints", disk / "saved", disk / "filler", left).receive(120.0)
    assert reported["error"] == "CheckpointError", reported
    _check_state(disk / "saved", at_least=reported["saved"])


@scenario("checkpoints", weight=2)
def damage_a_state(room: Room, chance: random.Random) -> None:
    """Flip, cut or append bytes anywhere: loading returns the right state or raises our error, never another state."""
    folder = room.folder / "saved"
    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.step(20)
        simulation.save(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(20):
        path = chance.choice(files)
        content = path.read_bytes()
        room.fault("damage")
        at = chance.randrange(len(content))
        kind = chance.choice(("flip", "cut", "append", "zero"))
        if kind == "flip":
            damaged = content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
        elif kind == "cut":
            damaged = content[:at]
        elif kind == "append":
            damaged = content + chance.randbytes(chance.randint(1, 100))
        else:
            damaged = content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
        path.write_bytes(damaged)
        try:
            _check_state(folder, at_least=20)
        except CheckpointError:
            pass
        path.write_bytes(content)
    _check_state(folder, at_least=20)


@cache
def _fingerprint_after(steps: int) -> str:
    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.step(steps)
        return simulation.fingerprint()


def _check_state(folder: Path, at_least: int) -> None:
    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.restore(folder)
        assert simulation.steps >= at_least, (simulation.steps, at_least)
        assert simulation.fingerprint() == _fingerprint_after(simulation.steps)


def main(folder: str, filler: str, share: float) -> None:
    """Save states, fill the disk but for a share of a state, and save again; report the last state and the error."""
    saved = 0
    try:
        with Simulation(driven(n=NEURONS)) as simulation:
            for _ in range(50):
                simulation.step(1)
                simulation.save(folder)
                saved = simulation.steps
                if saved == 3:
                    needed = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*"))
                    with open(filler, "wb") as file:
                        free = os.statvfs(Path(filler).parent)
                        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - int(share * needed))
        answer = {"error": None, "saved": saved}
    except NeuraxisError as error:
        answer = {"error": type(error).__name__, "saved": saved}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
