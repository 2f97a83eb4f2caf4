"""Building of a brain's description, call by call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import msgspec
import numpy as np

from neuraxis.brain.checks import Checker, validate
from neuraxis.brain.spec import (
    DATA_TOPIC,
    PYTHON_KIND,
    BrainSpec,
    EffectorSpec,
    Kinds,
    ModulatorSource,
    ModulatorSpec,
    PathwaySpec,
    RegionSpec,
    RewardSpec,
    RhythmSpec,
    SensorSpec,
    Struct,
)
from neuraxis.errors import InvalidArgument, InvalidType, SpecError
from neuraxis.process.pickling import adopt

__all__ = ["BrainBuilder", "importable_name", "plain_data"]


class BrainBuilder:
    """Builder of a `BrainSpec`: every method adds one part and returns the builder.

    A name must be added before another call refers to it. A call that raises leaves the builder unchanged. NumPy
    numbers and arrays, and tuples, become the plain numbers and lists that a file can hold.

    Parameters
    ----------
    name : str
        Name of the brain: letters, digits, `_` and `-`.
    seed : int
        Seed of everything that is random in the brain.
    dt_ms : float
        Length of a step, in ms.
    kinds : mapping of str to type, optional
        Kinds of regions and their configurations; default `neuraxis.brain.regions.REGION_KINDS`.

    Raises
    ------
    SpecError
        A value does not make sense; the error names the field.

    Examples
    --------
    >>> spec = (
    ...     BrainBuilder("mouse", seed=1)
    ...     .sensor("eye", 200, groups=4)
    ...     .region("thalamus", "thalamus", relay=400)
    ...     .region("cortex", "cortex")
    ...     .pathway("eye", "thalamus", delay_ms=2.0, topographic=True)
    ...     .pathway("thalamus", "cortex.L4e", delay_ms=3.0, weight=150.0)
    ...     .spec()
    ... )
    >>> [pathway.label for pathway in spec.pathways]
    ['eye->thalamus', 'thalamus->cortex.L4e']
    """

    def __init__(self, name: str = "brain", seed: int = 1, dt_ms: float = 0.1, *, kinds: Kinds | None = None) -> None:
        self._kinds = kinds
        self._spec = validate(BrainSpec(name=name, seed=plain_data(seed), dt_ms=plain_data(dt_ms)), kinds=kinds)

    def spec(self) -> BrainSpec:
        """Return the description so far; later calls do not change it."""
        return validate(self._spec, self._spec.name, self._kinds)

    def sensor(
        self,
        name: str,
        neurons: int,
        *,
        groups: int = 1,
        rate_hz: float = 100.0,
        background_hz: float = 0.0,
        key: str | None = None,
    ) -> Self:
        """Add a sensor: neurons in equal groups that fire at random, at rates that the input sets.

        Parameters
        ----------
        name : str
            Name of the sensor.
        neurons : int
            Number of neurons, a multiple of `groups`.
        groups : int
            Number of equal groups; an input can have one number for each group.
        rate_hz, background_hz : float
            Rates at an input of 1 and of 0, in Hz.
        key : str, optional
            On the mesh, key expression of the messages that are its input. Default "sensor/<name>".
        """
        sensor = _make(
            SensorSpec, neurons=neurons, groups=groups, rate_hz=rate_hz, background_hz=background_hz, key=key
        )
        return self._add("sensors", name, sensor, self._check.sensor)

    def region(self, name: str, kind: str, *, device: str = "cpu", roles: Iterable[str] = (), **config: Any) -> Self:
        """Add a region of spiking neurons.

        Parameters
        ----------
        name : str
            Name of the region.
        kind : str
            A key of `neuraxis.brain.regions.REGION_KINDS`, such as "cortex" or "striatum".
        device : str
            Must be "cpu": `Brain(..., device=...)` selects the device of all neurons.
        roles : iterable of str
            Roles under which other nodes of the mesh can request it. Default: its name.
        **config
            Fields of the kind's configuration, such as those of `CortexConfig`.
        """
        if kind == PYTHON_KIND:
            raise InvalidArgument(f"kind={kind!r}: use python_region() to add a region of your own")
        region = _make(RegionSpec, kind=kind, device=device, roles=[*roles], config=config)
        return self._add("regions", name, region, self._check.region)

    def python_region(
        self,
        name: str,
        create: Callable[..., Any] | str,
        *,
        neurons: int | None = None,
        groups: int | None = None,
        tick_ms: float | None = None,
        config: Mapping[str, Any] | None = None,
        device: str = "cpu",
        topic: str = DATA_TOPIC,
        roles: Iterable[str] = (),
    ) -> Self:
        """Add a region whose behaviour is Python code of your own.

        Parameters
        ----------
        name : str
            Name of the region.
        create : callable or str
            Function or class of a module, or "package.module:callable". The process that runs the region calls it.
        neurons : int, optional
            Number of outputs; None if the region sends no spikes.
        groups : int, optional
            Number of equal groups of outputs, for topographic pathways.
        tick_ms : float, optional
            Interval between calls of the region, in ms; None: it is called when it receives events.
        config : mapping, optional
            Configuration that `create` gets.
        device : str
            Device that the region gets: "cpu", "cuda" or "cuda:0".
        topic : str
            Topic of its data on the mesh: "<region>/<topic>".
        roles : iterable of str
            Roles under which other nodes of the mesh can request it. Default: its name.
        """
        region = _make(
            RegionSpec,
            kind=PYTHON_KIND,
            create=create if isinstance(create, str) else importable_name(create),
            neurons=neurons,
            groups=groups,
            tick_ms=tick_ms,
            topic=topic,
            roles=[*roles],
            device=device,
            config=dict(config or {}),
        )
        return self._add("regions", name, region, self._check.region)

    def pathway(
        self,
        source: str,
        target: str,
        delay_ms: float,
        *,
        weight: float | None = None,
        in_degree: int | None = None,
        probability: float | None = None,
        topographic: bool = False,
        plasticity: str | None = None,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add a pathway: axons from a region, port, sensor or effector to a region or port.

        Parameters
        ----------
        source : str
            "region", "region.port", "sensor" or "effector". For a pathway to a region of your own also a key
            expression of data from outside the brain: `"sensor/thermal"`, `"sensor/*"`.
        target : str
            "region" or "region.port".
        delay_ms : float
            Delay, in ms; at least one step.
        weight : float, optional
            Weight of a synapse, in the unit of the target's cells (pA or mV).
        in_degree : int, optional
            Number of synapses on each target neuron.
        probability : float, optional
            Probability of a synapse between two neurons; excludes `in_degree`.
        topographic : bool
            Connect group g of the source with group g of the target only.
        plasticity : str, optional
            "none", or a rule of the target region, such as "reward".
        name : str, optional
            Label; needed if two pathways have the same source and target.
        options : mapping, optional
            Further options of the target region.

        Notes
        -----
        The target region has a default for every value that is None.
        """
        pathway = _make(
            PathwaySpec,
            source=source,
            target=target,
            delay_ms=delay_ms,
            weight=weight,
            in_degree=in_degree,
            probability=probability,
            topographic=topographic,
            plasticity=plasticity,
            name=name,
            options=dict(options or {}),
        )
        earlier = self._spec.pathways
        pathway = self._check.pathway(len(earlier), pathway, {other.label for other in earlier})
        self._spec = msgspec.structs.replace(self._spec, pathways=(*earlier, pathway))
        return self

    def rhythm(self, name: str, frequency_hz: float, *, phase: float = 0.0, floor: float = -1.0) -> Self:
        """Add a rhythm: max(floor, cos(2 pi (frequency * time + phase))), with the phase in cycles.

        Parameters
        ----------
        name : str
            Name of the rhythm.
        frequency_hz : float
            Frequency, in Hz.
        phase : float
            Phase at time 0, in cycles.
        floor : float
            Lowest value, from -1 to below 1.
        """
        rhythm = _make(RhythmSpec, frequency_hz=frequency_hz, phase=phase, floor=floor)
        return self._add("rhythms", name, rhythm, self._check.rhythm)

    def neuromodulator(
        self,
        name: str,
        *,
        baseline: float = 0.0,
        tau_ms: float = 200.0,
        delay_ms: float = 1.0,
        sources: Iterable[ModulatorSource] = (),
    ) -> Self:
        """Add a neuromodulator: a level that decays to its baseline.

        Parameters
        ----------
        name : str
            Name of the neuromodulator.
        baseline : float
            Level at rest.
        tau_ms : float
            Time constant of the decay, in ms.
        delay_ms : float
            Delay of a release by a reward or by `Brain.release`, in ms.
        sources : iterable of ModulatorSource
            Populations whose spikes release it.
        """
        modulator = _make(ModulatorSpec, baseline=baseline, tau_ms=tau_ms, delay_ms=delay_ms, sources=[*sources])
        return self._add("neuromodulators", name, modulator, self._check.neuromodulator)

    def effector(self, name: str, region: str, actions: int, **fields: Any) -> Self:
        """Add an effector, which reads an action from a region.

        Parameters
        ----------
        name : str
            Name of the effector.
        region : str
            Region whose activity is read.
        actions : int
            Number of actions.
        **fields
            Further fields of `EffectorSpec`.

        Returns
        -------
        BrainBuilder
            This builder.
        """
        try:
            effector = _make(EffectorSpec, region=region, actions=actions, **fields)
        except TypeError as error:
            raise InvalidType(f"effector {name!r}: {error}") from None
        return self._add("effectors", name, effector, self._check.effector)

    def reward(self, **fields: Any) -> Self:
        """Set the effect of a reward on neuromodulators.

        Parameters
        ----------
        **fields
            Fields of `RewardSpec`.

        Returns
        -------
        BrainBuilder
            This builder.
        """
        try:
            reward = _make(RewardSpec, **fields)
        except TypeError as error:
            raise InvalidType(f"reward: {error}") from None
        self._spec = msgspec.structs.replace(self._spec, reward=self._check.reward(reward))
        return self

    def default_node(self, region: str) -> Self:
        """Set the region that handles a request on the mesh for a role that no live node has.

        Parameters
        ----------
        region : str
            Name of the region.

        Returns
        -------
        BrainBuilder
            This builder.
        """
        self._check.default_node(region)
        self._spec = msgspec.structs.replace(self._spec, default_node=region)
        return self

    @property
    def _check(self) -> Checker:
        return Checker(self._spec, self._spec.name, self._kinds)

    def _add(self, table: str, name: str, entry: Any, check: Callable[[str, Any], Any]) -> Self:
        if not isinstance(name, str):
            raise InvalidType(f"name={name!r}: text is expected, not {type(name).__name__}")
        entries = getattr(self._spec, table)
        if name in entries:
            raise SpecError("was added before; choose another name", self._spec.name, f"{table}.{name}")
        self._spec = msgspec.structs.replace(self._spec, **{table: {**entries, name: check(name, entry)}})
        return self


