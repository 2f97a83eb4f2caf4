"""Progress output of a run, and its spike count."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios

import numpy as np
import pytest

from neuraxis.network import Network
from neuraxis.network.models import spike_source
from neuraxis.progress import run_text
from neuraxis.simulation import Executor, ParallelExecutor, SequentialExecutor, Simulation
from neuraxis.simulation.executor import Recorded, merge_recorded

PLAIN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # what moves the cursor and colours the text
END = "-- the end --"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((200.0, 0.2, 0.1, 120_000), "200.0 ms of model time, 2 x real time, 1.2 M spikes/s"),
        ((12_345.6, 0.42, 1.0, 999), "12,345.6 ms of model time, 0.42 x real time, 999 spikes/s"),
        ((1.0, 0.001, 0.5, 499_700), "1.0 ms of model time, 0.002 x real time, 999 k spikes/s"),
        ((1.0, 0.001, 0.5, 499_800), "1.0 ms of model time, 0.002 x real time, 1 M spikes/s"),
        ((50.0, 10.0, 4.0, 0), "50.0 ms of model time, 2.5 x real time, 0 spikes/s"),
        ((1.0, 99.6, 1.0, 34_560_000_000), "1.0 ms of model time, 100 x real time, 35 G spikes/s"),
        ((0.0, 0.0, 0.0, 0), "0.0 ms of model time"),
    ],
)
def test_the_text_of_a_run(arguments: tuple[float, float, float, int], text: str) -> None:
    assert run_text(*arguments) == text


def test_shards_count_their_spikes_together() -> None:
    none = np.zeros(0, np.int64)
    merged = merge_recorded([Recorded(none, none, spikes=5), Recorded(none, none, spikes=7), Recorded(none, none)])
    assert merged.spikes == 12


def timed_spikes() -> Network:
    """Spikes at times that are given; only those of one population are recorded."""
    network = Network(dt_ms=0.1, seed=1)
    for name, n, every_ms in (("seen", 300, 2.0), ("unseen", 500, 1.0)):
        source = network.population(name, n, spike_source)
        times_ms = np.repeat(np.arange(every_ms, 20.5, every_ms), n)
        network.spikes(source, times_ms=times_ms, ids=np.tile(np.arange(n), len(times_ms) // n))
    network.record("seen")
    return network


@pytest.mark.parametrize("executor", [SequentialExecutor(), ParallelExecutor(2)], ids=["sequential", "parallel"])
def test_all_spikes_are_counted_recorded_or_not(executor: Executor) -> None:
    with Simulation(timed_spikes(), workers=executor.workers, executor=executor):
        counts = [executor.advance(until) for until in (45, 45, 104, 200)]
    # From step 1 to 45: 2 spikes of each that is seen and 4 of each that is not.
    assert [one.spikes for one in counts] == [2 * 300 + 4 * 500, 0, 3 * 300 + 6 * 500, 5 * 300 + 10 * 500]
    assert [len(one.steps) for one in counts] == [2 * 300, 0, 3 * 300, 5 * 300]


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    """Return the output of a run on a terminal of a given width, without cursor movements."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        with open(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            patch.setenv("TERM", "xterm")
            patch.delenv("COLUMNS", raising=False)
            with Simulation(timed_spikes()) as simulation:
                simulation.step(150)
            # A terminal delivers output with a delay: when this has arrived, everything has.
            print(END, file=terminal, flush=True)
            read = b""
            while END.encode() not in read:
                read += os.read(ours, 1 << 16)
            return PLAIN.sub("", read.decode())
    finally:
        os.close(ours)


def value(number: str, letter: str) -> float:
    return float(number) * {"": 1.0, " k": 1e3, " M": 1e6, " G": 1e9}[letter]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_model_time_and_speed_in_one_line(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    number = r"([0-9.e+-]+)((?: [kMG])?)"
    line = rf"running \S+ +15\.0 ms of model time, {number} x real time, {number} spikes/s +[0-9:-]+"
    text = drawn(monkeypatch, columns)
    found = re.search(line, text)
    assert found, text
    speed, spikes_per_second = value(*found.groups()[:2]), value(*found.groups()[2:])
    # However long it took: 7 spikes of 300 neurons and 15 of 500 in 15 ms, in numbers of two digits.
    assert spikes_per_second / speed == pytest.approx((7 * 300 + 15 * 500) / 0.015, rel=0.12)
