"""Source text of a model's function: expressions of equations as statements, and what is constant taken out of them.

Values are computed in ms, mV, pA, nS, pF, GOhm and kHz (see `neuraxis.network.symbolic.units`). The parts of an
expression that do not change while a network runs become constants, which the host computes once, in float64. The
order of the user's operations is kept, so a model computes the same bits wherever it is made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from neuraxis.network.model_source import DerivedConstants
from neuraxis.network.symbolic.parsing import NUMBERS, Declaration, names_in
from neuraxis.network.symbolic.units import named

__all__ = ["Stage", "Symbols", "Writer", "call", "literal", "name", "product", "scaled", "total"]

_LOG10 = 0.4342944819032518  # log10(e)


@dataclass
class Symbols:
    """The names of equations that are not states.

    Parameters
    ----------
    parameters : mapping of str to (str, float)
        Name in the model, and the factor that converts its unit, for each parameter.
    inputs : mapping of str to (str, float)
        The same for values that are new in each step: the current and signals.
    expressions : mapping of str to Declaration
        Sub-expressions.
    constant : set of str
        Sub-expressions that depend on parameters alone.
    """

    parameters: Mapping[str, tuple[str, float]]
    inputs: Mapping[str, tuple[str, float]]
    expressions: Mapping[str, Declaration]
    constant: set[str]

    def is_constant(self, one: str) -> bool:
        """Return True for a name whose value does not change while a network runs."""
        known = one in self.parameters or one in self.constant
        return known or ((one in NUMBERS or one == "dt" or named(one) is not None) and one not in self.inputs)

    def is_constant_expression(self, tree: ast.expr) -> bool:
        """Return True for an expression of such names, without conditions."""
        conditions = (ast.Compare, ast.BoolOp, ast.IfExp, ast.Not)
        plain = not any(isinstance(node, conditions) for node in ast.walk(tree))
        return plain and all(self.is_constant(one) for one in names_in(tree))


@dataclass
class Stage:
    """Values of states at one point of a step, and the sub-expressions that were computed from them."""

    values: Mapping[str, ast.expr]
    time: ast.expr | None = None
    computed: dict[str, ast.expr] = field(default_factory=dict)


def name(one: str) -> ast.expr:
    """Return the expression that reads a name."""
    return ast.Name(one, ast.Load())


def literal(value: float) -> ast.expr:
    """Return a number as an expression."""
    return ast.Constant(float(value)) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(float(-value)))


def call(function: str, *arguments: ast.expr) -> ast.expr:
    """Return a call."""
    return ast.Call(name(function), list(arguments), [])


def scaled(tree: ast.expr, power: int) -> ast.expr:
    """Return a value times a power of ten.

    A negative power divides: 0.001 is not a float32, and a state that is converted to and fro in each step would drift.
    """
    if power < 0:
        return product([tree], [literal(10.0**-power)])
    return product([tree, literal(10.0**power)])


def total(terms: Sequence[tuple[int, ast.expr]]) -> ast.expr:
    """Return the sum of terms with their signs; 0 if there is none. A term with a plus comes first."""
    if not terms:
        return literal(0.0)
    first = next((place for place, (sign, _) in enumerate(terms) if sign > 0), None)
    if first is None:
        made, rest = ast.UnaryOp(ast.USub(), terms[0][1]), terms[1:]
    else:
        made, rest = terms[first][1], [*terms[:first], *terms[first + 1 :]]  # type: ignore[assignment]
    for sign, term in rest:
        made = ast.BinOp(made, ast.Add() if sign > 0 else ast.Sub(), term)  # type: ignore[assignment]
    return made


def product(above: Sequence[ast.expr], below: Sequence[ast.expr] = ()) -> ast.expr:
    """Return the product of factors, divided by the product of others; factors of 1 are left out."""
    above, below = ([one for one in given if _number(one) != 1.0] for given in (above, below))
    made = above[0] if above else literal(1.0)
    for one in above[1:]:
        made = ast.BinOp(made, ast.Mult(), one)
    if below:
        divisor = below[0]
        for one in below[1:]:
            divisor = ast.BinOp(divisor, ast.Mult(), one)
        made = ast.BinOp(made, ast.Div(), divisor)
    return made


class Writer:
    """Collects the statements of a model's function and its constants.

    Parameters
    ----------
    symbols : Symbols
        Meaning of the names.
    taken : set of str
        Names that new variables and constants must not have.
    """

    def __init__(self, symbols: Symbols, taken: set[str]) -> None:
        self.symbols = symbols
        self.lines: list[str] = []
        self.constants: dict[str, str] = {}
        self.reads: set[str] = set()  # arguments that the function needs
        self._taken = taken
        self._by_text: dict[str, ast.expr] = {}
        self._constant_expressions: dict[str, ast.expr] = {}

    def fresh(self, base: str) -> str:
        """Return a new name."""
        made, number = base, 1
        while made in self._taken:
            number += 1
            made = f"{base}_{number}"
        self._taken.add(made)
        return made

    def assign(self, target: str, value: ast.expr) -> ast.expr:
        """Add a statement; return the expression that reads the variable."""
        self.lines.append(f"{target} = {ast.unparse(value)}")
        return name(target)

    def local(self, base: str, value: ast.expr) -> ast.expr:
        """Return a name for a value: a new variable, unless it is a name or a number already."""
        if isinstance(value, ast.Name) or _number(value) is not None:
            return value
        return self.assign(self.fresh(base), value)

    def value(self, tree: ast.expr, stage: Stage) -> ast.expr:
        """Return an expression of equations as one of the model's function."""
        made, constant = self._emit(tree, stage)
        return self.constant(made) if constant else made

    def constant_of(self, tree: ast.expr) -> ast.expr | None:
        """Return an expression of constants alone, which is not yet a constant of the model; None for a choice."""
        made, constant = self._emit(tree, Stage({}))
        return made if constant else None

    def quantity(self, tree: ast.expr, base: str) -> str:
        """Return the name of a constant that other constants are computed from."""
        if isinstance(tree, ast.Name):
            return tree.id
        made = self.fresh(base)
        self.constants[made] = ast.unparse(tree)
        return made

    def constant(self, tree: ast.expr, base: str = "k") -> ast.expr:
        """Return the value of an expression of constants: a number, a parameter, or a constant of the model."""
        if isinstance(tree, ast.Name):
            self.reads.add(tree.id)
            return tree
        if not any(isinstance(node, ast.Name) and node.id not in _FUNCTION_NAMES for node in ast.walk(tree)):
            return literal(float(DerivedConstants("equations", {"value": ast.unparse(tree)}, set())({}, 1.0)["value"]))
        text = ast.unparse(tree)
        if text not in self._by_text:
            made = self.fresh(base)
            self.constants[made] = text
            self._by_text[text] = name(made)
            self.reads.add(made)
        return self._by_text[text]

    # --- each method returns an expression, and whether it is constant ---

    def _emit(self, tree: ast.expr, stage: Stage) -> tuple[ast.expr, bool]:
        if isinstance(tree, ast.Constant):
            return (literal(float(tree.value)), True) if not isinstance(tree.value, bool) else (tree, False)  # type: ignore[arg-type]
        if isinstance(tree, ast.Name):
            return self._name(tree.id, stage)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            return ast.UnaryOp(ast.Not(), self.value(tree.operand, stage)), False
        if isinstance(tree, ast.BoolOp):
            return ast.BoolOp(tree.op, [self.value(one, stage) for one in tree.values]), False
        if isinstance(tree, ast.Compare):
            left, *others = [self.value(one, stage) for one in (tree.left, *tree.comparators)]
            return ast.Compare(left, tree.ops, others), False
        if isinstance(tree, ast.IfExp):
            test, yes, no = (self.value(one, stage) for one in (tree.test, tree.body, tree.orelse))
            return ast.IfExp(test, yes, no), False
        if isinstance(tree, ast.Call):
            assert isinstance(tree.func, ast.Name)
            return self._call(tree.func.id, [self._emit(one, stage) for one in tree.args])
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
            return self._power(self._emit(tree.left, stage), self._emit(tree.right, stage))
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult | ast.Div):
            return self._product(tree, stage)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mod):
            (a, is_a), (b, is_b) = self._emit(tree.left, stage), self._emit(tree.right, stage)
            if not (is_a and is_b):
                a, b = (self.constant(one) if is_one else one for one, is_one in ((a, is_a), (b, is_b)))
            return ast.BinOp(a, ast.Mod(), b), is_a and is_b
        return self._sum(tree, stage)

    def _name(self, one: str, stage: Stage) -> tuple[ast.expr, bool]:
        if one in stage.values:
            return stage.values[one], False
        symbols = self.symbols
        if one in symbols.parameters:
            stored, factor = symbols.parameters[one]
            return product([name(stored), literal(factor)]), True
        if one in symbols.inputs:
            stored, factor = symbols.inputs[one]
            self.reads.add(stored)
            return product([name(stored), literal(factor)]), False
        if one in symbols.expressions:
            return self._expression(one, stage)
        if one == "t":
            assert stage.time is not None
            return stage.time, False
        if one == "dt":
            return name("dt_ms"), True
        unit = named(one)
        return literal(unit.factor if unit is not None else NUMBERS[one]), True

    def _expression(self, one: str, stage: Stage) -> tuple[ast.expr, bool]:
        tree = self.symbols.expressions[one].tree
        assert tree is not None
        if one in self.symbols.constant:
            if one not in self._constant_expressions:
                made, _ = self._emit(tree, Stage({}))
                self._constant_expressions[one] = self._constant_expression(one, made)
            return self._constant_expressions[one], True
        if one not in stage.computed:
            stage.computed[one] = self.local(one, self.value(tree, stage))
        return stage.computed[one], False

    def _constant_expression(self, one: str, made: ast.expr) -> ast.expr:
        """Return a constant sub-expression; a larger one is computed once and referred to by name."""
        if isinstance(made, ast.Name | ast.Constant):
            return made
        known = self.fresh(f"{one}_value")
        self.constants[known] = ast.unparse(made)
        return name(known)

    def _sum(self, tree: ast.expr, stage: Stage) -> tuple[ast.expr, bool]:
        terms = [(sign, *self._emit(one, stage)) for sign, one in _terms(tree)]
        fixed = [(sign, one) for sign, one, constant in terms if constant]
        moving = [(sign, one) for sign, one, constant in terms if not constant]
        if not moving:
            return total(fixed), True
        if not fixed:
            return total(moving), False
        if len(fixed) == 1:
            sign, one = fixed[0]
            return total([*moving, (sign, self.constant(one))]), False
        return total([*moving, (1, self.constant(total(fixed)))]), False

    def _product(self, tree: ast.expr, stage: Stage) -> tuple[ast.expr, bool]:
        above: list[ast.expr] = []
        below: list[ast.expr] = []
        fixed_above: list[ast.expr] = []
        fixed_below: list[ast.expr] = []
        for is_above, one in _factors(tree):
            made, constant = self._emit(one, stage)
            chosen = (fixed_above if is_above else fixed_below) if constant else (above if is_above else below)
            chosen.append(made)
        fixed = product(fixed_above, fixed_below)
        if not above and not below:
            return fixed, True
        return product([self.constant(fixed), *above], below), False

    def _power(self, base: tuple[ast.expr, bool], exponent: tuple[ast.expr, bool]) -> tuple[ast.expr, bool]:
        (a, is_a), (b, is_b) = base, exponent
        if is_a and is_b:
            return ast.BinOp(a, ast.Pow(), b), True
        value = _number(self.constant(b)) if is_b else None
        if value is not None and value in (0.5, -0.5):
            root = call("sqrt", a)
            return (root if value > 0 else product([literal(1.0)], [root])), False
        if value is not None and value.is_integer() and abs(value) <= 64:
            raised = a if abs(value) == 1 else ast.BinOp(a, ast.Pow(), ast.Constant(abs(int(value))))
            if value == 0:
                return literal(1.0), False
            return (raised if value > 0 else product([literal(1.0)], [raised])), False
        a, b = (self.constant(one) if constant else one for one, constant in (base, exponent))
        return call("power", a, b), False

    def _call(self, function: str, arguments: list[tuple[ast.expr, bool]]) -> tuple[ast.expr, bool]:
        constant = all(is_constant for _, is_constant in arguments)
        given = [one if constant or not fixed else self.constant(one) for one, fixed in arguments]
        if function in _REWRITTEN:
            if not constant and function != "int":
                given = [self.local("part", given[0]), *given[1:]]
            return _REWRITTEN[function](*given), constant and function not in ("int", "sign")
        return call(function, *given), constant


