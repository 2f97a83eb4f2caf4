"""One step's gradients: ready, packed, sent, averaged.

A hook on each parameter counts; a bucket whose gradients are all there is packed and sent at once, in the order of the
plan, while the backward pass goes on. The last bucket goes when the pass is over, in the thread that runs it: a small
model is one bucket, and needs no other thread. It brings what each rank's samples were, hence the divisor.

How much a rank's batch counts is told by the outputs of its forward passes: a hook on them says that they take part
in this backward pass. No bucket is sent before every forward pass since the last one has been heard of, because what
is packed is multiplied by the sum. (A forward pass that takes no part at all costs the overlap of one step.)

The engine's `queue_callback` and its companions are not public in torch; its own DDP and FSDP use them too.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, StepInterrupted
from neuraxis.training.buckets import Bucket, BucketPlan, plan_buckets
from neuraxis.training.control_words import (
    CHANGED,
    SHADOW,
    ControlWords,
    check_all_have_changed,
    check_sizes_of_buffers,
)
from neuraxis.training.earlier_sums import EarlierSums
from neuraxis.training.packing import Packer
from neuraxis.training.samples import Forward, Samples
from neuraxis.training.sending import Sender
from neuraxis.training.shared_buffers import SharedBuffers

if TYPE_CHECKING:
    from neuraxis.training.compression import Codec

__all__ = ["Reducer", "ReducerOptions"]

_queue_callback = Variable._execution_engine.queue_callback
_backward_under_way = torch._C._current_graph_task_id  # -1 outside of one
_will_run = torch._C._will_engine_execute_node
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


_HOOK_NAME = "neuraxis"  # among the hooks of a tensor, where torch numbers its own


class _Hook(partial[None]):
    """The hook of an output, which torch need not warn of when it saves the output without it."""

    __torch_unserializable__ = True


class _Mode(enum.Enum):
    SEND = "the gradients are sent"
    GATHER = "they are added up in the buckets"
    KEEP = "they stay where they are"
    REST = "nobody asks for them"


_SEND, _GATHER, _KEEP, _REST = _Mode  # quicker to look up, in each step, than the attributes of an Enum


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients are averaged. `weighted`: by the ranks' samples, else summed."""

    weighted: bool = True
    overlap: bool = True
    first_bytes: int = 1 << 20
    bucket_bytes: int = 4 << 20


