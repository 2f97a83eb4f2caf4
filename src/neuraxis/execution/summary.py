"""What a run of a simulation comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Summary"]


@dataclass(frozen=True)
class Summary:
    """Figures of one call of `run`; `print` shows them, `as_json` is for programs."""

    workers: int
    device: str
    time_ms: float
    build_seconds: float
    run_seconds: float
    spikes: int
    rates_hz: Mapping[str, float]
    synaptic_events: int
    synapses: int
    bytes_per_synapse: float
    clipped_delays: int
    peak_memory_bytes: int
    fingerprint: str

    @property
    def real_time_factor(self) -> float:
        """Seconds of run time for a second of model time: below 1 is faster than real time."""
        return self.run_seconds / (self.time_ms * 1e-3) if self.time_ms else 0.0

    @property
    def synaptic_events_per_second(self) -> float:
        """Synaptic events per second of run time."""
        return self.synaptic_events / self.run_seconds if self.run_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            **asdict(self),
            "rates_hz": dict(self.rates_hz),
            "real_time_factor": self.real_time_factor,
            "synaptic_events_per_second": self.synaptic_events_per_second,
        }

    def __str__(self) -> str:
        clipped = f" ({self.clipped_delays / self.synapses:.2%} of the delays clipped)" if self.clipped_delays else ""
        cores = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        if self.device != "cpu":
            cores += f" ({self.device})"
        ran = f"{self.time_ms:,.1f} ms of model time in {self.run_seconds:.3f} s on {cores}"
        size = f"{self.synapses:,} synapses, {self.bytes_per_synapse:.2f} bytes each{clipped}"
        events = f"{self.synaptic_events:,} synaptic events ({self.synaptic_events_per_second:.3g} a second)"
        lines = [
            f"{ran}: real-time factor {self.real_time_factor:.3g}",
            f"built in {self.build_seconds:.2f} s: {size}; memory at most {self.peak_memory_bytes / 2**20:,.0f} MiB",
            f"{self.spikes:,} spikes, {events}",
            "rates: " + ", ".join(f"{name} {rate:.2f} Hz" for name, rate in self.rates_hz.items()),
            f"fingerprint {self.fingerprint}",
        ]
        return "\n".join(lines)
