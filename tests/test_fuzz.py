"""A short fuzzing run with a fixed seed, and a check that it detects violations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.timeout(300)
def test_no_decoder_crashes_hangs_or_raises_undocumented_errors() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "fuzz.py"), "--cases", "30000", "--seed", "17", "--json"],
        stdout=subprocess.PIPE,
        timeout=290,
    )
    found = json.loads(done.stdout)
    assert [failure for one in found["outcomes"] for failure in one["failures"]] == []
    assert done.returncode == 0
    assert found["cases"] >= 30000
    for one in found["outcomes"]:
        assert one["cases"] == one["decoded"] + one["refused"], one


# --- what it notices ----------------------------------------------------------------------------------------


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fuzz

    return fuzz


FAULTS = {
    "raises": ("raise KeyError(data)", "builtins.KeyError"),
    "crashes": ("os.abort()", "crashed: SIGABRT"),
    "allocates": ("bytearray(4 << 30)", "MemoryError"),
    "swallows": ("_swallow()", "more memory than its bound"),
    "exits": ("os._exit(3)", "ended with status 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_reported_with_its_input(tmp_path: Path, fault: str) -> None:
    """A decoder that goes wrong at every input with a zero in its first byte."""
    (tmp_path / "fuzz.py").write_text((BENCHMARKS / "fuzz.py").read_text())
    line, expected = FAULTS[fault]
    (tmp_path / "fuzz_targets.py").write_text(f"""
import os
from dataclasses import dataclass
from types import SimpleNamespace

class Refused(Exception):
    pass

def _swallow():
    try:
        bytearray(4 << 30)
    except MemoryError as error:
        raise Refused from error

def decode(data):
    if data[:1] == b"\\0":
        {line}
    raise Refused

def prepare(folder):
    return SimpleNamespace(corpus=[], decode=decode, allowed=(Refused,))

@dataclass
class Target:
    name: str = "faulty"
    share: int = 1
    process: str = "one"

    def prepare(self, folder):
        made = prepare(folder)
        made.corpus = _Corpus([b"abc"])
        return made

class _Corpus(list):
    def __iter__(self):  # which is tried before the cases, and is refused here
        return iter(())

TARGETS = {{"faulty": Target()}}
""")
    command = [sys.executable, str(tmp_path / "fuzz.py"), "--cases", "400"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert expected in done.stdout, done.stdout + done.stderr
    failed = [text for text in done.stdout.splitlines() if text.startswith("FAILED")]
    assert failed


def test_a_case_follows_from_its_number_alone(fuzz: ModuleType) -> None:
    corpus = [bytes(range(50)), b"another"]
    some = [fuzz.mutated(corpus, 5, "target", case) for case in range(200)]
    assert [fuzz.mutated(corpus, 5, "target", case) for case in reversed(range(200))] == some[::-1]
    assert len(set(some)) > 150
    assert fuzz.mutated(corpus, 6, "target", 0) != some[0] or fuzz.mutated(corpus, 6, "target", 1) != some[1]
