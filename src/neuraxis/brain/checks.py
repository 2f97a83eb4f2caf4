"""Validation of a brain's description; see `neuraxis.brain.spec`.

`validate` checks a whole description. `BrainBuilder` uses `Checker` directly, to check each entry as it is added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable
from typing import NoReturn

import msgspec

from neuraxis.arguments import FrozenDict, FrozenList, near
from neuraxis.brain.spec import (
    DATA_TOPIC,
    PYTHON_KIND,
    BrainSpec,
    EffectorSpec,
    Kinds,
    ModulatorSpec,
    PathwaySpec,
    RegionSpec,
    RewardSpec,
    RhythmSpec,
    SensorSpec,
    as_spec,
    convert,
    is_device,
    is_outside,
    split_port,
    typed,
)
from neuraxis.errors import SpecError
from neuraxis.network.grid import HIGHEST_CONSTANT_STEPS, STEP_TOLERANCE
from neuraxis.network.network import LARGEST_SEED
from neuraxis.simulation.python_populations import why_no_expression

__all__ = ["Checker", "validate"]

# More than any setting needs, and within what every TOML reader in Python accepts.
LARGEST_WHOLE_NUMBER = 2**64

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TOPIC = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_RESERVED_TOPICS = ("spikes", "health")  # topics that every region has on the mesh
_IDENTIFIER = r"[^\W\d]\w*"
_IMPORTABLE = re.compile(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}(\.{_IDENTIFIER})*")


def validate(spec: BrainSpec, where: str = "brain", kinds: Kinds | None = None) -> BrainSpec:
    """Check a whole description and return it in its canonical form (1 becomes 1.0 where a float is expected).

    Parameters
    ----------
    spec : BrainSpec
        The description.
    where : str
        Prefix of errors: the file, if there is one.
    kinds : mapping of str to type, optional
        Kinds of regions and their configurations; default `neuraxis.brain.regions.REGION_KINDS`.

    Raises
    ------
    SpecError
        The description is wrong; the error has the path of the field.
    """
    if not isinstance(spec, BrainSpec):
        raise SpecError(f"a BrainSpec is expected, not {type(spec).__name__}", where)
    spec = as_spec(msgspec.structs.asdict(spec), where)
    check = Checker(spec, where, kinds)
    check.brain()
    for name, region in spec.regions.items():
        check.region(name, region)
    for name, sensor in spec.sensors.items():
        check.sensor(name, sensor)
    for name, rhythm in spec.rhythms.items():
        check.rhythm(name, rhythm)
    for name, modulator in spec.neuromodulators.items():
        check.neuromodulator(name, modulator)
    for name, effector in spec.effectors.items():
        check.effector(name, effector)
    check.reward(spec.reward)
    labels: set[str] = set()
    for index, pathway in enumerate(spec.pathways):
        check.pathway(index, pathway, labels)
        labels.add(pathway.label)
    return spec


class Checker:
    """Checks of single entries against the names in a description; each raises or returns the entry converted.

    The entry itself may be part of the description already or be about to be added.
    """

    def __init__(self, spec: BrainSpec, where: str = "brain", kinds: Kinds | None = None) -> None:
        if kinds is None:
            # Imported late: the regions import the neuron models.
            from neuraxis.brain.regions import REGION_KINDS

            kinds = REGION_KINDS
        self._spec = spec
        self._where = where
        self._kinds = kinds

    def brain(self) -> None:
        """Check the fields of the brain itself."""
        self._name(self._spec.name, "name")
        self._between(self._spec.seed, "seed", 0, LARGEST_SEED)
        self._positive(self._spec.dt_ms, "dt_ms")
        if self._spec.default_node is not None:
            self.default_node(self._spec.default_node)

    def default_node(self, name: str) -> None:
        self._known(name, self._spec.regions, "default_node", "region")

    def region(self, name: str, region: RegionSpec) -> RegionSpec:
        field = f"regions.{name}"
        region = typed(region, RegionSpec, self._where, field)
        self._name(name, field)
        self._not_also(name, field, "sensor", self._spec.sensors)
        if not is_device(region.device):
            self._fail(f"{field}.device", f"{region.device!r} is not a device; use 'cpu', 'cuda' or 'cuda:0'")
        self._plain(region.config, f"{field}.config")
        for index, role in enumerate(region.roles):
            self._name(role, f"{field}.roles[{index}]")
            if role in region.roles[:index]:
                self._fail(f"{field}.roles[{index}]", f"{role!r} is listed twice; remove one")
        if region.kind == PYTHON_KIND:
            self._python_region(field, region)
            return region
        self._known(region.kind, [*self._kinds, PYTHON_KIND], f"{field}.kind", "kind of region")
        convert(region.config, self._kinds[region.kind], self._where, f"{field}.config")
        for only in ("create", "neurons", "groups", "tick_ms"):
            if getattr(region, only) is not None:
                self._fail(f"{field}.{only}", f"only a region of kind {PYTHON_KIND!r} has it, not {region.kind!r}")
        if region.topic != DATA_TOPIC:
            self._fail(f"{field}.topic", f"only a region of kind {PYTHON_KIND!r} has it, not {region.kind!r}")
        return region

    def _python_region(self, field: str, region: RegionSpec) -> None:
        if region.create is None:
            self._fail(f"{field}.create", 'is missing; name the callable that makes it: "package.module:callable"')
        if not _IMPORTABLE.fullmatch(region.create):
            self._fail(f"{field}.create", f'{region.create!r} is not of the form "package.module:callable"')
        if region.neurons is not None:
            self._at_least(region.neurons, f"{field}.neurons", 1)
        if region.groups is not None:
            self._at_least(region.groups, f"{field}.groups", 1)
            if (region.neurons or 1) % region.groups:
                self._fail(f"{field}.groups", f"{region.neurons or 1} neurons cannot form {region.groups} equal groups")
        if region.tick_ms is not None:
            self._delay(region.tick_ms, f"{field}.tick_ms")
        self._topic(region.topic, f"{field}.topic")

    def _topic(self, topic: str, field: str) -> None:
        if not _TOPIC.fullmatch(topic):
            self._fail(
                field, f"{topic!r}: a topic consists of letters (a to z), digits, '_', '-' and '.', with '/' between"
            )
        if topic in _RESERVED_TOPICS:
            self._fail(field, f"{topic!r}: every region has this topic already; choose another")

    def sensor(self, name: str, sensor: SensorSpec) -> SensorSpec:
        field = f"sensors.{name}"
        sensor = typed(sensor, SensorSpec, self._where, field)
        self._name(name, field)
        self._not_also(name, field, "region", self._spec.regions)
        self._at_least(sensor.neurons, f"{field}.neurons", 1)
        self._at_least(sensor.groups, f"{field}.groups", 1)
        if sensor.neurons % sensor.groups:
            self._fail(f"{field}.groups", f"{sensor.neurons} neurons cannot form {sensor.groups} equal groups")
        self._positive(sensor.rate_hz, f"{field}.rate_hz")
        if not 0 <= sensor.background_hz < math.inf:
            self._fail(f"{field}.background_hz", f"{sensor.background_hz:g}: must be 0 or more")
        if sensor.key is not None:
            self._expression(sensor.key, f"{field}.key")
        return sensor

    def rhythm(self, name: str, rhythm: RhythmSpec) -> RhythmSpec:
        field = f"rhythms.{name}"
        rhythm = typed(rhythm, RhythmSpec, self._where, field)
        self._name(name, field)
        self._not_also(name, field, "neuromodulator", self._spec.neuromodulators)
        self._positive(rhythm.frequency_hz, f"{field}.frequency_hz")
        if rhythm.frequency_hz * self._spec.dt_ms * 1e-3 > 0.5:
            self._fail(
                f"{field}.frequency_hz",
                f"{rhythm.frequency_hz:g}: a cycle must take two steps (dt_ms={self._spec.dt_ms:g}) or more",
            )
        self._finite(rhythm.phase, f"{field}.phase")
        if not -1 <= rhythm.floor < 1:
            self._fail(f"{field}.floor", f"{rhythm.floor:g}: must be from -1 to below 1, since a rhythm is a cosine")
        return rhythm

    def neuromodulator(self, name: str, modulator: ModulatorSpec) -> ModulatorSpec:
        field = f"neuromodulators.{name}"
        modulator = typed(modulator, ModulatorSpec, self._where, field)
        self._name(name, field)
        self._not_also(name, field, "rhythm", self._spec.rhythms)
        self._finite(modulator.baseline, f"{field}.baseline")
        self._positive(modulator.tau_ms, f"{field}.tau_ms")
        self._delay(modulator.delay_ms, f"{field}.delay_ms")
        for index, source in enumerate(modulator.sources):
            place = f"{field}.sources[{index}]"
            self._population(source.population, f"{place}.population")
            self._finite(source.amount, f"{place}.amount")
            self._delay(source.delay_ms, f"{place}.delay_ms")
        return modulator

    def effector(self, name: str, effector: EffectorSpec) -> EffectorSpec:
        field = f"effectors.{name}"
        effector = typed(effector, EffectorSpec, self._where, field)
        self._name(name, field)
        self._known(effector.region, self._spec.regions, f"{field}.region", "region")
        self._at_least(effector.actions, f"{field}.actions", 1)
        for others, what in ((self._spec.regions, "region"), (self._spec.sensors, "sensor")):
            self._not_also(name, field, what, others)
        self._at_least(effector.neurons, f"{field}.neurons", effector.actions)
        if effector.neurons % effector.actions:
            self._fail(f"{field}.neurons", f"{effector.neurons} cannot form {effector.actions} equal groups")
        self._positive(effector.rate_hz, f"{field}.rate_hz")
        self._delay(effector.duration_ms, f"{field}.duration_ms")
        self._positive(effector.temperature_hz, f"{field}.temperature_hz")
        return effector

    def reward(self, reward: RewardSpec) -> RewardSpec:
        reward = typed(reward, RewardSpec, self._where, "reward")
        if reward.critic is not None:
            self._population(reward.critic, "reward.critic")
        self._positive(reward.critic_hz, "reward.critic_hz")
        for modulator in ("lowest_expected", "dopamine", "acetylcholine", "noradrenaline"):
            self._finite(getattr(reward, modulator), f"reward.{modulator}")
        return reward

    def pathway(self, index: int, pathway: PathwaySpec, others: Container[str]) -> PathwaySpec:
        """Check the pathway at an index; `others` are the labels of those before it."""
        field = f"pathways[{index}]"
        pathway = typed(pathway, PathwaySpec, self._where, field)
        if is_outside(pathway.source):
            self._outside(pathway, field)
        else:
            self._source(pathway.source, f"{field}.source")
        self._target(pathway.target, f"{field}.target")
        self._delay(pathway.delay_ms, f"{field}.delay_ms", f" ({pathway.label})")
        if pathway.name is not None:
            self._name(pathway.name, f"{field}.name")
        if pathway.label in others:
            self._fail(f"{field}.name", f"there is a pathway {pathway.label!r} already; give this one another name")
        if pathway.weight is not None:
            self._finite(pathway.weight, f"{field}.weight")
        if pathway.in_degree is not None:
            self._at_least(pathway.in_degree, f"{field}.in_degree", 1)
            if pathway.probability is not None:
                self._fail(f"{field}.probability", "in_degree is given as well; give one of them")
        if pathway.probability is not None and not 0 < pathway.probability <= 1:
            self._fail(f"{field}.probability", f"{pathway.probability:g}: must be above 0 and 1 at most")
        if pathway.plasticity is not None:
            self._plain(pathway.plasticity, f"{field}.plasticity")
            if not pathway.plasticity.strip():
                self._fail(f"{field}.plasticity", 'must not be empty; use "none" for static synapses')
        self._plain(pathway.options, f"{field}.options")
        return pathway

    def _population(self, name: str, field: str) -> None:
        self._plain(name, field)
        region, population = split_port(name)
        self._known(region, self._spec.regions, field, "region")
        if not population or "." in population:
            self._fail(field, f'{name!r} is not of the form "region.population"')

    def _source(self, source: str, field: str) -> None:
        spec = self._spec
        name, port = self._end(source, field)
        self._known(name, [*spec.regions, *spec.sensors, *spec.effectors], field, "region, sensor or effector")
        for others, what in ((spec.sensors, "a sensor"), (spec.effectors, "an effector")):
            if port and name in others:
                self._fail(field, f"{source!r}: {what} has no ports; use {name!r}")
        region = spec.regions.get(name)
        if region is not None and region.kind == PYTHON_KIND and region.neurons is None:
            self._fail(field, f"region {name!r} has no outputs; give its description a number of neurons")

    def _outside(self, pathway: PathwaySpec, field: str) -> None:
        """Check a pathway from data outside the brain."""
        self._expression(pathway.source, f"{field}.source")
        region = self._spec.regions.get(split_port(pathway.target)[0])
        if region is not None and region.kind != PYTHON_KIND:
            self._fail(
                f"{field}.source",
                f"{pathway.source!r}: only regions of kind {PYTHON_KIND!r} receive data, and {pathway.target!r} is "
                f'made of neurons; declare a sensor with key = "{pathway.source}" and a pathway from it',
            )

    def _expression(self, text: str, field: str) -> None:
        self._plain(text, field)
        if reason := why_no_expression(text):
            self._fail(field, f"{text!r} is not a key expression: {reason}")

    def _target(self, target: str, field: str) -> None:
        name, _ = self._end(target, field)
        if name in self._spec.sensors:
            self._fail(field, f"{name!r} is a sensor, which cannot be the target of a pathway")
        self._known(name, self._spec.regions, field, "region")

    def _end(self, end: str, field: str) -> tuple[str, str]:
        self._plain(end, field)
        name, port = split_port(end)
        if (not port and "." in end) or "." in port:
            self._fail(field, f'{end!r} is not of the form "region" or "region.port"')
        return name, port

    # --- Checks of single values ---

    def _fail(self, field: str, reason: str) -> NoReturn:
        raise SpecError(reason, self._where, field)

    def _name(self, name: str, field: str) -> None:
        if not _NAME.fullmatch(name):
            self._fail(field, f"{name!r}: a name consists of letters (a to z), digits, '_' and '-'")

    def _not_also(self, name: str, field: str, what: str, others: Container[str]) -> None:
        if name in others:
            self._fail(field, f"there is a {what} called {name!r} as well; one of them needs another name")

    def _known(self, name: str, known: Iterable[str], field: str, what: str) -> None:
        names = list(known)
        if name not in names:
            self._fail(field, f"there is no {what} {name!r}; {near(name, names)}")

    def _finite(self, value: float, field: str) -> None:
        if not math.isfinite(value):
            self._fail(field, f"{value:g}: a finite number is expected")

    def _positive(self, value: float, field: str) -> None:
        if not 0 < value < math.inf:
            self._fail(field, f"{value:g}: must be above 0")

    def _at_least(self, value: int, field: str, lowest: int) -> None:
        if value < lowest:
            self._fail(field, f"{value}: must be {lowest} or more")

    def _between(self, value: int, field: str, lowest: int, highest: int) -> None:
        if not lowest <= value <= highest:
            self._fail(field, f"{value}: must be from {lowest} to {highest}")

    def _delay(self, value: float, field: str, of: str = "") -> None:
        dt_ms = self._spec.dt_ms
        # Not `value < ...`, which is False for nan.
        if not value >= dt_ms * (1 - STEP_TOLERANCE):
            self._fail(field, f"{value:g}{of}: must be one step (dt_ms={dt_ms:g}) or more")
        if value / dt_ms + 0.5 >= HIGHEST_CONSTANT_STEPS + 1:
            self._fail(field, f"{value:g}{of}: must be {HIGHEST_CONSTANT_STEPS} steps (of {dt_ms:g} ms) at most")

    def _plain(self, value: object, field: str) -> None:
        """Check that writing a value to a file and reading it back gives an equal value."""
        if type(value) is dict or type(value) is FrozenDict:
            for key, inner in value.items():
                if type(key) is not str:
                    self._fail(field, f"{key!r}: a key must be text")
                self._plain(key, field)
                self._plain(inner, f"{field}.{key}")
        elif type(value) is list or type(value) is FrozenList:
            for index, inner in enumerate(value):
                self._plain(inner, f"{field}[{index}]")
        elif type(value) is str:
            if any("\ud800" <= character <= "\udfff" for character in value):
                self._fail(field, f"{value!r}: is not valid Unicode")
        elif type(value) is float:
            if math.isnan(value):
                self._fail(field, "nan: a number is expected")
        elif type(value) is int:
            self._between(value, field, -LARGEST_WHOLE_NUMBER, LARGEST_WHOLE_NUMBER)
        elif type(value) is not bool:
            self._fail(
                field, f"{type(value).__name__}: a file can hold text, numbers, True, False, lists and tables of these"
            )
