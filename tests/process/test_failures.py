"""One rank fails: the error names it and the reason, and the other ranks are ended."""

from __future__ import annotations

import re
import signal

import pytest


def test_exit_code_traceback_and_last_lines(launch):
    script = launch.script("""
        if os.environ["RANK"] != "1":
            signal.pause()
        for i in range(100):
            print("line", i)
        def inner():
            raise ValueError("the reason")
        inner()
    """)
    status, _, err = launch("-n", "3", script)
    assert status == 1
    before, _, summary = err.partition("\n\nneuraxis launch: ")
    assert before.splitlines()[0] == "[rank 1] Traceback (most recent call last):"
    assert "in inner" in before
    assert before.splitlines()[-1] == "[rank 1] ValueError: the reason"
    assert re.fullmatch(
        r"rank 1 \(pid \d+\) failed with exit code 1: ValueError: the reason\n"
        r"  ranks 0, 2 ended by the launcher, SIGTERM \(signal 15\)\n",
        summary,
    )


def test_the_last_lines_of_a_rank_that_ends_without_an_exception(launch):
    script = launch.script("""
        if os.environ["RANK"] != "1":
            signal.pause()
        for i in range(100):
            print("line", i)
        os._exit(3)
    """)
    status, _, err = launch("-n", "3", script)
    assert status == 3
    summary = err[err.index("neuraxis launch:") :]
    assert "rank 1 (pid " in summary
    assert "failed with exit code 3\n  its last lines:\n    line 80\n" in summary
    assert "line 99" in summary
    assert "line 50\n" not in summary


def test_one_traceback_and_one_line_for_ranks_that_lost_the_one_that_raised(launch):
    script = launch.script("""
        import neuraxis
        with neuraxis.DistributedContext() as context:
            if context.rank == 1:
                raise ValueError("the reason")
            context.world.barrier()
    """)
    status, _, err = launch("-n", "4", script)
    assert status == 1
    assert re.fullmatch(
        r"\[rank 1\] Traceback \(most recent call last\):\n"
        r"(\[rank 1\]   .*\n)+"
        r"\[rank 1\] ValueError: the reason\n"
        r"\n"
        r"neuraxis launch: rank 1 \(pid \d+\) failed with exit code 1: ValueError: the reason\n"
        r"  ranks 0, 2-3 failed too, exit code 1: PeerLost: rank 1 raised ValueError: the reason; noticed in .*\n",
        err,
    ), err


def test_the_same_traceback_of_all_ranks_is_written_once_and_another_one_too(launch):
    script = launch.script("""
        if os.environ["RANK"] == "2":
            while len([name for name in os.listdir() if name.startswith("done")]) < 2:
                pass
            time.sleep(0.3)
            raise KeyError("another")
        open("done" + os.environ["RANK"], "w").close()
        raise ValueError("the reason")
    """)
    status, _, err = launch("-n", "3", script)
    assert status == 1
    assert err.count("ValueError: the reason\n[") + err.count("] ValueError: the reason\n\n") == 1
    assert err.count("] KeyError: 'another'") == 1
    assert err.splitlines()[-1].endswith(
        "failed too, exit code 1: ValueError: the reason; rank 2 failed too, exit code 1: KeyError: 'another'"
    )


def test_a_traceback_that_is_caught_is_written_while_the_rank_goes_on(launch):
    script = launch.script("""
        import traceback
        try:
            raise ValueError("caught")
        except ValueError:
            traceback.print_exc()
        print("and on", file=sys.stderr)
        from neuraxis.errors import PeerLost
        try:
            raise PeerLost("rank 9 has gone", rank=9)
        except PeerLost:
            traceback.print_exc()
    """)
    status, _, err = launch("-n", "1", script)
    assert status == 0
    lines = err.splitlines()
    assert lines.index("[rank 0] ValueError: caught") < lines.index("[rank 0] and on")
    assert lines[-1] == "[rank 0] neuraxis.errors.PeerLost: rank 9 has gone"


