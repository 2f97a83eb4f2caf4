"""Equations as text: their lines, the expressions that they may contain, and the units of these expressions.

The text is parsed with `ast` and checked node by node; nothing of it is evaluated by Python.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.symbolic.units import ONE, Unit, is_base_unit, is_in, named, parse_unit

__all__ = [
    "FUNCTIONS",
    "NUMBERS",
    "Declaration",
    "Place",
    "UnitCheck",
    "names_in",
    "parse_condition",
    "parse_equations",
    "parse_expression",
    "parse_statements",
]

# Functions of equations, with the numbers of arguments that they take.
FUNCTIONS: dict[str, range] = {
    **dict.fromkeys(
        ("abs", "cos", "cosh", "exp", "expm1", "exprel", "int", "log", "log10", "log1p", "sign", "sin", "sinh",
         "sqrt", "tan", "tanh"),
        range(1, 2),
    ),
    "clip": range(3, 4),
    "max": range(2, 9),
    "min": range(2, 9),
}  # fmt: skip
NUMBERS = {"pi": math.pi, "e": math.e}

_LONGEST_TEXT = 50_000
_DEEPEST = 100  # levels of an expression
_TOO_DEEP = f"an expression of more than {_DEEPEST} levels. Give parts of it a name: `x = ... : unit`."
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_ALLOWED = (
    "Use numbers, units, names, + - * / ** %, comparisons, and, or, not, `a if c else b`, and "
    f"{', '.join(sorted(FUNCTIONS))}."
)
_DRAWS = {"rand": "random()", "randn": "normal()"}  # Brian2's functions, and those of the model language
_DERIVATIVE = re.compile(r"d\s*([A-Za-z]\w*)\s*/\s*dt\Z")
_NAME = re.compile(r"[A-Za-z]\w*\Z", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z]\w*)\s*(\+|-|\*|/)?=(?!=)(.*)\Z", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Place:
    """A line of the user's text, which errors name."""

    what: str
    text: str

    def refuse(self, message: str) -> InvalidArgument:
        """Return an error with the place and the text of the line."""
        text = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return InvalidArgument(f"{self.what} `{text}`: {message}")


@dataclass(frozen=True)
class Declaration:
    """A line of equations.

    Parameters
    ----------
    kind : str
        "differential", "expression" or "parameter".
    name : str
        Name as the user wrote it.
    unit : Unit
        Unit after the colon.
    is_base : bool
        True for a unit without a prefix, as volt.
    tree : ast.expr or None
        Right-hand side.
    flags : frozenset of str
        Flags in parentheses.
    place : Place
        The line.
    meaning : str
        Comment at the end of the line.
    """

    kind: str
    name: str
    unit: Unit
    is_base: bool
    tree: ast.expr | None
    flags: frozenset[str]
    place: Place
    meaning: str = ""


_FLAGS = {
    "differential": {"unless refractory"},
    "expression": set[str](),
    "parameter": {"constant", "shared"},
}


def parse_equations(text: str) -> list[Declaration]:
    """Return the lines of equations, in their order.

    Raises
    ------
    InvalidArgument
        A line is not of the form `dx/dt = ... : unit (flags)`, `x = ... : unit` or `x : unit`, or a name has two.
    """
    if not isinstance(text, str):
        raise InvalidType(f"equations: text is expected, not {type(text).__name__}")
    if len(text) > _LONGEST_TEXT:
        raise InvalidArgument(f"equations: {len(text):,} characters; at most {_LONGEST_TEXT:,} can be used")
    found: dict[str, Declaration] = {}
    for number, line, meaning in _joined_lines(text):
        place = Place(f"equations, line {number}", line)
        made = _declaration(line, meaning, place)
        if made.name in found:
            raise place.refuse(f"{made.name!r} is defined before, in `{found[made.name].place.text}`. Use one of them.")
        found[made.name] = made
    if not any(one.kind == "differential" for one in found.values()):
        raise InvalidArgument("equations: there is no differential equation, as in 'dv/dt = -v/(10*ms) : mV'")
    return list(found.values())


