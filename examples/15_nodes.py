"""Nodes that join and leave: three processes discover each other, exchange messages and requests; one of them dies."""

import os
import signal
import subprocess
import sys
import time

import numpy as np

from neuraxis.errors import NodeGone
from neuraxis.mesh import Node

MESH = f"example-{os.getpid()}" if len(sys.argv) < 2 else sys.argv[1]


def camera() -> None:
    """Publish a frame every 10 ms, and answer requests about the last one."""
    rng = np.random.default_rng(1)
    with Node("camera/left", role="camera", mesh=MESH) as node:
        frame = np.zeros((8, 8), np.float32)
        node.serve("brightest", lambda message: divmod(int(frame.argmax()), 8))
        while True:
            frame = rng.random((8, 8), dtype=np.float32)
            node.publish("frames", frame)  # a raw buffer with a typed header: nothing is pickled
            time.sleep(0.01)


def counter() -> None:
    """Subscribe to all cameras, present and future, and regularly publish the number of received frames."""
    with Node("counter", mesh=MESH) as node, node.subscribe("camera/*/frames") as frames:
        for seen, message in enumerate(frames, 1):
            if seen % 20 == 0:
                node.publish("seen", {"frames": seen, "lost": frames.counts().lost, "last": message.key}, "state")


def main() -> None:
    others = {
        name: subprocess.Popen([sys.executable, __file__, MESH, name], stdin=subprocess.DEVNULL)
        for name in ("camera", "counter")
    }
    try:
        with Node("viewer", mesh=MESH) as node:
            node.on_leave(lambda peer: print(f"{peer.name} is gone"))
            assert not node.wait_for(["camera/left", "counter"], timeout=30.0)
            print("here:", ", ".join(f"{peer.name} ({peer.role or 'no role'})" for peer in node.peers()))
            with node.subscribe("counter/seen") as reports:
                print("the counter says:", reports.get(timeout=30.0).value)
            print("the brightest pixel is at", node.request("camera/left", "brightest", timeout=5.0))
            others["camera"].send_signal(signal.SIGKILL)
            others["camera"].wait()
            while node.peer("camera/left") is not None:
                time.sleep(0.01)
            try:
                node.request("camera/left", "brightest", timeout=5.0)
            except NodeGone as error:
                print("and now:", error)
            print("still here:", ", ".join(peer.name for peer in node.peers()))
    finally:
        for process in others.values():
            process.kill()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        {"camera": camera, "counter": counter}[sys.argv[2]]()
    else:
        main()
