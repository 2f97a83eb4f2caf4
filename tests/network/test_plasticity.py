from __future__ import annotations

import pickle

import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import STDP, HomeostaticScaling, RewardSTDP, TsodyksMarkram
from neuraxis.network.plasticity import as_plasticity

REWARD = {"w_max": 2.0, "a_plus": 0.1, "a_minus": 0.2}
EVERY = [
    STDP.additive(w_max=1.0),
    STDP(w_max=1.0, mu_plus=0.3),
    RewardSTDP(**REWARD),
    TsodyksMarkram(),
    HomeostaticScaling(5.0, w_max=1.0),
]


def test_the_named_forms():
    additive = STDP.additive(w_max=3.0, tau_plus_ms=10, tau_minus_ms=15, learning_rate=0.02, alpha=1.1)
    assert additive == STDP(w_max=3.0, tau_plus_ms=10.0, tau_minus_ms=15.0, learning_rate=0.02, alpha=1.1)
    assert (additive.form, additive.mu_plus, additive.mu_minus) == ("bounded", 0.0, 0.0)
    multiplicative = STDP.multiplicative(w_max=3.0, tau_plus_ms=10, tau_minus_ms=15, learning_rate=0.02, alpha=1.1)
    assert (multiplicative.form, multiplicative.mu_plus, multiplicative.mu_minus) == ("bounded", 1.0, 1.0)
    assert (multiplicative.tau_plus_ms, multiplicative.tau_minus_ms, multiplicative.alpha) == (10.0, 15.0, 1.1)
    power_law = STDP.power_law(w_max=3.0, tau_plus_ms=10, tau_minus_ms=15, learning_rate=0.02, alpha=1.1, mu=0.5, w0=2)
    assert (power_law.form, power_law.mu_plus, power_law.w0) == ("power_law", 0.5, 2.0)
    assert (power_law.tau_plus_ms, power_law.tau_minus_ms, power_law.learning_rate) == (10.0, 15.0, 0.02)


@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_pickling(rule):
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: STDP(w_max=0.0), r"STDP\.w_max=0\.0"),
        (lambda: STDP(w_max=float("inf")), r"STDP\.w_max=inf"),
        (lambda: STDP(w_max=1.0, tau_plus_ms=0.0), r"STDP\.tau_plus_ms=0\.0"),
        (lambda: STDP(w_max=1.0, tau_minus_ms=-1.0), r"STDP\.tau_minus_ms=-1\.0"),
        (lambda: STDP(w_max=1.0, learning_rate=-0.1), r"STDP\.learning_rate=-0\.1"),
        (lambda: STDP(w_max=1.0, alpha=float("nan")), r"STDP\.alpha=nan"),
        (lambda: STDP(w_max=1.0, mu_plus=-0.5), r"STDP\.mu_plus=-0\.5"),
        (lambda: STDP(w_max=1.0, mu_minus=-0.5), r"STDP\.mu_minus=-0\.5"),
        (lambda: STDP(w_max=1.0, form="powerlaw"), r"STDP\.form='powerlaw': did you mean 'power_law'"),
        (lambda: STDP(w_max=1.0, kind="triplet"), r"STDP\.kind='triplet'"),
        (lambda: STDP.power_law(w_max=1.0, w0=0.0), r"STDP\.w0=0\.0"),
        (lambda: RewardSTDP(**REWARD | {"w_max": -1.0}), r"RewardSTDP\.w_max=-1\.0"),
        (lambda: RewardSTDP(**REWARD, w_min=2.0), r"RewardSTDP\.w_min=2\.0.*w_max=2\.0"),
        (lambda: RewardSTDP(**REWARD, w_min=-1.0), r"RewardSTDP\.w_min=-1\.0"),
        (lambda: RewardSTDP(**REWARD, tau_eligibility_ms=0.0), r"RewardSTDP\.tau_eligibility_ms=0\.0"),
        (lambda: RewardSTDP(**REWARD, every_ms=0.0), r"RewardSTDP\.every_ms=0\.0"),
        (lambda: RewardSTDP(**REWARD | {"a_plus": float("nan")}), r"RewardSTDP\.a_plus=nan"),
        (lambda: RewardSTDP(**REWARD, modulator=" "), r"RewardSTDP\.modulator=' '"),
        (lambda: TsodyksMarkram(u=0.0), r"TsodyksMarkram\.u=0\.0"),
        (lambda: TsodyksMarkram(u=1.5), r"TsodyksMarkram\.u=1\.5"),
        (lambda: TsodyksMarkram(tau_recovery_ms=0.0), r"TsodyksMarkram\.tau_recovery_ms=0\.0"),
        (lambda: TsodyksMarkram(tau_facilitation_ms=-1.0), r"TsodyksMarkram\.tau_facilitation_ms=-1\.0"),
        (lambda: HomeostaticScaling(0.0, w_max=1.0), r"HomeostaticScaling\.target_rate_hz=0\.0"),
        (lambda: HomeostaticScaling(5.0, w_max=1.0, strength=0.0), r"HomeostaticScaling\.strength=0\.0"),
        (lambda: HomeostaticScaling(5.0, w_max=1.0, w_min=1.5), r"HomeostaticScaling\.w_min=1\.5"),
        (lambda: HomeostaticScaling(5.0, w_max=1.0, every_ms=float("inf")), r"HomeostaticScaling\.every_ms=inf"),
    ],
)
def test_impossible_fields(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: STDP(w_max="1"),
        lambda: STDP(w_max=True),
        lambda: STDP(w_max=1.0, form=None),
        lambda: TsodyksMarkram(u=None),
        lambda: RewardSTDP(**REWARD, modulator=3),
    ],
)
def test_fields_of_the_wrong_type(make):
    with pytest.raises(InvalidType, match="="):
        make()


def test_the_largest_weight_has_no_default():
    for make in (STDP, STDP.additive, STDP.multiplicative, STDP.power_law):
        with pytest.raises(TypeError, match="w_max"):
            make()


def test_rules_that_go_together():
    stdp, reward, short_term, scaling = EVERY[0], EVERY[2], EVERY[3], EVERY[4]
    assert as_plasticity(None) == ()
    assert as_plasticity([]) == ()
    assert as_plasticity(stdp) == (stdp,)
    assert as_plasticity([short_term]) == (short_term,)
    assert as_plasticity((scaling, reward)) == (scaling, reward)


@pytest.mark.parametrize(
    "rules",
    [[EVERY[0], EVERY[1]], [EVERY[0], EVERY[2]], [EVERY[4], EVERY[4]], [EVERY[3], EVERY[0]], [EVERY[3], EVERY[3]]],
)
def test_rules_that_do_not(rules):
    with pytest.raises(InvalidArgument, match="plasticity="):
        as_plasticity(rules)


@pytest.mark.parametrize("value", ["STDP", STDP, 1.0, [EVERY[0], None]])
def test_values_that_are_no_rules_are_refused(value):
    with pytest.raises(InvalidType, match="plasticity="):
        as_plasticity(value)
