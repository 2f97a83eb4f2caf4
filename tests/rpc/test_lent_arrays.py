"""Large arrays over the mesh: lent on one host, sent to another, and every failure of a loan an error that says so."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.comm.lent_memory import Note
from neuraxis.comm.loans import Loan
from neuraxis.errors import CalleeDied, CallRefused
from neuraxis.rpc import RpcContext
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.lent_arrays import LentArrays
from neuraxis.rpc.transport import Party
from tests.crew.nursery import SEARCH_PATH, Forked, nursery
from tests.crew.stopping import stop
from tests.rpc.meeting import Join, meeting, until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing can be lent on this system")


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


def lent_of(context: RpcContext) -> LentArrays:
    lent: LentArrays = context._transport._line._lent  # type: ignore[union-attr]
    return lent


def loans_of(context: RpcContext) -> list[Loan]:
    """What is lent and was not read."""
    return [loan for loan in lent_of(context)._lender._loans if not loan.is_read]


def large(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(100_000)


def party_of(context: RpcContext, name: str) -> Party:
    return context._find(name)


def become_acquainted(caller: RpcContext, callee: str) -> None:
    """By calls with large arrays: from now on the two lend to each other."""
    for _ in range(3):
        assert (caller.rpc_sync(callee, "echo", large()) == large()).all()
    assert lent_of(caller)._lender.reaches(party_of(caller, callee))


def notes_received(context: RpcContext, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each message with a note that comes from now on: whether its arrays were lent."""
    lent = lent_of(context)
    came: list[bool] = []

    def counting(content: bytes, note: bytes, received: Any = lent.received) -> Any:
        message = received(content, note)
        came.append(isinstance(message, Frame))
        return message

    monkeypatch.setattr(lent, "received", counting)
    return came


