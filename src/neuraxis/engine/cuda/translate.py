"""A neuron model's Python function as a CUDA C++ one that gives the same bits.

The function is small and has no loops but over `range`, so it is translated statement by statement. What decides about
bits is the type of every intermediate value: Numba compiles `refractory - 1` with 64 bits and an integer times a
float32 in float64. So Numba itself is asked for the type of each operation, and the C++ says each conversion out loud.

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
from neuraxis.network.neuron_model import always_returns

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
    ast.FloorDiv: (operator.floordiv, "floor_divided"),
    ast.Mod: (operator.mod, "floor_remainder"),
}
_COMPARE: dict[type, tuple[Any, str]] = {
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
}
_FLOAT_FUNCTIONS = {"exp": "exp_f", "log": "log_f", "power": "power_f", "sqrt": "sqrt_f"}
_FEW_TURNS = 8  # types of a loop's variables settle in two or three


@dataclass(frozen=True)
class _Value:
    text: str
    type: Any
    heard: bool = False  # whether it depends on what arrives in this step

    def as_(self, wanted: Any) -> str:
        return self.text if self.type == wanted else f"({_c_name(wanted)})({self.text})"


_Names = dict[str, _Value]


@dataclass(frozen=True)
class Translated:
    """The C++ text, and whether a neuron can tell before a step's input arrives whether it spikes in that step."""

    text: str
    foresees: bool


def translate(
    model: str, function: ast.FunctionDef, name: str, arguments: Mapping[str, Any], arriving: Collection[str]
) -> Translated:
    """The C++ text of `__device__ bool name(arguments..., results...)`.

    `function` has typed numbers (`_f(0.5)`, `_i(3)`), as the CPU's kernels have; `arguments` are Numba types by name,
    and `arriving` those that are not known before the step. Results are references of any type: the caller's variables
    decide, as it casts what Numba returns.
    """
    return _Translation(model, name, arguments, arriving).whole(function)


