"""What a user wraps a module in: every rank trains on its own batch, and the result is that of one process.

The gradient after `backward()` is that of the mean over the batches of all ranks together, each row counting once,
however the rows are dealt to the ranks. A loss that is a mean over something else than the rows of the first tensor
(tokens, rows that are not ignored) needs `weigh`, which says how much of it a batch has.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.training import replicas
from neuraxis.training.accumulation import Accumulation, accumulation_block
from neuraxis.training.compression import Half, TopK, Traffic, codec_for
from neuraxis.training.joining import Joining, empty_batch, sum_of
from neuraxis.training.local_sgd import LocalSteps
from neuraxis.training.parts import Parts
from neuraxis.training.precision import Precision, PrecisionName
from neuraxis.training.reducer import Reducer, ReducerOptions
from neuraxis.training.sameness import check_same_model
from neuraxis.training.samples import Forward
from neuraxis.training.shared_buffers import SharedBuffers
from neuraxis.training.sync_batch_norm import SyncBatchNorm
from neuraxis.training.training_group import group_for_gradients, ranks_to_train_with
from neuraxis.training.weighting import batch_size_of, forward_of_a_changed_model, forward_weight

__all__ = ["DataParallel"]

Weigh = Callable[[tuple[Any, ...], dict[str, Any]], float]

_is_grad_enabled = torch.is_grad_enabled

_BUCKET_BYTES = {"shm": 4 << 20}  # what is sent at once; elsewhere a call costs more
_OTHER_BUCKET_BYTES = 25 << 20


class DataParallel(nn.Module):  # type: ignore[misc]
    """A module that is trained by all ranks together. Every rank makes it, with the same module.

    With a context of several ranks each has a replica, which begins as rank 0's; gradients are averaged within
    `backward()`. In one process with several GPUs the batch is dealt to replicas on them. Else it is the module itself.
    `state_dict()` and the names of parameters are those of the module alone.

    After `backward()` a `.grad` may be a view of memory that the next backward pass uses: `clone()` what is to stay.

    Args:
        module: what is trained; its parameters and buffers must be there, in the same order on every rank.
        device_ids: with several ranks one device, to which the module is moved; in one process the GPUs to use.
        group: which ranks; those of the current context by default.
        loss: whether the loss is the "mean" or the "sum" over its batch.
        weigh: how much a batch counts, from the arguments of forward; by default the rows of the first tensor.
        precision: "fp32", or "bf16" or "fp16" for forward passes. With "fp16" use `scaler`.
        sync_every: 1 averages gradients in each step; k averages parameters after every k-th step of the optimizer.
        compress: "fp16", Half(...) or TopK(...): gradients in fewer bytes; `traffic()` states the error.
        buffers: "broadcast" makes buffers equal after each step, "keep" leaves each rank its own.
        first_bucket_bytes, bucket_bytes: how many bytes of gradients are sent at once, first and later.
        overlap: whether gradients are sent while the backward pass still runs.

    Attributes:
        module: the module.
        scaler: a torch GradScaler; for other precisions than "fp16" it lets everything pass as it is.
        loss: as it was given.
        last_weight: how much the batch of the last forward pass counted; NaN where that is not known.

    Raises:
        ModelMismatch: the ranks' models differ; it names the parameter.
        NotInitialized: this process was launched as one of several, and has no context yet.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        *,
        group: Communicator | None = None,
        loss: Literal["mean", "sum"] = "mean",
        weigh: Weigh | None = None,
        precision: PrecisionName = "fp32",
        sync_every: int = 1,
        compress: Literal["fp16", "bf16"] | TopK | Half | None = None,
        buffers: Literal["broadcast", "keep"] = "broadcast",
        first_bucket_bytes: int = 1 << 20,
        bucket_bytes: int | None = None,
        overlap: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InvalidType(f"module={module!r}: a torch.nn.Module is expected")
        if weigh is not None and not callable(weigh):
            raise InvalidType(f"weigh={weigh!r}: a function of (args, kwargs) is expected")
        _check(loss, buffers, sync_every, precision, compress)
        _check_bytes(first_bucket_bytes=first_bucket_bytes, bucket_bytes=bucket_bytes)
        self.module = module
        parent = ranks_to_train_with(group)
        if parent is not None and device_ids is not None:
            if len(device_ids) != 1:
                raise InvalidArgument(
                    f"device_ids={list(device_ids)}: with several ranks each has one device; give its own to each"
                )
            module.to(*device_ids)
        backend = "local" if parent is None else parent.backend_name
        self._options = ReducerOptions(
            weighted=loss == "mean",
            # Two of NCCL's communicators at the same time may wait for each other.
            overlap=overlap and not (backend == "nccl" and _has_sync_batch_norm(module)),
            first_bytes=first_bucket_bytes,
            bucket_bytes=bucket_bytes or _BUCKET_BYTES.get(backend, _OTHER_BUCKET_BYTES),
        )
        self.loss = loss
        self._seen = [math.nan]  # in a list, because to set an attribute of a module takes much longer
        self._weigh = weigh
        self._keep_buffers = buffers == "keep"
        self._devices: list[torch.device] = []
        self._reducer: Reducer | None = None
        self._local: LocalSteps | None = None
        self._joining: Joining | None = None
        self._tells_weight = False
        self._last_batch: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._group: Communicator | None = None
        self._stale = False
        self._precision = Precision(precision, _device_type(module))
        self._plain = precision == "fp32"
        self.register_load_state_dict_pre_hook(_with_module_names)
        codec = codec_for(compress)
        if parent is None:
            self._devices = replicas.devices_of(module, device_ids)
            self._plain = self._plain and not self._devices
            return
        settings = {"loss": loss, "precision": precision, "buffers": buffers, "compress": repr(compress)}
        settings |= {"sync_every": str(sync_every), "options": repr(self._options)}
        self._group = own = group_for_gradients(parent, settings, module)
        if group is not None:  # else they take the current world by themselves, also in a later context
            for layer in module.modules():
                if isinstance(layer, SyncBatchNorm) and layer.group is None:
                    layer.group = group
        if sync_every > 1:
            self._local = LocalSteps(module, own, sync_every)
            weakref.finalize(self, _end, own, self._local.close)
        else:
            shared = None if self._keep_buffers else SharedBuffers.of(module, own)
            self._reducer = Reducer(self._trained(), own, self._options, codec, shared, self._precision.loss_scale)
            weakref.finalize(self, self._reducer.close).atexit = False

    # --- a module as any other --------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output for this rank's batch."""
        reducer = self._reducer
        if reducer is None or not _is_grad_enabled():
            return self._forward_alone(args, kwargs)
        weight = self._seen[0] = batch_size_of(args, kwargs) if self._weigh is None else self._weighed(args, kwargs)
        if self._group is None and reducer.resting:
            return self._run(args, kwargs)
        if (self._stale or not self._parts.are_the_same()) and self._is_to_be_planned_anew():
            if self._tells_weight and self._group is not None:
                return self._forward_and_plan_anew(reducer, weight, args, kwargs)
            self._plan_anew(reducer)
        passing = reducer.forward_begins(weight)
        if self._tells_weight:
            output = self._run_telling(weight, args, kwargs)
        else:
            output = self._modules["module"](*args, **kwargs) if self._plain else self._run(args, kwargs)
        if isinstance(output, Tensor):
            reducer.watch(output, passing)
        else:
            _watch_all(output, passing, reducer)
        return output

    def _run_telling(self, weight: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A forward pass in which layers that communicate are told how much the batch counts."""
        if self._joining is not None and self._joining.needs_batches:
            self._last_batch = (args, kwargs)
        with forward_weight(weight if self._options.weighted else 1.0):
            return self._run(args, kwargs)

    def _forward_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A forward pass of which no gradient is sent."""
        local = self._local if _is_grad_enabled() else None
        self._seen[0] = math.nan
        try:
            self._seen[0] = batch_size_of(args, kwargs) if self._weigh is None else self._weighed(args, kwargs)
        except InvalidArgument:
            if local is not None:
                raise
            # nobody needs it, unless `last_weight` is asked for
        if local is not None:
            local.seen(self._seen[0])
        return self._run(args, kwargs)

    def _weighed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        assert self._weigh is not None
        weight = float(self._weigh(args, kwargs))
        if not 0.0 <= weight < float("inf"):
            raise InvalidArgument(f"weigh gave {weight}: how much a batch counts must be a number that is not negative")
        return weight

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._plain:
            return self._modules["module"](*args, **kwargs)
        with self._precision.autocast():
            if self._devices:
                return replicas.forward_on(self._devices, self.module, args, kwargs)
            return self.module(*args, **kwargs)

    @property
    def scaler(self) -> torch.amp.GradScaler:
        return self._precision.scaler

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what the module, a DataParallel or torch's DistributedDataParallel has saved."""
        own = self.module.state_dict().keys()
        if state_dict and all(name.startswith("module.") for name in state_dict) and not state_dict.keys() <= own:
            state_dict = {name.removeprefix("module."): value for name, value in state_dict.items()}
        self._stale = self._stale or assign
        return self.module.load_state_dict(state_dict, strict, assign)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This, and the modules within by the names that they have without it."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not set yet
                raise
            return getattr(self.module, name)

    def _apply(self, *args: Any, **kwargs: Any) -> DataParallel:
        before = [_place_of(parameter) for parameter in self.module.parameters()]
        super()._apply(*args, **kwargs)
        # To plan anew is for all ranks together, and a rank may call `.cpu()` where nothing is to move.
        self._stale = self._stale or before != [_place_of(parameter) for parameter in self.module.parameters()]
        self._precision.device_type = _device_type(self.module)
        return self

    def __getstate__(self) -> Any:
        raise InvalidType("a DataParallel cannot be copied or pickled: copy its module, or save its state_dict()")

    def _is_to_be_planned_anew(self) -> bool:
        """Whether the module has moved, or other parameters are trained."""
        if self._stale:
            return True
        new = self._parts.new_ones(self.module)
        if new and self._group is not None:
            raise InvalidArgument(
                f"{new[0]!r} was put into the module after it was wrapped, so it would not be the same on all "
                "ranks: make a new DataParallel (and a new optimizer) of the module, on all ranks"
            )
        return bool(new) or self._parts.are_others_trained()

    def _forward_and_plan_anew(
        self, reducer: Reducer, weight: float, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The forward pass comes first: if others' models were not changed, they are in its layers that communicate."""
        with forward_of_a_changed_model():
            output = self._run_telling(weight, args, kwargs)
        self._plan_anew(reducer)
        _watch_all(output, reducer.forward_begins(weight), reducer)
        return output

    def _plan_anew(self, reducer: Reducer) -> None:
        """Collective: with ModelMismatch on all ranks unless all of them do."""
        if self._group is not None:
            reducer.tell_of_change()
            check_same_model(self.module, self._group)
        reducer.plan_for(self._trained())
        self._stale = False

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that are trained now; remembered, so that a change is noticed."""
        self._parts = Parts(self)
        self._tells_weight = _has_sync_batch_norm(self.module)
        return self._parts.trained

    # --- several backward passes, several lengths -------------------------------------------------

    def accumulate(self, k: int, *, last: bool = False) -> AbstractContextManager[Accumulation]:
        """A block with one of k backward passes that count as one, on as many samples as they have together.

        Nothing is sent before the k-th, or the block that is said to be the `last`; `complete` of what the block gives
        says whether this is it, and the optimizer's turn has come. An exception drops what was accumulated.
        """
        if self._local is not None:
            raise InvalidArgument("accumulate has no meaning with sync_every > 1, where gradients are not sent")
        if self._reducer is None:  # one process, whose blocks may differ in length too
            self._reducer = Reducer(self._trained(), None, self._options)
            weakref.finalize(self, self._reducer.close).atexit = False
        return accumulation_block(self._reducer, k, last)

    def no_sync(self) -> AbstractContextManager[None]:
        """Within it gradients add up on each rank by themselves; the next backward pass outside sends them."""
        reducer = self._reducer
        return nullcontext() if self._group is None or reducer is None else reducer.keeping()

    def join(self, *stateful: Any) -> AbstractContextManager[None]:
        """For ranks with different numbers of batches: put the loop in it, on all ranks.

        A rank whose loop is over takes part in the others' steps until theirs are. At the end all ranks have the same
        parameters, buffers, state of the optimizer and scaler; an optimizer that has not stepped yet on some rank
        must be named, and so must a scheduler that is stepped within.
        """
        if self._local is not None:
            raise InvalidArgument("join has no meaning with sync_every > 1; shard(...) deals out equally many batches")
        if self._group is None or self._reducer is None:
            return nullcontext()
        if self._joining is None:
            empty = self._empty_step if self._tells_weight else None
            self._joining = Joining(self.module, self._reducer, self._group, self.scaler, empty)
        return self._joining.all_ranks(stateful)

    def _empty_step(self) -> None:
        """A step without rows, in which the layers that communicate do."""
        if self._last_batch is None:
            raise InvalidArgument(
                "join: this rank had no batch at all, so what an empty one looks like is not known to it, and the "
                "SyncBatchNorm of the model needs one: give every rank at least one batch, of 0 rows if need be"
            )
        args, kwargs = self._last_batch
        rows = int(batch_size_of(args, kwargs))
        output = sum_of(self(*empty_batch(args, rows), **empty_batch(kwargs, rows)))
        if output is None:
            raise InvalidArgument("join: the module's output has no tensor that a backward pass could begin at")
        parameters = list(self.module.parameters())
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None  # or it would be added to
        try:
            output.backward()
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient

    def synchronize(self) -> None:
        """With sync_every > 1: average parameters now, on all ranks. Else there is nothing to do."""
        if self._local is not None:
            self._local.average()

    @property
    def last_weight(self) -> float:
        return self._seen[0]

    @property
    def accumulating(self) -> bool:
        """Whether there are blocks of an accumulation that were not sent yet, and are in no state that is saved."""
        return self._reducer is not None and self._reducer.accumulating

    # --- what it knows ------------------------------------------------------------------------------

    def traffic(self) -> Traffic:
        """What this rank has sent for its gradients so far, and the error of compression. Sends nothing."""
        reducer = self._reducer
        if reducer is None or self._group is None:
            return Traffic(0, 0, 0, 0.0)
        sender = reducer.sender
        codec_bytes, error = (
            (0, 0.0) if sender.codec is None else (sender.codec.sent_bytes(), sender.codec.relative_error())
        )
        return Traffic(reducer.steps, sender.bytes_plain + codec_bytes, sender.bytes_wanted, error)

    def step_state_dict(self) -> dict[str, Tensor | int | list[str]]:
        """What this rank's next step needs of the earlier ones, beyond parameters and optimizer."""
        reducer = self._reducer
        if reducer is None or self._group is None:
            return {}
        sender = reducer.sender
        state: dict[str, Tensor | int | list[str]] = {"steps": reducer.steps}
        if sender.codec is not None:
            state |= {"parameters": list(reducer.plan.names), **sender.codec.state_dict()}
            if sender.exponent is not None:
                state["exponent"] = sender.exponent
        return state

    def load_step_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `step_state_dict` gave; what belongs to other parameters than those here is left out."""
        reducer = self._reducer
        if reducer is not None:
            reducer.drop()
        if reducer is None or self._group is None or not state:
            return
        reducer.steps = int(state["steps"])
        sender = reducer.sender
        if sender.codec is not None and list(state.get("parameters", ())) == reducer.plan.names:
            sender.codec.load_state_dict(state)
            sender.exponent = int(state["exponent"]) if "exponent" in state else sender.exponent


# --- finding out ------------------------------------------------------------------------------------------


def _end(group: Communicator, close: Callable[[], None]) -> None:
    close()
    group.destroy()


def _has_sync_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, SyncBatchNorm) for layer in module.modules())


def _place_of(parameter: nn.Parameter) -> tuple[Any, ...]:
    return id(parameter), parameter.dtype, parameter.device, parameter.data_ptr()


def _device_type(module: nn.Module) -> str:
    return next((str(parameter.device.type) for parameter in module.parameters()), "cpu")


def _with_module_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before loading as a part of another module: its names have none for what is between."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        rest = name.removeprefix(prefix)
        if not rest.startswith("module."):
            state_dict[f"{prefix}module.{rest}"] = state_dict.pop(name)


def _watch_all(output: Any, passing: Forward, reducer: Reducer) -> None:
    """Watch every tensor in nested outputs."""
    if isinstance(output, Tensor):
        reducer.watch(output, passing)
    elif isinstance(output, Mapping):
        for part in output.values():
            _watch_all(part, passing, reducer)
    elif isinstance(output, (tuple, list)):
        for part in output:
            _watch_all(part, passing, reducer)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            _watch_all(getattr(output, field.name), passing, reducer)


def _check_bytes(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InvalidArgument(f"{name}={value!r} must be a number of bytes")


def _check(loss: str, buffers: str, sync_every: int, precision: str, compress: Any) -> None:
    for name, value, allowed in (("loss", loss, ("mean", "sum")), ("buffers", buffers, ("broadcast", "keep"))):
        if value not in allowed:
            raise InvalidArgument(f"{name}={value!r} is not one of {', '.join(allowed)}")
    if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
        raise InvalidArgument(f"sync_every={sync_every!r} must be a whole number, 1 or more")
    if sync_every > 1 and precision == "fp16":
        raise InvalidArgument(
            "sync_every > 1 with precision='fp16': each rank would leave out steps of its own; use 'bf16'"
        )
    if sync_every > 1 and compress is not None:
        raise InvalidArgument("sync_every > 1 sends no gradients, so compress has no meaning with it")
