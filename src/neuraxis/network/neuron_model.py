"""Neuron models: named states and parameters, and a function that advances one neuron by one step.

The function is the whole model. The engine recognises its arguments by name:

* a state (in `states`): the neuron's current value, float32 if the initial value is a float, int32 if it is an int;
* a receptor (in `receptors`): the sum of the weights of the spikes that arrive in this step (float32);
* a rate input (in `rate_inputs`): the sum of weight x output over the continuous connections onto the neuron (float32);
* `current_pa`: the current that `Network.current` injects in this step;
* `normal`, `random`, `uniform`: random numbers, new for each neuron and step: a standard normal float32, a float32 that
  is uniform in [0, 1), and an int32 that is uniform over all 32-bit integers;
* `step`, `t_ms`: the number of the step, an int that is 1 in the first step, and the time at its end in ms (float32),
  which is the time of a spike that the neuron emits in this step;
* a signal (in `signals`): the current value of the rhythm or neuromodulator that it is connected to by name, as in
  `model(gain="dopamine")`, or else the default that `signals` gives;
* `dt_ms`, a constant (returned by `constants`) or a parameter.

It returns a bool (the neuron spikes), then all states in the order of `states`. See `neuron_model` for an example.

The engine compiles the *source* of the function, in float32, for the CPU and the GPU. The source may use arithmetic,
comparisons, `min`, `max`, `abs`, conditional expressions, numbers of its module or of an enclosing function, functions
of your own (see `neuraxis.network.inlining`), and `exp`, `expm1`, `exprel`, `log`, `log1p`, `power`, `sin`, `cos`,
`sqrt` and `tanh` of `neuraxis.network.arithmetic`, which give the same bits on every machine.
`neuraxis.network.model_language` checks it when the model is defined; docs/reference/model-language.md lists what each
operator and function does. `constants` runs once, on the host, in float64, and should take `exp` from the same module.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuraxis.arguments import frozen, is_array, near, plain
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arithmetic import stored_as
from neuraxis.network.distributions import Constant, Distribution, Values, as_distribution
from neuraxis.network.inlining import inline_functions
from neuraxis.network.model_checks import check_reads, check_returns
from neuraxis.network.model_draws import drawn_kind, with_draws_as_arguments
from neuraxis.network.model_language import ALLOWED, FLOAT, FUNCTIONS, INT, lower_function, rounded
from neuraxis.network.model_source import (
    Definition,
    DerivedConstants,
    GivenConstants,
    defined_by,
    defined_in,
    located,
    quoted,
)
from neuraxis.network.parameters import ParameterTable, near_variable, unit, value_text
from neuraxis.network.varying import Row, as_rows, constants_of, values_in_use

__all__ = ["DRAWS", "NeuronModel", "argument_kinds", "lower_model", "neuron_model", "neuron_model_from_source"]

Number = float | int
Constants = Callable[[Mapping[str, Number], float], Mapping[str, Number]]

LARGEST_RECEPTORS = 32
LARGEST_INT32 = 2**31 - 1
DRAWS = {"normal": FLOAT, "random": FLOAT, "uniform": INT}  # random numbers, one for each neuron and step
ENGINE_ARGUMENTS = {"current_pa": FLOAT, "step": INT, "t_ms": FLOAT, **DRAWS}
_USUAL_DT_MS = 0.1  # used to find out which constants are ints before a network gives its step


@dataclass(frozen=True, repr=False)
class NeuronModel:
    """A neuron model with its parameters; call it to change parameters.

    `neuron_model` makes one from a function. Its help text shows the description of the function, all states,
    receptors and parameters, and their units: `help(lif_exp_two)`.

    Parameters
    ----------
    name : str
        Name of the function.
    states : mapping of str to float or int
        Initial value of each state.
    receptors : tuple of str
        Names of the inputs that synapses can connect to.
    parameters : mapping of str to float, int or Distribution
        Values of the parameters, in the units that their names end in; printed as a table of names, values, defaults,
        units and meanings. A distribution where they differ between neurons: in the model of a population `Values`,
        whose `array` has the value of each neuron.
    source : str
        Source of the function, without decorator, annotations and docstring.
    arguments : tuple of str
        Names of the function's arguments.
    globals_used : mapping of str to float or int
        Numbers of the function's module that it reads.
    signals : mapping of str to float or str
        For each signal its default, or the name of the rhythm or neuromodulator that it follows.
    constants : mapping of str to float or int, optional
        Constants for one step of `dt_ms`, equal for all neurons; set once the model belongs to a network.
    rows : mapping of str to Row
        Arguments of the function that differ between neurons; set once the model belongs to a network.
    precision : {"float32", "float64"}
        Precision of states and arithmetic; that of the network once the model belongs to one.
    dt_ms : float, optional
        Step in ms that `constants` were computed for.
    constants_for : callable, optional
        Function of (parameters, dt_ms) that returns the constants.
    description : str
        Docstring of the function.
    meanings : mapping of str to str
        Short phrases that say what parameters, states, receptors, rate inputs and signals are.
    rate_inputs : tuple of str
        Names of the inputs of continuous connections (`Network.connect_rates`).
    output : str, optional
        State that continuous connections transmit.
    definition : ast.FunctionDef, optional
        The parsed source, whose nodes know their file and line; left out where the model is pickled.

    Examples
    --------
    >>> from neuraxis.network.models import izhikevich
    >>> izhikevich
    izhikevich(a=0.02, b=0.2, c_mv=-65, d_mv=8, v_peak_mv=30)
    >>> chattering = izhikevich(c_mv=-50.0, d_mv=2.0)
    >>> chattering.parameters["d_mv"]
    2.0
    """

    name: str
    states: Mapping[str, Number]
    receptors: tuple[str, ...]
    parameters: Mapping[str, Any]
    source: str
    arguments: tuple[str, ...]
    globals_used: Mapping[str, Number]
    signals: Mapping[str, float | str] = field(default_factory=dict)
    constants: Mapping[str, Number] | None = None
    dt_ms: float | None = None
    constants_for: Constants | None = field(default=None, compare=False)
    description: str = field(default="", compare=False)
    meanings: Mapping[str, str] = field(default_factory=dict, compare=False)
    rate_inputs: tuple[str, ...] = ()
    output: str | None = None
    definition: ast.FunctionDef | None = field(default=None, compare=False)
    rows: Mapping[str, Row] = field(default_factory=dict)
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name in ("states", "globals_used", "signals", "constants", "meanings", "rows"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        if not isinstance(self.parameters, ParameterTable):
            object.__setattr__(self, "parameters", ParameterTable(self.parameters, meanings=self.meanings))
        self._add_help()

    def _add_help(self) -> None:
        """Set what `help` and `inspect.signature` show of this instance instead of its class."""
        object.__setattr__(self, "__doc__", _help_text(self))
        object.__setattr__(self, "__signature__", _signature(self))

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("__doc__", "__signature__", "definition")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._add_help()

    def __call__(self, **changed: Any) -> NeuronModel:
        """Return the same model with other parameters, or with signals connected to rhythms and neuromodulators.

        Parameters
        ----------
        **changed : float, int, array_like, Distribution or str
            New values of parameters, in the units that their names end in: a number for all neurons, an array with one
            for each neuron of the population, or a distribution that the population draws them from. For a signal: a
            number, or the name of a rhythm or neuromodulator of the network.

        Returns
        -------
        NeuronModel
            A changed copy.

        Raises
        ------
        InvalidArgument
            There is no such parameter, or the model already belongs to a network.
        """
        if self.constants is not None:
            raise InvalidArgument(
                f"{self.name}: the model of a population cannot be changed. Change the model that was passed to "
                "network.population()."
            )
        signals = dict(self.signals)
        parameters: dict[str, Number | Distribution] = {}
        for name, value in changed.items():
            if name in signals:
                signals[name] = value if isinstance(value, str) else _as_float(f"{self.name}: {name}", value)
                continue
            if name not in self.parameters:
                known = near_variable(name, [*self.parameters, *signals])
                state = f". {name} is a state: its initial value goes to network.population(..., {name}=...)"
                raise InvalidArgument(
                    f"{self.name}: no parameter {name!r}; {known}{state if name in self.states else ''}"
                )
            parameters[name] = _as_parameter(f"{self.name}: {name}", value, name in self.whole_parameters)
        assert isinstance(self.parameters, ParameterTable)
        return replace(self, parameters=self.parameters.changed(parameters), signals=signals)

    @property
    def is_wide(self) -> bool:
        """True if states and arithmetic are float64."""
        return self.precision == "float64"

    def dtype_of(self, state: str) -> type[np.float32] | type[np.float64] | type[np.int32]:
        """Return the type in which a state is read and recorded.

        Parameters
        ----------
        state : str
            Name of a state.

        Returns
        -------
        type
            `numpy.int32`, `numpy.float32`, or `numpy.float64` in a network in float64.
        """
        return np.int32 if isinstance(self.states[state], int) else np.float64 if self.is_wide else np.float32

    @property
    def whole_parameters(self) -> frozenset[str]:
        """Names of the parameters that are ints."""
        assert isinstance(self.parameters, ParameterTable)
        return frozenset(name for name, value in self.parameters.defaults.items() if isinstance(value, int))

    @property
    def takes_current(self) -> bool:
        """True if the function has the argument `current_pa`."""
        return "current_pa" in self.arguments

    @property
    def takes_uniform(self) -> bool:
        """True if the function has the argument `uniform`."""
        return "uniform" in self.draws.values()

    @property
    def draws(self) -> dict[str, str]:
        """The arguments that are random numbers, in the order in which they are drawn, each with its kind: `normal`,
        `random` or `uniform`.
        """
        found = {one: one if one in DRAWS else drawn_kind(one) for one in self.arguments}
        return {one: kind for one, kind in found.items() if kind is not None and self.takes(one)}

    def takes(self, argument: str) -> bool:
        """Return True if the engine gives the function an argument, as `step`.

        Parameters
        ----------
        argument : str
            Name of an argument.

        Returns
        -------
        bool
            True if the function has the argument and the model does not declare it.
        """
        inputs = (self.receptors, self.rate_inputs, self.signals)
        own = (self.states, *inputs, self.parameters, self.rows, self.constants or {})
        return argument in self.arguments and not any(argument in one for one in own)

    def receptor_for(self, sign: int) -> str:
        """Return the receptor for weights of a sign.

        Parameters
        ----------
        sign : int
            Sign of the weights: 1 or -1.

        Returns
        -------
        str
            The first receptor for positive weights, the second, if there is one, for negative.

        Raises
        ------
        InvalidArgument
            The model has no receptors.
        """
        if not self.receptors:
            raise InvalidArgument(f"{self.name} has no receptors: nothing can be connected to it")
        return self.receptors[min(1, len(self.receptors) - 1)] if sign < 0 else self.receptors[0]

    def values(self, dt_ms: float) -> dict[str, Number]:
        """Return the constants and parameters that the function takes.

        Parameters
        ----------
        dt_ms : float
            Step in ms.

        Returns
        -------
        dict
            Values by name, without those that differ between neurons (`rows`).

        Raises
        ------
        InvalidArgument
            The function has an argument that is nowhere defined.
        """
        values: dict[str, Any] = {**self.parameters, "dt_ms": dt_ms}
        if self.constants_for is not None:
            values.update(self._checked_constants(self.constants_for(self.parameters, dt_ms)))
        elif self.constants is not None:
            values.update(self.constants)
        return {n: _as_number(f"{self.name}: constant {n}", value) for n, value in self._wanted(values).items()}

    def _checked_constants(self, constants: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `constants_for` returned, if no constant has the name of another value of the model."""
        kinds = {"state": self.states, "receptor": self.receptors, "rate input": self.rate_inputs,
                 "signal": self.signals, "length of a step": ("dt_ms",)}  # fmt: skip
        at = located(self.name, self.definition)
        for kind, names in kinds.items():
            for one in names:
                if one in constants:
                    raise InvalidArgument(
                        f"{at}: the constant {one!r} has the name of the {kind}; an argument has one meaning. Rename "
                        "the constant."
                    )
        for one in self.globals_used:
            if one in constants:
                raise InvalidArgument(
                    f"{at}: the function reads the number {one!r} around it; in the model, {one!r} is a constant. Add "
                    "it to the arguments to read that, or rename the number."
                )
        return constants

    def _wanted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the constants and parameters that the function takes, in the order of its arguments."""
        others = {*self.states, *self.receptors, *self.rate_inputs, *self.signals, *self.rows}
        wanted = [a for a in self.arguments if a not in others]
        found = {name: values[name] for name in wanted if name in values}
        drawn = self.draws
        missing = [one for one in wanted if one not in found and one not in ENGINE_ARGUMENTS and one not in drawn]
        if missing:
            raise InvalidArgument(
                f"{self.name}: argument {missing[0]!r} is not a state, receptor, signal, constant or parameter of the "
                "model. Declare it, or return it from constants."
            )
        return found

    def for_population(
        self, what: str, n: int, dt_ms: float, seed: int, index: int, precision: str = "float32"
    ) -> NeuronModel:
        """Return the model of a population, with its constants computed.

        Parameters
        ----------
        what : str
            Name of the population in errors.
        n : int
            Number of neurons.
        dt_ms : float
            Step of the network, in ms.
        seed : int
            Seed of the network.
        index : int
            Position of the population in the network; with the seed it determines what is drawn.
        precision : {"float32", "float64"}
            Precision of states and arithmetic.

        Returns
        -------
        NeuronModel
            A model that can be pickled: without the function `constants_for`, which may be a lambda.

        Raises
        ------
        InvalidArgument
            The model belongs to a network with another step, size or precision, or has invalid parameters.
        """
        if self.constants is not None:  # of another population
            if precision != self.precision:
                raise InvalidArgument(
                    f"{what}: {self.name}: this model belongs to a network in {self.precision}, not {precision}. Pass "
                    "the model that was passed to that network."
                )
            for name, row in self.rows.items():
                if len(row.array) != n:
                    raise InvalidArgument(
                        f"{what}: {self.name}: {name} has {len(row.array):,} values, of another population, for {n:,} "
                        "neurons. Pass the model that was passed to network.population()."
                    )
            return self.for_step(dt_ms)
        used = values_in_use(self.parameters, self.whole_parameters, n, seed, index, what)
        shown = {name: Values(one) if isinstance(one, np.ndarray) else one for name, one in used.items()}
        assert isinstance(self.parameters, ParameterTable)
        same = replace(self, parameters=self.parameters.changed(shown), precision=precision)
        with stored_as(precision):
            if not any(isinstance(one, np.ndarray) for one in used.values()):
                return same.for_step(dt_ms)
            values: dict[str, Any] = {**used, "dt_ms": dt_ms}
            if self.constants_for is not None:
                values.update(self._checked_constants(constants_of(self.constants_for, used, dt_ms, what)))
        constants, rows = as_rows(self._wanted(values), what, same.is_wide)
        constants = {name: _as_number(f"{self.name}: constant {name}", one) for name, one in constants.items()}
        made = replace(same, constants=constants, constants_for=None, dt_ms=dt_ms, rows=rows)
        lower_model(made, constants)
        return made

    def for_step(self, dt_ms: float) -> NeuronModel:
        """Return the model with its constants, if no parameter differs between neurons.

        Parameters
        ----------
        dt_ms : float
            Step in ms.

        Returns
        -------
        NeuronModel
            The model, with its constants.

        Raises
        ------
        InvalidArgument
            The model belongs to a network with another step.
        """
        if self.dt_ms is not None and self.dt_ms != dt_ms:
            raise InvalidArgument(
                f"{self.name}: this model belongs to a network with dt_ms={self.dt_ms:g}, not {dt_ms:g}. Pass the "
                "model that was passed to that network."
            )
        values = self.values(dt_ms)
        lower_model(self, values)  # checked again: changed parameters may have changed the type of a constant
        return replace(self, constants=values, constants_for=None, dt_ms=dt_ms)

    def __str__(self) -> str:
        connected = [f"{name}={value}" for name, value in self.signals.items() if isinstance(value, str)]
        return f"{self.name}({', '.join([*(f'{k}={value_text(v)}' for k, v in self.parameters.items()), *connected])})"

    __repr__ = __str__


def neuron_model(
    *,
    states: Mapping[str, Number],
    receptors: Sequence[str] = (),
    parameters: Mapping[str, Number] | None = None,
    signals: Mapping[str, float] | None = None,
    constants: Constants | Mapping[str, str] | None = None,
    meanings: Mapping[str, str] | None = None,
    rate_inputs: Sequence[str] = (),
    output: str | None = None,
) -> Callable[[Callable[..., Any]], NeuronModel]:
    """Decorate a function that advances one neuron by one step, to make a neuron model of it.

    The module's docstring lists the arguments that the function may have and what it may compute.

    Parameters
    ----------
    states : mapping of str to float or int
        Initial value of each state. A float is stored as float32, an int as int32.
    receptors : sequence of str, optional
        Names of up to 32 inputs. By default positive weights go to the first and negative weights to the second.
    parameters : mapping of str to float or int, optional
        Default values of the parameters. By convention names end in their unit, as `tau_m_ms`.
    signals : mapping of str to float, optional
        Inputs that can follow a rhythm or neuromodulator, with the values that they have otherwise.
    constants : callable or mapping of str to str, optional
        Further values for the function, computed once in float64: a function of (parameters, dt_ms) that returns them,
        or expressions of the parameters, `dt_ms` and the constants before, as {"leak": "exp(-dt_ms / tau_m_ms)"}.
    meanings : mapping of str to str, optional
        A short phrase for parameters, states, receptors and signals by name, as "membrane time constant". They are
        shown by `help(model)` and in the table of `model.parameters`.
    rate_inputs : sequence of str, optional
        Names of the inputs of continuous connections, each an argument of the function.
    output : str, optional
        The float state that continuous connections from such neurons transmit: its value after each step.

    Returns
    -------
    callable
        The decorator; it returns a `NeuronModel`. The docstring of the function becomes part of its help text.

    Raises
    ------
    InvalidArgument
        The function does not take a state, receptor or signal, does not return `(spike, *states)`, or uses something
        that models cannot use; or `meanings` has a name that the model does not have.

    Examples
    --------
    A leaky integrate-and-fire neuron:

    >>> from neuraxis.network import Network, neuron_model
    >>> from neuraxis.network.arithmetic import exp
    >>> @neuron_model(
    ...     states={"v_mv": 0.0},
    ...     receptors=("input_mv",),
    ...     parameters={"tau_m_ms": 20.0, "threshold_mv": 20.0},
    ...     constants=lambda p, dt_ms: {"leak": exp(-dt_ms / p["tau_m_ms"])},
    ... )
    ... def leaky(v_mv, input_mv, leak, threshold_mv):
    ...     v_mv = v_mv * leak + input_mv
    ...     spike = v_mv >= threshold_mv
    ...     return spike, 0.0 if spike else v_mv
    >>> leaky
    leaky(tau_m_ms=20, threshold_mv=20)
    >>> Network().population("E", 1000, leaky(tau_m_ms=10.0))
    Population('E', 1,000 x leaky)
    """

    receptors = _checked_receptors(receptors)
    for given in (states, parameters or {}, signals or {}):
        for name, value in given.items():
            _as_number(name, value)  # here rather than where the decorator is applied

    def make(function: Callable[..., Any]) -> NeuronModel:
        return _made(
            defined_by(function), states, receptors, parameters, signals, constants, meanings, rate_inputs, output
        )

    return make


def neuron_model_from_source(
    source: str,
    *,
    states: Mapping[str, Number],
    receptors: Sequence[str] = (),
    parameters: Mapping[str, Number] | None = None,
    signals: Mapping[str, float] | None = None,
    constants: Constants | Mapping[str, str] | None = None,
    meanings: Mapping[str, str] | None = None,
    rate_inputs: Sequence[str] = (),
    output: str | None = None,
    names: Mapping[str, Any] | None = None,
    filename: str = "<source>",
) -> NeuronModel:
    """Make a neuron model of text, which a program has generated or a file contains.

    The text is parsed and never executed: it cannot do anything but define the model.

    Parameters
    ----------
    source : str
        Text of a function as `neuron_model` takes it. Before it may be functions that it calls, and numbers and tuples
        of numbers with names (`SIZE = 3`). Imports from `neuraxis.network.arithmetic` have no effect.
    states, receptors, parameters, signals, constants, meanings, rate_inputs, output
        As for `neuron_model`. With `constants` as a mapping of expressions, the whole model can come from a file.
    names : mapping of str to object, optional
        Numbers, tables and functions that the text may use.
    filename : str, optional
        Name of the text in errors, which also have the line within the text.

    Returns
    -------
    NeuronModel
        The model, with the name of the function.

    Raises
    ------
    InvalidArgument
        The text is not valid Python, or uses something that models cannot use.

    Examples
    --------
    >>> from neuraxis.network import neuron_model_from_source
    >>> text = '''
    ... def leaky(v_mv, input_mv, leak, threshold_mv):
    ...     v_mv = v_mv * leak + input_mv
    ...     spike = v_mv >= threshold_mv
    ...     return spike, 0.0 if spike else v_mv
    ... '''
    >>> neuron_model_from_source(
    ...     text,
    ...     states={"v_mv": 0.0},
    ...     receptors=("input_mv",),
    ...     parameters={"tau_m_ms": 20.0, "threshold_mv": 20.0},
    ...     constants={"leak": "exp(-dt_ms / tau_m_ms)"},
    ... )
    leaky(tau_m_ms=20, threshold_mv=20)
    """
    try:
        function = defined_in(source, filename, names or {})
        return _made(function, states, receptors, parameters, signals, constants, meanings, rate_inputs, output)
    except RecursionError:
        raise InvalidArgument(f"{filename}: it is nested too deeply. Write it as several statements.") from None


def _made(function: Definition, *described: Any) -> NeuronModel:
    """Return a model of a function and of what describes it, as `_checked` takes it."""
    try:
        return _checked(function, *described)
    except RecursionError:
        at = located(function.name, function.tree)
        raise InvalidArgument(f"{at}: it is nested too deeply, or too long. Write it as several statements.") from None


def _checked(
    function: Definition,
    states: Mapping[str, Number],
    receptors: Sequence[str],
    parameters: Mapping[str, Number] | None,
    signals: Mapping[str, float] | None,
    constants: Constants | Mapping[str, str] | None,
    meanings: Mapping[str, str] | None,
    rate_inputs: Sequence[str],
    output: str | None,
) -> NeuronModel:
    """Check what a model is made of, and return it."""
    name = function.name
    for what, described, example in (
        ("states", states, "{'v_mv': -70.0}"), ("parameters", parameters, "{'tau_ms': 10.0}"),
        ("signals", signals, "{'gain': 1.0}"), ("meanings", meanings, "{'tau_ms': 'time constant'}"),
    ):  # fmt: skip
        if described is not None and not isinstance(described, Mapping):
            raise InvalidType(f"{name}: {what}={described!r}: a dict is expected, as {what}={example}")
    states, parameters, signals = (
        {one: _as_number(f"{name}: {one}", value) for one, value in (given or {}).items()}
        for given in (states, parameters, signals)
    )
    receptors = _checked_receptors(receptors)
    if isinstance(rate_inputs, str):
        raise InvalidType(f"rate_inputs={rate_inputs!r}: a tuple of names is expected, as in ({rate_inputs!r},)")
    if output is not None and not isinstance(states.get(output), float):
        floats = [one for one, value in states.items() if isinstance(value, float)]
        raise InvalidArgument(f"output={output!r}: a state that is a float is expected; {near(str(output), floats)}")
    tree = with_draws_as_arguments(inline_functions(function), function)
    arguments = tuple(argument.arg for argument in tree.args.args)
    declared: dict[str, str] = {"dt_ms": "the length of a step"}
    for kind, given in (
        ("state", states), ("receptor", receptors), ("rate input", rate_inputs), ("signal", signals),
        ("parameter", parameters),
    ):  # fmt: skip
        for one in given:
            if one in declared:
                raise InvalidArgument(
                    f"{name}: the {kind} {one!r} has the name of {declared[one]}; an argument has one meaning. Rename "
                    "one of them."
                )
            declared[one] = f"a {kind}"
            if one not in arguments and kind != "parameter":
                at = located(name, tree)
                raise InvalidArgument(f"{at}: the function does not take the {kind} {one!r}. Add the argument.")
    check_reads(function, {**dict.fromkeys(ENGINE_ARGUMENTS, "a value of the engine"), **declared})
    check_returns(name, tree, states)
    if isinstance(constants, Mapping):
        constants = DerivedConstants(name, constants, set(parameters))
    elif constants is not None:
        constants = GivenConstants(name, constants)
    explained = _checked_meanings(name, meanings or {}, [*parameters, *states, *receptors, *rate_inputs, *signals])
    made = NeuronModel(
        name=name,
        states=states,
        receptors=receptors,
        parameters=parameters,
        source=ast.unparse(tree),
        arguments=arguments,
        globals_used=_globals_used(function, tree),
        signals={signal: float(value) for signal, value in signals.items()},
        constants_for=constants,
        description=function.description,
        meanings=explained,
        rate_inputs=tuple(rate_inputs),
        output=output,
        definition=tree,
    )
    lower_model(made, _usual_values(made))
    return made


def _checked_receptors(receptors: Sequence[str]) -> tuple[str, ...]:
    if isinstance(receptors, str):
        raise InvalidType(f"receptors={receptors!r}: a tuple of names is expected, as in ({receptors!r},)")
    if len(receptors) > LARGEST_RECEPTORS:
        raise InvalidArgument(f"receptors: {len(receptors)} of them; a model can have {LARGEST_RECEPTORS}")
    return tuple(receptors)


def lower_model(model: NeuronModel, values: Mapping[str, Number]) -> ast.FunctionDef:
    """Check a model's function and return it with explicit types (see `model_language`).

    `values` are its constants and parameters, of which only the types matter.
    """
    tree = model.definition
    if tree is None:
        found = ast.parse(model.source).body[0]
        assert isinstance(found, ast.FunctionDef)
        tree = found
    results = [INT if isinstance(value, int) else FLOAT for value in model.states.values()]
    return lower_function(model.name, tree, argument_kinds(model, values), results, model.globals_used)


def argument_kinds(model: NeuronModel, values: Mapping[str, Number]) -> dict[str, str]:
    """Return INT or FLOAT for each argument of a model's function; `values` are its constants and parameters."""
    kinds, drawn = {}, model.draws
    for argument in model.arguments:
        if argument in model.rows:
            kinds[argument] = INT if model.rows[argument].is_integer else FLOAT
        elif argument in values or not model.takes(argument):
            value = model.states.get(argument, values.get(argument, 0.0))
            kinds[argument] = INT if isinstance(value, int) else FLOAT
        else:
            kinds[argument] = ENGINE_ARGUMENTS.get(drawn.get(argument, argument), FLOAT)
    return kinds


