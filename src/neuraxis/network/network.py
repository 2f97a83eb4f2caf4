"""The description of a spiking network: populations, projections, inputs, probes, neuromodulators, rhythms.

A `Network` only describes: it is cheap to make and can be pickled, compared and printed. Engines and executors build
from it what they need. A call with an invalid argument raises and leaves the network unchanged.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import Any

from neuraxis.arguments import label, near, number, one_of, positive, set_fields, whole
from neuraxis.errors import InvalidArgument, InvalidType, NetworkInUse
from neuraxis.network.devices import CurrentInput, PoissonInput, Probe, SpikeInput
from neuraxis.network.distributions import Constant
from neuraxis.network.fixed_point import (
    SUMS,
    WIDE_SUMS,
    Contribution,
    FixedPoint,
    Origin,
    ReceptorInputs,
    poisson_count_bound,
)
from neuraxis.network.grid import (
    array_on_grid,
    array_to_steps,
    as_delay,
    at_least_one_step,
    delay_bounds_steps,
    on_grid,
    period,
    to_steps,
)
from neuraxis.network.modulation import Modulation, Neuromodulator, Rhythm
from neuraxis.network.neuron_model import NeuronModel
from neuraxis.network.plasticity import PlasticityRule, RewardSTDP
from neuraxis.network.population import Population, make_population
from neuraxis.network.projection import (
    Projection,
    RateProjection,
    choose_receptor,
    make_projection,
    make_rate_projection,
)
from neuraxis.network.rules import Rule
from neuraxis.network.summary import describe, describe_html

__all__ = ["LARGEST_STEP", "Accumulator", "Network"]

LARGEST_NEURON_COUNT = 2**31 - 1
LARGEST_SEED = 2**64 - 1
LARGEST_STEP = 2**31 - 2
PRECISIONS = ("float32", "float64")

# For larger means exp(-mean) is below the range of the engine's random numbers.
LARGEST_POISSON_MEAN = 500


class Network:
    """The description of a spiking network.

    Wherever a method takes a population, it also takes its name. Weights, delays and initial values are numbers, arrays
    or distributions. Times that are not a whole number of steps are rounded, with a `RoundingWarning`.

    Printing a network shows tables of everything in it.

    Parameters
    ----------
    dt_ms : float
        Time step in ms.
    seed : int
        Seed of all random numbers, from 0 to 2**64 - 1. The same network with the same seed gives the same spikes.
    precision : {"float32", "float64"}
        Precision of states and of the arithmetic of models. "float64" is for validation: it runs on CPUs, several times
        slower. See the how-to guide on validation in float64.

    Examples
    --------
    >>> from neuraxis.network import FixedInDegree, Network, Normal
    >>> from neuraxis.network.models import lif_exp
    >>> network = Network(dt_ms=0.1, seed=1)
    >>> cells = network.population("E", 100, lif_exp, v_mv=-60.0)
    >>> synapses = network.connect(cells, cells, FixedInDegree(k=10), weight=Normal(20.0, 2.0, low=0), delay_ms=1.5)
    >>> noise = network.poisson(cells, rate_hz=8000.0, weight=20.0)
    >>> probe = network.record(cells, "spikes")
    >>> network.neuron_count
    100
    """

    _checks_finite = True

    def __init__(self, dt_ms: float = 0.1, seed: int = 0, precision: str = "float32") -> None:
        self._dt_ms = positive(dt_ms, "dt_ms")
        self._seed = whole(seed, "seed", 0, LARGEST_SEED)
        self._precision = one_of(precision, "precision", PRECISIONS)
        self._populations: dict[str, Population] = {}
        self._projections: dict[str, Projection] = {}
        self._rate_projections: dict[str, RateProjection] = {}
        self._poisson_inputs: list[PoissonInput] = []
        self._spike_inputs: list[SpikeInput] = []
        self._current_inputs: list[CurrentInput] = []
        self._probes: list[Probe] = []
        self._neuromodulators: dict[str, Neuromodulator] = {}
        self._modulations: list[Modulation] = []
        self._rhythms: dict[str, Rhythm] = {}
        # By (index of the population, receptor): what can arrive in one step, which determines the scales of the
        # accumulators.
        self._receptor_inputs: dict[tuple[int, str], ReceptorInputs] = {}
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_final = False

    def copy(self) -> Network:
        """Return an independent copy, which can be changed even while a simulation of this network is open."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(other, name, {k: v.copy() if isinstance(v, ReceptorInputs) else v for k, v in value.items()})
            elif isinstance(value, list):
                setattr(other, name, list(value))
        return other

    @property
    def checks_finite(self) -> bool:
        """True if a simulation raises when a state becomes infinite or NaN (see `final_copy`)."""
        return self._checks_finite

    def final_copy(self, *, check_finite: bool = True) -> Network:
        """Return an immutable copy for a simulation; `check_finite` sets `checks_finite`."""
        other = self.copy()
        other._checks_finite = check_finite
        other._is_final = True
        return other

    def hold(self, holder: object) -> None:
        """Forbid changes as long as `holder` exists: it has read the network and would not see them."""
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """End a `hold`."""
        self._holders.discard(holder)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_holders", "_is_final")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _holders=weakref.WeakSet(), _is_final=False)

    def _check_changeable(self, call: str) -> None:
        if self._is_final:
            raise NetworkInUse(
                f"network.{call}(): this network belongs to a simulation and cannot be changed. Change "
                "network.copy() and make a new simulation of it."
            )
        if len(self._holders):
            raise NetworkInUse(
                f"network.{call}(): a simulation of this network is open and would not notice the change. Add "
                "everything before Simulation(...), or close the simulation, or change network.copy()."
            )

    # --- adding parts ---

    def population(self, name: str, n: int, model: NeuronModel, **initial: Any) -> Population:
        """Add a population of neurons.

        Parameters
        ----------
        name : str
            Unique name.
        n : int
            Number of neurons.
        model : NeuronModel
            Model with its parameters, as `lif_exp(tau_m_ms=20.0)`. A parameter is a number for all neurons, an array of
            shape (n,), or a distribution from which each neuron draws its own: `lif_exp(tau_m_ms=Normal(20.0, 2.0))`.
        **initial : float, array_like or Distribution
            Initial values of states, in the unit of the state; arrays have shape (n,). Other states start with the
            value that the model declares.

        Returns
        -------
        Population

        Raises
        ------
        InvalidArgument
            The name is taken, the model has no such state, or a value is not possible: for a parameter of a single
            neuron the message names the neuron.
        NetworkInUse
            A simulation of this network is open.
        """
        self._check_changeable("population")
        label(name, "name")
        if name in self._populations:
            raise InvalidArgument(f"name={name!r}: a population of this name exists already")
        population = make_population(
            name,
            n,
            model,
            initial,
            len(self._populations),
            self.neuron_count,
            self._dt_ms,
            self._seed,
            self._precision,
        )
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

        Parameters
        ----------
        pre, post : Population or str
            Source and target.
        rule : Rule or sparse matrix
            Connection rule; or a sparse matrix of weights (SciPy, or any object with `tocoo()`) of shape
            (pre.n, post.n), and `weight` can be omitted.
        weight : float, array_like or Distribution
            Weights in the unit of the receptor. The order of an array is documented with the rule.
        delay_ms : float, array_like or Distribution
            Delays in ms, one step or more. They are rounded to whole steps; given delays with a warning. A Normal or
            LogNormal without `low` is limited to one step or more.
        synapse : str, optional
            Receptor of the target's model; by default the one for the sign of the weights.
        plasticity : PlasticityRule or list of them, optional
            Plasticity rules; none by default.
        name : str, optional
            Unique name; by default "pre->post", followed by "#2", "#3" and so on if that is taken.

        Returns
        -------
        Projection

        Raises
        ------
        InvalidArgument
            The rule, the weights or the delays are not possible for these populations.
        NetworkInUse
            A simulation of this network is open.
        """
        self._check_changeable("connect")
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
        self._add_contribution(target, projection.receptor, ("projection", projection.index), projection.contribution())
        self._projections[chosen_name] = projection
        return projection

    def connect_rates(
        self,
        pre: Population | str,
        post: Population | str,
        rule: Rule | Any,
        weight: Any = None,
        delay_ms: Any = 1.0,
        rate_input: str | None = None,
        *,
        name: str | None = None,
    ) -> RateProjection:
        """Connect two populations by synapses that transmit a continuous value in every step.

        The update of a target from time t to t + dt receives, summed over its synapses, weight x output of the source
        at time t - delay. The output is the state that the source's model declares, 0 before time 0, and 0 while its
        population is silenced.

        Parameters
        ----------
        pre, post : Population or str
            Source, whose model has an output, and target, whose model has rate inputs.
        rule : Rule or sparse matrix
            Connection rule, or a sparse matrix of weights, as for `connect`.
        weight : float, array_like or Distribution
            Weights, of either sign: the unit of the target's input divided by that of the source's output.
        delay_ms : float, array_like or Distribution
            Delays in ms, one step or more, rounded as for `connect`.
        rate_input : str, optional
            Rate input of the target's model; by default its first.
        name : str, optional
            Unique name; by default "pre->post", followed by "#2", "#3" and so on if that is taken.

        Returns
        -------
        RateProjection

        Raises
        ------
        InvalidArgument
            The source has no output, the target no such input, or the rule, the weights or the delays are not possible;
            or the network is in float64.
        NetworkInUse
            A simulation of this network is open.

        Examples
        --------
        >>> from neuraxis.network import AllToAll, Network
        >>> from neuraxis.network.models import rate_linear
        >>> network = Network(dt_ms=0.1)
        >>> leader = network.population("leader", 1, rate_linear(mean=2.0))
        >>> follower = network.population("follower", 5, rate_linear)
        >>> network.connect_rates(leader, follower, AllToAll(), weight=0.5, delay_ms=3.0).name
        'leader->follower'
        """
        self._check_changeable("connect_rates")
        if self.is_wide:
            raise InvalidArgument(
                "connect_rates: the outputs that continuous connections sum, exchange and save are float32, so they do "
                'not run with precision="float64". Use Network(precision="float32").'
            )
        source, target = self._known(pre, "pre"), self._known(post, "post")
        chosen_name = self._projection_name(name, source, target)
        projection = make_rate_projection(
            name=chosen_name,
            pre=source,
            post=target,
            rule=rule,
            weight=weight,
            delay_ms=delay_ms,
            rate_input=rate_input,
            place=len(self._rate_projections),
            dt_ms=self._dt_ms,
        )
        self._rate_projections[chosen_name] = projection
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
        """Add independent Poisson spikes to every neuron of a population.

        Parameters
        ----------
        population : Population or str
            Target.
        rate_hz : float or array_like of float, shape (n,)
            Rate in Hz: one for all neurons, or one for each. At most 500 spikes per step on average.
        weight : float
            Weight of each spike, in the unit of the receptor.
        synapse : str, optional
            Receptor of the target's model; by default the one for the sign of the weight.
        start_ms, stop_ms : float, optional
            Start and end (exclusive) in ms; by default from 0 without end.

        Returns
        -------
        PoissonInput

        Raises
        ------
        InvalidArgument
            A rate or time is not possible.
        NetworkInUse
            A simulation of this network is open.
        """
        self._check_changeable("poisson")
        target = self._known(population, "population")
        what = f"poisson into {target.name!r}"
        size = number(weight, f"{what}: weight")
        receptor = choose_receptor(target, synapse, Constant(size), what)
        made = PoissonInput(target, rate_hz, size, receptor, start_ms, stop_ms, len(self._poisson_inputs))
        self._round_interval(made, what)
        if made.largest_rate_hz * self._dt_ms * 1e-3 > LARGEST_POISSON_MEAN:
            raise InvalidArgument(
                f"{what}: rate_hz={made.largest_rate_hz:g}: more than {LARGEST_POISSON_MEAN} spikes in a step are not "
                "supported. Use a lower rate with a larger weight, or a current."
            )
        count = poisson_count_bound(made.largest_rate_hz, self._dt_ms)
        contribution = Contribution(what, abs(size), abs(size), count)
        self._add_contribution(target, receptor, ("poisson", made.index), contribution)
        self._poisson_inputs.append(made)
        return made

    def spikes(self, population: Population | str, times_ms: Any, ids: Any) -> SpikeInput:
        """Make neurons spike at given times, whatever their state.

        Parameters
        ----------
        population : Population or str
            Population that spikes.
        times_ms : array_like of float, shape (n_spikes,)
            Times in ms, one step or later.
        ids : array_like of int, shape (n_spikes,)
            Ids of the neurons within the population.

        Returns
        -------
        SpikeInput

        Raises
        ------
        InvalidArgument
            A time or an id is not possible.
        NetworkInUse
            A simulation of this network is open.
        """
        self._check_changeable("spikes")
        made = SpikeInput(self._known(population, "population"), times_ms, ids, len(self._spike_inputs))
        if made.times_ms.size:
            at_least_one_step(float(made.times_ms.min()), self._dt_ms, "times_ms")
            latest = int(array_to_steps(made.times_ms, self._dt_ms, "times_ms").max())
            if latest > LARGEST_STEP:
                raise InvalidArgument(
                    f"times_ms: {made.times_ms.max():g} ms is beyond the last step ({LARGEST_STEP:,})"
                )
            set_fields(made, times_ms=array_on_grid(made.times_ms, self._dt_ms, "times_ms"))
        self._spike_inputs.append(made)
        return made

    def current(
        self, population: Population | str, amplitude_pa: Any, start_ms: float = 0.0, stop_ms: float | None = None
    ) -> CurrentInput:
        """Inject a constant current into every neuron of a population.

        Parameters
        ----------
        population : Population or str
            Target; its model must take a current.
        amplitude_pa : float or array_like of float, shape (n,)
            Current in pA: one for all neurons, or one for each.
        start_ms, stop_ms : float, optional
            Start and end (exclusive) in ms; by default from 0 without end.

        Returns
        -------
        CurrentInput

        Raises
        ------
        InvalidArgument
            The model takes no current, or a value is not possible.
        NetworkInUse
            A simulation of this network is open.
        """
        self._check_changeable("current")
        target = self._known(population, "population")
        made = CurrentInput(target, amplitude_pa, start_ms, stop_ms, len(self._current_inputs))
        self._round_interval(made, f"current into {target.name!r}")
        self._current_inputs.append(made)
        return made

    def record(
        self, population: Population | str, what: str = "spikes", every_ms: float | None = None, subset: Any = None
    ) -> Probe:
        """Record the spikes or a state of a population.

        Parameters
        ----------
        population : Population or str
            Population to record from.
        what : str
            "spikes" or the name of a state of the model.
        every_ms : float, optional
            Time between two samples of a state in ms; by default one step.
        subset : int, slice or array_like of int, optional
            Neurons to record: the first n, a slice of the ids, or ids within the population; by default all.

        Returns
        -------
        Probe

        Raises
        ------
        InvalidArgument
            There is no such state, or no such neuron.
        NetworkInUse
            A simulation of this network is open.
        """
        self._check_changeable("record")
        target = self._known(population, "population")
        if every_ms is None and what != "spikes":
            every_ms = self._dt_ms
        made = Probe(target, what, every_ms, subset, len(self._probes))
        if made.every_ms is not None:
            set_fields(made, every_ms=period(made.every_ms, self._dt_ms, "every_ms"))
        self._probes.append(made)
        return made

    def neuromodulator(self, name: str, baseline: float = 0.0, tau_ms: float = 200.0) -> Neuromodulator:
        """Add a neuromodulator, a level that decays exponentially to its baseline.

        Parameters
        ----------
        name : str
            Unique name; rules and signals refer to it.
        baseline : float
            Level at the start and in the absence of spikes.
        tau_ms : float
            Time constant of the decay, in ms.

        Returns
        -------
        Neuromodulator
        """
        self._check_changeable("neuromodulator")
        made = Neuromodulator(name, baseline, tau_ms, len(self._neuromodulators))
        self._check_new_signal(name)
        self._neuromodulators[name] = made
        return made

    def rhythm(self, name: str, frequency_hz: float, phase: float = 0.0, floor: float = -1.0) -> Rhythm:
        """Add a rhythm, the signal max(floor, cos(2 pi (frequency * time + phase))).

        Parameters
        ----------
        name : str
            Unique name; rules and signals refer to it.
        frequency_hz : float
            Frequency in Hz; a cycle must take two steps or more.
        phase : float
            Phase at time 0, in cycles.
        floor : float
            Lower limit of the value, from -1 to below 1.

        Returns
        -------
        Rhythm
        """
        self._check_changeable("rhythm")
        made = Rhythm(name, frequency_hz, phase, floor, len(self._rhythms))
        self._check_new_signal(name)
        if made.frequency_hz * self._dt_ms * 1e-3 > 0.5:
            raise InvalidArgument(
                f"frequency_hz={frequency_hz}: a cycle must take two steps of {self._dt_ms:g} ms or more"
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
        """Make each spike of a population change the level of a neuromodulator.

        Parameters
        ----------
        population : Population or str
            Population whose spikes have the effect.
        modulator : Neuromodulator or str
            Neuromodulator that is changed.
        amount : float
            Change of the level by each spike; may be negative.
        delay_ms : float, optional
            Delay of the change in ms; by default one step.

        Returns
        -------
        Modulation
        """
        self._check_changeable("modulate")
        source = self._known(population, "population")
        level = self._known_modulator(modulator)
        delay = number(self._dt_ms if delay_ms is None else delay_ms, "delay_ms")
        (used, _) = as_delay(Constant(delay), self._dt_ms, "delay_ms").bounds()
        made = Modulation(source, level, amount, used, len(self._modulations))
        self._modulations.append(made)
        return made

    # --- reading ---

    @property
    def dt_ms(self) -> float:
        """Time step in ms."""
        return self._dt_ms

    @property
    def precision(self) -> str:
        """Precision of states and of the arithmetic of models: "float32" or "float64"."""
        return self._precision

    @property
    def is_wide(self) -> bool:
        """True if states and arithmetic are float64, and weights are summed in 64-bit integers."""
        return self._precision == "float64"

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""
        return self._seed

    @property
    def populations(self) -> tuple[Population, ...]:
        """All populations, in the order in which they were added."""
        return tuple(self._populations.values())

    @property
    def projections(self) -> tuple[Projection, ...]:
        """All projections, in the order in which they were added."""
        return tuple(self._projections.values())

    @property
    def rate_projections(self) -> tuple[RateProjection, ...]:
        """All projections of continuous values, in the order in which they were added."""
        return tuple(self._rate_projections.values())

    @property
    def poisson_inputs(self) -> tuple[PoissonInput, ...]:
        """All Poisson inputs."""
        return tuple(self._poisson_inputs)

    @property
    def spike_inputs(self) -> tuple[SpikeInput, ...]:
        """All inputs of given spikes."""
        return tuple(self._spike_inputs)

    @property
    def current_inputs(self) -> tuple[CurrentInput, ...]:
        """All injected currents."""
        return tuple(self._current_inputs)

    @property
    def probes(self) -> tuple[Probe, ...]:
        """All probes."""
        return tuple(self._probes)

    @property
    def neuromodulators(self) -> tuple[Neuromodulator, ...]:
        """All neuromodulators."""
        return tuple(self._neuromodulators.values())

    @property
    def modulations(self) -> tuple[Modulation, ...]:
        """All effects of spikes on neuromodulators."""
        return tuple(self._modulations)

    @property
    def rhythms(self) -> tuple[Rhythm, ...]:
        """All rhythms."""
        return tuple(self._rhythms.values())

    @property
    def neuron_count(self) -> int:
        """Number of neurons in all populations."""
        return sum(population.n for population in self._populations.values())

    def __getitem__(self, name: str) -> Population:
        """Return the population of this name."""
        return self._known(name, "name")

    def __contains__(self, name: object) -> bool:
        return name in self._populations

    def delay_bounds_steps(self, projection: Projection) -> tuple[int, int]:
        """Return the shortest and the longest possible delay of a projection, in steps."""
        return delay_bounds_steps(projection.delay_ms, self._dt_ms)

    def exponent(self, population: Population | str, receptor: str) -> int:
        """Return the fixed-point exponent of a receptor's first accumulator."""
        target = self._known(population, "population")
        one_of(receptor, "receptor", target.model.receptors)
        return self._inputs_of(target, receptor).exponents[0]

    def accumulators(self, population: Population | str) -> tuple[Accumulator, ...]:
        """Return the integers of each neuron of a population in which weights are summed.

        The first are those of the receptors of the model, in their order. More follow for receptors whose weights do
        not fit one scale; see `neuraxis.network.fixed_point`.
        """
        target = self._known(population, "population")
        receptors = target.model.receptors
        scales = [self._inputs_of(target, receptor) for receptor in receptors]
        first = [Accumulator(r, one.exponents[0], one.proven) for r, one in enumerate(scales)]
        return (*first, *(Accumulator(r, e, one.proven) for r, one in enumerate(scales) for e in one.exponents[1:]))

    def accumulator_of(self, given: Projection | PoissonInput) -> tuple[int, int]:
        """Return (index, exponent) of the target's accumulator that a projection or input adds to."""
        target = given.post if isinstance(given, Projection) else given.population
        kind = "projection" if isinstance(given, Projection) else "poisson"
        inputs = self._inputs_of(target, given.receptor)
        number = inputs.accumulator_of((kind, given.index))
        receptors = target.model.receptors
        place = receptors.index(given.receptor)
        if number:
            extra = [len(self._inputs_of(target, one).exponents) - 1 for one in receptors[:place]]
            place = len(receptors) + sum(extra) + number - 1
        return place, inputs.exponents[number]

    def _inputs_of(self, population: Population, receptor: str) -> ReceptorInputs:
        return self._receptor_inputs.get((population.index, receptor)) or ReceptorInputs(self._sums)

    @property
    def _sums(self) -> FixedPoint:
        return WIDE_SUMS if self.is_wide else SUMS

    @property
    def sum_limit(self) -> int:
        """The integers in which weights are summed are below this."""
        return self._sums.limit

    def __str__(self) -> str:
        return describe(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return describe_html(self)

    def __eq__(self, other: object) -> bool:
        """Return True if two networks have the same content, and so give the same spikes."""
        if not isinstance(other, Network):
            return NotImplemented
        return self._content() == other._content()

    def _content(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__getstate__().items()
            if name not in ("_checks_finite", "_receptor_inputs")
        }

    # --- checks that depend on the content ---

    def _known(self, population: Population | str, argument: str) -> Population:
        if isinstance(population, Population):
            if self._populations.get(population.name) is not population:
                raise InvalidArgument(f"{argument}={population!r}: belongs to another network; pass its name")
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
                raise InvalidArgument(f"modulator={modulator!r}: belongs to another network; pass its name")
            return modulator
        if not isinstance(modulator, str):
            raise InvalidType(f"modulator={modulator!r}: a neuromodulator or its name is expected")
        if modulator not in self._neuromodulators:
            raise InvalidArgument(
                f"modulator={modulator!r}: add it first, with network.neuromodulator({modulator!r}); "
                f"{near(modulator, self._neuromodulators)}"
            )
        return self._neuromodulators[modulator]

    def _known_signal(self, name: str, argument: str) -> None:
        if name not in self._neuromodulators and name not in self._rhythms:
            raise InvalidArgument(
                f"{argument}={name!r}: add it first, with network.neuromodulator({name!r}) or network.rhythm(...); "
                f"{near(name, [*self._neuromodulators, *self._rhythms])}"
            )

    def _check_new_signal(self, name: str) -> None:
        for kind, known in (("neuromodulator", self._neuromodulators), ("rhythm", self._rhythms)):
            if name in known:
                raise InvalidArgument(f"name={name!r}: a {kind} of this name exists already")

    def _projection_name(self, name: str | None, pre: Population, post: Population) -> str:
        if name is not None:
            label(name, "name")
            if name in self._projections or name in self._rate_projections:
                raise InvalidArgument(f"name={name!r}: a projection of this name exists already")
            return name
        plain = candidate = f"{pre.name}->{post.name}"
        number_of_name = 1
        while candidate in self._projections or candidate in self._rate_projections:
            number_of_name += 1
            candidate = f"{plain}#{number_of_name}"
        return candidate

    def _round_interval(self, given: PoissonInput | CurrentInput, what: str) -> None:
        """Round both ends to steps; raise unless there is a step between them."""
        start = to_steps(given.start_ms, self._dt_ms, "start_ms")
        if given.stop_ms is not None and to_steps(given.stop_ms, self._dt_ms, "stop_ms") <= start:
            raise InvalidArgument(
                f"stop_ms={given.stop_ms}: there is no step of {self._dt_ms:g} ms after start_ms={given.start_ms}"
            )
        set_fields(given, start_ms=on_grid(given.start_ms, self._dt_ms, f"{what}: start_ms"))
        if given.stop_ms is not None:
            set_fields(given, stop_ms=on_grid(given.stop_ms, self._dt_ms, f"{what}: stop_ms"))

    def _add_contribution(
        self, population: Population, receptor: str, origin: Origin, contribution: Contribution
    ) -> None:
        """Register what can arrive at a receptor; raise if no accumulators can represent it."""
        if not contribution.matters:
            return
        inputs = self._inputs_of(population, receptor)
        others = [one for one in population.model.receptors if one != receptor]
        taken = sum(len(self._inputs_of(population, one).exponents) for one in others)
        try:
            inputs.add(origin, contribution, taken)
        except InvalidArgument as error:
            raise InvalidArgument(f"receptor {receptor!r} of population {population.name!r}: {error}") from None
        self._receptor_inputs[population.index, receptor] = inputs


@dataclass(frozen=True)
class Accumulator:
    """An integer of every neuron of a population in which weights are summed, in units of 2**exponent.

    Attributes
    ----------
    receptor : int
        Index of its receptor among those of the model.
    exponent : int
        Exponent of the unit.
    proven : bool
        True if no sum can overflow, whatever synapses are drawn.
    """

    receptor: int
    exponent: int
    proven: bool
