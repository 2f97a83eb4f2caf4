"""A parameter server whose workers join and leave: one is killed, another joins, and the training continues.

    python examples/21_parameter_server.py

It starts the server and its workers as processes of this machine. On several machines, use the same two `with` blocks.
"""

import os
import signal
import subprocess
import sys
import time

import torch
from torch import nn

from neuraxis.distributed import ParameterServer, ServerWorker

MESH = f"example-{os.getpid()}" if len(sys.argv) < 2 else sys.argv[1]


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def worker(name: str) -> None:
    """Learn the product of two numbers from this worker's own samples, until the server ends the training."""
    net = model()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with ServerWorker(net, mesh=MESH, name=name) as link:  # the server's parameters are in `net` now
        finished = False
        while not finished:
            x = 2 * torch.rand(64, 2, generator=generator) - 1
            nn.functional.mse_loss(net(x)[:, 0], x[:, 0] * x[:, 1]).backward()
            finished = link.step().finished  # sends gradients, receives parameters


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def main() -> None:
    net = model()
    started = {}

    def start(name: str) -> None:
        started[name] = subprocess.Popen([sys.executable, __file__, MESH, name], stdin=subprocess.DEVNULL)

    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    try:
        with ParameterServer(net, optimizer, mode="async", staleness=2, workers=2, mesh=MESH) as server:
            start("ann")
            start("bob")
            wait_until(lambda: server.version >= 50)
            print("at version 50 there are", ", ".join(server.members()))
            started["bob"].send_signal(signal.SIGKILL)
            started["bob"].wait()
            start("cleo")
            wait_until(lambda: set(server.members()) == {"ann", "cleo"})
            print("bob was killed, cleo has joined: now", " and ".join(server.members()))
            server.run(until=server.version + 600)
        x = torch.tensor([[0.5, 0.8], [-0.5, 0.8]])
        print("0.5 · 0.8 is about", round(net(x)[0].item(), 1), "and -0.5 · 0.8 about", round(net(x)[1].item(), 1))
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
            process.wait()


if __name__ == "__main__":
    main() if len(sys.argv) < 2 else worker(sys.argv[2])
