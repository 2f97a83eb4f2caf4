"""The results of `neuraxis bench training` as tables: on a terminal, as plain text, as Markdown, and as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from neuraxis.observe import bench_page
from neuraxis.observe.bench_tables import Rows, machine_lines, markdown_table, text_lines, text_table
from neuraxis.observe.bench_training import Entry, Results
from neuraxis.observe.bench_training_plan import MODELS, WAYS
from neuraxis.observe.bench_training_targets import verdicts

__all__ = ["as_data", "as_markdown", "as_text", "check_marked", "print_tables", "write_between"]

_AUXILIARY = ("shm-late", "gloo-late", "unsent")  # shown by what they say about others

Tables = list[tuple[str, list[str], Rows, str]]  # title, headings, rows, what they mean


def as_data(results: Results) -> dict[str, Any]:
    """Everything for a program: each round, medians, overheads, targets."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, entry in zip(data["entries"], results.entries, strict=True):
        found["step_us"] = entry.median_us if entry.rounds_us else None
        found["samples_per_s"] = results.samples_per_s(entry.model, entry.way)
        found["overhead_us"] = results.overhead_us(entry.model, entry.way)
        found["overhead_by_ddp_gloo"] = results.overhead_ratio(entry.model, entry.way)
    data["hidden"] = [
        {"model": model, "way": way, "share": results.hidden(model, way)}
        for model in results.plan.models
        for way in ("shm", "gloo")
    ]
    data["disagreements"] = results.disagreements
    data["targets"] = msgspec.to_builtins(verdicts(results))
    data["sound"] = results.sound
    return data


def as_text(results: Results) -> str:
    """For a file or a pipe."""
    blocks = [text_lines(_heading(results))]
    for title, headings, rows, meaning in _tables(results):
        blocks.append(f"{title}\n{text_table(headings, rows)}" + (f"\n{text_lines([meaning])}" if meaning else ""))
    return "\n\n".join([*blocks, text_lines(_footing(results))])


def as_markdown(results: Results) -> str:
    """For a page of documentation."""
    blocks = ["\n".join(f"- {line}" for line in _heading(results))]
    for title, headings, rows, meaning in _tables(results):
        blocks.append(f"**{title}**\n\n{markdown_table(headings, rows)}" + (f"\n\n{meaning}" if meaning else ""))
    blocks.append("\n".join(f"- {line}" for line in _footing(results)))
    return "\n\n".join(blocks)


def print_tables(results: Results, console: Console) -> None:
    """For a terminal."""
    console.print(*_heading(results), sep="\n", highlight=False)
    for title, headings, rows, meaning in _tables(results):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        if meaning:
            console.print(meaning, style="dim", highlight=False, markup=False)
    console.print(*_footing(results), sep="\n", highlight=False, markup=False)


def check_marked(path: Path) -> None:
    """Raise now, and not after minutes, if there is no place in a file for the tables."""
    bench_page.check_marked(path, "training")


def write_between(results: Results, path: Path) -> None:
    """Put the tables, as Markdown, between the two marks in a file."""
    bench_page.write_between(path, "training", as_markdown(results))


