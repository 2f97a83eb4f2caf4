"""The version, in a module of its own so that everything may import it."""

from __future__ import annotations

__version__ = "0.2.0.dev0"