def importable_name(create: Callable[..., Any]) -> str:
    """Return the name under which another process can import a callable: "package.module:callable".

    A callable of the program itself is "__main__:callable": a process that is started by `spawn` imports the program's
    file under that name.
    """
    module, name = getattr(create, "__module__", None), getattr(create, "__qualname__", None)
    if not callable(create) or not isinstance(module, str) or not isinstance(name, str):
        raise InvalidType(
            f"create={create!r}: a function or class of a module is expected, not {type(create).__name__}"
        )
    reason = "another process cannot import it; define it at the top level of a module"
    if "<lambda>" in name:
        raise InvalidArgument(f"create={create!r}: is a lambda, so {reason}, with a name")
    if "<locals>" in name:
        raise InvalidArgument(f"create={create!r}: is defined within a function, so {reason}")
    if module == "__main__":
        adopt(name, create)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # Two accesses to one class method give two objects that are equal.
    if found is not create and found != create:
        raise InvalidArgument(f"create={create!r}: is not the object called '{module}:{name}', so {reason}")
    return f"{module}:{name}"


def _make(struct: type[Struct], /, **fields: Any) -> Struct:
    return struct(**{name: plain_data(value) for name, value in fields.items()})


def plain_data(value: Any) -> Any:
    """Return a copy in plain Python types, so that changing a list or dict later does not change the description."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(inner) for inner in value]
    return value
