"""Checks of the function of a neuron model: constructs that models cannot use, names with two meanings, and returns.

Users bring habits from NumPy and scripts for NEST or Brian2: `np.exp`, `print`, comprehensions, `try`.
`check_constructs` goes over a function as the user wrote it, before anything is changed, so that an error names the
first such construct, its line, and the way to say it here. `neuraxis.network.model_language` refuses what remains.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from neuraxis.arguments import is_number, plain
from neuraxis.errors import InvalidArgument
from neuraxis.network.model_draws import DRAW_FUNCTIONS
from neuraxis.network.model_language import ALLOWED, FUNCTIONS
from neuraxis.network.model_source import Definition, located, quoted
from neuraxis.network.model_tables import is_table

__all__ = ["always_returns", "check_constructs", "check_reads", "check_returns", "own_names"]

_OURS = "neuraxis.network.arithmetic"
_NAMES_OF_LANGUAGE = {*FUNCTIONS, *DRAW_FUNCTIONS, "len"}

_DEFINE_BEFORE = "Define it before the model, with def."
_COMPREHENSION = ("a comprehension", "Write a for loop over a range or a table.")
_TEXT = ("text", "A model computes with numbers.")
_NO_ERRORS = "Nothing raises in a model: a division by 0 is infinite or NaN. Use if, or min and max."
_STATEMENTS: dict[type, tuple[str, str]] = {
    ast.FunctionDef: ("a function within the function", _DEFINE_BEFORE),
    ast.AsyncFunctionDef: ("a function within the function", _DEFINE_BEFORE),
    ast.ClassDef: ("a class", "Use states and parameters."),
    ast.Import: ("an import", "Import before the model, at the top of the module."),
    ast.ImportFrom: ("an import", "Import before the model, at the top of the module."),
    ast.Global: ("global", "What a neuron remembers is a state: declare it in states and return it."),
    ast.Nonlocal: ("nonlocal", "What a neuron remembers is a state: declare it in states and return it."),
    ast.Try: ("try", _NO_ERRORS),
    ast.TryStar: ("try", _NO_ERRORS),
    ast.Raise: ("raise", _NO_ERRORS),
    ast.Assert: ("assert", _NO_ERRORS),
    ast.With: ("with", "Read files before the model, and use numbers, tables and parameters."),
    ast.AsyncWith: ("with", "Read files before the model, and use numbers, tables and parameters."),
    ast.AsyncFor: ("async", "Write a for loop over a range or a table."),
    ast.Delete: ("del", "Names need not be deleted."),
    ast.Match: ("match", "Write if and elif."),
}
_EXPRESSIONS: dict[type, tuple[str, str]] = {
    ast.Lambda: ("a lambda", "Define a function before the model, with def."),
    ast.ListComp: _COMPREHENSION,
    ast.SetComp: _COMPREHENSION,
    ast.DictComp: _COMPREHENSION,
    ast.GeneratorExp: _COMPREHENSION,
    ast.JoinedStr: _TEXT,
    ast.Dict: ("a dict", "Use a tuple as a table, TABLE[i], or parameters."),
    ast.Set: ("a set", "Use a tuple as a table, TABLE[i]."),
    ast.Await: ("await", "A model advances one neuron by one step."),
    ast.Yield: ("yield", "A model advances one neuron by one step, and returns (spike, states...)."),
    ast.YieldFrom: ("yield", "A model advances one neuron by one step, and returns (spike, states...)."),
    ast.NamedExpr: (":=", "Assign in a statement of its own, before."),
    ast.Starred: ("a star", "Write each value."),
    ast.Slice: ("a slice", "Write TABLE[i], or a for loop over a range."),
}
_COMPARED: dict[type, str] = {
    ast.Is: "Write ==, or the truth value itself.",
    ast.IsNot: "Write !=, or not.",
    ast.In: "Write (x == a) or (x == b).",
    ast.NotIn: "Write (x != a) and (x != b).",
}

_OURS_FOR = "{0}(...), with `from neuraxis.network.arithmetic import {0}`, which has the same bits on every machine"
_NORMAL = "normal(), with `from neuraxis.network.arithmetic import normal`, a draw for each neuron and step"
_RANDOM = "random(), with `from neuraxis.network.arithmetic import random`, a draw for each neuron and step"
_ENTRIES = "a tuple or an array before the model, and TABLE[i] in it"
_INSTEAD = {  # of functions of NumPy, math, random and of Python, by their names
    **{name: _OURS_FOR.format(name) for name in FUNCTIONS if hasattr(np, name) and name not in dir(builtins)},
    **{name: f"{name}(...)" for name in ("abs", "max", "min", "float", "int", "bool")},
    "absolute": "abs(x)", "fabs": "abs(x)", "maximum": "max(x, y)", "minimum": "min(x, y)", "fmax": "max(x, y)",
    "fmin": "min(x, y)", "amax": "max(x, y)", "amin": "min(x, y)", "clip": "min(max(x, low), high)",
    "where": "x if condition else y", "heaviside": "1.0 if x > 0 else 0.0", "sign": "(x > 0) - (x < 0)",
    "pow": "x ** y", "float_power": "x ** y", "square": "x ** 2", "reciprocal": "1.0 / x", "exp2": "2.0 ** x",
    "log2": "log(x) / 0.6931472", "log10": "log(x) / 2.3025851", "tan": "sin(x) / cos(x)",
    "sinh": "0.5 * (exp(x) - exp(-x))", "cosh": "0.5 * (exp(x) + exp(-x))", "mod": "x % y", "fmod": "x % y",
    "remainder": "x % y", "floor_divide": "x // y", "divmod": "x // y and x % y", "floor": "x // 1.0",
    "ceil": "-(-x // 1.0)", "round": "(x + 0.5) // 1.0", "rint": "(x + 0.5) // 1.0", "around": "(x + 0.5) // 1.0",
    "trunc": "float(int(x))", "isnan": "x != x", "isfinite": "abs(x) < 3.4e38", "isinf": "abs(x) > 3.4e38",
    "float32": "float(x)", "float64": "float(x)", "int32": "int(x)", "int64": "int(x)", "bool_": "bool(x)",
    "logical_and": "x and y", "logical_or": "x or y", "logical_not": "not x", "any": "x or y", "all": "x and y",
    "sum": "x + y, or a for loop over a table", "dot": "a for loop over a table", "array": _ENTRIES,
    "zeros": _ENTRIES, "ones": _ENTRIES, "arange": "for i in range(n)", "linspace": _ENTRIES, "tuple": _ENTRIES,
    "list": _ENTRIES, "sorted": "min(x, y) and max(x, y)", "enumerate": "for i in range(len(TABLE)), and TABLE[i]",
    "zip": "for i in range(len(TABLE)), and TABLE[i]", "reversed": "for i in range(n - 1, -1, -1)",
    "isinstance": "int(x), float(x) or bool(x), where a type matters",
    "print": "network.record(population, \"STATE\") in the description, which records a state",
    "normal": _NORMAL, "randn": _NORMAL, "standard_normal": _NORMAL, "gauss": _NORMAL, "normalvariate": _NORMAL,
    "rand": _RANDOM, "random": _RANDOM, "uniform": _RANDOM, "random_sample": _RANDOM,
    "exponential": "-log(1 - random())",
    "poisson": "network.poisson(...), or random() < p", "default_rng": _NORMAL, "randint": "int(n * random())",
}  # fmt: skip


def check_constructs(function: Definition, model: str) -> None:
    """Raise for the first construct in a function that models cannot use.

    Parameters
    ----------
    function : Definition
        The function of a model, or one that it calls.
    model : str
        Name of the model, for error messages.

    Raises
    ------
    InvalidArgument
        The message has the file, the line, the construct and what to write instead.
    """
    _Checks(function, model).check()


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Return True if every path through these statements ends in a `return`."""
    if not body:
        return False
    last = body[-1]
    return isinstance(last, ast.Return) or (
        isinstance(last, ast.If) and always_returns(last.body) and always_returns(last.orelse)
    )