def _whole(x: ast.expr) -> ast.expr:
    if isinstance(x, ast.Compare | ast.BoolOp) or (isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.Not)):
        return ast.IfExp(x, literal(1.0), literal(0.0))
    if isinstance(x, ast.Name):  # a number, or a condition such as not_refractory: both are converted
        return call("float", call("int", x))
    return call("float", call("int", x))


def _minus(x: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.USub(), x)


def _half(a: ast.expr, sign: ast.operator, b: ast.expr) -> ast.expr:
    return ast.BinOp(literal(0.5), ast.Mult(), ast.BinOp(a, sign, b))


def _sign(x: ast.expr) -> ast.expr:
    negative = ast.IfExp(ast.Compare(x, [ast.Lt()], [literal(0.0)]), literal(-1.0), literal(0.0))
    return ast.IfExp(ast.Compare(x, [ast.Gt()], [literal(0.0)]), literal(1.0), negative)


# Functions that the model language has not, as expressions of those that it has.
_REWRITTEN: dict[str, Callable[..., ast.expr]] = {
    "clip": lambda x, low, high: call("min", call("max", x, low), high),
    "cosh": lambda x: _half(call("exp", x), ast.Add(), call("exp", _minus(x))),
    "int": _whole,
    "log10": lambda x: ast.BinOp(literal(_LOG10), ast.Mult(), call("log", x)),
    "sign": _sign,
    "sinh": lambda x: _half(call("expm1", x), ast.Sub(), call("expm1", _minus(x))),
    "tan": lambda x: ast.BinOp(call("sin", x), ast.Div(), call("cos", x)),
}
_FUNCTION_NAMES = frozenset(
    {"abs", "cos", "exp", "expm1", "exprel", "float", "int", "log", "log1p", "max", "min", "power", "sin", "sqrt",
     "tanh"}
)  # fmt: skip


def _number(tree: ast.expr) -> float | None:
    """Return the value of a number, also of a negative one; None for anything else."""
    if isinstance(tree, ast.Constant):
        return float(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub) and isinstance(tree.operand, ast.Constant):
        return -float(tree.operand.value)  # type: ignore[arg-type]
    return None


def _terms(tree: ast.expr, sign: int = 1) -> list[tuple[int, ast.expr]]:
    """Return the terms of a sum with their signs."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        right = sign if isinstance(tree.op, ast.Add) else -sign
        return [*_terms(tree.left, sign), *_terms(tree.right, right)]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        return _terms(tree.operand, -sign if isinstance(tree.op, ast.USub) else sign)
    return [(sign, tree)]


def _factors(tree: ast.expr, above: bool = True) -> list[tuple[bool, ast.expr]]:
    """Return the factors of a product, each with True if it is above the fraction line."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult | ast.Div):
        right = above if isinstance(tree.op, ast.Mult) else not above
        return [*_factors(tree.left, above), *_factors(tree.right, right)]
    return [(above, tree)]
