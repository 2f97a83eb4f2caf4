"""Source of the kernels for one network: translated models, tables, sizes and features.

Tables are structs (`engine/cuda/tables.py`), sizes and features are preprocessor definitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numba import types

from neuraxis.engine import arithmetic, tables
from neuraxis.engine.codegen import typed_function
from neuraxis.engine.cuda.tables import declarations
from neuraxis.engine.cuda.translate import Translated, translate
from neuraxis.engine.tables import CHECK_BITS, CHECK_FACTOR, OUTPUT_FACTOR
from neuraxis.network.model_language import INT
from neuraxis.network.neuron_model import NeuronModel, argument_kinds

__all__ = [
    "FIRST_STATE_ROW",
    "Shape",
    "build_source",
    "constant_words",
    "has_lookahead",
    "model_source",
    "steps_source",
]

# A model, the step in ms, and the receptors of its additional accumulators (see `NeuronPart.extra`).
Kind = tuple[NeuronModel, float, tuple[int, ...]]

_FOLDER = Path(__file__).parent / "kernels"

# A neuron's rows on the GPU: its random stream, then its states, then constants that differ between neurons.
FIRST_STATE_ROW = 2

# Constants of `engine/tables.py` that the kernels use.
_CONSTANTS = ("PLAIN", "STDP_BOUNDED", "STDP_POWER", "REWARD", "SHORT_TERM", "DECAY_CELLS")

_ARGUMENTS = "u32 *state, const int *arrived, const Four *constants, float current, const float *driven, int step"
_ARITHMETIC = {
    "E_LN2_LOW": "_LN2_LOW",
    "E_SQRT_HALF": "_SQRT_HALF",
    "E_TINY": "_TINY",
    **{f"E_E{i}": f"_E{i}" for i in range(6)},
    **{f"E_L{i}": f"_L{i}" for i in range(9)},
    **{f"E_N{i}": f"_N{i}" for i in range(6)},
    **{f"E_D{i}": f"_D{i}" for i in range(1, 6)},
}
_ARITHMETIC_64 = {
    "E_LOG2_E": "_LOG2_E",
    "E_LN2_64": "_LN2",
    **{f"E_A{i}": f"_A{i}" for i in range(11)},
    **{f"E_T{i}": f"_T{i}" for i in range(14)},
    "E_INVERSE_HALF_PI": "_INVERSE_HALF_PI",
    **{f"E_HALF_PI_{i}": f"_HALF_PI_{i}" for i in range(3)},
    **{f"E_{name}{i}": f"_{name}{i}" for name in "SC" for i in range(1, 7)},
}


@dataclass(frozen=True)
class Shape:
    """Sizes and features that the kernels are compiled for."""

    threads: int
    neurons_per_thread: int
    receptors: int
    state_rows: int
    lag: int  # step t reads the messages of step t - lag
    urgent: bool  # synapses that take effect at once are delivered before the update
    lookahead: bool  # spikes are published one step ahead
    random: bool  # spikes depend on the random numbers of the step
    wide: bool
    target_bits: int
    inline: int
    prefetched: int  # segments that a warp prefetches before the neurons are updated
    segment_lanes: int  # lanes per segment if there are many segments
    ring_in_shared: bool
    states_in_registers: bool
    counts_populations: bool
    signals: bool
    plastic: bool
    pulses: bool  # there are injected currents
    probes: bool  # states are sampled
    outside: bool  # other shards project here
    rates: bool = False  # neurons transmit or receive outputs
    rate_inputs: int = 0  # of a model at most
    interventions: bool = True  # neurons are forced to spike, or populations are silent
    checked: bool = True  # states are checked for infinity and NaN
    warp: int = 32

    def definitions(self) -> str:
        values = {
            "THREADS": self.threads,
            "NEURONS_PER_THREAD": self.neurons_per_thread,
            "RECEPTORS": max(1, self.receptors),
            "STATE_ROWS": self.state_rows,
            "LAG": self.lag,
            "URGENT": int(self.urgent),
            "LOOKAHEAD": int(self.lookahead),
            "RANDOM_SPIKES": int(self.random),
            "WIDE": int(self.wide),
            "TARGET_BITS": self.target_bits,
            "INLINE": self.inline,
            "PREFETCHED": self.prefetched,
            "SEGMENT_LANES": self.segment_lanes,
            "RING_IN_SHARED": int(self.ring_in_shared),
            "STATES_IN_REGISTERS": int(self.states_in_registers),
            "COUNTS_POPULATIONS": int(self.counts_populations),
            "SIGNALS": int(self.signals),
            "PLASTIC": int(self.plastic),
            "PULSES": int(self.pulses),
            "PROBES": int(self.probes),
            "OUTSIDE_SPIKES": int(self.outside),
            "RATES": int(self.rates),
            "RATE_INPUTS": max(1, self.rate_inputs),
            "OUTPUT_FACTOR": f"0x{OUTPUT_FACTOR:016x}ull",
            "INTERVENTIONS": int(self.interventions),
            "CHECKED": int(self.checked),
            "CHECK_BITS": CHECK_BITS,
            "CHECK_FACTOR": f"{CHECK_FACTOR}u",
            "WARP": self.warp,
            "SMALLEST_STORED": f"0x{int(np.float32(1e-30).view(np.uint32)):08x}u",
        }
        return "".join(f"#define {name} {value}\n" for name, value in values.items())


def steps_source(shape: Shape, models: Sequence[Kind]) -> str:
    """Return the kernels that run steps; populations refer to `models` by their index."""
    made = {"models.cuh": _models_source(models)}
    if not shape.plastic:
        made["plastic.cuh"] = ""
    text = '#include "portable.cuh"\n#include "records.cuh"\n#include "steps.cuh"\n'
    return shape.definitions() + _common() + _inlined(text, made)


def build_source(shape: Shape) -> str:
    """Return the kernels that draw synapses."""
    files = ["portable.cuh", "build.cuh", *(["build_plastic.cuh"] if shape.plastic else [])]
    return shape.definitions() + _common() + _inlined("".join(f'#include "{name}"\n' for name in files))


def model_source(model: NeuronModel, dt_ms: float, name: str) -> str:
    """Return the function of one model with the functions that it calls."""
    portable = _inlined('#include "portable.cuh"\n')
    return f"#define WARP {Shape.warp}\n" + _common() + portable + _translated(model, dt_ms, name).text


@cache
def _common() -> str:
    numbers = {name: getattr(arithmetic, its) for name, its in _ARITHMETIC.items()}
    wide = {name: float(getattr(arithmetic, its)).hex() for name, its in _ARITHMETIC_64.items()}
    return (
        "".join(f"#define {name} {getattr(tables, name)}\n" for name in _CONSTANTS)
        + "".join(f"#define {name} bits_to_f(0x{int(value.view(np.uint32)):08x}u)\n" for name, value in numbers.items())
        + "".join(f"#define {name} {value}\n" for name, value in wide.items())
    )


def _inlined(text: str, made: Mapping[str, str] = MappingProxyType({})) -> str:
    """Replace includes of the project's own files, and of those in `made`, by their content."""

    def content(found: re.Match[str]) -> str:
        name = found[1]
        if name == "tables.cuh":
            return declarations()
        if name in made:
            return made[name]
        file = _FOLDER / name
        return _inlined(file.read_text(), made) if file.exists() else found[0]

    return re.sub(r'^#include "([^"]+)"$', content, text, flags=re.MULTILINE)


