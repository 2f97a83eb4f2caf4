"""The printed form of a network: a summary line, and a table for each kind of part."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from neuraxis.arguments import short_repr
from neuraxis.network.devices import CurrentInput, PoissonInput, Probe
from neuraxis.network.distributions import Constant, Values
from neuraxis.network.rules import Explicit
from neuraxis.notebook import html_table, text_table

if TYPE_CHECKING:
    from neuraxis.network.network import Network

__all__ = ["brief", "describe", "describe_html"]

Rows = list[Sequence[str]]
Table = tuple[str, Sequence[str], Rows]  # title, names of the columns, rows


def describe(network: Network) -> str:
    """Return the network as text: a summary line and a table for each kind of part."""
    parts = [_summary(network)]
    for title, columns, rows in _tables(network):
        parts.append(f"{title}\n{textwrap.indent(text_table(columns, rows), '  ')}")
    return "\n\n".join(parts)


def describe_html(network: Network) -> str:
    """Return what `describe` shows as HTML, for notebooks."""
    tables = [html_table(title, columns, rows) for title, columns, rows in _tables(network)]
    return "".join([f"<p>{escape(_summary(network))}</p>", *tables])


def brief(value: Any) -> str:
    """Return the text of a distribution or rule in a table: a constant as its number, floats with six digits."""
    if isinstance(value, Constant):
        return f"{value.value:g}"
    if isinstance(value, Values | Explicit):
        return repr(value)
    return short_repr(value, "{:g}".format)


def _summary(network: Network) -> str:
    projections = [*network.projections, *network.rate_projections]
    synapses = sum(projection.expected_synapses for projection in projections)
    return (
        f"Network: {_count(network.neuron_count, 'neuron')} in {_count(len(network.populations), 'population')}, "
        f"about {_count(round(synapses), 'synapse')} in {_count(len(projections), 'projection')}; "
        f"dt {network.dt_ms:g} ms, seed {network.seed}{', float64' if network.is_wide else ''}"
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _tables(network: Network) -> list[Table]:
    """Return the tables that have rows."""
    makers = (_populations, _projections, _rate_projections, _inputs, _probes, _neuromodulators, _rhythms)
    return [table for make in makers if (table := make(network))[2]]


def _populations(network: Network) -> Table:
    rows: Rows = [(one.name, f"{one.n:,}", str(one.model)) for one in network.populations]
    return "populations", ("name", "neurons", "model"), rows


def _projections(network: Network) -> Table:
    columns = ("name", "rule", "weight", "delay_ms", "receptor", "synapses", "plasticity")
    rows: Rows = [
        (
            one.name,
            brief(one.rule),
            brief(one.weight),
            brief(one.delay_ms),
            one.receptor,
            f"{one.expected_synapses:,.0f}",
            " + ".join(brief(rule) for rule in one.plasticity) or "-",
        )
        for one in network.projections
    ]
    return "projections", columns, rows


def _rate_projections(network: Network) -> Table:
    columns = ("name", "rule", "weight", "delay_ms", "input", "synapses")
    rows: Rows = [
        (
            one.name,
            brief(one.rule),
            brief(one.weight),
            brief(one.delay_ms),
            one.receptor,
            f"{one.expected_synapses:,.0f}",
        )
        for one in network.rate_projections
    ]
    return "rate projections", columns, rows


def _inputs(network: Network) -> Table:
    rows: Rows = [
        ("poisson", one.population.name, f"{_amount(one.rate_hz)} Hz, weight {one.weight:g}", one.receptor, _when(one))
        for one in network.poisson_inputs
    ]
    rows += [("spikes", one.population.name, f"{one.ids.size:,} spikes", "-", "-") for one in network.spike_inputs]
    rows += [
        ("current", one.population.name, f"{_amount(one.amplitude_pa)} pA", "-", _when(one))
        for one in network.current_inputs
    ]
    return "inputs", ("kind", "population", "what", "receptor", "when"), rows


def _probes(network: Network) -> Table:
    rows: Rows = [(one.population.name, one.what, f"{one.n:,}", _how_often(one)) for one in network.probes]
    return "probes", ("population", "what", "neurons", "every"), rows


def _neuromodulators(network: Network) -> Table:
    rows: Rows = []
    for one in network.neuromodulators:
        raised_by = [
            f"{by.population.name} ({by.amount:+g} after {by.delay_ms:g} ms)"
            for by in network.modulations
            if by.modulator.index == one.index
        ]
        rows.append((one.name, f"{one.baseline:g}", f"{one.tau_ms:g}", ", ".join(raised_by) or "-"))
    return "neuromodulators", ("name", "baseline", "tau_ms", "changed by"), rows


def _rhythms(network: Network) -> Table:
    rows: Rows = [(one.name, f"{one.frequency_hz:g}", f"{one.phase:g}", f"{one.floor:g}") for one in network.rhythms]
    return "rhythms", ("name", "frequency_hz", "phase", "floor"), rows


def _when(given: PoissonInput | CurrentInput) -> str:
    return f"from {given.start_ms:g} ms" + ("" if given.stop_ms is None else f" to {given.stop_ms:g} ms")


def _how_often(probe: Probe) -> str:
    return "spike" if probe.every_ms is None else f"{probe.every_ms:g} ms"


def _amount(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.min():g} to {value.max():g}"
    return f"{value:g}"
