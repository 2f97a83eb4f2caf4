"""--max-restarts: all ranks start again, from the script's own checkpoint."""

from __future__ import annotations

SCRIPT = """
    from pathlib import Path
    rank, attempt = os.environ["RANK"], os.environ["NEURAXIS_RESTART"]
    checkpoint = Path(f"checkpoint-{rank}")
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print("attempt", attempt, "from", done, os.environ["NEURAXIS_JOB"], os.environ["MASTER_PORT"], flush=True)
    checkpoint.write_text("5")
    if rank == "1" and attempt in FAILING:
        while not Path("checkpoint-0").exists():
            pass
        sys.exit(9)
    if attempt in FAILING:
        signal.pause()
"""


def test_success_at_the_second_attempt(launch):
    script = launch.script(SCRIPT.replace("FAILING", "('0',)"))
    status, out, err = launch("-n", "2", "--max-restarts", "3", "--no-prefix", script)
    assert status == 0
    words = [line.split() for line in out.splitlines()]
    assert sorted(" ".join(each[:4]) for each in words) == ["attempt 0 from 0"] * 2 + ["attempt 1 from 5"] * 2
    assert len({each[4] for each in words}) == 2, "a secret of its own for each attempt"
    assert "rank 1 (pid" in err
    assert "after the failure of rank 1: attempt 2 of 4" in err
    assert "attempt 3" not in err


def test_giving_up(launch):
    script = launch.script(SCRIPT.replace("FAILING", "('0', '1')"))
    status, out, err = launch("-n", "2", "--max-restarts", "1", script)
    assert status == 9
    assert len(out.splitlines()) == 4
    assert "attempt 2 of 2" in err
    assert "giving up after 2 attempts" in err


def test_an_interrupted_job_does_not_start_again(launch):
    script = launch.script("print('ready', os.environ['NEURAXIS_RESTART'], flush=True)\nsignal.pause()")
    job = launch.start("-n", "2", "--max-restarts", "5", script)
    job.lines(2)
    job.popen.terminate()
    status, out, _ = job.end()
    assert status == 143
    assert "ready 1" not in out
