"""What a region is: something that adds populations and projections to a network, and says where pathways may end.

A region is a description, like the network that it adds to: cheap to make, picklable, the same in every process. Who
runs it is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Population, Projection
from neuraxis.network.arguments import near

__all__ = ["Afferent", "BuiltRegion", "Region", "RegionConfig", "as_config"]


class RegionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every region's configuration: numbers and words with defaults, as a TOML file can hold them."""


@dataclass(frozen=True)
class BuiltRegion:
    """A region in a network: its populations by their short names ("L4e"), and where pathways start and end.

    `inputs` and `outputs` name the ports that pathways may use; the first of each is the default. `inhibitory` are the
    short names of populations whose spikes inhibit; `groups` says into how many equal parts (features, actions) the
    neurons of each port are divided, in order.
    """

    name: str
    kind: str
    populations: Mapping[str, Population]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inhibitory: frozenset[str] = frozenset()
    groups: int = 1

    def input(self, port: str = "") -> Population:
        return self._port(port, self.inputs, "input")

    def output(self, port: str = "") -> Population:
        return self._port(port, self.outputs, "output")

    def _port(self, port: str, ports: tuple[str, ...], what: str) -> Population:
        if not ports:
            raise InvalidArgument(f"region {self.name!r} has no {what}")
        if port and port not in ports:
            raise InvalidArgument(f"region {self.name!r} has no {what} {port!r}; {near(port, ports)}")
        return self.populations[port or ports[0]]


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


class Region:
    """The base of all regions made of spiking neurons."""

    kind: ClassVar[str]
    config: RegionConfig

    def build(self, network: Network, name: str) -> BuiltRegion:
        """Add the region to a network; its populations are called `name`.<short name>."""
        raise NotImplementedError

    def receive(self, network: Network, built: BuiltRegion, afferent: Afferent) -> list[Projection]:
        """Connect a pathway to the region. A region with plastic or several entrances says so itself."""
        raise NotImplementedError


Config = TypeVar("Config", bound=RegionConfig)


def as_config(kind: type[Config], given: Config | Mapping[str, Any] | None, what: str) -> Config:
    """A configuration from a mapping; a wrong field is an error that says which and what was expected."""
    if isinstance(given, kind):
        return given
    try:
        return msgspec.convert(dict(given) if isinstance(given, Mapping) else {}, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{what}: {error}") from None
