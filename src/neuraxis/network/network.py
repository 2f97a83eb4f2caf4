"""The description of a spiking network: populations, projections, inputs, probes, neuromodulators.

A network builds nothing: it is cheap to make, can be pickled, compared and printed, and every engine and executor
builds from it what it needs. A call with a bad argument raises and leaves the network as it was.
"""

from __future__ import annotations

import copy
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import label, near, number, one_of, positive, whole
from neuraxis.network.delays import as_delay, delay_bounds_steps
from neuraxis.network.distributions import Constant
from neuraxis.network.fixed_point import Contribution, check_range, choose_exponent, poisson_count_bound
from neuraxis.network.grid import array_to_steps, at_least_one_step, to_steps
from neuraxis.network.inputs import CurrentInput, PoissonInput, SpikeInput
from neuraxis.network.neuromodulator import Modulation, Neuromodulator
from neuraxis.network.neuron_model import NeuronModel
from neuraxis.network.plasticity import HomeostaticScaling, PlasticityRule, RewardSTDP
from neuraxis.network.population import Population, make_population
from neuraxis.network.probes import Probe
from neuraxis.network.projection import Projection, choose_receptor, make_projection
from neuraxis.network.rhythm import Rhythm
from neuraxis.network.rules import Rule
from neuraxis.network.table import describe

__all__ = ["LARGEST_STEP", "Network"]

LARGEST_NEURON_COUNT = 2**31 - 1
LARGEST_SEED = 2**64 - 1
LARGEST_STEP = 2**31 - 2

# Beyond this, e to the minus mean leaves the range of numbers that the engine draws with.
LARGEST_POISSON_MEAN = 500


