"""A short, seeded storm of faults in each backend: every survivor names the rank that failed, and the reason."""

from __future__ import annotations

from statistics import median

import pytest

from tests.comm.storm import DEADLINE_S, storm


@pytest.mark.parametrize(("backend", "cases"), [("shm", 24), ("gloo", 10), ("mpi", 16), ("torch", 12)])
def test_every_survivor_names_the_cause(backend: str, cases: int) -> None:
    report = storm(backend, seed=17, cases=cases, timeout=110)
    assert report.cases == cases
    assert report.survivors >= cases
    assert not report.wrong, str(report)
    # On one host a loss is to be noticed within a second. A single latency includes the time for which a busy machine
    # keeps a rank from running; a failure detector that is too slow shows in the median as well.
    assert len(report.latencies_s) >= cases
    assert median(report.latencies_s) < 1.0, str(report)
    assert max(report.latencies_s) < DEADLINE_S / 2, str(report)
