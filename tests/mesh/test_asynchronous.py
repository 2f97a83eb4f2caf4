"""Coroutines as handlers and services, requests and streams in an event loop, and programs that end with Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from agreement import propose, vote
from prompts import Prompt, Prompts

from neuraxis.errors import MeshClosed, MeshError, NodeGone, RequestFailed, RequestTimeout
from neuraxis.mesh import Node
from neuraxis.mesh.asynchronous import AsyncBridge
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.messages import Message
from tests.mesh.conftest import LIMIT_S, Child, meet
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]


# --- handlers ---


def test_coroutines_handle_messages_one_after_the_other(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = join("sender"), join("receiver")
    got: list[Any] = []
    at_work: list[int] = []

    async def handle(message: Message) -> None:
        at_work.append(message.value)
        await asyncio.sleep(0.001)
        assert at_work == [message.value]
        at_work.clear()
        got.append((message.value, threading.current_thread().name))
        if message.value == 2:
            raise ValueError("at 2")

    class Callable_:
        async def __call__(self, message: Message) -> None:
            await handle(message)

    subscriptions = [
        receiver.subscribe("sender/function", handle, depth=100),
        receiver.subscribe("sender/lambda", lambda message: handle(message), depth=100),
        receiver.subscribe("sender/partial", partial(handle), depth=100),
        receiver.subscribe("sender/object", Callable_(), depth=100),
    ]
    meet(sender, receiver)
    for topic in ("function", "lambda", "partial", "object"):
        got.clear()
        for value in range(5):
            sender.publish(topic, value)
        until(lambda: len(got) == 5, "all five")
        assert [value for value, _ in got] == [0, 1, 2, 3, 4]
        assert {name for _, name in got} == {"neuraxis receiver loop"}
    for one in subscriptions:
        until(lambda one=one: one.counts() == Counts(received=5, handler_errors=1), "its count")
    assert sum("at 2" in str(record.exc_info) for record in caplog.records) == 4


def test_handlers_run_in_the_loop_in_which_they_subscribed(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")

    async def main() -> list[tuple[Any, bool]]:
        here, got, all_here = threading.current_thread(), [], asyncio.Event()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            got.append((message.value, threading.current_thread() is here))
            if len(got) == 3:
                all_here.set()

        with receiver.subscribe("sender/number", handle):
            await asyncio.to_thread(meet, sender, receiver)
            for value in range(3):
                sender.publish("number", value)
            await asyncio.wait_for(all_here.wait(), LIMIT_S)
        return got

    assert asyncio.run(main()) == [(0, True), (1, True), (2, True)]


def test_coroutines_judge_answer_and_greet(join: Join) -> None:
    """Every option that takes a function takes a coroutine function, and awaits it."""
    asker, voter = join("asker"), join("voter", "judge")
    came: list[str] = []

    async def refuse(proposal: Any) -> bool:
        return False

    async def answer(prompt: Prompt) -> str:
        await asyncio.sleep(0)
        return prompt.text.upper()

    async def greet(peer: Any) -> None:
        came.append(peer.name)

    vote(voter, "move", refuse)
    Prompts(voter, answer)
    voter.on_join(greet)
    prompts = Prompts(asker)
    meet(asker, voter)
    assert propose(asker, "move", 1, ["voter"], timeout=LIMIT_S).votes_against == ("voter",)
    assert prompts.ask(Prompt.new("hello"), "judge", LIMIT_S).value == "HELLO"
    until(lambda: came == ["asker"], "the greeting")


# --- requests and streams ---


def test_services_and_requests_in_a_loop(join: Join) -> None:
    server, client = join("server"), join("client")

    async def double(message: Message) -> int:
        await asyncio.sleep(0.01)
        if message.value < 0:
            raise ValueError("below zero")
        return 2 * int(message.value)

    async def never(message: Message) -> None:
        await asyncio.sleep(600)

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        server.serve("never", never)
        await asyncio.to_thread(meet, server, client)
        answers = await asyncio.gather(*(client.arequest("server", "double", n, LIMIT_S) for n in range(100)))
        assert answers == [2 * n for n in range(100)]
        assert ticks > 5  # the loop went on meanwhile
        with pytest.raises(RequestFailed, match="below zero"):
            await client.arequest("server", "double", -1, LIMIT_S)
        with pytest.raises(NodeGone):
            await client.arequest("nobody", "double", 1, LIMIT_S)
        with pytest.raises(RequestTimeout):
            await client.arequest("server", "never", timeout=0.2)
        asking = asyncio.create_task(client.arequest("server", "never", timeout=LIMIT_S))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with client, server:  # its coroutine that never ends is cancelled
            pass
        ticking.cancel()

    server.serve("double", double)
    asyncio.run(main())
    with pytest.raises(MeshClosed):
        asyncio.run(client.arequest("server", "double", 1))


def test_a_request_never_queues_behind_a_busy_thread_while_others_can_be_started() -> None:
    side, gate = AsyncBridge("test"), threading.Event()

    async def main() -> None:
        for _ in range(20):  # two at the same moment, where one thread is free
            assert await side.in_thread(lambda left: 1, LIMIT_S) == 1
            gate.clear()
            blocked = asyncio.create_task(side.in_thread(lambda left: gate.wait(left), LIMIT_S))
            assert await side.in_thread(lambda left: 2, 5.0) == 2
            gate.set()
            assert await blocked is True
        gate.clear()
        many = [asyncio.create_task(side.in_thread(lambda left: gate.wait(left), LIMIT_S)) for _ in range(70)]
        await asyncio.sleep(0)
        assert (side._threads.idle, side._threads.queued, len(side._threads._threads)) == (0, 6, 64)
        gate.set()
        assert all(await asyncio.gather(*many))

    try:
        asyncio.run(main())
    finally:
        gate.set()
        side._stop()
        assert side._threads.close(LIMIT_S)


def test_streams_end_by_close_by_break_and_with_their_node(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")

    async def main() -> None:
        async with receiver.stream("sender/number", depth=1000) as messages:
            await asyncio.to_thread(meet, sender, receiver)
            for value in range(100):
                sender.publish("number", value, "event")
            got = []
            async for message in messages:
                got.append(message.value)
                if len(got) == 100:
                    break
            assert got == list(range(100))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(messages), 0.05)
            sender.publish("number", 100)
            assert (await asyncio.wait_for(anext(messages), LIMIT_S)).value == 100
        with pytest.raises(StopAsyncIteration):
            await anext(messages)
        dropped = receiver.stream("sender/number")
        subscription = dropped.subscription
        del dropped
        gc.collect()
        assert subscription.closed
        last = receiver.stream("sender/number")
        closing = asyncio.get_running_loop().call_later(0.05, receiver.close)
        assert [message.value async for message in last] in ([], [100])  # the last event may be repeated
        assert closing.cancelled() is False

    asyncio.run(main())


def test_a_stream_that_is_read_slowly_gives_the_newest(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")

    async def main() -> None:
        async with receiver.stream("sender/number") as messages:
            await asyncio.to_thread(meet, sender, receiver)
            subscription = messages.subscription
            value, deadline = 0, time.monotonic() + LIMIT_S
            while (counts := subscription.counts()).received + counts.dropped < 500:  # a busy machine loses some
                assert time.monotonic() < deadline, counts
                sender.publish("number", value, "stream")
                value += 1
            assert (await anext(messages)).value >= 490
            assert subscription.counts().dropped >= 490

    asyncio.run(main())


# --- to end ---


def test_closing_a_node_cancels_its_coroutines(
    join: Join, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    sender = join("sender")
    caplog.set_level(logging.DEBUG, "asyncio")
    before = set(threading.enumerate())
    ended: list[str] = []

    async def stuck(message: Message) -> None:
        try:
            ended.append("begun")
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        node = Node("inside", mesh=sender.mesh)
        node.subscribe("sender/number", stuck)
        await asyncio.to_thread(meet, sender, node)
        sender.publish("number", 1)
        while len(ended) < 3:
            await asyncio.sleep(0.01)
        begun = time.monotonic()
        node.close()  # in the loop that runs the coroutine
        assert time.monotonic() - begun < 1.9
        await asyncio.sleep(0)

    outside = Node("outside", mesh=sender.mesh)
    subscription = outside.subscribe("sender/number", stuck)
    meet(sender, outside)
    sender.publish("number", 0)
    until(lambda: ended == ["begun"], "a coroutine in the node's own loop")
    outside.close()
    assert ended == ["begun", "cancelled"]
    assert subscription.counts() == Counts(received=1)
    asyncio.run(main())
    until(lambda: ended == ["begun", "cancelled"] * 2, "both to be cancelled")
    gc.collect()
    until(lambda: not {one.name for one in set(threading.enumerate()) - before if "inside" in one.name}, "no threads")
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]
    assert not [record for record in caplog.records if "pending" in record.getMessage()]


def test_calls_to_a_closed_event_loop_are_counted(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")

    async def handle(message: Message) -> None:
        raise AssertionError("no loop runs this")

    async def main() -> Any:
        return receiver.subscribe("sender/number", handle)

    subscription = asyncio.run(main())
    meet(sender, receiver)
    sender.publish("number", 1)
    until(lambda: subscription.counts() == Counts(received=1, handler_errors=1), "it to be counted")


def test_calls_to_a_blocked_event_loop_are_counted(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    loop, stops = asyncio.new_event_loop(), asyncio.Event()
    begun: list[int] = []

    async def handle(message: Message) -> None:
        begun.append(message.value)
        stops.set()
        await asyncio.sleep(LIMIT_S)

    async def main() -> Any:
        subscription = receiver.subscribe("sender/number", handle, depth=10)
        await asyncio.to_thread(meet, sender, receiver)
        sender.publish("number", 1)
        await stops.wait()
        return subscription

    subscription = loop.run_until_complete(main())  # the loop stops while the handler is at work
    sender.publish("number", 2)
    until(lambda: subscription.counts() == Counts(received=2, handler_errors=2), "both to be counted")
    assert begun == [1]
    subscription.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_two_tasks_read_one_stream(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")

    async def main() -> None:
        got: list[int] = []
        async with receiver.stream("sender/number") as messages:

            async def read() -> None:
                async for message in messages:
                    got.append(message.value)

            tasks = [asyncio.create_task(read()) for _ in range(2)]
            await asyncio.to_thread(meet, sender, receiver)
            for value in range(4):
                sender.publish("number", value)
                while len(got) <= value:
                    await asyncio.sleep(0.001)
            messages.close()
            await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)
        assert got == [0, 1, 2, 3]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


SPINS = """
with Node("spinner", mesh=mesh) as node:
    def watch():
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            time.sleep(0.001)
        send("ready")
    threading.Thread(target=watch).start()
    node.spin()
    send("after")
