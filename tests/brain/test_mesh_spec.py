"""The mesh settings of a brain's description, and external data that pathways accept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from neuraxis.brain import Brain, BrainBuilder, read_spec, write_spec
from neuraxis.brain.spec import RegionSpec
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.simulation.python_populations import DataSubscription
from tests.brain.python_regions import Echo, Judge, Log
from tests.brain.test_brain import small


def described() -> BrainBuilder:
    return (
        small()
        .python_region("vision", Log, neurons=20, topic="objects", roles=["see", "vision"])
        .python_region("touch", Log, neurons=20)
        .pathway("vision", "thalamus", 2.0)
        .pathway("touch", "thalamus", 2.0)
        .pathway("sensor/*", "vision", 3.0)
        .pathway("sensor/thermal", "vision", 0.5)
        .pathway("sensor/**", "touch", 1.2)
        .default_node("cortex")
    )


# --- the description ---


def test_omitted_fields_have_defaults():
    spec = small().python_region("vision", Log, neurons=20).spec()
    assert spec.regions["vision"].topic == "data"
    assert spec.roles_of("vision") == ("vision",)
    assert spec.roles_of("cortex") == ("cortex",)
    assert spec.key_of("cue") == "sensor/cue"
    assert spec.default_node is None
    assert spec.outside_pathways() == []


def test_a_file_keeps_all_of_it(tmp_path: Path):
    spec = (
        described()
        .sensor("skin", 6, groups=2, key="sensor/skin/*")
        .region("other", "cortex", neurons=80, roles=["see"])
        .spec()
    )
    write_spec(spec, tmp_path / "brain.toml")
    found = read_spec(tmp_path / "brain.toml")
    assert found == spec
    assert (found.regions["vision"].topic, found.roles_of("vision")) == ("objects", ("see", "vision"))
    assert found.roles_of("other") == ("see",)
    assert (found.key_of("skin"), found.key_of("cue")) == ("sensor/skin/*", "sensor/cue")
    assert found.default_node == "cortex"
    assert [one.label for one in found.outside_pathways()] == [
        "sensor/*->vision",
        "sensor/thermal->vision",
        "sensor/**->touch",
    ]
    text = (tmp_path / "brain.toml").read_text()
    assert 'topic = "objects"\nroles = ["see", "vision"]\n' in text
    assert text.index("default_node") < text.index("[")


def test_a_brain_without_any_of_it_is_written_as_before(tmp_path: Path):
    write_spec(small().spec(), tmp_path / "brain.toml")
    text = (tmp_path / "brain.toml").read_text()
    assert not any(word in text for word in ("topic", "roles", "default_node", "key"))


@pytest.mark.parametrize("topic", ["objects", "a.b-c_9", "left/eye", "spikes/x", "status", "x.y/z"])
def test_topics(topic: str):
    assert small().python_region("own", Log, topic=topic).spec().regions["own"].topic == topic


BRAIN = """
name = "wrong"
{top}

[regions.thalamus]
kind = "thalamus"
{neurons}

[regions.own]
kind = "python"
create = "tests.brain.python_regions:Log"
{own}

[sensors.eye]
neurons = 4
{sensor}

