from __future__ import annotations

import msgspec
import pytest

from neuraxis.brain.config import BrainConfig, Config, GlobalConfig, check_batch_tolerance
from neuraxis.brain.spec import BrainSpec, PathwaySpec, RegionSpec, SensorSpec
from neuraxis.errors import InvalidArgument, InvalidType, SpecError
from tests.brain.test_spec import KINDS


def small(seed: int = 1) -> BrainSpec:
    return BrainSpec(
        name="small",
        seed=seed,
        regions={
            "relay": RegionSpec(kind="relay"),
            "sheet": RegionSpec(kind="sheet", config={"neurons": 50, "tau_ms": 5.0}),
        },
        pathways=(
            PathwaySpec(source="eye", target="relay", delay_ms=2.0),
            PathwaySpec(source="relay", target="sheet", delay_ms=1.5, name="up"),
        ),
        sensors={"eye": SensorSpec(neurons=10)},
    )


def never(seed: int) -> BrainSpec:
    raise AssertionError("the default brain was made")


def test_defaults_run_the_default_brain_here():
    config = Config()
    assert (config.brain.parallel, config.brain.workers, config.brain.on_worker_loss) == (False, "auto", "raise")
    assert config.to_spec(small, KINDS) == small(1)


@pytest.mark.parametrize(
    ("kind", "fields", "error", "text"),
    [
        (GlobalConfig, {"device": "gpu"}, InvalidArgument, "device='gpu': 'cpu', 'cuda' or 'cuda:0' is expected"),
        (GlobalConfig, {"device": "cuda:"}, InvalidArgument, "device='cuda:'"),
        (GlobalConfig, {"device": None}, InvalidType, "device=None"),
        (GlobalConfig, {"seed": -1}, InvalidArgument, "seed=-1"),
        (GlobalConfig, {"seed": 1.0}, InvalidType, "seed=1.0"),
        (GlobalConfig, {"dt_ms": 0}, InvalidArgument, "dt_ms=0"),
        (BrainConfig, {"parallel": 1}, InvalidType, "parallel=1"),
        (BrainConfig, {"workers": 0}, InvalidArgument, "workers=0: must be 1 or more"),
        (BrainConfig, {"workers": "all"}, InvalidArgument, "workers='all': a whole number or 'auto'"),
        (BrainConfig, {"workers": None}, InvalidType, "workers=None"),
        (BrainConfig, {"batch_tolerance_ms": 0.0}, InvalidArgument, "batch_tolerance_ms=0.0: must be above 0"),
        (BrainConfig, {"on_worker_loss": "restrat"}, InvalidArgument, "did you mean 'restart'?"),
        (BrainConfig, {"checkpoint_every_ms": -5}, InvalidArgument, "checkpoint_every_ms=-5"),
        (BrainConfig, {"spec": "brain.toml"}, InvalidType, "spec='brain.toml': a BrainSpec is expected"),
        (Config, {"brain": {}}, InvalidType, "brain={}: a BrainConfig is expected"),
    ],
)
def test_a_bad_field_raises_when_the_configuration_is_made(kind, fields, error, text):
    with pytest.raises(error) as caught:
        kind(**fields)
    assert text in str(caught.value)


def test_the_seed_and_the_step_of_the_configuration_come_before_the_brains_own():
    own = small(seed=5)
    assert Config(brain=BrainConfig(spec=own)).to_spec(never, KINDS) == own
    changed = Config(global_=GlobalConfig(seed=9, dt_ms=0.5), brain=BrainConfig(spec=own)).to_spec(never, KINDS)
    assert changed == msgspec.structs.replace(own, seed=9, dt_ms=0.5)
    asked = []
    Config(global_=GlobalConfig(seed=0)).to_spec(lambda seed: asked.append(seed) or small(seed), KINDS)
    assert asked == [0]


def test_a_step_that_a_delay_is_shorter_than_is_refused():
    with pytest.raises(SpecError, match=r"pathways\[1\].delay_ms: 1.5 \(up\): must be one step \(dt_ms=1.8\)"):
        Config(global_=GlobalConfig(dt_ms=1.8)).to_spec(small, KINDS)


