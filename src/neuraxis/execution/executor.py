"""What an executor is: whoever runs the shards of a network, and answers for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.placement import Placement
from neuraxis.execution.resident import INPUT, Resident
from neuraxis.network import Network

__all__ = ["BuildReport", "Counters", "Executor", "Recorded", "Samples", "WorkerStatus", "merge_recorded"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class BuildReport:
    """What was built, over all shards."""

    static_synapses: int
    plastic_synapses: int
    synapse_bytes: int
    clipped_delays: int

    @property
    def synapses(self) -> int:
        return self.static_synapses + self.plastic_synapses

    @property
    def bytes_per_synapse(self) -> float:
        return self.synapse_bytes / self.synapses if self.synapses else 0.0


@dataclass(frozen=True)
class Counters:
    """What has happened since step 0. `hash` depends on every spike, `state` on the states and learned weights now."""

    step: int
    spike_counts: NDArray[np.int64]  # by population
    events: int
    hash: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class WorkerStatus:
    """How one worker is doing since it has its present neurons.

    Ticks are of its processor's clock: they say how times compare, not what they are.
    """

    worker: int
    step: int
    memory_bytes: int
    spikes_out: int
    spikes_in: int  # from other workers
    shares: dict[str, float]  # of the run time: waiting, collecting, delivering, updating
    exchange: float  # the share that went into the spikes of other workers; a part of collecting
    update_ticks: dict[int, float]  # by population
    plastic_ticks: dict[int, float]  # by projection
    static_ticks: float
    busy_ticks: float


@dataclass(frozen=True)
class Samples:
    """Some neurons' values of one state probe: (steps) x (places among the probe's neurons)."""

    probe: int
    places: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.generic]


@dataclass(frozen=True)
class Recorded:
    """What the probes saw in some steps: spikes in the order of time and id, and samples of states.

    `spikes` counts all spikes in these steps, recorded or not.
    """

    steps: NDArray[np.int64]
    ids: NDArray[np.int64]
    samples: list[Samples] = field(default_factory=list)
    spikes: int = 0


class Executor(Protocol):
    """Runs a network. After `close`, or an error that ended its workers, it does nothing more."""

    workers: int
    placement: Placement  # which shard has which neurons; before the start, what is wanted, or () for whatever suits
    device: str  # where the shards run, for people to read: "cpu", "cuda", "cuda,cpu"
    leads: bool  # whether this process writes files; False for all but one where each has the same simulation

    def start(
        self, network: Network, progress: Callable[[int], None], residents: Sequence[Resident] = ()
    ) -> BuildReport:
        """Build the network; `progress` is told of synapses as they are built. `residents` live beside the neurons."""

    def advance(self, until: int) -> Recorded:
        """Run to step `until`; what was recorded on the way."""

    def counters(self) -> Counters: ...

    def status(self) -> list[WorkerStatus]:
        """How each worker is doing."""

    def give(self, resident: str, data: Any, source: str = INPUT) -> None:
        """Data for a resident, which it gets with its next call; those of a source that it admits, after the delay."""

    def state_hash(self) -> int:
        """A number for all states and learned weights, the same for any number of shards."""

    def read_state(self, population: int, name: str) -> NDArray[np.generic]:
        """A state of all neurons of a population."""

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        """pre, post, delay_steps and weight of every synapse of a projection, sorted by post, then pre."""

    def level(self, modulator: int) -> float: ...

    def set_level(self, modulator: int, level: float) -> None: ...

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64]]:
        """For each population, the spikes of each of its neurons since step 0."""

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        """Set a state of all neurons of a population."""

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Let neurons (ids in the network) emit spikes in steps to come."""

    def silence(self, populations: list[int]) -> None:
        """Have exactly these populations neither updated nor heard from now on."""

    def freeze(self, projections: list[int]) -> None:
        """Have exactly these projections keep their weights from now on."""

    def save(self, folder: Path) -> list[str]:
        """Write the complete state to files in `folder`; their names."""

    def restore(self, folder: Path, files: list[str]) -> None:
        """Take the complete state from files that an executor of the same network saved."""

    def agree(self, make: Callable[[], Value]) -> Value:
        """What `make` gives, called in one process and known to all that have this simulation."""

    def close(self) -> None: ...


def merge_recorded(pieces: list[Recorded]) -> Recorded:
    """What several shards recorded in the same steps, or one shard in one stretch after the other, as one."""
    if len(pieces) == 1:
        return pieces[0]
    spikes = np.concatenate([piece.steps << 32 | piece.ids for piece in pieces])
    spikes.sort(kind="stable")  # each piece is in order: this kind of sorting only merges them
    samples = [sample for piece in pieces for sample in piece.samples]
    return Recorded(spikes >> 32, spikes & 0xFFFFFFFF, samples, sum(piece.spikes for piece in pieces))
