"""Plots of spikes: the dots are the given spikes, in the band of their population."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread

from neuraxis.errors import InvalidArgument
from neuraxis.report.plots import Spikes, figure, raster, rate_bars, save

SPIKES: dict[str, Spikes] = {
    "L4E": ([1.0, 2.5, 40.0], [0, 3, 3], 4),
    "L4I": ([7.0], np.array([1], np.uint64), 2),
    "quiet": ([], [], 2),
}


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib keeps the font files open that it once used: that is no leak of a test."""
    figure(SPIKES, {"L4E": 1.0}).canvas.draw()


def axes() -> Any:
    return Figure().subplots()


def dots(ax: Any) -> dict[str, list[tuple[float, float]]]:
    """Return time and height of each dot, by population."""
    return {line.get_label(): line.get_xydata().tolist() for line in ax.lines if line.get_linestyle() == "None"}


# --- the raster ---


def test_each_spike_is_a_dot_in_its_row_the_first_population_on_top() -> None:
    ax = axes()
    assert raster(ax, SPIKES) is ax
    assert dots(ax) == {
        "L4E": [[1.0, 7.5], [2.5, 4.5], [40.0, 4.5]],
        "L4I": [[7.0, 2.5]],
        "quiet": [],
    }
    assert ax.get_ylim() == (0, 8)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L4E", "L4I", "quiet"]
    assert ax.get_yticks().tolist() == [6, 3, 1]
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_xlim()[0] == 0
    assert 40 < ax.get_xlim()[1] < 41


def test_a_window_shows_its_spikes_only() -> None:
    ax = raster(axes(), SPIKES, window_ms=(2.5, 40.0))
    assert {name: [time for time, _ in found] for name, found in dots(ax).items()} == {
        "L4E": [2.5],
        "L4I": [7.0],
        "quiet": [],
    }
    assert ax.get_xlim() == (2.5, 40.0)


def test_a_recording_that_began_late_is_shown_from_its_first_spike() -> None:
    ax = raster(axes(), {"a": ([500.0, 600.0], [0, 0], 1)})
    assert ax.get_xlim()[0] == 500


