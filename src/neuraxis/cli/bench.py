"""`neuraxis bench`: our parts side by side with their peers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from neuraxis.cli.bench_output import check_form, ended_by_sigterm, print_results, progress_line
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.network.arguments import one_of
from neuraxis.observe import (
    bench_brain,
    bench_brain_plan,
    bench_brain_programs,
    bench_brain_tables,
    bench_mesh_tables,
    bench_regions,
    bench_regions_tables,
    bench_tables,
)
from neuraxis.observe.bench_collectives import Plan, measure
from neuraxis.observe.bench_contenders import OURS, PEERS, LeftOut, left_out, parse_peers
from neuraxis.observe.bench_mesh import PARTS, parse_brains, parse_parts
from neuraxis.observe.bench_mesh import Plan as MeshPlan
from neuraxis.observe.bench_mesh import measure as measure_mesh
from neuraxis.observe.bench_mesh_brain import WAYS, parse_ways
from neuraxis.observe.bench_patterns import PATTERNS, SIZES, parse_patterns, parse_sizes

__all__ = ["app"]

app = App(name="bench", help="Measure neuraxis side by side with the peers that are installed.")
# The lines are for the list of commands; a command that is called tells more about itself.
_LATER = {
    "training": "Time steps of training beside torch's own.",
    "rpc": "Time remote calls beside raw Zenoh, torch's RPC and managers.",
}
for _name, _help in _LATER.items():
    _line = {} if sys.argv[2:3] == [_name] else {"help": _help}
    app.command(f"neuraxis.cli.bench_{_name}:{_name}", name=_name, **_line)

_QUICK_SIZES = "4,1KB,16KB,1MB,16MB"
_PICTURES = (".png", ".svg", ".pdf")
_FULL_SAMPLE_S, _QUICK_SAMPLE_S = 0.025, 0.008


@app.command
def collectives(
    *,
    n: Annotated[int, Parameter(name="-n")] = 2,
    peers: str = ",".join(PEERS),
    sizes: str | None = None,
    patterns: str = ",".join(PATTERNS),
    repeats: int | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    markdown: Annotated[bool, Parameter(negative=())] = False,
    plot: Path | None = None,
) -> int:
    """Time every communication pattern on shm and on every peer installed, all in one run.

    Prints, for each pattern and size, the median microseconds of a call and how many times faster shm is.
    A size is the bytes of float32 that one rank passes in; for scatter, all_to_all and reduce_scatter, the
    whole input, which is cut into one part a rank. The contenders take turns, so other load on the
    machine meets all of them; still, measure on a quiet one.

    Parameters
    ----------
    n
        Ranks, all on this host.
    peers
        What to compare with: gloo, mpi, or none.
    sizes
        Sizes to measure, such as 4,16KB,64MB (a KB is 1024 bytes); 4 B to 64 MB without it.
    patterns
        Patterns to measure.
    repeats
        Rounds over everything, of which the median counts; 5 without it, 3 with --quick.
    quick
        Fewer sizes and shorter samples: about 20 seconds.
    json
        Print the results as JSON, every round included.
    markdown
        Print the tables as Markdown.
    plot
        Also draw time against size into this file (.png, .svg or .pdf).
    """
    try:
        check_form(json, markdown)
        _check_plot(plot)
        plan, gone = _plan(n, peers, sizes, patterns, repeats, quick)
        with ended_by_sigterm(), progress_line() as progress:
            results = measure(plan, gone, progress)
        if plot is not None:
            from neuraxis.observe.bench_plot import plot_results

            plot_results(results).savefig(plot, dpi=150)
        print_results(bench_tables, results, as_json=json, markdown=markdown)
    except NeuraxisError as error:
        print(f"neuraxis bench collectives: {error}", file=sys.stderr)
        return 2
    return 0


@app.command
def brain(
    *,
    networks: str = ",".join(bench_brain_plan.NETWORKS),
    workers: int = 2,
    scale: float | None = None,
    order: int = 2500,
    hpc_scale: float | None = None,
    time_ms: float | None = None,
    repeats: int | None = None,
    peers: str = ",".join(bench_brain_programs.PEERS),
    peers_python: str | None = None,
    scaling: str | None = None,
    regions: Annotated[bool, Parameter(negative=())] = False,
    sizes: str = ",".join(bench_regions.SIZES),
    limit_s: float = 1200.0,
    quick: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    markdown: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run networks from the literature on neuraxis and on every simulator installed, all in one run.

    Prints, for each network and simulator, how long it took to build and to run a second of model time, how many
    times as fast neuraxis is, and what was simulated. Every sample is a process of its own, on as many
    cores for all; they take turns, so other load on the machine meets all of them; still, measure on a quiet one.
    The status is 1 when neuraxis failed, or when two of its runs did not give the same spikes.

    Parameters
    ----------
    networks
        Networks to run: brunel, microcircuit, hpc (NEST's hpc_benchmark).
    workers
        Worker processes of neuraxis, and threads of the others.
    scale
        Of the microcircuit; 1 is the whole one; 1 without it, 0.1 with --quick.
    order
        Of Brunel's network, which has five times as many neurons.
    hpc_scale
        Of the HPC benchmark; 1 is 11,250 neurons with 11,250 inputs each; 1 without it, 0.1 with --quick.
    time_ms
        Model time of a sample, after 100 ms that do not count; 1000 without it, 200 with --quick.
    repeats
        Rounds, of which the median counts; 3 without it, 1 with --quick.
    peers
        What to compare with: nest, brian2, or none.
    peers_python
        The Python that has the peers; without it that of NEURAXIS_PEERS, else of .venv-peers (see benchmarks/peers.sh).
    scaling
        Numbers of workers, such as 1,2,4: run neuraxis alone over each of them, and show how well it scales.
    regions
        Run brains of regions instead: what worker processes gain and cost, the sequential run beside them.
    sizes
        With --regions: small (the default brain), medium (4 times its cells), large (10 times).
    limit_s
        Seconds after which a process is ended and counts as failed.
    quick
        Smaller networks, less model time, one round.
    json
        Print the results as JSON, every sample included.
    markdown
        Print the tables as Markdown.
    """
    try:
        check_form(json, markdown)
        if regions:
            return _regions(sizes, scaling or f"1,{workers}", time_ms, repeats, quick, json, markdown)
        chosen = bench_brain_programs.parse_peers("none" if scaling is not None else peers)
        python = bench_brain_programs.find_peers_python(peers_python) if chosen else sys.executable
        gone = bench_brain_programs.left_out_peers(chosen, python)
        present = [peer for peer in chosen if peer not in gone]
        plan = bench_brain_plan.Plan(
            contenders=bench_brain_plan.scaling_contenders(scaling)
            if scaling is not None
            else bench_brain_plan.contenders_for(present, workers),
            networks=bench_brain_plan.parse_networks(networks),
            order=order,
            scale=scale if scale is not None else 0.1 if quick else 1.0,
            hpc_scale=hpc_scale if hpc_scale is not None else 0.1 if quick else 1.0,
            time_ms=time_ms if time_ms is not None else 200.0 if quick else 1000.0,
            repeats=repeats if repeats is not None else 1 if quick else 3,
            limit_s=limit_s,
            scaling=scaling is not None,
            peers_python=python,
        )
        bench_brain_plan.check_plan(plan)
        with ended_by_sigterm(), progress_line() as progress:
            results = bench_brain.measure(plan, list(gone.values()), progress)
        print_results(bench_brain_tables, results, as_json=json, markdown=markdown)
    except NeuraxisError as error:
        print(f"neuraxis bench brain: {error}", file=sys.stderr)
        return 2
    return 0 if results.sound else 1


