from __future__ import annotations

import functools

import numpy as np
import pytest

import __main__
from neuraxis.brain.builder import BrainBuilder, importable_name
from neuraxis.brain.spec import (
    BrainSpec,
    EffectorSpec,
    ModulatorSource,
    ModulatorSpec,
    PathwaySpec,
    RegionSpec,
    RhythmSpec,
    SensorSpec,
)
from neuraxis.errors import InvalidArgument, InvalidType, SpecError
from tests.brain.test_spec import KINDS


def make_region(config, device="cpu"):
    return None


class Maker:
    @classmethod
    def make(cls, config, device="cpu"):
        return None

    def method(self, config):
        return None


shadowed = make_region


def builder() -> BrainBuilder:
    return (
        BrainBuilder("mouse", seed=5, dt_ms=0.2, kinds=KINDS)
        .sensor("eye", 20, groups=4)
        .region("relay", "relay")
        .region("sheet", "sheet", neurons=40)
        .pathway("eye", "relay", 2.0)
        .rhythm("theta", 8.0, phase=0.5, floor=0.0)
    )


def test_every_call_adds_its_part():
    spec = (
        builder()
        .python_region("own", make_region, neurons=3, tick_ms=1, config={"a": 1})
        .python_region("other", "package.module:make", device="cuda")
        .pathway("sheet.L5e", "own", delay_ms=3, weight=2, in_degree=7, plasticity="stdp", options={"b": [1]})
        .pathway("relay", "sheet", 1.0, probability=0.5, topographic=True, name="up")
        .neuromodulator(
            "dopamine", tau_ms=100, sources=[ModulatorSource(population="own.out", amount=1.0, delay_ms=2.0)]
        )
        .effector("hand", "sheet", actions=4)
        .spec()
    )
    assert spec == BrainSpec(
        name="mouse",
        seed=5,
        dt_ms=0.2,
        regions={
            "relay": RegionSpec(kind="relay"),
            "sheet": RegionSpec(kind="sheet", config={"neurons": 40}),
            "own": RegionSpec(kind="python", create=f"{__name__}:make_region", neurons=3, tick_ms=1.0, config={"a": 1}),
            "other": RegionSpec(kind="python", create="package.module:make", device="cuda"),
        },
        pathways=(
            PathwaySpec(source="eye", target="relay", delay_ms=2.0),
            PathwaySpec(
                source="sheet.L5e",
                target="own",
                delay_ms=3.0,
                weight=2.0,
                in_degree=7,
                plasticity="stdp",
                options={"b": [1]},
            ),
            PathwaySpec(source="relay", target="sheet", delay_ms=1.0, probability=0.5, topographic=True, name="up"),
        ),
        rhythms={"theta": RhythmSpec(frequency_hz=8.0, phase=0.5, floor=0.0)},
        neuromodulators={
            "dopamine": ModulatorSpec(
                tau_ms=100.0, sources=(ModulatorSource(population="own.out", amount=1.0, delay_ms=2.0),)
            )
        },
        sensors={"eye": SensorSpec(neurons=20, groups=4)},
        effectors={"hand": EffectorSpec(region="sheet", actions=4)},
    )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda b: b.sensor("ear", 10, groups=3), SpecError, "sensors.ear.groups: 10 neurons cannot form 3"),
        (lambda b: b.sensor("eye", 10), SpecError, "sensors.eye: was added before"),
        (lambda b: b.sensor("relay", 10), SpecError, "sensors.relay: there is a region called 'relay' as well"),
        (lambda b: b.sensor("ear", "ten"), SpecError, "sensors.ear.neurons: Expected int, got str"),
        (lambda b: b.sensor(5, 10), InvalidType, "name=5"),
        (lambda b: b.region("relay", "relay"), SpecError, "regions.relay: was added before"),
        (lambda b: b.region("x", "rely"), SpecError, "did you mean 'relay'?"),
        (lambda b: b.region("x", "sheet", neuron=3), SpecError, "regions.x.config.neuron: there is no such field"),
        (lambda b: b.region("x", "python"), InvalidArgument, "use python_region() to add"),
        (lambda b: b.region("x.y", "relay"), SpecError, "a name consists of"),
        (lambda b: b.python_region("x", "make"), SpecError, "regions.x.create: 'make' is not of the form"),
        (lambda b: b.python_region("x", lambda config: None), InvalidArgument, "is a lambda"),
        (lambda b: b.pathway("eye", "shet", 1.0), SpecError, "pathways[1].target: there is no region 'shet'"),
        (lambda b: b.pathway("eye", "sheet", 0.1), SpecError, "pathways[1].delay_ms: 0.1 (eye->sheet): must be one"),
        (lambda b: b.pathway("eye", "relay", 1.0), SpecError, "there is a pathway 'eye->relay' already"),
        (lambda b: b.pathway("eye", "sheet", 1.0, wieght=1.0), TypeError, "wieght"),
        (lambda b: b.rhythm("alpha", 0.0), SpecError, "rhythms.alpha.frequency_hz: 0: must be above 0"),
        (lambda b: b.neuromodulator("theta"), SpecError, "there is a rhythm called 'theta' as well"),
        (
            lambda b: b.neuromodulator(
                "ach", sources=[ModulatorSource(population="sheat.L5e", amount=1.0, delay_ms=1.0)]
            ),
            SpecError,
            "neuromodulators.ach.sources[0].population: there is no region 'sheat'; did you mean 'sheet'?",
        ),
        (lambda b: b.effector("hand", "shet", 2), SpecError, "effectors.hand.region: there is no region 'shet'"),
    ],
)
def test_a_bad_call_raises_at_once_and_changes_nothing(call, error, text):
    made = builder()
    with pytest.raises(error) as caught:
        call(made)
    assert text in str(caught.value)
    assert made.spec() == builder().spec()


