"""The report and the targets of `neuraxis bench training`."""

from __future__ import annotations

from typing import Any

import msgspec

from neuraxis.bench.harness import Report, Table, Target, count_text, left_out_lines, machine_lines
from neuraxis.bench.training.measure import METHODS, MODELS, Entry, Results

__all__ = ["report", "targets"]

_SMALLEST_MODEL, _MOST_OVERHEAD = "mlp", 1 / 3
_AUXILIARY = ("shm-late", "gloo-late", "unsent")  # only used to compute the overlap of others


def report(results: Results) -> Report:
    plan = results.plan
    heading = [
        *machine_lines(results),
        f"{plan.ranks} ranks, one thread each; the methods took turns; the median of {plan.rounds} round(s) counts.",
        *(
            f"{method}: {METHODS[method].text}"
            for method in plan.methods
            if any(results.entry(model, method) for model in plan.models)
        ),
        *left_out_lines(results.left_out, results.failures),
    ]
    tables = [*_model_tables(results), _overlap_table(results), _cuda_table(results)]
    if results.disagreements:
        notes = ["NOT SOUND: parameters differ", *results.disagreements]
    else:
        equal = [
            method
            for method, one in METHODS.items()
            if one.equal and any(entry.method == method for entry in results.entries)
        ]
        notes = [f"{', '.join(equal)} gave the same parameters."] if len(equal) > 1 else []
    return Report(_data(results), heading, [table for table in tables if table.rows], notes, targets(results))


def targets(results: Results) -> list[Target]:
    """Return every target that the run can be compared with, in relation to torch's DDP over gloo.

    The numbers are meant for two ranks on two cores.
    """
    found = []
    ratio = results.overhead_ratio(_SMALLEST_MODEL, "shm")
    if ratio is not None:
        text = f"{_SMALLEST_MODEL}: overhead over shm {ratio:.3f} of ddp-gloo's, wanted {_MOST_OVERHEAD:.3f} at most"
        if ratio < 0:
            text += " (below zero: other load disturbed the measurement)"
        found.append(Target(text, 0 <= ratio <= _MOST_OVERHEAD))
    for model in results.plan.models:
        ratio = results.step_ratio(model, "shm")
        if ratio is not None:
            text = f"{model}: a step over shm takes {ratio:.3f} of ddp-gloo's time, wanted 1 at most"
            found.append(Target(text, ratio <= 1))
    return found


def _data(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, entry in zip(data["entries"], results.entries, strict=True):
        found["step_us"] = entry.median_us if entry.rounds_us else None
        found["samples_per_s"] = results.samples_per_s(entry.model, entry.method)
        found["overhead_us"] = results.overhead_us(entry.model, entry.method)
        found["overhead_by_ddp_gloo"] = results.overhead_ratio(entry.model, entry.method)
    data["hidden"] = [
        {"model": model, "way": method, "share": results.hidden(model, method)}
        for model in results.plan.models
        for method in ("shm", "gloo")
    ]
    return {**data, "disagreements": results.disagreements, "sound": results.sound}


def _model_tables(results: Results) -> list[Table]:
    headings = ["method", "step ms", "fastest", "samples/s", "overhead µs", "of ddp-gloo's", "bytes a step", "error"]
    meaning = (
        "Fastest: of all rounds, in ms. Overhead: time of a step beyond that of a module by itself on each rank in the "
        "same round. Bytes: gradients that one rank sends. Error: of compression, relative to the gradient's norm; "
        "top-k sends the rest later."
    )
    found = [
        (model, [_row(results, entry) for entry in _shown(results, model) if METHODS[entry.method].group != "cuda"])
        for model in results.plan.models
    ]
    last = next((model for model, rows in reversed(found) if rows), "")
    return [
        Table(
            f"{model}: {MODELS[model].text}, {MODELS[model].rows} rows a rank",
            headings,
            rows,
            meaning if model == last else "",
        )
        for model, rows in found
    ]


def _shown(results: Results, model: str) -> list[Entry]:
    """Return the measured entries in the plan's order."""
    found = [results.entry(model, method) for method in results.plan.methods if method not in _AUXILIARY]
    return [entry for entry in found if entry is not None]


def _row(results: Results, entry: Entry) -> list[str]:
    model, method = entry.model, entry.method
    ratio = results.overhead_ratio(model, method)
    return [
        method,
        f"{entry.median_us / 1000:.3f}",
        f"{min(entry.rounds_us) / 1000:.3f}",
        count_text(results.samples_per_s(model, method)),
        "-" if method == "one" else count_text(results.overhead_us(model, method)),
        "-" if method == "one" or ratio is None else f"{ratio:.2f}",
        f"{entry.bytes:,.0f}",
        f"{entry.error:.2g}" if entry.error else "-",
    ]


def _overlap_table(results: Results) -> Table:
    headings = ["exchange", "sent at once ms", "sent at the end ms", "not sent ms", "hidden"]
    rows = []
    for model in results.plan.models:
        for method in ("shm", "gloo"):
            times = [results.step_us(model, one) for one in (method, f"{method}-late", "unsent")]
            if None in times:
                continue
            share = results.hidden(model, method)
            text = "too little to tell" if share is None else f"{share:.0%}"
            hidden = text if results.has_several_buckets(model) else "one bucket"
            rows.append([f"{model}, {method}", *(f"{time / 1000:.3f}" for time in times if time is not None), hidden])
    meaning = (
        "Hidden: the share of communication that overlaps the backward pass. A model of up to 1 MB is one bucket, sent "
        "after the pass, so that nothing of it can be hidden. With as many ranks as cores, sending takes time from the "
        "pass that it overlaps (below 0: more than it hides)."
    )
    return Table("Communication hidden behind the backward pass", headings, rows, meaning)


def _cuda_table(results: Results) -> Table:
    headings = ["model, method", "rows", "step ms", "samples/s", "by cuda-one"]
    rows = []
    for model in results.plan.models:
        alone = results.step_us(model, "cuda-one")
        for entry in _shown(results, model):
            if METHODS[entry.method].group == "cuda":
                rows.append(
                    [
                        f"{model}, {entry.method}",
                        str(MODELS[model].gpu_rows),
                        f"{entry.median_us / 1000:.3f}",
                        count_text(results.samples_per_s(model, entry.method)),
                        "-" if alone is None else f"{entry.median_us / alone:.2f}",
                    ]
                )
    return Table("On the GPU, in an nccl context of one rank", headings, rows)
