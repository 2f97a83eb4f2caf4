"""A grid of ranks with a group for every row and column, as in `torch.distributed.device_mesh`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuraxis.comm import context as _context
from neuraxis.comm.communicator import Communicator
from neuraxis.errors import InvalidArgument

__all__ = ["DeviceMesh", "init_device_mesh"]


class DeviceMesh:
    """A grid of ranks. The ranks that differ in one coordinate only form a group along that dimension.

    `init_device_mesh` makes it.

    Attributes
    ----------
    device_type : str
        "cpu" or "cuda", as given to `init_device_mesh`.
    mesh : numpy.ndarray
        The world ranks, with one axis per dimension of the grid.
    mesh_dim_names : tuple of str, or None
        A name for each dimension.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("replica", "shard"))
    ...     mesh
    DeviceMesh('cpu', replica=1, shard=1)
    """

    def __init__(
        self,
        device_type: str,
        mesh: np.ndarray,
        mesh_dim_names: tuple[str, ...] | None,
        groups: Sequence[Communicator],
        rank: int,
    ) -> None:
        self.device_type = device_type
        self.mesh = mesh
        self.mesh_dim_names = mesh_dim_names
        self._groups = tuple(groups)
        self._rank = rank

    def __repr__(self) -> str:
        names = self.mesh_dim_names or tuple(f"dim_{dim}" for dim in range(self.ndim))
        shape = ", ".join(f"{name}={length}" for name, length in zip(names, self.shape, strict=True))
        return f"DeviceMesh({self.device_type!r}, {shape})"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.mesh.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return self.mesh.shape

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Return the number of ranks, in total or along one dimension.

        Parameters
        ----------
        mesh_dim : int or str, optional
            Number or name of a dimension; by default all.

        Returns
        -------
        int
            Number of ranks.
        """
        return int(self.mesh.size) if mesh_dim is None else self.shape[self._dim(mesh_dim)]

    def get_rank(self) -> int:
        """Return the world rank of this process."""
        return self._rank

    def get_group(self, mesh_dim: int | str | None = None) -> Communicator:
        """Return the group of this rank along a dimension.

        Parameters
        ----------
        mesh_dim : int or str, optional
            Number or name of a dimension; may be omitted if there is only one.

        Returns
        -------
        Communicator
            The group.
        """
        return self._groups[self._dim(mesh_dim)]

    def get_all_groups(self) -> list[Communicator]:
        """Return this rank's group along each dimension."""
        return list(self._groups)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the coordinate of this rank along a dimension.

        Parameters
        ----------
        mesh_dim : int or str, optional
            Number or name of a dimension; may be omitted if there is only one.

        Returns
        -------
        int
            The coordinate.
        """
        return self.get_coordinate()[self._dim(mesh_dim)]

    def get_coordinate(self) -> list[int]:
        """Return the coordinates of this rank, one per dimension."""
        return [int(place[0]) for place in np.nonzero(self.mesh == self._rank)]

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the slice of the grid that contains this rank, with only the named dimensions."""
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else mesh_dim_names
        dims = [self._dim(name) for name in names]
        place: list[int | slice] = list(self.get_coordinate())
        for dim in dims:
            place[dim] = slice(None)
        part = self.mesh[tuple(place)]  # its axes are in the order of the whole grid
        order = [sorted(dims).index(dim) for dim in dims]
        groups = [self._groups[dim] for dim in dims]
        return DeviceMesh(self.device_type, part.transpose(order), tuple(names), groups, self._rank)

    def _dim(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None:
            if self.ndim != 1:
                raise InvalidArgument(f"{self!r} has {self.ndim} dimensions. Give the one that is meant")
            return 0
        if isinstance(mesh_dim, str):
            if mesh_dim not in (self.mesh_dim_names or ()):
                raise InvalidArgument(f"{self!r} has no dimension {mesh_dim!r}; it has {self.mesh_dim_names}")
            return (self.mesh_dim_names or ()).index(mesh_dim)
        if not -self.ndim <= mesh_dim < self.ndim:
            raise InvalidArgument(f"{self!r} has no dimension {mesh_dim}; it has {self.ndim}")
        return mesh_dim % self.ndim


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """Arrange all ranks in a grid and make the groups along its dimensions. Every rank must make this call.

    Parameters
    ----------
    device_type : str
        "cpu" or "cuda".
    mesh_shape : sequence of int
        Length of each dimension; their product must be the world size.
    mesh_dim_names : sequence of str, optional
        A name for each dimension.

    Returns
    -------
    DeviceMesh

    Raises
    ------
    InvalidArgument
        The shape does not hold all ranks, or the names do not match the shape.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("replica", "shard"))
    ...     mesh["shard"].size()
    1
    """
    context = _context.current_context()
    shape = tuple(int(length) for length in mesh_shape)
    names = None if mesh_dim_names is None else tuple(mesh_dim_names)
    if not shape or int(np.prod(shape)) != context.world_size:
        raise InvalidArgument(
            f"mesh_shape={shape} does not hold the {context.world_size} ranks of the world. "
            "Give lengths whose product is the world size"
        )
    if names is not None and (len(names) != len(shape) or len(set(names)) != len(names)):
        raise InvalidArgument(f"mesh_dim_names={names} must name each of the {len(shape)} dimensions once")
    mesh = np.arange(context.world_size).reshape(shape)
    groups: list[Communicator] = []
    for dim, length in enumerate(shape):
        if length == context.world_size:
            groups.append(context.world)
            continue
        others = [range(other) for index, other in enumerate(shape) if index != dim]
        for place in itertools.product(*others):
            line: tuple[Any, ...] = (*place[:dim], slice(None), *place[dim:])
            group = context.new_group(mesh[line].tolist())
            if isinstance(group, Communicator):
                groups.append(group)
    return DeviceMesh(device_type, mesh, names, groups, context.rank)