def test_empty_data_can_be_drawn() -> None:
    ax = raster(axes(), {"a": ([], [], 3), "nobody": ([], [], 0)})
    assert dots(ax) == {"a": [], "nobody": []}


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    share=st.floats(0.01, 1.0),
)
def test_a_share_of_the_neurons_is_drawn_evenly_and_in_order(sizes: list[int], share: float) -> None:
    # Every neuron fires once, at a time that identifies it.
    spikes: dict[str, Spikes] = {f"p{k}": (np.arange(n) + 0.5, np.arange(n), n) for k, n in enumerate(sizes)}
    drawn = dots(raster(axes(), spikes, share=share))
    ceiling = float("inf")
    for n, found in zip(sizes, drawn.values(), strict=True):
        ids = [int(time) for time, _ in found]
        heights = [height for _, height in found]
        assert len(ids) == max(1, round(share * n))
        assert ids[0] == 0
        if len(ids) > 1:
            assert set(np.diff([*ids, n])) <= {n // len(ids), n // len(ids) + 1}
        assert all(upper > lower for upper, lower in pairwise([ceiling, *heights]))
        ceiling = heights[-1]


def test_many_neurons_are_thinned_the_same_way_each_time() -> None:
    n = 100_000
    spikes: dict[str, Spikes] = {
        "E": (np.arange(n) * 0.01, np.arange(n), n),
        "I": (np.arange(n // 4) * 0.01, np.arange(n // 4), n // 4),
    }
    first, second = dots(raster(axes(), spikes)), dots(raster(axes(), spikes))
    assert first == second
    assert {name: len(found) for name, found in first.items()} == {"E": 1600, "I": 400}


def test_a_thin_band_is_stretched_until_its_name_fits() -> None:
    ax = raster(axes(), {"large": ([], [], 900), "small": ([1.0, 1.0], [0, 1], 2), "other": ([], [], 900)})
    large, small, other = ax.get_yticks()
    height = ax.get_ylim()[1]
    assert (large - small) > 0.02 * height
    assert (small - other) > 0.02 * height
    rows = [y for _, y in dots(ax)["small"]]
    assert rows[0] - rows[1] == pytest.approx(0.04 * 1802 / 2)
    assert (rows[0] + rows[1]) / 2 == pytest.approx(small)


def test_excitatory_and_inhibitory_populations_differ_and_colours_can_be_chosen() -> None:
    names = ["L23E", "L23I", "excitatory", "inh", "thalamus"]
    ax = raster(axes(), {name: ([], [], 1) for name in names}, colours={"thalamus": "#00ff00"})
    chosen = {line.get_label(): to_hex(line.get_color()) for line in ax.lines if line.get_label() in names}
    assert chosen["L23E"] == chosen["excitatory"] != chosen["L23I"] == chosen["inh"]
    assert chosen["thalamus"] == "#00ff00"
    assert [to_hex(label.get_color()) for label in ax.get_yticklabels()] == [chosen[name] for name in names]


# --- the bars ---


def test_rate_bars() -> None:
    ax = axes()
    assert rate_bars(ax, {"L4E": 4.456, "L4I": 12.34, "quiet": 0.0}) is ax
    assert [bar.get_width() for bar in ax.patches] == [4.456, 12.34, 0.0]
    assert [text.get_text() for text in ax.texts] == ["4.46", "12.3", "0.00"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L4E", "L4I", "quiet"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first is on top
    assert to_hex(ax.patches[0].get_facecolor()) != to_hex(ax.patches[1].get_facecolor())
    assert rate_bars(axes(), {"alone": 0.0}).get_xlim()[1] > 0


# --- figure and file ---


def microcircuit() -> tuple[dict[str, Spikes], dict[str, float]]:
    random = np.random.default_rng(5)
    names = ("L23E", "L23I", "L4E", "L4I", "L5E", "L5I", "L6E", "L6I")
    sizes = dict(zip(names, (20683, 5834, 21915, 5479, 4850, 1065, 14395, 2948), strict=True))
    spikes: dict[str, Spikes] = {}
    for name, n in sizes.items():
        count = n // 2
        spikes[name] = (np.sort(random.random(count) * 200.0), random.integers(0, n, count), n)
    return spikes, dict.fromkeys(sizes, 2.5)


def test_labels_of_the_full_microcircuit_do_not_overlap() -> None:
    made = figure(*microcircuit(), title="77,169 neurons")
    made.canvas.draw()
    for ax in made.axes:
        boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
        assert len(boxes) == 8
        for upper, lower in pairwise(boxes):
            assert upper.y0 >= lower.y1
    left, right = (ax.get_tightbbox() for ax in made.axes)
    assert left.x1 < right.x0


def test_a_figure_is_saved_with_its_dots(tmp_path: Path) -> None:
    made = figure({"a": ([5.0] * 20, range(20), 20)}, {"a": 1.0}, colours={"a": "#ff0000"}, window_ms=(0.0, 10.0))
    assert save(made, tmp_path / "picture.png", dpi=100) == tmp_path / "picture.png"
    image = imread(tmp_path / "picture.png")
    assert image.shape[:2] == (420, 750)
    box = made.axes[0].get_window_extent()
    inside = image[420 - int(box.y1) : 420 - int(box.y0) - 3, int(box.x0) + 3 : int(box.x1) - 3]
    red = (inside[..., 0] > 0.8) & (inside[..., 1] < 0.6)
    assert red.any()
    columns = np.flatnonzero(red.any(axis=0)) / inside.shape[1]
    assert abs(columns - 0.5).max() < 0.02  # all at 5 ms of 10
    for name in ("picture.pdf", "picture.svg"):
        assert save(made, tmp_path / name).stat().st_size > 1000


def test_no_global_state_is_touched() -> None:
    code = (
        "import sys, matplotlib; before = dict(dict.items(matplotlib.rcParams))\n"
        "from neuraxis.report.plots import figure\n"
        "figure({'a': ([1.0], [0], 1)}, {'a': 1.0}).canvas.draw()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert dict(dict.items(matplotlib.rcParams)) == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- what cannot be ---


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="spikes is empty"):
        raster(axes(), {})
    with pytest.raises(InvalidArgument, match="share is 0"):
        raster(axes(), SPIKES, share=0)
    with pytest.raises(InvalidArgument, match="window_ms is"):
        raster(axes(), SPIKES, window_ms=(5.0, 5.0))
    with pytest.raises(InvalidArgument, match="the id 4 for 'a'"):
        raster(axes(), {"a": ([1.0], [4], 4)})
    with pytest.raises(InvalidArgument, match="for 'a': give one of each"):
        raster(axes(), {"a": ([1.0, 2.0], [3], 4)})
    with pytest.raises(InvalidArgument, match="rates is empty"):
        rate_bars(axes(), {})
    with pytest.raises(InvalidArgument, match="rates has nan Hz for 'a'"):
        rate_bars(axes(), {"a": float("nan")})
    made = figure(SPIKES, {"L4E": 1.0})
    with pytest.raises(InvalidArgument, match="give it one of the endings"):
        save(made, tmp_path / "picture.txt")
    with pytest.raises(InvalidArgument, match="does not exist"):
        save(made, tmp_path / "nowhere" / "picture.png")
