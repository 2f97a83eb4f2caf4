"""Neuron models from text, and constants as text."""

from __future__ import annotations

import linecache
import math
import pickle
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Network, neuron_model, neuron_model_from_source
from neuraxis.network.arithmetic import exp
from neuraxis.simulation import Simulation

SCALE = 0.5


def halved(v):  # type: ignore[no-untyped-def]
    return v * SCALE


TEXT = """\
from neuraxis.network.arithmetic import exp

STEEP, TAIL = 2.0, 1  # not read by the model
OFFSET = -(1 + 2) / 2


def rate(v, slope=OFFSET):
    return exp(v * slope) + shift


def stepped(v_mv, n, leak, current_pa):
    \"\"\"A model in text.\"\"\"
    v_mv = v_mv * leak + rate(v_mv) + halved(current_pa)
    return v_mv > 5.0, 0.0 if v_mv > 5.0 else v_mv, n + 1
""".replace("STEEP, TAIL = 2.0, 1", "STEEP = (2.0, 1)")


def of_text() -> Any:
    return neuron_model_from_source(
        TEXT, states={"v_mv": 0.25, "n": 0}, parameters={"tau_ms": 5.0},
        names={"halved": halved, "shift": np.float32(0.125)},
        constants={"rate_khz": "1 / tau_ms", "leak": "exp(-dt_ms * rate_khz) if tau_ms > 0 else 0.0"},
    )  # fmt: skip


@neuron_model(
    states={"v_mv": 0.25, "n": 0}, parameters={"tau_ms": 5.0},
    constants=lambda p, dt: {"leak": exp(-dt * (1 / p["tau_ms"]))}
)  # fmt: skip
def stepped(v_mv, n, leak, current_pa):  # type: ignore[no-untyped-def]
    v_mv = v_mv * leak + (exp(v_mv * -1.5) + 0.125) + current_pa * 0.5
    return v_mv > 5.0, 0.0 if v_mv > 5.0 else v_mv, n + 1


def test_a_model_from_text_has_the_bits_of_the_same_function() -> None:
    found = []
    for model in (of_text(), stepped):
        network = Network(dt_ms=0.1)
        cells = network.population("cells", 3, model(tau_ms=4.0))
        network.current(cells, 1.5)
        with Simulation(pickle.loads(pickle.dumps(network))) as simulation:
            simulation.step(50)
            found.append([simulation.state("cells", name) for name in ("v_mv", "n")])
    assert found[0][0].tobytes() == found[1][0].tobytes()
    assert found[0][1].tolist() == found[1][1].tolist() == [50] * 3
    assert of_text().description == "A model in text."
    assert of_text().values(0.1) == {"leak": exp(-0.1 * (1 / 5.0))}


BODY = "def m(v):\n    return False, v\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def m(v):\n    return (False, v\n", r"made\.txt, line 2: not valid Python.*`return \(False, v`"),
        ("def m(v):\n    a = v\n    return False, foo(a)\n", r"m, made\.txt, line 3: 'foo', which is not defined,"),
        ("def m(v):\n    return False, v[0]\n", r"m, made\.txt, line 2: .*`v\[0\]`"),
        ("def m(v):\n    x = 1\n    return False, (v\n       + (x << v))\n", r"m, made\.txt, line 4: .*`x << v`"),
        ("def g(v):\n    return v << 2\n\n\ndef m(v):\n    return False, g(v)\n", r"made\.txt, line 2: .*`v << 2`"),
        ("def m(v):\n    if v > 0.0:\n        return False, v\n", r"m, made\.txt, line 1: not every path"),
        ("def m(v):\n    return False\n", r"m, made\.txt, line 2: .*one value; return \(spike, v\)"),
        ("def m(w):\n    return False, w\n", r"m, made\.txt, line 1: .*does not take the state 'v'"),
        ("import os\n" + BODY, r"made\.txt, line 1: `import os` cannot be used around a model"),
        ("X = open('a')\n" + BODY, r"X, made\.txt, line 1: `open\('a'\)` cannot be used in an expression"),
        ("\n@d\n" + BODY, r"m, made\.txt, line 3: a decorator in text is not executed"),
        ("X = 1\n", r"made\.txt: no function is defined"),
        ("X = 1 // 0\n" + BODY, r"X, made\.txt, line 1: `1 // 0` has no value"),
        ("class m:\n    pass\n", r"made\.txt, line 1: `class m:` cannot be used"),
        ("(" * 3000 + ")" * 3000 + "\n" + BODY, r"made\.txt.*not valid Python"),
        ("a\0b", r"made\.txt.*not valid Python"),
        (f"X = {'-' * 5000}1\n{BODY}", r"made\.txt: it is nested too deeply"),
        (f"def m(v):\n    return False, {'v + ' * 900}v\n", r"made\.txt, line 1: it is nested too deeply"),
        (f"X = (((2**1024)**1024)**1024)**16\n{BODY}", "a whole number of more than 1,024 bits"),
    ],
)  # fmt: skip
def test_errors_in_text_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        neuron_model_from_source(text, states={"v": 0.0}, filename="made.txt")