def _heading(results: Results) -> list[str]:
    plan = results.plan
    lines = [
        *machine_lines(results.machine),
        f"Load average when it began: {results.load_before:.1f}.",
        f"{plan.ranks} ranks with a thread each; the ways took turns, and the median of {plan.rounds} round(s) counts.",
    ]
    lines += [
        f"{way}: {WAYS[way].text}" for way in plan.ways if any(results.entry(model, way) for model in plan.models)
    ]
    reasons: dict[str, list[str]] = {}
    for gone in results.left_out:
        reasons.setdefault(gone.reason + (f": {gone.remedy}" if gone.remedy else ""), []).append(gone.contender)
    lines += [f"left out: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    lines += [f"failed: {failure}" for failure in results.failures]
    return lines


def _tables(results: Results) -> Tables:
    tables: Tables = []
    for model in results.plan.models:
        rows = [_row(results, entry) for entry in _shown(results, model) if WAYS[entry.way].crew != "cuda"]
        if rows:
            headings = [
                "way",
                "step ms",
                "fastest",
                "samples/s",
                "overhead µs",
                "of ddp-gloo's",
                "bytes a step",
                "error",
            ]
            title = f"{model}: {MODELS[model].text}, {MODELS[model].rows} rows a rank"
            tables.append((title, headings, rows, ""))
    if tables:
        title, headings, rows, _ = tables[-1]
        meaning = (
            "Fastest: of all rounds, in ms. Overhead: what a step takes beyond that of a module by itself on each "
            "rank in the same round. Bytes: gradients as one rank hands them over. Error: of compression, by the "
            "gradient's length; what top-k leaves out is sent later."
        )
        tables[-1] = (title, headings, rows, meaning)
    for table in (_hidden(results), _cuda(results)):
        if table[2]:
            tables.append(table)
    return tables


def _shown(results: Results, model: str) -> list[Entry]:
    """In the plan's order; those that took a turn."""
    found = [results.entry(model, way) for way in results.plan.ways if way not in _AUXILIARY]
    return [entry for entry in found if entry is not None]


def _row(results: Results, entry: Entry) -> list[str]:
    model, way = entry.model, entry.way
    ratio = results.overhead_ratio(model, way)
    return [
        way,
        f"{entry.median_us / 1000:.3f}",
        f"{min(entry.rounds_us) / 1000:.3f}",
        _number(results.samples_per_s(model, way)),
        "-" if way == "one" else _number(results.overhead_us(model, way)),
        "-" if way == "one" or ratio is None else f"{ratio:.2f}",
        f"{entry.bytes:,.0f}",
        f"{entry.error:.2g}" if entry.error else "-",
    ]


def _hidden(results: Results) -> tuple[str, list[str], Rows, str]:
    headings = ["exchange", "sent at once ms", "sent at the end ms", "not sent ms", "hidden"]
    rows = []
    for model in results.plan.models:
        for way in ("shm", "gloo"):
            times = [results.step_us(model, one) for one in (way, f"{way}-late", "unsent")]
            if None in times:
                continue
            share = results.hidden(model, way)
            rows.append(
                [
                    f"{model}, {way}",
                    *(f"{time / 1000:.3f}" for time in times if time is not None),
                    _share(share) if results.has_several_buckets(model) else "one bucket",
                ]
            )
    meaning = (
        "Hidden: the share of the exchange that takes place while the backward pass still runs. A model of up to 1 MB "
        "is one bucket, sent when the pass is over, so that nothing of it can be hidden; and where there are as many "
        "ranks as cores, whoever sends takes the time from the pass that it hides behind (below 0: more than it hides)."
    )
    return "Communication hidden behind the backward pass", headings, rows, meaning


def _cuda(results: Results) -> tuple[str, list[str], Rows, str]:
    headings = ["model, way", "rows", "step ms", "samples/s", "by cuda-one"]
    rows = []
    for model in results.plan.models:
        alone = results.step_us(model, "cuda-one")
        for entry in _shown(results, model):
            if WAYS[entry.way].crew == "cuda":
                rows.append(
                    [
                        f"{model}, {entry.way}",
                        str(MODELS[model].gpu_rows),
                        f"{entry.median_us / 1000:.3f}",
                        _number(results.samples_per_s(model, entry.way)),
                        "-" if alone is None else f"{entry.median_us / alone:.2f}",
                    ]
                )
    return "On the GPU, in an nccl context of one rank", headings, rows, ""


def _footing(results: Results) -> list[str]:
    judged = verdicts(results)
    lines = [f"Targets: {sum(one.met for one in judged)} of {len(judged)} met.", *map(str, judged)] if judged else []
    if results.disagreements:
        lines += ["NOT SOUND: parameters differ", *results.disagreements]
    else:
        equal = [way for way, one in WAYS.items() if one.equal and any(entry.way == way for entry in results.entries)]
        lines += [f"{', '.join(equal)} came to the same parameters."] if len(equal) > 1 else []
    return lines


def _share(share: float | None) -> str:
    return "too little to tell" if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
