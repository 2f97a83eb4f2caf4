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
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import FunctionType
from typing import Any

from neuraxis.arguments import plain
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.model_language import FUNCTIONS

__all__ = ["always_returns", "inline_functions", "parse_function", "value_of"]

_OURS = "neuraxis.network.arithmetic"
_MOST_CALLS = 1000  # that one model may contain after all of them are written out


def parse_function(function: Callable[..., Any]) -> ast.FunctionDef:
    """Parse the function's source and remove decorators, annotations and docstring."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidArgument(
            f"{function.__name__}: the source of the function cannot be found. Define it in a file."
        ) from error
    try:
        tree = ast.parse(text).body[0]
    except SyntaxError:  # a lambda in the middle of an expression
        tree = ast.Pass()
    if not isinstance(tree, ast.FunctionDef):
        raise InvalidType(f"{function.__name__}: a model must be a plain function, written with def")
    tree.decorator_list = []
    tree.returns = None
    for argument in tree.args.args:
        argument.annotation = None
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]
    return tree


def value_of(name: str, function: Callable[..., Any]) -> Any:
    """Return the value of a name that a function reads from an enclosing function or its module; None if none."""
    closure = inspect.getclosurevars(function).nonlocals if isinstance(function, FunctionType) else {}
    return closure[name] if name in closure else getattr(function, "__globals__", {}).get(name)


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Return True if every path through these statements ends in a `return`."""
    if not body:
        return False
    last = body[-1]
    return isinstance(last, ast.Return) or (
        isinstance(last, ast.If) and always_returns(last.body) and always_returns(last.orelse)
    )


def inline_functions(model: str, tree: ast.FunctionDef, function: Callable[..., Any]) -> ast.FunctionDef:
    """Return a model's function with the statements of the functions that it calls.

    Parameters
    ----------
    model : str
        Name of the model, for error messages.
    tree : ast.FunctionDef
        Parsed source of the model's function; it is not changed.
    function : callable
        The function itself, whose module and enclosing functions define the functions that it calls.

    Raises
    ------
    InvalidArgument
        A function calls itself, does not always return one value, returns within a loop, is called in the condition
        of a `while`, or its arguments do not match.
    """
    made = copy.deepcopy(tree)
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    made.body = _Inlining(model, taken).block(made.body, function, ())
    return ast.fix_missing_locations(made)


def _own_function(name: str, function: Callable[..., Any]) -> FunctionType | None:
    """Return the function of a user that a name stands for; None for functions of the model language."""
    value = value_of(name, function)
    if not isinstance(value, FunctionType) or (name in FUNCTIONS and value.__module__ == _OURS):
        return None
    return value


class _Inlining:
    def __init__(self, model: str, taken: set[str]) -> None:
        self._model = model
        self._taken = taken  # names of the model's function
        self._made: set[str] = set()  # names that replaced calls
        self._numbers = count(1)

    def block(self, body: Sequence[ast.stmt], function: Callable[..., Any], callers: tuple[str, ...]) -> list[ast.stmt]:
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

    def _check_condition(self, loop: ast.While, function: Callable[..., Any]) -> None:
        for node in ast.walk(loop.test):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _own_function(node.func.id, function):
                raise self._refuse(
                    node, "in the condition of a while", "Assign the result before the loop and at its end."
                )

    def _refuse(self, call: ast.Call, what: str, remedy: str) -> InvalidArgument:
        return InvalidArgument(f"{self._model}: `{ast.unparse(call)}` {what} cannot be used in a model. {remedy}")

    def statements_of(
        self, call: ast.Call, called: FunctionType, callers: tuple[str, ...]
    ) -> tuple[list[ast.stmt], ast.expr]:
        """Return the statements that replace a call, and its result: a name, or a tuple of names."""
        if called.__name__ in callers:
            raise self._refuse(call, "calls itself and", "Write a loop instead.")
        number = next(self._numbers)
        if number > _MOST_CALLS:
            raise InvalidArgument(f"{self._model}: its functions contain more than {_MOST_CALLS:,} calls. Use loops.")
        tree = parse_function(called)
        if not always_returns(tree.body) or any(
            isinstance(node, ast.Return) for loop in ast.walk(tree) if isinstance(loop, ast.For | ast.While)
            for node in ast.walk(loop)
        ):  # fmt: skip
            raise self._refuse(
                call, "returns within a loop, or not on every path, and", "Let every path end in one return."
            )
        result = f"_{called.__name__}_{number}"
        while any(name.startswith(result) for name in self._taken):
            result = f"_{result}"
        body = self.block(tree.body, called, (*callers, called.__name__))
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
            ast.Assign([ast.Name(own[name], ast.Store())], value)
            for name, value in given.items()
            if name not in literals
        ]
        rename = _Rename(called, own, literals, self._made)
        made += [rename.visit(one) for one in _assigning(body, _names(names, ast.Store()))]
        for statement in made:
            for node in ast.walk(statement):
                if hasattr(node, "lineno"):
                    node.lineno = call.lineno  # an error names the line of the model that contains the call
        return made, _names(names, ast.Load())

    def _arguments(self, call: ast.Call, tree: ast.FunctionDef, called: FunctionType) -> dict[str, ast.expr]:
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
        defaults = inspect.signature(called).parameters
        for name in wanted:
            if name not in given:
                number = plain(defaults[name].default)
                if isinstance(number, bool) or not isinstance(number, int | float):
                    raise self._refuse(call, f"lacks the argument {name!r} and", wrong)
                given[name] = ast.Constant(number)
        return {name: given[name] for name in wanted}


class _Calls(ast.NodeTransformer):
    """Replaces calls of users' functions in an expression by names, and collects the statements that set these."""

    def __init__(self, inlining: _Inlining, function: Callable[..., Any], callers: tuple[str, ...]) -> None:
        self._inlining = inlining
        self._function = function
        self._callers = callers
        self.statements: list[ast.stmt] = []

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)  # calls among the arguments come first
        called = _own_function(node.func.id, self._function) if isinstance(node.func, ast.Name) else None
        if called is None:
            return node
        statements, result = self._inlining.statements_of(node, called, self._callers)
        self.statements += statements
        return ast.copy_location(result, node)


class _Rename(ast.NodeTransformer):
    """Gives the variables of a function names of their own, and numbers of its module their values."""

    def __init__(
        self, function: FunctionType, own: Mapping[str, str], literals: Mapping[str, ast.expr], made: set[str]
    ) -> None:
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
            return ast.copy_location(ast.Name(self._own[node.id], node.ctx), node)
        number = plain(value_of(node.id, self._function))
        if isinstance(number, int | float) and not isinstance(number, bool):
            return ast.copy_location(ast.Constant(number), node)
        return node


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
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
            made.append(ast.copy_location(ast.Assign([copy.deepcopy(target)], value), statement))
            break
        if isinstance(statement, ast.If) and any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            # The rest follows in each branch that does not return.
            yes, no = ([*branch, *copy.deepcopy(rest)] for branch in (statement.body, statement.orelse))
            made.append(ast.If(statement.test, _assigning(yes, target), _assigning(no, target)))
            break
        made.append(statement)
    return made