"""
LOOPS = """
with Node("looper", mesh=mesh) as node:
    send("ready")
    for message in node.subscribe("other/*"):
        send(message.value)
"""


@pytest.mark.parametrize(
    ("script", "number", "status"),
    [(SPINS, signal.SIGINT, 0), (SPINS, signal.SIGTERM, 0), (LOOPS, signal.SIGINT, -signal.SIGINT)],
    ids=["spin-int", "spin-term", "loop-int"],
)
def test_programs_end_without_a_traceback(child: Start, script: str, number: signal.Signals, status: int) -> None:
    program = child(script, stderr=subprocess.PIPE)
    assert program.receive() == "ready"
    program.process.send_signal(number)
    if script is SPINS:
        assert program.receive() == "after"
    assert program.process.wait(LIMIT_S) == status
    assert program.process.stderr is not None
    assert program.process.stderr.read() == b""


def test_spin_ends_with_its_time_and_with_its_node(join: Join) -> None:
    node = join("node")
    node.spin(0.01)
    thread = threading.Thread(target=node.spin)
    thread.start()

    async def spins() -> None:
        node.spin()

    with pytest.raises(MeshError, match="event loop"):
        asyncio.run(spins())
    before = signal.getsignal(signal.SIGINT)
    node.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(MeshClosed):
        node.spin()


def test_other_interrupts_still_show_their_traceback() -> None:
    """Only the Ctrl-C that ended a node is quiet; one that is caught and another error are as ever."""
    script = (
        "import sys\nfrom neuraxis.mesh import Node\n"
        "try:\n    with Node('a', mesh=sys.argv[1]):\n        raise KeyboardInterrupt\n"
        "except KeyboardInterrupt:\n    print('caught')\nraise ValueError('shown')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"interrupt-{time.time_ns()}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "caught\n")
    assert "ValueError: shown" in done.stderr