class _Translation:
    def __init__(self, model: str, name: str, arguments: Mapping[str, Any], arriving: Collection[str]) -> None:
        self._arriving = arriving
        self._heard = False  # whether the way to the present statement depends on what arrives
        self._spike_heard = False
        self._model = model
        self._name = name
        self._arguments = arguments
        self._made = 0
        self._results = 0

    def whole(self, function: ast.FunctionDef) -> Translated:
        names: _Names = {
            name: _Value(f"a_{name}", kind, name in self._arriving) for name, kind in self._arguments.items()
        }
        lines: list[str] = []
        self._block(function.body, names, lines, "    ")
        given = [f"{_c_name(kind)} a_{name}" for name, kind in self._arguments.items()]
        results = [f"R{i} &result_{i}" for i in range(self._results)]
        head = f"template <{', '.join(f'typename R{i}' for i in range(self._results))}>\n" if self._results else ""
        text = f"{head}__device__ bool {self._name}({', '.join([*given, *results])})\n{{\n" + "\n".join(lines) + "\n}\n"
        return Translated(text, not self._spike_heard)

    def _refuse(self, node: ast.AST, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self._model}: {what} in `{ast.unparse(node)}` cannot be translated for a GPU; write it with arithmetic, "
            "comparisons, conditional expressions, if, for over a range, min, max, abs, exp, log, power and sqrt"
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
            made = self._new(name.id, one.type, one.heard or self._heard)
            lines.append(f"{indent}{_c_name(one.type)} {made.text} = {one.text};")
            names[name.id] = made

    def _branch(self, node: ast.If, names: _Names, lines: list[str], indent: str) -> None:
        test = self._expression(node.test, names)
        condition, before = self._truth(test), self._heard
        self._heard = before or test.heard
        sides: list[tuple[_Names, list[str], bool]] = []
        for body in (node.body, node.orelse):
            inner = dict(names)
            text: list[str] = []
            self._block(body, inner, text, indent + "    ")
            sides.append((inner, text, always_returns(body)))
        going_on = [inner for inner, _, returns in sides if not returns]
        merged: _Names = {}
        for name in sorted({name for inner in going_on for name in inner}):  # the same text in every process
            found = [inner.get(name) for inner in going_on]
            if any(one is None for one in found):
                continue  # not known on all ways: whoever reads it afterwards is refused
            kinds = [one.type for one in found if one is not None]
            if all(one is names.get(name) for one in found):
                continue
            kind = kinds[0] if len(kinds) == 1 else self._united(node, kinds[0], kinds[1])
            heard = test.heard or any(one.heard for one in found if one is not None)
            merged[name] = self._new(name, kind, heard)
        for made in merged.values():
            lines.append(f"{indent}{_c_name(made.type)} {made.text};")
        for (inner, text, returns), opening in zip(sides, (f"if ({condition}) {{", "} else {"), strict=True):
            lines += [indent + opening, *text]
            if not returns:
                for name, made in merged.items():
                    lines.append(f"{indent}    {made.text} = {inner[name].as_(made.type)};")
        lines.append(f"{indent}}}")
        for name in list(names):
            if any(name not in inner for inner in going_on):
                del names[name]
        names.update(merged)
        if not any(returns for _, _, returns in sides):
            self._heard = before  # else what follows is on the one way or the other, too

    def _loop(self, node: ast.For, names: _Names, lines: list[str], indent: str) -> None:
        if (
            node.orelse
            or not isinstance(node.target, ast.Name)
            or not isinstance(node.iter, ast.Call)
            or not isinstance(node.iter.func, ast.Name)
            or node.iter.func.id != "range"
            or not 1 <= len(node.iter.args) <= 2
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
        assigned = {one.id for inner in node.body for one in ast.walk(inner)
                    if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}  # fmt: skip
        # The loop's own name, too, has the last value that it had in the loop if it had one before.
        carried = {name: names[name].type for name in sorted(assigned | {node.target.id}) if name in names}
        heard = {name: names[name].heard for name in carried}
        before = self._heard
        self._heard = before or any(one.heard for one in bounds)  # how often it runs decides about all that it sets
        for _ in range(_FEW_TURNS):
            counter = self._new(node.target.id, kind, self._heard)
            kept = {name: self._new(name, one, heard[name]) for name, one in carried.items()}
            inner: _Names = {**names, **kept, node.target.id: counter}
            text: list[str] = []
            self._block(node.body, inner, text, indent + "    ")
            ended = {name: self._united(node, one, inner[name].type) for name, one in carried.items()}
            listened = {name: heard[name] or inner[name].heard or self._heard for name in carried}
            if ended == carried and listened == heard:
                break
            carried, heard = ended, listened
        else:
            raise self._refuse(node.iter, "a loop whose variables change their types")
        for name, made in kept.items():
            lines.append(f"{indent}{_c_name(made.type)} {made.text} = {names[name].as_(made.type)};")
        i = counter.text
        lines.append(f"{indent}for ({_c_name(kind)} {i} = {first}; {i} < {last}; {i}++) {{")
        lines += text
        lines += [f"{indent}    {made.text} = {inner[name].as_(made.type)};" for name, made in kept.items()]
        lines.append(f"{indent}}}")
        names.update(kept)
        self._heard = before

    def _return(self, value: ast.Tuple, names: _Names, lines: list[str], indent: str) -> None:
        spike, *results = [self._expression(one, names) for one in value.elts]
        self._results = len(results)
        self._spike_heard |= spike.heard or self._heard
        if spike.type in (types.float32, types.float64):
            raise self._refuse(value.elts[0], "a spike that is not a truth value")
        lines += [f"{indent}result_{i} = converted<R{i}>({one.text});" for i, one in enumerate(results)]
        # As the CPU keeps it, in a byte.
        told = spike.text if spike.type == types.boolean else f"((u8)({spike.text}) != 0)"
        lines.append(f"{indent}return {told};")

    # --- expressions ------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr, names: _Names) -> _Value:
        made = self._typed_expression(node, names)
        read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        return replace(made, heard=any(names[name].heard for name in read if name in names))

    def _typed_expression(self, node: ast.expr, names: _Names) -> _Value:
        if isinstance(node, ast.Name):
            if node.id not in names:
                raise self._refuse(node, "a name that is not set on every way there")
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
        if isinstance(node.op, ast.Div):  # also of whole numbers, whose quotient is none
            return _Value(f"({left.as_(kind)} / {right.as_(kind)})", kind)
        if sign.isalpha() or "_" in sign:
            return _Value(f"{sign}<{_c_name(kind)}>({a}, {b})", kind)
        return _Value(f"({a} {sign} {b})", kind)

    def _unary(self, node: ast.UnaryOp, operand: _Value) -> _Value:
        if isinstance(node.op, ast.Not):
            return _Value(f"(!{self._truth(operand)})", types.boolean)
        function, sign = (operator.neg, "-") if isinstance(node.op, ast.USub) else (operator.invert, "~")
        if isinstance(node.op, ast.UAdd):
            return operand
        kinds, kind = self._signature(node, function, operand.type)
        if sign == "~" and kind == types.boolean:
            sign = "!"
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
        if name in ("_f", "_i") and len(node.args) == 1:
            return self._number(node, name)
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
        if name == "int" and len(found) == 1:
            _, kind = self._signature(node, int, found[0].type)
            return _Value(f"converted<{_c_name(kind)}>({found[0].text})", kind)
        if name in _FLOAT_FUNCTIONS and all(one.type == types.float32 for one in found):
            return _Value(f"{_FLOAT_FUNCTIONS[name]}({', '.join(one.text for one in found)})", types.float32)
        raise self._refuse(node, f"{name} of {', '.join(str(one.type) for one in found)}")

    def _number(self, node: ast.Call, name: str) -> _Value:
        value = ast.literal_eval(node.args[0])
        if name == "_i":
            return _Value(f"((int){int(value)}LL)", types.int32)
        # By its bits: no compiler's reading of decimals decides.
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

    def _new(self, name: str, kind: Any, heard: bool = False) -> _Value:
        self._made += 1
        return _Value(f"v_{name}_{self._made}", kind, heard)


def _c_name(kind: Any) -> str:
    return _C_NAMES[kind]


@cache
def _resolved(function: Callable[..., Any], kinds: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any] | None:
    """What Numba makes of the operation: (the types that it converts the operands to, the result's type)."""
    context = cpu_target.typing_context
    context.refresh()
    try:
        found = context.resolve_function_type(function, kinds, {})
    except TypingError:
        return None
    return None if found is None else (tuple(found.args), found.return_type)
