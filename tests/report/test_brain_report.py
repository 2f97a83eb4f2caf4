"""The report page: complete, and readable in any browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread

from neuraxis.errors import InvalidArgument
from neuraxis.report.brain import raster as raster_module
from neuraxis.report.brain.graph import arrange, find_layers
from neuraxis.report.brain.markup import memory, number, percent, plain, ticks
from neuraxis.report.brain.model import (
    BrainReport,
    GraphEdge,
    GraphNode,
    LearningCurve,
    Raster,
    RasterRegion,
    RegionGraph,
    WorkerLoad,
)
from neuraxis.report.brain.page import render_report, write_report
from neuraxis.report.plots import learning_curve, learning_curve_figure

SVG = "{http://www.w3.org/2000/svg}"
NASTY = """</style><script>alert("x")</script>&amp;'é\x00\ud800"""

SIZES = {
    "cue": 40,
    "thalamus": 200,
    "cortex": 900,
    "hippocampus": 450,
    "prefrontal": 500,
    "striatum": 260,
    "cerebellum": 150,
}
RATES_HZ = {
    "cue": 38.0,
    "thalamus": 14.2,
    "cortex": 6.4,
    "hippocampus": 3.1,
    "prefrontal": 8.8,
    "striatum": 4.6,
    "cerebellum": 21.5,
}


