"""The samples that the gradients of a step represent."""

from __future__ import annotations

from neuraxis.training.parallel.weighting import SampleCounter


def one_pass(samples: SampleCounter, *heard: object, keeps_graph: bool = False) -> float:
    samples.begin(keeps_graph)
    for forward in heard:
        samples.mark_used(forward)  # type: ignore[arg-type]
    stood_for = samples.total()
    samples.end()
    return stood_for


def test_a_received_count_is_used_once() -> None:
    samples = SampleCounter()
    first, second = samples.forward(3.0), samples.forward(4.0)
    assert one_pass(samples, first, first) == 3.0
    assert one_pass(samples, second) == 7.0  # with what lies in .grad already
    samples.forget_step()
    assert one_pass(samples, samples.forward(2.0)) == 2.0


def test_without_received_counts_all_new_samples_count() -> None:
    samples = SampleCounter()
    assert samples.total() == 1.0
    forward = samples.forward(3.0)
    assert one_pass(samples) == 3.0
    assert one_pass(samples, forward, keeps_graph=True) == 6.0


def test_all_forwards_used_ignores_discarded_graphs() -> None:
    samples = SampleCounter()
    forwards = [samples.forward(1.0) for _ in range(3)]
    samples.begin(keeps_graph=False)
    samples.mark_used(forwards[0])
    assert not samples.all_forwards_used()
    samples.mark_used(forwards[2])
    assert not samples.all_forwards_used()
    forwards[1] = forwards[2]  # its graph is gone
    assert samples.all_forwards_used()


def test_forwards_of_before_are_waited_for() -> None:
    samples = SampleCounter()
    kept, gone, later = (samples.forward(1.0) for _ in range(3))
    one_pass(samples, gone)
    one_pass(samples, kept, keeps_graph=True)
    samples.begin(keeps_graph=False)
    samples.mark_used(later)
    assert not samples.all_forwards_used()  # the pass may yet go through the one whose graph was kept
    samples.mark_used(kept)
    assert samples.all_forwards_used()  # and not through the one whose graph was not
