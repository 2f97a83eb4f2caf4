"""From a neuron model's source to a compiled function over a block of neurons.

A *block* holds `BLOCK` neurons, state by state: row r of it is the r-th state of all of them. The rows lie at distances
that are known when the kernel is compiled, so the compiler sees that they do not overlap and vectorises the loop over
the neurons without a check; and a block with its inputs fits the first-level cache, so the passes over
it (Poisson input, update, search for spikes) go to memory once.

The model's function is put into a small Python module together with that loop, the module is written to a cache folder
under a name made of its content, and Numba compiles it: once on a machine, for all networks that use the model.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import types

from neuraxis.compiled import compiled_c_function, digest_of_sources
from neuraxis.network.neuron_model import NeuronModel

__all__ = [
    "BLOCK",
    "POISSON_SIZES",
    "BlockLayout",
    "cache_folder",
    "poisson_function",
    "typed_function",
    "update_function",
]

BLOCK = 1024
POISSON_SIZES = (8, 12, 16, 20, 24, 32, 48, 64)

_ADDRESS = types.int64
_UPDATE = types.void(_ADDRESS, _ADDRESS, _ADDRESS, types.int64, _ADDRESS, types.float32)
_POISSON = types.void(_ADDRESS, _ADDRESS, types.int64, _ADDRESS, types.int32)

_HEADER = """\
import numpy as np
from numba import carray, njit

from neuraxis.comm.atomics import pointer_to
from neuraxis.engine.arithmetic import exp, log, power, sqrt
from neuraxis.engine.vectors import widest_vectors

_f = np.float32
_i = np.int32
_u = np.uint32
"""


@dataclass(frozen=True)
class BlockLayout:
    """Where a model's values lie in a block: row numbers, in units of BLOCK 32-bit words."""

    states: tuple[str, ...]
    is_integer: tuple[bool, ...]
    stream: int | None  # the first of the two rows of the random stream
    current: int | None  # the row of a current that differs between neurons
    rows: int

    @classmethod
    def of(cls, model: NeuronModel, *, poisson: bool, current: bool) -> BlockLayout:
        rows = len(model.states)
        stream = None
        if poisson or model.takes_uniform:
            stream, rows = rows, rows + 2
        own_current = None
        if current:
            own_current, rows = rows, rows + 1
        return cls(
            states=tuple(model.states),
            is_integer=tuple(isinstance(value, int) for value in model.states.values()),
            stream=stream,
            current=own_current,
            rows=rows,
        )


def update_function(model: NeuronModel, layout: BlockLayout, constants: dict[str, float | int]) -> Any:
    """void update(block, accumulators, flags, n, constants, current_pa): advance n neurons of a block by one step.

    `accumulators` holds BLOCK int32 for each receptor; they are read and set to 0. `flags` (BLOCK bytes): who
    spiked.
    `constants` are 32-bit words: a scale for each receptor, the model's constants in the order of `constants`, and
    its signals.
    """
    return _compiled(model.name, _update_source(model, layout, constants), "update", _UPDATE)


def poisson_function(usual: int, thresholds: int) -> Any:
    """void poisson(stream, accumulators, n, thresholds, weight): a Poisson number of weights for each of n neurons.

    `usual` of the thresholds are enough for all but a few draws.
    """
    return _compiled("poisson", _poisson_source(usual, thresholds), "poisson", _POISSON)


def typed_function(model: NeuronModel) -> ast.FunctionDef:
    """The model's function with its numbers 32 bits wide, and the module's own numbers put in place of their names."""
    tree = ast.fix_missing_locations(_Literals(model.globals_used).visit(ast.parse(model.source)))
    function: ast.FunctionDef = tree.body[0]
    return function


