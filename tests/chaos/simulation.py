"""Simulations under faults: lost, stopped and paused workers, a lost driver, machines without room."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from contextlib import suppress
from functools import cache

from neuraxis.errors import InvalidArgument, NeuraxisError, ResourceExhausted
from tests.chaos.collectives import SHM, _filled
from tests.chaos.storm import Room, Talker, scenario
from tests.ranks.stopping import resume, stop

NEURONS, STEPS, PIECE = 300, 4000, 200


def main(workers: int, on_worker_loss: str, most: int = 0, free: int = 0) -> None:
    """Run the network in pieces; print the workers' pids, then the fingerprint or the error.

    With `most`, the process and its workers may open that many files, and all but `free` of them are in use here.
    """
    from neuraxis.simulation import Simulation
    from tests.simulation.long_run import worker_pids
    from tests.simulation.networks import driven

    in_use: list[int] = []
    if most:  # only now: Python itself opens files to import modules
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with suppress(OSError):
            while True:
                in_use.append(os.dup(0))
        for _ in range(free):
            os.close(in_use.pop())
    try:
        with Simulation(driven(n=NEURONS), workers, on_worker_loss=on_worker_loss) as simulation:
            simulation.step(1)
            print(json.dumps({"pids": worker_pids(simulation)}), flush=True)
            sys.stdin.readline()
            while simulation.steps < STEPS:
                simulation.step(min(PIECE, STEPS - simulation.steps))
            print(json.dumps({"fingerprint": simulation.fingerprint(), "error": None}), flush=True)
    except NeuraxisError as error:
        print(json.dumps({"fingerprint": None, "error": type(error).__name__, "text": str(error)}), flush=True)


@cache
def undisturbed() -> str:
    """Return the fingerprint of the run in one process."""
    from neuraxis.simulation import Simulation
    from tests.simulation.networks import driven

    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.step(STEPS)
        return simulation.fingerprint()


@scenario("simulation", weight=2)
def lose_workers_and_go_on(room: Room, chance: random.Random) -> None:
    driver, pids = _start(room, chance.randint(2, 3), "restart")
    _go(driver)
    time.sleep(chance.uniform(0.0, 0.3))
    room.fault("kill")
    killed = time.monotonic()
    _signal(chance.choice(pids), signal.SIGKILL)
    answer = driver.receive(120.0)
    room.noticed(killed)
    assert answer == {"fingerprint": undisturbed(), "error": None}, (answer, driver.errors())
    assert driver.end() == 0, driver.errors()


@scenario("simulation")
def lose_a_worker_for_good(room: Room, chance: random.Random) -> None:
    driver, pids = _start(room, 2, "raise")
    stop(pids[0])  # so that the run is not over before the other one is lost
    _go(driver)
    room.fault("kill")
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    resume(pids[0])
    answer = driver.receive(60.0)
    room.noticed(killed)
    assert answer["error"] == "ShardFailed", (answer, driver.errors())
    assert "worker 1" in answer["text"], answer
    assert driver.end() == 0, driver.errors()


@scenario("simulation")
def pause_workers(room: Room, chance: random.Random) -> None:
    driver, pids = _start(room, chance.randint(2, 3), "raise")
    _go(driver)
    for _ in range(3):
        pid = chance.choice(pids)
        room.fault("pause")
        if _signal(pid, signal.SIGSTOP):
            time.sleep(chance.uniform(0.05, 0.5))
            _signal(pid, signal.SIGCONT)
    answer = driver.receive(120.0)
    assert answer == {"fingerprint": undisturbed(), "error": None}, (answer, driver.errors())
    assert driver.end() == 0, driver.errors()


@scenario("simulation")
def kill_the_driver(room: Room, chance: random.Random) -> None:
    driver, _ = _start(room, 2, chance.choice(("restart", "raise")))
    _go(driver)
    time.sleep(chance.uniform(0.0, 0.2))
    room.fault("kill")
    driver.kill()  # that its workers end, the harness checks


@scenario("simulation")
def too_few_descriptors(room: Room, chance: random.Random) -> None:
    """A limit for which two workers are too many, before the start or during it, or one that just suffices."""
    room.fault("few descriptors")
    refused = chance.random() < 0.3
    most, free = (chance.randint(16, 41), 8) if refused else (64, chance.randint(0, 16))
    answer = _result(room.start("tests.chaos.simulation", 2, "raise", most, free))
    if refused:
        _check_error(answer, InvalidArgument, f"a process may open {most} files (ulimit -n)")
    elif answer["error"] is None:
        assert free > 8, answer  # with fewer, not even the pipes of two workers can be opened
        assert answer["fingerprint"] == undisturbed(), answer
    else:
        _check_error(answer, ResourceExhausted, "its limit (ulimit -n) is 64")


@scenario("simulation", isolated=True)
def full_shared_memory_for_workers(room: Room, chance: random.Random) -> None:
    room.fault("full /dev/shm")
    with _filled(SHM, leave=chance.choice((0, 8192))):
        answer = _result(room.start("tests.chaos.simulation", 2, "raise"))
    _check_error(answer, ResourceExhausted, "/dev/shm has no room")


def _check_error(answer: dict[str, str | None], kind: type[NeuraxisError], text: str) -> None:
    assert answer["error"] == kind.__name__, answer
    assert text in (answer["text"] or ""), answer


def _start(room: Room, workers: int, on_worker_loss: str) -> tuple[Talker, list[int]]:
    driver = room.start("tests.chaos.simulation", workers, on_worker_loss)
    answer = driver.receive(120.0)
    assert "pids" in answer, (answer, driver.errors())
    return driver, answer["pids"]


def _go(driver: Talker) -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.write(b"go\n")
    driver.process.stdin.flush()


def _result(driver: Talker) -> dict[str, str | None]:
    answer = driver.receive(120.0)
    if "pids" in answer:
        _go(driver)
        answer = driver.receive(120.0)
    assert driver.end() == 0, driver.errors()
    return dict(answer)


def _signal(pid: int, number: int) -> bool:
    """Send a signal; return False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
