"""Prompts: questions that are answered at most once, also when several nodes were asked because the first was slow.

    Prompts(node, answer=lambda prompt: reply_to(prompt.text))  # in every node that can answer
    Prompts(node).ask(Prompt.new("what do you see?"), "language", timeout=2.0).value  # in the one that asks

A prompt goes to a node of a role as in `neuraxis.mesh.roles`, and from one that is slow on to the next. Several may
then work on it. Which of them answers it is decided in one place, by who asked: a node that has made an answer takes it
there, and is told whose answer counts. The first one does, the others are told whose it was. Who has answered publishes
that on `<node>/<topic>/answered` (kind "state"), and nodes that answer prompts hear it and give that answer instead of
making one.

What is promised:
- `ask` returns one answer for an id, and the same one whenever it is asked again by the same `Prompts`.
- Of all nodes that worked on an id for one `ask`, at most one is told that its answer counts, and only that one
  publishes it; a node that is cut off, or was so slow that nobody waits any more, is never told so.
- A node calls its function once for an id, however often it is asked (it remembers the last 10,000).
- A node that has heard of an answer gives that answer, and does not call its function.

What cannot be promised:
- A function that does something besides making an answer has done it, whether its answer counts or not; what must
  happen once belongs after the answer (`answered`, or `ask` returning).
- A node that dies after its answer was accepted has answered; whether it got as far as `answered`, nobody knows.
- A node that dies forgets: started anew it may make another answer to an id that is asked again, unless a node that
  answered it is still there to say so.
- An id belongs to who asks it. Two nodes that ask the same id at the same time decide each for themselves.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument, MeshError, NobodyAnswered, RequestTimeout
from neuraxis.mesh.asking import Outcome, ask_in_background
from neuraxis.mesh.keys import check_name
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.once import REMEMBERED, Once
from neuraxis.mesh.roles import ABSENT, check_timeout, part, untried
from neuraxis.mesh.services import Service
from neuraxis.mesh.subscription import Subscription
from neuraxis.timed_queue import Empty, TimedQueue

__all__ = ["Answer", "Prompt", "Prompts"]

_CLAIM_S = 1.0
_CLAIMS = 3
_LONGEST_S = 60.0  # how long a node waits for its own function when a prompt comes again
_LOOK_S = 0.05  # how soon it is seen that somebody came who can be asked
_HISTORY = 1000
_ENDS_S = 2.0


class Prompt(msgspec.Struct, frozen=True):
    """A text, and an id that no other prompt has."""

    id: str
    text: str

    @classmethod
    def new(cls, text: str) -> Prompt:
        return cls(uuid.uuid4().hex, text)


class Answer(msgspec.Struct, frozen=True):
    """The answer to the prompt of an id, and the node that gave it."""

    id: str
    by: str
    value: Any


class _Waiting:
    """A prompt that is being asked: who was asked and why they have not answered, and where news of it go."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.slow = False  # whether somebody who was asked may still be making an answer
        self.news: TimedQueue[Outcome | Answer] = TimedQueue()