def _joined_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, text and comment of each line; an equation ends where its unit does."""
    waiting, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        code, _, comment = line.partition("#")
        code = code.strip()
        if not code:
            continue
        if not waiting:
            first = number
        waiting = f"{waiting} {code}".strip()
        if ":" in waiting and waiting.count("(") <= waiting.count(")"):
            yield first, waiting, comment.strip()
            waiting = ""
    if waiting:
        place = Place(f"equations, line {first}", waiting)
        raise place.refuse("the unit is missing, or a bracket is open. Write it after a colon, as in `v = 2*u : mV`.")


def _declaration(line: str, meaning: str, place: Place) -> Declaration:
    left, _, right = line.partition(":")
    unit_text, _, flags_text = right.partition("(")
    flags: frozenset[str] = frozenset()
    if flags_text:
        if not flags_text.rstrip().endswith(")"):
            raise place.refuse(f"{flags_text!r} after the unit; flags are in parentheses, as (unless refractory)")
        flags = frozenset(" ".join(one.split()) for one in flags_text.rstrip()[:-1].split(","))
    unit = parse_unit(unit_text, place.refuse)
    target, equals, expression = left.partition("=")
    target = target.strip()
    derivative = _DERIVATIVE.match(target)
    kind = "differential" if derivative else "expression" if equals else "parameter"
    name = derivative[1] if derivative else target
    _check_name(name, place)
    if derivative and not equals:
        raise place.refuse("a derivative without a right-hand side")
    for one in flags - _FLAGS[kind]:
        allowed = " or ".join(f"({flag})" for flag in sorted(_FLAGS[kind])) or "none"
        raise place.refuse(f"the flag ({one}) cannot be used here; there is {allowed}")
    tree = parse_expression(expression, place) if equals else None
    return Declaration(kind, name, unit, is_base_unit(unit_text), tree, flags, place, meaning)


def _check_name(name: str, place: Place) -> None:
    if not _NAME.match(name):
        raise place.refuse(f"{name!r} is not a name. Write `dx/dt = ... : unit`, `x = ... : unit` or `x : unit`.")
    reserved = {
        "t",
        "dt",
        "xi",
        "not_refractory",
        "weight",
        "and",
        "or",
        "not",
        "if",
        "else",
        "lambda",
        "True",
        "False",
    }
    if name in reserved or name in FUNCTIONS or name.startswith("xi_"):
        raise place.refuse(f"{name!r} has a meaning of its own in equations. Choose another name.")
    if named(name) is not None:
        raise place.refuse(f"{name!r} is the name of a unit. Choose another name.")


def parse_expression(text: str, place: Place) -> ast.expr:
    """Return the parsed expression of a text, checked node by node."""
    if len(text) > _LONGEST_TEXT:
        raise place.refuse(f"{len(text):,} characters; at most {_LONGEST_TEXT:,} can be used")
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval").body
    except (RecursionError, MemoryError):
        raise place.refuse(_TOO_DEEP) from None
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise place.refuse(f"`{text.strip()[:100]}` is not an expression: {message}") from None
    _check_tree(tree, place)
    return tree


def _check_tree(tree: ast.expr, place: Place) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            break
    else:
        raise place.refuse(_TOO_DEEP)
    _Whitelist(place).visit(tree)


class _Whitelist(ast.NodeVisitor):
    def __init__(self, place: Place) -> None:
        self._place = place

    def generic_visit(self, node: ast.AST) -> None:
        raise self._place.refuse(f"`{ast.unparse(node)[:100]}` cannot be used in equations. {_ALLOWED}")

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_as_float(value)):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not _NAME.match(node.id):
            raise self._place.refuse(f"`{node.id}` is not a name in equations: use letters, digits and _")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not isinstance(node.op, _OPERATORS):
            hint = "Write ** for a power. " if isinstance(node.op, ast.BitXor) else ""
            raise self._place.refuse(f"the operator of `{ast.unparse(node)[:100]}` cannot be used. {hint}{_ALLOWED}")
        self.visit(node.left)
        self.visit(node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Invert):
            self.generic_visit(node)
        self.visit(node.operand)

    def visit_Compare(self, node: ast.Compare) -> None:
        if not all(isinstance(one, _COMPARISONS) for one in node.ops):
            self.generic_visit(node)
        for one in (node.left, *node.comparators):
            self.visit(one)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for one in node.values:
            self.visit(one)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        for one in (node.test, node.body, node.orelse):
            self.visit(one)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _DRAWS:
            raise self._place.refuse(
                f"`{name}` cannot be used in equations. Use xi for noise, and a distribution such as Uniform(0.0, 1.0) "
                f"for initial values and parameters; a model as a function has {_DRAWS[name]}"
            )
        if name not in FUNCTIONS:
            raise self._place.refuse(f"the function `{ast.unparse(node.func)[:60]}` is not known. {_ALLOWED}")
        if node.keywords or len(node.args) not in FUNCTIONS[name]:
            raise self._place.refuse(f"`{ast.unparse(node)[:100]}`: {name} takes {FUNCTIONS[name].start} value(s)")
        for one in node.args:
            self.visit(one)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_condition(text: object, what: str) -> tuple[ast.expr, Place]:
    """Return a parsed condition, as a threshold, and its place."""
    if not isinstance(text, str):
        raise InvalidType(f"{what}={text!r}: text is expected, as in 'v > -50*mV'")
    place = Place(what, " ".join(text.split()))
    return parse_expression(text, place), place


def parse_statements(text: object, what: str) -> list[tuple[str, ast.expr, Place]]:
    """Return the assignments of a text, as "v = v_r; w += b": the name, the value, and the place.

    `w += b` is returned as the value `w + b`.
    """
    if not isinstance(text, str):
        raise InvalidType(f"{what}={text!r}: text is expected, as in 'v = -60*mV'")
    made = []
    lines = [part.strip() for line in text.splitlines() for part in line.partition("#")[0].split(";")]
    for number, line in enumerate((one for one in lines if one), 1):
        place = Place(what if number == 1 else f"{what}, statement {number}", line)
        found = _ASSIGNMENT.match(line)
        if not found:
            raise place.refuse("an assignment is expected, as `v = -60*mV` or `w += b`, with ; between two of them")
        name, operator, value = found[1], found[2], parse_expression(found[3], place)
        if operator:
            kinds = {"+": ast.Add(), "-": ast.Sub(), "*": ast.Mult(), "/": ast.Div()}
            value = ast.BinOp(ast.Name(name, ast.Load()), kinds[operator], value)
        made.append((name, value, place))
    return made


def names_in(tree: ast.AST) -> set[str]:
    """Return the names that an expression reads, without those of functions."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}


