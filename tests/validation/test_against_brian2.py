"""Examples of Brian2, written with `neuraxis.network.equations`, against what Brian2 computes.

`brian2_results.json` has Brian2's half, which `brian2_examples.py` writes; Brian2 needs NumPy 1 and is not installed
here. Brian2 computes in float64 and neuraxis in float32, so a spike near the threshold can move by a step, and chaotic
networks differ after a while: each test says how much.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.validation.brian2_examples import EXAMPLES

RESULTS: dict[str, Any] = json.loads(Path(__file__).with_name("brian2_results.json").read_text())


def pairs(result: dict[str, Any], until: int | None = None) -> set[tuple[int, int]]:
    found = zip(result["steps"], result["ids"], strict=True)
    return {(step, one) for step, one in found if until is None or step <= until}


def compare(title: str, got: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    here = EXAMPLES[title]().neuraxis()
    there = RESULTS[title]
    print(title)
    if "steps" in there:
        a, b = pairs(here), pairs(there)
        print("  spikes", len(a), len(b), "common", len(a & b))
        print("  first different", sorted(a ^ b)[:4])
    if "counts" in there:
        d = np.array(here["counts"]) - np.array(there["counts"])
        print("  counts", sum(here["counts"]), sum(there["counts"]), np.abs(d).max(), (d != 0).sum())
    if "trace" in there:
        x, y = np.array(here["trace"]), np.array(there["trace"])
        print("  trace", x.shape, y.shape)
        n = min(x.shape[1], y.shape[1])
        e = np.abs(x[:, :n] - y[:, :n])
        print(
            "  error max",
            e.max(),
            "median",
            np.median(e),
            "by time",
            [float(f"{v:.2g}") for v in e.max(axis=0)[:: max(1, n // 8)]],
        )
    return here, there
