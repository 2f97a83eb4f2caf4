"""`neuraxis demo`, mostly in this process, with a small brain instead of the default one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from neuraxis.brain.tasks import CueActionTask
from neuraxis.engine.precompile import warm_up
from tests.brain.test_brain import small

KEYS = {"accuracy", "trials", "real_time_factor", "fingerprint"}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The first run on a machine says that it compiles, which is not what these tests look for."""
    warm_up()


def demo(*words):
    """The exit status."""
    from neuraxis.cli.demo import demo as app

    with pytest.raises(SystemExit) as ended:
        app([*map(str, words)])
    return ended.value.code


@pytest.fixture
def small_brain(monkeypatch, tmp_path):
    monkeypatch.setattr("neuraxis.brain.default.default_brain", lambda seed: small(seed).spec())
    monkeypatch.chdir(tmp_path)


class Page(HTMLParser):
    """Parse a page: fail if elements are not nested properly; store the text and external references."""

    VOID = ("meta", "link", "br", "img", "hr", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.elsewhere = [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.elsewhere += [value for name, value in attributes if name in ("src", "href") and value[:1] != "#"]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_default_brain_gives_the_same_in_one_process_and_in_two(tmp_path, capsys):
    """The one test here that runs what a user runs."""
    assert demo("--trials", 2, "--seed", 3, "--json", "--sequential", "--html", tmp_path / "alone.html") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    alone = json.loads(printed.out)
    command = [sys.executable, "-m", "neuraxis", "demo", "--trials", "2", "--seed", "3", "--json", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    together = json.loads(done.stdout)
    assert set(alone) >= KEYS
    assert alone["fingerprint"] == together["fingerprint"]
    assert (alone["workers"], together["workers"]) == (1, 2)
    assert alone["neurons"] == together["neurons"] >= 2000
    assert (alone["trials"], alone["seed"], alone["task"]) == (2, 3, "cue-action")
    assert alone["accuracy"] == together["accuracy"]
    assert alone["real_time_factor"] > 0
    for path in (tmp_path / "alone.html", tmp_path / "neuraxis-demo.html"):
        page = Page(path.read_text())
        assert page.elsewhere == []  # it works offline
        for words in ("4 cues to 4 actions", alone["fingerprint"], "hippocampus", "reward"):
            assert words in page.text


def test_the_text_output(small_brain, capsys, tmp_path):
    assert demo("--trials", 2, "--sequential") == 0
    printed = capsys.readouterr()
    trials, fingerprint, report = printed.out.splitlines()
    assert trials.startswith("2 trials in ")
    assert "of the last 2 right (chance 25%)" in trials
    assert fingerprint.startswith("fingerprint ")
    assert report == "the report: neuraxis-demo.html"
    assert "<Brain 'small'" in printed.err
    assert (tmp_path / "neuraxis-demo.html").exists()


@pytest.mark.parametrize("task", ["delayed", "reversal"])
def test_the_other_forms_of_the_task(small_brain, capsys, task):
    assert demo("--trials", 2, "--sequential", "--task", task, "--json") == 0
    assert json.loads(capsys.readouterr().out)["task"] == task


def test_seeds_differ(small_brain, capsys):
    fingerprints = []
    for seed in (1, 1, 2):
        assert demo("--trials", 1, "--sequential", "--seed", seed, "--json") == 0
        fingerprints.append(json.loads(capsys.readouterr().out)["fingerprint"])
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_ctrl_c_ends_after_the_trial_and_the_page_shows_the_trials_so_far(small_brain, capsys, monkeypatch, tmp_path):
    run_trial = CueActionTask.run_trial

    def interrupted_in_the_second(task):
        if len(task.trials) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return run_trial(task)

    monkeypatch.setattr(CueActionTask, "run_trial", interrupted_in_the_second)
    assert demo("--trials", 1000, "--sequential", "--json") == 130
    printed = capsys.readouterr()
    assert json.loads(printed.out)["trials"] == 2
    assert printed.err.splitlines()[-1].startswith("interrupted after trial 2; the report shows these: neuraxis-demo")
    assert "2 trials" in Page((tmp_path / "neuraxis-demo.html").read_text()).text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trials", "0"], "neuraxis demo: --trials=0: must be 1 or more"),
        (["--seed", "-1"], "neuraxis demo: --seed=-1: must be 0 or more"),
        (["--workers", "0"], "neuraxis demo: --workers 0: at least one process is needed"),
        (["--workers", "many"], "neuraxis demo: --workers many: not a number; give a number of processes, or auto"),
        (
            ["--workers", "2", "--sequential"],
            "neuraxis demo: --workers 2 and --sequential exclude each other",
        ),
        (["--html", "no/such/folder/page.html"], "neuraxis demo: --html no/such/folder/page.html: the folder"),
        (["--html", "/"], "neuraxis demo: --html /: cannot be written"),
    ],
)
def test_bad_options_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert demo(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--task", "sleep"], ["--trials", "ten"], ["--trails", "3"]])
def test_words_that_are_no_options(words, capsys):
    assert demo(*words) == 2
    printed = capsys.readouterr()
    assert words[-1] in printed.out + printed.err or words[0] in printed.out + printed.err