def check_reads(function: Definition, names: Mapping[str, str]) -> None:
    """Raise if a model's function reads a number or table around it whose name means something else in the model.

    Parameters
    ----------
    function : Definition
        The function of the model.
    names : mapping of str to str
        For each name of the model what it is, as "a parameter".

    Raises
    ------
    InvalidArgument
        The message has the file, the line, the name and both meanings.
    """
    own = own_names(function.tree)
    for node in ast.walk(function.tree):
        if not isinstance(node, ast.Name) or node.id in own or node.id not in names:
            continue
        value = function.value_of(node.id)
        if is_number(value) or is_table(value):
            kind = "number" if is_number(value) else "table"
            raise InvalidArgument(
                f"{located(function.name, node, function.tree)}: the function reads the {kind} {node.id!r} around it; "
                f"in the model, {node.id!r} is {names[node.id]}. Add it to the arguments to read that, or rename the "
                f"{kind}."
            )


def check_returns(model: str, tree: ast.FunctionDef, states: Collection[str]) -> None:
    """Raise unless every path through a model's function returns a spike and one value for each state.

    Parameters
    ----------
    model : str
        Name of the model, for error messages.
    tree : ast.FunctionDef
        The function, after the functions that it calls have been written out.
    states : collection of str
        Names of the states, in their order.

    Raises
    ------
    InvalidArgument
        The message has the file, the line, and what is returned instead.
    """
    returned = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
    at, wanted = located(model, tree), f"return (spike, {', '.join(states)})"
    if returned and not always_returns(tree.body):
        raise InvalidArgument(f"{at}: not every path through the function ends in a return. Add the missing return.")
    for node in returned:
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] if node.value else []
        if len(values) != 1 + len(states) or not isinstance(node.value, ast.Tuple):
            count = {0: "nothing", 1: "one value"}.get(len(values), f"{len(values)} values")
            raise InvalidArgument(f"{located(model, node)}: `{quoted(node)}` returns {count}; {wanted}, in this order")
        for what, value in zip(["the spike", *(f"the state {one!r}" for one in states)], values, strict=True):
            if isinstance(value, ast.Tuple | ast.List) or is_table(getattr(value, "value", None)):
                raise InvalidArgument(
                    f"{located(model, value, node)}: `{quoted(value)}` is returned for {what}, which is one number; "
                    f"{wanted}, in this order"
                )
    if not returned:
        raise InvalidArgument(f"{at}: the function returns nothing; {wanted}")


