"""`neuraxis run`: a file, a task or a stimulus; saved and resumed states."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from neuraxis.brain import Brain, default_brain, read_spec, write_spec
from neuraxis.brain.tasks import CueActionTask
from neuraxis.engine.precompile import warm_up
from neuraxis.simulation import read_spikes
from tests.brain.test_brain import small

CUES = """start_ms,stop_ms,sensor,group,value
0,30,cue,2,1.0
40,60,cue,,0.5
50,,reward,,1
"""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The first run on a machine says that it compiles, which is not what these tests look for."""
    warm_up()


def run(*words):
    """The exit status."""
    from neuraxis.cli.run import run as app

    with pytest.raises(SystemExit) as ended:
        app([*map(str, words)])
    return ended.value.code


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a brain and a stimulus."""
    monkeypatch.chdir(tmp_path)
    write_spec(small().spec(), "brain.toml")
    Path("cues.csv").write_text(CUES)
    return tmp_path


def answer(capsys, *words):
    status = run(*words, "--sequential", "--json")
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    return json.loads(printed.out)


# --- what it runs ---


def test_a_stimulus_reaches_the_brain(here, capsys):
    found = answer(capsys, "brain.toml", "--stimulus", "cues.csv")
    with Brain(small().spec()) as brain:
        brain.step([0, 0, 1, 0], 300)
        brain.step(None, 100)
        brain.step([0.5] * 4, 100)
        brain.deliver_reward(1.0)
        brain.step([0.5] * 4, 100)
        assert found["fingerprint"] == brain.fingerprint()
    assert found["time_ms"] == pytest.approx(60.0)
    assert (found["neurons"], found["workers"], found["seed"]) == (brain.neuron_count, 1, 1)
    assert found["rates_hz"]["cue"] > 0
    # Longer and shorter than the stimulus.
    assert answer(capsys, "brain.toml", "--stimulus", "cues.csv", "--time-ms", 70)["time_ms"] == pytest.approx(70.0)
    assert answer(capsys, "brain.toml", "--stimulus", "cues.csv", "--time-ms", 20)["time_ms"] == pytest.approx(20.0)


def test_a_task_is_learned(here, capsys):
    found = answer(capsys, "brain.toml", "--task", "cue-action", "--trials", 2, "--html", "report.html")
    with Brain(small().spec()) as brain:
        task = CueActionTask(brain)
        task.run_trial()
        task.run_trial()
        assert found["fingerprint"] == brain.fingerprint()
        assert (found["trials"], found["accuracy"]) == (2, task.accuracy())
    assert "to map 4 cues to 4 actions" in Path("report.html").read_text()


def test_without_anything_it_runs_for_a_second(here, capsys):
    assert run("brain.toml", "--sequential", "--seed", 5) == 0
    printed = capsys.readouterr()
    assert "1,000 ms of " in printed.out
    assert printed.out.splitlines()[-1].startswith("fingerprint ")
    reported = [line.split()[0] for line in printed.out.splitlines()[:5]]
    assert reported == ["cue", "thalamus", "cortex", "striatum", "motor"]


def test_a_seed_replaces_that_of_the_file(here, capsys):
    with Brain(small(seed=5).spec()) as brain:
        brain.run(20.0)
        assert answer(capsys, "brain.toml", "--time-ms", 20, "--seed", 5)["fingerprint"] == brain.fingerprint()


def test_as_a_command_on_two_workers_it_gives_the_same(here, capsys):
    expected = answer(capsys, "brain.toml", "--stimulus", "cues.csv")
    command = [sys.executable, "-m", "neuraxis", "run", "brain.toml", "--stimulus", "cues.csv", "--workers", "2"]
    words = ["--json", "--on-worker-loss", "restart", "--record", "spikes.h5"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["fingerprint"], found["workers"]) == (expected["fingerprint"], 2)
    assert len(read_spikes("spikes.h5")["cortex.L4e"][0]) > 0


# --- ranks ---


def launched(*words, ranks=2):
    """The command that has ranks run a brain; each word after it is the brain's."""
    launcher = [sys.executable, "-m", "neuraxis", "launch", "-n", str(ranks), "--no-prefix", "--grace", "20"]
    return [*launcher, "-m", "neuraxis", "run", *map(str, words)]


