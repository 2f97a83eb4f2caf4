"""`neuraxis bench brain`: the real command on tiny networks, and its figures for hand-made results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from neuraxis.bench.brain.measure import Entry, Results, Sample, StartUp, disagreements, measure
from neuraxis.bench.brain.plan import Contender, Plan, contenders_for, options_for, unable
from neuraxis.bench.brain.report import report, targets
from neuraxis.bench.harness import LeftOut
from neuraxis.bench.processes import ContenderFailed
from neuraxis.bench.programs import PEERS_VARIABLE, find_peers_python, left_out_peers, run_program
from neuraxis.errors import InvalidArgument
from tests.ranks.marked_processes import MARK, marked

COMMAND = [sys.executable, "-m", "neuraxis", "bench", "brain"]
LIMIT_S = 100
TINY = ("--networks", "brunel", "--order", "20", "--time-ms", "20", "--repeats", "1", "--json")


def bench(*words: str) -> dict[str, Any]:
    done = subprocess.run([*COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("too busy" in line for line in done.stderr.splitlines())  # no progress where there is no terminal
    data: dict[str, Any] = json.loads(done.stdout)
    return data


# --- the real command ---


@pytest.fixture(scope="module")
def race() -> dict[str, Any]:
    """One worker, compared with NEST where it is installed."""
    return bench(*TINY, "--workers", "1", "--peers", "nest")


def test_a_run_has_every_sample_and_its_medians(race: dict[str, Any]) -> None:
    ours = race["entries"][0]
    assert (ours["network"], ours["contender"]) == ("brunel", {"simulator": "neuraxis", "cores": 1})
    (sample,) = ours["samples"]
    assert (sample["neurons"], sample["synapses"], sample["time_ms"]) == (100, 100 * (8 + 2), 20.0)
    assert sample["spikes"] > 0
    assert sample["rate_hz"] == pytest.approx(sample["spikes"] / 100 / 0.02)
    assert sample["synaptic_events"] > 0
    assert ours["median"]["real_time_factor"] == pytest.approx(sample["run_seconds"] / 0.02)
    assert ours["median"]["ratio"] == 1.0
    assert ours["median"]["cpu_factor"] == pytest.approx(sample["cpu_seconds"] / 0.02)
    assert sample["cpu_seconds"] > 0
    assert ours["first"]["fingerprint"] == sample["fingerprint"] != ""
    assert sample["process_seconds"] > sample["ready_seconds"] > sample["build_seconds"] > 0
    assert race["failures"] == race["disagreements"] == []
    assert {"cpu", "cores", "memory", "neuraxis", "numba"} <= set(race["machine"])


def test_a_run_measures_the_start_up(race: dict[str, Any]) -> None:
    assert race["start_up"]["workers"] == 1
    assert len(race["start_up"]["import_seconds"]) == len(race["start_up"]["ready_seconds"]) == 1
    assert [t["target"]["figure"] for t in race["targets"]] == ["import_seconds", "ready_seconds"]


def test_nest_is_measured_or_skipped_with_an_install_hint(race: dict[str, Any]) -> None:
    if race["left_out"]:
        assert [gone["contender"] for gone in race["left_out"]] == ["nest"]
        assert "benchmarks/peers.sh" in race["left_out"][0]["remedy"]
        pytest.skip("NEST is not installed: benchmarks/peers.sh")
    nest = race["entries"][1]
    assert nest["contender"] == {"simulator": "nest", "cores": 1}
    (sample,) = nest["samples"]
    assert (sample["neurons"], sample["synapses"], sample["time_ms"]) == (100, 1000, 20.0)
    ours = race["entries"][0]["median"]["real_time_factor"]
    assert nest["median"]["ratio"] == pytest.approx(nest["median"]["real_time_factor"] / ours)
    assert race["machine"]["nest"] == sample["version"]


def test_scaling_runs_neuraxis_alone_and_compares_the_spikes() -> None:
    data = bench(*TINY, "--scaling", "2,1")
    one, two = data["entries"]
    assert [entry["contender"] for entry in (one, two)] == [{"simulator": "neuraxis", "cores": n} for n in (1, 2)]
    assert one["median"]["efficiency"] == 1.0
    speed_up = two["median"]["events_per_second"] / one["median"]["events_per_second"]
    assert two["median"]["efficiency"] == pytest.approx(speed_up / 2)
    assert one["median"]["cpu_factor"] is not None
    assert two["median"]["cpu_factor"] is None  # the workers' processor time is not known here
    assert one["samples"][0]["fingerprint"] == two["samples"][0]["fingerprint"] == two["first"]["fingerprint"]
    assert data["start_up"] is None
    assert data["targets"] == data["left_out"] == data["disagreements"] == []


def test_ctrl_c_ends_everything() -> None:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, "--scaling", "1", "--networks", "brunel", "--time-ms", "10000000"],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        while not marked(mark, "ours.py"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert not marked(mark)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--networks", "brunel,cortex"], "'cortex' is not one of brunel, microcircuit, hpc"),
        (["--peers", "neuron"], "'neuron' is not one of nest, brian2, none"),
        (["--peers-python", "/no/such/python"], "--peers-python=/no/such/python: there is no Python"),
        (["--workers", "0", "--peers", "none"], "--workers is 0: at least one process is needed"),
        (["--scaling", "1,many"], "--scaling 1,many: numbers of workers"),
        (["--scaling", "0,2"], "--scaling 0: 1 or more is expected"),
        (["--order", "3", "--peers", "none"], "--order 3: 10 or more is expected"),
        (["--scale", "1.5", "--peers", "none"], "--scale 1.5: above 0 and at most 1"),
        (["--hpc-scale", "0", "--peers", "none"], "--hpc-scale 0.0: 0.01 or more"),
        (["--time-ms", "0", "--peers", "none"], "--time-ms 0.0: 0.1 or more"),
        (["--repeats", "0", "--peers", "none"], "--repeats 0: 1 or more"),
        (["--timeout", "nan", "--peers", "none"], "--timeout nan: above 0"),
        (["--json", "--markdown"], "choose one"),
    ],
)
def test_bad_arguments(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli.bench import app

    with pytest.raises(SystemExit) as ended:
        app(["brain", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())


# --- programs ---


def test_a_program_that_takes_too_long_is_ended_with_its_children() -> None:
    mark = uuid.uuid4().hex
    # A shell's child in the background takes no notice of Ctrl-C, which ends the shell.
    command = ["env", f"{MARK}={mark}", "sh", "-c", "sleep 60 & wait"]
    with pytest.raises(ContenderFailed, match=r"not done after 0\.5 s"):
        run_program(command, 0.5)
    # SIGKILL was sent; the kernel takes a moment to do it.
    psutil.wait_procs(marked(mark), timeout=10)
    assert not marked(mark)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('too many')", "exit status 1: ValueError: too many"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
        ("pass", "it printed nothing"),
    ],
)
def test_a_failing_program_reports_its_reason(text: str, message: str) -> None:
    with pytest.raises(ContenderFailed) as failed:
        run_program([sys.executable, "-c", text], LIMIT_S)
    assert str(failed.value) == message


def test_the_last_line_of_a_program_is_its_answer() -> None:
    assert run_program([sys.executable, "-c", "print('banner\\n\\n{}\\n')"], LIMIT_S) == "{}"


def test_a_failing_contender_is_skipped_and_reported() -> None:
    """The interpreter of the peers cannot be started; neuraxis is still measured, and its own failure is unsound."""
    plan = Plan((Contender("neuraxis", 1), Contender("nest", 1)), ("brunel",), order=20, time_ms=1.0, repeats=2)
    plan = msgspec.structs.replace(plan, peers_python="/no/such/python", scaling=True, limit_s=0.001)
    results = measure(plan)
    assert [(failure.contender.simulator, failure.reason) for failure in results.failures] == [
        ("neuraxis", "not done after 0.001 s, and ended"),
        ("nest", "/no/such/python could not be started: No such file or directory"),
    ]
    assert not results.sound


def test_where_the_peers_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuraxis.bench import programs

    python = tmp_path / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PEERS_VARIABLE, raising=False)
    monkeypatch.setattr(programs.neuraxis, "__file__", str(tmp_path / "a" / "b" / "neuraxis.py"))
    assert find_peers_python() == str(python)  # and not what the link leads to
    monkeypatch.setenv(PEERS_VARIABLE, "/bin/sh")
    assert find_peers_python() == "/bin/sh"
    assert find_peers_python(str(python)) == str(python)
    monkeypatch.setenv(PEERS_VARIABLE, "/no/such/python")
    with pytest.raises(InvalidArgument, match=f"{PEERS_VARIABLE}=/no/such/python"):
        find_peers_python()
    monkeypatch.delenv(PEERS_VARIABLE)
    python.unlink()
    assert find_peers_python() == sys.executable


def test_a_peer_that_is_not_installed_is_skipped() -> None:
    (gone,) = left_out_peers(["no_such_simulator"], sys.executable).values()
    assert gone.reason == f"{sys.executable} has no module no_such_simulator"
    assert "benchmarks/peers.sh" in gone.remedy
    assert left_out_peers(["json"], sys.executable) == {}


# --- plans ---


def test_brian2_runs_on_one_core_as_well() -> None:
    contenders = contenders_for(("nest", "brian2"), 2)
    assert list(map(str, contenders)) == [
        "neuraxis, 2 workers",
        "nest, 2 threads",
        "brian2, 1 thread",
        "brian2, 2 threads",
    ]
    assert len(contenders_for(("brian2",), 1)) == 2


def test_networks_that_a_peer_cannot_run_are_skipped() -> None:
    plan = Plan(contenders_for((), 2))
    gone = unable(plan, "microcircuit", Contender("nest", 2))
    assert gone is not None
    assert "134 million synapses" in gone.reason
    assert unable(plan, "microcircuit", Contender("nest", 4)) is None
    assert unable(msgspec.structs.replace(plan, scale=0.9), "microcircuit", Contender("nest", 2)) is None
    assert unable(plan, "hpc", Contender("nest", 2)) is None
    assert unable(plan, "hpc", Contender("brian2", 1)) is not None
    assert unable(plan, "microcircuit", Contender("neuraxis", 1)) is None


def test_everybody_is_asked_for_the_same_network() -> None:
    plan = Plan(contenders_for(("nest",), 2), order=500, scale=0.5, hpc_scale=0.25, time_ms=7.0)
    for network, name, scale in (
        ("brunel", "brunel", 0.2),
        ("microcircuit", "microcircuit", 0.5),
        ("hpc", "hpc_benchmark", 0.25),
    ):
        for contender in plan.contenders:
            options = options_for(plan, network, contender)
            assert (options["network"], options["scale"], options["time_ms"]) == (name, scale, 7.0)
            assert options["presim_ms"] == 100.0
    assert options_for(plan, "brunel", plan.contenders[0])["order"] == 500


# --- results made by hand ---


def sample(run_seconds: float, build_seconds: float = 1.0, **more: Any) -> Sample:
    return Sample("1.0", 12_500, 15_625_000, 500.0, build_seconds, run_seconds, 1_000, 0.16, **more)


def ours(run_seconds: float, build_seconds: float = 1.0, fingerprint: str = "aa") -> Sample:
    return sample(run_seconds, build_seconds, synaptic_events=1_250_000, fingerprint=fingerprint)


def test_processor_time_is_that_of_the_samples_that_report_it() -> None:
    samples = [sample(1.0, cpu_seconds=0.25), sample(1.0), sample(1.0, cpu_seconds=0.75)]
    assert Entry("brunel", Contender("nest", 1), samples).cpu_factor == 1.0  # 0.5 s for half a second of model time
    assert Entry("brunel", Contender("nest", 1), [sample(1.0)]).cpu_factor is None


def hand_made(microcircuit: Sample, **changes: Any) -> Results:
    contenders = contenders_for(("nest", "brian2"), 2)
    times = ([0.2, 0.1, 0.9], [1.0, 3.0, 2.2], [1.0], [0.9])  # medians 0.2, 2.2, 1.0 and 0.9
    entries = [
        Entry("brunel", contender, [ours(s) if contender.simulator == "neuraxis" else sample(s) for s in seconds])
        for contender, seconds in zip(contenders, times, strict=True)
    ]
    entries[0].first = ours(0.3, 40.0)
    entries[1].samples[0].prepare_seconds = 0.25
    entries.append(Entry("microcircuit", contenders[0], [microcircuit]))
    plan = msgspec.structs.replace(Plan(contenders, ("brunel", "microcircuit")), **changes)
    gone = [LeftOut("nest on microcircuit", "too many", "more workers")]
    start_up = StartUp(2, [0.5, 1.5, 2.0], [2.0])
    return Results(plan, entries, start_up, gone, [], [], machine={"cpu": "abacus"})


def test_targets() -> None:
    judged = targets(hand_made(ours(1.5, 30.0)))
    found = [
        (
            t.data["target"]["network"],
            t.data["target"]["figure"],
            t.data["contender"],
            round(t.data["reached"], 6),
            t.met,
        )
        for t in judged
    ]
    assert found == [
        ("brunel", "ratio", "nest, 2 threads", 11.0, True),
        ("brunel", "ratio", "brian2, 2 threads", 4.5, False),  # the faster of the two
        ("microcircuit", "real_time_factor", "neuraxis, 2 workers", 3.0, False),
        ("microcircuit", "built_seconds", "neuraxis, 2 workers", 30.0, True),
        ("start-up", "import_seconds", "neuraxis", 1.5, False),
        ("start-up", "ready_seconds", "neuraxis", 2.0, True),
    ]
    assert str(judged[1]).endswith("4.5x as fast as brian2, 2 threads, wanted 6x or more: missed by 25%")
    assert str(judged[2]).endswith("3 s for 1 s of model time, wanted 2 s or less: missed by 50%")


def test_targets_are_for_whole_networks() -> None:
    judged = targets(hand_made(ours(1.5), order=500, scale=0.5))
    assert {target.data["target"]["network"] for target in judged} == {"start-up"}
    assert targets(hand_made(ours(1.5), scaling=True)) == []


def test_tables_and_targets() -> None:
    text = report(hand_made(ours(1.5, 30.0))).as_text(targets=True)
    rows = {
        line.strip().split("  ")[0]: line.split() for line in text.splitlines() if "0.160" in line or " 0.16 " in line
    }
    assert rows["nest, 2 threads"][3:7] == ["1.000", "4.400", "2.000..6.000", "11.0x"]
    assert rows["brian2, 2 threads"][6] == "4.50x"
    assert rows["brian2, 1 thread"][6] == "5.00x"
    assert rows["neuraxis, 2 workers"][3:7] == ["30.0", "3.000", "3.000..3.000", "-"]  # the microcircuit's, the last
    assert "Targets (for 2 cores): 3 of 6 met" in text
    assert "Targets" not in report(hand_made(ours(1.5, 30.0))).as_text()
    assert "left out: nest on microcircuit: too many: more workers" in text
    assert "built in 40 s" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "### brunel: 12,500 neurons, 15,625,000 synapses\n\n|" in report(hand_made(ours(1.5))).as_markdown()


def test_events_of_others_follow_from_their_spikes() -> None:
    results = hand_made(ours(1.5))
    results.entries[3].samples[0].spikes = 2_000
    data = report(results).as_data()
    rates = [entry["median"]["events_per_second"] for entry in data["entries"]]
    assert rates[0] == pytest.approx(1_250_000 / 0.2)
    assert rates[3] == pytest.approx(2 * 1_250_000 / 0.9)
    assert data["entries"][0]["first"]["build_seconds"] == 40.0
    assert len(data["entries"][0]["samples"]) == 3


def test_runs_with_different_spikes_are_reported() -> None:
    entries = [Entry("brunel", Contender("neuraxis", n), [ours(1.0, fingerprint=f)]) for n, f in ((1, "aa"), (2, "aa"))]
    entries.append(Entry("hpc", Contender("neuraxis", 2), [ours(1.0, fingerprint="cc")]))
    assert disagreements(entries) == []
    entries[1].samples.append(ours(1.0, fingerprint="bb"))
    (text,) = disagreements(entries)
    assert text.startswith("brunel: ")
    assert "aa (neuraxis, 1 worker), bb (neuraxis, 2 workers)" in text
    entries[1].samples.pop()
    entries[0].first = ours(1.0, fingerprint="dd")
    found = disagreements(entries)
    assert len(found) == 1
    results = hand_made(ours(1.0))
    assert results.sound
    results.disagreements = found
    assert not results.sound
    assert f"WRONG: {found[0][:40]}" in report(results).as_text(targets=True)
