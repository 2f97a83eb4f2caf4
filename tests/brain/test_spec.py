from __future__ import annotations

import pickle
from typing import Annotated, Any

import msgspec
import pytest

from neuraxis.brain.checks import validate
from neuraxis.brain.region import RegionConfig
from neuraxis.brain.spec import (
    BrainSpec,
    EffectorSpec,
    ModulatorSource,
    ModulatorSpec,
    PathwaySpec,
    RegionSpec,
    RhythmSpec,
    SensorSpec,
    as_spec,
    split_port,
)
from neuraxis.errors import InvalidArgument, SpecError


class SheetConfig(RegionConfig):
    neurons: Annotated[int, msgspec.Meta(ge=1)] = 100
    tau_ms: float = 20.0
    layers: tuple[int, ...] = ()


class RelayConfig(RegionConfig):
    gain: float = 1.0


KINDS: dict[str, type[RegionConfig]] = {"sheet": SheetConfig, "relay": RelayConfig}


def brain(**changes: Any) -> BrainSpec:
    """A brain with one of everything, all of it right; `changes` replace fields."""
    fields: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "dt_ms": 0.1,
        "regions": {
            "relay": RegionSpec(kind="relay"),
            "sheet": RegionSpec(kind="sheet", config={"neurons": 50, "layers": [1, 2]}),
            "own": RegionSpec(kind="python", create="package.module:Class.make", neurons=4, tick_ms=1.0),
        },
        "pathways": (
            PathwaySpec(source="eye", target="relay", delay_ms=0.1),
            PathwaySpec(source="relay", target="sheet.L4e", delay_ms=3.0, weight=-0.5, in_degree=10),
            PathwaySpec(source="sheet.L5e", target="own", delay_ms=2.0, probability=1.0),
            PathwaySpec(source="sheet.L5e", target="own", delay_ms=9.0, name="detour", options={"deep": {"a": [1]}}),
            PathwaySpec(source="sheet", target="sheet", delay_ms=1.0, topographic=True, plasticity="none"),
        ),
        "rhythms": {"theta": RhythmSpec(frequency_hz=8.0, phase=-0.25, floor=0.0)},
        "neuromodulators": {
            "dopamine": ModulatorSpec(sources=(ModulatorSource(population="own.out", amount=-0.1, delay_ms=5.0),))
        },
        "sensors": {"eye": SensorSpec(neurons=20, groups=4)},
        "effectors": {"hand": EffectorSpec(region="sheet", actions=4)},
    }
    return BrainSpec(**{**fields, **changes})


def pathway(**changes: Any) -> BrainSpec:
    """The brain with one pathway."""
    return brain(pathways=(PathwaySpec(**{"source": "eye", "target": "sheet", "delay_ms": 1.0, **changes}),))


def region(**fields: Any) -> BrainSpec:
    """The brain with one region more, called x."""
    return brain(regions={**brain().regions, "x": RegionSpec(**fields)})


def sensor(**fields: Any) -> BrainSpec:
    return brain(sensors={**brain().sensors, "ear": SensorSpec(**fields)})


def rhythm(**fields: Any) -> BrainSpec:
    return brain(rhythms={"theta": RhythmSpec(**fields)})


def modulator(*sources: tuple[str, float, float], **fields: Any) -> BrainSpec:
    made = tuple(ModulatorSource(population=p, amount=a, delay_ms=d) for p, a, d in sources)
    return brain(neuromodulators={"dopamine": ModulatorSpec(sources=made, **fields)})


def test_a_brain_that_makes_sense_is_returned_as_it_is():
    spec = brain()
    assert validate(spec, kinds=KINDS) == spec
    assert spec == brain(), "validate changed its argument"


