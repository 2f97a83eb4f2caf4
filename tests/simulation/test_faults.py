"""Workers that die, raise or stop at scripted moments: a complete error, soon, and no leaks."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from neuraxis.errors import ShardFailed, SimulationClosed
from neuraxis.network import Network
from neuraxis.simulation import ParallelExecutor, Simulation
from tests.ranks.stopping import stop
from tests.simulation.long_run import next_line, started, worker_pids
from tests.simulation.networks import driven

pytestmark = pytest.mark.alone

SOON_S = 5.0  # it takes about one second; machines can be busy


@contextmanager
def soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SOON_S


class Doing(threading.Thread):
    """Do something from another thread as soon as a condition holds."""

    def __init__(self, action: Callable[[], object], when: Callable[[], object]) -> None:
        super().__init__()
        self._action, self._when = action, when
        self._given_up = threading.Event()
        self.at = float("nan")

    def run(self) -> None:
        while not self._when():
            if self._given_up.wait(0.001):
                return
        self.at = time.monotonic()
        self._action()

    def __enter__(self) -> Doing:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._given_up.set()
        self.join()


def killing(pid: int, with_signal: int) -> Callable[[], None]:
    return lambda: os.kill(pid, with_signal)


# --- killed ---


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV], ids=lambda how: how.name)
def test_a_worker_killed_while_it_runs(how: signal.Signals, tmp_path: Path) -> None:
    with Simulation(driven(), workers=2) as simulation:
        simulation.step(100)
        simulation.save(tmp_path)
        fingerprint = simulation.fingerprint()
        pids = worker_pids(simulation)
        with Doing(killing(pids[1], how), when=lambda: simulation.steps > 200) as killer:  # noqa: SIM117
            with pytest.raises(ShardFailed) as caught:
                simulation.run(2e8)
        assert time.monotonic() - killer.at < SOON_S
        error = caught.value
        assert (error.worker, error.signal, error.exit_code) == (1, how, None)
        assert error.shard == "cells[200:400]"
        assert error.step >= 200
        assert error.step >= simulation.steps  # the simulation knows of whole pieces only
        for part in ("worker 1", "cells[200:400]", f"step {error.step}", how.name):
            assert part in str(error)
        # All is over, but for what was recorded.
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(SimulationClosed):
            simulation.step()
        times, _ = simulation.spikes("cells")
        steps = simulation.steps
    with Simulation(driven()) as simulation:
        simulation.restore(tmp_path)
        assert simulation.fingerprint() == fingerprint
        simulation.step(steps - 100)
        assert np.array_equal(simulation.spikes("cells")[0], times[times > 10.0])


@pytest.mark.parametrize("call", ["run", "save"])
def test_a_worker_killed_while_idle(call: str, tmp_path: Path) -> None:
    with Simulation(driven(), workers=3) as simulation:
        simulation.step(100)
        simulation.save(tmp_path)
        manifest = (tmp_path / "manifest.json").read_text()
        pids = worker_pids(simulation)
        os.kill(pids[0], signal.SIGKILL)
        calls: dict[str, Callable[[], Any]] = {
            "run": lambda: simulation.run(1.0),
            "save": lambda: simulation.save(tmp_path),
        }
        with soon(), pytest.raises(ShardFailed, match=r"worker 0 \(cells\[0:133\]\) failed after step 100.*SIGKILL"):
            calls[call]()
        assert not any(map(psutil.pid_exists, pids))
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_the_only_worker_killed() -> None:
    with Simulation(driven(n=40), executor=ParallelExecutor(1)) as simulation:
        simulation.step(10)
        os.kill(worker_pids(simulation)[0], signal.SIGKILL)
        with soon(), pytest.raises(ShardFailed, match=r"worker 0 \(cells\[0:40\]\) failed after step 10"):
            simulation.step()


def test_a_worker_without_neurons_killed() -> None:
    with Simulation(driven(n=40), workers=2) as simulation:
        simulation.step(10)
        os.kill(worker_pids(simulation)[1], signal.SIGKILL)
        with soon(), pytest.raises(ShardFailed, match=r"worker 1 \(no neurons\)"):
            simulation.step(1000)


def test_closing_after_a_worker_was_killed_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    simulation = Simulation(driven(n=40), workers=2)
    os.kill(worker_pids(simulation)[0], signal.SIGKILL)
    with soon():
        simulation.close()
        simulation.close()
    assert "Traceback" not in capfd.readouterr().err


# --- while building, raising, exiting: scripted in the worker by a model that cannot be built ---


class Scripted(Network):
    """A network that does something when a worker receives it, or builds from it."""

    def __init__(self, action: str, rank: int) -> None:
        super().__init__(seed=1)
        self.action, self.rank, self.parent = action, rank, os.getpid()

    def delay_bounds_steps(self, projection: Any) -> Any:
        """Called by every shard while it builds."""
        if os.getpid() != self.parent and int(os.environ["RANK"]) == self.rank:
            if self.action == "raise":
                raise RuntimeError("a scripted accident")
            if self.action == "exit":
                os._exit(7)
            os.kill(os.getpid(), getattr(signal, self.action))
            time.sleep(60)  # a signal takes a moment to arrive
        return super().delay_bounds_steps(projection)


def scripted(action: str, rank: int = 1) -> Network:
    network, plain = Scripted(action, rank), driven()
    network.__dict__.update(plain.__dict__)
    return network


@pytest.mark.parametrize(
    ("action", "signal_number", "exit_code", "words"),
    [
        ("SIGKILL", signal.SIGKILL, None, "SIGKILL"),
        ("exit", None, 7, "exit code 7"),
        ("raise", None, 1, "RuntimeError: a scripted accident"),
    ],
)
def test_a_worker_that_fails_while_it_builds(
    action: str, signal_number: int | None, exit_code: int | None, words: str
) -> None:
    network = scripted(action)
    with pytest.raises(ShardFailed) as caught:
        Simulation(network, workers=2)
    error = caught.value
    assert (error.worker, error.signal, error.exit_code) == (1, signal_number, exit_code)
    assert (error.shard, error.step) == ("cells[200:400]", 0)
    assert words in str(error)
    assert ("delay_bounds_steps" in error.traceback) == (action == "raise")


# --- stopped ---


def test_a_stopped_worker_with_a_timeout_gives_an_error() -> None:
    executor = ParallelExecutor(2, timeout=60.0)
    with Simulation(driven(), executor=executor) as simulation:
        simulation.step(10)
        executor._timeout = 1.0  # not before: to build takes longer than that on a busy machine
        pids = worker_pids(simulation)
        stop(pids[1])
        with pytest.raises(ShardFailed, match=r"worker 1 did not answer .* within 1 s") as caught:
            simulation.step(10_000)
        assert caught.value.worker == 1
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(SimulationClosed):
            simulation.step()


def test_a_worker_stopped_for_a_while_costs_only_time() -> None:
    with Simulation(driven()) as simulation:
        simulation.step(500)
        expected = simulation.fingerprint()
    with Simulation(driven(), workers=2) as simulation:
        pid = worker_pids(simulation)[0]
        stop(pid)
        timer = threading.Timer(0.3, killing(pid, signal.SIGCONT))
        timer.start()
        simulation.step(500)
        timer.join()
        assert simulation.fingerprint() == expected


# --- the parent ---


def test_workers_end_when_their_parent_is_killed() -> None:
    with started(2) as process:
        workers = [psutil.Process(pid) for pid in next_line(process)["pids"]]
        segments = {segment for worker in workers for segment in segments_of(worker)}
        process.kill()
        process.wait()
        gone, alive = psutil.wait_procs(workers, timeout=SOON_S)
        assert not alive
        assert len(gone) == 2
    assert segments
    assert not any(Path(segment).exists() for segment in segments)


def segments_of(process: psutil.Process) -> set[str]:
    """The shared memory that a process has mapped, by the name that it has or had."""
    maps = [found.path for found in process.memory_maps()]
    return {path.removesuffix(" (deleted)") for path in maps if re.search(r"/neuraxis-|/dev/shm/#", path)}
