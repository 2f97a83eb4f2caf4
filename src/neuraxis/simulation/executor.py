"""The interface of executors, the data they return, and the operations that all of them share.

An `Executor` runs the shards of a network. `ShardedExecutor` implements every operation once, over one method: `ask`
sends a command to each shard's `ShardRunner` and returns the replies. The executors differ only in `ask`, in how they
start and close, and in how spikes travel between shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.placement import Placement
from neuraxis.errors import CheckpointError, InvalidArgument, NumericalInstability
from neuraxis.network import Network
from neuraxis.simulation.python_populations import INPUT, PythonPopulation
from neuraxis.wire import exceptions
from neuraxis.wire.tensors import to_sendable

__all__ = [
    "BuildReport",
    "Counters",
    "Executor",
    "Recorded",
    "Samples",
    "ShardedExecutor",
    "WorkerStatus",
    "decode_reply",
    "encode_reply",
    "instability",
    "merge_recorded",
    "merge_reports",
]

Value = TypeVar("Value")
Owner = TypeVar("Owner")


@dataclass(frozen=True)
class BuildReport:
    """Totals of a built network over all shards.

    Parameters
    ----------
    static_synapses, plastic_synapses : int
        Synapses without and with plasticity.
    synapse_bytes : int
        Memory of all synapses.
    clipped_delays : int
        Synapses whose delay was clipped to the allowed range.
    rounded : list of [int, int]
        Per projection, the synapses whose weight fixed point changes by more than 1 %, and those that it makes 0.

    Examples
    --------
    >>> BuildReport(static_synapses=3, plastic_synapses=1, synapse_bytes=32, clipped_delays=0).bytes_per_synapse
    8.0
    """

    static_synapses: int
    plastic_synapses: int
    synapse_bytes: int
    clipped_delays: int
    rounded: list[list[int]] = field(default_factory=list)

    @property
    def synapses(self) -> int:
        """Number of all synapses."""
        return self.static_synapses + self.plastic_synapses

    @property
    def bytes_per_synapse(self) -> float:
        """Mean memory of a synapse in bytes."""
        return self.synapse_bytes / self.synapses if self.synapses else 0.0


@dataclass(frozen=True)
class Counters:
    """Totals since step 0.

    Parameters
    ----------
    step : int
        Last completed step.
    spike_counts : array of int64, shape (populations,)
        Spikes of each population.
    events : int
        Synaptic events.
    hash : int
        Hash of every spike.
    peak_memory_bytes : int
        Peak memory of all processes.

    Examples
    --------
    >>> Counters(10, np.array([3, 4]), 7, 0, 0).spike_counts.sum().item()
    7
    """

    step: int
    spike_counts: NDArray[np.int64]
    events: int
    hash: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class WorkerStatus:
    """Status of one worker since it was given its present neurons.

    Ticks are of the processor's clock: they compare times, but have no fixed unit.
    """

    worker: int
    step: int
    memory_bytes: int
    spikes_out: int
    spikes_in: int  # from other workers
    shares: dict[str, float]  # of run time: waiting, collecting, delivering, updating
    exchange: float  # share of run time for the spikes of other workers; part of collecting
    update_ticks: dict[int, float]  # by population
    plastic_ticks: dict[int, float]  # by projection
    static_ticks: float
    busy_ticks: float


@dataclass(frozen=True)
class Samples:
    """Values of one state probe by step and neuron; `places` are positions among the probe's neurons."""

    probe: int
    places: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.generic]


@dataclass(frozen=True)
class Recorded:
    """Recordings of some steps: spikes ordered by time and id, and samples of states.

    `spikes` counts all spikes in these steps, recorded or not. `unstable` is the first state that was not finite
    (step, population, neuron, state, value), or empty.
    """

    steps: NDArray[np.int64]
    ids: NDArray[np.int64]
    samples: list[Samples] = field(default_factory=list)
    spikes: int = 0
    unstable: list[float] = field(default_factory=list)


