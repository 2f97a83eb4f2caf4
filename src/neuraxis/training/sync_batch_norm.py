"""Batch normalisation over the batches of all ranks, as if they were one.

Each rank reduces its rows to a count, a mean and a sum of squared deviations for each channel; these are exchanged in
float64 and merged around the common mean, so a mean that is much larger than the spread costs no digits. The backward
pass adds up two sums for each channel.

A loss is the mean over a rank's own rows, and ranks may have different numbers of them. What a rank's gradients mean
for the others therefore depends on how much its batch counts: the sums are weighted by `current_weight()`, and
`DataParallel` weighs the gradients of the parameters by the same number. Together they are the gradients of the whole
batch. (A rank whose batch has rows but the weight 0 contributes to the statistics, and gets no gradient for it.)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from neuraxis.comm import context as current
from neuraxis.comm.communicator import Communicator
from neuraxis.comm.environment import detect_launch
from neuraxis.errors import InvalidArgument, NotInitialized
from neuraxis.training.control_words import CHANGED, check_all_have_changed
from neuraxis.training.weighting import current_weight, model_has_changed

__all__ = ["SyncBatchNorm"]

_HEAD = 2  # words before the statistics of channels: how many values there are, and whether the model was changed


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """Batch normalisation whose statistics are those of the rows of all ranks.

    Takes (N, C), (N, C, L), (N, C, H, W) and deeper; N may differ between ranks and be 0 on some. In training each
    forward and each backward is one collective call, so all ranks must run the layer equally often, in the same order.
    In evaluation, with one rank or without a context it is torch's batch norm.

    Args:
        num_features: the number of channels C.
        eps: what is added to the variance.
        momentum: the share of a new batch in the running statistics; None for their plain mean over all batches.
        affine: whether each channel has a learned weight and bias.
        track_running_stats: whether to keep statistics for evaluation.
        group: the ranks that share a batch; those of the current context by default.
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
        """`module` with every batch norm in it replaced by a SyncBatchNorm; a batch norm itself gives a new module.

        The replacement has the very parameters and buffers of what it replaces (so an optimizer made before stays
        right), its settings, hooks and mode. A layer that is used in several places stays one layer.
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
                    f"convert: {name} ({type(module).__name__}) does not know its number of channels yet; "
                    "call the model once before converting it"
                )
            result = cls._like(module, group)
        done[module] = done[result] = result
        for child_name, child in list(module.named_children()):
            replacement = cls._converted(child, group, done, f"{name}.{child_name}")
            if replacement is not child:
                # By every name it has: named_children tells only the first.
                for own_name, own in list(result._modules.items()):
                    if own is child:
                        result._modules[own_name] = replacement
        return result

    @classmethod
    def _like(cls, norm: _BatchNorm, group: Communicator | None) -> SyncBatchNorm:
        layer = cls.__new__(cls)
        layer.__dict__.update(norm.__dict__)
        for members in ("_parameters", "_buffers", "_modules"):  # the same members, but not the same lists of them
            layer.__dict__[members] = copy.copy(norm.__dict__[members])
        layer.__dict__.pop("process_group", None)  # of torch's SyncBatchNorm
        layer.group = group
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        """A copy of everything but the group: those are processes."""
        layer = type(self).__new__(type(self))
        memo[id(self)] = layer
        if self.group is not None:
            memo[id(self.group)] = self.group
        layer.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return layer

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgument(f"SyncBatchNorm takes (N, C, ...), and got {tuple(input.shape)}")
        if input.shape[1] != self.num_features:
            raise InvalidArgument(
                f"SyncBatchNorm was made for {self.num_features} channels, and got {input.shape[1]}: "
                f"(N, C, ...) = {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
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
                f"the {group.size} ranks have one between them, and this rank has {tuple(input.shape)}"
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
                f"this process is one of {detect_launch().world_size}, and SyncBatchNorm cannot reach the others: "
                "call init_distributed() first"
            )
        return group

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _track(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Take the batch into the running statistics; all ranks do so with the same numbers."""
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
            # In the batch's precision, and rounded once.
            running.copy_((1.0 - share) * running.to(new) + share * new)


