"""Tensors that are too long for one message, in pieces: they travel ahead of the message, or are fetched after it.

In the message itself a mark takes the tensor's place, which names its pieces.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neuraxis.errors import InvalidArgument

__all__ = ["Pieces", "restored", "taken_apart"]

_MARK = "@pieces"
_KEPT_S = 300.0  # who has not fetched a piece by then is gone
_MOST_BYTES = 16 << 30


class Pieces:
    """Pieces that wait to be fetched, or for their message. Each is taken once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Tensor]] = {}
        self._bytes = 0

    def keep(self, token: str, piece: Tensor) -> None:
        now = time.monotonic()
        with self._lock:
            for old in [one for one, (since, _) in self._kept.items() if now - since > _KEPT_S]:
                self._drop(old)
            if self._bytes + piece.nbytes > _MOST_BYTES:
                raise InvalidArgument(f"{self._bytes:,} bytes wait in pieces already, and no more are accepted")
            self._drop(token)
            self._kept[token] = now, piece
            self._bytes += piece.nbytes

    def take(self, token: str) -> Tensor:
        with self._lock:
            if token not in self._kept:
                raise InvalidArgument(f"there is no piece {token!r}: it was taken already, or too long ago")
            return self._drop(token)

    def _drop(self, token: str) -> Any:
        _, piece = self._kept.pop(token, (0.0, None))
        self._bytes -= 0 if piece is None else piece.nbytes
        return piece


def taken_apart(value: Any, piece_bytes: int, put: Callable[[str, Tensor], Any]) -> Any:
    """The value with a mark in place of each long tensor; `put(token, piece)` gets the pieces."""
    if isinstance(value, dict):
        return {key: taken_apart(part, piece_bytes, put) for key, part in value.items()}
    if isinstance(value, list):
        return [taken_apart(part, piece_bytes, put) for part in value]
    if not isinstance(value, Tensor) or value.nbytes <= piece_bytes:
        return value
    tokens = []
    for piece in value.reshape(-1).split(max(1, piece_bytes // value.element_size())):
        tokens.append(secrets.token_hex(8))
        put(tokens[-1], piece)
    return {_MARK: tokens, "shape": list(value.shape)}


def restored(value: Any, get: Callable[[str], Tensor]) -> Any:
    """What `taken_apart` was given; `get(token)` brings the pieces."""
    if isinstance(value, dict) and _MARK in value:
        return torch.cat([get(str(token)) for token in value[_MARK]]).reshape(tuple(value["shape"]))
    if isinstance(value, dict):
        return {key: restored(part, get) for key, part in value.items()}
    if isinstance(value, list):
        return [restored(part, get) for part in value]
    return value
