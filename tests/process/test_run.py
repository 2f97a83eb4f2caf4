"""`neuraxis.launch.run`: a function in N processes, from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from neuraxis.errors import InvalidArgument, LaunchError, LaunchTimeout, PeerLost, RankFailed
from neuraxis.launch import run

pytestmark = pytest.mark.usefixtures("no_leaks")


def rank() -> int:
    return int(os.environ["RANK"])


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.005)


# --- what ranks do ----------------------------------------------------------------------------------


def place(text: str) -> tuple[int, str, str, str | None, str]:
    return rank(), text, os.environ["WORLD_SIZE"], os.environ.get("EXTRA"), sys.stdin.read()


def large(data: bytes) -> bytes:
    return data + bytes([rank()])


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail(kind: str, folder: str) -> object:
    flag = f"{folder}/flag"
    if rank() != 1:
        if kind == "first of two":
            wait_for(flag)
            raise PeerLost("rank 1 has gone", rank=1)
        if kind in ("own exception", "exit without a word"):
            signal.pause()  # the others are ended; once per kind of failure is enough
        return None
    match kind:
        case "own exception":
            raise KeyError("reason", 5)
        case "unsendable exception":
            raise Unsendable(3, 4)
        case "first of two":
            Path(flag).touch()
            time.sleep(0.3)
            raise ZeroDivisionError("cause")
        case "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(3)
        case "exit without a word":
            os._exit(0)
        case "unpicklable":
            return lambda: None
        case "hanging thread":
            threading.Thread(target=threading.Event().wait).start()
            raise KeyError("thread")
    return None


def hang_on_rank_1(folder: str) -> int:
    if rank() == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    return rank()


def tell_pid_and_wait(folder: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    Path(folder, f"{os.getpid()}.new").write_text(str(child.pid))
    Path(folder, f"{os.getpid()}.new").rename(Path(folder, f"{os.getpid()}.pid"))
    signal.pause()


def speak() -> None:
    print("out of", rank())
    print("err of", rank(), file=sys.stderr)


def loaded() -> list[str]:
    return sorted({"numpy", "numba", "torch", "cyclopts"} & set(sys.modules))


# --- and what their caller sees ---------------------------------------------------------------------


def test_values_in_the_order_of_ranks():
    assert run(place, 3, "text", env={"EXTRA": "more"}) == [(r, "text", "3", "more", "") for r in range(3)]


def test_large_arguments_and_values():
    data = os.urandom(5_000_000)
    assert run(large, 2, data) == [data + b"\0", data + b"\1"]


def test_nothing_heavy_is_imported():
    assert run(loaded, 1) == [[]]


def test_a_rank_s_own_exception_with_its_traceback(tmp_path):
    with pytest.raises(KeyError) as caught:
        run(fail, 3, "own exception", str(tmp_path), timeout=30)
    assert caught.value.args == ("reason", 5)
    (note,) = caught.value.__notes__
    assert note.startswith("Raised in rank 1 of 3:\nTraceback")
    assert 'raise KeyError("reason", 5)' in note
    assert "worker.py" not in note


def test_the_cause_is_named_rather_than_ranks_that_lost_a_peer_earlier(tmp_path):
    with pytest.raises(ZeroDivisionError, match="cause"):
        run(fail, 3, "first of two", str(tmp_path), timeout=30)


@pytest.mark.parametrize(
    ("kind", "message", "code", "number"),
    [
        ("signal", r"rank 1 was killed by SIGKILL \(signal 9\)", None, 9),
        ("exit", "rank 1 ended with exit code 3", 3, None),
        ("exit without a word", "rank 1 ended with exit code 0 before it returned", 0, None),
        ("unpicklable", "rank 1 returned a value of type function that cannot be pickled", 1, None),
        ("unsendable exception", "rank 1 raised .*Unsendable: 3 and 4", 1, None),
    ],
)
def test_a_rank_without_an_exception_to_send(tmp_path, kind, message, code, number):
    with pytest.raises(RankFailed, match=message) as caught:
        run(fail, 2, kind, str(tmp_path), timeout=30)
    assert (caught.value.rank, caught.value.exit_code, caught.value.signal) == (1, code, number)


def test_an_exception_counts_even_if_a_thread_keeps_the_process(tmp_path):
    with pytest.raises(KeyError, match="thread"):
        run(fail, 2, "hanging thread", str(tmp_path), timeout=30, grace=0.5)


@pytest.mark.alone  # rank 0 must have returned by then
def test_timeout(tmp_path):
    with pytest.raises(LaunchTimeout, match=r"after 1\.5 s") as caught:
        run(hang_on_rank_1, 2, str(tmp_path), timeout=1.5, grace=0.2)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.ranks == (1,)


def test_unpicklable_arguments_are_refused_before_anything_starts():
    with pytest.raises(InvalidArgument, match="lambda"):
        run(lambda: None, 2)

    def inner() -> None: ...

    with pytest.raises(InvalidArgument, match="top level of a module"):
        run(inner, 2)
    with pytest.raises(InvalidArgument, match="argument 1 of place"):
        run(place, 2, "fine", threading.Lock())
    with pytest.raises(InvalidArgument, match="n is 0"):
        run(place, 0, "x")
    with pytest.raises(InvalidArgument, match="not callable"):
        run(3, 1)  # type: ignore[arg-type]


def test_output_with_and_without_prefix(capfd):
    run(speak, 2, prefix_output=True)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[rank 0] out of 0", "[rank 1] out of 1"]
    assert sorted(err.splitlines()) == ["[rank 0] err of 0", "[rank 1] err of 1"]
    run(speak, 1)
    assert capfd.readouterr() == ("out of 0\n", "err of 0\n")


def test_from_a_thread_and_with_the_users_handlers_kept():
    def handler(number: int, frame: object) -> None: ...

    old = signal.signal(signal.SIGTERM, handler)
    try:
        values: list[object] = []
        thread = threading.Thread(target=lambda: values.append(run(place, 2, "t")))
        thread.start()
        thread.join(timeout=30)
        assert values == [[(r, "t", "2", None, "") for r in range(2)]]
        run(place, 1, "u")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, old)


def pids(folder: Path, count: int) -> None:
    """Wait until `count` ranks have written their pids."""
    deadline = time.monotonic() + 30
    while len(list(folder.glob("*.pid"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


PARENT = """
import sys
sys.path[:] = {path!r}
from neuraxis.launch import run
from {module} import tell_pid_and_wait

