"""The plan of `neuraxis bench brain`: networks, their sizes, and the contenders that run them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from neuraxis.bench.harness import LeftOut
from neuraxis.errors import InvalidArgument

__all__ = [
    "BRUNEL_ORDER",
    "NETWORKS",
    "OURS",
    "Contender",
    "Plan",
    "check_plan",
    "contenders_for",
    "options_for",
    "scaling_contenders",
    "unable",
]

NETWORKS = ("brunel", "microcircuit", "hpc")
OURS = "neuraxis"
BRUNEL_ORDER = 2500  # of the full network, which the peers' programs build at scale 1

_NEST_LIMIT = 2**27  # synapses of one model that a thread of NEST can hold


class Contender(msgspec.Struct, frozen=True):
    """A simulator on a number of cores: worker processes of neuraxis, threads of the others."""

    simulator: str
    cores: int

    def __str__(self) -> str:
        unit = "worker" if self.simulator == OURS else "thread"
        return f"{self.simulator}, {self.cores} {unit}{'s' if self.cores > 1 else ''}"


class Plan(msgspec.Struct, frozen=True):
    """Plan of a measurement: each network on its contenders in turns, `repeats` times.

    Attributes:
        order: of Brunel's network, which has 5 * order neurons.
        scale, hpc_scale: of the microcircuit and of the HPC benchmark.
        limit_s: seconds after which a process counts as failed.
        scaling: measure neuraxis alone over several numbers of workers.
    """

    contenders: tuple[Contender, ...]
    networks: tuple[str, ...] = NETWORKS
    order: int = BRUNEL_ORDER
    scale: float = 1.0
    hpc_scale: float = 1.0
    time_ms: float = 1000.0
    discard_ms: float = 100.0
    repeats: int = 3
    limit_s: float = 1200.0
    scaling: bool = False
    peers_python: str = sys.executable

    @property
    def processes(self) -> int:
        return self.ours.cores

    @property
    def ours(self) -> Contender:
        """neuraxis with the most workers."""
        return max((one for one in self.contenders if one.simulator == OURS), key=lambda one: one.cores)


def contenders_for(peers: Sequence[str], workers: int) -> tuple[Contender, ...]:
    """Return neuraxis and the peers on as many cores; Brian2 also on one, where it is often faster."""
    found = [Contender(OURS, workers)]
    for peer in peers:
        found += [Contender(peer, cores) for cores in ((1, workers) if peer == "brian2" else (workers,))]
    return tuple(dict.fromkeys(found))


def scaling_contenders(text: str) -> tuple[Contender, ...]:
    """Return neuraxis on each number of workers of "1,2,4"."""
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise InvalidArgument(f"--scaling {text}: numbers of workers such as 1,2,4 are expected") from None
    return tuple(Contender(OURS, number) for number in numbers)


def check_plan(plan: Plan) -> None:
    """Raise `InvalidArgument` before anything runs if no program could run the plan."""
    fewest = min(contender.cores for contender in plan.contenders)
    for option, value, right, expected in (
        ("--scaling" if plan.scaling else "--workers", fewest, fewest >= 1, "1 or more"),
        ("--order", plan.order, plan.order >= 10, "10 or more"),
        ("--scale", plan.scale, 0 < plan.scale <= 1, "above 0 and at most 1"),
        ("--hpc-scale", plan.hpc_scale, 0.01 <= plan.hpc_scale < math.inf, "0.01 or more"),
        ("--time-ms", plan.time_ms, 0.1 <= plan.time_ms < math.inf, "0.1 or more"),
        ("--repeats", plan.repeats, plan.repeats >= 1, "1 or more"),
        ("--timeout", plan.limit_s, 0 < plan.limit_s < math.inf, "above 0"),
    ):
        if not right:
            raise InvalidArgument(f"{option} {value}: {expected} is expected")


def unable(plan: Plan, network: str, contender: Contender) -> LeftOut | None:
    """Return why a contender cannot run a network of the plan, or None if it can."""
    if contender.simulator == "brian2" and network != "brunel":
        return LeftOut(f"brian2 on {network}", "it is compared on brunel only")
    if contender.simulator == "nest":
        most = _largest_model(plan, network) / contender.cores
        if most > _NEST_LIMIT:
            reason = (
                f"NEST refuses more than {_NEST_LIMIT / 1e6:.0f} million synapses of a model in one thread, "
                f"and these would be {most / 1e6:.0f} million"
            )
            return LeftOut(f"nest on {network}", reason, "make it smaller, or use more workers")
    return None


def options_for(plan: Plan, network: str, contender: Contender) -> dict[str, Any]:
    """Return the options of a contender's program; with them all programs run the same network."""
    options: dict[str, Any] = {"time_ms": plan.time_ms, "presim_ms": plan.discard_ms, "seed": 1}
    scale = {"brunel": plan.order / BRUNEL_ORDER, "microcircuit": plan.scale, "hpc": plan.hpc_scale}[network]
    options |= {"network": "hpc_benchmark" if network == "hpc" else network, "scale": scale}
    if contender.simulator == OURS:
        return options | {"workers": contender.cores, "order": plan.order}
    options["threads"] = contender.cores
    if contender.simulator == "nest":
        options["rates_ms"] = 0.0  # rates of single populations would take another run
    return options


def _largest_model(plan: Plan, network: str) -> float:
    """Return the synapses of NEST's largest synapse model in a network."""
    if network == "brunel":
        return 5.0 * plan.order * round(0.4 * plan.order)
    if network == "microcircuit":
        return 298_880_968 * plan.scale**2
    return 9_000.0**2 * plan.hpc_scale * min(1.0, plan.hpc_scale)
