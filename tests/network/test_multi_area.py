"""The multi-area model: its generated areas, its file, and its network at a hundredth of the size."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedTotalNumber, Normal
from neuraxis.network.library import MultiAreaParameters, multi_area
from neuraxis.simulation import Simulation
from tests.engine.cuda.twin import TwinDevice, compiler


@cache
def generated() -> MultiAreaParameters:
    return MultiAreaParameters.generated()


def two_areas(**changes: Any) -> MultiAreaParameters:
    """Two areas of one excitatory and one inhibitory population each, with one path."""
    values: dict[str, Any] = {
        "names": ("A/23E", "A/23I", "B/23E", "B/23I"),
        "N": [400, 100, 200, 50],
        "K": [[40, 10, 0, 0, 500], [40, 10, 0, 0, 500], [20, 0, 20, 5, 400], [20, 0, 20, 5, 400]],
        "W": [[90, -400, 90, -400, 90]] * 4,
        "distances": [[0, 14], [14, 0]],
    }
    return MultiAreaParameters(**(values | changes))


def test_generated_areas_have_the_numbers_of_the_model() -> None:
    parameters = generated()
    inputs, neurons = parameters.K[:, :-1], parameters.N
    assert (len(parameters.areas), len(parameters.names)) == (32, 254)
    assert abs(neurons.sum() / 4.13e6 - 1) < 0.001
    assert abs(neurons @ inputs.sum(1) / 2.41e10 - 1) < 0.01
    within = parameters.area_of[:, None] == parameters.area_of
    assert abs(neurons @ np.where(within, inputs, 0).sum(1) / (neurons @ inputs.sum(1)) - 0.815) < 0.001
    assert 7000 < np.count_nonzero(inputs) < 10_000
    assert (inputs[~within & ~np.broadcast_to(parameters.excitatory, inputs.shape)] == 0).all()
    assert len(set(np.round(neurons))) > 200  # no area is another's copy
    assert 5 < parameters.distances[parameters.distances > 0].mean() < 40


def test_a_seed_gives_the_same_areas_and_another_others() -> None:
    again, other = MultiAreaParameters.generated(), MultiAreaParameters.generated(seed=2)
    np.testing.assert_array_equal(again.K, generated().K)
    assert (other.N != generated().N).any()
    assert len(MultiAreaParameters.generated(areas=3).names) == 22


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    generated().save(tmp_path / "areas.npz")
    read = MultiAreaParameters.load(tmp_path / "areas.npz")
    for field in dataclasses.fields(read):
        np.testing.assert_array_equal(getattr(read, field.name), getattr(generated(), field.name))


def test_a_file_without_rates_is_enough(tmp_path: Path) -> None:
    small = two_areas()
    arrays = {name: getattr(small, name) for name in ("N", "K", "W", "distances")}
    np.savez(tmp_path / "areas.npz", names=np.array(small.names), **arrays)
    assert MultiAreaParameters.load(tmp_path / "areas.npz").rates_hz.tolist() == [0.5, 3.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("A/23E", "A/23I", "B/23E", "B23I")}, "'B23I' is not one"),
        ({"names": ("A/23E", "A/23I", "A/23E", "B/23I")}, "two are equal"),
        ({"N": [400, 100, 200]}, r"N: shape \(3,\) instead of \(4,\), with 4 populations in 2 areas"),
        ({"K": np.ones((4, 4))}, r"K: shape \(4, 4\) instead of \(4, 5\)"),
        ({"N": [400, -1, 200, 50]}, "N: every value must be a number, and not negative"),
        ({"W": np.full((4, 5), np.nan)}, "W: every value must be a number"),
        ({"W": np.full((4, 5), 90.0)}, r"W\[0, 1\] is 90 pA: .* 'A/23I' is one of I"),
    ],
)
def test_arrays_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        two_areas(**changes)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no arrays")
    np.savez(tmp_path / "other.npz", N=np.ones(3))
    np.savez(tmp_path / "objects.npz", names=np.array([{"a": 1}], object), N=1, K=1, W=1, distances=1)
    for name, message in (
        ("text.npz", "not an .npz file"),
        ("missing.npz", "No such file"),
        ("other.npz", "no array names, K, W, distances"),
        ("objects.npz", "Object arrays cannot be loaded"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            multi_area(tmp_path / name)


def test_sizes_inputs_weights_and_delays_of_a_network() -> None:
    """At a quarter of the size, weights double and a current gives the mean of what is missing."""
    network = multi_area(two_areas(rates_hz=[1.0, 2.0, 1.0, 2.0]), scale=0.25)
    sizes = {one.name: one.n for one in network.populations}
    assert sizes == {"A_23E": 100, "A_23I": 25, "B_23E": 50, "B_23I": 12}
    found = {(one.pre.name, one.post.name): one for one in network.projections}
    assert len(found) == 10
    inside, between = found["A_23I", "A_23E"], found["A_23E", "B_23E"]
    assert inside.rule == FixedTotalNumber(round(10 * 0.25 * 100))
    assert inside.weight == Normal(-800.0, 80.0, outside="redraw", high=0.0)
    assert inside.delay_ms == Normal(0.75, 0.375, low=0.1, outside="redraw")
    assert between.rule == FixedTotalNumber(round(20 * 0.25 * 50))
    assert between.delay_ms == Normal(4.0, 2.0, low=0.1, outside="redraw")  # 14 mm at 3.5 mm/ms
    missing = 0.5e-3 * 0.5 * (40 * 90 * 1.0 - 10 * 400 * 2.0 + 500 * 90 * 10.0)
    currents = {one.population.name: one.amplitude_pa for one in network.current_inputs}
    assert currents["A_23E"] == pytest.approx(missing)


def test_chi_makes_paths_between_areas_stronger() -> None:
    def weights(chi: float) -> dict[tuple[str, str], float]:
        network = multi_area(two_areas(), chi=chi)
        return {(one.pre.name, one.post.name): one.weight.mean for one in network.projections}

    before, after = weights(1.0), weights(1.9)
    changed = {pair: after[pair] / before[pair] for pair in before if after[pair] != before[pair]}
    assert changed == {("A_23E", "B_23E"): pytest.approx(1.9), ("A_23E", "B_23I"): pytest.approx(3.8)}


def test_impossible_scales_are_refused() -> None:
    for changes in ({"scale": 0.0}, {"scale": 1.5}, {"chi": -1.0}, {"chi": float("nan")}):
        with pytest.raises(InvalidArgument, match=f"{next(iter(changes))}="):
            multi_area(two_areas(), **changes)
    with pytest.raises(InvalidArgument, match="at least 2"):
        MultiAreaParameters.generated(areas=1)


@pytest.mark.timeout(400)  # the twin draws the synapses of 8,449 projections one after the other
@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU needs g++")
@pytest.mark.filterwarnings("ignore:fixed-point weights:neuraxis.errors.RoundingWarning")
def test_a_hundredth_of_the_model_has_the_same_spikes_on_workers_and_a_gpu() -> None:
    network = multi_area(scale=0.01)
    found = []
    for options in ({"workers": 1}, {"workers": 2}, {"device": partial(TwinDevice, shared_bytes=227 << 10)}):
        with Simulation(network, progress=False, **options) as simulation:
            summary = simulation.run(10.0)
        found.append((summary.fingerprint, summary.spikes, summary.synapses))
    assert found[1:] == 2 * found[:1]
    assert found[0][1] > 5000
