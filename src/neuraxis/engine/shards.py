"""Creation of shards on the CPU or on CUDA devices, from the device names that users pass.

A device is "cpu", "cuda" (the first GPU) or "cuda:1"; "cuda,cpu" names the devices of two workers. It can also be a
function that opens a custom `Device`, which is called in the process that runs the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neuraxis.devices import require_device
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.cuda.device import CupyDevice, Device, parse_device
from neuraxis.engine.placement import Slice
from neuraxis.engine.spikes import Listener, SpikeBuffers
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Network

__all__ = ["Place", "device_name", "device_names", "make_shard", "on_cpu", "open_device", "parse_devices", "require"]

Place = str | Callable[[], Device]


def parse_devices(device: object, workers: int) -> tuple[Place, ...]:
    """Return the device of each worker. A single name for several workers can only be "cpu"."""
    places: list[object]
    if isinstance(device, str):
        places = ["cpu"] * workers if device == "cpu" else [one.strip() for one in device.split(",")]
    elif callable(device):
        places = [device]
    elif isinstance(device, Sequence):
        places = list(device)
    else:
        raise InvalidType(f"device={device!r}: a name, or one for each worker, is expected")
    known: list[Place] = []
    for one in places:
        if isinstance(one, str):
            parse_device(one)
        elif not callable(one):
            raise InvalidType(f"device={device!r}: {one!r} is not the name of a device")
        known.append(one)
    if not known or workers not in (1, len(known)):
        raise InvalidArgument(
            f"device={','.join(device_name(one) for one in known)!r}: pass a device for each of {workers} workers, "
            f"as in {','.join(['cuda', *['cpu'] * (workers - 1)])!r}"
        )
    return tuple(known)


def on_cpu(place: Place) -> bool:
    return place == "cpu"


def device_name(place: Place) -> str:
    return place if isinstance(place, str) else getattr(place, "__name__", "a device")


def device_names(places: Sequence[Place]) -> str:
    """Return the devices as text: "cpu", "cuda", "cuda,cpu,cpu"."""
    names = [device_name(one) for one in places]
    return names[0] if set(names) == {"cpu"} else ",".join(names)


def require(places: Sequence[Place]) -> None:
    """Raise DeviceUnavailable, with the reason, unless all these devices are available."""
    for one in places:
        number = parse_device(one) if isinstance(one, str) else None
        if number is not None:
            require_device(number)


def open_device(place: Place) -> Device | None:
    """Open a device, which the caller must close; return None for the CPU."""
    if not isinstance(place, str):
        return place()
    number = parse_device(place)
    return None if number is None else CupyDevice(number)


def make_shard(
    network: Network,
    placement: tuple[tuple[Slice, ...], ...],
    me: int,
    spike_buffers: SpikeBuffers,
    progress: Callable[[int], None],
    listeners: Sequence[Listener],
    device: Device | None,
) -> Shard:
    """Return shard number `me`, on an open device or, without one, on the CPU."""
    if device is None:
        return Shard(network, placement, me, spike_buffers, progress, listeners)
    from neuraxis.engine.cuda.shard import CudaShard

    return CudaShard(network, placement, me, spike_buffers, progress, listeners, device=device)
