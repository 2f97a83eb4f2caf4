"""Lost and replaced workers: the result equals an undisturbed run. Also rebalancing of neurons."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from neuraxis.engine.placement import Slice, place
from neuraxis.errors import InvalidArgument, ShardFailed, SimulationClosed
from neuraxis.network import STDP, FixedInDegree, Network, Uniform
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import ParallelExecutor, Simulation, recovery
from neuraxis.simulation.python_populations import PythonPopulation, SpikeSubscription
from neuraxis.simulation.recovery import Recovery
from tests.ranks.stopping import stop
from tests.simulation.long_run import worker_pids
from tests.simulation.networks import driven
from tests.simulation.python_regions import WHERE, remembered
from tests.simulation.test_conformance import Outcome, assert_same, look


def learning() -> tuple[Network, tuple[PythonPopulation, ...]]:
    """Neurons that learn and a Python population that subscribes to them: all that must be brought back."""
    network = Network(dt_ms=0.1, seed=6)
    network.neuromodulator("dopamine", tau_ms=40.0)
    cells = network.population("cells", 150, lif_delta, v_mv=Uniform(-70.0, -55.1))
    home, mark = network.population("home", 5, spike_source), network.population("mark", 1, spike_source)
    stdp = STDP.additive(w_max=2.0)
    network.connect(cells, cells, FixedInDegree(k=10), Uniform(0.1, 1.0), Uniform(0.2, 4.0), plasticity=stdp)
    network.connect(home, cells, FixedInDegree(k=3), 2.0, 1.0)
    network.poisson(cells, rate_hz=1500.0, weight=1.5)
    for population in network.populations:
        network.record(population)
    network.record(cells, "v_mv", every_ms=1.0, subset=[149, 0])
    config = {"sources": ["cells", "own"], "echo": 5, "data": True}
    hears = (SpikeSubscription(cells.index, "cells", 5), SpikeSubscription(mark.index, "own", 12))
    return network, (PythonPopulation("scribe", f"{WHERE}:Scribe", home.index, mark.index, config, hears, 4),)


END = 1200

ACTIONS: list[tuple[int, Callable[[Simulation], object]]] = [
    (50, lambda s: s.set_state("cells", "v_mv", np.linspace(-70.0, -56.0, 150))),
    (51, lambda s: s.inject("cells", [5.2, 90.0, 119.0], [0, 149, 75])),
    (300, lambda s: s.release("dopamine", 0.5)),
    (301, lambda s: s.freeze("cells->cells")),
    (302, lambda s: s.silence("home")),
    (430, lambda s: s.silence()),
    (500, lambda s: s.freeze()),
    (700, lambda s: s.give("scribe", np.arange(4.0))),
    (900, lambda s: s.inject("home", [95.0], [4])),
]


def act(simulation: Simulation, until: int) -> None:
    for step, action in ACTIONS:
        if simulation.steps <= step < until:
            simulation.advance(step - simulation.steps)
            action(simulation)
    simulation.advance(until - simulation.steps)


@cache
def undisturbed(folder: Path) -> tuple[Outcome, Any]:
    network, made = learning()
    with Simulation(network, python_populations=made) as simulation:
        act(simulation, END)
        return look(simulation), remembered(simulation, folder)["scribe"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, which must be empty afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def kill(simulation: Simulation, worker: int = 1) -> None:
    os.kill(worker_pids(simulation)[worker], signal.SIGKILL)


def calls_kill(simulation: Simulation, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kill a worker at the next command of its executor."""
    executor, killed = simulation._executor, list[str]()
    assert isinstance(executor, ParallelExecutor)
    original = executor.ask

    def ask(command: str, *arguments: Any) -> list[Any]:
        if command == name and not killed:
            killed.append(command)
            kill(simulation)
        return original(command, *arguments)

    monkeypatch.setattr(executor, "ask", ask)
    return killed


