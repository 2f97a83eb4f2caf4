"""Parameters of a neuron model: values with their defaults, units and meanings, printed as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neuraxis.arguments import FrozenDict, near, short_repr
from neuraxis.network.distributions import Distribution, Values
from neuraxis.notebook import html_table, text_table

__all__ = ["ParameterTable", "near_variable", "unit", "value_text"]

Number = float | int

_COLUMNS = ("name", "value", "default", "unit", "meaning")
_UNITS = {
    "ms": "ms", "s": "s", "hz": "Hz", "mv": "mV", "pa": "pA", "na": "nA", "pf": "pF", "nf": "nF", "ns": "nS",
    "us": "uS", "mohm": "MOhm",
}  # fmt: skip

# Names of NEST and PyNN whose counterparts here differ in more than the unit.
_ELSEWHERE = {
    "E_L": ("e_rest",), "V_m": ("v",), "V_th": ("v_threshold", "v_t"), "V_T": ("v_t", "v_threshold"), "cm": ("c_m",),
    "g_L": ("g_leak",), "t_ref": ("refractory",), "tau": ("tau_m",), "tau_refrac": ("refractory",),
    "tau_syn_E": ("tau_syn_ex",), "tau_syn_I": ("tau_syn_in",), "v_rest": ("e_rest",), "v_thresh": ("v_threshold",),
}  # fmt: skip


def near_variable(value: str, known: Iterable[str]) -> str:
    """End an error message about an unknown state or parameter, as `neuraxis.arguments.near`.

    A name that differs in case or in its unit alone is the closest one, and so is the counterpart of a name of NEST:

    >>> near_variable("tau", ["tau_m_ms", "tau_ms"])
    "did you mean 'tau_ms'? there is 'tau_m_ms', 'tau_ms'"
    >>> near_variable("V_th", ["v_mv", "v_threshold_mv"])
    "did you mean 'v_threshold_mv'? there is 'v_mv', 'v_threshold_mv'"
    """
    names = list(known)
    for stem in (value, *_ELSEWHERE.get(value, ())):
        same = [name for name in names if _stem(name) == _stem(stem)]
        if same:
            return f"did you mean {same[0]!r}? {near('', names)}"
    return near(value, names)


def _stem(name: str) -> str:
    lower = name.lower()
    return lower.rpartition("_")[0] if unit(lower) else lower


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
