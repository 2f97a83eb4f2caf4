"""PyTorch's own distributed tests over backend shm; `pytorch_suite` says how they are run and which do not apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraxis.launch import run
from tests.torch.pytorch_suite import NEEDS_FOUR_RANKS, NOT_FOR_SHM, of_all_ranks, run_tests

ENVIRONMENT = {"BACKEND": "gloo", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_three_ranks(tmp_path: Path) -> None:
    _assert_none_failed(3, {*NOT_FOR_SHM, *NEEDS_FOUR_RANKS}, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_four_ranks(tmp_path: Path) -> None:
    _assert_none_failed(4, {*NOT_FOR_SHM}, tmp_path)


def _assert_none_failed(size: int, left_out: set[str], folder: Path) -> None:
    ranks = run(run_tests, size, left_out, str(folder), timeout=280, env=ENVIRONMENT)
    outcomes = of_all_ranks(ranks)
    failed = {name: why for name, (outcome, why) in outcomes.items() if outcome == "failed"}
    assert not failed, "\n\n".join(f"{name}: {why}" for name, why in failed.items())
    # Were a decorator to skip everything one day, it would show.
    assert sum(outcome == "passed" for outcome, _ in outcomes.values()) >= 110
