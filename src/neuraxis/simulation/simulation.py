"""`Simulation`: build a network, run it, act on it, read it, save and restore it.

A `Simulation` checks arguments, keeps recordings and handles lost workers. An executor runs the shards: in this process
(`SequentialExecutor`), in worker processes (`ParallelExecutor`), on ranks (`LockstepExecutor`) or on mesh nodes
(`MeshExecutor`). Results are bit-identical for all of them.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import flag, is_whole, near, number, one_of, positive, warn_user
from neuraxis.deprecation import renamed_arguments
from neuraxis.engine.placement import Placement, check_placement
from neuraxis.engine.precompile import compile_missing, parts_of
from neuraxis.engine.shards import Place, parse_devices, require
from neuraxis.errors import (
    CheckpointError,
    CollectiveMismatch,
    InvalidArgument,
    InvalidType,
    KernelFailed,
    NumericalInstability,
    PeerLost,
    ShardFailed,
    SimulationClosed,
)
from neuraxis.machine import check_process_count
from neuraxis.network import Network, Neuromodulator, Population, Probe, Projection, RateProjection
from neuraxis.network.devices import SpikeInput
from neuraxis.network.grid import array_on_grid, array_to_steps, to_steps, whole_steps
from neuraxis.network.network import LARGEST_STEP
from neuraxis.network.parameters import near_variable
from neuraxis.network.population import LARGEST_FLOAT32, LARGEST_INT32
from neuraxis.notebook import html_table
from neuraxis.process.signals import Interrupts
from neuraxis.progress import ProgressLine, run_text
from neuraxis.simulation.checkpoint import SavedState, begin_state, commit_state, find_state, saved_note
from neuraxis.simulation.executor import Counters, Executor, Recorded, WorkerStatus, instability
from neuraxis.simulation.lockstep import on_all_ranks
from neuraxis.simulation.parallel import ParallelExecutor, as_workers
from neuraxis.simulation.python_populations import INPUT, PythonPopulation, is_concrete, listeners
from neuraxis.simulation.recording import Recording, Rounding, Summary
from neuraxis.simulation.recovery import ACTIONS, Recovery, private_folder
from neuraxis.simulation.sequential import SequentialExecutor
from neuraxis.store.states import discard
from neuraxis.wire.tensors import to_sendable

__all__ = ["Simulation"]

Value = TypeVar("Value")

_log = logging.getLogger("neuraxis.simulation")

# A run advances in pieces of about this many seconds; between them Ctrl-C is handled and progress is drawn.
_PIECE_S = 0.2
_FIRST_PIECE_STEPS = 100

# Warn if fixed point changes more than this share of a projection's weights by more than 1 %.
_MANY_ROUNDED = 0.05


@renamed_arguments(residents="python_populations", recovery_every_ms="checkpoint_every_ms")
class Simulation:
    """A built network that can be run; a context manager that closes on exit.

    With one seed, spikes, states and learned weights are bit-identical for any number of workers and any device.

    Parameters
    ----------
    network : Network
        The description to run. The simulation copies it; until the simulation is closed, changing the network raises
        `NetworkInUse`. Several simulations can share one network.
    workers : int
        Number of processes; 1 runs in this process.
    device : str or sequence of str
        "cpu" or a GPU ("cuda", "cuda:1"), or one device per worker: ("cuda", "cpu", "cpu").
    executor : Executor, optional
        The executor to use instead of `workers` and `device`.
    record_to : path, optional
        SONATA (HDF5) file for the spikes of all spike probes, written during the run. The samples of each state probe
        go to a report in the same folder: "out.<population>.<state>.h5" for "out.h5". File names end in ".partial"
        until the simulation is closed. By default recordings stay in memory.
    progress : bool, optional
        Draw a progress line; by default only on a terminal.
    python_populations : sequence of PythonPopulation
        Populations whose spikes come from Python objects; see `neuraxis.simulation.python_populations`.
    placement : tuple, optional
        Neurons of each worker; see `neuraxis.engine.placement`.
    on_worker_loss : {"raise", "restart"}
        "restart" saves the state regularly to a temporary folder. When a worker dies, new workers continue from the
        last saved state, with the same result as without the failure.
    checkpoint_every_ms : float
        Least model time between two such saved states, in ms.
    check_finite : bool
        Stop the run with `NumericalInstability` when an infinite state or a NaN is noticed. States are checked in one
        step of 16, in the last step of each call and before saving. Use False for models that need such values.

    Raises
    ------
    InvalidArgument, InvalidType
        An argument is invalid, the network has no population, or the machine cannot hold that many workers.
    AccumulatorOverflow
        The weights onto a neuron are more than its accumulator holds.
    ResourceExhausted
        The system refused a worker, an open file or shared memory; workers that had started were ended.
    ShardFailed
        A worker died, or raised an error that is not one of neuraxis, while it built its part of the network.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_delta
    >>> network = Network(dt_ms=0.1, seed=1)
    >>> cells = network.population("cells", 2, lif_delta())
    >>> _ = network.current("cells", [0.0, 400.0])
    >>> _ = network.record("cells")
    >>> with Simulation(network, progress=False) as simulation:
    ...     summary = simulation.run(50.0)
    ...     times_ms, ids = simulation.spikes("cells")
    >>> set(ids.tolist())
    {1}
    """

    def __init__(
        self,
        network: Network,
        workers: int = 1,
        *,
        device: Place | Sequence[Place] = "cpu",
        executor: Executor | None = None,
        record_to: str | Path | None = None,
        progress: bool | None = None,
        python_populations: Sequence[PythonPopulation] = (),
        placement: Placement | None = None,
        on_worker_loss: str = "raise",
        checkpoint_every_ms: float = 1000.0,
        check_finite: bool = True,
    ) -> None:
        if not isinstance(network, Network):
            raise InvalidType(f"network={network!r}: expected a Network")
        if not network.populations:
            raise InvalidArgument("network: it has no population; add one with network.population(name, n, model)")
        workers = as_workers(workers)
        if workers > 1 and executor is None:
            check_process_count(workers, "workers")
        if executor is not None and workers not in (1, executor.workers):
            raise InvalidArgument(f"workers={workers}: the given executor has {executor.workers}")
        self._places = parse_devices(device, int(workers))
        if executor is not None:
            if device not in ("cpu", executor.device):
                raise InvalidArgument(
                    f"device={device!r}: the given executor runs on {executor.device!r}. Pass device to the executor"
                )
        else:
            workers = len(self._places)
            require(self._places)  # before files are made
        check_finite = flag(check_finite, "check_finite")
        self._described = network
        self.network = network = network.final_copy(check_finite=check_finite)
        self._show = progress
        self._python_populations = tuple(python_populations)
        self._closed = False
        self._step = 0
        self._piece = _FIRST_PIECE_STEPS
        if placement is not None:
            check_placement(network, placement, int(workers) if executor is None else executor.workers)
            if executor is not None:
                executor.placement = placement
        self._placement = placement
        self._recovery: Recovery | None = None
        if one_of(on_worker_loss, "on_worker_loss", ("raise", "restart")) == "restart":
            if executor is not None:
                raise InvalidArgument(
                    "on_worker_loss='restart' cannot replace the workers of a given executor. "
                    "Use workers= instead of executor="
                )
            self._recovery = Recovery(
                to_steps(positive(checkpoint_every_ms, "checkpoint_every_ms"), network.dt_ms, "checkpoint_every_ms")
            )
        if executor is None:
            executor = self._new_executor(int(workers))
        to_file = None if record_to is None or not executor.leads else Path(record_to)
        self._recording = Recording(network, to_file, keep=record_to is None)
        self._executor = executor
        expected = sum(p.expected_synapses for p in (*network.projections, *network.rate_projections))
        self.compile_seconds = 0.0
        begun = time.perf_counter()
        try:
            if "cpu" in executor.device:
                self.compile_seconds = compile_missing(parts_of(network), progress)
            with ProgressLine("building", max(1.0, expected), progress) as line:
                self.build = self._executor.start(
                    network, lambda n: line.advance(n, f"{expected / 1e6:,.1f} M synapses"), self._python_populations
                )
                if self._recovery is not None and self._python_populations:
                    self._recovery.save(self._executor, 0)  # fails now, not in an hour, if one has no get_state()
        except BaseException:
            self._abandon()
            raise
        self.build_seconds = time.perf_counter() - begun - self.compile_seconds
        self._described.hold(self)
        self.rounding = self._find_rounding()

    # --- Running -----------------------------------------------------------------------------------------------

    def run(self, time_ms: float) -> Summary:
        """Run for `time_ms` of model time.

        Ctrl-C stops the run between two steps; recordings are kept and the simulation can continue.

        Parameters
        ----------
        time_ms : float
            Model time in ms, a multiple of `Network.dt_ms`.

        Returns
        -------
        Summary
            Figures of this call: run time, spikes, rates, memory, fingerprint.

        Raises
        ------
        NumericalInstability
            A state is infinite or NaN in a step that is checked. The simulation stays open at the end of the piece in
            which this was noticed: read states and recordings, set states, or restore a saved state. Running on raises
            again while a state is not finite.
        ShardFailed
            A worker failed.
        """
        return self.step(whole_steps(time_ms, self.network.dt_ms))

    def step(self, steps: int = 1) -> Summary:
        """Run for a number of steps and return a `Summary`, as `run` does.

        Parameters
        ----------
        steps : int
            Number of steps.

        Returns
        -------
        Summary
            Figures of this run.
        """
        before = self.counters()
        seconds = self.advance(steps, progress=self._show)
        return self._summary(before, self.counters(), seconds)

    def advance(self, steps: int, *, progress: bool | None = False) -> float:
        """Run for a number of steps without a summary, which takes longer than a few steps.

        Parameters
        ----------
        steps : int
            Number of steps, 0 or more.
        progress : bool, optional
            Draw a progress line (None: on a terminal).

        Returns
        -------
        float
            Seconds that the steps took.
        """
        if not is_whole(steps) or steps < 0:
            raise InvalidArgument(f"steps={steps!r}: expected a number of steps, 0 or more")
        steps = int(steps)
        self._open()
        begun_at, until = self._step, self._step + steps
        if until > LARGEST_STEP:
            raise InvalidArgument(
                f"steps={steps}: a simulation has {LARGEST_STEP:,} steps at most, and is at {self._step:,}"
            )
        seconds, spikes = 0.0, 0
        with ProgressLine("running", max(1, int(steps)), progress) as line:
            while self._step < until:
                before = self._step
                # The length of a piece depends on this process's clock, so lockstep ranks must agree on it.
                target = int(self._do("agree", lambda: min(until, self._step + self._piece)))
                begun = time.perf_counter()
                with Interrupts():
                    recorded = self._do("advance", target, target == until)
                    took = time.perf_counter() - begun
                    seconds += took
                    self._step = target
                    self._record(recorded)
                    if recorded.unstable:
                        raise self._instability(recorded.unstable)
                    if self._recovery is not None and self._recovery.is_due(self._step):
                        self._save_recovery()
                spikes += recorded.spikes
                done = self._step - begun_at
                line.update(done, run_text(self.time_ms, done * self.network.dt_ms * 1e-3, seconds, spikes))
                if took < _PIECE_S / 2 and target - before >= self._piece:
                    self._piece *= 2
                elif took > 2 * _PIECE_S and self._piece > 1:
                    self._piece //= 2
        return seconds

    # --- Acting on the network ---------------------------------------------------------------------------------

    def inject(self, population: Population | str, times_ms: Any, ids: Any) -> None:
        """Make neuron `ids[i]` of a population spike at `times_ms[i]`.

        Parameters
        ----------
        population : Population or str
            The population or its name.
        times_ms : array of float
            Model times in ms, later than `time_ms` of the simulation.
        ids : array of int
            Neurons within the population, one per time.
        """
        known = self._population(population)
        given = SpikeInput(known, times_ms, ids)
        steps = array_to_steps(given.times_ms, self.network.dt_ms, "times_ms")
        if steps.size and int(steps.min()) <= self._step:
            raise InvalidArgument(f"times_ms: {given.times_ms.min():g} ms is not after now ({self.time_ms:g} ms)")
        if steps.size and int(steps.max()) > LARGEST_STEP:
            raise InvalidArgument(f"times_ms: {given.times_ms.max():g} ms is beyond the last step ({LARGEST_STEP:,})")
        array_on_grid(given.times_ms, self.network.dt_ms, "times_ms")  # warns
        self._do("inject", steps, given.ids + known.first_id)

    def set_state(self, population: Population | str, name: str, values: Any) -> None:
        """Set a state of all neurons of a population.

        Parameters
        ----------
        population : Population or str
            The population or its name.
        name : str
            Name of the state, such as "v_mv".
        values : number or array of shape (n,)
            One value for all neurons, or one per neuron.
        """
        known = self._population_with(population, name)
        kind = known.model.dtype_of(name)
        whole = kind == np.int32
        array = np.asarray(values)
        if array.dtype.kind not in "iuf" or (whole and array.dtype.kind == "f"):
            raise InvalidType(f"values: expected {'whole numbers' if whole else 'numbers'}, not {array.dtype}")
        if array.ndim > 1 or (array.ndim == 1 and len(array) != known.n):
            raise InvalidArgument(
                f"values has shape {array.shape}: expected one number, or one for each of {known.n} neurons"
            )
        if not np.isfinite(array).all():
            raise InvalidArgument("values: expected finite numbers")
        if array.size and max(-float(array.min()), float(array.max())) > (LARGEST_INT32 if whole else LARGEST_FLOAT32):
            raise InvalidArgument(f"values: beyond what {'int32' if whole else 'float32'} holds")
        filled = np.broadcast_to(array.astype(kind), (known.n,))
        self._do("write_state", known.index, name, np.ascontiguousarray(filled))

    def silence(self, *populations: Population | str) -> None:
        """Silence exactly these populations from now on; call with no arguments to unsilence all.

        A silenced population is not updated and its spikes are not delivered, as after a lesion.

        Parameters
        ----------
        *populations : Population or str
            Populations, or their names.
        """
        self._do("silence", sorted(self._population(one).index for one in populations))

    def freeze(self, *projections: Projection | str) -> None:
        """Stop learning in exactly these projections from now on; call with no arguments to let all learn.

        Parameters
        ----------
        *projections : Projection or str
            Projections, or their names.
        """
        self._do("freeze", sorted(self._projection(one).index for one in projections))

    # --- Reading -----------------------------------------------------------------------------------------------

    @property
    def time_ms(self) -> float:
        """Model time reached, in ms."""
        return self._step * self.network.dt_ms

    @property
    def steps(self) -> int:
        """Steps completed."""
        return self._step

    @property
    def workers(self) -> int:
        """Number of shards, one per worker."""
        return self._executor.workers

    @property
    def device(self) -> str:
        """Device of the shards: "cpu", "cuda", or one per worker: "cuda,cpu"."""
        return self._executor.device

    @property
    def leads(self) -> bool:
        """Return True in the process that writes files and prints: rank 0 in lockstep, else always."""
        return self._executor.leads

    def agree(self, make: Callable[[], Value]) -> Value:
        """Call a function in the leading process only (see `leads`).

        Parameters
        ----------
        make : callable
            Function without arguments.

        Returns
        -------
        object
            What it returned, in every process.
        """
        return self._do("agree", make)  # type: ignore[no-any-return]

    def spikes(self, population: Population | str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the recorded spikes of a population.

        Parameters
        ----------
        population : Population or str
            The population, or its name.

        Returns
        -------
        times_ms : array of float64, shape (spikes,)
            Times in ms, ascending.
        ids : array of int64, shape (spikes,)
            Neurons within the population.

        Raises
        ------
        InvalidArgument
            No probe records these spikes, or they went to the file `record_to`.
        """
        return self._recording.spikes(self._population(population))

    def samples(
        self, population: Population | str | Probe, what: str = ""
    ) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
        """Return the recorded values of a state.

        Parameters
        ----------
        population : Population, str or Probe
            The population; or, if several probes record the state, the probe that `Network.record` returned.
        what : str
            Name of the state.

        Returns
        -------
        times_ms : array of float64, shape (samples,)
            Times in ms.
        values : array, shape (samples, neurons)
            Values by time and neuron.
        """
        if isinstance(population, Probe):
            return self._recording.samples(self.network.probes[population.index])
        known = self._population(population)
        for probe in self.network.probes:
            if probe.population.index == known.index and probe.what == what:
                return self._recording.samples(probe)
        raise InvalidArgument(
            f"{what!r} of {known.name!r} is not recorded. Add network.record({known.name!r}, {what!r}, every_ms=...)"
        )

    def state(self, population: Population | str, name: str) -> NDArray[np.generic]:
        """Return the current values of a state.

        Parameters
        ----------
        population : Population or str
            The population, or its name.
        name : str
            Name of a state of its model.

        Returns
        -------
        array, shape (n,)
            Value of each neuron, in the unit that the name ends in.
        """
        known = self._population_with(population, name)
        return self._do("read_state", known.index, name)  # type: ignore[no-any-return]

    def spike_counts(self, population: Population | str) -> NDArray[np.int64]:
        """Return the number of spikes of each neuron since step 0.

        Parameters
        ----------
        population : Population or str
            The population, or its name.

        Returns
        -------
        array of int64, shape (n,)
            Spikes of each neuron, recorded or not.
        """
        return self.spike_counts_of([population])[0]

    def spike_counts_of(self, populations: Sequence[Population | str]) -> list[NDArray[np.int64]]:
        """Return `spike_counts` of several populations in one round trip to the workers.

        Parameters
        ----------
        populations : sequence of Population or str
            Populations, or their names.

        Returns
        -------
        list of array
            `spike_counts` of each population.
        """
        wanted = [self._population(one).index for one in populations]
        return self._do("read_counts", wanted) if wanted else []

    def synapses(self, projection: Projection | str) -> dict[str, NDArray[np.generic]]:
        """Return the synapses of a projection with their current weights.

        Parameters
        ----------
        projection : Projection or str
            The projection, or its name.

        Returns
        -------
        dict of arrays
            "pre", "post", "delay_steps" and "weight", each of shape (synapses,), sorted by post, then pre.
        """
        known = self._projection(projection)
        if isinstance(known, RateProjection):
            return self._do("read_rate_synapses", known.place)  # type: ignore[no-any-return]
        return self._do("read_synapses", known.index)  # type: ignore[no-any-return]

    def weights(self, projection: Projection | str) -> NDArray[np.generic]:
        """Return the current weights of a projection.

        With TsodyksMarkram a spike delivers the weight times the released fraction, which is not included here.

        Parameters
        ----------
        projection : Projection or str
            The projection, or its name.

        Returns
        -------
        array, shape (synapses,)
            Weights, sorted by post, then pre.
        """
        return self.synapses(projection)["weight"]

    def level(self, modulator: str) -> float:
        """Return the current level of a neuromodulator.

        Parameters
        ----------
        modulator : str
            Name of a neuromodulator.

        Returns
        -------
        float
            The level.
        """
        known = self._modulator(modulator)
        level = self._do("level", known.index)
        return float(known.baseline + level)

    def release(self, modulator: str, amount: float) -> None:
        """Change the level of a neuromodulator now, for example on a reward.

        Parameters
        ----------
        modulator : str
            Name of a neuromodulator.
        amount : float
            Change of the level; may be negative.
        """
        try:
            amount = number(amount, "amount")
        except InvalidType:
            raise InvalidArgument(f"amount={amount!r}: expected a number") from None
        known = self._modulator(modulator)
        level = float(self._do("level", known.index))
        self._do("set_level", known.index, level + amount)

    @property
    def placement(self) -> Placement:
        """Neurons of each worker."""
        return self._executor.placement

    def load(self) -> list[dict[str, float]]:
        """Return, per worker, the shares of run time spent waiting, collecting, delivering and updating."""
        return [one.shares for one in self.status()]

    def status(self) -> list[WorkerStatus]:
        """Return a `WorkerStatus` per worker: step, memory, spikes sent and received, time shares."""
        return self._do("status")  # type: ignore[no-any-return]

    @renamed_arguments(resident="name")
    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        """Pass data to a Python population, which receives it in its next call.

        Parameters
        ----------
        name : str
            Name of the Python population.
        data : array, tensor or other value
            The data.
        source : str
            Name of another source, such as "sensor/thermal". The population must subscribe to it; the data arrives
            after the delay of that subscription.
        """
        known = {one.name: one for one in self._python_populations}
        if name not in known:
            raise InvalidArgument(f"no Python population {name!r}; {near(name, list(known))}")
        if source != INPUT and not (is_concrete(source) and known[name].subscribes_to(source)):
            raise InvalidArgument(f"source={source!r}: Python population {name!r} does not subscribe to it")
        self._do("give", name, data, source)

    def fingerprint(self) -> str:
        """Return a hash of all spikes since step 0 and of the current states and learned weights.

        Equal fingerprints of two runs of one network mean equal spikes, states and weights, except with probability
        2^-64. The fingerprint does not depend on the number of workers or the device.

        Returns
        -------
        str
            16 hexadecimal digits.
        """
        return self._fingerprint(self.counters())

    def _fingerprint(self, counters: Counters) -> str:
        state = int(self._do("state_hash"))
        return f"{(counters.hash + 0x9E3779B97F4A7C15 * (state + self._step)) % 2**64:016x}"

    # --- Saving and restoring ----------------------------------------------------------------------------------

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write the complete state to a folder.

        A state that the folder already holds stays valid until the new one is complete. Use one folder per simulation.

        Parameters
        ----------
        folder : path
            Folder of the state; created if missing.
        note : mapping, optional
            JSON data to keep with the state.

        Raises
        ------
        NumericalInstability
            A state is infinite or NaN; nothing is written.
        CheckpointError
            The state cannot be written.
        """
        self._open()
        self._check_states()
        folder = Path(folder)
        with Interrupts():
            data = Path(self._do("agree", lambda: str(begin_state(folder).resolve())))
            try:
                files = self._do("save", data)
                now = (self._step, self.fingerprint())
                self._do("agree", lambda: commit_state(data, files, self.network, *now, note))
            except BaseException:
                discard(data)
                raise

    def restore(self, folder: str | Path) -> dict[str, Any]:
        """Continue from a saved state of the same network, saved with any number of workers.

        Recordings in memory are cleared; recording files must be able to continue from the step of the state. A state
        that cannot be used leaves the simulation unchanged.

        Parameters
        ----------
        folder : path
            Folder that `save` wrote.

        Returns
        -------
        dict
            The note that was saved with the state.

        Raises
        ------
        CheckpointError
            The folder holds no valid state of this network.
        InvalidArgument
            A recording file already holds later steps.
        """
        self._open()
        found = find_state(Path(folder), self.network)
        data, files = found.data.resolve(), list(found.files)
        with SavedState(found.data, files) as saved:
            saved.check(self.network)
            step = saved.step
        found.verify()
        self._do("agree", lambda: self._recording.check_restore(step))
        with Interrupts():
            try:
                self._do("restore", data, files)
            except CheckpointError:
                self._abandon()  # some shards may have restored the state and others not
                raise
            self._step = step
            self._recording.clear()
            if self._recovery is not None:
                self._recovery.begin_at(data, files, step)
                self._save_recovery()
        return saved_note(found)

    def note(self, folder: str | Path) -> dict[str, Any]:
        """Return the note of a saved state of the same network without restoring the state.

        Parameters
        ----------
        folder : path
            Folder that `save` wrote.

        Returns
        -------
        dict
            The note.
        """
        self._open()
        return saved_note(find_state(Path(folder), self.network))

    def move(self, placement: Placement) -> None:
        """Redistribute the neurons over the workers, which changes no result; in one process this does nothing.

        Parameters
        ----------
        placement : Placement
            Neurons of each worker.

        Raises
        ------
        InvalidArgument
            The placement does not have every neuron once, or splits a Python population.
        """
        self._open()
        check_placement(self.network, placement, self.workers)
        listeners(self._python_populations, placement)  # raises if the neurons of a Python population would be split
        if not isinstance(self._executor, ParallelExecutor) or placement == self._executor.placement:
            return
        folder = private_folder("move")
        try:
            with Interrupts():
                files = self._do("save", folder)
                self._placement = placement
                self._do("move", placement)
                self._do("restore", folder, files)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # --- Closing -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the workers and finish recording files; recordings in memory stay readable."""
        if self._closed:
            return
        self._closed = True
        self._described.release(self)
        try:
            self._executor.close()
        finally:
            self._forget_recovery()
            self._recording.close()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Simulation of {self.network.neuron_count:,} neurons at {self.time_ms:g} ms{state}>"

    def _repr_html_(self) -> str:
        recorded: dict[int, list[str]] = {}
        for probe in self.network.probes:
            recorded.setdefault(probe.population.index, []).append(probe.what)
        rows = (
            (one.name, one.model.name, f"{one.n:,}", ", ".join(recorded.get(one.index, ())))
            for one in self.network.populations
        )
        where = f"{self.workers} worker{'s' * (self.workers != 1)} ({self.device})"
        return html_table(f"{repr(self)[1:-1]}, {where}", ("population", "model", "neurons", "recorded"), rows)

    # --- Helpers -----------------------------------------------------------------------------------------------

    def _open(self) -> Executor:
        if self._closed:
            raise SimulationClosed("this simulation is closed. Make a new one")
        return self._executor

    def _new_executor(self, workers: int) -> Executor:
        if workers == 1:
            return SequentialExecutor(self._places[0])
        return ParallelExecutor(workers, placement=self._placement, devices=self._places)

    def _do(self, name: str, *arguments: object) -> Any:
        """Call the executor. After a worker failure, start new workers and retry, or close the simulation."""
        while True:
            self._open()
            try:
                with Interrupts():
                    result = getattr(self._executor, name)(*arguments)
                    if self._recovery is not None and name in ACTIONS:
                        # Copied, because the caller may change its arrays before a replay.
                        kept = tuple(to_sendable(one) if name == "give" else deepcopy(one) for one in arguments)
                        self._recovery.log_action(self._step, name, kept)
                    return result
            except ShardFailed as error:
                if self._recovery is None:
                    self._abandon()
                    raise
                self._recover(error)
            except (PeerLost, CollectiveMismatch, KernelFailed):
                self._abandon()
                raise

    def _recover(self, error: ShardFailed) -> None:
        """Start new workers and bring them to the current step."""
        assert self._recovery is not None
        while True:
            try:
                self._recovery.count_loss(error, self._step)
            except ShardFailed:
                self._abandon()
                raise
            _log.warning(
                "worker %d was lost after step %d; restarting from step %d to reach step %d: %s",
                error.worker, error.step, self._recovery.saved_step, self._step, str(error).splitlines()[0],
            )  # fmt: skip
            self._executor.close()
            self._executor = self._new_executor(self._executor.workers)
            try:
                with Interrupts():
                    self._executor.start(self.network, lambda synapses: None, self._python_populations)
                    self._recovery.replay(self._executor, self._step)
                return
            except ShardFailed as again:
                error = again
            except BaseException:
                self._abandon()
                raise

    def _save_recovery(self) -> None:
        """Save the state for a recovery; if a worker is lost during that, recover and save again."""
        while self._recovery is not None:
            try:
                self._recovery.save(self._executor, self._step)
                return
            except ShardFailed as error:
                self._recover(error)
            except CheckpointError as error:
                # A full disk, or data in flight that cannot be saved: keep the previous state.
                _log.warning("could not save the state for a recovery: %s", error)
                self._recovery.postpone()
                return

    def counters(self) -> Counters:
        """Return the totals since step 0: spikes per population, synaptic events, spike hash."""
        return self._do("counters")  # type: ignore[no-any-return]

    def _record(self, recorded: Recorded) -> None:
        """Store recordings; if that fails, close the simulation, because the file would have a gap."""
        try:
            self._recording.add(recorded)
        except BaseException:
            self._abandon()
            raise

    def _instability(self, unstable: Sequence[float]) -> NumericalInstability:
        """Return the error for a state that is not finite; all lockstep ranks raise it, the leading one prints it."""
        error = instability(self.network, unstable)
        return error if self._executor.leads else on_all_ranks(error)

    def _check_states(self) -> None:
        """Raise for the first neuron with a state that is not finite, if the network checks that."""
        for population in self.network.populations if self.network.checks_finite else ():
            floats = [i for i, one in enumerate(population.model.states.values()) if isinstance(one, float)]
            names = list(population.model.states)
            values = np.array(
                [self._do("read_state", population.index, names[i]) for i in floats],
                np.float64 if self.network.is_wide else np.float32,
            )
            bad = np.argwhere(~np.isfinite(values.T))
            if len(bad):
                neuron, row = (int(one) for one in bad[0])
                place = [self._step, population.index, neuron, floats[row]]
                raise self._instability([*place, float(values[row, neuron])])

    def _abandon(self) -> None:
        self._closed = True
        self._described.release(self)
        try:
            self._executor.close()
        finally:
            self._forget_recovery()
            self._recording.abandon()

    def _forget_recovery(self) -> None:
        if self._recovery is not None:
            self._recovery.close()

    def _find_rounding(self) -> dict[str, Rounding]:
        """Return the projections whose weights fixed point changes by more than 1 %; warn if many do."""
        found = {
            projection.name: Rounding(round(projection.expected_synapses), changed, to_zero)
            for projection, (changed, to_zero) in zip(self.network.projections, self.build.rounded, strict=False)
            if changed
        }
        worst = {name: one for name, one in found.items() if one.share > _MANY_ROUNDED}
        if worst and self.leads:
            listed = "; ".join(f"{name!r}: {one}" for name, one in worst.items())
            warn_user(
                f"fixed-point weights differ from those described: {listed}. Put weights that are orders of magnitude "
                "apart into separate projections to keep their precision; weights() returns those in use."
            )
        return found

    def _summary(self, before: Counters, after: Counters, seconds: float) -> Summary:
        steps = after.step - before.step
        counts = after.spike_counts - before.spike_counts
        duration_s = steps * self.network.dt_ms * 1e-3
        return Summary(
            workers=self.workers,
            device=self.device,
            time_ms=steps * self.network.dt_ms,
            build_seconds=self.build_seconds,
            run_seconds=seconds,
            spikes=int(counts.sum()),
            rates_hz={
                p.name: float(counts[p.index] / p.n / duration_s) if duration_s else 0.0
                for p in self.network.populations
            },
            synaptic_events=after.events - before.events,
            synapses=self.build.synapses,
            bytes_per_synapse=self.build.bytes_per_synapse,
            clipped_delays=self.build.clipped_delays,
            peak_memory_bytes=after.peak_memory_bytes,
            fingerprint=self._fingerprint(after),
            rounding=self.rounding,
            compile_seconds=self.compile_seconds,
        )

    def _population(self, population: Population | str) -> Population:
        if not isinstance(population, Population | str):
            raise InvalidType(f"population={population!r}: expected a population or its name")
        return self.network[population if isinstance(population, str) else population.name]

    def _population_with(self, population: Population | str, state: str) -> Population:
        known = self._population(population)
        if state not in known.model.states:
            if state in known.model.parameters:
                raise InvalidArgument(
                    f"{state} is a parameter of {known.name!r}, not a state, and is fixed while a simulation is open. "
                    "Pass it to the model, or make it a state of a model of your own"
                )
            raise InvalidArgument(f"{known.name!r} has no state {state!r}; {near_variable(state, known.model.states)}")
        return known

    def _projection(self, projection: Projection | str) -> Projection:
        if not isinstance(projection, Projection | str):
            raise InvalidType(f"projection={projection!r}: expected a projection or its name")
        name = projection if isinstance(projection, str) else projection.name
        all_of_them = (*self.network.projections, *self.network.rate_projections)
        for known in all_of_them:
            if known.name == name:
                return known
        raise InvalidArgument(f"no projection {name!r}; there are {', '.join(p.name for p in all_of_them) or 'none'}")

    def _modulator(self, name: str) -> Neuromodulator:
        for known in self.network.neuromodulators:
            if known.name == name:
                return known
        names = ", ".join(m.name for m in self.network.neuromodulators) or "none"
        raise InvalidArgument(f"no neuromodulator {name!r}; there are: {names}")
