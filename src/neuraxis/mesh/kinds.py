"""What a topic is for, and how its messages travel accordingly.

- **stream**: spikes, sensors. The newest counts: sent at once, before all else, and dropped where there is no room.
- **state**: commands, states. Every one counts: its sender keeps the last 1,000, and gives them again to whoever missed
  some or came later. Nobody waits for a receiver: what does not get through now is recovered.
- **bulk**: large things that must arrive whole and may take their time: the sender waits for room.
"""

from __future__ import annotations

from typing import Any

from neuraxis.errors import InvalidArgument

__all__ = ["KINDS", "check_kind", "declare_publisher", "declare_subscriber"]

KINDS = ("stream", "state", "bulk")
KEPT = 1000  # messages of a state topic that its sender keeps
_HEARTBEAT_S = 0.2  # how soon it is noticed that the last message was missed


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise InvalidArgument(f"kind={kind!r}: one of {', '.join(KINDS)} is expected")
    return kind


def declare_publisher(session: Any, key: str, kind: str) -> Any:
    import zenoh
    from zenoh import ext

    if kind == "stream":
        return session.declare_publisher(
            key,
            congestion_control=zenoh.CongestionControl.DROP,
            priority=zenoh.Priority.REAL_TIME,
            express=True,
            allowed_destination=zenoh.Locality.REMOTE,
        )
    if kind == "bulk":
        return session.declare_publisher(
            key,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.DATA_LOW,
            allowed_destination=zenoh.Locality.REMOTE,
        )
    return ext.declare_advanced_publisher(
        session,
        key,
        congestion_control=zenoh.CongestionControl.DROP,
        priority=zenoh.Priority.INTERACTIVE_HIGH,
        express=True,
        allowed_destination=zenoh.Locality.REMOTE,
        cache=ext.CacheConfig(KEPT),
        sample_miss_detection=ext.MissDetectionConfig(heartbeat=_HEARTBEAT_S, sporadic_heartbeat=None),
        publisher_detection=True,
    )


def declare_subscriber(session: Any, key: str, capacity: int, history: int, recover: bool) -> Any:
    """A subscriber with a ring: where its reader is slow, the oldest messages make room, and nobody else waits.

    `history` is 1 or more: Zenoh gives a subscriber that asks for none all that the senders have kept.
    """
    import zenoh
    from zenoh import ext

    ring: Any = zenoh.handlers.RingChannel(capacity)
    if not recover:
        return session.declare_subscriber(key, ring, allowed_origin=zenoh.Locality.REMOTE)
    # Zenoh's detection of late publishers would ask one that comes back for `history` messages too, and all that was
    # missed meanwhile would be lost. Without it, the heartbeat of such a one tells what is missing, which is asked for.
    earlier = ext.HistoryConfig(detect_late_publishers=False, max_samples=history)
    return ext.declare_advanced_subscriber(
        session,
        key,
        ring,
        allowed_origin=zenoh.Locality.REMOTE,
        history=earlier,
        recovery=ext.RecoveryConfig(periodic_queries=None, heartbeat=True),
    )