class Executor(Protocol):
    """Interface of what runs a network; `Simulation` calls it.

    After `close`, or an error that ended its workers, an executor cannot be used again.

    Attributes
    ----------
    workers : int
        Number of shards.
    placement : Placement
        Neurons of each shard; before `start` the wanted ones, or () to let the executor choose.
    device : str
        Devices of the shards, to print: "cpu", "cuda", "cuda,cpu".
    leads : bool
        True in the process that writes files.

    Examples
    --------
    >>> from neuraxis.simulation import SequentialExecutor
    >>> executor: Executor = SequentialExecutor()
    >>> executor.workers, executor.device
    (1, 'cpu')
    """

    workers: int
    placement: Placement
    device: str
    leads: bool

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        """Build the network.

        Parameters
        ----------
        network : Network
            The network.
        progress : callable
            Function that is called with numbers of synapses as they are built.
        python_populations : sequence of PythonPopulation
            Populations that Python objects drive.

        Returns
        -------
        BuildReport
            Totals of the built network.
        """

    def advance(self, until: int, check_last: bool = False) -> Recorded:
        """Run to a step.

        Parameters
        ----------
        until : int
            Number of the last step to run.
        check_last : bool
            Also check in that step that all states are finite. The result then depends on `until`, so set it only where
            `until` does not depend on a clock.

        Returns
        -------
        Recorded
            What was recorded since the last call.
        """

    def counters(self) -> Counters:
        """Return the totals since step 0.

        Returns
        -------
        Counters
            Spikes, synaptic events and hash.
        """

    def status(self) -> list[WorkerStatus]:
        """Return the status of each worker."""

    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        """Pass data to a Python population.

        Parameters
        ----------
        name : str
            Name of the data.
        data : object
            The data.
        source : str
            Where they come from: data of another source than the caller arrive after the delay of their subscription.
        """

    def state_hash(self) -> int:
        """Return a hash of all states and learned weights that does not depend on the number of shards."""

    def read_state(self, population: int, name: str) -> NDArray[np.generic]:
        """Return a state of all neurons of a population.

        Parameters
        ----------
        population : int
            Index of a population.
        name : str
            Name of a state.

        Returns
        -------
        array, shape (n,)
            Value of each neuron.
        """

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        """Return every synapse of a projection.

        Parameters
        ----------
        projection : int
            Index of a projection.

        Returns
        -------
        dict of arrays
            "pre", "post", "delay_steps" and "weight", each of shape (synapses,), sorted by post, then pre.
        """

    def read_rate_synapses(self, place: int) -> dict[str, NDArray[np.generic]]:
        """Return every synapse of a rate projection.

        Parameters
        ----------
        place : int
            Index of a rate projection.

        Returns
        -------
        dict of arrays
            "pre", "post", "delay_steps" and "weight", each of shape (synapses,), sorted by post, then pre.
        """

    def level(self, modulator: int) -> float:
        """Return the level of a neuromodulator.

        Parameters
        ----------
        modulator : int
            Index of a neuromodulator.

        Returns
        -------
        float
            The level.
        """

    def set_level(self, modulator: int, level: float) -> None:
        """Set the level of a neuromodulator.

        Parameters
        ----------
        modulator : int
            Index of a neuromodulator.
        level : float
            The new level.
        """

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64]]:
        """Return the spikes of each neuron since step 0.

        Parameters
        ----------
        populations : list of int
            Indices of populations.

        Returns
        -------
        list of array
            Number of spikes of each neuron, by population.
        """

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        """Set a state of all neurons of a population.

        Parameters
        ----------
        population : int
            Index of a population.
        name : str
            Name of a state.
        values : array, shape (n,)
            Value of each neuron.
        """

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Make neurons spike in future steps.

        Parameters
        ----------
        steps : array of int64, shape (spikes,)
            Steps of the spikes, after the current one.
        ids : array of int64, shape (spikes,)
            Neurons, by their ids in the network.
        """

    def silence(self, populations: list[int]) -> None:
        """Silence exactly these populations.

        Parameters
        ----------
        populations : list of int
            Indices of populations.
        """

    def freeze(self, projections: list[int]) -> None:
        """Stop learning in exactly these projections.

        Parameters
        ----------
        projections : list of int
            Indices of projections.
        """

    def save(self, folder: Path) -> list[str]:
        """Write the complete state to files.

        Parameters
        ----------
        folder : Path
            An existing folder.

        Returns
        -------
        list of str
            Names of the files.
        """

    def restore(self, folder: Path, files: list[str]) -> None:
        """Restore the complete state from files that an executor of the same network saved.

        Parameters
        ----------
        folder : Path
            Folder of the files.
        files : list of str
            Names of the files that `save` returned.
        """

    def agree(self, make: Callable[[], Value]) -> Value:
        """Call a function in the leading process only.

        Parameters
        ----------
        make : callable
            Function without arguments.

        Returns
        -------
        object
            What it returned, in every process.
        """

    def close(self) -> None:
        """Free all resources; a second call does nothing."""


def merge_recorded(pieces: list[Recorded]) -> Recorded:
    """Merge the recordings of several shards, or of successive pieces of one shard."""
    if len(pieces) == 1:
        return pieces[0]
    spikes = np.concatenate([piece.steps << 32 | piece.ids for piece in pieces])
    spikes.sort(kind="stable")  # pieces are sorted, so a stable sort only merges them
    samples = [sample for piece in pieces for sample in piece.samples]
    unstable = min((piece.unstable for piece in pieces if piece.unstable), key=lambda one: one[:4], default=[])
    return Recorded(spikes >> 32, spikes & 0xFFFFFFFF, samples, sum(piece.spikes for piece in pieces), unstable)


def instability(network: Network, unstable: Sequence[float]) -> NumericalInstability:
    """Return the error for a state that was not finite (`Recorded.unstable`)."""
    step, place, neuron, state = (int(one) for one in unstable[:4])
    population, value = network.populations[place], unstable[4]
    name, time_ms = list(population.model.states)[state], step * network.dt_ms
    return NumericalInstability(
        f"{name} of neuron {neuron} in population {population.name!r} is {value:g}, noticed at {time_ms:g} ms (step "
        f"{step}; it may have become so before: one step of 16 and the last of a call are checked). Try a smaller "
        f"dt_ms (it is {network.dt_ms:g}), and check the parameters of {population.model.name} and the weights and "
        "currents that it receives. If the model needs such values, turn this check off with check_finite=False",
        population=population.name, neuron=neuron, state=name, value=value, time_ms=time_ms, step=step,
    )  # fmt: skip


# --- Replies of shards as plain data, for transports that do not pickle ---

_KINDS = {kind.__name__: kind for kind in (BuildReport, Counters, Recorded, Samples, WorkerStatus)}
_ERROR = "error"


def encode_reply(value: Any) -> Any:
    """Convert a reply, or an error about a file or argument, to dicts, lists, numbers and arrays."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: encode_reply(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, list):
        return [encode_reply(one) for one in value]
    if isinstance(value, CheckpointError | InvalidArgument):
        return {"kind": _ERROR, "data": exceptions.to_data(value, of_function=False)}
    return value


