"""The engine on a real GPU: the same bits as on the CPU, errors that leave the device usable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cpu.plastic_tables import build_plastic_table
from neuraxis.engine.cpu.static_tables import BuildTally
from neuraxis.engine.cuda.device import CupyDevice
from neuraxis.engine.cuda.shard import CudaShard
from neuraxis.engine.placement import place
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.network import FixedInDegree, Network
from neuraxis.network.library import brunel, hpc_benchmark, microcircuit
from neuraxis.network.models import lif_delta
from neuraxis.simulation import Simulation
from tests.engine.cuda.comparing import assert_same_as_cpu
from tests.engine.cuda.shards import run_together
from tests.engine.cuda.test_together import DELAYS, spiking
from tests.simulation import networks

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]

NAMES = (
    "driven", "mixed_models", "tiny_populations", "inputs_alone", "every_neuron_learns", "reward_and_fatigue",
    "shortest_delay_15", "one_long_delay", "rhythms_and_maps", "regions_far_apart", "continuous",
)  # fmt: skip


def assert_same(network: Network, steps: list[int]) -> None:
    device = CupyDevice()
    assert_same_as_cpu(network, steps, device)
    device.close()


@pytest.mark.parametrize("name", NAMES)
def test_every_difficult_network(name: str, cuda: None) -> None:
    assert_same(getattr(networks, name)(1), [1, 5, 150, 2000])


def test_brunel(cuda: None) -> None:
    assert_same(brunel(seed=1), [100, 2000])


@pytest.mark.parametrize("drive", ["poisson", "dc"])
def test_the_microcircuit(drive: Any, cuda: None) -> None:
    assert_same(microcircuit(0.3, drive, seed=1), [100, 1000])


def test_the_plastic_benchmark(cuda: None) -> None:
    assert_same(hpc_benchmark(0.1, seed=1), [50, 400])


@pytest.mark.parametrize("make", [lambda: hpc_benchmark(0.1, seed=1), lambda: networks.every_neuron_learns(1)])
def test_plastic_synapses_are_drawn_in_the_cpus_order(make: Callable[[], Network], cuda: None) -> None:
    network = make()
    placement, device = place(network, 1), CupyDevice()
    gpu = CudaShard(network, placement, 0, SpikeBuffers.private(network, placement), device=device)
    for table in gpu.plastic:
        cpu = build_plastic_table(network, table.projection, table.accumulators, BuildTally(network))
        for name in ("index", "targets", "weights"):
            np.testing.assert_array_equal(getattr(table, name), getattr(cpu, name), err_msg=name)
    device.close()


def test_a_model_written_once_runs_on_both(cuda: None) -> None:
    network = networks.rhythms_and_maps(5)  # its neurons are of a model of the test's own
    prints = []
    for device in ("cpu", "cuda"):
        with Simulation(network, device=device) as simulation:
            prints.append(simulation.run(30.0).fingerprint)
    assert prints[0] == prints[1]


def test_a_state_moves_between_cpu_and_gpu(tmp_path: Any, cuda: None) -> None:
    network = networks.every_neuron_learns(1)
    with Simulation(network) as simulation:
        simulation.run(20.0)
        simulation.save(tmp_path / "cpu")
        expected = simulation.run(20.0).fingerprint
    with Simulation(network, device="cuda") as simulation:
        simulation.restore(tmp_path / "cpu")
        simulation.run(10.0)
        simulation.save(tmp_path / "gpu")
        assert simulation.run(10.0).fingerprint == expected
    with Simulation(network, workers=2) as simulation:
        simulation.restore(tmp_path / "gpu")
        assert simulation.run(10.0).fingerprint == expected


def test_shards_on_the_gpu_and_on_cpus_together(cuda: None) -> None:
    network = networks.driven(1)
    with Simulation(network) as simulation:
        expected = simulation.run(30.0).fingerprint
    placement = place(network, 2)
    with Simulation(network, 2, device=("cuda", "cpu"), placement=placement) as simulation:
        assert simulation.run(30.0).fingerprint == expected


@pytest.mark.parametrize("delay", DELAYS)
def test_shards_of_which_several_are_on_the_gpu(delay: str, cuda: None) -> None:
    network, stops = spiking(DELAYS[delay]), (1, 7, 60, 500)
    expected = run_together(network, "c", stops)
    for kinds in ("gcg", "gg"):
        assert run_together(network, kinds, stops, device=CupyDevice) == expected


@pytest.mark.parametrize(
    "name", ["every_neuron_learns", "reward_and_fatigue", "shortest_delay_15", "rhythms_and_maps", "continuous"]
)
def test_synapses_that_learn_and_outputs_between_shards(name: str, cuda: None) -> None:
    network, stops = getattr(networks, name)(1), (1, 7, 60, 300)
    assert run_together(network, "gcg", stops, device=CupyDevice) == run_together(network, "c", stops)


def test_denormal_numbers_are_preserved(cuda: None) -> None:
    """A level that decays for 90 of its time constants is a subnormal number."""
    network = networks.driven(1)
    network.neuromodulator("dopamine", tau_ms=5.0)
    found = []
    for device in ("cpu", "cuda"):
        with Simulation(network, device=device) as simulation:
            simulation.release("dopamine", 1.0)
            simulation.run(450.0)
            found.append((simulation.level("dopamine"), simulation.fingerprint()))
    assert found[0] == found[1]
    assert 0.0 < found[0][0] < 1e-38


def test_too_little_memory_raises_and_the_device_stays_usable(cuda: None) -> None:
    network = Network(seed=1)
    cells = network.population("cells", 3_000_000, lif_delta)
    network.connect(cells, cells, FixedInDegree(20_000), 0.1, 1.5)
    with pytest.raises(MemoryError, match="GiB"):
        Simulation(network, device="cuda")
    assert_same(networks.driven(1), [50])


def run_apart(body: str, timeout: float = 100.0) -> str:
    """Run code in a process of its own."""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


FAILING = """
import sys
from pathlib import Path
from neuraxis.engine.cuda import device
from neuraxis.errors import KernelFailed, SimulationClosed
from neuraxis.simulation import Simulation
from tests.simulation.networks import driven

