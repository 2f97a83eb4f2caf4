"""Code generation: from the source of a neuron model to a compiled function that advances a block of neurons.

A *block* holds `BLOCK` neurons in structure-of-arrays order: row r holds the r-th state of all of them. The distances
of rows are known at compile time, so the compiler sees that they do not overlap and vectorises the loop over neurons
without run-time checks. A block with its inputs fits the L1 cache, so the passes over it (Poisson input, update, search
for spikes) read memory once.

The function of the model and that loop become a small Python module in a cache folder, named by a hash of its content.
Numba compiles it once on a machine, for all networks that use the model.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import types
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from neuraxis.compiled import compiled_c_function, digest_of_sources
from neuraxis.errors import InvalidArgument
from neuraxis.network.neuron_model import NeuronModel, lower_model

__all__ = [
    "BLOCK",
    "CONSTANTS",
    "POISSON_SIZES",
    "BlockLayout",
    "Generated",
    "cache_folder",
    "generated_poisson",
    "generated_update",
    "model_key",
    "poisson_function",
    "typed_function",
    "update_function",
    "widest_vectors",
]

BLOCK = 1024
CONSTANTS = 256  # of a population at most, with scales and signals
_MOST_UNROLLED = 400  # statements
_MOST_SELECTED = 64  # entries of a table
POISSON_SIZES = (8, 12, 16, 20, 24, 32, 48, 64)

_ADDRESS = types.int64
_UPDATE = types.void(_ADDRESS, _ADDRESS, _ADDRESS, types.int64, _ADDRESS, types.float32, types.int64)
_POISSON = types.void(_ADDRESS, _ADDRESS, types.int64, _ADDRESS, types.int32)

# Names that the engine gives to all neurons of a population.
_FROM_ENGINE = {"current_pa": "current_pa", "step": "_i(step)", "t_ms": "t_ms"}

# Random numbers of each kind, from the 32 bits of a draw.
_DRAWN = {"normal": "drawn_normal(random)", "random": "drawn_random(random)", "uniform": "random"}

_HEADER = """\
import numpy as np

from neuraxis.compiled import inner_function
from neuraxis.engine.arithmetic import *
from neuraxis.engine.codegen import widest_vectors
from neuraxis.engine.memory import f32, i32, u8, u32