def test_the_first_is_sent_and_the_next_are_lent(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    callee, caller = join("callee", {"echo": lambda value: value}), join("caller")
    asked, answered = notes_received(callee, monkeypatch), notes_received(caller, monkeypatch)
    for number in range(5):
        value = {
            "first": large(number),
            "rest": [1, large(number + 10).astype(np.float32), "text"],
            "empty": np.empty(0),
        }
        result = caller.rpc_sync("callee", "echo", value)
        assert (result["first"] == value["first"]).all()
        assert (result["rest"][1] == value["rest"][1]).all()  # type: ignore[call-overload]
        assert (result["rest"][0], result["rest"][2], result["empty"].size) == (1, "text", 0)
        result["first"][:] = 0  # it is the caller's own
    assert asked == answered == [False, True, True, True, True]
    until(lambda: not loans_of(caller) and not loans_of(callee), "what was lent to be read")


def test_results_that_live_at_the_same_time_and_arrays_that_change(join: Join) -> None:
    join("callee", {"echo": lambda value: value})
    caller = join("caller")
    become_acquainted(caller, "callee")
    array = large()
    futures = []
    for number in range(20):
        array[:] = number
        futures.append(caller.rpc_async("callee", "echo", array))
    results = [future.wait(20) for future in futures]
    assert [sorted(set(result)) for result in results] == [[number] for number in range(20)]


def test_a_lost_answer_that_was_lent_is_given_again_as_it_was(join: Join) -> None:
    state = large()

    def change() -> np.ndarray:
        state[:] += 1
        return state

    callee, caller = join("callee", {"echo": lambda value: value, "change": change}), join("caller")
    become_acquainted(caller, "callee")
    theirs: Any = callee._transport._line  # type: ignore[union-attr]
    ours: Any = caller._transport._line  # type: ignore[union-attr]
    ours.look = lambda to, mark: True  # it is asked again and again
    send = theirs.send
    lost: list[bytes] = []

    def lose_first(to: Party, lane: int, frame: Frame, timeout: float) -> None:
        if lost:
            send(to, lane, frame, timeout)
        else:
            lost.append(theirs._lent.lend(to, frame))
            state[:] += 100

    theirs.send = lose_first
    for call in (caller.rpc_sync, lambda *what: caller.rpc_async(*what).wait(20)):
        lost.clear()
        before = state.copy()
        assert (call("callee", "change") == before + 1).all()
        assert len(lost) == 1


def test_forged_notes_are_errors_that_say_so(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    callee = join("callee", {"echo": lambda value: value, "run": lambda value: ran.append(1)})
    caller = join("caller")
    become_acquainted(caller, "callee")

    def forging(lent: LentArrays) -> None:
        def lend(to: Party, frame: Frame, lend: Any = lent.lend) -> bytes | None:
            note = lend(to, frame)
            return note if note is None else note[:12] + secrets.token_bytes(16) + note[28:]

        monkeypatch.setattr(lent, "lend", lend)

    forging(lent_of(caller))
    with pytest.raises(CallRefused, match=r"'callee' cannot read this call: lent memory .* forged"):
        caller.rpc_sync("callee", "run", large())
    assert ran == []
    assert caller.rpc_sync("callee", "echo", "others go on") == "others go on"
    monkeypatch.undo()
    forging(lent_of(callee))
    with pytest.raises(CalleeDied, match=r"the answer of 'callee' cannot be read: lent memory .* forged"):
        caller.rpc_sync("callee", "echo", large())


def test_who_shuts_down_lets_its_last_answer_be_read(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    callee, caller = join("callee", {"echo": lambda value: value}), join("caller")
    become_acquainted(caller, "callee")
    lent = lent_of(caller)

    def slowly(content: bytes, note: bytes, received: Any = lent.received) -> Any:
        until(lambda: lent_of(callee)._lender._closed, "the callee to be shut down")
        return received(content, note)

    monkeypatch.setattr(lent, "received", slowly)
    future = caller.rpc_async("callee", "echo", large())
    until(lambda: bool(loans_of(callee)), "the answer")
    callee.shutdown()
    assert (future.wait(20) == large()).all()


# --- other processes ---


def process(name: str, mesh: str, log: Path) -> Forked:
    return nursery().fork(
        "tests.rpc.server_process", "main", (name, mesh), {**os.environ, "PYTHONPATH": SEARCH_PATH}, log
    )


@pytest.fixture
def victim(join: Join, tmp_path: Path) -> Iterator[tuple[RpcContext, Forked]]:
    """A caller, and a process that it lends to and borrows from."""
    caller = join("caller")
    mesh = caller._transport._line._node.mesh  # type: ignore[union-attr]
    victim = process("victim", mesh, tmp_path / "log")
    try:
        assert caller.wait_for(["victim"], 20) == []
        become_acquainted(caller, "victim")
        yield caller, victim
    finally:
        victim.kill()
        victim.wait(20)


def test_a_killed_callee_leaves_no_loan(victim: tuple[RpcContext, Forked]) -> None:
    caller, process = victim
    stop(process.pid)
    futures = [caller.rpc_async("victim", "echo", large()) for _ in range(3)]
    lent = loans_of(caller)
    assert len(lent) == 3
    links = [os.readlink(f"/proc/self/fd/{Note.unpack(loan.note).number}") for loan in lent]
    assert all(link.startswith("/memfd:") for link in links)  # which is in no folder
    del lent
    process.kill()
    assert all(isinstance(future.exception(20), CalleeDied) for future in futures)
    del futures
    until(lambda: not loans_of(caller), "what was lent to be freed")


def test_what_a_killed_process_has_lent_is_gone_with_it(
    victim: tuple[RpcContext, Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, process = victim
    lent = lent_of(caller)

    def too_late(content: bytes, note: bytes, received: Any = lent.received) -> Any:
        process.kill()
        process.wait(20)
        lent._borrower.let_go()  # what is open here outlives it
        return received(content, note)

    monkeypatch.setattr(lent, "received", too_late)
    with pytest.raises(CalleeDied, match=r"the answer of 'victim' cannot be read: lent memory .*lender is gone"):
        caller.rpc_sync("victim", "echo", large())


def _apart() -> list[str]:
    """What a command begins with that sees other processes than this one does, as in a container."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no namespace of processes can be made here")
    return command


def test_one_in_another_container_is_sent_what_it_cannot_be_lent(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = join("caller")
    mesh = caller._transport._line._node.mesh  # type: ignore[union-attr]
    came = notes_received(caller, monkeypatch)
    with subprocess.Popen(
        [*_apart(), sys.executable, "-m", "tests.rpc.server_process", "elsewhere", mesh],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
    ) as elsewhere:
        try:
            assert caller.wait_for(["elsewhere"], 20) == []
            for number in range(3):
                assert (caller.rpc_sync("elsewhere", "echo", large(number)) == large(number)).all()
                assert (caller.rpc_async("elsewhere", "echo", large(number)).wait(20) == large(number)).all()
            assert not lent_of(caller)._lender.reaches(party_of(caller, "elsewhere"))
            assert came == [False]  # the callee's own trial
        finally:
            elsewhere.kill()