def test_settings_of_regions_and_fields_of_pathways_can_be_changed():
    brain = BrainConfig(
        regions={"sheet": {"neurons": 70}}, pathways={"up": {"delay_ms": 4}, "eye->relay": {"weight": 2.0}}
    )
    spec = Config(brain=brain).to_spec(small, KINDS)
    assert spec.regions == {
        "relay": RegionSpec(kind="relay"),
        "sheet": RegionSpec(kind="sheet", config={"neurons": 70, "tau_ms": 5.0}),
    }
    assert spec.pathways == (
        PathwaySpec(source="eye", target="relay", delay_ms=2.0, weight=2.0),
        PathwaySpec(source="relay", target="sheet", delay_ms=4.0, name="up"),
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"regions": {"shet": {}}}, "regions: there is no region 'shet'; did you mean 'sheet'?"),
        ({"regions": {"sheet": {"neurons": "x"}}}, "regions.sheet.config.neurons: Expected int, got str"),
        ({"pathways": {"eye->relays": {}}}, "there is no pathway 'eye->relays'; did you mean 'eye->relay'?"),
        ({"pathways": {"up": {"wieght": 1.0}}}, "pathways[1].wieght: there is no such field; did you mean 'weight'?"),
        ({"pathways": {"up": {"delay_ms": 0.0}}}, "pathways[1].delay_ms: 0 (up): must be one step"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(changes, text):
    with pytest.raises(InvalidArgument) as caught:
        Config(brain=BrainConfig(**changes)).to_spec(small, KINDS)
    assert text in str(caught.value)


def test_only_users_own_regions_have_a_device_of_their_own():
    own = RegionSpec(kind="python", create="somewhere:made")
    eyes = msgspec.structs.replace(small(), regions={"seer": own, "far": msgspec.structs.replace(own, device="cuda:1")})
    eyes = msgspec.structs.replace(eyes, pathways=(), neuromodulators={}, effectors={})
    spec = Config(global_=GlobalConfig(device="cuda:0"), brain=BrainConfig(spec=eyes)).to_spec(never, KINDS)
    assert {name: region.device for name, region in spec.regions.items()} == {"seer": "cuda:0", "far": "cuda:1"}
    spec = Config(global_=GlobalConfig(device="cuda"), brain=BrainConfig(spec=small())).to_spec(never, KINDS)
    assert {region.device for region in spec.regions.values()} == {"cpu"}, "the brain as a whole is on the GPU"
    alone = msgspec.structs.replace(small().regions["relay"], device="cuda")
    wrong = msgspec.structs.replace(small(), regions={**small().regions, "relay": alone})
    with pytest.raises(SpecError, match=r"regions.relay.device: 'cuda': only regions of kind 'python' have a device"):
        Config(brain=BrainConfig(spec=wrong)).to_spec(never, KINDS)


def test_the_batch_tolerance_is_below_the_shortest_delay():
    check_batch_tolerance(small(), 1.4)
    for tolerance in (1.5, 1.6):
        with pytest.raises(InvalidArgument, match=r"which is 1.5 ms, of 'up'"):
            check_batch_tolerance(small(), tolerance)
    with pytest.raises(InvalidArgument, match="must be above 0"):
        check_batch_tolerance(small(), 0.0)
    check_batch_tolerance(BrainSpec(name="alone"), 1e9)
    with pytest.raises(InvalidArgument, match="'up'"):
        Config(brain=BrainConfig(batch_tolerance_ms=1.5)).to_spec(small, KINDS)


def test_a_configuration_can_be_read_from_tables():
    tables = {"global": {"seed": 4}, "brain": {"parallel": True, "workers": 3}}
    assert msgspec.convert(tables, Config) == Config(
        global_=GlobalConfig(seed=4), brain=BrainConfig(parallel=True, workers=3)
    )
    with pytest.raises(msgspec.ValidationError, match=r"workers=0: must be 1 or more - at `\$.brain`"):
        msgspec.convert({"brain": {"workers": 0}}, Config)