@pytest.mark.parametrize(
    ("fields", "text"), [({"name": "a b"}, "name: 'a b'"), ({"seed": -1}, "seed: -1"), ({"dt_ms": 0}, "dt_ms: 0")]
)
def test_a_bad_brain_raises_at_once(fields, text):
    with pytest.raises(SpecError) as caught:
        BrainBuilder(**fields, kinds=KINDS)
    assert text in str(caught.value)


def test_a_description_is_not_changed_by_later_calls():
    made = builder()
    before = made.spec()
    made.region("late", "relay").pathway("eye", "late", 1.0)
    assert before == builder().spec()
    assert "late" in made.spec().regions


def test_arguments_are_copied():
    layers, config = [1, 2], {"a": {"b": [1]}}
    made = builder().region("x", "sheet", layers=layers).python_region("own", make_region, config=config)
    layers.append(3)
    config["a"]["b"].append(2)
    regions = made.spec().regions
    assert (regions["x"].config, regions["own"].config) == ({"layers": [1, 2]}, {"a": {"b": [1]}})


def test_numbers_of_numpy_and_tuples_become_plain():
    spec = (
        BrainBuilder("b", seed=np.int64(3), dt_ms=np.float64(0.2), kinds=KINDS)
        .sensor("eye", np.int32(4))
        .region("x", "sheet", layers=(1, 2), tau_ms=np.float32(0.5), neurons=np.int64(9))
        .python_region("own", make_region, config={"weights": np.array([[1.0, 2.0]])})
        .spec()
    )
    assert (spec.seed, spec.dt_ms, spec.sensors["eye"].neurons) == (3, 0.2, 4)
    assert spec.regions["x"].config == {"layers": [1, 2], "tau_ms": 0.5, "neurons": 9}
    assert spec.regions["own"].config == {"weights": [[1.0, 2.0]]}


def test_importable_factories_are_accepted():
    assert importable_name(make_region) == f"{__name__}:make_region"
    assert importable_name(shadowed) == f"{__name__}:make_region"
    assert importable_name(Maker) == f"{__name__}:Maker"
    assert importable_name(Maker.make) == f"{__name__}:Maker.make"


def test_factories_of_the_main_module_are_accepted(monkeypatch):
    def make():
        return None

    make.__module__, make.__qualname__ = "__main__", "make"
    monkeypatch.setattr(__main__, "make", make, raising=False)
    assert importable_name(make) == "__main__:make"


def test_factories_that_cannot_be_imported_are_refused():
    def local():
        return None

    def renamed():
        return None

    renamed.__qualname__ = "make_region"
    for create, text in (
        (local, "is defined within a function"),
        (lambda: None, "is a lambda"),
        (renamed, f"is not the object called '{__name__}:make_region'"),
        (Maker().method, f"is not the object called '{__name__}:Maker.method'"),
    ):
        with pytest.raises(InvalidArgument, match="another process cannot import it") as caught:
            importable_name(create)
        assert text in str(caught.value)
    for create in (functools.partial(make_region), Maker(), 5):
        with pytest.raises(InvalidType, match="a function or class of a module is expected"):
            importable_name(create)
