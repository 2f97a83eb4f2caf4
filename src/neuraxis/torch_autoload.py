"""Entry point with which `import torch` registers backend `shm` in an environment that has neuraxis.

At the end of its own import, torch calls every entry point of the group `torch.backends`; an exception in one of them
makes the import of torch fail. With `TORCH_DEVICE_BACKEND_AUTOLOAD=0` in the environment torch calls none.
"""

from __future__ import annotations

import logging

__all__ = ["load"]


def load() -> None:
    """Register the backend. Logs errors instead of raising them, so that programs that use only torch keep working."""
    try:
        import neuraxis.torch  # noqa: F401  (registers the backend)
    except Exception as error:
        # A torch without torch.distributed needs no backend. Compared by name, as neuraxis.errors may fail to import.
        if type(error).__name__ != "BackendUnavailable":
            logging.getLogger("neuraxis").warning(
                "backend 'shm' of torch.distributed is not available: %s: %s. Reinstall neuraxis to use it",
                type(error).__name__,
                error,
            )
