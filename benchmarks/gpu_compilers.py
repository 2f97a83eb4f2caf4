"""Compare two compilers of neuron models for GPUs: CUDA C++ by NVRTC (as the engine uses), and Numba's CUDA target.

python benchmarks/gpu_compilers.py

Kernels that differ only in the compiler of the model's function advance a million neurons of each model: states in
registers, 200 steps a launch, constant input. The table has the time to compile, the time of a launch (the median of
20, the two in turns), and a comparison of states and spikes, bit by bit, with Numba's code for the CPU.
"""

from __future__ import annotations

import ast
import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from cyclopts import App
from numba import njit

from neuraxis.engine import arithmetic
from neuraxis.engine.codegen import typed_function
from neuraxis.engine.cuda.device import compiled_file
from neuraxis.engine.cuda.program import model_source
from neuraxis.network import models
from neuraxis.network.neuron_model import NeuronModel

NEURONS, STEPS, THREADS, REPEATS = 1 << 20, 200, 256, 20
CHECKED = 4096  # neurons that the CPU advances, too
DT_MS = 0.1
MODELS = ("lif_exp", "lif_exp_two", "lif_alpha", "lif_delta", "lif_cond_exp", "adex", "izhikevich")
FUNCTIONS = ("exp", "log", "power", "sqrt")

Launch = Callable[[], None]
Result = tuple[np.ndarray, np.ndarray]  # states (as words), spikes

app = App(help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def main() -> None:
    """Measure all built-in models."""
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{device}, {NEURONS:,} neurons, {STEPS} steps a launch; median of {REPEATS} launches\n")
    print("| model | compiled by | compiled in s | launch ms | bits of the CPU |\n|---|---|---|---|---|")
    for name in MODELS:
        measure(name, getattr(models, name))


def measure(name: str, model: NeuronModel) -> None:
    start = beginning(model)
    expected = by_cpu(model, start[0][:, :CHECKED], start[1][:, :CHECKED])
    ways = {}
    for way, prepare in (("NVRTC", by_nvrtc), ("Numba", by_numba)):
        before = time.perf_counter()
        try:
            launch, result = prepare(model, *start)
            launch()
        except Exception as error:  # a failure, of Numba to compile a model for example, is a result as well
            print(f"| {name} | {way} | failed: {type(error).__name__}: {str(error).splitlines()[0]} | | |")
            continue
        seconds = time.perf_counter() - before
        states, spikes = result()
        same = (states[:, :CHECKED] == expected[0]).all() and (spikes[:CHECKED] == expected[1]).all()
        ways[way] = launch, seconds, same
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, (launch, _, _) in ways.items():
            times[way].append(milliseconds(launch))
    for way, (_, seconds, same) in ways.items():
        print(f"| {name} | {way} | {seconds:.2f} | {statistics.median(times[way]):.3f} | {'yes' if same else 'no'} |")


def milliseconds(launch: Launch) -> float:
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    launch()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end))


# --- what all have in common ---


def beginning(model: NeuronModel) -> tuple[np.ndarray, np.ndarray]:
    """States as words, a row for each, and the constant input of each receptor: some neurons spike, some do not."""
    draw = np.random.default_rng(1)
    rows = []
    for value in model.states.values():
        if isinstance(value, int):
            rows.append(np.full(NEURONS, value, np.int32).view(np.uint32))
        else:
            rows.append((value + draw.random(NEURONS) * 5.0).astype(np.float32).view(np.uint32))
    inputs = [draw.random(NEURONS).astype(np.float32) * np.float32(100.0) for _ in model.receptors]
    return np.array(rows), np.array(inputs).reshape(len(inputs), NEURONS)


def kinds_of(model: NeuronModel) -> list[bool]:
    """Return, for each state, True if it is an integer."""
    return [isinstance(value, int) for value in model.states.values()]


def arguments_of(model: NeuronModel, number: Callable[[float | int], str]) -> list[str]:
    """Return the arguments of the model's function: states `s0..`, inputs `x0..`, constants as numbers."""
    given = {"current_pa": number(0.0)} | {name: number(value) for name, value in model.values(DT_MS).items()}
    given |= {name: number(0.0) for name in model.signals}
    given |= {name: f"s{row}" for row, name in enumerate(model.states)}
    given |= {name: f"x{row}" for row, name in enumerate(model.receptors)}
    return [given[name] for name in model.arguments]


def by_cpu(model: NeuronModel, states: np.ndarray, inputs: np.ndarray) -> Result:
    n = states.shape[1]
    states, spikes = states.copy(), np.zeros(n, np.int32)
    names: dict[str, Any] = {"_f": np.float32, "_i": np.int32}
    exec("from neuraxis.engine.arithmetic import exp, log, power, sqrt\n" + python_source(model), names)
    names["advance"] = njit(error_model="numpy")(names["advance"])
    run = njit(error_model="numpy")(names["run"])
    for k in range(n):
        run(k, states.view(np.float32), states.view(np.int32), inputs, spikes)
    return states, spikes


