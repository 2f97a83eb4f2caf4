"""A table with moving objects, the pictures of a small camera, and object detection in these pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIXELS = 32
COLOURS = {"red": (210, 50, 40), "green": (50, 180, 60), "blue": (50, 70, 210), "yellow": (220, 200, 50)}
BACKGROUND, NOISE = 110, 12
NEAREST = 70  # how far a pixel may be from a colour to be of it
SMALLEST = 6  # pixels; less is noise

# The part of the table that is seen, in metres; the arm stands at (0, 0).
LEFT, RIGHT, NEAR, FAR = -0.4, 0.4, 0.2, 1.0


@dataclass(frozen=True)
class Thing:
    """An object that moves back and forth between two positions (metres), once per `period_ms`."""

    colour: str
    shape: str  # "ball" or "box"
    begin: tuple[float, float]
    end: tuple[float, float]
    period_ms: float

    def place(self, now_ms: float) -> tuple[float, float]:
        part = now_ms / self.period_ms % 1.0
        part = 2 * part if part < 0.5 else 2 - 2 * part
        return tuple(a + (b - a) * part for a, b in zip(self.begin, self.end, strict=True))  # type: ignore[return-value]


TABLE: Sequence[Thing] = (
    Thing("red", "ball", (-0.25, 0.35), (0.25, 0.35), 8000.0),
    Thing("green", "box", (-0.25, 0.55), (0.05, 0.55), 6000.0),
    Thing("blue", "ball", (-0.2, 0.75), (0.2, 0.75), 9000.0),
    Thing("yellow", "box", (0.33, 0.93), (0.33, 0.93), 1000.0),  # the arm does not reach it
)


def render(now_ms: float, seed: int, things: Sequence[Thing] = TABLE) -> NDArray[np.uint8]:
    """Return the camera's picture at a time: (row, column, colour), the farthest row first."""
    chance = np.random.default_rng([seed, int(now_ms)])
    picture = BACKGROUND + chance.integers(-NOISE, NOISE + 1, (PIXELS, PIXELS, 3))
    rows, columns = np.mgrid[:PIXELS, :PIXELS]
    for thing in things:
        row, column = _to_pixels(*thing.place(now_ms))
        down, right = rows - row, columns - column
        inside = down**2 + right**2 <= 3.2**2 if thing.shape == "ball" else np.maximum(abs(down), abs(right)) <= 2.6
        picture[inside] = np.array(COLOURS[thing.colour]) + chance.integers(-NOISE, NOISE + 1, (inside.sum(), 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def find_objects(picture: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Return the coloured objects in a picture: {colour, shape, x, y}, positions in metres."""
    found = []
    for colour, values in COLOURS.items():
        distance = ((picture.astype(np.int32) - values) ** 2).sum(axis=2)
        for pixels in connected_parts(distance < NEAREST**2):
            rows, columns = np.nonzero(pixels)
            if len(rows) < SMALLEST:
                continue
            x, y = _to_metres(float(rows.mean()), float(columns.mean()))
            corners = pixels[np.ix_([rows.min(), rows.max()], [columns.min(), columns.max()])]
            shape = "box" if corners.sum() >= 2 else "ball"  # a ball does not fill the corners of its frame
            found.append({"colour": colour, "shape": shape, "x": round(x, 4), "y": round(y, 4)})
    return found


def connected_parts(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the connected components of a mask (4-neighbourhood), in the order of their first pixels."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:  # every pixel takes the smallest label of its neighbourhood, until none changes
        padded = np.pad(labels, 1)
        neighbours = np.stack(
            [padded[1:-1, 1:-1], padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
        )
        smallest = np.where(neighbours > 0, neighbours, mask.size + 1).min(axis=0)
        smallest = np.where(mask, smallest, 0)
        if np.array_equal(smallest, labels):
            break
        labels = smallest
    return [labels == label for label in np.unique(labels) if label]


def _to_pixels(x: float, y: float) -> tuple[float, float]:
    return (FAR - y) / (FAR - NEAR) * (PIXELS - 1), (x - LEFT) / (RIGHT - LEFT) * (PIXELS - 1)


def _to_metres(row: float, column: float) -> tuple[float, float]:
    return LEFT + column / (PIXELS - 1) * (RIGHT - LEFT), FAR - row / (PIXELS - 1) * (FAR - NEAR)
