"""A process that saves repeatedly until it is killed.

    python -m tests.simulation.save_loop FOLDER

It prints the step of each state that is safe on disk.
"""

from __future__ import annotations

import sys

from neuraxis.simulation import Simulation
from tests.simulation.networks import driven

__all__ = ["NEURONS"]

NEURONS = 40


def main(folder: str) -> None:
    with Simulation(driven(n=NEURONS)) as simulation:
        while True:
            simulation.step(1)
            simulation.save(folder)
            print(simulation.steps, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