_f = np.float32
_d = np.float64
_i = np.int32
_l = np.int64
_u = np.uint32
_p = np.uint64
"""

# In float64, "float32" of the lowered function means float64.
_WIDE_HEADER = (
    _HEADER.replace("engine.arithmetic import", "engine.arithmetic64 import")
    .replace("f32, i32, u8, u32", "f64, i64, u8, u32")
    .replace("_f = np.float32", "_f = np.float64")
)


@dataclass(frozen=True)
class BlockLayout:
    """Rows of a block that hold the values of a model.

    A row has BLOCK 32-bit words; in networks in float64 it has 64-bit words, whole numbers among them, and the two
    halves of the random stream share a row.
    """

    states: tuple[str, ...]
    is_integer: tuple[bool, ...]
    stream: int | None  # the first of the two rows of the random stream (in float64 there is one)
    current: int | None  # the row of a current that differs between neurons
    rows: int
    inputs: tuple[str, ...] = ()  # rate inputs
    first_input: int = 0  # the row of the first of them
    parameters: tuple[str, ...] = ()  # the last rows: constants that differ between neurons, which are only read
    parameter_is_integer: tuple[bool, ...] = ()
    is_wide: bool = False

    @classmethod
    def of(cls, model: NeuronModel, *, poisson: bool, current: bool) -> BlockLayout:
        rows = len(model.states)
        stream = None
        if poisson or model.draws:
            stream, rows = rows, rows + (1 if model.is_wide else 2)
        own_current = None
        if current:
            own_current, rows = rows, rows + 1
        first_input = rows
        rows += len(model.rate_inputs) + len(model.rows)
        return cls(
            states=tuple(model.states),
            is_integer=tuple(isinstance(value, int) for value in model.states.values()),
            stream=stream,
            current=own_current,
            rows=rows,
            inputs=model.rate_inputs,
            first_input=first_input,
            parameters=tuple(model.rows),
            parameter_is_integer=tuple(row.is_integer for row in model.rows.values()),
            is_wide=model.is_wide,
        )

    @property
    def row_bytes(self) -> int:
        return BLOCK * (8 if self.is_wide else 4)

    @property
    def first_parameter(self) -> int:
        """The row of the first of `parameters`."""
        return self.rows - len(self.parameters)


@dataclass(frozen=True)
class Generated:
    """The source of a function that is not compiled yet."""

    name: str
    source: str
    function: str
    signature: Any

    @property
    def key(self) -> str:
        """Name and digest: equal for functions with the same machine code."""
        return f"{self.name}_{hashlib.sha256(digest_of_sources() + self.source.encode()).hexdigest()[:20]}"

    def compiled(self) -> Any:
        """Compile the function or load it from the cache; the result has its `address`."""
        return _compiled(self)


def update_function(
    model: NeuronModel, layout: BlockLayout, constants: dict[str, float | int], extra: tuple[int, ...] = ()
) -> Any:
    """Return the compiled function that advances n neurons of a block by one step.

    Its C signature is void update(block, accumulators, flags, n, constants, current_pa, step). `accumulators` holds
    BLOCK int32 for each receptor, then for each additional accumulator (of the receptors `extra`); they are read and
    set to 0. `flags` gets a byte for each neuron, 1 if it spikes. `constants` are 32-bit words: a scale for each
    accumulator, the model's constants in the order of `constants`, and its signals. In networks in float64 accumulators
    and constants have 64 bits, and the last constant is the current.
    """
    return generated_update(model, layout, constants, extra).compiled()


def generated_update(
    model: NeuronModel, layout: BlockLayout, constants: dict[str, float | int], extra: tuple[int, ...] = ()
) -> Generated:
    """Return the source of `update_function`; the same object for populations that the same code can update."""
    key = (model.name, model.dt_ms, model_key(model, constants), layout, extra)
    if key not in _updates:
        _updates[key] = Generated(model.name, _update_source(model, layout, constants, extra), "update", _UPDATE)
    return _updates[key]


_updates: dict[tuple[object, ...], Generated] = {}


def model_key(model: NeuronModel, constants: Mapping[str, float | int]) -> tuple[object, ...]:
    """Return a key that is equal for models that the same code can run; `constants` are those of `model.values`."""
    kinds = tuple((name, isinstance(value, int)) for name, value in constants.items())
    states = tuple((name, isinstance(value, int)) for name, value in model.states.items())
    used = tuple(sorted((name, repr(value)) for name, value in model.globals_used.items()))
    rows = tuple((name, row.is_integer) for name, row in model.rows.items())
    taken = tuple(one for one in model.arguments if model.takes(one))
    inputs = (model.receptors, model.rate_inputs)
    return (model.source, model.arguments, states, inputs, kinds, tuple(model.signals), used, rows, taken)


def poisson_function(usual: int, thresholds: int) -> Any:
    """Return the compiled function that adds a Poisson number of weights to the accumulators of n neurons.

    Its C signature is void poisson(stream, accumulators, n, thresholds, weight). The first `usual` thresholds are
    enough for all but a few draws.
    """
    return generated_poisson(usual, thresholds).compiled()


def generated_poisson(usual: int, thresholds: int) -> Generated:
    """Return the source of `poisson_function`."""
    return Generated("poisson", _poisson_source(usual, thresholds), "poisson", _POISSON)


def typed_function(model: NeuronModel, constants: Mapping[str, float | int]) -> ast.FunctionDef:
    """Return the model's function with 32-bit numbers and explicit conversions."""
    return lower_model(model, constants)


