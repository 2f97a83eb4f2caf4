"""Failures: a dead rank, a stuck rank and a mismatched call raise errors that name the rank; nothing leaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm import failures as liveness
from neuraxis.comm.backends.shm import memory as arena
from neuraxis.comm.backends.torch import TorchBackend
from neuraxis.comm.failures import ProcessExit, ProcessIdentity
from neuraxis.errors import BackendUnavailable, CollectiveMismatch, CollectiveTimeout, CommunicatorClosed, PeerLost
from tests.ranks.processes import Ranks, await_mark, free_port, mark, run_ranks

pytestmark = pytest.mark.alone

SIZE = 3
# Well before the deadline of a call, also on a machine with more to do than cores. The second that is promised is held
# against the median over many faults, in tests.comm.test_storm.
NOTICED_WITHIN_S = 10.0


def segments() -> list[str]:
    return sorted(path.name for path in arena.segment_folder().glob("neuraxis-*"))


def _call(pattern: str, rank: int, size: int, count: int) -> None:
    """One call of a pattern, with world rank 0 as the root."""
    data = np.full(count, float(rank + 1), np.float32)
    pieces = [np.full(count, float(rank * 10 + to), np.float32) for to in range(size)]
    room = [np.empty(count, np.float32) for _ in range(size)]
    if pattern == "barrier":
        dist.barrier()
    elif pattern == "broadcast":
        dist.broadcast(data, src=0)
    elif pattern == "reduce":
        dist.reduce(data, dst=0)
    elif pattern == "all_reduce":
        dist.all_reduce(data)
    elif pattern == "gather":
        dist.gather(data, room if rank == 0 else None, dst=0)
    elif pattern == "all_gather":
        dist.all_gather(room, data)
    elif pattern == "scatter":
        dist.scatter(data, pieces if rank == 0 else None, src=0)
    elif pattern == "all_to_all":
        dist.all_to_all(room, pieces)
    elif pattern == "reduce_scatter":
        dist.reduce_scatter(data, pieces)
    elif pattern == "send/recv":
        # A ring in which every rank waits for the victim, directly or through others.
        request = dist.isend(data, dst=(rank + 1) % size)
        dist.recv(room[0], src=(rank - 1) % size)
        request.wait()
    else:
        raise ValueError(pattern)


PATTERNS = [
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "gather",
    "all_gather",
    "scatter",
    "all_to_all",
    "reduce_scatter",
]


ROOTED = ["broadcast", "reduce", "gather", "scatter"]


def _survive(pattern: str, victim: int, before: int, count: int, inside: bool, backend: str) -> tuple[dict, float]:
    """Make calls until the victim dies in one; what the survivor saw, and when."""
    with dist.DistributedContext(backend=backend, timeout=30) as context:
        for _ in range(before):
            _call(pattern, context.rank, context.world_size, 4)
        if context.rank == victim:
            if inside:
                threading.Timer(0.05, _die).start()
                while True:
                    _call(pattern, context.rank, context.world_size, count)
            _die()
        with pytest.raises(PeerLost) as caught:
            _call_until_it_fails(pattern, context.rank, context.world_size, count)
        noticed = time.monotonic()
        assert isinstance(caught.value, ConnectionError)
        with pytest.raises(PeerLost):  # a group that lost a rank says so again
            _call(pattern, context.rank, context.world_size, count)
        fields = ("rank", "signal", "exit_code", "operation", "sequence")
        return {name: getattr(caught.value, name) for name in fields}, noticed


def _call_until_it_fails(pattern: str, rank: int, size: int, count: int) -> None:
    while True:
        _call(pattern, rank, size, count)


def _die() -> None:
    (Path(os.environ["NEURAXIS_TEST_FOLDER"]) / "died").write_text(repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def _check_survivors(ranks: Ranks, victim: int, operation: str) -> list[dict]:
    outcomes = ranks.outcomes()
    assert (ranks.folder / "died").exists(), "\n".join(outcome.output for outcome in outcomes)
    died = float((ranks.folder / "died").read_text())
    seen = []
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert outcome.status == -signal.SIGKILL
            continue
        assert outcome.error is None, outcome.output
        lost, noticed = outcome.value
        assert lost["rank"] == victim
        assert lost["signal"] == signal.SIGKILL
        assert lost["exit_code"] is None
        assert lost["operation"] == operation
        assert noticed - died < NOTICED_WITHIN_S, f"rank {rank} noticed after {noticed - died:.2f} s"
        seen.append(lost)
    return seen


# A pattern with a root loses the root (0) or another; in the others all ranks are alike.
VICTIMS = [(pattern, victim) for pattern in ROOTED for victim in (0, 2)]
VICTIMS += [(pattern, 2 * (number % 2)) for number, pattern in enumerate(p for p in PATTERNS if p not in ROOTED)]


@pytest.mark.parametrize(("pattern", "victim"), VICTIMS)
def test_killed_before_its_call(pattern: str, victim: int) -> None:
    """The others are in the pattern when the victim dies: operation `before` of the group."""
    before = 5
    with Ranks(_survive, SIZE, pattern, victim, before, 1000, False, "shm") as ranks:
        for lost in _check_survivors(ranks, victim, pattern):
            assert lost["sequence"] == before
    assert segments() == []


@pytest.mark.parametrize("pattern", ["broadcast", "all_reduce", "all_to_all", "reduce_scatter"])
def test_killed_in_the_middle_of_a_long_call(pattern: str) -> None:
    """Killed by a timer while it moves megabytes in many rounds."""
    with Ranks(_survive, SIZE, pattern, 1, 0, 3_000_000, True, "shm") as ranks:
        _check_survivors(ranks, 1, pattern)


def test_killed_under_gloo() -> None:
    """gloo's own error names no rank; ours names the rank and, on this host, its signal."""
    with Ranks(_survive, SIZE, "all_reduce", 1, 2, 1000, False, "gloo", torch=True) as ranks:
        outcomes = ranks.outcomes()
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].output
        assert (outcomes[rank].value[0]["rank"], outcomes[rank].value[0]["signal"]) == (1, signal.SIGKILL)


