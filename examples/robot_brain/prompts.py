"""Prompts: requests to a role that are answered at most once, even if several nodes work on them.

    Prompts(node, answer=lambda prompt: reply_to(prompt.text))  # in every node that can answer
    Prompts(node).ask(Prompt.new("what do you see?"), "language", timeout=2.0).value  # in the asking node

The asking node sends a prompt to a node of a role (see `roles`), and after a share of the time to the next one, so
several nodes may work on it. The asking node arbitrates: a node that has computed an answer *claims* the prompt there.
The first claim is accepted; later ones learn which answer was. The node whose answer was accepted publishes it on
`<node>/<topic>/answered` (kind "event"). All answering nodes subscribe to these topics and return a published answer
instead of computing another.

Guarantees:

- `ask` returns one answer per id, and the same one when the same `Prompts` asks again.
- Of all nodes that worked on an id for one `ask`, at most one has its claim accepted, and only that one publishes. A
  node that is cut off, or that answers after `ask` gave up, never has its claim accepted.
- A node calls its function once per id (it remembers the last 10,000 ids).
- A node that has received a published answer returns it, and does not call its function.

Limits:

- Side effects of the function happen whether or not its answer is accepted. Put what must happen at most once after
  acceptance (`answered`, or after `ask` returns).
- A node that dies after its claim was accepted may or may not have called `answered`.
- A restarted node has no memory: it may compute another answer to an old id, unless a node that knows the published
  answer is still alive.
- An id belongs to the asking node. Two nodes that ask the same id at the same time arbitrate independently.
- A node may forward another node's answer, and nothing verifies the name in it. Claims and published answers are
  accepted only from the node that they name.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
from roles import (
    REMEMBERED,
    UNAVAILABLE,
    Deduplicator,
    Outcome,
    candidates,
    check_timeout,
    request_in_background,
    time_share,
)

from neuraxis.errors import InvalidArgument, MeshError, NobodyAnswered, RequestTimeout
from neuraxis.mesh.keys import check_name
from neuraxis.mesh.limits import FairDict
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.services import Service
from neuraxis.mesh.subscription import Subscription
from neuraxis.threads import Empty, TimedQueue

__all__ = ["Answer", "Prompt", "Prompts"]

_CLAIM_S = 1.0
_CLAIMS = 3
_LONGEST_S = 60.0  # how long a repeated request waits for an answer in progress
_POLL_S = 0.05  # how often to look for nodes with the role that have joined
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


class _Pending:
    """A prompt in progress: the nodes asked and why each has not answered, and the queue of outcomes."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.slow = False  # True if a node that timed out may still compute an answer
        self.outcomes: TimedQueue[Outcome | Answer] = TimedQueue()


