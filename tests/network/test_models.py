"""Help texts of the built-in neuron models."""

from __future__ import annotations

import inspect
import pickle
import pydoc

import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Network, models, neuron_model
from neuraxis.network.models.catalogue import built_in_models
from tests.network.neurons import two_receptors

MODELS = built_in_models()


@pytest.mark.parametrize("name", MODELS)
def test_help_shows_equations_parameters_units_and_states(name):
    model = MODELS[name]
    text = pydoc.render_doc(model, renderer=pydoc.plaintext)
    assert len(model.description.splitlines()) > 1 or name == "spike_source"
    assert model.description.splitlines()[0] in text
    if model.states and not name.endswith("_source") and name != "parrot":
        assert "Equations" in text
        changes = text.replace("dv/dt", "dV/dt")
        assert any(f"d{state[0].upper()}/dt" in changes for state in model.states)
    rows = [line.split() for line in text.splitlines()]
    lines = {row[0]: " ".join(row[1:]) for row in rows if row}
    units = {"ms": "ms", "mv": "mV", "pa": "pA", "pf": "pF", "ns": "nS", "hz": "Hz"}
    for value_name, value in {**model.parameters, **model.states}.items():
        unit = units.get(value_name.rpartition("_")[2])
        shown = [value_name, f"{value:g}", *([unit] if unit else [])]
        assert any(row[: len(shown)] == shown for row in rows)
        assert lines[value_name].endswith(f" {model.meanings[value_name]}")
    for receptor in model.receptors:
        unit = units.get(receptor.rpartition("_")[2])
        assert lines[receptor] == f"weights{f' in {unit}' if unit else ''} {model.meanings[receptor]}"
    for one in model.rate_inputs:
        assert lines[one] == f"rates {model.meanings[one]}"


@pytest.mark.parametrize("name", MODELS)
def test_the_signature_has_the_parameters_with_their_defaults(name):
    signature = inspect.signature(MODELS[name])
    assert {one.name: one.default for one in signature.parameters.values()} == dict(MODELS[name].parameters)
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in signature.parameters.values())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_prints_as_the_call_that_makes_it(name):
    model = MODELS[name]
    assert eval(repr(model), {name: model}) == model
    assert "\n" not in repr(model)


def test_a_changed_model_shows_its_own_values():
    changed = models.lif_exp_two(tau_m_ms=25.5)
    assert ["tau_m_ms", "25.5", "ms"] in [line.split()[:3] for line in changed.__doc__.splitlines()]
    assert inspect.signature(changed).parameters["tau_m_ms"].default == 25.5


@pytest.mark.parametrize("name", MODELS)
def test_everything_of_a_model_has_a_meaning(name):
    model = MODELS[name]
    assert set(model.meanings) == {
        *model.parameters, *model.states, *model.receptors, *model.rate_inputs, *model.signals,
    }  # fmt: skip
    assert all(meaning and meaning == meaning.strip() for meaning in model.meanings.values())


def test_parameters_print_as_a_table_of_values_defaults_units_and_meanings():
    changed = models.izhikevich(d_mv=2.0)
    lines = [line.split(maxsplit=4) for line in repr(changed.parameters).splitlines()]
    assert lines[0] == ["name", "value", "default", "unit", "meaning"]
    assert ["d_mv", "2", "8", "mV", "increase of u by a spike"] in lines
    assert "<td>increase of u by a spike</td>" in changed.parameters._repr_html_()
    again = pickle.loads(pickle.dumps(changed))
    assert repr(again.parameters) == repr(changed.parameters)
    assert again.parameters == changed.parameters == {**models.izhikevich.parameters, "d_mv": 2.0}
    assert repr(models.spike_source.parameters) == "no parameters"
    with pytest.raises(TypeError, match="never changes"):
        changed.parameters["d_mv"] = 3.0


def test_meanings_are_checked():
    def decay(v_mv):
        return False, v_mv * 0.5

    with pytest.raises(
        InvalidArgument, match="decay: meanings: no parameter, state, receptor or signal 'v'; there is 'v_mv'"
    ):
        neuron_model(states={"v_mv": 0.0}, meanings={"v": "potential"})(decay)
    with pytest.raises(InvalidType, match="decay: meanings: v_mv=1: text is expected"):
        neuron_model(states={"v_mv": 0.0}, meanings={"v_mv": 1})(decay)


def test_help_survives_pickling_and_does_not_travel():
    model = Network().population("E", 2, models.lif_exp_two).model
    again = pickle.loads(pickle.dumps(model))
    assert again == model
    assert again.__doc__ == model.__doc__
    assert b"Inputs" not in pickle.dumps(model)


def test_a_model_without_a_docstring_has_tables():
    assert two_receptors.__doc__.startswith("Neuron model two_receptors.")
    assert "excitatory  weights\n" in two_receptors.__doc__
