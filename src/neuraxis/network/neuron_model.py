"""A neuron model: named states and parameters, and one small function that advances a neuron by one step.

The function is the whole model. Its arguments are found by name:

* a state (`states`): the neuron's value of it; a float is kept as float32, an int as int32;
* a receptor (`receptors`): what arrived there in this step, the sum of the weights of the spikes (float32);
* `current_pa`: what `Network.current` gives the neuron in this step;
* `uniform`: a random 32-bit integer (int32, all values alike), new for each neuron and step;
* a signal (`signals`): the value in this step of the rhythm or neuromodulator that it is tied to by name, as in
  `model(gain="dopamine")`; untied, the number that `signals` gives;
* a constant (`constants`) or a parameter.

It returns whether the neuron spikes, then every state in the order of `states`:

    @neuron_model(
        states={"v_mv": 0.0},
        receptors=("input",),
        parameters={"tau_m_ms": 20.0, "threshold_mv": 20.0},
        constants=lambda p, dt_ms: {"leak": exp(-dt_ms / p["tau_m_ms"])},
    )
    def leaky(v_mv, input, leak, threshold_mv):
        v_mv = v_mv * leak + input
        spike = v_mv >= threshold_mv
        return spike, 0.0 if spike else v_mv

    network.population("E", 1000, leaky(tau_m_ms=10.0))

The engine compiles the function's *source*, in float32, for whatever runs it: it may use arithmetic, comparisons,
`min`, `max`, `abs`, conditional expressions, the module's own numbers and `exp`, `log`, `power`, `sqrt` of
`neuraxis.network.arithmetic`, which give the same bits on every machine. `constants` runs once, on the host, in
float64; what it needs of exp it takes from the same module.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["NeuronModel", "always_returns", "neuron_model"]

Number = float | int
Constants = Callable[[Mapping[str, Number], float], Mapping[str, Number]]

# What a model's function may call, beside the arithmetic of the language.
KNOWN_FUNCTIONS = frozenset({"abs", "min", "max", "int", "range", "exp", "log", "power", "sqrt"})
LARGEST_RECEPTORS = 32
LARGEST_INT32 = 2**31 - 1
ENGINE_ARGUMENTS = ("current_pa", "uniform")


@dataclass(frozen=True)
class NeuronModel:
    """A neuron model with its parameters; call it to get the same model with other parameters."""

    name: str
    states: Mapping[str, Number]
    receptors: tuple[str, ...]
    parameters: Mapping[str, Number]
    source: str
    arguments: tuple[str, ...]
    globals_used: Mapping[str, Number] = field(repr=False)
    signals: Mapping[str, float | str] = field(default_factory=dict)
    constants: Mapping[str, Number] | None = field(default=None, repr=False)
    dt_ms: float | None = field(default=None, repr=False)
    constants_for: Constants | None = field(default=None, repr=False, compare=False)

    def __call__(self, **changed: Number | str) -> NeuronModel:
        """The same model with some parameters changed, or signals tied to rhythms and neuromodulators by name."""
        if self.constants is not None:
            raise InvalidArgument(f"{self.name}: this model belongs to a network; change the one it was made of")
        signals = dict(self.signals)
        parameters: dict[str, Number] = {}
        for name, value in changed.items():
            if name in signals:
                signals[name] = value if isinstance(value, str) else _as_float(f"{self.name}: {name}", value)
                continue
            if name not in self.parameters:
                raise InvalidArgument(
                    f"{self.name}: no parameter {name!r}; it has {', '.join([*self.parameters, *signals])}"
                )
            parameters[name] = _as_number(f"{self.name}: {name}", value)
        # A whole number for a parameter that is none stays the same number: kernels compute with float32 then.
        typed = {
            name: float(value) if isinstance(self.parameters[name], float) else value
            for name, value in parameters.items()
        }
        return replace(self, parameters={**self.parameters, **typed}, signals=signals)

    @property
    def takes_current(self) -> bool:
        return "current_pa" in self.arguments

    @property
    def takes_uniform(self) -> bool:
        return "uniform" in self.arguments

    def receptor_for(self, sign: int) -> str:
        """The receptor that a weight of this sign goes to: the first for positive ones, the second for negative."""
        if not self.receptors:
            raise InvalidArgument(f"{self.name} has no receptors: nothing can be connected to it")
        return self.receptors[min(1, len(self.receptors) - 1)] if sign < 0 else self.receptors[0]

    def values(self, dt_ms: float) -> dict[str, Number]:
        """Every constant and parameter that the function takes, for steps of `dt_ms`."""
        values: dict[str, Number] = {**self.parameters, "dt_ms": dt_ms}
        if self.constants_for is not None:
            values.update(self.constants_for(self.parameters, dt_ms))
        elif self.constants is not None:
            values.update(self.constants)
        others = {*self.states, *self.receptors, *self.signals}
        wanted = [a for a in self.arguments if a not in others]
        found = {name: values[name] for name in wanted if name in values}
        missing = [name for name in wanted if name not in found and name not in ENGINE_ARGUMENTS]
        if missing:
            raise InvalidArgument(
                f"{self.name}: argument {missing[0]!r} is no state, receptor, signal, constant or parameter of it"
            )
        for name, value in found.items():
            _check_number(f"{self.name}: constant {name}", value)
        return found

    def for_step(self, dt_ms: float) -> NeuronModel:
        """The model with its constants computed: what a network keeps, for it can be pickled whatever made it."""
        if self.dt_ms is not None and self.dt_ms != dt_ms:
            raise InvalidArgument(
                f"{self.name}: this model belongs to a network with dt_ms={self.dt_ms:g}, not {dt_ms:g}; "
                "take the one it was made of"
            )
        return replace(self, constants=self.values(dt_ms), constants_for=None, dt_ms=dt_ms)

    def __str__(self) -> str:
        tied = [f"{name}={value}" for name, value in self.signals.items() if isinstance(value, str)]
        return f"{self.name}({', '.join([*(f'{k}={v:g}' for k, v in self.parameters.items()), *tied])})"


def neuron_model(
    *,
    states: Mapping[str, Number],
    receptors: Sequence[str] = (),
    parameters: Mapping[str, Number] | None = None,
    signals: Mapping[str, float] | None = None,
    constants: Constants | None = None,
) -> Callable[[Callable[..., Any]], NeuronModel]:
    """Make a model of a function; see the module's text."""
    for name, value in {**states, **(parameters or {}), **(signals or {})}.items():
        _check_number(name, value)
    if len(receptors) > LARGEST_RECEPTORS:
        raise InvalidArgument(f"receptors: {len(receptors)} of them; a model can have {LARGEST_RECEPTORS}")
    if isinstance(receptors, str):
        raise InvalidType(f"receptors={receptors!r}: a tuple of names is expected, as in ({receptors!r},)")

    def make(function: Callable[..., Any]) -> NeuronModel:
        name = function.__name__
        tree = _parse(function)
        arguments = tuple(argument.arg for argument in tree.args.args)
        missing = [state for state in states if state not in arguments]
        if missing:
            raise InvalidArgument(f"{name}: the function does not take the state {missing[0]!r}")
        unheard = [receptor for receptor in receptors if receptor not in arguments]
        if unheard:
            raise InvalidArgument(f"{name}: the function does not take the receptor {unheard[0]!r}")
        unseen = [signal for signal in signals or () if signal not in arguments]
        if unseen:
            raise InvalidArgument(f"{name}: the function does not take the signal {unseen[0]!r}")
        returned = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
        if returned and not always_returns(tree.body):
            raise InvalidArgument(f"{name}: not every way through the function ends in a return")
        for node in returned:
            if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != 1 + len(states):
                raise InvalidArgument(f"{name}: return (spike, {', '.join(states)}), in this order")
        if not returned:
            raise InvalidArgument(f"{name}: the function returns nothing")
        return NeuronModel(
            name=name,
            states=dict(states),
            receptors=tuple(receptors),
            parameters=dict(parameters or {}),
            source=ast.unparse(tree),
            arguments=arguments,
            globals_used=_globals_used(name, tree, function),
            signals={signal: float(value) for signal, value in (signals or {}).items()},
            constants_for=constants,
        )

    return make