@pytest.mark.parametrize("code", [3, 77])
def test_the_exit_code_is_the_ranks(launch, code):
    status, _, err = launch("-n", "2", launch.script(f"sys.exit({code} if os.environ['RANK'] == '0' else 0)"))
    assert status == code
    assert f"rank 0 (pid {err.split('(pid ')[1].split(')')[0]}) failed with exit code {code}" in err
    assert "  rank 1 finished with exit code 0" in err


def test_death_by_a_signal(launch):
    script = launch.script("if os.environ['RANK'] == '2': os.kill(os.getpid(), 9)\nsignal.pause()")
    status, _, err = launch("-n", "3", script)
    assert status == 128 + signal.SIGKILL
    assert "rank 2" in err
    assert "was killed by SIGKILL (signal 9)" in err
    assert "it wrote nothing" in err


def test_the_cause_is_named_rather_than_ranks_that_lost_a_peer(launch):
    # Rank 0 and 2 notice at once and exit before rank 1, which is the cause, has ended.
    script = launch.script("""
        from neuraxis.errors import PeerLost
        if os.environ["RANK"] == "1":
            open("failing", "w").close()
            time.sleep(0.6)
            raise KeyError("cause")
        while not os.path.exists("failing"):
            pass
        raise PeerLost("rank 1 has gone", rank=1)
    """)
    status, _, err = launch("-n", "3", script)
    assert status == 1
    assert "neuraxis launch: rank 1 (pid" in err
    assert "ranks 0, 2 failed too, exit code 1: PeerLost: rank 1 has gone" in err
    assert err.count("Traceback") == 1


def test_survivors_can_read_how_a_rank_died(launch):
    """A dead rank stays a zombie, with its exit status in /proc, until the others have ended too."""
    script = launch.script("""
        from pathlib import Path
        if os.environ["RANK"] == "0":
            Path("pid.new").write_text(str(os.getpid())); os.rename("pid.new", "pid")
            os._exit(7)
        while not os.path.exists("pid"):
            pass
        stat = Path("/proc", Path("pid").read_text(), "stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        time.sleep(0.5)  # long enough for a launcher to reap it, if it did
        print("status", int(stat.read_text().split()[51]) >> 8)
    """)
    status, out, _ = launch("-n", "2", script)
    assert status == 7
    assert "[rank 1] status 7" in out


def test_a_rank_that_ignores_sigterm_is_killed(launch):
    script = launch.script("""
        if os.environ["RANK"] == "0":
            while not os.path.exists("deaf"):
                pass
            sys.exit(4)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("deaf", "w").close()
        while True:
            signal.pause()
    """)
    status, _, err = launch("-n", "2", "--grace", "0.3", script)
    assert status == 4
    assert "rank 1 ended by the launcher, SIGKILL" in err


def test_grandchildren_have_time_to_clean_up(launch):
    """Grandchildren get a SIGTERM and the grace, also when their own rank has ended well before."""
    launch.script(
        """
        def clean(number, frame):
            time.sleep(0.2)
            print("cleaned", flush=True)
            sys.exit()
        signal.signal(signal.SIGTERM, clean)
        open("ready", "w").close()
        signal.pause()
        """,
        "child.py",
    )
    script = launch.script("""
        subprocess.Popen([sys.executable, "child.py"])
        while not os.path.exists("ready"):
            time.sleep(0.005)
        os._exit(0)
    """)
    assert launch("-n", "1", script) == (0, "[rank 0] cleaned\n", "")


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("status", [0, 5])
def test_grandchildren_are_ended_too(launch, deaf, status):
    """Also those of a rank that succeeded, and of the rank that failed."""
    script = launch.script(f"""
        child = "import signal; {"signal.signal(15, signal.SIG_IGN);" if deaf else ""} print(1, flush=True)"
        child += "\\nwhile True: signal.pause()"
        with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            os._exit({status} if os.environ["RANK"] == "0" else 0)
    """)
    assert launch("-n", "2", "--grace", "0.3", script)[0] == status
    assert launch.processes() == []
