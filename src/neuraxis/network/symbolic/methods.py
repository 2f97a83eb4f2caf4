"""Numerical methods: one step of differential equations as statements of a model's function.

A current, a signal and other inputs are constant within a step. With t, the time of the start of a step, `rk2` and
`rk4` evaluate the equations within the step, too. A variable that is held while the neuron is refractory does not
move, and other equations see it at rest.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuraxis.network.symbolic.algebra import Expressions, NotLinear
from neuraxis.network.symbolic.parsing import Declaration
from neuraxis.network.symbolic.propagators import LinearStep
from neuraxis.network.symbolic.writing import Stage, Writer, call, literal, name, product, total

__all__ = ["METHODS", "Integration"]

METHODS = ("exact", "exponential_euler", "rk2", "rk4", "euler")

_HELD = "held"


@dataclass
class Integration:
    """Writes one step of differential equations.

    Parameters
    ----------
    writer : Writer
        Takes the statements.
    equations : sequence of Declaration
        Differential equations.
    held : set of str
        Names that are held while the neuron is refractory.
    algebra : Expressions
        Sub-expressions.
    others : sequence of str
        Other names that equations may read and that are not constant: states that only resets change, and inputs.
    """

    writer: Writer
    equations: Sequence[Declaration]
    held: set[str]
    algebra: Expressions
    others: Sequence[str]

    def __post_init__(self) -> None:
        self.linear_steps: list[LinearStep] = []
        self.matrix: dict[tuple[int, int], ast.expr] = {}
        self.columns: list[str] = []
        self._slopes: dict[str, ast.expr | None] = {}
        self._trees = {one.name: one.tree for one in self.equations}

    def written(self, method: str, start: Stage) -> dict[str, ast.expr]:
        """Write a step from the values of `start`; return the new values by name, held ones included."""
        methods: dict[str, Callable[[Stage], dict[str, ast.expr]]] = {
            "exact": self._exact,
            "exponential_euler": self._exponential_euler,
            "euler": self._euler,
            "rk2": self._rk2,
            "rk4": self._rk4,
        }
        made = methods[method](start)
        found = {}
        for one in self.equations:
            value = made[one.name]
            if one.name in self.held:
                value = ast.IfExp(name(_HELD), start.values[one.name], value)
            found[one.name] = self.writer.local(f"{one.name}_new", value)
        return found

    # --- forms --------------------------------------------------------------------------------------------

    def find_linear_system(self) -> Declaration | None:
        """Find the matrix of linear equations; return the first equation that is not linear, or None."""
        names = [one.name for one in self.equations]
        for one in self.equations:
            if one.tree is not None and not self.algebra.reads(one.tree).isdisjoint(("t", "not_refractory")):
                return one
        read = set().union(*(self.algebra.reads(tree) for tree in self._trees.values() if tree is not None))
        self.columns = [*names, *(one for one in self.others if one in read)]
        self.matrix = {}
        for row, one in enumerate(self.equations):
            assert one.tree is not None
            try:
                self._find_row(row, one.tree)
            except NotLinear:
                moving = set(self.columns) & self.algebra.reads(one.tree)
                other = self.algebra.rewritten(one.tree, moving, conditional=False)
                if other is None:
                    return one
                try:
                    self._find_row(row, other)
                except NotLinear:
                    return one
        return None

    def _find_row(self, row: int, tree: ast.expr) -> None:
        found: dict[tuple[int, int], ast.expr] = {}
        rest: ast.expr | None = tree
        for column, one in enumerate(self.columns):
            if rest is not None and one in self.algebra.reads(rest):
                slope, rest = self.algebra.linear(rest, one)
                if slope is not None:
                    found[row, column] = self._fixed(slope)
        if rest is not None:
            found[row, len(self.columns)] = self._fixed(rest)
        self.matrix |= found

    def _fixed(self, tree: ast.expr) -> ast.expr:
        """Return an expression of constants; raise NotLinear if it contains anything else."""
        if not self.writer.symbols.is_constant_expression(tree):
            raise NotLinear
        made = self.writer.constant_of(tree)
        if made is None:
            raise NotLinear
        return made

    def find_conditional(self, frozen: bool) -> Declaration | None:
        """Find the rate of each equation in its own variable; return the first that is not linear in it, or None.

        With `frozen`, the rate may depend on the variable through functions and sub-expressions, which are kept at
        their values at the start of the step.
        """
        for one in self.equations:
            tree = one.tree
            assert tree is not None
            try:
                slope, _ = self.algebra.linear(tree, one.name)
            except NotLinear:
                other = self.algebra.rewritten(tree, {one.name}, conditional=True)
                if other is None and not frozen:
                    return one
                try:
                    slope, _ = self.algebra.linear(other or tree, one.name, frozen)
                except NotLinear:
                    return one
                self._trees[one.name] = other or tree
            self._slopes[one.name] = slope
        return None

    # --- methods ------------------------------------------------------------------------------------------

    def _exact(self, start: Stage) -> dict[str, ast.expr]:
        n, size = len(self.equations), len(self.columns) + 1
        pattern = set(self.matrix)
        held = [row for row, one in enumerate(self.equations) if one.name in self.held]
        free = _reachable(pattern, n, size)
        stopped = _reachable({(i, j) for i, j in pattern if i not in held}, n, size)
        # Rows that a held variable acts on have other factors while it is held.
        two = [i for i in range(n) if i not in held and any((i, j) in free for j in held)]
        known = [*self.columns, "one"]
        entries = {place: self.writer.quantity(tree, f"rate_{known[place[0]]}_{known[place[1]]}")
                   for place, tree in self.matrix.items()}  # fmt: skip
        factors = {place: self._factor(known, place, "step") for place in sorted(free)}
        self.linear_steps.append(LinearStep(entries, n, factors))
        while_held = {place: self._factor(known, place, "held") for place in sorted(stopped) if place[0] in two}
        if while_held:
            moving = {place: one for place, one in entries.items() if place[0] not in held}
            self.linear_steps.append(LinearStep(moving, n, while_held))
        made = {}
        for i, one in enumerate(self.equations):
            terms = []
            for j in sorted((j for row, j in free if row == i), key=lambda j: j != i):
                factor = name(factors[i, j])
                if i in two:
                    other = name(while_held[i, j]) if (i, j) in while_held else literal(0.0)
                    factor = ast.IfExp(name(_HELD), other, factor)
                value = None if j == size - 1 else self.writer.value(name(self.columns[j]), start)
                terms.append((1, factor if value is None else product([factor, value])))
            own = start.values[one.name]
            made[one.name] = total([(1, own), (1, total(terms))]) if terms else own
        return made

    def _factor(self, known: Sequence[str], place: tuple[int, int], base: str) -> str:
        made = self.writer.fresh(f"{base}_{known[place[0]]}_{known[place[1]]}")
        self.writer.reads.add(made)
        return made

    def _exponential_euler(self, start: Stage) -> dict[str, ast.expr]:
        writer, made = self.writer, {}
        for one in self.equations:
            slope, tree = self._slopes[one.name], self._trees[one.name]
            assert tree is not None
            change = writer.value(tree, start)
            step: ast.expr = name("dt_ms")
            if slope is None:
                factor = writer.constant(step)
            elif (fixed := self._fixed_or_none(slope)) is not None:
                factor = writer.constant(product([step, call("exprel", product([step, fixed]))]), f"step_{one.name}")
            else:
                rate = writer.value(slope, start)
                step = writer.constant(step)
                factor = product([step, call("exprel", product([step, rate]))])
            made[one.name] = total([(1, start.values[one.name]), (1, product([change, factor]))])
        return made

    def _fixed_or_none(self, tree: ast.expr) -> ast.expr | None:
        try:
            return self._fixed(tree)
        except NotLinear:
            return None

    def _euler(self, start: Stage) -> dict[str, ast.expr]:
        slopes = self._slopes_at(start, 1)
        return {one: self._moved(start, one, slopes[one], 1.0) for one in slopes}

    def _rk2(self, start: Stage) -> dict[str, ast.expr]:
        first = self._slopes_at(start, 1)
        second = self._slopes_at(self._stage(start, first, 0.5), 2)
        return {one: self._moved(start, one, second[one], 1.0) for one in second}

    def _rk4(self, start: Stage) -> dict[str, ast.expr]:
        a = self._slopes_at(start, 1)
        b = self._slopes_at(self._stage(start, a, 0.5), 2)
        c = self._slopes_at(self._stage(start, b, 0.5), 3)
        d = self._slopes_at(self._stage(start, c, 1.0), 4)
        made = {}
        for one in a:
            middle = product([literal(2.0), total([(1, b[one]), (1, c[one])])])
            made[one] = self._moved(start, one, total([(1, a[one]), (1, middle), (1, d[one])]), 1.0 / 6.0)
        return made

    def _slopes_at(self, stage: Stage, number: int) -> dict[str, ast.expr]:
        found = {}
        for one, tree in self._trees.items():
            assert tree is not None
            found[one] = self.writer.local(f"{one}_slope_{number}", self.writer.value(tree, stage))
        return found

    def _moved(self, start: Stage, one: str, slope: ast.expr, part: float) -> ast.expr:
        """Return the value after a part of a step with this slope."""
        step = self.writer.constant(product([name("dt_ms"), literal(part)]))
        return total([(1, start.values[one]), (1, product([step, slope]))])

    def _stage(self, start: Stage, slopes: dict[str, ast.expr], part: float) -> Stage:
        """Return the stage after a part of a step."""
        values = dict(start.values)
        for one, slope in slopes.items():
            value = self._moved(start, one, slope, part)
            if one in self.held:
                value = ast.IfExp(name(_HELD), start.values[one], value)
            values[one] = self.writer.local(f"{one}_within", value)
        if start.time is None:
            return Stage(values)
        later = self.writer.constant(product([name("dt_ms"), literal(part)]))
        return Stage(values, total([(1, start.time), (1, later)]))


def _reachable(pattern: set[tuple[int, int]], n: int, size: int) -> set[tuple[int, int]]:
    """Return where exp of a matrix with this pattern, less the identity, can be other than 0."""
    found = set(pattern)
    while True:
        more = {(i, j) for i, k in pattern if k < n for row, j in found if row == k} - found
        if not more:
            return found
        found |= more
