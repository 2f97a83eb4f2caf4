"""Signals to the launcher reach the ranks, and the ranks end with the launcher."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.ranks.stopping import stop

READY = "print('ready', flush=True)\n"


def watchdog_of(launcher_pid: int) -> psutil.Process:
    (found,) = [
        process
        for process in psutil.Process(launcher_pid).children()
        if any(word.endswith("watchdog.py") for word in process.cmdline())
    ]
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ending_signals_are_forwarded(launch, number):
    script = launch.script(f"""
        def handler(number, frame):
            print("got", number, flush=True)
            sys.exit(0)
        signal.signal({int(number)}, handler)
        {READY.strip()}
        while True:
            signal.pause()
    """)
    job = launch.start("-n", "2", script)
    job.lines(2)
    job.popen.send_signal(number)
    status, out, err = job.end()
    assert status == 128 + number
    assert sorted(out.splitlines()) == [f"[rank {rank}] got {int(number)}" for rank in range(2)]
    assert number.name in err


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_other_signals_are_only_forwarded(launch, number):
    script = launch.script(f"""
        got = []
        signal.signal({int(number)}, lambda number, frame: got.append(number))
        {READY.strip()}
        while not got:
            time.sleep(0.01)
        print("got", *got)
    """)
    job = launch.start("-n", "2", script)
    job.lines(2)
    job.popen.send_signal(number)
    status, out, _ = job.end()
    assert status == 0
    assert sorted(out.splitlines()) == [f"[rank {rank}] got {int(number)}" for rank in range(2)]


def test_a_second_ctrl_c_kills_at_once(launch):
    script = launch.script("""
        signal.signal(signal.SIGINT, lambda number, frame: print("no", flush=True))
        print("ready", flush=True)
        while True:
            signal.pause()
    """)
    job = launch.start("-n", "2", "--grace", "1000", script)
    job.lines(2)
    job.popen.send_signal(signal.SIGINT)
    assert job.lines(2) == ["[rank 0] no\n", "[rank 1] no\n"]
    job.popen.send_signal(signal.SIGINT)
    assert job.end()[0] == 130


def test_the_grace_is_bounded(launch):
    script = launch.script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            signal.pause()
    """)
    job = launch.start("-n", "2", "--grace", "0.3", script)
    job.lines(2)
    job.popen.terminate()
    assert job.end()[0] == 128 + signal.SIGTERM


FAMILY = """
    child = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)"
    child += "\\nwhile True: signal.pause()"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.run([sys.executable, "-c", child])
"""


def test_kill_9_of_the_launcher_leaves_no_process(launch):
    job = launch.start("-n", "2", launch.script(FAMILY))
    job.lines(2)
    assert len(launch.processes()) == 6  # the launcher, its watchdog, two ranks, two children
    job.popen.kill()
    job.popen.wait(timeout=10)
    assert launch.all_gone()


def test_kill_9_of_launcher_and_guardian_leaves_no_rank(launch):
    job = launch.start("-n", "2", launch.script("print('ready', flush=True)\nsignal.pause()"))
    job.lines(2)
    watchdog = watchdog_of(job.popen.pid)
    # Stopped first, so that the launcher cannot notice before it is killed itself.
    stop(job.popen.pid)
    watchdog.kill()
    job.popen.kill()
    job.popen.wait(timeout=10)
    assert launch.all_gone()


def test_without_its_guardian_a_job_still_ends_normally(launch):
    job = launch.start("-n", "2", launch.script("print('ready', flush=True)\nsignal.pause()"))
    job.lines(2)
    watchdog_of(job.popen.pid).kill()
    job.popen.terminate()
    assert job.end()[0] == 128 + signal.SIGTERM
    assert launch.processes() == []