def test_an_error_in_a_notebook_names_the_line_of_the_cell(tmp_path: Any) -> None:
    text = "@neuron_model(states={'v': 0.0}, receptors=())\ndef wrong(v):\n    return v > 1.0, round(v)\n"
    file = str(tmp_path / "ipykernel_7" / "123.py")  # as IPython names a cell, which it keeps in memory
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        with pytest.raises(InvalidArgument, match=r"^wrong, notebook cell, line 3: the function round"):
            exec(compile(text, file, "exec"), {"neuron_model": neuron_model})
    finally:
        del linecache.cache[file]


def test_text_is_not_executed(tmp_path: Any) -> None:
    mark = tmp_path / "mark"
    text = f"X = __import__('os').mkdir({str(mark)!r})\n{BODY}"
    with pytest.raises(InvalidArgument):
        neuron_model_from_source(text, states={"v": 0.0})
    with pytest.raises(InvalidArgument):
        neuron_model_from_source(BODY, states={"v": 0.0}, constants={"c": f"__import__('os').mkdir({str(mark)!r})"})(
            v=1
        )
    with pytest.raises(InvalidArgument):
        neuron_model_from_source(
            f"def m(v, x=__import__('os').mkdir({str(mark)!r})):\n    return False, v", states={"v": 0}
        )
    assert not mark.exists()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("exp(-dt_ms / tau)", "constant c: 'tau' in `exp.* is not known there"),
        ("exp(", "constant c: not a valid expression"),
        ("d + 1", "'d' in `d \\+ 1` is not known"),
        ("9 ** 9 ** 9", "has no value: a whole number of more than 1,024 bits"),
        ("((2**1000)**1000)**1000", "has no value: a whole number of more than 1,024 bits"),
        ("1 + " * 985 + "1", "constant c: .*nested too deeply"),
        ("exp(1e9)", "has no value"),
        ("log(0.0)", "log"),
        ("p.real", "cannot be used in an expression of constants"),
        ("[p for p in (1, 2)]", "'p' in|cannot be used"),
        ("p.__class__", "cannot be used in an expression of constants"),
        ("(lambda: 1)()", "cannot be used in an expression of constants"),
    ],
)
def test_constants_as_text_are_checked_at_definition(expression: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        neuron_model_from_source(
            "def m(v, c):\n    return False, v * c\n", states={"v": 0.0}, parameters={"p": 1.0},
            constants={"c": expression},
        )  # fmt: skip


def test_constants_as_text_are_numbers_of_the_model_language() -> None:
    expressions = {"a": "p ** 2 + 2 ** -1.0", "b": "max(1, n) // 2", "c": "a if not b > 3 else -a", "d": "sqrt(2) % 1"}
    made = neuron_model_from_source(
        "def m(v, a, b, c, d):\n    return False, v + a + b + c + d\n", states={"v": 0.0},
        parameters={"p": 3.0, "n": 9}, constants=expressions,
    )  # fmt: skip
    assert made.values(0.1) == {"a": 9.5, "b": 4, "c": -9.5, "d": math.sqrt(2) % 1}
    with pytest.raises(InvalidType, match="constant a: text is expected"):
        neuron_model_from_source("def m(v, a):\n    return False, v", states={"v": 0.0}, constants={"a": 1.0})  # type: ignore[dict-item]


def test_a_function_without_a_source_file_is_refused_with_a_hint() -> None:
    names: dict[str, Any] = {}
    exec("def typed(v):\n    return False, v", names)
    with pytest.raises(InvalidArgument, match=r"typed: .*neuraxis\.network\.neuron_model_from_source\(\)"):
        neuron_model(states={"v": 0.0})(names["typed"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"receptors": ("v",)}, "the receptor 'v' has the name of a state"),
        ({"receptors": ("a", "a")}, "the receptor 'a' has the name of a receptor"),
        ({"receptors": ("a",), "rate_inputs": ("a",)}, "the rate input 'a' has the name of a receptor"),
        ({"receptors": ("a",), "signals": {"a": 1.0}}, "the signal 'a' has the name of a receptor"),
        ({"parameters": {"v": 5.0, "a": 1.0}}, "the parameter 'v' has the name of a state"),
        ({"parameters": {"dt_ms": 5.0, "a": 1.0}}, "the parameter 'dt_ms' has the name of the length of a step"),
    ],
)
def test_a_name_has_one_meaning(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"m: {message}; .* Rename one of them"):
        neuron_model_from_source("def m(v, a):\n    return False, v + a", states={"v": 1.0}, **given)


