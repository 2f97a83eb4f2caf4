"""Units of equations: dimensions and powers of ten, and the units that a text may name.

Equations are computed in ms, mV and pA and what follows from them: nS, pF, GOhm and kHz. In these units no product of
two quantities needs a factor. A `Unit` says which power of ten converts it to them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from neuraxis.arguments import near
from neuraxis.errors import InvalidArgument

__all__ = ["NAMED", "ONE", "Dimensions", "Unit", "is_in", "named", "parse_unit", "shown", "suffix_unit", "suffixed"]

# Exponents of time, voltage, current, length, temperature and amount of substance.
Dimensions = tuple[Fraction, ...]


@dataclass(frozen=True)
class Unit:
    """A unit: dimensions, and the power of ten that converts it to ms, mV, pA, m, K and mol.

    >>> NAMED["volt"].factor, NAMED["mV"] == NAMED["nS"].inverse() * NAMED["pA"]
    (1000.0, True)
    """

    dimensions: Dimensions
    power: Fraction = Fraction(0)

    def __mul__(self, other: Unit) -> Unit:
        added = tuple(a + b for a, b in zip(self.dimensions, other.dimensions, strict=True))
        return Unit(added, self.power + other.power)

    def inverse(self) -> Unit:
        """Return 1 / this unit."""
        return self.to_the(Fraction(-1))

    def to_the(self, exponent: Fraction) -> Unit:
        """Return a power of this unit."""
        return Unit(tuple(one * exponent for one in self.dimensions), self.power * exponent)

    @property
    def factor(self) -> float:
        """Number by which a value in this unit is multiplied to get it in ms, mV, pA, ..."""
        if self.power.denominator == 1:
            return float(Fraction(10) ** int(self.power))
        return float(10.0 ** float(self.power))


def _unit(*exponents: int, power: int = 0) -> Unit:
    complete = [*exponents, *[0] * (6 - len(exponents))]
    return Unit(tuple(Fraction(one) for one in complete), Fraction(power))


ONE = _unit()
_TIME, _VOLT, _AMP, _METRE = _unit(1, power=3), _unit(0, 1, power=3), _unit(0, 0, 1, power=12), _unit(0, 0, 0, 1)
_JOULE = _VOLT * _AMP * _TIME
_MOLE = _unit(0, 0, 0, 0, 0, 1)

# Names that take any prefix, and the short form, which needs one in expressions: "volt", "mvolt", "mV".
_LONG: dict[str, Unit] = {
    "second": _TIME,
    "volt": _VOLT,
    "amp": _AMP,
    "ampere": _AMP,
    "siemens": _AMP * _VOLT.inverse(),
    "farad": _AMP * _TIME * _VOLT.inverse(),
    "ohm": _VOLT * _AMP.inverse(),
    "hertz": _TIME.inverse(),
    "coulomb": _AMP * _TIME,
    "metre": _METRE,
    "meter": _METRE,
    "gram": Unit((_JOULE * _TIME * _TIME * _METRE.to_the(Fraction(-2))).dimensions, _JOULE.power + 2 * _TIME.power - 3),
    "joule": _JOULE,
    "watt": _JOULE * _TIME.inverse(),
    "kelvin": _unit(0, 0, 0, 0, 1),
    "mole": _MOLE,
    "molar": _MOLE * _METRE.to_the(Fraction(-3)) * Unit(ONE.dimensions, Fraction(3)),
}
_SHORT = {
    "s": "second", "V": "volt", "A": "amp", "S": "siemens", "F": "farad", "Ohm": "ohm", "Hz": "hertz", "C": "coulomb",
    "J": "joule", "W": "watt", "M": "molar", "mol": "mole",
}  # fmt: skip
_PREFIXES = {"f": -15, "p": -12, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9}
_LENGTHS = {"mm": -3, "um": -6, "nm": -9, "cm": -2}
_ONE_LETTER = {"s": "second", "V": "volt", "A": "amp", "S": "siemens", "F": "farad", "m": "metre", "K": "kelvin"}


def _named_units() -> dict[str, Unit]:
    found = {"Hz": _LONG["hertz"], "mol": _LONG["mole"], "Ohm": _LONG["ohm"], **_LONG}
    for prefix, power in _PREFIXES.items():
        scale = Unit(ONE.dimensions, Fraction(power))
        found |= {prefix + name: unit * scale for name, unit in _LONG.items()}
        found |= {prefix + short: _LONG[name] * scale for short, name in _SHORT.items()}
    for name, power in _LENGTHS.items():
        length = _METRE * Unit(ONE.dimensions, Fraction(power))
        found |= {name: length, f"{name}2": length.to_the(Fraction(2)), f"{name}3": length.to_the(Fraction(3))}
    found["cmetre"] = found["cmeter"] = found["cm"]
    return found


NAMED: dict[str, Unit] = _named_units()

# The units that a name can end in, as everywhere in neuraxis; the first of a dimension is used for base units ("volt").
_SUFFIXES = {
    "ms": "ms", "mv": "mV", "pa": "pA", "ns": "nS", "pf": "pF", "hz": "Hz", "mohm": "MOhm", "na": "nA", "nf": "nF",
    "us": "uS", "s": "second",
}  # fmt: skip
_COMMON = ["ms", "mV", "pA", "nS", "pF", "MOhm", "mV/ms", "pA/ms", "nS/ms", "1/ms", "1/mV", "fC", "um"]


def named(name: str) -> Unit | None:
    """Return the unit that an expression means by a name, if it is one."""
    return NAMED.get(name)


def suffixed(name: str) -> Unit | None:
    """Return the unit that a name ends in, as mV for "v_mv"; None if it has none."""
    suffix = name.rpartition("_")[2] if "_" in name else ""
    return NAMED[_SUFFIXES[suffix]] if suffix in _SUFFIXES else None


def suffix_unit(unit: Unit, is_base: bool) -> tuple[str, Unit] | None:
    """Return the ending of names for a unit and the unit that it stands for; None if names have none for it.

    A base unit, as volt, becomes the unit that neuraxis uses, as mV; others are kept.
    """
    for suffix, name in _SUFFIXES.items():
        if NAMED[name].dimensions == unit.dimensions and (is_base or NAMED[name].power == unit.power):
            return suffix, NAMED[name]
    return None


def is_base_unit(text: str) -> bool:
    """Return True for a unit without a prefix, as volt, which is not a convenient one for neurons."""
    text = text.strip()
    return text in _ONE_LETTER or (text in _LONG and text != "hertz")


def shown(unit: Unit) -> str:
    """Return a unit as text: "mV", "mV/ms", "ms^-0.5"; "no unit" for a number."""
    if unit.dimensions == ONE.dimensions:
        return "no unit"
    for name in _COMMON:
        if parse_unit(name).dimensions == unit.dimensions:
            return name
    bases = zip(("ms", "mV", "pA", "m", "K", "mol"), unit.dimensions, strict=True)
    return " ".join(name if power == 1 else f"{name}^{float(power):g}" for name, power in bases if power)


def is_in(unit: Unit) -> str:
    """Return the end of a sentence: "is in mV", or "has no unit"."""
    return "has no unit" if unit.dimensions == ONE.dimensions else f"is in {shown(unit)}"


def parse_unit(text: str, refuse: Callable[[str], InvalidArgument] | None = None) -> Unit:
    """Return the unit that a text stands for, as "mV", "siemens/meter**2" or "1".

    Raises
    ------
    InvalidArgument
        The text is not a unit.
    """
    refuse = refuse or InvalidArgument
    if len(text) > 200:
        raise refuse(f"{text[:40]!r}... is too long for a unit")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refuse(f"{text.strip()!r} is not a unit; write mV, ms, pA, nS, pF, Hz, 1, or mV/ms") from None
    return _parsed(tree, text, refuse)


def _parsed(node: ast.expr, text: str, refuse: Callable[[str], InvalidArgument]) -> Unit:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 1:
        return ONE
    if isinstance(node, ast.Name):
        unit = NAMED.get(_ONE_LETTER.get(node.id, node.id))
        if unit is None:
            raise refuse(f"{node.id!r} is not a unit; {near(node.id, ['ms', 'mV', 'pA', 'nS', 'pF', 'Hz', '1'])}")
        return unit
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        a, b = _parsed(node.left, text, refuse), _parsed(node.right, text, refuse)
        return a * (b if isinstance(node.op, ast.Mult) else b.inverse())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        sign, exponent = 1, node.right
        if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
            sign, exponent = -1, exponent.operand
        value = exponent.value if isinstance(exponent, ast.Constant) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 8:
            return _parsed(node.left, text, refuse).to_the(sign * Fraction(value).limit_denominator(12))
    raise refuse(f"{text.strip()!r} is not a unit; write mV, ms, pA, nS, pF, Hz, 1, or mV/ms")