def _update_source(
    model: NeuronModel, layout: BlockLayout, constants: dict[str, float | int], extra: tuple[int, ...]
) -> str:
    rows = len(model.receptors) + len(extra)
    function, tables = _with_tables(unrolled(typed_function(model, constants)))
    results = [f"new_{name}" for name in layout.states]
    wide = layout.is_wide
    lines = [_WIDE_HEADER if wide else _HEADER, *tables, "", ""]
    if len(_returns(function)) > 1:
        function.name = "advance_neuron"
        lines += ["", "@inner_function(inline=True)", ast.unparse(function), "", ""]
    floats, ints = ("f64", "i64") if wide else ("f32", "i32")
    whole, stored_whole, smallest = ("_i({})", "_l", 1e-300) if wide else ("{}", "_i", 1e-30)
    lines += [
        "def update(block, accumulators, flags, n, constants, current_pa, step):",
        "    widest_vectors()",
        f"    F = {floats}(block, {layout.rows * BLOCK})",
        f"    I = {ints}(block, {layout.rows * BLOCK})",
        f"    U = u32(block, {layout.rows * layout.row_bytes // 4})",
        f"    A = {ints}(accumulators, {max(1, rows) * BLOCK})",
        f"    G = u8(flags, {BLOCK})",
        f"    CF = {floats}(constants, {CONSTANTS})",
        f"    CI = {ints}(constants, {CONSTANTS})",
    ]
    if wide:
        lines.append(f"    current_pa = CF[{CONSTANTS - 1}]")
    lines += [f"    scale_{r} = CF[{r}]" for r in range(rows)]
    for position, (name, value) in enumerate(constants.items(), start=rows):
        read = whole.format(f"CI[{position}]") if isinstance(value, int) else f"CF[{position}]"
        lines.append(f"    c_{name} = {read}")
    for position, name in enumerate(model.signals, start=rows + len(constants)):
        lines.append(f"    c_{name} = CF[{position}]")
    if model.takes("t_ms"):
        assert model.dt_ms is not None  # it is a model of a network
        lines.append(f"    t_ms = _f(_d(step) * {model.dt_ms!r})")
    lines.append("    for k in range(_p(n)):")
    body: list[str] = []
    given: dict[str, str] = {name: f"c_{name}" for name in (*constants, *model.signals)}
    for row, (name, integer) in enumerate(zip(layout.states, layout.is_integer, strict=True)):
        given[name] = whole.format(f"I[{row * BLOCK} + k]") if integer else f"F[{row * BLOCK} + k]"
    own = zip(layout.parameters, layout.parameter_is_integer, strict=True)
    for row, (name, integer) in enumerate(own, start=layout.first_parameter):
        given[name] = whole.format(f"I[{row * BLOCK} + k]") if integer else f"F[{row * BLOCK} + k]"
    for r, name in enumerate(model.receptors):
        places = [r, *(len(model.receptors) + i for i, of in enumerate(extra) if of == r)]
        given[name] = " + ".join(f"_f(A[{place * BLOCK} + k]) * scale_{place}" for place in places)
    for place, name in enumerate(layout.inputs, start=layout.first_input):
        given[name] = f"F[{place * BLOCK} + k]"
    given |= {name: source for name, source in _FROM_ENGINE.items() if model.takes(name)}
    if layout.current is not None:
        given["current_pa"] = f"current_pa + F[{layout.current * BLOCK} + k]"
    for name, kind in model.draws.items():
        assert layout.stream is not None
        body += _draw(layout.stream * layout.row_bytes // 4)
        body.append(f"d_{name} = {_DRAWN[kind]}")
        given[name] = f"d_{name}"
    if len(_returns(function)) > 1:
        body.append(f"spike, {', '.join(results)} = advance_neuron({', '.join(given[a] for a in model.arguments)})")
    else:
        body += _in_place(function, given, ["spike", *results])
    body += [f"A[{r * BLOCK} + k] = {stored_whole}(0)" for r in range(rows)]
    for row, (name, integer) in enumerate(zip(layout.states, layout.is_integer, strict=True)):
        if integer:
            body.append(f"I[{row * BLOCK} + k] = {stored_whole}(new_{name})")
        else:
            # Decaying states must not end in denormal numbers, on which processors are many times slower.
            body.append(f"stored = _f(new_{name})")
            body.append(f"F[{row * BLOCK} + k] = _f(0.0) if abs(stored) < _f({smallest}) else stored")
    body.append("G[k] = np.uint8(spike)")
    # Places are unsigned: signed ones could count from the end, and LLVM would not vectorise a loop with a row that is
    # written and not read.
    lines += ["        " + re.sub(r"\[(\d+) \+ k\]", r"[_p(\1) + k]", line) for line in body]
    return "\n".join(lines) + "\n"


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Return)]


