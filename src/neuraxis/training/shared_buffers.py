"""Buffers, the same on all ranks after each step: those of a rank that had data are taken by all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuraxis.comm import Communicator
from neuraxis.training.sameness import spread_tensors
from neuraxis.training.sync_batch_norm import SyncBatchNorm

__all__ = ["SharedBuffers"]


class SharedBuffers:
    """The buffers of a module, except those of SyncBatchNorm, which are equal by computation."""

    def __init__(self, module: nn.Module, group: Communicator) -> None:
        self._group = group
        # By name, and not the tensors: a module may assign new ones.
        self._places = [
            (owner, name)
            for owner in module.modules()
            if not isinstance(owner, SyncBatchNorm)
            for name, _ in owner.named_buffers(recurse=False)
        ]

    @classmethod
    def of(cls, module: nn.Module, group: Communicator) -> SharedBuffers | None:
        """Those of a module; None if it has none."""
        shared = cls(module, group)
        return shared if shared._places else None

    def bytes(self) -> int:
        """How large they are. Where that is not the same everywhere, they cannot be shared."""
        return sum(buffer.nbytes for buffer in self._tensors())

    def after_step(self, weights: list[float]) -> None:
        """Take those of the lowest rank with data; `weights` are the samples of each rank. Collective."""
        source = next((rank for rank, weight in enumerate(weights) if weight > 0), None)
        if source is not None:
            with torch.no_grad():
                spread_tensors(self._tensors(), self._group, source)

    def _tensors(self) -> list[Tensor]:
        """Their memory: what autograd keeps of them for another backward pass does not count as changed by this."""
        buffers = (getattr(owner, name) for owner, name in self._places)
        return [buffer.data for buffer in buffers if isinstance(buffer, Tensor)]
