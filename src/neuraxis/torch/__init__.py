"""The shared-memory backend of neuraxis for `torch.distributed`.

Example::

    torch.distributed.init_process_group("shm")

An entry point of the installed package registers the backend `shm` (`BACKEND_NAME`) for CPU tensors when torch is
imported; importing this package does the same where entry points are switched off. Plain collectives,
DistributedDataParallel, FSDP2 and `torch.distributed.checkpoint` run over it unchanged. If a rank dies, the others
raise `neuraxis.errors.PeerLost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.imports import require as _require

_require("torch", extra="torch", purpose="neuraxis.torch")

from neuraxis.torch.registration import BACKEND_NAME, register  # noqa: E402  (torch is checked above)

__all__ = ["BACKEND_NAME", "ShmProcessGroup", "register"]

if TYPE_CHECKING:
    from neuraxis.torch.process_group import ShmProcessGroup
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(__name__, {"neuraxis.torch.process_group": ["ShmProcessGroup"]})

register()
