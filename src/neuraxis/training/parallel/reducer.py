"""Gradient reduction of one training step: detect ready gradients, pack, send and average them.

A hook on each parameter counts ready gradients. A bucket with all its gradients is packed and sent at once, in the
order of the plan, while the backward pass continues. The last bucket is sent when the pass ends, in the thread that
runs it, so a small model, which is one bucket, needs no other thread. It carries the samples of each rank, hence the
divisor.

A hook on the outputs of each forward pass reports that they take part in this backward pass, which gives the weight of
this rank's gradients. No bucket is sent before every open forward pass has been reached, because gradients are
multiplied by the sum of their weights while packing. (A forward pass that takes no part at all costs the overlap of one
step.)

The autograd engine's `queue_callback` and the related functions below are not public in torch; its DDP and FSDP use
them too.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, StepInterrupted
from neuraxis.training.parallel.buckets import (
    MODEL_CHANGED,
    SHADOW,
    Bucket,
    BucketPlan,
    StepMetadata,
    check_all_ranks_changed,
    check_buffer_sizes,
    plan_buckets,
)
from neuraxis.training.parallel.packing import Packer
from neuraxis.training.parallel.sync_batch_norm import SharedBuffers
from neuraxis.training.parallel.weighting import Forward, SampleCounter

if TYPE_CHECKING:
    from neuraxis.training.parallel.compression import Codec

__all__ = ["Reducer", "ReducerOptions"]

_queue_callback = Variable._execution_engine.queue_callback
_current_backward = torch._C._current_graph_task_id  # -1 outside of a backward pass
_will_run = torch._C._will_engine_execute_node
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_version_of = attrgetter("_version")
_HOOK_NAME = "neuraxis"  # key among the hooks of a tensor; torch's keys are numbers


class _Hook(partial[None]):
    """Hook of an output; the attribute stops torch's warning that a saved output loses its hook."""

    __torch_unserializable__ = True


class _Mode(enum.Enum):
    SEND = "reduce gradients over all ranks"
    ACCUMULATE = "add gradients up in the buckets"
    LOCAL = "leave gradients in .grad"
    IDLE = "do nothing"


_SEND, _ACCUMULATE, _LOCAL, _IDLE = _Mode  # globals are faster to look up than Enum attributes


@dataclass(frozen=True)
class ReducerOptions:
    """Options of a `Reducer`. With `weighted` gradients are averaged by the ranks' samples, else summed."""

    weighted: bool = True
    overlap: bool = True
    first_bytes: int = 1 << 20
    bucket_bytes: int = 4 << 20


