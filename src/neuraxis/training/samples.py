"""How many samples the gradients of a step stand for: which forward passes took part in its backward passes.

A hook on the outputs of a forward pass tells when a backward pass goes through it, and keeps its `Forward` alive for as
long as its graph is. A forward pass is *open* while a backward pass may still come: until one has gone through it
that did not keep the graph, or until the graph is gone.
"""

from __future__ import annotations

__all__ = ["Forward", "Samples"]


class Forward:
    """A forward pass that may take part in a backward pass. `samples` is how much its batch counts."""

    __slots__ = ("_heard_in", "_open", "samples")

    def __init__(self, samples: float, open_ones: set[int]) -> None:
        self.samples = samples
        self._heard_in = -1  # the backward pass that last went through it
        self._open = open_ones
        open_ones.add(id(self))

    def heard_in(self, backward: int) -> bool:
        """Whether this backward pass was heard of before; it is from now on."""
        before, self._heard_in = self._heard_in, backward
        return before == backward

    def close(self) -> None:
        self._open.discard(id(self))

    __del__ = close


class Samples:
    """The account of one rank, from one exchange to the next. Between `begin` and `end` there is a backward pass."""

    def __init__(self) -> None:
        self._open: set[int] = set()  # by id: forward passes end in any thread, and a set's methods are atomic
        self._backwards = 0
        self._new_step()
        self._new_backward()

    def _new_step(self) -> None:
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
        return Forward(samples, self._open)

    def begin(self, keeps_graph: bool) -> None:
        """A backward pass begins; `keeps_graph`: and what it goes through can be gone through again."""
        self._keeps_graph = keeps_graph

    def hear(self, forward: Forward) -> None:
        """The backward pass goes through an output of this forward pass."""
        if not forward.heard_in(self._backwards):
            self._heard.append(forward)
            self._heard_samples += forward.samples

    def are_all_heard(self) -> bool:
        """Whether no other forward pass can take part in this backward pass: what it stands for is known."""
        return len(self._open) <= len(self._heard) and self._open <= {id(forward) for forward in self._heard}

    def so_far(self) -> float:
        """Of the step up to now; 1.0 where nothing is known of any forward pass.

        Where a backward pass was heard in no output (parameters were used in another way than by the model's forward,
        say), it stands for the forward passes since the last one.
        """
        if not (self._known or self._heard or self._new_ones):
            return 1.0
        return self._earlier + (self._heard_samples if self._heard else self._new_samples)

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
                forward.close()
        self._new_backward()
        self._backwards += 1

    def forget_step(self) -> None:
        """What there was has been sent, or is dropped."""
        self._new_step()
