"""From the description of a brain to a network that an executor can run.

Every region adds its populations, pathways become projections (or, where they end in a user's own region, what that
region hears), sensors and effectors become populations whose rates can be set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neuraxis.brain.models.sources import rate_source
from neuraxis.brain.region import Afferent, BuiltRegion, Region
from neuraxis.brain.spec import PYTHON_KIND, BrainSpec, PathwaySpec, RegionSpec, is_outside, split_port
from neuraxis.errors import NeuraxisError, SpecError
from neuraxis.execution.admission import Admission
from neuraxis.execution.resident import Hearing, Resident
from neuraxis.network import Network, Population, Projection
from neuraxis.network.grid import to_steps
from neuraxis.network.models import spike_source

__all__ = ["Lowered", "Pathway", "lower"]

FOR, AGAINST = "D1", "D2"  # cells that speak for and against actions
MARK = "data"  # the short name of the neuron that spikes when a user's own region sends data


@dataclass(frozen=True)
class Pathway:
    """A pathway of the brain and the projections that it became."""

    label: str
    source: str
    target: str
    source_population: Population
    delay_ms: float
    projections: tuple[Projection, ...]


@dataclass(frozen=True)
class Lowered:
    """A brain as a network.

    Attributes:
        regions: by name, sensors and effectors included, in the order of their populations.
        pathways: those within the brain; what comes from outside is in the residents' `admits`.
        residents: the users' own regions.
    """

    network: Network
    regions: Mapping[str, BuiltRegion]
    pathways: tuple[Pathway, ...]
    residents: tuple[Resident, ...]

    def populations_of(self, region: str) -> list[Population]:
        return list(self.regions[region].populations.values())

    def population(self, name: str, where: str, field: str) -> Population:
        """The population called "region.short name"."""
        region, short = split_port(name)
        known = self.regions[region].populations
        if short not in known:
            raise SpecError(f"region {region!r} has no population {short!r}; it has {', '.join(known)}", where, field)
        return known[short]

    @property
    def kept_whole(self) -> set[int]:
        """The populations of users' own regions, which live in one process."""
        return {index for one in self.residents for index in (one.population, one.mark)}

    @property
    def groups(self) -> list[list[int]]:
        """The populations of each region: what is best kept together."""
        return [[one.index for one in region.populations.values()] for region in self.regions.values()]


def lower(spec: BrainSpec, batch_steps: int = 1, where: str = "brain") -> Lowered:
    """Make the network of a brain that was validated; `where` is what errors begin with."""
    network = Network(dt_ms=spec.dt_ms, seed=spec.seed)
    for name, rhythm in spec.rhythms.items():
        network.rhythm(name, rhythm.frequency_hz, rhythm.phase, rhythm.floor)
    for name, modulator in spec.neuromodulators.items():
        network.neuromodulator(name, modulator.baseline, modulator.tau_ms)
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
        if FOR not in built[effector.region].populations:
            raise SpecError(
                f"region {effector.region!r} has no cells {FOR!r} that speak for actions",
                where,
                f"effectors.{name}.region",
            )
        groups = built[effector.region].groups
        if groups != effector.actions:
            raise SpecError(f"region {effector.region!r} has {groups} actions", where, f"effectors.{name}.actions")
        built[name] = _sources(network, name, "effector", effector.neurons, effector.actions)
    hears: dict[str, list[Hearing]] = {name: [] for name in spec.regions}
    pathways = []
    for index, pathway in enumerate(spec.pathways):
        if is_outside(pathway.source):
            continue
        try:
            pathways.append(_connect(network, spec, pathway, built, made, hears))
        except SpecError:
            raise
        except NeuraxisError as error:
            raise SpecError(str(error), where, f"pathways[{index}] ({pathway.label})") from error
    residents = tuple(
        _resident(spec, name, region, built[name], hears[name], batch_steps)
        for name, region in spec.regions.items()
        if region.kind == PYTHON_KIND
    )
    # A region may have added populations while pathways were connected to it.
    for population in network.populations:
        name, short = split_port(population.name)
        if short not in built[name].populations:
            built[name] = replace(built[name], populations={**built[name].populations, short: population})
    lowered = Lowered(network, built, tuple(pathways), residents)
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
            f"{region.device!r}: only regions of kind 'python' have a device of their own; say for all neurons where "
            "they are: Brain(..., device=...), --device",
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
    mark = network.population(f"{name}.{MARK}", 1, spike_source)
    return BuiltRegion(
        name, PYTHON_KIND, {"cells": cells, MARK: mark}, ("cells",), ("cells",), groups=region.groups or 1
    )


def _connect(
    network: Network,
    spec: BrainSpec,
    pathway: PathwaySpec,
    built: Mapping[str, BuiltRegion],
    made: Mapping[str, Region],
    hears: Mapping[str, list[Hearing]],
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
        built[target].input(into)  # says which ports there are
        projections = made[target].receive(network, built[target], afferent)
    else:
        delay = to_steps(pathway.delay_ms, spec.dt_ms, "delay_ms")
        hears[target].append(Hearing(population.index, pathway.source, delay))
        if start.kind == PYTHON_KIND:
            hears[target].append(Hearing(start.populations[MARK].index, pathway.source, delay))
    return Pathway(pathway.label, source, target, population, pathway.delay_ms, tuple(projections))


def _resident(
    spec: BrainSpec, name: str, region: RegionSpec, built: BuiltRegion, hears: list[Hearing], batch_steps: int
) -> Resident:
    assert region.create is not None
    resident = Resident(
        name=name,
        create=region.create,
        population=built.populations["cells"].index,
        mark=built.populations[MARK].index,
        config=region.config,
        hears=tuple(hears),
        admits=tuple(
            Admission(pathway.source, to_steps(pathway.delay_ms, spec.dt_ms, "delay_ms"))
            for pathway in spec.admissions()
            if split_port(pathway.target)[0] == name
        ),
        batch_steps=batch_steps,
        device=region.device,
    )
    if region.tick_ms is not None:
        resident = replace(resident, tick_steps=to_steps(region.tick_ms, spec.dt_ms, "tick_ms"))
    return resident
