from __future__ import annotations

import os
import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.brain.checks import validate
from neuraxis.brain.files import read_spec, spec_text, toml_text, write_spec
from neuraxis.brain.spec import (
    BrainSpec,
    EffectorSpec,
    ModulatorSource,
    ModulatorSpec,
    PathwaySpec,
    RegionSpec,
    RewardSpec,
    RhythmSpec,
    SensorSpec,
    as_spec,
)
from neuraxis.errors import InvalidType, SpecError
from tests.brain.test_spec import KINDS, brain

names = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=6)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)  # -0.0 equals the default 0.0
above_zero = st.floats(min_value=1e-6, max_value=1e6)
delays = st.floats(min_value=1.0, max_value=1000.0)
plain = st.recursive(
    st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(texts, plain, max_size=4)


@st.composite
def brains(draw: st.DrawFn) -> BrainSpec:
    """Any brain that makes sense."""
    some = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    cut = draw(st.integers(1, len(some)))
    region_names, sensor_names = some[:cut], some[cut:]
    regions = {}
    for name in region_names:
        if draw(st.booleans()):
            regions[name] = RegionSpec(
                kind="sheet", config=draw(st.fixed_dictionaries({}, optional={"tau_ms": numbers}))
            )
        else:
            regions[name] = RegionSpec(
                kind="python",
                create="a.b:c",
                neurons=draw(st.integers(1, 9)),
                tick_ms=draw(st.none() | delays),
                device=draw(st.sampled_from(["cpu", "cuda", "cuda:3"])),
                config=draw(tables),
            )
    ports = st.text(string.ascii_letters, max_size=2).map(lambda port: f".{port}" if port else "")
    pathways = []
    for index in range(draw(st.integers(0, 3))):
        source = draw(st.sampled_from(region_names)) + draw(ports)
        if sensor_names and draw(st.booleans()):
            source = draw(st.sampled_from(sensor_names))
        synapses = draw(
            st.fixed_dictionaries({}, optional={"in_degree": st.integers(1, 99)})
            | st.fixed_dictionaries({"probability": st.floats(0, 1, exclude_min=True)})
        )
        pathways.append(
            PathwaySpec(
                source=source,
                target=draw(st.sampled_from(region_names)) + draw(ports),
                delay_ms=draw(delays),
                weight=draw(st.none() | numbers),
                topographic=draw(st.booleans()),
                plasticity=draw(st.none() | texts.filter(str.strip)),
                name=f"p{index}",
                options=draw(tables),
                **synapses,
            )
        )
    sources = st.builds(
        ModulatorSource, population=st.sampled_from(region_names).map("{}.out".format), amount=numbers, delay_ms=delays
    )
    modulators = st.builds(
        ModulatorSpec,
        baseline=numbers,
        tau_ms=above_zero,
        delay_ms=delays,
        sources=st.lists(sources, max_size=2).map(tuple),
    )
    signals = draw(st.lists(names, max_size=4, unique=True))
    middle = draw(st.integers(0, len(signals)))
    rhythms = st.builds(
        RhythmSpec,
        frequency_hz=st.floats(0.001, 400),
        phase=numbers,
        floor=st.floats(-1, 1, exclude_max=True),
    )
    sensors = st.builds(SensorSpec, neurons=st.just(12), groups=st.sampled_from([1, 2, 3, 12]), rate_hz=above_zero)
    effectors = st.builds(
        EffectorSpec,
        region=st.sampled_from(region_names),
        actions=st.sampled_from([1, 2, 3, 12]),
        neurons=st.just(12),
        duration_ms=delays,
    )
    effector_names = st.text("xyz", min_size=9, max_size=12)  # longer than any other name
    return BrainSpec(
        name=draw(names),
        seed=draw(st.integers(0, 2**64 - 1)),
        dt_ms=draw(st.floats(0.05, 1.0)),
        regions=regions,
        pathways=tuple(pathways),
        rhythms={name: draw(rhythms) for name in signals[:middle]},
        neuromodulators={name: draw(modulators) for name in signals[middle:]},
        sensors={name: draw(sensors) for name in sensor_names},
        effectors=draw(st.dictionaries(effector_names, effectors, max_size=2)),
        reward=draw(st.builds(RewardSpec, critic_hz=above_zero, dopamine=numbers)),
    )


@given(spec=brains())
@settings(max_examples=60)
def test_a_written_file_reads_back_equal(spec):
    text = spec_text(validate(spec, kinds=KINDS))
    again = validate(as_spec(tomllib.loads(text)), kinds=KINDS)
    assert again == spec
    # Equal dicts may be in another order, and regions are built in theirs.
    assert repr(again) == repr(spec)
    assert spec_text(again) == text


@given(table=tables)
def test_toml_text_gives_back_values_and_their_order(table):
    again = tomllib.loads(toml_text(table))
    assert repr(again) == repr(table)


def test_toml_text_refuses_types_that_toml_lacks():
    with pytest.raises(InvalidType, match="TOML cannot hold a NoneType"):
        toml_text({"a": [None]})


def test_a_file_for_people(tmp_path):
    spec = BrainSpec(
        name="small",
        seed=7,
        regions={
            "relay": RegionSpec(kind="relay"),
            "sheet": RegionSpec(kind="sheet", config={"neurons": 50, "layers": [1, 2]}),
        },
        pathways=(PathwaySpec(source="relay", target="sheet.L4e", delay_ms=3, options={"lag": {"ms": 0.5}}),),
        neuromodulators={"dopamine": ModulatorSpec()},
    )
    write_spec(spec, tmp_path / "brain.toml", KINDS)
    assert (tmp_path / "brain.toml").read_text() == (
        """\
name = "small"
seed = 7

[regions.relay]
kind = "relay"

[regions.sheet]
kind = "sheet"

[regions.sheet.config]
neurons = 50
layers = [1, 2]

[[pathways]]
source = "relay"
target = "sheet.L4e"
delay_ms = 3.0

[pathways.options.lag]
ms = 0.5

[neuromodulators.dopamine]
"""
    )


def test_a_file_with_one_of_everything(tmp_path):
    path = tmp_path / "brain.toml"
    write_spec(brain(), path, KINDS)
    assert read_spec(path, KINDS) == brain()
    assert read_spec(str(path), KINDS) == brain()


def test_the_text_does_not_depend_on_where_a_default_came_from():
    assert spec_text(BrainSpec(name="a", dt_ms=float("0.1"))) == spec_text(BrainSpec(name="a")) == 'name = "a"\n'


@pytest.mark.parametrize(
    ("text", "field", "line", "message"),
    [
        (
            'name = "b"\n[regions.cortex]\nkind = "sheet"\nconfig.neurons = "x"',
            "regions.cortex.config.neurons",
            None,
            "regions.cortex.config.neurons: Expected int, got str",
        ),
        ('name = "b"\nsed = 3', "sed", None, "sed: there is no such field; did you mean 'seed'?"),
        ('name = "b"\ndt_ms = inf', "dt_ms", None, "dt_ms: inf: must be above 0"),
        ("", "name", None, "name: is missing"),
        ('name = "b"\nseed = \n', "", 2, "line 2: "),
        ('name = "b"\n\nseed = """', "", 3, "line 3: "),
        ('name = "b"\nname = "c"', "", 2, "line 2: "),
    ],
)
def test_errors_in_a_file(tmp_path, text, field, line, message):
    path = tmp_path / "brain.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_spec(path, KINDS)
    error = caught.value
    assert (error.file, error.field, error.line) == (str(path), field, line)
    assert str(error).startswith(f"{path}: {message}")


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "brain.toml"
    path.write_bytes(b'name = "b"\n# \xff\n')
    with pytest.raises(SpecError, match="line 2: is not UTF-8 text"):
        read_spec(path, KINDS)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match="there is no such file") as caught:
        read_spec(tmp_path / "brain.toml", KINDS)
    assert caught.value.file == str(tmp_path / "brain.toml")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_spec(tmp_path, KINDS)


def test_a_bad_brain_is_not_written(tmp_path):
    path = tmp_path / "brain.toml"
    path.write_text("old")
    with pytest.raises(SpecError, match="dt_ms") as caught:
        write_spec(brain(dt_ms=-1.0), path, KINDS)
    assert caught.value.file == str(path)
    assert path.read_text() == "old"


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "brain.toml"
    path.write_text("old")

    def fails(source, target):
        assert path.read_text() == "old"
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no"):
        write_spec(brain(), path, KINDS)
    assert [file.name for file in tmp_path.iterdir()] == ["brain.toml"]
    assert path.read_text() == "old"
