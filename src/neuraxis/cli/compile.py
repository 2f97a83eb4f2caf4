"""`neuraxis compile`: compile ahead what the first use on a machine would compile."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument, NeuraxisError, ResourceExhausted

if TYPE_CHECKING:
    from neuraxis.engine.precompile import Part

__all__ = ["compile_app"]

_HELP = """Compile ahead, so that the first run starts immediately.

neuraxis compiles its kernels for the processor of this machine when they are
first used, and keeps the machine code. This command does it now: for
neuraxis demo, for networks of the built-in neuron models, and for the
collectives over shared memory. A second call finds nothing to do.

The code of the kernels is kept beside the installed package, or in
NUMBA_CACHE_DIR; that of neuron models in ~/.cache/neuraxis, or in
NEURAXIS_CACHE_DIR. It is used again by the same user, on the same type of
processor, with the same versions of neuraxis, Numba and Python.
"""

_EPILOGUE = """Examples:

  Everything:
    neuraxis compile

  Only what networks of two models need:
    neuraxis compile --only models --model lif_exp --model adex

  In an image, as the user that runs the container (Dockerfile):
    ENV NUMBA_CACHE_DIR=/opt/neuraxis NEURAXIS_CACHE_DIR=/opt/neuraxis
    RUN neuraxis compile

  In CI: keep that folder between jobs, under a key with the version of
  neuraxis and the type of processor, and call neuraxis compile in each job.

  For a program:
    neuraxis compile --json | jq .seconds

The folders must be writable while this command runs and when programs run:
a process that cannot write there compiles for itself.

Exit codes: 0 when all is compiled, 1 when it failed or no folder can be
written, 2 for wrong usage."""

Group = Literal["demo", "models", "collectives"]

compile_app = App(name="compile", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@compile_app.default
def _compile(
    *,
    only: Annotated[list[Group] | None, Parameter(negative=())] = None,
    model: Annotated[list[str] | None, Parameter(negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Compile the kernels that are not in the cache.

    Parameters
    ----------
    only
        Group to compile; can be repeated. Default: everything.
    model
        Built-in neuron model to compile, with the group models; can be repeated. Default: all.
    as_json
        Print one JSON object instead of text.
    """
    from neuraxis.engine.codegen import cache_folder
    from neuraxis.engine.precompile import Part, compile_missing, kernel_cache, missing_parts

    groups = only or ["demo", "models", "collectives"]
    try:
        parts: dict[str, Part] = {}
        if "demo" in groups:
            parts |= _demo_parts()
        if "models" in groups:
            parts |= _model_parts(model)
        elif model:
            raise InvalidArgument("--model: it goes with --only models")
        if "collectives" in groups:
            parts["collectives"] = Part("collectives", _run_collectives, 60)
        folders = [kernel_cache(), str(cache_folder() or "")]
        if not all(folders):
            raise ResourceExhausted(
                "no folder for compiled code can be written; set NUMBA_CACHE_DIR and NEURAXIS_CACHE_DIR to one that "
                "only you can write"
            )
        missing = [part.name for part in missing_parts(list(parts.values()))]
        begun = time.perf_counter()
        compile_missing(list(parts.values()))
        seconds = time.perf_counter() - begun
    except (NeuraxisError, OSError) as error:
        return fail("compile", error)
    kept = " and ".join(dict.fromkeys(folders))
    if as_json:
        present = [name for name in parts if name not in missing]
        print(json.dumps({"compiled": missing, "present": present, "seconds": seconds, "folders": folders}))
    elif missing:
        print(f"compiled {len(missing)} of {len(parts)} parts in {seconds:.1f} s: {', '.join(missing)}\nkept in {kept}")
    else:
        print(f"nothing to do: all {len(parts)} parts are in the cache, in {kept}")
    return 0


def _demo_parts() -> dict[str, Part]:
    from neuraxis.brain import default_brain
    from neuraxis.brain.lowering import lower
    from neuraxis.engine.precompile import parts_of

    return {part.name: part for part in parts_of(lower(default_brain()).network.final_copy())}


def _model_parts(names: list[str] | None) -> dict[str, Part]:
    """Return the parts of networks of built-in models, with and without Poisson input, and all optional kernels."""
    from neuraxis.engine.precompile import OPTIONAL, PACKING, parts_of
    from neuraxis.network import Network
    from neuraxis.network.models.catalogue import built_in_models

    models = built_in_models()
    known = [name for name in models if names is None or name in names]
    unknown = set(names or ()) - set(known)
    if unknown:
        raise InvalidArgument(f"--model {', '.join(sorted(unknown))}: the built-in models are {', '.join(models)}")
    network = Network()
    for name in known:
        one = models[name]
        network.population(name, 1, one)
        if one.receptors:
            network.poisson(network.population(f"{name} with input", 1, one), 1000.0, 1.0)
    return {part.name: part for part in (*parts_of(network.final_copy()), *OPTIONAL, PACKING)}


def _run_collectives() -> None:
    """Run every pattern on two ranks, and compile the reductions of all element types."""
    from neuraxis.comm.reduce_kernels import fold_address
    from neuraxis.comm.reduction import ElementType
    from neuraxis.report.patterns.collection import collect_patterns

    collect_patterns(2, "shm")
    for element in ElementType:
        if element <= ElementType.COMPLEX128:
            fold_address(element)
