"""A dead rank is an error, a stuck one at its deadline, a wrong call at once; and nothing stays behind."""

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
from neuraxis.comm import arena
from neuraxis.errors import CollectiveMismatch, CollectiveTimeout, CommunicatorClosed, PeerLost
from tests.comm.ranks import Ranks, await_mark, free_port, mark, run_ranks

pytestmark = pytest.mark.alone

SIZE = 3


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
        # A ring in which everybody waits for the victim, directly or through others.
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
        assert noticed - died < 1.0, f"rank {rank} noticed after {noticed - died:.2f} s"
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
    """gloo's own error names nobody; ours names the rank and its signal where the rank was on this host."""
    with Ranks(_survive, SIZE, "all_reduce", 1, 2, 1000, False, "gloo", torch=True) as ranks:
        outcomes = ranks.outcomes()
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].output
        assert (outcomes[rank].value[0]["rank"], outcomes[rank].value[0]["signal"]) == (1, signal.SIGKILL)


# Who comes to grief under gloo, and how: by an exception, by an end that it chose, or by leaving before the others.
ENDS = [(0, "raises"), (1, "raises"), (2, "raises in a group"), (1, "raises in a call"), (1, "exits"), (0, "leaves")]
REASONS = {"raises": "raised KeyError: 'own'", "exits": "left by sys.exit(3)", "leaves": "has left this group"}


def _come_to_grief(port: int) -> list[tuple[int, str, int | None]]:
    """What this rank was told, case by case; nothing where it was the victim."""
    seen: list[tuple[int, str, int | None]] = []
    for victim, how in ENDS:
        try:
            with dist.DistributedContext("gloo", f"tcp://127.0.0.1:{port}", timeout=30) as context:
                group = context.world if how == "raises" else dist.new_group()
                assert isinstance(group, dist.Communicator)
                group.barrier()
                if context.rank != victim:
                    group.all_reduce(np.ones(4))
                elif how == "exits":
                    sys.exit(3)
                elif how == "raises in a call":  # which nobody else comes to, and which gloo cannot be told to end
                    context.world.all_reduce(np.ones(4), async_op=True)
                    raise KeyError("own")
                elif how != "leaves":
                    raise KeyError("own")
        except PeerLost as error:
            seen.append((error.rank, error.reason, error.exit_code))
        except (KeyError, SystemExit):
            seen.append((-1, "", None))
        else:
            seen.append((-1, "", None))
    return seen


def test_gloo_names_the_rank_that_raised_and_what() -> None:
    """Whoever notices leaves, too, and the first rank has the store: none of them is named instead."""
    for rank, seen in enumerate(run_ranks(_come_to_grief, SIZE, free_port(), torch=True)):
        for (victim, how), (lost, reason, exit_code) in zip(ENDS, seen, strict=True):
            if rank != victim:
                assert lost == victim, (rank, how, reason)
                assert reason.startswith(REASONS[how.split()[0]]), (rank, how, reason)
                assert exit_code == (3 if how == "exits" else None)


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


def test_what_the_dead_had_sent_is_received_and_then_it_is_lost() -> None:
    with Ranks(_receive_from_the_dead, 2, 1) as ranks:
        outcomes = ranks.outcomes()
        assert outcomes[0].value == "survived", outcomes[0].output


def _half_a_message_from_the_dead() -> str:
    """Rank 1 dies in mid-message: who receives from anybody is told, and then receives from rank 2."""
    with dist.DistributedContext(backend="shm", timeout=30) as context:
        room = np.zeros(200_000)  # much more than a ring has room for
        if context.rank == 1:
            sending = dist.isend(np.ones(200_000), dst=0)
            await_mark("begun")
            sending.request.endpoint._closed = True  # type: ignore[attr-defined]  # the rest is never written
            mark("half of it")
            _die()
        if context.rank == 2:
            await_mark("told")
            dist.send(np.full(200_000, 2.0), dst=0)
            return "sent"
        mark("begun")
        await_mark("half of it")
        with pytest.raises(PeerLost) as caught:
            dist.recv(room)
        assert caught.value.rank == 1
        mark("told")
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


def test_exit_code_is_told() -> None:
    with Ranks(_exit_with, 2, 7) as ranks:
        assert ranks.outcomes()[0].value == 7


def _leave_early() -> str:
    with dist.DistributedContext(backend="shm", timeout=30) as context:
        dist.barrier()
        if context.rank == 1:
            context.shutdown()
            mark("left")
            return "left"
        with pytest.raises(PeerLost, match="rank 1 has shut down") as caught:
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
        dist.barrier()  # rank 0 had come to this one before it was interrupted
        with pytest.raises(PeerLost, match="gave up"):
            dist.barrier()
        mark("let go")
        return "told"


def test_ctrl_c_gets_through_and_the_others_are_told() -> None:
    assert run_ranks(_interrupt, 2) == ["interrupted", "told"]


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


def test_a_segment_whose_owner_was_killed_is_swept_and_a_living_one_is_not() -> None:
    code = (
        "import os, sys; from neuraxis.comm.arena import Segment\n"
        "print(Segment.create(8192, 4096).path.name, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
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
    """Two jobs at once on one host, with one MASTER_PORT between them, told apart by their names alone."""
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
