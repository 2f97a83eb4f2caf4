"""Tables of the documentation: files of measurements, and their form on a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import measurements
from measurements import FOLDER, QUICK, ROLES, Measured, figure, markdown

TABLE = {"title": "all_reduce", "headings": ["size", "shm µs", "ratio"], "rows": [["4 B", "2.1", "50x"]], "meaning": ""}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_says_when_where_and_how_it_was_measured(path: Path) -> None:
    measured = Measured(path)
    assert measured.date.utcoffset() is not None
    assert measured.command.startswith(("neuraxis bench ", "python benchmarks/"))
    assert "neuraxis" in measured.versions
    assert "cores" in measured.hardware
    assert measured.data["report"]["tables"]
    assert not measured.data.get("failures")
    assert "/work" not in path.read_text()


def test_the_readme_has_the_figures_of_the_files() -> None:
    text = " ".join((FOLDER.parents[1] / "README.md").read_text().split())
    cores = Measured(FOLDER / "brain-16-cores-scaling.json").cell("microcircuit", "16", "s for 1 s")
    gpu = Measured(FOLDER / "gpu-h200.json").cell("micro", "poisson, nothing recorded", "real-time factor")
    assert f"takes {cores} s on 16 cores and {float(gpu):.3f} s on one H200" in text
    models = Measured(FOLDER / "models-1-core.json")
    adex = models.cell("Models", "adex", "nest ratio").rstrip("x")
    assert f"AdEx neurons run {adex} times as fast as in NEST" in text
    cuba, coba, cobahh = (
        models.cell("Networks", name, "brian2 ratio").rstrip("x") for name in ("cuba", "coba", "cobahh")
    )
    assert f"CUBA, COBA and COBAHH {cuba}, {coba} and {cobahh} times as fast as in Brian2's C++" in text


def test_there_are_files() -> None:
    assert len(list(FOLDER.glob("*.json"))) >= 5


def test_a_file_without_its_date_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"command": "neuraxis bench", "machine": {}, "report": {}}))
    with pytest.raises(ValueError, match=r"old\.json lacks date"):
        _ = Measured(path).date


def test_a_table_shows_the_columns_that_are_asked_for() -> None:
    assert markdown(TABLE).splitlines()[2:] == ["| size | shm µs | ratio |", "|---:|---:|---:|", "| 4 B | 2.1 | 50x |"]
    assert markdown(TABLE, ["ratio", "size"]).splitlines()[2:] == ["| ratio | size |", "|---:|---:|", "| 50x | 4 B |"]
    with pytest.raises(ValueError, match="no column 'gloo µs', but size"):
        markdown(TABLE, ["gloo µs"])


def test_a_sentence_takes_its_figures_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["4 B", "2.1", "50x"], ["1 MB", "1,050", "0.5x"]]
    data = {"command": "c", "date": "2026-11-17T09:00:00Z", "machine": {"cores": "2 usable of 4"}}
    data["report"] = {"tables": [{**TABLE, "title": "all_reduce: a sum", "rows": rows}]}
    (tmp_path / "a.json").write_text(json.dumps(data))
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert figure("a.json; all_reduce; 1 MB; shm µs") == "1,050"
    assert figure("a.json; all_reduce; 1 MB; shm µs / a.json; all_reduce; 4 B; shm µs") == "500"
    assert figure("a.json; all_reduce; 4 B; shm µs / a.json; all_reduce; 1 MB; shm µs") == "0.002"
    assert ROLES["measured-on"]("a.json") == "2 cores, 17 November 2026"
    for wrong, message in {
        "a.json; all_reduce; 4 B": "is not 'file; table; row; column'",
        "a.json; barrier; 4 B; shm µs": "no 'barrier', but all_reduce: a sum",
        "a.json; all_reduce; 8 B; shm µs": "no '8 B', but 4 B, 1 MB",
        "a.json; all_reduce; 4 B; gloo µs": "no 'gloo µs', but size, shm µs, ratio",
    }.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            figure(wrong)


def test_rows_with_the_same_name_are_told_apart_by_their_second_cell(tmp_path: Path) -> None:
    rows = [["small", "1", "-"], ["small", "2", "1.55x"], ["tiny", "1", "-"]]
    table = {"title": "Brains", "headings": ["brain", "workers", "speedup"], "rows": rows}
    data = {"command": "c", "date": "2026-11-17T09:00:00Z", "machine": {}, "report": {"tables": [table]}}
    (tmp_path / "a.json").write_text(json.dumps(data))
    measured = Measured(tmp_path / "a.json")
    assert measured.cell("Brains", "small, 2", "speedup") == "1.55x"
    assert measured.cell("Brains", "tiny", "workers") == "1"
    with pytest.raises(ValueError, match="there is no 'small', but small, 1, small, 2, tiny"):
        measured.cell("Brains", "small", "speedup")


def test_a_busy_machine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "busy.json"
    data = {
        "command": "c",
        "date": "2026-11-17T09:00:00Z",
        "machine": {},
        "report": {},
        "busy": True,
        "load_before": 3.0,
    }
    path.write_text(json.dumps({**data, "note": "a shared host"}))
    assert Measured(path).remarks == [
        "a shared host",
        "The load average was 3.0 before the start: the machine may not have been idle.",
    ]


def test_a_quick_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"date": "2026-11-17T09:00:00Z", "machine": {"cores": "2 usable of 4"}, "report": {}}
    for name, command in {
        "whole.json": "neuraxis bench mesh --json",
        "quick.json": "neuraxis bench mesh --quick --json",
    }.items():
        (tmp_path / name).write_text(json.dumps({**facts, "command": command}))
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert Measured(tmp_path / "whole.json").remarks == []
    assert Measured(tmp_path / "quick.json").remarks == [QUICK]
    assert ROLES["measured-on"]("whole.json") == "2 cores, 17 November 2026"
    assert ROLES["measured-on"]("quick.json") == "2 cores, 17 November 2026, a quick run"