def test_whole_numbers_of_ms_become_floats():
    spec = validate(brain(dt_ms=1, pathways=(PathwaySpec(source="eye", target="sheet", delay_ms=2),)), kinds=KINDS)
    assert [type(spec.dt_ms), type(spec.pathways[0].delay_ms)] == [float, float]


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        # the brain
        (brain(name="a.b"), "name", "'a.b': a name consists of"),
        (brain(name=""), "name", "a name consists of"),
        (brain(name=5), "name", "Expected str, got int"),
        (brain(seed=-1), "seed", "-1: must be from 0"),
        (brain(seed=2**64), "seed", "must be from 0"),
        (brain(seed=1.5), "seed", "Expected int, got float"),
        (brain(dt_ms=0.0), "dt_ms", "0: must be above 0"),
        (brain(dt_ms=float("inf")), "dt_ms", "inf: must be above 0"),
        (brain(dt_ms=float("nan")), "dt_ms", "nan: must be above 0"),
        (brain(regions=[]), "regions", "Expected object, got array"),
        (brain(regions={"x": 5}), "regions.x", "Expected object, got int"),
        (brain(regions={5: RegionSpec(kind="relay")}), "", "Expected str"),
        # regions
        (brain(regions={"a.b": RegionSpec(kind="relay")}), "regions.a.b", "'a.b': a name consists of"),
        (brain(regions={"été": RegionSpec(kind="relay")}), "regions.été", "a name consists of"),
        (region(kind="shet"), "regions.x.kind", "there is no kind of region 'shet'; did you mean 'sheet'?"),
        (region(kind=5), "regions.x.kind", "Expected str, got int"),
        (region(kind="sheet", config={"neurons": "many"}), "regions.x.config.neurons", "Expected int, got str"),
        (region(kind="sheet", config={"neurons": 0}), "regions.x.config.neurons", "Expected int >= 1"),
        (region(kind="sheet", config={"layers": [1, "b"]}), "regions.x.config.layers[1]", "Expected int, got str"),
        (region(kind="sheet", config={"neuron": 5}), "regions.x.config.neuron", "did you mean 'neurons'?"),
        (region(kind="sheet", config={"layers": (1, 2)}), "regions.x.config.layers", "tuple: a file can hold"),
        (region(kind="sheet", device="gpu"), "regions.x.device", "'gpu' is not a device"),
        (region(kind="sheet", create="a:b"), "regions.x.create", "only a region of kind 'python' has it, not 'sheet'"),
        (region(kind="sheet", neurons=5), "regions.x.neurons", "only a region of kind 'python'"),
        (region(kind="sheet", tick_ms=5.0), "regions.x.tick_ms", "only a region of kind 'python'"),
        (region(kind="python"), "regions.x.create", "is missing"),
        (region(kind="python", create="module.callable"), "regions.x.create", "is not of the form"),
        (region(kind="python", create="module:"), "regions.x.create", "is not of the form"),
        (region(kind="python", create="a:<lambda>"), "regions.x.create", "is not of the form"),
        (region(kind="python", create="a:b", neurons=0), "regions.x.neurons", "0: must be 1 or more"),
        (region(kind="python", create="a:b", tick_ms=0.05), "regions.x.tick_ms", "one step (dt_ms=0.1)"),
        (region(kind="python", create="a:b", config={"f": None}), "regions.x.config.f", "NoneType: a file can hold"),
        (region(kind="python", create="a:b", config={"f": [float("nan")]}), "regions.x.config.f[0]", "nan"),
        (region(kind="python", create="a:b", config={"f": {"g": 2**65}}), "regions.x.config.f.g", "must be from"),
        (region(kind="python", create="a:b", config={"f": "\ud800"}), "regions.x.config.f", "is not valid Unicode"),
        (region(kind="python", create="a:b", config={"f": {5: 1}}), "regions.x.config.f", "5: a key must be text"),
        # pathways
        (pathway(source="relya"), "pathways[0].source", "no region, sensor or effector 'relya'; did you mean 'relay'?"),
        (pathway(source="eye.left"), "pathways[0].source", "a sensor has no ports; use 'eye'"),
        (pathway(source="sheet."), "pathways[0].source", "is not of the form"),
        (pathway(source="sheet.a.b"), "pathways[0].source", "is not of the form"),
        (pathway(target="sheat"), "pathways[0].target", "there is no region 'sheat'; did you mean 'sheet'?"),
        (pathway(target="eye"), "pathways[0].target", "cannot be the target of a pathway"),
        (pathway(target=".L4e"), "pathways[0].target", "there is no region ''"),
        (pathway(delay_ms=0.05), "pathways[0].delay_ms", "0.05 (eye->sheet): must be one step (dt_ms=0.1) or more"),
        (pathway(delay_ms=-1.0), "pathways[0].delay_ms", "must be one step"),
        (pathway(delay_ms=float("nan")), "pathways[0].delay_ms", "must be one step"),
        (pathway(delay_ms=6553.6), "pathways[0].delay_ms", "65535 steps (of 0.1 ms) at most"),
        (pathway(delay_ms="1"), "pathways[0].delay_ms", "Expected float, got str"),
        (pathway(weight=float("inf")), "pathways[0].weight", "inf: a finite number"),
        (pathway(in_degree=0), "pathways[0].in_degree", "0: must be 1 or more"),
        (pathway(in_degree=1, probability=0.5), "pathways[0].probability", "in_degree is given as well"),
        (pathway(probability=0.0), "pathways[0].probability", "0: must be above 0 and 1 at most"),
        (pathway(probability=1.5), "pathways[0].probability", "1.5: must be above 0 and 1 at most"),
        (pathway(plasticity=" "), "pathways[0].plasticity", "must not be empty"),
        (pathway(plasticity="\udfff"), "pathways[0].plasticity", "is not valid Unicode"),
        (pathway(target="sheet.\udfff"), "pathways[0].target", "is not valid Unicode"),
        (pathway(options={"a": {"\udfff": 1}}), "pathways[0].options.a", "is not valid Unicode"),
        (pathway(name="a->b"), "pathways[0].name", "a name consists of"),
        (pathway(options={"a": {1}}), "pathways[0].options.a", "set: a file can hold"),
        (brain(pathways=brain().pathways[:1] * 2), "pathways[1].name", "there is a pathway 'eye->relay' already"),
        (brain(pathways=({"source": "eye"},)), "pathways[0].target", "is missing"),
        # sensors
        (sensor(neurons=0), "sensors.ear.neurons", "0: must be 1 or more"),
        (sensor(neurons=4, groups=0), "sensors.ear.groups", "0: must be 1 or more"),
        (sensor(neurons=10, groups=4), "sensors.ear.groups", "10 neurons cannot form 4 equal groups"),
        (sensor(neurons=4, rate_hz=0.0), "sensors.ear.rate_hz", "0: must be above 0"),
        (sensor(neurons=4, background_hz=-1.0), "sensors.ear.background_hz", "-1: must be 0 or more"),
        (sensor(neurons=True), "sensors.ear.neurons", "Expected int, got bool"),
        (brain(sensors={"left eye": SensorSpec(neurons=1)}), "sensors.left eye", "a name consists of"),
        (brain(sensors={"sheet": SensorSpec(neurons=1)}), "regions.sheet", "there is a sensor called 'sheet' as well"),
        # rhythms
        (rhythm(frequency_hz=0.0), "rhythms.theta.frequency_hz", "0: must be above 0"),
        (brain(rhythms={"": RhythmSpec(frequency_hz=1.0)}), "rhythms.", "'': a name consists of"),
        (rhythm(frequency_hz=5001.0), "rhythms.theta.frequency_hz", "a cycle must take two steps"),
        (rhythm(frequency_hz=8.0, phase=float("nan")), "rhythms.theta.phase", "nan: a finite number"),
        (rhythm(frequency_hz=8.0, floor=1.0), "rhythms.theta.floor", "1: must be from -1 to below 1"),
        (rhythm(frequency_hz=8.0, floor=-1.5), "rhythms.theta.floor", "-1.5: must be from -1 to below 1"),
        (
            brain(rhythms={"dopamine": RhythmSpec(frequency_hz=1.0)}),
            "rhythms.dopamine",
            "there is a neuromodulator called 'dopamine' as well",
        ),
        # neuromodulators
        (modulator(tau_ms=0.0), "neuromodulators.dopamine.tau_ms", "0: must be above 0"),
        (brain(neuromodulators={"a/b": ModulatorSpec()}), "neuromodulators.a/b", "'a/b': a name consists of"),
        (modulator(("own.\ud800", 1.0, 1.0)), "neuromodulators.dopamine.sources[0].population", "is not valid Unicode"),
        (modulator(baseline=float("inf")), "neuromodulators.dopamine.baseline", "inf: a finite number"),
        (modulator(delay_ms=0.0), "neuromodulators.dopamine.delay_ms", "0: must be one step"),
        (
            modulator(("eye.out", 1.0, 1.0)),
            "neuromodulators.dopamine.sources[0].population",
            "there is no region 'eye'",
        ),
        (modulator(("own", 1.0, 1.0)), "neuromodulators.dopamine.sources[0].population", "is not of the form"),
        (modulator(("own.a.b", 1.0, 1.0)), "neuromodulators.dopamine.sources[0].population", "is not of the form"),
        (
            modulator(("own.out", 1.0, 1.0), ("own.out", 1.0, 0.01)),
            "neuromodulators.dopamine.sources[1].delay_ms",
            "0.01: must be one step",
        ),
        (
            modulator(("own.out", "1", 1.0)),  # type: ignore[arg-type]
            "neuromodulators.dopamine.sources[0].amount",
            "Expected float, got str",
        ),
        (modulator(("own.out", float("inf"), 1.0)), "neuromodulators.dopamine.sources[0].amount", "inf: a finite"),
        # effectors
        (brain(effectors={"a.b": EffectorSpec(region="sheet", actions=2)}), "effectors.a.b", "a name consists of"),
        (
            brain(effectors={"hand": EffectorSpec(region="shet", actions=2)}),
            "effectors.hand.region",
            "there is no region 'shet'; did you mean 'sheet'?",
        ),
        (
            brain(effectors={"hand": EffectorSpec(region="sheet", actions=0)}),
            "effectors.hand.actions",
            "0: must be 1 or more",
        ),
    ],
)
def test_invalid_fields_are_named(spec, field, reason):
    with pytest.raises(SpecError) as caught:
        validate(spec, "here", KINDS)
    error = caught.value
    assert (error.file, error.field) == ("here", field)
    assert reason in error.reason
    assert str(error) == ": ".join(part for part in ("here", field, error.reason) if part)


