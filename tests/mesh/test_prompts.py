"""A prompt is answered at most once, also with slow, dead and repeated requests."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import prompts as prompts_module
import pytest
from prompts import Answer, Prompt, Prompts
from roles import Deduplicator

from neuraxis.errors import InvalidArgument, NobodyAnswered, RequestFailed
from neuraxis.mesh import Message, Node
from tests.mesh.role_node import killed_when_asked, role_node, warm

LONG_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


class Town:
    """The asking and answering nodes, their calls, and all published answers."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.mesh = f"prompts-{uuid.uuid4().hex[:8]}"
        self.worked: Counter[tuple[str, str]] = Counter()
        self.published: list[Answer] = []
        self.gates: dict[str, threading.Event] = {}
        self.working: dict[str, threading.Event] = {}
        self.observer = stack.enter_context(Node("observer", mesh=self.mesh))
        self.observer.subscribe("**/prompt/answered", self._note, type=Answer)
        self.node = stack.enter_context(Node("caller", mesh=self.mesh))
        self.prompts = Prompts(self.node)
        stack.callback(lambda: [gate.set() for gate in self.gates.values()])

    def _note(self, message: Message) -> None:
        assert message.node == message.value.by
        self.published.append(message.value)

    def answerer(self, name: str, slow: bool = False, role: str = "language") -> Prompts:
        """A node that answers; a slow one when its gate is opened."""
        gate, working = self.gates[name], self.working[name] = threading.Event(), threading.Event()
        if not slow:
            gate.set()

        def answer(prompt: Prompt) -> str:
            self.worked[name, prompt.id] += 1
            working.set()
            assert gate.wait(LONG_S)
            return f"{name}: {prompt.text}"

        # Announced when it serves, so that every node that sees it can ask it.
        node = self.stack.enter_context(Node(name, role, self.mesh, announce=False))
        prompts = Prompts(node, answer)
        node.announce()
        assert self.node.wait_for([name], LONG_S) == []
        return prompts


@pytest.fixture
def town() -> Iterator[Town]:
    with ExitStack() as stack:
        yield Town(stack)