@app.command
def mesh(
    *,
    parts: str = ",".join(PARTS),
    ways: str = ",".join(WAYS),
    brains: str | None = None,
    repeats: int | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    markdown: Annotated[bool, Parameter(negative=())] = False,
    into: Path | None = None,
) -> int:
    """Measure the mesh: messages beside raw Zenoh, nodes under load, brains in all ways to run them, and a killed part.

    One brain runs in one process, in workers on shared memory, in ranks that exchange spikes by collectives, and as
    nodes over Zenoh, directly and through a router: steps per second, what a window takes, whether the result is the
    same, and what becomes of the others when one process is killed. The status is 1 when results differ, or when a way
    that could be started failed. What is compared takes turns; still, measure on a quiet machine.

    Parameters
    ----------
    parts
        What to measure: messages, load, brain, faults.
    ways
        Ways to run a brain.
    brains
        Brains to run: pair, two, four, default; all of them without it, pair with --quick.
    repeats
        Rounds, of which the median counts; 3 without it, 1 with --quick.
    quick
        Less of everything: about half a minute.
    json
        Print the results as JSON, every round included.
    markdown
        Print the tables as Markdown.
    into
        Write the tables, as Markdown, between two marks in this file, which it must have; see docs/mesh-or-lockstep.md.
    """
    try:
        check_form(json, markdown)
        if into is not None:
            bench_mesh_tables.check_marked(into)
        if repeats is not None and repeats < 1:
            raise InvalidArgument(f"--repeats {repeats}: at least one round is needed")
        changes: dict[str, Any] = {"parts": parse_parts(parts), "ways": parse_ways(ways)}
        if repeats is not None:
            changes["rounds"] = repeats
        if brains is not None:
            changes["brains"] = parse_brains(brains)
        plan = MeshPlan.quick(**changes) if quick else MeshPlan(**changes)
        with ended_by_sigterm(), progress_line() as progress:
            results = measure_mesh(plan, progress)
        if into is not None:
            bench_mesh_tables.write_between(results, into)
        print_results(bench_mesh_tables, results, as_json=json, markdown=markdown)
    except NeuraxisError as error:
        print(f"neuraxis bench mesh: {error}", file=sys.stderr)
        return 2
    return 0 if results.sound else 1


