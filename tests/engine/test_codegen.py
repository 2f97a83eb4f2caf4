"""Generated kernels: the loop over neurons is vectorised, whatever a model computes."""

from __future__ import annotations

import ast
import re

import pytest
from numba import cfunc

from neuraxis.engine.codegen import BlockLayout, _module, generated_update, unrolled
from neuraxis.network import NeuronModel, neuron_model
from neuraxis.network.arithmetic import cos, exp, expm1, exprel, log, log1p, power, sin, sqrt, tanh
from neuraxis.network.models.catalogue import built_in_models


@neuron_model(states={"v_mv": 0.0, "x": 1.0}, receptors=("input_mv",), parameters={"p": 1.5, "q": 0.5})
def eight_exponentials(v_mv, x, input_mv, p, q):  # type: ignore[no-untyped-def]
    a = exp(v_mv) + exp(v_mv * p) + exp(v_mv * q) + exp(-v_mv)
    b = exp(x) + exp(x * p) + exp(x * q) + exp(-x)
    return a > 100.0, v_mv * q + input_mv + a / b, b / a


@neuron_model(states={"v_mv": 1.0, "x": 1.0}, parameters={"p": 1.5, "q": 0.5})
def powers_in_a_loop(v_mv, x, p, q):  # type: ignore[no-untyped-def]
    for turn in range(1, 7, 2):
        x = power(abs(x), p) + log(abs(v_mv) + turn)
        for _ in range(2):
            v_mv = v_mv * q + abs(x) ** q
    return v_mv > 100.0, v_mv, x


@neuron_model(states={"v_mv": 1.0, "x": 1.0}, parameters={"p": 1.5})
def every_function(v_mv, x, p):  # type: ignore[no-untyped-def]
    x = tanh(x) + sin(x * p) + cos(x) + sqrt(abs(x)) + log1p(abs(v_mv))
    return v_mv > 100.0, 0.5 * v_mv + exprel(-x) + expm1(-abs(x)), x


@neuron_model(states={"v_mv": 1.0, "x": 1.0}, parameters={"p": 1.5})
def noisy(v_mv, x, p, normal, random, uniform):  # type: ignore[no-untyped-def]
    return normal > 3.0, 0.5 * v_mv + p * normal, x + random if uniform > 0 else x


@neuron_model(states={"v_mv": 1.0, "x": 1.0}, parameters={"p": 1.5})
def tabled(v_mv, x, p, step):  # type: ignore[no-untyped-def]
    for one in (0.5, 0.25):
        x = x * one + (1.0, 2.0, 4.0)[step % 3 + (v_mv > p)] + (2, 4, 8, 7)[v_mv > x]
    return v_mv > 3.0, 0.5 * v_mv, x


VECTORISED = [model for name, model in built_in_models().items() if not name.endswith("_source")]
VECTORISED += [eight_exponentials, powers_in_a_loop, every_function, noisy, tabled]


@pytest.mark.parametrize("model", VECTORISED, ids=lambda model: model.name)
def test_the_loop_over_neurons_is_vectorised(model: NeuronModel) -> None:
    layout = BlockLayout.of(model, poisson=False, current=False)
    generated = generated_update(model, layout, model.values(0.1))
    # As `compiled_c_function`, but not from the cache, which has no LLVM code.
    code = cfunc(generated.signature, error_model="numpy")(_module(generated).update).inspect_llvm()
    assert re.search(r"= f(mul|add) <\d+ x float>", code)
    assert "numba_do_raise" not in code  # no call is left that could raise


def written_out(source: str) -> str:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return ast.unparse(unrolled(function))


def test_short_loops_are_written_out() -> None:
    source = "def f(x):\n    for k in range(_i(1), _i(5), _i(2)):\n        x = x + k\n    return x + k\n"
    assert written_out(source) == (
        "def f(x):\n    k = _i(1)\n    x = x + k\n    k = _i(3)\n    x = x + k\n    return x + k"
    )


def test_nested_loops_are_written_out_from_within() -> None:
    source = (
        "def f(x):\n    for j in range(_i(2)):\n        for k in range(_i(2)):\n            x = x * j\n    return x\n"
    )
    assert written_out(source).count("x = x * j") == 4
    assert "for" not in written_out(source)


@pytest.mark.parametrize(
    "loop",
    [
        "for k in range(_i(3)):\n        if x > k:\n            break\n        x = x + k",
        "for k in range(n):\n        x = x + k",
        "for k in range(_i(0)):\n        x = x + k",
        "for k in range(_i(100000)):\n        x = x + k",
        "while x > 1:\n        x = x / 2",
    ],
    ids=["break", "variable length", "empty", "long", "while"],
)
def test_other_loops_stay(loop: str) -> None:
    source = f"def f(x, n):\n    {loop}\n    return x"
    assert written_out(source) == source
