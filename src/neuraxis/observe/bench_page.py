"""Tables of a benchmark in a page of documentation: they go between two marks, and replace what was there."""

from __future__ import annotations

from pathlib import Path

from neuraxis.errors import InvalidArgument

__all__ = ["check_marked", "marks", "write_between"]


def marks(bench: str) -> tuple[str, str]:
    """The lines between which the tables of `neuraxis bench <bench>` go."""
    return f"<!-- neuraxis bench {bench}: begin -->", f"<!-- neuraxis bench {bench}: end -->"


def check_marked(path: Path, bench: str) -> None:
    """Raise now, and not after minutes, if there is no place in a file for the tables."""
    _split(path, bench)


def write_between(path: Path, bench: str, text: str) -> None:
    """Put a text between the two marks in a file."""
    before, after = _split(path, bench)
    begin, end = marks(bench)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def _split(path: Path, bench: str) -> tuple[str, str]:
    begin, end = marks(bench)
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidArgument(f"--into {path}: cannot be read: {error.strerror}") from None
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise InvalidArgument(f"--into {path}: it needs the lines {begin} and {end}, between which the tables go")
    return before, after
