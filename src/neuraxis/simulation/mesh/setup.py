"""Configuration of a region's node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuraxis.arguments import positive, whole
from neuraxis.deprecation import renamed_members
from neuraxis.engine.placement import Placement, Slice
from neuraxis.errors import InvalidArgument
from neuraxis.mesh.keys import check_mesh
from neuraxis.network import Network
from neuraxis.simulation.checkpoint import describe_network
from neuraxis.simulation.python_populations import PythonPopulation

__all__ = ["Feed", "RegionSetup", "Units", "digest_of"]

SILENCE_TIMEOUT_S = 1.0
RECONNECT_TIMEOUT_S = 30.0


def digest_of(network: Network, python_populations: Sequence[PythonPopulation]) -> int:
    """Return a number that identifies a brain: its network and its Python populations."""
    network_digest = describe_network(network)["digest"]
    digest = hashlib.sha256(repr((network_digest, network.seed, network.dt_ms)).encode())
    for one in python_populations:
        # The digest is in messages and saved states, so this text must not change with names in the code.
        spikes = tuple(
            _Verbatim(f"Hearing(population={s.population}, source={s.source!r}, delay_steps={s.delay_steps})")
            for s in one.subscriptions
        )
        data = tuple(
            _Verbatim(f"Admission(expression={d.expression!r}, delay_steps={d.delay_steps})")
            for d in one.data_subscriptions
        )
        config = sorted(one.config.items(), key=str)
        identity = (one.name, one.create, one.population, one.marker, config, spikes)
        digest.update(repr((*identity, one.batch_steps, one.tick_steps, data)).encode())
    return int.from_bytes(digest.digest()[:8], "little")


class _Verbatim(str):
    """A text that is its own repr."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True)
class Feed:
    """Messages that set a state of a population, such as the rates of a sensor.

    Parameters
    ----------
    expression : str
        Key expression of the messages.
    population : int
        Index of the population.
    state : str
        Name of the state.
    convert : str
        "module:callable": convert(value, config) returns one value for each neuron, or raises.
    config : mapping
        Second argument of `convert`.

    Examples
    --------
    >>> Feed("sensor/thermal", 0, "rate_hz", "my_robot:rates").state
    'rate_hz'
    """

    expression: str
    population: int
    state: str
    convert: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Units:
    """Populations of each node, by the node's name, in the same order for every node.

    Parameters
    ----------
    populations : mapping
        By node, the indices of its populations.
    topics : mapping
        By node, the topic of the payloads of its Python populations; by default "data".
    roles : mapping
        By node, the roles that it offers.
    feeds : mapping
        By node, the messages that set its states.

    Examples
    --------
    >>> Units({"eye": [0], "arm": [1, 2]}).names
    ('eye', 'arm')
    """

    populations: Mapping[str, Sequence[int]]
    topics: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    feeds: Mapping[str, Sequence[Feed]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(self.populations)

    def placement(self, network: Network) -> Placement:
        """Return the neurons of each node.

        Parameters
        ----------
        network : Network
            The network.

        Returns
        -------
        Placement
            Neurons of each node.

        Raises
        ------
        InvalidArgument
            A population is in none or in two of the nodes.
        """
        homes = sorted(index for populations in self.populations.values() for index in populations)
        if homes != list(range(len(network.populations))):
            raise InvalidArgument("units: put every population into exactly one unit")
        return tuple(
            tuple(Slice(index, 0, network.populations[index].n) for index in sorted(populations))
            for populations in self.populations.values()
        )

    def topic(self, name: str) -> str:
        """Return the topic of a node's payloads.

        Parameters
        ----------
        name : str
            Name of a node.

        Returns
        -------
        str
            The topic.
        """
        return self.topics.get(name, "data")


@renamed_members(
    patience_s="silence_timeout",
    reconnect_s="reconnect_timeout",
    start_wait_s="start_timeout",
    residents="python_populations",
    journal_bytes="replay_log_bytes",
    word="token",
)
@dataclass(frozen=True)
class RegionSetup:
    """Configuration of one region's node.

    Parameters
    ----------
    name : str
        The node, one of `units`.
    units : Units
        Populations of all nodes.
    network : Network
        The network of the whole brain.
    python_populations : tuple of PythonPopulation
        The Python populations of the whole brain.
    mesh : str
        Name of the mesh.
    topology : mapping
        `Topology.as_data()`.
    clock : {"lockstep", "realtime"}
        Advance when all inputs have arrived, or by the wall clock.
    driven : bool
        True if another process sends commands to advance; else the node runs by itself, to step `until` if given.
    until : int, optional
        Last step.
    stays : bool
        Stay on the mesh after step `until`.
    silence_timeout : float
        Timeout of the failure detector: a region without a sign of life for so many seconds counts as missing.
    reconnect_timeout : float
        Time in seconds to wait for the mesh when this node itself is cut off.
    start_timeout : float
        Time in seconds to wait for the other regions before the first step.
    checkpoint : str, optional
        Folder for the saved states of this region.
    checkpoint_every : int
        Steps between two saved states.
    resume : bool
        Begin with the last saved state.
    replay_log_bytes : int
        Size of the replay log: published windows and payloads kept for subscribers that missed them.
    token : str
        Token that commands with a path must contain; "" refuses all of them.

    Raises
    ------
    InvalidArgument
        A value is invalid.

    Examples
    --------
    ::

        RegionNode(RegionSetup("eye", units, network, (), "robot", Topology.local().as_data())).run()
    """

    name: str
    units: Units
    network: Network
    python_populations: tuple[PythonPopulation, ...]
    mesh: str
    topology: Mapping[str, Any]
    clock: str = "lockstep"
    driven: bool = True
    until: int | None = None
    stays: bool = False
    silence_timeout: float = SILENCE_TIMEOUT_S
    reconnect_timeout: float = RECONNECT_TIMEOUT_S
    start_timeout: float = 10.0
    checkpoint: str | None = None
    checkpoint_every: int = 10_000
    resume: bool = False
    replay_log_bytes: int = 64 * 2**20
    token: str = ""

    def __post_init__(self) -> None:
        if self.name not in self.units.populations:
            raise InvalidArgument(f"region {self.name!r}: there are {', '.join(self.units.names)}")
        if self.clock not in ("lockstep", "realtime"):
            raise InvalidArgument(f"clock={self.clock!r}: lockstep or realtime is expected")
        check_mesh(self.mesh)
        for name in ("silence_timeout", "reconnect_timeout", "start_timeout"):
            positive(getattr(self, name), name)
        whole(self.checkpoint_every, "checkpoint_every", 1)
