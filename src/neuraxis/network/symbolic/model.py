"""`equations`: neuron models written as differential equations with units."""

from __future__ import annotations

import ast
import keyword
import warnings
from collections.abc import Mapping

from neuraxis.arguments import is_number, near, one_of
from neuraxis.errors import InvalidArgument, InvalidType, RoundingWarning
from neuraxis.network.model_language import FUNCTIONS as LANGUAGE
from neuraxis.network.model_source import DerivedConstants
from neuraxis.network.neuron_model import NeuronModel, neuron_model_from_source
from neuraxis.network.symbolic.methods import METHODS, Integration
from neuraxis.network.symbolic.parsing import (
    Place,
    names_in,
    parse_expression,
)
from neuraxis.network.symbolic.propagators import ModelConstants
from neuraxis.network.symbolic.units import ONE, shown
from neuraxis.network.symbolic.variables import RESERVED, Description, Given, Value, check_identifier
from neuraxis.network.symbolic.writing import Stage, Symbols, Writer, literal, name, product, scaled, total

__all__ = ["equations"]


def equations(
    text: str,
    *,
    threshold: str | None = None,
    reset: str = "",
    refractory: str | float | None = None,
    method: str | None = None,
    parameters: Mapping[str, Value] | None = None,
    initial: Mapping[str, Value] | None = None,
    receptors: Mapping[str, str] | None = None,
    current: str = "i",
    signals: Mapping[str, float] | None = None,
    name: str = "neuron",
) -> NeuronModel:
    """Make a neuron model of differential equations, with units.

    Each line of the text is one of::

        dv/dt = (e_rest - v + r*i)/tau_m : mV (unless refractory)     a differential equation
        i_leak = g*(e_rest - v) : pA                                  a sub-expression
        tau_m = 20*ms : ms                                            a parameter with a default
        e_rest : mV                                                   a parameter, which is given in `parameters`

    After the colon is the unit; ``1`` stands for none. Units are checked: a number has a unit if it is multiplied by
    one. A variable gets a name that ends in its unit, as everywhere in neuraxis: ``v`` becomes the state ``v_mv``, and
    ``tau_m : second`` the parameter ``tau_m_ms``. A comment at the end of a line (``# membrane time constant``) becomes
    the meaning of the variable in `help`.

    A step does this, in this order: integrate, add the weights of the spikes that arrived, test the threshold, reset.

    Parameters
    ----------
    text : str
        The equations.
    threshold : str, optional
        Condition for a spike, as "v > -50*mV". Without it the neuron never spikes.
    reset : str, optional
        Assignments at a spike, as "v = v_reset; w += b".
    refractory : str or float, optional
        Time after a spike in which there is no other and variables with ``(unless refractory)`` are held: in ms, or as
        text, "5*ms". Or a condition: after a spike the neuron is refractory for as long as it is true.
    method : str, optional
        "exact", "exponential_euler", "rk2", "rk4" or "euler". By default the first of "exact" (for equations that are
        linear with constant coefficients), "exponential_euler" (each equation is linear in its own variable) and "rk4"
        that fits; `help` of the model says which.
    parameters : mapping of str to float or str, optional
        Default values, as ``{"tau_m": "20*ms"}``; a number is in the unit that the text declares, or that the name
        ends in. Names that the text uses and does not declare are declared by this.
    initial : mapping of str to float or str, optional
        Initial values of variables, as numbers or expressions of parameters; 0 by default.
    receptors : mapping of str to str, optional
        For each input the variable that a spike increases by its weight, as ``{"excitatory": "g_e"}``, or an
        assignment, as ``{"inhibitory": "g_i -= weight"}``. By default negative weights go to the second.
    current : str, optional
        Name that stands for the current of `Network.current`, in pA or in the unit that the text declares for it.
    signals : mapping of str to float, optional
        Names that can follow a rhythm or neuromodulator, with the values that they have otherwise.
    name : str, optional
        Name of the model.

    Returns
    -------
    NeuronModel
        The model. It carries its compiled source: nothing of this function is needed where it runs.

    Raises
    ------
    InvalidArgument
        The text has a mistake, units do not match, or the method does not fit; the message has the line.
    MissingDependency
        Whether equations are linear needs algebra, and SymPy (the extra ``equations``) is not installed.

    Examples
    --------
    >>> from neuraxis.network import equations
    >>> cell = equations(
    ...     '''
    ...     dv/dt = (e_rest - v)/tau_m + i/c_m : mV (unless refractory)
    ...     e_rest = -70*mV : mV
    ...     tau_m = 10*ms : ms
    ...     c_m = 250*pF : pF
    ...     ''',
    ...     threshold="v > -55*mV",
    ...     reset="v = e_rest",
    ...     refractory="2*ms",
    ...     initial={"v": "e_rest"},
    ... )
    >>> cell
    neuron(e_rest_mv=-70, tau_m_ms=10, c_m_pf=250)
    >>> cell(tau_m_ms=20.0).parameters["tau_m_ms"]
    20.0
    """
    check_identifier(name, "name")
    _check_mapping(parameters, "parameters", "{'tau': '20*ms'}")
    _check_mapping(initial, "initial", "{'v': '-70*mV'}")
    _check_mapping(receptors, "receptors", "{'input': 'v'}, with the variable that a spike adds to")
    _check_mapping(signals, "signals", "{'gain': 1.0}")
    given = Given(
        threshold, reset, refractory, parameters or {}, initial or {}, receptors or {}, current, signals or {}, name
    )
    if method is not None:
        one_of(method, "method", METHODS)
    return _Compiler(Description(text, given), method).model()


