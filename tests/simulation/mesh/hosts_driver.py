"""A small brain, and a process that runs it in pieces over the mesh and prints a report after each.

`python -m tests.simulation.mesh.hosts_driver '{"topology": …, "silence_timeout": …}'`: for each number of milliseconds
that it reads, it runs so long. It says a line of JSON when the regions are under way, and one when they have come to
the end of the piece.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any

from neuraxis.brain import Brain, BrainBuilder
from neuraxis.brain.mesh import mesh_executor
from neuraxis.brain.spec import BrainSpec
from neuraxis.mesh import Node, Topology

REGIONS = ("thalamus", "cortex", "association")
MESH = "hosts"


def round_brain(seed: int = 5) -> BrainSpec:
    """Three regions in a ring: none can run far without the others."""
    return (
        BrainBuilder("round", seed=seed)
        .sensor("cue", 40, groups=4, rate_hz=80.0)
        .region("thalamus", "thalamus", relay=40)
        .region("cortex", "cortex", neurons=80)
        .region("association", "cortex", neurons=40)
        .pathway("cue", "thalamus", 2.0, topographic=True)
        .pathway("thalamus", "cortex", 4.0, topographic=True)
        .pathway("cortex.L23e", "association", 5.0, topographic=True)
        .pathway("association.L5e", "thalamus.gate", 4.0)
        .spec()
    )


def play(brain: Brain, piece: int, time_ms: float) -> dict[str, Any]:
    """Show a cue for some time: a piece of what the brain does; where it is then."""
    brain.forward({"cue": [float(group == piece % 4) for group in range(4)]}, round(time_ms / brain.spec.dt_ms))
    return {"piece": piece, "step": brain.steps, "fingerprint": brain.fingerprint()}


def tell_when_under_way(node: Node, start: int, ended: threading.Event) -> None:
    while not ended.wait(0.01):
        steps = [peer.step for peer in node.peers(0.5) if peer.step is not None]
        if steps and max(steps) > start:
            print(json.dumps({"under_way": max(steps)}), flush=True)
            return


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="driver: %(message)s")
    spec = round_brain()
    executor = mesh_executor(
        spec,
        mesh=MESH,
        topology=Topology.from_data(options["topology"]),
        remote=REGIONS,
        silence_timeout=options["silence_timeout"],
        start_timeout=60.0,
    )
    with Brain(spec, executor=executor) as brain:
        for piece, word in enumerate(iter(sys.stdin.readline, "")):
            ended = threading.Event()
            assert executor.team is not None
            watching = threading.Thread(target=tell_when_under_way, args=(executor.team.node, brain.steps, ended))
            watching.start()
            try:
                report = play(brain, piece, float(word))
            finally:
                ended.set()
                watching.join()
            print(json.dumps(report | {"stories": executor.statistics()}), flush=True)


if __name__ == "__main__":
    main()