folder, launch, lacking = Path(sys.argv[1]), device._CupyProgram.launch, []
def damaged(self, kernel, grid, block, shared, arguments):
    {damage}
device._CupyProgram.launch = damaged
with Simulation(driven(1), device="cuda") as simulation:
    simulation.step(20)
    simulation.save(folder / "saved")
    lacking.append(True)
    try:
        simulation.step(40)
    except KernelFailed as error:
        print(error)
    try:
        simulation.step(1)
    except SimulationClosed:
        print("closed")
lacking.clear()
"""

GOES_ON = """
with Simulation(driven(1), device="cuda") as simulation:
    simulation.restore(folder / "saved")
    print(simulation.step(40).fingerprint)
"""


def expected_after_60() -> str:
    with Simulation(networks.driven(1)) as simulation:
        return simulation.step(60).fingerprint


def with_argument(body: str, folder: Path) -> str:
    return f"import sys\nsys.argv.append({str(folder)!r})\n" + body


@pytest.mark.parametrize(
    ("blocks", "reported"),
    [
        ("grid - bool(lacking and kernel == 'advance_steps')", "lost each other after step 20"),
        ("100 * grid if lacking else grid", "at the same time"),
    ],
)
def test_too_few_blocks_and_too_many(blocks: str, reported: str, tmp_path: Path, cuda: None) -> None:
    damage = f"launch(self, kernel, {blocks}, block, shared, arguments)"
    out = run_apart(with_argument(FAILING.format(damage=damage) + GOES_ON, tmp_path))
    assert reported in out
    assert "closed" in out
    assert expected_after_60() in out


def test_a_kernel_that_uses_a_wrong_address(tmp_path: Path, cuda: None) -> None:
    """A wrong address ends CUDA for its process; another process continues from the saved state."""
    damage = (
        "arguments = [1 << 60, *arguments[1:]] if lacking and kernel == 'compact' else arguments\n"
        "    launch(self, kernel, grid, block, shared, arguments)"
    )
    out = run_apart(with_argument(FAILING.format(damage=damage), tmp_path))
    assert "Saved states are not touched" in out
    assert "closed" in out
    with Simulation(networks.driven(1), device="cuda") as simulation:
        simulation.restore(tmp_path / "saved")
        assert simulation.step(40).fingerprint == expected_after_60()


def test_ctrl_c_ends_a_run_between_two_steps(cuda: None) -> None:
    out = run_apart("""
import os, signal, threading
from neuraxis.simulation import Simulation
from neuraxis.network.library import microcircuit
network = microcircuit(0.1, "poisson", seed=1)
with Simulation(network, device="cuda", progress=False) as simulation:
    simulation.run(10.0)
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        simulation.run(1e8)
    except KeyboardInterrupt:
        print("heard")
    stopped = simulation.steps
    assert 100 < stopped < 10**9
    simulation.step(100 - stopped % 100)
    print("at", simulation.steps % 100)
""")
    assert out == "heard\nat 0\n"


def test_simulations_in_two_threads(cuda: None) -> None:
    network = networks.driven(1)
    with Simulation(network) as simulation:
        expected = simulation.step(300).fingerprint

    def run(piece: int) -> str:
        with Simulation(network, device="cuda") as simulation:
            while simulation.steps < 300:
                simulation.step(piece)
            return simulation.fingerprint()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (10, 30))) == [expected] * 2
