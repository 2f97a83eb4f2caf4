"""The plan of a sweep: the settings to vary, and a cell for every combination of values with every seed.

A setting is the path of a field in a brain's description, as in errors about descriptions:
"regions.cortex.config.neurons", "pathways[2].weight". A pathway can also be addressed by its label:
"pathways[thalamus->cortex].delay_ms".
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import inspect
import itertools
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from neuraxis.arguments import near, whole
from neuraxis.brain.checks import validate
from neuraxis.brain.files import spec_text
from neuraxis.brain.spec import BrainSpec, PathwaySpec
from neuraxis.brain.stimulus_file import StimulusFile, read_stimulus
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.imports import import_folder
from neuraxis.network.grid import whole_steps
from neuraxis.network.network import LARGEST_SEED
from neuraxis.process.pickling import by_value
from neuraxis.version import __version__

__all__ = [
    "Cell",
    "Job",
    "Setting",
    "code_digests",
    "digest_of_file",
    "parse_seeds",
    "parse_setting",
    "parse_settings",
    "plan_cells",
    "with_values",
]

_MAX_SEEDS = 1_000_000
_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*")
_PART = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")


@dataclass(frozen=True)
class Setting:
    """The path of a field, and the values to try."""

    path: str
    values: tuple[Any, ...]


def parse_settings(texts: tuple[str, ...]) -> tuple[Setting, ...]:
    settings = tuple(parse_setting(text) for text in texts)
    paths = [setting.path for setting in settings]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidArgument(f"--set {path}: is given twice; give all values at once: --set {path}=1,2,3")
    return settings


def parse_setting(text: str) -> Setting:
    """Parse "path=1,2,3". Values are TOML; a string needs quotes only if it has a comma or could be another value."""
    path, equals, listed = text.partition("=")
    # A label cannot contain "=", so the first one ends the path.
    path = path.strip()
    if not equals or not _PATH.fullmatch(path):
        raise InvalidArgument(
            f"--set {text}: a field and its values are expected, as in regions.cortex.config.neurons=80,160"
        )
    if path == "seed":
        raise InvalidArgument("--set seed: use --seeds, with a number of seeds or a list of them")
    values = _values(listed)
    if not values:
        raise InvalidArgument(f"--set {text}: give a value after the =")
    for value in values:
        _check_value(value, text)
        if _count(values, value) > 1:
            raise InvalidArgument(f"--set {text}: the value {value!r} is given twice")
    return Setting(path, tuple(values))


def parse_seeds(text: str, first: int) -> tuple[int, ...]:
    """Parse "10" as ten seeds from `first` on, and "3,5,8" as these seeds."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidArgument(
            f"--seeds {text}: a number of seeds is expected, or a list of them: --seeds 3,5,8"
        ) from None
    if len(numbers) == 1:
        count = whole(numbers[0], "--seeds", 1, _MAX_SEEDS)
        return tuple(whole(first + i, "--seeds", 0, LARGEST_SEED) for i in range(count))
    if len(set(numbers)) < len(numbers):
        raise InvalidArgument(f"--seeds {text}: a seed is given twice")
    return tuple(whole(number, "--seeds", 0, LARGEST_SEED) for number in numbers)


def with_values(spec: BrainSpec, values: dict[str, Any], where: str) -> BrainSpec:
    """Return the description with other values in some fields, checked as a whole.

    Raises
    ------
    SpecError
        A field does not exist (the error lists those that do), or the values are wrong.
    """
    for path, value in values.items():
        parts = [name or index for name, index in _PART.findall(path)]
        spec = _put(spec, parts, value, "", where)
    try:
        return validate(spec, where)
    except SpecError as error:
        settings = ", ".join(f"{path}={value}" for path, value in values.items())
        raise SpecError(f"{error.reason} (with --set {settings})", error.file, error.field) from None