class Prompts:
    """The prompts of a node: those it asks, and those it answers if it has a function for that.

    Args:
        answer: called with a `Prompt`, returns the value of the answer; what it raises reaches who asked.
        topic: prompts of different topics have nothing to do with each other.
        answered: called with the `Answer` after this node's answer has been accepted.
        threads: how many prompts are answered at the same time.

    It ends with its node, or when it is closed.
    """

    def __init__(
        self,
        node: Node,
        answer: Callable[[Prompt], Any] | None = None,
        *,
        topic: str = "prompt",
        answered: Callable[[Answer], Any] | None = None,
        threads: int = 4,
    ) -> None:
        self.node = node
        self.topic = check_name(topic, "topic")
        self._answer = answer
        self._on_answered = answered
        self._lock = threading.Lock()
        self._once = Once()
        self._known: OrderedDict[str, Answer] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}
        self._declared: list[Service | Subscription] = [node.serve(f"{topic}/claim", self._decide, type=Answer)]
        if answer is not None:
            self._declared += [
                node.subscribe(f"**/{topic}/answered", self._hear, type=Answer, history=_HISTORY),
                node.serve(topic, self._take, type=Prompt, threads=threads),
            ]

    # --- to ask -------------------------------------------------------------------------------------------------

    def ask(self, prompt: Prompt, role: str, timeout: float = 5.0, *, default_node: str | None = None) -> Answer:
        """The answer of a node with a role, or of the default node.

        `timeout` is for all together; each gets an equal part of what is left before the next is asked too. Raises
        NobodyAnswered, which says who was asked and why each has not answered, and RequestFailed where a node's
        function raised. After that the id can be asked again: who has made an answer meanwhile gives that one.
        """
        deadline = time.monotonic() + check_timeout(timeout)
        with self._lock:
            if prompt.id in self._known:
                return self._known[prompt.id]
            if prompt.id in self._waiting:
                raise InvalidArgument(f"the prompt {prompt.id!r} is being asked already")
            waiting = self._waiting[prompt.id] = _Waiting()
        try:
            while (left := deadline - time.monotonic()) > 0:
                names = untried(self.node, role, default_node, waiting.asked)
                if names:
                    answer = self._ask_one(prompt, names[0], part(self.node, names, left), waiting)
                elif waiting.slow:
                    answer = _next_answer(waiting, min(left, _LOOK_S))
                else:
                    break
                if answer is not None:
                    return answer
        finally:
            with self._lock:  # from here on nobody's answer is accepted
                del self._waiting[prompt.id]
        with self._lock:
            if prompt.id in self._known:
                return self._known[prompt.id]
        raise NobodyAnswered(role, self.topic, waiting.asked)

    def _ask_one(self, prompt: Prompt, name: str, patience: float, waiting: _Waiting) -> Answer | None:
        """The answer that came while this node was asked, whose ever it is; None when the next is to be asked."""
        with self._lock:
            waiting.asked[name] = f"it has not answered within {patience:.3g} s"
        ask_in_background(self.node, name, self.topic, prompt, patience, waiting.news.put, type=Answer)
        while True:
            try:
                news = waiting.news.get(timeout=patience + _ENDS_S)  # a question in the background ends before
            except Empty:
                return None
            if isinstance(news, Answer):
                return news
            if isinstance(news.error, ABSENT):
                waiting.asked[news.node] = str(news.error)
                waiting.slow |= isinstance(news.error, RequestTimeout)
            elif news.error is not None:
                raise news.error
            elif (answer := self._accept(news.answer)) is not None:
                return answer
            if news.node == name:
                return None

    def _decide(self, message: Message) -> Answer | None:
        """Somebody has made an answer: whose counts? None if nobody's does, because nobody waits for it any more."""
        return self._accept(message.value)

    def _accept(self, answer: Answer) -> Answer | None:
        with self._lock:
            waiting = self._waiting.get(answer.id)
            if answer.id not in self._known and waiting is not None:
                self._remember(answer)
                waiting.news.put(answer)
            return self._known.get(answer.id)

    # --- to answer ----------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> Answer:
        """A prompt came: make an answer, and ask who asked whether it counts."""
        prompt: Prompt = message.value
        function = self._answer
        assert function is not None
        known = self._known.get(prompt.id)
        if known is not None:
            return known
        value = self._once.call(prompt.id, lambda: function(prompt), _LONGEST_S)
        known = self._known.get(prompt.id)
        if known is not None:
            return known  # another was quicker
        counts = self._claim(message.node, Answer(prompt.id, self.node.name, value))
        with self._lock:
            self._remember(counts)
            mine = counts.by == self.node.name and prompt.id not in self._told
            if mine:
                self._told[prompt.id] = None
        if mine:
            self.node.publish(f"{self.topic}/answered", counts, "state")
            if self._on_answered is not None:
                self._on_answered(counts)
        return counts

    def _claim(self, asker: str, answer: Answer) -> Answer:
        """Whose answer counts, as the node says that asked."""
        for attempt in range(1, _CLAIMS + 1):
            try:
                counts: Answer | None = self.node.request(
                    asker, f"{self.topic}/claim", answer, _CLAIM_S, type=Answer | None
                )
                break
            except RequestTimeout:
                if attempt == _CLAIMS:
                    raise
        if counts is None:
            raise MeshError(f"node {asker!r} waits no longer for an answer to the prompt {answer.id!r}")
        return counts

    def _hear(self, message: Message) -> None:
        with self._lock:
            self._remember(message.value)

    def _remember(self, answer: Answer) -> None:
        self._known.setdefault(answer.id, answer)
        for kept in (self._known, self._told):
            while len(kept) > REMEMBERED:
                kept.popitem(last=False)

    # --- to end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for one in self._declared:
            one.close()

    def __enter__(self) -> Prompts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _next_answer(waiting: _Waiting, timeout: float) -> Answer | None:
    """The answer of one that was slow, if it comes now."""
    try:
        news = waiting.news.get(timeout=timeout)
    except Empty:
        return None
    return news if isinstance(news, Answer) else None
