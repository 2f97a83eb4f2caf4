"""Mistakes of users of NumPy, NEST and Brian2 in a model: each is one error with the line and what to write instead."""

from __future__ import annotations

import math
import random as random_of_python
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.engine.codegen import BlockLayout, generated_update
from neuraxis.engine.cuda.program import has_lookahead
from neuraxis.errors import InvalidArgument
from neuraxis.network import NeuronModel, neuron_model_from_source
from neuraxis.network.arithmetic import exp


class Gate:
    conductance = 1.0

    def opening(self, v):  # type: ignore[no-untyped-def]
        return v


NAMES: dict[str, Any] = {
    "np": np, "math": math, "rng": np.random.default_rng(1), "random_of_python": random_of_python, "mexp": math.exp,
    "tanh_of": np.tanh, "gate": Gate(), "NAME": "abc", "SETTINGS": {"a": 1.0}, "FLAG": True, "EMPTY": (),
    "TWO": (1.0, 2.0), "square": lambda v: v * v, "exponential": exp, "COUNT": 0,
}  # fmt: skip
BEFORE = """\
def helper(v, k=2.0): return v * k
def variadic(*a): return a[0]
def endless(v): return endless(v)
def without(v):
    v = v + 1.0
def sometimes(v):
    if v > 0.0:
        return v
def generated(v):
    yield v
def two(v): return v, v
def of_numpy(v): return np.exp(v)
def counting(v):
    global COUNT
    return v
def reaching(v): return v + m
"""
LINE = BEFORE.count("\n") + 3  # of the first statement of a model

