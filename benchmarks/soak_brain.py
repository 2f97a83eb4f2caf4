"""The brain of the soak: regions in lockstep over the mesh, one of which is killed and comes back, again and again.

`soak_brain.py SECONDS EVERY_S` runs it and prints what was found as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import psutil

from neuraxis.brain import BrainBuilder
from neuraxis.brain.mesh import region_setups
from neuraxis.brain.spec import BrainSpec
from neuraxis.execution.mesh.team import RegionTeam
from neuraxis.mesh import Topology

PIECE_STEPS = 1000
PIECE_S = 0.25  # a piece of 100 ms takes at least so long: the nodes beside it need the cores as well
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


def soak(seconds: float, every_s: float) -> dict[str, Any]:
    """Run so long, killing the victim `every_s` seconds; what the others recorded, and what they used."""
    kills = 0
    resources: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        setups = region_setups(
            brain(), mesh=f"soak-brain-{time.time_ns()}", topology=Topology.local().as_data(), clock="lockstep",
            checkpoint=folder, checkpoint_every=2000, journal_bytes=2**20,
        )  # fmt: skip
        with RegionTeam(setups) as team:
            team.wait(BACK_S)
            watched = {name: psutil.Process(pid) for name, pid in team.pids.items() if name != VICTIM}
            watched["driver"] = psutil.Process()
            begun = time.monotonic()
            step, next_kill, return_at = 0, begun + every_s, 0.0
            next_look = begun
            while (now := time.monotonic()) < begun + seconds or return_at:
                step += PIECE_STEPS
                team.ask("advance", step, late_too=True)
                now = time.monotonic()
                if now >= next_look:
                    next_look += 1.0
                    for name, process in watched.items():
                        resources.setdefault(name, []).append(
                            [now - begun, process.memory_info().rss, process.num_threads(), process.num_fds()]
                        )
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
            # The one that came back last needs a moment until all hear it again.
            deadline = time.monotonic() + BACK_S
            while True:
                step += PIECE_STEPS
                team.ask("advance", step, late_too=True)
                stories = team.ask("story")
                whole = len(stories) == len(setups) and all(
                    heard["state"] == "live" for story in stories.values() for heard in story["upstream"].values()
                )
                if whole or time.monotonic() > deadline:
                    break
    return {"step": step, "kills": kills, "whole": whole, "stories": stories, "resources": resources}


if __name__ == "__main__":
    print(json.dumps(soak(float(sys.argv[1]), float(sys.argv[2]))))
