"""Every operator and function of the model language against NumPy, on CPUs and in the C++ for GPUs."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.cuda.shard import CudaShard
from neuraxis.engine.placement import place
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.tables import DONE
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, neuron_model
from neuraxis.network.neuron_model import NeuronModel
from tests.engine.cuda.twin import TwinDevice, compiler
from tests.engine.language import expected, expressions, is_accepted, model_of, on_cpu, on_twin, points, same_bits

TOGETHER = 24  # expressions of one model: it is compiled once
MOST = 25

# Each operator and function, on floats, whole numbers, truth values and mixtures.
EACH = [
    "x + y", "x - y", "x * y", "x / y", "x // y", "x % y", "n + m", "n - m", "n * m", "n / m", "n // m", "n % m",
    "n * m * 65536 * 65536 // -1", "n * m * n * m % 7", "n + x", "x * n", "n // x", "y % m", "n / x", "x / 0", "n / 0",
    "n // 0", "x // 0.0", "x % 0.0", "0.0 / x", "-x", "-n", "+x", "~n", "~(x > y)", "not x", "not n", "not (x > y)",
    "x < y", "x <= y", "x > y", "x >= y", "x == y", "x != y", "n < x", "n == x", "n * m == x", "x > 16777217",
    "x < y < 2.0", "n < 2 < x", "x < y < 2.0 != (n > 1)", "-1 < x <= n", "x and y", "x or y", "n and x", "x or n",
    "n or 2.5", "(x > y) and (n > m)", "(x > y) or n", "n & m", "n | m", "n ^ m", "(x > y) & (n > m)", "(x > y) ^ n",
    "n << m", "n >> m", "n << 40 >> 40", "1 << n", "x if x > y else y", "n if x > y else y", "n if n > m else m",
    "(x > y) if n else x", "min(x, y)", "max(x, y)", "min(n, x)", "max(n, m)", "min(x, y, n, 0.5)", "max(x > y, n)",
    "abs(x)", "abs(n)", "abs(x > y)", "int(x)", "int(x * 1e12)", "int(n)", "int(x > y)", "float(n)", "float(n * m)",
    "float(x > y)", "bool(x)", "bool(n)", "(x > y) + (n > m)", "-(x > y)", "x * (x > y)", "0.1 * (x > y)",
    "(x > y) / (n > m)", "(x > y) // 2", "2 * x + y", "x * (1 / 3)", "7 // 2 + 0.0 * x", "-7 // 2 + 0.0 * y",
    "2 ** 10 * x", "x * TWO + HALF", "n * 0.1", "n * HALF + 0.1", "n / 0.3",
    "0.1 - n", "n // 0.1", "n % 0.3", "n * m * 0.1", "n * 0.1 * x", "x * 0.1 * n", "n * 0.1 + 0.7", "(x > y) * 0.1 + x",
    "n < 0.1", "n * 0.1 == 0.3", "n * 0.1 < x", "min(n, 0.1)", "max(x, 0.1, n)", "min(x > y, 0.7)", "n or 0.1",
    "n and 0.1", "0.1 if x > y else n", "n if x > y else 0.1", "(0.1 if x > y else 0.7) * n", "n * 1e39",
    "n * 1e-50 * 1e40", "int(n * 0.7)", "int(0.1 * n * 10.0)", "exp(x)", "exp(n)", "exp(-x * 30.0)", "log(x)",
    "log(abs(x))", "sqrt(x)", "sqrt(n)", "exp(n * 0.5)", "True + x", "False or x", "x if True else n", "-0.0 * x",
]  # fmt: skip
POWERS = [
    "x ** 0", "x ** 1", "x ** 2", "x ** 3", "x ** 4", "x ** 5", "x ** -1", "x ** -2", "x ** 2.0", "x ** 0.5",
    "x ** -0.5", "x ** 1.5", "x ** TWO", "x ** HALF", "x ** y", "x ** p", "x ** q", "x ** n", "x ** (n * 0.5)",
    "n ** 2", "n ** 5", "n ** 0", "n ** 0.5", "n ** x", "2.0 ** x", "2.0 ** n", "(-3.0) ** n", "0.0 ** x",
    "x ** 15", "x ** -15", "x ** 16", "x ** 100", "(x > y) ** 2", "(n * 0.1) ** 2", "power(x, y)", "power(n, 2)",
    "power(x, 3)", "-x ** 2", "x ** y ** 2", "x ** 2 ** 3", "1.0 ** y", "x ** 1e30", "x ** -1e30",
]  # fmt: skip


ENTRIES = [
    "(0.1, 2.5, -1e10)[n]", "(0.1, 2.5, -1e10)[m * m * m * m * m * 65536 * 65536]", "(3, 1, 4)[n] * x",
    "(3, 1, 4)[x > y]", f"{tuple(range(7, 71))}[n + 30]", f"{tuple(range(7, 72))}[n * 8] * 0.1", "(-0.0, 0.5)[n]",
    "(3, 1, -4)[n & 1] ** 2", "(0.1, 0.7)[1] * n", "(0.1, 0.7)[n] * n", "(1, 2.5)[0] / n", "((1, 2), (3, 4))[n][m]",
    "((0.5, 2.0, 3.0), (3.0, 4.0, -5.0))[n, m + 1]", "((1, 2), (3, 4))[1][m]", "((1, 2), (3, 4))[n, 0]", "(5,)[n]",
    "len((1, 2, 3)) * x", "[0.5, 1.5][n > m]", "(1 / 3, -2.0)[(1, 0)[n]]", "((1, 2), (3, 4))[1, 0] * x",
    "(3, 1, -4)[1] * n", "(0.1, 2.5)[int(x)]",
]  # fmt: skip


def assert_as_numpy(sources: list[str], whole: bool, numbers: int = 1) -> None:
    given = points(numbers)
    model = model_of(sources, whole)
    ways = {"CPU": on_cpu(model, given, len(sources))}
    if compiler() is not None:
        ways["CUDA C++"] = on_twin(model, given, len(sources))
    for way, found in ways.items():
        for source, bits in zip(sources, found, strict=True):
            wanted = expected(source, given, whole)
            differ = np.flatnonzero(bits != wanted if whole else ~same_bits(bits, wanted))
            if differ.size:
                at = {name: values[differ[0]] for name, values in given.items()}
                kind = np.int32 if whole else np.float32
                got, want = bits.view(kind)[differ[0]], wanted.view(kind)[differ[0]]
                pytest.fail(f"{way}: {source} is {got!r}, NumPy has {want!r}, at {at} ({differ.size} points)")


@pytest.mark.parametrize("whole", [False, True], ids=["kept as float32", "kept as int32"])
@pytest.mark.parametrize("first", range(0, len(EACH) + len(POWERS) + len(ENTRIES), MOST))
def test_each_operator_and_function_is_as_in_numpy(first: int, whole: bool) -> None:
    assert_as_numpy([*EACH, *POWERS, *ENTRIES][first : first + MOST], whole)


@settings(
    max_examples=3, deadline=None, phases=[Phase.generate],  # to shrink would compile a hundred times
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(
    st.lists(expressions().filter(is_accepted), min_size=TOGETHER, max_size=TOGETHER), st.booleans(), st.integers(1, 9)
)
def test_random_expressions_are_as_in_numpy(sources: list[str], whole: bool, numbers: int) -> None:
    assert_as_numpy(sources, whole, numbers)


# --- assignments ---

# Statements on a, b, c (float32), i and j (whole numbers); the expected result is Python's own.
ASSIGNMENTS = [
    "a = b = a + 1.0",
    "b = a = a * b",
    "a = b = c = b - a",
    "a, b = b, a",
    "a, b, c = b + c, a, a - b",
    "a, b = b, c = c, a",
    "(a, b) = (c, a) = a + b, a - b",
    "a, a = b, c",
    "a = b = i = i + 1",
    "i, a = a > 1.0, i * 0.5",
    "a = a = a + 2.0",
    "a += b\na *= a\nb -= a\nc /= 2.0",
    "i += 3\ni //= 2\ni <<= 2\nj -= i\nj %= 3\na **= 2\nb += i",
    "i = j = i * 3 + j\na = b = c = a * 0.5",
    "for k in range(3):\n    a = b = a + b + 1.0",
    "if a > b:\n    a = b = a + 1.0\nelse:\n    b = c = b + c",
    "_once_0 = a\na = b = a + 1.0\nc = _once_0",
    "a: float = b\nb = a = a + b",
]
ASSIGNED: dict[str, float | int] = {"a": 1.5, "b": 0.25, "c": -3.0, "i": 5, "j": -2}


def after(body: str) -> dict[str, float | int]:
    """Return Python's results of the statements; all values here are exact in float32."""
    names: dict[str, Any] = dict(ASSIGNED)
    exec(body, {}, names)
    return {name: type(kind)(names[name]) for name, kind in ASSIGNED.items()}