class Network:
    """A spiking network in steps of `dt_ms`; everything random in it is drawn from `seed`.

    Wherever a population is an argument, its name will do. Weights, delays and initial values are numbers, arrays
    or distributions. Times are rounded to the nearest step.
    """

    def __init__(self, dt_ms: float = 0.1, seed: int = 0) -> None:
        self._dt_ms = positive(dt_ms, "dt_ms")
        self._seed = whole(seed, "seed", 0, LARGEST_SEED)
        self._populations: dict[str, Population] = {}
        self._projections: dict[str, Projection] = {}
        self._poisson_inputs: list[PoissonInput] = []
        self._spike_inputs: list[SpikeInput] = []
        self._current_inputs: list[CurrentInput] = []
        self._probes: list[Probe] = []
        self._neuromodulators: dict[str, Neuromodulator] = {}
        self._modulations: list[Modulation] = []
        self._rhythms: dict[str, Rhythm] = {}
        # What can arrive at each (population's index, receptor) in one step: sets the scale of its accumulator.
        self._contributions: dict[tuple[int, str], list[Contribution]] = {}

    def copy(self) -> Network:
        """A network of its own with the same content; both may be added to."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(other, name, {k: list(v) if isinstance(v, list) else v for k, v in value.items()})
            elif isinstance(value, list):
                setattr(other, name, list(value))
        return other

    # --- to describe ---

    def population(self, name: str, n: int, model: NeuronModel, **initial: Any) -> Population:
        """Add `n` neurons of a model. `initial` gives states their first values; the others start as the model says."""
        label(name, "name")
        if name in self._populations:
            raise InvalidArgument(f"name={name!r}: there is a population of this name already")
        population = make_population(name, n, model, initial, len(self._populations), self.neuron_count, self._dt_ms)
        for argument, signal in model.signals.items():
            if isinstance(signal, str):
                self._known_signal(signal, f"population {name!r}: {argument}")
        if self.neuron_count + population.n > LARGEST_NEURON_COUNT:
            raise InvalidArgument(f"n={n}: a network can have {LARGEST_NEURON_COUNT} neurons at most")
        self._populations[name] = population
        return population

    def connect(
        self,
        pre: Population | str,
        post: Population | str,
        rule: Rule | Any,
        weight: Any = None,
        delay_ms: Any = 1.0,
        synapse: str | None = None,
        plasticity: PlasticityRule | list[PlasticityRule] | tuple[PlasticityRule, ...] | None = None,
        *,
        name: str | None = None,
    ) -> Projection:
        """Connect two populations.

        Args:
            rule: which neurons are connected; or a sparse matrix of weights (SciPy's, or any with `tocoo()`) with a
                row for each neuron of `pre` and a column for each of `post`: then `weight` need not be given.
            weight: in the unit of the receptor.
            delay_ms: one step or more, rounded to whole steps. A Normal or LogNormal without `low` is cut at one step.
            synapse: the receptor of the target's model; by default the one for the weight's sign.
            plasticity: a rule or a list of rules; see `neuraxis.network.plasticity`.
            name: "pre->post" by default, with "#2" and so on when it is taken.
        """
        source, target = self._known(pre, "pre"), self._known(post, "post")
        chosen_name = self._projection_name(name, source, target)
        projection = make_projection(
            name=chosen_name,
            pre=source,
            post=target,
            rule=rule,
            weight=weight,
            delay_ms=delay_ms,
            synapse=synapse,
            plasticity=plasticity,
            index=len(self._projections),
            dt_ms=self._dt_ms,
        )
        for one in projection.plasticity:
            if isinstance(one, RewardSTDP):
                self._known_signal(one.modulator, "modulator")
            if isinstance(one, RewardSTDP | HomeostaticScaling):
                self._check_period(one.every_ms, f"{type(one).__name__}.every_ms")
        self._add_contribution(target, projection.receptor, projection.contribution())
        self._projections[chosen_name] = projection
        return projection

    def poisson(
        self,
        population: Population | str,
        rate_hz: Any,
        weight: float,
        synapse: str | None = None,
        start_ms: float = 0.0,
        stop_ms: float | None = None,
    ) -> PoissonInput:
        """Give every neuron random spikes of its own: `rate_hz` is one number, or one for each neuron."""
        target = self._known(population, "population")
        what = f"poisson into {target.name!r}"
        size = number(weight, f"{what}: weight")
        receptor = choose_receptor(target, synapse, Constant(size), what)
        made = PoissonInput(target, rate_hz, size, receptor, start_ms, stop_ms, len(self._poisson_inputs))
        self._check_interval(made)
        if made.largest_rate_hz * self._dt_ms * 1e-3 > LARGEST_POISSON_MEAN:
            raise InvalidArgument(
                f"{what}: rate_hz={made.largest_rate_hz:g}: more than {LARGEST_POISSON_MEAN} spikes in a step are not "
                "supported; take fewer with a larger weight, or a current"
            )
        count = poisson_count_bound(made.largest_rate_hz, self._dt_ms)
        self._add_contribution(target, receptor, Contribution(what, abs(size), abs(size), count))
        self._poisson_inputs.append(made)
        return made

    def spikes(self, population: Population | str, times_ms: Any, ids: Any) -> SpikeInput:
        """Let neuron `ids[i]` emit a spike at `times_ms[i]`, one step or later."""
        made = SpikeInput(self._known(population, "population"), times_ms, ids, len(self._spike_inputs))
        if made.times_ms.size:
            at_least_one_step(float(made.times_ms.min()), self._dt_ms, "times_ms")
            latest = int(array_to_steps(made.times_ms, self._dt_ms, "times_ms").max())
            if latest > LARGEST_STEP:
                raise InvalidArgument(
                    f"times_ms: {made.times_ms.max():g} ms is beyond the last step ({LARGEST_STEP:,})"
                )
        self._spike_inputs.append(made)
        return made

    def current(
        self, population: Population | str, amplitude_pa: Any, start_ms: float = 0.0, stop_ms: float | None = None
    ) -> CurrentInput:
        """Send a constant current into every neuron: one number, or one for each neuron."""
        target = self._known(population, "population")
        made = CurrentInput(target, amplitude_pa, start_ms, stop_ms, len(self._current_inputs))
        self._check_interval(made)
        self._current_inputs.append(made)
        return made

    def record(
        self, population: Population | str, what: str = "spikes", every_ms: float | None = None, subset: Any = None
    ) -> Probe:
        """Record the spikes of a population, or one of its states every `every_ms` (by default every step).

        `subset` says of which neurons: a number n for the first n, a slice, or an array of ids; by default of all.
        """
        target = self._known(population, "population")
        if every_ms is None and what != "spikes":
            every_ms = self._dt_ms
        made = Probe(target, what, every_ms, subset, len(self._probes))
        if made.every_ms is not None:
            self._check_period(made.every_ms, "every_ms")
        self._probes.append(made)
        return made

    def neuromodulator(self, name: str, baseline: float = 0.0, tau_ms: float = 200.0) -> Neuromodulator:
        """Declare a neuromodulator: a level that decays to its baseline with `tau_ms`."""
        made = Neuromodulator(name, baseline, tau_ms, len(self._neuromodulators))
        self._check_new_signal(name)
        self._neuromodulators[name] = made
        return made

    def rhythm(self, name: str, frequency_hz: float, phase: float = 0.0, floor: float = -1.0) -> Rhythm:
        """Declare a rhythm, max(floor, cos(2 pi (frequency * time + phase))); see `neuraxis.network.rhythm`."""
        made = Rhythm(name, frequency_hz, phase, floor, len(self._rhythms))
        self._check_new_signal(name)
        if made.frequency_hz * self._dt_ms * 1e-3 > 0.5:
            raise InvalidArgument(
                f"frequency_hz={frequency_hz}: a turn must take two steps of {self._dt_ms:g} ms or more"
            )
        self._rhythms[name] = made
        return made

    def modulate(
        self,
        population: Population | str,
        modulator: Neuromodulator | str,
        amount: float,
        delay_ms: float | None = None,
    ) -> Modulation:
        """Let each spike of a population add `amount` to a neuromodulator's level, `delay_ms` later (one step)."""
        source = self._known(population, "population")
        level = self._known_modulator(modulator)
        delay = number(self._dt_ms if delay_ms is None else delay_ms, "delay_ms")
        as_delay(Constant(delay), self._dt_ms, "delay_ms")
        made = Modulation(source, level, amount, delay, len(self._modulations))
        self._modulations.append(made)
        return made

    # --- to read ---

    @property
    def dt_ms(self) -> float:
        return self._dt_ms

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def populations(self) -> tuple[Population, ...]:
        return tuple(self._populations.values())

    @property
    def projections(self) -> tuple[Projection, ...]:
        return tuple(self._projections.values())

    @property
    def poisson_inputs(self) -> tuple[PoissonInput, ...]:
        return tuple(self._poisson_inputs)

    @property
    def spike_inputs(self) -> tuple[SpikeInput, ...]:
        return tuple(self._spike_inputs)

    @property
    def current_inputs(self) -> tuple[CurrentInput, ...]:
        return tuple(self._current_inputs)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(self._probes)

    @property
    def neuromodulators(self) -> tuple[Neuromodulator, ...]:
        return tuple(self._neuromodulators.values())

    @property
    def modulations(self) -> tuple[Modulation, ...]:
        return tuple(self._modulations)

    @property
    def rhythms(self) -> tuple[Rhythm, ...]:
        return tuple(self._rhythms.values())

    @property
    def neuron_count(self) -> int:
        """How many neurons there are in all populations."""
        return sum(population.n for population in self._populations.values())

    def __getitem__(self, name: str) -> Population:
        """The population of this name."""
        return self._known(name, "name")

    def __contains__(self, name: object) -> bool:
        return name in self._populations

    def delay_bounds_steps(self, projection: Projection) -> tuple[int, int]:
        """The shortest and the longest delay that a synapse of the projection can have, in steps."""
        return delay_bounds_steps(projection.delay_ms, self._dt_ms)

    def exponent(self, population: Population | str, receptor: str) -> int:
        """The exponent of a receptor's fixed-point scale; see `neuraxis.network.fixed_point`."""
        target = self._known(population, "population")
        one_of(receptor, "receptor", target.model.receptors)
        return choose_exponent(self._contributions.get((target.index, receptor), ()))

    def __str__(self) -> str:
        return describe(self)

    def __repr__(self) -> str:
        return (
            f"Network({self.neuron_count:,} neurons in {len(self._populations)} populations, "
            f"{len(self._projections)} projections, dt_ms={self._dt_ms:g}, seed={self._seed})"
        )

    def __eq__(self, other: object) -> bool:
        """Whether two networks describe the same; then they also give the same spikes."""
        if not isinstance(other, Network):
            return NotImplemented
        return self.__dict__ == other.__dict__

    # --- checks that need to know the network ---

    def _known(self, population: Population | str, argument: str) -> Population:
        if isinstance(population, Population):
            if self._populations.get(population.name) is not population:
                raise InvalidArgument(f"{argument}={population!r}: belongs to another network; its name will do")
            return population
        if not isinstance(population, str):
            raise InvalidType(f"{argument}={population!r}: a population or its name is expected")
        if population not in self._populations:
            raise InvalidArgument(
                f"{argument}={population!r}: no population of this name; {near(population, self._populations)}"
            )
        return self._populations[population]

    def _known_modulator(self, modulator: Neuromodulator | str) -> Neuromodulator:
        if isinstance(modulator, Neuromodulator):
            if self._neuromodulators.get(modulator.name) is not modulator:
                raise InvalidArgument(f"modulator={modulator!r}: belongs to another network; its name will do")
            return modulator
        if not isinstance(modulator, str):
            raise InvalidType(f"modulator={modulator!r}: a neuromodulator or its name is expected")
        if modulator not in self._neuromodulators:
            raise InvalidArgument(
                f"modulator={modulator!r}: declare it first, with network.neuromodulator({modulator!r}); "
                f"{near(modulator, self._neuromodulators)}"
            )
        return self._neuromodulators[modulator]

    def _known_signal(self, name: str, argument: str) -> None:
        if name not in self._neuromodulators and name not in self._rhythms:
            raise InvalidArgument(
                f"{argument}={name!r}: declare it first, with network.neuromodulator({name!r}) or network.rhythm(...); "
                f"{near(name, [*self._neuromodulators, *self._rhythms])}"
            )

    def _check_new_signal(self, name: str) -> None:
        for kind, known in (("neuromodulator", self._neuromodulators), ("rhythm", self._rhythms)):
            if name in known:
                raise InvalidArgument(f"name={name!r}: there is a {kind} of this name already")

    def _projection_name(self, name: str | None, pre: Population, post: Population) -> str:
        if name is not None:
            label(name, "name")
            if name in self._projections:
                raise InvalidArgument(f"name={name!r}: there is a projection of this name already")
            return name
        plain = candidate = f"{pre.name}->{post.name}"
        number_of_name = 1
        while candidate in self._projections:
            number_of_name += 1
            candidate = f"{plain}#{number_of_name}"
        return candidate

    def _check_interval(self, given: PoissonInput | CurrentInput) -> None:
        """Both ends must be steps that can be counted, and there must be a step between them."""
        start = to_steps(given.start_ms, self._dt_ms, "start_ms")
        if given.stop_ms is not None and to_steps(given.stop_ms, self._dt_ms, "stop_ms") <= start:
            raise InvalidArgument(
                f"stop_ms={given.stop_ms}: there is no step of {self._dt_ms:g} ms after start_ms={given.start_ms}"
            )

    def _check_period(self, every_ms: float, name: str) -> None:
        at_least_one_step(every_ms, self._dt_ms, name)
        to_steps(every_ms, self._dt_ms, name)

    def _add_contribution(self, population: Population, receptor: str, contribution: Contribution) -> None:
        """Note what can arrive at a receptor, or raise if its accumulator could not hold it."""
        if not contribution.matters:
            return
        key = (population.index, receptor)
        contributions = [*self._contributions.get(key, ()), contribution]
        check_range(population.name, receptor, contributions)
        self._contributions[key] = contributions
