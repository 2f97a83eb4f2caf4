"""`neuraxis.launch.Team`: long-lived workers that receive commands as messages."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from neuraxis.errors import (
    InvalidArgument,
    InvalidType,
    LaunchTimeout,
    LineClosed,
    LineTimeout,
    PeerLost,
    WorkerFailed,
)
from neuraxis.launch import Team
from tests.process import team_functions as functions

pytestmark = pytest.mark.usefixtures("no_leaks")

LIMIT_S = 30  # for expected events: a test that waits longer has failed


def gone(team: Team) -> bool:
    return not any(psutil.pid_exists(pid) for pid in team.pids)


def wait_until_dead(pid: int) -> None:
    process = psutil.Process(pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        pass


# --- messages ---------------------------------------------------------------------------------------


def test_each_worker_has_its_rank_its_arguments_and_its_messages():
    with Team(functions.echo, 3, "one", 2, env={"EXTRA": "more"}) as team:
        assert team.n == len(set(team.pids)) == 3
        assert team.gather(LIMIT_S) == [(rank, 3, ("one", 2), str(rank), "more") for rank in range(3)]
        for rank in (2, 0, 1):
            team.send(rank, f"for {rank}")
        assert sorted(team.receive(timeout=LIMIT_S) for _ in range(3)) == [(r, (r, f"for {r}")) for r in range(3)]
        team.broadcast({"all": None})
        assert team.gather(LIMIT_S) == [(rank, {"all": None}) for rank in range(3)]
        for number in range(5):
            team.send(1, number)
        assert [team.receive([1], LIMIT_S) for _ in range(5)] == [(1, (1, number)) for number in range(5)]
    assert gone(team)


def test_only_the_named_ranks_are_received_from_and_the_others_keep_theirs():
    with Team(functions.obey, 3) as team:
        team.send(0, "a")
        assert team.receive([0, 2], LIMIT_S) == (0, (0, "a"))
        team.broadcast("b")
        assert team.receive([2], LIMIT_S) == (2, (2, "b"))
        assert team.receive([1], LIMIT_S) == (1, (1, "b"))
        with pytest.raises(LineTimeout) as caught:
            team.receive([1, 2], timeout=0.01)
        assert caught.value.ranks == (1, 2)
        assert team.receive(timeout=LIMIT_S) == (0, (0, "b"))


def test_large_arrays_both_ways():
    with Team(functions.obey, 2) as team:
        arrays = [np.arange(6_250_000, dtype=np.float64) * (rank + 1) for rank in range(2)]
        for rank, array in enumerate(arrays):
            team.send(rank, {"array": array, "other": [array[:3], rank]})
            array[:] = -1  # it has been sent
        for rank, (answered, message) in enumerate(team.gather(LIMIT_S)):
            assert answered == rank
            assert message["array"].nbytes == 50_000_000
            assert np.array_equal(message["array"], np.arange(6_250_000, dtype=np.float64) * (rank + 1))
            assert message["other"] == [pytest.approx([0, rank + 1, 2 * rank + 2]), rank]
            message["array"][0] = 1.0  # it is ours


def test_arrays_of_every_layout():
    arrays = [
        np.empty((0, 3)),
        np.arange(200_000).reshape(100, 2000).T,
        np.arange(200_000)[::2],
        np.broadcast_to(np.arange(100_000), (2, 100_000)),
        np.array([{"an": "object"}, None], dtype=object),
    ]
    arrays[2].flags.writeable = False
    with Team(functions.obey, 1) as team:
        team.send(0, arrays)
        _, (_, results) = team.receive(timeout=LIMIT_S)
    for array, result in zip(arrays, results, strict=True):
        assert result.dtype == array.dtype
        assert np.array_equal(result, array)


def test_both_sides_may_send_before_they_receive():
    with Team(functions.flood, 2, 5, 1_000_000) as team:
        for _ in range(2):
            team.broadcast(bytes(10_000_000), timeout=LIMIT_S)
        for number in range(5):
            assert team.gather(LIMIT_S) == [bytes([rank, number]) * 1_000_000 for rank in range(2)]
        assert [team.gather(LIMIT_S) for _ in range(2)] == [[10_000_000] * 2] * 2


def test_a_wait_interrupted_within_a_message_resumes_later():
    with Team(functions.receive_in_bits, 1) as team:
        data = os.urandom(50_000_000)
        team.send(0, data)
        gave_up = 0
        while True:
            try:
                _, (worker_gave_up, result) = team.receive(timeout=0)
                break
            except LineTimeout:
                gave_up += 1
        assert gave_up > 0
        assert worker_gave_up > 0
        assert result == data


def test_a_message_that_timed_out_is_sent_later_unchanged():
    with Team(functions.obey, 2) as team:
        team.send(0, "wait for a signal")
        assert team.receive(timeout=LIMIT_S) == (0, "waiting")
        array = np.ones(1_000_000)
        with pytest.raises(LineTimeout, match=r"not received within 1\.0 s.*rank 0 of 2") as caught:
            team.broadcast([array], timeout=1.0)
        assert caught.value.ranks == (0,)
        array[:] = 2
        os.kill(team.pids[0], signal.SIGUSR1)
        team.send(0, "next")
        assert all((message[0] == 1).all() for _, message in team.gather(LIMIT_S))
        assert team.receive(timeout=LIMIT_S) == (0, (0, "next"))


def test_a_worker_can_poll_for_messages_and_for_closing(capfd):
    with Team(functions.look_before_receiving, 1) as team:
        assert team.receive(timeout=LIMIT_S) == (0, False)
        team.send(0, "something")
        assert team.receive(timeout=LIMIT_S) == (0, "something")
    assert team._members[0].finished  # by itself: it has seen the end, and was not ended
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_returns_leaves_its_messages():
    with Team(functions.return_at_once, 2) as team:
        for pid in team.pids:
            wait_until_dead(pid)
        assert team.gather(LIMIT_S) == [0, 1]
        for call in (team.receive, team.gather, lambda: team.send(1, "x"), lambda: team.broadcast("x")):
            with pytest.raises(LineClosed, match="has returned"):
                call()


def test_wrong_arguments():
    with pytest.raises(InvalidArgument, match="n is 0"):
        Team(functions.obey, 0)
    with pytest.raises(InvalidArgument, match="grace is -1"):
        Team(functions.obey, 1, grace=-1)
    with pytest.raises(InvalidArgument, match="lambda"):
        Team(lambda line: None, 1)
    with Team(functions.obey, 2) as team:
        for rank in (-1, 2):
            with pytest.raises(InvalidArgument, match=f"rank is {rank}. .* 0 to 1"):
                team.send(rank, "x")
        with pytest.raises(InvalidArgument, match=r"ranks is empty"):
            team.receive([])
        with pytest.raises(InvalidType, match="a lock, cannot be pickled"):
            team.send(0, threading.Lock())
        team.broadcast(functions.FailsToUnpickle)  # the class itself is fine
        assert team.gather(LIMIT_S) == [(rank, functions.FailsToUnpickle) for rank in range(2)]


def test_workers_close_their_sockets(capfd):
    with Team(functions.echo, 1, env={"EXTRA": "", "PYTHONWARNINGS": "error"}) as team:
        team.gather(LIMIT_S)
    assert capfd.readouterr().err == ""


def test_output_is_passed_through(capfd):
    with Team(functions.obey, 2) as team:
        for rank in range(2):  # one after the other, or their words would mix
            team.send(rank, "print")
            assert team.receive(timeout=LIMIT_S) == (rank, "printed")
    assert capfd.readouterr() == ("out of 0\nout of 1\n", "err of 0\nerr of 1\n")


# --- failures ---------------------------------------------------------------------------------------


def every_call(team: Team) -> list[Callable[[], object]]:
    return [team.receive, team.gather, lambda: team.send(0, "x"), lambda: team.broadcast("x")]


def order_and_wait(team: Team, *orders: tuple[int, object]) -> None:
    """Send an order and wait; either call may raise, because the worker may fail before the order is sent."""
    for rank, command in orders:
        team.send(rank, command, timeout=LIMIT_S)
    team.receive(timeout=LIMIT_S)


def fail(command: object, rank: int = 1, n: int = 3) -> WorkerFailed:
    """Have one of the workers fail while the parent waits; all are gone then."""
    team = Team(functions.obey, n)
    with pytest.raises(WorkerFailed) as caught:
        order_and_wait(team, (rank, command))
    assert gone(team)
    for call in every_call(team):
        with pytest.raises(WorkerFailed, match=re.escape(str(caught.value))) as again:
            call()
        assert repr(again.value.__cause__) == repr(caught.value.__cause__)
    team.close()
    assert caught.value.rank == rank
    return caught.value


def test_a_worker_that_raises():
    error = fail("raise")
    assert re.search(r"rank 1 of 3 \(process \d+\) raised Own: \('the reason', 1\)", str(error))
    assert 'raise Own("the reason", line.rank)' in error.traceback
    assert error.traceback in error.__notes__[0] + "\n"
    assert "team_worker.py" not in error.traceback
    assert isinstance(error.__cause__, functions.Own)
    assert error.__cause__.args == ("the reason", 1)
    assert (error.exit_code, error.signal, error.last_words) == (1, None, "")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.__dict__) == (str(error), error.__dict__)


def test_a_worker_that_raises_an_unpicklable_exception():
    error = fail("raise unsendable", n=1, rank=0)
    assert "raised _obey.<locals>.Local: far away" in str(error)
    assert 'raise Local("far away")' in error.traceback
    assert error.__cause__ is None


def test_an_exception_counts_even_if_a_thread_keeps_the_process():
    assert "with a thread that stays" in str(fail("thread", n=2))


@pytest.mark.parametrize(
    ("command", "message", "code", "number"),
    [
        (("exit", 3), "ended with exit code 3 before its function returned", 3, None),
        ("sys.exit", "ended with exit code 0 before its function returned", 0, None),
        ("leave a child that holds the line", "ended with exit code 0", 0, None),
        ("closes its line", "closed its connection", None, None),
        ("kill", r"was killed by SIGKILL \(signal 9\)", None, 9),
        ("crash", r"was killed by SIGSEGV \(signal 11\)", None, 11),
    ],
)
def test_a_worker_that_dies_while_the_team_waits(command, message, code, number):
    error = fail(command, n=2)
    assert re.search(message, str(error))
    assert (error.exit_code, error.signal, error.traceback) == (code, number, "")
    assert ("Segmentation fault" in error.last_words) == (command == "crash")
    assert ("team_functions.py" in error.last_words) == (command == "crash")


@pytest.mark.parametrize("call", [Team.receive, lambda team: team.send(0, "x")], ids=["receive", "send"])
def test_a_worker_that_died_before_the_call(call):
    team = Team(functions.obey, 2)
    os.kill(team.pids[1], signal.SIGKILL)
    wait_until_dead(team.pids[1])
    with pytest.raises(WorkerFailed) as caught:
        call(team)
    assert (caught.value.rank, caught.value.signal) == (1, 9)
    assert gone(team)


def test_a_message_is_cut_short_by_the_death_of_its_reader():
    team = Team(functions.obey, 1)
    with pytest.raises(WorkerFailed, match="exit code 5"):
        order_and_wait(team, (0, ("exit", 5)), (0, bytes(50_000_000)))


def test_the_cause_is_named_rather_than_workers_that_lost_a_peer_earlier():
    team = Team(functions.obey, 3)
    team.send(1, ("sleep", 0.2))
    team.send(1, "raise")
    with pytest.raises(WorkerFailed, match=r"rank 1 of 3 .*the reason"):
        order_and_wait(team, (0, ("lose", 1)), (2, ("lose and say otherwise", 1)))
    assert gone(team)


def test_a_worker_that_lost_a_peer_is_named_if_no_other_failed():
    error = fail(("lose", 0))
    assert isinstance(error.__cause__, PeerLost)


def test_the_first_of_several_deaths_is_named_even_if_unobserved():
    team = Team(functions.obey, 3)
    for rank, number in ((2, signal.SIGKILL), (0, signal.SIGTERM), (1, signal.SIGUSR1)):
        os.kill(team.pids[rank], number)
        wait_until_dead(team.pids[rank])
    with pytest.raises(WorkerFailed) as caught:
        team.gather()
    assert (caught.value.rank, caught.value.signal) == (2, signal.SIGKILL)


@pytest.mark.parametrize("call", [Team.gather, lambda team: team.broadcast("x")], ids=["gather", "broadcast"])
@pytest.mark.parametrize("first", [0, 2])
def test_a_death_and_an_exception_are_reported_in_order(first, call):
    team = Team(functions.obey, 3)
    team.send(0, "wait for a signal")
    assert team.receive(timeout=LIMIT_S) == (0, "waiting")
    team.send(0, "raise")
    for rank in (first, 2 - first):
        os.kill(team.pids[rank], signal.SIGUSR1)
        wait_until_dead(team.pids[rank])
    with pytest.raises(WorkerFailed) as caught:
        call(team)
    assert caught.value.rank == first


def test_workers_that_ignore_sigterm_and_grandchildren_are_killed():
    team = Team(functions.obey, 2)
    team.send(0, "child")
    _, child = team.receive(timeout=LIMIT_S)
    team.send(0, "deaf")
    assert team.receive(timeout=LIMIT_S) == (0, "deaf")
    with pytest.raises(WorkerFailed, match="exit code 4"):
        order_and_wait(team, (1, ("exit", 4)))
    assert gone(team)
    # The new parent of the child may not have reaped it yet.
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_message_that_cannot_be_unpickled():
    with Team(functions.obey, 2) as team:
        with pytest.raises(WorkerFailed, match=r"rank 0 of 2 .*invalid literal") as caught:
            order_and_wait(team, (0, functions.FailsToUnpickle()))
        assert isinstance(caught.value.__cause__, ValueError)


def test_workers_that_do_not_start():
    with pytest.raises(WorkerFailed, match=r"rank 0 of 1 .*invalid literal"):
        Team(functions.obey, 1, functions.FailsToUnpickle())
    with pytest.raises(LaunchTimeout, match=r"after 0\.3 s .*: 0, 1") as caught:
        Team(functions.obey, 2, functions.SlowToUnpickle(), start_timeout=0.3)
    assert caught.value.ranks == (0, 1)


# --- among themselves -------------------------------------------------------------------------------


def test_workers_are_ranks_of_a_distributed_context():
    team = Team(functions.reduce_with_shm, 2)
    for _ in range(2):
        team.broadcast("reduce")
        assert [array.tolist() for array in team.gather()] == [[11.0] * 5] * 2  # no limit: it may have to compile
    with pytest.raises(WorkerFailed, match=r"rank 1 of 2 .*exit code 3"):
        order_and_wait(team, (0, "reduce"), (1, "die"))
    assert gone(team)


# --- the end ----------------------------------------------------------------------------------------


def test_close_twice_and_no_use_after(capfd):
    team = Team(functions.obey, 2)
    team.broadcast("nobody will receive the result")
    team.close()
    assert gone(team)
    team.close()
    for call in every_call(team):
        with pytest.raises(LineClosed, match="closed"):
            call()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["busy", "deaf"])
def test_close_does_not_wait_longer_than_the_grace(command):
    with Team(functions.obey, 2, grace=0.1) as team:
        team.send(0, command)
        team.receive(timeout=LIMIT_S)
    assert gone(team)


def test_close_while_a_worker_sends():
    with Team(functions.flood, 2, 5, 5_000_000):
        pass


def test_errors_during_closing_are_printed(capfd):
    with Team(functions.raise_on_close, 1):
        pass
    err = capfd.readouterr().err
    assert "while the team was closing, rank 0 of 1" in err
    assert 'raise Own("too late")' in err


def test_a_team_outlives_the_thread_that_started_it():
    teams: list[Team] = []
    thread = threading.Thread(target=lambda: teams.append(Team(functions.obey, 2)))
    thread.start()
    thread.join()
    with teams[0] as team:
        team.broadcast("still there")
        assert team.gather(LIMIT_S) == [(0, "still there"), (1, "still there")]


# --- the parent's own end, and Ctrl-C ---------------------------------------------------------------


def test_ctrl_c_interrupts_a_call_and_nothing_else():
    handler = signal.getsignal(signal.SIGINT)
    with Team(functions.obey, 2) as team:
        with pytest.raises(KeyboardInterrupt):
            order_and_wait(team, (1, "interrupt"))
        assert signal.getsignal(signal.SIGINT) is handler
        team.broadcast("go on")
        assert team.gather(LIMIT_S) == [(0, "go on"), (1, "go on")]


def script(folder: Path, body: str) -> str:
    path = folder / "script.py"
    path.write_text(f"""
