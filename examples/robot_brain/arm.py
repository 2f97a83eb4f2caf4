"""An arm with two joints in a plane: where its hand is, and which joints bring it somewhere."""

from __future__ import annotations

import math

UPPER, LOWER = 0.5, 0.45  # metres
SHOULDER = (0.0, math.pi)  # how far the joints go, in radians
ELBOW = (-2.6, 2.6)
REST = (math.pi / 2, -1.2)

Joints = tuple[float, float]


def hand_of(joints: Joints) -> tuple[float, float]:
    """Return the position of the hand, in metres from the shoulder."""
    shoulder, elbow = joints
    return (
        UPPER * math.cos(shoulder) + LOWER * math.cos(shoulder + elbow),
        UPPER * math.sin(shoulder) + LOWER * math.sin(shoulder + elbow),
    )


def joints_for(x: float, y: float) -> Joints | None:
    """Joints that bring the hand there, with the elbow to the left or to the right; None if it cannot be reached."""
    cosine = (x * x + y * y - UPPER * UPPER - LOWER * LOWER) / (2 * UPPER * LOWER)
    if not -1 <= cosine <= 1:
        return None
    for elbow in (-math.acos(cosine), math.acos(cosine)):
        shoulder = math.atan2(y, x) - math.atan2(LOWER * math.sin(elbow), UPPER + LOWER * math.cos(elbow))
        if within_limits((shoulder, elbow)):
            return shoulder, elbow
    return None


def within_limits(joints: Joints) -> bool:
    return SHOULDER[0] <= joints[0] <= SHOULDER[1] and ELBOW[0] <= joints[1] <= ELBOW[1]


def towards(joints: Joints, goal: Joints, most: float) -> Joints:
    """The joints after a movement of at most so many radians each."""
    shoulder, elbow = (now + max(-most, min(most, then - now)) for now, then in zip(joints, goal, strict=True))
    return shoulder, elbow
