"""Payloads of events between regions: published on their own keys, and requested again if they do not arrive.

A spike of a region's marker announces a payload, which arrives on another key, usually before the spike. If the sender
no longer has a payload, the receiver drops the event and counts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from neuraxis.simulation.mesh.upstream import MISSING, Upstream
from neuraxis.simulation.python_populations import LocalPayloads, Payload
from neuraxis.wire.tensors import to_sendable

__all__ = ["MeshPayloads"]

_MOST_PAYLOADS = 20_000
_REQUEST_AFTER_S = 0.1
_REQUEST_AGAIN_S = 0.25


class MeshPayloads(LocalPayloads):
    """Payloads that one region has sent and received.

    Parameters
    ----------
    markers : mapping
        By region, the population that spikes with each payload.
    publish : callable
        Publishes a payload of this region.
    """

    def __init__(self, markers: Mapping[str, int], publish: Callable[[Payload], None]) -> None:
        super().__init__()
        self.lost = 0  # events dropped because their payload was unavailable
        self._regions = {marker: name for name, marker in markers.items()}
        self._markers = dict(markers)
        self._publish = publish
        self._unavailable: set[tuple[int, int]] = set()
        self._wait: Callable[[], None] | None = None
        self._request: Callable[[Upstream, int], None] = lambda one, step: None
        self._should_give_up: Callable[[Upstream, float], bool] = lambda one, since: False
        self._upstream: Mapping[str, Upstream] = {}

    def connect(
        self,
        upstream: Mapping[str, Upstream],
        wait: Callable[[], None] | None,
        request: Callable[[Upstream, int], None],
        should_give_up: Callable[[Upstream, float], bool],
    ) -> None:
        """Set how to wait for payloads.

        Parameters
        ----------
        upstream : mapping
            The regions that this one subscribes to, by name.
        wait : callable or None
            Handles messages for a moment; None: do not wait for payloads.
        request : callable
            Requests a replay from a region, from a step on.
        should_give_up : callable
            Returns whether the failure detector gives up a region, given the time since when this process listens.
        """
        self._upstream, self._wait, self._request, self._should_give_up = upstream, wait, request, should_give_up

    def send(self, payload: Payload) -> None:
        super().send(payload)
        self._publish(payload)

    def keep(self, name: str, step: int, content: Any) -> None:
        """Store a payload of a region; raise ValueError if too many are waiting."""
        if len(self.payloads) >= _MOST_PAYLOADS:
            raise ValueError(f"{name} sent a payload, and {len(self.payloads):,} are already waiting")
        self.payloads[self._markers[name], step] = to_sendable(content)

    def keep_replayed(self, name: str, reply: Any, requested: int | None) -> None:
        """Store the payloads of a replay; if the requested one is not among them, it is lost."""
        if name not in self._markers:
            return
        marker = self._markers[name]
        for step, content in reply["letters"]:
            self.keep(name, int(step), content)
        if requested is None or (marker, requested) in self.payloads or int(reply["last"]) < requested:
            return
        if reply["letters_to"] is None or requested <= int(reply["letters_to"]):
            self._unavailable.add((marker, requested))

    def own(self, name: str) -> list[Payload]:
        """Return the payloads that this region has sent and still holds, in the order of steps."""
        marker = self._markers.get(name)
        if marker is None:
            return []
        return [
            Payload(marker, step, self.payloads[source, step])
            for source, step in sorted(self.payloads)
            if source == marker
        ]

    def wait_for(self, source: int, step: int) -> Any:
        """Wait for a payload and return its content, or None if it is lost."""
        key = (source, step)
        one = self._upstream.get(self._regions[source])
        listening_since = checked = time.monotonic()
        requested = checked - _REQUEST_AGAIN_S + _REQUEST_AFTER_S
        while key not in self.payloads and self._wait is not None and one is not None:
            if key in self._unavailable or one.state == MISSING or self._should_give_up(one, listening_since):
                break
            self._wait()
            if time.monotonic() - checked > one.silence_timeout / 4:
                listening_since = time.monotonic()  # this process itself was suspended
            checked = time.monotonic()
            if time.monotonic() - requested >= _REQUEST_AGAIN_S and key not in self.payloads:
                requested = time.monotonic()
                self._request(one, step)
        self._unavailable.discard(key)
        if key not in self.payloads:
            self.lost += 1
            return None
        return super().wait_for(source, step)