[[pathways]]
source = "{source}"
target = "{target}"
delay_ms = 2
"""


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"own": 'topic = ""'}, "regions.own.topic", "a topic consists of letters"),
        ({"own": 'topic = "spikes"'}, "regions.own.topic", "every region has this topic"),
        ({"own": 'topic = "health"'}, "regions.own.topic", "every region has this topic"),
        ({"own": 'topic = "@info"'}, "regions.own.topic", "a topic consists of letters"),
        ({"own": 'topic = "a//b"'}, "regions.own.topic", "a topic consists of letters"),
        ({"own": 'topic = "a/*"'}, "regions.own.topic", "a topic consists of letters"),
        ({"own": "topic = 3"}, "regions.own.topic", "Expected str"),
        ({"own": 'roles = ["a", "b c"]'}, "regions.own.roles[1]", "'b c': a name consists of"),
        ({"own": 'roles = ["a", "a"]'}, "regions.own.roles[1]", "'a' is listed twice"),
        ({"own": 'roles = "see"'}, "regions.own.roles", "Expected array"),
        ({"neurons": 'topic = "objects"'}, "regions.thalamus.topic", "only a region of kind 'python' has it"),
        ({"neurons": 'roles = [""]'}, "regions.thalamus.roles[0]", "a name consists of"),
        ({"sensor": 'key = "sensor//x"'}, "sensors.eye.key", "'sensor//x' is not a key expression: empty chunks"),
        ({"sensor": 'key = ""'}, "sensors.eye.key", "is not a key expression"),
        ({"sensor": 'key = "a?"'}, "sensors.eye.key", "forbidden characters"),
        ({"top": 'default_node = "eye"'}, "default_node", "there is no region 'eye'"),
        ({"source": "sensor/"}, "pathways[0].source", "is not a key expression: empty chunks are forbidden"),
        ({"source": "sensor/a*"}, "pathways[0].source", "is not a key expression: "),
        ({"source": "elsewhere/*"}, "pathways[0].source", "there is no region, sensor or effector"),
        ({"source": "sensor/*", "target": "nobody"}, "pathways[0].target", "there is no region 'nobody'"),
        (
            {"source": "sensor/*", "target": "thalamus"},
            "pathways[0].source",
            "'thalamus' is made of neurons; declare a sensor with key = \"sensor/*\" and a pathway from it",
        ),
    ],
)  # fmt: skip
def test_errors_name_file_and_field(tmp_path: Path, given: dict[str, str], field: str, reason: str):
    parts = {"top": "", "neurons": "", "own": "", "sensor": "", "source": "sensor/*", "target": "own", **given}
    path = tmp_path / "brain.toml"
    path.write_text(BRAIN.format(**parts))
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    assert str(caught.value).startswith(f"{path}: {field}: ")
    assert reason in str(caught.value)
    assert "cargo" not in str(caught.value)  # nothing of where Zenoh was built


def test_a_wrong_call_leaves_the_builder_as_it_was():
    builder = described()
    before = builder.spec()
    for wrong in (
        lambda: builder.default_node("nobody"),
        lambda: builder.region("x", "cortex", roles=["a b"]),
        lambda: builder.python_region("x", Log, topic="health"),
        lambda: builder.sensor("x", 4, key="/x"),
        lambda: builder.pathway("sensor/*", "cortex", 1.0),
        lambda: builder.pathway("sensor/*", "vision", 1.0),  # there is one of that name
    ):
        with pytest.raises(SpecError):
            wrong()
        assert builder.spec() == before


def test_a_region_of_neurons_may_not_have_a_topic():
    spec = small().spec()
    regions = {**spec.regions, "x": RegionSpec(kind="cortex", topic="objects")}
    with pytest.raises(SpecError, match=r"regions\.x\.topic: only a region of kind 'python'"):
        Brain(msgspec.structs.replace(spec, regions=regions))


# --- subscriptions ---


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        ("sensor/*", "sensor/thermal", True),
        ("sensor/*", "sensor/touch/left", False),
        ("sensor/**", "sensor/touch/left", True),
        ("sensor/*/left", "sensor/touch/left", True),
        ("sensor/thermal", "sensor/thermal", True),
        ("sensor/thermal", "sensor/therma", False),
        ("sensor/t$*", "sensor/thermal", True),
    ],
)
def test_expressions_include_names(expression: str, name: str, expected: bool):
    assert DataSubscription(expression, 1).includes(name) is expected


def test_admissions_are_with_the_residents_and_not_among_the_pathways():
    with Brain(described().spec()) as brain:
        vision, touch = brain.lowered.python_populations
        assert vision.data_subscriptions == (DataSubscription("sensor/*", 30), DataSubscription("sensor/thermal", 5))
        assert touch.data_subscriptions == (DataSubscription("sensor/**", 12),)
        assert not any("/" in one.source for one in brain.lowered.pathways)
        assert brain.diagnostics().regions["vision"].spikes_in == 0


# --- data from outside, in every mode ---

HEAT = np.array([1.0, 2.0])


def tell(brain: Brain, folder: Path | None = None) -> str:
    """Give data of several names in several runs, one of which ends with data in flight."""
    brain.forward({"sensor/thermal": HEAT, "cue": [1, 0, 0, 0]}, 3)
    brain.forward({"sensor/touch/left": np.array([4.0]), "sensor/thermal": {"heat": [5.0, 6.0]}}, 7)
    brain.forward({"vision": np.array([7.0])}, 1)
    if folder is not None:
        brain.save(folder)
    brain.run(5.0)
    return brain.fingerprint()


# Given at step 0 and 3 to vision with delays 5 and 30, and at step 0 and 3 to touch with delay 12.
VISION = [[5, 1, 3.0], [8, 1, 11.0], [11, 0, 7.0], [30, 1, 3.0], [33, 1, 11.0]]
TOUCH = [[12, 1, 3.0], [15, 2, 4.0], [15, 1, 11.0]]


def rows_of(brain: Brain, folder: Path) -> dict[str, list[list[float]]]:
    from neuraxis.simulation.checkpoint import SavedState, find_state

    brain.save(folder)
    found = find_state(folder, brain.lowered.network)
    with SavedState(found.data, list(found.files)) as saved:
        return {key.removesuffix("/rows"): value.tolist() for key, value in saved.python_populations().items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_data_arrive_after_the_delay_of_each_pathway_that_admits_them(workers: int, tmp_path: Path):
    with Brain(described().spec(), workers=workers) as brain:
        tell(brain)
        assert rows_of(brain, tmp_path) == {"vision": VISION, "touch": TOUCH}


def test_data_in_flight_are_saved_and_restored_in_the_other_mode(tmp_path: Path):
    fingerprints = []
    for workers in (1, 2):
        with Brain(described().spec(), workers=workers) as brain:
            fingerprints.append(tell(brain, tmp_path / str(workers)))
    for workers in (1, 2):
        with Brain(described().spec(), workers=3 - workers) as brain:
            brain.restore(tmp_path / str(workers))
            brain.run(5.0)
            fingerprints.append(brain.fingerprint())
            assert rows_of(brain, tmp_path / "rows") == {"vision": VISION, "touch": TOUCH}
    assert len(set(fingerprints)) == 1


@pytest.mark.parametrize("data", [torch.tensor([1.0, 4.0]), torch.ones(3, dtype=torch.bfloat16), [1, 2.5], 3.0])
def test_data_in_flight_are_saved_with_their_type(data: object, tmp_path: Path):
    spec = small().python_region("judge", Judge, neurons=20).pathway("sensor/*", "judge", 2.0).spec()
    found = []
    with Brain(spec, record=True) as brain:
        brain.forward({"sensor/any": data}, 5)
        brain.save(tmp_path)
        brain.run(2.0)
        found.append(brain.spikes("judge")[1].tolist())
        brain.restore(tmp_path)
        brain.run(2.0)
        found.append(brain.spikes("judge")[1].tolist())
    assert found[0] == found[1] != []
    assert found[0][0] == (1 if isinstance(data, torch.Tensor) else 2)


def test_a_lost_worker_loses_no_data_in_flight():
    wanted, found = [], []
    for workers, kept, kill in ((1, wanted, False), (2, found, True)):
        with Brain(described().spec(), workers=workers, on_worker_loss="restart" if kill else "raise") as brain:
            brain.forward({"sensor/thermal": HEAT, "sensor/touch/left": {"heat": HEAT}}, 3)
            if kill:
                os.kill(brain._simulation._executor._team.pids[1], signal.SIGKILL)
            kept.append(brain.run(5.0).spikes)
            kept.append(brain.fingerprint())
    assert found == wanted


def test_batches_do_not_delay_data_from_outside():
    spec = described().spec()
    with Brain(spec, batch_tolerance_ms=0.4, record=True) as brain:
        brain.forward({"sensor/thermal": HEAT}, 60)
        assert np.rint(brain.spikes("vision")[0] / 0.1).tolist() == [6, 31]
        assert np.rint(brain.spikes("touch")[0] / 0.1).tolist() == [13]


def test_data_for_a_lesioned_region_are_lost_until_it_is_restored():
    with Brain(described().spec(), record=True) as brain:
        brain.forward({"sensor/thermal": HEAT}, 2)
        brain.lesion("vision")
        brain.run(1.0)
        brain.heal("vision")
        brain.run(4.0)
        assert np.rint(brain.spikes("vision")[0] / 0.1).tolist() == [31]


def test_names_without_a_pathway_are_refused():
    with Brain(described().spec()) as brain:
        with pytest.raises(InvalidArgument, match=r"'sensor/\*': a name is expected"):
            brain.forward({"sensor/*": HEAT}, 1)
        with pytest.raises(InvalidArgument, match="'sensor/': a name is expected"):
            brain.forward({"sensor/": HEAT}, 1)
        assert brain.steps == 0
    with Brain(small().python_region("own", Judge).pathway("sensor/thermal", "own", 1.0).spec()) as brain:
        with pytest.raises(InvalidArgument, match=r"no pathway starts at 'sensor/touch'.*start at: sensor/thermal"):
            brain.forward({"sensor/touch": HEAT}, 1)
        with pytest.raises(InvalidArgument, match="does not subscribe to it"):
            brain._simulation.give("own", HEAT, "sensor/touch")
    spec = small().python_region("own", Echo, config={"after_ms": 1.0, "neurons": 1}).spec()
    with Brain(spec) as brain, pytest.raises(InvalidArgument, match="start at: none"):
        brain.forward({"sensor/touch": HEAT}, 1)
