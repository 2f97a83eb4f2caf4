"""The form of equations: which are linear in what, with which coefficients.

Coefficients are read off the equations as they are written. Where an equation is not linear as it is written, SymPy
rewrites it: `v**2 - (v - u)**2` is linear in v. SymPy gets objects that are built here, never text, because SymPy
evaluates text as Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from neuraxis.imports import require
from neuraxis.network.symbolic.parsing import FUNCTIONS, Declaration, names_in

__all__ = ["Expressions", "Linear", "NotLinear"]

_LARGEST = 2_000  # nodes of an expression with its sub-expressions written out

# The coefficient of a name and the rest; None for 0.
Linear = tuple[ast.expr | None, ast.expr | None]


class NotLinear(Exception):
    """An expression is not linear in a name."""


class Expressions:
    """Sub-expressions, and the coefficients of expressions that contain them.

    Parameters
    ----------
    expressions : mapping of str to Declaration
        Sub-expressions by name.
    """

    def __init__(self, expressions: Mapping[str, Declaration]) -> None:
        self._expressions = expressions
        self._reads: dict[str, set[str]] = {}
        self._sizes: dict[str, int] = {}

    def reads(self, tree: ast.expr) -> set[str]:
        """Return the names that an expression depends on, through sub-expressions, and these."""
        found: set[str] = set()
        for one in names_in(tree):
            found |= {one, *self._reads_of(one)}
        return found

    def _reads_of(self, one: str) -> set[str]:
        if one not in self._reads:
            self._reads[one] = set()  # for a cycle, which is reported elsewhere
            tree = self._tree(one)
            self._reads[one] = self.reads(tree) if tree is not None else set()
        return self._reads[one]

    def _tree(self, one: str) -> ast.expr | None:
        return self._expressions[one].tree if one in self._expressions else None

    def size(self, tree: ast.expr, name: str | None = None) -> int:
        """Return the number of nodes with the sub-expressions written out, all or those that depend on `name`."""
        count = 0
        for node in ast.walk(tree):
            inner = self._tree(node.id) if isinstance(node, ast.Name) else None
            if inner is not None and (name is None or name in self._reads_of(node.id)):  # type: ignore[attr-defined]
                key = f"{node.id} {name}"  # type: ignore[attr-defined]
                if key not in self._sizes:
                    self._sizes[key] = 1
                    self._sizes[key] = self.size(inner, name)
                count += self._sizes[key]
            else:
                count += 1
        return count

    def linear(self, tree: ast.expr, name: str, frozen: bool = False) -> Linear:
        """Return (b, a) such that the expression is a + b * name, with neither containing the name.

        With `frozen`, they may contain it within functions and sub-expressions that are not linear in it, as in
        g*m_inf*(v - e) with m_inf = 1/(1 + exp(-v/mV)).

        Raises
        ------
        NotLinear
            It is not linear as it is written.
        """
        if self.size(tree, name) > _LARGEST:
            raise NotLinear
        return self._linear(tree, name, frozen)

    def _linear(self, tree: ast.expr, name: str, frozen: bool) -> Linear:
        if name not in self.reads(tree):
            return None, tree
        if isinstance(tree, ast.Name):
            inner = self._tree(tree.id)
            if tree.id == name:
                return ast.Constant(1.0), None
            assert inner is not None
            try:
                return self._linear(inner, name, frozen=False)
            except NotLinear:
                if not frozen:
                    raise
            try:
                return self._linear(inner, name, frozen)
            except NotLinear:
                return None, tree
        if isinstance(tree, ast.Call) and frozen:
            return None, tree
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
            b, a = self._linear(tree.operand, name, frozen)
            return _signed(tree.op, b), _signed(tree.op, a)
        if isinstance(tree, ast.IfExp) and name not in self.reads(tree.test):
            (b, a), (d, c) = (self._linear(one, name, frozen) for one in (tree.body, tree.orelse))
            return _chosen(tree.test, b, d), _chosen(tree.test, a, c)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
            (b, a), (d, c) = (self._linear(one, name, frozen) for one in (tree.left, tree.right))
            return _added(b, tree.op, d), _added(a, tree.op, c)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult | ast.Div):
            return self._linear_product(tree, name, frozen)
        if (
            isinstance(tree, ast.BinOp)
            and isinstance(tree.op, ast.Pow)
            and frozen
            and not self._is_written_in(tree, name)
        ):
            return None, tree
        raise NotLinear

    def _linear_product(self, tree: ast.BinOp, name: str, frozen: bool) -> Linear:
        (b, a), (d, c) = (self._linear(one, name, frozen) for one in (tree.left, tree.right))
        if d is None:
            return _scaled(b, tree.op, tree.right), _scaled(a, tree.op, tree.right)
        if b is None and isinstance(tree.op, ast.Mult):
            left = tree.left
            return tuple(None if one is None else ast.BinOp(left, tree.op, one) for one in (d, c))  # type: ignore[return-value]
        raise NotLinear

    def _is_written_in(self, tree: ast.expr, name: str) -> bool:
        """Return True if a name is in an expression other than within functions and sub-expressions."""
        if isinstance(tree, ast.Call):
            return False
        if isinstance(tree, ast.Name):
            return tree.id == name
        return any(self._is_written_in(one, name) for one in ast.iter_child_nodes(tree) if isinstance(one, ast.expr))

    def rewritten(self, tree: ast.expr, names: set[str], conditional: bool) -> ast.expr | None:
        """Return an equal expression that is linear as it is written, or None if there is none.

        Parameters
        ----------
        tree : ast.expr
            The expression.
        names : set of str
            Names in which it should be linear.
        conditional : bool
            True if coefficients may contain the other names; False if they must not.
        """
        if self.size(tree) > _LARGEST or not self._seems_linear(tree, names):
            return None
        sympy = require("sympy", extra="equations", purpose="finding out whether equations are linear")
        inner: dict[str, Any] = {}

        def symbol(one: str) -> Any:
            written_out = self._tree(one)
            if written_out is not None and names & self._reads_of(one):
                if one not in inner:
                    inner[one] = _to_sympy(sympy, written_out, symbol)
                return inner[one]
            return sympy.Symbol(one, real=True)

        try:
            found = sympy.simplify(_to_sympy(sympy, tree, symbol))
            ordered = [sympy.Symbol(one, real=True) for one in sorted(names)]
            slopes = [sympy.simplify(sympy.diff(found, one)) for one in ordered]
            for one, slope in zip(ordered, slopes, strict=True):
                if slope.has(one) or (not conditional and any(slope.has(other) for other in ordered)):
                    return None
            if conditional:
                (one,), (slope,) = ordered, slopes
                rest = sympy.simplify(found - slope * one)
                return None if rest.has(one) else _from_sympy(sympy, rest + slope * one)
            rest = sympy.simplify(found - sum(s * one for s, one in zip(slopes, ordered, strict=True)))
            if any(rest.has(one) for one in ordered):
                return None
            return _from_sympy(sympy, sympy.Add(rest, *[s * one for s, one in zip(slopes, ordered, strict=True)]))
        except _NoAlgebra:
            return None

    def _seems_linear(self, tree: ast.expr, names: set[str]) -> bool:
        """Return False if values of the expression along lines show that it is not linear, which needs no algebra."""
        reads = sorted(self.reads(tree))
        for seed in range(1, 5):
            # Numbers between 0.5 and 1.5 that look random: multiples of the golden ratio.
            base = {one: 0.5 + (seed * 0.37 + place * 0.6180339887) % 1.0 for place, one in enumerate(reads)}
            slope = {one: 0.1 + (seed * 0.73 + place * 0.6180339887) % 1.0 for place, one in enumerate(sorted(names))}
            values = []
            for step in (0.0, 0.25, 0.5):
                point = {one: value + step * slope.get(one, 0.0) for one, value in base.items()}
                try:
                    values.append(self._evaluated(tree, point))
                except (ArithmeticError, ValueError, TypeError):
                    break
            else:
                scale = max(1e-9, *map(abs, values))
                if abs(values[0] - 2.0 * values[1] + values[2]) > 1e-6 * scale:
                    return False
        return True

    def _evaluated(self, tree: ast.expr, values: dict[str, float]) -> float:
        def of(node: ast.expr) -> float:
            return self._evaluated(node, values)

        if isinstance(tree, ast.Constant):
            return float(tree.value)  # type: ignore[arg-type]
        if isinstance(tree, ast.Name):
            inner = self._tree(tree.id)
            if inner is not None:
                values[tree.id] = of(inner)
            return values[tree.id]
        if isinstance(tree, ast.UnaryOp) and not isinstance(tree.op, ast.Not):
            return -of(tree.operand) if isinstance(tree.op, ast.USub) else of(tree.operand)
        if isinstance(tree, ast.BinOp):
            return float(_OPERATORS[type(tree.op)](of(tree.left), of(tree.right)))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in _FUNCTIONS:
            return float(_FUNCTIONS[tree.func.id](*[of(one) for one in tree.args]))
        raise ValueError("a condition")


_OPERATORS: dict[type, Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Mod: operator.mod,
}


_FUNCTIONS: dict[str, Callable[..., float]] = {
    **{one: getattr(math, one) for one in FUNCTIONS if hasattr(math, one)},
    "abs": abs,
    "clip": lambda x, low, high: min(max(x, low), high),
    "exprel": lambda x: math.expm1(x) / x,
    "max": max,
    "min": min,
}


def _signed(sign: ast.unaryop, tree: ast.expr | None) -> ast.expr | None:
    return None if tree is None else ast.UnaryOp(sign, tree)


def _scaled(tree: ast.expr | None, sign: ast.operator, by: ast.expr) -> ast.expr | None:
    return None if tree is None else ast.BinOp(tree, sign, by)


def _chosen(test: ast.expr, yes: ast.expr | None, no: ast.expr | None) -> ast.expr | None:
    if yes is None and no is None:
        return None
    return ast.IfExp(test, yes or ast.Constant(0.0), no or ast.Constant(0.0))


def _added(a: ast.expr | None, sign: ast.operator, b: ast.expr | None) -> ast.expr | None:
    if b is None:
        return a
    if a is None:
        return b if isinstance(sign, ast.Add) else ast.UnaryOp(ast.USub(), b)
    return ast.BinOp(a, sign, b)


# --- SymPy --------------------------------------------------------------------------------------------------


class _NoAlgebra(Exception):
    """An expression has a part for which no algebra is done."""


def _to_sympy(sympy: Any, tree: ast.expr, symbol: Callable[[str], Any]) -> Any:
    def of(node: ast.expr) -> Any:
        return _to_sympy(sympy, node, symbol)

    if isinstance(tree, ast.Constant) and not isinstance(tree.value, bool):
        return sympy.Rational(*Fraction(repr(float(tree.value))).as_integer_ratio())  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return symbol(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -of(tree.operand)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.UAdd):
        return of(tree.operand)
    if isinstance(tree, ast.BinOp):
        a, b = of(tree.left), of(tree.right)
        if isinstance(tree.op, ast.Add):
            return a + b
        if isinstance(tree.op, ast.Sub):
            return a - b
        if isinstance(tree.op, ast.Mult):
            return a * b
        if isinstance(tree.op, ast.Div) and b != 0:
            return a / b
        # SymPy computes a power of numbers at once, however large: numbers are no algebra.
        if isinstance(tree.op, ast.Pow) and not (a.is_number and b.is_number) and not (b.is_number and abs(b) > 16):
            return a**b
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        known = {"cos", "cosh", "exp", "log", "sin", "sinh", "sqrt", "tan", "tanh"}
        arguments = [of(one) for one in tree.args]
        if tree.func.id in known and not arguments[0].is_number:
            return getattr(sympy, tree.func.id)(*arguments)
        if tree.func.id in FUNCTIONS and not arguments[0].is_number:
            return sympy.Function(tree.func.id)(*arguments)
    raise _NoAlgebra


def _from_sympy(sympy: Any, found: Any) -> ast.expr:
    def all_of(operator: ast.operator) -> ast.expr:
        parts = [_from_sympy(sympy, one) for one in found.as_ordered_terms()] if found.is_Add else [
            _from_sympy(sympy, one) for one in found.as_ordered_factors()
        ]  # fmt: skip
        made = parts[0]
        for one in parts[1:]:
            made = ast.BinOp(made, operator, one)
        return made

    if found.is_Symbol:
        return ast.Name(str(found.name), ast.Load())
    if found.is_Rational:
        value = float(Fraction(int(found.p), int(found.q)))
        return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))
    if found == sympy.E:
        return ast.Constant(2.718281828459045)
    if found.is_Add:
        return all_of(ast.Add())
    if found.is_Mul:
        return all_of(ast.Mult())
    if found.is_Pow:
        return ast.BinOp(_from_sympy(sympy, found.base), ast.Pow(), _from_sympy(sympy, found.exp))
    name = type(found).__name__
    if found.is_Function and name in FUNCTIONS and len(found.args) in FUNCTIONS[name]:
        arguments = [_from_sympy(sympy, one) for one in found.args]
        return ast.Call(ast.Name(name, ast.Load()), arguments, [])
    raise _NoAlgebra
