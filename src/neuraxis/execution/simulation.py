"""Run a network: `with Simulation(network, workers=2) as simulation: simulation.run(1000.0)`."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.factory import Place, parse_devices, require
from neuraxis.engine.placement import Placement, check_placement
from neuraxis.errors import (
    CheckpointError,
    CollectiveMismatch,
    InvalidArgument,
    InvalidType,
    KernelFailed,
    PeerLost,
    ShardFailed,
    SimulationClosed,
)
from neuraxis.execution.admission import is_concrete
from neuraxis.execution.checkpoint import (
    SavedState,
    check_sums,
    discard_state,
    new_state_folder,
    read_manifest,
    remove_other_states,
    write_manifest,
)
from neuraxis.execution.executor import Counters, Executor, Recorded, WorkerStatus
from neuraxis.execution.parallel import ParallelExecutor
from neuraxis.execution.progress import ProgressLine, run_text
from neuraxis.execution.recording import Recording
from neuraxis.execution.recovery import ACTIONS, Recovery, private_folder
from neuraxis.execution.resident import INPUT, Resident, listeners
from neuraxis.execution.sequential import SequentialExecutor
from neuraxis.execution.summary import Summary
from neuraxis.execution.tensors import lowered
from neuraxis.launch.interrupts import Interrupts
from neuraxis.network import Network, Neuromodulator, Population, Probe, Projection
from neuraxis.network.arguments import near, one_of, positive
from neuraxis.network.grid import array_to_steps, to_steps, whole_steps
from neuraxis.network.inputs import SpikeInput
from neuraxis.network.network import LARGEST_STEP
from neuraxis.network.population import LARGEST_FLOAT32, LARGEST_INT32

__all__ = ["Simulation"]

Value = TypeVar("Value")

_log = logging.getLogger("neuraxis.simulation")

# A run is cut into pieces of about this much time, between which Ctrl-C is heard and progress is told.
_PIECE_S = 0.2
_FIRST_PIECE_STEPS = 100


class Simulation:
    """A network that runs.

    Args:
        network: what to run. It is read once, here; changing it afterwards has no effect.
        workers: how many processes; 1 runs in this one. The result is the same, to the bit.
        device: "cpu", or a GPU: "cuda", "cuda:1"; for several workers, one for each: ("cuda", "cpu", "cpu"). The
            result is the same, to the bit.
        executor: who runs it, instead of `workers` and `device`.
        record_to: a file (SONATA, HDF5) for the spikes of all spike probes, written while the simulation runs; the
            samples of each state probe go to a report beside it: for "out.h5" to "out.<population>.<state>.h5".
            Files get their names when the simulation is closed, and end in ".partial" until then.
            Without it all is kept in memory.
        progress: whether to draw a progress line; by default on a terminal.
        residents: Python that lives beside the neurons; see `neuraxis.execution.resident`.
        placement: which worker has which neurons; see `neuraxis.engine.placement`.
        on_worker_loss: "raise", or "restart": then the state is saved on the way (to the folder for temporary files),
            and when a worker dies, new ones go on from there, with the same result as if nothing had happened.
        recovery_every_ms: how much model time there is between two such states, at least.
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
        residents: Sequence[Resident] = (),
        placement: Placement | None = None,
        on_worker_loss: str = "raise",
        recovery_every_ms: float = 1000.0,
    ) -> None:
        if not isinstance(network, Network):
            raise InvalidType(f"network={network!r}: a Network is expected")
        if not network.populations:
            raise InvalidArgument("network: it has no population; add one with network.population(name, n, model)")
        if isinstance(workers, bool) or not isinstance(workers, int | np.integer) or workers < 1:
            raise InvalidArgument(f"workers={workers!r}: a number of processes, 1 or more, is expected")
        if executor is not None and workers not in (1, executor.workers):
            raise InvalidArgument(f"workers={workers}: the executor given has {executor.workers}")
        self._places = parse_devices(device, int(workers))
        if executor is not None:
            if device not in ("cpu", executor.device):
                raise InvalidArgument(
                    f"device={device!r}: the executor given runs on {executor.device!r}; a SequentialExecutor and a "
                    "ParallelExecutor take a device of their own"
                )
        else:
            workers = len(self._places)
            require(self._places)  # before files are made
        self.network = network = network.copy()
        self._show = progress
        self._residents = tuple(residents)
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
                    "on_worker_loss='restart': say workers=, not executor=: new workers may be needed"
                )
            self._recovery = Recovery(
                to_steps(positive(recovery_every_ms, "recovery_every_ms"), network.dt_ms, "recovery")
            )
        if executor is None:
            executor = self._new_executor(int(workers))
        to_file = None if record_to is None or not executor.leads else Path(record_to)
        self._recording = Recording(network, to_file, keep=record_to is None)
        self._executor = executor
        expected = sum(p.expected_synapses for p in network.projections)
        begun = time.perf_counter()
        try:
            with ProgressLine("building", max(1.0, expected), progress) as line:
                self.build = self._executor.start(
                    network, lambda n: line.advance(n, f"{expected / 1e6:,.1f} M synapses"), self._residents
                )
                if self._recovery is not None and self._residents:
                    self._recovery.save(self._executor, 0)  # who cannot be saved is refused now, not in an hour
        except BaseException:
            self._abandon()
            raise
        self.build_seconds = time.perf_counter() - begun

    # --- to run ---------------------------------------------------------------------------------------------

    def run(self, time_ms: float) -> Summary:
        """Run for `time_ms` of model time, and say what happened in it.

        Ctrl-C ends it between two steps: what was recorded is kept, and the simulation can go on from there.
        """
        return self.step(whole_steps(time_ms, self.network.dt_ms))

    def step(self, steps: int = 1) -> Summary:
        """Run for a number of steps."""
        before = self.counters()
        seconds = self.advance(steps, progress=self._show)
        return self._summary(before, self.counters(), seconds)

    def advance(self, steps: int, *, progress: bool | None = False) -> float:
        """Run for a number of steps without a summary, which costs more than a few steps do; the seconds it took.

        Nor is progress drawn, unless it is asked for: whoever runs many short stretches draws a line of its own.
        """
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
            raise InvalidArgument(f"steps={steps!r}: a number of steps, 0 or more, is expected")
        self._open()
        begun_at, until = self._step, self._step + int(steps)
        if until > LARGEST_STEP:
            raise InvalidArgument(
                f"steps={steps}: a simulation has {LARGEST_STEP:,} steps at most, and is at {self._step:,}"
            )
        seconds, spikes = 0.0, 0
        with ProgressLine("running", max(1, int(steps)), progress) as line:
            while self._step < until:
                before = self._step
                # Agreed: the pieces follow the clock, and other processes have another one.
                target = int(self._do("agree", lambda: min(until, self._step + self._piece)))
                begun = time.perf_counter()
                with Interrupts():
                    recorded = self._do("advance", target)
                    took = time.perf_counter() - begun
                    seconds += took
                    self._step = target
                    self._record(recorded)
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

    # --- to act on --------------------------------------------------------------------------------------------

    def inject(self, population: Population | str, times_ms: Any, ids: Any) -> None:
        """Let neuron `ids[i]` of a population emit a spike at `times_ms[i]`, which must be after now."""
        known = self._population(population)
        given = SpikeInput(known, times_ms, ids)
        steps = array_to_steps(given.times_ms, self.network.dt_ms, "times_ms")
        if steps.size and int(steps.min()) <= self._step:
            raise InvalidArgument(f"times_ms: {given.times_ms.min():g} ms is not after now ({self.time_ms:g} ms)")
        if steps.size and int(steps.max()) > LARGEST_STEP:
            raise InvalidArgument(f"times_ms: {given.times_ms.max():g} ms is beyond the last step ({LARGEST_STEP:,})")
        self._do("inject", steps, given.ids + known.first_id)

    def set_state(self, population: Population | str, name: str, values: Any) -> None:
        """Set a state of all neurons of a population: one number for all, or one for each."""
        known = self._population_with(population, name)
        whole = isinstance(known.model.states[name], int)
        array = np.asarray(values)
        if array.dtype.kind not in "iuf" or (whole and array.dtype.kind == "f"):
            raise InvalidType(f"values: {'whole numbers' if whole else 'numbers'} are expected, not {array.dtype}")
        if array.ndim > 1 or (array.ndim == 1 and len(array) != known.n):
            raise InvalidArgument(
                f"values: {array.shape}: one number, or one for each of {known.n} neurons, is expected"
            )
        if not np.isfinite(array).all():
            raise InvalidArgument("values: finite numbers are expected")
        if array.size and max(-array.min(), array.max()) > (LARGEST_INT32 if whole else LARGEST_FLOAT32):
            raise InvalidArgument(f"values: beyond what {'int32' if whole else 'float32'} holds")
        filled = np.broadcast_to(array.astype(np.int32 if whole else np.float32), (known.n,))
        self._do("write_state", known.index, name, np.ascontiguousarray(filled))

    def silence(self, *populations: Population | str) -> None:
        """Have exactly these populations (none: no more any) neither updated nor heard from now on: a lesion."""
        self._do("silence", sorted(self._population(one).index for one in populations))

    def freeze(self, *projections: Projection | str) -> None:
        """Have exactly these projections (none: no more any) keep their weights as they are from now on."""
        self._do("freeze", sorted(self._projection(one).index for one in projections))

    # --- to look at -------------------------------------------------------------------------------------------

    @property
    def time_ms(self) -> float:
        """The model time so far."""
        return self._step * self.network.dt_ms

    @property
    def steps(self) -> int:
        """The steps so far."""
        return self._step

    @property
    def workers(self) -> int:
        return self._executor.workers

    @property
    def device(self) -> str:
        """Where it runs: "cpu", "cuda", or where each worker does: "cuda,cpu"."""
        return self._executor.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks to people; all but one do not, where each has the simulation."""
        return self._executor.leads

    def agree(self, make: Callable[[], Value]) -> Value:
        """What `make` gives in the process that leads, known to all that have this simulation."""
        return self._do("agree", make)  # type: ignore[no-any-return]

    def spikes(self, population: Population | str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The recorded spikes of a population: (times in ms, ids within it), in the order of time and id."""
        return self._recording.spikes(self._population(population))

    def samples(
        self, population: Population | str | Probe, what: str = ""
    ) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
        """The recorded values of a state: (times in ms, values by time and neuron).

        Where a state is recorded by several probes, give the probe that `Network.record` returned.
        """
        if isinstance(population, Probe):
            return self._recording.samples(self.network.probes[population.index])
        known = self._population(population)
        for probe in self.network.probes:
            if probe.population.index == known.index and probe.what == what:
                return self._recording.samples(probe)
        raise InvalidArgument(
            f"{what!r} of {known.name!r} is not recorded; say network.record({known.name!r}, {what!r}, every_ms=...)"
        )

    def state(self, population: Population | str, name: str) -> NDArray[np.generic]:
        """A state of all neurons of a population, as it is now."""
        known = self._population_with(population, name)
        return self._do("read_state", known.index, name)  # type: ignore[no-any-return]

    def spike_counts(self, population: Population | str) -> NDArray[np.int64]:
        """How many spikes each neuron of a population has emitted so far, recorded or not."""
        return self.spike_counts_of([population])[0]

    def spike_counts_of(self, populations: Sequence[Population | str]) -> list[NDArray[np.int64]]:
        """The same for several populations at once, which is quicker."""
        wanted = [self._population(one).index for one in populations]
        return self._do("read_counts", wanted) if wanted else []

    def synapses(self, projection: Projection | str) -> dict[str, NDArray[np.generic]]:
        """pre, post, delay_steps and weight (as it is now) of every synapse, sorted by post, then pre."""
        known = self._projection(projection)
        return self._do("read_synapses", known.index)  # type: ignore[no-any-return]

    def weights(self, projection: Projection | str) -> NDArray[np.generic]:
        """The weights of a projection as they are now, sorted by post, then pre."""
        return self.synapses(projection)["weight"]

    def level(self, modulator: str) -> float:
        """The level of a neuromodulator now."""
        known = self._modulator(modulator)
        level = self._do("level", known.index)
        return float(known.baseline + level)

    def release(self, modulator: str, amount: float) -> None:
        """Add to a neuromodulator's level now, e.g. because a reward came."""
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount):
            raise InvalidArgument(f"amount={amount!r}: a number is expected")
        known = self._modulator(modulator)
        level = float(self._do("level", known.index))
        self._do("set_level", known.index, level + amount)

    @property
    def placement(self) -> Placement:
        """Which worker has which neurons."""
        return self._executor.placement

    def load(self) -> list[dict[str, float]]:
        """For each worker, the shares of the run time that it spent waiting, collecting, delivering and updating."""
        return [one.shares for one in self.status()]

    def status(self) -> list[WorkerStatus]:
        """How each worker is doing: step, memory, spikes in and out, and where its time goes."""
        return self._do("status")  # type: ignore[no-any-return]

    def give(self, resident: str, data: Any, source: str = INPUT) -> None:
        """Data (an array, a tensor, ...) for a resident, which gets them after the next step.

        Data of another `source` ("sensor/thermal") must be admitted by the resident, and arrive after its delay.
        """
        known = {one.name: one for one in self._residents}
        if resident not in known:
            raise InvalidArgument(f"no resident {resident!r}; {near(resident, list(known))}")
        if source != INPUT and not (is_concrete(source) and known[resident].admits_data_of(source)):
            raise InvalidArgument(f"source={source!r}: resident {resident!r} does not admit such data")
        self._do("give", resident, data, source)

    def fingerprint(self) -> str:
        """A hash of every spike so far and of the states and learned weights now.

        Two runs of the same network whose fingerprints agree had (but for a chance in 2^64) the same spikes, states and
        weights, however many workers they had.
        """
        return self._fingerprint(self.counters())

    def _fingerprint(self, counters: Counters) -> str:
        state = int(self._do("state_hash"))
        return f"{(counters.hash + 0x9E3779B97F4A7C15 * (state + self._step)) % 2**64:016x}"

    # --- to keep ----------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write the complete state to a folder; what it held before stays valid until the new state is complete.

        A folder is for one simulation. `note` is kept with the state: whatever JSON can hold.
        """
        self._open()
        folder = Path(folder)
        with Interrupts():
            state = Path(self._do("agree", lambda: str(new_state_folder(folder, self._step).resolve())))
            try:
                files = self._do("save", state)
                now = (self._step, self.fingerprint())
                self._do("agree", lambda: write_manifest(folder, state, files, self.network, *now, note))
            except BaseException:
                discard_state(folder, state)
                raise
        if self._executor.leads:
            remove_other_states(folder, state)

    def restore(self, folder: str | Path) -> dict[str, Any]:
        """Go on from a saved state of the same network, saved with any number of workers; the note saved with it.

        What was recorded in memory is forgotten; files must be able to go on from the state's step. A state that
        cannot be used leaves the simulation as it was.
        """
        self._open()
        state, files, note = read_manifest(Path(folder), self.network)
        with SavedState(state, files) as saved:
            saved.check(self.network)
            step = saved.step
        check_sums(Path(folder))
        self._do("agree", lambda: self._recording.check_restore(step))
        with Interrupts():
            try:
                self._do("restore", state.resolve(), files)
            except CheckpointError:
                self._abandon()  # some shards may have taken the state and others not
                raise
            self._step = step
            self._recording.clear()
            if self._recovery is not None:
                self._recovery.begin_at(state.resolve(), files, step)
                self._save_recovery()
        return note

    def note(self, folder: str | Path) -> dict[str, Any]:
        """The note that was saved with a state of the same network, without restoring it."""
        self._open()
        return read_manifest(Path(folder), self.network)[2]

    def move(self, placement: Placement) -> None:
        """Have the workers hold other neurons than so far; this changes no spike. In one process there is no choice."""
        self._open()
        check_placement(self.network, placement, self.workers)
        listeners(self._residents, placement)  # raises if it parts a resident from its neurons
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

    # --- to end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers, and finish the files that are recorded to. What was recorded in memory stays readable."""
        if self._closed:
            return
        self._closed = True
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

    # --- helpers ------------------------------------------------------------------------------------------------

    def _open(self) -> Executor:
        if self._closed:
            raise SimulationClosed("this simulation has been closed; make a new one")
        return self._executor

    def _new_executor(self, workers: int) -> Executor:
        if workers == 1:
            return SequentialExecutor(self._places[0])
        return ParallelExecutor(workers, placement=self._placement, devices=self._places)

    def _do(self, name: str, *arguments: object) -> Any:
        """Call the executor. After a worker's failure new ones are started, or the simulation is over."""
        while True:
            self._open()
            try:
                with Interrupts():
                    result = getattr(self._executor, name)(*arguments)
                    if self._recovery is not None and name in ACTIONS:
                        # Copied: what the caller does with its arrays later must not change what would be told again.
                        kept = tuple(lowered(one) if name == "give" else deepcopy(one) for one in arguments)
                        self._recovery.note(self._step, name, kept)
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
        """Start new workers and bring them to where the lost ones were."""
        assert self._recovery is not None
        while True:
            try:
                self._recovery.count_loss(error, self._step)
            except ShardFailed:
                self._abandon()
                raise
            _log.warning(
                "worker %d was lost after step %d; starting again from step %d to reach step %d: %s",
                error.worker, error.step, self._recovery.saved_step, self._step, str(error).splitlines()[0],
            )  # fmt: skip
            self._executor.close()
            self._executor = self._new_executor(self._executor.workers)
            try:
                with Interrupts():
                    self._executor.start(self.network, lambda synapses: None, self._residents)
                    self._recovery.replay(self._executor, self._step)
                return
            except ShardFailed as again:
                error = again
            except BaseException:
                self._abandon()
                raise

    def _save_recovery(self) -> None:
        """Save the state that lost workers would be replaced from; a worker that is lost meanwhile is, too."""
        while self._recovery is not None:
            try:
                self._recovery.save(self._executor, self._step)
                return
            except ShardFailed as error:
                self._recover(error)
            except CheckpointError as error:
                # A full disk, or data under way that cannot be saved: the state before has to do for now.
                _log.warning("the state to recover from could not be saved now: %s", error)
                self._recovery.put_off()
                return

    def counters(self) -> Counters:
        """What has happened since step 0: spikes by population, synaptic events."""
        return self._do("counters")  # type: ignore[no-any-return]

    def _record(self, recorded: Recorded) -> None:
        """Keep what was recorded; where a file cannot take it, the simulation is over: it would have a hole."""
        try:
            self._recording.add(recorded)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        self._closed = True
        try:
            self._executor.close()
        finally:
            self._forget_recovery()
            self._recording.abandon()

    def _forget_recovery(self) -> None:
        if self._recovery is not None:
            self._recovery.close()

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
        )

    def _population(self, population: Population | str) -> Population:
        if not isinstance(population, Population | str):
            raise InvalidType(f"population={population!r}: a population or its name is expected")
        return self.network[population if isinstance(population, str) else population.name]

    def _population_with(self, population: Population | str, state: str) -> Population:
        known = self._population(population)
        if state not in known.model.states:
            raise InvalidArgument(f"{known.name!r} has no state {state!r}; it has {', '.join(known.model.states)}")
        return known

    def _projection(self, projection: Projection | str) -> Projection:
        if not isinstance(projection, Projection | str):
            raise InvalidType(f"projection={projection!r}: a projection or its name is expected")
        name = projection if isinstance(projection, str) else projection.name
        for known in self.network.projections:
            if known.name == name:
                return known
        raise InvalidArgument(
            f"no projection {name!r}; there are {', '.join(p.name for p in self.network.projections) or 'none'}"
        )

    def _modulator(self, name: str) -> Neuromodulator:
        for known in self.network.neuromodulators:
            if known.name == name:
                return known
        names = ", ".join(m.name for m in self.network.neuromodulators) or "none"
        raise InvalidArgument(f"no neuromodulator {name!r}; there are: {names}")