def _check_mapping(given: object, name: str, example: str) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidType(f"{name}={given!r}: a dict is expected, as {name}={example}")


class _Compiler:
    """Writes the function of a model, and makes the model."""

    def __init__(self, described: Description, method: str | None) -> None:
        self._described = described
        self._method = method

    def model(self) -> NeuronModel:
        """Return the model."""
        states = {one: found for one, found in self._described.variables.items() if found.kind == "state"}
        ordered = [one.name for one in self._described.equations] + [
            one for one in states if not self._is_differential(one)
        ]
        expressions = {
            one: self._described.declared[one]
            for one, found in self._described.variables.items()
            if found.kind == "expression"
        }
        symbols = Symbols(
            parameters={
                one: (found.stored, found.unit.factor)
                for one, found in self._described.variables.items()
                if found.kind == "parameter"
            },
            inputs={
                one: (found.stored, 1.0 if found.kind == "current" else found.unit.factor)
                for one, found in self._described.variables.items()
                if found.kind in ("current", "signal")
            },
            expressions=expressions,
            constant=set(),
        )
        self._find_constant_expressions(symbols)
        stored = {found.stored for found in self._described.variables.values()}
        receptors = {one.receptor: self._receptor_argument(one.receptor, stored) for one in self._described.increases}
        taken = {*stored, *receptors, *RESERVED, *LANGUAGE, *keyword.kwlist}
        writer = Writer(symbols, taken)
        return self._written(writer, ordered)

    def _is_differential(self, one: str) -> bool:
        return one in self._described.declared and self._described.declared[one].kind == "differential"

    def _find_constant_expressions(self, symbols: Symbols) -> None:
        """Find the sub-expressions that depend on parameters alone."""
        while True:
            more = {
                one
                for one, declared in symbols.expressions.items()
                if one not in symbols.constant and declared.tree and symbols.is_constant_expression(declared.tree)
            }
            if not more:
                return
            symbols.constant |= more

    def _receptor_argument(self, receptor: str, stored: set[str]) -> str:
        if receptor in stored or receptor in self._described.variables or receptor in RESERVED or receptor in LANGUAGE:
            raise InvalidArgument(
                f"receptors: the name {receptor!r} is taken by a variable. Choose another, as 'excitatory'."
            )
        return receptor

    def _written(self, writer: Writer, ordered: list[str]) -> NeuronModel:
        values: dict[str, ast.expr] = {}
        for one in ordered:
            found = self._described.variables[one]
            value = scaled(name(found.stored), int(found.unit.power))
            values[one] = writer.local(f"{one}_now", value)
        steps = self._write_held(writer, values)
        refractory = self._described.refractory_tree is not None
        values["not_refractory"] = ast.UnaryOp(ast.Not(), name("held")) if refractory else ast.Constant(True)
        time = self._write_time(writer)
        if self._described.noise is not None:
            scale = writer.constant(ast.BinOp(name("dt_ms"), ast.Pow(), literal(-0.5)))
            values[self._described.noise] = product([name("normal"), scale])
        start = Stage(values, time)
        integration = Integration(
            writer, self._described.equations, self._described.held, self._described.algebra,
            [*[one for one in ordered if not self._is_differential(one)], *writer.symbols.inputs],
        )  # fmt: skip
        method, reason = self._chosen(integration)
        values = {**values, **integration.written(method, start)}
        values = self._write_increases(writer, values, time)
        values, spike = self._write_spike(writer, values, time)
        results = [spike, *(self._as_stored(one, values[one]) for one in ordered)]
        if refractory:
            results.append(self._next_refractory(steps))
        writer.lines.append(f"return {', '.join(ast.unparse(one) for one in results)}")
        return self._made(writer, integration, ordered, method, reason, steps)

    @property
    def _has_time(self) -> bool:
        return any(one == "t" for one, _ in self._described.names_used())

    def _write_time(self, writer: Writer) -> ast.expr | None:
        """Write the time of the start of the step; the engine gives that of its end."""
        if not self._has_time:
            return None
        step = writer.constant(name("dt_ms"))
        return writer.assign(writer.fresh("time"), ast.BinOp(name("t_ms"), ast.Sub(), step))

    def _write_held(self, writer: Writer, values: dict[str, ast.expr]) -> str | None:
        """Write whether the neuron is refractory; return the constant that has the refractory time in ms, if any."""
        tree = self._described.refractory_tree
        if tree is None:
            return None
        held = "refractory > 0"
        steps = None
        if self._described.unit_check(self._described.refractory_place).is_condition(tree):
            stage = Stage({**values, "not_refractory": ast.Compare(name("refractory"), [ast.Eq()], [ast.Constant(0)])})
            condition = writer.value(tree, stage)
            writer.lines.append(f"held = {held} and ({ast.unparse(condition)})")
        else:
            if not writer.symbols.is_constant_expression(tree):
                raise self._described.refractory_place.refuse(
                    "a refractory time depends on parameters alone. Write a condition instead, as 'v > -40*mV'."
                )
            constant = writer.constant_of(tree)
            assert constant is not None
            steps = writer.quantity(constant, "refractory_time")
            writer.reads.add("refractory_steps")
            writer.lines.append(f"held = {held}")
        return steps

    def _next_refractory(self, steps: str | None) -> ast.expr:
        refractory = name("refractory")
        spiked: ast.expr = name("refractory_steps")
        left = ast.IfExp(name("held"), ast.BinOp(refractory, ast.Sub(), ast.Constant(1)), ast.Constant(0))
        if steps is None:
            spiked, left = ast.Constant(1), ast.IfExp(name("held"), ast.Constant(1), ast.Constant(0))
        return ast.IfExp(name("spike"), spiked, left)

    def _chosen(self, integration: Integration) -> tuple[str, str]:
        """Return the method, and why it was chosen."""
        asked, noise = self._method, self._described.noise
        if noise is not None:
            if asked not in (None, "euler"):
                place = next(
                    one.place for one in self._described.declarations if one.tree and noise in names_in(one.tree)
                )
                raise place.refuse(f"method={asked!r} cannot be used with {noise}; there is 'euler'")
            return "euler", "there is noise" if asked is None else ""
        if asked in (None, "exact"):
            obstacle = integration.find_linear_system()
            if obstacle is None:
                return "exact", "the equations are linear with constant coefficients" if asked is None else ""
            if asked:
                raise obstacle.place.refuse(
                    "method='exact' needs equations that are linear in all variables, with coefficients that do not "
                    f"change while the network runs. {self._others(integration)}"
                )
        if asked in (None, "exponential_euler"):
            obstacle = integration.find_conditional(frozen=asked is not None)
            if obstacle is None:
                return "exponential_euler", "each equation is linear in its own variable" if asked is None else ""
            if asked:
                raise obstacle.place.refuse(
                    f"method='exponential_euler' needs equations that are linear in their own variable, here in "
                    f"{obstacle.name}. Use 'rk4', 'rk2' or 'euler'."
                )
        return asked or "rk4", "" if asked else "an equation is not linear in its own variable"

    def _others(self, integration: Integration) -> str:
        fits = integration.find_conditional(frozen=True) is None
        return f"Use {chr(39) + 'exponential_euler' + chr(39) + ', ' if fits else ''}'rk4', 'rk2' or 'euler'."

    def _write_increases(
        self, writer: Writer, values: dict[str, ast.expr], time: ast.expr | None
    ) -> dict[str, ast.expr]:
        """Add the weights of spikes that arrived. All receptors see the values before any of them acted."""
        stage, made = Stage(values, time), dict(values)
        for one in self._described.increases:
            target = self._described.variables[one.target]
            # A weight is a number in the unit of the variable, divided by that of the factor.
            factor = writer.value(one.factor, stage)
            added = product([factor, literal(target.unit.factor), name(one.receptor)])
            changed = total([(1, made[one.target]), (1, added)])
            if one.target in self._described.held:
                changed = ast.IfExp(name("held"), made[one.target], changed)
            made[one.target] = writer.local(f"{one.target}_after", changed)
        return made

    def _write_spike(
        self, writer: Writer, values: dict[str, ast.expr], time: ast.expr | None
    ) -> tuple[dict[str, ast.expr], ast.expr]:
        if self._described.threshold is None:
            return values, ast.Constant(False)
        condition = writer.value(self._described.threshold[0], Stage(values, time))
        if self._described.refractory_tree is not None:
            condition = ast.BoolOp(ast.And(), [condition, ast.UnaryOp(ast.Not(), name("held"))])
        spike = writer.assign("spike", condition)
        for target, tree, _ in self._described.resets:
            value = writer.value(tree, Stage(values, time))
            chosen = ast.IfExp(name("spike"), value, values[target])
            values = {**values, target: writer.local(f"{target}_reset", chosen)}
        return values, spike

    def _as_stored(self, one: str, value: ast.expr) -> ast.expr:
        """Return a value in the unit of its state."""
        return scaled(value, -int(self._described.variables[one].unit.power))

    def _initial(self, writer: Writer, ordered: list[str], constants: ModelConstants) -> dict[str, float | int]:
        """Return the initial value of each state, in its unit."""
        by_stored = {self._described.variables[one].stored: one for one in ordered}
        found = {one: self._described.defaults[one][0] if one in self._described.defaults else 0.0 for one in ordered}
        for key, value in self._described.given.initial.items():
            one = key if key in ordered else by_stored.get(key, "")
            if not one:
                raise InvalidArgument(f"initial: no variable {key!r}; {near(key, ordered)}")
            found[one] = self._initial_value(writer, one, key, value)
        return {
            self._described.variables[one].stored: found[one] / self._described.variables[one].unit.factor
            for one in ordered
        }

    def _initial_value(self, writer: Writer, one: str, key: str, value: Value) -> float:
        if not isinstance(value, str):
            return self._described.value(one, key, value, "initial")
        place = Place(f"initial[{key!r}]", value)
        tree = parse_expression(value, place)
        for other in names_in(tree):
            if not writer.symbols.is_constant(other) or other == "dt":
                raise place.refuse(f"{other!r} cannot be used here; {near(other, self._described.parameter_names())}")
        self._described.unit_check(place).number(tree, self._described.variables[one].unit, one)
        own = Writer(writer.symbols, set(self._described.variables))
        made = own.constant_of(tree)
        if made is None:
            raise place.refuse("a number is expected, as '-70*mV' or 'e_rest'")
        known = self._stored_parameters()
        expressions = {**own.constants, "value": ast.unparse(made)}
        return float(DerivedConstants(self._described.given.name, expressions, set(known))(known, 0.1)["value"])

    def _stored_parameters(self) -> dict[str, float]:
        """Return the default values of the parameters, in their units, by their names in the model."""
        return {
            found.stored: self._described.defaults[one][0] / found.unit.factor
            for one, found in self._described.variables.items()
            if found.kind == "parameter"
        }

    def _divisors(self) -> dict[str, Place]:
        """Return the parameters of which divisors consist, each with the line where it is first one."""
        found: dict[str, Place] = {}

        def add(one: str, place: Place) -> None:
            variable, declared = self._described.variables.get(one), self._described.declared.get(one)
            if variable is not None and variable.kind == "parameter":
                found.setdefault(variable.stored, place)
            elif variable is not None and variable.kind == "expression" and declared and declared.tree:
                for part in sorted(names_in(declared.tree)):
                    add(part, place)

        for declared in self._described.declarations:
            for node in ast.walk(declared.tree) if declared.tree else ():
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mod | ast.FloorDiv):
                    for one in sorted(names_in(node.right)):
                        add(one, declared.place)
        return found

    def _made(
        self, writer: Writer, integration: Integration, ordered: list[str], method: str, reason: str, steps: str | None
    ) -> NeuronModel:
        given = self._described.given
        parameters = self._stored_parameters()
        constants = ModelConstants(
            given.name, writer.constants, set(parameters), integration.linear_steps, steps, self._divisors()
        )
        states = self._initial(writer, ordered, constants)
        if self._described.refractory_tree is not None:
            states["refractory"] = 0
        read = sorted(writer.reads - {"current_pa"})
        if self._described.threshold is None:
            writer.lines[-1:] = ["spike = 1.0 < 0.0", writer.lines[-1].replace("return False", "return spike")]
        arguments = [*states, *given.receptors, *[one for one in read if one not in states]]
        signals = {
            found.stored: float(given.signals[one])
            for one, found in self._described.variables.items()
            if found.kind == "signal"
        }
        arguments += [one for one in signals if one not in arguments]
        if any(found.kind == "current" for found in self._described.variables.values()):
            arguments.append("current_pa")
        if self._has_time:
            arguments.append("t_ms")
        if self._described.noise is not None:
            arguments.append("normal")
        source = "\n".join(
            [f"def {given.name}({', '.join(arguments)}):", f"    {self._description(method, reason)!r}"]
            + [f"    {line}" for line in writer.lines]
        )
        with warnings.catch_warnings():
            # The step of a network decides what is rounded, not the usual one of this trial.
            warnings.simplefilter("ignore", RoundingWarning)
            constants(parameters, 0.1)
            return neuron_model_from_source(
                source,
                states=states,
                receptors=tuple(given.receptors),
                parameters=parameters,
                signals=signals or None,
                constants=constants,
                meanings=self._meanings(writer, states),
                filename=f"<equations of {given.name}>",
            )

    def _meanings(self, writer: Writer, states: Mapping[str, float | int]) -> dict[str, str]:
        made = {found.stored: found.meaning for found in self._described.variables.values()
                if found.meaning and found.kind in ("state", "parameter", "signal")}  # fmt: skip
        for one in self._described.increases:
            target = self._described.variables[one.target]
            unit = f", in {shown(target.unit)}" if target.unit.dimensions != ONE.dimensions else ""
            written = one.place.text if "=" in one.place.text else f"{one.target} += weight"
            made[one.receptor] = f"{written}{unit if isinstance(one.factor, ast.Constant) else ''}"
        if "refractory" in states:
            timed = "refractory_steps" in writer.reads
            made["refractory"] = "steps that are left of the refractory time" if timed else "1 while it is refractory"
        return made

    def _description(self, method: str, reason: str) -> str:
        given = self._described.given
        lines = [f"Neuron model {given.name}, made of equations.", "", "Equations::", ""]
        written = self._described.text.expandtabs().splitlines()
        margin = min((len(line) - len(line.lstrip()) for line in written if line.strip()), default=0)
        lines += [f"    {line[margin:].rstrip()}" for line in written if line.strip()]
        lines.append("")
        for what, one in (("Threshold", given.threshold), ("Reset", given.reset), ("Refractory", given.refractory)):
            if one not in (None, ""):
                shown_value = " ".join(str(one).split()) + (" ms" if is_number(one) else "")
                lines.append(f"{what}: `{shown_value}`")
        lines.append(f"Method: {method}" + (f" (chosen because {reason})" if reason else ""))
        return "\n".join(lines)
