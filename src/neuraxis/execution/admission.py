"""Which data from outside a resident hears: those whose name a key expression includes, after a delay.

Names are the keys of the mesh, relative to it ("sensor/thermal"). Whether an expression ("sensor/*", "sensor/**")
includes one is asked of Zenoh's own expressions, which need no session and load in a few milliseconds: a brain that
runs on the mesh and one that does not can then never differ in who hears what.
"""

from __future__ import annotations

from dataclasses import dataclass

import zenoh

__all__ = ["Admission", "is_concrete", "why_no_expression"]


@dataclass(frozen=True)
class Admission:
    """Data whose name `expression` includes are heard `delay_steps` after they were given."""

    expression: str
    delay_steps: int

    def includes(self, name: str) -> bool:
        return bool(zenoh.KeyExpr(self.expression).includes(name))


def why_no_expression(text: str) -> str:
    """Why a text is no key expression, or "" if it is one."""
    try:
        zenoh.KeyExpr(text)
    except zenoh.ZError as error:
        # Zenoh adds where in its own source it found out.
        return str(error).split(" at /")[0].split("`: ", 1)[-1]
    return ""


def is_concrete(text: str) -> bool:
    """Whether a text is the name of one thing, not a pattern."""
    return "*" not in text and not why_no_expression(text)
