"""Functions of users in neuron models: their statements replace the calls, before a model is checked and compiled.

A model may call functions that are defined with `def`, which may call others. Each call becomes assignments of its
arguments, the statements of the function with names of their own, and an assignment of its result, in front of the
statement that contains the call. So a model stays one function, whatever runs it, and a function in a model computes
the same bits as the same statements written out. What a model can compute has no side effects, so it does not matter
that a call in one branch of a conditional expression is always computed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from itertools import count
from types import FunctionType

from neuraxis.arguments import near, plain
from neuraxis.errors import InvalidArgument
from neuraxis.network.model_checks import always_returns, check_constructs, own_names
from neuraxis.network.model_draws import DRAW_FUNCTIONS, marked_draw
from neuraxis.network.model_language import FUNCTIONS
from neuraxis.network.model_source import Definition, defined_by, located, placed, quoted
from neuraxis.network.model_tables import with_tables

__all__ = ["inline_functions"]

_OURS = "neuraxis.network.arithmetic"
_NAMES_OF_FUNCTIONS = {*FUNCTIONS, "len", *(f"{kind}()" for kind in DRAW_FUNCTIONS)}  # as calls have them
_MOST_CALLS = 1000  # that one model may contain after all of them are written out


def inline_functions(function: Definition) -> ast.FunctionDef:
    """Return a model's function with the statements of the functions that it calls.

    Parameters
    ----------
    function : Definition
        The model's function; its tree is not changed.

    Raises
    ------
    InvalidArgument
        A function calls itself, does not always return one value, returns within a loop, is called in the condition
        of a `while`, or its arguments do not match.
    """
    check_constructs(function, function.name)
    made = with_tables(copy.deepcopy(function.tree), function)
    taken = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)}
    made.body = _Inlining(function.name, taken).block(made.body, function, ())
    return ast.fix_missing_locations(made)


def _own_function(name: str, function: Definition) -> Definition | None:
    """Return the function of a user that a name stands for; None for functions of the model language."""
    value = function.value_of(name)
    if isinstance(value, Definition):
        return value
    if not isinstance(value, FunctionType) or value.__module__ == _OURS:
        return None
    return defined_by(value)


def _language_function(called: ast.expr, function: Definition) -> str | None:
    """Return the name of a function of the model language that an expression stands for, if it is imported.

    It may have been imported under another name, or with its module.
    """
    value: object = None
    if isinstance(called, ast.Name):
        value = function.value_of(called.id)
        if value is None and called.id in DRAW_FUNCTIONS and called.id not in own_names(function.tree):
            return called.id
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        value = getattr(function.value_of(called.value.id), called.attr, None)
    name = getattr(value, "__name__", "")
    if isinstance(value, FunctionType) and value.__module__ == _OURS and name in (*FUNCTIONS, *DRAW_FUNCTIONS):
        return name
    return None


class _Inlining:
    def __init__(self, model: str, taken: set[str]) -> None:
        self._model = model
        self._taken = taken  # names of the model's function
        self._made: set[str] = set()  # names that replaced calls
        self._numbers = count(1)

    def block(self, body: Sequence[ast.stmt], function: Definition, callers: tuple[str, ...]) -> list[ast.stmt]:
        """Return statements of `function` without calls of users' functions; `callers` lead to it."""
        made: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.While):
                self._check_condition(statement, function)
            for field in ("body", "orelse"):
                if isinstance(statement, ast.If | ast.For | ast.While):
                    setattr(statement, field, self.block(getattr(statement, field), function, callers))
            calls = _Calls(self, function, callers)
            for name, value in ast.iter_fields(statement):
                if isinstance(value, ast.expr):
                    setattr(statement, name, calls.visit(value))
            made += [*calls.statements, statement]
        return made

    def _check_condition(self, loop: ast.While, function: Definition) -> None:
        for node in ast.walk(loop.test):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _own_function(node.func.id, function):
                raise self._refuse(
                    node, "in the condition of a while", "Assign the result before the loop and at its end."
                )

    def _refuse(self, call: ast.Call, what: str, remedy: str) -> InvalidArgument:
        at = located(self._model, call)
        return InvalidArgument(f"{at}: `{quoted(call)}` {what} cannot be used in a model. {remedy}")

    def statements_of(
        self, call: ast.Call, called: Definition, callers: tuple[str, ...]
    ) -> tuple[list[ast.stmt], ast.expr]:
        """Return the statements that replace a call, and its result: a name, or a tuple of names."""
        if called.name in callers:
            raise self._refuse(call, "calls itself and", "Write a loop instead.")
        number = next(self._numbers)
        if number > _MOST_CALLS:
            raise InvalidArgument(
                f"{located(self._model, call)}: its functions contain more than {_MOST_CALLS:,} calls. Use loops."
            )
        check_constructs(called, self._model)
        tree = with_tables(copy.deepcopy(called.tree), called)
        if not always_returns(tree.body) or any(
            isinstance(node, ast.Return) for loop in ast.walk(tree) if isinstance(loop, ast.For | ast.While)
            for node in ast.walk(loop)
        ):  # fmt: skip
            raise self._refuse(
                call, "returns within a loop, or not on every path, and", "Let every path end in one return."
            )
        result = f"_{called.name}_{number}"
        while any(name.startswith(result) for name in self._taken):
            result = f"_{result}"
        body = self.block(tree.body, called, (*callers, called.name))
        given = self._arguments(call, tree, called)
        stored = {node.id for one in body for node in ast.walk(one)
                  if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}  # fmt: skip
        # A literal takes the type of its neighbour, so it is not stored in a variable, which would fix its type.
        literals = {name: value for name, value in given.items() if _is_literal(value) and name not in stored}
        own = {name: f"{result}_{name}" for name in (stored | set(given)) - self._made}
        parts = _tuple_length(tree)
        names = [result] if parts is None else [f"{result}__{part}" for part in range(parts)]
        self._made |= {*names, *own.values()}
        made: list[ast.stmt] = [
            placed(ast.Assign([ast.Name(own[name], ast.Store())], value), call)
            for name, value in given.items()
            if name not in literals
        ]
        rename = _Rename(self._model, called, own, literals, self._made)
        made += [rename.visit(one) for one in _assigning(body, _names(names, ast.Store()))]
        return made, _names(names, ast.Load())

    def _arguments(self, call: ast.Call, tree: ast.FunctionDef, called: Definition) -> dict[str, ast.expr]:
        """Return the argument expressions by name; defaults are numbers."""
        wrong = "Give each of its arguments once; they have to be plain ones."
        wanted = [argument.arg for argument in tree.args.args]
        plain_only = not (tree.args.posonlyargs or tree.args.kwonlyargs or tree.args.vararg or tree.args.kwarg)
        named = [one.arg for one in call.keywords if one.arg is not None]
        if (
            not plain_only
            or len(call.args) > len(wanted)
            or any(isinstance(one, ast.Starred) for one in call.args)
            or len(named) < len(call.keywords)
        ):
            raise self._refuse(call, "has arguments that do not match and", wrong)
        given = dict(zip(wanted, call.args, strict=False))
        if set(named) & set(given) or not set(named) <= set(wanted):
            raise self._refuse(call, "has arguments that do not match and", wrong)
        given |= {str(one.arg): one.value for one in call.keywords}
        for name in wanted:
            if name not in given:
                number = plain(called.defaults.get(name))
                if isinstance(number, bool) or not isinstance(number, int | float):
                    raise self._refuse(call, f"lacks the argument {name!r} and", wrong)
                given[name] = ast.Constant(number)
        return {name: given[name] for name in wanted}


