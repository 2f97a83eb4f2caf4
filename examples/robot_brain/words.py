"""Commands in words: what is meant by them, from the words that are in them."""

from __future__ import annotations

import re
from typing import Any

from routing import softmax
from scene import COLOURS

INTENTS = ("take", "look", "stop", "ask")
SHAPES = ("ball", "box")

# How much a word speaks for each intent, in the order of INTENTS.
WEIGHTS = {
    "take": (5.0, 0.0, 0.0, 0.0),
    "grab": (5.0, 0.0, 0.0, 0.0),
    "get": (4.0, 0.0, 0.0, 0.0),
    "pick": (4.0, 0.0, 0.0, 0.0),
    "give": (3.0, 0.0, 0.0, 0.0),
    "look": (0.0, 5.0, 0.0, 0.0),
    "watch": (0.0, 5.0, 0.0, 0.0),
    "find": (0.5, 4.0, 0.0, 0.5),
    "stop": (0.0, 0.0, 6.0, 0.0),
    "halt": (0.0, 0.0, 6.0, 0.0),
    "wait": (0.0, 0.0, 4.0, 0.0),
    "what": (0.0, 0.5, 0.0, 4.0),
    "where": (0.0, 1.5, 0.0, 4.0),
    "who": (0.0, 0.0, 0.0, 5.0),
    "why": (0.0, 0.0, 0.0, 5.0),
    "hello": (0.0, 0.0, 0.0, 5.0),
}


def parse(text: str) -> dict[str, Any]:
    """{text, intents: probability of each, colour, shape}; "" where a command names no colour or shape."""
    words = re.findall(r"[a-z]+", text.lower())
    scores = {intent: sum(WEIGHTS[w][i] for w in words if w in WEIGHTS) for i, intent in enumerate(INTENTS)}
    if not any(scores.values()):
        scores["ask"] = 2.0  # what is not understood is a question
    return {
        "text": text,
        "intents": softmax(scores),
        "colour": next((word for word in words if word in COLOURS), ""),
        "shape": next((word for word in words if word in SHAPES), ""),
    }
