"""A model served by two nodes; requests are balanced between them, one node is killed, and no request is lost.

    python examples/24_inference.py

A call whose callee dies may or may not have run: it raises `CalleeDied` and is not retried automatically. Inference is
idempotent, so the balancer sends the pending requests of the dead node to the other one. Each caller gets exactly one
answer per request.
"""

import os
import signal
import subprocess
import sys
from collections import Counter, deque
from concurrent import futures

import numpy as np

from neuraxis.distributed import RpcContext, RpcFuture

MESH = f"example-{os.getpid()}" if len(sys.argv) < 2 else sys.argv[1]
REQUESTS, UNDER_WAY, KILL_AFTER = 400, 16, 100


class Model:
    """Two layers, the same in every process."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.hidden = rng.normal(size=(64, 256)).astype(np.float32)
        self.classes = rng.normal(size=(256, 10)).astype(np.float32)

    def classify(self, images: np.ndarray) -> np.ndarray:
        return (np.maximum(images @ self.hidden, 0) @ self.classes).argmax(axis=1)


def serve(name: str) -> None:
    context = RpcContext(name=name, mesh=MESH)
    context.register_function("classify", Model().classify)  # before others see this node
    with context:
        context.serve_forever()


class Balancer:
    """Send each request to the node with the fewest pending requests, and to another one if that node dies."""

    def __init__(self, context: RpcContext, nodes: list[str]) -> None:
        self.context = context
        self.nodes = nodes
        self.under_way: dict[RpcFuture, tuple[int, str]] = {}
        self.answers: dict[int, np.ndarray] = {}
        self.answered_by: Counter[str] = Counter()
        self.repeated = 0

    def ask(self, requests: list[np.ndarray], after_each) -> None:
        waiting = deque(range(len(requests)))
        while waiting or self.under_way:
            while waiting and len(self.under_way) < UNDER_WAY:
                number = waiting.popleft()
                busy = Counter(node for _, node in self.under_way.values())
                node = min(self.nodes, key=lambda one: busy[one])
                self.under_way[self.context.rpc_async(node, "classify", requests[number])] = number, node
            done, _ = futures.wait(self.under_way, timeout=30, return_when=futures.FIRST_COMPLETED)
            assert done, "nobody has answered for 30 seconds"
            for future in done:
                number, node = self.under_way.pop(future)
                try:
                    answer = future.result()
                except ConnectionError as error:  # CalleeDied: it may have run; CalleeGone: it has not
                    self._lose(node, error)
                    waiting.appendleft(number)
                else:
                    assert number not in self.answers
                    self.answers[number] = answer
                    self.answered_by[node] += 1
                    after_each()

    def _lose(self, node: str, error: ConnectionError) -> None:
        self.repeated += 1
        if node in self.nodes:
            print(f"{type(error).__name__}: {error}")
            self.nodes.remove(node)


def main() -> None:
    rng = np.random.default_rng(1)
    requests = [rng.normal(size=(32, 64)).astype(np.float32) for _ in range(REQUESTS)]
    nodes = ["left", "right"]
    processes = {
        name: subprocess.Popen([sys.executable, __file__, MESH, name], stdin=subprocess.DEVNULL) for name in nodes
    }
    try:
        with RpcContext(name="client", mesh=MESH, timeout=30) as context:
            assert not context.wait_for(nodes), "a node has not come"
            balancer = Balancer(context, list(nodes))

            def kill_one() -> None:
                if len(balancer.answers) == KILL_AFTER:
                    there = sum(node == "left" for _, node in balancer.under_way.values())
                    by = dict(balancer.answered_by)
                    print(f"after {KILL_AFTER} answers, by {by}, left is killed; {there} requests are under way there")
                    processes["left"].send_signal(signal.SIGKILL)

            balancer.ask(requests, kill_one)
        expected = Model()
        right = sum(np.array_equal(balancer.answers[n], expected.classify(x)) for n, x in enumerate(requests))
        by = dict(balancer.answered_by)
        print(f"asked again, with those sent before its death was known: {balancer.repeated}; answered by {by}")
        print(f"{REQUESTS} requests, {len(balancer.answers)} answers, {right} of them right")
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


if __name__ == "__main__":
    main() if len(sys.argv) < 2 else serve(sys.argv[2])
