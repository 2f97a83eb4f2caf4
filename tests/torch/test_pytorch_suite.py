"""PyTorch's own distributed tests over backend shm; `pytorch_suite` says how they are run and which do not apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraxis.launch import run
from tests.torch.pytorch_suite import NEEDS_FOUR_RANKS, of_all_ranks, run_tests

ENVIRONMENT = {"BACKEND": "gloo", "OMP_NUM_THREADS": "1"}


@pytest.mark.timeout(300)
def test_with_two_ranks(tmp_path: Path) -> None:
    assert _passed(2, tmp_path) == 102


@pytest.mark.timeout(300)
def test_with_three_ranks(tmp_path: Path) -> None:
    assert _passed(3, tmp_path) == 124


@pytest.mark.timeout(300)
def test_tests_that_need_four_ranks(tmp_path: Path) -> None:
    assert _passed(4, tmp_path, NEEDS_FOUR_RANKS) == len(NEEDS_FOUR_RANKS)


def _passed(size: int, folder: Path, only: set[str] | None = None) -> int:
    """Run the tests; none may fail. The number shows if a decorator skips more than it should."""
    ranks = run(run_tests, size, str(folder), only, timeout=280, env=ENVIRONMENT)
    outcomes = of_all_ranks(ranks)
    failed = {name: why for name, (outcome, why) in outcomes.items() if outcome == "failed"}
    assert not failed, "\n\n".join(f"{name}: {why}" for name, why in failed.items())
    return sum(outcome == "passed" for outcome, _ in outcomes.values())