class Reducer:
    """Average the gradients of `parameters` over `group`, or with ``group=None`` over the micro-batches of one rank.

    `buffers` are synchronized after each exchange; `loss_scale` returns the current factor of the gradients.

    Attributes
    ----------
    steps : int
        Completed exchanges.
    latest_weights : list of float
        Samples of each rank in the last exchange, or SHADOW.
    shadowing : bool
        True while this rank makes shadow steps (see `joining`).
    blocks : int
        Micro-batches of the current accumulation.
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
        self._mode = _IDLE if group is None else _SEND
        self._handles: list[Any] = []
        # Since the last exchange: samples of gradients in .grad, and of micro-batches accumulated in the buckets.
        self._samples = SampleCounter()
        self._accumulated, self._accumulated_samples = False, 0.0
        self._passes_of_block: int | None = None
        self._already_reduced = ReducedGradients()
        self._failure: StepInterrupted | None = None
        self.plan: BucketPlan = plan_buckets([], 0, 0, 1, separate_metadata=True)
        self.plan_for(parameters)

    # --- the plan -------------------------------------------------------------------------------

    def plan_for(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Build the buckets and hooks for `parameters`, replacing earlier ones."""
        self._check_nothing_accumulated()
        self.close_hooks()
        options = self.options
        before = self.plan
        self.plan = plan_buckets(
            parameters,
            options.first_bytes,
            options.bucket_bytes,
            self._size,
            separate_metadata=self.sender.codec is not None,
        )
        if self.sender.codec is not None:
            self.sender.codec.follow(before, self.plan)
        buckets = self.plan.buckets
        self._last = len(buckets) - 1
        # With loss="sum" a gradient that is a view of its bucket is known to be reduced, so nothing is unpacked in
        # place.
        used_from = self.plan.used.storage_offset() if options.weighted else None
        self._packers = [*map(Packer, buckets[:-1]), Packer(buckets[-1], used_from)]
        self._none = bytes(len(parameters))
        self._parameters = [parameter for _, parameter in parameters]
        self._versions = 0  # sum of torch's in-place change counters when the backward pass began
        self._fired, self._used = bytearray(self._none), bytearray(self._none)
        self._full = [len(bucket.parameters) for bucket in buckets]
        self._waiting = list(self._full)
        self._metadata = StepMetadata(self.plan, self._rank, self._used)
        self._sends_early = options.overlap and self._last > 0 and self.group is not None
        self._leaves = [one.view_as(one).grad_fn.next_functions[0][0] for _, one in parameters]
        self._forget_backward()
        self.discard_accumulated()
        for place, (_, parameter) in enumerate(parameters):
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(place)))

    def _check_nothing_accumulated(self) -> None:
        if self._accumulated:
            raise InvalidArgument(
                "the module was moved, or its trained parameters changed, during gradient accumulation. Change it "
                "after the last micro-batch of a step"
            )

    def close_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # --- forward pass ---------------------------------------------------------------------------

    def forward_begins(self, samples: float) -> Forward:
        """Register a forward pass; raises StepInterrupted if the previous step was interrupted after sending."""
        if self._begun and _current_backward() == -1:
            self._handle_interruption()
        if self._failure is not None:
            raise self._failure
        return self._samples.forward(samples)

    def watch(self, output: Tensor, forward: Forward) -> None:
        """Install a hook that runs when a backward pass reaches this output of a forward pass."""
        node = output.grad_fn
        if node is None:
            return
        if type(output) is Tensor and output._backward_hooks is None:
            # Same as Tensor.register_hook, without creating its handle, which takes most of its time.
            output._backward_hooks = OrderedDict(((_HOOK_NAME, _Hook(self._on_output_gradient, forward)),))
            node._register_hook_dict(output)
        else:
            node.register_prehook(_Hook(self._on_output_gradient, forward))

    def _on_output_gradient(self, forward: Forward, _: Tensor | tuple[Tensor, ...] | None) -> None:
        if self._mode is _IDLE:
            return
        if not self._begun:
            if not self._fills_gradients():
                return
            self._begin()
        self._samples.mark_used(forward)
        if self._sends_early:
            self._send_full_buckets()

    def _fills_gradients(self) -> bool:
        """Return True if this backward pass fills .grad; torch.autograd.grad only returns gradients."""
        try:
            return any(map(_will_run, self._leaves))
        except RuntimeError:  # raised for a leaf whose gradient torch.autograd.grad was asked for
            return False

    # --- backward pass --------------------------------------------------------------------------

    def _hook(self, place: int) -> Callable[[Tensor], None]:
        bucket, fired, used, waiting = self.plan.bucket_of[place], self._fired, self._used, self._waiting

        def mark_used(_: Tensor) -> None:  # called for every parameter, so it does the minimum
            if not self._begun:
                if self._mode is _IDLE:
                    return
                self._begin()
            used[place] = 1

        def ready(_: Tensor) -> None:
            if not self._begun:
                self._begin()
            if fired[place]:
                self._check_refired(place)
                return
            fired[place] = used[place] = 1
            waiting[bucket] -= 1
            if not waiting[bucket]:
                self._send_full_buckets()

        return ready if self._sends_early else mark_used

    def _begin(self) -> None:
        self._begun = True
        self._samples.begin(_keeps_graph())
        if self.group is not None:
            self._versions = sum(map(_version_of, self._parameters))
        if not self.options.weighted and self._rank > 0:  # rank 0 contributes the reduced value
            self._already_reduced.record(self.plan)
        _queue_callback(self._end)

    def _send_full_buckets(self) -> None:
        if self._next == self._last or self._waiting[self._next] or self._mode is not _SEND:
            return
        if not self._samples.all_forwards_used():
            return
        with torch.no_grad():
            while self._next < self._last and not self._waiting[self._next]:
                self._send(self._next)

    def _send(self, index: int) -> None:
        bucket = self.plan.buckets[index]
        weight = self._weight()
        self._pack(bucket, weight)
        self._next = index + 1
        self.sender.start(bucket, self._accumulated_samples + weight if self.options.weighted else 1.0)

    def _check_refired(self, place: int) -> None:
        if self.plan.bucket_of[place] >= self._next:
            return  # not sent yet, so this part is sent with it
        self._fail(
            f"the gradient of {self.plan.names[place]!r} changed after it was sent, because several parts of a "
            "backward pass use it (reentrant checkpointing?). Use checkpoint(..., use_reentrant=False), or "
            "DataParallel(..., overlap=False)"
        )

    def _end(self) -> None:
        """Exchange or accumulate the gradients when the backward pass has ended."""
        if torch.is_grad_enabled():  # backward(create_graph=True); the exchange is not part of that graph
            with torch.no_grad():
                self._end()
            return
        try:
            if self.group is not None and sum(map(_version_of, self._parameters)) != self._versions:
                self._fail(
                    "a parameter changed during a backward pass, before the gradients of all ranks were averaged (an "
                    "optimizer step in a hook?), so the ranks' parameters would diverge. Call optimizer.step() after "
                    "backward(), and restart from a checkpoint"
                )
            if self._passes_of_block is not None:
                self._count_pass_of_block(self._passes_of_block + 1)
            if self._mode is _SEND:
                self._exchange()
            elif self._mode is _ACCUMULATE:
                self._accumulate()
            else:
                self._samples.end()
        finally:
            self._forget_backward()

    def _count_pass_of_block(self, passes: int) -> None:
        self._passes_of_block = passes
        if passes > 1:
            raise InvalidArgument(
                "a second backward pass in one accumulate() block, which counts as one micro-batch. Add the losses, or "
                "use one block per backward pass"
            )

    def _weight(self) -> float:
        """Return the factor of the gradients of this backward pass."""
        return self._samples.total() if self.options.weighted else 1.0

    def _forget_backward(self) -> None:
        self._begun = False
        self._next = 0
        self._samples.forget_backward()
        if self._sends_early:
            self._fired[:] = self._none
            self._waiting[:] = self._full
            self.sender.discard_pending()

    def _pack(self, bucket: Bucket, weight: float) -> None:
        if self._already_reduced:
            self._already_reduced.subtract_from(bucket)
        self._packers[bucket.index].pack(weight, add=self._accumulated)

    def _accumulate(self) -> None:
        weight = self._weight()
        for bucket in self.plan.buckets:
            self._pack(bucket, weight)
            for parameter in bucket.parameters:
                parameter.grad = None
        self._accumulated = True
        self._accumulated_samples += self._samples.total()
        self._samples.forget_step()

    # --- exchange -------------------------------------------------------------------------------

    def _exchange(self) -> None:
        while self._next < self._last:
            self._send(self._next)
        samples = self._samples.total()
        self._pack(self.plan.buckets[self._last], samples if self.options.weighted else 1.0)
        weights = self._reduce_last_bucket(SHADOW if self.shadowing else self._accumulated_samples + samples)
        factor = self._factor(weights)
        for packer in self._packers:
            packer.unpack(factor, self._metadata)
        self.discard_accumulated()
        self._complete(weights)

    def _reduce_last_bucket(self, samples: float) -> list[float]:
        """Reduce the last bucket with its metadata, check it, and return the samples of each rank."""
        self._metadata.write(samples, 0 if self._buffers is None else self._buffers.bytes())
        self.sender.finish(self.plan.buckets[self._last])
        weights = self._metadata.samples()
        if MODEL_CHANGED in weights:
            assert self.group is not None
            check_all_ranks_changed(weights, self.group)
        if self._buffers is not None:
            check_buffer_sizes(self._metadata.buffer_sizes())
        return weights

    def release_gradients(self) -> None:
        """Copy each .grad that is a view of a bucket, so that later exchanges leave it alone."""
        for bucket in self.plan.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is view:
                    parameter.grad = view.clone()

    def shadow_step(self) -> list[float]:
        """Take part in the other ranks' step without data, and return the samples of each rank."""
        weights = self._exchange_zeros(SHADOW)
        self._factor(weights)
        self.discard_accumulated()
        self._forget_backward()
        with torch.no_grad():
            self._complete(weights)
        return weights

    def announce_model_change(self) -> None:
        """Announce a changed model before building a new plan; ModelMismatch unless all ranks do. Collective.

        A rank whose model did not change is in a step of the old plan, and receives MODEL_CHANGED there.
        """
        self._check_nothing_accumulated()
        exponent = self.sender.exponent
        self._exchange_zeros(MODEL_CHANGED)
        self.sender.exponent = exponent  # this exchange was not a step

    def _exchange_zeros(self, word: float) -> list[float]:
        """Exchange zeros, with `word` instead of this rank's samples, and return the samples of each rank."""
        with torch.no_grad():
            for bucket in self.plan.buckets:
                bucket.values.zero_()
                if bucket.index < self._last:
                    self.sender.start(bucket, 0.0)
            self._used[:] = self._none
            return self._reduce_last_bucket(word)

    def _factor(self, weights: list[float]) -> float:
        """Return the factor that turns the sum over the ranks into their weighted mean."""
        samples = 0.0
        for weight in weights:
            if weight > 0.0:
                samples += weight
        if not samples or not self.options.weighted:
            return 1.0
        if self.sender.codec is not None:
            self.sender.set_divisor(samples)
        return 1.0 / samples

    def _complete(self, weights: list[float]) -> None:
        self.steps += 1
        self.latest_weights = weights
        if self._buffers is not None:
            self._buffers.after_step(weights)

    # --- modes ------------------------------------------------------------------------------------

    @contextmanager
    def accumulation_mode(self, complete: bool) -> Iterator[None]:
        """Count backward passes as micro-batches of an accumulation; the complete one sends."""
        before, self._mode = self._mode, _SEND if complete else _ACCUMULATE
        self._passes_of_block = 0
        try:
            yield
        finally:
            self._mode = before
            self._passes_of_block = None
            if self._begun and not self._next:  # an exception interrupted the pass
                self._forget_backward()

    @contextmanager
    def local_mode(self) -> Iterator[None]:
        """Add up gradients in .grad without sending; the next backward pass outside sends them."""
        before, self._mode = self._mode, _LOCAL
        try:
            yield
        finally:
            self._mode = before

    @property
    def idle(self) -> bool:
        """True if backward passes need no action."""
        return self._mode is _IDLE

    @property
    def accumulating(self) -> bool:
        """True if there are accumulated micro-batches that were not sent."""
        return self._accumulated

    def discard_accumulated(self) -> None:
        """Discard accumulated gradients that were not sent."""
        self.blocks = 0
        self._accumulated, self._accumulated_samples = False, 0.0
        self._samples.forget_step()
        self._already_reduced.clear()
        self._used[:] = self._none

    # --- failures ---------------------------------------------------------------------------------

    def _handle_interruption(self) -> None:
        if self._next == 0:
            if not self._accumulated:
                self.discard_accumulated()
            self._forget_backward()
            return
        self._fail(
            "an exception interrupted the last backward pass after some of its gradients had been sent, so the ranks "
            "no longer agree; the group was aborted. Restart from a checkpoint"
        )

    def _fail(self, reason: str) -> None:
        """Abort the gradient group, so that the other ranks fail too, and raise StepInterrupted from now on."""
        self._failure = StepInterrupted(reason)
        if self.group is not None:
            self.group.abort(because=self._failure)
        raise self._failure

    def close(self) -> None:
        """Remove the hooks and close the group."""
        self.close_hooks()
        self.sender.close()
        if self.group is not None:
            self.group.close()