def decode_reply(value: Any) -> Any:
    """Convert the result of `encode_reply` back."""
    if isinstance(value, list):
        return [decode_reply(one) for one in value]
    if isinstance(value, dict) and value.get("kind") == _ERROR:
        return exceptions.from_data(value["data"], "a rank")
    if isinstance(value, dict) and value.get("kind") in _KINDS:
        return _KINDS[value["kind"]](**{name: decode_reply(one) for name, one in value.items() if name != "kind"})
    return value


# --- The operations of all executors ---


def _documented(owner: type[Owner]) -> type[Owner]:
    """Give the methods of an executor that have no docstring that of the interface."""
    for name, method in vars(owner).items():
        if callable(method) and not name.startswith("_") and method.__doc__ is None:
            method.__doc__ = getattr(Executor, name).__doc__
    return owner


@_documented
class ShardedExecutor:
    """The operations of an executor over `ask`: every shard executes the same command, and the replies are merged."""

    workers: int
    placement: Placement
    leads = True
    device = "cpu"

    def close(self) -> None:
        """Free all resources; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        """Call a method of every shard's `ShardRunner`.

        Parameters
        ----------
        command : str
            Name of the method.
        *arguments
            Its arguments.

        Returns
        -------
        list
            The reply of each shard, in the order of shards.
        """
        raise NotImplementedError

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        raise NotImplementedError

    def advance(self, until: int, check_last: bool = False) -> Recorded:
        return merge_recorded(self.ask("advance", until, check_last))

    def counters(self) -> Counters:
        replies: list[Counters] = self.ask("counters")
        return Counters(
            replies[0].step,
            np.sum([one.spike_counts for one in replies], axis=0),
            sum(one.events for one in replies),
            sum(one.hash for one in replies) % 2**64,
            sum(one.peak_memory_bytes for one in replies),
        )

    def status(self) -> list[WorkerStatus]:
        return self.ask("status")

    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        self.ask("give", name, to_sendable(data), source)

    def state_hash(self) -> int:
        return int(sum(self.ask("state_hash")) % 2**64)

    def read_state(self, population: int, name: str) -> NDArray[np.generic]:
        return np.concatenate([piece for piece in self.ask("read_state", population, name) if piece is not None])

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        return _joined(self.ask("read_synapses", projection))

    def read_rate_synapses(self, place: int) -> dict[str, NDArray[np.generic]]:
        return _joined(self.ask("read_rate_synapses", place))

    def level(self, modulator: int) -> float:
        return float(next(level for level in self.ask("level", modulator) if level is not None))

    def set_level(self, modulator: int, level: float) -> None:
        self.ask("set_level", modulator, level)

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64]]:
        replies = self.ask("read_counts", populations)
        return [
            np.concatenate([pieces[place] for pieces in replies if pieces[place] is not None])
            for place in range(len(populations))
        ]

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        self.ask("write_state", population, name, values)

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        self.ask("inject", steps, ids)

    def silence(self, populations: list[int]) -> None:
        self.ask("silence", populations)

    def freeze(self, projections: list[int]) -> None:
        self.ask("freeze", projections)

    def save(self, folder: Path) -> list[str]:
        return list(self.ask("save", str(folder)))

    def restore(self, folder: Path, files: list[str]) -> None:
        self.ask("restore", str(folder), files)
        # Shards may see the steps of the others only after all spike buffers are filled.
        self.ask("publish")

    def agree(self, make: Callable[[], Value]) -> Value:
        return make()


def _joined(pieces: list[dict[str, NDArray[np.generic]]]) -> dict[str, NDArray[np.generic]]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def merge_reports(reports: list[BuildReport]) -> BuildReport:
    """Merge the build reports of several shards."""
    return BuildReport(
        sum(one.static_synapses for one in reports),
        sum(one.plastic_synapses for one in reports),
        sum(one.synapse_bytes for one in reports),
        sum(one.clipped_delays for one in reports),
        [
            [sum(counts) for counts in zip(*of_projection, strict=True)]
            for of_projection in zip(*(one.rounded for one in reports if one.rounded), strict=True)
        ],
    )
