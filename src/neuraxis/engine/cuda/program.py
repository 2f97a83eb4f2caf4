"""The text of the kernels for one network: its models translated, its sizes and what it needs as definitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numba import types

from neuraxis.engine import arithmetic
from neuraxis.engine.cuda.translate import Translated, translate
from neuraxis.engine.cuda.words import defines
from neuraxis.engine.generated import typed_function
from neuraxis.network.neuron_model import NeuronModel

__all__ = [
    "FIRST_STATE_ROW",
    "Shape",
    "build_source",
    "constant_words",
    "foresees",
    "model_key",
    "model_source",
    "steps_source",
]

_FOLDER = Path(__file__).parent / "kernels"

# A neuron's rows on the GPU: its random stream, then its states.
FIRST_STATE_ROW = 2

_ARGUMENTS = "u32 *state, const int *arrived, const Four *constants, float current"
_ARITHMETIC = {
    "E_LN2_LOW": "_LN2_LOW",
    "E_SQRT_HALF": "_SQRT_HALF",
    **{f"E_E{i}": f"_E{i}" for i in range(6)},
    **{f"E_L{i}": f"_L{i}" for i in range(9)},
}


@dataclass(frozen=True)
class Shape:
    """What the kernels are compiled for."""

    threads: int
    each: int  # neurons of a thread
    receptors: int
    state_rows: int
    lag: int  # the mail of step t - lag is read in step t
    urgent: bool
    foresight: bool  # a spike is told of one step ahead
    random: bool  # it depends on the random numbers of the step
    wide: bool
    target_bits: int
    inline: int
    at_once: int  # segments that a warp asks for before the neurons are updated
    segment_lanes: int  # lanes for a segment where there are many of them
    ring_in_shared: bool
    states_in_registers: bool
    counts_populations: bool
    signals: bool
    plastic: bool
    pulses: bool  # somebody gets a current
    probes: bool  # states are sampled
    outside: bool  # there are spikes of other shards
    acting: bool = True  # neurons are told to spike, or populations are silent
    warp: int = 32

    def definitions(self) -> str:
        values = {
            "THREADS": self.threads,
            "EACH": self.each,
            "RECEPTORS": max(1, self.receptors),
            "STATE_ROWS": self.state_rows,
            "LAG": self.lag,
            "URGENT": int(self.urgent),
            "FORESIGHT": int(self.foresight),
            "RANDOM_SPIKES": int(self.random),
            "WIDE": int(self.wide),
            "TARGET_BITS": self.target_bits,
            "INLINE": self.inline,
            "AT_ONCE": self.at_once,
            "SEGMENT_LANES": self.segment_lanes,
            "RING_IN_SHARED": int(self.ring_in_shared),
            "STATES_IN_REGISTERS": int(self.states_in_registers),
            "COUNTS_POPULATIONS": int(self.counts_populations),
            "SIGNALS": int(self.signals),
            "PLASTIC": int(self.plastic),
            "PULSES": int(self.pulses),
            "PROBES": int(self.probes),
            "OUTSIDE_SPIKES": int(self.outside),
            "ACTING": int(self.acting),
            "WARP": self.warp,
            "SMALLEST_KEPT": f"0x{int(np.float32(1e-30).view(np.uint32)):08x}u",
        }
        return "".join(f"#define {name} {value}\n" for name, value in values.items())


def steps_source(shape: Shape, models: Sequence[tuple[NeuronModel, float]]) -> str:
    """The kernels that run steps; `models` (with their dt) in the order of the numbers that populations have."""
    made = {"models.cuh": _models_source(models)}
    if not shape.plastic:
        made["plastic.cuh"] = ""
    text = '#include "portable.cuh"\n#include "records.cuh"\n#include "steps.cuh"\n'
    return shape.definitions() + _common() + _inlined(text, made)


def build_source(shape: Shape) -> str:
    """The kernels that draw synapses."""
    files = ["portable.cuh", "build.cuh", *(["build_plastic.cuh"] if shape.plastic else [])]
    return shape.definitions() + _common() + _inlined("".join(f'#include "{name}"\n' for name in files), {})


def model_source(model: NeuronModel, dt_ms: float, name: str) -> str:
    """One model's function alone, with what it calls."""
    portable = _inlined('#include "portable.cuh"\n', {})
    return f"#define WARP {Shape.warp}\n" + _common() + portable + _translated(model, dt_ms, name).text