class Sender:
    """All-reduce buckets over `group` in order: early buckets asynchronously, the last one in the caller's thread.

    Parameters
    ----------
    group : Communicator or None
        Ranks to reduce over; with None nothing is sent.
    codec : Codec or None
        Replaces the all-reduce of all buckets but the last, which has the metadata.
    overlap : bool
        Send in a background thread while the caller continues.
    divided : bool
        Sums will be divided by the number of samples, which a codec needs to know for its scale.
    loss_scale : callable
        Returns the current factor of the loss, and so of every gradient. It changes from step to step, and what a codec
        keeps for later steps must not.

    Attributes
    ----------
    bytes_plain : int
        Bytes sent without a codec so far.
    bytes_wanted : int
        Bytes that would have been sent without a codec so far.
    exponent : int or None
        Rounded base-2 logarithm of the divisor, equal on all ranks; None until it is known.
    """

    def __init__(
        self,
        group: Communicator | None,
        codec: Codec | None,
        overlap: bool,
        divided: bool,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.group = group
        self._loss_scale = loss_scale
        self.codec = codec
        self.overlap = overlap
        self.bytes_plain = 0
        self.bytes_wanted = 0
        self.exponent: int | None = None if divided else 0
        self._pending: list[Any] = []
        self._thread: ThreadPoolExecutor | None = None

    def start(self, bucket: Bucket, weight: float) -> None:
        """Start the reduction of a bucket of gradients times `weight`; it is complete when `finish` returns."""
        group = self.group
        if group is None:
            return
        _wait_for_packing_stream(bucket)
        self.bytes_wanted += bucket.nbytes
        if self.codec is None:
            self.bytes_plain += bucket.nbytes
            array = bucket.flat if bucket.array is None else bucket.array
            work = group.all_reduce(array, async_op=self.overlap)
            if work is not None:
                self._pending.append(work.wait)
        elif self.overlap:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "neuraxis-gradients")
            self._pending.append(self._thread.submit(self._compressed, bucket, weight).result)
        else:
            self._compressed(bucket, weight)

    def finish(self, tail: Bucket) -> None:
        """Reduce the last bucket and wait for all others."""
        group = self.group
        if group is None:
            return
        if self._pending:
            for wait in self._pending:
                wait()
            self._pending.clear()
        self.bytes_plain += tail.nbytes
        self.bytes_wanted += tail.nbytes
        group.all_reduce(tail.flat if tail.array is None else tail.array)

    def set_divisor(self, samples: float) -> None:
        """Record the divisor of a step, which is the estimate for the next one."""
        if samples > 0:
            self.exponent = math.ceil(math.log2(samples))

    def discard_pending(self) -> None:
        """Drop pending operations without waiting for them."""
        self._pending.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _compressed(self, bucket: Bucket, weight: float) -> None:
        assert self.group is not None
        assert self.codec is not None
        with torch.no_grad():
            if self.exponent is None:  # only in the first step; later ones use the previous divisor
                samples = np.array([weight])
                self.group.all_reduce(samples)
                self.exponent = math.ceil(math.log2(samples[0])) if samples[0] > 0 else 0
            self.codec.exchange(bucket, self.group, weight * self._loss_scale(), self.exponent)