def _regions(
    sizes: str, workers: str, time_ms: float | None, repeats: int | None, quick: bool, json: bool, markdown: bool
) -> int:
    """`neuraxis bench brain --regions`."""
    chosen = sizes.split(",")
    for size in chosen:
        one_of(size, "--sizes", tuple(bench_regions.SIZES))
    with ended_by_sigterm(), progress_line() as progress:
        results = bench_regions.measure_regions(
            chosen,
            bench_regions.parse_numbers(workers, "--scaling"),
            time_ms if time_ms is not None else 200.0 if quick else 1000.0,
            repeats if repeats is not None else 2 if quick else 5,
            progress,
        )
    print_results(bench_regions_tables, results, as_json=json, markdown=markdown)
    return 0 if results.sound else 1


def _plan(
    n: int, peers: str, sizes: str | None, patterns: str, repeats: int | None, quick: bool
) -> tuple[Plan, list[LeftOut]]:
    if n < 2:
        raise InvalidArgument(f"-n {n}: at least two ranks are needed to communicate")
    rounds = repeats if repeats is not None else 3 if quick else 5
    if rounds < 1:
        raise InvalidArgument(f"--repeats {rounds}: at least one round is needed")
    chosen_sizes = sizes if sizes is not None else _QUICK_SIZES if quick else None
    wanted = (*OURS, *parse_peers(peers))
    gone = {name: reason for name in wanted if (reason := left_out(name)) is not None}
    plan = Plan(
        contenders=tuple(name for name in wanted if name not in gone),
        patterns=parse_patterns(patterns),
        sizes=SIZES if chosen_sizes is None else parse_sizes(chosen_sizes),
        ranks=n,
        rounds=rounds,
        sample_s=_QUICK_SAMPLE_S if quick else _FULL_SAMPLE_S,
    )
    return plan, list(gone.values())


def _check_plot(path: Path | None) -> None:
    """Say now, and not after minutes, that the picture cannot be written."""
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise InvalidArgument(f"--plot {path}: the name must end in {', '.join(_PICTURES)}")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"--plot {path}: there is no folder {path.absolute().parent}")
