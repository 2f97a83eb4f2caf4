"""Checks within a rank that collect failures, so that one wrong value does not leave the other ranks waiting."""

from __future__ import annotations

from typing import Any

from tests.ranks.arrays import same


class Checks:
    """Failed checks of one rank, each with its case, the expected value and the actual value."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.failures: list[str] = []
        self.case = ""

    def __call__(self, *case: Any) -> Checks:
        """Set the name of the case that the next checks belong to."""
        self.case = " ".join(map(str, case))
        return self

    def same(self, got: Any, expected: Any, what: str = "result") -> None:
        if not same(got, expected):
            self._fail(what, expected, got)

    def equal(self, got: Any, expected: Any, what: str = "value") -> None:
        if got != expected:
            self._fail(what, expected, got)

    def close(self, got: Any, expected: Any, tolerance: float, what: str = "result") -> None:
        difference = abs(got - expected)
        if not (difference <= tolerance * abs(expected)).all():
            self._fail(what, expected, got)

    def raises(self, kind: type[BaseException], call: Any, *arguments: Any, **options: Any) -> str:
        """Check that the call raises this type of error; return its message."""
        try:
            call(*arguments, **options)
        except kind as error:
            return str(error)
        except Exception as error:
            self._fail("error", kind.__name__, repr(error))
            return str(error)
        self._fail("error", kind.__name__, "none")
        return ""

    def contains(self, text: str, part: str) -> None:
        if part not in text:
            self._fail("text", f"... {part} ...", text)

    def _fail(self, what: str, expected: Any, got: Any) -> None:
        self.failures.append(f"rank {self.rank}: {self.case}: {what}: expected {_short(expected)}, got {_short(got)}")


def _short(value: Any) -> str:
    dtype = f"{value.dtype} {tuple(value.shape)} " if hasattr(value, "dtype") else ""
    text = " ".join(str(value).split())
    return dtype + (text if len(text) < 300 else text[:300] + " ...")