def model_key(model: NeuronModel, dt_ms: float) -> tuple[object, ...]:
    """Populations whose models have the same key are run by the same code."""
    constants = tuple((name, isinstance(value, int)) for name, value in model.values(dt_ms).items())
    states = tuple((name, isinstance(value, int)) for name, value in model.states.items())
    used = tuple(sorted(model.globals_used.items()))
    return (model.source, model.arguments, states, model.receptors, constants, tuple(model.signals), used)


@cache
def _common() -> str:
    numbers = {name: getattr(arithmetic, its) for name, its in _ARITHMETIC.items()}
    return defines() + "".join(
        f"#define {name} bits_to_f(0x{int(value.view(np.uint32)):08x}u)\n" for name, value in numbers.items()
    )


def _inlined(text: str, made: dict[str, str]) -> str:
    """The text with the project's own files put in place of their names."""

    def content(found: re.Match[str]) -> str:
        name = found[1]
        if name in made:
            return made[name]
        file = _FOLDER / name
        return _inlined(file.read_text(), made) if file.exists() else found[0]

    return re.sub(r'^#include "([^"]+)"$', content, text, flags=re.MULTILINE)


def _models_source(models: Sequence[tuple[NeuronModel, float]]) -> str:
    lines = []
    for number, (model, dt_ms) in enumerate(models):
        lines += [_translated(model, dt_ms, f"model_{number}").text, _wrapper(model, dt_ms, number)]
    lines += [
        f"__device__ inline bool advance_model(u32 model, {_ARGUMENTS})",
        "{",
        "    switch (model) {",
        *[f"    case {n}: return advance_{n}(state, arrived, constants, current);" for n in range(len(models))],
        "    }",
        "    return false;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def foresees(model: NeuronModel, dt_ms: float) -> bool:
    """Whether the model's spike in a step does not depend on what arrives in that step."""
    return _translated(model, dt_ms, "model").foresees


def _translated(model: NeuronModel, dt_ms: float, name: str) -> Translated:
    constants = model.values(dt_ms)
    kinds = {}
    for argument in model.arguments:
        value = model.states.get(argument, constants.get(argument, 0.0))
        whole = isinstance(value, int) or argument == "uniform"
        kinds[argument] = types.int32 if whole else types.float32
    return translate(model.name, typed_function(model), name, kinds, {*model.receptors, *model.signals})


def _wrapper(model: NeuronModel, dt_ms: float, number: int) -> str:
    """From the rows of a neuron and the words of its population to the model's arguments, and back."""
    constants = model.values(dt_ms)
    given: dict[str, str] = {"current_pa": "current", "uniform": "random"}
    for row, (name, value) in enumerate(model.states.items(), start=FIRST_STATE_ROW):
        given[name] = f"(int)state[{row}]" if isinstance(value, int) else f"bits_to_f(state[{row}])"
    for r, name in enumerate(model.receptors):
        given[name] = f"(float)arrived[{r}] * {_constant(r)}"
    for place, (name, value) in enumerate(constants.items(), start=len(model.receptors)):
        given[name] = f"(int)f_to_bits({_constant(place)})" if isinstance(value, int) else _constant(place)
    for place, name in enumerate(model.signals, start=len(model.receptors) + len(constants)):
        given[name] = _constant(place)
    lines = [
        f"__device__ inline bool advance_{number}({_ARGUMENTS})",
        "{",
        *[f"    const Four c{i} = constants[{i}];" for i in range(constant_words(model, dt_ms) // 4)],
    ]
    if model.takes_uniform:
        lines.append("    int random = draw(state[0], state[1]);")
    for i, value in enumerate(model.states.values()):
        lines.append(f"    {'int' if isinstance(value, int) else 'float'} new_{i};")
    results = [f"new_{i}" for i in range(len(model.states))]
    arguments = ", ".join([*(given[name] for name in model.arguments), *results])
    lines.append(f"    bool spike = model_{number}({arguments});")
    for i, value in enumerate(model.states.values()):
        stored = f"(u32)new_{i}" if isinstance(value, int) else f"kept(new_{i})"
        lines.append(f"    state[{i + FIRST_STATE_ROW}] = {stored};")
    return "\n".join([*lines, "    return spike;", "}", ""])


def constant_words(model: NeuronModel, dt_ms: float) -> int:
    """Words of a population's constants: scales of receptors, constants, signals; read by fours."""
    words = len(model.receptors) + len(model.values(dt_ms)) + len(model.signals)
    return -(-words // 4) * 4


def _constant(place: int) -> str:
    return f"c{place // 4}.x[{place % 4}]"
