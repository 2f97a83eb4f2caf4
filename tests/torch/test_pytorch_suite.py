"""PyTorch's own distributed tests over backend shm; `pytorch_suite` says how they are run and which do not apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraxis.launch import run
from tests.torch.pytorch_suite import (
    NEEDS_FOUR_RANKS,
    NOT_FOR_SHM,
    names_of_tests,
    of_all_ranks,
    run_tests,
)

ENVIRONMENT = {"BACKEND": "gloo", "OMP_NUM_THREADS": "1"}


@pytest.mark.timeout(300)
def test_with_three_ranks(tmp_path: Path) -> None:
    names = [name for name in names_of_tests() if name not in NOT_FOR_SHM and name not in NEEDS_FOUR_RANKS]
    _assert_none_failed(3, names, tmp_path, at_least=115)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_four_ranks(tmp_path: Path) -> None:
    _assert_none_failed(4, [name for name in names_of_tests() if name not in NOT_FOR_SHM], tmp_path, at_least=115)


def _assert_none_failed(size: int, names: list[str], folder: Path, at_least: int) -> None:
    """`at_least` so many tests passed: a decorator that came to skip everything would not go unnoticed."""
    outcomes = of_all_ranks(run(run_tests, size, names, str(folder), timeout=550, env=ENVIRONMENT))
    failed = {name: why for name, (outcome, why) in outcomes.items() if outcome == "failed"}
    assert not failed, "\n\n".join(f"{name}: {why}" for name, why in failed.items())
    assert sum(outcome == "passed" for outcome, _ in outcomes.values()) >= at_least
