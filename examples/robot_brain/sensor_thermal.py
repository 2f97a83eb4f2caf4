"""A sensor that the brain's file does not name: a plain node whose measurements the brain receives once it joins.

    python examples/robot_brain/sensor_thermal.py --celsius 24

The pathway from "sensor/**" in robot.toml admits it. It publishes {celsius} at 20 Hz until it is stopped: each
message says all there is to know, so one that gets lost does no harm.
"""

from __future__ import annotations

import argparse
import signal
import threading

from neuraxis.mesh import Node, Topology

PERIOD_S = 0.05
SETTLES_S = 1.0  # how long it takes to show two thirds of a change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mesh", default="default", help="the name of the mesh")
    parser.add_argument("--connect", action="append", default=[], help="a router, such as tcp/127.0.0.1:7447")
    parser.add_argument("--celsius", type=float, default=24.0, help="what it measures at first")
    parser.add_argument("--heats-to", type=float, default=None, help="what it measures after --after-s")
    parser.add_argument("--after-s", type=float, default=1.0)
    parser.add_argument("--for-s", type=float, default=1e9, help="how long it stays hot")
    options = parser.parse_args()

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    celsius, goal, measured = options.celsius, options.celsius, 0
    topology = Topology.from_options(connect=options.connect)
    with Node("sensor/thermal", role="sensor", mesh=options.mesh, topology=topology) as node:
        while not ended.wait(PERIOD_S):
            if options.heats_to is not None and measured * PERIOD_S >= options.after_s:
                goal = options.heats_to
            if measured * PERIOD_S >= options.after_s + options.for_s:
                goal = options.celsius
            celsius += (goal - celsius) * PERIOD_S / SETTLES_S
            node.publish("data", {"celsius": celsius})
            measured += 1


if __name__ == "__main__":
    main()
