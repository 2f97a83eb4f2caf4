"""Simulations on an emulated GPU: all operations equal the CPU, bit for bit."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from neuraxis.brain import Brain, Config, GlobalConfig
from neuraxis.cli.brain_options import brain_workers
from neuraxis.engine.placement import place
from neuraxis.errors import DeviceUnavailable, InvalidArgument, InvalidType, KernelFailed, SimulationClosed
from neuraxis.imports import install_command
from neuraxis.simulation import ParallelExecutor, SequentialExecutor, Simulation
from tests.engine.cuda.twin import TwinDevice, compiler
from tests.simulation import test_acting
from tests.simulation.by_turns import ByTurns
from tests.simulation.networks import NETWORKS, driven
from tests.simulation.python_regions import remembered
from tests.simulation.test_conformance import Outcome, assert_same, look
from tests.simulation.test_python_populations import quiet

# "mixed models" has weights of all sizes in one projection, some of them too small for its scale.
pytestmark = pytest.mark.filterwarnings("ignore:fixed-point weights:neuraxis.errors.RoundingWarning")

twin = pytest.mark.skipif(compiler() is None, reason="the twin of a GPU needs g++")
STEPS, MIDDLE, SEED = 300, 131, 5
HERE = [
    "mixed models",
    "every built-in model",
    "inputs alone",
    "one long delay",
    "rhythms and maps",
    "reward and fatigue",
]


@cache
def reference(network: str, folder: Path) -> Outcome:
    """The results of the CPU, and a folder with the state half way."""
    with Simulation(NETWORKS[network].make(SEED)) as simulation:
        simulation.step(MIDDLE)
        simulation.save(folder)
        simulation.step(STEPS - MIDDLE)
        return look(simulation)


@twin
@pytest.mark.parametrize("network", HERE)
def test_in_pieces_and_with_states_from_and_for_the_cpu(network: str, tmp_path: Path) -> None:
    expected, dt_ms = reference(network, tmp_path / "cpu"), NETWORKS[network].make(SEED).dt_ms
    with Simulation(NETWORKS[network].make(SEED), device=TwinDevice) as simulation:
        for piece in (1, 1, 0, 14, 17):
            simulation.step(piece)
            simulation.fingerprint()  # looking changes nothing
        simulation.step(STEPS - simulation.steps)
        assert_same(look(simulation), expected)
        simulation.restore(tmp_path / "cpu")
        simulation.step(53)
        simulation.save(tmp_path / "gpu")
        summary = simulation.step(STEPS - simulation.steps)
        assert_same(look(simulation), expected, since_ms=MIDDLE * dt_ms)
        assert summary.device == summary.as_json()["device"] == "TwinDevice"
        assert "on 1 worker (TwinDevice)" in str(summary)
    for workers in (1, 3):
        with Simulation(NETWORKS[network].make(SEED), executor=ByTurns(workers, seed=1)) as simulation:
            simulation.restore(tmp_path / "gpu")
            simulation.step(STEPS - simulation.steps)
            assert_same(look(simulation), expected, since_ms=(MIDDLE + 53) * dt_ms)


@twin
def test_interventions_give_the_same_result() -> None:
    """Spikes and states given, populations silenced and woken, levels set, learning frozen."""
    until, found, counts = 340, [], []
    for device in ("cpu", TwinDevice):
        with Simulation(test_acting.acted_upon(), device=device) as simulation:
            test_acting.act(simulation, until)
            found.append(look(simulation))
            counts.append([one.tolist() for one in simulation.spike_counts_of(simulation.network.populations)])
            (status,) = simulation.status()
            assert status.step == until
    assert_same(found[1], found[0])
    assert counts[1] == counts[0]


@twin
def test_workers_of_which_some_have_a_gpu(tmp_path: Path) -> None:
    network = driven()
    with Simulation(network) as simulation:
        simulation.step(STEPS)
        expected = look(simulation)
    with Simulation(network, workers=2, device=(TwinDevice, "cpu"), placement=place(network, 2)) as simulation:
        assert simulation.device == "TwinDevice,cpu"
        simulation.step(MIDDLE)
        simulation.save(tmp_path)
        simulation.step(STEPS - MIDDLE)
        assert_same(look(simulation), expected)
        simulation.move(((), place(network, 1)[0]))
        simulation.restore(tmp_path)
        simulation.step(STEPS - MIDDLE)
        assert_same(look(simulation), expected, since_ms=MIDDLE * network.dt_ms)


@twin
@pytest.mark.parametrize("device", [TwinDevice, (TwinDevice, "cpu")], ids=str)
def test_python_beside_neurons_on_a_gpu(device: Any, tmp_path: Path) -> None:
    found = []
    for where in ("cpu", device):
        network, python_populations = quiet(
            {"hears": [("source", 4)], "batch_steps": 5, "config": {"echo": 4}}, {"hears": [(0, 4)], "tick_steps": 7}
        )
        with Simulation(network, device=where, python_populations=python_populations) as simulation:
            for piece in (1, 4, 2, 10, 1, 22):
                simulation.advance(piece)
            folder = tmp_path / str(len(found))
            notes = {name: rows.tolist() for name, rows in remembered(simulation, folder).items()}
            found.append((simulation.fingerprint(), notes))
    assert found[1] == found[0]
    assert all(found[0][1].values())


# --- on a real one ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("network", [name for name in NETWORKS if "float64" not in name])  # which CPUs compute
def test_a_real_gpu(network: str, tmp_path: Path) -> None:
    expected, dt_ms = reference(network, tmp_path / "cpu"), NETWORKS[network].make(SEED).dt_ms
    with Simulation(NETWORKS[network].make(SEED), device="cuda") as simulation:
        for piece in (1, 0, 17, STEPS - 18):
            simulation.step(piece)
        assert_same(look(simulation), expected)
        simulation.restore(tmp_path / "cpu")
        simulation.step(STEPS - simulation.steps)
        assert_same(look(simulation), expected, since_ms=MIDDLE * dt_ms)


@pytest.mark.gpu
def test_a_real_gpu_beside_workers_and_another_process_on_it() -> None:
    network = driven()
    with Simulation(network) as simulation:
        simulation.step(STEPS)
        expected = look(simulation)
    for device in (("cuda", "cpu"), ("cpu", "cuda", "cuda")):
        with Simulation(network, device=device, placement=place(network, len(device))) as simulation:
            simulation.step(STEPS)
            assert_same(look(simulation), expected)


@pytest.mark.gpu
def test_a_real_gpu_gets_its_memory_back() -> None:
    import cupy

    def free_after_a_run() -> int:
        with Simulation(driven(n=20_000), device="cuda") as simulation:
            simulation.step(10)
            kept.append(simulation._executor._runner.shard)  # a reference to a shard keeps no device memory
        return int(cupy.cuda.runtime.memGetInfo()[0])

    kept: list[object] = []
    first = free_after_a_run()
    later = [free_after_a_run() for _ in range(3)]
    assert max(later) > first - 2**20, (first, later)  # of the whole device: others may come and go


# --- to open and to close -----------------------------------------------------------------------------------


class Counted(TwinDevice):
    """Knows how many there are."""

    opened: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.opened += 1

    def close(self) -> None:
        Counted.closed += 1


class Full(Counted):
    def empty(self, nbytes: int) -> Any:
        raise MemoryError("the device is full")


@pytest.fixture
def counted() -> type[Counted]:
    Counted.opened = Counted.closed = 0
    return Counted


@twin
def test_a_device_is_closed_with_the_simulation(counted: type[Counted]) -> None:
    with Simulation(NETWORKS["one long delay"].make(SEED), device=counted) as simulation:
        simulation.step(10)
        assert (Counted.opened, Counted.closed) == (1, 0)
    assert (Counted.opened, Counted.closed) == (1, 1)
    with pytest.raises(SimulationClosed):
        simulation.step(1)


class OneBlockDies(Counted):
    """Its second launch lacks a block, and the others time out, within a short time here."""

    def compile(self, source: str, resident: bool) -> Any:
        assert not resident or "(1u << 23)" in source
        program = super().compile(source.replace("(1u << 23)", "(1u << 8)"), resident)
        launch, launches = program.launch, itertools.count()

        def lacking(kernel: str, grid: int, *rest: Any) -> None:
            launch(kernel, grid - (kernel == "advance_steps" and next(launches) == 1), *rest)

        program.launch = lacking  # type: ignore[method-assign]
        return program


@twin
def test_after_a_failed_launch_the_simulation_is_over_and_its_saved_state_goes_on(
    counted: type[Counted], tmp_path: Path
) -> None:
    with Simulation(driven(n=300)) as simulation:
        expected = simulation.step(60).fingerprint
    with Simulation(driven(n=300), device=OneBlockDies) as simulation:
        simulation.step(20)
        simulation.save(tmp_path / "saved")
        with pytest.raises(KernelFailed, match=r"lost each other after step 20.*restore a saved one"):
            simulation.step(40)
        assert (Counted.opened, Counted.closed) == (1, 1)
        with pytest.raises(SimulationClosed):
            simulation.fingerprint()
    with Simulation(driven(n=300), device=counted) as simulation:
        simulation.restore(tmp_path / "saved")
        assert simulation.step(40).fingerprint == expected


class NoRoomToSort(Counted):
    def sort(self, memory: Any, count: int) -> None:
        raise MemoryError("there is no room to sort")


@twin
def test_an_error_in_the_middle_of_a_launch_is_not_gone_on_from(counted: type[Counted]) -> None:
    with Simulation(NETWORKS["one long delay"].make(SEED), device=NoRoomToSort) as simulation:
        with pytest.raises(MemoryError, match="no room to sort"):
            simulation.step(10)
        with pytest.raises(KernelFailed, match="left in the middle"):
            simulation.step(10)
        with pytest.raises(SimulationClosed):
            simulation.fingerprint()
    assert (Counted.opened, Counted.closed) == (1, 1)


@twin
def test_simulations_of_one_network_in_several_threads() -> None:
    """Simulations of one network share kernels, which serve one of them at a time."""
    network = NETWORKS["one long delay"].make(SEED)
    with Simulation(network) as simulation:
        expected = simulation.step(30).fingerprint

    def run(piece: int) -> str:
        with Simulation(network, device=TwinDevice) as simulation:
            while simulation.steps < 30:
                simulation.step(piece)
            return simulation.fingerprint()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, (1, 2, 3))) == [expected] * 3


@twin
def test_a_device_is_closed_where_a_shard_cannot_be_built(counted: type[Counted]) -> None:
    with pytest.raises(MemoryError, match="the device is full"):
        Simulation(driven(n=100), device=Full)
    assert (Counted.opened, Counted.closed) == (1, 1)


# --- what cannot be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:²", "CUDA", "", "cuda,", "cuda;cpu"])
def test_a_name_of_no_device(name: str) -> None:
    for make in (
        lambda: Simulation(driven(), device=name),
        lambda: SequentialExecutor(device=name),
        lambda: ParallelExecutor(2, devices=("cpu", name)),
    ):
        with pytest.raises(InvalidArgument, match="'cpu', 'cuda' or 'cuda:<number>' is expected"):
            make()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Simulation(driven(), 3, device="cuda"), InvalidArgument, "each of 3 workers.*as in 'cuda,cpu,cpu'"),
        (lambda: Simulation(driven(), 3, device=("cpu", "cpu")), InvalidArgument, "each of 3 workers"),
        (lambda: Simulation(driven(), device=()), InvalidArgument, "pass a device for each of 1 workers"),
        (lambda: Simulation(driven(), device=3), InvalidType, "a name, or one for each worker"),
        (lambda: Simulation(driven(), device=(None,)), InvalidType, "None is not the name of a device"),
        (lambda: ParallelExecutor(2, devices=("cpu",)), InvalidArgument, "each of 2 workers"),
        (lambda: ParallelExecutor(2, devices="cuda"), InvalidArgument, "each of 2 workers.*as in 'cuda,cpu'"),
        (lambda: ParallelExecutor(1, devices="cuda,cpu"), InvalidArgument, "one for each of 1 workers"),
        (
            lambda: Simulation(driven(), executor=ByTurns(1), device="cuda"),
            InvalidArgument,
            "the given executor runs on 'cpu'",
        ),
        (lambda: brain_workers(None, False, mesh=True, device="cuda"), InvalidArgument, "not with --mesh or"),
        (lambda: brain_workers(None, False, lockstep="gloo", device="cuda"), InvalidArgument, "not with --mesh or"),
        (lambda: brain_workers(None, False, device="cuda,gpu"), InvalidArgument, "device='gpu'"),
    ],
)
def test_invalid_configurations_are_refused(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_how_many_workers_devices_mean() -> None:
    assert brain_workers(None, False, "auto", device="cuda") == 1
    assert brain_workers(None, False, "auto", device="cuda,cpu,cpu") == 3
    assert brain_workers("2", False, device="cuda,cpu") == 2
    with Simulation(driven(n=100), device="cpu") as simulation:
        assert (simulation.device, simulation.workers) == ("cpu", 1)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", ("cpu", "cuda")])
def test_without_cupy_nothing_is_built(device: Any, tmp_path: Path) -> None:
    network = driven()
    with pytest.raises(DeviceUnavailable, match=re.escape(f"CuPy is not installed. {install_command('cuda')}")):
        Simulation(network, device=device, record_to=tmp_path / "spikes.h5")
    assert not list(tmp_path.iterdir())


# --- brains -------------------------------------------------------------------------------------------------


@twin
def test_a_brain_on_a_gpu() -> None:
    found = []
    for device in ("cpu", TwinDevice):
        with Brain.default(device=device) as brain:
            brain.forward({"cue": [1, 0, 0, 0]}, 60)
            brain.select_action()
            brain.deliver_reward(1.0)
            brain.forward(None, 40)
            found.append(brain.fingerprint())
    assert found[0] == found[1]


def test_a_configuration_places_all_regions() -> None:
    config = Config(global_=GlobalConfig(device="cuda:7"))
    with pytest.raises(DeviceUnavailable):  # CuPy, a driver, or the eighth device is missing
        Brain.from_config(config)