def _update_source(model: NeuronModel, layout: BlockLayout, constants: dict[str, float | int]) -> str:
    lines = [_HEADER]
    function = typed_function(model)
    function.name = "advance_neuron"
    # Divisions by zero give infinity, as in NumPy: a check for each would keep the loop from being vectorised.
    lines += ["", "", '@njit(error_model="numpy")', ast.unparse(function), "", ""]
    lines += [
        "def update(block, accumulators, flags, n, constants, current_pa):",
        "    widest_vectors()",
        f"    F = carray(pointer_to(block, np.float32), {layout.rows * BLOCK})",
        f"    I = carray(pointer_to(block, np.int32), {layout.rows * BLOCK})",
        f"    U = carray(pointer_to(block, np.uint32), {layout.rows * BLOCK})",
        f"    A = carray(pointer_to(accumulators, np.int32), {max(1, len(model.receptors)) * BLOCK})",
        f"    G = carray(pointer_to(flags, np.uint8), {BLOCK})",
        "    CF = carray(pointer_to(constants, np.float32), 256)",
        "    CI = carray(pointer_to(constants, np.int32), 256)",
    ]
    lines += [f"    scale_{r} = CF[{r}]" for r in range(len(model.receptors))]
    for position, (name, value) in enumerate(constants.items(), start=len(model.receptors)):
        lines.append(f"    c_{name} = {'CI' if isinstance(value, int) else 'CF'}[{position}]")
    for position, name in enumerate(model.signals, start=len(model.receptors) + len(constants)):
        lines.append(f"    c_{name} = CF[{position}]")
    lines.append("    for k in range(n):")
    body: list[str] = []
    given: dict[str, str] = {name: f"c_{name}" for name in (*constants, *model.signals)}
    for row, (name, integer) in enumerate(zip(layout.states, layout.is_integer, strict=True)):
        given[name] = f"{'I' if integer else 'F'}[{row * BLOCK} + k]"
    for r, name in enumerate(model.receptors):
        given[name] = f"_f(A[{r * BLOCK} + k]) * scale_{r}"
    given["current_pa"] = "current_pa"
    if layout.current is not None:
        given["current_pa"] = f"current_pa + F[{layout.current * BLOCK} + k]"
    if model.takes_uniform and layout.stream is not None:
        body += _draw(layout.stream * BLOCK)
        given["uniform"] = "random"
    results = [f"new_{name}" for name in layout.states]
    body.append(f"spike, {', '.join(results)} = advance_neuron({', '.join(given[a] for a in model.arguments)})")
    body += [f"A[{r * BLOCK} + k] = _i(0)" for r in range(len(model.receptors))]
    for row, (name, integer) in enumerate(zip(layout.states, layout.is_integer, strict=True)):
        if integer:
            body.append(f"I[{row * BLOCK} + k] = _i(new_{name})")
        else:
            # What only decays would end in denormal numbers, on which processors are many times slower, and stay there.
            body.append(f"stored = _f(new_{name})")
            body.append(f"F[{row * BLOCK} + k] = _f(0.0) if abs(stored) < _f(1e-30) else stored")
    body.append("G[k] = np.uint8(spike)")
    lines += ["        " + line for line in body]
    return "\n".join(lines) + "\n"


def _poisson_source(usual: int, thresholds: int) -> str:
    """The count is the number of thresholds that the draw exceeds: no branch, no table look-up.

    All but a few in ten thousand draws are settled by the first, usual ones. Only where some draw of the block exceeds
    the last of these are the others looked at: the draws are computed backwards from the new state of the streams.
    """

    def exceeded(first: int, last: int) -> str:
        return " + ".join(f"_i(random > t{j})" for j in range(first, last))

    lines = [
        _HEADER,
        "",
        "def poisson(stream, accumulators, n, thresholds, weight):",
        "    widest_vectors()",
        f"    U = carray(pointer_to(stream, np.uint32), {2 * BLOCK})",
        f"    A = carray(pointer_to(accumulators, np.int32), {BLOCK})",
        f"    T = carray(pointer_to(thresholds, np.int32), {thresholds})",
        *[f"    t{j} = T[{j}]" for j in range(thresholds)],
        "    beyond = _i(0)",
        "    for k in range(n):",
        *["        " + line for line in _draw(0)],
        f"        A[k] += _i(({exceeded(0, usual)}) * weight)",
        f"        beyond |= _i(random > t{usual - 1})",
    ]
    if thresholds > usual:
        lines += [
            "    if beyond:",
            "        for k in range(n):",
            f"            s1 = U[{BLOCK} + k]",
            "            s1 = _u((s1 >> _u(13)) | (s1 << _u(19)))",  # Numba widens 32-bit results: cut them again
            "            s0 = _u(U[k] ^ s1 ^ (s1 << _u(9)))",
            "            s0 = _u((s0 >> _u(26)) | (s0 << _u(6)))",
            "            random = _i(s0 * _u(0x9E3779BB))",
            f"            A[k] += _i(({exceeded(usual, thresholds)}) * weight)",
        ]
    return "\n".join(lines) + "\n"


