"""A brain that runs: `with Brain.default(seed=1) as brain: brain.forward({"cue": [1, 0, 0, 0]}, 2500)`.

The process that has the brain owns the clock, the input, the reward and the choice of actions. Neurons, synapses and
users' own regions are with the workers (one of them is this process when there is only one), and what goes from
region to region goes from worker to worker. So everything here is the same in every mode: it is either computed here
from numbers that do not depend on the mode, or asked of the simulation.
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

from neuraxis.brain.balance import auto_workers, measured_load
from neuraxis.brain.checks import validate
from neuraxis.brain.choice import Choice, by_group, choose, uniform
from neuraxis.brain.config import Config, check_batch_tolerance
from neuraxis.brain.diagnostics import Diagnostics, diagnose
from neuraxis.brain.files import read_spec, spec_text, write_spec
from neuraxis.brain.lowering import AGAINST, FOR, Lowered, lower
from neuraxis.brain.models.sources import thresholds
from neuraxis.brain.session import Session
from neuraxis.brain.spec import BrainSpec, EffectorSpec
from neuraxis.brain.stimulus import as_stimulus
from neuraxis.engine.cuda.factory import Place, on_cpu, parse_devices
from neuraxis.engine.placement import Placement, place_regions
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType, SpecError
from neuraxis.execution import Simulation
from neuraxis.execution.executor import Executor, WorkerStatus
from neuraxis.execution.tensors import lowered
from neuraxis.launch.interrupts import Interrupts
from neuraxis.network.arguments import near, number, one_of, positive, whole
from neuraxis.network.grid import to_steps, whole_steps
from neuraxis.network.network import LARGEST_STEP

__all__ = ["Activity", "Brain"]

Value = TypeVar("Value")

_log = logging.getLogger("neuraxis.brain")

# Spread over workers anew only if that promises to make the slowest of them so much quicker.
_WORTH_MOVING = 1.15
_FIRST_LOOK_MS = 500.0


@dataclass(frozen=True)
class Activity:
    """What happened in a stretch of time: spikes of every population ("region.population"), and mean rates."""

    time_ms: float
    duration_ms: float
    spikes: dict[str, int]
    rates_hz: dict[str, float]

    def of(self, region: str) -> int:
        """The spikes of a region."""
        found = [count for name, count in self.spikes.items() if name.split(".")[0] == region]
        if not found:
            raise InvalidArgument(f"region={region!r}: {near(region, {name.split('.')[0] for name in self.spikes})}")
        return sum(found)


class Brain:
    """Regions, pathways, rhythms, neuromodulators, sensors and effectors, and who runs them.

    Args:
        spec: the description; see `neuraxis.brain.spec`, `Brain.from_file`, `BrainBuilder` and `Config`.
        workers: how many processes; 1 runs in this one, "auto" takes as many cores as pay. Results are the same.
        device: where the neurons are: "cpu", or a GPU: "cuda", "cuda:1"; for several workers, one for each, as for
            `Simulation`. Results are the same.
        executor: who runs it, instead of `workers` and `device`. With a LockstepExecutor every rank makes the same
            brain and calls the same methods of it; see `agree` for what could differ between ranks.
        batch_tolerance_ms: events of so much time are given to a user's own region in one call.
        on_worker_loss: "raise", or "restart" from the last state saved on the way, with the same result.
        checkpoint_every_ms: how much model time there is between two such states, at least.
        record: whether to keep the spikes of all populations, for `spikes`.
        record_to: a file for them instead (SONATA, HDF5).
        balance: whether to spread regions over workers anew, by measured load, between two runs.
        progress: whether to draw a progress line while building, and in `forward` and `run`; None: on a terminal.
        where: what errors about the description begin with; the file, if there is one.
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
        record: bool = False,
        record_to: str | Path | None = None,
        balance: bool = True,
        progress: bool | None = False,
        where: str | None = None,
    ) -> None:
        where = str(where or getattr(spec, "name", "brain"))
        self.spec = spec = validate(spec, where)
        if not spec.regions:
            raise SpecError("there is none; add one, as in BrainBuilder().region('cortex', 'cortex')", where, "regions")
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
            placement = place_regions(network, workers, self._lowered.groups, whole=self._lowered.kept_whole)
        self._simulation = Simulation(
            network,
            workers,
            device=device,
            executor=executor,
            record_to=record_to,
            progress=progress,
            residents=self._lowered.residents,
            placement=placement,
            on_worker_loss=one_of(on_worker_loss, "on_worker_loss", ("raise", "restart")),
            recovery_every_ms=1000.0
            if checkpoint_every_ms is None
            else positive(checkpoint_every_ms, "checkpoint_every_ms"),
        )
        self._movable = workers > 1 and executor is None and on_cpus
        self._balance = balance and self._movable
        self._look_again_at = to_steps(_FIRST_LOOK_MS, spec.dt_ms, "time")
        self._progress = progress
        self._run_seconds = 0.0
        self._run_steps = 0
        self._session = Session()

    # --- to make ----------------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Brain:
        """The brain that a TOML file describes; `options` are those of the class."""
        return cls(read_spec(path), where=str(path), **options)

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Brain:
        """The brain that a configuration describes."""
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
        }
        return cls(config.to_spec(default_brain), **{**settings, **options})

    @classmethod
    def default(cls, seed: int = 1, **options: Any) -> Brain:
        """The brain of `neuraxis demo`."""
        from neuraxis.brain.default import default_brain

        return cls(default_brain(seed), **options)

    def save_spec(self, path: str | Path) -> None:
        """Write the description as a TOML file that `from_file` reads."""
        write_spec(self.spec, path)

    # --- to run -----------------------------------------------------------------------------------------------

    def forward(self, input: Any = None, n_timesteps: int = 1000) -> Activity:
        """Run for `n_timesteps` steps with an input to the sensors; what happened.

        `input` is for the only sensor, or a dict by name. For each sensor: one number for each group or neuron (0 is
        its background, 1 its full rate), or an array of spikes with a row for each step and a column for each
        neuron. A sensor that is not named is silent but for its background. For a user's own region: anything
        (an array, a tensor), which it gets as data. The same by a name that begins with "sensor/": then all users' own
        regions get it whose pathways admit that name. Tensors may be on any device.
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
        """The same as `forward`, without asking what happened or drawing progress: for loops that run often."""
        return self._step(input, n_timesteps, progress=False)

    def _step(self, input: Any, n_timesteps: int, progress: bool | None) -> int:
        steps = whole(n_timesteps, "n_timesteps", 0)
        stimulus = as_stimulus(self.spec, [one.name for one in self._lowered.residents], input, steps)
        if self.steps + steps > LARGEST_STEP:
            raise InvalidArgument(f"n_timesteps={steps}: a brain has {LARGEST_STEP:,} steps at most")
        for data in (*stimulus.data.values(), *stimulus.outside.values()):
            lowered(data)  # raises where they cannot travel
        for name, rates_hz in stimulus.rates_hz.items():
            self._set_rates(name, rates_hz)
        for name, (at, ids) in stimulus.spikes.items():
            self._simulation.inject(f"{name}.cells", (self.steps + 1 + at) * self.spec.dt_ms, ids)
        for name, data in stimulus.data.items():
            self._simulation.give(name, data)
        for source, data in stimulus.outside.items():
            for resident in self._lowered.residents:
                if resident.admits_data_of(source):
                    self._simulation.give(resident.name, data, source)
        self._advance(steps, progress)
        return steps

    def run(self, time_ms: float) -> Activity:
        """Run for `time_ms` of model time without input."""
        return self.forward(None, whole_steps(time_ms, self.spec.dt_ms))

    def _advance(self, steps: int, progress: bool | None) -> None:
        """Run, stopping where something on the agenda is due."""
        self._look_at_balance()
        simulation = self._simulation
        self._session.window = self._counted()
        self._session.window_steps = steps
        until = simulation.steps + steps
        while True:
            with Interrupts():  # what was taken from the agenda is done
                for what, arguments in self._session.agenda.take_due(simulation.steps):
                    self._carry_out(what, arguments)
            if simulation.steps >= until:
                break
            due = self._session.agenda.next_step()
            stop = until if due is None else min(until, due)
            begun = simulation.steps
            self._run_seconds += simulation.advance(stop - begun, progress=progress)
            self._run_steps += stop - begun

    def _carry_out(self, what: str, arguments: list[Any]) -> None:
        if what == "release":
            self._simulation.release(arguments[0], arguments[1])
        else:  # "rest": an action ends
            self._set_rates(arguments[0], np.zeros(self._lowered.regions[arguments[0]].populations["cells"].n))

    # --- to act and to learn ----------------------------------------------------------------------------------

    def select_action(self, effector: str | None = None) -> int:
        """The action that an effector's region chose in the last `forward` or `run`; it is carried out from now on.

        What speaks for an action is the rate of the region's cells "D1" for it, less that of "D2". Where the
        actions are near each other, chance decides (the same chance for the same seed).
        """
        name, spec = self._effector(effector)
        rates_hz = self._rates_in_window()
        values = self._values(spec, rates_hz)
        self._session.choices += 1
        action = choose(values, spec.temperature_hz, uniform(self.spec.seed, self._session.choices))
        self._session.choice = Choice(action, tuple(float(value) for value in values), self._expected_reward(rates_hz))
        self._note(f"a{action}")
        cells = self._lowered.regions[name].populations["cells"]
        rates = np.zeros(cells.n)
        size = cells.n // spec.actions
        rates[action * size : (action + 1) * size] = spec.rate_hz
        self._session.agenda.remove("rest", name)
        self._set_rates(name, rates)
        self._session.agenda.enter(
            self.steps + to_steps(spec.duration_ms, self.spec.dt_ms, "duration_ms"), "rest", name
        )
        return action

    def deliver_reward(self, reward: float) -> float:
        """A reward for the last action: neuromodulators are released by how unexpected it was, which is returned."""
        given = number(reward, "reward")
        choice = self._session.choice
        expected = self._expected_reward(self._rates_in_window()) if choice is None else choice.expected_reward
        error = given - expected
        self._note(f"r{given!r}")
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
        """Release a neuromodulator; it arrives after its delay."""
        given = number(amount, "amount")
        spec = self.spec.neuromodulators.get(modulator)
        if spec is None:
            raise InvalidArgument(f"modulator={modulator!r}: {near(modulator, self.spec.neuromodulators)}")
        if given:
            due = self.steps + to_steps(spec.delay_ms, self.spec.dt_ms, "delay_ms")
            self._session.agenda.enter(due, "release", modulator, given)

    def freeze_learning(self, frozen: bool = True) -> None:
        """Keep all weights as they are from now on; with False, let them learn again."""
        plastic = [one for one in self._lowered.network.projections if one.has_changing_weights]
        self._simulation.freeze(*(plastic if frozen else ()))
        self._session.learning = not frozen

    def lesion(self, region: str) -> None:
        """Silence a region from now on: it neither spikes nor changes until `heal`."""
        self._known_region(region)
        self._session.lesions.add(region)
        self._silence()

    def heal(self, region: str) -> None:
        """End a lesion: the region goes on from where it was."""
        self._known_region(region)
        self._session.lesions.discard(region)
        self._silence()

    def _silence(self) -> None:
        self._simulation.silence(*(one for name in self._session.lesions for one in self._lowered.populations_of(name)))

    # --- to look at -------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The steps so far."""
        return self._simulation.steps

    @property
    def time_ms(self) -> float:
        """The model time so far."""
        return self._simulation.time_ms

    @property
    def workers(self) -> int:
        return self._simulation.workers

    @property
    def device(self) -> str:
        """Where the neurons are: "cpu", "cuda", or "cuda,cpu" by worker."""
        return self._simulation.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks to people; all but one do not, where each has the brain."""
        return self._simulation.leads

    def agree(self, make: Callable[[], Value]) -> Value:
        """What `make` gives in the process that leads, known to all that have this brain: the time, what a user did."""
        return self._simulation.agree(make)

    @property
    def neuron_count(self) -> int:
        return self._lowered.network.neuron_count

    @property
    def synapse_count(self) -> int:
        return self._simulation.build.synapses

    @property
    def lowered(self) -> Lowered:
        """The network that the brain became, and which of its parts are which regions."""
        return self._lowered

    @property
    def real_time_factor(self) -> float:
        """Seconds of this machine for a second of the brain's, so far; 0 before the first run."""
        model_s = self._run_steps * self.spec.dt_ms * 1e-3
        return self._run_seconds / model_s if model_s else 0.0

    @property
    def last_choice(self) -> Choice | None:
        return self._session.choice

    def status(self) -> list[WorkerStatus]:
        """How each worker is doing, as it says itself; `diagnostics` says it by region."""
        return self._simulation.status()

    @property
    def placement(self) -> Placement:
        """Which worker has which neurons."""
        return self._simulation.placement

    def load(self) -> list[dict[str, float]]:
        """For each worker, the shares of its run time: waiting, collecting, delivering, updating."""
        return self._simulation.load()

    def spike_totals(self) -> dict[str, int]:
        """The spikes of every population ("region.population") so far."""
        counts = self._simulation.counters().spike_counts
        return {one.name: int(counts[one.index]) for one in self._lowered.network.populations}

    def level(self, modulator: str) -> float:
        """The level of a neuromodulator now."""
        return self._simulation.level(modulator)

    def phase(self, rhythm: str) -> float:
        """The phase of a rhythm now, in turns from 0 to 1; its value is largest at 0."""
        for one in self._lowered.network.rhythms:
            if one.name == rhythm:
                return one.phase_at(self.steps, self.spec.dt_ms)
        raise InvalidArgument(f"rhythm={rhythm!r}: {near(rhythm, [one.name for one in self._lowered.network.rhythms])}")

    def spikes(self, region: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The recorded spikes of a region: (times in ms, neurons counted through its populations in order)."""
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
        """The weights of a projection as they are now; `lowered.network` names the projections."""
        return self._simulation.weights(projection)

    def state(self) -> dict[str, Any]:
        """Where the brain stands: plain numbers and words."""
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
        """Rates, balance of excitation and inhibition, weights, and how the workers are doing."""
        return diagnose(self._lowered, self._simulation)

    def fingerprint(self) -> str:
        """A hash of all spikes, states, weights, actions and rewards so far: the same in every mode."""
        inner = hashlib.sha256(f"{self._simulation.fingerprint()} {self._session.history}".encode())
        return inner.hexdigest()[:16]

    # --- to spread over workers -------------------------------------------------------------------------------

    def rebalance(self) -> bool:
        """Spread the regions over the workers by the load that was measured; whether anything was moved."""
        if not self._movable:
            return False
        network = self._lowered.network
        load = measured_load(self._lowered, self._simulation)
        if load is None:
            return False
        placement = place_regions(network, self.workers, self._lowered.groups, load, self._lowered.kept_whole)
        if placement == self.placement:
            return False
        self._simulation.move(placement)
        return True

    def _look_at_balance(self) -> None:
        """Between two runs: if one worker has much more to do than others, move regions; each time later again."""
        if not self._balance or self.steps < self._look_again_at:
            return
        self._look_again_at = 4 * self._look_again_at
        busy = [one.busy_ticks for one in self._simulation.status()]
        if max(busy) <= _WORTH_MOVING * sum(busy) / len(busy):
            return
        try:
            if self.rebalance():
                _log.info("regions were spread over the workers anew, by measured load")
        except CheckpointError as error:
            self._balance = False  # a region that cannot be saved cannot be moved either
            _log.info("regions stay where they are: %s", error)

    # --- to keep ----------------------------------------------------------------------------------------------

    def save_checkpoint(self, folder: str | Path, task: Mapping[str, Any] | None = None) -> None:
        """Write the complete state; `task` is kept with it. What the folder held stays valid until that is done."""
        kept = {**self._session.as_json(), "task": dict(task or {}), "spec": spec_text(self.spec)}
        self._simulation.save(folder, {"brain": kept})

    def load_checkpoint(self, folder: str | Path) -> dict[str, Any]:
        """Go on from a saved state of the same brain, saved in any mode; the `task` that was saved with it."""
        kept = self._simulation.note(folder).get("brain")
        if not isinstance(kept, dict):
            raise CheckpointError(f"{folder}: is the state of a network, not of a brain")
        if kept.get("spec") != spec_text(self.spec):
            raise CheckpointError(f"{folder}: was saved from another brain: their descriptions differ")
        try:
            session, task = Session.from_json(kept), dict(kept["task"])
            self._check_session(session)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder}: damaged: {error!r}") from error
        with Interrupts():
            self._simulation.restore(folder)
            self._session = session
        return task

    def close(self) -> None:
        """End the workers, and finish the file that is recorded to. A second call does nothing."""
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

    # --- helpers ----------------------------------------------------------------------------------------------

    def _check_session(self, session: Session) -> None:
        """ValueError if a session is not one of this brain."""
        ends = [*self.spec.sensors, *self.spec.effectors]
        cells = {name: self._lowered.regions[name].populations["cells"].n for name in ends}
        for name, rates in session.inputs.items():
            if rates.shape != (cells.get(name, -1),):
                raise ValueError(f"input of {name!r}")
        for region in session.lesions:
            if region not in self._lowered.regions:
                raise ValueError(f"lesion of {region!r}")
        for _, what, arguments in session.agenda.as_json():
            known = {"release": list(self.spec.neuromodulators), "rest": list(self.spec.effectors)}.get(what, [])
            if not arguments or arguments[0] not in known:
                raise ValueError(f"agenda: {what} {arguments}")

    def _known_region(self, region: str) -> None:
        if region not in self._lowered.regions:
            raise InvalidArgument(f"region={region!r}: {near(region, self._lowered.regions)}")

    def _effector(self, name: str | None) -> tuple[str, EffectorSpec]:
        effectors = self.spec.effectors
        if name is None:
            if len(effectors) != 1:
                raise InvalidArgument(f"effector: the brain has {len(effectors)}; say which: {', '.join(effectors)}")
            name = next(iter(effectors))
        if name not in effectors:
            raise InvalidArgument(f"effector={name!r}: {near(name, effectors)}")
        return name, effectors[name]

    def _watched(self) -> list[Any]:
        """The populations whose spikes are counted in a window."""
        watched = [] if self._critic is None else [self._critic]
        for effector in self.spec.effectors.values():
            known = self._lowered.regions[effector.region].populations
            watched += [known[name] for name in (FOR, AGAINST) if name in known]
        return watched

    def _values(self, effector: EffectorSpec, rates_hz: dict[int, NDArray[np.float64]]) -> NDArray[np.float64]:
        """What speaks for each action."""
        known = self._lowered.regions[effector.region].populations
        values = by_group(rates_hz[known[FOR].index], effector.actions)
        if AGAINST in known:
            values = values - by_group(rates_hz[known[AGAINST].index], effector.actions)
        return values

    def _expected_reward(self, rates_hz: dict[int, NDArray[np.float64]]) -> float:
        spec = self.spec.reward
        if self._critic is None:
            return spec.lowest_expected
        rate_hz = float(rates_hz[self._critic.index].mean())
        return min(1.0, max(spec.lowest_expected, rate_hz / spec.critic_hz))

    def _counted(self) -> dict[int, NDArray[np.int64]]:
        """The spikes so far of each cell that is watched, by population."""
        watched = self._watched()
        counts = self._simulation.spike_counts_of(watched)
        return {one.index: count for one, count in zip(watched, counts, strict=True)}

    def _rates_in_window(self) -> dict[int, NDArray[np.float64]]:
        """The rate in the last run of each cell that is watched, by population."""
        seconds = max(1, self._session.window_steps) * self.spec.dt_ms * 1e-3
        window = self._session.window
        return {index: (now - window.get(index, now)) / seconds for index, now in self._counted().items()}

    def _set_rates(self, name: str, rates_hz: NDArray[np.float64]) -> None:
        """Set the rates of a sensor's or effector's cells; nothing is sent where they are set already."""
        wanted = thresholds(rates_hz, self.spec.dt_ms)
        if name in self._session.inputs and np.array_equal(self._session.inputs[name], wanted):
            return
        self._simulation.set_state(f"{name}.cells", "threshold", wanted)
        self._session.inputs[name] = wanted

    def _note(self, what: str) -> None:
        """Fold an action or a reward into the history, which the fingerprint depends on."""
        self._session.history = hashlib.sha256(f"{self._session.history} {self.steps} {what}".encode()).hexdigest()
