"""Your own Python regions among spiking ones: a camera that is called periodically, and a detector of spikes."""

from typing import Annotated

import numpy as np
from cyclopts import App, Parameter

from neuraxis.brain import Brain, BrainBuilder, Event

app = App(help=__doc__, version_flags=[])


class Camera:
    """Every 20 ms, make the cell of the illuminated column spike ten times in the next 10 ms."""

    stateless = True  # it has no state to save

    def __init__(self, config, device):
        self.columns = config["columns"]

    def process_events(self, now, events):
        column = int(now / 100) % self.columns  # the light moves on every 100 ms
        return [Event(time_ms=now + 1 + k, ids=np.arange(10) + 10 * column) for k in range(10)]


class Detector:
    """Count the spikes of each column of the cortex, and print when another column leads."""

    def __init__(self, config, device):
        self.counts = np.zeros(config["columns"])
        self.ahead = -1

    def process_events(self, now, events):
        self.counts *= 0.99  # older spikes count less
        for event in events:
            np.add.at(self.counts, np.asarray(event.ids) // 40, 1)
        ahead = int(self.counts.argmax())
        if ahead != self.ahead:
            self.ahead = ahead
            print(f"{now:6.1f} ms: the light is in column {ahead}")
            return [Event(ids=[ahead])]  # its own neurons spike; other regions could receive them
        return None

    def get_state(self):
        return {"counts": self.counts, "ahead": self.ahead}

    def set_state(self, state):
        self.counts, self.ahead = state["counts"].copy(), int(state["ahead"])


@app.default
def main(
    *,
    workers: Annotated[int, Parameter(help="Processes; what is seen is the same.")] = 1,
    device: Annotated[str, Parameter(help="Of the spiking neurons: cpu, cuda; one for each worker: cuda,cpu.")] = "cpu",
) -> None:
    spec = (
        BrainBuilder("seeing", seed=1)
        .python_region("camera", Camera, neurons=40, groups=4, tick_ms=20.0, config={"columns": 4})
        .region("cortex", "cortex", neurons=160)
        .python_region("detector", Detector, neurons=4, config={"columns": 4})
        .pathway("camera", "cortex", 5.0, topographic=True)
        .pathway("cortex.L5e", "detector", 3.0)
        .spec()
    )
    with Brain(spec, workers=workers, device=device) as brain:
        brain.run(600.0)


if __name__ == "__main__":  # worker processes import this file
    app()
