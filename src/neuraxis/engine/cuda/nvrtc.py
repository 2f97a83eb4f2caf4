"""Kernels compiled by NVRTC itself, and kept in the cache folder.

CuPy's own way to it takes numbers that are nearly 0 for 0 (`-ftz=true`), which no option undoes. The CPU does not.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuraxis.devices import compiler_missing
from neuraxis.engine.generated import cache_folder
from neuraxis.errors import KernelFailed

__all__ = ["OPTIONS", "compiled", "compiled_file"]

# What decides about bits: every operation is rounded by itself, and as IEEE 754 has it.
OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


@contextmanager
def compiled_file(nvrtc: Any, source: str, capability: int) -> Iterator[Path]:
    """A file with the kernels for devices of a compute capability (90 for 9.0); it may be gone afterwards.

    `nvrtc` is CuPy's module of that name.
    """
    try:
        version = nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise compiler_missing(error) from error
    key = hashlib.sha256(repr((source, OPTIONS, capability, version)).encode()).hexdigest()[:32]
    folder = cache_folder()
    kept = None if folder is None else folder / f"{key}.cubin"
    if kept is None or not kept.exists():
        code = compiled(nvrtc, source, capability)
        if kept is None or not _keep(code, kept):
            with tempfile.TemporaryDirectory() as place:
                file = Path(place) / "kernels.cubin"
                file.write_bytes(code)
                yield file
            return
    yield kept


def _keep(code: bytes, kept: Path) -> bool:
    try:
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="compiling-") as place:
            file = Path(place) / "kernels.cubin"
            file.write_bytes(code)
            os.replace(file, kept)  # at once: others may be about to read it
    except OSError:  # a full disk
        return False
    return True


def compiled(nvrtc: Any, source: str, capability: int) -> bytes:
    """The kernels as machine code; for a device that NVRTC does not know yet, as what its driver compiles."""
    known = [int(one) for one in nvrtc.getSupportedArchs()]
    kind, number = ("sm", capability) if capability in known else ("compute", max(known))
    program = nvrtc.createProgram(source, "kernels.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, (*OPTIONS, f"-arch={kind}_{number}"))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise KernelFailed(f"the kernels of the network could not be compiled: {log or error}") from error
        made: bytes = nvrtc.getCUBIN(program) if kind == "sm" else nvrtc.getPTX(program)
        return made
    finally:
        nvrtc.destroyProgram(program)