class Prompts:
    """The prompts that a node asks and, given a function, answers. Closed with its node, or by `close`.

    Parameters
    ----------
    answer : callable, optional
        Called with a `Prompt`; returns the value of the answer. An exception is raised in the asking node.
    topic : str
        Prompts of different topics are independent.
    answered : callable, optional
        Called with the `Answer` after this node's answer was accepted.
    threads : int
        Number of prompts answered at the same time.
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
        self._answer = None if answer is None else node.synchronous(answer)
        self._on_answered = None if answered is None else node.synchronous(answered)
        self._lock = threading.Lock()
        self._computed = Deduplicator()
        self._accepted: FairDict[str, Answer] = FairDict(REMEMBERED)  # by id; owned by the node that answered
        self._published: FairDict[str, None] = FairDict(REMEMBERED)  # ids that this node answered; owned by the asker
        self._pending: dict[str, _Pending] = {}
        self._declared: list[Service | Subscription] = [node.serve(f"{topic}/claim", self._arbitrate, type=Answer)]
        if answer is not None:
            self._declared += [
                node.subscribe(f"**/{topic}/answered", self._receive_published, type=Answer, history=_HISTORY),
                node.serve(topic, self._handle_prompt, type=Prompt, threads=threads),
            ]

    # --- the asking node ----------------------------------------------------------------------------------------

    def ask(self, prompt: Prompt, role: str, timeout: float = 5.0, *, default_node: str | None = None) -> Answer:
        """Return the answer of a node with a role, or of the default node.

        `timeout` is in seconds, for all nodes together; each gets an equal share of the remaining time before the next
        is asked as well. An id may be asked again after an error; nodes that have computed an answer return that one.

        Raises
        ------
        NobodyAnswered
            Names the nodes that were asked, and why each has not answered.
        RequestFailed
            The function of a node raised.
        """
        deadline = time.monotonic() + check_timeout(timeout)
        with self._lock:
            if (known := self._accepted.get(prompt.id)) is not None:
                return known
            if prompt.id in self._pending:
                raise InvalidArgument(f"the prompt {prompt.id!r} is in progress; wait for its answer")
            pending = self._pending[prompt.id] = _Pending()
        try:
            while (left := deadline - time.monotonic()) > 0:
                names = candidates(self.node, role, default_node, pending.asked)
                if names:
                    answer = self._ask_one(prompt, names[0], time_share(self.node, names, left), pending)
                elif pending.slow:
                    answer = _next_answer(pending, min(left, _POLL_S))
                else:
                    break
                if answer is not None:
                    return answer
        finally:
            with self._lock:  # no claim is accepted from here on
                del self._pending[prompt.id]
        if (known := self._accepted.get(prompt.id)) is not None:
            return known
        self.node.check_connected(f"prompt for the role {role!r}")
        raise NobodyAnswered(role, self.topic, pending.asked)

    def _ask_one(self, prompt: Prompt, name: str, patience: float, pending: _Pending) -> Answer | None:
        """Ask one node; return any answer that arrives meanwhile, None when it is time to ask the next node."""
        with self._lock:
            pending.asked[name] = f"it has not answered within {patience:.3g} s"
        request_in_background(self.node, name, self.topic, prompt, patience, pending.outcomes.put, type=Answer)
        while True:
            try:
                outcome = pending.outcomes.get(timeout=patience + _ENDS_S)  # the request ends earlier
            except Empty:
                return None
            if isinstance(outcome, Answer):
                return outcome
            if isinstance(outcome.error, UNAVAILABLE):
                pending.asked[outcome.node] = str(outcome.error)
                pending.slow |= isinstance(outcome.error, RequestTimeout)
            elif outcome.error is not None:
                raise outcome.error
            elif (answer := self._accept(outcome.answer)) is not None:
                return answer
            if outcome.node == name:
                return None

    def _arbitrate(self, message: Message) -> Answer | None:
        """Handle a claim: return the accepted answer; None if nothing is accepted because `ask` has ended."""
        answer: Answer = message.value
        if answer.by != message.node:
            raise InvalidArgument(f"the answer names {answer.by!r}, and {message.node!r} claims it")
        return self._accept(answer)

    def _accept(self, answer: Answer) -> Answer | None:
        with self._lock:
            pending = self._pending.get(answer.id)
            if answer.id not in self._accepted and pending is not None:
                self._remember(answer)
                pending.outcomes.put(answer)
            return self._accepted.get(answer.id)

    # --- the answering nodes ------------------------------------------------------------------------------------

    def _handle_prompt(self, message: Message) -> Answer:
        """Compute an answer and claim the prompt for it; return the accepted answer."""
        prompt: Prompt = message.value
        function = self._answer
        assert function is not None
        known = self._accepted.get(prompt.id)
        if known is not None:
            return known
        value = self._computed.call(prompt.id, lambda: function(prompt), _LONGEST_S, owner=message.node)
        known = self._accepted.get(prompt.id)
        if known is not None:
            return known  # another node was faster
        accepted = self._claim(message.node, Answer(prompt.id, self.node.name, value))
        with self._lock:
            self._remember(accepted)
            mine = accepted.by == self.node.name and prompt.id not in self._published
            if mine:
                self._published.add(message.node, prompt.id, None)
        if mine:
            self.node.publish(f"{self.topic}/answered", accepted, "event")
            if self._on_answered is not None:
                self._on_answered(accepted)
        return accepted

    def _claim(self, asker: str, answer: Answer) -> Answer:
        """Return the answer that the asking node has accepted."""
        for attempt in range(1, _CLAIMS + 1):
            try:
                accepted: Answer | None = self.node.request(
                    asker, f"{self.topic}/claim", answer, _CLAIM_S, type=Answer | None
                )
                break
            except RequestTimeout:
                if attempt == _CLAIMS:
                    raise
        if accepted is None:
            raise MeshError(f"node {asker!r} no longer waits for an answer to the prompt {answer.id!r}")
        return accepted

    def _receive_published(self, message: Message) -> None:
        answer: Answer = message.value
        if answer.by == message.node:
            with self._lock:
                self._remember(answer)

    def _remember(self, answer: Answer) -> None:
        self._accepted.add(answer.by, answer.id, answer)

    def close(self) -> None:
        for one in self._declared:
            one.close()

    def __enter__(self) -> Prompts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _next_answer(pending: _Pending, timeout: float) -> Answer | None:
    """Wait for the answer of a node that was slow; None if there is none."""
    try:
        outcome = pending.outcomes.get(timeout=timeout)
    except Empty:
        return None
    return outcome if isinstance(outcome, Answer) else None