def _whole_batch(values: Tensor, group: Communicator, place: torch.device) -> tuple[int, Tensor, Tensor]:
    """How many values a channel has over all ranks, their mean and their (biased) variance, as float64 at `place`.

    ModelMismatch if the model was changed on some ranks alone: their backward passes would wait for each other.
    """
    channels = values.shape[1]
    gathered = torch.empty(group.size, _HEAD + 2 * channels, dtype=torch.float64, device=place)
    mine = _statistics(values).to(place)
    group.all_gather_into_tensor(_array(gathered), _array(mine))
    total, changed = gathered[:, :_HEAD].sum(0).tolist()
    if changed:
        check_all_have_changed(gathered[:, 1].tolist(), group)
    counts, means, deviations = gathered[:, :1], gathered[:, _HEAD : _HEAD + channels], gathered[:, _HEAD + channels :]
    count = int(total)
    if count == 0:
        return 0, means[0], deviations[0]
    mean = (counts * means).sum(0) / count
    # Not the mean of squares less the square of the mean, which are nearly equal where the mean is large.
    variance = (deviations.sum(0) + (counts * (means - mean).square_()).sum(0)) / count
    return count, mean, variance


def _statistics(values: Tensor) -> Tensor:
    """This rank's share: the count, CHANGED or 0, each channel's mean, then its sum of squared deviations from it."""
    channels = values.shape[1]
    statistics = torch.zeros(_HEAD + 2 * channels, dtype=torch.float64, device=values.device)
    if model_has_changed():
        statistics[1] = CHANGED
    count = values.numel() // channels if channels else 0
    if count:
        values = values.to(_precise(values.dtype))
        rough = values.mean(_reduced(values))
        centred = values - _spread(rough, values)
        # What rounding left out of the mean: in float32 it matters where the mean is large. (Its square does not.)
        rest = centred.mean(_reduced(values))
        statistics[0] = count
        statistics[_HEAD : _HEAD + channels] = rough.double() + rest.double()
        statistics[_HEAD + channels :] = centred.square_().sum(_reduced(values))
    return statistics


class _Normalize(torch.autograd.Function):  # type: ignore[misc]
    """(input - mean) * scale * weight + bias, where mean and scale are functions of all ranks' inputs."""

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
        # The mean in two parts, so that float32 loses nothing of it.
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
        # Of this rank alone: DataParallel adds them up with all other parameters' gradients.
        of_weight = along.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        of_bias = plain.to(ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        return of_input, of_weight, of_bias, None, None, None, None, None


def _over_all_ranks(ctx: Any, plain: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """The two sums over all ranks, by the count of all values, as this rank's gradients are to see them."""
    sums = torch.cat([plain, along])
    if ctx.importance:
        sums *= ctx.importance
    else:
        sums.zero_()  # not times 0, which leaves a NaN what it is
    group = ctx.group
    if group.backend_name != "nccl":
        sums = sums.cpu()
    group.all_reduce(_array(sums))
    sums = sums.to(plain.device)
    if ctx.importance and ctx.count:
        sums /= ctx.importance * ctx.count
    else:
        sums.zero_()  # a gradient that counts for nothing
    return sums[: plain.numel()], sums[plain.numel() :]


def _precise(dtype: torch.dtype) -> torch.dtype:
    """What to calculate in: at least float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _reduced(values: Tensor) -> list[int]:
    """Every dimension but the channels'."""
    return [0, *range(2, values.dim())]


def _spread(of_channels: Tensor, like: Tensor) -> Tensor:
    """One value for each channel, in a shape that goes with (N, C, ...)."""
    return of_channels.view(1, -1, *(1,) * (like.dim() - 2))


def _array(tensor: Tensor) -> Any:
    """For CPU memory the NumPy array over it: groups have a shorter way for those."""
    return tensor.numpy() if tensor.is_cpu else tensor