def test_assignments_are_as_in_python() -> None:
    network = Network()
    for number, body in enumerate(ASSIGNMENTS):
        lines = [*body.splitlines(), f"return (False, {', '.join(ASSIGNED)})"]
        text = f"def assigned({', '.join(ASSIGNED)}):\n" + "".join(f"    {line}\n" for line in lines)
        model = NeuronModel(
            name=f"assigned_{number}", states=dict(ASSIGNED), receptors=(), parameters={}, source=text,
            arguments=tuple(ASSIGNED), globals_used={},
        )  # fmt: skip
        network.population(f"cells_{number}", 2, model)
    placement = place(network, 1)
    kinds: list[tuple[Any, dict[str, Any]]] = [(Shard, {})]
    if compiler() is not None:
        kinds.append((CudaShard, {"device": TwinDevice()}))
    for kind, options in kinds:
        shard = kind(network, placement, 0, SpikeBuffers.private(network, placement), **options)
        assert shard.advance(1, 0, 0) == DONE
        for body, part in zip(ASSIGNMENTS, shard.parts, strict=True):
            for row, (name, value) in enumerate(after(body).items()):
                found = part.row(row).view(np.int32 if isinstance(value, int) else np.float32)
                assert found.tolist() == [value, value], (kind.__name__, body, name)


