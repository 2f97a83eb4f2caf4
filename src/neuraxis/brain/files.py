"""Descriptions of brains in TOML files."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from neuraxis.brain.checks import validate
from neuraxis.brain.spec import BrainSpec, Kinds, as_spec
from neuraxis.brain.toml_text import toml_text
from neuraxis.errors import SpecError

__all__ = ["read_spec", "spec_text", "write_spec"]


def read_spec(path: str | os.PathLike[str], kinds: Kinds | None = None) -> BrainSpec:
    """The description in a file, checked. Everything that is wrong with the file is a SpecError that names it.

    Args:
        kinds: as for `neuraxis.brain.checks.validate`.
    """
    where = os.fspath(path)
    return validate(as_spec(_read_tables(where), where), where, kinds)


def write_spec(spec: BrainSpec, path: str | os.PathLike[str], kinds: Kinds | None = None) -> None:
    """Write a description, after checking it, so that a reader sees the old file or the new one, never a part."""
    target = Path(path)
    text = spec_text(validate(spec, os.fspath(path), kinds))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def spec_text(spec: BrainSpec) -> str:
    """The TOML text of a checked description, without the fields that are at their defaults."""
    return toml_text(_table(spec))


def _table(struct: msgspec.Struct) -> dict[str, Any]:
    # msgspec's omit_defaults compares by identity: whether 0.1 were written would depend on where it came from.
    table = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.required or value != _default(field):
            table[field.name] = _plain(value)
    return table


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _table(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value


def _read_tables(where: str) -> dict[str, Any]:
    try:
        content = Path(where).read_bytes()
    except FileNotFoundError:
        raise SpecError("there is no such file", where) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror or error}", where) from error
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"is not UTF-8 text: {error.reason}", where, line=line) from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), where, content) from None


def _syntax_error(text: str, where: str, content: bytes) -> SpecError:
    """tomllib's error in our form. It says where as text only: "... (at line 3, column 7)"."""
    if found := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", text, re.DOTALL):
        return SpecError(f"{found[1]} (column {found[3]})", where, line=int(found[2]))
    return SpecError(text, where, line=content.count(b"\n") + 1)
