"""Data parallelism: every rank trains on its own batch, with the result of one process on the global batch.

After `backward()` the gradient is that of the mean over the rows of all ranks, however unevenly the rows are
distributed. If the loss is a mean over something other than the rows of the first tensor (tokens, or rows that are not
ignored), pass `weigh`, which returns the weight of a batch.

Mixed precision changes what the forward pass computes in; parameters, gradients and their averages stay float32. fp16
has few small numbers, so torch's GradScaler scales the loss up and skips a step with an infinite gradient. After an
all-reduce every rank has the same gradients, infinities included, so all scalers take the same decision.

In one process with several GPUs, `torch.nn.parallel` splits the batch by rows over replicas and concatenates the
outputs on the first GPU, so loss and gradients are those of the whole batch.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel

from neuraxis.arguments import is_whole
from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, InvalidType, StepInterrupted
from neuraxis.training.parallel.compression import Half, TopK, Traffic, codec_for
from neuraxis.training.parallel.consistency import ModuleStructure, check_same_model
from neuraxis.training.parallel.group import gradient_group, training_group
from neuraxis.training.parallel.joining import Joining, empty_batch, sum_of
from neuraxis.training.parallel.local_sgd import LocalSGD
from neuraxis.training.parallel.reducer import Reducer, ReducerOptions
from neuraxis.training.parallel.sync_batch_norm import SharedBuffers, SyncBatchNorm
from neuraxis.training.parallel.weighting import Forward, batch_size_of, changed_model_forward, forward_weight
from neuraxis.wire.trees import iter_leaves

__all__ = ["Accumulation", "DataParallel", "Precision", "PrecisionName"]

PrecisionName = Literal["fp32", "bf16", "fp16"]
Weigh = Callable[[tuple[Any, ...], dict[str, Any]], float]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BUCKET_BYTES = {"shm": 4 << 20}
_OTHER_BUCKET_BYTES = 25 << 20  # other backends have a higher cost per call

_is_grad_enabled = torch.is_grad_enabled


class DataParallel(nn.Module):  # type: ignore[misc]
    """Module whose replicas on all ranks are trained together.

    With a context of several ranks each rank has a replica, initialized from rank 0's; `backward()` averages the
    gradients. In one process with several GPUs, the batch is split over replicas on them. Otherwise it behaves as the
    module itself. `state_dict()` and parameter names are those of the module. Creating one is a collective.

    After `backward()` a `.grad` may be a view of memory that the next backward pass reuses: `clone()` it to keep it.

    Parameters
    ----------
    module : torch.nn.Module
        Module to train, with the same parameters and buffers in the same order on every rank.
    device_ids : sequence of int or torch.device, optional
        With several ranks: one device, to which the module is moved. In one process: the GPUs to use (default: all).
    group : Communicator, optional
        Ranks that train together; the world of the current context by default.
    loss : {"mean", "sum"}
        Reduction of the loss over its batch.
    weigh : callable, optional
        ``weigh(args, kwargs) -> float``: weight of a batch, from the arguments of forward. Default: the rows of the
        first tensor.
    precision : {"fp32", "bf16", "fp16"}
        Precision of forward passes. With "fp16" use `scaler`.
    sync_every : int
        1 averages gradients in each step; k > 1 averages parameters after every k-th optimizer step (local SGD).
    compress : {"fp16", "bf16"}, Half, TopK, optional
        Gradient compression; `traffic()` reports the error.
    buffers : {"broadcast", "keep"}
        Synchronize buffers after each step, or keep separate ones on each rank.
    first_bucket_bytes, bucket_bytes : int
        Sizes at which the first and the further gradient buckets are sent, in bytes.
    overlap : bool
        Send gradients while the backward pass still runs.

    Attributes
    ----------
    module : torch.nn.Module
        The wrapped module.
    scaler : torch.amp.GradScaler
        Loss scaler; disabled, and without effect, unless `precision` is "fp16".
    loss : str
        The argument `loss`.
    last_weight : float
        Weight of the batch of the last forward pass; NaN if unknown.

    Raises
    ------
    ModelMismatch
        If the models of the ranks differ; the error names the parameter.
    CollectiveMismatch
        If the ranks pass different options.
    NotInitialized
        If the launcher started several processes and this one has no context.

    Examples
    --------
    One process trains as usual; under `neuraxis launch` the same code averages over all ranks.

    >>> import torch
    >>> from neuraxis.training import DataParallel
    >>> model = DataParallel(torch.nn.Linear(3, 1))
    >>> model(torch.ones(8, 3)).mean().backward()
    >>> model.last_weight
    8.0
    >>> sorted(model.state_dict())
    ['bias', 'weight']
    """

    _stale: bool
    _reducer: Reducer | None
    _local: LocalSGD | None
    _joining: Joining | None
    _last_batch: tuple[tuple[Any, ...], dict[str, Any]] | None
    _group: Communicator | None

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
            raise InvalidType(f"module={module!r}: pass a torch.nn.Module")
        if weigh is not None and not callable(weigh):
            raise InvalidType(f"weigh={weigh!r}: pass a function weigh(args, kwargs) -> float")
        _check(loss, buffers, sync_every, precision, compress)
        _check_bytes(first_bucket_bytes=first_bucket_bytes, bucket_bytes=bucket_bytes)
        self.module = module
        parent = training_group(group)
        if parent is not None and device_ids is not None:
            if len(device_ids) != 1:
                raise InvalidArgument(
                    f"device_ids={list(device_ids)}: with several ranks each one uses one device. Pass only this rank's"
                )
            module.to(*device_ids)
        backend = "local" if parent is None else parent.backend_name
        self._options = ReducerOptions(
            weighted=loss == "mean",
            # Two NCCL communicators that run at the same time may deadlock.
            overlap=overlap and not (backend == "nccl" and _has_sync_batch_norm(module)),
            first_bytes=first_bucket_bytes,
            bucket_bytes=bucket_bytes or _BUCKET_BYTES.get(backend, _OTHER_BUCKET_BYTES),
        )
        self.loss = loss
        self._weigh = weigh
        self._keep_buffers = buffers == "keep"
        self._devices: list[torch.device] = []
        self._without_group = False  # True for a copy of a model that has a group
        self._init_without_group()
        self._precision = Precision(precision, _device_type(module))
        self._plain = precision == "fp32"
        self.register_load_state_dict_pre_hook(_add_module_prefix)
        codec = codec_for(compress)
        if parent is None:
            self._devices = _replica_devices(module, device_ids)
            self._plain = self._plain and not self._devices
            return
        settings = {"loss": loss, "precision": precision, "buffers": buffers, "compress": repr(compress)}
        settings |= {"sync_every": str(sync_every), "options": repr(self._options)}
        self._group = own = gradient_group(parent, settings, module)
        if group is not None:  # without one, layers use the world of the current context, also of a later one
            for layer in module.modules():
                if isinstance(layer, SyncBatchNorm) and layer.group is None:
                    layer.group = group
        if sync_every > 1:
            self._local = LocalSGD(module, own, sync_every)
            weakref.finalize(self, _close_local_sgd, own, self._local.close)
        else:
            shared = None if self._keep_buffers else SharedBuffers.of(module, own)
            self._reducer = Reducer(
                self._snapshot_trained(), own, self._options, codec, shared, self._precision.loss_scale
            )
            weakref.finalize(self, self._reducer.close).atexit = False

    # --- module interface -------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output for this rank's batch.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the module: this rank's batch.

        Returns
        -------
        object
            Output of the module.
        """
        reducer = self._reducer
        if reducer is None or not _is_grad_enabled():
            return self._forward_alone(args, kwargs)
        weight = batch_size_of(args, kwargs) if self._weigh is None else self._weight_of(args, kwargs)
        self._last_weight[0] = weight
        if self._group is None and reducer.idle:
            return self._run(args, kwargs)
        if (self._stale or not self._structure.is_unchanged()) and self._needs_new_plan():
            if self._has_sync_layers and self._group is not None:
                return self._forward_then_rebuild(reducer, weight, args, kwargs)
            self._rebuild_plan(reducer)
        passing = reducer.forward_begins(weight)
        if self._has_sync_layers:
            output = self._run_with_weight(weight, args, kwargs)
        else:
            output = self._modules["module"](*args, **kwargs) if self._plain else self._run(args, kwargs)
        if isinstance(output, Tensor):
            reducer.watch(output, passing)
        else:
            _watch_all(output, passing, reducer)
        return output

    def _run_with_weight(self, weight: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a forward pass in which layers can read the weight of the batch."""
        if self._joining is not None and self._joining.needs_batches:
            self._last_batch = (args, kwargs)
        with forward_weight(weight if self._options.weighted else 1.0):
            return self._run(args, kwargs)

    def _forward_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a forward pass whose gradients are not sent."""
        local = self._local if _is_grad_enabled() else None
        self._last_weight[0] = math.nan
        try:
            self._last_weight[0] = batch_size_of(args, kwargs) if self._weigh is None else self._weight_of(args, kwargs)
        except InvalidArgument:
            if local is not None:
                raise
            # only `last_weight` would need it
        if local is not None:
            local.count_samples(self._last_weight[0])
        return self._run(args, kwargs)

    def _weight_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        assert self._weigh is not None
        weight = float(self._weigh(args, kwargs))
        if not 0.0 <= weight < float("inf"):
            raise InvalidArgument(f"weigh returned {weight}. It must return a finite number that is not negative")
        return weight

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._plain:
            return self._modules["module"](*args, **kwargs)
        with self._precision.autocast():
            if self._devices:
                return _forward_replicas(self._devices, self.module, args, kwargs)
            return self.module(*args, **kwargs)

    @property
    def scaler(self) -> torch.amp.GradScaler:
        return self._precision.scaler

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the wrapped module, without a prefix.

        Parameters
        ----------
        *args, **kwargs
            As for `torch.nn.Module.state_dict`.

        Returns
        -------
        dict
            State by name of the wrapped module.
        """
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state of the module, of a DataParallel or of torch's DistributedDataParallel.

        Parameters
        ----------
        state_dict : mapping
            The state.
        strict : bool
            Raise if names are missing or unknown.
        assign : bool
            Use the tensors of the state instead of copying their values.

        Returns
        -------
        NamedTuple
            Missing and unexpected names, as torch returns them.
        """
        own = self.module.state_dict().keys()
        if state_dict and all(name.startswith("module.") for name in state_dict) and not state_dict.keys() <= own:
            state_dict = {name.removeprefix("module."): value for name, value in state_dict.items()}
        self._stale = self._stale or assign
        return self.module.load_state_dict(state_dict, strict, assign)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield the wrapped module and its submodules under their own names, without this wrapper.

        Parameters
        ----------
        memo : set, optional
            Modules that were yielded already.
        prefix : str
            Prefix of the names.
        remove_duplicate : bool
            Yield a module once, even if it is used in several places.

        Yields
        ------
        tuple of str and torch.nn.Module
            Name and module.
        """
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # not set yet
                raise
            return getattr(self.module, name)

    def _apply(self, *args: Any, **kwargs: Any) -> DataParallel:
        before = [_identity_of(parameter) for parameter in self.module.parameters()]
        super()._apply(*args, **kwargs)
        # Rebuilding the plan is a collective, so a call such as `.cpu()` that moves nothing must not trigger it.
        self._stale = self._stale or before != [_identity_of(parameter) for parameter in self.module.parameters()]
        self._precision.device_type = _device_type(self.module)
        return self

    def __getstate__(self) -> Any:
        raise InvalidType("a DataParallel cannot be pickled. Save its state_dict(), or use copy.deepcopy")

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        """Copy the module, for averaged parameters or evaluation.

        The copy has no group. If the original has one, training the copy would make the ranks' copies diverge, so a
        backward pass through it raises InvalidArgument.
        """
        for layer in self.module.modules():
            if isinstance(layer, SyncBatchNorm) and layer.group is not None:
                memo[id(layer.group)] = layer.group  # both use the same
        made = DataParallel.__new__(type(self))
        memo[id(self)] = made
        nn.Module.__init__(made)
        made.module = copy.deepcopy(self.module, memo)
        made.training = self.training
        made.loss = self.loss
        made._options = self._options
        made._weigh = self._weigh
        made._keep_buffers = self._keep_buffers
        made._devices = list(self._devices)
        made._precision = Precision(self._precision.name, self._precision.device_type)
        made._plain = self._plain
        made._without_group = self._without_group or self._group is not None
        made._init_without_group()
        made.register_load_state_dict_pre_hook(_add_module_prefix)
        if made._without_group:
            for parameter in made.module.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(_refuse_gradient_of_copy)
        return made

    def _init_without_group(self) -> None:
        self._last_weight = [math.nan]  # a list, because setting an attribute of a torch module is slow
        self._reducer = None
        self._local = None
        self._joining = None
        self._has_sync_layers = False
        self._last_batch = None
        self._group = None
        self._stale = False

    def _needs_new_plan(self) -> bool:
        """Return True if the module moved or its set of trained parameters changed."""
        if self._stale:
            return True
        new = self._structure.new_tensors(self.module)
        if new and self._group is not None:
            raise InvalidArgument(
                f"{new[0]!r} was added to the module after it was wrapped, so its values may differ between ranks. "
                "Create a new DataParallel and optimizer for the module on all ranks"
            )
        return bool(new) or self._structure.trained_set_changed()

    def _forward_then_rebuild(
        self, reducer: Reducer, weight: float, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the forward pass before rebuilding the plan, so that its collective layers announce the change.

        If the models of other ranks did not change, those ranks are in these layers.
        """
        with changed_model_forward():
            output = self._run_with_weight(weight, args, kwargs)
        self._rebuild_plan(reducer)
        _watch_all(output, reducer.forward_begins(weight), reducer)
        return output

    def _rebuild_plan(self, reducer: Reducer) -> None:
        """Rebuild the buckets. Collective; ModelMismatch on all ranks unless all of them do."""
        if self._group is not None:
            reducer.announce_model_change()
            check_same_model(self.module, self._group)
        reducer.plan_for(self._snapshot_trained())
        self._stale = False

    def _snapshot_trained(self) -> list[tuple[str, nn.Parameter]]:
        """Take a new snapshot of the module and return its trained parameters."""
        self._structure = ModuleStructure(self)
        self._has_sync_layers = _has_sync_batch_norm(self.module)
        return self._structure.trained

    # --- gradient accumulation, uneven inputs -----------------------------------------------------

    def accumulate(self, k: int, *, last: bool = False) -> AbstractContextManager[Accumulation]:
        """Return a context manager for one of `k` micro-batches that make one step.

        Only the last micro-batch sends: the k-th, or the one with ``last=True``. The gradient is the mean over all
        their samples. An exception in the block discards the accumulated gradients.

        Parameters
        ----------
        k : int
            Micro-batches per step.
        last : bool
            Complete the step with this micro-batch.

        Returns
        -------
        context manager of Accumulation
            Call the optimizer when its `complete` is True.

        Raises
        ------
        InvalidArgument
            If `k` is below 1, `sync_every` is above 1, or a block runs two backward passes.
        StepInterrupted
            If no backward pass ran in the last block.

        Examples
        --------
        >>> import torch
        >>> from neuraxis.training import DataParallel
        >>> model = DataParallel(torch.nn.Linear(3, 1))
        >>> for x in torch.ones(2, 4, 3):
        ...     with model.accumulate(2) as micro:
        ...         model(x).mean().backward()
        ...     print(micro.block, micro.complete)
        1 False
        2 True
        """
        if self._local is not None:
            raise InvalidArgument("accumulate has no effect with sync_every > 1, where gradients are not sent")
        if self._reducer is None:  # one process; its micro-batches may differ in size too
            self._reducer = Reducer(self._snapshot_trained(), None, self._options)
            weakref.finalize(self, self._reducer.close).atexit = False
        return _accumulation_block(self._reducer, k, last)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context manager in which gradients add up locally; the next backward pass outside sends them."""
        reducer = self._reducer
        return nullcontext() if self._group is None or reducer is None else reducer.local_mode()

    def join(self, *stateful: Any) -> AbstractContextManager[None]:
        """Return a context manager for a loop over different numbers of batches on each rank. Collective.

        A rank that has finished its loop shadows the steps of the others until they finish. At the end all ranks have
        the same parameters, buffers, optimizer state and scaler.

        Parameters
        ----------
        *stateful
            Optimizers that may not have stepped on some rank, and schedulers that are stepped in the loop.

        Raises
        ------
        InvalidArgument
            If `sync_every` is above 1, or a rank lacks an optimizer state that others have.
        """
        if self._local is not None:
            raise InvalidArgument(
                "join has no effect with sync_every > 1. Use shard(...), which gives all ranks the same number of "
                "batches"
            )
        if self._group is None or self._reducer is None:
            return nullcontext()
        if self._joining is None:
            empty = self._empty_step if self._has_sync_layers else None
            self._joining = Joining(self.module, self._reducer, self._group, self.scaler, empty)
        return self._joining.all_ranks(stateful)

    def _empty_step(self) -> None:
        """Run a step without rows, for layers that communicate."""
        if self._last_batch is None:
            raise InvalidArgument(
                "join: this rank had no batch, so the shape of an empty batch for the model's SyncBatchNorm is "
                "unknown. Give every rank at least one batch, of 0 rows if necessary"
            )
        args, kwargs = self._last_batch
        rows = int(batch_size_of(args, kwargs))
        output = sum_of(self(*empty_batch(args, rows), **empty_batch(kwargs, rows)))
        if output is None:
            raise InvalidArgument("join: the module's output has no tensor that requires a gradient")
        parameters = list(self.module.parameters())
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None  # backward() would add to it
        try:
            output.backward()
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient

    def synchronize(self) -> None:
        """Average the parameters of all ranks if `sync_every` is above 1. Collective."""
        if self._local is not None:
            self._local.average()

    @property
    def last_weight(self) -> float:
        return self._last_weight[0]

    @property
    def accumulating(self) -> bool:
        """True if there are accumulated micro-batches that were not sent, which a checkpoint would lose."""
        return self._reducer is not None and self._reducer.accumulating

    # --- statistics and state -----------------------------------------------------------------------

    def traffic(self) -> Traffic:
        """Return the bytes that this rank has sent for its gradients, and the compression error. Local."""
        reducer = self._reducer
        if reducer is None or self._group is None:
            return Traffic(0, 0, 0, 0.0)
        sender = reducer.sender
        codec_bytes, error = (
            (0, 0.0) if sender.codec is None else (sender.codec.sent_bytes(), sender.codec.relative_error())
        )
        return Traffic(reducer.steps, sender.bytes_plain + codec_bytes, sender.bytes_wanted, error)

    def step_state_dict(self) -> dict[str, Tensor | int | list[str]]:
        """Return what this rank's next step needs beyond parameters and optimizer: step count and residuals."""
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
        """Restore what the next step needs beyond parameters and optimizer.

        Parameters
        ----------
        state : mapping
            Result of `step_state_dict`; residuals of other parameters are ignored.
        """
        reducer = self._reducer
        if reducer is not None:
            reducer.discard_accumulated()
        if reducer is None or self._group is None or not state:
            return
        reducer.steps = int(state["steps"])
        sender = reducer.sender
        if sender.codec is not None and list(state.get("parameters", ())) == reducer.plan.names:
            sender.codec.load_state_dict(state)
            sender.exponent = int(state["exponent"]) if "exponent" in state else sender.exponent


@dataclass(frozen=True)
class Accumulation:
    """Position in a gradient accumulation, as `DataParallel.accumulate` yields it.

    Attributes
    ----------
    block : int
        Number of this micro-batch, from 1.
    complete : bool
        True for the last micro-batch. After its backward pass `.grad` holds the mean over all samples of all
        micro-batches and ranks; call the optimizer then. Before, `.grad` is None.
    """

    block: int
    complete: bool


@contextmanager
def _accumulation_block(reducer: Reducer, k: int, last: bool) -> Iterator[Accumulation]:
    """Run one micro-batch; the k-th, or the one with `last`, sends."""
    if not is_whole(k) or k < 1:
        raise InvalidArgument(f"accumulate: k={k!r} must be an integer, 1 or more")
    reducer.blocks += 1
    accumulation = Accumulation(reducer.blocks, last or reducer.blocks >= k)
    steps = reducer.steps
    try:
        with reducer.accumulation_mode(accumulation.complete):
            yield accumulation
    except BaseException:
        reducer.discard_accumulated()
        raise
    if accumulation.complete and reducer.steps == steps:
        reducer.discard_accumulated()
        raise StepInterrupted(
            f"accumulate: block {accumulation.block} is the last one, and no backward pass ran in it, so nothing was "
            "sent and the accumulated gradients were discarded. Call backward() inside the block"
        )


class Precision:
    """Precision of forward passes on devices of one type.

    Attributes
    ----------
    name : str
        "fp32", "bf16" or "fp16".
    device_type : str
        "cpu" or "cuda"; set it when a model moves.
    scaler : torch.amp.GradScaler
        Scales the loss for fp16; disabled, and without effect, for the others.
    """

    def __init__(self, name: str, device_type: str = "cpu") -> None:
        if name not in get_args(PrecisionName):
            raise InvalidArgument(f"precision={name!r} is not one of {', '.join(get_args(PrecisionName))}")
        self.name = name
        self.device_type = device_type
        self.scaler = torch.amp.GradScaler(device_type, enabled=name == "fp16")

    def __repr__(self) -> str:
        return f"Precision({self.name!r}, {self.device_type!r})"

    def autocast(self) -> Any:
        """Return the context manager of forward passes; it does nothing for fp32."""
        dtype = _DTYPES.get(self.name)
        return nullcontext() if dtype is None else torch.autocast(self.device_type, dtype=dtype)

    def loss_scale(self) -> float:
        """Return the current factor of the loss and its gradients."""
        return float(self.scaler.get_scale())


def _replica_devices(module: nn.Module, device_ids: Sequence[int | torch.device] | None) -> list[torch.device]:
    """Return the GPUs to replicate over (default: all visible ones), or [] if there are fewer than two.

    Raises
    ------
    InvalidArgument
        If a parameter or buffer is not on the first of them.
    """
    home = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    if home.type != "cuda":
        return []
    ids = range(torch.cuda.device_count()) if device_ids is None else device_ids
    devices = [torch.device("cuda", device) if isinstance(device, int) else torch.device(device) for device in ids]
    if len(devices) < 2:
        return []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device != devices[0]:
            raise InvalidArgument(
                f"{name!r} is on {tensor.device}, and the first of device_ids is {devices[0]}. Move the module there"
            )
    return devices


def _forward_replicas(
    devices: Sequence[torch.device], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the module's output for the whole batch, each GPU having computed a share of the rows."""
    return data_parallel(module, args, list(devices), module_kwargs=dict(kwargs))


def _close_local_sgd(group: Communicator, close: Callable[[], None]) -> None:
    close()
    group.close()


def _refuse_gradient_of_copy(_: Tensor) -> None:
    raise InvalidArgument(
        "a copy of a DataParallel cannot be trained, because its ranks do not average its gradients. Wrap the copied "
        "module: DataParallel(copied.module), on all ranks"
    )


def _has_sync_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, SyncBatchNorm) for layer in module.modules())


