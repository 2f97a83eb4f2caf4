"""A group, for a rank that is not in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["NonMember"]


class NonMember:
    """What `new_group` gives to a rank outside the group: every operation is passed over with a warning."""

    def __init__(self, ranks: tuple[int, ...], me: int, operations: frozenset[str]) -> None:
        self.ranks = ranks
        self.rank = -1
        self.size = -1
        self.backend_name = "none"
        self.failed = False
        self._me = me
        self._operations = operations

    def __repr__(self) -> str:
        return f"<NonMember: rank {self._me} is outside the group of ranks {list(self.ranks)}>"

    def __bool__(self) -> bool:
        return False

    def new_group(
        self, ranks: Iterable[int] | None = None, timeout: float | None = None, check_calls: bool | None = None
    ) -> NonMember:
        """A group within a group that this rank is not in: it is not in that one either."""
        return NonMember(tuple(sorted(self.ranks if ranks is None else ranks)), self._me, self._operations)

    def destroy(self) -> None:
        """There is nothing to free."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_") or name not in self._operations:
            raise AttributeError(name)

        def passed_over(*arguments: Any, **options: Any) -> None:
            warnings.warn(
                f"{name}: rank {self._me} is not in the group of ranks {list(self.ranks)}; nothing was done",
                stacklevel=3,
            )

        return passed_over
