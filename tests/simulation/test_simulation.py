"""The guarantees of `Simulation` to users: errors, figures, files, and Ctrl-C."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libsonata
import numpy as np
import psutil
import pytest

from neuraxis.errors import InvalidArgument, InvalidType, NetworkInUse, ShardFailed, SimulationClosed
from neuraxis.network import Explicit, FixedInDegree, Network, Normal
from neuraxis.network.models import lif_delta, lif_exp, spike_source
from neuraxis.simulation import ParallelExecutor, SequentialExecutor, Simulation, read_spikes
from tests.simulation.long_run import NEURONS, next_line, started, worker_pids
from tests.simulation.networks import driven


@pytest.fixture
def simulation() -> Any:
    with Simulation(driven(n=40)) as simulation:
        yield simulation


# --- arguments that cannot be ---


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2", None])
def test_a_number_of_workers_that_cannot_be(workers: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"workers="):
        Simulation(driven(n=40), workers=workers)
    with pytest.raises(InvalidArgument, match=r"workers="):
        ParallelExecutor(workers)


def test_an_executor_with_another_number_of_workers() -> None:
    with pytest.raises(InvalidArgument, match=r"workers=3: the given executor has 2"):
        Simulation(driven(n=40), workers=3, executor=ParallelExecutor(2))


def test_no_network_and_an_empty_one() -> None:
    with pytest.raises(InvalidType, match=r"network='E'"):
        Simulation("E")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"no population"):
        Simulation(Network())


@pytest.mark.parametrize("time_ms", [math.nan, math.inf, -math.inf, -1.0, "5", None, True])
def test_times_that_cannot_be(simulation: Simulation, time_ms: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"time_ms="):
        simulation.run(time_ms)
    assert simulation.steps == 0


@pytest.mark.parametrize("steps", [-1, 1.0, "5", None, True])
def test_numbers_of_steps_that_cannot_be(simulation: Simulation, steps: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"steps="):
        simulation.step(steps)


def test_names_that_are_not_there(simulation: Simulation) -> None:
    for call in (
        simulation.spikes,
        lambda name: simulation.state(name, "v_mv"),
        lambda n: simulation.samples(n, "v_mv"),
    ):
        with pytest.raises(InvalidArgument, match=r"'cell'.*cells"):
            call("cell")
    with pytest.raises(InvalidArgument, match=r"no state 'v'; did you mean 'v_mv'\? there is 'v_mv', 'i_syn_pa'"):
        simulation.state("cells", "v")
    with pytest.raises(InvalidArgument, match=r"no projection 'a->b'; there are cells->cells"):
        simulation.synapses("a->b")
    with pytest.raises(InvalidArgument, match=r"no projection"):
        simulation.weights("a->b")
    with pytest.raises(InvalidArgument, match=r"'refractory' of 'cells' is not recorded. Add network.record"):
        simulation.samples("cells", "refractory")
    with pytest.raises(InvalidArgument, match=r"no neuromodulator 'dopamine'; there are: none"):
        simulation.level("dopamine")
    with pytest.raises(InvalidArgument, match=r"no neuromodulator 'dopamine'"):
        simulation.release("dopamine", 1.0)


def test_spikes_that_were_not_recorded() -> None:
    network = Network()
    network.population("quiet", 3, lif_delta)
    with (
        Simulation(network) as simulation,
        pytest.raises(InvalidArgument, match=r"network.record\('quiet', 'spikes'\)"),
    ):
        simulation.spikes("quiet")


@pytest.mark.parametrize("amount", [math.nan, math.inf, "1", None, True])
def test_amounts_that_cannot_be(amount: Any) -> None:
    network = driven(n=40)
    network.neuromodulator("dopamine")
    with Simulation(network) as simulation, pytest.raises(InvalidArgument, match=r"amount="):
        simulation.release("dopamine", amount)


# --- its life ---


def test_numpy_numbers_and_integers_are_numbers(simulation: Simulation) -> None:
    simulation.step(np.int64(3))  # type: ignore[arg-type]
    simulation.run(1)
    simulation.run(np.float64(0.5))
    assert simulation.steps == 18


def test_a_run_of_no_time(simulation: Simulation) -> None:
    before = simulation.fingerprint()
    summary = simulation.run(0.0)
    assert (summary.time_ms, summary.spikes, summary.synaptic_events) == (0.0, 0, 0)
    assert summary.rates_hz == {"cells": 0.0}
    assert summary.real_time_factor == 0.0
    assert simulation.fingerprint() == before
    assert str(summary)


def test_the_repr_of_a_simulation(simulation: Simulation) -> None:
    assert repr(simulation) == "<Simulation of 40 neurons at 0 ms>"
    simulation.run(2.5)
    assert repr(simulation) == "<Simulation of 40 neurons at 2.5 ms>"
    assert simulation.time_ms == 2.5
    simulation.close()
    assert repr(simulation) == "<Simulation of 40 neurons at 2.5 ms, closed>"


def test_after_closing_only_recordings_remain(simulation: Simulation, tmp_path: Path) -> None:
    simulation.run(50.0)
    times, ids = simulation.spikes("cells")
    simulation.close()
    simulation.close()
    assert len(times) > 0
    assert np.array_equal(simulation.spikes("cells")[0], times)
    assert np.array_equal(simulation.spikes("cells")[1], ids)
    assert simulation.samples("cells", "v_mv")[1].shape == (50, 3)
    calls: list[Callable[[], Any]] = [
        lambda: simulation.run(1.0),
        lambda: simulation.step(0),
        lambda: simulation.state("cells", "v_mv"),
        lambda: simulation.weights("cells->cells"),
        lambda: simulation.save(tmp_path),
        lambda: simulation.restore(tmp_path),
        simulation.fingerprint,
    ]
    for call in calls:
        with pytest.raises(SimulationClosed, match=r"closed"):
            call()
    assert not list(tmp_path.iterdir())


def test_it_is_the_network_as_it_was(tmp_path: Path) -> None:
    network = driven(n=40)
    with Simulation(network) as simulation:
        with pytest.raises(NetworkInUse, match="would not notice"):
            network.population("late", 5, lif_delta)
        summary = simulation.run(5.0)
        assert summary.rates_hz.keys() == {"cells"}
        with pytest.raises(InvalidArgument, match=r"late"):
            simulation.spikes("late")


def test_restoring_discards_recordings(simulation: Simulation, tmp_path: Path) -> None:
    simulation.run(30.0)
    simulation.save(tmp_path)
    times, _ = simulation.spikes("cells")
    simulation.restore(tmp_path)
    assert len(times) > 0
    assert len(simulation.spikes("cells")[0]) == 0
    assert simulation.samples("cells", "v_mv")[1].shape == (0, 3)
    simulation.run(30.0)
    assert simulation.spikes("cells")[0].min() > 30.0
    assert simulation.samples("cells", "v_mv")[0].tolist() == pytest.approx(range(31, 61))


def test_samples_are_of_the_neurons_asked_for_in_the_order_asked_for(simulation: Simulation) -> None:
    simulation.run(7.0)
    times, values = simulation.samples("cells", "v_mv")
    assert times[-1] == 7.0
    assert values[-1].tolist() == simulation.state("cells", "v_mv")[[39, 0, 3]].tolist()


# --- figures ---


def chain() -> Network:
    """Given spikes, and synapses that can be counted by hand: neuron 0 has 3, neuron 1 has 1, neuron 2 none."""
    network = Network(dt_ms=0.5, seed=1)
    source = network.population("source", 4, spike_source)
    target = network.population("target", 2, lif_exp)
    network.connect(source, target, Explicit([0, 0, 0, 1], [0, 1, 1, 0]), weight=1.0, delay_ms=[0.5, 0.5, 9.0, 2.0])
    network.spikes(source, times_ms=[1.0, 5.0, 5.0, 8.0, 12.0], ids=[0, 0, 1, 2, 0])
    network.record(source)
    return network


def test_every_figure_of_a_summary() -> None:
    with Simulation(chain()) as simulation:
        first = simulation.run(10.0)
        second = simulation.run(10.0)
        fingerprint = simulation.fingerprint()
        build_seconds = simulation.build_seconds
    assert (first.workers, first.time_ms, first.build_seconds) == (1, 10.0, build_seconds)
    assert first.build_seconds > 0
    assert first.run_seconds > 0
    assert (first.spikes, second.spikes) == (4, 1)
    assert first.rates_hz == {"source": 100.0, "target": 0.0}
    assert second.rates_hz == {"source": 25.0, "target": 0.0}
    # 1.0: 3 arrivals, the last one at 10.0; 5.0: 2 of 3 and, from neuron 1, one; 8.0: no connections.
    assert (first.synaptic_events, second.synaptic_events) == (6, 3)
    assert first.synapses == 4
    assert first.clipped_delays == 0
    assert 4 <= first.bytes_per_synapse < 1000
    python_population = psutil.Process().memory_info().rss
    assert python_population / 4 < first.peak_memory_bytes < python_population * 16
    assert first.fingerprint != second.fingerprint == fingerprint
    assert first.real_time_factor == first.run_seconds / 0.01
    assert first.synaptic_events_per_second == 6 / first.run_seconds


def test_a_summary_is_plain_values_for_programs_and_text_for_people() -> None:
    with Simulation(chain()) as simulation:
        summary = simulation.run(10.0)
    plain = json.loads(json.dumps(summary.as_json()))
    assert plain["rates_hz"] == {"source": 100.0, "target": 0.0}
    for name, value in plain.items():
        assert getattr(summary, name) == value
    assert {"real_time_factor", "synaptic_events_per_second", "fingerprint", "synapses", "workers"} <= plain.keys()
    text = str(summary)
    for part in (
        "10.0 ms of model time",
        "on 1 worker:",
        "4 synapses",
        "4 spikes, 6 synaptic events",
        "source 100.00 Hz",
    ):
        assert part in text
    assert summary.fingerprint in text


def test_delays_that_were_cut_are_counted() -> None:
    network = Network(dt_ms=0.1, seed=1)
    cells = network.population("cells", 10, lif_delta)
    network.connect(cells, cells, FixedInDegree(k=4), weight=1.0, delay_ms=Normal(-3.0, 0.6))
    network.connect(cells, cells, FixedInDegree(k=6), weight=1.0, delay_ms=Normal(3.0, 0.1))
    with Simulation(network) as simulation:
        summary = simulation.run(1.0)
    assert (summary.synapses, summary.clipped_delays) == (100, 40)
    assert "40.00% of the delays clipped" in str(summary)


def test_two_workers_have_the_same_figures() -> None:
    with Simulation(driven(), workers=2) as simulation:
        two = simulation.run(20.0).as_json()
        assert repr(simulation) == "<Simulation of 400 neurons at 20 ms>"
    with Simulation(driven()) as simulation:
        one = simulation.run(20.0).as_json()
    assert (one.pop("workers"), two.pop("workers")) == (1, 2)
    assert two["peak_memory_bytes"] > 0
    for name in ("spikes", "rates_hz", "synaptic_events", "synapses", "clipped_delays", "fingerprint", "time_ms"):
        assert one[name] == two[name], name


# --- progress ---


def drawn_on(monkeypatch: pytest.MonkeyPatch, progress: bool | None) -> str:
    """Return the output of a run on a terminal."""
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            monkeypatch.setenv("TERM", "xterm")
            monkeypatch.setenv("COLUMNS", "200")
            with Simulation(driven(n=40), progress=progress) as simulation:
                simulation.run(200.0)
            monkeypatch.undo()
            os.set_blocking(ours, False)
            drawn = b""
            while True:  # a terminal gives a few kilobytes at a time
                try:
                    drawn += os.read(ours, 1 << 20)
                except BlockingIOError:
                    return drawn.decode()
    finally:
        os.close(ours)


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_on(monkeypatch, None)
    assert "building" in drawn
    assert "running" in drawn
    assert "200.0 ms of model time" in drawn


def test_progress_can_be_switched_off_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn_on(monkeypatch, False) == ""


def test_nothing_is_drawn_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with Simulation(driven(n=40)) as simulation:
        simulation.run(20.0)
    assert sys.stderr.getvalue() == sys.stdout.getvalue() == ""


# --- a file of spikes ---


def reference_spikes(network: Network, steps: int) -> tuple[np.ndarray, np.ndarray]:
    with Simulation(network) as simulation:
        simulation.step(steps)
        return simulation.spikes("cells")


def test_a_spike_file_equals_the_recording_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    times, ids = reference_spikes(driven(), 500)
    with Simulation(driven(), record_to=path) as simulation:
        simulation.run(20.0)
        assert not path.exists()  # it gets its name when it is complete
        simulation.run(30.0)
        with pytest.raises(InvalidArgument, match=r"spikes\.h5. Read it with"):
            simulation.spikes("cells")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["spikes.cells.v_mv.h5", "spikes.h5"]
    read_times, read_ids = read_spikes(path)["cells"]
    assert np.array_equal(read_times, times)
    assert np.array_equal(read_ids, ids)
    stored = libsonata.SpikeReader(str(path))["cells"].get()
    assert stored == list(zip(ids.tolist(), times.tolist(), strict=True))
    assert len(times) > 100


def test_several_workers_write_the_same_file(tmp_path: Path) -> None:
    times, ids = reference_spikes(driven(), 500)
    with Simulation(driven(), 2, record_to=tmp_path / "spikes.h5") as simulation:
        simulation.run(50.0)
    read_times, read_ids = read_spikes(tmp_path / "spikes.h5")["cells"]
    assert np.array_equal(read_times, times)
    assert np.array_equal(read_ids, ids)


def test_nothing_to_record_to_a_file(tmp_path: Path) -> None:
    network = Network()
    network.population("quiet", 3, lif_delta)
    with pytest.raises(InvalidArgument, match=r"record_to=.*has no probes"):
        Simulation(network, record_to=tmp_path / "spikes.h5")
    assert not list(tmp_path.iterdir())


def test_a_state_restored_before_the_file_has_anything(tmp_path: Path) -> None:
    times, ids = reference_spikes(driven(), 500)
    with Simulation(driven()) as simulation:
        simulation.step(200)
        simulation.save(tmp_path / "state")
    with Simulation(driven(), record_to=tmp_path / "spikes.h5") as simulation:
        simulation.restore(tmp_path / "state")
        simulation.step(300)
    read_times, read_ids = read_spikes(tmp_path / "spikes.h5")["cells"]
    assert np.array_equal(read_times, times[times > 20.0])
    assert np.array_equal(read_ids, ids[times > 20.0])


def test_a_file_cannot_go_back_in_time(tmp_path: Path) -> None:
    with Simulation(driven(), record_to=tmp_path / "spikes.h5") as simulation:
        simulation.step(100)
        simulation.save(tmp_path / "state")
        simulation.step(300)
        with pytest.raises(InvalidArgument, match=r"spikes\.h5"):
            simulation.restore(tmp_path / "state")
        assert simulation.steps == 400
        simulation.step(100)
    assert np.array_equal(read_spikes(tmp_path / "spikes.h5")["cells"][0], reference_spikes(driven(), 500)[0])


def test_a_worker_that_dies_leaves_the_file_unfinished_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    path.write_text("an older file")
    times, ids = reference_spikes(driven(), 500)
    with Simulation(driven(), 2, record_to=path) as simulation:
        simulation.step(500)
        os.kill(worker_pids(simulation)[1], signal.SIGKILL)
        with pytest.raises(ShardFailed):
            simulation.step(500)
    assert path.read_text() == "an older file"
    read_times, read_ids = read_spikes(tmp_path / "spikes.h5.partial")["cells"]
    assert np.array_equal(read_times[: len(times)], times)
    assert np.array_equal(read_ids[: len(ids)], ids)


class FailsToStart(SequentialExecutor):
    def start(self, network: Network, progress: Callable[[int], None], python_populations: Any = ()) -> Any:
        raise MemoryError("no room")


def test_a_network_that_cannot_be_built_costs_no_older_file(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    path.write_text("an older file")
    with pytest.raises(MemoryError):
        Simulation(driven(), executor=FailsToStart(), record_to=path)
    assert path.read_text() == "an older file"


# --- Ctrl-C ---


def press_when(condition: Callable[[], bool]) -> threading.Thread:
    """Ctrl-C, as soon as something is the case."""

    def watch() -> None:
        while not condition():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("workers", [1, 2])
def test_after_ctrl_c_a_simulation_continues_identically(workers: int) -> None:
    with Simulation(driven(n=NEURONS), workers) as simulation:
        for _ in range(3):
            begun_at = simulation.steps
            presser = press_when(lambda begun_at=begun_at: simulation.steps > begun_at)  # type: ignore[misc]
            with pytest.raises(KeyboardInterrupt):
                simulation.run(2e8)
            presser.join()
            assert simulation.steps > begun_at
            assert simulation._executor.counters().step == simulation.steps
            simulation.step(3)
        steps, found = simulation.steps, simulation.spikes("cells")
        fingerprint, samples = simulation.fingerprint(), simulation.samples("cells", "v_mv")
    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.step(steps)
        assert simulation.fingerprint() == fingerprint
        assert np.array_equal(simulation.spikes("cells")[0], found[0])
        assert np.array_equal(simulation.spikes("cells")[1], found[1])
        assert np.array_equal(simulation.samples("cells", "v_mv")[1], samples[1])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("to_file", [False, True], ids=["in memory", "to a file"])
def test_ctrl_c_on_a_terminal_ends_a_program_and_keeps_recordings(workers: int, to_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    with started(workers, *([path] if to_file else [])) as process:
        pids = next_line(process)["pids"]
        assert len(pids) == (0 if workers == 1 else workers)
        os.killpg(process.pid, signal.SIGINT)  # a terminal signals all processes of the group
        pressed = time.monotonic()
        kept = next_line(process)
        assert process.wait(20) == 0
        assert time.monotonic() - pressed < 20
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert not any(map(psutil.pid_exists, pids))
    with Simulation(driven(n=NEURONS)) as simulation:
        simulation.step(kept["steps"])
        assert simulation.fingerprint() == kept["fingerprint"]
        times, ids = simulation.spikes("cells")
    if to_file:
        read_times, read_ids = read_spikes(path)["cells"]
        assert np.array_equal(read_times, times)
        assert np.array_equal(read_ids, ids)
    else:
        assert kept["spikes"] == len(times)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_load_of_each_worker_is_reported_as_fractions(workers: int) -> None:
    with Simulation(driven(), workers=workers) as simulation:
        assert [sum(shares.values()) for shares in simulation.load()] == [0.0] * workers
        simulation.run(20.0)
        load = simulation.load()
    assert len(load) == workers
    for shares in load:
        assert list(shares) == ["waiting", "collecting", "delivering", "updating"]
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares["updating"] > 0
