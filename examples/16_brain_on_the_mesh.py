"""A brain whose regions are nodes of the mesh: the same spikes as in one process; one dies, and the others continue."""

import os
import time

from neuraxis.brain import Brain, BrainBuilder, mesh_executor


def small_brain():
    return (
        BrainBuilder("small", seed=1)
        .sensor("cue", 40, groups=4, rate_hz=80.0, background_hz=5.0)
        .region("thalamus", "thalamus", relay=60)
        .region("cortex", "cortex", neurons=200)
        .region("prefrontal", "prefrontal")
        .pathway("cue", "thalamus", 5.0)
        .pathway("thalamus", "cortex", 5.0)
        .pathway("cortex", "prefrontal", 6.0)
        .pathway("prefrontal", "cortex", 8.0)
        .spec()
    )


def main() -> None:
    spec, cue = small_brain(), {"cue": [1.0, 0.0, 0.0, 0.0]}
    with Brain(spec) as brain:
        brain.forward(cue, 2000)
        print("in one process:", brain.fingerprint())

    nodes = mesh_executor(spec, mesh=f"example-{os.getpid()}")
    with Brain(spec, executor=nodes) as brain:
        brain.forward(cue, 2000)
        print("on the mesh:   ", brain.fingerprint())

        nodes.team.kill("prefrontal")  # as if it had crashed
        begun = time.monotonic()
        brain.forward(cue, 2000)
        seen = nodes.statistics()["cortex"]["upstream"]["prefrontal"]
        print(f"prefrontal was killed; cortex went on after {time.monotonic() - begun:.1f} s:", seen["silences"])


if __name__ == "__main__":  # the nodes' processes import this file
    main()
