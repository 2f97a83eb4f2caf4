"""The brain from a user's view: three methods to make one, its inputs, actions and reports."""

from __future__ import annotations

import json
import math
from html import unescape

import msgspec
import numpy as np
import pytest
import torch

from neuraxis.brain import Brain, BrainBuilder, BrainConfig, Config, GlobalConfig, default_brain, read_spec, write_spec
from neuraxis.brain.spec import BrainSpec
from neuraxis.errors import InvalidArgument, InvalidType, NeuraxisError, SimulationClosed, SpecError
from neuraxis.network.network import LARGEST_STEP
from tests.brain import python_regions

PLASTIC = ["cortex.L5e->striatum->D1", "cortex.L5e->striatum->D2", "cortex.L5e->striatum->critic"]


def small(seed: int = 1) -> BrainBuilder:
    """A brain of three regions that can do all that a brain does, and is built in a moment."""
    return (
        BrainBuilder("small", seed=seed)
        .rhythm("theta", 8.0)
        .rhythm("gamma", 40.0, phase=0.25)
        .neuromodulator("dopamine", baseline=1.0, tau_ms=100.0, delay_ms=1.0)
        .neuromodulator("acetylcholine", tau_ms=200.0, delay_ms=2.3)
        .neuromodulator("noradrenaline", tau_ms=60.0, delay_ms=5.0)
        .sensor("cue", 40, groups=4, rate_hz=60.0)
        .region("thalamus", "thalamus", relay=40)
        .region("cortex", "cortex", neurons=80)
        .region("striatum", "striatum", cells_per_action=10, fast_spiking=8, critic=10)
        .effector("motor", "striatum", 4, neurons=40, duration_ms=50.0)
        .reward(critic="striatum.critic", lowest_expected=0.2, dopamine=2.0, acetylcholine=0.5, noradrenaline=1.5)
        .pathway("cue", "thalamus", 2.0, topographic=True)
        .pathway("thalamus", "cortex", 3.0, topographic=True)
        .pathway("cortex.L5e", "striatum", 4.0)
        .pathway("motor", "striatum.efference", 2.0, topographic=True)
    )


SMALL_TOML = """
name = "small"

[rhythms]
theta = { frequency_hz = 8 }
gamma = { frequency_hz = 40, phase = 0.25 }

[neuromodulators]
dopamine = { baseline = 1, tau_ms = 100 }
acetylcholine = { tau_ms = 200, delay_ms = 2.3 }
noradrenaline = { tau_ms = 60, delay_ms = 5 }

[sensors.cue]
neurons = 40
groups = 4
rate_hz = 60

[regions.thalamus]
kind = "thalamus"
config.relay = 40

[regions.cortex]
kind = "cortex"
config.neurons = 80

[regions.striatum]
kind = "striatum"
config = { cells_per_action = 10, fast_spiking = 8, critic = 10 }

[effectors.motor]
region = "striatum"
actions = 4
duration_ms = 50

[reward]
critic = "striatum.critic"
lowest_expected = 0.2
dopamine = 2
acetylcholine = 0.5
noradrenaline = 1.5

[[pathways]]
source = "cue"
target = "thalamus"
delay_ms = 2
topographic = true

[[pathways]]
source = "thalamus"
target = "cortex"
delay_ms = 3
topographic = true

[[pathways]]
source = "cortex.L5e"
target = "striatum"
delay_ms = 4

[[pathways]]
source = "motor"
target = "striatum.efference"
delay_ms = 2
topographic = true
"""


def configured() -> Config:
    """The same brain, from another one that has other numbers."""
    other = small(seed=99).spec()
    pathways = tuple(
        msgspec.structs.replace(one, delay_ms=9.0) if one.label == "thalamus->cortex" else one for one in other.pathways
    )
    regions = {**other.regions, "thalamus": msgspec.structs.replace(other.regions["thalamus"], config={"relay": 80})}
    return Config(
        global_=GlobalConfig(device="cpu", seed=1),
        brain=BrainConfig(
            spec=msgspec.structs.replace(other, pathways=pathways, regions=regions),
            regions={"thalamus": {"relay": 40}},
            pathways={"thalamus->cortex": {"delay_ms": 3.0}},
        ),
    )


@pytest.fixture(scope="module")
def brain():
    """For tests that take it as they find it."""
    with Brain(small().spec()) as brain:
        yield brain