# (statements, what the error has, and the line if it is not the first one)
MISTAKES: list[tuple[Any, ...]] = [
    ("y = np.exp(x)", "np.exp cannot be used in a model: `np.exp(x)`. Write exp(...), with `from neuraxis"),
    ("y = math.exp(x)", "Write exp(...), with `from"),
    ("y = mexp(x)", "Write exp(...), with `from"),
    ("y = tanh_of(x)", "Write tanh(...), with `from"),
    ("y = np.where(x > 0, x, 0.0)", "Write x if condition else y"),
    ("y = np.maximum(x, 0.0)", "Write max(x, y)"),
    ("y = np.clip(x, 0.0, 1.0)", "Write min(max(x, low), high)"),
    ("y = x + np.random.normal()", "Write normal(), with `from"),
    ("y = x + rng.normal()", "Write normal(), with `from"),
    ("y = random_of_python.random()", "Write random(), with `from"),
    ("y = np.zeros(3)", "TABLE[i]"),
    ("y = np.array([1.0, 2.0])", "TABLE[i]"),
    ("y = np.float32(x)", "Write float(x)"),
    ("y = np.inf * x", "finite"),
    ("y = np.linalg.norm(x)", "np.linalg.norm"),
    ("y = [x * k for k in range(3)]", "for loop"),
    ("y = {k: x for k in range(3)}", "for loop"),
    ("y = sum(x * k for k in range(3))", "for loop over a table"),
    ("y = round(x)", "(x + 0.5) // 1.0"),
    ("y = pow(x, 2.0)", "x ** y"),
    ("y = divmod(x, 2.0)", "x // y and x % y"),
    ("y = isinstance(x, float)", "isinstance"),
    ("y = sorted((x, 1.0))", "min(x, y) and max(x, y)"),
    ("print(x)", "network.record"),
    ("assert x > 0.0", "Nothing raises"),
    ("if x > 9.0:\n    raise ValueError('no')", "Nothing raises", 1),
    ("try:\n    y = 1.0 / x\nexcept ZeroDivisionError:\n    y = 0.0", "Nothing raises"),
    ("with open('f') as f:\n    pass", "Read files before"),
    ("global COUNT\nCOUNT += 1", "declare it in states"),
    ("import math", "top of the module"),
    ("f = lambda v: v", "with def"),
    ("y = square(x)", "with def"),
    ("def f(v):\n    return v", "before the model"),
    ("class A: pass", "states and parameters"),
    ("y = helper(x, 1.0, 2.0)", "`helper(x, 1.0, 2.0)` has arguments that do not match"),
    ("y = helper(x, q=1.0)", "do not match"),
    ("y = helper()", "lacks the argument 'v'"),
    ("y = variadic(x, x)", "plain ones"),
    ("helper(x)", "`helper(x)`. Assign it"),
    ("y = reaching(x)", "reaching uses 'm', which is neither one of its arguments nor", 16 - LINE),
    ("y = without(x)", "not on every path"),
    ("y = sometimes(x)", "not on every path"),
    ("y = generated(x)", "yield", 10 - LINE),
    ("y = of_numpy(x)", "Write exp(...)", 12 - LINE),
    ("y = counting(x)", "declare it in states", 14 - LINE),
    ("y = two(x) + 1.0", "`two(x)`"),
    ("a, b, c = two(x)", "`a, b, c = two(x)`"),
    ("a, (b, c) = x, (x, x)", "names"),
    ("a, *b = x, x", "Write each value"),
    ("y = max(*TWO)", "Write each value"),
    ("y = exp(x=x)", "named"),
    ("y = exp()", "exp of 0"),
    ("y = x(1.0)", "value 'x'"),
    ("if (y := x) > 0.0:\n    x = y", "statement of its own"),
    ("match n:\n    case 1:\n        x = 0.0", "if and elif"),
    ("yield x", "returns (spike, states...)"),
    ("y = 'abc'", "computes with numbers"),
    ("y = f'{x}'", "computes with numbers"),
    ("y = b'a'[0]", "computes with numbers"),
    ("y = float('nan')", "computes with numbers"),
    ("y = None", "None"),
    ("y = x is None", "Write =="),
    ("y = (x > 0.0) is not True", "Write !="),
    ("y = x in (1.0, 2.0)", "(x == a) or (x == b)"),
    ("y = n not in (1, 2)", "(x != a) and (x != b)"),
    ("y = 1j * x", "two states"),
    ("y = x @ x", "x @ x"),
    ("y = x.real", "Write REAL = x.real before"),
    ("y = gate.conductance", "Write CONDUCTANCE = gate.conductance before"),
    ("y = gate.opening(x)", "method opening"),
    ("y = x.clip(0.0, 1.0)", "min(max(x, low), high)"),
    ("y = x * NAME", "a str"),
    ("y = x * FLAG", "a truth value"),
    ("y = x * SETTINGS['a']", "dict"),
    ("y = {1.0, 2.0}", "TABLE[i]"),
    ("y = EMPTY[n]", "it is empty"),
    ("y = TWO[0:1]", "slice"),
    ("y = TWO * x", "TWO"),
    ("y = TWO[5]", "0 to 1"),
    ("y = max([x, 1.0])", "TABLE[i]"),
    ("x[0] = 1.0", "names"),
    ("del x", "need not"),
    ("while x > 1.0:\n    x = x / 2.0\nelse:\n    x = 0.0", "else of a loop"),
    ("for i, v in enumerate(TWO):\n    x = x + v", "range(len(TABLE))"),
    ("for a, b in zip(TWO, TWO):\n    x = x + a", "range(len(TABLE))"),
    ("for i in np.arange(3):\n    x = x + i", "for i in range(n)"),
    ("for i in range(2.5):\n    x = x + i", "whole numbers"),
    ("for i in range():\n    x = x + i", "range"),
    ("for i in range(0, 3, 0):\n    x = x + i", "step"),
    ("y = range(3)", "range"),
    ("y += x", "not set"),
    ("y = x + undefined", "'undefined'"),
    ("y = undefined(x)", "'undefined', which is not defined"),
    ("if x > 0.0:\n    y = 1.0\nx = x + y", "not set on every path", 2),
    ("y = n + 3000000000", "beyond 32 bits"),
    ("y = x + 10 ** 400", "bits"),
    ("y = 9 ** 9999", "size"),
    ("y = x + 1e400", "finite"),
    ("abs = x", "another name"),
    ("y = normal(0.0, 1.0)", "mean + deviation * normal()"),
    ("while random() < 0.5:\n    x = x + 1.0", "in a while"),
    ("for i in range(n):\n    x = x + normal()", "constant range"),
    ("for i in range(3):\n    if normal() > 1.0:\n        break", "break"),
    ("for i in range(99):\n    x = x + normal()", "64", 1),
    ("y = normal + x", "'normal'"),
    ("return x", "return (spike, x)"),
    ("return False, x, x", "return (spike, x)"),
    ("return [False, x]", "return (spike, x)"),
    ("return", "`return` returns nothing; return (spike, x)"),
    ("return False, exp", "the function 'exp' without a call cannot be used in a model: `exp`. Write exp(...)"),
    ("return False, helper", "the function 'helper' without a call"),
    ("return abs, x", "the function 'abs' without a call"),
    ("y = exponential + x", "the function 'exponential' without a call"),
    ("return False, (x, 1.0)", "`(x, 1.0)` is returned for the state 'x', which is one number"),
    ("return False, TWO", "`TWO` is returned for the state 'x', which is one number"),
    ("return two(x), x", "`two(x)` is returned for the spike, which is one number"),
    ("y = x" + " + x" * 700, "several statements", -1),
]  # fmt: skip


