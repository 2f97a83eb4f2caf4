"""A brain's description, made call by call.

spec = (
    BrainBuilder("mouse", seed=1)
    .sensor("eye", 200, groups=4)
    .region("thalamus", "thalamus", neurons=400)
    .region("cortex", "cortex")
    .pathway("eye", "thalamus", delay_ms=2.0)
    .pathway("thalamus", "cortex.L4e", delay_ms=3.0, weight=1.5)
    .spec()
)
"""

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

__all__ = ["BrainBuilder", "importable_name"]


class BrainBuilder:
    """Describes a brain step by step; what a call names must have been described by an earlier one.

    A bad call raises (SpecError, if it is about the description) and leaves the builder as it was. Every call returns
    the builder. Numbers and arrays of NumPy, and tuples, become the plain numbers and lists that a file can hold.

    Args:
        kinds: as for `neuraxis.brain.checks.validate`.
    """

    def __init__(self, name: str = "brain", seed: int = 1, dt_ms: float = 0.1, *, kinds: Kinds | None = None) -> None:
        self._kinds = kinds
        self._spec = validate(BrainSpec(name=name, seed=_plain(seed), dt_ms=_plain(dt_ms)), kinds=kinds)

    def spec(self) -> BrainSpec:
        """The description so far. Later calls do not change it."""
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
        """Add a sensor: neurons in equal groups, each of which fires as its input says; see `SensorSpec`."""
        sensor = _make(
            SensorSpec, neurons=neurons, groups=groups, rate_hz=rate_hz, background_hz=background_hz, key=key
        )
        return self._add("sensors", name, sensor, self._check.sensor)

    def region(self, name: str, kind: str, *, device: str = "cpu", roles: Iterable[str] = (), **config: Any) -> Self:
        """Add a region of a kind, with the kind's settings as keywords; `roles` are those of `RegionSpec`."""
        if kind == PYTHON_KIND:
            raise InvalidArgument(f"kind={kind!r}: a region of your own is added by python_region")
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
        """Add a region of your own.

        Args:
            create: what makes the region, in whichever process runs it: a function or class of a module, or
                "package.module:callable".
            neurons: how many outputs it has; None if it sends nothing.
            groups: into how many equal parts these are divided, for topographic pathways.
            tick_ms: how often it is called; None: when there are events.
            config: what `create` is given.
            topic: where on the mesh its data travel: "<region>/<topic>".
            roles: what it can be asked for on the mesh; none: its own name.
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
        """Add a pathway from a region, port or sensor to a region or port; see `PathwaySpec`.

        To a region of your own also from data outside the brain: "sensor/thermal", "sensor/*".
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
        """Add a rhythm: max(floor, cos(2 pi (frequency * time + phase))), with the phase in cycles."""
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
        """Add a neuromodulator, and the populations whose spikes release it."""
        modulator = _make(ModulatorSpec, baseline=baseline, tau_ms=tau_ms, delay_ms=delay_ms, sources=[*sources])
        return self._add("neuromodulators", name, modulator, self._check.neuromodulator)

    def effector(self, name: str, region: str, actions: int, **fields: Any) -> Self:
        """Add an effector: reads which of the actions a region chooses; `fields` are those of `EffectorSpec`."""
        try:
            effector = _make(EffectorSpec, region=region, actions=actions, **fields)
        except TypeError as error:
            raise InvalidType(f"effector {name!r}: {error}") from None
        return self._add("effectors", name, effector, self._check.effector)

    def reward(self, **fields: Any) -> Self:
        """Say what a reward does; `fields` are those of `RewardSpec`."""
        try:
            reward = _make(RewardSpec, **fields)
        except TypeError as error:
            raise InvalidType(f"reward: {error}") from None
        self._spec = msgspec.structs.replace(self._spec, reward=self._check.reward(reward))
        return self

    def default_node(self, region: str) -> Self:
        """Say which region is asked on the mesh when no live node has the role that was asked for."""
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
            raise SpecError("is described already", self._spec.name, f"{table}.{name}")
        self._spec = msgspec.structs.replace(self._spec, **{table: {**entries, name: check(name, entry)}})
        return self


def importable_name(create: Callable[..., Any]) -> str:
    """How another process finds a callable: "package.module:callable".

    What is defined in the program itself is "__main__:callable": a process that is started by `spawn` imports the
    program's file under that name.
    """
    module, name = getattr(create, "__module__", None), getattr(create, "__qualname__", None)
    if not callable(create) or not isinstance(module, str) or not isinstance(name, str):
        raise InvalidType(
            f"create={create!r}: a function or class of a module is expected, not {type(create).__name__}"
        )
    reason = "it cannot be found in another process; define it at the top of a module"
    if "<lambda>" in name:
        raise InvalidArgument(f"create={create!r}: is a lambda, so {reason}, with a name")
    if "<locals>" in name:
        raise InvalidArgument(f"create={create!r}: is defined within a function, so {reason}")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # Two accesses to one class method give two objects that are equal.
    if found is not create and found != create:
        raise InvalidArgument(f"create={create!r}: is not what '{module}:{name}' is, so {reason}")
    return f"{module}:{name}"


def _make(struct: type[Struct], /, **fields: Any) -> Struct:
    return struct(**{name: _plain(value) for name, value in fields.items()})


def _plain(value: Any) -> Any:
    """The same in Python's own types, copied, so that a later change of a list or dict changes no description."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