@pytest.fixture(scope="module")
def begun(brain, tmp_path_factory):
    """A folder with the brain's state after some activity: from there two runs can be compared."""
    folder = tmp_path_factory.mktemp("begun")
    brain.forward([0, 1, 0, 0], 500)
    brain.save(folder)
    return folder


def outcome(brain, folder, call):
    """The fingerprint after a call that starts from a saved state."""
    brain.restore(folder)
    call(brain)
    return brain.fingerprint()


# --- to make ---


def test_a_file_a_configuration_and_a_builder_make_the_same_brain(tmp_path):
    path = tmp_path / "brain.toml"
    path.write_text(SMALL_TOML)
    made = [Brain.from_file(path), Brain.from_config(configured()), Brain(small().spec())]
    fingerprints = set()
    for brain in made:
        with brain:
            assert brain.spec == small().spec()
            brain.forward([0, 1, 0, 0], 600)
            brain.select_action()
            brain.deliver_reward(1.0)
            assert brain.run(20.0).of("cortex") > 0
            fingerprints.add(brain.fingerprint())
    assert len(fingerprints) == 1
    with Brain(small(seed=2).spec()) as brain:
        brain.forward([0, 1, 0, 0], 600)
        brain.select_action()
        brain.deliver_reward(1.0)
        brain.run(20.0)
        assert brain.fingerprint() not in fingerprints


def test_a_brain_writes_a_file_that_makes_it_again(brain, tmp_path):
    brain.save_spec(tmp_path / "again.toml")
    with Brain.from_file(tmp_path / "again.toml") as again:
        assert again.spec == brain.spec
        assert repr(again.spec) == repr(brain.spec)  # in the same order, too


def test_the_default_brain_can_be_written_and_read(tmp_path):
    spec = default_brain(seed=3)
    write_spec(spec, tmp_path / "brain.toml")
    assert read_spec(tmp_path / "brain.toml") == spec
    assert Config(global_=GlobalConfig(seed=3)).to_spec(default_brain) == spec


def test_the_default_brain_has_2000_neurons_and_all_kinds_of_regions():
    with Brain.default(seed=5) as brain:
        assert brain.spec == default_brain(5)
        assert brain.neuron_count >= 2000
        assert {region.kind for region in brain.spec.regions.values()} == {
            "thalamus", "cortex", "hippocampus", "prefrontal", "striatum", "cerebellum",
        }  # fmt: skip


def test_options_of_a_configuration_reach_the_brain():
    config = Config(brain=BrainConfig(spec=small().spec(), parallel=False, workers=4))
    with Brain.from_config(config, record=True) as brain:
        assert brain.workers == 1
        brain.run(1.0)
        assert brain.spikes("cue")[0].size == 0
    with pytest.raises(InvalidType, match="a Config is expected, not dict"):
        Brain.from_config({"brain": {}})


@pytest.mark.parametrize(
    ("old", "new", "field", "reason"),
    [
        ("config.relay = 40", "config.rely = 40", "regions.thalamus.config.rely", "did you mean 'relay'"),
        ("config.relay = 40", 'config.relay = "x"', "regions.thalamus.config.relay", "Expected int, got str"),
        ("config.relay = 40", "config.relay = 1", "regions.thalamus.config", "relay=1: must be 4 or more"),
        ('kind = "cortex"', 'kind = "kortex"', "regions.cortex.kind", "did you mean 'cortex'?"),
        ('kind = "cortex"', 'kind = "cortex"\ndevice = "cuda"', "regions.cortex.device", "a device of their own"),
        ("groups = 4", "groups = 3", "sensors.cue.groups", "40 neurons cannot form 3 equal groups"),
        ("delay_ms = 4", "delay_ms = 0", "pathways[2].delay_ms", "must be one step"),
        ('region = "striatum"', 'region = "stratum"', "effectors.motor.region", "did you mean 'striatum'?"),
        # What only a region that was built knows:
        ('"cortex"\ndelay', '"cortex.L9"\ndelay', "pathways[1] (thalamus->cortex.L9)", "has no input 'L9'; there is"),
        ('"cortex.L5e"', '"cortex.L7"', "pathways[2] (cortex.L7->striatum)", "has no output 'L7'"),
        ("groups = 4", "groups = 5", "pathways[0] (cue->thalamus)", "has 5 groups and 'thalamus' has 4"),
        ('"striatum.critic"', '"striatum.crtic"', "reward.critic", "no population 'crtic'; it has D1"),
        ('region = "striatum"', 'region = "cortex"', "effectors.motor.region", "D1"),
    ],
)
def test_an_error_in_a_file_names_its_path_and_field(tmp_path, old, new, field, reason):
    path = tmp_path / "brain.toml"
    assert old in SMALL_TOML
    path.write_text(SMALL_TOML.replace(old, new))
    with pytest.raises(SpecError) as caught:
        Brain.from_file(path).close()
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert caught.value.file == str(path)


