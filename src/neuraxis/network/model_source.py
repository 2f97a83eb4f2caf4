"""Sources of the functions of neuron models: a Python function, or text that is parsed and never executed.

A `Definition` is the parsed source of one function and the meaning of the names that it reads. Every node of its tree
knows its file and line, so that errors can name them (`located`), also after the functions that a model calls have
been written out. `DerivedConstants` are constants of a model that are given as text, `GivenConstants` those that a
function computes.
"""

from __future__ import annotations

import ast
import copy
import inspect
import operator
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from neuraxis.arguments import plain
from neuraxis.errors import InvalidArgument, InvalidType, NeuraxisError
from neuraxis.network import arithmetic
from neuraxis.network.parameters import near_variable

__all__ = [
    "Definition",
    "DerivedConstants",
    "GivenConstants",
    "constant_value",
    "defined_by",
    "defined_in",
    "located",
    "placed",
    "quoted",
]

Number = float | int
Node = TypeVar("Node", bound=ast.AST)

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "max": max,
    "min": min,
    "round": round,
    **{name: getattr(arithmetic, name) for name in arithmetic.__all__ if name not in ("normal", "random")},
}
_MOST_BITS = 1024  # of a whole number: any that a float64 can hold
_TOO_LONG = "a whole number of more than 1,024 bits"
_MODULES = ("neuraxis.network.arithmetic", "math", "__future__")  # that text may import from, which has no effect


@dataclass(frozen=True)
class Definition:
    """The parsed source of a function.

    Parameters
    ----------
    name : str
        Name of the function.
    tree : ast.FunctionDef
        Source without decorators, annotations and docstring; see `located`.
    value_of : callable
        Returns the value of a name that the function reads from around it: a number, a table, a function, or a
        `Definition`; None if the name has none.
    defaults : mapping of str to object
        Default values of its arguments.
    description : str
        Docstring.
    """

    name: str
    tree: ast.FunctionDef
    value_of: Callable[[str], Any]
    defaults: Mapping[str, Any]
    description: str = ""


def defined_by(function: Callable[..., Any]) -> Definition:
    """Return the definition of a Python function, whose source has to be in a file.

    Raises
    ------
    InvalidArgument
        There is no source, as of a function that `exec` made.
    InvalidType
        It is not a plain function, written with `def`.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "<unknown>"
    except (OSError, TypeError) as error:
        raise InvalidArgument(
            f"{name}: the source of the function cannot be found. Define it in a file, or pass its text to "
            "neuraxis.network.neuron_model_from_source()."
        ) from error
    try:
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (SyntaxError, IndexError):  # a lambda in the middle of an expression
        tree = ast.Pass()
    if not isinstance(tree, ast.FunctionDef):
        raise InvalidType(f"{name}: a model must be a plain function, written with def")
    closure = inspect.getclosurevars(function).nonlocals if isinstance(function, FunctionType) else {}
    around = getattr(function, "__globals__", {})
    return Definition(
        name=name,
        tree=_stripped(tree, _shown(file), first),
        value_of=lambda one: closure[one] if one in closure else around.get(one),
        defaults={
            one.name: one.default
            for one in inspect.signature(function).parameters.values()
            if one.default is not inspect.Parameter.empty
        },
        description=inspect.cleandoc(function.__doc__ or ""),
    )


def defined_in(text: str, filename: str, names: Mapping[str, Any]) -> Definition:
    """Return the definition of the last function in a text; functions before it are those that it may call.

    The text is parsed and never executed. Beside functions it may have `NAME = value` with numbers and tuples of
    numbers, and imports of functions of the model language, which have no effect.

    Raises
    ------
    InvalidArgument
        The text is not valid Python, has other statements, or no function.
    """
    if not isinstance(text, str):
        raise InvalidType(f"{filename}: the source of a model is text, not {type(text).__name__}")
    try:
        statements = ast.parse(textwrap.dedent(text)).body
    except (RecursionError, MemoryError):  # the parser raises both for text that is nested too deeply
        raise InvalidArgument(f"{filename}: it is nested too deeply. Write it as several statements.") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        quoted = f": `{error.text.strip()}`" if isinstance(error, SyntaxError) and error.text else ""
        raise InvalidArgument(f"{filename}{line}: not valid Python: {what}{quoted}") from error
    known = dict(names)
    last: Definition | None = None
    for node in statements:
        _place_all(node, filename, 0)
        if isinstance(node, ast.FunctionDef):
            if node.decorator_list:
                raise InvalidArgument(
                    f"{located(node.name, node)}: a decorator in text is not executed. Remove it, and give states, "
                    "receptors and parameters as arguments of neuron_model_from_source()."
                )
            given = node.args
            with_default = [*given.posonlyargs, *given.args][-len(given.defaults) :] if given.defaults else []
            pairs = [*zip(with_default, given.defaults, strict=True)]
            pairs += [(one, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
            last = Definition(
                name=node.name,
                tree=_stripped(node),
                value_of=known.get,
                defaults={one.arg: _Evaluation(located(node.name, node), known).value(value) for one, value in pairs},
                description=inspect.cleandoc(ast.get_docstring(node) or ""),
            )
            known[node.name] = last
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _Evaluation(located(node.targets[0].id, node), known).value(node.value)
        elif isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        elif not (isinstance(node, ast.ImportFrom) and node.module in _MODULES):
            raise InvalidArgument(
                f"{located('', node)}: `{ast.unparse(node).splitlines()[0]}` cannot be used around a model in text. "
                "Use functions (the last one is the model), numbers and tuples of numbers, as in SIZE = 3."
            )
    if last is None:
        raise InvalidArgument(f"{filename}: no function is defined. Write def NAME(...): with the step of the model.")
    return last


def located(model: str, node: ast.AST | None, otherwise: ast.AST | None = None) -> str:
    """Return a model's name with the file and line of a node, or of `otherwise` if the first has none."""
    for one in (node, otherwise):
        if hasattr(one, "file"):
            place = f"{one.file}, line {one.file_line}"  # type: ignore[union-attr]
            return f"{model}, {place}" if model else place
    return model