# --- tables ---

WEIGHTS = np.array([0.5, 1.25, -2.0])
GRID = np.arange(6).reshape(2, 3)
PAIRS = ((1.0, 2.0), (3.0, -4.0))


def entry_of(table, i):
    return table[i]


def weighted(table, x):
    total = 0.0
    for one in table:
        total += one * x
    return total


def tables_of(scale: tuple[float, ...]) -> NeuronModel:
    """Tables of the module, of the function around, in place, and as arguments of functions."""

    @neuron_model(states={"x": 2.0, "n": 0, "a": 0.0, "b": 0.0, "c": 0.0, "d": 0, "e": 0.0})
    def tabled(x, n, a, b, c, d, e, step):
        a = weighted(WEIGHTS, x) + weighted(scale, 1.0)
        for first, second in PAIRS:
            a += first * second
        b = entry_of(WEIGHTS, step - 2) + entry_of((1.0, 4.0), n)
        d = 0
        for row in range(len(GRID)):
            for column in range(len(GRID[0])):
                d += GRID[row, column] * (row + 1)
        for one in (5, 6, 7):
            if one == 7:
                break
            d = d + 1000 * one
        c = GRID[1][step] + scale[len(scale) - 1] + PAIRS[n][1]
        return False, x, step, a, b, c, d, e + WEIGHTS[step]

    return tabled


@pytest.mark.parametrize("kind", ["CPU", "CUDA C++"])
def test_tables_have_the_entries_of_numpy(kind: str) -> None:
    """After each step; an index beyond the table is that of its first or last entry."""
    model = tables_of((10.0, 20.0))
    if kind == "CUDA C++":
        if compiler() is None:
            pytest.skip("the twin of a GPU is compiled with g++")
        with pytest.raises(InvalidArgument, match="break"):
            run_steps(model, 1, CudaShard, device=TwinDevice())
        return
    total = 0.0
    for steps in range(1, 5):
        found = run_steps(model, steps, Shard)
        total += WEIGHTS[min(steps, 2)]
        assert found["a"] == 2.0 * WEIGHTS.sum() + 30.0 + 2.0 - 12.0
        assert found["b"] == WEIGHTS[np.clip(steps - 2, 0, 2)] + (1.0, 4.0)[min(steps - 1, 1)]
        assert found["c"] == GRID[1, min(steps, 2)] + 20.0 + PAIRS[min(steps - 1, 1)][1]
        assert found["d"] == 0 + 1 + 2 + 2 * (3 + 4 + 5) + 11_000
        assert found["e"] == total


def run_steps(model: NeuronModel, steps: int, kind: Any, **options: Any) -> dict[str, float]:
    network = Network()
    network.population("cells", 2, model)
    placement = place(network, 1)
    shard = kind(network, placement, 0, SpikeBuffers.private(network, placement), **options)
    assert shard.advance(steps, 0, 0) == DONE
    return {name: shard.parts[0].state(name)[1] for name in model.states}


# --- what is refused, when the model is defined ---