# The rank that ends, and how: an exception, an exit, or leaving before the others.
ENDS = [(0, "raises"), (1, "raises"), (2, "raises in a group"), (1, "raises in a call"), (1, "exits"), (0, "leaves")]
ENDS += [(1, "raises before finally"), (2, "raises in a group before finally")]  # which closes the groups
REASONS = {"raises": "raised KeyError: 'own'", "exits": "left by sys.exit(3)", "leaves": "has left this group"}


def _come_to_grief(backend: str, port: int) -> list[tuple[int, str, int | None]]:
    """Return the errors of this rank, case by case; nothing where it was the victim."""
    seen: list[tuple[int, str, int | None]] = []
    for victim, how in ENDS:
        try:
            with dist.DistributedContext(backend, f"tcp://127.0.0.1:{port}", timeout=30) as context:
                group = context.world if how == "raises" else dist.new_group()
                assert isinstance(group, dist.Communicator)
                group.barrier()
                if context.rank != victim:
                    group.all_reduce(np.ones(4))
                elif how == "exits":
                    sys.exit(3)
                elif how == "raises in a call":  # that no other rank makes, and that gloo cannot cancel
                    context.world.all_reduce(np.ones(4), async_op=True)
                    raise KeyError("own")
                elif how.endswith("finally"):
                    try:
                        raise KeyError("own")
                    finally:
                        if "group" in how:
                            group.close()
                        context.shutdown()
                elif how != "leaves":
                    raise KeyError("own")
        except PeerLost as error:
            seen.append((error.rank, error.reason, error.exit_code))
        except (KeyError, SystemExit):
            seen.append((-1, "", None))
        else:
            seen.append((-1, "", None))
    return seen


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_the_rank_that_raised_and_its_exception_are_named(backend: str) -> None:
    """Ranks that notice the loss leave, too, and gloo's first rank has the store: neither is named as the cause."""
    for rank, seen in enumerate(run_ranks(_come_to_grief, SIZE, backend, free_port(), torch=backend == "gloo")):
        for (victim, how), (lost, reason, exit_code) in zip(ENDS, seen, strict=True):
            if rank != victim:
                assert lost == victim, (rank, how, reason)
                assert reason.startswith(REASONS[how.split()[0]]), (rank, how, reason)
                assert exit_code == (3 if how == "exits" else None)


