from __future__ import annotations

import json

import pytest

from neuraxis.bench.brain import regions as bench_regions
from neuraxis.bench.brain.regions import (
    SIZES,
    RegionEntry,
    RegionResults,
    measure_regions,
    parse_numbers,
    report,
)
from neuraxis.errors import InvalidArgument
from tests.brain.test_brain import small


def entry(workers, seconds, fingerprint="f00", size="small", **fields):
    given = {"neurons": 2000, "synapses": 9000, "start_seconds": 1.5, "waiting": 0.25, "exchange": 0.03}
    given |= {"window_ms": 2.0, "window_us": 7.5, **fields}
    return RegionEntry(size=size, workers=workers, seconds=seconds, fingerprint=fingerprint, **given)


def results(*entries):
    return RegionResults(500.0, list(entries), {"small": "sequential: it is small"}, machine={"cpu": "abacus"})


def test_the_speedup_is_the_median_over_the_rounds():
    found = results(entry(1, [2.0, 4.0, 9.0]), entry(2, [1.0, 8.0, 3.0]), entry(3, [4.0, 4.0, 4.0]))
    alone, two, three = found.entries
    assert found.speedup(alone) == 1.0
    assert found.speedup(two) == 2.0  # of 2, 0.5 and 3
    assert found.speedup(three) == 1.0  # of 0.5, 1 and 2.25: slowdowns are reported, too
    assert found.speedup(entry(2, [4.0, 8.0, 18.0])) == 0.5


def test_each_size_is_compared_with_its_own_sequential_run():
    found = results(
        entry(1, [2.0], "a"), entry(2, [1.0], "a"), entry(1, [30.0], "b", "large"), entry(2, [10.0], "b", "large")
    )
    assert [found.speedup(one) for one in found.entries] == [1.0, 2.0, 1.0, 3.0]
    assert found.sound


def test_other_spikes_on_another_number_of_workers_are_not_sound():
    found = results(entry(1, [2.0], "a"), entry(2, [1.0], "b"))
    assert not found.sound
    assert "NOT SOUND" in report(found).as_text(targets=True)
    assert "NOT SOUND" not in report(results(entry(1, [2.0]), entry(2, [1.0]))).as_text(targets=True)


def test_tables_and_data():
    found = results(entry(1, [2.0, 4.0]), entry(2, [1.0, 1.0]))
    data = json.loads(json.dumps(report(found).as_data()))
    assert [one["speedup"] for one in data["entries"]] == [1.0, 3.0]
    assert [one["seconds_per_model_second"] for one in data["entries"]] == [6.0, 2.0]
    assert data["choices"] == {"small": "sequential: it is small"}
    for text in (report(found).as_text(targets=True), report(found).as_markdown()):
        assert "abacus" in text
        assert "it is small" in text
        assert "25%" in text
        assert "7.5" in text


@pytest.mark.parametrize(
    ("text", "numbers"), [("1", [1]), ("2", [1, 2]), ("4,2,2", [1, 2, 4]), (" 3 , 1", [1, 3]), ("5,1,3", [1, 3, 5])]
)
def test_the_sequential_run_is_always_there(text, numbers):
    assert parse_numbers(text, "--workers") == numbers


@pytest.mark.parametrize("text", ["", "two", "1,,2", "0", "2,-1", "1.5"])
def test_numbers_of_workers_that_cannot_be(text):
    with pytest.raises(InvalidArgument, match="--workers"):
        parse_numbers(text, "--workers")


def test_a_measurement(monkeypatch):
    """A small brain on one and two workers, by turns."""
    scales = []

    def tiny(seed, scale):
        scales.append(scale)
        return small(seed).spec()

    monkeypatch.setattr(bench_regions, "default_brain", tiny)
    reported = []
    found = measure_regions(["medium"], [1, 2], 20.0, 2, lambda done, total, what: reported.append((done, total, what)))
    assert scales == [SIZES["medium"]]
    assert found.sound
    assert [(one.size, one.workers, len(one.seconds)) for one in found.entries] == [("medium", 1, 2), ("medium", 2, 2)]
    alone, together = found.entries
    assert alone.fingerprint == together.fingerprint
    assert alone.neurons == together.neurons > 0
    assert alone.synapses == together.synapses > 0
    for one in found.entries:
        assert min(*one.seconds, one.start_seconds) > 0
        assert 0 <= one.waiting <= 1
        assert 0 <= one.exchange <= 1
        assert one.window_us >= 0
    assert together.window_ms > 0
    assert found.speedup(together) > 0
    assert "workers" in found.choices["medium"] or "sequential" in found.choices["medium"]
    assert [done for done, _, _ in reported] == list(range(6))
    assert {total for _, total, _ in reported} == {6}
    assert reported[0][2] == "medium, 1: starting"
    report(found).as_text(targets=True)
