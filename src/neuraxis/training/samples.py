"""How many samples the gradients of a step stand for: which forward passes took part in its backward passes.

A hook on the outputs of a forward pass tells when a backward pass goes through it, and keeps its `Forward` alive for as
long as its graph is. A forward pass is *open* while a backward pass may still come: until one has gone through it
that did not keep the graph, or until the graph is gone.
"""

from __future__ import annotations

from weakref import ref

__all__ = ["Forward", "Samples"]

_MANY = 16


class Forward:
    """A forward pass that may take part in a backward pass. `samples` is how much its batch counts."""

    __slots__ = ("__weakref__", "heard_in", "is_open", "samples")

    def __init__(self, samples: float) -> None:
        self.samples = samples
        self.heard_in = -1  # the backward pass that last went through it
        self.is_open = True


class Samples:
    """The account of one rank, from one exchange to the next. Between `begin` and `end` there is a backward pass."""

    def __init__(self) -> None:
        self._forwards: list[ref[Forward]] = []  # all that are open, and some that were
        self._backwards = 0
        self.forget_step()
        self._new_backward()

    def forget_step(self) -> None:
        """What there was has been sent, or is dropped."""
        self._known = False
        self._earlier = 0.0  # of the backward passes before this one

    def _new_backward(self) -> None:
        self._heard: list[Forward] = []
        self._heard_samples = 0.0
        self._new_ones = 0
        self._new_samples = 0.0
        self._keeps_graph = False

    def forward(self, samples: float) -> Forward:
        """A forward pass begins."""
        self._new_ones += 1
        self._new_samples += samples
        forward = Forward(samples)
        if len(self._forwards) >= _MANY:  # no backward pass comes that would sort them out
            self._forget_closed()
        self._forwards.append(ref(forward))
        return forward

    def begin(self, keeps_graph: bool) -> None:
        """A backward pass begins; `keeps_graph`: and what it goes through can be gone through again."""
        self._keeps_graph = keeps_graph

    def hear(self, forward: Forward) -> None:
        """The backward pass goes through an output of this forward pass."""
        if forward.heard_in != self._backwards:
            forward.heard_in = self._backwards
            self._heard.append(forward)
            self._heard_samples += forward.samples

    def are_all_heard(self) -> bool:
        """Whether no other forward pass can take part in this backward pass: what it stands for is known."""
        self._forget_closed()
        forwards = (one() for one in self._forwards)
        return all(forward is None or forward.heard_in == self._backwards for forward in forwards)

    def so_far(self) -> float:
        """Of the step up to now; 1.0 where nothing is known of any forward pass.

        Where a backward pass was heard in no output (parameters were used in another way than by the model's forward,
        say), it stands for the forward passes since the last one.
        """
        if self._heard:
            return self._earlier + self._heard_samples
        return self._earlier + self._new_samples if self._known or self._new_ones else 1.0

    def end(self) -> None:
        """The backward pass is over."""
        if self._heard or self._new_ones:
            self._earlier = self.so_far()
            self._known = True
        self.forget_backward()

    def forget_backward(self) -> None:
        """As `end`; but the pass was left in the middle, or what it stood for has been sent."""
        if not self._keeps_graph:
            for forward in self._heard:
                forward.is_open = False
        self._forget_closed()
        self._new_backward()
        self._backwards += 1

    def _forget_closed(self) -> None:
        self._forwards = [one for one in self._forwards if (forward := one()) is not None and forward.is_open]
