"""Functions of users in neuron models."""

from __future__ import annotations

import ast
import inspect
import os
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Network, neuron_model
from neuraxis.network.arithmetic import exp
from neuraxis.network.inlining import inline_functions
from neuraxis.network.model_source import defined_by, defined_in
from neuraxis.simulation import Simulation
from tests.engine.running import values_of

SLOPE = 0.5
HALF = 0.25  # another one than in the functions below


def rate(v, scale, offset=1.0):  # type: ignore[no-untyped-def]
    """A function with a default and a number of its module."""
    return (v * SLOPE + offset) * scale


def gate(v, scale):  # type: ignore[no-untyped-def]
    """A function that calls another one twice, has variables, and returns early."""
    v_mv = rate(v, scale)  # a name that the model has, too
    if v_mv > 10.0:
        return 10.0
    if v_mv < -10.0:
        v_mv = rate(v_mv, scale, offset=0.0)
    return v_mv


def halves(v):  # type: ignore[no-untyped-def]
    whole = int(v)
    return whole, v - whole


def bounded(v, steps):  # type: ignore[no-untyped-def]
    found = v
    for turn in range(steps):
        found = found * 0.5 + turn
    return found


def endless(v):  # type: ignore[no-untyped-def]
    return endless(v - 1.0) if v > 0.0 else 0.0


def nothing(v):  # type: ignore[no-untyped-def]  # noqa: RET503
    if v > 0.0:
        return v


def within_a_loop(v):  # type: ignore[no-untyped-def]
    for _ in range(3):
        if v > 0.0:
            return v
        v = v + 1.0
    return v


twice = lambda v: v + v  # noqa: E731


def tanh(v):  # type: ignore[no-untyped-def]
    """A function of the user with a name of the model language: the user's counts."""
    return v * 0.5


def model_in(scale: float) -> Any:
    shift = np.float32(2.0)

    @neuron_model(states={"v_mv": 0.0, "w": 0.0, "n": 0})
    def nested(v_mv, w, n, current_pa):  # type: ignore[no-untyped-def]
        v_mv = gate(v_mv + current_pa, scale) + shift
        whole, w = halves(v_mv * 1.5 if v_mv > 0.0 else gate(-v_mv, HALF))
        n = n + whole + int(bounded(w, 2))
        return v_mv > 1e6, v_mv, w + tanh(w), n

    return nested


def plain_python(scale: float, currents: list[float]) -> list[tuple[float, float, int]]:
    v, w, n = 0.0, 0.0, 0
    found = []
    for current in currents:
        v = gate(v + current, scale) + 2.0
        whole, w = halves(v * 1.5 if v > 0.0 else gate(-v, HALF))
        n = n + whole + int(bounded(w, 2))
        w = w + tanh(w)
        found.append((v, w, n))
    return found


@pytest.mark.parametrize("scale", [0.5, -0.75])
def test_functions_in_a_model_compute_what_python_does(scale: float) -> None:
    network = Network(dt_ms=0.1)
    cells = network.population("cells", 1, model_in(scale))
    currents = [3.0] * 5 + [-40.0] * 5
    network.current(cells, 3.0, stop_ms=0.5)
    network.current(cells, -40.0, start_ms=0.5)
    for name in ("v_mv", "w", "n"):
        network.record(cells, name)
    with Simulation(network) as simulation:
        simulation.step(10)
        found = {name: values_of(simulation, cells, name)[:, 0] for name in ("v_mv", "w", "n")}
    for name, wanted in zip(("v_mv", "w", "n"), zip(*plain_python(scale, currents), strict=True), strict=True):
        assert found[name] == pytest.approx(wanted, rel=1e-5)


def test_a_model_with_functions_is_the_one_written_out() -> None:
    @neuron_model(states={"v_mv": 0.0}, parameters={"p": 1.0})
    def called(v_mv, p):  # type: ignore[no-untyped-def]
        return v_mv > 1.0, rate(v_mv, 2) + exp(rate(p, 0.5, 3.0))

    assert "rate" not in {node.id for node in ast.walk(ast.parse(called.source)) if isinstance(node, ast.Name)}
    # The literal 2 takes the type of its neighbour, as if it were written there.
    assert "(_rate_1_v * 0.5 + 1.0) * 2" in called.source


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("endless(v)", "calls itself and cannot be used in a model. Write a loop"),
        ("nothing(v)", "not on every path, and cannot be used"),
        ("within_a_loop(v)", "returns within a loop"),
        ("rate(v)", "lacks the argument 'scale'"),
        ("rate(v, 1.0, 2.0, 3.0)", "arguments that do not match"),
        ("rate(v, v=1.0)", "arguments that do not match"),
        ("rate(v, slope=1.0)", "arguments that do not match"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(expression: str, text: str) -> None:
    tried = defined_in(f"def tried(v):\n    return v > 0.0, {expression}", "text", globals())
    with pytest.raises(InvalidArgument) as caught:
        inline_functions(tried)
    assert text in str(caught.value)
    place = __file__ if text.startswith("calls itself") else "text, line 2"
    assert os.path.basename(place) in str(caught.value).split(": ")[0]
    assert f": `{expression[:4]}" in str(caught.value)


def test_a_lambda_is_refused() -> None:
    with pytest.raises(InvalidType, match="written with def"):
        defined_by(twice)


def test_a_call_in_the_condition_of_a_while_is_refused() -> None:
    text = "def tried(v):\n    while rate(v, 1.0) > 1.0:\n        v = v * 0.5\n    return v > 0.0, v"
    with pytest.raises(InvalidArgument, match=r"text, line 2.*Assign the result before the loop and at its end"):
        inline_functions(defined_in(text, "text", {"rate": rate}))


def test_an_error_within_a_function_names_its_line_and_text() -> None:
    def broken(v):  # type: ignore[no-untyped-def]
        return v + (1 << v)

    line = inspect.getsourcelines(broken)[1] + 1
    with pytest.raises(InvalidArgument, match=rf"tried, .*test_inlining.py, line {line}: .*`1 << v`"):

        @neuron_model(states={"v_mv": 0.0})
        def tried(v_mv):  # type: ignore[no-untyped-def]
            return v_mv > 1.0, broken(v_mv)


def test_the_same_function_on_a_gpu_is_the_same_text() -> None:
    """The translated text is the model's source, which contains no calls of the user's functions any more."""
    from neuraxis.engine.cuda.program import model_source

    text = model_source(model_in(0.5), 0.1, "nested")
    assert "gate" in text  # as part of names
    assert "gate(" not in text