class _Checks:
    def __init__(self, function: Definition, model: str) -> None:
        self._function = function
        self._model = model
        self._own = own_names(function.tree)

    def check(self) -> None:
        for statement in self._function.tree.body:
            for node in _in_order(statement):
                self._node(node)

    def _refuse(self, node: ast.AST, what: str, remedy: str) -> InvalidArgument:
        at = located(self._model, node, self._function.tree)
        return InvalidArgument(f"{at}: {what} cannot be used in a model: `{quoted(node)}`. {remedy}")

    def _node(self, node: ast.AST) -> None:
        known = _STATEMENTS.get(type(node)) or _EXPRESSIONS.get(type(node))
        if known is not None:
            raise self._refuse(node, *known)
        if isinstance(node, ast.For | ast.While) and node.orelse:
            raise self._refuse(node, "the else of a loop", "Write if after the loop.")
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            self._unused(node)
        elif isinstance(node, ast.Constant):
            self._constant(node)
        elif isinstance(node, ast.Compare):
            for sign in node.ops:
                if type(sign) in _COMPARED:
                    raise self._refuse(node, "this comparison", _COMPARED[type(sign)])
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self._own:
            self._name(node)

    def _unused(self, node: ast.Expr) -> None:
        for one in _in_order(node.value):
            self._node(one)  # a better reason, as for print(x)
        raise self._refuse(node, "an expression whose value is not used", "Assign it to a name: nothing else remains.")

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str | bytes) and not getattr(node, "is_statement", False):
            raise self._refuse(node, *_TEXT)
        if value is None:
            raise self._refuse(node, "None", "Use a number or a truth value.")
        if isinstance(value, complex):
            raise self._refuse(node, "a complex number", "Use two states, for the real and the imaginary part.")

    def _name(self, node: ast.Name) -> None:
        value = self._function.value_of(node.id)
        if isinstance(value, ModuleType):
            raise self._refuse(node, f"the module {node.id}", ALLOWED)
        if value is None and (node.id in _NAMES_OF_LANGUAGE or callable(getattr(builtins, node.id, None))):
            value = _NAMES_OF_LANGUAGE
        if value is _NAMES_OF_LANGUAGE or callable(value) or isinstance(value, Definition):
            given = "" if node.id in DRAW_FUNCTIONS else "..."
            raise self._refuse(
                node, f"the function {node.id!r} without a call", f"Write {node.id}({given}), or the name of a value."
            )
        value = plain(value)
        if isinstance(value, str | bytes | dict | set | bool):
            kind = "a truth value" if isinstance(value, bool) else f"a {type(value).__name__}"
            raise self._refuse(
                node, f"{node.id!r}, which is {kind} of the module,", "Use a number, a table or a parameter."
            )

    def _call(self, node: ast.Call) -> None:
        called, value = node.func, self._value(node.func)
        name = called.id if isinstance(called, ast.Name) else ""
        if name in self._own:
            raise self._refuse(node, f"a call of the value {name!r}", "Give the argument or variable another name.")
        if getattr(value, "__module__", None) == _OURS and getattr(value, "__name__", "") in _NAMES_OF_LANGUAGE:
            return
        if isinstance(value, FunctionType):
            if value.__name__ == "<lambda>":
                raise self._refuse(node, "a lambda", "Define it before the model, with def.")
            if inspect.iscoroutinefunction(value) or inspect.isgeneratorfunction(value):
                raise self._refuse(node, "a coroutine or generator", "Define a function that returns one value.")
            if not (value.__module__ or "").startswith(("numpy", "scipy", "random", "math")):
                return
        elif isinstance(value, Definition):
            return
        elif value is None and isinstance(called, ast.Name):
            if name in _NAMES_OF_LANGUAGE:
                return
            if not hasattr(builtins, name):
                raise self._refuse(
                    node, f"{name!r}, which is not defined,", f"Define a function before the model, with def. {ALLOWED}"
                )
        last = called.attr if isinstance(called, ast.Attribute) else getattr(value, "__name__", "") or name
        if isinstance(called, ast.Attribute) and value is None:
            raise self._refuse(node, f"the method {last}", _remedy(last))
        raise self._refuse(node, f"the function {ast.unparse(called)}", _remedy(last))

    def _attribute(self, node: ast.Attribute) -> None:
        value = plain(self._value(node))
        if isinstance(value, int | float) and not isinstance(value, bool) and self._of_module(node):
            return  # as math.pi
        name = node.attr.upper()
        raise self._refuse(
            node, "an attribute", f"Write {name} = {ast.unparse(node)} before the model, and {name} in it."
        )

    def _of_module(self, node: ast.Attribute) -> bool:
        return isinstance(self._value(node.value), ModuleType)

    def _value(self, node: ast.expr) -> Any:
        """Return the value of a name, or of an attribute of a module, as it is around the function."""
        if isinstance(node, ast.Name):
            return None if node.id in self._own else self._function.value_of(node.id)
        if isinstance(node, ast.Attribute):
            outer = self._value(node.value)
            return getattr(outer, node.attr, None) if isinstance(outer, ModuleType) else None
        return None


def own_names(tree: ast.FunctionDef) -> set[str]:
    """Return the arguments and the variables of a function."""
    stored = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return stored | {one.arg for one in ast.walk(tree.args) if isinstance(one, ast.arg)}


def _remedy(name: str) -> str:
    return f"Write {_INSTEAD[name]}." if name in _INSTEAD else ALLOWED


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Go over nodes from the outside, in the order of the source; not over the names that calls and attributes name."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
            one.value.is_statement = True  # type: ignore[attr-defined]
        yield one
        left_out = {id(one.func)} if isinstance(one, ast.Call) else set()
        if isinstance(one, ast.Attribute):
            left_out.add(id(one.value))
        if isinstance(one, ast.AnnAssign):
            left_out.add(id(one.annotation))
        waiting += [each for each in reversed([*ast.iter_child_nodes(one)]) if id(each) not in left_out]
