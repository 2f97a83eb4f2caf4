"""Shared buffers between two processes: read once, reused, never given to a third, and freed with their sender."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.comm.backends.shm import zero_copy
from neuraxis.comm.backends.shm.zero_copy import BufferHandle, BufferReceiver, BufferSender, SharedBuffer
from neuraxis.wire.objects import Unreadable

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd")

MOST = 2**24


@pytest.fixture
def sender() -> Iterator[BufferSender]:
    sender = BufferSender()
    yield sender
    sender.close(0)


@pytest.fixture
def receiver() -> Iterator[BufferReceiver]:
    receiver = BufferReceiver(MOST)
    yield receiver
    receiver.close()


def shared_memory() -> set[int]:
    """Return the inodes of the shared buffers that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "neuraxis-buffer" in os.readlink(entry):
                found.add(entry.stat().st_ino)
        except FileNotFoundError:  # the folder's own
            continue
    return found


def receive(receiver: BufferReceiver, handle: bytes | None) -> list[np.ndarray]:
    assert handle is not None
    return receiver.receive(BufferHandle.unpack(handle))


def share(sender: BufferSender, *parts: Any) -> SharedBuffer:
    buffer = sender.share("other", parts)
    assert buffer is not None
    return buffer


def forged(handle: bytes, **changes: int) -> bytes:
    mark, pid, descriptor, token = struct.unpack_from("<4sIi16s", handle)
    return (
        struct.pack("<4sIi16s", mark, changes.get("pid", pid), changes.get("descriptor", descriptor), token)
        + handle[28:]
    )


def test_parts_are_received_as_writable_copies(sender: BufferSender, receiver: BufferReceiver) -> None:
    first, second = os.urandom(100_001), os.urandom(70_000)
    parts = receive(receiver, share(sender, first, memoryview(second)).handle)
    assert [part.tobytes() for part in parts] == [first, second]
    parts[0][:] = 7


def test_memory_is_reused_only_after_it_was_read(sender: BufferSender, receiver: BufferReceiver) -> None:
    one, two = share(sender, b"a" * 1000), share(sender, b"b" * 1000)
    assert len(shared_memory()) == 2
    assert receive(receiver, one.handle)[0].tobytes() == b"a" * 1000
    three = share(sender, b"c" * 2000)
    assert len(shared_memory()) == 2
    assert receive(receiver, two.handle)[0].tobytes() == b"b" * 1000
    assert receive(receiver, three.handle)[0].tobytes() == b"c" * 2000


def test_a_repeated_handle_does_not_reach_a_later_message(sender: BufferSender, receiver: BufferReceiver) -> None:
    buffer = share(sender, b"a" * 1000)
    receive(receiver, buffer.handle)
    later = share(sender, b"secret" * 1000)
    with pytest.raises(Unreadable, match="read before, or its handle is forged"):
        receive(receiver, buffer.handle)
    assert not later.is_read
    assert receive(receiver, later.handle)[0].tobytes() == b"secret" * 1000


def test_forged_handles_are_refused_and_open_nothing(
    sender: BufferSender, receiver: BufferReceiver, tmp_path: Path
) -> None:
    handle = share(sender, b"a" * 1000).handle
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(Unreadable, match="not the handle"):
        receive(receiver, handle[:-3])
    with pytest.raises(Unreadable, match="not the handle"):
        receive(receiver, b"")
    with pytest.raises(Unreadable, match="is forged"):
        receive(receiver, handle[:12] + bytes(16) + handle[28:])  # another token
    with pytest.raises(Unreadable, match="cannot be opened"):
        receive(receiver, forged(handle, pid=2**22 + 1))
    with pytest.raises(Unreadable, match="limit of 16,777,216"):
        receive(receiver, handle[:28] + struct.pack("<Q", 2**60))
    with pytest.raises(Unreadable, match="holds another message"):
        receive(receiver, handle[:28] + struct.pack("<Q", 999))
    with pytest.raises(Unreadable, match="holds another message"):
        receive(receiver, handle[:28] + struct.pack("<Q", 2**20))
    reader, writer = os.pipe()  # to open one would block
    try:
        with pytest.raises(Unreadable, match="no shared buffer"):
            receive(receiver, forged(handle, descriptor=reader))
    finally:
        os.close(reader)
        os.close(writer)
    with (tmp_path / "neuraxis-buffer").open("w+b") as file, pytest.raises(Unreadable, match="no shared buffer"):
        receive(receiver, forged(handle, descriptor=file.fileno()))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert receive(receiver, handle)[0].tobytes() == b"a" * 1000


