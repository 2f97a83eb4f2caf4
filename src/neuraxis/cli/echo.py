"""`neuraxis echo KEY`: messages as they come."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import MeshToolOptions, check_listening, run_tool

if TYPE_CHECKING:
    from neuraxis.mesh import Node
    from neuraxis.observe.mesh_listening import Heard

__all__ = ["echo"]

_HELP = "Print messages of the mesh as they come, one a line, until Ctrl-C."

_EPILOGUE = """A line has the key, the step that the message belongs to, its number, and
the value; arrays are summed up (element type, shape, first values). A
message that cannot be read is a line that says why. Pickle is not opened.

Examples:

  What vision says, on all its topics, and all sensors:
    neuraxis echo 'vision/*'
    neuraxis echo 'sensor/**'

  One message, whole, however large:
    neuraxis echo vision/frame --count 1 --raw

  Whether anything comes within 5 seconds:
    neuraxis echo motor/status --count 1 --seconds 5

  For a program, an object a line:
    neuraxis echo pfc/control --json | jq .value

In JSON arrays are lists, bytes are base64 and NaN is null; where a message
cannot be read, "malformed" says why and "payload" is what came (base64).
Of a topic of kind "state", the last message sent before is printed first.

Exit status: 0, also at Ctrl-C; 1 when --seconds are over and nothing came;
2 when it cannot listen as asked."""

echo = App(name="echo", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


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
        What to listen to, such as vision/objects; "*" is any one part, "**" any number of them.
    count
        End after so many messages.
    seconds
        End after this time.
    raw
        Print values whole, arrays with all their elements.
    as_json
        Print a JSON object a line.
    """

    def listen(node: Node) -> int:
        from neuraxis.observe.mesh_listening import Listener

        left = math.inf if count is None else count
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        told = 0
        with Listener(node, key, payloads=True, last=True) as listener:
            while told < left and time.monotonic() < deadline:
                heard = listener.get(min(1.0, deadline - time.monotonic()))
                if heard is not None:
                    print(_data(heard) if as_json else _line(heard, raw), flush=True)
                    told += 1
        return 0 if told else 1

    return run_tool("echo", mesh, listen, check=lambda: check_listening(key, count=count, seconds=seconds))


def _line(heard: Heard, raw: bool) -> str:
    from neuraxis.mesh.codecs import Undecodable
    from neuraxis.observe.mesh_values import as_text, printable

    envelope = heard.envelope
    step = "-" if envelope is None or envelope.step < 0 else str(envelope.step)
    number = "-" if envelope is None else str(envelope.sequence)
    try:
        value = as_text(_value(heard), raw)
    except Undecodable as error:
        value = f"malformed ({error.encoding or 'no encoding'}): {error.reason}: {as_text(heard.payload, raw)}"
    gap = f"  ({heard.lost} lost before)" * bool(heard.lost)
    return printable(f"{heard.key}  step {step}  #{number}{gap}  {value}")


def _data(heard: Heard) -> str:
    from neuraxis.mesh.codecs import Undecodable
    from neuraxis.observe.mesh_values import as_json

    envelope = heard.envelope
    told: dict[str, Any] = {
        "key": heard.key,
        "node": heard.node or None,
        "step": None if envelope is None or envelope.step < 0 else envelope.step,
        "sequence": None if envelope is None else envelope.sequence,
        "encoding": heard.encoding,
        "bytes": heard.size,
        "lost": heard.lost,
    }
    try:
        return json.dumps({**told, "value": as_json(_value(heard))})
    except (Undecodable, RecursionError) as error:
        why = error.reason if isinstance(error, Undecodable) else "it is nested too deeply"
        return json.dumps({**told, "malformed": why, "payload": as_json(heard.payload)})


def _value(heard: Heard) -> Any:
    from neuraxis.mesh.codecs import decode

    return decode(heard.payload or b"", heard.encoding)
