"""Remote calls under faults: a callee that is killed, stopped or shut down, a caller that is killed, hostile frames.

Each call carries a number of its own, and the callee keeps a record of what it ran: a call that returned ran once, one
that failed ran at most once, and after every fault calls succeed again.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.mesh import HEAL_S, attack, listening_port
from tests.chaos.storm import Room, Talker, scenario
from tests.ranks.stopping import resume, stop

DOCUMENTED = {"CalleeGone", "CalleeDied", "CallTimeout", "CallRefused"}  # the last while a callee shuts down


def serve(mesh: str, record: str) -> None:
    """A callee that writes down what it runs."""
    from neuraxis.rpc import RpcContext

    descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def work(number: str, size: int) -> int:
        os.write(descriptor, f"{number}\n".encode())
        return size

    with RpcContext(name="server", mesh=mesh, timeout=20.0) as context:
        context.register_function("work", work)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            if line.strip() == "end":
                return
            print(json.dumps({"refused": _refused(context)}), flush=True)


def ask(name: str, mesh: str) -> None:
    """A caller that makes one call after the other, and answers each line with what became of them."""
    from neuraxis.errors import RpcError
    from neuraxis.rpc import RpcContext

    outcomes: dict[str, str] = {}
    ended = threading.Event()
    with RpcContext(name=name, mesh=mesh, timeout=20.0) as context:

        def call() -> None:
            number = 0
            while not ended.is_set():
                label = f"{name}-{os.getpid()}-{number}"
                number += 1
                try:
                    assert context.call("server", "work", [label, number], timeout=2.0) == number
                    outcomes[label] = "ok"
                except RpcError as error:
                    outcomes[label] = type(error).__name__
                    ended.wait(0.02)
                ended.wait(0.002)

        calling = threading.Thread(target=call)
        calling.start()
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            refused = line.strip() == "refused"
            print(json.dumps({"refused": _refused(context)} if refused else dict(outcomes)), flush=True)
        ended.set()
        calling.join()


def _refused(context: Any) -> dict[str, int]:
    """Return the counters of a context that a hostile frame can raise, by the reasons in its log."""
    transport = context._transport
    counts: Counter[str] = Counter()
    for part in (transport, transport._link, transport._server):
        counts.update(part._refusals.counts())
    counts["presence malformed"] = transport._link._node._membership.malformed
    return dict(counts)


@scenario("calls")
def callee_and_callers_under_faults(room: Room, chance: random.Random) -> None:
    mesh = f"chaos-calls-{os.getpid()}-{time.monotonic_ns()}"
    record = room.folder / "record"
    server = _serve(room, mesh, record)
    callers = {name: _ask(room, mesh, name) for name in ("client", "other")}
    seen: dict[str, str] = {}
    _check_calls_succeed(room, callers, seen)
    for _ in range(3):
        fault = chance.choice(("kill the callee", "stop the callee", "end the callee", "kill a caller", "attack"))
        began = time.monotonic()
        if fault == "attack":
            address = f"tcp/127.0.0.1:{listening_port(server.pid)}"
            attack(room, chance, address, mesh, "inbox,reply channel,presence,status", {"server": server, **callers})
        else:
            room.fault(fault)
        if fault == "kill the callee":
            server.kill()
            server = _serve(room, mesh, record)
        elif fault == "end the callee":
            server.process.communicate(b"end\n", timeout=60)
            assert server.process.returncode == 0, server.errors()
            server = _serve(room, mesh, record)
        elif fault == "stop the callee":
            stop(server.pid)
            time.sleep(chance.uniform(0.1, 3.0))
            resume(server.pid)
        elif fault == "kill a caller":
            name = chance.choice(list(callers))
            seen.update(callers[name].ask("how?"))
            callers.pop(name).kill()
            callers[name] = _ask(room, mesh, name)
        _check_calls_succeed(room, callers, seen)
        room.noticed(began)
    for caller in callers.values():
        seen.update(caller.ask("how?"))
    _check_record(record, seen)


def _serve(room: Room, mesh: str, record: Path) -> Talker:
    server = room.start("tests.chaos.calls", "serve", mesh, record)
    assert server.receive(60.0) == {"ready": True}
    return server


def _ask(room: Room, mesh: str, name: str) -> Talker:
    caller = room.start("tests.chaos.calls", "ask", name, mesh)
    assert caller.receive(60.0) == {"ready": True}
    return caller


def _check_calls_succeed(room: Room, callers: dict[str, Talker], seen: dict[str, str]) -> None:
    """Wait until every caller has got further answers."""
    before = {name: _good(caller.ask("how?")) for name, caller in callers.items()}

    def further() -> bool:
        answers = {name: caller.ask("how?") for name, caller in callers.items()}
        for answer in answers.values():
            seen.update(answer)
        return all(_good(answers[name]) > before[name] + 5 for name in callers)

    room.until(further, f"calls succeed again ({Counter(seen.values())})", HEAL_S)


def _good(outcomes: dict[str, Any]) -> int:
    return sum(outcome == "ok" for outcome in outcomes.values())


def _check_record(record: Path, seen: dict[str, str]) -> None:
    ran = Counter(record.read_text().splitlines())
    assert not [number for number, times in ran.items() if times > 1], "a call has run twice"
    missing = [number for number, outcome in seen.items() if outcome == "ok" and ran[number] != 1]
    assert not missing, f"calls returned that have not run: {missing[:5]}"
    assert set(seen.values()) <= DOCUMENTED | {"ok"}, Counter(seen.values())


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