def _usual_values(model: NeuronModel) -> dict[str, Number]:
    """Return the parameters and, if they can be computed, the constants for a usual step."""
    values: dict[str, Number] = dict(model.parameters)
    found: Mapping[str, Number] = {}
    if isinstance(model.constants_for, DerivedConstants):
        found = model.constants_for(model.parameters, _USUAL_DT_MS)
    elif model.constants_for is not None:
        try:
            found = dict(model.constants_for(model.parameters, _USUAL_DT_MS))
        except Exception:  # a user's function that fails for the defaults fails again where the model is used
            pass
    return {**values, **model._checked_constants(found)}


def _help_text(model: NeuronModel) -> str:
    """Return the description followed by tables of states, receptors, signals and parameters with their units."""
    parts = [model.description or f"Neuron model {model.name}."]
    inputs = [(name, f"weights in {unit(name)}" if unit(name) else "weights", "") for name in model.receptors]
    inputs += [(name, "rates", "") for name in model.rate_inputs]
    if model.takes_current:
        inputs.append(("current_pa", "current from Network.current", ""))
    for title, rows in (
        ("Parameters (default)", [(name, value, unit(name)) for name, value in model.parameters.items()]),
        ("Inputs", inputs),
        ("Signals (default, or name of the source)", [(name, value, "") for name, value in model.signals.items()]),
        ("States (initial value)", [(name, value, unit(name)) for name, value in model.states.items()]),
    ):
        parts += _table(title, rows, model.meanings)
    if model.constants is None and all(not isinstance(value, str) for value in model.signals.values()):
        parts.append("\n".join(["Examples", "--------", *_example(model)]))
    return "\n\n".join(parts)


