"""Functions and objects of another process: calls, asynchronous calls, an error, and a remote object.

    neuraxis launch -n 2 examples/23_rpc.py

Without a launcher it starts two ranks itself: python examples/23_rpc.py
"""

import os
import subprocess
import sys

import numpy as np

from neuraxis.distributed import RpcContext, remote, remote_object, rpc_async, rpc_sync


@remote
def scaled(values: np.ndarray, factor: float = 1.0) -> np.ndarray:
    return factor * values


@remote
def root(number: float) -> float:
    if number < 0:
        raise ValueError(f"{number:g} has no real root")
    return number**0.5


@remote
class Average:
    """An object that stays in the process that created it; holders of its handle add values to it."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, value: float) -> float:
        self.values.append(value)
        return sum(self.values) / len(self.values)


def ask() -> None:
    print("scaled there:", rpc_sync(1, "scaled", np.arange(4.0), factor=10))

    futures = [rpc_async(1, "root", number) for number in (4, 9, 16)]  # all three are in progress
    print("roots:", [future.wait(timeout=30) for future in futures])

    try:
        rpc_sync(1, "root", -1)
    except ValueError as error:  # as it was raised there; its notes have the traceback
        print("an error of the other side:", error)

    average = remote_object(1, "Average")
    for value in (1, 2, 6):
        mean = average.add(value)
    print("the average there is", mean)

    try:
        rpc_sync(1, "eval", "1 + 1")
    except LookupError as error:  # only what is registered can be called
        print("refused:", error)


if __name__ == "__main__":
    if "RANK" in os.environ:
        with RpcContext(timeout=30) as context:
            if context.rank == 0:
                ask()  # the other rank serves until both leave
    else:
        sys.exit(subprocess.call([sys.executable, "-m", "neuraxis", "launch", "-n", "2", __file__]))
