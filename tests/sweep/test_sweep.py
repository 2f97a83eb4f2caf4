"""The parts of a sweep: settings, cells, stored results, table and plot."""

from __future__ import annotations

import csv
import sys

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from neuraxis.brain import BrainBuilder
from neuraxis.brain.files import spec_text, toml_text
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.sweep.plan import Cell, Job, Setting, digest_of_file, parse_seeds, parse_setting, plan_cells, with_values
from neuraxis.sweep.plot import plot_metric, plot_sweep
from neuraxis.sweep.run import SweepFolder, SweepRun, cell_work, run_cell
from neuraxis.sweep.table import grouped, summary, sweep_table, write_table
from tests.brain.test_brain import small

# --- settings ---


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("dt_ms=0.1,0.2", "dt_ms", (0.1, 0.2)),
        ("a.b-c.d_1=1", "a.b-c.d_1", (1,)),
        ("a = 1, 2 ", "a", (1, 2)),
        ("a=true,false", "a", (True, False)),
        ("a=1,1.0,true", "a", (1, 1.0, True)),
        ("a=cortex,thalamus", "a", ("cortex", "thalamus")),
        ('a="x,y",z', "a", ('"x', 'y"', "z")),
        ('a="x,y","z"', "a", ("x,y", "z")),
        ("a=[1, 2],[3]", "a", ([1, 2], [3])),
        ("a=1,auto", "a", (1, "auto")),
        ("pathways[2].weight=-1e-3", "pathways[2].weight", (-1e-3,)),
        ("pathways[cortex.L5e->striatum].weight=1", "pathways[cortex.L5e->striatum].weight", (1,)),
        ("a=x=y", "a", ("x=y",)),
    ],
)
def test_settings_are_read_as_toml_would(text, path, values):
    found = parse_setting(text)
    assert found == Setting(path, values)
    assert [type(value) for value in found.values] == [type(value) for value in values]


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans() | st.text(min_size=1), min_size=1
    )
)
def test_values_round_trip_through_toml(values):
    texts = [toml_text({"a": value}).removeprefix("a = ").removesuffix("\n") for value in values]
    unique = len({(type(value), value) for value in values}) == len(values)
    if not unique:
        with pytest.raises(InvalidArgument, match="is given twice"):
            parse_setting(f"a={','.join(texts)}")
        return
    assert list(parse_setting(f"a={','.join(texts)}").values) == values


def test_a_field_is_set_and_the_rest_is_as_it_was():
    spec = small().spec()
    found = with_values(spec, {"regions.cortex.config.neurons": 40, "pathways[1].delay_ms": 7, "dt_ms": 0.2}, "brain")
    assert found.regions["cortex"].config == {"neurons": 40}
    assert [pathway.delay_ms for pathway in found.pathways] == [2.0, 7.0, 4.0, 2.0]
    back = with_values(found, {"regions.cortex.config.neurons": 80, "pathways[thalamus->cortex].delay_ms": 3.0,
                               "dt_ms": spec.dt_ms}, "brain")  # fmt: skip
    assert back == spec
    # A setting of a region that the file leaves to its default.
    assert (
        with_values(spec, {"regions.thalamus.config.reticular": 12}, "b").regions["thalamus"].config["reticular"] == 12
    )
    with pytest.raises(SpecError, match=r"^b: rhythms\.beta: there is no 'beta' here; .*'theta', 'gamma'"):
        with_values(spec, {"rhythms.beta.frequency_hz": 20}, "b")
    with pytest.raises(
        SpecError, match=r"^b: sensors\.cue\.groups: 40 neurons cannot form 7 equal groups \(with --set"
    ):
        with_values(spec, {"sensors.cue.groups": 7}, "b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a=2026-01-31,1", "2026-01-31 is a date or a time"),
        ("a=[1, 07:30:00]", "07:30:00 is a date or a time"),
        ("a={when = 1979-05-27T07:32:00Z}", "is a date or a time"),
        (f"a={2**63}", f"{2**63} is beyond the 64-bit integers"),
    ],
)
def test_unknown_fields_are_refused(text, reason):
    with pytest.raises(InvalidArgument) as raised:
        parse_setting(text)
    assert str(raised.value).startswith(f"--set {text}: ")
    assert reason in str(raised.value)


