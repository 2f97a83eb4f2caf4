"""Data processing on many processes or machines, by Dask.

`DaskCluster` starts workers on this machine or joins a scheduler that runs already; `tensor_to_dask` and
`dask_to_tensor` turn tensors and arrays into Dask's, and back. Every name loads when it is used, and Dask with it.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from neuraxis.errors import BackendUnavailable
from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.cluster.arrays import dask_to_tensor, tensor_to_dask
    from neuraxis.cluster.dask_cluster import DaskCluster

__all__ = ["DaskCluster", "dask_to_tensor", "tensor_to_dask"]


def _require_dask() -> None:
    for needed in ("dask", "distributed"):
        if importlib.util.find_spec(needed) is None:
            raise BackendUnavailable("dask", f"{needed} is not installed", "pip install 'neuraxis[dask]'")


__getattr__ = loads_lazily(
    __name__, {"DaskCluster": "dask_cluster", "dask_to_tensor": "arrays", "tensor_to_dask": "arrays"}, _require_dask
)