def _draw(row: int) -> list[str]:
    """A step of xoroshiro64* (Blackman and Vigna): 64 bits of state, 32 bits out, all in 32-bit operations."""
    return [
        f"s0 = U[{row} + k]",
        f"s1 = U[{row + BLOCK} + k]",
        "random = _i(s0 * _u(0x9E3779BB))",
        "s1 ^= s0",
        f"U[{row} + k] = ((s0 << _u(26)) | (s0 >> _u(6))) ^ s1 ^ (s1 << _u(9))",
        f"U[{row + BLOCK} + k] = (s1 << _u(13)) | (s1 >> _u(19))",
    ]


class _Literals(ast.NodeTransformer):
    """Numbers in the source become 32 bits wide: a float64 in one place would make the whole expression one.

    The module's own numbers, by name, become what they are.
    """

    def __init__(self, named: Mapping[str, float | int]) -> None:
        self._named = named

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._named and isinstance(node.ctx, ast.Load):
            return ast.parse(_typed(self._named[node.id]), mode="eval").body
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """A power: products where the exponent is a small whole number, else `power`; never the C library's."""
        if not isinstance(node.op, ast.Pow):
            return self.generic_visit(node)
        exponent = node.right.value if isinstance(node.right, ast.Constant) else None
        base = self.visit(node.left)
        if type(exponent) is int and exponent in (2, 3, 4):
            product: ast.expr = base
            for _ in range(exponent - 1):
                product = ast.BinOp(product, ast.Mult(), base)
            return product
        right = ast.Constant(float(exponent)) if type(exponent) is int else node.right
        return ast.Call(ast.Name("power", ast.Load()), [base, self.visit(right)], [])

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            return node
        return ast.parse(_typed(node.value), mode="eval").body


def _typed(value: float | int) -> str:
    return f"{'_i' if isinstance(value, int) else '_f'}({value!r})"


@cache
def _compiled(name: str, source: str, function: str, signature: Any) -> Any:
    module = _module(name, source)
    return compiled_c_function(signature, getattr(module, function))


def _module(name: str, source: str) -> ModuleType:
    digest = hashlib.sha256(digest_of_sources() + source.encode()).hexdigest()[:20]
    path = _written(f"{name}_{digest}.py", source)
    module_name = f"neuraxis_kernel_{name}_{digest}"
    if path is None:
        module = ModuleType(module_name)
        exec(compile(source, f"<neuraxis kernel {name}>", "exec"), module.__dict__)
        return module
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _written(file_name: str, source: str) -> Path | None:
    """The file with this source in the user's cache folder; None where nothing can be written."""
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / file_name
    try:
        if not (path.exists() and path.read_text() == source):
            # Renamed into place: another process sees the whole file or none.
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".new", delete=False) as file:
                file.write(source)
            os.replace(file.name, path)
    except OSError:
        return None
    return path


@cache
def cache_folder() -> Path | None:
    """Where generated kernels are kept: NEURAXIS_CACHE_DIR, or the user's cache; None where nothing can be written."""
    chosen = os.environ.get("NEURAXIS_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neuraxis"
    try:
        folder = base / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) and _is_ours_alone(folder) else None


def _is_ours_alone(folder: Path) -> bool:
    """Whether nobody else can put files there: what is in it gets executed."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022
