"""TOML files of brain descriptions.

The standard library reads TOML but does not write it. `toml_text` keeps the order of keys, which `tomli_w` does not
where a plain value follows a table: regions are built in the order of the file, and checkpoints compare the text. In
TOML a table's own values precede its sub-tables, so a table that a plain value follows is written inline:
`a = {b = 1}`.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from neuraxis.brain.checks import validate
from neuraxis.brain.spec import BrainSpec, Kinds, as_spec
from neuraxis.errors import InvalidType, SpecError
from neuraxis.store import replacing

__all__ = ["read_spec", "spec_text", "toml_text", "write_spec"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_spec(path: str | os.PathLike[str], kinds: Kinds | None = None) -> BrainSpec:
    """Read and check the description in a TOML file.

    Parameters
    ----------
    path : path
        The file.
    kinds : mapping of str to type, optional
        Kinds of regions and their configurations; default `neuraxis.brain.regions.REGION_KINDS`.

    Returns
    -------
    BrainSpec
        The description.

    Raises
    ------
    SpecError
        The file cannot be read or is wrong; the error names the file and the field or line.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "brain.toml")
    >>> write_spec(BrainSpec(name="empty", seed=7), path)
    >>> path.read_text()
    'name = "empty"\\nseed = 7\\n'
    >>> read_spec(path).seed
    7
    """
    where = os.fspath(path)
    return validate(as_spec(_read_tables(where), where), where, kinds)


def write_spec(spec: BrainSpec, path: str | os.PathLike[str], kinds: Kinds | None = None) -> None:
    """Check a description and write it to a TOML file, atomically: a reader sees the old file or the new one.

    Parameters
    ----------
    spec : BrainSpec
        The description.
    path : path
        The file.
    kinds : mapping of str to type, optional
        Kinds of regions and their configurations; default `neuraxis.brain.regions.REGION_KINDS`.

    Raises
    ------
    SpecError
        The description is wrong; nothing is written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from neuraxis.brain import BrainBuilder
    >>> path = pathlib.Path(tempfile.mkdtemp(), "brain.toml")
    >>> write_spec(BrainBuilder("small", seed=7).region("cortex", "cortex").spec(), path)
    >>> path.read_text().splitlines()[-1]
    'kind = "cortex"'
    """
    text = spec_text(validate(spec, os.fspath(path), kinds))
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8", newline="\n")


def spec_text(spec: BrainSpec) -> str:
    """Return the TOML text of a checked description, without the fields that have their default."""
    return toml_text(_table(spec))


def _table(struct: msgspec.Struct) -> dict[str, Any]:
    # msgspec's omit_defaults compares by identity, so that an equal float from elsewhere would be written.
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
    except RecursionError:
        raise SpecError("the tables are nested too deeply", where) from None
    except ValueError as error:  # of a number with thousands of digits
        raise SpecError(f"cannot be read: {error}", where) from None


def _syntax_error(text: str, where: str, content: bytes) -> SpecError:
    """Convert an error of tomllib, which has the position in its text only: "... (at line 3, column 7)"."""
    if found := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", text, re.DOTALL):
        return SpecError(f"{found[1]} (column {found[3]})", where, line=int(found[2]))
    return SpecError(text, where, line=content.count(b"\n") + 1)


def toml_text(table: Mapping[str, Any]) -> str:
    """Return the TOML text of a table of strings, numbers, booleans, lists and tables of these."""
    lines: list[str] = []
    _write_table(lines, table, ())
    return "\n".join(lines).lstrip("\n") + "\n" if lines else ""


def _write_table(lines: list[str], table: Mapping[str, Any], path: tuple[str, ...]) -> None:
    items = list(table.items())
    inline = len(items)
    while inline and _has_header(items[inline - 1][1]):
        inline -= 1
    lines += [f"{_key(name)} = {_value(value)}" for name, value in items[:inline]]
    for name, value in items[inline:]:
        place = (*path, name)
        header = ".".join(_key(part) for part in place)
        if isinstance(value, list):
            for element in value:
                lines += ["", f"[[{header}]]"]
                _write_table(lines, element, place)
        else:
            # The headers of its sub-tables imply a table that holds nothing else.
            if not (value and all(_has_header(inner) for inner in value.values())):
                lines += ["", f"[{header}]"]
            _write_table(lines, value, place)


def _has_header(value: Any) -> bool:
    """Return True if a value can be written as a table, or as tables, below a header."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(element, dict) for element in value)
    return isinstance(value, dict)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(element) for element in value)}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {_value(element)}" for name, element in value.items())
        return f"{{{inner}}}"
    raise InvalidType(f"{value!r}: TOML cannot hold a {type(value).__name__}")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # TOML has the escapes of JSON, and requires one for DEL as well.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
