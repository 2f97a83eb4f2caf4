"""`neuraxis bench rpc`: remote calls, ours beside those of others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from neuraxis.cli.bench_output import check_form, ended_by_sigterm, print_results, progress_line
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.observe import bench_rpc_tables
from neuraxis.observe.bench_patterns import parse_sizes
from neuraxis.observe.bench_rpc import measure
from neuraxis.observe.bench_rpc_plan import WAYS, Plan, left_out_ways, parse_ways

__all__ = ["rpc"]

_QUICK = {"rounds": 3, "sample_s": 0.1}


def rpc(
    *,
    ways: str = ",".join(WAYS),
    sizes: str | None = None,
    repeats: int | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    markdown: Annotated[bool, Parameter(negative=())] = False,
    into: Path | None = None,
) -> int:
    """Time calls of a function in another process: our backends, raw Zenoh, torch's RPC and managers, all in one run.

    Prints for each size and way what a call takes (median and 99th percentile), how many there are in a second, one
    after the other and with 32 under way, and how many times a peer's time that is. The status is 1 when a way failed.
    The ways take turns, so other load on the machine meets all of them; still, measure on a quiet one.

    Parameters
    ----------
    ways
        Ways to call: ours are zenoh, shm, gloo and tensorpipe.
    sizes
        Bytes that are sent and come back, such as 64,4KB,1MB (a KB is 1024 bytes), which it is without it.
    repeats
        Rounds, of which the median counts; 7 without it, 3 with --quick.
    quick
        Fewer and shorter samples: about a minute.
    json
        Print the results as JSON, every round included.
    markdown
        Print the tables as Markdown.
    into
        Write the tables, as Markdown, between two marks in this file, which it must have; see docs/rpc.md.
    """
    try:
        check_form(json, markdown)
        if into is not None:
            bench_rpc_tables.check_marked(into)
        changes: dict[str, Any] = dict(_QUICK) if quick else {}
        if sizes is not None:
            changes["sizes"] = parse_sizes(sizes)
        if repeats is not None:
            changes["rounds"] = repeats
        wanted = parse_ways(ways)
        gone = {way: reason for way, reason in left_out_ways().items() if way in wanted}
        plan = Plan(tuple(way for way in wanted if way not in gone), **changes)
        if not plan.ways:
            raise InvalidArgument(f"--ways {ways}: torch is not installed: pip install 'neuraxis[torch]'")
        with ended_by_sigterm(), progress_line() as progress:
            results = measure(plan, list(gone.values()), progress)
        if into is not None:
            bench_rpc_tables.write_between(results, into)
        print_results(bench_rpc_tables, results, as_json=json, markdown=markdown)
    except NeuraxisError as error:
        print(f"neuraxis bench rpc: {error}", file=sys.stderr)
        return 2
    return 0 if results.sound else 1
