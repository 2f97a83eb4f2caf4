"""Regions that compute on a device, for tests on a machine with a GPU."""

from __future__ import annotations

from typing import Any

import torch

from neuraxis.brain import Event

__all__ = ["Scaler", "Summer"]


class Scaler:
    """Doubles the tensors that it is given, where they are, and sends them on."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.device = device

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        answers = []
        for event in events:
            if event.data is not None:
                assert event.data.device == torch.device(self.device), event.data.device
                answers.append(Event(data=event.data * 2))
        return answers


class Summer:
    """The neuron whose number is the sum of the received tensor spikes."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.device = device

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        answers = []
        for event in events:
            if event.data is not None:
                assert event.data.device == torch.device(self.device), event.data.device
                answers.append(Event(ids=[int(event.data.sum().item())]))
        return answers