class Reducer:
    """Averages the gradients of `parameters` over `group`; of one rank's own blocks where `group` is None.

    `buffers` are made the same on all ranks after each exchange; `loss_scale` tells what gradients are multiplied by.

    Attributes:
        steps: how many exchanges were completed.
        latest_weights: the samples of each rank in the last of them; SHADOW for one that only took part.
        shadowing: whether this rank is one of those now (see `joining`).
        blocks: how many blocks of an accumulation there have been since (see `accumulation`).
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        group: Communicator | None,
        options: ReducerOptions,
        codec: Codec | None = None,
        buffers: SharedBuffers | None = None,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.group = group
        self.options = options
        self.steps = 0
        self.latest_weights: list[float] = []
        self.shadowing = False
        self.blocks = 0
        self._buffers = buffers
        self.sender = Sender(group, codec, options.overlap, options.weighted, loss_scale)
        self._rank, self._size = (0, 1) if group is None else (group.rank, group.size)
        self._mode = _REST if group is None else _SEND
        self._handles: list[Any] = []
        # Since the last exchange: samples of gradients that lie in .grad, and of blocks that lie in the buckets.
        self._samples = Samples()
        self._gathered, self._gathered_samples = False, 0.0
        self._passes_of_block: int | None = None
        self._brought = EarlierSums()
        self._failure: StepInterrupted | None = None
        self.plan: BucketPlan = plan_buckets([], 0, 0, 1, control_apart=True)
        self.plan_for(parameters)

    # --- the plan -------------------------------------------------------------------------------

    def plan_for(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Forget the old parameters and take care of these."""
        self._check_nothing_is_gathered()
        self.close_hooks()
        options = self.options
        before = self.plan
        self.plan = plan_buckets(
            parameters,
            options.first_bytes,
            options.bucket_bytes,
            self._size,
            control_apart=self.sender.codec is not None,
        )
        if self.sender.codec is not None:
            self.sender.codec.follow(before, self.plan)
        buckets = self.plan.buckets
        self._last = len(buckets) - 1
        # Where ranks' gradients are summed, it is by its memory that one is known to be the sum already.
        used_from = self.plan.used.storage_offset() if options.weighted else None
        self._packers = [*map(Packer, buckets[:-1]), Packer(buckets[-1], used_from)]
        self._none = bytes(len(parameters))
        self._fired, self._used = bytearray(self._none), bytearray(self._none)
        self._full = [len(bucket.parameters) for bucket in buckets]
        self._waiting = list(self._full)
        self._words = ControlWords(self.plan, self._rank, self._used)
        self._sends_early = options.overlap and self._last > 0 and self.group is not None
        self._leaves = [one.view_as(one).grad_fn.next_functions[0][0] for _, one in parameters]
        self._forget_backward()
        self.drop()
        for place, (_, parameter) in enumerate(parameters):
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(place)))

    def _check_nothing_is_gathered(self) -> None:
        if self._gathered:
            raise InvalidArgument(
                "the module was moved, or what is trained of it was changed, in the middle of an accumulation"
            )

    def close_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # --- a forward pass -------------------------------------------------------------------------

    def forward_begins(self, samples: float) -> Forward:
        """A forward pass whose output may be taken back; StepInterrupted if the last step was left half sent."""
        if self._begun and _backward_under_way() == -1:
            self._was_interrupted()
        if self._failure is not None:
            raise self._failure
        return self._samples.forward(samples)

    def watch(self, output: Tensor, forward: Forward) -> None:
        """Notice when a backward pass goes through this output of a forward pass."""
        node = output.grad_fn
        if node is None:
            return
        if type(output) is Tensor and output._backward_hooks is None:
            # What Tensor.register_hook does, without its handle, which takes most of the time.
            output._backward_hooks = OrderedDict(((_HOOK_NAME, _Hook(self._heard, forward)),))
            node._register_hook_dict(output)
        else:
            node.register_prehook(_Hook(self._heard, forward))

    def _heard(self, forward: Forward, _: Tensor | tuple[Tensor, ...] | None) -> None:
        if self._mode is _REST:
            return
        if not self._begun:
            if not self._fills_gradients():
                return
            self._begin()
        self._samples.hear(forward)
        if self._sends_early:
            self._send_what_is_full()

    def _fills_gradients(self) -> bool:
        """Whether this backward pass is one that fills .grad, and not asked for gradients by themselves."""
        try:
            return any(map(_will_run, self._leaves))
        except RuntimeError:  # what torch says of a leaf when it was asked for that leaf's gradient
            return False

    # --- a backward pass ------------------------------------------------------------------------

    def _hook(self, place: int) -> Callable[[Tensor], None]:
        bucket, fired, used, waiting = self.plan.bucket_of[place], self._fired, self._used, self._waiting

        def noted(_: Tensor) -> None:  # there are many of these calls, so they do no more than they must
            if not self._begun:
                if self._mode is _REST:
                    return
                self._begin()
            used[place] = 1

        def ready(_: Tensor) -> None:
            if not self._begun:
                self._begin()
            if fired[place]:
                self._fired_again(place)
                return
            fired[place] = used[place] = 1
            waiting[bucket] -= 1
            if not waiting[bucket]:
                self._send_what_is_full()

        return ready if self._sends_early else noted

    def _begin(self) -> None:
        self._begun = True
        self._samples.begin(_keeps_graph())
        if not self.options.weighted and self._rank > 0:  # rank 0 sends the sum, once for all
            self._brought.note(self.plan)
        _queue_callback(self._end)

    def _send_what_is_full(self) -> None:
        if self._next == self._last or self._waiting[self._next] or self._mode is not _SEND:
            return
        if not self._samples.are_all_heard():
            return
        with torch.no_grad():
            while self._next < self._last and not self._waiting[self._next]:
                self._send(self._next)

    def _send(self, index: int) -> None:
        bucket = self.plan.buckets[index]
        weight = self._weight()
        self._pack(bucket, weight)
        self._next = index + 1
        self.sender.start(bucket, self._gathered_samples + weight if self.options.weighted else 1.0)

    def _fired_again(self, place: int) -> None:
        if self.plan.bucket_of[place] >= self._next:
            return  # it is not sent yet, so what came now goes with it
        self._fail(
            f"the gradient of {self.plan.names[place]!r} was added to after it was sent: it is used in several parts "
            "of a backward pass (reentrant checkpointing?). Use checkpoint(..., use_reentrant=False), or "
            "DataParallel(..., overlap=False)"
        )

    def _end(self) -> None:
        """What a backward pass ends with."""
        if torch.is_grad_enabled():  # it was asked to create a graph, in which this has no part
            with torch.no_grad():
                self._end()
            return
        try:
            if self._passes_of_block is not None:
                self._count_pass_of_block(self._passes_of_block + 1)
            if self._mode is _SEND:
                self._exchange()
            elif self._mode is _GATHER:
                self._gather()
            else:
                self._samples.end()
        finally:
            self._forget_backward()

    def _count_pass_of_block(self, passes: int) -> None:
        self._passes_of_block = passes
        if passes > 1:
            raise InvalidArgument(
                "a second backward pass in one block of an accumulation: the block counts as one batch, once. Add the "
                "losses up, or give each backward pass a block of its own"
            )

    def _weight(self) -> float:
        """What this backward pass's gradients are multiplied by."""
        return self._samples.so_far() if self.options.weighted else 1.0

    def _forget_backward(self) -> None:
        self._begun = False
        self._next = 0
        self._samples.forget_backward()
        if self._sends_early:
            self._fired[:] = self._none
            self._waiting[:] = self._full
            self.sender.forget()

    def _pack(self, bucket: Bucket, weight: float) -> None:
        if self._brought:
            self._brought.take_off(bucket)
        self._packers[bucket.index].pack(weight, add=self._gathered)

    def _gather(self) -> None:
        weight = self._weight()
        for bucket in self.plan.buckets:
            self._pack(bucket, weight)
            for parameter in bucket.parameters:
                parameter.grad = None
        self._gathered = True
        self._gathered_samples += self._samples.so_far()
        self._samples.forget_step()

    # --- the exchange ---------------------------------------------------------------------------

    def _exchange(self) -> None:
        while self._next < self._last:
            self._send(self._next)
        samples = self._samples.so_far()
        self._pack(self.plan.buckets[self._last], samples if self.options.weighted else 1.0)
        weights = self._sum_tail(SHADOW if self.shadowing else self._gathered_samples + samples)
        factor = self._factor(weights)
        for packer in self._packers:
            packer.unpack(factor, self._words)
        self.drop()
        self._complete(weights)

    def _sum_tail(self, samples: float) -> list[float]:
        """Sum the last bucket; the samples of each rank."""
        self._words.write(samples, 0 if self._buffers is None else self._buffers.bytes())
        self.sender.finish(self.plan.buckets[self._last])
        weights = self._words.samples()
        if CHANGED in weights:
            assert self.group is not None
            check_all_have_changed(weights, self.group)
        if self._buffers is not None:
            check_sizes_of_buffers(self._words.buffer_sizes())
        return weights

    def release_gradients(self) -> None:
        """Let each .grad be memory of its own, which further exchanges leave alone."""
        for bucket in self.plan.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is view:
                    parameter.grad = view.clone()

    def shadow(self) -> list[float]:
        """Take part in the others' step with nothing; the samples of each rank."""
        weights = self._exchange_nothing(SHADOW)
        self._factor(weights)
        self.drop()
        self._forget_backward()
        with torch.no_grad():
            self._complete(weights)
        return weights

    def tell_of_change(self) -> None:
        """Before a plan for a changed model: ModelMismatch on all ranks unless every rank is here. Collective.

        One that is not is in its backward pass, or on the way to it: what it meets there is a step of the old plan.
        """
        self._check_nothing_is_gathered()
        exponent = self.sender.exponent
        self._exchange_nothing(CHANGED)
        self.sender.exponent = exponent  # which was no step's

    def _exchange_nothing(self, word: float) -> list[float]:
        """An exchange of zeros; what each rank says in place of its samples."""
        with torch.no_grad():
            for bucket in self.plan.buckets:
                bucket.values.zero_()
                if bucket.index < self._last:
                    self.sender.start(bucket, 0.0)
            self._used[:] = self._none
            return self._sum_tail(word)

    def _factor(self, weights: list[float]) -> float:
        """What the sum over ranks with so many samples is multiplied by."""
        samples = 0.0
        for weight in weights:
            if weight > 0.0:
                samples += weight
        if not samples or not self.options.weighted:
            return 1.0
        if self.sender.codec is not None:
            self.sender.divided_by(samples)
        return 1.0 / samples

    def _complete(self, weights: list[float]) -> None:
        self.steps += 1
        self.latest_weights = weights
        if self._buffers is not None:
            self._buffers.after_step(weights)

    # --- how backward passes are meant -------------------------------------------------------------

    @contextmanager
    def gathering(self, complete: bool) -> Iterator[None]:
        """Backward passes within it are blocks of an accumulation, of which the complete one sends."""
        before, self._mode = self._mode, _SEND if complete else _GATHER
        self._passes_of_block = 0
        try:
            yield
        finally:
            self._mode = before
            self._passes_of_block = None
            if self._begun and not self._next:  # the pass was left by an exception
                self._forget_backward()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Gradients of backward passes within it add up in .grad, and go with the next one outside."""
        before, self._mode = self._mode, _KEEP
        try:
            yield
        finally:
            self._mode = before

    @property
    def resting(self) -> bool:
        """Whether nothing is asked of backward passes now."""
        return self._mode is _REST

    @property
    def accumulating(self) -> bool:
        """Whether blocks of an accumulation are there that were not sent yet."""
        return self._gathered

    def drop(self) -> None:
        """Forget what was accumulated and not sent."""
        self.blocks = 0
        self._gathered, self._gathered_samples = False, 0.0
        self._samples.forget_step()
        self._brought.clear()
        self._used[:] = self._none

    # --- when things go wrong ---------------------------------------------------------------------

    def _was_interrupted(self) -> None:
        if self._next == 0:
            if not self._gathered:
                self.drop()
            self._forget_backward()
            return
        self._fail(
            "the last backward pass was left by an exception after some of its gradients had been sent; the ranks no "
            "longer agree, and the others were told so. Restart from a checkpoint"
        )

    def _fail(self, reason: str) -> None:
        """The gradients' group can no longer be used: let the others know, and say so from now on."""
        self._failure = StepInterrupted(reason)
        if self.group is not None:
            self.group.abort(because=self._failure)
        raise self._failure

    def close(self) -> None:
        """Let go of the parameters and of the group."""
        self.close_hooks()
        self.sender.close()
        if self.group is not None:
            self.group.destroy()
