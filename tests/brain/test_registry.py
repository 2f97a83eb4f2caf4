"""The kinds of regions: each can be named in a description, created, sent to another process, and built."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from neuraxis.brain import regions
from neuraxis.brain.region import Region, RegionConfig
from neuraxis.brain.regions import REGION_CREATORS, REGION_KINDS
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.network import Network

KINDS = ["thalamus", "cortex", "hippocampus", "prefrontal", "striatum", "cerebellum"]


def test_there_are_six_kinds_each_with_settings_and_a_creator():
    assert list(REGION_KINDS) == list(REGION_CREATORS) == KINDS
    assert all(issubclass(kind, RegionConfig) for kind in REGION_KINDS.values())
    assert regions.REGION_CREATORS is REGION_CREATORS
    assert len(set(REGION_KINDS.values())) == len(set(REGION_CREATORS.values())) == 6


def test_the_creators_have_the_names_that_were_promised():
    assert {creator.__name__ for creator in REGION_CREATORS.values()} == {
        "create_thalamus_region",
        "create_cortex_region",
        "create_hippocampus_region",
        "create_pfc_region",
        "create_striatum_region",
        "create_cerebellum_region",
    }
    for name in regions.__all__:
        assert getattr(regions, name) is not None
    with pytest.raises(AttributeError, match="create_spleen_region"):
        _ = regions.create_spleen_region


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_its_creator_and_its_regions_can_be_sent_to_another_process(self, kind):
        create = REGION_CREATORS[kind]
        assert pickle.loads(pickle.dumps(create)) is create
        region = create({})
        again = pickle.loads(pickle.dumps(region))
        assert again.config == region.config
        assert isinstance(region, Region)
        assert region.kind == kind

    def test_settings_are_a_dict_an_object_or_nothing(self, kind):
        create, settings = REGION_CREATORS[kind], REGION_KINDS[kind]
        assert create().config == create({}).config == create(None).config == create(settings()).config == settings()

    def test_settings_from_a_file_are_used(self, kind):
        settings = REGION_KINDS[kind]
        # Each number that is a setting, one at a time, a little different.
        for field in msgspec.structs.fields(settings):
            default = getattr(settings(), field.name)
            if type(default) is not float or default <= 0:
                continue
            changed = REGION_CREATORS[kind]({field.name: default * 0.999}, "cpu").config
            assert getattr(changed, field.name) == default * 0.999
            assert changed != settings()

    def test_unknown_fields_and_wrong_types_are_refused(self, kind):
        create = REGION_CREATORS[kind]
        with pytest.raises(InvalidArgument, match="neurones"):
            create({"neurones": 3})
        number = next(
            field.name
            for field in msgspec.structs.fields(REGION_KINDS[kind])
            if type(getattr(REGION_KINDS[kind](), field.name)) is int
        )
        for wrong in ("many", 2.5, -1, None):
            with pytest.raises(NeuraxisError, match=number):
                create({number: wrong})

    def test_two_of_a_kind_live_in_one_network(self, kind):
        network = Network(dt_ms=0.1, seed=1)
        built = [REGION_CREATORS[kind]().build(network, name) for name in ("left", "right")]
        for one, name in zip(built, ("left", "right"), strict=True):
            assert (one.name, one.kind) == (name, kind)
            assert all(population.name == f"{name}.{short}" for short, population in one.populations.items())
            assert one.inhibitory <= set(one.populations)
            assert one.inputs
            assert one.outputs
            for port in one.inputs:
                assert one.input(port) in one.populations.values()
            for port in one.outputs:
                assert one.output(port) in one.populations.values()
            assert one.input() is one.input(one.inputs[0])
            assert one.output() is one.output(one.outputs[0])
            with pytest.raises(InvalidArgument, match=f"region '{name}' has no input 'nowhere'; there is"):
                one.input("nowhere")
            with pytest.raises(InvalidArgument, match=f"region '{name}' has no output 'nowhere'"):
                one.output("nowhere")
        assert len({population.name for population in network.populations}) == len(network.populations)