def _close_another_group(backend: str) -> tuple[int, int | None]:
    """Rank 0 notices in one group that rank 2 was killed, and closes another one, in which rank 1 waits for it."""
    with dist.DistributedContext(backend, timeout=30) as context:
        with_1, with_2 = dist.new_group([0, 1]), dist.new_group([0, 2])
        dist.barrier()
        if context.rank == 2:
            _die()
        with pytest.raises(PeerLost) as caught:
            dist.barrier(with_2 if context.rank == 0 else with_1)
        if context.rank == 0:
            assert isinstance(with_1, dist.Communicator)
            with_1.close()
            await_mark("noticed")
        mark("noticed")
        return caught.value.rank, caught.value.signal


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_closed_group_reports_a_loss_noticed_in_another_group(backend: str) -> None:
    with Ranks(_close_another_group, SIZE, backend, torch=backend == "gloo") as ranks:
        outcomes = ranks.outcomes()
    for rank in (0, 1):
        assert outcomes[rank].value == (2, signal.SIGKILL), outcomes[rank].output


def _look_when_a_survivor_has_ended() -> tuple[int, int | None] | None:
    """Rank 2 is ended by SIGTERM, rank 0 raises because of it and ends, and rank 1 looks for ended processes then."""
    with dist.DistributedContext("gloo", timeout=30) as context:
        backend = context.world.backend
        assert isinstance(backend, TorchBackend)
        dist.barrier()
        if context.rank == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        if context.rank == 0:
            await_mark("rank 1 looks")
            dist.barrier()  # raises PeerLost, with which this rank ends
        look = backend._watch.ended

        def look_when_rank_0_has_ended() -> dict[int, ProcessExit]:
            mark("rank 1 looks")
            deadline = time.monotonic() + 20
            while 0 not in look() and time.monotonic() < deadline:
                time.sleep(0.005)
            return look()

        backend._watch.ended = look_when_rank_0_has_ended  # type: ignore[method-assign]
        with pytest.raises(PeerLost) as caught:
            dist.barrier()
        return caught.value.rank, caught.value.signal


