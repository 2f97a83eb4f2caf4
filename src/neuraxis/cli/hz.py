"""`neuraxis hz KEY`: how often messages come, and how evenly."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import MeshToolOptions, check_listening, run_tool

if TYPE_CHECKING:
    from neuraxis.mesh import Node

__all__ = ["hz"]

_HELP = "Measure how often messages come, a line a second until Ctrl-C."

_EPILOGUE = """A line has the messages per second, the mean, shortest and longest interval
between two and their standard deviation, bytes per second, and how many
messages were lost since it began; all but the last over a window of time.

Examples:

  How steady is the camera:
    neuraxis hz vision/frame

  Each sensor on its own line, over the last second only:
    neuraxis hz 'sensor/**' --window 1

  Ten seconds for a program, an object a line:
    neuraxis hz motor/status --seconds 10 --json | tail -1 | jq .rate_hz

Intervals are between arrivals in this process, on this machine. With more
than some ten thousand messages a second, losses may be its own.

Exit status: 0, also at Ctrl-C; 1 when --seconds are over and nothing came;
2 when it cannot listen as asked."""

_LINE_S = 1.0
_HEADINGS = ("Hz", "mean ms", "min ms", "max ms", "std ms", "B/s", "lost")
_WIDTHS = (9, 8, 8, 8, 8, 7, 5)

hz = App(name="hz", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@hz.default
def _hz(
    key: str,
    /,
    *,
    window: float = 5.0,
    seconds: float | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """Measure how often messages come.

    Parameters
    ----------
    key
        What to listen to, such as vision/objects; "*" is any one part, "**" any number of them.
    window
        Over how many of the last seconds.
    seconds
        End after this time.
    as_json
        Print a JSON object a line.
    """

    def measure(node: Node) -> int:
        from neuraxis.observe.mesh_listening import Listener
        from neuraxis.observe.mesh_pace import Pace

        deadline = math.inf if seconds is None else time.monotonic() + seconds
        paces: dict[str, Pace] = {}
        with Listener(node, key) as listener:
            if not as_json:
                print(_columns(_HEADINGS), "key", sep="  ", flush=True)
            line_at = time.monotonic()
            while line_at < deadline:
                line_at = min(line_at + _LINE_S, deadline)
                time.sleep(max(0.0, line_at - time.monotonic()))
                for heard in listener.take():
                    paces.setdefault(heard.key, Pace(window)).note(heard.time, heard.size)
                now = time.monotonic()
                told = [(name, paces[name].at(now) | {"lost": listener.lost(name)}) for name in sorted(paces)]
                for name, one in told or [(key, Pace(window).at(now) | {"lost": 0})]:
                    print(json.dumps({"key": name, **one}) if as_json else _line(name, one), flush=True)
        return 0 if paces else 1

    return run_tool("hz", mesh, measure, check=lambda: check_listening(key, window=window, seconds=seconds))


def _line(key: str, told: dict[str, Any]) -> str:
    from neuraxis.observe.mesh_tables import rate_text
    from neuraxis.observe.mesh_values import printable

    intervals = [told[name] for name in ("mean_ms", "min_ms", "max_ms", "std_ms")]
    return (
        _columns(
            (
                f"{told['rate_hz']:.1f}",
                *("-" if one is None else f"{one:.2f}" for one in intervals),
                rate_text(told["bytes_per_s"]),
                str(told["lost"]),
            )
        )
        + f"  {printable(key)}"
    )


def _columns(cells: tuple[str, ...]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
