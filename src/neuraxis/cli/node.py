"""`neuraxis node brain.toml --region vision`: one region of a brain as a node of the mesh."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from neuraxis.arguments import near, positive, whole
from neuraxis.cli.brain_options import announce_compilation, make_importable
from neuraxis.cli.errors import fail
from neuraxis.cli.mesh_options import MeshOptions
from neuraxis.errors import InvalidArgument, NeuraxisError

__all__ = ["node"]

_HELP = """Run one region of a brain as a node of the mesh, here or anywhere.

The node reads the brain's file, builds the region, discovers the nodes of
the regions that it receives from, and runs. It can start before or after
them; the others survive its end.

With --clock realtime every region follows the wall clock: late spikes are
dropped and counted. With --clock lockstep a region advances when it has
received all spikes that it needs: the result is bit-identical to that of
one process.
"""

_EPILOGUE = """Examples:

  A brain in four terminals, on one machine, by the wall clock:
    neuraxis node robot.toml --region vision --clock realtime
    neuraxis node robot.toml --region pfc --clock realtime
    ...
    neuraxis nodes

  A region on another machine, through a router, with keys:
    neuraxis node robot.toml --region vision --clock realtime \\
        --connect tls/robot.local:7447 --tls keys/

  Save states, and resume after a crash:
    neuraxis node robot.toml --region vision --clock realtime \\
        --checkpoint state/ --resume

  In lockstep for ten seconds of model time, with the other regions:
    neuraxis node brain.toml --region cortex --clock lockstep --time-ms 10000

  In lockstep, driven by a task that runs elsewhere:
    neuraxis node brain.toml --region cortex --clock lockstep
    neuraxis run brain.toml --mesh --remote cortex --task cue-action

A brain's file can name Python code (kind = "python"), which runs: use only
files that you trust.

Exit codes: 0 when it ran to its end or a signal ended it (Ctrl-C, SIGTERM),
1 when it failed, 2 for wrong usage."""

_CLOCK_WARNING = (
    "neuraxis node: without --clock the region follows the wall clock; the next release runs in lockstep by default, "
    "so add --clock realtime"
)

node = App(name="node", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@node.default
def _node(
    file: Path,
    *,
    region: str,
    clock: Literal["lockstep", "realtime"] | None = None,
    time_ms: float | None = None,
    silence_timeout: float = 1.0,
    reconnect_timeout: float = 30.0,
    start_timeout: float = 10.0,
    checkpoint: Path | None = None,
    checkpoint_every_ms: float = 1000.0,
    resume: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    how: MeshOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run a region.

    Parameters
    ----------
    file
        The brain's TOML file, the same for every node.
    region
        The region to run.
    clock
        lockstep: wait for the spikes of others; realtime: follow the wall clock. Give it: the default is realtime in
        this release and lockstep, as in neuraxis run, in the next one.
    time_ms
        Model time to run, in ms; default: until a signal ends it. In lockstep without it, another process drives the
        region: neuraxis run --mesh --remote.
    silence_timeout
        Seconds without messages after which another region counts as silent, until it returns.
    reconnect_timeout
        Seconds to wait in lockstep for the router, when this node is disconnected from it.
    start_timeout
        Seconds to wait for the other regions before the first step.
    checkpoint
        Save states of this region in this folder.
    checkpoint_every_ms
        Model time between two states, in ms.
    resume
        Start from the last state, and catch up with the others.
    seed
        Seed of everything random, instead of the one in the file; the same for every node.
    as_json
        At the end, print the statistics of the spikes from other regions as a JSON object.
    """
    from neuraxis.brain import read_spec
    from neuraxis.brain.mesh import region_setups
    from neuraxis.engine.precompile import warm_up
    from neuraxis.network.grid import to_steps, whole_steps
    from neuraxis.simulation.mesh import RegionNode

    options = how or MeshOptions()
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
            raise InvalidArgument("--resume: the folder is missing; name it with --checkpoint")
        until = None if time_ms is None else whole_steps(positive(time_ms, "--time-ms"), spec.dt_ms, "--time-ms")
        every = to_steps(positive(checkpoint_every_ms, "--checkpoint-every-ms"), spec.dt_ms, "--checkpoint-every-ms")
        setup = region_setups(
            spec,
            str(file),
            mesh=options.mesh_name,
            topology=options.topology(region).as_data(),
            clock=clock or "realtime",
            driven=clock == "lockstep" and until is None,
            until=until,
            silence_timeout=positive(silence_timeout, "--silence-timeout"),
            reconnect_timeout=positive(reconnect_timeout, "--reconnect-timeout"),
            start_timeout=positive(start_timeout, "--start-timeout"),
            checkpoint=None if checkpoint is None else str(checkpoint),
            checkpoint_every=every,
            resume=resume,
        )[region]
        if clock is None:
            print(_CLOCK_WARNING, file=sys.stderr, flush=True)
        announce_compilation()
        warm_up(setup.network, packing=True)
        running = RegionNode(setup)
        with _Signals(running.stop):
            print(f"{region}: {_describe(setup)}", file=sys.stderr, flush=True)
            running.run()
    except (NeuraxisError, OSError) as error:
        return fail("node", error)
    statistics = running.statistics()
    if as_json:
        print(json.dumps(statistics))
    else:
        _print(statistics, spec.dt_ms)
    return 0


class _Signals:
    """Ctrl-C and SIGTERM stop the region cleanly; a second signal has Python's default effect."""

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


def _print(statistics: dict[str, Any], dt_ms: float) -> None:
    step = statistics["step"]
    print(f"{statistics['region']}: ended after step {step:,} ({step * dt_ms:,.0f} ms)")
    for name, one in statistics["upstream"].items():
        words = [f"received to step {one['heard']:,}"]
        words += [f"{one[what]:,} steps {what}" for what in ("recovered", "lost", "late") if one[what]]
        for first, last, why in one["silences"]:
            words.append(f"missing from step {first:,} to {'now' if last is None else f'{last:,}'} ({why})")
        print(f"  {name}: {', '.join(words)}")
    if statistics["clock"] is not None:
        clock = statistics["clock"]
        jitter, margin = clock["jitter_ms"], clock["margin_ms"]
        print(
            f"  {clock['windows']:,} windows by the wall clock: {jitter['p50']:.2f} ms late at the median, "
            f"{jitter['p99']:.2f} at the 99th percentile; {clock['missed_deadlines']:,} deadlines missed, "
            f"{clock['skipped_steps']:,} steps skipped"
        )
        if margin["p50"] is not None:
            print(
                f"  spikes arrived {margin['p50']:.2f} ms early at the median, {margin['p1']:.2f} at the 1st percentile"
            )
