"""TOML text from plain values: the half of TOML that Python's library does not have.

What `tomllib` reads from the text is equal to what was given, and in the same order. In TOML a table's own values come
before the tables in it, so a table that a plain value follows is written inline: `a = {b = 1}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from neuraxis.errors import InvalidType

__all__ = ["toml_text"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """The text of a table of text, numbers, True, False, lists and tables of these; the same for the same table."""
    lines: list[str] = []
    _write_table(lines, table, ())
    # The first line of the text need not be set apart.
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
            # A table that holds nothing but tables is there without being said.
            if not (value and all(_has_header(inner) for inner in value.values())):
                lines += ["", f"[{header}]"]
            _write_table(lines, value, place)


def _has_header(value: Any) -> bool:
    """Whether a value can be written as a table or tables of its own, below a header."""
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
    # JSON's escapes are TOML's; TOML alone escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
