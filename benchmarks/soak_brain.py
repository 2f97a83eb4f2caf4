"""The brain of the soak test: regions in lockstep over the mesh, one of which is killed and restarted repeatedly.

`soak_brain.py SECONDS EVERY_S` runs it and prints the findings as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from typing import Any

import psutil

from neuraxis.brain import BrainBuilder
from neuraxis.brain.mesh import region_setups
from neuraxis.brain.spec import BrainSpec
from neuraxis.mesh import Topology
from neuraxis.simulation.mesh.executor import RegionTeam
from soak_usage import Sample, Starvation, sample

PIECE_STEPS = 1000
PIECE_S = 0.25  # lower limit on the time for 100 ms of model time: the other nodes need the cores as well
VICTIM = "cortex"
AWAY_S = 1.0
BACK_S = 60.0


def brain() -> BrainSpec:
    """Three regions in a ring; cells of the cortex fire by themselves."""
    return (
        BrainBuilder("soak", seed=1)
        .region("thalamus", "thalamus", relay=40)
        .region("cortex", "cortex", neurons=80)
        .region("association", "cortex", neurons=40)
        .pathway("thalamus", "cortex", 4.0, topographic=True)
        .pathway("cortex.L23e", "association", 5.0, topographic=True)
        .pathway("cortex.L5e", "thalamus", 4.0)
        .pathway("association.L5e", "thalamus.gate", 4.0)
        .spec()
    )


class Watch(threading.Thread):
    """Sample processes once a second, however long a step of the brain takes."""

    def __init__(self, watched: dict[str, psutil.Process]) -> None:
        super().__init__(daemon=True)
        self.step = 0  # target of the current advance
        self.samples: dict[str, list[Sample]] = {name: [] for name in watched}
        self.starved: list[tuple[int, int, float]] = []  # first and last step, and a wait for a core
        self._watched = watched
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        begun, looked_at, starvation = time.monotonic(), 0, Starvation([*self._watched.values()])
        while not self._ended.wait(1.0):
            taken = sample([*self._watched.values()], time.monotonic() - begun)
            for name, used in zip(self._watched, taken, strict=True):
                self.samples[name].append(used)
            step = self.step
            self.starved.append((looked_at - PIECE_STEPS, step, starvation.worst_s()))
            looked_at = step

    def end(self) -> None:
        self._ended.set()
        self.join()


def soak(seconds: float, every_s: float) -> dict[str, Any]:
    """Run for a time, killing the victim every `every_s` seconds; return the records and the usage of the others."""
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        setups = region_setups(
            brain(), mesh=f"soak-brain-{time.time_ns()}", topology=Topology.local().as_data(), clock="lockstep",
            checkpoint=folder, checkpoint_every=2000, replay_log_bytes=2**20,
        )  # fmt: skip
        with RegionTeam(setups) as team:
            team.wait(BACK_S)
            watched = {name: psutil.Process(pid) for name, pid in team.pids.items() if name != VICTIM}
            watched["driver"] = psutil.Process()
            watch = Watch(watched)
            begun = time.monotonic()
            step, next_kill, return_at = 0, begun + every_s, 0.0
            while (now := time.monotonic()) < begun + seconds or return_at:
                step += PIECE_STEPS
                watch.step = step
                team.ask("advance", step, include_joining=True)
                now = time.monotonic()
                if return_at and now >= return_at:
                    team.start(VICTIM, resume=True)
                    team.wait(BACK_S, [VICTIM])
                    return_at = 0.0
                elif not return_at and now >= next_kill and now < begun + seconds:
                    team.kill(VICTIM)
                    kills += 1
                    next_kill = max(next_kill + every_s, now + every_s / 2)
                    return_at = now + AWAY_S
                time.sleep(max(0.0, now + PIECE_S - time.monotonic()))
            watch.end()
            # The victim needs a moment after its last restart until all receive it again.
            deadline = time.monotonic() + BACK_S
            while True:
                step += PIECE_STEPS
                team.ask("advance", step, include_joining=True)
                stories = team.ask("statistics")
                whole = len(stories) == len(setups) and all(
                    heard["state"] == "live" for story in stories.values() for heard in story["upstream"].values()
                )
                if whole or time.monotonic() > deadline:
                    break
    return {
        "step": step,
        "kills": kills,
        "whole": whole,
        "stories": stories,
        "resources": watch.samples,
        "starved": watch.starved,
    }


if __name__ == "__main__":
    print(json.dumps(soak(float(sys.argv[1]), float(sys.argv[2]))))
