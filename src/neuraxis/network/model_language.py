"""The subset of Python that neuron models may use, and the type of each of their expressions.

The function of a model is checked when the model is defined, and lowered to a form that means the same to Numba and to
the translation to CUDA C++: every stored number has 32 bits, and every conversion is explicit.
docs/reference/model-language.md has a table of the rules. In short:

* a float is float32; an int is stored as int32 and computed as int64;
* an operation on a float and an int that is not a literal is computed in float64, as in NumPy, until it is stored;
* a bool counts as 0 or 1;
* a literal takes the type of the other operand; a float literal beside ints and bools alone is float64, as in NumPy.
  Stored in a name it is float32. Expressions of literals are evaluated here, as Python does.

The lowered function calls functions of `neuraxis.engine.arithmetic`; `_f`, `_d`, `_i` and `_l` convert to float32,
float64, int32 and int64. "Kind" means one of the four types below.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuraxis.errors import InvalidArgument
from neuraxis.network.model_source import located, placed, quoted
from neuraxis.network.model_tables import Table, as_table

__all__ = ["ALLOWED", "BOOL", "DOUBLE", "FLOAT", "FLOAT_FUNCTIONS", "FUNCTIONS", "INT", "lower_function", "rounded"]

Number = float | int

# Kinds of values. A literal has none until it is combined with another value or stored.
BOOL, INT, FLOAT, DOUBLE = "a truth value", "a whole number", "float32", "float64"

# The functions that a model may call.
FLOAT_FUNCTIONS = ("cos", "exp", "expm1", "exprel", "log", "log1p", "power", "sin", "sqrt", "tanh")  # of float32
FUNCTIONS = frozenset({"abs", "bool", "float", "int", "max", "min", "range", *FLOAT_FUNCTIONS})

ALLOWED = (
    "Use arithmetic, comparisons, conditional expressions, if, for over a range or a table, TABLE[i], len(TABLE), your "
    f"own functions that are written with def, {', '.join(sorted(FUNCTIONS - {'range'}))}, normal() and random()."
)

_LOWEST_INT32, _HIGHEST_INT32 = -(2**31), 2**31 - 1
_MOST_PASSES = 8  # over a loop, until the kinds of its variables are stable; two or three are enough

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_BITWISE: dict[type, Callable[[Any, Any], Any]] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_SHIFTS = {ast.LShift: "shift_left", ast.RShift: "shift_right"}
_DIVIDED = {ast.FloorDiv: "floor_divide", ast.Mod: "remainder"}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MOST_BITS = 1000  # of a literal: any that a float64 can hold
_PRODUCTS = (2, 3, 4)  # exponents that become products

_ENTRIES = "Write TABLE[i] with a tuple or array of numbers TABLE, of your module or in place, and a whole number i."


@dataclass(frozen=True)
class _Value:
    """A lowered expression; a literal (or an expression of literals) has a number and no kind."""

    node: ast.expr
    kind: str = ""
    literal: Number | None = None

    @property
    def is_literal(self) -> bool:
        return self.literal is not None


_Kinds = dict[str, str]


def lower_function(
    model: str,
    function: ast.FunctionDef,
    kinds: Mapping[str, str],
    results: Sequence[str],
    globals_used: Mapping[str, Number],
) -> ast.FunctionDef:
    """Check a model's function and return it with explicit conversions.

    Parameters
    ----------
    model : str
        Name of the model, for error messages.
    function : ast.FunctionDef
        Parsed source; it is not changed.
    kinds : mapping of str to str
        INT or FLOAT for each argument.
    results : sequence of str
        INT or FLOAT for each state, in the order in which the function returns them.
    globals_used : mapping of str to float or int
        Numbers of the module that the function reads.

    Returns
    -------
    ast.FunctionDef
        The lowered function.

    Raises
    ------
    InvalidArgument
        The function uses something that models cannot use; the message names the line and the expression.
    """
    return _Lowering(model, kinds, results, globals_used).lower(function)


def rounded(value: float) -> float:
    """Round a number to float32; infinity if it is too large."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


