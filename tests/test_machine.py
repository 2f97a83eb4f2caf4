"""What the machine gives to this process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neuraxis.machine import usable_cores


def test_at_least_one_and_no_more_than_there_are() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no processor affinity")
def test_affinity_counts() -> None:
    code = (
        "import os; from neuraxis.machine import usable_cores\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
