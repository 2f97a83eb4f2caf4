"""Which samples the gradients of a step stand for."""

from __future__ import annotations

from neuraxis.training.samples import Samples


def one_pass(samples: Samples, *heard: object, keeps_graph: bool = False) -> float:
    samples.begin(keeps_graph)
    for forward in heard:
        samples.hear(forward)  # type: ignore[arg-type]
    stood_for = samples.so_far()
    samples.end()
    return stood_for


def test_what_was_heard_counts_once() -> None:
    samples = Samples()
    first, second = samples.forward(3.0), samples.forward(4.0)
    assert one_pass(samples, first, first) == 3.0
    assert one_pass(samples, second) == 7.0  # with what lies in .grad already
    samples.forget_step()
    assert one_pass(samples, samples.forward(2.0)) == 2.0


def test_where_nothing_was_heard_all_new_ones_count() -> None:
    samples = Samples()
    assert samples.so_far() == 1.0
    forward = samples.forward(3.0)
    assert one_pass(samples) == 3.0
    assert one_pass(samples, forward, keeps_graph=True) == 6.0


def test_it_is_known_when_all_are_heard_that_can_be() -> None:
    samples = Samples()
    forwards = [samples.forward(1.0) for _ in range(3)]
    samples.begin(keeps_graph=False)
    samples.hear(forwards[0])
    assert not samples.are_all_heard()
    samples.hear(forwards[2])
    assert not samples.are_all_heard()
    forwards[1] = forwards[2]  # its graph is gone
    assert samples.are_all_heard()


def test_forwards_of_before_are_waited_for() -> None:
    samples = Samples()
    kept, gone, later = (samples.forward(1.0) for _ in range(3))
    one_pass(samples, gone)
    one_pass(samples, kept, keeps_graph=True)
    samples.begin(keeps_graph=False)
    samples.hear(later)
    assert not samples.are_all_heard()  # the pass may yet go through the one whose graph was kept
    samples.hear(kept)
    assert samples.are_all_heard()  # and not through the one whose graph was not