class _Calls(ast.NodeTransformer):
    """Replaces calls of users' functions in an expression by names, and collects the statements that set these."""

    def __init__(self, inlining: _Inlining, function: Definition, callers: tuple[str, ...]) -> None:
        self._inlining = inlining
        self._function = function
        self._callers = callers
        self.statements: list[ast.stmt] = []

    def visit_Call(self, node: ast.Call) -> ast.expr:
        text = quoted(node)
        self.generic_visit(node)  # calls among the arguments come first
        known = _language_function(node.func, self._function)
        if known in DRAW_FUNCTIONS:
            return marked_draw(node, known)
        if known is not None:
            node.func = placed(ast.Name(known, ast.Load()), node.func)
            return node
        called = _own_function(node.func.id, self._function) if isinstance(node.func, ast.Name) else None
        if called is None:
            return node
        statements, result = self._inlining.statements_of(node, called, self._callers)
        self.statements += statements
        return placed(result, node, text)


class _Rename(ast.NodeTransformer):
    """Gives the variables of a function names of their own, and numbers of its module their values."""

    def __init__(
        self, model: str, function: Definition, own: Mapping[str, str], literals: Mapping[str, ast.expr], made: set[str]
    ) -> None:
        self._model = model
        self._function = function
        self._own = own
        self._literals = literals
        self._made = made

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._made:
            return node
        if node.id in self._literals:
            return copy.deepcopy(self._literals[node.id])
        if node.id in self._own:
            return placed(ast.Name(self._own[node.id], node.ctx), node, node.id)
        number = plain(self._function.value_of(node.id))
        if isinstance(number, int | float) and not isinstance(number, bool):
            return placed(ast.Constant(number), node, node.id)
        if node.id in _NAMES_OF_FUNCTIONS:
            return node
        # A name of the model is not visible in a function that it calls.
        raise InvalidArgument(
            f"{located(self._model, node)}: {self._function.name} uses {quoted(node)!r}, which is neither one of its "
            f"arguments nor a number or table around it; {near(node.id, sorted(self._own))}. Add it to the arguments."
        )


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, ast.Tuple | ast.List):
        return all(_is_literal(one) for one in node.elts)
    return isinstance(node, ast.Constant)


def _tuple_length(function: ast.FunctionDef) -> int | None:
    """Return how many values a function returns, if it always returns as many in a tuple; None for one value."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    lengths = {len(value.elts) if isinstance(value, ast.Tuple) else None for value in returned}
    return lengths.pop() if len(lengths) == 1 else None


def _names(names: Sequence[str], context: ast.expr_context) -> ast.expr:
    found: list[ast.expr] = [ast.Name(name, context) for name in names]
    return found[0] if len(found) == 1 else ast.Tuple(found, context)


def _assigning(body: Sequence[ast.stmt], target: ast.expr) -> list[ast.stmt]:
    """Return statements that assign what a function returns, instead of returning it."""
    made: list[ast.stmt] = []
    for place, statement in enumerate(body):
        rest = body[place + 1 :]
        if isinstance(statement, ast.Return):
            value = statement.value or ast.Constant(None)
            made.append(placed(ast.Assign([copy.deepcopy(target)], value), statement))
            break
        if isinstance(statement, ast.If) and any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            # The rest follows in each branch that does not return.
            yes, no = ([*branch, *copy.deepcopy(rest)] for branch in (statement.body, statement.orelse))
            made.append(placed(ast.If(statement.test, _assigning(yes, target), _assigning(no, target)), statement))
            break
        made.append(statement)
    return made
