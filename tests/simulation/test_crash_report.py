"""Crash reports of workers, and the error of a killed worker."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from neuraxis.errors import ShardFailed
from neuraxis.simulation import Simulation
from neuraxis.simulation.crash_report import CRASH_REPORT_BYTES, CrashReport, CrashReportHandler, peak_memory_bytes
from tests.simulation.long_run import worker_pids
from tests.simulation.networks import driven


@pytest.fixture
def memory() -> Iterator[np.ndarray]:
    """Room for the notes of one worker, between two others that must stay as they are."""
    memory = np.zeros(3 * CRASH_REPORT_BYTES, np.uint8)
    memory[:CRASH_REPORT_BYTES] = memory[2 * CRASH_REPORT_BYTES :] = 0xAA
    yield memory
    assert (memory[:CRASH_REPORT_BYTES] == 0xAA).all()
    assert (memory[2 * CRASH_REPORT_BYTES :] == 0xAA).all()


def notes_in(memory: np.ndarray) -> CrashReport:
    return CrashReport(memory.ctypes.data + CRASH_REPORT_BYTES)


def test_an_empty_crash_report(memory: np.ndarray) -> None:
    assert notes_in(memory).lines() == []
    assert notes_in(memory).memory_bytes == 0


def test_another_process_reads_the_notes(memory: np.ndarray) -> None:
    notes = notes_in(memory)
    notes.write_line("first")
    notes.write_line("zweite, größer ✓")
    notes.write_memory()
    assert notes_in(memory).lines() == ["first", "zweite, größer ✓"]
    assert notes_in(memory).memory_bytes == pytest.approx(peak_memory_bytes(), rel=0.1)


def test_the_oldest_lines_go_when_there_is_no_room(memory: np.ndarray) -> None:
    notes = notes_in(memory)
    for i in range(200):
        notes.write_line(f"line {i} " + "x" * (i % 70))
    lines = notes.lines()
    assert lines == [f"line {i} " + "x" * (i % 70) for i in range(200 - len(lines), 200)]
    assert CRASH_REPORT_BYTES - 200 < len("\n".join(lines)) < CRASH_REPORT_BYTES


@pytest.mark.parametrize("character", ["x", "ä", "✓"])
def test_a_line_that_is_too_long_is_cut(memory: np.ndarray, character: str) -> None:
    notes = notes_in(memory)
    notes.write_line("short")
    notes.write_line("begin" + character * CRASH_REPORT_BYTES)
    assert len(notes.lines()) == 1
    assert notes.lines()[0].startswith("begin" + character * 1000)
    notes.write_line("the next")
    assert notes.lines() == ["the next"]


def test_notes_that_were_torn_are_read_as_far_as_they_go(memory: np.ndarray) -> None:
    """A worker can be killed between any two bytes."""
    notes = notes_in(memory)
    notes.write_line("whole")
    words = memory[CRASH_REPORT_BYTES : CRASH_REPORT_BYTES + 16].view(np.int64)
    for length in (-5, 2**40):
        words[1] = length
        assert len(notes.lines()) <= 1
    memory[CRASH_REPORT_BYTES + 16 : CRASH_REPORT_BYTES + 20] = 0xFF
    words[1] = 5
    assert len(notes.lines()) == 1


def test_log_records_are_noted(memory: np.ndarray) -> None:
    logger = logging.Logger("a.region", logging.DEBUG)
    logger.addHandler(CrashReportHandler(notes_in(memory)))
    logger.debug("not this")
    logger.info("has %d parts", 3)
    logger.error("two\nlines")
    lines = notes_in(memory).lines()
    assert [line.split(" ", 1)[1] for line in lines[:2]] == ["INFO a.region: has 3 parts", "ERROR a.region: two"]
    assert lines[2] == "lines"


def test_peak_memory_is_that_of_this_process() -> None:
    now = psutil.Process().memory_info().rss
    assert 0.3 * now < peak_memory_bytes() < 100 * now
    assert sys.platform != "win32"


def test_the_error_of_a_killed_worker_has_all_known_facts() -> None:
    with Simulation(driven(n=150), workers=2) as simulation:
        simulation.advance(100)
        pid = worker_pids(simulation)[1]
        rss = psutil.Process(pid).memory_info().rss
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ShardFailed) as caught:
            simulation.advance(100)
    error = caught.value
    first, memory, *rest = str(error).splitlines()
    assert first == "worker 1 (cells[75:150]) failed after step 100: signal SIGKILL"
    assert memory == f"its memory: {error.memory_bytes / 2**20:,.0f} MiB"
    assert rest[0] == "the last lines of its log:"
    assert "INFO neuraxis.worker: built 1,500 synapses onto 75 neurons" in rest[1]
    assert rest[-1].startswith("next: check dmesg for a lack of memory, and run again from the last saved")
    assert (error.worker, error.shard, error.step) == (1, "cells[75:150]", 100)
    assert (error.signal, error.exit_code, error.traceback) == (signal.SIGKILL, None, "")
    assert 0.5 * rss < error.memory_bytes < 10 * rss
    assert error.log == "\n".join(line.removeprefix("  ") for line in rest[1:-1])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ShardFailed
    assert str(again) == str(error)
    assert vars(again) == vars(error)
