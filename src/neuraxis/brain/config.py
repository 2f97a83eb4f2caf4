"""How a brain is to be run: on which device, by how many processes, and which brain.

    config = Config(global_=GlobalConfig(device="cpu"), brain=BrainConfig(parallel=True, workers=4))

A configuration checks itself when it is made; what depends on the brain is checked by `Config.to_spec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from neuraxis.brain.checks import validate
from neuraxis.brain.spec import PYTHON_KIND, BrainSpec, Kinds, RegionSpec, as_spec, is_device
from neuraxis.errors import InvalidArgument, InvalidType, SpecError
from neuraxis.network.arguments import flag, near, one_of, positive, whole
from neuraxis.network.network import LARGEST_SEED

__all__ = ["BrainConfig", "Config", "GlobalConfig", "check_batch_tolerance"]

DEFAULT_SEED = 1


class GlobalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for all of a brain.

    Attributes:
        device: where the neurons are, and the users' own regions whose description does not name another device than
            "cpu".
        seed: None: the brain's own.
        dt_ms: None: the brain's own.
    """

    device: str = "cpu"
    seed: int | None = None
    dt_ms: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise InvalidType(f"device={self.device!r}: text is expected, not {type(self.device).__name__}")
        if not is_device(self.device):
            raise InvalidArgument(f"device={self.device!r}: say 'cpu', 'cuda' or 'cuda:0'")
        if self.seed is not None:
            whole(self.seed, "seed", 0, LARGEST_SEED)
        if self.dt_ms is not None:
            positive(self.dt_ms, "dt_ms")


class BrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which brain, and who runs it.

    Attributes:
        parallel: whether worker processes run it, instead of this one.
        workers: how many of them; "auto": as many as suit the machine.
        batch_tolerance_ms: events of so much time are given to a user's own region in one call; must be below the
            shortest pathway's delay.
        on_worker_loss: when a worker dies, raise, or go on from the last checkpoint.
        checkpoint_every_ms: with on_worker_loss="restart", how much model time there is at least between two states
            that are kept on the way; None: a second. (And at least 10 s of the clock.)
        spec: the brain; None: the default one.
        regions: settings to change, by the name of the region: {"cortex": {"neurons": 400}}.
        pathways: fields to change, by the label of the pathway: {"thalamus->cortex": {"weight": 2.0}}.
    """

    parallel: bool = False
    workers: int | Literal["auto"] = "auto"
    batch_tolerance_ms: float = 0.1
    on_worker_loss: Literal["raise", "restart"] = "raise"
    checkpoint_every_ms: float | None = None
    spec: BrainSpec | None = None
    regions: dict[str, dict[str, Any]] = {}
    pathways: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        flag(self.parallel, "parallel")
        if isinstance(self.workers, str):
            if self.workers != "auto":
                raise InvalidArgument(f"workers={self.workers!r}: a whole number or 'auto' is expected")
        else:
            whole(self.workers, "workers", 1)
        positive(self.batch_tolerance_ms, "batch_tolerance_ms")
        one_of(self.on_worker_loss, "on_worker_loss", ("raise", "restart"))
        if self.checkpoint_every_ms is not None:
            positive(self.checkpoint_every_ms, "checkpoint_every_ms")
        if self.spec is not None and not isinstance(self.spec, BrainSpec):
            raise InvalidType(f"spec={self.spec!r}: a BrainSpec is expected, not {type(self.spec).__name__}")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole configuration. In a file, `global_` is called `global`."""

    global_: GlobalConfig = msgspec.field(default_factory=GlobalConfig, name="global")
    brain: BrainConfig = msgspec.field(default_factory=BrainConfig)

    def __post_init__(self) -> None:
        for name, kind in (("global_", GlobalConfig), ("brain", BrainConfig)):
            if not isinstance(given := getattr(self, name), kind):
                raise InvalidType(f"{name}={given!r}: a {kind.__name__} is expected, not {type(given).__name__}")

    def to_spec(self, default: Callable[[int], BrainSpec], kinds: Kinds | None = None) -> BrainSpec:
        """The brain that is meant, with all changes made and checked.

        Args:
            default: makes the default brain from a seed; called if the configuration has no brain of its own.
            kinds: as for `neuraxis.brain.checks.validate`.
        """
        seed, dt_ms = self.global_.seed, self.global_.dt_ms
        spec = self.brain.spec
        if spec is None:
            spec = default(DEFAULT_SEED if seed is None else seed)
        spec = msgspec.structs.replace(
            spec,
            seed=spec.seed if seed is None else seed,
            dt_ms=spec.dt_ms if dt_ms is None else dt_ms,
            regions=self._changed_regions(spec),
        )
        spec = validate(self._with_changed_pathways(spec), kinds=kinds)
        for name, region in spec.regions.items():
            if region.device != "cpu" and region.kind != PYTHON_KIND:
                raise SpecError(
                    f"{region.device!r}: only regions of kind 'python' have a device of their own; say for all neurons "
                    "where they are: GlobalConfig(device=...), Brain(..., device=...)",
                    spec.name,
                    f"regions.{name}.device",
                )
        check_batch_tolerance(spec, self.brain.batch_tolerance_ms)
        return spec

    def _changed_regions(self, spec: BrainSpec) -> dict[str, RegionSpec]:
        for name in self.brain.regions:
            if name not in spec.regions:
                raise InvalidArgument(f"regions: there is no region {name!r}; {near(name, spec.regions)}")
        return {
            name: msgspec.structs.replace(
                region,
                device=self.global_.device if region.device == "cpu" and region.kind == PYTHON_KIND else region.device,
                config={**region.config, **self.brain.regions.get(name, {})},
            )
            for name, region in spec.regions.items()
        }

    def _with_changed_pathways(self, spec: BrainSpec) -> BrainSpec:
        labels = [pathway.label for pathway in spec.pathways]
        for label in self.brain.pathways:
            if label not in labels:
                raise InvalidArgument(f"pathways: there is no pathway {label!r}; {near(label, labels)}")
        changed = [
            {**msgspec.structs.asdict(pathway), **self.brain.pathways.get(pathway.label, {})}
            for pathway in spec.pathways
        ]
        return as_spec({**msgspec.structs.asdict(spec), "pathways": changed})


def check_batch_tolerance(spec: BrainSpec, batch_tolerance_ms: float) -> None:
    """Raise if spikes that travel together could come too late for a pathway of a brain, and say for which."""
    positive(batch_tolerance_ms, "batch_tolerance_ms")
    if not spec.pathways:
        return
    shortest = min(spec.pathways, key=lambda pathway: pathway.delay_ms)
    if batch_tolerance_ms >= shortest.delay_ms:
        raise InvalidArgument(
            f"batch_tolerance_ms={batch_tolerance_ms:g}: must be below the shortest delay of a pathway, which is "
            f"{shortest.delay_ms:g} ms, of {shortest.label!r}"
        )