def test_seeds_are_counted_or_named():
    assert parse_seeds("3", 7) == (7, 8, 9)
    assert parse_seeds("4,2", 7) == (4, 2)


# --- cells ---


def plan(settings=(), seeds=(1,), job=None):
    return plan_cells(small().spec(), settings, seeds, job or Job(time_ms=10.0))


def test_cells_are_all_combinations_and_have_descriptive_keys(tmp_path):
    settings = (Setting("dt_ms", (0.1, 0.2)), Setting("rhythms.theta.phase", (0.0, 0.5, 0.7)))
    cells = plan(settings, (1, 2))
    assert [(*cell.settings.values(), cell.seed) for cell in cells] == [
        (dt, phase, seed) for dt in (0.1, 0.2) for phase in (0.0, 0.5, 0.7) for seed in (1, 2)
    ]
    keys = [cell.key for cell in cells]
    assert len(set(keys)) == 12
    assert plan(settings, (1, 2)) == cells
    # A value that is the file's own is no other brain.
    assert plan((Setting("dt_ms", (0.1,)),))[0].key == plan()[0].key
    assert cells[1].brain == cells[0].brain == spec_text(small(seed=1).spec())
    assert plan_cells(small(seed=9).spec(), settings, (1, 2), Job(time_ms=10.0)) == cells
    others = [Job(time_ms=20.0), Job(task="delayed"), Job(task="cue-action"), Job(task="cue-action", trials=5), Job()]
    assert len({plan()[0].key, *(plan(job=job)[0].key for job in others)}) == 6
    assert plan(job=Job(time_ms=10.0, where="/elsewhere/brain.toml"))[0].key == plan()[0].key
    shown = tmp_path / "cues.csv"
    with pytest.raises(InvalidArgument, match=r"cues\.csv: cannot be read"):
        digest_of_file(shown)
    shown.write_text("start_ms,stop_ms,sensor,group,value\n0,10,cue,2,1.0\n")

    def job():
        return Job(stimulus=str(shown), stimulus_digest=digest_of_file(shown))

    first = plan(job=job())[0].key
    shown.write_text("start_ms,stop_ms,sensor,group,value\n0,10,cue,1,1.0\n")
    assert plan(job=job())[0].key != first
    shown.write_text("start_ms,stop_ms,sensor,group,value\n0,10,cue,2,1.0\n")
    fewer = (Setting("sensors.cue.groups", (4, 2)), Setting("pathways[0].topographic", (False,)))
    with pytest.raises(SpecError, match="group '2'"):
        plan(fewer, job=job())


def test_the_default_time_gives_the_same_key(tmp_path):
    shown = tmp_path / "cues.csv"
    shown.write_text("start_ms,stop_ms,sensor,group,value\n0,0.3,cue,2,1.0\n")
    shows = {"stimulus": str(shown), "stimulus_digest": digest_of_file(shown)}
    assert plan(job=Job())[0].key == plan(job=Job(time_ms=1000.0))[0].key
    assert plan(job=Job(**shows))[0].key == plan(job=Job(**shows, time_ms=0.3))[0].key
    assert plan(job=Job(**shows))[0].key != plan(job=Job(time_ms=0.3))[0].key


OWN_REGION = """
import json
from gains import GAIN
from . import timing


class Cell:
    def process_events(self, now_ms, events):
        return None


def create(config, device):
    return Cell()
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A folder with the code of a region: a package, a module beside it, and one that the region does not import."""
    (tmp_path / "own_package").mkdir()
    for name, text in {
        "own_package/__init__.py": "",
        "own_package/region.py": OWN_REGION,
        "own_package/timing.py": "from own_package.deep import x\n",
        "own_package/deep.py": "x = 1\n",
        "gains.py": "GAIN = 1.0\n",
        "unrelated.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_package", "gains")]:
        del sys.modules[name]


def plan_own(create="own_package.region:create"):
    builder = BrainBuilder("own").sensor("cue", 4).python_region("mine", create).pathway("cue", "mine", 1.0)
    (cell,) = plan_cells(builder.spec(), (), (1,), Job(time_ms=5.0))
    return cell


