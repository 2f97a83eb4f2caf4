"""Interface of regions made of spiking neurons.

A region adds populations and projections to a network, and connects the pathways that end in it. Like the network, it
is a description: cheap to make, picklable, the same in every process, and independent of what runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec

from neuraxis.arguments import near
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, PairwiseBernoulli, Population, Projection

__all__ = ["Afferent", "BuiltRegion", "Region", "RegionConfig", "afferent_rule", "as_config", "group_size"]


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of region configurations: values with defaults that a TOML file can hold."""


@dataclass(frozen=True)
class BuiltRegion:
    """A region in a network.

    Attributes
    ----------
    name, kind : str
        Name and kind of the region.
    populations : mapping of str to Population
        Populations by short name ("L4e").
    inputs, outputs : tuple of str
        Ports for incoming and outgoing pathways; the first is the default.
    inhibitory : frozenset of str
        Short names of the inhibitory populations.
    groups : int
        Number of equal groups (features, actions) of the neurons of each port.
    aliases : mapping of str to str
        Short names of the populations of ports that are not called like their population.
    """

    name: str
    kind: str
    populations: Mapping[str, Population]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inhibitory: frozenset[str] = frozenset()
    groups: int = 1
    aliases: Mapping[str, str] = field(default_factory=dict)

    def input(self, port: str = "") -> Population:
        return self._port(port, self.inputs, "input")

    def output(self, port: str = "") -> Population:
        return self._port(port, self.outputs, "output")

    def _port(self, port: str, ports: tuple[str, ...], what: str) -> Population:
        if not ports:
            raise InvalidArgument(f"region {self.name!r} has no {what}")
        if port and port not in ports:
            raise InvalidArgument(f"region {self.name!r} has no {what} {port!r}; {near(port, ports)}")
        name = port or ports[0]
        return self.populations[self.aliases.get(name, name)]


@dataclass(frozen=True)
class Afferent:
    """A pathway as its target region sees it; the region has a default for every value that is None."""

    name: str
    source: Population
    source_groups: int
    delay_ms: float
    port: str = ""
    weight: float | None = None
    in_degree: int | None = None
    probability: float | None = None
    topographic: bool = False  # group g to group g
    plasticity: str | None = None  # "none", or a rule of the region
    options: Mapping[str, Any] = field(default_factory=dict)


class Region(ABC):
    """Base class of regions made of spiking neurons."""

    kind: ClassVar[str]
    config: RegionConfig

    @abstractmethod
    def build(self, network: Network, name: str) -> BuiltRegion:
        """Add the region's populations, called `name`.<short name>, and projections to a network."""

    @abstractmethod
    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway to the region's cells and return the projections."""


Config = TypeVar("Config", bound=RegionConfig)


def as_config(kind: type[Config], given: Config | Mapping[str, Any] | None, what: str) -> Config:
    """Convert a mapping to a configuration; raise InvalidArgument for a wrong field, with the expected type."""
    if isinstance(given, kind):
        return given
    try:
        return msgspec.convert(dict(given) if isinstance(given, Mapping) else {}, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{what}: {error}") from None


def group_size(population: Population, groups: int) -> int:
    """Return the size of the smallest group."""
    return population.n // groups


def afferent_rule(
    afferent: Afferent, built: BuiltRegion, in_degree: int
) -> tuple[FixedInDegree | PairwiseBernoulli, float]:
    """Return the connection rule of a pathway, and the mean number of its synapses on a neuron.

    `in_degree` is the default for a pathway that gives none; it is limited to the number of sources.
    """
    if afferent.topographic and afferent.source_groups != built.groups:
        raise InvalidArgument(
            f"{afferent.name}: topographic: {afferent.source.name!r} has {afferent.source_groups} groups and "
            f"{built.name!r} has {built.groups}; they must be equal"
        )
    groups = built.groups if afferent.topographic else 1
    sources = group_size(afferent.source, groups)
    if afferent.probability is not None:
        rule = PairwiseBernoulli(afferent.probability, groups=groups)
        return rule, max(1.0, afferent.probability * sources)
    if afferent.in_degree is not None:
        k = afferent.in_degree
        return FixedInDegree(k, multapses=k > sources, groups=groups), max(1.0, float(k))
    k = max(1, min(in_degree, sources))
    return FixedInDegree(k, multapses=False, groups=groups), float(k)