def test_an_effector_needs_as_many_actions_as_its_region_has():
    spec = BrainBuilder("b").region("s", "striatum", actions=4).effector("motor", "s", 2, neurons=20).spec()
    with pytest.raises(SpecError, match="4") as caught:
        Brain(spec).close()
    assert caught.value.field == "effectors.motor.actions"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": 0}, InvalidArgument, "workers=0"),
        ({"workers": "two"}, InvalidType, "workers='two'"),
        ({"workers": True}, InvalidType, "workers=True"),
        ({"on_worker_loss": "cry"}, InvalidArgument, "on_worker_loss='cry'"),
        ({"checkpoint_every_ms": 0}, InvalidArgument, "checkpoint_every_ms=0"),
        ({"batch_tolerance_ms": 2.0}, InvalidArgument, "below the shortest delay .* 2 ms, of 'cue->thalamus'"),
        ({"batch_tolerance_ms": 0}, InvalidArgument, "batch_tolerance_ms=0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Brain(small().spec(), **options)


def test_a_brain_without_regions_is_refused():
    with pytest.raises(InvalidArgument, match="regions: is empty; add one"):
        Brain(BrainBuilder("empty").spec())
    with pytest.raises(SpecError, match="a BrainSpec is expected, not dict"):
        Brain({"name": "brain"})


def test_auto_runs_a_small_brain_in_one_process_and_gives_the_reason():
    tiny = BrainBuilder("tiny").sensor("cue", 4).region("t", "thalamus", relay=4)
    for spec in (tiny.spec(), tiny.pathway("cue", "t", 1.0).spec()):
        with Brain(spec, workers="auto") as brain:
            assert brain.workers == 1
            assert brain.workers_reason.startswith("sequential: a step of ")


# --- to give ---


def sensing_spec(**rates: float) -> BrainSpec:
    """A sensor that fires in most steps at an input of 1, and in none at 0."""
    return (
        BrainBuilder("sensing")
        .sensor("eye", 12, groups=3, rate_hz=20_000.0)
        .sensor("ear", 4, rate_hz=20_000.0, background_hz=100.0)
        .region("thalamus", "thalamus", relay=12, groups=3)
        .pathway("eye", "thalamus", 2.0)
        .spec()
    )


@pytest.fixture(scope="module")
def sensing():
    with Brain(sensing_spec(), record=True) as brain:
        yield brain


def spikes_during(brain, name, call):
    """(steps from the beginning of the call, neurons) of a sensor's spikes in a call."""
    first = brain.steps
    call()
    times, ids = brain.spikes(name)
    steps = np.rint(times / 0.1).astype(int)
    return steps[steps > first] - first, ids[steps > first]


def test_one_number_for_each_group(sensing):
    _, ids = spikes_during(sensing, "eye", lambda: sensing.forward({"eye": [0, 1, 0]}, 100))
    counts = np.bincount(ids, minlength=12)
    # A Poisson process of 20 kHz has a spike in 1 - exp(-2) of the steps of 0.1 ms.
    assert (counts[4:8] > 70).all()
    assert counts.sum() == counts[4:8].sum()
    assert counts.sum() / 400 == pytest.approx(1 - math.exp(-2), abs=0.06)


def test_one_number_for_each_neuron(sensing):
    given = np.zeros(12)
    given[[2, 9]] = 1.0, 0.1
    counts = np.bincount(spikes_during(sensing, "eye", lambda: sensing.forward({"eye": given}, 300))[1], minlength=12)
    assert counts[2] / 300 == pytest.approx(1 - math.exp(-2), abs=0.08)
    assert counts[9] / 300 == pytest.approx(1 - math.exp(-0.2), abs=0.08)
    assert counts.sum() == counts[2] + counts[9]


def test_given_spikes_occur_in_their_step_only(sensing):
    given = np.zeros((50, 12), bool)
    at, ids = np.array([0, 0, 7, 49]), np.array([3, 11, 0, 5])
    given[at, ids] = True
    steps, found = spikes_during(sensing, "eye", lambda: sensing.forward({"eye": given}, 50))
    assert np.array_equal(steps, at + 1)
    assert np.array_equal(found, ids)
    assert not spikes_during(sensing, "eye", lambda: sensing.run(5.0))[0].size


def test_a_sensor_that_is_not_named_has_its_background(sensing):
    steps, _ = spikes_during(sensing, "ear", lambda: sensing.forward({"eye": [1, 1, 1]}, 1000))
    assert len(steps) / 4000 == pytest.approx(0.01, abs=0.006)
    assert not spikes_during(sensing, "eye", lambda: sensing.forward({"ear": [1]}, 100))[0].size


def test_where_there_are_several_sensors_a_bare_array_is_refused(sensing):
    with pytest.raises(InvalidArgument, match="a dict by sensor is expected; the sensors of the brain are: eye, ear"):
        sensing.forward([1, 0, 0], 10)


CUE = [0.0, 1.0, 0.25, 0.0]


@pytest.mark.parametrize(
    "same",
    [
        {"cue": CUE},
        np.array(CUE, np.float32),
        np.repeat(CUE, 10),
        torch.tensor(CUE),
        {"cue": torch.tensor(CUE, dtype=torch.float64, requires_grad=True)},
        torch.tensor(CUE, dtype=torch.bfloat16),
    ],
    ids=["dict", "numpy", "neurons", "torch", "grad", "bfloat16"],
)
def test_every_form_of_the_same_input_gives_the_same(brain, begun, same):
    expected = outcome(brain, begun, lambda b: b.forward(CUE, 300))
    assert outcome(brain, begun, lambda b: b.forward(same, 300)) == expected
    assert outcome(brain, begun, lambda b: b.forward([1, 0, 0, 0], 300)) != expected


def test_the_form_of_spikes_does_not_matter(brain, begun):
    spikes = np.random.default_rng(1).random((200, 40)) < 0.02
    expected = outcome(brain, begun, lambda b: b.forward(spikes, 200))
    for same in ({"cue": spikes.astype(float)}, torch.from_numpy(spikes), spikes.tolist()):
        assert outcome(brain, begun, lambda b, same=same: b.forward(same, 200)) == expected
    assert outcome(brain, begun, lambda b: b.forward(~spikes, 200)) != expected


NAN = float("nan")


@pytest.mark.parametrize(
    ("given", "steps", "error", "message"),
    [
        ([1, 0, 0], 10, InvalidArgument, r"has shape \(3,\); 4 numbers .* or 40"),
        ([[1, 0, 0, 0]], 10, InvalidArgument, r"spikes have shape \(1, 4\); 10 steps by 40 neurons"),
        (np.zeros((9, 40)), 10, InvalidArgument, r"spikes have shape \(9, 40\); 10 steps by 40"),
        (np.zeros((10, 40, 1)), 10, InvalidArgument, "an array of finite numbers"),
        (1.0, 10, InvalidArgument, "an array of finite numbers"),
        ([], 10, InvalidArgument, "an array of finite numbers"),
        ([1, 0, NAN, 0], 10, InvalidArgument, "finite"),
        ([1, 0, math.inf, 0], 10, InvalidArgument, "finite"),
        (np.full((10, 40), NAN), 10, InvalidArgument, "finite"),
        ([1, -0.5, 0, 0], 10, InvalidArgument, "-0.5: numbers from 0"),
        (-np.ones((10, 40)), 10, InvalidArgument, "input"),
        ({"cue": [1, 0, 0, 0], "ear": [1]}, 10, InvalidArgument, "no sensor 'ear'; .*'cue'"),
        ({"motor": [1, 0, 0, 0]}, 10, InvalidArgument, "no sensor 'motor'"),
        ({3: [1, 0, 0, 0]}, 10, InvalidArgument, "no sensor 3"),
        ([[1, 0], [0]], 10, InvalidType, "numbers are expected"),
        ("north", 10, InvalidType, "numbers are expected"),
        (["1", "0", "0", "0"], 10, InvalidType, "numbers are expected"),
        (np.array([1j, 0, 0, 0]), 10, InvalidType, "numbers are expected"),
        ([1, 0, 0, object()], 10, InvalidType, "numbers are expected"),
        ([1, 0, 0, 0], -1, InvalidArgument, "n_timesteps=-1"),
        ([1, 0, 0, 0], 10.0, InvalidType, "n_timesteps=10.0"),
        ([1, 0, 0, 0], LARGEST_STEP, InvalidArgument, "steps"),
    ],
)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_invalid_input_is_refused_and_changes_nothing(brain, begun, given, steps, error, message):
    brain.restore(begun)
    fingerprint, at = brain.fingerprint(), brain.steps
    with pytest.raises(error, match=message):
        brain.forward(given, steps)
    assert (brain.fingerprint(), brain.steps) == (fingerprint, at)
    assert outcome(brain, begun, lambda b: b.run(5.0)) == undisturbed_outcome(brain, begun)


def undisturbed_outcome(brain, begun):
    """Return the outcome of the saved state without an attempted call before."""
    if begun not in _UNDISTURBED:
        _UNDISTURBED[begun] = outcome(brain, begun, lambda b: b.run(5.0))
    return _UNDISTURBED[begun]


_UNDISTURBED: dict = {}


def test_data_that_cannot_be_serialized_are_refused_and_change_nothing():
    with Brain(small().python_region("judge", python_regions.Judge, neurons=4).spec()) as brain:
        brain.run(1.0)
        fingerprint = brain.fingerprint()
        with pytest.raises(InvalidType, match="object"):
            brain.forward({"cue": [1, 0, 0, 0], "judge": object()}, 10)
        assert (brain.fingerprint(), brain.steps) == (fingerprint, 10)


# --- to run ---


def test_activity_of_one_run(brain):
    before, at = brain.spike_totals(), brain.time_ms
    done = brain.forward([1, 0, 0, 0], 2000)
    after = brain.spike_totals()
    assert done.spikes == {name: after[name] - before[name] for name in after}
    assert (done.duration_ms, done.time_ms) == (pytest.approx(200.0), pytest.approx(at + 200.0))
    assert done.rates_hz["cue.cells"] == pytest.approx(done.spikes["cue.cells"] / 40 / 0.2)
    assert 0 < done.rates_hz["cue.cells"] < 60 / 4 * 2
    assert done.of("cortex") == sum(n for name, n in done.spikes.items() if name.startswith("cortex.")) > 0
    nothing = brain.forward(None, 0)
    assert nothing.duration_ms == 0
    assert set(nothing.spikes.values()) == {0}
    assert set(nothing.rates_hz.values()) == {0.0}


def test_pieces_are_as_good_as_the_whole(brain, begun):
    def by_pieces(b):
        for piece in (1, 99, 200):
            b.step(CUE, piece)

    assert outcome(brain, begun, by_pieces) == outcome(brain, begun, lambda b: b.forward(CUE, 300))


def test_a_run_is_a_stretch_without_input(brain, begun):
    expected = outcome(brain, begun, lambda b: b.forward(None, 125))
    assert outcome(brain, begun, lambda b: b.run(12.5)) == expected
    for time_ms in (-1.0, NAN, math.inf):
        with pytest.raises(InvalidArgument, match="time_ms"):
            brain.run(time_ms)
    with pytest.raises(NeuraxisError, match="time_ms='1'"):
        brain.run("1")


def test_rhythms_turn_with_the_time(brain, begun):
    brain.restore(begun)
    for _ in range(3):
        seconds = brain.steps * 1e-4
        assert brain.phase("theta") == pytest.approx((8.0 * seconds) % 1, abs=1e-9)
        assert brain.phase("gamma") == pytest.approx((40.0 * seconds + 0.25) % 1, abs=1e-9)
        brain.run(17.3)
    with pytest.raises(InvalidArgument, match=r"rhythm='thta': did you mean 'theta'\?"):
        brain.phase("thta")


# --- to show ---


def test_a_brain_its_activity_and_its_diagnostics_are_shown_as_text_and_as_tables():
    with Brain(small().spec()) as brain:
        activity = brain.run(10.0)
        diagnostics = brain.diagnostics()
        assert repr(brain).startswith("<Brain 'small': ")
        for shown in (brain, activity, diagnostics):
            html = unescape(shown._repr_html_())
            assert repr(shown).splitlines()[0].strip("<>") in html
            assert html.count("<tr>") > 3
        assert "striatum" in repr(diagnostics)


# --- to act and to learn ---


def test_an_action_moves_its_cells_for_its_time_and_no_others():
    with Brain(small().spec(), record=True) as brain:
        brain.forward([1, 0, 0, 0], 500)
        action = brain.select_action()
        chosen_at = brain.steps
        brain.run(100.0)
        times, ids = brain.spikes("motor")
        steps = np.rint(times / 0.1).astype(int) - chosen_at
        assert len(steps) > 20
        assert set(ids // 10) == {action}
        assert steps.min() > 0
        assert steps.max() <= 500  # duration_ms=50
        assert steps.max() > 400
        choice = brain.last_choice
        assert choice.action == action
        assert len(choice.values) == 4
        assert brain.state()["choice"] == choice.as_json()


def test_a_new_action_takes_the_place_of_the_old_one():
    with Brain(small().spec(), record=True) as brain:
        chosen = []
        for _ in range(12):
            brain.run(10.0)
            chosen.append((brain.steps, brain.select_action()))
        assert len({action for _, action in chosen}) > 1
        brain.run(10.0)
        times, ids = brain.spikes("motor")
        steps = np.rint(times / 0.1).astype(int)
        for start, action in chosen:
            here = (steps > start) & (steps <= start + 100)
            assert set(ids[here] // 10) == {action}


def test_actions_of_two_effectors_each_end():
    spec = small().effector("eyes", "striatum", 4, neurons=40, duration_ms=30.0).spec()
    with Brain(spec, record=True) as brain:
        brain.run(1.0)
        with pytest.raises(InvalidArgument, match="the brain has 2; choose one: motor, eyes"):
            brain.select_action()
        brain.select_action("motor")
        brain.select_action("eyes")
        done = brain.run(30.0)
        assert done.of("motor") > 0
        assert done.of("eyes") > 0
        assert brain.run(20.0).of("eyes") == 0
        assert brain.run(20.0).of("motor") == 0


def test_only_effectors_that_exist_can_act(brain):
    with pytest.raises(InvalidArgument, match="effector='legs': there is 'motor'"):
        brain.select_action("legs")
    numb = BrainBuilder("numb").region("t", "thalamus", relay=4).spec()
    with Brain(numb) as brain, pytest.raises(InvalidArgument, match="the brain has 0"):
        brain.select_action()


@pytest.mark.parametrize("reward", [1.0, 0.0, -1.0])
def test_dopamine_follows_the_reward_prediction_error(brain, begun, reward):
    brain.restore(begun)
    brain.run(300.0)  # whatever was released before has gone
    base = brain.level("dopamine")
    brain.forward([0, 0, 1, 0], 1000)
    brain.select_action()
    expected = brain.last_choice.expected_reward
    assert 0.2 <= expected <= 1.0
    brain.run(10.0)
    error = brain.deliver_reward(reward)
    assert error == reward - expected
    assert brain.level("dopamine") == base == 1.0
    brain.step(None, 9)
    assert brain.level("dopamine") == 1.0  # it takes 10 steps
    brain.step(None, 1)
    assert brain.level("dopamine") == pytest.approx(1.0 + 2.0 * error, rel=1e-6)
    assert (brain.level("dopamine") > 1.0) == (reward > expected)
    assert brain.level("acetylcholine") == 0.0
    brain.step(None, 12)
    assert brain.level("acetylcholine") == 0.0
    brain.step(None, 1)
    assert brain.level("acetylcholine") == pytest.approx(0.5 * abs(error), rel=1e-6)
    brain.step(None, 26)
    assert brain.level("noradrenaline") == 0.0
    brain.step(None, 1)
    assert brain.level("noradrenaline") == pytest.approx(1.5, rel=1e-6)
    # Since its arrival, dopamine has decayed for 40 steps of 0.1 ms, with 100 ms.
    assert brain.level("dopamine") == pytest.approx(1.0 + 2.0 * error * math.exp(-0.04), rel=1e-3)


def test_without_an_action_the_critic_gives_the_expected_reward():
    with Brain(small().spec()) as brain:
        assert brain.last_choice is None
        assert brain.deliver_reward(1.0) == pytest.approx(0.8)  # nothing has spiked: lowest_expected=0.2
        assert brain.state()["choice"] is None


def test_pending_releases_add_up(brain, begun):
    brain.restore(begun)
    brain.run(300.0)
    brain.release("dopamine", 0.5)
    brain.step(None, 4)
    brain.release("dopamine", -0.25)
    brain.step(None, 6)
    assert brain.level("dopamine") == pytest.approx(1.5)
    brain.step(None, 4)
    assert brain.level("dopamine") == pytest.approx(1.0 + 0.5 * math.exp(-0.004) - 0.25)


def test_rewards_and_releases_that_cannot_be(brain, begun):
    brain.restore(begun)
    fingerprint = brain.fingerprint()
    for wrong, error in ((NAN, InvalidArgument), (math.inf, InvalidArgument), (True, InvalidType), ("1", InvalidType)):
        with pytest.raises(error, match="reward="):
            brain.deliver_reward(wrong)
        with pytest.raises(error, match="amount="):
            brain.release("dopamine", wrong)
    with pytest.raises(InvalidArgument, match="modulator='dopamin': did you mean 'dopamine'"):
        brain.release("dopamin", 1.0)
    with pytest.raises(InvalidArgument, match="no neuromodulator 'serotonin'"):
        brain.level("serotonin")
    assert brain.fingerprint() == fingerprint


def test_rewards_and_actions_are_part_of_the_fingerprint(brain, begun):
    def act(rewards):
        def call(b):
            for reward in rewards:
                b.deliver_reward(reward)

        return call

    found = {outcome(brain, begun, act(rewards)) for rewards in ([], [0.5], [0.25], [0.5, 0.25], [0.25, 0.5])}
    assert len(found) == 5  # though the levels are the same until the releases arrive


# --- lesions and learning ---


def test_a_lesioned_region_is_silent_and_the_others_go_on(brain, begun):
    brain.restore(begun)
    brain.lesion("thalamus")
    brain.run(20.0)  # pending releases arrive
    cut = brain.forward([1, 1, 1, 1], 2000)
    assert cut.of("thalamus") == 0
    assert cut.of("cue") > 100
    assert brain.state()["lesions"] == ["thalamus"]
    brain.lesion("striatum")
    brain.heal("thalamus")
    assert brain.state()["lesions"] == ["striatum"]
    healed = brain.forward([1, 1, 1, 1], 2000)
    assert healed.of("thalamus") > 100
    assert healed.of("cortex") > cut.of("cortex")
    assert healed.of("striatum") == 0
    with pytest.raises(InvalidArgument, match=r"region='cortx': did you mean 'cortex'\?"):
        brain.lesion("cortx")
    with pytest.raises(InvalidArgument, match="region='cortx'"):
        brain.heal("cortx")


def test_a_lesioned_striatum_has_no_values_and_chooses_by_chance(brain, begun):
    brain.restore(begun)
    brain.lesion("striatum")
    brain.run(1.0)
    chosen = []
    for _ in range(60):
        brain.forward([1, 0, 0, 0], 20)
        chosen.append(brain.select_action())
        assert brain.last_choice.values == (0.0, 0.0, 0.0, 0.0)
        assert brain.deliver_reward(1.0) == 0.8
    # 15 of each are expected; a multinomial with four equal parts stays within this but for 1 in 10,000 times.
    assert all(3 <= chosen.count(action) <= 30 for action in range(4))


def learn(brain, trials=3):
    for _ in range(trials):
        brain.forward([0, 1, 0, 0], 800)
        brain.select_action()
        brain.forward([0, 1, 0, 0], 300)
        brain.deliver_reward(1.0)
        brain.run(30.0)


def test_frozen_weights_keep_their_bits_until_they_may_learn_again(brain, begun):
    brain.restore(begun)
    learn(brain, 1)
    before = {name: brain.weights(name).tobytes() for name in PLASTIC}
    brain.freeze_learning()
    assert brain.state()["learning"] is False
    learn(brain)
    assert {name: brain.weights(name).tobytes() for name in PLASTIC} == before
    brain.freeze_learning(False)
    assert brain.state()["learning"] is True
    learn(brain)
    assert all(brain.weights(name).tobytes() != before[name] for name in PLASTIC)


# --- to look at ---


def test_the_state_is_plain_data_with_the_current_step(brain, begun):
    brain.restore(begun)
    state = brain.state()
    assert json.loads(json.dumps(state)) == state
    assert (state["name"], state["seed"], state["step"]) == ("small", 1, 500)
    assert state["time_ms"] == pytest.approx(50.0)
    assert state["learning"] is True
    assert state["lesions"] == []
    assert state["neuromodulators"] == {"dopamine": 1.0, "acetylcholine": 0.0, "noradrenaline": 0.0}
    assert state["rhythms"] == {"theta": brain.phase("theta"), "gamma": brain.phase("gamma")}
    assert state["rates_hz"]["cue.cells"] == pytest.approx(brain.spike_totals()["cue.cells"] / 40 / 0.05)


def test_diagnostics_report_rates_weights_and_workers(brain, begun):
    brain.restore(begun)
    brain.forward([1, 1, 1, 1], 1000)
    found = brain.diagnostics()
    assert json.loads(json.dumps(found.as_json())) is not None
    assert set(found.regions) == {"cue", "thalamus", "cortex", "striatum", "motor"}
    totals = brain.spike_totals()
    cells = {one.name: one.n for one in brain.lowered.network.populations}
    cortex = found.regions["cortex"]
    spikes = sum(n for name, n in totals.items() if name.startswith("cortex."))
    size = sum(n for name, n in cells.items() if name.startswith("cortex."))
    assert cortex.rate_hz == pytest.approx(spikes / size / 0.15)
    assert cortex.rates_hz["L4e"] == pytest.approx(totals["cortex.L4e"] / cells["cortex.L4e"] / 0.15)
    assert 0 < cortex.active <= 1
    assert cortex.excitation_to_inhibition > 0
    assert found.regions["cue"].excitation_to_inhibition is None
    assert found.regions["motor"].active == 0
    weights = brain.weights(PLASTIC[0]).astype(float)
    summary = found.weights[PLASTIC[0]]
    assert (summary.low, summary.high, summary.synapses) == (weights.min(), weights.max(), len(weights))
    assert summary.mean == pytest.approx(weights.mean())
    (worker,) = found.workers
    assert worker.step == brain.steps
    assert worker.memory_bytes > 2**20
    assert set(worker.regions) == set(found.regions)
    assert sum(worker.load_by_region.values()) == pytest.approx(1.0)


def test_a_region_with_a_too_high_rate_is_reported():
    loud = BrainBuilder("loud").sensor("eye", 10, rate_hz=2000.0).region("t", "thalamus", relay=10, groups=1)
    with Brain(loud.spec()) as brain:
        brain.forward([1], 500)
        assert any("region 'eye' fires at" in warning for warning in brain.diagnostics().warnings)


def test_spikes_are_there_where_they_are_recorded(brain, sensing):
    with pytest.raises(InvalidArgument, match="not recorded"):
        brain.spikes("cortex")
    times, ids = sensing.spikes("thalamus")
    assert len(times) == len(ids)
    assert (np.diff(times) >= 0).all()
    assert len(times) == sum(n for name, n in sensing.spike_totals().items() if name.startswith("thalamus."))
    with pytest.raises(InvalidArgument, match="region='thalamos'"):
        sensing.spikes("thalamos")


def test_in_one_process_there_is_nothing_to_balance(brain):
    brain.run(20.0)
    assert brain.rebalance() is False
    (shares,) = brain.load()
    assert set(shares) == {"waiting", "collecting", "delivering", "updating"}
    assert sum(shares.values()) == pytest.approx(1.0)


def test_the_repr_of_a_brain(brain):
    assert (
        repr(brain)
        == f"<Brain 'small': {brain.neuron_count:,} neurons in 3 regions, 1 worker, at {brain.time_ms:g} ms>"
    )


def test_the_real_time_factor_counts_simulated_time():
    with Brain(small().spec()) as brain:
        assert brain.real_time_factor == 0.0
        brain.run(20.0)
        assert 0 < brain.real_time_factor < 1000


# --- to end ---


def test_a_closed_brain_can_be_looked_at_and_nothing_more(tmp_path):
    brain = Brain(small().spec(), record=True)
    brain.forward([1, 1, 1, 1], 500)
    brain.close()
    brain.close()
    assert len(brain.spikes("cue")[0]) > 0
    assert "at 50 ms" in repr(brain)
    brain.save_spec(tmp_path / "brain.toml")
    for call in (
        lambda: brain.run(1.0),
        lambda: brain.forward([1, 0, 0, 0], 10),
        brain.select_action,
        brain.state,
        brain.diagnostics,
        brain.fingerprint,
        brain.freeze_learning,
        lambda: brain.lesion("cortex"),
        lambda: brain.level("dopamine"),
        lambda: brain.save(tmp_path / "state"),
        lambda: brain.restore(tmp_path / "state"),
    ):
        with pytest.raises(SimulationClosed, match="closed"):
            call()
    assert not (tmp_path / "state").exists()
