"""The cells of a sweep: every combination of settings with every seed, and what each of them runs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from neuraxis.brain.files import spec_text
from neuraxis.brain.spec import BrainSpec
from neuraxis.brain.stimulus_file import StimulusFile, read_stimulus
from neuraxis.errors import InvalidArgument
from neuraxis.network.grid import to_steps
from neuraxis.observe.sweep_settings import Setting, with_values
from neuraxis.version import __version__

__all__ = ["Cell", "Job", "digest_of_file", "plan_cells"]


class Job(msgspec.Struct, frozen=True):
    """What every cell does with its brain, as `neuraxis run` would.

    Attributes:
        task: the task's name; None: a stimulus, or nothing, for `time_ms`.
        stimulus: the file's absolute path.
        stimulus_digest: of the file's content (`digest_of_file`): a worker refuses any other.
        time_ms: None: as long as the stimulus, or else a second.
        where: the brain's file, for errors; a folder beside it may have code of regions in Python.
    """

    task: str | None = None
    trials: int = 300
    stimulus: str | None = None
    stimulus_digest: str = ""
    time_ms: float | None = None
    where: str | None = None

    def shown_to(self, spec: BrainSpec) -> tuple[StimulusFile, float]:
        """What a brain is shown, and for how many ms it is run."""
        if self.stimulus is None:
            return StimulusFile(), 1000.0 if self.time_ms is None else self.time_ms
        shown = read_stimulus(self.stimulus, spec)
        if digest_of_file(self.stimulus) != self.stimulus_digest:
            raise InvalidArgument(f"{self.stimulus}: is not what it was when the sweep began; start the sweep again")
        return shown, shown.steps * spec.dt_ms if self.time_ms is None else self.time_ms


class Cell(msgspec.Struct, frozen=True):
    """One brain that is run once.

    Attributes:
        settings: by field, what it is set to.
        brain: the whole description but for the seed, as TOML.
        key: the same for two cells if and only if what they run is the same.
    """

    settings: dict[str, Any]
    seed: int
    brain: str
    key: str


def plan_cells(spec: BrainSpec, settings: Sequence[Setting], seeds: Sequence[int], job: Job) -> list[Cell]:
    """All cells, each of them checked; the seed changes fastest."""
    where = job.where or spec.name
    cells = []
    for values in itertools.product(*(setting.values for setting in settings)):
        chosen = {setting.path: value for setting, value in zip(settings, values, strict=True)}
        brain = with_values(spec, chosen, where)
        # Steps, so that a time is the same whether it was said or is the default.
        steps = to_steps(job.shown_to(brain)[1], brain.dt_ms, "--time-ms") if job.task is None else 0
        text = spec_text(msgspec.structs.replace(brain, seed=BrainSpec(name="").seed))  # the default is not written
        cells += [Cell(chosen, seed, text, _key(text, seed, job, steps)) for seed in seeds]
    _refuse_equal(cells)
    return cells


def _refuse_equal(cells: Sequence[Cell]) -> None:
    """Two paths may name one field, of which the last would count, and the table would tell what was not run."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.key, cell)
        if other is not cell:
            raise InvalidArgument(
                f"--set: {other.settings} and {cell.settings} with seed {cell.seed} are the same brain: two paths name "
                "one field, or two values (or seeds) are equal"
            )


def _key(brain: str, seed: int, job: Job, steps: int) -> str:
    runs = [job.task, job.trials] if job.task is not None else [job.stimulus_digest, steps]
    return hashlib.sha256(msgspec.json.encode([__version__, brain, seed, runs])).hexdigest()[:24]


def digest_of_file(path: str | Path) -> str:
    """Another text for any other content of a stimulus."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidArgument(f"--stimulus {path}: cannot be read ({error.strerror})") from error