def test_a_python_region_without_outputs_is_a_target_only():
    regions = {**brain().regions, "sink": RegionSpec(kind="python", create="a:b")}
    there = PathwaySpec(source="sheet", target="sink", delay_ms=1.0)
    back = PathwaySpec(source="sink", target="sheet", delay_ms=1.0)
    validate(brain(regions=regions, pathways=(there,)), kinds=KINDS)
    with pytest.raises(SpecError, match=r"pathways\[1\].source: region 'sink' has no outputs"):
        validate(brain(regions=regions, pathways=(there, back)), kinds=KINDS)


def test_the_shortest_and_the_longest_delay():
    # 3 * 0.1 is a little more than 0.3 in binary: a delay of one step must not fail for that.
    validate(brain(dt_ms=3 * 0.1, pathways=(PathwaySpec(source="eye", target="sheet", delay_ms=0.3),)), kinds=KINDS)
    validate(pathway(delay_ms=6553.5), kinds=KINDS)


def test_only_a_brain_is_a_brain():
    with pytest.raises(SpecError, match="a BrainSpec is expected, not dict"):
        validate({"name": "x"}, kinds=KINDS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tables", "field", "reason"),
    [
        ({}, "name", "is missing"),
        ({"name": "b", "region": {}}, "region", "there is no such field; did you mean 'regions'?"),
        ({"name": "b", "regions": {"x": {}}}, "regions.x.kind", "is missing"),
        ({"name": "b", "regions": {"x": {"kind": "a", "knid": 1}}}, "regions.x.knid", "did you mean 'kind'?"),
        ({"name": "b", "pathways": {"source": "x"}}, "pathways", "Expected array, got object"),
        ({"name": "b", "pathways": [{"source": 5}]}, "pathways[0].source", "Expected str, got int"),
        (
            {"name": "b", "neuromodulators": {"d": {"sources": [{"popullation": "a.b"}]}}},
            "neuromodulators.d.sources[0].popullation",
            "did you mean 'population'?",
        ),
    ],
)
def test_tables_of_the_wrong_form(tables, field, reason):
    with pytest.raises(SpecError) as caught:
        as_spec(tables, "file.toml")
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_an_error_is_an_invalid_argument_and_can_travel():
    error = SpecError("must be above 0", "brain.toml", "dt_ms")
    assert isinstance(error, InvalidArgument)
    assert str(error) == "brain.toml: dt_ms: must be above 0"
    other = pickle.loads(pickle.dumps(SpecError("wrong", "brain.toml", line=7)))
    assert (str(other), other.file, other.field, other.line) == ("brain.toml: line 7: wrong", "brain.toml", "", 7)


def test_a_description_can_travel():
    assert pickle.loads(pickle.dumps(brain())) == brain()


def test_the_ends_and_labels_of_pathways():
    assert split_port("cortex") == ("cortex", "")
    assert split_port("cortex.L4e") == ("cortex", "L4e")
    assert [p.label for p in brain().pathways[2:4]] == ["sheet.L5e->own", "detour"]
