"""The ranks' output: prefixes, whole lines, odd bytes, readers that leave."""

from __future__ import annotations

import os
import pty
import subprocess

import psutil
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.process.output import LineSplitter, Tail


@given(st.lists(st.text(alphabet="ab\r\n", max_size=6).map(str.encode)))
def test_a_splitter_loses_nothing_and_cuts_only_at_line_ends(chunks):
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    rest = splitter.finish()
    assert b"".join(lines) + rest == b"".join(chunks)
    assert all(line.endswith((b"\n", b"\r")) and len(line.splitlines()) == 1 for line in lines)
    assert b"\n" not in rest
    assert b"\r" not in rest[:-1]


def test_a_tail_keeps_a_long_traceback_whole():
    tail = Tail()
    for line in [b"x"] * 200 + [b"Traceback (most recent call last):"] + [b'  File "y"'] * 60 + [b"ValueError: z"]:
        tail.add(line)
    lines = tail.lines()
    assert lines[0] == "Traceback (most recent call last):"
    assert len(lines) == 62
    assert tail.last_error() == "ValueError: z"


def test_lines_of_many_ranks_stay_whole(launch):
    script = launch.script("""
        rank = os.environ["RANK"]
        for i in range(300):
            for part in (f"rank{rank} ", "x" * (i * 7), f" {i}", "\\n"):
                os.write(1 + i % 2, part.encode())
    """)
    status, out, _ = launch("-n", "6", script, stderr=subprocess.STDOUT)
    assert status == 0
    lines = out.splitlines()
    expected = {f"[rank {r}] rank{r} {'x' * (i * 7)} {i}" for r in range(6) for i in range(300)}
    assert len(lines) == len(expected)
    assert set(lines) == expected
    for rank in range(6):
        for stream in (0, 1):
            own = [int(line.split()[-1]) for line in lines if line.startswith(f"[rank {rank}]")]
            own = [i for i in own if i % 2 == stream]
            assert own == sorted(own)


def test_streams_stay_apart(launch):
    script = launch.script("print('out'); print('err', file=sys.stderr)")
    assert launch("-n", "1", script) == (0, "[rank 0] out\n", "[rank 0] err\n")
    assert launch("-n", "1", "--no-prefix", script) == (0, "out\n", "err\n")


def test_odd_bytes_progress_bars_and_half_lines(launch):
    script = launch.script(r"os.write(1, b'\r10%\r20%\r\n\xff\xfe\n\nhalf')")
    status, out, _ = launch("-n", "1", script, text=False, errors=None)
    assert status == 0
    assert out == b"[rank 0] 10%\n[rank 0] 20%\n[rank 0] \xff\xfe\n[rank 0] \n[rank 0] half\n"


def test_a_rank_that_closes_its_output_and_one_that_floods(launch):
    script = launch.script("""
        if os.environ["RANK"] == "0":
            os.close(1); os.close(2)
        else:
            sys.stdout.write("y" * 3_000_000)
    """)
    status, out, _ = launch("-n", "2", script)
    assert status == 0
    assert sum(line.count("y") for line in out.splitlines()) == 3_000_000
    assert all(line.startswith("[rank 1] y") for line in out.splitlines())


def test_a_reader_that_leaves_ends_the_job(launch):
    script = launch.script("while True: print('line')")
    job = launch.start("-n", "2", script)
    assert job.line().endswith("line\n")
    job.popen.stdout.close()
    assert job.popen.wait(timeout=30) == 128 + 13
    assert "Traceback" not in job.popen.stderr.read()


def test_a_reader_that_stops_does_not_keep_signals_away(launch):
    script = launch.script("while True: print('z' * 1000)")
    job = launch.start("-n", "2", "--grace", "0.5", script)
    job.line()  # and no more: the pipe fills, then the launcher's own queue
    while launch.processes() and sum(map(_sleeps, launch.processes("script.py"))) < 2:
        pass
    job.popen.terminate()
    status, _, _ = job.end()
    assert status == 128 + 15


def _sleeps(process):
    try:
        return process.status() == psutil.STATUS_SLEEPING
    except psutil.NoSuchProcess:
        return False


def test_colours_on_a_terminal_only(launch):
    script = launch.script("print('hello')")
    for no_colour, expected in (("", b"\x1b[36m[rank 0] \x1b[0mhello"), ("1", b"[rank 0] hello")):
        launch.environment["NO_COLOR"] = no_colour
        ours, theirs = pty.openpty()
        launch.environment["TERM"] = "xterm"
        job = launch.start("-n", "1", script, stdout=theirs)
        os.close(theirs)
        assert os.read(ours, 4096).startswith(expected)
        assert job.popen.wait(timeout=30) == 0
        os.close(ours)
