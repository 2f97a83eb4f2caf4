"""A network as text: what there is, how large, and how many synapses to expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neuraxis.network.distributions import Constant, Values
from neuraxis.network.rules import Explicit

if TYPE_CHECKING:
    from neuraxis.network.inputs import CurrentInput, PoissonInput
    from neuraxis.network.network import Network
    from neuraxis.network.probes import Probe

__all__ = ["brief", "describe"]

Rows = list[Sequence[str]]


def describe(network: Network) -> str:
    """The network as tables, one for each kind of part that it has."""
    synapses = sum(projection.expected_synapses for projection in network.projections)
    head = (
        f"Network: {network.neuron_count:,} neurons in {len(network.populations)} populations, "
        f"about {synapses:,.0f} synapses in {len(network.projections)} projections; "
        f"dt {network.dt_ms:g} ms, seed {network.seed}"
    )
    parts = [head, *_populations(network), *_projections(network), *_inputs(network)]
    parts += [*_probes(network), *_neuromodulators(network), *_rhythms(network)]
    return "\n\n".join(parts)


def brief(value: Any) -> str:
    """A description without what is as it is by default; a constant is its number."""
    if isinstance(value, Constant):
        return f"{value.value:g}"
    if isinstance(value, Values | Explicit):
        return repr(value)
    fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
    given = [f"{field.name}={_short(part)}" for field, part in fields if part != field.default]
    return f"{type(value).__name__}({', '.join(given)})"


def _populations(network: Network) -> Iterable[str]:
    rows: Rows = [(one.name, f"{one.n:,}", str(one.model)) for one in network.populations]
    return _section("populations", ("name", "neurons", "model"), rows)


def _projections(network: Network) -> Iterable[str]:
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
    return _section("projections", columns, rows)


def _inputs(network: Network) -> Iterable[str]:
    rows: Rows = [
        ("poisson", one.population.name, f"{_amount(one.rate_hz)} Hz, weight {one.weight:g}", one.receptor, _when(one))
        for one in network.poisson_inputs
    ]
    rows += [("spikes", one.population.name, f"{one.ids.size:,} spikes", "-", "-") for one in network.spike_inputs]
    rows += [
        ("current", one.population.name, f"{_amount(one.amplitude_pa)} pA", "-", _when(one))
        for one in network.current_inputs
    ]
    return _section("inputs", ("kind", "population", "what", "receptor", "when"), rows)


def _probes(network: Network) -> Iterable[str]:
    rows: Rows = [(one.population.name, one.what, f"{one.n:,}", _how_often(one)) for one in network.probes]
    return _section("probes", ("population", "what", "neurons", "every"), rows)


def _neuromodulators(network: Network) -> Iterable[str]:
    rows: Rows = []
    for one in network.neuromodulators:
        raised_by = [
            f"{by.population.name} ({by.amount:+g} after {by.delay_ms:g} ms)"
            for by in network.modulations
            if by.modulator.index == one.index
        ]
        rows.append((one.name, f"{one.baseline:g}", f"{one.tau_ms:g}", ", ".join(raised_by) or "-"))
    return _section("neuromodulators", ("name", "baseline", "tau_ms", "changed by"), rows)


def _rhythms(network: Network) -> Iterable[str]:
    rows: Rows = [(one.name, f"{one.frequency_hz:g}", f"{one.phase:g}", f"{one.floor:g}") for one in network.rhythms]
    return _section("rhythms", ("name", "frequency_hz", "phase", "floor"), rows)


def _section(title: str, columns: Sequence[str], rows: Rows) -> Iterable[str]:
    """A table under its title, or nothing where there are no rows."""
    if not rows:
        return
    lines = [columns, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    text = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    yield "\n".join([title, *text])


def _when(given: PoissonInput | CurrentInput) -> str:
    return f"from {given.start_ms:g} ms" + ("" if given.stop_ms is None else f" to {given.stop_ms:g} ms")


def _how_often(probe: Probe) -> str:
    return "spike" if probe.every_ms is None else f"{probe.every_ms:g} ms"


def _amount(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.min():g} to {value.max():g}"
    return f"{value:g}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)
