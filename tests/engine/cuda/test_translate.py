"""Neuron models as C++: untranslatable models are refused, and spikes that a model can predict are detected."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit, types

from neuraxis.engine.codegen import _HEADER
from neuraxis.engine.cuda.program import has_lookahead
from neuraxis.engine.cuda.translate import translate
from neuraxis.errors import InvalidArgument
from neuraxis.network.model_language import FLOAT, INT, lower_function
from neuraxis.network.models.catalogue import built_in_models
from tests.engine.cuda.twin import TwinDevice, compiler


def typed(source: str, **kinds: object) -> ast.FunctionDef:
    """The function as both engines get it; its states are a float and, if it returns three values, a whole number."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    names = {name: INT if kind == types.int32 else FLOAT for name, kind in kinds.items()}
    returned = next(one for one in ast.walk(function) if isinstance(one, ast.Return)).value
    assert isinstance(returned, ast.Tuple)
    return lower_function("odd", function, names, [FLOAT, INT][: len(returned.elts) - 1], {})


def translated(source: str, **kinds: object) -> str:
    return translate("odd", typed(source, **kinds), "odd", kinds, ("arrived",)).text


def compiled(source: str, **kinds: object) -> Callable[..., Any]:
    """The function as Numba compiles it."""
    names: dict[str, Any] = {}
    exec(_HEADER + ast.unparse(typed(source, **kinds)), names)
    return njit(error_model="numpy")(names["odd"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "ahead"),
    [("lif_exp", True), ("lif_exp_two", True), ("lif_alpha", True), ("lif_cond_exp", True), ("adex", True),
     ("poisson_source", True), ("spike_source", True), ("lif_delta", False), ("izhikevich", False),
     *((name, True) for name in ("adex_cond_alpha", "gamma_source", "glif_1", "glif_2", "glif_3", "glif_4", "glif_5",
                                 "hh_alpha", "hh_cond_exp", "hh_cond_exp_fine", "lif_alpha_multi", "lif_cond_alpha",
                                 "lif_cond_beta", "lif_exp_multi", "lif_nmda", "mat2", "qif")),
     ("parrot", False), ("pp_delta", False)],
)  # fmt: skip
def test_which_models_know_their_spikes_one_step_ahead(name: str, ahead: bool) -> None:
    assert has_lookahead(built_in_models()[name], 0.1) is ahead


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("while x > 0.0:\n        x = x - 1.0\n    return (True, x)", "while"),
        ("for i in range(3):\n        break\n    return (True, x)", "left early"),
    ],
)
def test_untranslatable_expressions_are_named(body: str, what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        translated(f"def odd(x):\n    {body}", x=types.float32)


ODD = """
def odd(x, n, arrived):
    a, b = n - 7, x * 2.5
    if n > 3:
        a = a // 2
        c = x / 3.0
    else:
        c = abs(b)
    total = x
    for i in range(n):
        total = total + i * x - (c if i % 2 == 0 else 0.125)
        if total > 50.0:
            total = total - x ** 2
    if x < 0.0 and not n == 2:
        return (False, min(total, b, 4.0), a % 3)
    return (n > 1 or x >= 1.0, max(total, exp(c)) + arrived, -a)
"""


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")
def test_the_translation_has_the_bits_of_numba() -> None:
    """An odd function with branches, loops, integers that widen and two return statements."""
    from neuraxis.engine.cuda.program import _common, _inlined

    text = translated(ODD, x=types.float32, n=types.int32, arrived=types.float32)
    entry = """
extern "C" __global__ void all_of(const float *x, const int *n, const float *arrived, float *out, i64 count)
{
    for (i64 k = threadIdx.x; k < count; k += blockDim.x) {
        float first; int second;
        bool spike = odd(x[k], n[k], arrived[k], first, second);
        out[3 * k] = (float)spike; out[3 * k + 1] = first; out[3 * k + 2] = (float)second;
    }
}
"""
    source = "#define WARP 4\n" + _common() + _inlined('#include "portable.cuh"\n', {}) + text + entry
    expected = compiled(ODD, x=types.float32, n=types.int32, arrived=types.float32)

    rng = np.random.default_rng(1)
    x = rng.normal(0, 5, 500).astype(np.float32)
    n = rng.integers(-2, 9, 500).astype(np.int32)
    arrived = rng.normal(0, 1, 500).astype(np.float32)
    device = TwinDevice()
    given = [device.put(x), device.put(n), device.put(arrived), device.empty(4 * 1500)]
    device.compile(source, resident=False).launch("all_of", 1, 8, 0, [*[one.address for one in given], 500])
    found = device.read(given[3], np.float32, 1500).reshape(-1, 3)
    for k in range(500):
        spike, first, second = expected(x[k], n[k], arrived[k])
        assert found[k].tolist() == [float(spike), float(np.float32(first)), float(np.int32(second))], k


CONSTRUCTS = [
    "return (~(x > y), x, ~n)",
    "return (x > 0.0, x // y, n // m)",
    "return (x > 0.0, x % y, n % m)",
    "return (x > 0.0, (x * 0.7) % 360.0, -n % 7)",
    "return (x > 0.0, n / m, m)",
    "return (n, (x > 0.0) / 4 + x / n, n)",
    "return (n * 128, x, x)",
    "return (True, int(x * 1e12), y * 1e12)",
    "return (True, -(x > y), (x > y) + (n > m))",
    "return (x < y < 2.0 != (n > 1), min(x, y, n), max(n, m, 2.5))",
    "return (not n, abs(m - n), abs(n))",
    "return (x == y or n == m, x if n else m, n & m | n ^ m)",
    "return (True, x ** 3 - y * True, n * n * n * n * 65536)",
    """i = 5
    for i in range(n):
        x = x + i
    return (x > 3.0, x, i)""",
    """i = 2.5
    for i in range(n):
        x = x - i
    return (x > 3.0, x * i, n)""",
    """for i in range(n):
        for i in range(2):
            x = x + i
    return (x > 3.0, x, n)""",
    """if x > 0.0:
        z = y
    else:
        z = 2
        if n > 0:
            return (False, x, n)
        else:
            return (True, y, n)
    return (True, z * 0.1 * x, n)""",
    """if n:
        x = 1
    n += 0.5
    n //= 2
    return (True, x * 0.1, n)""",
    """total = 0
    for i in range(9, max(n, -20), -2):
        total += i
    for i in range(max(n, -20), 9, 4):
        total -= i * m
    return (total, total * 0.5, total)""",
    """if x > y:
        z, k = x, n
    elif n > m:
        z, k = y, -1
    else:
        return (x, 2, 2.5)
    return (k, z ** k, z * 1e9)""",
]


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")
def test_every_construct_has_the_bits_of_numba() -> None:
    """Also with operands that are 0, negative, infinite, the largest, or NaN."""
    from neuraxis.engine.cuda.program import _common, _inlined

    rng = np.random.default_rng(2)
    x, y, arrived = (rng.normal(0, 4, 300).astype(np.float32) for _ in range(3))
    n, m = (rng.integers(-6, 9, 300).astype(np.int32) for _ in range(2))
    x[:8], y[3:10] = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-20], [0, -0.0, 0.1, 3, np.nan, np.inf, -0.1]
    x[20:60], y[20:60] = np.round(x[20:60], 1), np.round(y[20:60], 1)
    n[70:74], m[72:76] = [2**31 - 1, -(2**31), 0, 0], [0, 0, -1, 2**31 - 1]
    n[[70]] = 100  # (a loop's bound)
    given = (x, y, n, m, arrived)
    kinds = {"x": types.float32, "y": types.float32, "n": types.int32, "m": types.int32, "arrived": types.float32}
    bodies = [f"def odd(x, y, n, m, arrived):\n    {body}" for body in CONSTRUCTS]
    text = ""
    for k, body in enumerate(bodies):
        text += (
            translated(body, **kinds).replace("bool odd(", f"bool odd_{k}(")
            + f"""
extern "C" __global__ void all_{k}(const float *x, const float *y, const int *n, const int *m, const float *arrived,
    float *out)
{{
    for (int k = threadIdx.x; k < 300; k += blockDim.x) {{
        int second;
        out[3 * k] = odd_{k}(x[k], y[k], n[k], m[k], arrived[k], out[3 * k + 1], second);
        out[3 * k + 2] = (float)second;
    }}
}}
"""
        )
    device = TwinDevice()
    program = device.compile("#define WARP 4\n" + _common() + _inlined('#include "portable.cuh"\n', {}) + text, False)
    memory, out = [device.put(one) for one in given], device.empty(4 * 900)
    for k, body in enumerate(bodies):
        expected = _all_of(compiled(body, **kinds), x, y, n, m, arrived)
        program.launch(f"all_{k}", 1, 8, 0, [*[one.address for one in memory], out.address])
        np.testing.assert_array_equal(device.read(out, np.float32, 900).reshape(-1, 3), expected, err_msg=body)


@njit(error_model="numpy")
def _all_of(function, x, y, n, m, arrived):  # type: ignore[no-untyped-def]
    """Return the values that the CPU's engine stores of a model's results."""
    kept = np.empty((len(x), 3), np.float32)
    for k in range(len(x)):
        spike, first, second = function(x[k], y[k], n[k], m[k], arrived[k])
        kept[k, 0], kept[k, 1], kept[k, 2] = spike, first, np.float32(second)
    return kept


def test_the_text_is_the_same_in_every_process() -> None:
    code = (
        "from neuraxis.engine.cuda.program import _models_source; from neuraxis.network import models; "
        "print(hash_of(_models_source([(models.adex, 0.1, ()), (models.izhikevich, 0.1, ())])))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", "import hashlib\nhash_of = lambda t: hashlib.md5(t.encode()).hexdigest()\n" + code],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(made) == 1