def _example(model: NeuronModel) -> list[str]:
    """Return the lines of an example that makes a population, with one of the parameters as it is."""
    numbers = [f"{name}={value_text(value)}" for name, value in model.parameters.items() if isinstance(value, Number)]
    used = f"{model.name}({numbers[0]})" if numbers else model.name
    return [
        ">>> from neuraxis.network import Network",
        f'>>> Network().population("cells", 100, {used})',
        f"Population('cells', 100 x {model.name})",
    ]


def _table(title: str, rows: Sequence[tuple[str, Any, str]], meanings: Mapping[str, str]) -> Iterable[str]:
    if not rows:
        return
    values = [value if isinstance(value, str) else value_text(value) for _, value, _ in rows]
    width = max(map(len, values))
    align = "<" if isinstance(rows[0][1], str) else ">"
    cells = [
        (name, f"{value:{align}{width}} {unit}".rstrip(), meanings.get(name, ""))
        for (name, _, unit), value in zip(rows, values, strict=True)
    ]
    widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {meaning}".rstrip() for name, value, meaning in cells]
    yield "\n".join([title, "-" * len(title), *lines])


def _signature(model: NeuronModel) -> inspect.Signature:
    """Return the signature of calling the model: keyword arguments with their present values."""
    values = {**model.parameters, **model.signals}
    arguments = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
        for name, value in values.items()
        if name.isidentifier()
    ]
    return inspect.Signature(arguments, return_annotation=NeuronModel)


