"""Mistakes in a model's constants and values are errors that name the model and the line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Network, NeuronModel, equations, neuron_model_from_source
from neuraxis.network.models import lif_delta, lif_exp

SOURCE = """
def leaky(v, input, leak):
    return v > 1.0, v * leak + input
"""


def leaky(**described: Any) -> NeuronModel:
    given = {"states": {"v": 0.0}, "receptors": ("input",), "parameters": {"tau_ms": 10.0}, **described}
    return neuron_model_from_source(SOURCE, **given)


def used(model: NeuronModel) -> Any:
    return Network(dt_ms=0.1).population("cells", 3, model)


def by_index(p: Any, dt_ms: float) -> dict[str, float]:
    return {"leak": [0.5, 0.6][int(p["tau_ms"])]}


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        (lambda p: {"leak": 0.5}, r"^leaky, .*test_constants_errors.py, line \d+: constants: a function of the parame"),
        (lambda p, dt_ms, more: {}, "constants=lambda p, dt_ms: "),
        (5, "^leaky: constants=5: a function of the parameters"),
    ],
)
def test_a_function_that_takes_something_else(constants: Any, words: str) -> None:
    with pytest.raises(InvalidType, match=words):
        leaky(constants=constants)


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        (
            lambda p, dt_ms: {"leak": p["tau"]},
            "^leaky, .*: constants: no parameter 'tau'; did you mean 'tau_ms'",
        ),
        (lambda p, dt_ms: {"leak": dt_ms / (p["tau_ms"] - 10.0)}, "raised ZeroDivisionError: .*dt_ms=0.1, tau_ms=10"),
        (lambda p, dt_ms: {"leak": p.tau_ms}, "raised AttributeError: "),
        (by_index, "raised IndexError: list index out of range, with dt_ms=0.1, tau_ms=10. Change the function"),
    ],
)
def test_a_function_that_fails(constants: Callable[..., Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        used(leaky(constants=constants))


def test_the_line_in_the_function_is_named() -> None:
    line = by_index.__code__.co_firstlineno + 1
    with pytest.raises(InvalidArgument, match=rf"test_constants_errors\.py, line {line}: "):
        used(leaky(constants=by_index))


def test_a_function_that_fails_for_one_neuron_of_many() -> None:
    model = leaky(constants=lambda p, dt_ms: {"leak": dt_ms / p["tau_ms"]})(tau_ms=[10.0, 0.0, 5.0])
    with pytest.raises(InvalidArgument, match=r"^population 'cells': neuron 1: leaky, .*ZeroDivisionError.*tau_ms=0"):
        used(model)


def test_a_function_that_returns_no_dict() -> None:
    with pytest.raises(InvalidType, match=r"^leaky, .*: constants\(...\) returned 0.5: a dict of numbers is expected"):
        used(leaky(constants=lambda p, dt_ms: 0.5))


def test_a_model_with_a_function_of_a_module_can_still_be_pickled() -> None:
    model = leaky(constants=by_index)(tau_ms=1.0)
    assert used(pickle.loads(pickle.dumps(model))).model.constants == {"leak": 0.6}


@pytest.mark.parametrize("what", ["states", "parameters", "signals", "meanings"])
def test_a_list_where_a_dict_is_expected(what: str) -> None:
    with pytest.raises(InvalidType, match=rf"^leaky: {what}=\['v'\]: a dict is expected, as {what}="):
        leaky(**{what: ["v"]})


@pytest.mark.parametrize(
    "make",
    [
        lambda: leaky(parameters={"leak": 10**400}),
        lambda: leaky(parameters={"leak": 0.5}, states={"v": 10**5000}),
        lambda: lif_delta(tau_m_ms=-(10**400)),
    ],
)
def test_an_int_beyond_every_float(make: Callable[[], NeuronModel]) -> None:
    with pytest.raises(InvalidArgument, match=r"^(leaky|lif_delta): .*: an int of \d+ bits: beyond float32"):
        make()


@pytest.mark.parametrize("model", [lif_delta, lif_exp])
def test_tau_is_the_time_constant_of_the_membrane(model: NeuronModel) -> None:
    with pytest.raises(InvalidArgument, match="no parameter 'tau'; did you mean 'tau_m_ms'"):
        model(tau=3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dv/dt = -v/tau : 1\ntau = 0*ms : ms", "^equations, line 1 `dv/dt = -v/tau : 1`: mine: .* with tau_ms=0"),
        ("e = 0 : 1\ndv/dt = (e - v**2)/tau : 1\ntau = 0*ms : ms", "^equations, line 2 .* with tau_ms=0. Give another"),
        ("dv/dt = -v/d : 1\nd = a - b : ms\na = 1*ms : ms\nb = 1*ms : ms", "line 1 .* with a_ms=1 and b_ms=1"),
    ],
)
def test_equations_that_divide_by_zero(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        equations(text, threshold="v > 1", reset="v = 0", name="mine")


def test_equations_that_a_neuron_divides_by_zero() -> None:
    model = equations("dv/dt = -v/tau : 1\ntau = 1*ms : ms", threshold="v > 1", reset="v = 0", name="mine")
    with pytest.raises(InvalidArgument, match=r"neuron 1: equations, line 1 .* with tau_ms=0"):
        used(model(tau_ms=[1.0, 0.0, 2.0]))


@pytest.mark.parametrize("terms", [150, 3000])
def test_a_sum_of_very_many_terms(terms: int) -> None:
    with pytest.raises(InvalidArgument, match=r"line 1 .*an expression of more than 100 levels. Give parts"):
        equations(f"dv/dt = ({' + '.join(['v'] * terms)})/ms : 1", threshold="v > 1", reset="v = 0")
