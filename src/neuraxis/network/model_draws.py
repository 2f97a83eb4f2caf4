"""Calls of `normal()` and `random()` in neuron models: each becomes an argument that the engine gives.

A model may need several random numbers in a step. Each place of such a call, after the functions of users have been
written out, is one draw for each neuron and step, whether or not the call is reached: the number of draws does not
depend on what a neuron does. Loops that contain a call are written out, so that each turn has draws of its own.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Sequence
from typing import Any

from neuraxis.arguments import plain
from neuraxis.errors import InvalidArgument
from neuraxis.network.model_source import Definition, constant_value, located, placed, quoted
from neuraxis.network.model_tables import as_table, is_table

__all__ = ["DRAW_FUNCTIONS", "MOST_DRAWS", "drawn_kind", "marked_draw", "with_draws_as_arguments"]

DRAW_FUNCTIONS = ("normal", "random")
MOST_DRAWS = 64
_MOST_STATEMENTS = 10_000

_ARGUMENT = re.compile(rf"_({'|'.join(DRAW_FUNCTIONS)})_\d+")


def drawn_kind(argument: str) -> str | None:
    """Return what an argument draws that replaced a call, as "normal" for `_normal_1`; None for other arguments."""
    found = _ARGUMENT.fullmatch(argument)
    return found[1] if found else None


def marked_draw(call: ast.Call, kind: str) -> ast.Call:
    """Return a call of `normal` or `random` that `with_draws_as_arguments` recognises, whatever names a user chose."""
    return placed(ast.Call(ast.Name(f"{kind}()", ast.Load()), call.args, call.keywords), call, ast.unparse(call))


def with_draws_as_arguments(tree: ast.FunctionDef, function: Definition) -> ast.FunctionDef:
    """Return a model's function with an additional argument in place of each marked call.

    Raises
    ------
    InvalidArgument
        A call is in a `while`, in a loop that is not over a constant range or table or that is left early, has
        arguments, or there are too many calls.
    """
    if not any(_draws(one) for one in tree.body):
        return tree
    made = _Drawing(tree, function)
    tree.body = made.block(tree.body)
    tree.args.args += [ast.arg(name) for name in made.arguments]
    return ast.fix_missing_locations(tree)


def _draws(node: ast.AST) -> bool:
    return any(_kind_of(one) is not None for one in ast.walk(node))


def _kind_of(node: ast.AST) -> str | None:
    """Return the kind of a marked call; None for other nodes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("()"):
        return node.func.id[:-2]
    return None


class _Drawing:
    def __init__(self, tree: ast.FunctionDef, function: Definition) -> None:
        self._model = function.name
        self._function = function
        self._taken = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
        self._taken |= {one.arg for one in tree.args.args}
        self._own = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        self._own |= {one.arg for one in tree.args.args}
        self._statements = 0
        self.arguments: list[str] = []

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            self._statements += 1
            if self._statements > _MOST_STATEMENTS:
                raise self._refuse(statement, "in a loop of this length", "Use fewer turns.")
            if isinstance(statement, ast.For) and _draws(statement):
                made += self._turns(statement)
                continue
            if isinstance(statement, ast.While) and _draws(statement):
                raise self._refuse(statement, "in a while", "Draw before the loop, or use for over a constant range.")
            for field in ("body", "orelse"):
                if isinstance(statement, ast.If):
                    setattr(statement, field, self.block(getattr(statement, field)))
            made.append(_Replace(self).visit(statement))
        return made

    def _turns(self, loop: ast.For) -> list[ast.stmt]:
        """Return a loop with draws, written out."""
        turns = self._values(loop.iter)
        if turns is None or _draws(loop.iter) or loop.orelse:
            raise self._refuse(loop, "in a loop over other than a constant range or a table", "Use range(NUMBER).")
        if any(isinstance(one, ast.Break | ast.Continue) for one in ast.walk(loop)):
            raise self._refuse(loop, "in a loop with break or continue", "Use if instead.")
        made: list[ast.stmt] = []
        for value in turns:
            element: ast.expr = ast.Constant(value)
            if isinstance(value, tuple):
                element = ast.Tuple([ast.Constant(one) for one in value], ast.Load())
            assigned = ast.Assign([copy.deepcopy(loop.target)], element)
            made.append(ast.fix_missing_locations(placed(assigned, loop.iter)))
            made += self.block(copy.deepcopy(loop.body))
        return made

    def _values(self, node: ast.expr) -> Sequence[Any] | None:
        """Return the values over which a loop goes, if they are constant."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            bounds = [constant_value(_Lengths().visit(copy.deepcopy(one)), self._number) for one in node.args]
            if node.keywords or not 1 <= len(bounds) <= 3 or not all(type(one) is int for one in bounds):
                return None
            return range(*bounds) if len(bounds) < 3 or bounds[2] else None
        value = constant_value(node, self._number)
        if not is_table(value):
            return None
        try:
            return as_table(value)
        except ValueError as error:
            raise self._refuse(node, f"in a loop over this: {error};", "Use numbers.") from error

    def _number(self, name: str) -> object:
        return None if name in self._own else plain(self._function.value_of(name))

    def draw(self, call: ast.Call, kind: str) -> ast.expr:
        if call.args or call.keywords:
            raise self._refuse(
                call, "with arguments", "Write mean + deviation * normal(), or low + (high - low) * random()."
            )
        number = len(self.arguments) + 1
        if number > MOST_DRAWS:
            raise self._refuse(call, f"more than {MOST_DRAWS} times", "Draw fewer numbers in a step.")
        name = f"_{kind}_{number}"
        if name in self._taken:
            raise self._refuse(call, f"beside the name {name}", "Choose another name for that value.")
        self.arguments.append(name)
        return placed(ast.Name(name, ast.Load()), call)

    def _refuse(self, node: ast.AST, what: str, remedy: str) -> InvalidArgument:
        kind = next((kind for one in ast.walk(node) if (kind := _kind_of(one))), "normal")
        at = located(self._model, node)
        return InvalidArgument(f"{at}: {kind}() cannot be used {what}: `{quoted(node)}`. {remedy}")


class _Lengths(ast.NodeTransformer):
    """Replaces the length of a table by its number."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            table = constant_value(node.args[0], lambda _: None)
            return ast.Constant(len(table)) if isinstance(table, tuple) else node
        return node


class _Replace(ast.NodeTransformer):
    def __init__(self, drawing: _Drawing) -> None:
        self._drawing = drawing

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self.visit(node.test)  # its body has been visited
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        kind = _kind_of(node)
        if kind is not None:
            return self._drawing.draw(node, kind)
        self.generic_visit(node)
        return node