def _checked_meanings(model: str, meanings: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    for name, meaning in meanings.items():
        if name not in known:
            raise InvalidArgument(
                f"{model}: meanings: no parameter, state, receptor or signal {name!r}; {near(name, known)}"
            )
        if not isinstance(meaning, str):
            raise InvalidType(f"{model}: meanings: {name}={meaning!r}: text is expected")
    return dict(meanings)


def _globals_used(function: Definition, tree: ast.FunctionDef) -> dict[str, Number]:
    """Return the numbers of the module or an enclosing function that it reads; raise for any other such name."""
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {argument.arg for argument in tree.args.args} | FUNCTIONS | {"len"}
    used: dict[str, Number] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id in own or node.id in used:
            continue
        value, at = plain(function.value_of(node.id)), located(function.name, node, tree)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(
                f"{at}: uses {quoted(node)!r}, which is no argument, number or table; "
                f"{near(quoted(node), sorted(own - FUNCTIONS - {'len'}))}. A model can use its arguments, and numbers, "
                f"tables and functions of its module or of an enclosing function. {ALLOWED}"
            )
        _check_number(f"{at}: {node.id}", value)
        used[node.id] = value
    return dict(sorted(used.items()))


def _as_parameter(name: str, value: Any, whole: bool) -> Number | Distribution:
    """Return a number, or a distribution of several; the type of a parameter selects the kernel's arithmetic."""
    if is_array(value) or isinstance(value, Distribution):
        given = as_distribution(value, name)
        if isinstance(given, Constant):
            value = int(given.value) if whole and given.value.is_integer() else given.value
        else:
            low, high = given.bounds()
            if math.isinf(rounded(max(-low, high))):
                raise InvalidArgument(f"{name}={given}: beyond float32, which ends at 3.4e38")
            if whole and not (isinstance(given, Values) and bool((given.array == given.array.round()).all())):
                raise InvalidArgument(
                    f"{name}={given}: this parameter is an int; pass a whole number or an array of them"
                )
            return given
    number = _as_number(name, value)
    return number if whole else float(number)


def _as_number(name: str, value: object) -> Number:
    """Return a finite number, NumPy scalars included, as a Python int or float."""
    value = plain(value)
    _check_number(name, value)
    return value  # type: ignore[return-value]


def _as_float(name: str, value: Any) -> float:
    return float(_as_number(name, value))


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{name}={value!r}: a number is expected")
    if isinstance(value, int):
        if value.bit_length() > 128:
            raise InvalidArgument(f"{name}: an int of {value.bit_length()} bits: beyond float32, which ends at 3.4e38")
        if not -LARGEST_INT32 - 1 <= value <= LARGEST_INT32:
            raise InvalidArgument(f"{name}={value!r}: beyond 32 bits; write it as a float")
        return
    if not math.isfinite(value):
        raise InvalidArgument(f"{name}={value!r}: a finite number is expected")
    if math.isinf(rounded(value)):
        raise InvalidArgument(f"{name}={value!r}: beyond float32, which ends at 3.4e38")