def _with_tables(function: ast.FunctionDef) -> tuple[ast.FunctionDef, list[str]]:
    """Return a function with names in place of its tables, and the source that these names are defined by.

    LLVM does not vectorise loops with loads of entries. A small table is therefore a function, which selects an entry
    by the bits of the index, and a large one an array.
    """
    made = _Tables({one.id for one in ast.walk(function) if isinstance(one, ast.Name)})
    return made.visit(function), made.lines


class _Tables(ast.NodeTransformer):
    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._names: dict[str, str] = {}
        self.lines: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "entry" and isinstance(node.args[0], ast.Tuple):
            entries = [ast.unparse(one) for one in node.args[0].elts]
            whole = all(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in node.args[0].elts)
            kind, text = "_i" if whole else "_f", ", ".join(entries)
            if text not in self._names:
                name = f"table_{len(self._names)}"
                while name in self._taken:
                    name = f"_{name}"
                self._names[text] = name
                if len(entries) > _MOST_SELECTED:
                    self.lines.append(f"{name} = np.array(({text}), {kind})")
                else:
                    self.lines += _selection(name, [f"{kind}({one})" for one in entries])
            table = ast.Name(self._names[text], ast.Load())
            if len(entries) <= _MOST_SELECTED:
                return ast.Call(table, [ast.Call(ast.Name("_i", ast.Load()), [node.args[1]], [])], [])
            node.args[0] = table
        return node


def _selection(name: str, entries: Sequence[str]) -> list[str]:
    """Return the source of a function that returns an entry by the bits of its index, without branches or loads."""
    lines = ["", "", "@inner_function(inline=True)", f"def {name}(i):"]
    level = [*entries]
    bit = 0
    while len(level) > 1:
        lines.append(f"    b{bit} = (i & _i({1 << bit})) != _i(0)")
        above = []
        for place in range(0, len(level) - 1, 2):
            made = f"e{bit}_{place}"
            lines.append(f"    {made} = {level[place + 1]} if b{bit} else {level[place]}")
            above.append(made)
        level = above + level[2 * len(above) :]
        bit += 1
    return [*lines, f"    return {level[0]}"]


