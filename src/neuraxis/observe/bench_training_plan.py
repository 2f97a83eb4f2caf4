"""What `neuraxis bench training` can measure: models, ways to train them, and the processes that do it."""

from __future__ import annotations

import importlib.util

import msgspec

from neuraxis.comm.host import may_have_gpu
from neuraxis.errors import InvalidArgument
from neuraxis.observe.bench_contenders import LeftOut

__all__ = ["MODELS", "WAYS", "Model", "Plan", "Way", "check_torch", "left_out_ways", "parse_models"]


class Model(msgspec.Struct, frozen=True):
    """A model to train. `rows` is the batch of one rank, `gpu_rows` that of one with a GPU."""

    text: str
    rows: int
    gpu_rows: int


class Way(msgspec.Struct, frozen=True):
    """A way to train: which processes do it (`crew`), and what it is.

    Of ways that are `equal` the parameters are compared: they must be the same.
    """

    crew: str
    text: str
    equal: bool = False


MODELS = {
    "mlp": Model("MLP 64-128-128-10", 32, 4096),
    "conv": Model("convolutional net, 28 x 28, two convolutions and two linear layers", 16, 1024),
    "transformer": Model("transformer block, 256 wide, 4 heads, 32 tokens a row", 4, 256),
}

# A process has one context, so ways over shm and over gloo need processes of their own. All else takes place in those
# of shm, in turns: the same processes, on the same cores, with the same data.
WAYS = {
    "one": Way("shm", "a module by itself, on each rank at the same time: nothing is exchanged"),
    "shm": Way("shm", "DataParallel over shm", equal=True),
    "gloo": Way("gloo", "DataParallel over gloo", equal=True),
    "ddp-gloo": Way("shm", "torch's DistributedDataParallel over gloo", equal=True),
    "ddp-shm": Way("shm", "torch's DistributedDataParallel over neuraxis's backend shm", equal=True),
    "shm-fp16": Way("shm", 'DataParallel over shm, compress="fp16"'),
    "shm-topk": Way("shm", "DataParallel over shm, compress=TopK(0.01)"),
    "shm-late": Way("shm", "DataParallel over shm, overlap=False", equal=True),
    "gloo-late": Way("gloo", "DataParallel over gloo, overlap=False", equal=True),
    "unsent": Way("shm", "DataParallel over shm, always in no_sync()"),
    "cuda-one": Way("cuda", "a module by itself on the GPU"),
    "cuda-fp32": Way("cuda", "DataParallel in an nccl context of one rank"),
    "cuda-bf16": Way("cuda", 'the same, precision="bf16"'),
    "cuda-fp16": Way("cuda", 'the same, precision="fp16", with its scaler'),
    "cuda-ddp": Way("cuda", "torch's DistributedDataParallel over nccl, one rank"),
}


class Plan(msgspec.Struct, frozen=True):
    """Train `models` in all `ways`, in turns, `rounds` times, in samples of about `sample_s` seconds."""

    models: tuple[str, ...] = tuple(MODELS)
    ways: tuple[str, ...] = tuple(WAYS)
    ranks: int = 2
    rounds: int = 21
    sample_s: float = 0.1  # short, and many of them: one that was disturbed then counts little

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InvalidArgument(f"-n {self.ranks}: at least two ranks are needed to train together")
        if self.rounds < 1:
            raise InvalidArgument(f"--repeats {self.rounds}: at least one round is needed")

    @property
    def crews(self) -> list[str]:
        """Those that are needed."""
        return list(dict.fromkeys(WAYS[way].crew for way in self.ways))

    def ranks_of(self, way: str) -> int:
        return 1 if WAYS[way].crew == "cuda" else self.ranks

    def samples_of(self, model: str, way: str) -> int:
        """How many samples all ranks together train on in one step."""
        rows = MODELS[model].gpu_rows if WAYS[way].crew == "cuda" else MODELS[model].rows
        return rows * self.ranks_of(way)


def parse_models(text: str) -> tuple[str, ...]:
    """Models from "mlp,conv"."""
    wanted = {word.strip() for word in text.split(",")}
    unknown = sorted(wanted - set(MODELS))
    if unknown:
        raise InvalidArgument(f"--models: {unknown[0]!r} is not one of {', '.join(MODELS)}")
    return tuple(model for model in MODELS if model in wanted)


def check_torch() -> None:
    """Nothing can be trained without it."""
    if importlib.util.find_spec("torch") is None:
        raise InvalidArgument("training needs torch, which is not installed: pip install 'neuraxis[torch]'")


def left_out_ways() -> dict[str, LeftOut]:
    """The ways that cannot be measured here, as far as can be known without loading torch."""
    if may_have_gpu(None, 0):
        return {}
    return {name: LeftOut(name, "there is no GPU here") for name, way in WAYS.items() if way.crew == "cuda"}
