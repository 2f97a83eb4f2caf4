"""`neuraxis echo KEY` and `neuraxis hz KEY`: print messages, or measure their rate."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import ConnectionWatch, MeshToolOptions, check_listening, run_tool

if TYPE_CHECKING:
    from neuraxis.mesh import Node
    from neuraxis.mesh.monitor import ObservedMessage

__all__ = ["echo", "hz"]

_HZ_HELP = "Measure the rate of messages, one line per second until Ctrl-C."

_HZ_EPILOGUE = """A line has the messages per second, the mean, shortest and longest interval
between two and their standard deviation, bytes per second, and how many
messages were lost since the start; all but the last over a time window.

Examples:

  The rate of a camera:
    neuraxis hz vision/frame

  Each sensor on its own line, over the last second only:
    neuraxis hz 'sensor/**' --window 1

  Ten seconds for a program, one object per line:
    neuraxis hz motor/status --seconds 10 --json | tail -1 | jq .rate_hz

Intervals are between arrivals in this process. With more than about ten
thousand messages a second, this command itself may lose some. When the router
or all nodes are lost meanwhile, a line on stderr says so.

Exit codes: 0, also at Ctrl-C; 1 when no message arrived within --seconds or the
mesh cannot be reached; 2 for wrong usage."""

_LINE_S = 1.0
_HINT_S = 3.0  # without a message, until echo says so
_LOOK_S = 0.25  # between two looks at the connection, while no message arrives
_HEADINGS = ("Hz", "mean ms", "min ms", "max ms", "std ms", "B/s", "lost")
_WIDTHS = (9, 8, 8, 8, 8, 7, 5)

hz = App(name="hz", help=_HZ_HELP, help_epilogue=_HZ_EPILOGUE, help_format="plaintext", version_flags=())


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
    """Measure the rate of messages.

    Parameters
    ----------
    key
        Key expression, such as vision/objects; "*" matches one part, "**" any number of parts.
    window
        Length of the window, in seconds.
    seconds
        End after this many seconds.
    as_json
        Print one JSON object per line.
    """

    def measure(node: Node) -> int:
        from neuraxis.mesh.monitor import Monitor, RateWindow

        deadline = math.inf if seconds is None else time.monotonic() + seconds
        windows: dict[str, RateWindow] = {}
        connection = ConnectionWatch("hz", node)
        with Monitor(node, key) as listener:
            if not as_json:
                print(_columns(_HEADINGS), "key", sep="  ", flush=True)
            line_at = time.monotonic()
            while line_at < deadline:
                line_at = min(line_at + _LINE_S, deadline)
                connection.sleep_until(line_at)
                for message in listener.take():
                    windows.setdefault(message.key, RateWindow(window)).note(message.time, message.size)
                now = time.monotonic()
                rows = [(name, windows[name].at(now) | {"lost": listener.lost(name)}) for name in sorted(windows)]
                for name, one in rows or [(key, RateWindow(window).at(now) | {"lost": 0})]:
                    print(json.dumps({"key": name, **one}) if as_json else _line(name, one), flush=True)
        return 0 if windows else 1

    return run_tool("hz", mesh, measure, check=lambda: check_listening(key, window=window, seconds=seconds))


def _line(key: str, figures: dict[str, Any]) -> str:
    from neuraxis.report.mesh import printable, rate_text

    intervals = [figures[name] for name in ("mean_ms", "min_ms", "max_ms", "std_ms")]
    return (
        _columns(
            (
                f"{figures['rate_hz']:.1f}",
                *("-" if one is None else f"{one:.2f}" for one in intervals),
                rate_text(figures["bytes_per_s"]),
                str(figures["lost"]),
            )
        )
        + f"  {printable(key)}"
    )


def _columns(cells: tuple[str, ...]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


_ECHO_HELP = "Print messages of the mesh as they arrive, one per line, until Ctrl-C."

_ECHO_EPILOGUE = """A line has the key, the step of the message, its sequence number, and the
value; arrays are abbreviated (element type, shape, first values). For a
message that cannot be decoded the line has the reason. Pickle is not loaded.

