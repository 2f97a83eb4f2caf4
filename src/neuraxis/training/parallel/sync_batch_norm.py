"""Synchronization of batch statistics and buffers: `SyncBatchNorm` and `SharedBuffers`.

Each rank reduces its rows to a count, a mean and a sum of squared deviations for each channel. The ranks all-gather
these in float64 and merge them around the common mean, so a mean that is much larger than the spread costs no digits.
The backward pass all-reduces two sums for each channel.

A loss is the mean over a rank's own rows, and ranks may have different numbers of rows. So the effect of a rank's
gradients on the others depends on the weight of its batch: the sums are weighted by `current_weight()`, and
`DataParallel` weights the gradients of the parameters by the same number. Together they are the gradients of the global
batch. (A batch that has rows but weight 0 contributes to the statistics and gets no gradient for it.)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from neuraxis.comm import Communicator
from neuraxis.comm import context as current
from neuraxis.errors import InvalidArgument, NotInitialized
from neuraxis.process.environment import detect_launch
from neuraxis.training.parallel.buckets import MODEL_CHANGED, check_all_ranks_changed
from neuraxis.training.parallel.consistency import broadcast_tensors
from neuraxis.training.parallel.weighting import current_weight, model_has_changed

__all__ = ["SharedBuffers", "SyncBatchNorm"]

_HEAD = 2  # entries before the statistics of channels: the number of values, and MODEL_CHANGED or 0


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """Batch normalization over the batches of all ranks.

    In training each forward and each backward pass is one collective, so all ranks must run the layer equally often and
    in the same order. In evaluation, with one rank or without a context it is torch's batch norm.

    Parameters
    ----------
    num_features : int
        Number of channels C.
    eps : float
        Added to the variance.
    momentum : float or None
        Weight of a new batch in the running statistics; None for the plain mean over all batches.
    affine : bool
        Learn a weight and a bias for each channel.
    track_running_stats : bool
        Keep statistics for evaluation.
    group : Communicator, optional
        Ranks that share a batch; the world of the current context by default.
    device, dtype : optional
        Of the parameters and buffers.

    Notes
    -----
    Input and output have the shape (N, C), (N, C, L), (N, C, H, W) or deeper; N may differ between ranks and be 0.

    Raises
    ------
    InvalidArgument
        In forward: for an input of another shape, or a single value per channel over all ranks.
    ModelMismatch
        In forward: if the trained parameters of the model changed on some ranks only.
    NotInitialized
        In forward: if the launcher started several processes and this one has no context.

    Examples
    --------
    >>> import torch
    >>> from neuraxis.training import SyncBatchNorm
    >>> layer = SyncBatchNorm(3)
    >>> layer(torch.randn(8, 3, 5)).mean(dim=(0, 2)).abs().max().item() < 1e-6
    True
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        group: Communicator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.group = group

    @classmethod
    def convert(cls, module: nn.Module, group: Communicator | None = None) -> nn.Module:
        """Replace every batch norm in `module` by a SyncBatchNorm and return the module.

        If `module` itself is a batch norm, a new module is returned. A replacement shares the parameters and buffers of
        the original, so existing optimizers stay valid, and has its settings, hooks and mode. A layer that is used in
        several places stays one layer.

        Parameters
        ----------
        module : torch.nn.Module
            Module to change.
        group : Communicator, optional
            Ranks that share statistics; by default all.

        Returns
        -------
        torch.nn.Module
            The module, or a new one if it is itself a batch norm.

        Raises
        ------
        InvalidArgument
            If a lazy batch norm has not determined its number of channels yet.

        Examples
        --------
        >>> import torch
        >>> from neuraxis.training import SyncBatchNorm
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        >>> type(SyncBatchNorm.convert(model)[1]).__name__
        'SyncBatchNorm'
        """
        return cls._converted(module, group, {}, "module")

    @classmethod
    def _converted(
        cls, module: nn.Module, group: Communicator | None, done: dict[nn.Module, nn.Module], name: str
    ) -> nn.Module:
        if module in done:
            return done[module]
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            if any(is_lazy(each) for each in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
                raise InvalidArgument(
                    f"convert: {name} ({type(module).__name__}) has no number of channels yet. "
                    "Run the model once before converting it"
                )
            result = cls._like(module, group)
        done[module] = done[result] = result
        for child_name, child in list(module.named_children()):
            replacement = cls._converted(child, group, done, f"{name}.{child_name}")
            if replacement is not child:
                # Under every name: named_children yields a child once.
                for own_name, own in list(result._modules.items()):
                    if own is child:
                        result._modules[own_name] = replacement
        return result

    @classmethod
    def _like(cls, norm: _BatchNorm, group: Communicator | None) -> SyncBatchNorm:
        layer = cls.__new__(cls)
        layer.__dict__.update(norm.__dict__)
        for members in ("_parameters", "_buffers", "_modules"):  # same members in separate dicts
            layer.__dict__[members] = copy.copy(norm.__dict__[members])
        layer.__dict__.pop("process_group", None)  # of torch's SyncBatchNorm
        layer.group = group
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        """Copy everything but the group, which cannot be copied because it represents processes."""
        layer = type(self).__new__(type(self))
        memo[id(self)] = layer
        if self.group is not None:
            memo[id(self.group)] = self.group
        layer.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return layer

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgument(f"SyncBatchNorm expects the shape (N, C, ...), got {tuple(input.shape)}")
        if input.shape[1] != self.num_features:
            raise InvalidArgument(
                f"SyncBatchNorm expects {self.num_features} channels, got {input.shape[1]}: "
                f"(N, C, ...) = {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        """Normalize a batch by the statistics of the batches of all ranks. Collective while training.

        Parameters
        ----------
        input : Tensor, shape (batch, channels, ...)
            Batch of this rank.

        Returns
        -------
        Tensor
            Normalized batch of the same shape.
        """
        self._check_input_dim(input)
        group = self._group() if self.training else None
        if group is None or group.size == 1:
            plain: Tensor = super().forward(input)
            return plain
        if not self.eps > 0:
            raise InvalidArgument(f"eps={self.eps} must be positive in training")
        place = input.device if group.backend_name == "nccl" else torch.device("cpu")
        count, mean, variance = _whole_batch(input.detach(), group, place)
        if count == 1:
            raise InvalidArgument(
                f"SyncBatchNorm in training needs more than one value for each channel; "
                f"the {group.size} ranks have one in total, and the input of this rank is {tuple(input.shape)}"
            )
        if count:
            self._track(count, mean, variance)
        scale = (variance + self.eps).rsqrt()
        result: Tensor = _Normalize.apply(input, self.weight, self.bias, mean, scale, count, group, current_weight())
        return result

    def _group(self) -> Communicator | None:
        group = self.group or current.world
        if group is None and detect_launch().world_size > 1:
            raise NotInitialized(
                f"SyncBatchNorm: this is one of {detect_launch().world_size} processes and has no distributed context. "
                "Call init_distributed() first"
            )
        return group

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _track(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics with a batch; all ranks use the same numbers."""
        if not self.track_running_stats:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.running_mean is None or self.running_var is None:
            return
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            # Computed in float64 and rounded once.
            running.copy_((1.0 - share) * running.to(new) + share * new)


def _whole_batch(values: Tensor, group: Communicator, place: torch.device) -> tuple[int, Tensor, Tensor]:
    """Return count, mean and biased variance of each channel over all ranks, as float64 on `place`.

    Raises ModelMismatch if the model changed on some ranks only: their backward passes would block each other.
    """
    channels = values.shape[1]
    gathered = torch.empty(group.size, _HEAD + 2 * channels, dtype=torch.float64, device=place)
    mine = _statistics(values).to(place)
    group.all_gather_into_tensor(_array(gathered), _array(mine))
    total, changed = gathered[:, :_HEAD].sum(0).tolist()
    if changed:
        check_all_ranks_changed(gathered[:, 1].tolist(), group)
    counts, means, deviations = gathered[:, :1], gathered[:, _HEAD : _HEAD + channels], gathered[:, _HEAD + channels :]
    count = int(total)
    if count == 0:
        return 0, means[0], deviations[0]
    mean = (counts * means).sum(0) / count
    # Not E[x²] - E[x]², which cancels where the mean is large.
    variance = (deviations.sum(0) + (counts * (means - mean).square_()).sum(0)) / count
    return count, mean, variance


def _statistics(values: Tensor) -> Tensor:
    """Return this rank's count, MODEL_CHANGED or 0, the mean of each channel and its sum of squared deviations."""
    channels = values.shape[1]
    statistics = torch.zeros(_HEAD + 2 * channels, dtype=torch.float64, device=values.device)
    if model_has_changed():
        statistics[1] = MODEL_CHANGED
    count = values.numel() // channels if channels else 0
    if count:
        values = values.to(_precise(values.dtype))
        rough = values.mean(_reduced(values))
        centred = values - _spread(rough, values)
        # The rounding error of the mean, which matters in float32 where the mean is large. (Its square does not.)
        rest = centred.mean(_reduced(values))
        statistics[0] = count
        statistics[_HEAD : _HEAD + channels] = rough.double() + rest.double()
        statistics[_HEAD + channels :] = centred.square_().sum(_reduced(values))
    return statistics


class _Normalize(torch.autograd.Function):  # type: ignore[misc]
    """Compute (input - mean) * scale * weight + bias, where mean and scale depend on the inputs of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        count: int,
        group: Communicator,
        importance: float,
    ) -> Tensor:
        precise = _precise(input.dtype)
        mean, scale = mean.to(input.device), scale.to(input.device)
        # A high and a low part of the mean, so that float32 loses nothing of it.
        coarse = mean.to(precise)
        fine = mean - coarse.double()
        ctx.save_for_backward(input, weight, coarse, fine, scale)
        ctx.count, ctx.group, ctx.importance = count, group, importance
        ctx.bias_dtype = None if bias is None else bias.dtype
        factor = scale if weight is None else scale * weight.double()
        offset = -fine * factor if bias is None else bias.double() - fine * factor
        result = input.to(precise) - _spread(coarse, input)
        result.mul_(_spread(factor.to(precise), input)).add_(_spread(offset.to(precise), input))
        return result.to(input.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, coarse, fine, scale = ctx.saved_tensors
        precise = coarse.dtype
        gradient = gradient.to(precise)
        normal = (input.to(precise) - _spread(coarse, input)).mul_(_spread(scale.to(precise), input))
        normal.sub_(_spread((fine * scale).to(precise), input))
        plain = gradient.sum(_reduced(input)).double()
        along = (gradient * normal).sum(_reduced(input)).double()
        of_input = None
        if ctx.needs_input_grad[0]:
            plain_mean, along_mean = _over_all_ranks(ctx, plain, along)
            factor = scale if weight is None else scale * weight.double()
            of_input = gradient - _spread(plain_mean.to(precise), input)
            of_input.sub_(normal.mul_(_spread(along_mean.to(precise), input)))
            of_input = of_input.mul_(_spread(factor.to(precise), input)).to(input.dtype)
        # Local gradients: DataParallel reduces them with those of the other parameters.
        of_weight = along.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        of_bias = plain.to(ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        return of_input, of_weight, of_bias, None, None, None, None, None


def _over_all_ranks(ctx: Any, plain: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sums over all ranks divided by the total count, relative to the weight of this rank's batch."""
    sums = torch.cat([plain, along])
    if ctx.importance:
        sums *= ctx.importance
    else:
        sums.zero_()  # not multiplied by 0, which would keep a NaN
    group = ctx.group
    if group.backend_name != "nccl":
        sums = sums.cpu()
    group.all_reduce(_array(sums))
    sums = sums.to(plain.device)
    if ctx.importance and ctx.count:
        sums /= ctx.importance * ctx.count
    else:
        sums.zero_()  # this batch has no weight
    return sums[: plain.numel()], sums[plain.numel() :]


def _precise(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in, at least float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _reduced(values: Tensor) -> list[int]:
    """Return all dimensions but that of the channels."""
    return [0, *range(2, values.dim())]


def _spread(of_channels: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per channel to broadcast with (N, C, ...)."""
    return of_channels.view(1, -1, *(1,) * (like.dim() - 2))


def _array(tensor: Tensor) -> Any:
    """Return CPU memory as a NumPy array, for which groups have a fast path."""
    return tensor.numpy() if tensor.is_cpu else tensor


class SharedBuffers:
    """Buffers of a module to synchronize after each step, except those of SyncBatchNorm, which are equal anyway."""

    def __init__(self, module: nn.Module, group: Communicator) -> None:
        self._group = group
        # Names instead of tensors, because a module may assign new tensors.
        self._places = [
            (owner, name)
            for owner in module.modules()
            if not isinstance(owner, SyncBatchNorm)
            for name, _ in owner.named_buffers(recurse=False)
        ]

    @classmethod
    def of(cls, module: nn.Module, group: Communicator) -> SharedBuffers | None:
        """Return the buffers of a module, or None if it has none."""
        shared = cls(module, group)
        return shared if shared._places else None

    def bytes(self) -> int:
        """Return their size, which must be equal on all ranks."""
        return sum(buffer.nbytes for buffer in self._tensors())

    def after_step(self, weights: list[float]) -> None:
        """Copy the buffers of the lowest rank with data; `weights` are the samples of each rank. Collective."""
        source = next((rank for rank, weight in enumerate(weights) if weight > 0), None)
        if source is not None:
            with torch.no_grad():
                broadcast_tensors(self._tensors(), self._group, source)

    def _tensors(self) -> list[Tensor]:
        """Return `.data`, so that writing does not invalidate what autograd has saved for another backward pass."""
        buffers = (getattr(owner, name) for owner, name in self._places)
        return [buffer.data for buffer in buffers if isinstance(buffer, Tensor)]