def _put(place: Any, parts: list[str], value: Any, path: str, where: str) -> Any:
    """Return a copy of `place`, which is at `path`, with a value at `parts` within it."""
    if not parts:
        return value
    part, *rest = parts
    if isinstance(place, tuple | list):
        index = _index(place, part, path, where)
        new = _put(place[index], rest, value, f"{path}[{part}]", where)
        return type(place)([*place[:index], new, *place[index + 1 :]])
    inner = f"{path}.{part}".removeprefix(".")
    if isinstance(place, msgspec.Struct):
        if part not in place.__struct_fields__:
            raise SpecError(f"there is no such field; {near(part, place.__struct_fields__)}", where, inner)
        return msgspec.structs.replace(place, **{part: _put(getattr(place, part), rest, value, inner, where)})
    if isinstance(place, dict):
        # `validate` checks the fields of a configuration; those of a table of structs are known here.
        if part not in place and (rest or any(isinstance(entry, msgspec.Struct) for entry in place.values())):
            raise SpecError(f"there is no {part!r} here; {near(part, place)}", where, inner)
        return {**place, part: _put(place.get(part), rest, value, inner, where)}
    raise SpecError(f"is {place!r}, which has no field {part!r}", where, path)


def _index(place: tuple[Any, ...] | list[Any], part: str, path: str, where: str) -> int:
    labels = [one.label for one in place if isinstance(one, PathwaySpec)]
    if part in labels:
        return labels.index(part)
    if part.isdecimal() and int(part) < len(place):
        return int(part)
    known = near(part, labels) if labels else f"there are {len(place)}, counted from 0"
    raise SpecError(f"there is no such entry; {known}", where, f"{path}[{part}]")


def _values(text: str) -> list[Any]:
    """Parse all values as a TOML list, or else each as TOML or as a string."""
    whole_list = _toml(f"[{text}]")
    if isinstance(whole_list, list):
        return whole_list
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InvalidArgument(f"--set: {text!r}: a value is expected before and after each comma")
    return [word if (value := _toml(word)) is None else value for word in words]


def _toml(text: str) -> Any:
    """Return the value of a TOML text; None if it is not valid."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return None
    return read["value"] if len(read) == 1 else None


def _check_value(value: Any, text: str) -> None:
    """Raise for values that a TOML text can have and a description cannot."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_value(inner, text)
    elif isinstance(value, datetime.date | datetime.time):
        raise InvalidArgument(
            f"--set {text}: {value} is a date or a time, which no field takes; quote a string: '\"...\"'"
        )
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidArgument(f"--set {text}: {value} is beyond the 64-bit integers of TOML")


def _count(values: list[Any], value: Any) -> int:
    """Count a value; 1, 1.0 and True are different."""
    return sum(type(other) is type(value) and other == value for other in values)


class Job(msgspec.Struct, frozen=True):
    """The run of every cell, as `neuraxis run` would do it.

    Attributes
    ----------
    task : str, optional
        Name of the task; None: run for `time_ms`, with the stimulus if there is one.
    trials : int
        Number of trials of the task.
    stimulus : str, optional
        Absolute path of a stimulus file.
    stimulus_digest : str
        Digest of that file (`digest_of_file`); a worker refuses a file with another one.
    time_ms : float, optional
        Model time in ms; None: the length of the stimulus, or else 1000.
    where : str, optional
        The file of the brain, as prefix of errors; its folder may have the code of regions in Python.
    """

    task: str | None = None
    trials: int = 300
    stimulus: str | None = None
    stimulus_digest: str = ""
    time_ms: float | None = None
    where: str | None = None

    def stimulus_for(self, spec: BrainSpec) -> tuple[StimulusFile, float]:
        """Return the stimulus of a brain, and the time to run in ms."""
        if self.stimulus is None:
            return StimulusFile(), 1000.0 if self.time_ms is None else self.time_ms
        shown = read_stimulus(self.stimulus, spec)
        if digest_of_file(self.stimulus) != self.stimulus_digest:
            raise InvalidArgument(f"{self.stimulus}: has changed since the sweep began; start the sweep again")
        return shown, shown.steps * spec.dt_ms if self.time_ms is None else self.time_ms


class Cell(msgspec.Struct, frozen=True):
    """One brain to run once.

    Attributes
    ----------
    settings : dict
        Values by path.
    seed : int
        Seed of the brain.
    brain : str
        The description as TOML, without the seed.
    key : str
        Digest of everything that determines the result; the name of the result file.
    code : dict
        `code_digests` of the brain.
    """

    settings: dict[str, Any]
    seed: int
    brain: str
    key: str
    code: dict[str, str] = {}