Examples:

  All topics of vision, and all sensors:
    neuraxis echo 'vision/*'
    neuraxis echo 'sensor/**'

  One message in full:
    neuraxis echo vision/frame --count 1 --raw

  Check if a message arrives within 5 seconds:
    neuraxis echo motor/status --count 1 --seconds 5

  For a program, one object per line:
    neuraxis echo pfc/control --json | jq .value

In JSON arrays are lists, bytes are base64 and NaN is null; if a message
cannot be decoded, "malformed" has the reason and "payload" the data (base64).
For a topic of kind "state" or "event", the last earlier message is printed
first. When the router or all nodes are lost meanwhile, a line on stderr says so;
on a terminal also when no message arrives for three seconds.

Exit codes: 0, also at Ctrl-C; 1 when no message arrived within --seconds or the
mesh cannot be reached; 2 for wrong usage."""

echo = App(name="echo", help=_ECHO_HELP, help_epilogue=_ECHO_EPILOGUE, help_format="plaintext", version_flags=())


@echo.default
def _echo(
    key: str,
    /,
    *,
    count: int | None = None,
    seconds: float | None = None,
    raw: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """Print messages.

    Parameters
    ----------
    key
        Key expression, such as vision/objects; "*" matches one part, "**" any number of parts.
    count
        End after this many messages.
    seconds
        End after this many seconds.
    raw
        Print values in full, arrays with all elements.
    as_json
        Print one JSON object per line.
    """

    def listen(node: Node) -> int:
        from neuraxis.mesh.monitor import Monitor

        left = math.inf if count is None else count
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        printed = 0
        connection = ConnectionWatch("echo", node)
        # On a terminal only: a program that reads stderr finds errors there and nothing else.
        hint_at = time.monotonic() + _HINT_S if sys.stderr.isatty() else math.inf
        with Monitor(node, key, payloads=True, last=True) as listener:
            while printed < left and time.monotonic() < deadline:
                connection.look()
                message = listener.get(min(_LOOK_S, deadline - time.monotonic()))
                if message is None and not printed and time.monotonic() >= hint_at:
                    print(
                        f"neuraxis echo: no message on {key!r} so far. List what is published with: neuraxis topics",
                        file=sys.stderr,
                    )
                    hint_at = math.inf
                if message is not None:
                    print(_data(message) if as_json else _line_echo(message, raw), flush=True)
                    printed += 1
        return 0 if printed else 1

    return run_tool("echo", mesh, listen, check=lambda: check_listening(key, count=count, seconds=seconds))


def _line_echo(message: ObservedMessage, raw: bool) -> str:
    from neuraxis.report.mesh import as_text, printable
    from neuraxis.wire.codecs import Undecodable

    envelope = message.envelope
    step = "-" if envelope is None or envelope.step < 0 else str(envelope.step)
    number = "-" if envelope is None else str(envelope.sequence)
    try:
        value = as_text(_value(message), raw)
    except Undecodable as error:
        value = f"malformed ({error.encoding or 'no encoding'}): {error.reason}: {as_text(message.payload, raw)}"
    gap = f"  ({message.lost} lost before)" * bool(message.lost)
    return printable(f"{message.key}  step {step}  #{number}{gap}  {value}")


def _data(message: ObservedMessage) -> str:
    from neuraxis.report.mesh import as_json
    from neuraxis.wire.codecs import Undecodable

    envelope = message.envelope
    data: dict[str, Any] = {
        "key": message.key,
        "node": message.node or None,
        "step": None if envelope is None or envelope.step < 0 else envelope.step,
        "sequence": None if envelope is None else envelope.sequence,
        "encoding": message.encoding,
        "bytes": message.size,
        "lost": message.lost,
    }
    try:
        return json.dumps({**data, "value": as_json(_value(message))})
    except (Undecodable, RecursionError) as error:
        why = error.reason if isinstance(error, Undecodable) else "it is nested too deeply"
        return json.dumps({**data, "malformed": why, "payload": as_json(message.payload)})


def _value(message: ObservedMessage) -> Any:
    from neuraxis.wire.codecs import decode

    return decode(message.payload or b"", message.encoding)