def until(condition, what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for: {what}"
        time.sleep(0.005)


def test_a_prompt_is_answered_and_published(town: Town):
    town.answerer("a")
    town.answerer("b")
    answer = town.prompts.ask(Prompt("p1", "hello"), "language")
    assert answer == Answer("p1", "a", "a: hello")
    until(lambda: town.published, "the answer is published")
    assert town.published == [answer]
    assert town.worked == {("a", "p1"): 1}


def test_a_repeated_prompt_gets_the_cached_answer(town: Town):
    first = town.answerer("a")
    town.answerer("b")
    answer = town.prompts.ask(Prompt("p1", "hello"), "language")
    first.node.close()
    assert town.prompts.ask(Prompt("p1", "hello"), "language") == answer
    assert town.worked == {("a", "p1"): 1}


def test_another_node_that_is_asked_the_same_gives_the_answer_of_the_first(town: Town):
    town.answerer("a", role="language")
    other = town.answerer("b", role="speech")
    answer = town.prompts.ask(Prompt("p1", "hello"), "language")
    until(lambda: "p1" in other._accepted, "the other has heard of the answer")
    with Node("second", mesh=town.mesh) as node:
        assert node.wait_for(["b"], LONG_S) == []
        assert Prompts(node).ask(Prompt("p1", "hello"), "speech") == answer
    assert town.worked == {("a", "p1"): 1}
    assert town.published == [answer]


def test_a_late_node_receives_earlier_answers(town: Town):
    town.answerer("a", role="language")
    answers = [town.prompts.ask(Prompt(f"p{number}", "hello"), "language") for number in range(5)]
    late = town.answerer("late", role="speech")
    until(lambda: len(late._accepted) == 5, "it has heard of all of them")
    assert [late._accepted.get(f"p{number}") for number in range(5)] == answers


def test_a_slow_one_is_passed_over_and_its_answer_does_not_count(town: Town):
    slow = town.answerer("slow", slow=True)
    town.answerer("quick")
    answer = town.prompts.ask(Prompt("p1", "hello"), "language", timeout=1.0)
    assert answer == Answer("p1", "quick", "quick: hello")
    town.gates["slow"].set()
    until(lambda: "p1" in slow._accepted, "the slow one has received it")
    assert slow._accepted.get("p1") == answer
    until(lambda: town.published, "the answer is published")
    assert town.published == [answer]
    assert slow.node.sent() == {}
    assert town.worked == {("slow", "p1"): 1, ("quick", "p1"): 1}
    assert town.prompts.ask(Prompt("p1", "hello"), "language") == answer


def test_the_first_answer_counts_also_if_it_is_that_of_the_one_passed_over(town: Town):
    town.answerer("slow", slow=True)
    slower = town.answerer("slower", slow=True)
    answers: list[Answer] = []
    thread = threading.Thread(
        target=lambda: answers.append(town.prompts.ask(Prompt("p1", "hello"), "language", timeout=4.0))
    )
    thread.start()
    assert town.working["slower"].wait(LONG_S)  # so "slow" has been passed over
    town.gates["slow"].set()
    thread.join()
    assert answers == [Answer("p1", "slow", "slow: hello")]
    town.gates["slower"].set()
    until(lambda: "p1" in slower._accepted, "the other has received it")
    assert slower._accepted.get("p1") == answers[0]
    until(lambda: town.published, "the answer is published")
    assert town.published == answers


def test_a_slow_node_may_answer_after_all_were_asked(town: Town):
    town.answerer("slow", slow=True)
    decoder = threading.Timer(0.6, town.gates["slow"].set)
    decoder.start()
    # The default node is present and serves nothing: after it no node is left to ask.
    answer = town.prompts.ask(Prompt("p1", "hello"), "language", timeout=LONG_S / 10, default_node="observer")
    decoder.join()
    assert answer == Answer("p1", "slow", "slow: hello")


def test_a_prompt_without_an_answer_in_time_can_be_repeated(town: Town):
    slow = town.answerer("slow", slow=True)
    with pytest.raises(NobodyAnswered, match="slow: request to 'prompt' of node 'slow': no answer"):
        town.prompts.ask(Prompt("p1", "hello"), "language", timeout=0.3)
    town.gates["slow"].set()
    until(lambda: slow._computed._results[town.prompts.node.name]["p1"].done(), "an answer that is no longer awaited")
    assert town.published == []
    answer = town.prompts.ask(Prompt("p1", "hello"), "language")
    assert answer == Answer("p1", "slow", "slow: hello")
    assert town.worked == {("slow", "p1"): 1}  # the answer that it had made


def test_one_that_is_killed_while_it_works_makes_room_for_the_next(town: Town):
    with role_node(town.mesh, "first", "language", "hangs") as process:
        assert town.node.wait_for(["first"], LONG_S) == []
        town.answerer("second")
        with killed_when_asked(process):
            answer = town.prompts.ask(Prompt("p1", "hello"), "language", timeout=2 * LONG_S)
    assert answer == Answer("p1", "second", "second: hello")


def test_the_default_node_answers_for_a_missing_role(town: Town):
    town.answerer("lang", role="fallback")
    assert town.prompts.ask(Prompt.new("hello"), "language", default_node="lang").by == "lang"
    with pytest.raises(NobodyAnswered, match="no node here has it"):
        town.prompts.ask(Prompt.new("hello"), "language")


def test_a_node_that_asks_can_answer_itself(town: Town):
    both = town.answerer("both")
    answer = both.ask(Prompt("p1", "hello"), "nobody", default_node="both")
    assert answer == Answer("p1", "both", "both: hello")
    until(lambda: town.published, "the answer is published")
    assert town.published == [answer]


def test_an_error_of_the_function_is_raised_and_not_retried(town: Town):
    calls: list[str] = []

    def fail(prompt: Prompt) -> None:
        calls.append(prompt.id)
        raise LookupError(prompt.text)

    with Node("a", "language", town.mesh) as node:
        Prompts(node, fail)
        assert town.node.wait_for(["a"], LONG_S) == []
        for _ in range(2):
            with pytest.raises(RequestFailed, match="LookupError: hello"):
                town.prompts.ask(Prompt("p1", "hello"), "language")
    assert calls == ["p1"]
    assert town.published == []


def test_an_answering_node_is_called_once(town: Town):
    accepted: list[Answer] = []
    with Node("a", "language", town.mesh) as node:
        Prompts(node, lambda prompt: len(prompt.text), answered=accepted.append)
        assert town.node.wait_for(["a"], LONG_S) == []
        answer = town.prompts.ask(Prompt("p1", "hello"), "language")
        with Node("second", mesh=town.mesh) as other:
            assert other.wait_for(["a"], LONG_S) == []
            assert Prompts(other).ask(Prompt("p1", "hello"), "language") == answer
        until(lambda: accepted, "it is called")
    assert accepted == [answer] == [Answer("p1", "a", 5)]


def test_a_prompt_is_not_asked_twice_at_the_same_time(town: Town):
    town.answerer("slow", slow=True)
    thread = threading.Thread(target=lambda: town.prompts.ask(Prompt("p1", "hello"), "language", timeout=LONG_S))
    thread.start()
    assert town.working["slow"].wait(LONG_S)
    with pytest.raises(InvalidArgument, match="'p1' is in progress"):
        town.prompts.ask(Prompt("p1", "hello"), "language")
    town.gates["slow"].set()
    thread.join()


def test_topics_are_independent(town: Town):
    town.answerer("a")
    with Node("b", "language", town.mesh) as node:
        Prompts(node, lambda prompt: "b", topic="riddle/hard")
        assert town.node.wait_for(["b"], LONG_S) == []
        asker = Prompts(town.node, topic="riddle/hard")
        assert asker.ask(Prompt("p1", "hello"), "language", timeout=LONG_S) == Answer("p1", "b", "b")
        assert town.prompts.ask(Prompt("p1", "hello"), "language").by == "a"


def test_many_prompts_and_nodes_of_every_speed(town: Town):
    """Each id gets one answer, the published one, in any order of events."""
    made: Counter[tuple[str, str]] = Counter()

    def answerer(name: str) -> None:
        chance = random.Random(name)

        def answer(prompt: Prompt) -> str:
            made[name, prompt.id] += 1
            time.sleep(chance.choice([0.0, 0.0, 0.05, 0.15]))
            return f"{name} {prompt.id}"

        Prompts(town.stack.enter_context(Node(name, "language", town.mesh)), answer, threads=8)

    names = ["a", "b", "c"]
    for name in names:
        answerer(name)
    assert town.node.wait_for(names, LONG_S) == []
    answers: dict[str, Answer] = {}
    unanswered: list[str] = []

    def ask(first: int) -> None:
        for number in range(first, 40, 4):
            try:
                answers[f"p{number}"] = town.prompts.ask(Prompt(f"p{number}", "?"), "language", timeout=0.3)
            except NobodyAnswered:
                unanswered.append(f"p{number}")

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted([*answers, *unanswered]) == sorted(f"p{number}" for number in range(40))
    assert answers
    until(lambda: len(town.published) >= len(answers), "all answers are published")
    assert {one.id: one for one in town.published} == answers
    assert len(town.published) == len(answers)
    assert set(made.values()) == {1}
    assert all(answer.value == f"{answer.by} {id}" for id, answer in answers.items())


def test_a_deduplicator_forgets_the_oldest_that_are_done():
    results = Deduplicator(remembered=3)
    calls: list[str] = []
    for id in ("a", "b", "c", "d", "b", "a", "d"):
        assert results.call(id, lambda id=id: calls.append(id) or id, 1.0) == id
    assert calls == ["a", "b", "c", "d", "a"]
    assert len(results) == 3


def test_a_deduplicator_waits_for_the_first_call_and_not_for_ever():
    results, gate, begun = Deduplicator(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: results.call("a", lambda: begun.set() or gate.wait(LONG_S), LONG_S))
    thread.start()
    assert begun.wait(LONG_S)
    with pytest.raises(TimeoutError):
        results.call("a", lambda: pytest.fail("called twice"), 0.05)
    gate.set()
    assert results.call("a", lambda: pytest.fail("called twice"), LONG_S) is True
    thread.join()


def test_a_deduplicator_keeps_to_its_bound_while_the_oldest_call_hangs():
    results, gate, begun = Deduplicator(remembered=3), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: results.call("hangs", lambda: begun.set() or gate.wait(LONG_S), LONG_S))
    thread.start()
    assert begun.wait(LONG_S)
    for number in range(20):
        assert results.call(str(number), lambda number=number: number, 1.0) == number
    assert len(results) == 3
    gate.set()
    assert results.call("hangs", lambda: pytest.fail("called twice"), LONG_S) is True
    thread.join()


def test_a_busy_node_does_not_evict_answers_of_others(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompts_module, "REMEMBERED", 10)
    answerer = town.answerer("first")
    asked = Prompt.new("what is remembered")
    assert town.prompts.ask(asked, "language", LONG_S).by == "first"
    for number in range(30):
        town.observer.publish("prompt/answered", Answer(f"news {number}", "observer", number), "event")
    until(lambda: "news 29" in answerer._accepted, "the last of the news")
    assert len(answerer._accepted) == 10
    assert asked.id in answerer._accepted
    assert town.prompts.ask(asked, "language", LONG_S).by == "first"