def plan_cells(spec: BrainSpec, settings: Sequence[Setting], seeds: Sequence[int], job: Job) -> list[Cell]:
    """Return all cells, checked; the seed varies fastest."""
    where = job.where or spec.name
    cells = []
    known: dict[str, str] = {}
    for values in itertools.product(*(setting.values for setting in settings)):
        chosen = {setting.path: value for setting, value in zip(settings, values, strict=True)}
        brain = with_values(spec, chosen, where)
        # In steps, so that a time has the same key whether it is given or the default.
        steps = whole_steps(job.stimulus_for(brain)[1], brain.dt_ms, "--time-ms") if job.task is None else 0
        text = spec_text(msgspec.structs.replace(brain, seed=BrainSpec(name="").seed))  # the default is not written
        code = code_digests(brain, known)
        cells += [Cell(chosen, seed, text, _key(text, seed, job, steps, code), code) for seed in seeds]
    _check_distinct(cells)
    return cells


def _check_distinct(cells: Sequence[Cell]) -> None:
    """Raise if two cells are equal: with two paths for one field the table would show values that did not run."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.key, cell)
        if other is not cell:
            raise InvalidArgument(
                f"--set: {other.settings} and {cell.settings} with seed {cell.seed} are the same brain: two paths name "
                "one field, or two values (or seeds) are equal"
            )


def _key(brain: str, seed: int, job: Job, steps: int, code: dict[str, str]) -> str:
    runs = [job.task, job.trials] if job.task is not None else [job.stimulus_digest, steps]
    content = [__version__, brain, seed, runs, *([code] if code else [])]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:24]


def digest_of_file(path: str | Path) -> str:
    """Return the SHA-256 digest of a stimulus file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidArgument(f"--stimulus {path}: cannot be read ({error.strerror})") from error


# --- The source of regions in Python ---


def code_digests(spec: BrainSpec, known: dict[str, str]) -> dict[str, str]:
    """Return a digest of the source of each region in Python, by its `create`; `known` caches digests.

    The source is the file of the module that `create` names, its packages, and the modules that these import, directly
    or indirectly, from the same folder, or from the same package if it is installed. For a callable of a notebook or
    prompt it is the definition of this callable alone. Modules are not imported. The digest of a module that cannot be
    found is "".
    """
    names = sorted({region.create for region in spec.regions.values() if region.create is not None})
    for name in names:
        if name not in known:
            known[name] = _code_digest(*name.split(":", 1))
    return {name: known[name] for name in names}


def _code_digest(module: str, name: str) -> str:
    if module == "__main__" and by_value():
        found: Any = sys.modules["__main__"]
        for part in name.split("."):
            found = getattr(found, part, None)
        try:
            return hashlib.sha256(inspect.getsource(found).encode()).hexdigest()
        except (OSError, TypeError):
            return ""
    total = hashlib.sha256()
    sources = _sources(module)
    for path, content in sorted(sources.items()):
        total.update(msgspec.json.encode([path, hashlib.sha256(content).hexdigest()]))
    return total.hexdigest() if sources else ""


def _sources(module: str) -> dict[str, bytes]:
    """Return the content of the files of a module and of its imports from the same folder, by path in that folder."""
    top = module.partition(".")[0]
    if top == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            return {}
        main = Path(file).resolve()
        folder, top = main.parent, main.stem
        module = top
    else:
        found_in = import_folder(top)
        if found_in is None:
            return {}
        folder = found_in
    is_installed = str(folder) in {str(Path(path).resolve()) for path in sysconfig.get_paths().values()}
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen or (is_installed and name.partition(".")[0] != top):
            continue
        seen.add(name)
        if "." in name:
            todo.append(name.rpartition(".")[0])
        base = folder.joinpath(*name.split("."))
        for path, package in ((base.with_suffix(".py"), name.rpartition(".")[0]), (base / "__init__.py", name)):
            if path.is_file():
                content = path.read_bytes()
                found[path.relative_to(folder).as_posix()] = content
                todo += _imports(content, package)
    return found


def _imports(content: bytes, package: str) -> Iterator[str]:
    """Yield the names of all modules that a module of this package may import."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".") if package else []
            if node.level > len(parents):  # beyond the top-level package: Python raises
                continue
            parts = parents[: len(parents) - node.level + 1] if node.level else []
            origin = ".".join([*parts, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)  # which may be modules
