"""What the node of a region must know before it can run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuraxis.engine.placement import Placement, Slice
from neuraxis.errors import InvalidArgument
from neuraxis.execution.checkpoint import describe_network
from neuraxis.execution.resident import Resident
from neuraxis.mesh.keys import check_mesh
from neuraxis.network import Network
from neuraxis.network.arguments import positive, whole

__all__ = ["Feed", "RegionSetup", "Units", "digest_of"]

PATIENCE_S = 1.0
RECONNECT_S = 30.0


def digest_of(network: Network, residents: Sequence[Resident]) -> int:
    """A number that tells one brain from another: its network, and what lives beside it."""
    network_digest = describe_network(network)["digest"]
    digest = hashlib.sha256(repr((network_digest, network.seed, network.dt_ms)).encode())
    for one in residents:
        beside = (one.name, one.create, one.population, one.mark, sorted(one.config.items(), key=str), one.hears)
        digest.update(repr((*beside, one.batch_steps, one.tick_steps, one.admits)).encode())
    return int.from_bytes(digest.digest()[:8], "little")


@dataclass(frozen=True)
class Feed:
    """Messages on a key that set a state of a population, such as the rates of a sensor.

    `convert` is "module:callable": convert(value, config) gives one value for each neuron, or raises.
    """

    expression: str
    population: int
    state: str
    convert: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Units:
    """Which node has which populations: by name, in an order that every node knows alike.

    Attributes:
        populations: by the node's name, the indices of its populations.
        topics: by the node's name, where the data of its residents travel; "data" if not said.
        roles: by the node's name, what it can stand in for.
        feeds: by the node's name, what messages set.
    """

    populations: Mapping[str, Sequence[int]]
    topics: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    feeds: Mapping[str, Sequence[Feed]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.populations)

    def placement(self, network: Network) -> Placement:
        """Who has which neurons; raises where a population has no home, or two."""
        homes = sorted(index for populations in self.populations.values() for index in populations)
        if homes != list(range(len(network.populations))):
            raise InvalidArgument("units: every population must be in one of them")
        return tuple(
            tuple(Slice(index, 0, network.populations[index].n) for index in sorted(populations))
            for populations in self.populations.values()
        )

    def topic(self, name: str) -> str:
        return self.topics.get(name, "data")


@dataclass(frozen=True)
class RegionSetup:
    """What one node runs.

    Attributes:
        name: which of the units.
        mesh: the mesh's name.
        topology: `Topology.as_data()`.
        clock: "lockstep" or "realtime".
        driven: whether another process says how far to run; else it runs by itself, to step `until` if that is given.
        stays: whether it stays on the mesh when it has run to `until`.
        patience_s: who has said nothing for so long is taken for gone.
        reconnect_s: how long to wait for the mesh itself, when it is this node that is cut off.
        start_wait_s: how long to wait for the others before the first step.
        checkpoint: a folder for states of this region; `checkpoint_every` steps between them.
        resume: begin with the last of them.
        journal_bytes: how much of what it has said a node keeps for who missed it.
        word: who knows it may name paths on this machine; nobody where it is empty.
    """

    name: str
    units: Units
    network: Network
    residents: tuple[Resident, ...]
    mesh: str
    topology: Mapping[str, Any]
    clock: str = "lockstep"
    driven: bool = True
    until: int | None = None
    stays: bool = False
    patience_s: float = PATIENCE_S
    reconnect_s: float = RECONNECT_S
    start_wait_s: float = 10.0
    checkpoint: str | None = None
    checkpoint_every: int = 10_000
    resume: bool = False
    journal_bytes: int = 64 * 2**20
    word: str = ""

    def __post_init__(self) -> None:
        if self.name not in self.units.populations:
            raise InvalidArgument(f"region {self.name!r}: there are {', '.join(self.units.names)}")
        if self.clock not in ("lockstep", "realtime"):
            raise InvalidArgument(f"clock={self.clock!r}: lockstep or realtime is expected")
        check_mesh(self.mesh)
        for name in ("patience_s", "reconnect_s", "start_wait_s"):
            positive(getattr(self, name), name)
        whole(self.checkpoint_every, "checkpoint_every", 1)
