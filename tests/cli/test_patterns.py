"""`neuraxis patterns` as a user runs it: real ranks; the printed and drawn values are those of the ranks."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from neuraxis.cli import app
from neuraxis.report.patterns.catalogue import CATALOGUE
from neuraxis.report.patterns.collection import collect_patterns, differences
from neuraxis.report.patterns.definitions import DEFINITIONS
from neuraxis.report.patterns.model import PatternReport, PatternRun, pieces, sources
from neuraxis.report.patterns.page import render_page
from neuraxis.report.patterns.text import print_report

LIMIT_S = 60
NAMES = [entry.name for entry in CATALOGUE]
SVG = "{http://www.w3.org/2000/svg}"


def neuraxis_patterns(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-W", "error", "-m", "neuraxis", "patterns", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)


@functools.cache
def collected(n: int, dim: int = 4, backend: str = "shm") -> PatternReport:
    return collect_patterns(n, backend, dim)


def run_named(report: PatternReport, name: str) -> PatternRun:
    return next(run for run in report.runs if run.name == name)


# --- text -------------------------------------------------------------------------------------------


@functools.cache
def text_of_three_ranks() -> str:
    done = neuraxis_patterns("-n", "3", "--backend", "shm")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_text_has_every_pattern_in_order() -> None:
    headings = re.findall(r"^\d+\. (.+)$", text_of_three_ranks(), re.MULTILINE)
    assert headings == [entry.title for entry in CATALOGUE]
    assert headings[:8] == [
        "Broadcast",
        "Reduce",
        "All-Reduce",
        "Barrier",
        "Gather",
        "All-Gather",
        "Scatter",
        "All-to-All",
    ]


def test_text_reports_the_environment_and_that_all_agree() -> None:
    lines = text_of_three_ranks().splitlines()
    assert re.fullmatch(r"3 ranks, backend shm, dtype int64, host \S+", lines[0])
    assert lines[-1] == f"All {len(NAMES)} agree with their definitions on every rank."


def test_text_is_plain_and_aligned_when_it_is_no_terminal() -> None:
    text = text_of_three_ranks()
    assert "\x1b" not in text
    reduced = text[text.index("2. Reduce") : text.index("3. All-Reduce")]
    assert "   dist.reduce(data, dst=0, op=dist.ReduceOp.SUM)\n" in reduced
    assert reduced.endswith(
        "   rank  before         after\n"
        "   0     [ 0  1  2  3]  [12 15 18 21]\n"
        "   1     [ 4  5  6  7]  [ 4  5  6  7]\n"
        "   2     [ 8  9 10 11]  [ 8  9 10 11]\n"
        "   The first value on rank 0: 12 = 0 + 4 + 8\n\n"
    )
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_text_on_a_terminal_emphasises_only_changed_values() -> None:
    out = StringIO()
    print_report(collected(2), Console(file=out, force_terminal=True, color_system="standard", width=100))
    rank_0, rank_1 = [line for line in out.getvalue().splitlines() if re.match(r" +[01]  ", line)][:2]
    assert "\x1b" not in rank_0
    assert rank_1.count("\x1b[1;32m") == 4


# --- what the ranks held ----------------------------------------------------------------------------


def assert_agrees(report: dict[str, Any], n: int, dim: int) -> None:
    assert [run["name"] for run in report["runs"]] == NAMES
    assert report["problems"] == []
    for run in report["runs"]:
        definition = DEFINITIONS[run["name"]](n, dim)
        assert [rank["rank"] for rank in run["ranks"]] == list(range(n))
        assert [rank["before"] for rank in run["ranks"]] == list(definition.before)
        assert [rank["after"] for rank in run["ranks"]] == list(definition.after)


@pytest.mark.parametrize(
    ("n", "dim", "backend", "used"),
    [(1, 4, "auto", "local"), (3, 1, "auto", None), (2, 3, "gloo", "gloo"), (2, 2, "mpi", "mpi")],
)
def test_json_is_one_object_that_agrees_with_the_definitions(n: int, dim: int, backend: str, used: str | None) -> None:
    if backend in ("gloo", "mpi"):
        pytest.importorskip("torch" if backend == "gloo" else "mpi4py")
    done = neuraxis_patterns("-n", str(n), "--dim", str(dim), "--backend", backend, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert used in (None, report["backend"])
    assert (report["world_size"], report["dim"], report["dtype"]) == (n, dim, "int64")
    assert_agrees(report, n, dim)


def test_definitions_are_those_of_the_article() -> None:
    expected = {
        "broadcast": [[0, 1], [0, 1]],
        "reduce": [[2, 4], [2, 3]],
        "all_reduce": [[2, 4], [2, 4]],
        "gather": [[[0, 1], [2, 3]], [2, 3]],
        "all_gather": [[[0, 1], [2, 3]], [[0, 1], [2, 3]]],
        "scatter": [[0, 1], [2, 3]],
        "all_to_all": [[[0, 1], [4, 5]], [[2, 3], [6, 7]]],
        "reduce_scatter": [[4, 6], [8, 10]],
        "send_recv": [[2, 3], [0, 1]],
        "group": [[0, 1], [2, 3]],
    }
    assert {name: list(DEFINITIONS[name](2, 2).after) for name in expected} == expected
    assert DEFINITIONS["group"](4, 1).after == [[2], [1], [2], [3]]


@pytest.mark.parametrize(("n", "dim"), [(1, 12), (2, 4), (3, 4)])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "barrier"])
def test_the_drawn_moves_explain_the_values_of_each_rank(name: str, n: int, dim: int) -> None:
    run = run_named(collected(n, dim), name)
    for view in run.ranks:
        for slot, after in enumerate(pieces(view.after)):
            arrived = [
                pieces(run.ranks[move.from_rank].before)[move.from_slot] for move in sources(run, view.rank, slot)
            ]
            if not arrived:
                assert after == pieces(view.before)[slot], "nothing came, so it must be what it was"
            elif run.reduces:
                assert after == [sum(values) for values in zip(*arrived, strict=True)]
            else:
                assert [after] == arrived


def test_no_rank_leaves_the_barrier_before_the_last_arrives() -> None:
    ranks = run_named(collected(3), "barrier").ranks
    arrived = [view.arrived_ms for view in ranks if view.arrived_ms is not None]
    left = [view.left_ms for view in ranks if view.left_ms is not None]
    assert arrived[0] == 0.0
    assert arrived == sorted(arrived)
    assert min(left) >= max(arrived)


def test_a_wrong_result_is_found_and_named() -> None:
    run = run_named(collected(2), "reduce")
    wrong = dataclasses.replace(run, ranks=[run.ranks[0], dataclasses.replace(run.ranks[1], after=[9, 9, 9, 9])])
    assert differences(run, 4) == []
    assert differences(wrong, 4) == ["reduce: rank 1 held [9, 9, 9, 9] after, expected [4, 5, 6, 7]"]


def test_a_rank_that_leaves_a_barrier_early_is_found() -> None:
    run = run_named(collected(2), "barrier")
    early = dataclasses.replace(run, ranks=[dataclasses.replace(run.ranks[0], left_ms=1.0), run.ranks[1]])
    assert differences(early, 4)[0].startswith("barrier: rank 0 left at 1.000 ms, before the last arrival")


# --- the page ---------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags, links and ids of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action"):
                self.references.append(value or "")
            elif name == "id":
                self.ids.append(value or "")


def drawings(page: str) -> dict[str, ElementTree.Element]:
    """The drawing of each pattern, by name; each must be XML by itself."""
    found = {}
    for source in re.findall(r"<svg xmlns.*?</svg>", page, re.DOTALL):
        svg = ElementTree.fromstring(source)
        found[svg.attrib["aria-labelledby"].split()[0].removesuffix("-title")] = svg
    return found


def test_html_is_complete_and_self_contained(tmp_path: Path) -> None:
    done = neuraxis_patterns("-n", "2", "--backend", "shm", "--html", str(tmp_path / "out.html"), "--json")
    assert done.returncode == 0, done.stderr
    assert_agrees(json.loads(done.stdout), 2, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    source = (tmp_path / "out.html").read_text(encoding="utf-8")
    page = Page(source)
    assert page.references == [f"#{name}" for name in NAMES]
    assert set(NAMES) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    # The only address is the name of SVG's namespace, which is not fetched.
    assert set(re.findall(r"https?://[^\s\"']+", source)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in source
    assert "@import" not in source


@pytest.mark.parametrize("n", [2, 3])
def test_html_draws_the_values_of_the_run(n: int) -> None:
    report = collected(n)
    drawn = drawings(render_page(report))
    assert list(drawn) == NAMES
    for run in report.runs:
        svg = drawn[run.name]
        assert svg.find(f"{SVG}title") is not None
        assert svg.find(f"{SVG}desc") is not None
        values = [int(text.text or "") for text in svg.iter(f"{SVG}text") if text.get("class") == "value"]
        before = [value for view in run.ranks for piece in pieces(view.before) for value in piece]
        after = [value for view in run.ranks for piece in pieces(view.after) for value in piece]
        assert values == before + after
        lines = [path for path in svg.iter(f"{SVG}path") if (path.get("class") or "").startswith("line")]
        assert len(lines) == len(run.moves)


def test_copies_of_a_tensor_leave_from_one_point_and_different_tensors_from_several() -> None:
    drawn = drawings(render_page(collected(3)))

    def starts(name: str) -> set[str]:
        lines = [path for path in drawn[name].iter(f"{SVG}path") if (path.get("class") or "").startswith("line")]
        return {(path.get("d") or "").split(" C")[0] for path in lines}

    assert len(starts("broadcast")) == 1
    assert len(starts("all_gather")) == 3
    assert len(starts("scatter")) == 3
    assert len(starts("all_to_all")) == 9


def test_html_shows_how_sums_came_about() -> None:
    page = re.sub(r"<[^>]+>", "", render_page(collected(3)))
    assert "place 0: 0 + 4 + 8 = 12" in page
    assert "rank 2: 8 + 20 + 32 = 60" in page


def test_html_escapes_text_and_reports_differences() -> None:
    report = dataclasses.replace(collected(2), host='<b>"&', problems=["reduce: <i>"])
    page = render_page(report)
    assert '<b>"&' not in page
    assert "&lt;b&gt;&quot;&amp;" in page
    assert "reduce: &lt;i&gt;" in page
    assert "All 11 agree" not in page


def test_many_values_are_elided_in_the_drawing_and_not_in_the_data() -> None:
    report = collected(1, 12)
    assert report.runs[0].ranks[0].before == list(range(12))
    texts = [text.text for text in drawings(render_page(report))["broadcast"].iter(f"{SVG}text")]
    assert texts.count("…") == 2
    assert "11" in texts
    assert "7" not in texts


# --- what cannot be run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "0"], "-n is 0: at least one process is needed"),
        (["--dim", "0"], "--dim is 0: each rank needs at least one value"),
        (["-n", "2", "--backend", "local"], "backend 'local' has a single rank"),
        (["--html", "no/such/folder/out.html"], "does not exist"),
        (["-n", "four"], "four"),
        (["--backend", "pigeons"], "pigeons"),
    ],
)
def test_bad_arguments_are_explained(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["patterns", *arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert words in err
    assert out == ""


def test_a_backend_that_cannot_be_used_is_explained() -> None:
    torch = pytest.importorskip("torch")
    gpus = torch.cuda.device_count()
    done = neuraxis_patterns("-n", str(gpus + 1), "--backend", "nccl")
    assert done.returncode == 1
    assert done.stderr.startswith("neuraxis patterns: backend 'nccl' cannot be used here: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["patterns", "--help"])
    out, _ = capsys.readouterr()
    assert ended.value.code in (None, 0)
    assert "neuraxis patterns --html patterns.html" in out
    for option in ("-n", "--backend", "--dim", "--html", "--json"):
        assert option in out


def test_importing_report_is_light() -> None:
    code = "import sys, neuraxis.report; print(sorted({'numpy', 'numba', 'torch', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.strip() == "[]"
