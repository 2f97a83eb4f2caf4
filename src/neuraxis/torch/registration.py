"""Register the backend `shm` with `torch.distributed`.

Installing neuraxis makes `import torch` call `register` (see `neuraxis.torch_autoload`). So this module imports nothing
but the standard library until then, and `register` nothing but torch; the first process group loads the backend.
"""

from __future__ import annotations

import functools
from typing import Any

from neuraxis import imports as optional
from neuraxis.errors import BackendUnavailable, InvalidArgument

__all__ = ["BACKEND_NAME", "register"]

BACKEND_NAME = "shm"


def register() -> None:
    """Register the backend `shm` with `torch.distributed`; idempotent.

    Raises
    ------
    BackendUnavailable
        This torch is built without torch.distributed.

    Examples
    --------
    >>> import torch, neuraxis.torch  # which calls register()
    >>> "shm" in torch.distributed.Backend.backend_list
    True
    """
    dist = optional.require("torch.distributed", extra="torch", purpose="the backend shm")
    if not dist.is_available():
        raise BackendUnavailable(
            BACKEND_NAME, "this torch is built without torch.distributed", "Install a wheel from pytorch.org"
        )
    if BACKEND_NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(BACKEND_NAME, _create_process_group, extended_api=True, devices=["cpu"])
    _wrap_functions_with_fixed_backends(dist)
    _wrap_destroy_process_group(dist)


def _create_process_group(options: Any, backend_options: Any = None) -> Any:
    from neuraxis.torch.process_group import create_process_group  # loads Numba, which `import torch` must not

    return create_process_group(options)


def _wrap_functions_with_fixed_backends(dist: Any) -> None:
    """Make three functions of torch support shm; for other backends they behave as before.

    torch's versions accept only the backends that they know by name.
    """
    c10d = dist.distributed_c10d
    torch_barrier, torch_set_timeout = c10d.monitored_barrier, c10d._set_pg_timeout
    torch_config = c10d.BackendConfig.__init__

    @functools.wraps(torch_barrier)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        shm = _shm_group(group, c10d)
        if shm is None:
            return torch_barrier(group, timeout, wait_all_ranks)
        return shm.monitored_barrier(timeout, wait_all_ranks)

    @functools.wraps(torch_set_timeout)
    def _set_pg_timeout(timeout: Any, group: Any = None) -> None:
        shm = _shm_group(group, c10d)
        if shm is None:
            torch_set_timeout(timeout, group)
        else:
            shm.set_timeout(timeout)

    @functools.wraps(torch_config)
    def configure(self: Any, backend: Any) -> None:
        torch_config(self, backend)
        by_device = {device: str(name) for device, name in self.get_device_backend_map().items()}
        if BACKEND_NAME in by_device.values() and by_device != {"cpu": BACKEND_NAME}:
            # torch uses a backend written in Python as the whole group, and would silently drop the others.
            raise InvalidArgument(
                f"a process group with shm has no second backend, and {str(backend)!r} names one. Call "
                "init_process_group('shm'), and new_group(backend='nccl') for tensors on GPUs"
            )

    for module in (dist, c10d):
        module.monitored_barrier = monitored_barrier
    c10d._set_pg_timeout = _set_pg_timeout
    c10d.BackendConfig.__init__ = configure


def _wrap_destroy_process_group(dist: Any) -> None:
    """Make the end of all groups send this rank's last messages first.

    torch closes the groups one by one. A group that is closed after the one that has lost a rank would otherwise end
    in good order, and its ranks would name this one instead of the lost one.
    """
    c10d = dist.distributed_c10d
    torch_destroy = c10d.destroy_process_group

    @functools.wraps(torch_destroy)
    def destroy_process_group(group: Any = None) -> None:
        processes = optional.loaded("neuraxis.torch.process_group")
        if processes is not None and (group is None or group == c10d.GroupMember.WORLD):
            processes.send_last_messages()
        torch_destroy(group)

    for module in (dist, c10d):
        module.destroy_process_group = destroy_process_group


def _shm_group(group: Any, c10d: Any) -> Any:
    """Return the group of a call if its backend is shm, else None."""
    processes = optional.loaded("neuraxis.torch.process_group")
    if processes is None:  # no shm group was made
        return None
    if group is None and c10d.is_initialized():
        group = c10d._get_default_group()
    return group if isinstance(group, processes.ShmProcessGroup) else None