def test_memory_that_others_could_write_is_refused(sender: BufferSender, receiver: BufferReceiver) -> None:
    handle = share(sender, b"a" * 1000).handle
    os.fchmod(struct.unpack_from("<4sIi", handle)[2], 0o666)
    with pytest.raises(Unreadable, match="not private to this user"):
        receive(receiver, handle)


def test_a_receiver_is_reachable_after_it_has_read_the_probe(sender: BufferSender, receiver: BufferReceiver) -> None:
    assert not sender.reaches("other")
    handle = sender.probe("other")
    assert handle is not None
    assert BufferHandle.unpack(handle).lengths == ()
    assert sender.probe("other") is None  # a probe is pending
    assert not sender.reaches("other")
    assert receive(receiver, handle) == []
    assert sender.reaches("other")
    assert not sender.reaches("third")
    sender.drop("other")
    assert not sender.reaches("other")
    assert sender.probe("other") is not None


def test_a_probe_that_is_not_read_expires(
    sender: BufferSender, receiver: BufferReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = sender.probe("other")
    assert handle is not None
    monkeypatch.setattr(zero_copy, "_HOLD_S", -1.0)
    assert not sender.reaches("other")
    assert shared_memory() == set()
    assert sender.probe("other") is None
    with pytest.raises(Unreadable):
        receive(receiver, handle)


def test_the_number_and_size_of_buffers_are_limited(
    sender: BufferSender, receiver: BufferReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_copy, "_MAX_BUFFERS", 3)
    monkeypatch.setattr(zero_copy, "_MAX_BYTES", 200_000)
    monkeypatch.setattr(zero_copy, "_MAX_KEPT_BYTES", 100_000)
    assert sender.share("other", [bytes(200_001)]) is None
    held = [share(sender, bytes(3000)) for _ in range(3)]
    assert sender.share("other", [bytes(10)]) is None
    for buffer in held:
        receive(receiver, buffer.handle)
    receiver.close_idle()
    share(sender, bytes(10))
    assert len(shared_memory()) == 1  # one is reused, and the others are freed


def test_a_dropped_receiver_holds_no_buffer(sender: BufferSender, receiver: BufferReceiver) -> None:
    buffer = share(sender, bytes(1000))
    sender.drop("other")
    assert len(shared_memory()) == 1  # `buffer` still refers to it
    del buffer
    assert shared_memory() == set()


def test_close_frees_all_memory(receiver: BufferReceiver) -> None:
    sender = BufferSender()
    buffer, read = share(sender, bytes(1000)), share(sender, bytes(1000))
    receive(receiver, read.handle)
    sender.probe("another")
    sender.close(0.01)
    receiver.close()
    assert shared_memory() == set()
    assert sender.share("other", [b"x"]) is None
    assert sender.probe("third") is None
    with pytest.raises(Unreadable):
        receive(receiver, buffer.handle)


def test_arrays_round_trip(sender: BufferSender, receiver: BufferReceiver) -> None:
    array = np.arange(50_000, dtype=np.float64)
    (part,) = receive(receiver, share(sender, array.view(np.uint8).data).handle)
    assert (part.view(np.float64) == array).all()


def test_a_receiver_keeps_a_limited_number_open(
    sender: BufferSender, receiver: BufferReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_copy, "_MAX_OPEN", 2)
    monkeypatch.setattr(zero_copy, "_MAX_OPEN_BYTES", 100_000)
    held = [share(sender, bytes([number]) * 2000) for number in range(4)]
    for number, buffer in enumerate(held):
        assert set(receive(receiver, buffer.handle)[0]) == {number}
    receive(receiver, share(sender, bytes(120_000)).handle)
    sender.close(0)
    del held
    assert len(shared_memory()) == 2
    receiver.close_idle()
    assert shared_memory() == set()


def test_an_open_memory_whose_descriptor_number_was_reused(sender: BufferSender, receiver: BufferReceiver) -> None:
    buffer = share(sender, b"a" * 1000)
    receive(receiver, buffer.handle)
    number = struct.unpack_from("<4sIi", buffer.handle)[2]
    sender.close(0)
    other = BufferSender()
    try:
        later = share(other, b"b" * 1000)
        assert struct.unpack_from("<4sIi", later.handle)[2] == number  # the lowest that is free
        assert receive(receiver, later.handle)[0].tobytes() == b"b" * 1000
    finally:
        other.close(0)
