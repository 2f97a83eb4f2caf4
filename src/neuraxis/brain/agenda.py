"""What is to happen at steps to come: releases on their way, actions that end."""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["Agenda"]


class Agenda:
    """Things to do, each at a step; those of the same step in the order in which they were entered."""

    def __init__(self, entries: list[list[Any]] | None = None) -> None:
        self._entries: list[tuple[int, int, str, list[Any]]] = []
        self._number = 0
        for step, what, arguments in entries or []:
            self.enter(int(step), str(what), *arguments)

    def enter(self, step: int, what: str, *arguments: Any) -> None:
        heapq.heappush(self._entries, (step, self._number, what, list(arguments)))
        self._number += 1

    def remove(self, what: str, *arguments: Any) -> None:
        """Take back what was entered so; with arguments, only where it begins with them."""
        n = len(arguments)
        self._entries = [entry for entry in self._entries if entry[2] != what or entry[3][:n] != list(arguments)]
        heapq.heapify(self._entries)

    def next_step(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def take_due(self, step: int) -> list[tuple[str, list[Any]]]:
        """What is due at a step or before, in order."""
        due = []
        while self._entries and self._entries[0][0] <= step:
            _, _, what, arguments = heapq.heappop(self._entries)
            due.append((what, arguments))
        return due

    def as_json(self) -> list[list[Any]]:
        return [[step, what, arguments] for step, _, what, arguments in sorted(self._entries)]