class _Lowering:
    def __init__(
        self,
        model: str,
        kinds: Mapping[str, str],
        results: Sequence[str],
        globals_used: Mapping[str, Number],
    ) -> None:
        self._model = model
        self._arguments = dict(kinds)
        self._results = results
        self._globals = globals_used
        self._statement_at: ast.stmt | None = None  # the innermost statement whose place is known
        self._taken = {*kinds, *globals_used}  # names that the function uses
        self._made = 0
        self._jumps: list[list[_Kinds]] = []  # for each enclosing loop, the kinds at its breaks and continues

    def lower(self, function: ast.FunctionDef) -> ast.FunctionDef:
        given = function.args
        if given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg or given.defaults:
            raise self._refuse(function, "arguments of this kind", "Write plain arguments without default values.")
        self._taken |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
        body, _ = self._block(function.body, dict(self._arguments))
        made = copy.copy(function)
        made.body = body
        return ast.fix_missing_locations(made)

    def _refuse(self, node: ast.AST, what: str, remedy: str = "") -> InvalidArgument:
        at = located(self._model, node, self._statement_at)
        return InvalidArgument(f"{at}: {what} cannot be used in a model: `{quoted(node)}`. {remedy or ALLOWED}")

    # --- statements: each method returns the lowered statements and the kinds after them (None if unreachable) ---

    def _block(self, body: Sequence[ast.stmt], kinds: _Kinds) -> tuple[list[ast.stmt], _Kinds | None]:
        made: list[ast.stmt] = []
        after: _Kinds | None = kinds
        for node in body:
            if after is None:
                break  # unreachable
            lowered, after = self._statement(node, after)
            made += lowered
        return made or [ast.Pass()], after

    def _statement(self, node: ast.stmt, kinds: _Kinds) -> tuple[list[ast.stmt], _Kinds | None]:
        if hasattr(node, "file"):
            self._statement_at = node
        if isinstance(node, ast.Assign):
            return self._assign(node, node.targets, node.value, kinds)
        if isinstance(node, ast.AnnAssign):
            return self._assign(node, [node.target], node.value, kinds) if node.value is not None else ([], kinds)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read = placed(ast.Name(node.target.id, ast.Load()), node.target)
            value = placed(ast.BinOp(read, node.op, node.value), node)
            return self._assign(node, [node.target], value, kinds)
        if isinstance(node, ast.If):
            return self._branch(node, kinds)
        if isinstance(node, ast.For):
            return self._for(node, kinds)
        if isinstance(node, ast.While) and not node.orelse:
            return self._while(node, kinds)
        if isinstance(node, ast.Break | ast.Continue):
            self._jumps[-1].append(kinds)
            return [node], None
        if isinstance(node, ast.Return):
            return [self._return(node, kinds)], None
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return [], kinds
        raise self._refuse(node, f"a statement of this kind ({type(node).__name__.lower()})")

    def _assign(
        self, node: ast.stmt, targets: Sequence[ast.expr], value: ast.expr, kinds: _Kinds
    ) -> tuple[list[ast.stmt], _Kinds]:
        rows = [self._names_of(node, target, value) for target in targets]
        given = value.elts if isinstance(value, ast.Tuple) else [value]
        found = [self._as_stored(self._expression(one, kinds)) for one in given]
        after, made = dict(kinds), []
        if len(rows) > 1:
            # Evaluate the value once: an assignment to the first target may change a name that the value reads.
            once = [self._new_name() for _ in found]
            made.append(_assignment(once, [one.node for one in found]))
            found = [_Value(ast.Name(name, ast.Load()), one.kind) for name, one in zip(once, found, strict=True)]
        for names in rows:
            after |= {name: one.kind for name, one in zip(names, found, strict=True)}
            made.append(_assignment(names, [one.node for one in found]))
        return [*made], after

    def _names_of(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> list[str]:
        """Return the names that a target of an assignment sets: as many as the value has elements."""
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [one.id for one in parts if isinstance(one, ast.Name)]
        wanted = len(value.elts) if isinstance(value, ast.Tuple) else 1
        if isinstance(target, ast.Tuple) != isinstance(value, ast.Tuple) or not len(names) == len(parts) == wanted:
            raise self._refuse(node, "an assignment to other than names")
        for name in names:
            if name in FUNCTIONS:
                raise self._refuse(node, f"{name!r} as the name of a value", "Choose another name.")
        return names

    def _new_name(self) -> str:
        """Return a name that the function does not use."""
        while (name := f"_once_{self._made}") in self._taken:
            self._made += 1
        self._made += 1
        return name

    def _branch(self, node: ast.If, kinds: _Kinds) -> tuple[list[ast.stmt], _Kinds | None]:
        test = self._truth(self._expression(node.test, kinds))
        body, after_body = self._block(node.body, dict(kinds))
        other, after_other = self._block(node.orelse, dict(kinds))
        made = ast.If(test, body, other if node.orelse else [])
        return [made], self._joined(node, after_body, after_other)

    def _for(self, node: ast.For, kinds: _Kinds) -> tuple[list[ast.stmt], _Kinds]:
        call = node.iter
        if isinstance(call, ast.Constant | ast.Tuple | ast.List | ast.Subscript) and not node.orelse:
            table = self._table(call, kinds)
            if table is not None:
                return self._for(self._over_table(node, table), kinds)
        if (
            node.orelse
            or not isinstance(node.target, ast.Name)
            or not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range")
            or call.keywords
            or not 1 <= len(call.args) <= 3
        ):
            raise self._refuse(node.iter, "a loop over other than a range")
        bounds = [self._as_stored(self._expression(one, kinds)) for one in call.args]
        if any(one.kind != INT for one in bounds):
            raise self._refuse(call, "a range of other than whole numbers", "Write int(...) around them.")
        if len(call.args) == 3:
            step = self._expression(call.args[2], kinds)
            if not step.is_literal or step.literal == 0:
                raise self._refuse(call, "a range whose step is not a literal other than 0")
        target = ast.Name(node.target.id, ast.Store())
        body, after = self._loop(node, node.body, kinds, {node.target.id: INT})
        made = ast.For(target, ast.Call(call.func, [one.node for one in bounds], []), body, [])
        return [made], after

    def _while(self, node: ast.While, kinds: _Kinds) -> tuple[list[ast.stmt], _Kinds]:
        body, after = self._loop(node, node.body, kinds, {})
        test = self._truth(self._expression(node.test, after))
        return [ast.While(test, body, [])], after

    def _loop(
        self, node: ast.For | ast.While, body: Sequence[ast.stmt], kinds: _Kinds, set_by_loop: _Kinds
    ) -> tuple[list[ast.stmt], _Kinds]:
        """Lower the body with kinds that hold in every iteration and after the loop."""
        stable = dict(kinds)
        for _ in range(_MOST_PASSES):
            self._jumps.append([])
            made, end = self._block(body, {**stable, **set_by_loop})
            settled: _Kinds | None = stable
            for one in [end, *self._jumps.pop()]:
                settled = self._joined(node, settled, one)
            assert settled is not None
            if settled == stable:
                return made, stable
            stable = settled
        raise self._refuse(node, "a loop whose variables change their types", "Convert them with float() or int().")

    def _return(self, node: ast.Return, kinds: _Kinds) -> ast.Return:
        if not isinstance(node.value, ast.Tuple):
            raise self._refuse(node, "a return of other than (spike, states...)")
        spike, *found = [self._expression(one, kinds) for one in node.value.elts]
        made: list[ast.expr] = [self._truth(spike)]
        for one, result, source in zip(found, self._results, node.value.elts[1:], strict=True):
            made.append(self._as_result(source, one, result))
        return ast.Return(ast.Tuple(made, ast.Load()))

    def _as_result(self, source: ast.expr, value: _Value, kind: str) -> ast.expr:
        """Convert a value to the kind of the state that it becomes: float32, or int32 by truncation."""
        if kind == FLOAT:
            return self._as_float(source, value)
        if value.is_literal:
            assert value.literal is not None
            return self._number(source, int(value.literal), INT)
        return _call("to_int32" if value.kind in (FLOAT, DOUBLE) else "_i", value.node)

    def _joined(self, node: ast.AST, a: _Kinds | None, b: _Kinds | None) -> _Kinds | None:
        """Return the kinds of the names that are set on both paths; None if both are unreachable."""
        if a is None or b is None:
            return a if b is None else b
        joined = {}
        for name in a:
            if name not in b:
                continue
            kinds = {a[name], b[name]}
            if BOOL in kinds and len(kinds) > 1 and INT not in kinds:
                raise self._refuse(
                    node, f"{name!r}, which is a truth value on one path and {_other(kinds)} on the other,",
                    "Convert it with float().",
                )  # fmt: skip
            joined[name] = _common(kinds)
        return joined

    # --- expressions ------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr, kinds: _Kinds) -> _Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            return self._literal(node, node.value)
        if isinstance(node, ast.Name):
            if node.id in kinds:
                return _Value(ast.Name(node.id, ast.Load()), kinds[node.id])
            if node.id in self._globals:
                return self._literal(node, self._globals[node.id])
            raise self._refuse(node, f"{node.id!r}, which is not set on every path,", "Set it before.")
        if isinstance(node, ast.BinOp):
            return self._binary(node, self._expression(node.left, kinds), self._expression(node.right, kinds))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, self._expression(node.operand, kinds))
        if isinstance(node, ast.Compare):
            return self._comparison(node, kinds)
        if isinstance(node, ast.BoolOp):
            return self._and_or(node, kinds)
        if isinstance(node, ast.IfExp):
            test = self._truth(self._expression(node.test, kinds))
            both = [self._expression(node.body, kinds), self._expression(node.orelse, kinds)]
            if isinstance(test, ast.Constant):
                return both[0] if test.value else both[1]
            (yes, no), kind = self._alike(node, both)
            return _Value(ast.IfExp(test, yes, no), kind)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS - {"range"}:
            if node.keywords or any(isinstance(one, ast.Starred) for one in node.args):
                raise self._refuse(node, "a call with named or starred arguments")
            return self._call(node, node.func.id, [self._expression(one, kinds) for one in node.args])
        if isinstance(node, ast.Subscript):
            return self._entry(node, kinds)
        if isinstance(node, ast.Tuple | ast.List) or _is_table_constant(node):
            raise self._refuse(node, "a tuple or table as one value", _ENTRIES)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            return self._length(node, kinds)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            raise self._refuse(node, f"the function {name}")
        raise self._refuse(node, f"an expression of this kind ({type(node).__name__.lower()})")

    def _literal(self, node: ast.expr, value: Any) -> _Value:
        """Return a literal. A bool has a kind, other literals have none."""
        if isinstance(value, bool):
            return _Value(ast.Constant(value), BOOL)
        if isinstance(value, complex) or not isinstance(value, int | float):
            raise self._refuse(node, f"{value!r}", "Write a real number.")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refuse(node, f"the value {value!r}", "Write a finite number.")
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise self._refuse(node, f"a whole number of more than {_MOST_BITS:,} bits", "Write it as a float.")
        return _Value(ast.Constant(value), "", value)

    def _binary(self, node: ast.BinOp, a: _Value, b: _Value) -> _Value:
        if type(node.op) in _BITWISE:
            return self._bitwise(node, a, b)
        if type(node.op) not in _ARITHMETIC:
            raise self._refuse(node, "this operator")
        if a.is_literal and b.is_literal:
            return self._folded(node, _ARITHMETIC[type(node.op)], a, b)
        if isinstance(node.op, ast.Pow):
            return self._power(node, a, b)
        (left, right), kind = self._alike(node, [a, b])
        if type(node.op) in _DIVIDED:
            name = _DIVIDED[type(node.op)]
            if kind in (BOOL, INT):
                return _Value(_call(f"{name}_int", _call("_l", left), _call("_l", right)), INT)
            convert = "_f" if kind == FLOAT else "_d"
            return _Value(_call(name, _call(convert, left), _call(convert, right)), kind)
        if kind in (BOOL, INT):
            if kind == BOOL:
                left, right = _call("_l", left), _call("_l", right)
            kind = DOUBLE if isinstance(node.op, ast.Div) else INT
        return _Value(ast.BinOp(left, node.op, right), kind)

    def _bitwise(self, node: ast.BinOp, a: _Value, b: _Value) -> _Value:
        whole = all(one.kind in (BOOL, INT) or isinstance(one.literal, int) for one in (a, b))
        if not whole:
            raise self._refuse(node, "an operation on the bits of other than whole numbers", "Convert with int().")
        if a.is_literal and b.is_literal:
            return self._folded(node, _BITWISE[type(node.op)], a, b)
        (left, right), kind = self._alike(node, [a, b])
        if type(node.op) in _SHIFTS:
            return _Value(_call(_SHIFTS[type(node.op)], _call("_l", left), _call("_l", right)), INT)
        if kind == INT:
            left, right = _call("_l", left), _call("_l", right)
        return _Value(ast.BinOp(left, node.op, right), kind)

    def _power(self, node: ast.BinOp, base: _Value, exponent: _Value) -> _Value:
        """Lower a power: products for the exponents 2, 3 and 4, else `power`; integer powers of ints are ints.

        A product of two float32 is rounded correctly; longer products are computed in float64 and rounded once.
        """
        if base.kind in (BOOL, INT) or isinstance(base.literal, int):
            if isinstance(exponent.literal, int) and exponent.literal >= 0:
                times = self._number(node.right, exponent.literal, INT)
                return _Value(_call("int_power", _call("_l", base.node), times), INT)
            if exponent.kind in (BOOL, INT) or isinstance(exponent.literal, int):
                raise self._refuse(
                    node, "a whole number to the power of a whole number that is not a literal or is below 0",
                    "Write float(...) around the base for a float32, or a literal exponent.",
                )  # fmt: skip
        factor = self._as_float(node.left, base)
        if exponent.literal in _PRODUCTS:
            if exponent.literal == 2:
                return _Value(ast.BinOp(factor, ast.Mult(), factor), FLOAT)
            wide = _call("_d", factor)
            product: ast.expr = wide
            for _ in range(int(exponent.literal) - 1):
                product = ast.BinOp(product, ast.Mult(), wide)
            return _Value(_call("_f", product), FLOAT)
        return _Value(_call("power", factor, self._as_float(node.right, exponent)), FLOAT)

    def _unary(self, node: ast.UnaryOp, value: _Value) -> _Value:
        if isinstance(node.op, ast.Not):
            return self._not(value)
        if isinstance(node.op, ast.Invert):
            if value.kind == BOOL:  # as NumPy; in Python ~True is -2
                return self._not(value)
            if value.kind in (FLOAT, DOUBLE) or isinstance(value.literal, float):
                raise self._refuse(node, "an operation on the bits of other than whole numbers", "Convert with int().")
        if value.is_literal:
            assert value.literal is not None
            signs: dict[type, Callable[[Any], Any]] = {
                ast.USub: operator.neg,
                ast.UAdd: operator.pos,
                ast.Invert: operator.invert,
            }
            return self._literal(node, signs[type(node.op)](value.literal))
        # Numba negates an int32 as int32, where the lowest number has no negative.
        number = _call("_l", value.node) if value.kind in (BOOL, INT) else value.node
        kind = INT if value.kind == BOOL else value.kind
        return _Value(number if isinstance(node.op, ast.UAdd) else ast.UnaryOp(node.op, number), kind)

    def _comparison(self, node: ast.Compare, kinds: _Kinds) -> _Value:
        sides = [self._expression(one, kinds) for one in (node.left, *node.comparators)]
        parts: list[ast.expr] = []
        for a, sign, b in zip(sides[:-1], node.ops, sides[1:], strict=True):
            if type(sign) not in _COMPARISONS:
                raise self._refuse(node, "this comparison")
            if a.is_literal and b.is_literal:
                parts.append(ast.Constant(bool(_COMPARISONS[type(sign)](a.literal, b.literal))))
                continue
            (left, right), kind = self._alike(node, [a, b])
            if kind == BOOL:
                left, right = _call("_l", left), _call("_l", right)
            parts.append(ast.Compare(left, [sign], [right]))
        if any(isinstance(one, ast.Constant) and not one.value for one in parts):
            return _Value(ast.Constant(False), BOOL)
        open_parts = [one for one in parts if not isinstance(one, ast.Constant)]
        if not open_parts:
            return _Value(ast.Constant(True), BOOL)
        return _Value(open_parts[0] if len(open_parts) == 1 else ast.BoolOp(ast.And(), open_parts), BOOL)

    def _not(self, value: _Value) -> _Value:
        truth = self._truth(value)
        if isinstance(truth, ast.Constant):
            return _Value(ast.Constant(not truth.value), BOOL)
        return _Value(ast.UnaryOp(ast.Not(), truth), BOOL)

    def _and_or(self, node: ast.BoolOp, kinds: _Kinds) -> _Value:
        """Lower `and` and `or`; of numbers they return a number, as in Python."""
        found = [self._expression(one, kinds) for one in node.values]
        value = found[-1]
        for one in reversed(found[:-1]):
            test, is_and = self._truth(one), isinstance(node.op, ast.And)
            if isinstance(test, ast.Constant):
                value = value if test.value == is_and else one
            elif one.kind == value.kind == BOOL:
                value = _Value(ast.BoolOp(node.op, [one.node, value.node]), BOOL)
            else:
                (first, rest), kind = self._alike(node, [one, value])
                value = _Value(ast.IfExp(test, *((rest, first) if is_and else (first, rest))), kind)
        return value

    def _call(self, node: ast.Call, name: str, found: list[_Value]) -> _Value:
        wanted = {"min": range(2, 256), "max": range(2, 256), "power": (2,)}.get(name, (1,))
        if len(found) not in wanted:
            raise self._refuse(node, f"{name} of {len(found)} values")
        if name in ("min", "max"):
            if all(one.is_literal for one in found):
                return self._literal(node, (min if name == "min" else max)(one.literal for one in found))  # type: ignore[type-var]
            nodes, kind = self._alike(node, found)
            if kind == BOOL:
                nodes, kind = [_call("_l", one) for one in nodes], INT
            return _Value(ast.Call(ast.Name(name, ast.Load()), nodes, []), kind)
        if name in FLOAT_FUNCTIONS:
            arguments = [self._as_float(one, value) for one, value in zip(node.args, found, strict=True)]
            return _Value(_call(name, *arguments), FLOAT)
        (value,) = found
        if name == "bool":
            return _Value(self._truth(value), BOOL)
        if value.is_literal:
            assert value.literal is not None
            known: dict[str, Callable[[Any], Any]] = {"abs": abs, "float": float, "int": int}
            return self._literal(node, known[name](value.literal))
        if name == "float":
            return _Value(self._as_float(node.args[0], value), FLOAT)
        if name == "int":
            return _Value(_call("to_int64" if value.kind in (FLOAT, DOUBLE) else "_l", value.node), INT)
        number = _call("_l", value.node) if value.kind in (BOOL, INT) else value.node
        return _Value(_call("abs", number), INT if value.kind == BOOL else value.kind)

    # --- tables -----------------------------------------------------------------------------------------------

    def _table(self, node: ast.expr, kinds: _Kinds) -> Table | None:
        """Return the table that an expression is, also a row of one; None for other expressions."""
        if isinstance(node, ast.Constant) and _is_table_constant(node):
            return as_table(node.value)
        if isinstance(node, ast.Tuple | ast.List):
            rows = [self._table(one, kinds) for one in node.elts]
            if not any(one is not None for one in rows):
                rows = [self._expression(one, kinds).literal for one in node.elts]  # type: ignore[misc]
            if any(one is None for one in rows):
                raise self._refuse(node, "a table of other than numbers", _ENTRIES)
            try:
                return as_table(rows)
            except ValueError as error:
                raise self._refuse(node, f"this table ({error})", _ENTRIES) from error
        if isinstance(node, ast.Subscript):
            outer = self._table(node.value, kinds)
            if outer is not None and isinstance(outer[0], tuple):
                index = self._expression(node.slice, kinds) if not isinstance(node.slice, ast.Tuple) else None
                if index is not None and index.is_literal:
                    rows_of: tuple[Any, ...] = outer
                    return as_table(rows_of[self._known_index(node, index, len(outer))])
        return None

    def _entry(self, node: ast.Subscript, kinds: _Kinds) -> _Value:
        """Lower TABLE[i], TABLE[i, j] or TABLE[i][j] to an entry of a flat table, at an index within its bounds."""
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        table = self._table(node.value, kinds)
        if table is None and isinstance(node.value, ast.Subscript) and len(indices) == 1:  # TABLE[i][j]
            table, indices = self._table(node.value.value, kinds), [node.value.slice, *indices]
        if table is None:
            raise self._refuse(node, "a subscript of other than a table", _ENTRIES)
        rows: list[Any] = [*table]
        sizes = [len(rows), len(rows[0])] if isinstance(rows[0], tuple) else [len(rows)]
        if len(indices) != len(sizes) or any(isinstance(one, ast.Slice | ast.Starred) for one in indices):
            wanted = "one whole number" if len(sizes) == 1 else "two whole numbers"
            raise self._refuse(node, f"this index of a table of shape {tuple(sizes)}", f"Write {wanted}.")
        flat: list[Number] = rows if len(sizes) == 1 else [one for row in rows for one in row]
        kind = FLOAT if isinstance(flat[0], float) else INT
        found = [self._expression(one, kinds) for one in indices]
        if any(one.kind in (FLOAT, DOUBLE) or isinstance(one.literal, float) for one in found):
            raise self._refuse(node, "an index that is no whole number", "Write int(...) around it.")
        if all(one.is_literal for one in found):
            place = 0
            for one, size in zip(found, sizes, strict=True):
                place = place * size + self._known_index(node, one, size)
            return _Value(self._number(node, flat[place], kind), kind)
        parts: list[ast.expr] = []
        for one, size in zip(found, sizes, strict=True):
            if one.is_literal:
                parts.append(_call("_l", self._number(node, self._known_index(node, one, size), INT)))
            else:
                parts.append(_call("within", _call("_l", one.node), self._number(node, size, INT)))
        at = parts[0]
        if len(parts) == 2:
            row = ast.BinOp(at, ast.Mult(), _call("_l", self._number(node, sizes[1], INT)))
            at = ast.BinOp(row, ast.Add(), parts[1])
        entries = ast.Tuple([ast.Constant(one) for one in flat], ast.Load())
        return _Value(_call("entry", entries, at), kind)

    def _known_index(self, node: ast.Subscript, index: _Value, size: int) -> int:
        value = index.literal
        if not isinstance(value, int):
            raise self._refuse(node, "an index that is no whole number", "Write int(...) around it.")
        if not 0 <= value < size:
            raise self._refuse(
                node, f"the index {value} of a table of length {size}",
                f"Write 0 to {size - 1}; the last entry is TABLE[len(TABLE) - 1].",
            )  # fmt: skip
        return value

    def _length(self, node: ast.Call, kinds: _Kinds) -> _Value:
        table = None
        if len(node.args) == 1 and not node.keywords:
            table = self._table(node.args[0], kinds)
            row = node.args[0]
            if table is None and isinstance(row, ast.Subscript):  # len(TABLE[i]): all rows have the same length
                outer = self._table(row.value, kinds)
                table = outer[0] if outer is not None and isinstance(outer[0], tuple) else None
        if table is None:
            raise self._refuse(node, "len of other than a table", _ENTRIES)
        return self._literal(node, len(table))

    def _over_table(self, node: ast.For, table: Table) -> ast.For:
        """Return a loop over a table as a loop over a range, whose body begins with an assignment of the entry."""
        place = self._new_name()
        index = placed(ast.Name(place, ast.Load()), node.iter)
        entry = placed(ast.Subscript(ast.Constant(table), index, ast.Load()), node.iter)  # type: ignore[arg-type]
        value: ast.expr = entry
        if isinstance(table[0], tuple):
            parts: list[ast.expr] = []
            for column in range(len(table[0])):
                both = ast.Tuple([index, ast.Constant(column)], ast.Load())
                parts.append(placed(ast.Subscript(ast.Constant(table), both, ast.Load()), node.iter))  # type: ignore[arg-type]
            value = placed(ast.Tuple(parts, ast.Load()), node.iter)
        assigned = placed(ast.Assign([node.target], value), node.iter)
        made = copy.copy(node)
        made.target = placed(ast.Name(place, ast.Store()), node.iter)
        turns = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(len(table))], [])
        made.iter = ast.fix_missing_locations(placed(turns, node.iter, quoted(node.iter)))
        made.body = [ast.fix_missing_locations(assigned), *node.body]
        return made

    def _folded(self, node: ast.expr, function: Callable[[Any, Any], Any], a: _Value, b: _Value) -> _Value:
        """Evaluate an expression of literals as Python does."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift) and abs(b.literal or 0) > 1024:
            raise self._refuse(node, "a number of this size")
        try:
            return self._literal(node, function(a.literal, b.literal))
        except InvalidArgument:
            raise
        except (ArithmeticError, ValueError) as error:
            raise self._refuse(node, f"an expression that has no value ({error})", "Write a number.") from error

    # --- kinds ------------------------------------------------------------------------------------------------

    def _alike(self, node: ast.expr, values: Sequence[_Value]) -> tuple[list[ast.expr], str]:
        """Return the values as operands of one operation, and the kind of its result.

        A literal takes the kind of the other operands; a float literal beside whole numbers or truth values makes the
        operation float64. A bool combined with a float becomes float32. An int combined with a float is left as it is:
        Numba and NumPy compute with both in float64.
        """
        kinds = {one.kind for one in values if not one.is_literal}
        floats = any(isinstance(one.literal, float) for one in values)
        if not kinds:
            kind = FLOAT if floats else INT
        else:
            kind = _common(kinds)
            if floats and kind in (BOOL, INT):
                kind = DOUBLE
            elif kind == BOOL and any(one.is_literal for one in values):
                kind = INT
        nodes = []
        for one in values:
            if one.is_literal:
                assert one.literal is not None
                whole = kind in (BOOL, INT) or (kind == DOUBLE and isinstance(one.literal, int))
                nodes.append(self._number(node, one.literal, INT if whole else kind))
            elif one.kind == BOOL and kind != BOOL:
                nodes.append(_call("_l" if kind == INT else "_f", one.node))
            else:
                nodes.append(one.node)
        return nodes, kind

    def _as_stored(self, value: _Value) -> _Value:
        """Return a value as a variable stores it: a literal becomes int32 or float32."""
        if not value.is_literal:
            return value
        assert value.literal is not None
        kind = FLOAT if isinstance(value.literal, float) else INT
        return _Value(self._number(value.node, value.literal, kind), kind)

    def _as_float(self, source: ast.expr, value: _Value) -> ast.expr:
        if value.is_literal:
            assert value.literal is not None
            return self._number(source, value.literal, FLOAT)
        return value.node if value.kind == FLOAT else _call("_f", value.node)

    def _truth(self, value: _Value) -> ast.expr:
        """Return a value as a bool: True unless it is 0; NaN is True."""
        if value.is_literal:
            return ast.Constant(bool(value.literal))
        if value.kind == BOOL:
            return value.node
        zero = _call("_i", ast.Constant(0)) if value.kind == INT else _call("_f", ast.Constant(0.0))
        return ast.Compare(value.node, [ast.NotEq()], [zero])

    def _number(self, node: ast.expr, value: Number, kind: str) -> ast.expr:
        """Return a literal as int32, float32 or float64."""
        if kind == DOUBLE:
            return _call("_d", ast.Constant(float(value)))
        if kind == INT:
            if not _LOWEST_INT32 <= value <= _HIGHEST_INT32:
                raise self._refuse(node, f"the whole number {value}, which is beyond 32 bits,", "Write it as a float.")
            return _call("_i", ast.Constant(int(value)))
        single = rounded(float(value)) if abs(value) < 2.0**1000 else math.inf
        if math.isinf(single):
            raise self._refuse(node, f"the number {value:g}, which is beyond float32,", "Stay below 3.4e38.")
        if single == 0.0 and value != 0:
            raise self._refuse(node, f"the number {value:g}, which is 0 in float32,", "Stay above 1.4e-45.")
        return _call("_f", ast.Constant(float(value)))


def _is_table_constant(node: ast.expr) -> bool:
    value: Any = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, tuple)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _assignment(names: Sequence[str], values: Sequence[ast.expr]) -> ast.Assign:
    """Return `a = x`, or `a, b = x, y`, which evaluates all values before it sets a name."""
    left: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    if len(left) == 1:
        return ast.Assign(left, values[0])
    return ast.Assign([ast.Tuple(left, ast.Store())], ast.Tuple(list(values), ast.Load()))


def _common(kinds: set[str]) -> str:
    """Return the common type of several kinds, as NumPy and Numba choose it."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if DOUBLE in kinds or {INT, FLOAT} <= kinds:
        return DOUBLE
    return FLOAT if FLOAT in kinds else INT


def _other(kinds: set[str]) -> str:
    return next(iter(kinds - {BOOL}))