REFUSED = [
    ("return False, x ** n ** m", "n ** m", "float"),
    ("return False, n ** m", "n ** m", "float"),
    ("return False, 2 ** n", "2 ** n", "float"),
    ("return False, n ** -1", "n ** (-1)", "float"),
    ("return False, x * 1e39", "x * 1e+39", "beyond float32"),
    ("return False, x + 1e-50", "x + 1e-50", "0 in float32"),
    ("return False, n + 2147483648", "n + 2147483648", "beyond 32 bits"),
    ("return False, x + 1 / 0", "1 / 0", "division by zero"),
    ("return False, x + 1 % ZERO", "1 % ZERO", "modulo"),
    ("return False, x * LARGE", "LARGE", "beyond float32"),
    ("return False, x + 1e200 * 1e200", "1e+200 * 1e+200", "inf"),
    ("return False, (-8) ** 0.5 * x", "(-8) ** 0.5", "real number"),
    ("return False, x | 1", "x | 1", "int()"),
    ("return False, ~x", "~x", "int()"),
    ("return False, x << 2", "x << 2", "int()"),
    ("return False, x @ x", "x @ x", "operator"),
    ("return False, round(x)", "round", "(x + 0.5) // 1.0"),
    ("return False, min(x)", "min(x)", "min of 1"),
    ("return False, exp(x, x)", "exp(x, x)", "exp of 2"),
    ("return False, abs(x=x)", "abs(x=x)", "named"),
    ("return False, 1j * x", "1j", "two states"),
    ("return False, x if x in (1.0, 2.0) else x", "(1.0, 2.0)", "x == a"),
    ("return False, x is None", "None", "Write =="),
    ("return False, [x][0]", "[x]", "other than numbers"),
    ("return False, x[0]", "x[0]", "TABLE[i]"),
    ("return False, (1.0, 2.0)[x]", "(1.0, 2.0)[x]", "int("),
    ("return False, (1.0, 2.0)[2]", "(1.0, 2.0)[2]", "0 to 1"),
    ("return False, (1.0, 2.0)[-1]", "(1.0, 2.0)[-1]", "len(TABLE) - 1"),
    ("return False, (1.0, 2.0)[0:1]", "0:1", "slice"),
    ("return False, ((1.0, 2.0), (3.0, 4.0))[n]", "[n]", "two whole numbers"),
    ("return False, (1.0, (2.0, 3.0))[n]", "(1.0, (2.0, 3.0))", "numbers"),
    ("return False, (1.0, True)[n]", "(1.0, True)", "numbers"),
    ("return False, len(x)", "len(x)", "TABLE[i]"),
    ("return False, x + BAD[n]", "BAD", "no number"),
    ("return False, x + LONG[n]", "LONG", "1,024"),
    ("return False, x + PAIR", "PAIR", "table"),
    ("return False, (lambda: x)()", "lambda", "function"),
    ("return False, x.real", "x.real", "attribute"),
    ("y = x\n    del y\n    return False, x", "del y", "delete"),
    ("return False, (y := x)", "y := x", "statement of its own"),
    ("for y in x:\n        x = x + y\n    return False, x", "`x`", "range"),
    ("for i in range(x):\n        x = x + 1.0\n    return False, x", "range(x)", "whole numbers"),
    ("for i in range(0, 9, n):\n        x = x + 1.0\n    return False, x", "range(0, 9, n)", "step"),
    ("if x > 0.0:\n        y = x\n    return False, y", "y", "not set on every path"),
    ("for i in range(n):\n        y = x\n    return False, y", "y", "not set on every path"),
    ("y = x > 0.0\n    if n > 1:\n        y = x\n    return False, y", "if n > 1", "truth value"),
    ("exp = x\n    return False, exp", "exp = x", "another name"),
    ("x[0] = 1.0\n    return False, x", "x[0] = 1.0", "names"),
    ("y = z, x = x, x\n    return False, x", "y = z, x = (x, x)", "names"),
    ("y, z = x\n    return False, x", "y, z = x", "names"),
    ("y = exp = x\n    return False, x", "y = exp = x", "another name"),
    ("with x:\n        pass\n    return False, x", "with x:", "with"),
    ("return False, f'{x}'", "f'", "text"),
]


def define(body: str, folder: Path) -> NeuronModel:
    """A model whose source is in a file, as a user's is."""
    path = folder / f"model_{abs(hash(body))}.py"
    constants = "LARGE, ZERO = 1e39 / 10 * 9, 0\nBAD, LONG, PAIR = (1.0, 'two'), [0.0] * 1025, (1.0, 2.0)\n"
    path.write_text(f"{constants}\n\ndef tried(x, n, m):\n    {body}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return neuron_model(states={"x": 0.0}, parameters={"n": 2, "m": 3})(module.tried)


@pytest.mark.parametrize(("body", "expression", "words"), REFUSED, ids=[body for body, _, _ in REFUSED])
def test_invalid_models_are_refused_at_definition(body: str, expression: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        define(body, tmp_path)
    text = str(caught.value)
    assert "tried" in text
    assert expression in text
    assert words in text


def test_the_error_names_the_line_of_the_file() -> None:
    def wrong(x, n):
        y = x * 2.0
        return False, y**n + n**n

    line = inspect.getsourcelines(wrong)[1] + 2
    with pytest.raises(InvalidArgument, match=rf"wrong, .*test_language.py, line {line}: .*`n \*\* n`"):
        neuron_model(states={"x": 0.0}, parameters={"n": 2})(wrong)


def test_a_parameter_that_becomes_a_float_is_seen_where_the_model_is_used() -> None:
    def shifted(x, n):
        return False, x + (1 << n)

    model = neuron_model(states={"x": 0.0}, parameters={"n": 2})(shifted)
    Network().population("fine", 1, model(n=3))
    with pytest.raises(InvalidArgument, match=r"shifted, .*test_language.py, line \d+: .*1 << n"):
        Network().population("wrong", 1, model(n=2.5))