def defined(body: str) -> NeuronModel:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = f"{BEFORE}\n\ndef tried(x, n, m):\n{lines}\n    return False, x\n".replace("\n\n\n", "\n\n", 1)
    return neuron_model_from_source(
        text, states={"x": 0.0}, parameters={"n": 2, "m": 3}, names=NAMES, filename="made.txt"
    )


@pytest.mark.parametrize("mistake", MISTAKES, ids=[one[0].splitlines()[0][:60] for one in MISTAKES])
def test_a_mistake_is_one_error_that_says_where_and_what_to_write(mistake: tuple[Any, ...]) -> None:
    body, words, *further = mistake
    with pytest.raises(InvalidArgument) as caught:
        defined(body)
    text = str(caught.value)
    assert words in text
    found = re.match(r"tried, made\.txt, line (\d+): ", text)
    assert found, text
    assert int(found[1]) == LINE + (further[0] if further else 0), text
    assert "\n" not in text


ACCEPTED = [
    "x = x * np.pi + math.tau", "y: float\ny = x\nx = y", "x = exponential(x)", "a, b = two(x)\nx = a + b",
    "return two(x > 0.0)", "...", "'text'", "x = TWO[n] + len(TWO)", "x = normal() if n else random()",
]  # fmt: skip


@pytest.mark.parametrize("body", ACCEPTED)
def test_what_looks_like_a_mistake_and_is_none(body: str) -> None:
    sources_of(defined(body))


def sources_of(model: NeuronModel) -> None:
    """Make the source for both compilers."""
    used = model.for_step(0.1)
    layout = BlockLayout.of(used, poisson=False, current=False)
    compile(generated_update(used, layout, used.values(0.1)).source, "generated", "exec")
    has_lookahead(used, 0.1)


PARTS = [one[0] for one in MISTAKES if "return" not in one[0] and one[0].count("x") < 99] + ACCEPTED[:4]
PARTS += ["x = x + 1.0", "y = x > 0.0", "y = n * 0.5", "x = x if y else n", "for i in range(3):\n    x = x * y"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PARTS), st.booleans()), min_size=1, max_size=4))
def test_no_other_error_reaches_a_user(parts: list[tuple[str, bool]]) -> None:
    """Statements in any order and nested in one another: a model, or an error of neuraxis with a line."""
    body = ""
    for part, nested in parts:
        inner = "\n".join(f"    {line}" for line in part.splitlines())
        body += f"if n > 1:\n{inner}\n" if nested else f"{part}\n"
    refused = ""
    try:
        model = defined(body)
    except InvalidArgument as error:
        refused = str(error)
    if refused:
        assert re.match(r"tried, made\.txt, line \d+: ", refused), refused
    elif "break" not in model.source and "while" not in model.source:
        sources_of(model)