def test_the_key_of_a_cell_follows_the_source_of_own_regions(own_code):
    keys = {plan_own().key}
    changed = ["region.py", "__init__.py", "timing.py", "deep.py", "../gains.py"]
    for name in changed:
        path = own_code / "own_package" / name
        path.write_text(path.read_text() + "# changed\n")
        keys.add(plan_own().key)
    assert len(keys) == 1 + len(changed)
    (own_code / "unrelated.py").write_text("# changed\n")
    assert plan_own().key in keys
    assert "own_package" not in sys.modules  # the source is read, not run
    # A module that is installed counts with its package, not with what is installed beside it.
    assert len(plan_own("msgspec.json:encode").code["msgspec.json:encode"]) == 64
    assert plan_own("no_such_module:create").code == {"no_such_module:create": ""}


def test_a_module_that_may_be_part_of_a_package_or_not(own_code, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders")
    own_code = own_code.rename(folder / "brains")
    (folder / "brains.py").write_text("not part of the region")
    (own_code / "alone.py").write_text(
        "try:\n    from .gains import GAIN\nexcept ImportError:\n    from gains import GAIN\n"
    )
    sys.path.insert(0, str(own_code))
    try:
        before = plan_own("alone:create").key
        (own_code / "gains.py").write_text("GAIN = 2.0\n")
        assert plan_own("alone:create").key != before
    finally:
        sys.path.remove(str(own_code))


def test_a_worker_whose_main_module_has_no_file(monkeypatch):
    monkeypatch.setattr("neuraxis.process.pickling._of_parent", False)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # workers of xdist have none
    assert plan_own("__main__:create").code == {"__main__:create": ""}


def test_a_worker_that_loaded_other_code_refuses_the_cell(own_code):
    first = plan_own()
    assert "answer" in run_cell(cell_work(first, Job(time_ms=5.0)))
    (own_code / "gains.py").write_text("GAIN = 2.0\n")
    second = plan_own()
    refused = run_cell(cell_work(second, Job(time_ms=5.0)))["error"]
    assert "own_package.region:create: its source on the worker is not that of the sweep" in refused
    assert "answer" in run_cell(cell_work(first, Job(time_ms=5.0)))


def test_a_stimulus_that_changes_during_a_sweep_is_noticed(tmp_path):
    shown = tmp_path / "cues.csv"
    shown.write_text("start_ms,stop_ms,sensor,group,value\n0,1,cue,2,1.0\n")
    job = Job(stimulus=str(shown), stimulus_digest=digest_of_file(shown))
    (cell,) = plan(job=job)
    assert "answer" in run_cell(cell_work(cell, job))
    shown.write_text("start_ms,stop_ms,sensor,group,value\n0,1,cue,1,1.0\n")
    assert "cues.csv: has changed since the sweep began" in run_cell(cell_work(cell, job))["error"]


# --- what is kept ---


def test_stored_results_are_complete_and_locked_by_one_sweep(tmp_path):
    one, other = plan(seeds=(1, 2))
    with SweepFolder(tmp_path / "cells") as folder:
        assert folder.read(one) is None
        folder.write(one, {"answer": {"accuracy": 0.5}})
        folder.write(one, {"error": "x", "traceback": ""})
        with pytest.raises(InvalidArgument, match="another sweep uses this folder"), SweepFolder(tmp_path / "cells"):
            pass
    (tmp_path / "cells" / ".half.tmp").write_text('{"ans')
    (tmp_path / "cells" / f"{other.key}.json").write_text('{"ans')
    with SweepFolder(tmp_path / "cells") as folder:
        assert folder.read(one)["error"] == "x"
        assert folder.read(other) is None
        folder.remove([one, other])
        assert folder.read(one) is None
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [".lock"]
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match="results cannot be written there"), SweepFolder(tmp_path / "file"):
        pass


# --- the table and the picture ---


@pytest.fixture
def run():
    """A grid of 2 x 2 settings and two seeds; a cell failed and one was not run."""
    cells = [
        Cell({"kind": kind, "a.b.config.size": size}, seed, "", f"{kind}{size}{seed}")
        for kind in ("x", [1, 2])
        for size in (10, 20)
        for seed in (1, 2)
    ]
    records = [
        {"answer": {"accuracy": (i + 1) / 10, "fingerprint": f"f{i}", "rates_hz": {"cortex": float(i)}}}
        for i in range(8)
    ]
    records[2] = {"error": "ValueError: no, never", "traceback": "..."}
    return SweepRun(cells, [*records[:7], None], 7, True)


