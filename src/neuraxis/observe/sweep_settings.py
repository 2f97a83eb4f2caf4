"""What a sweep varies: fields of a brain's description, each with the values that it takes.

A field is addressed as errors about a description name it: "regions.cortex.config.neurons", "pathways[2].weight". A
pathway may also be called by its name or by where it leads from and to: "pathways[thalamus->cortex].delay_ms".
"""

from __future__ import annotations

import datetime
import re
import tomllib
from dataclasses import dataclass
from typing import Any

import msgspec

from neuraxis.brain.checks import validate
from neuraxis.brain.spec import BrainSpec, PathwaySpec
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.network.arguments import near, whole
from neuraxis.network.network import LARGEST_SEED

__all__ = ["Setting", "parse_seeds", "parse_setting", "parse_settings", "with_values"]

_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*")
_PART = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")


@dataclass(frozen=True)
class Setting:
    """A field, and the values that it takes, one after the other."""

    path: str
    values: tuple[Any, ...]


def parse_settings(texts: tuple[str, ...]) -> tuple[Setting, ...]:
    settings = tuple(parse_setting(text) for text in texts)
    paths = [setting.path for setting in settings]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidArgument(f"--set {path}: is there twice; give all its values at once: --set {path}=1,2,3")
    return settings


def parse_setting(text: str) -> Setting:
    """From "path=1,2,3". Values are written as in TOML; a text needs no quotes unless it has a comma or looks like
    something else."""
    path, equals, listed = text.partition("=")
    # A pathway's name may have no "=", so the first one ends the path.
    path = path.strip()
    if not equals or not _PATH.fullmatch(path):
        raise InvalidArgument(
            f"--set {text}: a field and its values are expected, as in regions.cortex.config.neurons=80,160"
        )
    if path == "seed":
        raise InvalidArgument("--set seed: say how many, or which, with --seeds")
    values = _values(listed)
    if not values:
        raise InvalidArgument(f"--set {text}: there is no value behind the =")
    for value in values:
        _check_value(value, text)
        if _count(values, value) > 1:
            raise InvalidArgument(f"--set {text}: the value {value!r} is there twice")
    return Setting(path, tuple(values))


def parse_seeds(text: str, first: int) -> tuple[int, ...]:
    """From "10", ten seeds from `first` on; from "3,5,8", these."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"--seeds {text}: how many is expected, or several seeds: --seeds 3,5,8") from None
    if len(numbers) == 1:
        count = whole(numbers[0], "--seeds", 1)
        return tuple(whole(first + i, "--seeds", 0, LARGEST_SEED) for i in range(count))
    if len(set(numbers)) < len(numbers):
        raise InvalidArgument(f"--seeds {text}: a seed is there twice")
    return tuple(whole(number, "--seeds", 0, LARGEST_SEED) for number in numbers)


def with_values(spec: BrainSpec, values: dict[str, Any], where: str) -> BrainSpec:
    """The description with other values in some fields, checked as a whole.

    Raises:
        SpecError: a field does not exist, with those that do, or the values make no sense.
    """
    for path, value in values.items():
        parts = [name or index for name, index in _PART.findall(path)]
        spec = _put(spec, parts, value, "", where)
    try:
        return validate(spec, where)
    except SpecError as error:
        told = ", ".join(f"{path}={value}" for path, value in values.items())
        raise SpecError(f"{error.reason} (with --set {told})", error.file, error.field) from None


def _put(place: Any, parts: list[str], value: Any, path: str, where: str) -> Any:
    """`place`, which is at `path`, with a value at `parts` within it; nothing is changed."""
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
        # What a table of settings may have is known to whoever reads it; what a table of regions has, is known here.
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
    raise SpecError(f"there is no such one; {known}", where, f"{path}[{part}]")


def _values(text: str) -> list[Any]:
    """All values as TOML's list, or each as TOML or else as text."""
    whole_list = _toml(f"[{text}]")
    if isinstance(whole_list, list):
        return whole_list
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InvalidArgument(f"--set: {text!r}: a value is expected before and after each comma")
    return [word if (value := _toml(word)) is None else value for word in words]


def _toml(text: str) -> Any:
    """The value that a text means in TOML; None if none."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None
    return read["value"] if len(read) == 1 else None


def _check_value(value: Any, text: str) -> None:
    """Raise for what TOML can write, or Python reads as TOML, and no description has."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_value(inner, text)
    elif isinstance(value, datetime.date | datetime.time):
        raise InvalidArgument(
            f"--set {text}: {value} is a date or a time, which no field takes; quote a text: '\"...\"'"
        )
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidArgument(f"--set {text}: {value} is beyond the 64 bits of TOML's whole numbers")


def _count(values: list[Any], value: Any) -> int:
    """How often a value is there; 1, 1.0 and True are three."""
    return sum(type(other) is type(value) and other == value for other in values)
