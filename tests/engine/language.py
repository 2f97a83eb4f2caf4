"""The model language against NumPy: random expressions, their value in NumPy, and their value in the engines.

The oracle knows the rules of docs/reference/model-language.md and nothing of how they are carried out: values are
arrays of float32, int64, float64 or bool, literals are Python's numbers, and NumPy's own promotion does the rest.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from neuraxis.engine.codegen import BLOCK, BlockLayout, update_function
from neuraxis.engine.cuda.program import model_source
from neuraxis.errors import InvalidArgument
from neuraxis.network.neuron_model import NeuronModel, lower_model
from tests.engine.cuda.twin import TwinDevice
from tests.engine.test_arithmetic import FUNCTIONS, exp_of, log_of

Array = np.ndarray[Any, Any]

PARAMETERS: dict[str, float | int] = {"p": -1.5, "q": 3}
GLOBALS: dict[str, float | int] = {"TWO": 2, "HALF": 0.5}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, np.inf, -np.inf, np.nan, 1e-20, 1e-40, 3e38, -3e38, 0.1, 2.5, 1e10]
WHOLE = [0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 255, 256, 2**31 - 1, -(2**31), 16777217]


def points(seed: int = 1) -> dict[str, Array]:
    """Values for x, y (float32) and n, m (int32): all pairs of special ones, then random ones; BLOCK of each."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0, 4, BLOCK).astype(np.float32), rng.normal(0, 4, BLOCK).astype(np.float32)
    x[600:700], y[600:700] = np.round(x[600:700], 1), np.round(y[600:700], 1)
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32)
    x[: len(pairs)], y[: len(pairs)] = pairs.T
    n, m = rng.integers(-9, 10, BLOCK).astype(np.int32), rng.integers(-9, 10, BLOCK).astype(np.int32)
    pairs = np.array([(a, b) for a in WHOLE for b in WHOLE], np.int32)
    n[-len(pairs) :], m[-len(pairs) :] = pairs.T
    return {"x": x, "y": y, "n": n, "m": m}


# --- expressions ---

LITERALS = ["0", "1", "-1", "2", "3", "7", "-5", "40", "0.0", "-0.0", "0.5", "-2.0", "0.1", "1e-3", "3e5", "2147483647",
            "TWO", "HALF"]  # fmt: skip


_OF_FLOAT: dict[str, Any] = {"exp": exp_of, "log": log_of, "sqrt": np.sqrt, **FUNCTIONS}
TABLES = ["(0.1, -2.5, 3e5, 7.0)", "(3, -1, 2147483647)", "((0.1, 1, 2), (3, 4, 5.5))[n > 0]", "((7, 8), (-9, 10))[m]"]
EXPONENTS = ["0", "1", "2", "3", "4", "5", "-1", "0.5", "2.0", "TWO"]


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ["+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "and", "or"]
    signs = ["<", "<=", ">", ">=", "==", "!="]
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(operators), inner),
        st.builds("({} ** {})".format, inner, st.one_of(st.sampled_from(EXPONENTS), inner)),
        st.builds("({}{})".format, st.sampled_from(["-", "+", "~", "not "]), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(signs), inner),
        st.builds("({} {} {} {} {})".format, inner, st.sampled_from(signs), inner, st.sampled_from(signs), inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "power"]), inner, inner),
        st.builds("{}[{}]".format, st.sampled_from(TABLES), inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "int", "float", "bool", *_OF_FLOAT]), inner),
    )  # fmt: skip


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from([*["x", "y", "n", "m"] * 5, "p", "q", "(x > y)", "(n == m)", *LITERALS])
    return st.recursive(leaves, _grown, max_leaves=8)


# --- a model of many expressions ---


