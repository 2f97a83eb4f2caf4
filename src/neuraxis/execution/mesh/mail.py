"""Data of events between regions: each on its own key, kept here until it is needed, asked for where it did not come.

A spike of a region's mark says that there are data; they come on another key, mostly before it. What the sender does
not have any more is not waited for: that event is left out, and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from neuraxis.execution.mesh.upstream import MISSING, Upstream
from neuraxis.execution.resident import Letter, OwnMail
from neuraxis.execution.tensors import lowered

__all__ = ["MeshMail"]

_MOST_LETTERS = 20_000
_ASK_AFTER_S = 0.1
_ASK_AGAIN_S = 0.25


class MeshMail(OwnMail):
    """The letters that one region has sent and heard. `marks`: by region, the population that spikes with data."""

    def __init__(self, marks: Mapping[str, int], send: Callable[[Letter], None]) -> None:
        super().__init__()
        self.lost = 0  # events that were left out because their data were not to be had
        self._regions = {mark: name for name, mark in marks.items()}
        self._marks = dict(marks)
        self._send = send
        self._gone: set[tuple[int, int]] = set()
        self._wait: Callable[[], None] | None = None
        self._ask: Callable[[Upstream, int], None] = lambda one, step: None
        self._is_gone: Callable[[Upstream, float], bool] = lambda one, since: False
        self._upstream: Mapping[str, Upstream] = {}

    def connect(
        self,
        upstream: Mapping[str, Upstream],
        wait: Callable[[], None] | None,
        ask: Callable[[Upstream, int], None],
        is_gone: Callable[[Upstream, float], bool],
    ) -> None:
        """`wait` looks around for a moment (None: nobody is waited for); `ask` has a region say again what it said;
        `is_gone` tells whether a region that has been listened to since a time has to be given up."""
        self._upstream, self._wait, self._ask, self._is_gone = upstream, wait, ask, is_gone

    def post(self, letter: Letter) -> None:
        super().post(letter)
        self._send(letter)

    def keep(self, name: str, step: int, content: Any) -> None:
        """Data of a region came; ValueError where more wait than anybody will need."""
        if len(self.letters) >= _MOST_LETTERS:
            raise ValueError(f"{name} sent data, and {len(self.letters):,} are waiting already")
        self.letters[self._marks[name], step] = lowered(content)

    def keep_again(self, name: str, answer: Any, asked_for: int | None) -> None:
        """What a region says again. Data that were asked for, of a step that it has said, are there or lost."""
        if name not in self._marks:
            return
        mark = self._marks[name]
        for step, content in answer["letters"]:
            self.keep(name, int(step), content)
        if asked_for is None or (mark, asked_for) in self.letters or int(answer["last"]) < asked_for:
            return
        if answer["letters_to"] is None or asked_for <= int(answer["letters_to"]):
            self._gone.add((mark, asked_for))

    def own(self, name: str) -> list[Letter]:
        """What this region has sent and still knows, in the order of steps."""
        mark = self._marks.get(name)
        found = [
            Letter(mark, step, self.letters[source, step]) for source, step in sorted(self.letters) if source == mark
        ]
        return found if mark is not None else []

    def fetch(self, source: int, step: int) -> Any:
        """The content of a letter, waited for; None where it cannot be had."""
        key = (source, step)
        one = self._upstream.get(self._regions[source])
        listening_since = looked = time.monotonic()
        asked = looked - _ASK_AGAIN_S + _ASK_AFTER_S
        while key not in self.letters and self._wait is not None and one is not None:
            if key in self._gone or one.state == MISSING or self._is_gone(one, listening_since):
                break
            self._wait()
            if time.monotonic() - looked > one.patience_s / 4:
                listening_since = time.monotonic()  # it was this process that did not listen
            looked = time.monotonic()
            if time.monotonic() - asked >= _ASK_AGAIN_S and key not in self.letters:
                asked = time.monotonic()
                self._ask(one, step)
        self._gone.discard(key)
        if key not in self.letters:
            self.lost += 1
            return None
        return super().fetch(source, step)
