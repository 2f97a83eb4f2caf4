"""Networks from the literature, for benchmarks and as starting points."""

from __future__ import annotations

from neuraxis.network.library.brunel import brunel
from neuraxis.network.library.hpc_benchmark import hpc_benchmark
from neuraxis.network.library.microcircuit import microcircuit
from neuraxis.network.library.multi_area import MultiAreaParameters, multi_area
from neuraxis.network.library.vogels_abbott import coba, cobahh, cuba

__all__ = ["MultiAreaParameters", "brunel", "coba", "cobahh", "cuba", "hpc_benchmark", "microcircuit", "multi_area"]


def __dir__() -> list[str]:
    return __all__