def model_of(sources: Sequence[str], whole: bool) -> NeuronModel:
    """A model that keeps its four given states and puts the value of each expression into a state of its own."""
    given: dict[str, float | int] = {"x": 0.0, "y": 0.0, "n": 0, "m": 0}
    results: dict[str, float | int] = {f"r{k}": 0 if whole else 0.0 for k in range(len(sources))}
    arguments = (*given, *results, *PARAMETERS)
    text = f"def tried({', '.join(arguments)}):\n    return (x != 0.0, x, y, n, m, {', '.join(sources)})"
    return NeuronModel(
        name="tried", states={**given, **results}, receptors=(), parameters=PARAMETERS, source=text,
        arguments=arguments, globals_used=GLOBALS,
    )  # fmt: skip


def is_accepted(source: str) -> bool:
    try:
        for whole in (False, True):  # a literal may be too large for a whole number
            lower_model(model_of([source], whole), PARAMETERS)
    except InvalidArgument:
        return False
    return True


def on_cpu(model: NeuronModel, given: Mapping[str, Array], results: int) -> Array:
    """The bits of each result, by the compiled update of a block."""
    layout = BlockLayout.of(model, poisson=False, current=False)
    block = np.zeros((layout.rows, BLOCK), np.uint32)
    for row, values in enumerate(given.values()):
        block[row] = values.view(np.uint32)
    values = model.values(0.1)
    constants = np.zeros(256, np.float32)
    for place, value in enumerate(values.values()):
        (constants.view(np.int32) if isinstance(value, int) else constants)[place] = value
    update = update_function(model, layout, values)
    flags, accumulators = np.zeros(BLOCK + 16, np.uint8), np.zeros(BLOCK, np.int32)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5, ctypes.c_float, ctypes.c_int64)
    kind(update.address)(
        block.ctypes.data, accumulators.ctypes.data, flags.ctypes.data, BLOCK, constants.ctypes.data, 0.0, 1
    )
    return block[4 : 4 + results].copy()


def on_twin(model: NeuronModel, given: Mapping[str, Array], results: int) -> Array:
    """The same by the C++ that a GPU would run."""
    whole = isinstance(model.states["r0"], int)
    values = model.values(0.1)
    constants = [f"{'(int)' if isinstance(values[name], int) else '(float)'}{values[name]}" for name in PARAMETERS]
    made = ", ".join(f"out{k}" for k in range(results))
    nothing = ", ".join(["0"] * results)
    lines = [
        'extern "C" __global__ void all_of(const float *x, const float *y, const int *n, const int *m, u32 *out)', "{",
        f"    for (int k = threadIdx.x; k < {BLOCK}; k += blockDim.x) {{",
        f"        float a, b; int c, d; {'int' if whole else 'float'} {made};",
        f"        tried(x[k], y[k], n[k], m[k], {nothing}, {', '.join(constants)}, a, b, c, d, {made});",
    ]  # fmt: skip
    for k in range(results):
        kept = f"(u32)out{k}" if whole else f"(fabsf(out{k}) < 1e-30f ? 0u : f_to_bits(out{k}))"
        lines.append(f"        out[{k * BLOCK} + k] = {kept};")
    source = model_source(model, 0.1, "tried") + "\n".join([*lines, "    }", "}"]) + "\n"
    device = TwinDevice()
    memory, out = [device.put(one) for one in given.values()], device.empty(4 * BLOCK * results)
    program = device.compile(source.replace("#define WARP 32", "#define WARP 4"), resident=False)
    program.launch("all_of", 1, 8, 0, [*[one.address for one in memory], out.address])
    return device.read(out, np.uint32, BLOCK * results).reshape(results, BLOCK)


# --- what NumPy makes of an expression ---

_ARITHMETIC = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
               ast.FloorDiv: np.floor_divide, ast.Mod: np.remainder}  # fmt: skip
_BITWISE = {ast.BitAnd: np.bitwise_and, ast.BitOr: np.bitwise_or, ast.BitXor: np.bitwise_xor}
_PYTHON = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
           ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitAnd: operator.and_,
           ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
           ast.RShift: operator.rshift}  # fmt: skip
_SIGNS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
          ast.NotEq: operator.ne}  # fmt: skip