def _wait_for_packing_stream(bucket: Bucket) -> None:
    """Make the GPU's default stream, which sends, wait for the stream that packs."""
    if bucket.flat.is_cuda:
        mine, default = torch.cuda.current_stream(bucket.flat.device), torch.cuda.default_stream(bucket.flat.device)
        if mine != default:
            default.wait_stream(mine)


class ReducedGradients(dict[int, Tensor]):
    """Gradients that were already reduced when a backward pass added to them, by the index of their parameter.

    With ``loss="sum"`` gradients of several exchanges add up in `.grad`. The reduced value is equal on all ranks and
    must count once, so every rank but the first subtracts it before sending.
    """

    def record(self, plan: BucketPlan) -> None:
        """Copy reduced gradients before a backward pass, unless copies of an earlier, unsent pass exist."""
        if self:
            return
        for bucket in plan.buckets:
            for place, parameter, view in zip(bucket.places, bucket.parameters, bucket.views, strict=True):
                if parameter.grad is view:
                    self[place] = view.clone()

    def subtract_from(self, bucket: Bucket) -> None:
        """Subtract the reduced gradients of a bucket, which leaves what was added since."""
        for place, parameter, view in zip(bucket.places, bucket.parameters, bucket.views, strict=True):
            if place in self and parameter.grad is view:  # else .grad was replaced
                view.sub_(self[place])