# --- units --------------------------------------------------------------------------------------------------


@dataclass
class UnitCheck:
    """Finds the unit of an expression, and refuses sums and comparisons of different ones.

    Parameters
    ----------
    unit_of : callable
        Returns the unit of a name; raises if there is none. "bool" for a condition.
    place : Place
        The line, for errors.
    constants : mapping of str to float
        Numbers that may be exponents of units.
    """

    unit_of: Callable[[str], Unit | str]
    place: Place
    constants: Mapping[str, float] = field(default_factory=dict)

    def number(self, tree: ast.expr, wanted: Unit, what: str) -> None:
        """Raise unless an expression is a number with this unit."""
        found = self._number(tree)
        if found is not None and found.dimensions != wanted.dimensions:
            raise self.place.refuse(
                f"{what} {is_in(wanted)}, but `{ast.unparse(tree)}` {is_in(found)}. A number has a unit "
                "if it is multiplied by one, as 5*mV."
            )

    def unit(self, tree: ast.expr) -> Unit:
        """Return the unit of a number."""
        return self._number(tree) or ONE

    def condition(self, tree: ast.expr) -> None:
        """Raise unless an expression is true or false."""
        if self._any(tree) != "bool":
            raise self.place.refuse(f"`{ast.unparse(tree)}` is not a condition, as v > -50*mV is")

    def is_condition(self, tree: ast.expr) -> bool:
        """Return True for an expression that is true or false."""
        return self._any(tree) == "bool"

    def _number(self, tree: ast.expr) -> Unit | None:
        found = self._any(tree)
        if isinstance(found, str):
            raise self.place.refuse(f"`{ast.unparse(tree)}` is true or false; write int(...) around it for 1 or 0")
        return found

    def _any(self, tree: ast.expr) -> Unit | str | None:
        """Return a unit, "bool", or None for 0, which has any unit."""
        if isinstance(tree, ast.Constant):
            return None if tree.value == 0 else ONE
        if isinstance(tree, ast.Name):
            return self.unit_of(tree.id)
        if isinstance(tree, ast.UnaryOp):
            if isinstance(tree.op, ast.Not):
                self.condition(tree.operand)
                return "bool"
            return self._number(tree.operand)
        if isinstance(tree, ast.BoolOp):
            for one in tree.values:
                self.condition(one)
            return "bool"
        if isinstance(tree, ast.Compare):
            self._same(tree, [tree.left, *tree.comparators], "comparison")
            return "bool"
        if isinstance(tree, ast.IfExp):
            self.condition(tree.test)
            return self._same(tree, [tree.body, tree.orelse], "choice")
        if isinstance(tree, ast.Call):
            return self._call(tree)
        assert isinstance(tree, ast.BinOp)
        return self._binary(tree)

    def _binary(self, tree: ast.BinOp) -> Unit | None:
        if isinstance(tree.op, ast.Add | ast.Sub | ast.Mod):
            return self._same(tree, [tree.left, tree.right], "sum" if not isinstance(tree.op, ast.Mod) else "remainder")
        if isinstance(tree.op, ast.Pow):
            return self._power(tree)
        left, right = self._number(tree.left) or ONE, self._number(tree.right) or ONE
        return left * (right if isinstance(tree.op, ast.Mult) else right.inverse())

    def _power(self, tree: ast.BinOp) -> Unit:
        base, exponent = self._number(tree.left) or ONE, self._number(tree.right) or ONE
        if exponent.dimensions != ONE.dimensions:
            raise self.place.refuse(f"the exponent of `{ast.unparse(tree)}` {is_in(exponent)}")
        if base.dimensions == ONE.dimensions:
            return ONE
        value = _literal(tree.right)
        if value is None or abs(value) > 100:
            raise self.place.refuse(
                f"`{ast.unparse(tree)}`: `{ast.unparse(tree.left)}` {is_in(base)}, so the exponent must be a "
                "number, as 2 or 0.5"
            )
        return base.to_the(Fraction(value).limit_denominator(24))

    def _call(self, tree: ast.Call) -> Unit | None:
        assert isinstance(tree.func, ast.Name)
        name = tree.func.id
        if name in ("min", "max", "clip"):
            return self._same(tree, tree.args, "choice")
        if name == "int" and self._any(tree.args[0]) == "bool":
            return ONE
        found = self._number(tree.args[0])
        if name == "abs" or found is None:
            return found if name == "abs" else ONE
        if name == "sqrt":
            return found.to_the(Fraction(1, 2))
        if name != "sign" and found.dimensions != ONE.dimensions:
            raise self.place.refuse(
                f"{name} takes a number without a unit, but `{ast.unparse(tree.args[0])}` {is_in(found)}. "
                "Divide it by a unit, as v/mV."
            )
        return ONE

    def _same(self, tree: ast.expr, parts: list[ast.expr], what: str) -> Unit | None:
        first: tuple[ast.expr, Unit] | None = None
        for part in parts:
            found = self._number(part)
            if found is None:
                continue
            if first is not None and found.dimensions != first[1].dimensions:
                a, b = (ast.unparse(one) for one in (first[0], part))
                raise self.place.refuse(
                    f"a {what} of two units in `{ast.unparse(tree)}`: `{a}` {is_in(first[1])}, `{b}` "
                    f"{is_in(found)}. A number has a unit if it is multiplied by one, as 5*mV."
                )
            first = first or (part, found)
        return first[1] if first else None


def _literal(tree: ast.expr) -> float | None:
    """Return the value of a number, also of -1/2; None for other expressions."""
    if isinstance(tree, ast.Constant):
        return float(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        value = _literal(tree.operand)
        return value if value is None or isinstance(tree.op, ast.UAdd) else -value
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        a, b = _literal(tree.left), _literal(tree.right)
        return a / b if a is not None and b else None
    return None
