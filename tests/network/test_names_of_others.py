"""Names that users of NEST, PyNN and Brian2 try first: the error has the name that works here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import AllToAll, Network, Population
from neuraxis.network.models import adex, lif_alpha
from neuraxis.simulation import Simulation

Attempt = Callable[[Network, Population], Any]

ATTEMPTS: list[tuple[Attempt, type[Exception], str]] = [
    (lambda _, e: lif_alpha(tau_m=10.0), InvalidArgument, "did you mean 'tau_m_ms'"),
    (lambda _, e: lif_alpha(C_m=250.0), InvalidArgument, "did you mean 'c_m_pf'"),
    (lambda _, e: lif_alpha(E_L=-70.0), InvalidArgument, "did you mean 'e_rest_mv'"),
    (lambda _, e: lif_alpha(V_th=-50.0), InvalidArgument, "did you mean 'v_threshold_mv'"),
    (lambda _, e: lif_alpha(t_ref=2.0), InvalidArgument, "did you mean 'refractory_ms'"),
    (lambda _, e: lif_alpha(v_mv=-60.0), InvalidArgument, r"v_mv is a state.*network.population\(\.\.\., v_mv="),
    (lambda _, e: adex(V_th=-50.0), InvalidArgument, "did you mean 'v_t_mv'"),
    (lambda _, e: adex(g_L=30.0), InvalidArgument, "did you mean 'g_leak_ns'"),
    (lambda n, _: n.population("x", 3, lif_alpha(), V_m=-60.0), InvalidArgument, "did you mean 'v_mv'"),
    (lambda n, _: n.population("x", 3, lif_alpha(), v=-60.0), InvalidArgument, "did you mean 'v_mv'"),
    (lambda n, _: n.population("x", 3, lif_alpha(), tau_m_ms=9.0), InvalidArgument, r"Pass lif_alpha\(tau_m_ms="),
    (lambda n, _: n.population("x", 3, "iaf_psc_alpha"), InvalidType, "neuraxis models iaf_psc_alpha"),  # type: ignore[arg-type]
    (lambda n, e: n.record(e, "V_m"), InvalidArgument, "did you mean 'v_mv'"),
    (lambda n, e: n.connect(e, e, "all_to_all", weight=1.0), InvalidType, "did you mean 'AllToAll'"),  # type: ignore[arg-type]
    (lambda n, e: n.connect(e, e, "fixed_indegree", weight=1.0), InvalidType, "did you mean 'FixedInDegree'"),  # type: ignore[arg-type]
    (lambda n, e: n.connect(e, e, AllToAll, weight=1.0), InvalidType, "not the class itself"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("attempt", "error", "text"), ATTEMPTS, ids=[text for _, _, text in ATTEMPTS])
def test_a_name_of_another_simulator_leads_to_the_name_here(
    attempt: Attempt, error: type[Exception], text: str
) -> None:
    network = Network()
    with pytest.raises(error, match=text):
        attempt(network, network.population("E", 5, lif_alpha()))


def test_a_parameter_of_an_open_simulation_is_not_taken_for_a_state() -> None:
    network = Network()
    network.population("E", 5, lif_alpha())
    with Simulation(network) as simulation:
        with pytest.raises(InvalidArgument, match="tau_m_ms is a parameter of 'E'"):
            simulation.set_state("E", "tau_m_ms", 9.0)
        with pytest.raises(InvalidArgument, match="did you mean 'v_mv'"):
            simulation.state("E", "V_m")
