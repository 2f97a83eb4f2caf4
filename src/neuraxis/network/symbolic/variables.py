"""The variables of equations: names in the model, units and values."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from neuraxis.arguments import is_number, near
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.model_language import FUNCTIONS as LANGUAGE
from neuraxis.network.model_source import DerivedConstants
from neuraxis.network.parameters import unit as unit_of_name
from neuraxis.network.symbolic.algebra import Expressions, NotLinear
from neuraxis.network.symbolic.parsing import (
    NUMBERS,
    Place,
    UnitCheck,
    names_in,
    parse_condition,
    parse_equations,
    parse_expression,
    parse_statements,
)
from neuraxis.network.symbolic.units import NAMED, ONE, Unit, is_in, named, shown, suffix_unit, suffixed
from neuraxis.network.symbolic.writing import Symbols, Writer

__all__ = ["RESERVED", "Description", "Given", "Increase", "Value", "Variable", "check_identifier"]

Value = float | int | str

WEIGHT = "weight"
_PA, _MS = NAMED["pA"], NAMED["ms"]

# Names that the generated function uses itself, or that the engine gives a meaning.
RESERVED = {
    "held", "spike", "refractory", "refractory_steps", "dt_ms", "t_ms", "step", "current_pa", "uniform", "random",
    "normal", "one",
}  # fmt: skip


@dataclass
class Given:
    """The input of a user."""

    threshold: str | None
    reset: str
    refractory: str | float | None
    parameters: Mapping[str, Value]
    initial: Mapping[str, Value]
    receptors: Mapping[str, str]
    current: str
    signals: Mapping[str, float]
    name: str


@dataclass
class Variable:
    """A name of the equations.

    Parameters
    ----------
    kind : str
        "state", "parameter", "expression", "current" or "signal".
    stored : str
        Name in the model.
    unit : Unit
        Unit in which the model stores it.
    declared : Unit
        Unit of plain numbers that are given for it; None if only text with a unit can be given.
    meaning : str
        For `help`.
    """

    kind: str
    stored: str
    unit: Unit
    declared: Unit | None
    meaning: str = ""
    place: Place | None = None


@dataclass
class Increase:
    """A receptor: the variable that it increases, and the factor of the weight."""

    receptor: str
    target: str
    factor: ast.expr
    place: Place


class Description:
    """The variables of equations, their units and values, and the checked parts of the text.

    Parameters
    ----------
    text : str
        The equations.
    given : Given
        The other arguments of `equations`.
    """

    def __init__(self, text: str, given: Given) -> None:
        self.text = text
        self.given = given
        self.declarations = parse_equations(text)
        self.declared = {one.name: one for one in self.declarations}
        self.variables: dict[str, Variable] = {}
        self.equations = [one for one in self.declarations if one.kind == "differential"]
        self.held = {one.name for one in self.equations if "unless refractory" in one.flags}
        self.threshold = None if given.threshold is None else parse_condition(given.threshold, "threshold")
        self.resets = parse_statements(given.reset, "reset")
        self.refractory_tree, self.refractory_place = self._parsed_refractory()
        self.increases = [self._increase(one, spec) for one, spec in given.receptors.items()]
        self.defaults: dict[str, tuple[float, Unit]] = {}
        self._find_variables()
        self.algebra = Expressions(
            {one.name: one for one in self.declarations if self.variables[one.name].kind == "expression"}
        )
        self._check_cycles()
        self.noise = self._find_noise()
        self._check_units()

    # --- names ----------------------------------------------------------------------------------------------

    def _parsed_refractory(self) -> tuple[ast.expr | None, Place]:
        given = self.given.refractory
        place = Place("refractory", str(given))
        if given is None:
            if self.held:
                first = next(one for one in self.equations if one.name in self.held)
                raise first.place.refuse("(unless refractory) needs a refractory time, as refractory='2*ms'")
            return None, place
        if is_number(given):
            return ast.BinOp(ast.Constant(float(given)), ast.Mult(), ast.Name("ms", ast.Load())), place
        if not isinstance(given, str):
            raise InvalidType(f"refractory={given!r}: a time in ms, or text, as '5*ms', is expected")
        return parse_expression(given, place), place

    def _increase(self, receptor: str, spec: str) -> Increase:
        check_identifier(receptor, f"receptors: {receptor!r}")
        what = f"receptors[{receptor!r}]"
        if not isinstance(spec, str):
            raise InvalidType(
                f"{what}={spec!r}: the name of a variable, or an assignment as 'g += weight', is expected"
            )
        if spec.strip().isidentifier():
            return Increase(receptor, spec.strip(), ast.Constant(1.0), Place(what, spec.strip()))
        statements = parse_statements(spec, what)
        if len(statements) != 1:
            raise InvalidArgument(f"{what}: one assignment is expected, as 'g += weight'")
        target, tree, place = statements[0]
        refused = place.refuse(
            "an increase by a multiple of weight is expected, as `g += weight` or `v += weight*(e_syn - v)`; a "
            "receptor gets the sum of the weights of all spikes that arrive in a step"
        )
        algebra = Expressions({})
        try:
            if not (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub)):
                raise NotLinear
            if not (isinstance(tree.left, ast.Name) and tree.left.id == target):
                raise NotLinear
            factor, rest = algebra.linear(tree.right, WEIGHT)
            if factor is None or rest is not None:
                raise NotLinear
        except NotLinear:
            raise refused from None
        sign = ast.UnaryOp(ast.USub(), factor) if isinstance(tree.op, ast.Sub) else factor
        return Increase(receptor, target, sign, place)

    def _assigned(self) -> dict[str, Place]:
        found = {target: place for target, _, place in self.resets}
        return {**{one.target: one.place for one in self.increases}, **found}

    def _find_variables(self) -> None:
        given, assigned = self.given, self._assigned()
        for one in self.declarations:
            kind = {"differential": "state", "expression": "expression", "parameter": "parameter"}[one.kind]
            if (
                kind == "expression"
                and one.tree is not None
                and not any(self._is_value_name(n) for n in names_in(one.tree))
            ):
                kind = "parameter"  # numbers and units alone: a default
            if one.name == given.current and one.kind == "parameter":
                kind = "current"
            elif one.name in given.signals:
                kind = "signal"
            elif one.name in assigned and kind == "parameter":
                kind = "state"
            self._add(one.name, kind, one.unit, one.is_base, one.meaning, one.place)
        self._find_undeclared()
        for target, place in assigned.items():
            if target not in self.variables or self.variables[target].kind != "state":
                states = [one for one, found in self.variables.items() if found.kind == "state"]
                raise place.refuse(f"{target!r} cannot be assigned to; {near(target, states)}")
        self._find_defaults()

    def _is_value_name(self, one: str) -> bool:
        """Return True for a name that is neither a unit nor a number."""
        return one in self.declared or (named(one) is None and one not in NUMBERS)

    def _find_undeclared(self) -> None:
        given = self.given
        for one, place in self.names_used():
            if one in self.variables or one in ("t", "dt", "not_refractory", WEIGHT) or _is_noise(one):
                continue
            if one in given.signals:
                self._add(one, "signal", suffixed(one) or ONE, False, "", place)
            elif one in given.parameters:
                value = given.parameters[one]
                unit = suffixed(one) or ONE
                if isinstance(value, str):
                    _, unit = self._constant_text(value, Place(f"parameters[{one!r}]", value))
                self._add(one, "parameter", unit, True, "", place)
            elif one in {given.current, "current_pa"} and named(one) is None:
                self._add(one, "current", _PA, False, "", place)
            elif named(one) is None and one not in NUMBERS:
                known = dict.fromkeys([*self.variables, *given.parameters])
                raise place.refuse(
                    f"{one!r} is not known. Declare it, as `{one} : mV`, or give its value, as "
                    f"parameters={{{one!r}: '20*mV'}}; {near(one, known)}"
                )

    def names_used(self) -> list[tuple[str, Place]]:
        """Return the names that are used, each with the place of its first use."""
        places: dict[str, Place] = {}
        trees = [(one.tree, one.place) for one in self.declarations if one.tree is not None]
        trees += [(tree, place) for _, tree, place in self.resets]
        trees += [(one.factor, one.place) for one in self.increases]
        if self.threshold is not None:
            trees.append(self.threshold)
        if self.refractory_tree is not None:
            trees.append((self.refractory_tree, self.refractory_place))
        for tree, place in trees:
            written = sorted(
                (node.col_offset, node.id)
                for node in ast.walk(tree)
                if isinstance(node, ast.Name) and hasattr(node, "lineno")
            )
            for _, one in written:
                if one in names_in(tree):
                    places.setdefault(one, place)
        return list(places.items())

    def _add(self, one: str, kind: str, unit: Unit, is_base: bool, meaning: str, place: Place) -> None:
        """Add a variable, with a name that ends in its unit."""
        if kind == "current":
            stored, kept, declared = "current_pa", unit, None
            if unit.dimensions == _PA.dimensions:
                kept = _PA
            self.variables[one] = Variable(kind, stored, kept, declared, meaning, place)
            return
        chosen = suffix_unit(unit, is_base)
        own = suffixed(one)
        if kind == "expression":
            stored, kept = one, unit
        elif own is not None and own.dimensions == unit.dimensions:
            if not is_base and own.power != unit.power:
                raise place.refuse(f"the name {one!r} ends in another unit than the one that is declared. Change one.")
            stored, kept = one, own
        elif chosen is not None and kind != "signal":
            stored, kept = f"{one}_{chosen[0]}", chosen[1]
        else:
            stored, kept = one, unit
        if unit.dimensions != ONE.dimensions and not unit_of_name(stored) and kind != "expression":
            meaning = f"{meaning}, in {shown(kept)}" if meaning else f"in {shown(kept)}"
            kept = replace(kept, power=kept.power * 0)
        taken = {found.stored for found in self.variables.values()}
        if stored in taken or stored in RESERVED or stored in LANGUAGE or keyword.iskeyword(stored):
            raise place.refuse(f"{stored!r}, the name of {one!r} in the model, is taken. Choose another name.")
        self.variables[one] = Variable(kind, stored, kept, None if is_base and stored != one else kept, meaning, place)

    # --- values ---------------------------------------------------------------------------------------------

    def _constant_text(self, text: str, place: Place) -> tuple[float, Unit]:
        """Return a value of numbers and units, in ms, mV, pA, ..., and its unit."""
        tree = parse_expression(text, place)
        for one in names_in(tree):
            if self._is_value_name(one):
                raise place.refuse(f"{one!r} cannot be used here; write numbers and units, as '20*ms'")
        return self._constant(tree, place)

    def _constant(self, tree: ast.expr, place: Place) -> tuple[float, Unit]:
        unit = UnitCheck(lambda one: named(one) or ONE, place).unit(tree)
        made = Writer(Symbols({}, {}, {}, set()), set()).constant_of(tree)
        if made is None:
            raise place.refuse("a number is expected, as 20*ms")
        try:
            return float(DerivedConstants("equations", {"value": ast.unparse(made)}, set())({}, 1.0)["value"]), unit
        except InvalidArgument as error:
            raise place.refuse(str(error)) from None

    def _find_defaults(self) -> None:
        """Find the value of each parameter, in ms, mV, pA, ..."""
        given = self.given
        by_stored = {found.stored: one for one, found in self.variables.items()}
        for key, value in given.parameters.items():
            one = key if key in self.variables else by_stored.get(key)
            if one is None or self.variables[one].kind not in ("parameter", "state"):
                raise InvalidArgument(
                    f"parameters: no parameter {key!r} in the equations; {near(key, self.parameter_names())}"
                )
            if self.variables[one].kind == "state" and self.declared[one].kind == "differential":
                raise InvalidArgument(f"parameters: {key!r} is a variable. Give its initial value in initial=.")
            self.defaults[one] = self.value(one, key, value, "parameters"), self.variables[one].unit
        for one, found in self.variables.items():
            tree = self.declared[one].tree if one in self.declared else None
            if found.kind in ("parameter", "state") and one not in self.defaults:
                if tree is not None and self.declared[one].kind == "expression":
                    value, unit = self._constant(tree, self.declared[one].place)
                    self._check_dimensions(self.declared[one].place, tree, unit, self.declared[one].unit, one)
                    self.defaults[one] = value, unit
                elif found.kind == "parameter":
                    assert found.place is not None
                    raise found.place.refuse(
                        f"{one!r} has no value. Give one, as parameters={{{one!r}: ...}}, or write "
                        f"`{one} = ... : {self.declared[one].place.text.partition(':')[2].strip()}`."
                    )

    def value(self, one: str, key: str, value: object, what: str) -> float:
        """Return a value that was given for a variable, in ms, mV, pA, ..."""
        found = self.variables[one]
        if isinstance(value, str):
            place = Place(f"{what}[{key!r}]", value)
            number, unit = self._constant_text(value, place)
            self._check_dimensions(place, None, unit, found.unit, one, number)
            return number
        if not is_number(value):
            raise InvalidType(f"{what}: {key}={value!r}: a number, or text as '20*ms', is expected")
        if key != found.stored and found.declared is None:
            raise InvalidArgument(
                f"{what}: {key}={value!r}: the unit is not clear. Write '{float(value):g}*{shown(found.unit)}', or "
                f"give it as {found.stored}, which is in {shown(found.unit)}."
            )
        return float(value) * found.unit.factor

    def _check_dimensions(
        self, place: Place, tree: ast.expr | None, unit: Unit, wanted: Unit, one: str, number: float = 1.0
    ) -> None:
        zero = number == 0.0 or (isinstance(tree, ast.Constant) and tree.value == 0)
        if unit.dimensions != wanted.dimensions and not zero:
            raise place.refuse(f"{one!r} {is_in(wanted)}, but its value {is_in(unit)}")

    def parameter_names(self) -> list[str]:
        return [one for one, found in self.variables.items() if found.kind == "parameter"]

    # --- checks ---------------------------------------------------------------------------------------------

    def _find_noise(self) -> str | None:
        """Return the name of the noise that differential equations have, if any."""
        trees = [(tree, place) for _, tree, place in self.resets]
        trees += [(one.factor, one.place) for one in self.increases]
        trees += [self.threshold] if self.threshold is not None else []
        trees += [(self.refractory_tree, self.refractory_place)] if self.refractory_tree is not None else []
        for tree, place in trees:
            if any(_is_noise(one) for one in self.algebra.reads(tree)):
                raise place.refuse("xi can be used in differential equations only")
        found: dict[str, Place] = {}
        for one in self.declarations:
            if one.tree is not None:
                found |= {name: one.place for name in names_in(one.tree) if _is_noise(name) and name not in found}
        if len(found) > 1:
            raise list(found.values())[1].refuse(
                f"a second noise beside {next(iter(found))}: a neuron gets one random number for a step. Use one name."
            )
        return next(iter(found), None)

    def _check_cycles(self) -> None:
        done: set[str] = set()

        def visit(one: str, path: tuple[str, ...]) -> None:
            if one in path:
                place = self.declared[one].place
                raise place.refuse(f"sub-expressions depend on each other: {' -> '.join([*path, one])}")
            if one in done or self.variables[one].kind != "expression":
                return
            tree = self.declared[one].tree
            assert tree is not None
            for other in sorted(names_in(tree) & set(self.variables)):
                visit(other, (*path, one))
            done.add(one)

        for one in self.declared:
            visit(one, ())

    def unit_check(self, place: Place, weight: Unit | None = None) -> UnitCheck:
        def unit_of(one: str) -> Unit | str:
            if one in self.variables:
                return self.variables[one].unit
            if one in ("t", "dt"):
                return _MS
            if one == self.noise:
                return _MS.to_the(Fraction(-1, 2))
            if one == "not_refractory":
                return "bool"
            if one == WEIGHT and weight is not None:
                return weight
            found = named(one)
            if found is not None:
                return found
            if one in NUMBERS:
                return ONE
            raise place.refuse(f"{one!r} cannot be used here")

        return UnitCheck(unit_of, place)

    def _check_units(self) -> None:
        for one in self.declarations:
            if one.tree is not None:
                check = self.unit_check(one.place)
                if one.kind == "differential":
                    check.number(one.tree, one.unit * _MS.inverse(), f"d{one.name}/dt")
                else:
                    check.number(one.tree, one.unit, one.name)
        for target, tree, place in self.resets:
            self.unit_check(place).number(tree, self.variables[target].unit, target)
        for increase in self.increases:
            self.unit_check(increase.place).unit(increase.factor)
        if self.threshold is not None:
            tree, place = self.threshold
            self.unit_check(place).condition(tree)
        if self.refractory_tree is not None:
            check = self.unit_check(self.refractory_place)
            if not check.is_condition(self.refractory_tree):
                check.number(self.refractory_tree, _MS, "a refractory time")


def _is_noise(one: str) -> bool:
    return one == "xi" or one.startswith("xi_")


def check_identifier(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InvalidType(f"{what}: text is expected, not {type(text).__name__}")
    if (
        not (text.isascii() and text.isidentifier())
        or keyword.iskeyword(text)
        or text.startswith("_")
        or text in LANGUAGE
    ):
        raise InvalidArgument(f"{what}={text!r}: a name of letters, digits and _ is expected, which is not a keyword")