def always_returns(body: list[ast.stmt]) -> bool:
    """Whether every way through these statements ends in a `return`."""
    if not body:
        return False
    last = body[-1]
    return isinstance(last, ast.Return) or (
        isinstance(last, ast.If) and always_returns(last.body) and always_returns(last.orelse)
    )


def _parse(function: Callable[..., Any]) -> ast.FunctionDef:
    """The function's source without its decorators, annotations and docstring."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidArgument(
            f"{function.__name__}: the source of the function is not to be found; define it in a file"
        ) from error
    tree = ast.parse(text).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise InvalidType(f"{function.__name__}: a model is a plain function")
    tree.decorator_list = []
    tree.returns = None
    for argument in tree.args.args:
        argument.annotation = None
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]
    return tree


def _globals_used(name: str, tree: ast.FunctionDef, function: Callable[..., Any]) -> dict[str, Number]:
    """The module's numbers that the function reads; anything else that is not its own is an error."""
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {argument.arg for argument in tree.args.args}
    used: dict[str, Number] = {}
    for other in sorted(loaded - own - KNOWN_FUNCTIONS):
        value = function.__globals__.get(other)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(
                f"{name}: uses {other!r}; a model's function can use its arguments, numbers of its module and "
                f"{', '.join(sorted(KNOWN_FUNCTIONS))}"
            )
        _check_number(f"{name}: {other}", value)
        used[other] = value
    return used


def _as_number(name: str, value: Any) -> Number:
    _check_number(name, value)
    return value  # type: ignore[no-any-return]


def _as_float(name: str, value: Any) -> float:
    return float(_as_number(name, value))


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{name}={value!r}: a number is expected")
    if not math.isfinite(value):
        raise InvalidArgument(f"{name}={value!r}: a finite number is expected")
    if isinstance(value, int) and not -LARGEST_INT32 - 1 <= value <= LARGEST_INT32:
        raise InvalidArgument(f"{name}={value!r}: beyond 32 bits; write it as a float")