import os, signal, sys
sys.path[:] = {sys.path!r}
from neuraxis.launch import Team
from tests.process import team_functions as functions
{body}
""")
    return str(path)


def test_ctrl_c_at_any_moment_loses_nothing(tmp_path):
    body = """
class Pressed(Exception):
    pass

armed = []

def press(number, frame):
    if armed:
        armed.clear()
        raise Pressed

if __name__ == "__main__":
    signal.signal(signal.SIGINT, press)
    got, pressed = [], 0
    team = Team(functions.interrupt_often, 2, os.getpid())
    team.broadcast("begin")
    while len(got) < 20:
        try:
            armed.append(True)
            got.extend(map(team.receive, [[0]]))  # in one step, as far as signals are concerned
            armed.clear()
        except Pressed:
            pressed += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert got == [(0, bytes([number]) * 3_000_000) for number in range(20)]
    team.close()
    print("pressed" if pressed else "never pressed")
"""
    done = subprocess.run([sys.executable, script(tmp_path, body)], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.stdout, done.stderr) == ("pressed\n", "")


def test_ctrl_c_of_a_terminal_does_not_reach_the_workers(tmp_path):
    body = """
if __name__ == "__main__":
    with Team(functions.obey, 2) as team:
        try:
            print("ready", flush=True)
            team.receive()
        except KeyboardInterrupt:
            team.broadcast("go on")
            print(team.gather(), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, script(tmp_path, body)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.read() == "[(0, 'go on'), (1, 'go on')]\n"
        assert parent.wait(LIMIT_S) == 0


def test_kill_9_of_the_parent_leaves_no_process(launch, tmp_path):
    body = """
if __name__ == "__main__":
    team = Team(functions.obey, 2)
    team.send(0, "busy")
    team.receive()
    print("ready", flush=True)
    team.receive()
"""
    with subprocess.Popen(
        [sys.executable, script(tmp_path, body)], stdout=subprocess.PIPE, text=True, env=launch.environment
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert len(launch.processes()) == 4  # the parent, its watchdog, two workers
        parent.kill()
        parent.wait(LIMIT_S)
        assert launch.all_gone()


def test_functions_and_messages_of_the_main_module(tmp_path):
    body = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def shift(line):
    while True:
        line.send(Point(line.receive().x + line.rank))

if __name__ == "__main__":
    with Team(shift, 2) as team, Team(functions.obey, 1) as other:
        team.broadcast(Point(5))
        other.send(0, Point(7))
        print(team.gather() == [Point(5), Point(6)], other.receive() == (0, (0, Point(7))))
"""
    done = subprocess.run([sys.executable, script(tmp_path, body)], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_a_main_module_without_a_guard_gets_a_clear_error(tmp_path):
    body = "def f(line): pass\nTeam(f, 2)"
    done = subprocess.run([sys.executable, script(tmp_path, body)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "Team() was called while a rank was importing" in done.stderr