def expected(source: str, given: Mapping[str, Array], whole: bool) -> Array:
    """The bits that the expression has where it is kept as float32 (or, `whole`, as int32)."""
    names: dict[str, Any] = {
        name: values.astype(np.int64) if values.dtype == np.int32 else values for name, values in given.items()
    }
    names |= {name: np.full(BLOCK, value, np.int64 if isinstance(value, int) else np.float32)
              for name, value in PARAMETERS.items()}  # fmt: skip
    with np.errstate(all="ignore"):
        value = np.broadcast_to(_as_array(_value(ast.parse(source, mode="eval").body, names)), BLOCK)
        if whole:
            kept = _truncated(value, np.int32) if value.dtype.kind == "f" else value.astype(np.int32)
            return kept.view(np.uint32)
        kept = value.astype(np.float32)
        return np.where(np.abs(kept) < np.float32(1e-30), np.float32(0), kept).view(np.uint32)


def same_bits(a: Array, b: Array) -> Array:
    """Compare two rows of float32 bits; one NaN is like the other."""
    nan = np.isnan(a.view(np.float32)) & np.isnan(b.view(np.float32))
    return (a == b) | nan


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return np.bool_(node.value) if isinstance(node.value, bool) else node.value
    if isinstance(node, ast.Name):
        return names[node.id] if node.id in names else GLOBALS[node.id]
    if isinstance(node, ast.BinOp):
        return _binary(type(node.op), _value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, names)
        if isinstance(node.op, ast.Not):
            return np.bool_(not value) if _is_known(value) else ~_truth(value)
        if isinstance(node.op, ast.Invert):
            return ~value
        value = _number(value)
        return value if isinstance(node.op, ast.UAdd) else -value
    if isinstance(node, ast.Compare):
        sides = [_value(one, names) for one in (node.left, *node.comparators)]
        pairs = zip(sides[:-1], node.ops, sides[1:], strict=True)
        parts = [
            _SIGNS[type(sign)](*((a, b) if _is_literal(a) and _is_literal(b) else _pair(a, b))) for a, sign, b in pairs
        ]
        if any(one is False for one in parts):
            return np.bool_(False)
        unknown = [one for one in parts if one is not True]
        return functools.reduce(np.logical_and, unknown) if unknown else np.bool_(True)
    if isinstance(node, ast.BoolOp):
        values = [_value(one, names) for one in node.values]
        found = values[-1]
        for one in reversed(values[:-1]):
            if _is_known(one):
                found = found if bool(one) == isinstance(node.op, ast.And) else one
                continue
            a, b = _pair(one, found)
            found = np.where(_truth(one), b, a) if isinstance(node.op, ast.And) else np.where(_truth(one), a, b)
        return found
    if isinstance(node, ast.IfExp):
        test = _value(node.test, names)
        if _is_known(test):
            return _value(node.body if test else node.orelse, names)
        a, b = _pair(_value(node.body, names), _value(node.orelse, names))
        return np.where(_truth(test), a, b)
    if isinstance(node, ast.Subscript):
        indices = []
        while isinstance(node, ast.Subscript):
            found = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            indices[:0] = [_as_array(_value(one, names)).astype(np.int64) for one in found]
            node = node.value
        table = np.array(eval(ast.unparse(node)))
        table = table.astype(np.float32 if table.dtype.kind == "f" else np.int64)
        pairs = zip(indices, table.shape, strict=True)
        return table[tuple(np.clip(np.broadcast_to(i, BLOCK), 0, size - 1) for i, size in pairs)]
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    if node.func.id == "len":
        return len(ast.literal_eval(node.args[0]))
    return _called(node.func.id, [_value(one, names) for one in node.args])