def synthetic_curve(trials: int = 600, seed: int = 7) -> LearningCurve:
    """A learner that goes from chance to 92 %, and starts again when the rule is reversed."""
    rng = np.random.default_rng(seed)
    since = np.where(np.arange(trials) < trials // 2, np.arange(trials), np.arange(trials) - trials // 2)
    skill = 0.25 + 0.68 / (1 + np.exp(-(since - 90) / 28))
    return LearningCurve(tuple((rng.random(trials) < skill).tolist()), 0.25, 40, 0.8, trials // 2)


def synthetic_raster(factor: float = 1.0, seed: int = 8) -> Raster:
    rng = np.random.default_rng(seed)
    regions = []
    for place, (name, neurons) in enumerate(SIZES.items()):
        base = rng.uniform(-200, 1000, int(factor * 0.6 * neurons * RATES_HZ[name]))
        burst = rng.normal(40 + 35 * place, 25, int(factor * 0.5 * neurons * RATES_HZ[name]))
        times_ms = np.concatenate([base, burst[(burst > -200) & (burst < 1000)]])
        ids = rng.integers(0, neurons, len(times_ms))
        regions.append(RasterRegion(name, neurons, None if name == "cue" else int(0.8 * neurons), times_ms, ids))
    return Raster(tuple(regions), -200.0, 1000.0, ((0.0, "cue"), (470.0, "action"), (520.0, "reward")))


def synthetic_graph() -> RegionGraph:
    kinds = {
        "cue": "sensor",
        "thalamus": "relay",
        "cortex": "cortex",
        "hippocampus": "memory",
        "prefrontal": "cortex",
        "striatum": "selection",
        "cerebellum": "timing",
    }
    nodes = [GraphNode(name, kinds[name], SIZES[name], RATES_HZ[name]) for name in SIZES]
    nodes.append(GraphNode("action", "effector", 4, 2.0))
    edges = (
        GraphEdge("cue", "thalamus", 2.0, 1520.0, False),
        GraphEdge("thalamus", "cortex", 3.0, 2840.0, False),
        GraphEdge("cortex", "thalamus", 4.0, 1910.0, False),
        GraphEdge("cortex", "cortex", 1.5, 5760.0, True),
        GraphEdge("cortex", "hippocampus", 6.0, 2100.0, False),
        GraphEdge("hippocampus", "cortex", 8.0, 1395.0, True),
        GraphEdge("cortex", "prefrontal", 5.0, 3100.0, False),
        GraphEdge("hippocampus", "prefrontal", 7.0, 990.0, False),
        GraphEdge("prefrontal", "striatum", 5.0, 4400.0, True),
        GraphEdge("cortex", "striatum", 6.0, 3650.0, True),
        GraphEdge("striatum", "thalamus", 9.0, 1196.0, False),
        GraphEdge("cortex", "cerebellum", 4.5, 2210.0, False),
        GraphEdge("cerebellum", "thalamus", 5.5, 3225.0, False),
        GraphEdge("prefrontal", "cortex", 5.0, 1800.0, False),
        GraphEdge("striatum", "action", 1.0, 1196.0, False),
    )
    return RegionGraph(tuple(nodes), edges)


def synthetic_workers() -> tuple[WorkerLoad, ...]:
    return (
        WorkerLoad(0, ("cortex",), 0.86, 0.11, 412_300, 198_450, 612 << 20, (("cortex", 0.79),)),
        WorkerLoad(
            1,
            ("cue", "thalamus", "hippocampus"),
            0.71,
            0.26,
            288_100,
            301_002,
            388 << 20,
            (("cue", 0.02), ("thalamus", 0.21), ("hippocampus", 0.41)),
        ),
        WorkerLoad(
            2,
            ("prefrontal", "action"),
            0.66,
            0.31,
            240_777,
            280_050,
            402 << 20,
            (("prefrontal", 0.58), ("action", 0.01)),
        ),
        WorkerLoad(
            3,
            ("striatum", "cerebellum"),
            0.49,
            0.48,
            171_000,
            350_400,
            301 << 20,
            (("striatum", 0.28), ("cerebellum", 0.13)),
        ),
    )


@cache
def synthetic_report() -> BrainReport:
    return BrainReport(
        "A brain learns which cue means which action",
        "Six regions of spiking neurons learn a four-choice task by reward alone; halfway, the rule is reversed.",
        synthetic_curve(),
        synthetic_raster(),
        synthetic_graph(),
        synthetic_workers(),
        (
            ("version", "neuraxis 0.1.0"),
            ("machine", "AMD EPYC 9654, 16 cores, 128 GiB"),
            ("neurons", "2,500"),
            ("synapses", "318,204"),
            ("trials", "600"),
            ("seed", "7"),
            ("workers", "4 processes, shared memory"),
            ("time step", "0.1 ms"),
            ("simulated time", "12 min 0 s"),
            ("wall time", "1 min 52 s"),
            ("real-time factor", "6.4"),
            ("fingerprint", "9f2b41d07c5e8a63b1f04d92e7a85c3310d6f4be"),
        ),
    )


EMPTY = BrainReport("", "", LearningCurve((), 0.5, 10), Raster((), 0.0, 1.0), RegionGraph((), ()), (), ())


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib keeps the font files open that it once used: that is no leak of a test."""
    drawn = Figure()
    drawn.subplots().set_xlabel("trial")
    drawn.savefig("/dev/null", format="png")


@cache
def parsed(report: BrainReport) -> ET.Element:
    return ET.fromstring(render_report(report))


@cache
def graph_page() -> ET.Element:
    return parsed(replace(EMPTY, graph=synthetic_graph()))


def of_class(page: ET.Element, klass: str) -> list[ET.Element]:
    return [element for element in page.iter() if klass in element.get("class", "").split()]


def text(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def section(page: ET.Element, name: str) -> ET.Element:
    (found,) = [element for element in page.iter("section") if element.get("id") == name]
    return found


# --- the whole page ---


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    page = render_report(synthetic_report())
    root = ET.fromstring(page)
    assert [element.get("id") for element in root.iter("section")] == ["learning", "trial", "brain", "workers", "facts"]
    assert not [element for element in root.iter() if element.tag in ("script", "link", "img", "iframe", "object")]
    assert not [
        name for element in root.iter() for name in element.attrib if name in ("src", "href") or name[:2] == "on"
    ]
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in page
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


def test_every_text_is_escaped() -> None:
    node = GraphNode(NASTY, NASTY, 3, 1.0)
    report = BrainReport(
        NASTY,
        NASTY,
        LearningCurve((True,), 0.5, 1),
        Raster((RasterRegion(NASTY, 3, 1, np.array([0.5]), np.array([2])),), 0.0, 1.0, ((0.5, NASTY),)),
        RegionGraph((node,), (GraphEdge(NASTY, NASTY, 1.0, 1.0, True),)),
        (WorkerLoad(0, (NASTY,), 0.5, 0.5, 1, 1, 1, ((NASTY, 0.5),)),),
        ((NASTY, NASTY),),
    )
    page = parsed(report)
    shown = NASTY.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert not list(page.iter("script"))
    assert not next(page.iter("body")).findall(".//style")
    assert "".join(next(page.iter("h1")).itertext()) == shown
    assert [element.text for element in section(page, "facts").iter("dd")] == [shown]


@pytest.mark.parametrize("facts", [(), (("seed", "7"),)])
def test_an_empty_result_is_a_valid_page(facts: tuple[tuple[str, str], ...]) -> None:
    page = parsed(replace(EMPTY, facts=facts))
    assert [text(element) for element in of_class(page, "empty")] == [
        "No trials.",
        "No regions.",
        "No regions.",
        "No workers.",
    ]
    assert len(of_class(page, "facts")) == len(facts)


def test_huge_names_and_one_of_everything() -> None:
    name = "n" * 5000
    report = BrainReport(
        name,
        name,
        LearningCurve((True,), 0.0, 5, 1.0, 0),
        Raster((RasterRegion(name, 1, 0, np.array([0.0]), np.array([0])),), 0.0, 1.0, ((0.0, name), (1.0, name))),
        RegionGraph((GraphNode(name, name, 1, 0.0),), ()),
        (WorkerLoad(0, (name,), 0.0, 0.0, 0, 0, 0),),
        ((name, name),),
    )
    page = parsed(report)
    broad = of_class(page, "broad")[0]
    assert max(len(text(element)) for element in broad.iter("text")) < 25
    assert [element.text for element in broad.iter("title")] == [f"{name} ({name}): 1 neuron, mean rate 0\u00a0Hz"]
    assert all(len(text(flag)) < 25 and flag.get("title") == name for flag in of_class(section(page, "trial"), "flag"))


def test_the_facts_and_the_main_numbers_are_there() -> None:
    report = synthetic_report()
    page = parsed(report)
    facts = section(page, "facts")
    assert [(text(row[0]), text(row[1])) for row in facts.iter("div")] == list(report.facts)
    (figures,) = of_class(page, "figures")
    reported = {text(row[1]): text(row[0]) for row in figures}
    assert reported["neurons"] == "2,500"
    assert reported["right, last 40 trials"] == f"{100 * sum(report.curve.correct[-40:]) / 40:.0f} %"
    assert reported["workers"] == "4"


def test_colours_can_be_read_in_light_and_dark() -> None:
    style = files("neuraxis.report.brain").joinpath("page.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")[0], style
    for part in (light, dark):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part))
        regions = re.findall(r"--region: (#[0-9a-f]{6})", part)[-8:]
        assert len(regions) == 8
        for word in (colours["ink"], colours["soft"], colours["accent"], colours["wrong"], *regions):
            assert contrast(word, colours["card"]) >= 4.5, word
        for ground in (colours["plastic"], colours["other"], *regions):
            assert contrast(colours["on-colour"], ground) >= 4.5, ground
        for line in (colours["wire"], colours["inhibitory"], colours["mark"]):
            assert contrast(line, colours["card"]) >= 3.0, line


def contrast(one: str, other: str) -> float:
    """The ratio that WCAG defines."""
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# --- writing ---


def test_write_report_leaves_one_whole_file_and_the_same_each_time(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(synthetic_report(), path)
    assert path.read_text(encoding="utf-8") == render_report(synthetic_report())
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_raises(tmp_path: Path) -> None:
    path = tmp_path / "no" / "report.html"
    with pytest.raises(InvalidArgument, match=re.escape(str(path))):
        write_report(EMPTY, path)


def test_an_unwritable_path_raises(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (Path("/proc/neuraxis-report.html"), tmp_path / "folder"):
        with pytest.raises(InvalidArgument, match=re.escape(str(path))):
            write_report(EMPTY, path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# --- the learning curve ---


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 70))
@settings(max_examples=30)
def test_accuracy_is_the_mean_of_the_window(correct: list[bool], window: int) -> None:
    accuracy = LearningCurve(tuple(correct), 0.5, window).accuracy()
    expected = [np.mean(correct[max(0, end - window) : end]) for end in range(1, len(correct) + 1)]
    np.testing.assert_allclose(accuracy, expected, atol=1e-12)


def test_when_the_target_is_reached() -> None:
    curve = LearningCurve((True, False, True, True, True, False, False, True, True, True), 0.5, 3, 1.0, 5)
    assert curve.reached_at() == 4
    assert curve.reached_at(5) == 9
    assert curve.reversed_at == 5
    assert replace(curve, target=None).reached_at() is None
    assert replace(curve, window=11).reached_at() is None
    assert replace(curve, reversal_at=10).reversed_at is None
    assert replace(curve, reversal_at=0).reversed_at is None


def test_the_curve_has_a_dot_for_each_trial_and_a_caption() -> None:
    curve = synthetic_curve()
    page = section(parsed(replace(EMPTY, curve=curve)), "learning")
    counts = {klass: of_class(page, klass)[0].get("d", "").count("M") for klass in ("right", "wrong")}
    assert counts == {"right": sum(curve.correct), "wrong": 600 - sum(curve.correct)}
    early, whole = (re.findall(r"[\d.]+ [\d.]+", line.get("d", "")) for line in of_class(page, "curve"))
    assert early[-1] == whole[0]
    points = early + whole[1:]
    assert (len(early), len(points)) == (curve.window, 600)
    last = float(points[-1].split()[1])
    assert (875 - last) / 750 == pytest.approx(curve.accuracy()[-1], abs=1e-3)
    assert len(of_class(page, "chance")) == len(of_class(page, "target")) == 1
    reached, again = curve.reached_at(), curve.reached_at(300)
    assert reached is not None
    assert again is not None
    flags = {text(flag) for flag in of_class(page, "flag")}
    assert flags == {f"target at {reached + 1}", "reversal at 301", f"target at {again + 1}"}
    caption = text(next(page.iter("figcaption")))
    assert f"The target of 80 % was reached at trial {reached + 1}." in caption
    hover = [text(element) for element in page.iter("title")]
    assert sum(int(reported.split(": ")[1].split(" of ")[0]) for reported in hover) == sum(curve.correct)


def test_places_in_drawings_have_no_thousands_commas() -> None:
    curve = LearningCurve((False,) * 999 + (True,), 0.5, 1, 1.0)
    report = replace(EMPTY, curve=curve, raster=replace(synthetic_raster(0.1), marks=((1000.0, "end"),)))
    for element in parsed(report).iter():
        assert "," not in element.get("d", "")
        assert "," not in element.get("style", "")


@pytest.mark.parametrize("wrong", [{"chance": 1.5}, {"target": -0.1}, {"window": 0}, {"reversal_at": -1}])
def test_wrong_curves_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"LearningCurve.{next(iter(wrong))}"):
        replace(synthetic_curve(10), **wrong)


# --- the raster ---


def spikes_drawn(page: ET.Element) -> int:
    return sum(path.get("d", "").count("M") for path in of_class(page, "spikes"))


def test_each_spike_is_drawn_in_its_band_and_place() -> None:
    region = RasterRegion("r", 10, 8, np.array([0.0, 50.0, 99.0, 100.0, -1.0]), np.array([0, 9, 7, 1, 1]))
    page = section(parsed(replace(EMPTY, raster=Raster((region,), 0.0, 100.0))), "trial")
    excitatory, inhibitory = of_class(page, "spikes")
    band = of_class(page, "band")[0]
    height = int(band.get("viewBox", "").split()[3])
    rows = [
        [
            (int(x), (int(y) + int(tick) / 2) / height)
            for x, y, tick in re.findall(r"M(\d+) (\d+)v(\d+)", path.get("d", ""))
        ]
        for path in (excitatory, inhibitory)
    ]
    assert [x for x, _ in rows[0]] == [0, 3960]
    assert [x for x, _ in rows[1]] == [2000]
    assert [y for _, y in rows[0]] == pytest.approx([0.05, 0.75], abs=0.02)
    assert [y for _, y in rows[1]] == pytest.approx([0.95], abs=0.02)
    assert "3 spikes of 10 neurons in 100 ms." in text(page)


def test_all_spikes_of_a_trial_are_drawn_and_named() -> None:
    raster = synthetic_raster()
    page = section(parsed(replace(EMPTY, raster=raster)), "trial")
    spikes = sum(len(region.ids) for region in raster.regions)
    assert spikes_drawn(page) == spikes
    assert f"{spikes:,} spikes of 2,500 neurons in 1,200 ms." in text(page)
    assert [text(name[0]) for name in of_class(page, "band-name")] == list(SIZES)
    assert [text(flag) for flag in of_class(page, "flag")] == ["cue", "action", "reward"]
    assert "Thinned" not in text(page)


def test_too_many_spikes_are_thinned_out_and_the_caption_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raster_module, "MAX_SPIKES", 1000)
    raster = synthetic_raster(0.2)
    spikes = sum(len(region.ids) for region in raster.regions)
    page = section(parsed(replace(EMPTY, raster=raster)), "trial")
    drawn = spikes_drawn(page)
    assert 1000 - len(raster.regions) < drawn <= 1000 < spikes
    assert f"Thinned out evenly: {drawn:,} of them are drawn." in text(page)
    assert f"{spikes:,} spikes" in text(page)


def test_a_hundred_thousand_spikes_make_a_page_of_about_a_megabyte() -> None:
    rng = np.random.default_rng(3)
    region = RasterRegion("r", 2000, 1600, rng.uniform(0, 1000, 100_000), rng.integers(0, 2000, 100_000))
    page = render_report(replace(EMPTY, raster=Raster((region,), 0.0, 1000.0)))
    assert spikes_drawn(ET.fromstring(page)) == 100_000
    assert len(page) < 1_500_000


def test_a_region_without_spikes_or_neurons_has_its_band() -> None:
    none = np.zeros(0)
    regions = (
        RasterRegion("quiet", 5, None, none, none.astype(int)),
        RasterRegion("void", 0, 0, none, none.astype(int)),
    )
    page = section(parsed(replace(EMPTY, raster=Raster(regions, 0.0, 1.0))), "trial")
    assert len(of_class(page, "band")) == 2
    assert spikes_drawn(page) == 0


def test_wrong_spikes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="neuron 5"):
        RasterRegion("r", 5, None, np.array([1.0]), np.array([5]))
    with pytest.raises(InvalidArgument, match="one of each"):
        RasterRegion("r", 5, None, np.array([1.0, 2.0]), np.array([1]))
    with pytest.raises(InvalidArgument, match="start before"):
        Raster((), 2.0, 2.0)


# --- the graph ---


def rectangles(drawing: ET.Element) -> dict[str, list[tuple[float, ...]]]:
    found: dict[str, list[tuple[float, ...]]] = {"node": [], "delay": []}
    for group in drawing.iter("g"):
        for klass, places in found.items():
            if klass in group.get("class", "").split():
                rect = next(group.iter("rect"))
                places.append(tuple(float(rect.get(name, "")) for name in ("x", "y", "width", "height")))
    return found


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(one[axis] < other[axis] + other[axis + 2] and other[axis] < one[axis] + one[axis + 2] for axis in (0, 1))


@pytest.mark.parametrize("which", ["broad", "tall"])
def test_no_box_or_label_covers_another_or_leaves_the_drawing(which: str) -> None:
    graph = synthetic_graph()
    (drawing,) = of_class(graph_page(), which)
    found = rectangles(drawing)
    assert len(found["node"]) == len(graph.nodes)
    assert len(found["delay"]) == len(graph.edges) - 1  # the region's own loop is in its box
    for one, other in combinations(found["node"] + found["delay"], 2):
        assert not overlap(one, other)
    x, y, width, height = (float(part) for part in next(drawing.iter("svg")).get("viewBox", "").split())
    for left, top, wide, high in found["node"] + found["delay"]:
        assert x <= left
        assert left + wide <= x + width
        assert y <= top
        assert top + high <= y + height


def test_tooltips_and_table_have_all_numbers() -> None:
    graph = synthetic_graph()
    page = section(graph_page(), "brain")
    titles = {"".join(title.itertext()) for title in of_class(page, "broad")[0].iter("title")}
    assert "prefrontal → striatum: delay 5\u00a0ms, 4,400 spikes a second, plastic" in titles
    assert "hippocampus (memory): 450 neurons, mean rate 3.1\u00a0Hz" in titles
    rows = [text(row) for row in next(page.iter("tbody"))]
    assert len(rows) == len(graph.edges)
    assert "Most spikes stay within cortex, 5,760 a second." in text(page)


def test_busier_pathways_are_wider() -> None:
    page = of_class(graph_page(), "broad")[0]
    widths = {}
    for edge in of_class(page, "edge"):
        name = text(next(edge.iter("title"))).split(":")[0]
        widths[name] = float(re.findall(r"[\d.]+", of_class(edge, "wire")[0].get("style", ""))[0])
    ordered = sorted((e for e in synthetic_graph().edges if e.source != e.target), key=lambda e: e.spikes_per_s)
    drawn = [widths[f"{edge.source} → {edge.target}"] for edge in ordered]
    assert drawn == sorted(drawn)
    assert drawn[0] < drawn[-1]


def test_sensors_come_first_and_effectors_last() -> None:
    layering = find_layers(synthetic_graph())
    names = [[synthetic_graph().nodes[v].name for v in layer if v < 8] for layer in layering.layers]
    assert names[0] == ["cue"]
    assert names[-1] == ["action"]
    assert [name for layer in names for name in layer].index("thalamus") == 1


@given(st.integers(1, 7), st.data())
@settings(max_examples=15)
def test_any_graph_finds_its_places(nodes: int, data: st.DataObject) -> None:
    pair = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    pairs = data.draw(st.lists(pair, max_size=12))
    kinds = data.draw(st.lists(st.sampled_from(["sensor", "cortex", "effector"]), min_size=nodes, max_size=nodes))
    graph = RegionGraph(
        tuple(GraphNode(str(place), kind, 1, 1.0) for place, kind in enumerate(kinds)),
        tuple(GraphEdge(str(a), str(b), 1.0, 1.0, False) for a, b in pairs),
    )
    layering = find_layers(graph)
    layer_of = {vertex: layer for layer, row in enumerate(layering.layers) for vertex in row}
    assert set(range(nodes)) <= set(layer_of)
    for (a, b), chain in zip(pairs, layering.chains, strict=True):
        assert (
            [layer_of[vertex] for vertex in chain] == list(range(layer_of[chain[0]], layer_of[chain[-1]] + 1))
            if chain
            else a == b
        )
    for down in (False, True):
        drawing = arrange(layering, [(90.0, 60.0)] * nodes, [(40.0, 17.0)] * len(pairs), down=down, least_gap=70.0)
        assert [way is None for way in drawing.routes] == [a == b for a, b in pairs]
        for one, other in combinations(drawing.boxes, 2):
            assert not one.meets(other)
        for way, box in product(drawing.routes, drawing.boxes):
            if way is not None:
                x, y = way.tip
                assert abs(x - box.x) >= box.width / 2 - 1e-6 or abs(y - box.y) >= box.height / 2 - 1e-6
        for box in drawing.boxes:
            assert box.x - box.width / 2 >= -1e-6
            assert box.x + box.width / 2 <= drawing.width + 1e-6
            assert box.y - box.height / 2 >= -1e-6
            assert box.y + box.height / 2 <= drawing.height + 1e-6


def test_wrong_graphs_are_refused() -> None:
    node = GraphNode("a", "cortex", 1, 1.0)
    with pytest.raises(InvalidArgument, match="no node 'b'"):
        RegionGraph((node,), (GraphEdge("a", "b", 1.0, 1.0, False),))
    with pytest.raises(InvalidArgument, match="two nodes"):
        RegionGraph((node, node), ())


# --- the workers ---


def test_bars_add_up_to_the_time_and_are_labelled() -> None:
    page = section(parsed(replace(EMPTY, workers=synthetic_workers())), "workers")
    for bar, load in zip(of_class(page, "bar"), synthetic_workers(), strict=True):
        widths = [float(re.findall(r"[\d.]+", part.get("style", ""))[0]) for part in bar]
        assert sum(widths) == pytest.approx(100 * (load.busy + load.waiting), abs=0.01)
        assert len(widths) == len(load.by_region) + 2
    reported = text(page)
    for word in ("412,300", "198,450", "612 MiB", "prefrontal, action", "86 %"):
        assert word in reported
    assert "4 workers, busy for 68 % of the time on average. Worker 3 waits most, 48 % of the time." in reported


def test_clock_noise_does_not_overflow_a_bar() -> None:
    load = WorkerLoad(0, ("a",), 0.9, 0.11, 0, 0, 0, (("a", 0.91),))
    page = section(parsed(replace(EMPTY, workers=(load,))), "workers")
    widths = [float(re.findall(r"[\d.]+", part.get("style", ""))[0]) for part in of_class(page, "bar")[0]]
    assert sum(widths) == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize(
    "wrong", [{"busy": -0.1}, {"waiting": float("nan")}, {"busy": 0.9}, {"by_region": (("a", 0.6),)}]
)
def test_wrong_loads_are_refused(wrong: dict[str, Any]) -> None:
    load = WorkerLoad(4, ("a",), 0.5, 0.5, 0, 0, 0, (("a", 0.5),))
    with pytest.raises(InvalidArgument, match="worker 4"):
        replace(load, **wrong)


# --- numbers as text ---


def test_numbers_read_well() -> None:
    assert [number(1.5), number(20.0), number(1200.0), number(-0.01), number(-200.0)] == [
        "1.5",
        "20",
        "1,200",
        "0",
        "\u2212200",
    ]
    assert [plain(1000.0), plain(-2.5)] == ["1000", "-2.5"]
    assert [percent(0.5), percent(0.999), percent(1.0), percent(0.004)] == [
        "50\u00a0%",
        "99.9\u00a0%",
        "100\u00a0%",
        "0.4\u00a0%",
    ]
    assert [memory(0), memory(1536), memory(5 << 40)] == ["0\u00a0B", "1.5\u00a0KiB", "5,120\u00a0GiB"]
    assert ticks(-200, 1000, 8) == [-200, 0, 200, 400, 600, 800, 1000]
    assert ticks(3, 3, 8) == [3]


# --- the figure for a paper ---


def test_the_figure_draws_the_running_accuracy() -> None:
    curve = synthetic_curve()
    ax = Figure().subplots()
    assert learning_curve(ax, curve, label="ours") is ax
    lines = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(lines["ours"].get_ydata(), curve.accuracy()[39:])
    dots = [line for line in ax.get_lines() if line.get_marker() == "."]
    assert [len(line.get_xdata()) for line in dots] == [sum(curve.correct), 600 - sum(curve.correct)]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures_are_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"curve.{kind}"
    curves = (
        {"seed 1": synthetic_curve(100, 1), "seed 2": synthetic_curve(200, 2)}
        if kind == "svg"
        else {"one": synthetic_curve(50)}
    )
    assert learning_curve_figure(curves, path) == path
    if kind == "png":
        assert imread(path).std() > 0.01
    elif kind == "svg":
        assert ET.parse(path).getroot().tag == f"{SVG}svg"
    else:
        assert path.read_bytes().startswith(b"%PDF")


def test_a_figure_of_no_trials_and_of_no_curves(tmp_path: Path) -> None:
    learning_curve_figure({"none": EMPTY.curve}, tmp_path / "curve.png")
    with pytest.raises(InvalidArgument, match="empty"):
        learning_curve_figure({}, tmp_path / "none.png")
    with pytest.raises(InvalidArgument, match="does not exist"):
        learning_curve_figure({"none": EMPTY.curve}, tmp_path / "no" / "curve.png")
