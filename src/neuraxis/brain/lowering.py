"""Conversion of a brain's description into a network that an executor can run.

Every region adds its populations. A pathway becomes projections, or a subscription if its target is a user's own
region. Sensors and effectors become populations whose rates can be set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from neuraxis.brain.region import Afferent, BuiltRegion, Region
from neuraxis.brain.regions.sources import rate_source
from neuraxis.brain.spec import PYTHON_KIND, BrainSpec, PathwaySpec, RegionSpec, is_outside, split_port
from neuraxis.errors import NeuraxisError, SpecError
from neuraxis.network import Network, Population, Projection
from neuraxis.network.grid import on_grid, to_steps
from neuraxis.network.models import spike_source
from neuraxis.simulation.python_populations import DataSubscription, PythonPopulation, SpikeSubscription

__all__ = ["Lowered", "Pathway", "lower"]

GO, NO_GO = "D1", "D2"  # populations whose rates add to and subtract from the value of an action
MARKER = "data"  # short name of the neuron that spikes when a user's own region sends data


@dataclass(frozen=True)
class Pathway:
    """A pathway of the brain and the projections that were made for it."""

    label: str
    source: str
    target: str
    source_population: Population
    delay_ms: float
    projections: tuple[Projection, ...]


@dataclass(frozen=True)
class Lowered:
    """The network of a brain, and the regions in it.

    Attributes
    ----------
    network : Network
        The network.
    regions : mapping of str to BuiltRegion
        Regions by name, sensors and effectors included, in the order of their populations.
    pathways : tuple of Pathway
        Pathways within the brain; Python populations subscribe to data from outside (`data_subscriptions`).
    python_populations : tuple of PythonPopulation
        The users' own regions.
    """

    network: Network
    regions: Mapping[str, BuiltRegion]
    pathways: tuple[Pathway, ...]
    python_populations: tuple[PythonPopulation, ...]

    def populations_of(self, region: str) -> list[Population]:
        return list(self.regions[region].populations.values())

    def population(self, name: str, where: str, field: str) -> Population:
        """Return the population called "region.short name"."""
        region, short = split_port(name)
        known = self.regions[region].populations
        if short not in known:
            raise SpecError(f"region {region!r} has no population {short!r}; it has {', '.join(known)}", where, field)
        return known[short]

    @property
    def uncut(self) -> set[int]:
        """Populations of users' own regions, each of which runs in one process as a whole."""
        return {index for one in self.python_populations for index in (one.population, one.marker)}

    @property
    def groups(self) -> list[list[int]]:
        """Populations of each region, which are best placed on the same worker."""
        return [[one.index for one in region.populations.values()] for region in self.regions.values()]


def lower(spec: BrainSpec, batch_steps: int = 1, where: str = "brain") -> Lowered:
    """Build the network of a validated description; `where` is the prefix of errors."""
    network = Network(dt_ms=spec.dt_ms, seed=spec.seed)
    for name, rhythm in spec.rhythms.items():
        network.rhythm(name, rhythm.frequency_hz, rhythm.phase, rhythm.floor)
    for name, modulator in spec.neuromodulators.items():
        network.neuromodulator(name, modulator.baseline, modulator.tau_ms)
        on_grid(modulator.delay_ms, spec.dt_ms, f"neuromodulator {name!r}: delay_ms")  # warns
    for name, effector in spec.effectors.items():
        on_grid(effector.duration_ms, spec.dt_ms, f"effector {name!r}: duration_ms")  # warns
    built: dict[str, BuiltRegion] = {}
    made: dict[str, Region] = {}
    for name, sensor in spec.sensors.items():
        built[name] = _sources(network, name, "sensor", sensor.neurons, sensor.groups)
    for name, region in spec.regions.items():
        if region.kind == PYTHON_KIND:
            built[name] = _python_region(network, name, region)
        else:
            made[name] = _create(name, region, where)
            built[name] = made[name].build(network, name)
    for name, effector in spec.effectors.items():
        if GO not in built[effector.region].populations:
            raise SpecError(
                f"region {effector.region!r} has no population {GO!r} to read actions from; choose a striatum",
                where,
                f"effectors.{name}.region",
            )
        groups = built[effector.region].groups
        if groups != effector.actions:
            raise SpecError(f"must be {groups}, as in region {effector.region!r}", where, f"effectors.{name}.actions")
        built[name] = _sources(network, name, "effector", effector.neurons, effector.actions)
    subscriptions: dict[str, list[SpikeSubscription]] = {name: [] for name in spec.regions}
    pathways = []
    for index, pathway in enumerate(spec.pathways):
        if is_outside(pathway.source):
            continue
        try:
            pathways.append(_connect(network, spec, pathway, built, made, subscriptions))
        except SpecError:
            raise
        except NeuraxisError as error:
            raise SpecError(str(error), where, f"pathways[{index}] ({pathway.label})") from error
    python_populations = tuple(
        _python_population(spec, name, region, built[name], subscriptions[name], batch_steps)
        for name, region in spec.regions.items()
        if region.kind == PYTHON_KIND
    )
    # `Region.receive` may have added populations.
    for population in network.populations:
        name, short = split_port(population.name)
        if short not in built[name].populations:
            built[name] = replace(built[name], populations={**built[name].populations, short: population})
    lowered = Lowered(network, built, tuple(pathways), python_populations)
    for name, modulator in spec.neuromodulators.items():
        for i, source in enumerate(modulator.sources):
            field = f"neuromodulators.{name}.sources[{i}].population"
            population = lowered.population(source.population, where, field)
            network.modulate(population, name, source.amount, source.delay_ms)
    return lowered