def test_lost_workers_do_not_change_the_result(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a run, while the state is saved, and while it is acted upon; neurons move as well."""
    expected, rows = undisturbed(tmp_path / "undisturbed")
    network, made = learning()
    caplog.set_level(logging.WARNING, "neuraxis.simulation")
    with Simulation(
        network, workers=2, python_populations=made, on_worker_loss="restart", checkpoint_every_ms=20.0
    ) as simulation:
        kept = simulation._recovery
        assert kept is not None
        # Nothing was saved so far. The worker is held, so that it dies while the other one waits for it.
        act(simulation, 60)
        pid = worker_pids(simulation)[1]
        stop(pid)
        timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
        timer.start()
        act(simulation, 150)
        timer.join()
        assert len(caplog.records) == 1
        assert "worker 1 was lost after step 60; restarting from step 0 to reach step 60" in caplog.text

        kept.every_s = 0.0  # from here on the state is saved whenever it can be
        killed = calls_kill(simulation, "save", monkeypatch)
        act(simulation, 450)
        assert killed == ["save"]
        assert kept.saved_step > 150

        kept.every_s = 1e9
        killed = calls_kill(simulation, "inject", monkeypatch)
        act(simulation, 900 + 1)
        assert killed == ["inject"]
        moved = ((Slice(1, 0, 5), Slice(2, 0, 1)), (Slice(0, 0, 150),))
        simulation.move(moved)
        act(simulation, END)
        assert simulation.placement == moved
        assert len(caplog.records) == 3

        assert_same(look(simulation), expected)
        assert np.array_equal(remembered(simulation, tmp_path / "found")["scribe"], rows)
        assert len(list(temporary.iterdir())) == 1


def test_losing_workers_without_getting_further_ends_it(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_MOST_RESTARTS", 1)
    simulation = Simulation(driven(n=40), workers=2, on_worker_loss="restart")
    simulation.advance(20)
    times, _ = simulation.spikes("cells")
    simulation._save_recovery()
    assert len(list(temporary.iterdir())) == 1
    pids = [worker_pids(simulation)]
    plain = ParallelExecutor.restore

    def lose(self: ParallelExecutor, *arguments: Any) -> None:
        assert self._team is not None
        pids.append(self._team.pids)
        os.kill(self._team.pids[1], signal.SIGKILL)
        plain(self, *arguments)

    monkeypatch.setattr(ParallelExecutor, "restore", lose)
    kill(simulation, 0)
    with pytest.raises(ShardFailed, match="SIGKILL"):
        simulation.advance(20)
    assert len(pids) == 2
    with pytest.raises(SimulationClosed):
        simulation.advance(1)
    assert np.array_equal(simulation.spikes("cells")[0], times)
    assert not any(psutil.pid_exists(pid) for both in pids for pid in both)


def test_the_loss_count_restarts_after_progress() -> None:
    counting, error = Recovery(100), ShardFailed("lost")
    for step in (5, 5, 5, 6, 6, 6, 5, 5, 5):
        counting.count_loss(error, step)
    with pytest.raises(ShardFailed, match="lost"):
        counting.count_loss(error, 5)


def test_a_state_is_due_when_enough_steps_and_time_have_passed() -> None:
    often = Recovery(100, every_s=0.0)
    assert [often.is_due(step) for step in (0, 99, 100)] == [False, False, True]
    assert not Recovery(100, every_s=60.0).is_due(1000)


def test_one_process_can_be_restarted_too_and_a_restore_is_where_it_starts(temporary: Path, tmp_path: Path) -> None:
    with Simulation(driven(n=40), on_worker_loss="restart") as simulation:
        simulation.advance(30)
        simulation.save(tmp_path / "state")
        simulation.advance(30)
        expected = simulation.fingerprint()
        simulation.advance(30)
        simulation.restore(tmp_path / "state")
        assert simulation._recovery is not None
        assert simulation._recovery.saved_step == 30
        simulation._recover(ShardFailed("as if"))
        simulation.advance(30)
        assert simulation.fingerprint() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_worker_loss": "ignore"}, "on_worker_loss='ignore'"),
        ({"on_worker_loss": "restart", "checkpoint_every_ms": 0.0}, "checkpoint_every_ms=0"),
        ({"on_worker_loss": "restart", "executor": ParallelExecutor(2)}, "Use workers="),
    ],
)
def test_invalid_recovery_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Simulation(driven(n=40), **arguments)


def test_neurons_move_in_the_middle_of_a_run_and_no_spike_changes(temporary: Path) -> None:
    network = driven(n=150)
    with Simulation(network) as simulation:
        simulation.advance(400)
        expected = look(simulation)
    with Simulation(network, workers=2) as simulation:
        simulation.advance(101)
        pids = worker_pids(simulation)
        with pytest.raises(InvalidArgument, match="placement"):
            simulation.move(place(network, 3))
        for i, placement in enumerate([((Slice(0, 0, 1),), (Slice(0, 1, 150),)), ((), (Slice(0, 0, 150),))], start=1):
            simulation.move(placement)
            assert simulation.placement == placement
            simulation.advance(50 + i)
        assert worker_pids(simulation) == pids
        simulation.advance(400 - simulation.steps)
        assert_same(look(simulation), expected)


def test_the_course_after_a_restore_is_what_lost_workers_are_brought_back_to(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is lost while the first state after a restore is saved; the inputs since then are replayed."""
    network, made = learning()
    data = np.arange(4.0)

    def go(simulation: Simulation, disturbed: bool) -> str:
        act(simulation, 200)
        simulation.save(tmp_path / "state")
        act(simulation, 500)  # this course is left
        killed = calls_kill(simulation, "publish", monkeypatch) if disturbed else []
        simulation.restore(tmp_path / "state")
        data[:] = np.arange(4.0)
        simulation.give("scribe", data)
        data[:] = 7.0
        simulation.advance(150)
        if disturbed:
            assert killed
            kill(simulation)
        act(simulation, 700)
        return simulation.fingerprint()

    with Simulation(network, python_populations=made) as simulation:
        expected = go(simulation, disturbed=False)
    with Simulation(network, workers=2, python_populations=made, on_worker_loss="restart") as simulation:
        assert go(simulation, disturbed=True) == expected
        # A worker is lost before neurons are moved; later spikes are known for each neuron.
        simulation.advance(100)
        kill(simulation)
        halves = place(network, 2, together=[(1, 2)])
        swapped = tuple(tuple(part for part in slices if part.population == 0) for slices in halves)
        rest = tuple(Slice(p, 0, network.populations[p].n) for p in (1, 2))
        simulation.move(((*swapped[0],), (*swapped[1], *rest)))
        simulation.advance(100)
        spikes = [one.spikes_out for one in simulation.status()]
        assert all(count > 0 for count in spikes)
        assert sum(spikes) < simulation.counters().spike_counts.sum()
