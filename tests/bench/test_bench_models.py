"""`neuraxis bench models`: the real command on a few neurons, and its figures for hand-made results."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from neuraxis.bench.models.catalogue import CASES, NETWORKS
from neuraxis.bench.models.measure import OURS, Entry, Failure, Plan, Results, Sample, measure
from neuraxis.bench.models.report import report, targets
from neuraxis.network import library
from neuraxis.network.models.catalogue import built_in_models

COMMAND = [sys.executable, "-m", "neuraxis", "bench", "models"]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    words = ("--cases", "lif_exp_two,izhikevich,cuba", "--neurons", "40", "--time-ms", "500", "--repeats", "1")
    done = bench(*words, "--peers", "nest,brian2", "--peers-python", sys.executable, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_every_model_has_a_case_and_names_what_exists() -> None:
    assert sorted(case.name for case in CASES) == sorted(built_in_models())
    for case in NETWORKS:
        assert getattr(library, case.name)().neuron_count == 4000


def test_a_run_has_samples_of_neuraxis_and_nest(run: dict[str, Any]) -> None:
    found = {(entry["case"], entry["simulator"]) for entry in run["entries"]}
    nest = {("lif_exp_two", "nest"), ("izhikevich", "nest")}
    assert found == {("lif_exp_two", OURS), ("izhikevich", OURS), ("cuba", OURS)} | nest
    assert [gone["contender"] for gone in run["left_out"]] == ["brian2"]  # it needs an environment of its own
    for entry in run["entries"]:
        (sample,) = entry["samples"]
        per_step = sample["cpu_seconds"] * 1e9 / sample["neurons"] / sample["steps"]
        assert entry["median"]["nanoseconds"] == pytest.approx(per_step) != 0
        assert sample["steps"] == round(sample["time_ms"] / 0.1)


def test_models_are_the_same_as_those_of_nest(run: dict[str, Any]) -> None:
    rates = {
        (entry["case"], entry["simulator"]): sample["spikes"] / sample["neurons"] / sample["time_ms"]
        for entry in run["entries"]
        for sample in entry["samples"]
    }
    for case in ("lif_exp_two", "izhikevich"):
        assert rates[case, "nest"] == pytest.approx(rates[case, OURS], rel=0.1)  # other lengths: a spike more or less


def test_bad_options_end_before_anything_runs() -> None:
    for words, reason in (
        (("--cases", "no_such_model"), "--cases: 'no_such_model' is not one of"),
        (("--neurons", "0"), "--neurons 0: 1 or more is expected"),
        (("--repeats", "0"), "--repeats 0: at least one round is needed"),
    ):
        done = bench(*words)
        assert done.returncode == 2
        assert reason in " ".join(done.stderr.split())


def sample(cpu_seconds: float) -> Sample:
    return Sample(version="1", neurons=4000, steps=10_000, time_ms=1000.0, cpu_seconds=cpu_seconds, spikes=8000)


def test_figures_are_medians_and_ratios() -> None:
    entries = [
        Entry("adex", OURS, [sample(0.8), sample(1.2), sample(4.0)]),
        Entry("adex", "nest", [sample(12.0), sample(18.0), sample(15.0)]),
        Entry("cuba", OURS, [sample(0.01)]),
        Entry("cuba", "brian2", [sample(0.04)]),
        Entry("coba", "brian2", []),
    ]
    failures = [Failure("coba", "brian2", "no compiler")]
    plan = Plan(peers=("nest", "brian2"))
    results = Results(plan=plan, entries=entries, left_out=[], failures=failures)
    assert results.sound
    made = report(results)
    of_models, of_networks = made.tables
    assert of_models.rows == [["adex", "30", "375", "12.5x", "-", "-", "2.0", "2.0", "-"]]
    assert of_networks.rows == [["cuba", "0.01", "-", "-", "0.04", "4.00x", "-", "-", "2.0", "-", "2.0", "-"]]
    assert "failed: coba: brian2: no compiler" in made.heading
    met = {target.text.split(",")[0]: target.met for target in targets(results)}
    assert met == {
        "adex: 30 ns a neuron-step": True,
        "adex: 12.5x as fast as nest": True,
        "cuba: 4x as fast as brian2": False,
    }


def test_a_failure_of_neuraxis_makes_the_results_unsound() -> None:
    results = measure(Plan(cases=("lif_delta",), repeats=1, time_ms=-1.0))
    assert [failure.simulator for failure in results.failures] == [OURS]
    assert not results.sound
