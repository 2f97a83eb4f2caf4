"""Many tensors as few: one flat tensor a dtype, in the order in which they were given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neuraxis.errors import InvalidArgument

__all__ = ["FlatTensors"]


class FlatTensors:
    """Where each of some tensors lies in the flat ones. Two sides with equal tensors have equal layouts."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._groups: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(tensors):
            self._groups.setdefault(tensor.dtype, []).append(place)

    def pack(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Copies on the host; zeros for what is None."""
        flats = []
        for dtype, places in self._groups.items():
            pieces = []
            for place in places:
                tensor = tensors[place]
                if tensor is None:
                    pieces.append(torch.zeros(self._shapes[place].numel(), dtype=dtype))
                else:
                    pieces.append(tensor.detach().to("cpu", dtype).reshape(-1))
            flats.append(torch.cat(pieces))
        return flats

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """The tensors as parts of flat ones. InvalidArgument if those are not of this layout."""
        self._check(flats)
        parts: list[Tensor | None] = [None] * len(self._shapes)
        for flat, places in zip(flats, self._groups.values(), strict=True):
            pieces = flat.split([self._shapes[place].numel() for place in places])
            for place, piece in zip(places, pieces, strict=True):
                parts[place] = piece.view(self._shapes[place])
        return [part for part in parts if part is not None]

    def unpack(self, flats: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Copy the values into tensors, on whichever devices they are."""
        with torch.no_grad():
            for target, value in zip(into, self.views(flats), strict=True):
                target.copy_(value)

    def _check(self, flats: Sequence[Tensor]) -> None:
        wanted = [(dtype, sum(self._shapes[p].numel() for p in places)) for dtype, places in self._groups.items()]
        given = [(getattr(flat, "dtype", None), getattr(flat, "shape", None)) for flat in flats]
        if given != [(dtype, torch.Size([count])) for dtype, count in wanted]:
            raise InvalidArgument(f"flat tensors of {wanted} were expected, and {given} came")