def test_launched_ranks_give_the_same_result_and_rank_0_prints_it(here, capsys):
    words = ["brain.toml", "--task", "cue-action", "--trials", 1, "--json"]
    expected = answer(capsys, *words[:-1])
    kept = ["--html", "report.html", "--record", "spikes.h5", "--checkpoint", "state"]
    done = subprocess.run(
        launched(*words, *kept, "--lockstep", "shm"), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert (found["fingerprint"], found["accuracy"], found["workers"]) == (
        expected["fingerprint"],
        expected["accuracy"],
        2,
    )
    assert "to map 4 cues to 4 actions" in Path("report.html").read_text()
    assert len(read_spikes("spikes.h5")["cortex.L4e"][0]) > 0
    # The state continues in one process.
    longer = answer(capsys, *words[:3], "--trials", 2)
    again = answer(capsys, *words[:3], "--trials", 2, "--checkpoint", "state", "--resume")
    assert again["fingerprint"] == longer["fingerprint"]


def test_ctrl_c_ends_all_ranks_at_the_same_step_and_keeps_the_state(here, capsys):
    words = ["brain.toml", "--stimulus", "cues.csv", "--checkpoint", "state"]
    with subprocess.Popen(
        launched(*words, "--time-ms", 10_000_000, "--lockstep", "shm"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert "<Brain 'small'" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.count("interrupted at ") == 1
    reached = float(err.split("interrupted at ")[1].split(" ms")[0])
    assert out.splitlines()[-1].startswith("fingerprint ")
    expected = answer(capsys, *words[:3], "--time-ms", reached + 10)
    found = answer(capsys, *words, "--time-ms", reached + 10, "--resume")
    assert found["fingerprint"] == expected["fingerprint"]


def test_a_rank_that_is_killed_ends_the_others(here):
    with subprocess.Popen(
        launched("brain.toml", "--time-ms", 10_000_000, "--lockstep", "shm"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert "<Brain 'small'" in process.stderr.readline()
        ranks = [one for one in psutil.Process(process.pid).children(recursive=True) if "run" in one.cmdline()]
        (second,) = [one for one in ranks if one.environ().get("RANK") == "1"]
        second.kill()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL
    assert out == ""
    assert "neuraxis run: rank 1 " in err
    assert "rank 1 (pid" in err


# --- what it keeps ---


def test_spikes_are_recorded_and_can_be_shown_again(here, capsys):
    first = answer(capsys, "brain.toml", "--stimulus", "cues.csv", "--record", "spikes.h5")
    recorded = read_spikes("spikes.h5")
    assert "reward" not in recorded
    again = answer(capsys, "brain.toml", "--stimulus", "spikes.h5", "--time-ms", 60)
    assert again["rates_hz"]["cue"] == first["rates_hz"]["cue"] > 0
    assert again["rates_hz"]["cortex"] == first["rates_hz"]["cortex"] > 0


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        (["--stimulus", "cues.csv"], ["--stimulus", "cues.csv", "--time-ms", "45"]),
        (["--task", "cue-action", "--trials", "3"], ["--task", "cue-action", "--trials", "1"]),
    ],
    ids=["stimulus", "task"],
)
def test_a_run_in_two_parts_is_the_whole(here, capsys, whole, part):
    expected = answer(capsys, "brain.toml", *whole)
    answer(capsys, "brain.toml", *part, "--checkpoint", "state")
    found = answer(capsys, "brain.toml", *whole, "--checkpoint", "state", "--resume")
    for name in ("fingerprint", "time_ms", *(["accuracy", "trials"] if "--task" in whole else [])):
        assert found[name] == expected[name]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_the_state(number, status, here, capsys, monkeypatch):
    words = ["brain.toml", "--task", "cue-action", "--trials", 3]
    expected = answer(capsys, *words)
    run_trial = CueActionTask.run_trial

    def interrupted(task):
        if not task.trials:
            os.kill(os.getpid(), number)
        return run_trial(task)

    with monkeypatch.context() as patch:
        patch.setattr(CueActionTask, "run_trial", interrupted)
        assert run(*words, "--checkpoint", "state", "--sequential", "--json") == status
    printed = capsys.readouterr()
    assert json.loads(printed.out)["trials"] == 1
    assert printed.err.startswith("interrupted at 680 ms of model time; state in state")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert answer(capsys, *words, "--checkpoint", "state", "--resume")["fingerprint"] == expected["fingerprint"]


def test_ctrl_c_in_a_stimulus(here, capsys, monkeypatch):
    step = Brain.step

    def interrupted(brain, given=None, n_timesteps=1):
        if brain.steps == 400:
            os.kill(os.getpid(), signal.SIGINT)
        return step(brain, given, n_timesteps)

    words = ["brain.toml", "--stimulus", "cues.csv", "--time-ms", 400, "--sequential", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(Brain, "step", interrupted)
        assert run(*words, "--checkpoint", "state") == 130
    printed = capsys.readouterr()
    assert 40 <= json.loads(printed.out)["time_ms"] < 400
    assert "interrupted at " in printed.err
    found = answer(capsys, *words[:-2], "--checkpoint", "state", "--resume")
    assert found["fingerprint"] == answer(capsys, *words[:-2])["fingerprint"]


def test_a_file_to_start_from(here, capsys):
    assert run("--write", "default.toml") == 0
    assert capsys.readouterr().out == "wrote default.toml\n"
    assert read_spec("default.toml") == default_brain()
    assert run("brain.toml", "--seed", 9, "--write", "nine.toml") == 0
    assert read_spec("nine.toml") == small(seed=9).spec()


# --- what it refuses ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.toml"], "nowhere.toml: there is no such file"),
        (["broken.toml"], "broken.toml: line 1: "),
        (["wrong.toml"], "wrong.toml: regions.cortex.kind: there is no kind of region 'kortex'"),
        (["brain.toml", "--stimulus", "no.csv"], "no.csv: cannot be read"),
        (["brain.toml", "--stimulus", "wrong.csv"], "wrong.csv: line 3: no sensor 'nose'"),
        (["brain.toml", "--stimulus", "cues.csv", "--task", "delayed"], "--task defines the length"),
        (["brain.toml", "--task", "delayed", "--time-ms", "5"], "--task defines the length"),
        (["brain.toml", "--html", "page.html"], "--html writes the report of a task"),
        (["brain.toml", "--resume"], "--resume: the folder is missing"),
        (["brain.toml", "--resume", "--checkpoint", "nowhere"], ""),
        (["brain.toml", "--checkpoint", "cues.csv"], ""),
        (["brain.toml", "--record", "no/such/spikes.h5"], "--record no/such/spikes.h5: the folder"),
        (["brain.toml", "--write", "no/such/brain.toml"], "--write no/such/brain.toml: the folder"),
        (["brain.toml", "--task", "delayed", "--trials", "0"], "--trials=0"),
        (["brain.toml", "--time-ms", "0"], "--time-ms=0"),
        (["brain.toml", "--time-ms", "nan"], "--time-ms"),
        (["brain.toml", "--seed", "-1"], "--seed=-1"),
        (["brain.toml", "--workers", "none"], "--workers none"),
        (["brain.toml", "--workers", "3", "--sequential"], "--workers 3 and --sequential"),
        (
            ["brain.toml", "--lockstep", "gloo"],
            "--lockstep gloo: no launcher started this command; run neuraxis launch -n 4 -m neuraxis run brain.toml",
        ),
        (["brain.toml", "--lockstep", "mpi"], "--lockstep mpi: no launcher started this command; run mpirun -n 4 "),
        (["brain.toml", "--lockstep", "shm", "--workers", "2"], "--lockstep shm: the ranks run the brain; leave out"),
        (["brain.toml", "--lockstep", "shm", "--sequential"], "--lockstep shm: the ranks run the brain; leave out"),
        (
            ["brain.toml", "--lockstep", "shm", "--on-worker-loss", "restart"],
            "--on-worker-loss restart: ranks",
        ),
    ],
)
def test_errors_are_one_line(here, capsys, words, message):
    Path("broken.toml").write_text("name = \n")
    Path("wrong.toml").write_text(Path("brain.toml").read_text().replace('kind = "cortex"', 'kind = "kortex"'))
    Path("wrong.csv").write_text(CUES.replace("40,60,cue", "40,60,nose"))
    before = sorted(path.name for path in here.iterdir())
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"neuraxis run: {message}")
    assert sorted(path.name for path in here.iterdir()) == before


def test_the_state_of_another_task_is_refused(here, capsys):
    answer(capsys, "brain.toml", "--task", "cue-action", "--trials", 1, "--checkpoint", "state")
    before = np.frombuffer(Path("state/manifest.json").read_bytes(), np.uint8)
    words = ["--checkpoint", "state", "--resume", "--sequential", "--json"]
    assert run("brain.toml", "--task", "delayed", "--trials", 2, *words) == 2
    assert "another" in capsys.readouterr().err
    assert run("brain.toml", "--task", "cue-action", "--trials", 2, "--seed", 4, *words) == 1
    assert "seed was 1, here it is 4" in capsys.readouterr().err
    assert np.array_equal(before, np.frombuffer(Path("state/manifest.json").read_bytes(), np.uint8))
