"""The examples: each runs and prints the expected output.

`docs/gallery/catalogue.toml` has the commands. With NEURAXIS_EXAMPLES, a folder of outputs that a build of the
documentation kept (docs/_build/examples), outputs of the same sources are checked there, and only the others run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from example_runs import (
    Example,
    ExampleFailed,
    Outcome,
    catalogue,
    digest,
    excerpt,
    kept,
    obtain,
    run_command,
    run_example,
    terminal,
)

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = catalogue()
HAS_CUDA = importlib.util.find_spec("cupy") is not None and any(Path("/dev").glob("nvidia[0-9]*"))
KEPT = os.environ.get("NEURAXIS_EXAMPLES")


def test_every_example_is_in_the_catalogue() -> None:
    programs = [path.stem for path in (ROOT / "examples").glob("[0-9]*.py")]
    assert sorted([*programs, "robot_brain"]) == sorted(EXAMPLES)


def test_the_examples_readme_names_every_program() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    for example in EXAMPLES.values():
        assert f"`{example.name}" in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    before = kept(example, Path(KEPT)) if KEPT else None
    done = before or run_example(example, tmp_path)
    assert done.status == 0, done.output
    expected = example.prints if example.needs != "GPU" or HAS_CUDA else "CUDA cannot be used here"
    assert expected in done.output
    if before is None and example.picture:
        assert (tmp_path / example.picture).stat().st_size > 5000


def test_outputs_are_kept_for_the_same_command_only(tmp_path: Path) -> None:
    says = Example("says", "Says", "Test", "echo once >> times; echo fine > drawn.svg; echo fine", "fine", "drawn.svg")
    store = tmp_path / "store"
    first = obtain(says, store)
    assert (first.status, first.output) == (0, "fine\n")
    assert (store / "says.svg").read_text() == "fine\n"
    assert obtain(says, store) == first == kept(says, store)
    other = Example("says", "Says", "Test", "echo other", "other")
    assert digest(other) != digest(says)
    assert kept(other, store) is None
    assert obtain(other, store).output == "other\n"


@pytest.mark.parametrize(
    ("command", "picture", "message"),
    [
        ("echo fine; exit 3", "", "exit code 3"),
        ("echo bad", "", "the output lacks 'fine'"),
        ("echo fine", "drawn.svg", "there is no drawn.svg"),
    ],
)
def test_an_example_that_fails_is_not_kept(command: str, picture: str, message: str, tmp_path: Path) -> None:
    example = Example("says", "Says", "Test", command, "fine", picture)
    with pytest.raises(ExampleFailed, match=message):
        obtain(example, tmp_path)
    assert kept(example, tmp_path) is None


def test_an_excerpt_has_the_important_line() -> None:
    lines = [f"line {number}" for number in range(10)]
    output = "\n".join(lines) + "\n"
    assert excerpt(output, 10, "line 9") == lines
    assert excerpt(output, 4, "line 2") == ["line 0", "line 1", "line 2", "..."]
    assert excerpt(output, 4, "line 3") == ["...", "line 7", "line 8", "line 9"]


def test_the_picture_of_a_terminal_loads_nothing() -> None:
    drawn = terminal("echo <b>", "\n".join(f"line {n}" for n in range(30)))
    assert "echo" in drawn
    assert "&lt;b&gt;" in drawn
    assert "line&#160;11" in drawn
    assert "line&#160;12" not in drawn
    assert "@font-face" not in drawn
    assert drawn.count("http") == 1  # the name of the format


def test_an_example_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("example_runs.TIMEOUT_S", 0.5)
    outcome: Outcome = run_example(Example("long", "Long", "Test", "echo begun; sleep 100", ""), tmp_path)
    assert outcome.status < 0
    assert outcome.output == "begun\n\nno end within 0.5 s"
    shutil.rmtree(tmp_path)


def test_no_process_outlives_its_command(tmp_path: Path) -> None:
    status, output = run_command("sleep 1000 > /dev/null 2>&1 & echo $!", tmp_path, 30.0)
    assert status == 0
    deadline = time.monotonic() + 10.0
    while Path(f"/proc/{int(output)}/cmdline").exists() and time.monotonic() < deadline:
        if not Path(f"/proc/{int(output)}/cmdline").read_bytes():
            return  # dead, and not reaped yet
        time.sleep(0.01)
    assert not Path(f"/proc/{int(output)}").exists()


def test_an_output_has_no_paths_of_the_machine(tmp_path: Path) -> None:
    command = f"echo {tmp_path}/a; echo {ROOT}/b; echo {Path.home()}/c; echo {sys.prefix}/d"
    status, output = run_command(command, tmp_path, 30.0)
    assert (status, output.splitlines()[:3]) == (0, ["~/a", "neuraxis/b", "~/c"])
    if sys.prefix != sys.base_prefix:
        assert output.splitlines()[3].endswith(".venv/d")


def test_a_page_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sphinx = pytest.importorskip("sphinx.application")
    pytest.importorskip("myst_nb")
    from sphinx.errors import ExtensionError

    source, temporary = tmp_path / "docs", tmp_path / "temporary"
    source.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (source / "conf.py").write_text("extensions = ['myst_nb', 'programs']\nnb_execution_mode = 'off'\n")
    (source / "index.md").write_text("# Start\n\n```{file} a.txt\nhello\n```\n\n```{shell}\ncat a.txt; exit 3\n```\n")
    app = sphinx.Sphinx(source, source, tmp_path / "html", tmp_path / "trees", "html", status=None, warning=None)
    with pytest.raises(ExtensionError, match=r"index\.md:7: exit code 3, expected 0:\ncat a.txt; exit 3\nhello"):
        app.build()
    assert list(temporary.glob("neuraxis-docs-*")) == []