def _in_place(function: ast.FunctionDef, given: Mapping[str, str], results: list[str]) -> list[str]:
    """Return the statements of a function with one return, for use in place of a call.

    A function that is called has to be compiled alone as well, which doubles the time of compilation.
    """
    own = {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    own |= {argument.arg for argument in function.args.args}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in own:
            node.id = f"m_{node.id}"
    *body, last = function.body
    assert isinstance(last, ast.Return)
    assert isinstance(last.value, ast.Tuple)
    lines = [f"m_{argument.arg} = {given[argument.arg]}" for argument in function.args.args]
    for statement in body:
        lines += ast.unparse(statement).splitlines()
    return lines + [f"{name} = {ast.unparse(value)}" for name, value in zip(results, last.value.elts, strict=True)]


def unrolled(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return a lowered function with short loops over constant ranges written out.

    LLVM vectorises innermost loops only. The loop over neurons is one if the function contains no loop itself.
    """
    return ast.fix_missing_locations(_Unroll().visit(function))


class _Unroll(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)  # inner loops first: the size of this one counts what they became
        assert isinstance(node.iter, ast.Call)
        bounds = [value for bound in node.iter.args if (value := _constant(bound)) is not None]
        leaves_early = any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node))
        if len(bounds) < len(node.iter.args) or leaves_early:
            return node
        turns = range(*bounds)
        statements = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
        if not turns or len(turns) * statements > _MOST_UNROLLED:
            return node
        made: list[ast.stmt] = []
        for turn in turns:
            number = ast.Call(ast.Name("_i", ast.Load()), [ast.Constant(turn)], [])
            made.append(ast.Assign([copy.deepcopy(node.target)], number))
            made += copy.deepcopy(node.body)
        return made


def _constant(node: ast.expr) -> int | None:
    """Return the value of a lowered whole number, as `_i(8)`; None if it is something else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_i":
        (value,) = node.args
        if isinstance(value, ast.Constant) and isinstance(value.value, int):
            return value.value
    return None


def _poisson_source(usual: int, thresholds: int) -> str:
    """Return source that counts the thresholds exceeded by a draw, without branches or table look-ups.

    The first `usual` thresholds are enough for all but a few in ten thousand draws. The others are compared only if a
    draw of the block exceeds the last of these; the draws are then recomputed from the new states of the streams.
    """

    def exceeded(first: int, last: int) -> str:
        return " + ".join(f"_i(random > t{j})" for j in range(first, last))

    lines = [
        _HEADER,
        "",
        "def poisson(stream, accumulators, n, thresholds, weight):",
        "    widest_vectors()",
        f"    U = u32(stream, {2 * BLOCK})",
        f"    A = i32(accumulators, {BLOCK})",
        f"    T = i32(thresholds, {thresholds})",
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
            "            s1 = _u((s1 >> _u(13)) | (s1 << _u(19)))",  # Numba widens 32-bit results: truncate them again
            "            s0 = _u(U[k] ^ s1 ^ (s1 << _u(9)))",
            "            s0 = _u((s0 >> _u(26)) | (s0 << _u(6)))",
            "            random = _i(s0 * _u(0x9E3779BB))",
            f"            A[k] += _i(({exceeded(usual, thresholds)}) * weight)",
        ]
    return "\n".join(lines) + "\n"


def _draw(row: int) -> list[str]:
    """Return source for one step of xoroshiro64* (Blackman and Vigna): 64 bits of state, 32-bit output."""
    return [
        f"s0 = U[{row} + k]",
        f"s1 = U[{row + BLOCK} + k]",
        "random = _i(s0 * _u(0x9E3779BB))",
        "s1 ^= s0",
        f"U[{row} + k] = ((s0 << _u(26)) | (s0 >> _u(6))) ^ s1 ^ (s1 << _u(9))",
        f"U[{row + BLOCK} + k] = (s1 << _u(13)) | (s1 >> _u(19))",
    ]


@cache
def _compiled(generated: Generated) -> Any:
    function = getattr(_module(generated), generated.function)
    try:
        return compiled_c_function(generated.signature, function)
    except NumbaError as error:  # what models can use is checked when they are defined
        raise InvalidArgument(
            f"{generated.name}: the model could not be compiled, which is a fault of neuraxis. Please report it with "
            f"the source of the model. The compiler says: {str(error).splitlines()[0]}"
        ) from error


def _module(generated: Generated) -> ModuleType:
    path = _written(f"{generated.key}.py", generated.source)
    module_name = f"neuraxis_kernel_{generated.key}"
    if path is None:
        module = ModuleType(module_name)
        exec(compile(generated.source, f"<neuraxis kernel {generated.name}>", "exec"), module.__dict__)
        return module
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _written(file_name: str, source: str) -> Path | None:
    """Write the source to the cache folder and return its path; None if that is not possible."""
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / file_name
    try:
        if not (path.exists() and path.read_text() == source):
            # Atomic rename: other processes see the complete file or none.
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".new", delete=False) as file:
                file.write(source)
            os.replace(file.name, path)
    except OSError:
        return None
    return path


@cache
def cache_folder() -> Path | None:
    """Return the folder of generated kernels, in NEURAXIS_CACHE_DIR or the user's cache; None if it is not writable."""
    chosen = os.environ.get("NEURAXIS_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neuraxis"
    try:
        folder = base / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) and _is_private(folder) else None


def _is_private(folder: Path) -> bool:
    """Return True if no other user can write to the folder, whose files are executed."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


@intrinsic
def widest_vectors(typingctx: Any) -> Any:
    """Let the loops of the calling function use 512-bit vectors if the machine has them.

    By default LLVM uses 256 bits on Intel cores, because older ones reduce their clock frequency for wider vectors. The
    update of neurons gains about a fifth. The results have the same bits.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # llvmlite's own `add` rejects string attributes.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen
