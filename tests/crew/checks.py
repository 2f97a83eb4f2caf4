"""What a rank has to complain about: collected, so that one wrong value does not keep the ranks from going on."""

from __future__ import annotations

from typing import Any

from tests.crew.arrays import same


class Checks:
    """Complaints of one rank, each with its case, what was expected and what was there."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.complaints: list[str] = []
        self.case = ""

    def __call__(self, *case: Any) -> Checks:
        """Name the case that the next checks belong to."""
        self.case = " ".join(map(str, case))
        return self

    def same(self, got: Any, expected: Any, what: str = "result") -> None:
        if not same(got, expected):
            self._complain(what, expected, got)

    def equal(self, got: Any, expected: Any, what: str = "value") -> None:
        if got != expected:
            self._complain(what, expected, got)

    def close(self, got: Any, expected: Any, tolerance: float, what: str = "result") -> None:
        difference = abs(got - expected)
        if not (difference <= tolerance * abs(expected)).all():
            self._complain(what, expected, got)

    def raises(self, kind: type[BaseException], call: Any, *arguments: Any, **options: Any) -> str:
        """The text of the error, which must be of this kind."""
        try:
            call(*arguments, **options)
        except kind as error:
            return str(error)
        except Exception as error:
            self._complain("error", kind.__name__, repr(error))
            return str(error)
        self._complain("error", kind.__name__, "none")
        return ""

    def contains(self, text: str, part: str) -> None:
        if part not in text:
            self._complain("text", f"... {part} ...", text)

    def _complain(self, what: str, expected: Any, got: Any) -> None:
        self.complaints.append(f"rank {self.rank}: {self.case}: {what}: expected {_short(expected)}, got {_short(got)}")


def _short(value: Any) -> str:
    dtype = f"{value.dtype} {tuple(value.shape)} " if hasattr(value, "dtype") else ""
    text = " ".join(str(value).split())
    return dtype + (text if len(text) < 300 else text[:300] + " ...")
