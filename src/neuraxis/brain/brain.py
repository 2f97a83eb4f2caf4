"""A running brain: regions of a `BrainSpec`, driven by input, actions and rewards.

The process that holds the `Brain` owns the clock, the input, the reward and the choice of actions. Workers hold the
neurons, the synapses and the users' own regions (a single worker is this process), and exchange spikes directly. A
result therefore does not depend on the number of workers or the device: this module computes it from numbers that do
not depend on them, or asks the simulation.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import near, number, one_of, positive, whole
from neuraxis.brain.checks import validate
from neuraxis.brain.config import Config, check_batch_tolerance
from neuraxis.brain.diagnostics import Diagnostics, auto_workers, diagnose, measured_load
from neuraxis.brain.files import read_spec, spec_text, write_spec
from neuraxis.brain.lowering import GO, NO_GO, Lowered, lower
from neuraxis.brain.regions.sources import thresholds
from neuraxis.brain.session import END_ACTION, RELEASE, Choice, Session, by_group, choose, uniform
from neuraxis.brain.spec import BrainSpec, EffectorSpec, split_port
from neuraxis.brain.stimulus import as_stimulus
from neuraxis.deprecation import renamed_members
from neuraxis.engine.placement import Placement, place_regions
from neuraxis.engine.shards import Place, on_cpu, parse_devices
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType, SpecError
from neuraxis.network.grid import to_steps, whole_steps
from neuraxis.network.network import LARGEST_STEP
from neuraxis.notebook import html_table
from neuraxis.process.signals import Interrupts
from neuraxis.simulation import Simulation
from neuraxis.simulation.executor import Executor, WorkerStatus
from neuraxis.store.states import damaged
from neuraxis.wire.tensors import to_sendable

__all__ = ["Activity", "Brain"]

Value = TypeVar("Value")

_log = logging.getLogger("neuraxis.brain")

# Rebalance only if the busiest worker has this many times the mean load.
_IMBALANCE = 1.15

_FIRST_BALANCE_CHECK_MS = 500.0


@dataclass(frozen=True)
class Activity:
    """Spike counts and mean rates of one run.

    Attributes
    ----------
    time_ms : float
        Model time at the end of the run, in ms.
    duration_ms : float
        Length of the run, in ms.
    spikes : dict of str to int
        Spikes by population ("region.population").
    rates_hz : dict of str to float
        Mean rate of a neuron by population, in Hz.

    Examples
    --------
    >>> activity = Activity(100.0, 100.0, {"cortex.L4e": 30, "cortex.L5e": 12}, {"cortex.L4e": 3.0, "cortex.L5e": 1.2})
    >>> activity
    <Activity to 100 ms (100 ms): 42 spikes in 2 populations>
    >>> activity.of("cortex")
    42
    """

    time_ms: float
    duration_ms: float
    spikes: dict[str, int]
    rates_hz: dict[str, float]

    def __repr__(self) -> str:
        return (
            f"<Activity to {self.time_ms:g} ms ({self.duration_ms:g} ms): {sum(self.spikes.values()):,} spikes in "
            f"{len(self.spikes)} populations>"
        )

    def _repr_html_(self) -> str:
        rows = ((name, f"{count:,}", f"{self.rates_hz[name]:.2f}") for name, count in self.spikes.items())
        return html_table(repr(self)[1:-1], ("population", "spikes", "rate (Hz)"), rows)

    def of(self, region: str) -> int:
        """Return the number of spikes of a region.

        Parameters
        ----------
        region : str
            Name of a region.

        Returns
        -------
        int
            Number of spikes.

        Raises
        ------
        InvalidArgument
            There is no region of this name.
        """
        found = [count for name, count in self.spikes.items() if name.split(".")[0] == region]
        if not found:
            raise InvalidArgument(f"region={region!r}: {near(region, {name.split('.')[0] for name in self.spikes})}")
        return sum(found)


@renamed_members(save_checkpoint="save", load_checkpoint="restore")
class Brain:
    """A brain that runs: regions, pathways, rhythms, neuromodulators, sensors and effectors.

    Use it as a context manager, or call `close` when done. Results do not depend on `workers`, `device` or
    `executor`; `fingerprint` shows it.

    Parameters
    ----------
    spec : BrainSpec
        The description. `BrainBuilder`, `read_spec`, `default_brain` and `Config` make one.
    workers : int or "auto"
        Number of processes. 1 runs in this process; "auto" estimates how many make the brain faster.
    device : str or sequence of str
        Device of the neurons: "cpu", "cuda" or "cuda:1"; with several workers also one for each.
    executor : Executor, optional
        Executor to use instead of `workers` and `device`. With a `LockstepExecutor` every rank creates the same brain
        and calls the same methods in the same order; see `agree` for values that could differ between ranks.
    batch_tolerance_ms : float
        A user's own region gets the events of this much time in one call, in ms. Must be below the shortest delay.
    on_worker_loss : {"raise", "restart"}
        Raise when a worker dies, or restart it from the last automatic checkpoint; the result is the same.
    checkpoint_every_ms : float, optional
        Least model time between two automatic checkpoints, in ms. Default 1000.
    check_finite : bool
        Raise `NumericalInstability` when an infinite state or a NaN is noticed; see `Simulation`.
    record : bool
        Keep the spikes of all populations in memory, for `spikes`.
    record_to : path, optional
        Write the spikes to this SONATA file (HDF5) instead.
    balance : bool
        Move regions between workers, by measured load, between two runs.
    progress : bool, optional
        Show a progress bar while building, and in `forward` and `run`. None: only on a terminal.
    where : str, optional
        Prefix of errors about the description, usually its file.

    Raises
    ------
    SpecError
        The description is wrong, or has no region.

    Examples
    --------
    >>> with Brain.default(seed=1) as brain:
    ...     activity = brain.forward({"cue": [1, 0, 0, 0]}, n_timesteps=500)
    ...     action = brain.select_action()
    ...     surprise = brain.deliver_reward(1.0)
    ...     brain
    <Brain 'default': 3,133 neurons in 6 regions, 1 worker, at 50 ms>
    >>> activity.of("thalamus") > 0
    True
    """

    def __init__(
        self,
        spec: BrainSpec,
        *,
        workers: int | str = 1,
        device: Place | Sequence[Place] = "cpu",
        executor: Executor | None = None,
        batch_tolerance_ms: float = 0.1,
        on_worker_loss: str = "raise",
        checkpoint_every_ms: float | None = None,
        check_finite: bool = True,
        record: bool = False,
        record_to: str | Path | None = None,
        balance: bool = True,
        progress: bool | None = False,
        where: str | None = None,
    ) -> None:
        where = str(where or getattr(spec, "name", "brain"))
        self.spec = spec = validate(spec, where)
        if not spec.regions:
            raise SpecError("is empty; add one, as in BrainBuilder().region('cortex', 'cortex')", where, "regions")
        check_batch_tolerance(spec, batch_tolerance_ms)
        self._lowered = lower(spec, max(1, to_steps(batch_tolerance_ms, spec.dt_ms, "batch_tolerance_ms")), where)
        network = self._lowered.network
        self._critic = None
        if spec.reward.critic is not None:
            self._critic = self._lowered.population(spec.reward.critic, where, "reward.critic")
        if record or record_to is not None:
            for population in network.populations:
                network.record(population, "spikes")
        self.workers_reason = ""
        if executor is not None:
            if workers not in (1, executor.workers):
                raise InvalidArgument(f"workers={workers!r}: the executor given has {executor.workers}")
            workers = executor.workers
        if workers == "auto" and device != "cpu":
            workers = len(parse_devices(device, 1))
        if workers == "auto":
            workers, self.workers_reason = auto_workers(self._lowered)
            _log.info("workers='auto': %s", self.workers_reason)
        workers = whole(workers, "workers", 1)
        places = parse_devices(device, workers)
        workers = len(places)
        placement, on_cpus = None, all(on_cpu(one) for one in places)
        if workers > 1 and on_cpus and not (executor is not None and executor.placement):
            placement = place_regions(network, workers, self._lowered.groups, whole=self._lowered.uncut)
        self._simulation = Simulation(
            network,
            workers,
            device=device,
            executor=executor,
            record_to=record_to,
            progress=progress,
            python_populations=self._lowered.python_populations,
            placement=placement,
            on_worker_loss=one_of(on_worker_loss, "on_worker_loss", ("raise", "restart")),
            checkpoint_every_ms=1000.0
            if checkpoint_every_ms is None
            else positive(checkpoint_every_ms, "checkpoint_every_ms"),
            check_finite=check_finite,
        )
        self._movable = workers > 1 and executor is None and on_cpus
        self._balance = balance and self._movable
        self._next_balance_check = to_steps(_FIRST_BALANCE_CHECK_MS, spec.dt_ms, "time")
        self._progress = progress
        self._run_seconds = 0.0
        self._run_steps = 0
        self._session = Session()

    # --- Construction -----------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Brain:
        """Return the brain that a TOML file describes.

        Parameters
        ----------
        path : path
            The file; see `read_spec`.
        **options
            Keyword arguments of `Brain`.

        Raises
        ------
        SpecError
            The file cannot be read or is wrong; the error names the file and the field.
        """
        return cls(read_spec(path), where=str(path), **options)

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Brain:
        """Return the brain that a `Config` describes; `options` override it and are those of `Brain`.

        Parameters
        ----------
        config : Config
            Configuration of the brain and its run.
        **options
            Keyword arguments of `Brain`; they override the configuration.

        Returns
        -------
        Brain
            The brain.

        Examples
        --------
        >>> from neuraxis.brain import BrainConfig
        >>> with Brain.from_config(Config(brain=BrainConfig(regions={"cortex": {"neurons": 80}}))) as brain:
        ...     brain.neuron_count
        2797
        """
        from neuraxis.brain.default import default_brain

        if not isinstance(config, Config):
            raise InvalidType(f"config={config!r}: a Config is expected, not {type(config).__name__}")
        brain = config.brain
        settings: dict[str, Any] = {
            "workers": brain.workers if brain.parallel else 1,
            "device": config.global_.device,
            "batch_tolerance_ms": brain.batch_tolerance_ms,
            "on_worker_loss": brain.on_worker_loss,
            "checkpoint_every_ms": brain.checkpoint_every_ms,
            "check_finite": brain.check_finite,
        }
        return cls(config.to_spec(default_brain), **{**settings, **options})

    @classmethod
    def default(cls, seed: int = 1, **options: Any) -> Brain:
        """Return the brain of `neuraxis demo`; see `default_brain`.

        Parameters
        ----------
        seed : int
            Seed of all random numbers.
        **options
            Keyword arguments of `Brain`.

        Returns
        -------
        Brain
            The brain.
        """
        from neuraxis.brain.default import default_brain

        return cls(default_brain(seed), **options)

    def save_spec(self, path: str | Path) -> None:
        """Write the description as a TOML file that `from_file` reads.

        Parameters
        ----------
        path : path
            The file; an older one is replaced.
        """
        write_spec(self.spec, path)

    # --- Running ----------------------------------------------------------------------------------------------

    def forward(self, input: Any = None, n_timesteps: int = 1000) -> Activity:
        """Run for `n_timesteps` steps with an input, and return the activity.

        Parameters
        ----------
        input : array or dict of str to array, optional
            Input to the only sensor, or inputs by name. Tensors may be on any device.

            * For a sensor: an array of shape (groups,) or (neurons,) with numbers from 0 (background rate) to 1 (full
              rate), or spikes (0 or 1) of shape (n_timesteps, neurons). A sensor without input fires at its
              background rate.
            * For a user's own region: any value that can be serialized; the region receives it as data.
            * For a name that begins with "sensor/": the same, for all users' own regions with a pathway from it.
        n_timesteps : int
            Number of steps of `spec.dt_ms`.

        Returns
        -------
        Activity
            Spike counts and rates of this run.

        Raises
        ------
        InvalidArgument, InvalidType
            The input has an unknown name, a wrong shape or values out of range. Nothing has run.
        """
        before = self._simulation.counters()
        steps = self._step(input, n_timesteps, self._progress)
        counts = self._simulation.counters().spike_counts - before.spike_counts
        seconds = steps * self.spec.dt_ms * 1e-3
        populations = self._lowered.network.populations
        return Activity(
            time_ms=self.time_ms,
            duration_ms=steps * self.spec.dt_ms,
            spikes={one.name: int(counts[one.index]) for one in populations},
            rates_hz={one.name: float(counts[one.index] / one.n / seconds) if steps else 0.0 for one in populations},
        )

    def step(self, input: Any = None, n_timesteps: int = 1) -> int:
        """Run like `forward`, without progress bar or activity, for tight loops.

        Parameters
        ----------
        input : optional
            As for `forward`.
        n_timesteps : int
            Number of steps.

        Returns
        -------
        int
            Number of steps.
        """
        return self._step(input, n_timesteps, progress=False)

    def _step(self, input: Any, n_timesteps: int, progress: bool | None) -> int:
        steps = whole(n_timesteps, "n_timesteps", 0)
        stimulus = as_stimulus(self.spec, [one.name for one in self._lowered.python_populations], input, steps)
        if self.steps + steps > LARGEST_STEP:
            raise InvalidArgument(f"n_timesteps={steps}: a brain has {LARGEST_STEP:,} steps at most")
        for data in (*stimulus.data.values(), *stimulus.outside.values()):
            to_sendable(data)  # raises if it cannot be serialized
        for name, rates_hz in stimulus.rates_hz.items():
            self._set_rates(name, rates_hz)
        for name, (at, ids) in stimulus.spikes.items():
            self._simulation.inject(f"{name}.cells", (self.steps + 1 + at) * self.spec.dt_ms, ids)
        for name, data in stimulus.data.items():
            self._simulation.give(name, data)
        for source, data in stimulus.outside.items():
            for population in self._lowered.python_populations:
                if population.subscribes_to(source):
                    self._simulation.give(population.name, data, source)
        self._advance(steps, progress)
        return steps

    def run(self, time_ms: float) -> Activity:
        """Run for some model time without input.

        Parameters
        ----------
        time_ms : float
            Model time in ms, a whole number of steps.

        Returns
        -------
        Activity
            Spikes and mean rates of this run.

        Raises
        ------
        InvalidArgument
            It is no whole number of steps.
        """
        return self.forward(None, whole_steps(time_ms, self.spec.dt_ms))

    def _advance(self, steps: int, progress: bool | None) -> None:
        """Run `steps` steps, stopping wherever a scheduled event is due."""
        self._check_balance()
        simulation = self._simulation
        self._session.window = self._counted()
        self._session.window_steps = steps
        until = simulation.steps + steps
        while True:
            with Interrupts():  # an event that has left the schedule takes effect
                for event, arguments in self._session.schedule.pop_due(simulation.steps):
                    self._apply_event(event, arguments)
            if simulation.steps >= until:
                break
            due = self._session.schedule.next_step()
            stop = until if due is None else min(until, due)
            begun = simulation.steps
            self._run_seconds += simulation.advance(stop - begun, progress=progress)
            self._run_steps += stop - begun

    def _apply_event(self, event: str, arguments: list[Any]) -> None:
        if event == RELEASE:
            self._simulation.release(arguments[0], arguments[1])
        else:  # END_ACTION
            self._set_rates(arguments[0], np.zeros(self._lowered.regions[arguments[0]].populations["cells"].n))

    # --- Actions and learning ---------------------------------------------------------------------------------

    def select_action(self, effector: str | None = None) -> int:
        """Choose an action from the activity of the last `forward` or `run`, and start carrying it out.

        The value of an action is the mean rate of its "D1" cells minus that of its "D2" cells. The choice is a
        softmax over the values, with random numbers drawn from the seed. The effector's motor cells of the action
        fire for its `duration_ms`.

        Parameters
        ----------
        effector : str, optional
            Name of the effector; not needed if the brain has only one.

        Returns
        -------
        int
            The action, from 0.

        Raises
        ------
        InvalidArgument
            There is no such effector, or several and none is named.
        """
        name, spec = self._effector(effector)
        rates_hz = self._rates_in_window()
        values = self._values(spec, rates_hz)
        self._session.choices += 1
        action = choose(values, spec.temperature_hz, uniform(self.spec.seed, self._session.choices))
        self._session.choice = Choice(action, tuple(float(value) for value in values), self._expected_reward(rates_hz))
        self._add_to_history(f"a{action}")
        cells = self._lowered.regions[name].populations["cells"]
        rates = np.zeros(cells.n)
        size = cells.n // spec.actions
        rates[action * size : (action + 1) * size] = spec.rate_hz
        self._session.schedule.remove(END_ACTION, name)
        self._set_rates(name, rates)
        self._session.schedule.add(
            self.steps + to_steps(spec.duration_ms, self.spec.dt_ms, "duration_ms"), END_ACTION, name
        )
        return action

    def deliver_reward(self, reward: float) -> float:
        """Deliver a reward for the last action, and release neuromodulators by its prediction error.

        Parameters
        ----------
        reward : float
            The reward; 1 is a full one.

        Returns
        -------
        float
            The reward prediction error: `reward` minus the reward that the critic expected.
        """
        given = number(reward, "reward")
        choice = self._session.choice
        expected = self._expected_reward(self._rates_in_window()) if choice is None else choice.expected_reward
        error = given - expected
        self._add_to_history(f"r{given!r}")
        spec = self.spec.reward
        released = {
            "dopamine": spec.dopamine * error,
            "acetylcholine": spec.acetylcholine * abs(error),
            "noradrenaline": spec.noradrenaline,
        }
        for modulator, amount in released.items():
            if modulator in self.spec.neuromodulators:  # not every brain has all of them
                self.release(modulator, amount)
        return error

    def release(self, modulator: str, amount: float) -> None:
        """Raise the level of a neuromodulator, after the neuromodulator's delay.

        Parameters
        ----------
        modulator : str
            Name of a neuromodulator.
        amount : float
            Change of the level; may be negative.

        Raises
        ------
        InvalidArgument
            There is no such neuromodulator.
        """
        given = number(amount, "amount")
        spec = self.spec.neuromodulators.get(modulator)
        if spec is None:
            raise InvalidArgument(f"modulator={modulator!r}: {near(modulator, self.spec.neuromodulators)}")
        if given:
            due = self.steps + to_steps(spec.delay_ms, self.spec.dt_ms, "delay_ms")
            self._session.schedule.add(due, RELEASE, modulator, given)

    def freeze_learning(self, frozen: bool = True) -> None:
        """Stop all weights from changing.

        Parameters
        ----------
        frozen : bool
            False lets the weights change again.
        """
        plastic = [one for one in self._lowered.network.projections if one.has_changing_weights]
        self._simulation.freeze(*(plastic if frozen else ()))
        self._session.learning = not frozen

    def lesion(self, region: str) -> None:
        """Silence a region: its neurons neither spike nor change until `heal`.

        Parameters
        ----------
        region : str
            Name of a region.

        Raises
        ------
        InvalidArgument
            There is no such region.
        """
        self._known_region(region)
        self._session.lesions.add(region)
        self._silence()

    def heal(self, region: str) -> None:
        """End a lesion; the region continues from the state that it had.

        Parameters
        ----------
        region : str
            Name of a region.

        Raises
        ------
        InvalidArgument
            There is no such region.
        """
        self._known_region(region)
        self._session.lesions.discard(region)
        self._silence()

    def _silence(self) -> None:
        self._simulation.silence(*(one for name in self._session.lesions for one in self._lowered.populations_of(name)))

    # --- Inspection -------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of steps run so far."""
        return self._simulation.steps

    @property
    def time_ms(self) -> float:
        """Model time so far, in ms."""
        return self._simulation.time_ms

    @property
    def workers(self) -> int:
        """Number of worker processes; 1 if this process runs the brain."""
        return self._simulation.workers

    @property
    def compile_seconds(self) -> float:
        """Wall-clock time in s to compile what was missing before the brain was built; 0 if all was in the cache."""
        return self._simulation.compile_seconds

    @property
    def build_seconds(self) -> float:
        """Wall-clock time in s to build the brain."""
        return self._simulation.build_seconds

    @property
    def device(self) -> str:
        """Device of the neurons: "cpu", "cuda", or one for each worker ("cuda,cpu")."""
        return self._simulation.device

    @property
    def leads(self) -> bool:
        """True in the process that writes files and prints; with a `LockstepExecutor`, on one rank only."""
        return self._simulation.leads

    def agree(self, make: Callable[[], Value]) -> Value:
        """Call `make` in the leading process and return its result on every rank: the time, a user's input.

        Parameters
        ----------
        make : callable
            Function without arguments; only the leading process calls it.

        Returns
        -------
        object
            What it returned, on every rank.
        """
        return self._simulation.agree(make)

    @property
    def neuron_count(self) -> int:
        """Number of neurons, those of sensors and effectors included."""
        return self._lowered.network.neuron_count

    @property
    def synapse_count(self) -> int:
        """Number of synapses."""
        return self._simulation.build.synapses

    @property
    def lowered(self) -> Lowered:
        """The network that was built from the description, and the populations of each region in it."""
        return self._lowered

    @property
    def real_time_factor(self) -> float:
        """Wall-clock time per model time so far (below 1: faster than real time); 0 before the first run."""
        model_s = self._run_steps * self.spec.dt_ms * 1e-3
        return self._run_seconds / model_s if model_s else 0.0

    @property
    def last_choice(self) -> Choice | None:
        """The last action chosen, with the value of each action; None before the first."""
        return self._session.choice

    def status(self) -> list[WorkerStatus]:
        """Return the status that each worker reports; `diagnostics` reports by region."""
        return self._simulation.status()

    @property
    def placement(self) -> Placement:
        """Assignment of neurons to workers."""
        return self._simulation.placement

    def load(self) -> list[dict[str, float]]:
        """Return, for each worker, the shares of its run time: waiting, collecting, delivering, updating."""
        return self._simulation.load()

    def spike_totals(self) -> dict[str, int]:
        """Return the number of spikes so far by population ("region.population")."""
        counts = self._simulation.counters().spike_counts
        return {one.name: int(counts[one.index]) for one in self._lowered.network.populations}

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
        return self._simulation.level(modulator)

    def phase(self, rhythm: str) -> float:
        """Return the current phase of a rhythm.

        Parameters
        ----------
        rhythm : str
            Name of a rhythm.

        Returns
        -------
        float
            Phase in cycles, from 0 to below 1; the rhythm is at its peak at 0.

        Raises
        ------
        InvalidArgument
            There is no such rhythm.
        """
        for one in self._lowered.network.rhythms:
            if one.name == rhythm:
                return one.phase_at(self.steps, self.spec.dt_ms)
        raise InvalidArgument(f"rhythm={rhythm!r}: {near(rhythm, [one.name for one in self._lowered.network.rhythms])}")

    def spikes(self, region: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the recorded spikes of a region; needs `record=True` or `record_to`.

        Parameters
        ----------
        region : str
            Name of a region.

        Returns
        -------
        times_ms : array of float64, shape (spikes,)
            Times in ms, ascending.
        neurons : array of int64, shape (spikes,)
            Indices into the region: its populations one after the other.

        Raises
        ------
        InvalidArgument
            There is no such region, or its spikes were not recorded in memory.
        """
        self._known_region(region)
        times, ids, first = [np.zeros(0)], [np.zeros(0, np.int64)], 0
        for population in self._lowered.populations_of(region):
            found_times, found = self._simulation.spikes(population.name)
            times.append(found_times)
            ids.append(found + first)
            first += population.n
        all_times, all_ids = np.concatenate(times), np.concatenate(ids)
        order = np.lexsort((all_ids, all_times))
        return all_times[order], all_ids[order]

    def weights(self, projection: str) -> NDArray[np.generic]:
        """Return the current weights of a projection.

        Parameters
        ----------
        projection : str
            Name of a projection; `lowered.network.projections` lists them.

        Returns
        -------
        array, shape (synapses,)
            Weights, sorted by target, then source.
        """
        return self._simulation.weights(projection)

    def state(self) -> dict[str, Any]:
        """Return time, rates, neuromodulator levels, rhythm phases, lesions and last choice, as JSON-like values."""
        network = self._lowered.network
        counts = self._simulation.counters().spike_counts
        seconds = self.time_ms * 1e-3
        return {
            "name": self.spec.name,
            "seed": self.spec.seed,
            "step": self.steps,
            "time_ms": self.time_ms,
            "rates_hz": {
                p.name: float(counts[p.index] / p.n / seconds) if seconds else 0.0 for p in network.populations
            },
            "neuromodulators": {one.name: self.level(one.name) for one in network.neuromodulators},
            "rhythms": {one.name: one.phase_at(self.steps, self.spec.dt_ms) for one in network.rhythms},
            "lesions": sorted(self._session.lesions),
            "learning": self._session.learning,
            "choice": None if self._session.choice is None else self._session.choice.as_json(),
        }

    def diagnostics(self) -> Diagnostics:
        """Return rates, excitation and inhibition, learned weights, and the load of each worker."""
        return diagnose(self._lowered, self._simulation)

    def fingerprint(self) -> str:
        """Return a hash of all spikes, states, weights, actions and rewards so far.

        It is the same for any number of workers, any device and any executor.
        """
        inner = hashlib.sha256(f"{self._simulation.fingerprint()} {self._session.history}".encode())
        return inner.hexdigest()[:16]

    # --- Load balancing ---------------------------------------------------------------------------------------

    def rebalance(self) -> bool:
        """Redistribute the regions over the workers by measured load.

        Returns
        -------
        bool
            True if a region moved.
        """
        if not self._movable:
            return False
        network = self._lowered.network
        load = measured_load(self._lowered, self._simulation)
        if load is None:
            return False
        placement = place_regions(network, self.workers, self._lowered.groups, load, self._lowered.uncut)
        if placement == self.placement:
            return False
        self._simulation.move(placement)
        return True

    def _check_balance(self) -> None:
        """Rebalance if one worker has much more to do than the mean; the interval between checks grows fourfold."""
        if not self._balance or self.steps < self._next_balance_check:
            return
        self._next_balance_check = 4 * self._next_balance_check
        busy = [one.busy_ticks for one in self._simulation.status()]
        if max(busy) <= _IMBALANCE * sum(busy) / len(busy):
            return
        try:
            if self.rebalance():
                _log.info("moved regions between workers to balance the measured load")
        except CheckpointError as error:
            self._balance = False  # a region that cannot be saved cannot be moved either
            _log.info("cannot balance the load, regions stay on their workers: %s", error)

    # --- Checkpoints ------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, task: Mapping[str, Any] | None = None) -> None:
        """Write the complete state to a folder; an older checkpoint there stays valid until this one is complete.

        Parameters
        ----------
        folder : path
            The folder; created if it does not exist.
        task : mapping, optional
            JSON-like values to save with the state, for example `CueActionTask.save()`.

        Raises
        ------
        CheckpointError
            The state cannot be written, or a region of the user's own cannot be saved.
        """
        kept = {**self._session.as_json(), "task": dict(task or {}), "spec": spec_text(self.spec)}
        self._simulation.save(folder, {"brain": kept})

    def restore(self, folder: str | Path) -> dict[str, Any]:
        """Restore a state of the same brain, saved with any number of workers or device.

        Parameters
        ----------
        folder : path
            Folder that `save` wrote.

        Returns
        -------
        dict
            State of the task that was passed to `save`.

        Raises
        ------
        CheckpointError
            The folder has no complete checkpoint of this brain.
        """
        kept = self._simulation.note(folder).get("brain")
        if not isinstance(kept, dict):
            raise CheckpointError(f"{folder}: is a checkpoint of a network, not of a brain. Use Simulation.restore")
        if kept.get("spec") != spec_text(self.spec):
            raise CheckpointError(f"{folder}: was saved from another brain: the descriptions differ. Use its own")
        try:
            session, task = Session.from_json(kept), dict(kept["task"])
            self._check_session(session)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(Path(folder), repr(error)) from error
        with Interrupts():
            self._simulation.restore(folder)
            self._session = session
        return task

    def close(self) -> None:
        """Stop the workers and complete the recorded file. Closing twice is allowed."""
        self._simulation.close()

    def __enter__(self) -> Brain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Brain {self.spec.name!r}: {self.neuron_count:,} neurons in {len(self.spec.regions)} regions, "
            f"{self.workers} worker{'s' * (self.workers != 1)}{f' ({self.device})' * (self.device != 'cpu')}, "
            f"at {self.time_ms:g} ms>"
        )

    def _repr_html_(self) -> str:
        network = self._lowered.network
        synapses = dict.fromkeys(self._lowered.regions, 0.0)
        for projection in network.projections:
            synapses[split_port(projection.post.name)[0]] += projection.expected_synapses
        rows = (
            (
                name,
                region.kind,
                f"{sum(one.n for one in region.populations.values()):,}",
                f"{synapses[name]:,.0f}",
                ", ".join(region.populations),
            )
            for name, region in self._lowered.regions.items()
        )
        return html_table(
            repr(self)[1:-1], ("region", "kind", "neurons", "incoming synapses (expected)", "populations"), rows
        )

    # --- Helpers ----------------------------------------------------------------------------------------------

    def _check_session(self, session: Session) -> None:
        """Raise ValueError if a restored session does not fit this brain."""
        ends = [*self.spec.sensors, *self.spec.effectors]
        cells = {name: self._lowered.regions[name].populations["cells"].n for name in ends}
        for name, rates in session.inputs.items():
            if rates.shape != (cells.get(name, -1),):
                raise ValueError(f"input of {name!r}")
        for region in session.lesions:
            if region not in self._lowered.regions:
                raise ValueError(f"lesion of {region!r}")
        for _, event, arguments in session.schedule.as_json():
            known = {RELEASE: list(self.spec.neuromodulators), END_ACTION: list(self.spec.effectors)}.get(event, [])
            if not arguments or arguments[0] not in known:
                raise ValueError(f"scheduled event {event} {arguments}")

    def _known_region(self, region: str) -> None:
        if region not in self._lowered.regions:
            raise InvalidArgument(f"region={region!r}: {near(region, self._lowered.regions)}")

    def _effector(self, name: str | None) -> tuple[str, EffectorSpec]:
        effectors = self.spec.effectors
        if name is None:
            if len(effectors) != 1:
                raise InvalidArgument(f"effector: the brain has {len(effectors)}; choose one: {', '.join(effectors)}")
            name = next(iter(effectors))
        if name not in effectors:
            raise InvalidArgument(f"effector={name!r}: {near(name, effectors)}")
        return name, effectors[name]

    def _watched(self) -> list[Any]:
        """Return the populations whose spikes are counted in a run: the critic, and those that choose actions."""
        watched = [] if self._critic is None else [self._critic]
        for effector in self.spec.effectors.values():
            known = self._lowered.regions[effector.region].populations
            watched += [known[name] for name in (GO, NO_GO) if name in known]
        return watched

    def _values(self, effector: EffectorSpec, rates_hz: dict[int, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the value of each action, in Hz."""
        known = self._lowered.regions[effector.region].populations
        values = by_group(rates_hz[known[GO].index], effector.actions)
        if NO_GO in known:
            values = values - by_group(rates_hz[known[NO_GO].index], effector.actions)
        return values

    def _expected_reward(self, rates_hz: dict[int, NDArray[np.float64]]) -> float:
        spec = self.spec.reward
        if self._critic is None:
            return spec.lowest_expected
        rate_hz = float(rates_hz[self._critic.index].mean())
        return min(1.0, max(spec.lowest_expected, rate_hz / spec.critic_hz))

    def _counted(self) -> dict[int, NDArray[np.int64]]:
        """Return the spikes so far of each watched neuron, by index of its population."""
        watched = self._watched()
        counts = self._simulation.spike_counts_of(watched)
        return {one.index: count for one, count in zip(watched, counts, strict=True)}

    def _rates_in_window(self) -> dict[int, NDArray[np.float64]]:
        """Return the rate in the last run of each watched neuron, by index of its population."""
        seconds = max(1, self._session.window_steps) * self.spec.dt_ms * 1e-3
        window = self._session.window
        return {index: (now - window.get(index, now)) / seconds for index, now in self._counted().items()}

    def _set_rates(self, name: str, rates_hz: NDArray[np.float64]) -> None:
        """Set the rates of a sensor's or effector's neurons, unless they are set already."""
        wanted = thresholds(rates_hz, self.spec.dt_ms)
        if name in self._session.inputs and np.array_equal(self._session.inputs[name], wanted):
            return
        self._simulation.set_state(f"{name}.cells", "threshold", wanted)
        self._session.inputs[name] = wanted

    def _add_to_history(self, event: str) -> None:
        """Fold an action or a reward into the hash of the history, which is part of the fingerprint."""
        self._session.history = hashlib.sha256(f"{self._session.history} {self.steps} {event}".encode()).hexdigest()