def _create(name: str, region: RegionSpec, where: str) -> Region:
    from neuraxis.brain.regions import REGION_CREATORS

    if region.device != "cpu":
        raise SpecError(
            f"{region.device!r}: only regions of kind 'python' have a device of their own; set that of all neurons "
            "with Brain(..., device=...) or --device",
            where,
            f"regions.{name}.device",
        )
    try:
        return REGION_CREATORS[region.kind](region.config, region.device)
    except SpecError:
        raise
    except NeuraxisError as error:
        raise SpecError(str(error), where, f"regions.{name}.config") from error


def _sources(network: Network, name: str, kind: str, neurons: int, groups: int) -> BuiltRegion:
    population = network.population(f"{name}.cells", neurons, rate_source)
    return BuiltRegion(name, kind, {"cells": population}, (), ("cells",), groups=groups)


def _python_region(network: Network, name: str, region: RegionSpec) -> BuiltRegion:
    cells = network.population(f"{name}.cells", region.neurons or 1, spike_source)
    mark = network.population(f"{name}.{MARKER}", 1, spike_source)
    return BuiltRegion(
        name, PYTHON_KIND, {"cells": cells, MARKER: mark}, ("cells",), ("cells",), groups=region.groups or 1
    )


def _connect(
    network: Network,
    spec: BrainSpec,
    pathway: PathwaySpec,
    built: Mapping[str, BuiltRegion],
    made: Mapping[str, Region],
    subscriptions: Mapping[str, list[SpikeSubscription]],
) -> Pathway:
    (source, out), (target, into) = split_port(pathway.source), split_port(pathway.target)
    start = built[source]
    population = start.output(out)
    projections: list[Projection] = []
    if target in made:
        afferent = Afferent(
            name=pathway.label,
            source=population,
            source_groups=start.groups,
            delay_ms=pathway.delay_ms,
            port=into,
            weight=pathway.weight,
            in_degree=pathway.in_degree,
            probability=pathway.probability,
            topographic=pathway.topographic,
            plasticity=pathway.plasticity,
            options=pathway.options,
        )
        built[target].input(into)  # raises for an unknown port, with the known ones
        projections = made[target].receive(network, built[target], afferent)
    else:
        delay = _steps(pathway.delay_ms, spec, f"pathway {pathway.label!r}: delay_ms")
        subscriptions[target].append(SpikeSubscription(population.index, pathway.source, delay))
        if start.kind == PYTHON_KIND:
            subscriptions[target].append(SpikeSubscription(start.populations[MARKER].index, pathway.source, delay))
    return Pathway(pathway.label, source, target, population, pathway.delay_ms, tuple(projections))


def _python_population(
    spec: BrainSpec,
    name: str,
    region: RegionSpec,
    built: BuiltRegion,
    subscriptions: list[SpikeSubscription],
    batch_steps: int,
) -> PythonPopulation:
    assert region.create is not None
    population = PythonPopulation(
        name=name,
        create=region.create,
        population=built.populations["cells"].index,
        marker=built.populations[MARKER].index,
        config=msgspec.to_builtins(region.config),  # a copy, which the region may change
        subscriptions=tuple(subscriptions),
        data_subscriptions=tuple(
            DataSubscription(pathway.source, _steps(pathway.delay_ms, spec, f"pathway {pathway.label!r}: delay_ms"))
            for pathway in spec.outside_pathways()
            if split_port(pathway.target)[0] == name
        ),
        batch_steps=batch_steps,
        device=region.device,
    )
    if region.tick_ms is not None:
        population = replace(population, tick_steps=_steps(region.tick_ms, spec, f"region {name!r}: tick_ms"))
    return population


def _steps(ms: float, spec: BrainSpec, name: str) -> int:
    """Convert a time in ms to steps; warn if it has to be rounded."""
    return to_steps(on_grid(ms, spec.dt_ms, name), spec.dt_ms, name)