def python_source(model: NeuronModel) -> str:
    """`advance`, the model's function, and `run`, which runs all steps of one neuron."""
    function = typed_function(model)
    function.name = "advance"
    kinds = kinds_of(model)
    arguments = arguments_of(model, lambda v: f"{'_i' if isinstance(v, int) else '_f'}({v!r})")
    new = ", ".join(f"n{row}" for row in range(len(kinds)))
    lines = [
        ast.unparse(function),
        "def run(k, F, I, X, spikes):",
        *[f"    s{row} = {'I' if whole else 'F'}[{row}, k]" for row, whole in enumerate(kinds)],
        *[f"    x{row} = X[{row}, k]" for row in range(len(model.receptors))],
        "    count = _i(0)",
        f"    for step in range({STEPS}):",
        f"        spike, {new} = advance({', '.join(arguments)})",
        *[f"        s{row} = {'_i' if whole else '_f'}(n{row})" for row, whole in enumerate(kinds)],
        "        count = _i(count + (1 if spike else 0))",
        *[f"    {'I' if whole else 'F'}[{row}, k] = s{row}" for row, whole in enumerate(kinds)],
        "    spikes[k] = count",
    ]
    return "\n".join(lines) + "\n"


# --- the two ways ---

NUMBA_KERNEL = """
def kernel(F, I, X, spikes):
    k = cuda.grid(1)
    if k < spikes.size:
        run(k, F, I, X, spikes)
"""


def by_numba(model: NeuronModel, states: np.ndarray, inputs: np.ndarray) -> tuple[Launch, Callable[[], Result]]:
    from numba import cuda

    names: dict[str, Any] = {"_f": np.float32, "_i": np.int32, "cuda": cuda, **numba_functions()}
    exec(python_source(model) + NUMBA_KERNEL, names)
    for function in ("advance", "run"):
        names[function] = cuda.jit(device=True)(names[function])
    compiled = cuda.jit(names["kernel"])
    memory = cuda.to_device(states.view(np.float32))
    wholes = memory.view(np.int32)
    given, spikes = cuda.to_device(inputs), cuda.to_device(np.zeros(NEURONS, np.int32))

    def launch() -> None:
        compiled[NEURONS // THREADS, THREADS](memory, wholes, given, spikes)

    return launch, lambda: (memory.copy_to_host().view(np.uint32), spikes.copy_to_host())


@cache
def numba_functions() -> dict[str, Any]:
    """exp, log, power and sqrt of models, with the engine's own formulas."""
    from numba import cuda

    made: dict[str, Any] = {}
    for name in FUNCTIONS:
        function = getattr(arithmetic, name)
        made[name] = cuda.jit(device=True)(getattr(function, "py_func", function))
    return made


def by_nvrtc(model: NeuronModel, states: np.ndarray, inputs: np.ndarray) -> tuple[Launch, Callable[[], Result]]:
    import cupy
    from cupy.cuda import nvrtc

    capability = int(cupy.cuda.Device().compute_capability)
    with compiled_file(nvrtc, nvrtc_source(model), capability) as file:
        kernel = cupy.RawModule(path=str(file)).get_function("run")
    memory, given = cupy.asarray(states), cupy.asarray(inputs)
    spikes = cupy.zeros(NEURONS, cupy.int32)

    def launch() -> None:
        kernel((NEURONS // THREADS,), (THREADS,), (memory, given, spikes))

    return launch, lambda: (memory.get(), spikes.get())


def nvrtc_source(model: NeuronModel) -> str:
    kinds = kinds_of(model)
    arguments = arguments_of(model, _c_number)
    results = [f"n{row}" for row in range(len(kinds))]
    lines = [
        'extern "C" __global__ void run(u32 *states, const float *inputs, int *spikes)',
        "{",
        f"    const int n = {NEURONS}, k = blockIdx.x * blockDim.x + threadIdx.x;",
        "    if (k >= n)",
        "        return;",
    ]
    for row, whole in enumerate(kinds):
        loaded = f"states[(i64){row} * n + k]"
        kind, value = ("int", f"(int){loaded}") if whole else ("float", f"bits_to_f({loaded})")
        lines.append(f"    {kind} s{row} = {value}, n{row};")
    lines += [f"    const float x{row} = inputs[(i64){row} * n + k];" for row in range(len(model.receptors))]
    lines += [
        "    int count = 0;",
        f"    for (int step = 0; step < {STEPS}; step++) {{",
        f"        count += model({', '.join([*arguments, *results])});",
        *[f"        s{row} = n{row};" for row in range(len(kinds))],
        "    }",
    ]
    for row, whole in enumerate(kinds):
        lines.append(f"    states[(i64){row} * n + k] = {f'(u32)s{row}' if whole else f'f_to_bits(s{row})'};")
    return model_source(model, DT_MS, "model") + "\n".join([*lines, "    spikes[k] = count;", "}", ""])


def _c_number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"bits_to_f(0x{int(np.float32(value).view(np.uint32)):08x}u)"


if __name__ == "__main__":
    app()
