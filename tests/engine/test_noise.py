"""Inputs of models from the engine: random numbers (error, distribution, the same bits on a GPU), and the time."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from neuraxis.engine import arithmetic as kernels
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.placement import place
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.tables import DONE
from neuraxis.errors import InvalidArgument
from neuraxis.network import AllToAll, Network, Normal, neuron_model
from neuraxis.network.arithmetic import log, normal, random
from neuraxis.network.drawing import _normal_quantile
from neuraxis.network.network import LARGEST_STEP
from neuraxis.simulation import Simulation
from tests.engine.cuda.comparing import assert_same_as_cpu
from tests.engine.cuda.twin import TwinDevice, compiler
from tests.engine.statistics import chi_square_fits, normal_cumulative, uniform_fits

Array = np.ndarray[Any, Any]

LARGEST_RELATIVE_ERROR = 5e-7  # documented
NEURONS, STEPS = 4096, 500


@njit
def normals_of(bits: Array) -> Array:
    out = np.empty(len(bits), np.float32)
    for i in range(len(bits)):
        out[i] = kernels.drawn_normal(bits[i])
    return out


@njit
def randoms_of(bits: Array) -> Array:
    out = np.empty(len(bits), np.float32)
    for i in range(len(bits)):
        out[i] = kernels.drawn_random(bits[i])
    return out


def some_bits() -> Array:
    """31-bit numbers of every magnitude, from both ends: all tails and the centre."""
    rng = np.random.default_rng(4)
    ends = (2.0 ** rng.uniform(0, 31, 30_000)).astype(np.int64)
    found = np.concatenate([np.arange(200), ends, 2**31 - ends, rng.integers(0, 2**31, 30_000), [2**31 - 1]])
    return np.unique(found[(found >= 0) & (found < 2**31)])


def test_a_normal_number_is_the_quantile_of_its_bits() -> None:
    bits = some_bits()
    found = normals_of(bits.astype(np.int32)).astype(np.float64)
    middle = bits | 1  # of its cell, in units of 2^-32
    exact = np.array([-_normal_quantile(p, log(p)) for p in (middle * 2.0**-32).tolist()])
    # Near the centre the exact value is the series, where p - 1/2 would lose digits.
    q = (2.0**31 - middle) * 2.0**-32
    near = q < 1e-4
    exact[near] = q[near] * math.sqrt(2 * math.pi) * (1 + math.pi * q[near] ** 2 / 3)
    assert np.abs(found / exact - 1).max() < LARGEST_RELATIVE_ERROR
    assert found.max() == pytest.approx(6.2302, abs=1e-4)
    assert 5e-10 < found.min() < 6e-10
    assert np.array_equal(normals_of((bits - 2**31).astype(np.int32)), -found.astype(np.float32))


def test_a_uniform_number_is_a_fraction_of_24_bits() -> None:
    bits = np.concatenate([some_bits(), some_bits() - 2**31])
    found = randoms_of(bits.astype(np.int32))
    assert np.array_equal(found, ((bits % 2**32) >> 8) * 2.0**-24)
    assert (found.min(), found.max()) == (0.0, 1 - 2**-24)


@neuron_model(
    states={"z": 0.0, "u": 0.0, "n": 0, "other": 0.0, "total": 0.0}, receptors=("input",), parameters={"level": 2.0}
)
def drawing(z, u, n, other, total, input, normal, random, uniform, level):  # type: ignore[no-untyped-def]
    """All kinds at once; the spike depends on one."""
    return normal + 0.01 * input > level, normal, random, uniform, z, total + input


def drawn(seed: int, first: int = 0) -> dict[str, Array]:
    """All that the model draws, by (step, neuron)."""
    network = Network(seed=seed)
    network.population("before", 1 + first, drawing)
    cells = network.population("cells", NEURONS, drawing)
    placement = place(network, 1)
    shard = Shard(network, placement, 0, SpikeBuffers.private(network, placement))
    rows: dict[str, list[Array]] = {"z": [], "u": [], "n": []}
    for step in range(1, STEPS + 1):
        shard.advance(step, 0, 0)
        for name, row in rows.items():
            row.append(shard.parts[cells.index].state(name).copy())
    return {name: np.array(row) for name, row in rows.items()}


@pytest.fixture(scope="module")
def values() -> dict[str, Array]:
    return drawn(seed=11)


def test_normal_numbers_have_the_moments_of_a_normal_distribution(values: dict[str, Array]) -> None:
    z = values["z"].astype(np.float64).ravel()
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((z**power).mean() - mean) < 4 * math.sqrt(variance / z.size), power


def test_normal_numbers_have_the_distribution_and_the_tails(values: dict[str, Array]) -> None:
    z = np.sort(values["z"].ravel())
    edges = [*np.linspace(-4.5, 4.5, 91).tolist(), math.inf]
    below = [normal_cumulative(edge) for edge in edges]
    counts = np.diff([0, *np.searchsorted(z, edges)])
    assert chi_square_fits(counts.tolist(), (np.diff([0, *below]) * z.size).tolist())
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) is exceeded once in a thousand.
    some = z[:: z.size // 20_000]
    cumulative = np.array([normal_cumulative(one) for one in some.tolist()])
    assert np.abs(cumulative - np.searchsorted(z, some) / z.size).max() < 1.95 / math.sqrt(z.size)
    for level in (3.0, 4.0, 4.5):
        wanted = z.size * normal_cumulative(-level)
        for tail in (np.count_nonzero(z > level), np.count_nonzero(z < -level)):
            assert abs(tail - wanted) < 4 * math.sqrt(wanted) + 1


def test_draws_of_a_step_of_neighbours_and_of_steps_are_independent(values: dict[str, Array]) -> None:
    z, u = values["z"].astype(np.float64), values["u"].astype(np.float64) - 0.5
    n = values["n"].astype(np.float64) * 2.0**-32
    pairs = {
        "next step": (z[:-1], z[1:]), "two steps": (z[:-2], z[2:]), "neighbours": (z[:, :-1], z[:, 1:]),
        "a block apart": (z[:, :-1024], z[:, 1024:]), "another draw": (z, u), "a third": (u, n), "z and n": (z, n),
        "sizes": (z[:-1] ** 2 - 1, z[1:] ** 2 - 1), "sizes of neighbours": (z[:, :-1] ** 2 - 1, z[:, 1:] ** 2 - 1),
        "the draw of the step before": (n[:-1], z[1:]),
    }  # fmt: skip
    for name, (a, b) in pairs.items():
        correlation = (a * b).mean() / math.sqrt((a**2).mean() * (b**2).mean())
        assert abs(correlation) < 4 / math.sqrt(a.size), name
    # Uniform over pairs of successive steps, and of neighbours.
    for a, b in ((u[:-1], u[1:]), (u[:, :-1], u[:, 1:]), (u, n)):
        cells = np.histogram2d(a.ravel(), b.ravel(), bins=64, range=[(-0.5, 0.5)] * 2)[0]
        assert uniform_fits(cells)


def test_a_neuron_draws_the_same_in_any_company(values: dict[str, Array]) -> None:
    again = drawn(seed=11, first=700)
    for name, row in values.items():
        assert np.array_equal(again[name], row), name
    other = drawn(seed=12)
    assert abs(np.corrcoef(other["z"].ravel(), values["z"].ravel())[0, 1]) < 4 / math.sqrt(other["z"].size)


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")
@pytest.mark.parametrize("delay_ms", [0.1, 2.0])
def test_noise_has_the_same_bits_on_a_gpu(delay_ms: float) -> None:
    """With a delay of one step, spikes that depend on noise are known one step ahead only if it is drawn ahead."""
    network = Network(seed=5)
    cells = network.population("cells", 150, drawing(level=1.5), z=Normal(0.0, 1.0))
    network.connect(cells, cells, AllToAll(), weight=0.1, delay_ms=delay_ms)
    network.poisson(cells, 2000.0, 1.0)
    network.record(cells, "spikes")
    network.record(cells, "z", every_ms=0.3)
    assert_same_as_cpu(network, [7, 8, 60], TwinDevice())


@neuron_model(states={"first": 0, "last": 0, "at_ms": 0.0})
def timed(first, last, at_ms, step, t_ms):  # type: ignore[no-untyped-def]
    """Keep the time, and spike in step 7 and from 1 ms on in every third step."""
    late = t_ms >= 0.9999 and step % 3 == 0
    return step == 7 or late, first if first > 0 else step, step, t_ms


def timed_network() -> Network:
    network = Network(dt_ms=0.1, seed=5)
    cells = network.population("cells", 3, timed)
    network.connect(cells, network.population("drawing", 20, drawing), AllToAll(), weight=0.1, delay_ms=0.1)
    network.record(cells, "spikes")
    network.record(cells, "at_ms", every_ms=0.1)
    network.record(cells, "last", every_ms=0.1)
    return network


def test_the_time_of_a_step_is_that_of_its_spikes_and_samples(tmp_path: Path) -> None:
    """In stretches of any length, and after a state was restored."""
    with Simulation(timed_network()) as simulation:
        simulation.step(1)
        simulation.step(11)
        simulation.save(tmp_path)
    with Simulation(timed_network()) as simulation:
        simulation.restore(tmp_path)
        simulation.step(8)
        simulation.run(1.5)
        times_ms, at_ms = simulation.samples("cells", "at_ms")
        _, steps = simulation.samples("cells", "last")
        spikes_ms, ids = simulation.spikes("cells")
        assert simulation.state("cells", "first").tolist() == [1, 1, 1]
    assert np.array_equal(steps[:, 0], np.arange(13, 36))
    assert np.array_equal(at_ms, np.repeat(times_ms.astype(np.float32), 3).reshape(-1, 3))
    assert np.rint(spikes_ms[ids == 1] * 10).tolist() == [15, 18, 21, 24, 27, 30, 33]
    with Simulation(timed_network()) as simulation:
        simulation.step(13)
        assert np.rint(simulation.spikes("cells")[0][::3] * 10).tolist() == [7, 12]


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")
def test_the_time_is_the_same_on_a_gpu() -> None:
    """Also in steps whose spikes are known one step ahead."""
    assert_same_as_cpu(timed_network(), [1, 7, 8, 60], TwinDevice())


def test_the_time_is_a_float32_of_the_exact_product() -> None:
    network = Network(dt_ms=0.1)
    cells = network.population("cells", 1, timed)
    placement = place(network, 1)
    for step in (3, 16_777_217, 100_000_001, LARGEST_STEP):
        buffers = SpikeBuffers.private(network, placement)
        ctypes.c_int64.from_address(int(buffers.done[0])).value = step - 1
        shard = Shard(network, placement, 0, buffers)
        shard.jump(step - 1)
        assert shard.advance(step, 0, 0) == DONE
        assert shard.parts[cells.index].state("at_ms")[0] == np.float32(step * 0.1)
        assert shard.parts[cells.index].state("last")[0] == step


TURNS = 3
TABLE = (0.0, 10.0)


def pair(mean):  # type: ignore[no-untyped-def]
    return mean + normal(), random()


@neuron_model(states={f"s{k}": 0.0 for k in range(8)} | {"n": 0})
def calling(s0, s1, s2, s3, s4, s5, s6, s7, n, uniform):  # type: ignore[no-untyped-def]
    s0 = normal()
    if n < 2:
        s1, s2 = pair(0.0)
    first, second = pair(5.0)
    s3 = first if n % 2 == 0 else normal()
    for k in range(1, TURNS):
        s4 = s4 + k * normal()
    for one in TABLE:
        s5 = random() + one
    return n == 3, s0, s1, s2, s3, s4, s5, second, normal() - normal(), n + 1


def test_each_call_is_a_draw_in_every_step() -> None:
    """After the arguments, in the order of the source; helpers and turns of loops have draws of their own."""
    assert list(calling.draws.values()) == ["uniform", *["normal", "normal", "random"], *["normal", "random"],
                                            *["normal"] * 3, *["random"] * 2, *["normal"] * 2]  # fmt: skip
    network = Network(seed=8)
    network.population("cells", 5, calling)
    placement = place(network, 1)
    shard = Shard(network, placement, 0, SpikeBuffers.private(network, placement))
    layout, part = shard.parts[0].layout, shard.parts[0]
    assert layout.stream is not None
    s0, s1 = (part.row(layout.stream + i).astype(np.uint32) for i in (0, 1))
    for step in range(1, 6):
        before = {name: part.state(name).copy() for name in calling.states}
        shard.advance(step, 0, 0)
        bits = []
        for _ in calling.draws:
            bits.append((s0 * np.uint32(0x9E3779BB)).view(np.int32))
            s1 = s1 ^ s0
            s0 = ((s0 << np.uint32(26)) | (s0 >> np.uint32(6))) ^ s1 ^ (s1 << np.uint32(9))
            s1 = (s1 << np.uint32(13)) | (s1 >> np.uint32(19))
        z, u = [normals_of(one) for one in bits], [randoms_of(one) for one in bits]
        expected = {"s0": z[1], "s6": u[5], "s7": z[11] - z[12], "s5": u[10] + np.float32(10.0)}
        expected |= {"s1": z[2], "s2": u[3]} if step <= 2 else {"s1": before["s1"], "s2": before["s2"]}
        expected["s3"] = np.float32(5.0) + z[4] if step % 2 else z[6]
        expected["s4"] = (before["s4"].astype(np.float64) + z[7] + 2.0 * z[8]).astype(np.float32)  # k is whole
        for name, value in expected.items():
            assert np.array_equal(part.state(name), value), (step, name)


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")
def test_calls_draw_the_same_on_a_gpu() -> None:
    network = Network(seed=8)
    cells = network.population("cells", 50, calling)
    network.record(cells, "s4", every_ms=0.1)
    network.record(cells, "s7", every_ms=0.1)
    assert_same_as_cpu(network, [3, 20], TwinDevice())


def test_names_that_a_model_declares_are_its_own() -> None:
    @neuron_model(states={"normal": 0.5, "random": 2}, parameters={"uniform": 0.25, "step": 0.5}, signals={"t_ms": 0.0})
    def own(normal, random, uniform, step, t_ms):  # type: ignore[no-untyped-def]
        return False, normal + uniform + t_ms, random + (1 if step == 0.5 else 9)

    assert own.draws == {}
    network = Network()
    cells = network.population("cells", 3, own)
    placement = place(network, 1)
    shard = Shard(network, placement, 0, SpikeBuffers.private(network, placement))
    shard.advance(2, 0, 0)
    assert shard.parts[cells.index].state("normal").tolist() == [1.0] * 3
    assert shard.parts[cells.index].state("random").tolist() == [4] * 3
    assert shard.parts[cells.index].layout.stream is None


def test_an_argument_that_nothing_gives_is_an_error_at_the_network() -> None:
    @neuron_model(states={"x": 0.0})
    def wrong(x, normals):  # type: ignore[no-untyped-def]
        return False, normals

    with pytest.raises(InvalidArgument, match="wrong: argument 'normals' is not"):
        Network().population("cells", 1, wrong)
