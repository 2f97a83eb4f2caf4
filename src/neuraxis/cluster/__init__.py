"""Data processing on many processes or machines with Dask.

`DaskCluster` starts workers on this machine or connects to a running scheduler. `tensor_to_dask` and `dask_to_tensor`
convert tensors and arrays to Dask arrays and back. Each name is imported, and Dask with it, when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["DaskCluster", "dask_to_tensor", "tensor_to_dask"]

if TYPE_CHECKING:
    from neuraxis.cluster.arrays import dask_to_tensor, tensor_to_dask
    from neuraxis.cluster.dask_cluster import DaskCluster
else:
    from neuraxis.imports import lazy_names, require

    def _require_dask() -> None:
        for needed in ("dask", "distributed"):
            require(needed, extra="dask", purpose="a Dask cluster")

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.cluster.arrays": ["dask_to_tensor", "tensor_to_dask"],
            "neuraxis.cluster.dask_cluster": ["DaskCluster"],
        },
        require=_require_dask,
    )
