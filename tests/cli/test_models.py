"""`neuraxis models`: every model in the list, and what it says of one."""

from __future__ import annotations

import json
import subprocess
import sys

from neuraxis.network.models.catalogue import built_in_models, text_of


def models(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neuraxis", "models", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)


def test_the_list_has_every_model_with_its_name_in_nest() -> None:
    done = models()
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    assert sorted(rows) == sorted(built_in_models())
    assert rows["lif_cond_beta"][:4] == ["lif_cond_beta", "2", "6", "iaf_cond_beta"]


def test_one_model_by_its_name_here_or_in_nest() -> None:
    done = models("iaf_psc_exp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lif_exp_two: ")
    for part in (
        "dV/dt",
        "Scheme: exact integration",
        "PyNN IF_curr_exp",
        "tau_syn_ex_ms   2        ms    time constant",
    ):
        assert part in done.stdout, part
    data = json.loads(models("lif_nmda", "--json").stdout)
    assert data["elsewhere"]["NEST"] == "iaf_bw_2001"
    assert data["parameters"]["mg_mm"]["value"] == 1.0
    assert data["receptors"]["nmda_ns"]["unit"] == "nS"
    assert [one["name"] for one in json.loads(models("--json").stdout)] == list(built_in_models())


def test_an_unknown_name_is_wrong_usage() -> None:
    done = models("lif_ex")
    assert done.returncode == 2
    assert "no model 'lif_ex'" in done.stderr
    assert "lif_exp" in done.stderr


def test_every_model_says_how_it_is_computed_and_its_names_elsewhere() -> None:
    for name, model in built_in_models().items():
        text = text_of(model)
        assert "NEST" in text.elsewhere, name
        assert text.scheme or not model.states or name == "parrot" or name.startswith("rate_")
        assert not model.states or text.equations
