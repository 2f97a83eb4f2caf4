"""How the ranks of a group meet: over the store that `torch.distributed` hands to a backend.

A store outlives the groups made over it, and the same names come again when a process group is destroyed and
initialized anew. So each rank counts how often it has met under a prefix, and the count is part of every key:
nobody reads what was left by an earlier meeting.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from neuraxis.comm.backend import Exchange
from neuraxis.comm.host import host_identity
from neuraxis.errors import BackendUnavailable, RendezvousError, RendezvousTimeout

__all__ = ["StoreExchange", "check_one_host"]


class StoreExchange:
    """Hands in this rank's bytes and gives back everybody's, in rank order."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float, world_ranks: Sequence[int]) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._world_ranks = world_ranks
        self._meeting = int(store.add(f"neuraxis/meetings/{rank}", 1))
        self._round = 0

    def __call__(self, content: bytes) -> list[bytes]:
        keys = [self._key(self._round, rank) for rank in range(self._size)]
        # An empty value is no value to some stores.
        self._store.set(keys[self._rank], b"=" + content)
        remaining = timedelta(seconds=max(0.001, self._deadline - time.monotonic()))
        try:
            self._store.wait(keys, remaining)
            contents = [bytes(self._store.get(key))[1:] for key in keys]
        except (RuntimeError, dist.DistError) as error:
            raise self._failure(keys, error) from error
        if self._round > 0:  # everybody is in this round, so all have read the one before
            with suppress(RuntimeError, NotImplementedError):
                self._store.delete_key(self._key(self._round - 1, self._rank))
        self._round += 1
        return contents

    def _key(self, round_: int, rank: int) -> str:
        return f"neuraxis/{self._meeting}/{round_}/{rank}"

    def _failure(self, keys: Sequence[str], error: Exception) -> RendezvousError:
        if time.monotonic() < self._deadline:
            return RendezvousError(f"the store of the process group failed while its ranks met: {error}")
        missing: list[int] = []
        with suppress(RuntimeError, dist.DistError):
            missing = [rank for rank, key in zip(self._world_ranks, keys, strict=True) if not self._store.check([key])]
        names = ", ".join(map(str, missing)) or "unknown"
        return RendezvousTimeout(
            f"not every rank came to the process group within {self._timeout:g} s; missing ranks: {names}",
            tuple(missing),
        )


def check_one_host(exchange: Exchange, world_ranks: Sequence[int]) -> None:
    """Raise BackendUnavailable unless all ranks share a host, and with it their memory."""
    hosts = [identity.decode() for identity in exchange(host_identity().encode())]
    if len(set(hosts)) == 1:
        return
    where = ", ".join(f"rank {rank} on {host.split('/')[0]}" for rank, host in zip(world_ranks, hosts, strict=True))
    raise BackendUnavailable(
        "shm",
        f"the ranks are on several hosts ({where})",
        "Use init_process_group('gloo'), or new_group(backend='shm') among the ranks of one host",
    )
