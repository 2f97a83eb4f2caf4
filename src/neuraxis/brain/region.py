"""What a region is: something that adds populations and projections to a network, and says where pathways may end.

A region is a description, like the network that it adds to: cheap to make, picklable, the same in every process. Who
runs it is not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, PairwiseBernoulli, Population, Projection
from neuraxis.network.arguments import near

__all__ = ["Afferent", "BuiltRegion", "Region", "RegionConfig", "afferent_rule", "as_config", "group_size"]


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every region's configuration: numbers and words with defaults, as a TOML file can hold them."""


@dataclass(frozen=True)
class BuiltRegion:
    """A region in a network: its populations by their short names ("L4e"), and where pathways start and end.

    `inputs` and `outputs` name the ports that pathways may use; the first of each is the default. `inhibitory` are the
    short names of populations whose spikes inhibit; `groups` says into how many equal parts (features, actions) the
    neurons of each port are divided, in order. A port is called like its population, or as `aliases` say.
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
    """A pathway as the region that it ends in sees it. None: as the region thinks best."""

    name: str
    source: Population
    source_groups: int
    delay_ms: float
    port: str = ""
    weight: float | None = None
    in_degree: int | None = None
    probability: float | None = None
    topographic: bool = False  # group g to group g
    plasticity: str | None = None  # "none", or what the region knows
    options: Mapping[str, Any] = field(default_factory=dict)


class Region(ABC):
    """The base of all regions made of spiking neurons."""

    kind: ClassVar[str]
    config: RegionConfig

    @abstractmethod
    def build(self, network: Network, name: str) -> BuiltRegion:
        """Add the region to a network; its populations are called `name`.<short name>."""

    @abstractmethod
    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway to the region: which cells get it, with what weight, and whether it learns."""


Config = TypeVar("Config", bound=RegionConfig)


def as_config(kind: type[Config], given: Config | Mapping[str, Any] | None, what: str) -> Config:
    """A configuration from a mapping; a wrong field is an error that says which and what was expected."""
    if isinstance(given, kind):
        return given
    try:
        return msgspec.convert(dict(given) if isinstance(given, Mapping) else {}, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{what}: {error}") from None


def group_size(population: Population, groups: int) -> int:
    """The size of the smallest of so many parts."""
    return population.n // groups


def afferent_rule(
    afferent: Afferent, built: BuiltRegion, in_degree: int
) -> tuple[FixedInDegree | PairwiseBernoulli, float]:
    """Which neurons a pathway connects, and how many synapses a neuron gets on average.

    `in_degree` is for a pathway that says nothing; it is less where there are fewer sources.
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
