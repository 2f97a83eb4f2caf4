"""`neuraxis models`: every model in the list, and what it says of one."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import neuraxis.network
from neuraxis.network import Network
from neuraxis.network.models.catalogue import (
    _COUNTERPARTS,
    built_in_models,
    counterpart,
    model_called,
    names_elsewhere,
    text_of,
)
from neuraxis.simulation import Simulation


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("noise_generator", "noise_generator: with_noise_current(model)"),
        ("NoisyCurrentSource", "with_noise_current(model)"),
        ("dc_generator", "network.current(population,"),
        ("step_current_generator", "network.current(population,"),
        ("poisson_generator", "network.poisson(population,"),
        ("poissongroup", "network.poisson(population,"),
        ("spike_generator", "network.spikes(population,"),
        ("spike_recorder", "network.record(population,"),
        ("stdp_synapse", "plasticity=STDP.additive("),
        ("iaf_psc_delta_ps", "spikes at steps"),
    ],
)
def test_a_device_of_another_simulator_leads_to_what_does_its_work_here(name: str, words: str) -> None:
    """Also by a name in lower case, and with the model that is meant, if there is one."""
    done = models(name)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    shown = {"poisson_generator": "poisson_source", "poissongroup": "poisson_source", "spike_generator": "spike_source",
             "iaf_psc_delta_ps": "lif_delta"}  # fmt: skip
    assert (f"\n\n{shown.get(name)}: " in done.stdout) == (name in shown)


def test_a_counterpart_for_programs() -> None:
    data = json.loads(models("noise_generator", "--json").stdout)
    assert data["name"] == "noise_generator"
    assert data["instead"].startswith("with_noise_current(")
    data = json.loads(models("SpikeSourceArray", "--json").stdout)
    assert data["name"] == "spike_source"
    assert "network.spikes(" in data["instead"]


@pytest.mark.parametrize("name", list(_COUNTERPARTS))
def test_counterparts_name_what_exists(name: str) -> None:
    text = counterpart(name.upper())
    assert text is not None
    named = [(Network, one) for one in re.findall(r"network\.(\w+)\(", text)]
    named += [(Simulation, one) for one in re.findall(r"simulation\.(\w+)", text)]
    named += [(neuraxis.network, one) for one in re.findall(r"\b(with_noise_current|equations|[A-Z]\w+)(?=[(.])", text)
              if one not in ("NumPy",)]  # fmt: skip
    assert named or "NumPy" in text or "t_ms" in text
    for where, one in named:
        assert hasattr(where, one), one


def test_names_elsewhere_are_found_in_upper_and_lower_case() -> None:
    for model in built_in_models().values():
        for name in names_elsewhere(model):
            found = model_called(name.split()[0].upper())
            assert found is not None
            assert name.split()[0] in [one.split()[0] for one in names_elsewhere(found)]
    assert model_called("equations") is None


def test_an_unknown_name_is_wrong_usage() -> None:
    done = models("lif_ex")
    assert done.returncode == 2
    assert "no model 'lif_ex'" in done.stderr
    assert "lif_exp" in done.stderr
    assert "neuraxis.network.equations" in done.stderr


def test_every_model_says_how_it_is_computed_and_its_names_elsewhere() -> None:
    for name, model in built_in_models().items():
        text = text_of(model)
        assert "NEST" in text.elsewhere, name
        assert text.scheme or not model.states or name == "parrot" or name.startswith("rate_")
        assert not model.states or text.equations
