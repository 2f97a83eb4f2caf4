"""The shared-memory backend of neuraxis for `torch.distributed`.

    import neuraxis.torch
    torch.distributed.init_process_group("shm")

The import registers the backend `shm` for CPU tensors; nothing else happens. From then on plain collectives,
DistributedDataParallel, FSDP2 and `torch.distributed.checkpoint` run over it unchanged. A rank that dies is a
`neuraxis.errors.PeerLost` on the others.
"""

from __future__ import annotations

import importlib.util

from neuraxis.errors import BackendUnavailable

if importlib.util.find_spec("torch") is None:
    raise BackendUnavailable("shm", "torch is not installed", "pip install 'neuraxis[torch]'")

from neuraxis.torch.process_group import ShmProcessGroup
from neuraxis.torch.registration import BACKEND_NAME, register

__all__ = ["BACKEND_NAME", "ShmProcessGroup", "register"]

register()