def _identity_of(parameter: nn.Parameter) -> tuple[Any, ...]:
    return id(parameter), parameter.dtype, parameter.device, parameter.data_ptr()


def _device_type(module: nn.Module) -> str:
    return next((str(parameter.device.type) for parameter in module.parameters()), "cpu")


def _add_module_prefix(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the prefix "module." when the wrapper is loaded as a submodule, since saved names do not have it."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        rest = name.removeprefix(prefix)
        if not rest.startswith("module."):
            state_dict[f"{prefix}module.{rest}"] = state_dict.pop(name)


def _watch_all(output: Any, passing: Forward, reducer: Reducer) -> None:
    """Watch every tensor of nested outputs."""
    for leaf in iter_leaves(output):
        if isinstance(leaf, Tensor):
            reducer.watch(leaf, passing)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            _watch_all([getattr(leaf, field.name) for field in dataclasses.fields(leaf)], passing, reducer)


def _check_bytes(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and (not is_whole(value) or value < 0):
            raise InvalidArgument(f"{name}={value!r} must be an integer number of bytes")


def _check(loss: str, buffers: str, sync_every: int, precision: str, compress: Any) -> None:
    for name, value, allowed in (("loss", loss, ("mean", "sum")), ("buffers", buffers, ("broadcast", "keep"))):
        if value not in allowed:
            raise InvalidArgument(f"{name}={value!r} is not one of {', '.join(allowed)}")
    if not is_whole(sync_every) or sync_every < 1:
        raise InvalidArgument(f"sync_every={sync_every!r} must be an integer, 1 or more")
    if sync_every > 1 and precision == "fp16":
        raise InvalidArgument(
            "sync_every > 1 with precision='fp16': the ranks would skip different steps. Use precision='bf16'"
        )
    if sync_every > 1 and compress is not None:
        raise InvalidArgument("sync_every > 1 sends no gradients, so it cannot be combined with compress")
