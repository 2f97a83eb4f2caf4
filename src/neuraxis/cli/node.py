"""`neuraxis node brain.toml --region vision`: one region of a brain, as a node of the mesh."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from neuraxis.cli.brain_options import make_importable, tell_first_time
from neuraxis.cli.mesh_options import MeshToolOptions
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.network.arguments import near, positive, whole

__all__ = ["node"]

_HELP = """Run one region of a brain as a node of the mesh, here or anywhere.

The node reads the brain's file, builds the region's neurons (or makes your
own region), finds the nodes of the regions that it hears, and runs. It may
start before or after them, and end or die without harming them.

By the wall clock (realtime), every region runs at its own pace: what comes
late is dropped, and counted. In lockstep a region goes on when it has heard
what it needs: the spikes are those of a run in one process, to the bit.
"""

_EPILOGUE = """Examples:

  A brain in four terminals, on one machine, by the wall clock:
    neuraxis node robot.toml --region vision
    neuraxis node robot.toml --region pfc
    ...
    neuraxis nodes

  A region on another machine, through a router, with keys:
    neuraxis node robot.toml --region vision --connect tls/robot.local:7447 \\
        --tls keys/

  One that keeps its state, and goes on from it after a crash:
    neuraxis node robot.toml --region vision --checkpoint state/
    neuraxis node robot.toml --region vision --checkpoint state/ --resume

  In lockstep for ten seconds of model time, with the other regions:
    neuraxis node brain.toml --region cortex --clock lockstep --time-ms 10000

  In lockstep, driven by a task that runs elsewhere:
    neuraxis node brain.toml --region cortex --clock lockstep
    neuraxis run brain.toml --mesh --remote cortex --task cue-action

A brain's file may name Python code of yours to run (kind = "python"): run
only files that you trust.

Exit status: 0 when it ran to its end or was told to leave (Ctrl-C, SIGTERM),
1 when its region failed, 2 when it cannot be run as asked."""

node = App(name="node", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@node.default
def _node(
    file: Path,
    *,
    region: str,
    clock: Literal["realtime", "lockstep"] = "realtime",
    time_ms: float | None = None,
    patience_s: float = 1.0,
    reconnect_s: float = 30.0,
    start_wait_s: float = 10.0,
    checkpoint: Path | None = None,
    checkpoint_every_ms: float = 1000.0,
    resume: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    how: MeshToolOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run a region.

    Parameters
    ----------
    file
        The brain's TOML file, the same for every node.
    region
        Which region of it.
    clock
        realtime: follow the wall clock; lockstep: wait for what is needed.
    time_ms
        Run so much model time, and leave; by default until told to. In lockstep without it, another process says how
        far to run: neuraxis run --mesh --remote.
    patience_s
        Who has said nothing for so long is taken for gone; it is silence from then on, until it comes back.
    reconnect_s
        How long to wait in lockstep for the mesh itself, when this node is cut off from its router.
    start_wait_s
        How long to wait for the other regions before the first step.
    checkpoint
        Keep states of this region in this folder.
    checkpoint_every_ms
        Model time between two of them.
    resume
        Begin with the last of them, and catch up with the others.
    seed
        Draw everything random from it, instead of the seed in the file; the same for every node.
    as_json
        At the end, print what the region saw of the others as a JSON object.
    """
    from neuraxis.brain import read_spec
    from neuraxis.brain.mesh import region_setups
    from neuraxis.engine.warm import warm_up
    from neuraxis.execution.mesh import RegionNode
    from neuraxis.network.grid import to_steps

    options = how or MeshToolOptions()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("neuraxis").setLevel(logging.INFO)
    try:
        import msgspec

        make_importable(file)
        spec = read_spec(file)
        if seed is not None:
            spec = msgspec.structs.replace(spec, seed=whole(seed, "--seed", 0))
        if region not in spec.regions:
            raise InvalidArgument(f"--region {region}: {near(region, spec.regions)}")
        if resume and checkpoint is None:
            raise InvalidArgument("--resume: say with --checkpoint from which folder")
        until = None if time_ms is None else to_steps(positive(time_ms, "--time-ms"), spec.dt_ms, "--time-ms")
        every = to_steps(positive(checkpoint_every_ms, "--checkpoint-every-ms"), spec.dt_ms, "--checkpoint-every-ms")
        setup = region_setups(
            spec,
            str(file),
            mesh=options.mesh_name,
            topology=options.topology(region).as_data(),
            clock=clock,
            driven=clock == "lockstep" and until is None,
            until=until,
            patience_s=positive(patience_s, "--patience-s"),
            reconnect_s=positive(reconnect_s, "--reconnect-s"),
            start_wait_s=positive(start_wait_s, "--start-wait-s"),
            checkpoint=None if checkpoint is None else str(checkpoint),
            checkpoint_every=every,
            resume=resume,
        )[region]
        tell_first_time()
        warm_up()
        running = RegionNode(setup)
        with _Signals(running.stop):
            print(f"{region}: {_describe(setup)}", file=sys.stderr, flush=True)
            running.run()
    except (NeuraxisError, OSError) as error:
        print(f"neuraxis node: {error}", file=sys.stderr)
        return 1 if type(error).__name__ == "ShardFailed" else 2
    story = running.story()
    if as_json:
        print(json.dumps(story))
    else:
        _print(story, spec.dt_ms)
    return 0


class _Signals:
    """Ctrl-C and SIGTERM ask the region to leave in good order; the second one is Python's own."""

    def __init__(self, stop: Any) -> None:
        self._stop = stop
        self._old: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._handle)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stop()
        signal.signal(number, self._old[number])


def _describe(setup: Any) -> str:
    neurons = sum(setup.network.populations[index].n for index in setup.units.populations[setup.name])
    how = "by the wall clock" if setup.clock == "realtime" else "in lockstep"
    where = "" if not setup.resume else ", from its last state"
    return f"{neurons:,} neurons, {how}, on mesh {setup.mesh!r}{where}"


def _print(story: dict[str, Any], dt_ms: float) -> None:
    print(f"{story['region']}: left after step {story['step']:,} ({story['step'] * dt_ms:,.0f} ms)")
    for name, one in story["upstream"].items():
        words = [f"heard to step {one['heard']:,}"]
        words += [f"{one[what]:,} steps {what}" for what in ("recovered", "lost", "late") if one[what]]
        for first, last, why in one["silences"]:
            words.append(f"missing from step {first:,} to {'now' if last is None else f'{last:,}'} ({why})")
        print(f"  {name}: {', '.join(words)}")
    if story["clock"] is not None:
        clock = story["clock"]
        jitter, margin = clock["jitter_ms"], clock["margin_ms"]
        print(
            f"  kept time in {clock['windows']:,} windows: {jitter['p50']:.2f} ms late at the median, "
            f"{jitter['p99']:.2f} at the 99th percentile; {clock['missed_deadlines']:,} deadlines missed, "
            f"{clock['skipped_steps']:,} steps skipped"
        )
        if margin["p50"] is not None:
            print(
                f"  spikes came {margin['p50']:.2f} ms before their time at the median, {margin['p1']:.2f} at the 1st"
            )