def placed(node: Node, where: ast.AST, text: str | None = None) -> Node:
    """Return a new node with the place of another one, and the text of the user's source that it stands for."""
    ast.copy_location(node, where)
    for name in ("file", "file_line"):
        if hasattr(where, name):
            setattr(node, name, getattr(where, name))
    if text is not None:
        node.text = text  # type: ignore[attr-defined]
    return node


def quoted(node: ast.AST) -> str:
    """Return the first line of a node's source, as the user wrote it."""
    found = _AsWritten().visit(copy.deepcopy(node))
    return ast.unparse(found).splitlines()[0]


class _AsWritten(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        text = getattr(node, "text", None)
        return ast.Name(text, ast.Load()) if text is not None else super().generic_visit(node)


def _place_all(node: ast.AST, file: str, by: int) -> None:
    """Record in each node that it is from a file, `by` lines further down than its line number says."""
    for one in ast.walk(node):
        if hasattr(one, "lineno"):
            one.file, one.file_line = file, one.lineno + by  # type: ignore[attr-defined]


def _stripped(tree: ast.FunctionDef, file: str | None = None, first: int = 1) -> ast.FunctionDef:
    """Return the function without decorators, annotations and docstring."""
    if file is not None:
        _place_all(tree, file, first - 1)
    made = copy.copy(tree)
    made.decorator_list, made.returns = [], None
    for argument in [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]:
        argument.annotation = None
    if made.body and isinstance(made.body[0], ast.Expr) and isinstance(made.body[0].value, ast.Constant):
        made.body = made.body[1:]
    return made


def _shown(file: str) -> str:
    """Return a file as errors name it: relative to the current folder if it is in it; a cell has no file."""
    if os.path.basename(os.path.dirname(file)).startswith("ipykernel_") and not os.path.exists(file):
        return "notebook cell"
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if file.startswith("<") or relative.startswith("..") else relative


class DerivedConstants:
    """Constants of a model that are given as text, as {"leak": "exp(-dt_ms / tau_m_ms)"}.

    Each expression may use the parameters, `dt_ms` and the constants before it; it is computed in float64, on the host,
    with the functions of `neuraxis.network.arithmetic`. The text is parsed and never executed.

    >>> constants = DerivedConstants("leaky", {"leak": "exp(-dt_ms / tau_m_ms)"}, {"tau_m_ms"})
    >>> constants({"tau_m_ms": 10.0}, 0.1)
    {'leak': 0.9900498337491681}
    """

    def __init__(self, model: str, expressions: Mapping[str, str], known: set[str]) -> None:
        self._model = model
        self._expressions = dict(expressions)
        known = {*known, "dt_ms"}
        self._parsed: dict[str, ast.expr] = {}
        for name, text in self._expressions.items():
            if not isinstance(text, str):
                raise InvalidType(f"{model}: constant {name}: text is expected, as in 'exp(-dt_ms / tau_ms)'")
            try:
                tree = ast.parse(text.strip(), mode="eval").body
            except (RecursionError, MemoryError):
                raise InvalidArgument(f"{model}: constant {name}: it is nested too deeply") from None
            except (SyntaxError, ValueError) as error:
                raise InvalidArgument(f"{model}: constant {name}: not a valid expression: `{text}`") from error
            self._parsed[name] = tree
            called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and id(node) not in called and node.id not in known:
                    raise InvalidArgument(
                        f"{model}: constant {name}: {node.id!r} in `{text}` is not known there. Use parameters, dt_ms "
                        "and constants that come before."
                    )
            known.add(name)

    def __call__(self, parameters: Mapping[str, Number], dt_ms: float) -> dict[str, Number]:
        """Return the constants for steps of `dt_ms`."""
        values: dict[str, Any] = {**parameters, "dt_ms": dt_ms}
        for name, tree in self._parsed.items():
            values[name] = _Evaluation(f"{self._model}: constant {name}", values).value(tree)
        return {name: values[name] for name in self._parsed}


class GivenConstants:
    """Constants of a model that a user's function computes; what goes wrong in it is an error that names the model.

    >>> constants = GivenConstants("leaky", lambda p, dt_ms: {"leak": 1.0 - dt_ms / p["tau_m_ms"]})
    >>> constants({"tau_m_ms": 10.0}, 0.1)
    {'leak': 0.99}
    """

    def __init__(self, model: str, function: Callable[[Mapping[str, Any], float], Mapping[str, Any]]) -> None:
        self._model = model
        self._function = function
        try:
            inspect.signature(function).bind({}, 0.1)
        except TypeError:
            given = f"{model}: constants={function!r}" if not callable(function) else f"{self._at(None)}: constants"
            raise InvalidType(
                f"{given}: a function of the parameters and of the step in ms is expected, as "
                "constants=lambda p, dt_ms: {'leak': exp(-dt_ms / p['tau_ms'])}"
            ) from None
        except ValueError:  # a function in C that does not say what it takes
            pass

    def __call__(self, parameters: Mapping[str, Any], dt_ms: float) -> Mapping[str, Any]:
        """Return the constants for steps of `dt_ms`; arrays where a parameter is one."""
        try:
            found = self._function(parameters, dt_ms)
        except NeuraxisError:
            raise
        except Exception as error:
            at = self._at(error)
            if isinstance(error, KeyError) and error.args and error.args[0] not in parameters:
                known = near_variable(str(error.args[0]), parameters)
                raise InvalidArgument(f"{at}: constants: no parameter {error.args[0]!r}; {known}") from error
            given = "".join(f", {name}={one:g}" for name, one in parameters.items() if isinstance(one, int | float))
            raise InvalidArgument(
                f"{at}: constants(...) raised {type(error).__name__}: {error}, with dt_ms={dt_ms:g}"
                f"{given}. Change the function, or these values."
            ) from error
        if not isinstance(found, Mapping):
            raise InvalidType(
                f"{self._at(None)}: constants(...) returned {found!r}: a dict of numbers is expected, as "
                "{'leak': 0.99}"
            )
        return found

    def _at(self, error: Exception | None) -> str:
        """Return the model's name, and the line of the user's function in which an error was raised."""
        code = getattr(self._function, "__code__", None)
        if code is None:
            return self._model
        line, trace = code.co_firstlineno, error.__traceback__ if error is not None else None
        while trace is not None:
            if trace.tb_frame.f_code is code:
                line = trace.tb_lineno
            trace = trace.tb_next
        return f"{self._model}, {_shown(code.co_filename)}, line {line}"


def constant_value(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    """Return the value of an expression of numbers or of a tuple of them; None if it is not constant.

    `value_of` returns the value of a name, None if it has none that is known.
    """
    if isinstance(node, ast.Constant):
        return node.value
    names = {one.id: value_of(one.id) for one in ast.walk(node) if isinstance(one, ast.Name)}
    try:
        return _Evaluation("", names).value(node)
    except InvalidArgument:
        return None


class _Evaluation:
    """Evaluates expressions of numbers, and tuples of them, without executing them as Python."""

    def __init__(self, what: str, names: Mapping[str, Any]) -> None:
        self._what = what
        self._names = names

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.value(one) for one in node.elts)
        try:
            return self._number(node)
        except RecursionError:
            raise InvalidArgument(f"{self._what}: the expression is nested too deeply") from None
        except (ArithmeticError, ValueError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"{self._what}: `{ast.unparse(node)}` has no value: {error}") from error

    def _number(self, node: ast.expr) -> Number:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name):
            found = plain(self._names.get(node.id))
            if isinstance(found, int | float | np.ndarray):  # an array: see neuraxis.network.varying
                return found  # type: ignore[return-value]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            a, b = self._number(node.left), self._number(node.right)
            if isinstance(node.op, ast.Pow):
                if np.ndim(a) or np.ndim(b):
                    if np.result_type(a, b).kind != "f":
                        raise TypeError("powers of whole numbers in arrays")
                    return arithmetic.power(a, b)
                if isinstance(a, float) or isinstance(b, float):
                    return arithmetic.power(float(a), float(b))
                if abs(a) > 1 and abs(b) * a.bit_length() > 2 * _MOST_BITS:  # before it takes memory
                    raise OverflowError(_TOO_LONG)
            found = _OPERATORS[type(node.op)](a, b)
            if isinstance(found, int) and found.bit_length() > _MOST_BITS:
                raise OverflowError(_TOO_LONG)
            return found  # type: ignore[no-any-return]
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._number(node.operand))  # type: ignore[no-any-return]
        if isinstance(node, ast.Compare) and all(type(one) in _OPERATORS for one in node.ops):
            sides = [self._number(one) for one in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
            return all(_OPERATORS[type(one)](a, b) for one, a, b in pairs)
        if isinstance(node, ast.IfExp):
            return self._number(node.body if self._number(node.test) else node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            if not node.keywords:
                return _FUNCTIONS[node.func.id](*[self._number(one) for one in node.args])  # type: ignore[no-any-return]
        raise InvalidArgument(
            f"{self._what}: `{ast.unparse(node)}` cannot be used in an expression of constants. Use numbers, "
            f"parameters, dt_ms, + - * / // % **, comparisons, a if b else c, and {', '.join(sorted(_FUNCTIONS))}."
        )
