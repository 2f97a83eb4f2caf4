"""Kernels that only some networks need, which are compiled for those only.

Each is a C function. A kernel that all networks use calls it at its address in the control block of the shard
(`engine/tables.py`), which is 0 in networks that do not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from neuraxis.compiled import compiled_on_demand
from neuraxis.engine.cpu.currents import set_currents, set_wide_currents
from neuraxis.engine.cpu.learning import (
    deliver_plastic,
    flush_tables,
    learn,
    record_post_spikes,
    update_full_flags,
)
from neuraxis.engine.cpu.plastic_tables import compile_hashes
from neuraxis.engine.cpu.rates import collect_outputs, gather_inputs, publish_outputs
from neuraxis.engine.cpu.wide import add_counts, check_wide, deliver_wide
from neuraxis.network import Network

__all__ = ["GROUPS", "Group", "needed_by"]


@dataclass(frozen=True)
class Group:
    """Kernels that the same networks need.

    Attributes
    ----------
    name : str
        Name of the group, also of the file that marks it as compiled.
    is_needed : callable
        Returns True for networks that need it.
    kernels : mapping of str to compiled_on_demand
        The kernels whose addresses the control block has, by field.
    further : tuple of callable
        Compile kernels that Python calls.
    """

    name: str
    is_needed: Callable[[Network], bool]
    kernels: Mapping[str, compiled_on_demand]
    further: tuple[Callable[[], object], ...] = field(default=())

    def compile(self) -> None:
        """Compile all kernels, or load them from the cache."""
        for kernel in self.kernels.values():
            kernel.address  # noqa: B018
        for compile_one in self.further:
            compile_one()


def needed_by(network: Network) -> list[Group]:
    """Return the groups that a network needs."""
    return [group for group in GROUPS if group.is_needed(network)]


def _has_own_currents(network: Network) -> bool:
    return any(isinstance(one.amplitude_pa, np.ndarray) for one in network.current_inputs)


GROUPS = (
    Group(
        "plastic_synapses",
        lambda network: any(one.plasticity for one in network.projections),
        {
            "deliver_plastic": deliver_plastic,
            "record_post_spikes": record_post_spikes,
            "learn": learn,
            "flush_tables": flush_tables,
        },
        (lambda: update_full_flags.address, compile_hashes),
    ),
    Group(
        "continuous_connections",
        lambda network: bool(network.rate_projections),
        {"collect_outputs": collect_outputs, "gather_inputs": gather_inputs, "publish_outputs": publish_outputs},
    ),
    Group(
        "float64",
        lambda network: network.is_wide,
        {"deliver_wide": deliver_wide, "add_counts": add_counts, "check_wide": check_wide},
    ),
    Group(
        "currents",
        lambda network: not network.is_wide and _has_own_currents(network),
        {"set_currents": set_currents},
    ),
    Group(
        "currents_float64",
        lambda network: network.is_wide and _has_own_currents(network),
        {"set_currents": set_wide_currents},
    ),
)
