"""Functions of the workers in tests/process/test_team.py. Their processes import this file, so it imports little."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from neuraxis.errors import LineTimeout, PeerLost
from neuraxis.launch import WorkerLine


class Own(Exception):
    pass


class SlowToUnpickle:
    """Keeps a process from starting."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (1000.0,)


class FailsToUnpickle:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def echo(line: WorkerLine, *args: object) -> None:
    """Answer each message with the rank, so that misrouting shows."""
    line.send((line.rank, line.n, args, os.environ["RANK"], os.environ.get("EXTRA")))
    while True:
        line.send((line.rank, line.receive()))


def obey(line: WorkerLine) -> None:
    while True:
        _obey(line, line.receive())


def _obey(line: WorkerLine, command: object) -> None:
    match command:
        case "raise":
            raise Own("the reason", line.rank)
        case "raise unsendable":

            class Local(Exception):
                pass

            raise Local("far away")
        case "exit", int(code):
            os._exit(code)
        case "sys.exit":
            sys.exit(0)
        case "leave a child that holds the line":
            if os.fork():
                os._exit(0)
            signal.pause()
        case "closes its line":
            os.closerange(3, 256)
            signal.pause()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            ctypes.string_at(0)
        case "thread":
            threading.Thread(target=threading.Event().wait).start()
            raise Own("with a thread that stays")
        case "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
        case "busy":
            line.send("begun")
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            line.send("deaf")
            while True:
                signal.pause()
        case "sleep", float(seconds):
            time.sleep(seconds)
        case "lose", int(rank):
            raise PeerLost(f"rank {rank} has gone", rank=rank)
        case "lose and say otherwise", int(rank):
            try:
                raise PeerLost(f"rank {rank} has gone", rank=rank)
            except PeerLost as error:
                raise Own("cannot go on") from error
        case "wait for a signal":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            line.send("waiting")
            signal.sigwait({signal.SIGUSR1})
        case "child":
            line.send(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid)
        case "print":
            print("out of", line.rank)
            print("err of", line.rank, file=sys.stderr)
            line.send("printed")
        case _:
            line.send((line.rank, command))


def return_at_once(line: WorkerLine) -> None:
    line.send(line.rank)


def raise_on_close(line: WorkerLine) -> None:
    try:
        line.receive()
    finally:
        raise Own("too late")


def flood(line: WorkerLine, count: int, size: int) -> None:
    """Send before receiving anything: neither side may wait for the other to read."""
    for number in range(count):
        line.send(bytes([line.rank, number]) * size)
    while True:
        line.send(len(line.receive()))


def receive_in_bits(line: WorkerLine) -> None:
    """Give up waiting again and again in the middle of a message."""
    while True:
        gave_up = 0
        while True:
            try:
                message = line.receive(timeout=0)
                break
            except LineTimeout:
                gave_up += 1
        line.send((gave_up, message))


def look_before_receiving(line: WorkerLine) -> None:
    before = line.poll()
    line.send(before)
    while not line.poll():
        pass
    line.send(line.receive())
    while not line.closed:
        pass
    line.receive(timeout=0)


def reduce_with_shm(line: WorkerLine) -> None:
    import numpy as np

    from neuraxis.comm import DistributedContext

    with DistributedContext(backend="shm", timeout=30) as context:
        while True:
            command = line.receive()
            if command == "die":
                os._exit(3)
            values = np.full(5, 10.0**line.rank)
            context.world.all_reduce(values)
            line.send(values)


def interrupt_often(line: WorkerLine, parent: int) -> None:
    """Rank 0 sends large messages while rank 1 presses Ctrl-C."""
    line.receive()
    if line.rank == 0:
        for number in range(20):
            line.send(bytes([number]) * 3_000_000)
    else:
        while not line.poll():
            os.kill(parent, signal.SIGINT)
            time.sleep(0.0005)
