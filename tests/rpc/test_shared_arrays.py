"""Large arrays over the mesh: shared on one host, sent to another, and every failure of that is a clear error."""

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

from neuraxis.comm.backends.shm.zero_copy import BufferHandle, SharedBuffer
from neuraxis.errors import CalleeDied, CallRefused
from neuraxis.rpc import RpcContext
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Endpoint
from neuraxis.rpc.zenoh_channels import SharedArrays
from tests.mesh.namespaces import skip_without_namespaces
from tests.ranks.fork_server import SEARCH_PATH, Forked, fork_server
from tests.ranks.stopping import stop
from tests.rpc.meeting import Join, meeting, until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no shared buffers")


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


def arrays_of(context: RpcContext) -> SharedArrays:
    shared: SharedArrays = context._transport._link._shared  # type: ignore[union-attr]
    return shared


def unread_of(context: RpcContext) -> list[SharedBuffer]:
    """The buffers that were shared and not read yet."""
    return [buffer for buffer in arrays_of(context)._sender._buffers if not buffer.is_read]


def large(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(100_000)


def party_of(context: RpcContext, name: str) -> Endpoint:
    return context._find(name)


def become_acquainted(caller: RpcContext, callee: str) -> None:
    """Make calls with large arrays, so that the two contexts share memory from now on."""
    for _ in range(3):
        assert (caller.rpc_sync(callee, "echo", large()) == large()).all()
    assert arrays_of(caller)._sender.reaches(party_of(caller, callee))


def notes_received(context: RpcContext, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each message with a note that comes from now on: True if its arrays were shared."""
    shared = arrays_of(context)
    came: list[bool] = []

    def counting(content: bytes, note: bytes, received: Any = shared.received) -> Any:
        message = received(content, note)
        came.append(isinstance(message, Frame))
        return message

    monkeypatch.setattr(shared, "received", counting)
    return came


def test_the_first_array_is_sent_and_later_ones_are_shared(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
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
    until(lambda: not unread_of(caller) and not unread_of(callee), "the shared arrays to be read")


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


def test_a_lost_reply_in_shared_memory_is_repeated_unchanged(join: Join) -> None:
    state = large()

    def change() -> np.ndarray:
        state[:] += 1
        return state

    callee, caller = join("callee", {"echo": lambda value: value, "change": change}), join("caller")
    become_acquainted(caller, "callee")
    theirs: Any = callee._transport._link  # type: ignore[union-attr]
    ours: Any = caller._transport._link  # type: ignore[union-attr]
    ours.must_resend = lambda to, epoch: True  # it is asked again and again
    send = theirs.send
    lost: list[bytes] = []

    def lose_first(to: Endpoint, channel: int, frame: Frame, timeout: float) -> None:
        if lost:
            send(to, channel, frame, timeout)
        else:
            lost.append(theirs._shared.share(to, frame))
            state[:] += 100

    theirs.send = lose_first
    for call in (caller.rpc_sync, lambda *what: caller.rpc_async(*what).wait(20)):
        lost.clear()
        before = state.copy()
        assert (call("callee", "change") == before + 1).all()
        assert len(lost) == 1


def test_forged_handles_raise_clear_errors(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    callee = join("callee", {"echo": lambda value: value, "run": lambda value: ran.append(1)})
    caller = join("caller")
    become_acquainted(caller, "callee")

    def forging(shared: SharedArrays) -> None:
        def share(to: Endpoint, frame: Frame, share: Any = shared.share) -> bytes | None:
            handle = share(to, frame)
            return handle if handle is None else handle[:12] + secrets.token_bytes(16) + handle[28:]

        monkeypatch.setattr(shared, "share", share)

    forging(arrays_of(caller))
    with pytest.raises(CallRefused, match=r"'callee' cannot decode this call: a shared buffer .* forged"):
        caller.rpc_sync("callee", "run", large())
    assert ran == []
    assert caller.rpc_sync("callee", "echo", "others go on") == "others go on"
    monkeypatch.undo()
    forging(arrays_of(callee))
    with pytest.raises(CalleeDied, match=r"the reply of 'callee' cannot be decoded: a shared buffer .* forged"):
        caller.rpc_sync("callee", "echo", large())


def test_shutdown_waits_until_the_last_reply_is_read(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    callee, caller = join("callee", {"echo": lambda value: value}), join("caller")
    become_acquainted(caller, "callee")
    shared = arrays_of(caller)

    def slowly(content: bytes, note: bytes, received: Any = shared.received) -> Any:
        until(lambda: arrays_of(callee)._sender._closed, "the callee to be shut down")
        return received(content, note)

    monkeypatch.setattr(shared, "received", slowly)
    future = caller.rpc_async("callee", "echo", large())
    until(lambda: bool(unread_of(callee)), "the answer")
    callee.shutdown()
    assert (future.wait(20) == large()).all()


# --- other processes ---


def process(name: str, mesh: str, log: Path) -> Forked:
    return fork_server().fork(
        "tests.rpc.server_process", "main", (name, mesh), {**os.environ, "PYTHONPATH": SEARCH_PATH}, log
    )


@pytest.fixture
def victim(join: Join, tmp_path: Path) -> Iterator[tuple[RpcContext, Forked]]:
    """A caller, and a process that it lends to and borrows from."""
    caller = join("caller")
    mesh = caller._transport._link._node.mesh  # type: ignore[union-attr]
    victim = process("victim", mesh, tmp_path / "log")
    try:
        assert caller.wait_for(["victim"], 20) == []
        become_acquainted(caller, "victim")
        yield caller, victim
    finally:
        victim.kill()
        victim.wait(20)


def test_a_killed_callee_leaves_no_shared_buffer(victim: tuple[RpcContext, Forked]) -> None:
    caller, process = victim
    stop(process.pid)
    futures = [caller.rpc_async("victim", "echo", large()) for _ in range(3)]
    shared = unread_of(caller)
    assert len(shared) == 3
    links = [os.readlink(f"/proc/self/fd/{BufferHandle.unpack(buffer.handle).number}") for buffer in shared]
    assert all(link.startswith("/memfd:") for link in links)  # which is in no folder
    del shared
    process.kill()
    assert all(isinstance(future.exception(20), CalleeDied) for future in futures)
    del futures
    until(lambda: not unread_of(caller), "the shared arrays to be freed")


def test_shared_buffers_are_freed_with_their_killed_sender(
    victim: tuple[RpcContext, Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, process = victim
    shared = arrays_of(caller)

    def too_late(content: bytes, note: bytes, received: Any = shared.received) -> Any:
        process.kill()
        process.wait(20)
        shared._receiver.close_idle()  # what is open here outlives it
        return received(content, note)

    monkeypatch.setattr(shared, "received", too_late)
    with pytest.raises(CalleeDied, match=r"the reply of 'victim' cannot be decoded: a shared buffer .*sender is gone"):
        caller.rpc_sync("victim", "echo", large())


def _apart() -> list[str]:
    """Return a command prefix with a separate process namespace, as in a container."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        skip_without_namespaces("no namespace of processes can be made here")
    return command


def test_a_process_in_another_container_receives_copies(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = join("caller")
    mesh = caller._transport._link._node.mesh  # type: ignore[union-attr]
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
            assert not arrays_of(caller)._sender.reaches(party_of(caller, "elsewhere"))
            assert came == [False]  # the callee's own trial
        finally:
            elsewhere.kill()