@pytest.mark.parametrize(
    ("read", "given", "meaning"),
    [
        ("tau_ms", {"parameters": {"tau_ms": 5.0}}, "a parameter"),
        ("dt_ms", {}, "the length of a step"),
        ("current_pa", {}, "a value of the engine"),
        ("leak", {"constants": {"leak": "0.5"}}, "a constant"),
        ("leak", {"constants": lambda p, dt_ms: {"leak": 0.5}}, "a constant"),
        ("TABLE[0]", {"parameters": {"TABLE": 5.0}}, "a parameter"),
    ],
)
def test_a_number_around_a_function_does_not_hide_one_of_the_model(
    read: str, given: dict[str, Any], meaning: str
) -> None:
    """The function would read the number, and the parameter of the same name would have no effect."""
    name = read.removesuffix("[0]")
    value = "(1.0, 2.0)" if read != name else "3.0"
    text = f"{name} = {value}\ndef m(v):\n    return v > {read}, v"
    what = "table" if read != name else "number"
    message = (
        rf"m, made\.txt, line \d: the function reads the {what} '{name}' around it; in the model, '{name}' is "
        rf"{meaning}\. Add it to the arguments to read that, or rename the {what}"
    )
    with pytest.raises(InvalidArgument, match=message):
        neuron_model_from_source(text, states={"v": 1.0}, filename="made.txt", **given)
    taken = text.replace("m(v)", f"m(v, {name})").replace("[0]", "")
    neuron_model_from_source(taken, states={"v": 1.0}, **given)


tau_ms = 3.0


def test_a_number_of_the_module_or_of_an_enclosing_function_does_not_hide_a_parameter() -> None:
    g_leak = 2.0

    def of_module(v):  # type: ignore[no-untyped-def]
        return v > tau_ms, v

    def of_closure(v):  # type: ignore[no-untyped-def]
        return v > g_leak, v

    for function, name in ((of_module, "tau_ms"), (of_closure, "g_leak")):
        neuron_model(states={"v": 0.0})(function)
        with pytest.raises(InvalidArgument, match=f"the function reads the number '{name}' around it; .* a parameter"):
            neuron_model(states={"v": 0.0}, parameters={name: 1.0})(function)


@pytest.mark.parametrize(
    ("name", "given", "kind"),
    [
        ("v", {}, "state"),
        ("a", {"receptors": ("a",)}, "receptor"),
        ("a", {"rate_inputs": ("a",)}, "rate input"),
        ("a", {"signals": {"a": 1.0}}, "signal"),
        ("dt_ms", {"parameters": {"a": 1.0}}, "length of a step"),
    ],
)
def test_a_constant_has_a_name_of_its_own(name: str, given: dict[str, Any], kind: str) -> None:
    """The constant would have no effect."""
    text = "def m(v, a):\n    return False, v + a"
    for constants in ({name: "0.5"}, lambda p, dt_ms: {name: 0.5}):
        with pytest.raises(InvalidArgument, match=f"m, .*: the constant '{name}' has the name of the {kind}; "):
            neuron_model_from_source(text, states={"v": 1.0}, constants=constants, **given)  # type: ignore[arg-type]
