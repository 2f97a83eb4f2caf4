"""Parameters of a neuron model: values with their defaults, units and meanings, printed as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuraxis.arguments import FrozenDict, short_repr
from neuraxis.network.distributions import Distribution, Values
from neuraxis.notebook import html_table, text_table

__all__ = ["ParameterTable", "unit", "value_text"]

Number = float | int

_COLUMNS = ("name", "value", "default", "unit", "meaning")
_UNITS = {
    "ms": "ms", "s": "s", "hz": "Hz", "mv": "mV", "pa": "pA", "na": "nA", "pf": "pF", "nf": "nF", "ns": "nS",
    "us": "uS", "mohm": "MOhm",
}  # fmt: skip


def unit(name: str) -> str:
    """Return the unit that a name ends in, as "mV" for `v_mv`; nothing for a number without a unit.

    >>> unit("tau_m_ms"), unit("c_m_pf"), unit("a")
    ('ms', 'pF', '')
    """
    return _UNITS.get(name.rpartition("_")[2], "") if "_" in name else ""


def value_text(value: Number | Distribution) -> str:
    """Return the text of a parameter in a table: a number, the range of an array, or a distribution.

    >>> from neuraxis.network import LogNormal
    >>> value_text(10.0), value_text(Values([8.0, 12.5, 9.0])), value_text(LogNormal(2.3, 0.2))
    ('10', '8 to 12.5', 'LogNormal(mu=2.3, sigma=0.2)')
    """
    if isinstance(value, Values):
        low, high = value.bounds()
        return f"{low:g} to {high:g}"
    return short_repr(value, "{:g}".format) if isinstance(value, Distribution) else f"{value:g}"


class ParameterTable(FrozenDict[str, Any]):
    """The values of a model's parameters by name, with defaults, units and meanings; it cannot be changed.

    Parameters
    ----------
    values : mapping of str to float, int or Distribution
        Values by name, in the units that the names end in; a distribution where neurons have different ones.
    defaults : mapping of str to float or int, optional
        Values that the model was defined with; by default `values`.
    meanings : mapping of str to str, optional
        A short phrase for each parameter; others have none.

    Examples
    --------
    >>> from neuraxis.network.models import izhikevich
    >>> izhikevich(d_mv=2.0).parameters
    name       value  default  unit  meaning
    a          0.02   0.02           rate of recovery of u, in 1/ms
    b          0.2    0.2            sensitivity of u to v
    c_mv       -65    -65      mV    potential after a spike
    d_mv       2      8        mV    increase of u by a spike
    v_peak_mv  30     30       mV    potential at which a spike is emitted
    >>> izhikevich.parameters["c_mv"]
    -65.0
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Number] | None = None,
        meanings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(values)
        self.defaults: Mapping[str, Number] = FrozenDict(values if defaults is None else defaults)
        self.meanings: Mapping[str, str] = FrozenDict(meanings or {})

    def changed(self, values: Mapping[str, Any]) -> ParameterTable:
        """Return a copy with other values for some parameters; the defaults stay."""
        return ParameterTable({**self, **values}, self.defaults, self.meanings)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), dict(self.defaults), dict(self.meanings))

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return name, value, default, unit and meaning of each parameter as text."""
        return [
            (name, value_text(value), f"{self.defaults[name]:g}", unit(name), self.meanings.get(name, ""))
            for name, value in self.items()
        ]

    def __repr__(self) -> str:
        return text_table(_COLUMNS, self.rows()) if self else "no parameters"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table("Parameters", _COLUMNS, self.rows())