if __name__ == "__main__":
    run(tell_pid_and_wait, 2, {folder!r})
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, -2)])
def test_all_ranks_end_with_their_parent(launch, tmp_path, number, status):
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(path=sys.path, module=__name__, folder=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, str(script)], env=launch.environment, stderr=subprocess.PIPE, text=True
    ) as parent:
        pids(tmp_path, 2)
        assert len(launch.processes()) == 6  # the parent, its watchdog, two ranks, two children
        parent.send_signal(number)
        assert parent.wait(timeout=30) == status
        assert launch.all_gone()
        assert ("KeyboardInterrupt" in parent.stderr.read()) == (number == signal.SIGINT)


def test_functions_and_values_of_the_main_module(tmp_path):
    script = tmp_path / "main.py"
    script.write_text("""
import os
from dataclasses import dataclass
from neuraxis.launch import run

@dataclass
class Point:
    x: int

def shift(point):
    return Point(point.x + int(os.environ["RANK"]))

if __name__ == "__main__":
    assert run(shift, 2, Point(5)) == [Point(5), Point(6)]
    print("equal")
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("equal\n", "")


def test_a_main_module_without_a_guard_gets_a_clear_error(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("from neuraxis.launch import run\ndef f(): return 1\nprint(run(f, 2))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert f"{LaunchError.__name__}: run() was called while a rank was importing" in done.stderr
    assert '`if __name__ == "__main__":`' in done.stderr
