"""`neuraxis bench`: benchmarks that compare neuraxis with its peers.

Each command builds a plan; one function runs every benchmark: it checks the output options, looks at the machine's
load, measures, and renders the report.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from neuraxis.bench.harness import Progress, Report, check_marked, check_rounds, parse_choices, record, write_between
from neuraxis.bench.machine import busy_line
from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.machine import check_process_count

__all__ = ["app"]

_EPILOGUE = """Contenders take turns, so other load on the machine affects all of them; still, measure on an idle
machine. A line says when it is too busy to trust the figures.

Exit codes: 0; 1 when neuraxis failed or results that must be equal differ; 2 for wrong usage; 130 at
Ctrl-C."""
_REDRAW_S = 0.5
_PICTURES = (".png", ".svg", ".pdf")

app = App(name="bench", help="Compare neuraxis with the installed peers.", version_flags=())
_command = partial(app.command, help_epilogue=_EPILOGUE, version_flags=())
_flag = Parameter(negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """The form of the report.

    Parameters
    ----------
    json
        Print the results as JSON: every round, the tables, the machine, versions, the date and the command.
    note
        A remark about the circumstances, which --json keeps.
    markdown
        Print the tables as Markdown.
    into
        Write the tables as Markdown between two marks in this file, which must have them.
    targets
        Also show the developers' targets, which are meant for 2 cores.
    """

    json: Annotated[bool, _flag] = False
    note: str = ""
    markdown: Annotated[bool, _flag] = False
    into: Path | None = None
    targets: Annotated[bool, _flag] = False


_OUTPUT = Output()


@_command
def collectives(
    *,
    n: Annotated[int, Parameter(name="-n")] = 2,
    peers: str = "gloo,mpi",
    sizes: str | None = None,
    patterns: str | None = None,
    repeats: int | None = None,
    quick: Annotated[bool, _flag] = False,
    plot: Path | None = None,
    output: Output = _OUTPUT,
) -> int:
    """Time every communication pattern on shm and on every installed peer.

    Prints, for each pattern and size, the median microseconds of a call and how many times as fast shm is. A size is
    the bytes of float32 that one rank passes in; for scatter, all_to_all and reduce_scatter, the whole input, which is
    split into one part per rank.

    Parameters
    ----------
    n
        Ranks, all on this host.
    peers
        Peers to compare with: gloo, mpi, or none.
    sizes
        Sizes to measure, such as 4,16KB,64MB (a KB is 1024 bytes); default: 4 B to 64 MB.
    patterns
        Patterns to measure; default: all.
    repeats
        Rounds, of which the median counts; default: 5, with --quick 3.
    quick
        Fewer sizes and shorter samples: about 20 seconds.
    plot
        Also draw time against size into this file (.png, .svg or .pdf).
    """
    from neuraxis.bench.collectives.measure import Plan, measure
    from neuraxis.bench.collectives.patterns import PATTERNS, SIZES, parse_patterns, parse_sizes
    from neuraxis.bench.collectives.report import report
    from neuraxis.bench.contenders import OURS, PEERS, left_out

    def prepare() -> _Run:
        _check_plot(plot)
        chosen = sizes if sizes is not None else "4,1KB,16KB,1MB,16MB" if quick else None
        wanted = (*OURS, *parse_choices(peers, "--peers", PEERS, none=True))
        gone = {name: reason for name in wanted if (reason := left_out(name)) is not None}
        plan = Plan(
            contenders=tuple(name for name in wanted if name not in gone),
            patterns=PATTERNS if patterns is None else parse_patterns(patterns),
            sizes=SIZES if chosen is None else parse_sizes(chosen),
            ranks=n,
            rounds=repeats if repeats is not None else 3 if quick else 5,
            sample_s=0.008 if quick else 0.025,
        )
        return _Run(n, partial(measure, plan, list(gone.values())), report, draw)

    def draw(results: Any) -> None:
        if plot is not None:
            from neuraxis.bench.collectives.plot import plot_results

            plot_results(results).savefig(plot, dpi=150)

    return _bench("collectives", output, prepare)


@_command
def brain(
    *,
    networks: str = "brunel,microcircuit,hpc",
    workers: int = 2,
    scale: float | None = None,
    order: int = 2500,
    hpc_scale: float | None = None,
    time_ms: float | None = None,
    repeats: int | None = None,
    peers: str = "nest,brian2",
    peers_python: str | None = None,
    scaling: str | None = None,
    regions: Annotated[bool, _flag] = False,
    sizes: str = "small,medium,large",
    timeout: float = 1200.0,
    quick: Annotated[bool, _flag] = False,
    output: Output = _OUTPUT,
) -> int:
    """Run networks from the literature on neuraxis and on every installed simulator.

    Prints, for each network and simulator, the time to build it and to run a second of model time, and how many times
    as fast neuraxis is. Every sample is a separate process, on as many cores for all.

    Parameters
    ----------
    networks
        Networks to run: brunel, microcircuit, hpc (NEST's hpc_benchmark).
    workers
        Worker processes of neuraxis, and threads of the others.
    scale
        Scale of the microcircuit; 1 is the full network; default: 1, with --quick 0.1.
    order
        Order of Brunel's network, which has five times as many neurons.
    hpc_scale
        Scale of the HPC benchmark; 1 is 11,250 neurons with 11,250 inputs each; default: 1, with --quick 0.1.
    time_ms
        Model time of a sample, after 100 ms that do not count; default: 1000, with --quick 200.
    repeats
        Rounds, of which the median counts; default: 3, with --quick 1.
    peers
        Peers to compare with: nest, brian2, or none.
    peers_python
        The Python that has the peers; default: that of NEURAXIS_PEERS, else of .venv-peers (see benchmarks/peers.sh).
    scaling
        Numbers of workers, such as 1,2,4: run neuraxis alone on each of them, and show how well it scales.
    regions
        Run brains of regions instead, in one process and in workers.
    sizes
        With --regions: small (the default brain), medium (4 times its neurons), large (10 times).
    timeout
        Seconds after which a process is ended and counts as failed.
    quick
        Smaller networks, less model time, one round.
    """
    from neuraxis.bench import programs
    from neuraxis.bench.brain import plan as plans
    from neuraxis.bench.brain.measure import measure
    from neuraxis.bench.brain.report import report

    model_time = time_ms if time_ms is not None else 200.0 if quick else 1000.0

    def prepare() -> _Run:
        check_process_count(workers, "--workers")
        chosen = parse_choices("none" if scaling is not None else peers, "--peers", programs.PEERS, none=True)
        python = programs.find_peers_python(peers_python) if chosen else sys.executable
        gone = programs.left_out_peers(chosen, python)
        present = [peer for peer in chosen if peer not in gone]
        plan = plans.Plan(
            contenders=plans.scaling_contenders(scaling)
            if scaling is not None
            else plans.contenders_for(present, workers),
            networks=parse_choices(networks, "--networks", plans.NETWORKS),
            order=order,
            scale=scale if scale is not None else 0.1 if quick else 1.0,
            hpc_scale=hpc_scale if hpc_scale is not None else 0.1 if quick else 1.0,
            time_ms=model_time,
            repeats=repeats if repeats is not None else 1 if quick else 3,
            limit_s=timeout,
            scaling=scaling is not None,
            peers_python=python,
        )
        plans.check_plan(plan)
        return _Run(plan.processes, partial(measure, plan, list(gone.values())), report)

    def prepare_regions() -> _Run:
        from neuraxis.bench.brain import regions as of_regions

        check_process_count(workers, "--workers")
        chosen = list(parse_choices(sizes, "--sizes", of_regions.SIZES))
        numbers = of_regions.parse_numbers(scaling or f"1,{workers}", "--scaling")
        rounds = repeats if repeats is not None else 2 if quick else 5
        check_rounds(rounds)
        run = partial(of_regions.measure_regions, chosen, numbers, model_time, rounds)
        return _Run(max(numbers), run, of_regions.report)

    return _bench("brain", output, prepare_regions if regions else prepare)


@_command
def models(
    *,
    cases: str | None = None,
    neurons: int = 4000,
    time_ms: float | None = None,
    repeats: int | None = None,
    peers: str = "nest,brian2",
    peers_python: str | None = None,
    timeout: float = 600.0,
    quick: Annotated[bool, _flag] = False,
    output: Output = _OUTPUT,
) -> int:
    """Time one step of a neuron for every built-in model, and of small networks, on one core.

    Prints the nanoseconds of processor time for one neuron and step, on neuraxis, NEST and Brian2 (C++), for the same
    model with the same step, and how many times as long the others take. The networks (cuba, coba) also have
    synapses.

    Parameters
    ----------
    cases
        Models and networks to measure, such as adex,cuba; default: all.
    neurons
        Neurons of a model, each with a current of its own.
    time_ms
        Model time of a sample on neuraxis; the other simulators run a fifth of it; default: 1000, with --quick 100.
    repeats
        Rounds, of which the median counts; default: 3, with --quick 1.
    peers
        Peers to compare with: nest, brian2, or none.
    peers_python
        The Python that has the peers; default: that of NEURAXIS_PEERS, else of .venv-peers (see benchmarks/peers.sh).
    timeout
        Seconds after which a process is ended and counts as failed.
    quick
        Less model time, one round.
    """
    from neuraxis.bench import programs
    from neuraxis.bench.models.catalogue import CASES, NETWORKS
    from neuraxis.bench.models.measure import Plan, measure
    from neuraxis.bench.models.report import report

    def prepare() -> _Run:
        known = [case.name for case in (*CASES, *NETWORKS)]
        chosen = parse_choices(peers, "--peers", programs.PEERS, none=True)
        python = programs.find_peers_python(peers_python) if chosen else sys.executable
        gone = programs.left_out_peers(chosen, python)
        rounds = repeats if repeats is not None else 1 if quick else 3
        check_rounds(rounds)
        model_time = time_ms if time_ms is not None else 100.0 if quick else 1000.0
        for option, value, fewest in (("--neurons", neurons, 1), ("--time-ms", model_time, 1.0)):
            if not value >= fewest or math.isinf(value):
                raise InvalidArgument(f"{option} {value:g}: {fewest:g} or more is expected")
        plan = Plan(
            cases=tuple(known) if cases is None else parse_choices(cases, "--cases", known),
            peers=tuple(peer for peer in chosen if peer not in gone),
            neurons=neurons,
            time_ms=model_time,
            peer_time_ms=max(1.0, model_time / 5),
            network_ms=model_time,
            repeats=rounds,
            limit_s=timeout,
            peers_python=python,
        )
        return _Run(1, partial(measure, plan, list(gone.values())), report)

    return _bench("models", output, prepare)


@_command
def mesh(
    *,
    parts: str = "messages,load,brain,faults",
    methods: str | None = None,
    brains: str | None = None,
    repeats: int | None = None,
    quick: Annotated[bool, _flag] = False,
    output: Output = _OUTPUT,
) -> int:
    """Measure the mesh: messages compared with raw Zenoh, nodes under load, brains by every method, a killed process.

    One brain runs in one process, in workers on shared memory, in ranks that exchange spikes by collectives, and as
    nodes over Zenoh, directly and through a router: steps per second, time of a window, the result, and the reaction of
    the others when one process is killed.

    Parameters
    ----------
    parts
        Parts to measure: messages, load, brain, faults.
    methods
        Methods of running a brain: sequential, shm, lockstep-shm, lockstep-gloo, lockstep-mpi, zenoh-peers,
        zenoh-router; default: all.
    brains
        Brains to run: pair, two, four, default; default: all, with --quick pair.
    repeats
        Rounds, of which the median counts; default: 3, with --quick 1.
    quick
        Less of everything: about half a minute.
    """
    from neuraxis.bench.mesh.brain import parse_methods
    from neuraxis.bench.mesh.measure import Plan, measure, parse_brains, parse_parts
    from neuraxis.bench.mesh.report import report

    def prepare() -> _Run:
        changes: dict[str, Any] = {"parts": parse_parts(parts)}
        if methods is not None:
            changes["methods"] = parse_methods(methods)
        if brains is not None:
            changes["brains"] = parse_brains(brains)
        if repeats is not None:
            changes["rounds"] = repeats
        plan = Plan.quick(**changes) if quick else Plan(**changes)
        return _Run(plan.processes, partial(measure, plan), report)

    return _bench("mesh", output, prepare)


@_command
def rpc(
    *,
    methods: str | None = None,
    sizes: str | None = None,
    repeats: int | None = None,
    quick: Annotated[bool, _flag] = False,
    output: Output = _OUTPUT,
) -> int:
    """Time calls of a function in another process: our backends, raw Zenoh, torch's RPC and managers.

    Prints for each size and method the latency of a call (median and 99th percentile), the calls per second, sequential
    and with 32 concurrent ones, and the ratios to peers.

    Parameters
    ----------
    methods
        Methods of remote calls: zenoh, shm, gloo, tensorpipe (ours), raw-zenoh, raw-zenoh-tcp, torch-rpc, torch-tensor,
        managers; default: all.
    sizes
        Bytes that are sent and returned, such as 64,4KB,1MB (a KB is 1024 bytes), which is the default.
    repeats
        Rounds, of which the median counts; default: 7, with --quick 3.
    quick
        Fewer and shorter samples: about a minute.
    """
    from neuraxis.bench.collectives.patterns import parse_sizes
    from neuraxis.bench.rpc.measure import METHODS, Plan, left_out_methods, measure, parse_methods
    from neuraxis.bench.rpc.report import report
    from neuraxis.imports import install_command

    def prepare() -> _Run:
        changes: dict[str, Any] = {"rounds": 3, "sample_s": 0.1} if quick else {}
        if sizes is not None:
            changes["sizes"] = parse_sizes(sizes)
        if repeats is not None:
            changes["rounds"] = repeats
        wanted = tuple(METHODS) if methods is None else parse_methods(methods)
        gone = {method: reason for method, reason in left_out_methods().items() if method in wanted}
        plan = Plan(tuple(method for method in wanted if method not in gone), **changes)
        if not plan.methods:
            raise InvalidArgument(f"--methods {methods}: torch is not installed: {install_command('torch')}")
        return _Run(2, partial(measure, plan, list(gone.values())), report)

    return _bench("rpc", output, prepare)


@_command
def training(
    *,
    n: Annotated[int, Parameter(name="-n")] = 2,
    models: str = "mlp,conv,transformer",
    repeats: int | None = None,
    quick: Annotated[bool, _flag] = False,
    output: Output = _OUTPUT,
) -> int:
    """Time training steps: DataParallel over shm and gloo, torch's own, and a module by itself.

    Prints for each model and method the time of a step, samples per second, the overhead over a module by itself, the
    bytes that a rank sends, with compression and without, and how much of the communication overlaps the backward pass;
    with a GPU also mixed precision on it. Methods that must give the same parameters are compared.

    Parameters
    ----------
    n
        Ranks, all on this host.
    models
        Models to train: mlp, conv, transformer.
    repeats
        Rounds, of which the median counts; default: 21, with --quick 5.
    quick
        Fewer and shorter samples: about half a minute.
    """
    from neuraxis.bench.training.measure import METHODS, Plan, check_torch, left_out_methods, measure, parse_models
    from neuraxis.bench.training.report import report

    def prepare() -> _Run:
        gone = left_out_methods()
        changes: dict[str, Any] = {"rounds": 5, "sample_s": 0.05} if quick else {}
        if repeats is not None:
            changes["rounds"] = repeats
        methods = tuple(method for method in METHODS if method not in gone)
        plan = Plan(parse_models(models), methods, n, **changes)
        check_torch()
        return _Run(n, partial(measure, plan, list(gone.values())), report)

    return _bench("training", output, prepare)


# --- one run of any benchmark --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """A benchmark that is ready to run.

    Attributes:
        processes: that run at the same time.
        measure: takes a progress callback and returns the results.
        report: builds the report from the results.
        then: is called with the results before they are printed.
    """

    processes: int
    measure: Callable[[Progress | None], Any]
    report: Callable[[Any], Report]
    then: Callable[[Any], None] = lambda results: None


def _bench(name: str, output: Output, prepare: Callable[[], _Run]) -> int:
    """Run a benchmark and print its report; return the exit code."""
    try:
        if output.json and output.markdown:
            raise InvalidArgument("--json and --markdown cannot both be printed: choose one")
        if output.note and not output.json:
            raise InvalidArgument("--note is kept only by --json: add it")
        if output.into is not None:
            check_marked(output.into, name)
        run = prepare()
        if warning := busy_line(run.processes):
            print(f"neuraxis bench {name}: {warning}", file=sys.stderr)
        with _end_on_sigterm(), _progress_line() as progress:
            results = run.measure(progress)
        report = run.report(results)
        run.then(results)
        if output.into is not None:
            write_between(output.into, name, report.as_markdown(output.targets))
        _print(report, output)
    except NeuraxisError as error:
        return fail(f"bench {name}", error)
    return 0 if getattr(results, "sound", True) else 1


def _print(report: Report, output: Output) -> None:
    console = Console()
    if output.json:
        print(json.dumps(record(report, _command_line(), output.note), indent=1))
    elif output.markdown:
        print(report.as_markdown(output.targets))
    elif console.is_terminal:
        report.print(console, output.targets)
    else:
        print(report.as_text(output.targets))


def _command_line() -> list[str]:
    """Return the words that repeat this run: all but the note."""
    words = iter(sys.argv[1:])
    kept = ["neuraxis"]
    for word in words:
        if word == "--note":
            next(words, None)
        elif not word.startswith("--note="):
            kept.append(word)
    return kept


@contextmanager
def _progress_line() -> Iterator[Progress | None]:
    """Show a progress bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawn rarely, because drawing uses a core for a moment.
    with ProgressBar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")
        drawn = -math.inf

        def show(done: int, total: int, what: str) -> None:
            nonlocal drawn
            bar.update(task, completed=done, total=total, description=what)
            if time.monotonic() - drawn > _REDRAW_S:
                bar.refresh()
                drawn = time.monotonic()

        yield show


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the contenders are ended."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_plot(path: Path | None) -> None:
    """Raise before anything is measured if the figure cannot be written."""
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise InvalidArgument(f"--plot {path}: the name must end in {', '.join(_PICTURES)}")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"--plot {path}: there is no folder {path.absolute().parent}")
