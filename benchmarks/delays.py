"""Measure delivery of spikes over synapses of a source x distinct delays, and in a network of many small populations.

    python benchmarks/delays.py --workers 1,2

A synaptic event should cost about the same in every row. Where it does not, short segments (the synapses of a source
that are delivered together) show: see "Windows of delays" in docs/explanation/step.md. The rows of a table run one
after the other, so compare them on a quiet machine.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from neuraxis.network import FixedInDegree, FixedTotalNumber, Network, Normal, Uniform
from neuraxis.network.models import lif_delta, lif_exp
from neuraxis.simulation import Simulation

app = App(help=__doc__, version_flags=[])


def one_population(synapses: int, delays: int, neurons: int) -> Network:
    """Return a network in which each neuron has so many synapses, with about so many distinct delays.

    Inhibition is the same in sum for any number of synapses, and so are the rates.
    """
    network = Network(dt_ms=0.1, seed=1)
    model = lif_delta(tau_m_ms=20.0, e_rest_mv=0.0, v_threshold_mv=20.0, v_reset_mv=0.0)
    cells = network.population("cells", neurons, model, v_mv=Uniform(0.0, 20.0))
    delay = Uniform(0.1, 0.1 * delays) if delays > 1 else 1.5
    network.connect(cells, cells, FixedInDegree(synapses), weight=-20.0 / synapses, delay_ms=delay)
    network.poisson(cells, rate_hz=14_000.0, weight=0.1)
    return network


def areas(count: int, neurons: int, synapses: int) -> Network:
    """Return areas of eight populations each on a circle, with delays by distance and synapses onto all of them."""
    network = Network(dt_ms=0.1, seed=1)
    model = lif_exp(tau_m_ms=10.0, tau_syn_ms=0.5, refractory_ms=2.0)
    parts = [
        [network.population(f"{area}.{i}", neurons // (8 * count), model, v_mv=Normal(-58.0, 5.0)) for i in range(8)]
        for area in range(count)
    ]
    for a, sources in enumerate(parts):
        for b, targets in enumerate(parts):
            apart = min((a - b) % count, (b - a) % count)
            # Half of the synapses of a neuron are within its area.
            share = 0.5 if a == b else 0.5 / (count - 1)
            delay = 1.5 + 30.0 * apart / count
            for i, source in enumerate(sources):
                weight = -150.0 if i % 2 else 30.0
                for target in targets:
                    total = FixedTotalNumber(max(1, round(synapses * share / 8 * source.n)))
                    network.connect(source, target, total, weight=weight, delay_ms=Normal(delay, delay / 2, low=0.1))
    for area_parts in parts:
        for part in area_parts:
            network.poisson(part, rate_hz=12_000.0, weight=60.0)
    return network


def measure(name: str, network: Network, workers: int, time_ms: float) -> None:
    with Simulation(network, workers=workers, progress=False) as simulation:
        simulation.run(100.0)  # memory that is used for the first time costs more
        summary = simulation.run(time_ms)
    rate = summary.spikes / network.neuron_count / (time_ms * 1e-3)
    events = summary.synaptic_events / summary.run_seconds
    print(
        f"| {name} | {workers} | {rate:.0f} | {events:.2g} | {summary.run_seconds / (time_ms * 1e-3):.2g} "
        f"| {summary.bytes_per_synapse:.1f} | {summary.fingerprint} |",
        flush=True,
    )


@app.default
def main(
    *,
    workers: Annotated[str, Parameter(help="Numbers of workers, with commas.")] = "1",
    synapses: Annotated[str, Parameter(help="Synapses of a source, with commas.")] = "100,1000",
    delays: Annotated[str, Parameter(help="Distinct delays, with commas.")] = "1,50,500",
    neurons: Annotated[int, Parameter(help="Neurons of each network.")] = 10_000,
    count: Annotated[int, Parameter(help="Areas of eight populations; 0 leaves that network out.")] = 8,
    time_ms: Annotated[float, Parameter(help="Model time of each row, in ms.")] = 200.0,
) -> None:
    print("| network | workers | Hz | events a second | real-time factor | bytes a synapse | fingerprint |")
    print("|---|---|---|---|---|---|---|")
    for n in (int(one) for one in workers.split(",")):
        for per_source in (int(one) for one in synapses.split(",")):
            for distinct in (int(one) for one in delays.split(",")):
                network = one_population(per_source, distinct, neurons)
                measure(f"{per_source} synapses of a source, {distinct} delays", network, n, time_ms)
        if count:
            measure(f"{8 * count} populations", areas(count, neurons, 100), n, time_ms)


if __name__ == "__main__":
    app()
