"""What the compiler says of a kernel's source, as an error that shows the user's own lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neuraxis.errors import KernelCompileError
from neuraxis.gpu.sources import kernel_names

__all__ = ["compile_error"]

_COMPLAINT = re.compile(r"^(?P<file>.*?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$")
_NAMES_ASKED_FOR = "__nv_name_map"  # the file in which NVRTC looks up the functions that it is asked for
_MOST = 5  # after these, the rest mostly follows from the first


@dataclass(frozen=True)
class _Complaint:
    file: str
    line: int
    text: str


def compile_error(name: str, function_name: str, source: str, log: str, file: str) -> KernelCompileError:
    """The error for a source that does not compile.

    Args:
        name: what the user calls the kernel.
        function_name: the function that was asked for.
        source: what was compiled.
        log: what the compiler said of it.
        file: what the compiler calls the source.
    """
    complaints = [
        _Complaint(found["file"], int(found["line"]), found["text"])
        for line in log.splitlines()
        if (found := _COMPLAINT.match(line.strip()))
    ]
    lines = source.splitlines()
    mine = [one for one in complaints if one.file == file and 1 <= one.line <= len(lines)]
    if not mine and any(one.file == _NAMES_ASKED_FOR for one in complaints):
        there = ", ".join(kernel_names(source)) or "no __global__ function"
        text = f"the source of kernel {name!r} has no kernel {function_name!r}; it has {there}"
        return KernelCompileError(text, kernel=name, log=log)
    first = mine[0] if mine else None
    report = [f"kernel {name!r} does not compile:"]
    for complaint in complaints[:_MOST]:
        if complaint in mine:
            report.append(f"  line {complaint.line}: {complaint.text}")
            report.append(f"  {complaint.line:>5} | {lines[complaint.line - 1]}")
        else:
            report.append(f"  {complaint.file}({complaint.line}): {complaint.text}")
    if len(complaints) > _MOST:
        report.append(f"  and {len(complaints) - _MOST} more errors (they are in `log`)")
    if not complaints:
        report += [f"  {line}" for line in log.strip().splitlines()[:20]]
    return KernelCompileError(
        "\n".join(report),
        kernel=name,
        line=first.line if first else None,
        source_line=lines[first.line - 1] if first else "",
        log=log,
    )
