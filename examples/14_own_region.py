"""A region of your own beside the spiking ones: a camera that ticks, and a detector that hears spikes."""

from typing import Annotated

import numpy as np
from cyclopts import App, Parameter

from neuraxis.brain import Brain, BrainBuilder, Event

app = App(help=__doc__, version_flags=[])


class Camera:
    """Looks every 20 ms, and lets the cell of the column where the light is spike ten times in the next 10 ms."""

    stateless = True  # it can be saved without being asked what it remembers

    def __init__(self, config, device):
        self.columns = config["columns"]

    def process_events(self, now, events):
        column = int(now / 100) % self.columns  # the light moves on every 100 ms
        return [Event(time_ms=now + 1 + k, ids=np.arange(10) + 10 * column) for k in range(10)]


class Detector:
    """Counts what it hears from each column of the cortex, and says when another one is ahead."""

    def __init__(self, config, device):
        self.counts = np.zeros(config["columns"])
        self.ahead = -1

    def process_events(self, now, events):
        self.counts *= 0.99  # what was long ago counts less
        for event in events:
            np.add.at(self.counts, np.asarray(event.ids) // 40, 1)
        ahead = int(self.counts.argmax())
        if ahead != self.ahead:
            self.ahead = ahead
            print(f"{now:6.1f} ms: the light is in column {ahead}")
            return [Event(ids=[ahead])]  # its own neurons spike; others could hear them
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
