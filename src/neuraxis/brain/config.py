"""Typed configuration of a run: the brain, the device and the number of processes.

The constructors check each value; `Config.to_spec` checks what depends on the brain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from neuraxis.arguments import flag, frozen, near, one_of, positive, whole
from neuraxis.brain.builder import plain_data
from neuraxis.brain.checks import validate
from neuraxis.brain.spec import PYTHON_KIND, BrainSpec, Kinds, RegionSpec, as_spec, is_device
from neuraxis.errors import InvalidArgument, InvalidType, SpecError
from neuraxis.network.network import LARGEST_SEED

__all__ = ["BrainConfig", "Config", "GlobalConfig", "check_batch_tolerance"]

DEFAULT_SEED = 1


class GlobalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a whole brain.

    Attributes
    ----------
    device : str
        Device of all neurons, and of the users' own regions whose description says "cpu": "cpu", "cuda" or "cuda:0".
    seed : int, optional
        Seed; None: that of the description.
    dt_ms : float, optional
        Length of a step in ms; None: that of the description.

    Raises
    ------
    InvalidArgument, InvalidType
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> GlobalConfig(seed=7)
    GlobalConfig(device='cpu', seed=7, dt_ms=None)
    """

    device: str = "cpu"
    seed: int | None = None
    dt_ms: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise InvalidType(f"device={self.device!r}: text is expected, not {type(self.device).__name__}")
        if not is_device(self.device):
            raise InvalidArgument(f"device={self.device!r}: 'cpu', 'cuda' or 'cuda:0' is expected")
        if self.seed is not None:
            _settle(self, seed=whole(self.seed, "seed", 0, LARGEST_SEED))
        if self.dt_ms is not None:
            _settle(self, dt_ms=positive(self.dt_ms, "dt_ms"))


class BrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A brain and the options of running it.

    Attributes
    ----------
    parallel : bool
        Run in worker processes instead of this one.
    workers : int or "auto"
        Number of worker processes.
    batch_tolerance_ms : float
        A user's own region gets the events of this much time in one call, in ms; must be below the shortest delay.
    on_worker_loss : {"raise", "restart"}
        Raise when a worker dies, or continue from the last automatic checkpoint.
    checkpoint_every_ms : float, optional
        With "restart", least model time between two automatic checkpoints, in ms; None: 1000. (At least 10 s of wall
        clock pass between two.)
    check_finite : bool
        Stop the run when a state becomes infinite or NaN.
    spec : BrainSpec, optional
        The description; None: the default brain.
    regions : dict
        Region settings to change, by region: ``{"cortex": {"neurons": 400}}``.
    pathways : dict
        Pathway fields to change, by label: ``{"thalamus->cortex": {"weight": 2.0}}``.

    Raises
    ------
    InvalidArgument, InvalidType
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> BrainConfig(parallel=True, workers=4).workers
    4
    """

    parallel: bool = False
    workers: int | Literal["auto"] = "auto"
    batch_tolerance_ms: float = 0.1
    on_worker_loss: Literal["raise", "restart"] = "raise"
    checkpoint_every_ms: float | None = None
    check_finite: bool = True
    spec: BrainSpec | None = None
    regions: dict[str, dict[str, Any]] = {}
    pathways: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        _settle(
            self,
            parallel=flag(self.parallel, "parallel"),
            check_finite=flag(self.check_finite, "check_finite"),
            batch_tolerance_ms=positive(self.batch_tolerance_ms, "batch_tolerance_ms"),
            regions=frozen(plain_data(self.regions)),
            pathways=frozen(plain_data(self.pathways)),
        )
        if isinstance(self.workers, str):
            if self.workers != "auto":
                raise InvalidArgument(f"workers={self.workers!r}: a whole number or 'auto' is expected")
        else:
            _settle(self, workers=whole(self.workers, "workers", 1))
        one_of(self.on_worker_loss, "on_worker_loss", ("raise", "restart"))
        if self.checkpoint_every_ms is not None:
            _settle(self, checkpoint_every_ms=positive(self.checkpoint_every_ms, "checkpoint_every_ms"))
        if self.spec is not None and not isinstance(self.spec, BrainSpec):
            raise InvalidType(f"spec={self.spec!r}: a BrainSpec is expected, not {type(self.spec).__name__}")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Configuration of a brain and its run, for `Brain.from_config`.

    Attributes
    ----------
    global_ : GlobalConfig
        Settings of the whole brain; called `global` in a file.
    brain : BrainConfig
        The brain and the way to run it.

    Examples
    --------
    >>> config = Config(global_=GlobalConfig(seed=3), brain=BrainConfig(regions={"cortex": {"neurons": 80}}))
    >>> from neuraxis.brain import default_brain
    >>> config.to_spec(default_brain).regions["cortex"].config["neurons"]
    80
    """

    global_: GlobalConfig = msgspec.field(default_factory=GlobalConfig, name="global")
    brain: BrainConfig = msgspec.field(default_factory=BrainConfig)

    def __post_init__(self) -> None:
        for name, kind in (("global_", GlobalConfig), ("brain", BrainConfig)):
            if not isinstance(given := getattr(self, name), kind):
                raise InvalidType(f"{name}={given!r}: a {kind.__name__} is expected, not {type(given).__name__}")

    def to_spec(self, default: Callable[[int], BrainSpec], kinds: Kinds | None = None) -> BrainSpec:
        """Return the description of the brain, with all changes applied and checked.

        Parameters
        ----------
        default : callable
            Makes the default brain from a seed; called if the configuration has no description of its own.
        kinds : mapping of str to type, optional
            Kinds of regions; see `neuraxis.brain.checks.validate`.

        Returns
        -------
        BrainSpec
            The description.

        Raises
        ------
        InvalidArgument
            `regions` or `pathways` name one that the brain does not have.
        SpecError
            The changed description is wrong.
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
                    f"{region.device!r}: only regions of kind 'python' have a device of their own; set that of all "
                    "neurons with GlobalConfig(device=...) or Brain(..., device=...)",
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


def _settle(config: msgspec.Struct, **fields: object) -> None:
    """Store checked values in their canonical form: NumPy numbers become Python's, which a file can hold."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(config, name, value)


def check_batch_tolerance(spec: BrainSpec, batch_tolerance_ms: float) -> None:
    """Raise InvalidArgument if a batch of events could arrive later than the shortest delay allows."""
    positive(batch_tolerance_ms, "batch_tolerance_ms")
    if not spec.pathways:
        return
    shortest = min(spec.pathways, key=lambda pathway: pathway.delay_ms)
    if batch_tolerance_ms >= shortest.delay_ms:
        raise InvalidArgument(
            f"batch_tolerance_ms={batch_tolerance_ms:g}: must be below the shortest delay of a pathway, which is "
            f"{shortest.delay_ms:g} ms, of {shortest.label!r}"
        )