def _models_source(models: Sequence[Kind]) -> str:
    lines = []
    for number, (model, dt_ms, extra) in enumerate(models):
        lines += [_translated(model, dt_ms, f"model_{number}").text, _wrapper_source(model, dt_ms, extra, number)]
        lines.append(_not_finite_source(model, number))
    lines += [
        f"__device__ inline bool advance_model(u32 model, {_ARGUMENTS})",
        "{",
        "    switch (model) {",
        *[
            f"    case {n}: return advance_{n}(state, arrived, constants, current, driven, step);"
            for n in range(len(models))
        ],
        "    }",
        "    return false;",
        "}",
        "",
        "__device__ inline u32 not_finite_model(u32 model, const u32 *state)",
        "{",
        "    switch (model) {",
        *[f"    case {n}: return not_finite_{n}(state);" for n in range(len(models))],
        "    }",
        "    return 0;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def has_lookahead(model: NeuronModel, dt_ms: float) -> bool:
    """Return True if a spike of the model in a step does not depend on the input of that step."""
    return _translated(model, dt_ms, "model").has_lookahead


def _translated(model: NeuronModel, dt_ms: float, name: str) -> Translated:
    constants = model.values(dt_ms)
    kinds = {
        name: types.int32 if kind == INT else types.float32 for name, kind in argument_kinds(model, constants).items()
    }
    given = {*model.receptors, *model.rate_inputs, *model.signals}
    return translate(model.name, typed_function(model, constants), name, kinds, given)


def _wrapper_source(model: NeuronModel, dt_ms: float, extra: tuple[int, ...], number: int) -> str:
    """Return a function that calls the model with the rows of a neuron and the constants of its population."""
    constants = model.values(dt_ms)
    dt_bits = int(np.float64(dt_ms).view(np.uint64))
    t_ms = f"(float)((double)step * bits_to_d(0x{dt_bits:016x}ull))"
    given: dict[str, str] = {"current_pa": "current", "step": "step", "t_ms": t_ms}
    for row, (name, value) in enumerate(model.states.items(), start=FIRST_STATE_ROW):
        given[name] = f"(int)state[{row}]" if isinstance(value, int) else f"bits_to_f(state[{row}])"
    for row, (name, own) in enumerate(model.rows.items(), start=FIRST_STATE_ROW + len(model.states)):
        given[name] = f"(int)state[{row}]" if own.is_integer else f"bits_to_f(state[{row}])"
    for r, name in enumerate(model.receptors):
        places = [r, *(len(model.receptors) + i for i, of in enumerate(extra) if of == r)]
        given[name] = " + ".join(f"(float)arrived[{place}] * {_constant(place)}" for place in places)
    given |= {name: f"driven[{i}]" for i, name in enumerate(model.rate_inputs)}
    rows = len(model.receptors) + len(extra)
    for place, (name, value) in enumerate(constants.items(), start=rows):
        given[name] = f"(int)f_to_bits({_constant(place)})" if isinstance(value, int) else _constant(place)
    for place, name in enumerate(model.signals, start=rows + len(constants)):
        given[name] = _constant(place)
    lines = [
        f"__device__ inline bool advance_{number}({_ARGUMENTS})",
        "{",
        *[f"    const Four c{i} = constants[{i}];" for i in range(constant_words(model, dt_ms, extra) // 4)],
    ]
    for i, (name, kind) in enumerate(model.draws.items()):
        lines.append(f"    int random_{i} = draw(state[0], state[1]);")
        given[name] = f"random_{i}" if kind == "uniform" else f"drawn_{kind}_f(random_{i})"
    for i, value in enumerate(model.states.values()):
        lines.append(f"    {'int' if isinstance(value, int) else 'float'} new_{i};")
    results = [f"new_{i}" for i in range(len(model.states))]
    arguments = ", ".join([*(given[name] for name in model.arguments), *results])
    lines.append(f"    bool spike = model_{number}({arguments});")
    for i, value in enumerate(model.states.values()):
        stored = f"(u32)new_{i}" if isinstance(value, int) else f"stored_bits(new_{i})"
        lines.append(f"    state[{i + FIRST_STATE_ROW}] = {stored};")
    return "\n".join([*lines, "    return spike;", "}", ""])


def _not_finite_source(model: NeuronModel, number: int) -> str:
    """Return a function that finds the first state that is not finite: 1 + 4 * state + kind (NaN, inf, -inf), or 0."""
    lines = [f"__device__ inline u32 not_finite_{number}(const u32 *state)", "{"]
    for i, value in enumerate(model.states.values()):
        if not isinstance(value, int):
            row = f"state[{i + FIRST_STATE_ROW}]"
            lines.append(f"    if (is_not_finite({row}))")
            lines.append(f"        return 1 + 4 * {i} + kind_of_not_finite({row});")
    return "\n".join([*lines, "    return 0;", "}", ""])


def constant_words(model: NeuronModel, dt_ms: float, extra: tuple[int, ...] = ()) -> int:
    """Return the number of words of a population's constants, a multiple of 4: scales, constants, signals."""
    words = len(model.receptors) + len(extra) + len(model.values(dt_ms)) + len(model.signals)
    return -(-words // 4) * 4


def _constant(place: int) -> str:
    return f"c{place // 4}.x[{place % 4}]"