def _called(name: str, values: list[Any]) -> Any:
    if name in ("min", "max"):
        if all(_is_literal(one) for one in values):
            return (min if name == "min" else max)(values)
        found, *others = (_number(one) for one in _alike(values))
        for one in others:
            found = np.where(one < found if name == "min" else one > found, one, found)
        return found
    if name == "power":
        return _power(*(_single(one) for one in values))
    if name in _OF_FLOAT:
        return _OF_FLOAT[name](np.ascontiguousarray(np.broadcast_to(_single(values[0]), BLOCK)))
    (value,) = values
    if name == "bool":
        return _truth(value)
    if _is_literal(value):
        return {"abs": abs, "int": int, "float": float}[name](value)
    if name == "float":
        return _single(value)
    if name == "abs":
        return np.abs(_number(value))
    return _truncated(value, np.int64) if value.dtype.kind == "f" else value.astype(np.int64)


def _binary(op: type, a: Any, b: Any) -> Any:
    if _is_literal(a) and _is_literal(b):
        return _PYTHON[op](a, b)
    if op is ast.Pow:
        if _is_whole(a) and isinstance(b, int):
            return np.power(_as_array(a).astype(np.int64), b)
        return _power(_single(a), b if _is_literal(b) else _single(b))
    if op in _BITWISE:
        return _BITWISE[op](*_pair(a, b))
    if op in (ast.LShift, ast.RShift):
        a, b = _as_array(a).astype(np.int64), _as_array(b).astype(np.int64)
        within = (b >= 0) & (b < 64)
        shifted = (
            np.left_shift(a, np.where(within, b, 0)) if op is ast.LShift else np.right_shift(a, np.where(within, b, 63))
        )
        return np.where(within, shifted, np.where(a < 0, -1, 0) if op is ast.RShift else 0)
    a, b = _pair(a, b)
    if a.dtype == bool:
        a, b = a.astype(np.int64), b.astype(np.int64)
    return _ARITHMETIC[op](a, b)


def _power(a: Array, b: Any) -> Array:
    """NumPy's power of float32, correctly rounded; literal exponents 2, 3 and 4 are products of float64."""
    if _is_literal(b) and b in (2, 3, 4):
        wide = a.astype(np.float64)
        product = wide
        for _ in range(int(b) - 1):
            product = product * wide
        return product.astype(np.float32)
    # (For one exponent of 0.5 NumPy takes the square root, which has other values for -0.0 and minus infinity.)
    exponents = np.broadcast_to(_single(b), BLOCK).astype(np.float64)
    return np.power(np.broadcast_to(a, BLOCK).astype(np.float64), exponents).astype(np.float32)


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands as arrays of one kind."""
    one, other = _alike([a, b])
    return one, other


def _alike(values: Sequence[Any]) -> list[Array]:
    """Operands as arrays of the kind that NumPy's promotion gives; literals alone are float32 or int64."""
    if all(_is_literal(one) for one in values):
        kind: Any = np.float32 if any(isinstance(one, float) for one in values) else np.int64
    else:
        kind = np.result_type(*values)  # a Python number gives way to arrays (NEP 50)
    return [np.asarray(one).astype(kind) for one in values]


def _as_array(value: Any) -> Array:
    if _is_literal(value):
        return np.array(value, np.float32 if isinstance(value, float) else np.int64)
    return np.asarray(value)


def _single(value: Any) -> Array:
    return np.asarray(value).astype(np.float32)


def _number(value: Any) -> Any:
    return value if _is_literal(value) or value.dtype != bool else value.astype(np.int64)


def _truth(value: Any) -> Any:
    return np.bool_(value) if _is_known(value) else value != 0


def _truncated(value: Array, kind: Any) -> Array:
    """Without a fraction; the lowest number for what does not fit."""
    info = np.iinfo(kind)
    whole = np.trunc(value.astype(np.float64))
    fits = (whole >= float(info.min)) & (whole < -float(info.min))
    return np.where(fits, np.where(fits, whole, 0).astype(kind), info.min).astype(kind)


def _is_literal(value: Any) -> bool:
    return type(value) in (int, float)


def _is_known(value: Any) -> bool:
    """True if it is the same at all points, and known as such."""
    return _is_literal(value) or isinstance(value, np.bool_)


def _is_whole(value: Any) -> bool:
    return type(value) is int or (not _is_literal(value) and value.dtype.kind in "bi")