def test_a_row_for_each_cell_that_was_run(run, tmp_path):
    table = sweep_table(run)
    assert table.columns == ["kind", "a.b.config.size", "seed", "accuracy", "fingerprint", "rates_hz.cortex", "error"]
    assert len(table.rows) == 7
    assert [row["error"] for row in table.rows].count(None) == 6
    write_table(table, tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[2] == {
        "kind": "x", "a.b.config.size": "20", "seed": "1", "accuracy": "", "fingerprint": "", "rates_hz.cortex": "",
        "error": "ValueError: no, never",
    }  # fmt: skip
    assert rows[6]["kind"] == "[1, 2]"
    write_table(table, tmp_path / "t.parquet")
    kept = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert kept == [{**row, "kind": row["kind"] if row["kind"] == "x" else "[1, 2]"} for row in table.rows]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.parquet"]


def test_numbers_round_trip_through_parquet(tmp_path):
    columns = {
        "seed": [2**64 - 1, 3],
        "large": [2**53 + 1, 0.5],
        "wide": [-1, 2**63],
        "mixed": [1, 0.5],
        "flag": [True, None],
    }
    cells = [Cell({}, seed, "", str(seed)) for seed in columns.pop("seed")]
    records = [{"answer": {name: values[i] for name, values in columns.items()}} for i in range(2)]
    table = sweep_table(SweepRun(cells, records, 2, False))
    write_table(table, tmp_path / "t.parquet")
    kept = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert kept["seed"] == [2**64 - 1, 3]
    assert kept["large"] == [str(2**53 + 1), "0.5"]
    assert kept["wide"] == ["-1", str(2**63)]
    assert kept["mixed"] == [1.0, 0.5]
    assert kept["flag"] == [True, None]


def test_a_summary_over_seeds(run):
    table = sweep_table(run)
    assert [(list(chosen.values()), len(rows)) for chosen, rows in grouped(table)] == [
        (["x", 10], 2),
        (["x", 20], 1),
        ([[1, 2], 10], 2),
        ([[1, 2], 20], 1),
    ]
    header, first, second, *_ = (line.split() for line in summary(table))
    assert header == ["kind", "a.b.size", "seeds", "accuracy"]
    assert first == ["x", "10", "2", "0.15", "±", "0.071"]
    assert second == ["x", "20", "1", "0.4"]


def test_a_picture_shows_every_cell_and_the_means(run):
    table = sweep_table(run)
    ax = plot_metric(table, "accuracy", Figure().subplots())
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in ax.get_lines()}
    assert lines == {
        "a.b.size=10": [(0.0, pytest.approx(0.15)), (1.0, pytest.approx(0.55))],
        "a.b.size=20": [(0.0, pytest.approx(0.4)), (1.0, pytest.approx(0.7))],
    }
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["x", "[1, 2]"]
    assert sum(len(marks.get_offsets()) for marks in ax.collections) == 6
    figure = plot_sweep(table, "brain")
    assert figure.get_suptitle() == "brain: 6 cells, 1 failed"


def test_seeds_alone_are_along_the_axis():
    cells = [Cell({}, seed, "", str(seed)) for seed in (3, 5)]
    records = [{"answer": {"rates_hz": {"cortex": 1.0, "thalamus": 2.0}}}, {"answer": {"rates_hz": {"cortex": 3.0}}}]
    table = sweep_table(SweepRun(cells, records, 2, False))
    figure = plot_sweep(table, "brain")
    cortex, thalamus = figure.axes
    assert (cortex.get_title(), thalamus.get_title()) == ("cortex (Hz)", "thalamus (Hz)")
    assert cortex.collections[0].get_offsets().tolist() == [[3.0, 1.0], [5.0, 3.0]]
    assert thalamus.collections[0].get_offsets().tolist() == [[3.0, 2.0]]


def test_all_failed_is_a_table_too(tmp_path):
    table = sweep_table(SweepRun([Cell({"a": 1}, 1, "", "k")], [{"error": "no", "traceback": ""}], 1, False))
    write_table(table, tmp_path / "t.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist() == [{"a": 1, "seed": 1, "error": "no"}]
    assert plot_sweep(table, "brain").get_suptitle() == "brain: 0 cells, 1 failed"
    assert len(summary(table)) == 1
