"""What `neuraxis bench rpc` can measure: ways to call a function of another process, and sizes of what is sent."""

from __future__ import annotations

import importlib.util
import sys

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.observe.bench_contenders import LeftOut

__all__ = [
    "MANY",
    "OURS",
    "PEERS",
    "SIZES",
    "SPINNING",
    "TORCH_PEERS",
    "WAYS",
    "Plan",
    "Way",
    "left_out_ways",
    "parse_ways",
]

SIZES = (64, 4096, 1 << 20)
MANY = 32  # calls that are under way at the same time


class Way(msgspec.Struct, frozen=True):
    """A way to call: which processes do it (`crew`), and what it is. `many`: calls can be begun without waiting."""

    crew: str
    text: str
    many: bool = True
    needs_torch: bool = False


# Every crew is a caller and a callee of its own: a process can be in one torch agent, and in one context of ranks.
WAYS = {
    "zenoh": Way("zenoh", "RpcContext over zenoh"),
    "shm": Way("shm", "RpcContext over shm"),
    "gloo": Way("gloo", "RpcContext over gloo", needs_torch=True),
    "tensorpipe": Way("tensorpipe", "RpcContext over tensorpipe", needs_torch=True),
    "raw-zenoh": Way("raw-zenoh", "Zenoh's own get and queryable, with bytes and its own settings"),
    "raw-zenoh-tcp": Way("raw-zenoh-tcp", "the same without its shared memory, which sessions of the mesh leave out"),
    "torch-rpc": Way("torch-rpc", "torch.distributed.rpc by itself (TensorPipe)", needs_torch=True),
    "torch-tensor": Way("torch-rpc", "the same, with a tensor in place of an array", needs_torch=True),
    "managers": Way(
        "managers", "multiprocessing.managers: a method of a proxy, which has no calls without waiting", False
    ),
}
OURS = ("zenoh", "shm", "gloo", "tensorpipe")
PEERS = ("raw-zenoh", "raw-zenoh-tcp", "torch-rpc", "torch-tensor", "managers")
TORCH_PEERS = ("torch-rpc", "torch-tensor")
SPINNING = ("tensorpipe", "torch-rpc") if sys.platform == "linux" else ()  # crews that need cores even when they wait


class Plan(msgspec.Struct, frozen=True):
    """Call in all `ways` with all `sizes`, in turns, `rounds` times, in samples of about `sample_s` seconds."""

    ways: tuple[str, ...] = tuple(WAYS)
    sizes: tuple[int, ...] = SIZES
    rounds: int = 7
    sample_s: float = 0.3

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InvalidArgument(f"--repeats {self.rounds}: at least one round is needed")

    @property
    def crews(self) -> list[str]:
        """Those that are needed."""
        return list(dict.fromkeys(WAYS[way].crew for way in self.ways))


def parse_ways(text: str) -> tuple[str, ...]:
    """Ways from "zenoh,raw-zenoh"."""
    wanted = {word.strip() for word in text.split(",")}
    unknown = sorted(wanted - set(WAYS))
    if unknown:
        raise InvalidArgument(f"--ways: {unknown[0]!r} is not one of {', '.join(WAYS)}")
    return tuple(way for way in WAYS if way in wanted)


def left_out_ways() -> dict[str, LeftOut]:
    """The ways that cannot be measured here, as far as can be known without loading torch."""
    if importlib.util.find_spec("torch") is not None:
        return {}
    remedy = "pip install 'neuraxis[torch]'"
    return {name: LeftOut(name, "torch is not installed", remedy) for name, way in WAYS.items() if way.needs_torch}
