"""What a region is asked to do by another process: questions put before the loop, which answers them one by one.

Anybody on the mesh may ask, unless a router's rules say otherwise, so a question that makes no sense is answered with
its error and changes nothing. Those that name a path on this machine need the word that only the process which
started this one knows.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from neuraxis.errors import InvalidArgument, MeshError, ShardFailed
from neuraxis.execution.answers import lowered_answer
from neuraxis.mesh.messages import Message

__all__ = ["LONG", "Commands", "Question", "Stopped"]

_LONGEST_S = 24 * 3600.0
_KNOWN = frozenset(
    (
        "report", "counters", "status", "give", "state_hash", "read_state", "read_synapses", "level", "set_level",
        "read_counts", "write_state", "inject", "silence", "freeze", "advance", "publish", "start", "story",
    )
)  # fmt: skip
_WITH_PATHS = frozenset({"save", "restore"})
_AT_ONCE = frozenset({"story", "counters", "status"})  # they look, and change nothing
LONG = frozenset({"save", "restore", "read_synapses", "state_hash"})  # others are told that it may take a while


class Stopped(Exception):
    """The node is to end, whatever it waits for."""


@dataclass
class Question:
    """A command that waits for the loop, and its answer."""

    name: str
    arguments: list[Any]
    done: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: BaseException | None = None


class Commands:
    """The questions to one region. `put` brings one before its loop; `do(name, arguments)` carries one out."""

    def __init__(self, word: str, put: Callable[[Question], None], do: Callable[[str, list[Any]], Any]) -> None:
        self._word = word
        self._put = put
        self._do = do
        self._waiting: deque[Question] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, message: Message) -> Any:
        """A question, from a thread of the service: it is put before the loop, and its answer waited for."""
        if not isinstance(message.value, list) or not message.value or not isinstance(message.value[0], str):
            raise InvalidArgument("a command and its arguments are expected")
        name, *arguments = message.value
        if name in _WITH_PATHS:
            word, *arguments = arguments or [None]
            known = isinstance(word, str) and self._word and hmac.compare_digest(word.encode(), self._word.encode())
            if not known:
                raise InvalidArgument(
                    f"{name!r}: only the process that started this region may name a path; a region that was started "
                    "by itself keeps its own states (neuraxis node --checkpoint)"
                )
        elif name not in _KNOWN:
            raise InvalidArgument(f"{name!r}: a region does not do that")
        question = Question(name, arguments)
        self._put(question)
        if not question.done.wait(_LONGEST_S):
            raise TimeoutError(f"{name!r} was not answered")
        if question.error is not None:
            raise question.error
        return question.answer

    def take(self, question: Question) -> None:
        """Keep a question until its turn comes; one that only looks is answered at once."""
        self._waiting.append(question)
        if question.name in _AT_ONCE:
            self._waiting.pop()
            self._carry_out(question)

    def carry_out_next(self) -> None:
        self._carry_out(self._waiting.popleft())

    def refuse_all(self, why: str, more: Iterable[Question]) -> None:
        """Answer those whose commands will not be carried out any more, and those of some `more`."""
        self._waiting.extend(more)
        while self._waiting:
            question = self._waiting.popleft()
            question.error = MeshError(why)
            question.done.set()

    def _carry_out(self, question: Question) -> None:
        try:
            question.answer = lowered_answer(self._do(question.name, question.arguments))
        except (Stopped, ShardFailed) as error:
            question.error = MeshError("the region is leaving") if isinstance(error, Stopped) else error
            raise
        except Exception as error:  # whoever asks for what makes no sense is told so
            question.error = error
        finally:
            question.done.set()