def test_a_survivor_that_ends_between_two_looks_is_not_the_cause() -> None:
    with Ranks(_look_when_a_survivor_has_ended, SIZE, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert (outcomes[0].status, outcomes[2].status) == (1, -signal.SIGTERM)
    assert outcomes[1].value == (2, signal.SIGTERM), outcomes[1].output


def _exit_without_a_word() -> tuple[int, int | None]:
    """Rank 0 loses rank 2 in a message, and ends by os._exit; rank 1 waits for a message of rank 0."""
    with dist.DistributedContext("gloo", timeout=30) as context:
        dist.barrier()
        if context.rank == 2:
            _die()
        backend = context.world.backend
        assert isinstance(backend, TorchBackend)
        deadline = time.monotonic() + 20
        while context.rank == 1 and 0 not in backend._watch.ended() and time.monotonic() < deadline:
            time.sleep(0.005)
        with pytest.raises(PeerLost) as caught:
            dist.recv(np.ones(4), src=2 if context.rank == 0 else 0)
        if context.rank == 0:
            os._exit(1)
        return caught.value.rank, caught.value.signal


def test_a_survivor_that_exits_without_a_last_message_is_not_the_cause() -> None:
    with Ranks(_exit_without_a_word, SIZE, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert outcomes[1].value == (2, signal.SIGKILL), outcomes[1].output


def _wait_for_a_rank_that_gave_up() -> tuple[int, int | None]:
    """Rank 0 has lost rank 2 in a collective, and keeps its connections until rank 1, which waits for it, noticed."""
    with dist.DistributedContext("gloo", timeout=60) as context:
        dist.barrier()
        if context.rank == 2:
            _die()
        call = (lambda: dist.recv(np.ones(4), src=0)) if context.rank else dist.barrier
        with pytest.raises(PeerLost) as caught:
            call()
        if context.rank == 0:
            await_mark("rank 1 noticed")
        mark("rank 1 noticed")
        return caught.value.rank, caught.value.signal


def test_a_message_of_a_rank_that_gave_up_is_not_waited_for_until_the_deadline() -> None:
    with Ranks(_wait_for_a_rank_that_gave_up, SIZE, torch=True) as ranks:
        for outcome in ranks.outcomes()[:2]:
            assert outcome.value == (2, signal.SIGKILL), outcome.output


def _start_anew_in_a_handler() -> str:
    """A context that is made and left while an older exception is being handled is not left because of that."""
    try:
        raise KeyError("of the past")
    except KeyError:
        context = dist.init_distributed("shm", timeout=30)
        dist.barrier()
        if context.rank == 1:
            context.shutdown()
            return ""
        with pytest.raises(PeerLost) as caught:
            dist.barrier()
        context.shutdown()
        return caught.value.reason


def test_an_exception_older_than_the_group_is_no_reason_to_leave_it() -> None:
    reported, _ = run_ranks(_start_anew_in_a_handler, 2)
    assert reported.startswith("has left this group")


def _receive_from_the_dead(victim: int) -> str:
    with dist.DistributedContext(backend="shm", timeout=30) as context:
        if context.rank == victim:
            dist.send(np.arange(10.0), dst=0)
            _die()
        if context.rank == 0:
            last_words = np.zeros(10)
            dist.recv(last_words, src=victim)
            assert last_words.tolist() == list(range(10))
            with pytest.raises(PeerLost) as caught:
                dist.recv(last_words, src=victim)
            assert (caught.value.rank, caught.value.signal) == (victim, signal.SIGKILL)
            with pytest.raises(PeerLost):  # larger than the ring, so it cannot just be left there
                dist.send(np.zeros(100_000), dst=victim)
            pending = dist.irecv(last_words, src=victim)
            assert pending.is_completed()
            assert isinstance(pending.exception(), PeerLost)
    return "survived"


def test_messages_of_a_dead_rank_are_received_before_its_loss_is_raised() -> None:
    with Ranks(_receive_from_the_dead, 2, 1) as ranks:
        outcomes = ranks.outcomes()
        assert outcomes[0].value == "survived", outcomes[0].output


def _half_a_message_from_the_dead() -> str:
    """Rank 1 dies within a message: a receive from any rank raises, and the next one receives from rank 2."""
    with dist.DistributedContext(backend="shm", timeout=30) as context:
        room = np.zeros(200_000)  # much more than a ring has room for
        if context.rank == 1:
            sending = dist.isend(np.ones(200_000), dst=0)
            await_mark("begun")
            sending.request.endpoint._closed = True  # type: ignore[attr-defined]  # the rest is never written
            mark("half of it")
            _die()
        if context.rank == 2:
            await_mark("noticed")
            dist.send(np.full(200_000, 2.0), dst=0)
            return "sent"
        mark("begun")
        await_mark("half of it")
        with pytest.raises(PeerLost) as caught:
            dist.recv(room)
        assert caught.value.rank == 1
        mark("noticed")
        assert dist.recv(room) == 2
        assert (room == 2).all()
    return "survived"


def test_half_a_message_of_the_dead_is_an_error_and_hides_no_other() -> None:
    with Ranks(_half_a_message_from_the_dead, 3) as ranks:
        outcomes = ranks.outcomes()
        assert outcomes[0].value == "survived", outcomes[0].output
        assert outcomes[2].value == "sent", outcomes[2].output


def _exit_with(code: int) -> int | None:
    with dist.DistributedContext(backend="shm", timeout=30) as context:
        if context.rank == 1:
            os._exit(code)
        with pytest.raises(PeerLost) as caught:
            dist.barrier()
        return caught.value.exit_code


def test_the_exit_code_is_reported() -> None:
    with Ranks(_exit_with, 2, 7) as ranks:
        assert ranks.outcomes()[0].value == 7


def test_a_process_that_cannot_be_watched_by_descriptor_is_seen_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the process is a zombie; and the other processes are still watched by descriptor."""
    children = [subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(int(input()))"], stdin=-1) for _ in "123"]
    real = os.pidfd_open

    def scarce(pid: int) -> int:
        if pid == children[0].pid:
            raise OSError(24, "Too many open files")
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", scarce)
    watch = liveness.ProcessWatch(
        {key: ProcessIdentity(child.pid, liveness._start_time(child.pid)) for key, child in enumerate(children)}
    )
    try:
        assert watch.ended() == {}
        assert sorted(watch._descriptors.values()) == [1, 2]
        for key in (0, 1):
            stdin = children[key].stdin
            assert stdin is not None
            stdin.write(b"%d\n" % (3 + key))
            stdin.flush()
        deadline = time.monotonic() + 30
        while len(watch.ended()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watch.ended() == {0: ProcessExit(exit_code=3), 1: ProcessExit(exit_code=4)}
    finally:
        watch.close()
        for child in children:
            child.kill()
            child.communicate()


def _leave_early() -> str:
    with dist.DistributedContext(backend="shm", timeout=30) as context:
        dist.barrier()
        if context.rank == 1:
            context.shutdown()
            mark("left")
            return "left"
        with pytest.raises(PeerLost, match="rank 1 has left this group") as caught:
            dist.barrier()
        return f"rank {caught.value.rank}"


def test_a_rank_that_has_shut_down_is_lost_to_the_others() -> None:
    with Ranks(_leave_early, 2) as ranks:
        values = [outcome.value for outcome in ranks.outcomes()]
    assert values == ["rank 1", "left"]


def _stop(victim: int, timeout: float) -> tuple[str, int, float] | None:
    with dist.DistributedContext(backend="shm", timeout=timeout) as context:
        dist.barrier()
        if context.rank == victim:
            mark("stopping")
            os.kill(os.getpid(), signal.SIGSTOP)
            return None
        started = time.monotonic()
        with pytest.raises(CollectiveTimeout) as caught:
            dist.all_reduce(np.ones(4))
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, PeerLost)
        return str(caught.value), caught.value.rank, time.monotonic() - started


def test_a_stopped_rank_is_reported_at_the_deadline() -> None:
    with Ranks(_stop, SIZE, 1, 1.5) as ranks:
        ranks.wait_for("stopping")
        for rank in (0, 2):
            ranks.processes[rank].wait(30)
        for rank in (0, 2):
            text, lost, waited = ranks._outcome(rank).value
            assert lost == 1
            assert "rank 1 did not arrive within 1.5 s" in text
            assert waited >= 1.5


MISMATCHES = {
    "another operation": ("all_reduce(float64[4], SUM)", "broadcast(float64[4], root 0)"),
    "another shape": ("all_reduce(float64[4], SUM)", "all_reduce(float64[5], SUM)"),
    "another dtype": ("all_reduce(float64[4], SUM)", "all_reduce(float32[4], SUM)"),
    "another reduction": ("all_reduce(float64[4], SUM)", "all_reduce(float64[4], MAX)"),
    "another root": ("broadcast(float64[4], root 0)", "broadcast(float64[4], root 1)"),
    "another length": ("broadcast(float64[4], root 0)", "broadcast(float64[6], root 0)"),
    "a barrier": ("all_reduce(float64[4], SUM)", "barrier()"),
}


def _make(call: str) -> None:
    name, _, rest = call.partition("(")
    if name == "barrier":
        dist.barrier()
        return
    dtype, _, rest = rest.partition("[")
    count = int(rest.partition("]")[0])
    data = np.ones(count, dtype)
    if name == "all_reduce":
        op = rest.rstrip(")").rpartition(" ")[2]
        dist.all_reduce(data, op=dist.ReduceOp[op])
    else:
        dist.broadcast(data, src=int(rest.rstrip(")")[-1]))


def _disagree(backend: str, cases: list[tuple[str, str]], port: int) -> list[tuple[str, str, int]]:
    seen = []
    for index, (usual, other) in enumerate(cases):
        # A new context in the same process after each error.
        with dist.DistributedContext(backend, f"tcp://127.0.0.1:{port}", timeout=20) as context:
            dist.barrier()
            with pytest.raises(CollectiveMismatch) as caught:
                _make(other if context.rank == 1 else usual)
            seen.append((caught.value.mine, caught.value.theirs, caught.value.rank))
            with pytest.raises(CollectiveMismatch):
                dist.barrier()
        check = np.full(3, float(index))
        with dist.DistributedContext(backend, f"tcp://127.0.0.1:{port}", timeout=20) as context:
            dist.all_reduce(check)
            assert check.tolist() == [3.0 * index] * 3
    return seen


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_calls_that_do_not_match_name_both_sides(backend: str) -> None:
    cases = list(MISMATCHES.values())
    outcomes = run_ranks(_disagree, SIZE, backend, cases, free_port(), torch=backend == "gloo")
    for rank, seen in enumerate(outcomes):
        for (usual, other), (mine, theirs, who) in zip(cases, seen, strict=True):
            assert (mine, theirs) == ((other, usual) if rank == 1 else (usual, other))
            assert who == 1 if rank != 1 else who in (0, 2)


def _uneven() -> str:
    with dist.DistributedContext("shm", timeout=20) as context:
        pieces = [np.zeros(3) for _ in range(context.world_size)]
        room = [np.zeros(3) for _ in range(context.world_size)]
        if context.rank == 0:
            pieces[1] = np.zeros(4)  # rank 1 expects 3
        with pytest.raises((CollectiveMismatch, PeerLost)) as caught:  # noqa: PT012  (in the one or in the other)
            dist.all_to_all(room, pieces)
            dist.barrier()
        return f"{type(caught.value).__name__}: {caught.value}"


def test_pieces_of_other_lengths_are_an_error_on_both_ends() -> None:
    first, second, third = run_ranks(_uneven, SIZE)
    assert first.startswith("CollectiveMismatch")
    assert second.startswith("CollectiveMismatch")
    assert "it sends this rank 32 bytes" in second
    assert "PeerLost" in third  # its own pieces were right; the others gave up


def _interrupt() -> str:
    with dist.DistributedContext("shm", timeout=30) as context:
        dist.barrier()
        if context.rank == 0:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                dist.barrier()
            with pytest.raises(CommunicatorClosed, match="interrupted"):
                dist.barrier()
            mark("interrupted")
            await_mark("let go")
            return "interrupted"
        await_mark("interrupted")
        dist.barrier()  # rank 0 had reached this operation before it was interrupted
        with pytest.raises(PeerLost, match="rank 0 raised KeyboardInterrupt"):
            dist.barrier()
        mark("let go")
        return "noticed"


def test_ctrl_c_interrupts_a_call_and_the_other_ranks_learn_of_it() -> None:
    assert run_ranks(_interrupt, 2) == ["interrupted", "noticed"]


# --- nothing stays behind ---


def _hold(how: str) -> None:
    context = dist.init_distributed("shm", timeout=30)
    group = dist.new_group([0, 1])
    if group:
        dist.all_reduce(np.ones(10), group=group)
    dist.all_reduce(np.ones(100_000))
    dist.barrier()
    if context.rank == 0:
        mark("ready")
    if how == "exception":
        raise RuntimeError("on purpose")
    if how == "exit":
        return
    signal.pause()


@pytest.mark.parametrize("how", ["exit", "exception", "SIGTERM", "SIGKILL"])
def test_no_segment_after_any_end(how: str) -> None:
    with Ranks(_hold, SIZE, how) as ranks:
        ranks.wait_for("ready")
        if how.startswith("SIG"):
            for process in ranks.processes.values():
                process.send_signal(getattr(signal, how))
        ranks.outcomes()
    assert segments() == []


def _segment_process(prelude: str = "") -> subprocess.Popen[str]:
    """A process that makes a segment, prints the name by which others attach, and waits."""
    code = (
        f"import sys; from neuraxis.comm.backends.shm import memory as arena\n{prelude}\n"
        "segment = arena.Segment.create(8192, 4096)\nprint(segment.name, flush=True); sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_segment_has_no_name_so_that_a_killed_owner_leaves_none() -> None:
    with _segment_process() as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        assert segments() == []
        attached = arena.Segment.attach(name)
        attached.close()
        path, device, inode, size = name.rsplit(" ", 3)
        for other in ((device, inode, "4096"), (device, str(int(inode) + 1), size), ("1", inode, size)):
            with pytest.raises(BackendUnavailable, match="it is another file"):
                arena.Segment.attach(" ".join((path, *other)))
        owner.kill()
        owner.wait()
    assert segments() == []
    with pytest.raises(BackendUnavailable, match="cannot be opened here"):
        arena.Segment.attach(name)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/mem", "../../etc/passwd", "/proc/1/fd/0/../../mem", "/dev/null"]
)
def test_a_file_that_is_no_segment_is_not_opened(path: str) -> None:
    state = os.stat("/etc/passwd")
    for name in (path, f"{path} {state.st_dev} {state.st_ino} {state.st_size}"):
        with pytest.raises(BackendUnavailable):
            arena.Segment.attach(name)


def test_any_file_behind_a_descriptor_is_no_segment(tmp_path: Path) -> None:
    """For example a file that reuses the descriptor number of a closed segment."""
    segment = arena.Segment.create(8192, 4096)
    name = segment.name
    with (tmp_path / "other").open("w+b") as other:
        other.truncate(8192)
        number = segment.descriptor
        segment.close()
        os.dup2(other.fileno(), number)
        try:
            with pytest.raises(BackendUnavailable, match="it is another file"):
                arena.Segment.attach(name)
        finally:
            os.close(number)


def test_a_named_segment_whose_owner_was_killed_is_swept_and_a_living_one_is_not() -> None:
    """Named segments are for folders where files without a name cannot be made."""
    with _segment_process("arena._open_unnamed = lambda folder: None") as owner:
        assert owner.stdout is not None
        name = Path(owner.stdout.readline().rsplit(" ", 3)[0]).name
        assert arena.sweep() == []
        assert segments() == [name]
        owner.kill()
        owner.wait()
        assert [path.name for path in arena.sweep()] == [name]
        assert segments() == []


def test_a_segment_is_for_its_user_alone() -> None:
    segment = arena.Segment.create(8192, 4096)
    try:
        assert segment.path.stat().st_mode & 0o077 == 0
    finally:
        segment.close()
    assert segments() == []


def _sum_of(value: float, rounds: int) -> float:
    with dist.DistributedContext("shm", timeout=30):
        data = np.zeros(1)
        for _ in range(rounds):
            data[:] = value
            dist.all_reduce(data)
        return float(data[0])


def test_two_jobs_never_meet() -> None:
    """Two jobs at once on one host, with the same MASTER_PORT, distinguished by their job names only."""
    port = free_port()
    with (
        Ranks(_sum_of, 2, 1.0, 200, port=port, job="one") as first,
        Ranks(_sum_of, 2, 100.0, 200, port=port, job="two") as second,
    ):
        assert [outcome.value for outcome in first.outcomes()] == [2.0, 2.0]
        assert [outcome.value for outcome in second.outcomes()] == [200.0, 200.0]


def _sleep_in_barrier() -> float:
    with dist.DistributedContext("shm", timeout=30) as context:
        dist.barrier()
        if context.rank == 0:
            time.sleep(2.0)
            dist.barrier()
            return 0.0
        before = time.process_time()
        dist.barrier()
        return time.process_time() - before


def test_an_idle_rank_burns_no_core() -> None:
    _, used = run_ranks(_sleep_in_barrier, 2)
    assert used < 0.5, f"{used:.2f} s of processor time in 2 s of waiting"
