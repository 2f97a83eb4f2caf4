"""Translation of a neuron model's Python function to CUDA C++ with the same bits.

The function is small and loops only over `range`, so it is translated statement by statement. The bits depend on the
type of every intermediate value: Numba compiles `refractory - 1` with 64 bits, and an integer times a float32 in
float64. The translation therefore asks Numba for the type of each operation, and the C++ has explicit conversions.

Names are versioned as Numba does (an assignment makes a new variable of the type of its value), and merged after
branches and loops.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

from neuraxis.errors import InvalidArgument
from neuraxis.network.model_checks import always_returns
from neuraxis.network.model_language import FLOAT_FUNCTIONS

__all__ = ["Translated", "translate"]

_C_NAMES = {
    types.boolean: "bool",
    types.int32: "int",
    types.int64: "long long",
    types.uint32: "unsigned",
    types.float32: "float",
    types.float64: "double",
}
_BINARY: dict[type, tuple[Any, str]] = {
    ast.Add: (operator.add, "+"),
    ast.Sub: (operator.sub, "-"),
    ast.Mult: (operator.mul, "*"),
    ast.Div: (operator.truediv, "/"),
    ast.BitAnd: (operator.and_, "&"),
    ast.BitOr: (operator.or_, "|"),
    ast.BitXor: (operator.xor, "^"),
}
_WRAPPING = ("+", "-", "*")  # signed overflow is undefined in C++; Numba and NumPy wrap around
_COMPARE: dict[type, tuple[Any, str]] = {
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
}
_CASTS = {"_f": types.float32, "_d": types.float64, "_i": types.int32, "_l": types.int64}
# Functions of engine/arithmetic.py and their names in C++, by the types that they take.
_FLOAT_FUNCTIONS = {name: f"{name}_f" for name in FLOAT_FUNCTIONS}
_FUNCTIONS_OF_EITHER_FLOAT = {"floor_divide": "floor_divided", "remainder": "floor_remainder"}
_INTEGER_FUNCTIONS = {
    "floor_divide_int": "floor_divided_int",
    "remainder_int": "floor_remainder_int",
    "int_power": "power_int",
    "shift_left": "shifted_left",
    "shift_right": "shifted_right",
    "within": "index_within",
}
_TRUNCATED = {"to_int32": types.int32, "to_int64": types.int64}
_MOST_PASSES = 8  # over a loop, until the types of its variables are stable; two or three are enough


@dataclass(frozen=True)
class _Value:
    text: str
    type: Any
    depends_on_input: bool = False  # on the input of this step

    def as_(self, wanted: Any) -> str:
        return self.text if self.type == wanted else f"({_c_name(wanted)})({self.text})"


_Names = dict[str, _Value]


@dataclass(frozen=True)
class Translated:
    """The C++ text; `has_lookahead` is True if a spike in a step does not depend on the input of that step."""

    text: str
    has_lookahead: bool


def translate(
    model: str, function: ast.FunctionDef, name: str, arguments: Mapping[str, Any], arriving: Collection[str]
) -> Translated:
    """Return the C++ text of `__device__ bool name(arguments..., results...)`.

    `function` is lowered (`network/model_language.py`), as for the CPU's kernels; `arguments` are Numba types by name,
    and `arriving` the names of inputs that are not known before the step. Results are references to variables of the
    caller, whose types determine the conversion.
    """
    return _Translation(model, name, arguments, arriving).translate(function)


class _Translation:
    def __init__(self, model: str, name: str, arguments: Mapping[str, Any], arriving: Collection[str]) -> None:
        self._arriving = arriving
        self._depends_on_input = False  # of the path to the current statement
        self._spike_depends_on_input = False
        self._model = model
        self._name = name
        self._arguments = arguments
        self._made = 0
        self._results = 0
        self._tables: dict[str, str] = {}
        self._declarations: list[str] = []

    def translate(self, function: ast.FunctionDef) -> Translated:
        names: _Names = {
            name: _Value(f"a_{name}", kind, name in self._arriving) for name, kind in self._arguments.items()
        }
        lines: list[str] = []
        self._block(function.body, names, lines, "    ")
        given = [f"{_c_name(kind)} a_{name}" for name, kind in self._arguments.items()]
        results = [f"R{i} &result_{i}" for i in range(self._results)]
        head = f"template <{', '.join(f'typename R{i}' for i in range(self._results))}>\n" if self._results else ""
        text = f"{head}__device__ bool {self._name}({', '.join([*given, *results])})\n{{\n" + "\n".join(lines) + "\n}\n"
        text = "".join(f"{one}\n" for one in self._declarations) + text
        return Translated(text, not self._spike_depends_on_input)

    def _refuse(self, node: ast.AST, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self._model}: {what} in `{ast.unparse(node)}` cannot be translated for a GPU. Use arithmetic, "
            f"comparisons, conditional expressions, if, for over a range, min, max, abs, {', '.join(FLOAT_FUNCTIONS)}; "
            "while, break and continue work on CPUs only."
        )

    # --- statements -----------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], names: _Names, lines: list[str], indent: str) -> None:
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value, names, lines, indent)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
                self._assign(node.target, value, names, lines, indent)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value, names, lines, indent)
            elif isinstance(node, ast.If):
                self._branch(node, names, lines, indent)
            elif isinstance(node, ast.For):
                self._loop(node, names, lines, indent)
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                self._return(node.value, names, lines, indent)
            elif isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            else:
                raise self._refuse(node, type(node).__name__.lower())

    def _assign(self, target: ast.expr, value: ast.expr, names: _Names, lines: list[str], indent: str) -> None:
        if isinstance(target, ast.Name):
            targets, values = [target], [value]
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            targets, values = [one for one in target.elts if isinstance(one, ast.Name)], value.elts
            if len(targets) != len(values):
                raise self._refuse(target, "an assignment")
        else:
            raise self._refuse(target, "an assignment")
        found = [self._expression(one, names) for one in values]
        for name, one in zip(targets, found, strict=True):
            made = self._new(name.id, one.type, one.depends_on_input or self._depends_on_input)
            lines.append(f"{indent}{_c_name(one.type)} {made.text} = {one.text};")
            names[name.id] = made

    def _branch(self, node: ast.If, names: _Names, lines: list[str], indent: str) -> None:
        test = self._expression(node.test, names)
        condition, before = self._truth(test), self._depends_on_input
        self._depends_on_input = before or test.depends_on_input
        sides: list[tuple[_Names, list[str], bool]] = []
        for body in (node.body, node.orelse):
            inner = dict(names)
            text: list[str] = []
            self._block(body, inner, text, indent + "    ")
            sides.append((inner, text, always_returns(body)))
        continuing = [inner for inner, _, returns in sides if not returns]
        merged: _Names = {}
        for name in sorted({name for inner in continuing for name in inner}):  # sorted: the same text in every process
            found = [inner.get(name) for inner in continuing]
            if any(one is None for one in found):
                continue  # not set on all paths: reading it later is an error
            kinds = [one.type for one in found if one is not None]
            if all(one is names.get(name) for one in found):
                continue
            kind = kinds[0] if len(kinds) == 1 else self._united(node, kinds[0], kinds[1])
            depends_on_input = test.depends_on_input or any(one.depends_on_input for one in found if one is not None)
            merged[name] = self._new(name, kind, depends_on_input)
        for made in merged.values():
            lines.append(f"{indent}{_c_name(made.type)} {made.text};")
        for (inner, text, returns), opening in zip(sides, (f"if ({condition}) {{", "} else {"), strict=True):
            lines += [indent + opening, *text]
            if not returns:
                for name, made in merged.items():
                    lines.append(f"{indent}    {made.text} = {inner[name].as_(made.type)};")
        lines.append(f"{indent}}}")
        for name in list(names):
            if any(name not in inner for inner in continuing):
                del names[name]
        names.update(merged)
        if not any(returns for _, _, returns in sides):
            self._depends_on_input = before  # else the following statements are on one of the paths, too

    def _loop(self, node: ast.For, names: _Names, lines: list[str], indent: str) -> None:
        if (
            node.orelse
            or not isinstance(node.target, ast.Name)
            or not isinstance(node.iter, ast.Call)
            or not isinstance(node.iter.func, ast.Name)
            or node.iter.func.id != "range"
            or not 1 <= len(node.iter.args) <= 3
        ):
            raise self._refuse(node.iter, "a loop")
        if any(
            isinstance(one, ast.Return | ast.Break | ast.Continue) for inner in node.body for one in ast.walk(inner)
        ):
            raise self._refuse(node.iter, "a loop that is left early")
        bounds = [self._expression(one, names) for one in node.iter.args]
        if any(one.type not in (types.int32, types.int64) for one in bounds):
            raise self._refuse(node.iter, "a range of other than whole numbers")
        kind = types.int64 if any(one.type == types.int64 for one in bounds) else types.int32
        first, last = ("0", bounds[0].as_(kind)) if len(bounds) == 1 else (bounds[0].as_(kind), bounds[1].as_(kind))
        step = _literal_of(node.iter.args[2]) if len(bounds) == 3 else 1
        assigned = {one.id for inner in node.body for one in ast.walk(inner)
                    if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}  # fmt: skip
        # The loop variable keeps its last value, if it was set before.
        carried = {name: names[name].type for name in sorted(assigned | {node.target.id}) if name in names}
        depends_on_input = {name: names[name].depends_on_input for name in carried}
        before = self._depends_on_input
        self._depends_on_input = before or any(
            one.depends_on_input for one in bounds
        )  # the number of iterations determines all that it sets
        for _ in range(_MOST_PASSES):
            counter = self._new(node.target.id, kind, self._depends_on_input)
            kept = {name: self._new(name, one, depends_on_input[name]) for name, one in carried.items()}
            inner: _Names = {**names, **kept, node.target.id: counter}
            text: list[str] = []
            self._block(node.body, inner, text, indent + "    ")
            ended = {name: self._united(node, one, inner[name].type) for name, one in carried.items()}
            dependent = {
                name: depends_on_input[name] or inner[name].depends_on_input or self._depends_on_input
                for name in carried
            }
            if ended == carried and dependent == depends_on_input:
                break
            carried, depends_on_input = ended, dependent
        else:
            raise self._refuse(node.iter, "a loop whose variables change their types")
        for name, made in kept.items():
            lines.append(f"{indent}{_c_name(made.type)} {made.text} = {names[name].as_(made.type)};")
        i = counter.text
        sign = "<" if step > 0 else ">"
        lines.append(f"{indent}for ({_c_name(kind)} {i} = {first}; {i} {sign} {last}; {i} += {step}) {{")
        lines += text
        lines += [f"{indent}    {made.text} = {inner[name].as_(made.type)};" for name, made in kept.items()]
        lines.append(f"{indent}}}")
        names.update(kept)
        self._depends_on_input = before

    def _return(self, value: ast.Tuple, names: _Names, lines: list[str], indent: str) -> None:
        spike, *results = [self._expression(one, names) for one in value.elts]
        self._results = len(results)
        self._spike_depends_on_input |= spike.depends_on_input or self._depends_on_input
        lines += [f"{indent}result_{i} = converted<R{i}>({one.text});" for i, one in enumerate(results)]
        lines.append(f"{indent}return {self._truth(spike)};")

    # --- expressions ------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr, names: _Names) -> _Value:
        made = self._typed_expression(node, names)
        read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        return replace(made, depends_on_input=any(names[name].depends_on_input for name in read if name in names))

    def _typed_expression(self, node: ast.expr, names: _Names) -> _Value:
        if isinstance(node, ast.Name):
            if node.id not in names:
                raise self._refuse(node, "a name that is not set on every path")
            return names[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return _Value("true" if node.value else "false", types.boolean)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._binary(node, self._expression(node.left, names), self._expression(node.right, names))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, self._expression(node.operand, names))
        if isinstance(node, ast.Compare):
            return self._comparison(node, names)
        if isinstance(node, ast.BoolOp):
            found = [self._expression(one, names) for one in node.values]
            if any(one.type != types.boolean for one in found):
                raise self._refuse(node, "`and` or `or` of other than truth values")
            return _Value(f"({(' && ' if isinstance(node.op, ast.And) else ' || ').join(one.text for one in found)})",
                          types.boolean)  # fmt: skip
        if isinstance(node, ast.IfExp):
            test = self._truth(self._expression(node.test, names))
            yes, no = self._expression(node.body, names), self._expression(node.orelse, names)
            kind = self._united(node, yes.type, no.type)
            return _Value(f"({test} ? {yes.as_(kind)} : {no.as_(kind)})", kind)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id, names)
        raise self._refuse(node, type(node).__name__.lower())

    def _binary(self, node: ast.BinOp, left: _Value, right: _Value) -> _Value:
        function, sign = _BINARY[type(node.op)]
        kinds, kind = self._signature(node, function, left.type, right.type)
        a, b = left.as_(kinds[0]), right.as_(kinds[1])
        if isinstance(node.op, ast.Div):  # also of integers, whose quotient is a float
            return _Value(f"({left.as_(kind)} / {right.as_(kind)})", kind)
        if sign in _WRAPPING and kind == types.int64:
            return _Value(f"((i64)((u64)({a}) {sign} (u64)({b})))", kind)
        return _Value(f"({a} {sign} {b})", kind)

    def _unary(self, node: ast.UnaryOp, operand: _Value) -> _Value:
        if isinstance(node.op, ast.Not):
            return _Value(f"(!{self._truth(operand)})", types.boolean)
        function, sign = (operator.neg, "-") if isinstance(node.op, ast.USub) else (operator.invert, "~")
        if isinstance(node.op, ast.UAdd):
            return operand
        kinds, kind = self._signature(node, function, operand.type)
        if sign == "-" and kind == types.int64:
            return _Value(f"((i64)(0 - (u64)({operand.as_(kind)})))", kind)
        return _Value(f"({sign}{operand.as_(kinds[0])})", kind)

    def _comparison(self, node: ast.Compare, names: _Names) -> _Value:
        sides = [self._expression(one, names) for one in (node.left, *node.comparators)]
        parts = []
        for i, sign in enumerate(node.ops):
            if type(sign) not in _COMPARE:
                raise self._refuse(node, "this comparison")
            function, text = _COMPARE[type(sign)]
            kinds, _ = self._signature(node, function, sides[i].type, sides[i + 1].type)
            parts.append(f"({sides[i].as_(kinds[0])} {text} {sides[i + 1].as_(kinds[1])})")
        return _Value(parts[0] if len(parts) == 1 else f"({' && '.join(parts)})", types.boolean)

    def _call(self, node: ast.Call, name: str, names: _Names) -> _Value:
        if name == "entry" and len(node.args) == 2 and isinstance(node.args[0], ast.Tuple):
            return self._entry(node.args[0], self._expression(node.args[1], names))
        if name in ("_f", "_d", "_i") and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            return self._number(name, node.args[0].value)
        found = [self._expression(one, names) for one in node.args]
        if name in ("min", "max") and len(found) >= 2:
            kind = found[0].type
            for one in found[1:]:
                kind = self._united(node, kind, one.type)
            text = found[0].as_(kind)
            for one in found[1:]:
                text = f"{name}_of<{_c_name(kind)}>({text}, {one.as_(kind)})"
            return _Value(text, kind)
        if name == "abs" and len(found) == 1 and found[0].type in (types.float32, types.float64):
            return _Value(f"fabs{'f' if found[0].type == types.float32 else ''}({found[0].text})", found[0].type)
        if name == "abs" and len(found) == 1 and found[0].type in (types.int32, types.int64):
            _, kind = self._signature(node, abs, found[0].type)
            return _Value(f"absolute<{_c_name(kind)}>({found[0].as_(kind)})", kind)
        if name in _CASTS and len(found) == 1:
            return _Value(found[0].as_(_CASTS[name]), _CASTS[name])
        if name in _TRUNCATED and len(found) == 1:
            kind = _TRUNCATED[name]
            return _Value(f"converted<{_c_name(kind)}>({found[0].text})", kind)
        if name in _FLOAT_FUNCTIONS and all(one.type == types.float32 for one in found):
            return _Value(f"{_FLOAT_FUNCTIONS[name]}({', '.join(one.text for one in found)})", types.float32)
        if name in _FUNCTIONS_OF_EITHER_FLOAT and len(found) == 2 and found[0].type == found[1].type:
            kind = found[0].type
            return _Value(
                f"{_FUNCTIONS_OF_EITHER_FLOAT[name]}<{_c_name(kind)}>({found[0].text}, {found[1].text})", kind
            )
        if name in _INTEGER_FUNCTIONS and len(found) == 2:
            a, b = (one.as_(types.int64) for one in found)
            return _Value(f"{_INTEGER_FUNCTIONS[name]}({a}, {b})", types.int64)
        raise self._refuse(node, f"{name} of {', '.join(str(one.type) for one in found)}")

    def _entry(self, table: ast.Tuple, index: _Value) -> _Value:
        """Return an entry of a table, which becomes an array in front of the function."""
        values: list[Any] = [one.value for one in table.elts if isinstance(one, ast.Constant)]
        whole = all(isinstance(one, int) for one in values)
        kind = types.int32 if whole else types.float32
        texts = [f"(int){one}LL" if whole else f"{float(np.float32(one)).hex()}f" for one in values]
        entries = ", ".join(texts)
        name = self._tables.setdefault(f"{_c_name(kind)} {entries}", f"{self._name}_table_{len(self._tables)}")
        declared = f"__device__ const {_c_name(kind)} {name}[{len(values)}] = {{{entries}}};"
        if declared not in self._declarations:
            self._declarations.append(declared)
        return _Value(f"{name}[{index.text}]", kind)

    def _number(self, name: str, value: Any) -> _Value:
        if name == "_i":
            return _Value(f"((int){int(value)}LL)", types.int32)
        # By its bits, independent of how a compiler reads decimals.
        if name == "_d":
            return _Value(f"bits_to_d(0x{int(np.float64(value).view(np.uint64)):016x}ull)", types.float64)
        return _Value(f"bits_to_f(0x{int(np.float32(value).view(np.uint32)):08x}u)", types.float32)

    # --- types ------------------------------------------------------------------------------------------------

    def _signature(self, node: ast.AST, function: Any, *kinds: Any) -> tuple[tuple[Any, ...], Any]:
        found = _resolved(function, kinds)
        if found is None or any(one not in _C_NAMES for one in (*found[0], found[1])):
            raise self._refuse(node, f"this operation on {' and '.join(str(kind) for kind in kinds)}")
        return found

    def _united(self, node: ast.AST, a: Any, b: Any) -> Any:
        kind = a if a == b else cpu_target.typing_context.unify_types(a, b)
        if kind not in _C_NAMES:
            raise self._refuse(node, f"a value that is {a} or {b}")
        return kind

    def _truth(self, value: _Value) -> str:
        return value.text if value.type == types.boolean else f"({value.text} != 0)"

    def _new(self, name: str, kind: Any, depends_on_input: bool = False) -> _Value:
        self._made += 1
        return _Value(f"v_{name}_{self._made}", kind, depends_on_input)


def _literal_of(node: ast.expr) -> int:
    """Return the number in `_i(number)`."""
    assert isinstance(node, ast.Call)
    return int(ast.literal_eval(node.args[0]))


def _c_name(kind: Any) -> str:
    return _C_NAMES[kind]


@cache
def _resolved(function: Callable[..., Any], kinds: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any] | None:
    """Return the types to which Numba converts the operands of an operation, and the type of its result."""
    context = cpu_target.typing_context
    context.refresh()
    try:
        found = context.resolve_function_type(function, kinds, {})
    except TypingError:
        return None
    return None if found is None else (tuple(found.args), found.return_type)
