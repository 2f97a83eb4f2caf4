"""Small networks with features that a border between shards could break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuraxis.network import (
    STDP,
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    HomeostaticScaling,
    LogNormal,
    Network,
    Normal,
    OneToOne,
    PairwiseBernoulli,
    RewardSTDP,
    TsodyksMarkram,
    Uniform,
    equations,
    neuron_model,
    nmda_saturation,
    with_noise_current,
)
from neuraxis.network.arithmetic import random as random_number
from neuraxis.network.models import (
    adex,
    gamma_source,
    glif_5,
    hh_cond_exp,
    izhikevich,
    lif_alpha,
    lif_cond_exp,
    lif_delta,
    lif_exp,
    lif_exp_multi,
    lif_exp_two,
    lif_nmda,
    parrot,
    poisson_source,
    pp_delta,
    rate_linear,
    rate_tanh,
    rate_tanh_each,
    rate_threshold_linear,
    spike_source,
)
from neuraxis.network.models.catalogue import built_in_models

__all__ = ["DRIVES", "NETWORKS", "RATE_WEIGHTS", "SOURCES", "Case", "driven"]


@dataclass(frozen=True)
class Case:
    """A network and for how many steps it is worth running; `parallel`: with how many worker processes."""

    make: Callable[[int], Network]
    steps: int
    parallel: tuple[int, ...]


def driven(seed: int = 1, n: int = 400) -> Network:
    """The plainest network that is active: what tests use that are about something else."""
    network = Network(dt_ms=0.1, seed=seed)
    cells = network.population("cells", n, lif_exp, v_mv=Normal(-58.0, 5.0))
    network.connect(cells, cells, FixedInDegree(k=20), weight=Normal(60.0, 20.0), delay_ms=Uniform(0.2, 2.0))
    network.poisson(cells, rate_hz=8000.0, weight=90.0)
    network.record(cells)
    network.record(cells, "v_mv", every_ms=1.0, subset=[n - 1, 0, 3])
    return network


def mixed_models(seed: int) -> Network:
    """Several models, every rule, delays from one step on, and weights of very different sizes into one receptor."""
    network = Network(dt_ms=0.1, seed=seed)
    exp = network.population("exp", 331, lif_exp, v_mv=Normal(-58.0, 5.0))
    two = network.population("two", 129, lif_exp_two, v_mv=Uniform(-70.0, -56.0))
    alpha = network.population("alpha", 64, lif_alpha)
    delta = network.population("delta", 200, lif_delta, v_mv=Uniform(-70.0, -56.0))
    cond = network.population("cond", 33, lif_cond_exp)
    adaptive = network.population("adaptive", 40, adex)
    simple = network.population("simple", 350, izhikevich)
    noise = network.population("noise", 70, poisson_source(rate_hz=30.0))
    short = Normal(0.6, 0.6)  # a sixth of them would be below one step
    network.connect(exp, exp, FixedInDegree(k=15), weight=Normal(50.0, 20.0), delay_ms=short)
    network.connect(exp, exp, FixedTotalNumber(n=300), weight=LogNormal(0.0, 3.0, high=2000.0), delay_ms=short)
    network.connect(two, exp, PairwiseBernoulli(p=0.05), weight=-80.0, delay_ms=Uniform(0.1, 3.0))
    network.connect(exp, two, FixedOutDegree(k=7), weight=60.0, delay_ms=0.1)
    network.connect(noise, two, FixedInDegree(k=9, multapses=False), weight=150.0, delay_ms=1.7)
    network.connect(exp, alpha, FixedInDegree(k=30), weight=Normal(20.0, 5.0, low=0.0), delay_ms=Normal(5.0, 2.0))
    network.connect(alpha, delta, AllToAll(), weight=0.2, delay_ms=Uniform(0.1, 12.8))
    network.connect(delta, delta, FixedInDegree(k=10, autapses=False), weight=Normal(0.3, 0.5), delay_ms=short)
    network.connect(delta, cond, FixedInDegree(k=20), weight=3.0, delay_ms=short)
    network.connect(cond, adaptive, FixedInDegree(k=20), weight=Uniform(5.0, 25.0), delay_ms=short)
    network.connect(adaptive, simple, FixedInDegree(k=3), weight=Uniform(-4.0, 6.0), delay_ms=short)
    network.connect(
        simple, exp, Explicit([0, 349, 349, 7, 200], [330, 0, 0, 165, 66]), weight=[900.0, 5.0, 1e-3, 60, 1]
    )
    network.poisson(exp, rate_hz=8000.0, weight=90.0)
    network.poisson(delta, rate_hz=900.0, weight=1.6)
    network.poisson(two, rate_hz=3000.0, weight=60.0)
    network.poisson(alpha, rate_hz=3000.0, weight=40.0)
    network.poisson(cond, rate_hz=2000.0, weight=9.0)
    network.current(adaptive, 900.0)
    network.current(simple, np.linspace(0.0, 12.0, 350))
    for population in network.populations:
        network.record(population)
    network.record(exp, "v_mv", every_ms=0.5, subset=[330, 1, 164, 165, 166])
    network.record(exp, "refractory", subset=slice(300, 331))
    network.record(simple, "u_mv", every_ms=0.7)
    return network


def tiny_populations(seed: int) -> Network:
    """Populations of one and of three neurons: most workers have nothing at all to do."""
    network = Network(dt_ms=0.1, seed=seed)
    one = network.population("one", 1, lif_delta)
    three = network.population("three", 3, lif_exp_two)
    given = network.population("given", 1, spike_source)
    network.connect(one, one, OneToOne(), weight=3.0, delay_ms=0.3)
    network.connect(one, three, AllToAll(), weight=Normal(900.0, 100.0), delay_ms=[0.1, 2.0, 7.7])
    network.connect(three, one, AllToAll(), weight=Uniform(1.0, 9.0), plasticity=STDP.additive(w_max=20.0))
    network.connect(given, three, AllToAll(), weight=2000.0, delay_ms=1.0)
    network.current(one, 500.0)
    network.spikes(given, times_ms=[0.1, 5.0, 5.1, 80.0, 99.9], ids=[0] * 5)
    for population in network.populations:
        network.record(population)
    network.record(three, "v_mv", subset=[2, 0])
    return network


def inputs_alone(seed: int) -> Network:
    """No projection, so that no worker ever needs another one; every kind of input, switched on and off."""
    network = Network(dt_ms=0.1, seed=seed)
    many = network.population("many", 401, lif_exp)
    few = network.population("few", 50, lif_delta)
    given = network.population("given", 340, spike_source)
    network.population("noise", 333, poisson_source(rate_hz=80.0))
    network.poisson(many, rate_hz=8000.0, weight=87.8)
    network.poisson(many, rate_hz=np.linspace(0.0, 4000.0, 401), weight=40.0, start_ms=20.1, stop_ms=60.0)
    network.poisson(few, rate_hz=400_000.0, weight=0.025, start_ms=33.3, stop_ms=52.2)  # 40 in a step
    network.current(many, np.linspace(-100.0, 500.0, 401), start_ms=10.0, stop_ms=90.0)
    network.current(many, 120.0, start_ms=50.0)
    network.current(few, 420.0, stop_ms=0.1)
    network.current(few, 420.0, start_ms=30.0)
    times = np.random.default_rng(seed).uniform(0.1, 150.0, 2000).round(1)
    network.spikes(given, times_ms=times, ids=np.arange(2000) % 340)
    network.spikes(given, times_ms=[3.0, 3.0, 3.1], ids=[339, 339, 339])
    network.spikes(few, times_ms=[12.0], ids=[49])
    network.record(many, subset=[400, 0, 200, 201])
    network.record(few)
    network.record(given)
    network.record("noise", subset=slice(100, 300))
    network.record(many, "v_mv", every_ms=0.3, subset=[400, 80, 0])
    return network


def every_neuron_learns(seed: int) -> Network:
    """Each form of STDP between neurons that all fire, with delays down to one step, and homeostasis."""
    network = Network(dt_ms=0.1, seed=seed)
    a = network.population("a", 330, lif_exp_two, v_mv=Uniform(-70.0, -55.1))
    b = network.population("b", 140, lif_delta, v_mv=Uniform(-70.0, -55.1))
    short = Uniform(0.1, 2.0)
    network.connect(a, a, FixedInDegree(k=12), Uniform(0.0, 60.0), short, plasticity=STDP.additive(w_max=60.0))
    network.connect(
        a, b, FixedInDegree(k=12), Uniform(0.0, 1.0), short,
        plasticity=STDP.multiplicative(w_max=1.0, learning_rate=0.05, alpha=1.1),
    )  # fmt: skip
    network.connect(
        b, a, FixedInDegree(k=9), Uniform(5.0, 40.0), short,
        plasticity=[STDP.power_law(w_max=90.0, w0=30.0), HomeostaticScaling(60.0, w_max=100.0, every_ms=7.0)],
    )  # fmt: skip
    network.connect(
        b, b, PairwiseBernoulli(p=0.1), Uniform(0.1, 0.9), Normal(3.0, 4.0),
        plasticity=STDP(w_max=1.0, mu_plus=0.3, mu_minus=0.6, learning_rate=0.1),
    )  # fmt: skip
    network.connect(
        a, b, first_to_first(140), 0.5, 0.1, plasticity=HomeostaticScaling(100.0, w_max=4.0, every_ms=11.3),
        name="scaled only",
    )  # fmt: skip
    network.current(a, np.linspace(420.0, 900.0, 330))
    network.current(b, np.linspace(420.0, 900.0, 140))
    for population in network.populations:
        network.record(population)
    network.record(b, "v_mv", every_ms=2.5)
    return network


def first_to_first(n: int) -> Explicit:
    """Neuron i to neuron i, for the first n."""
    return Explicit(np.arange(n), np.arange(n))


def reward_and_fatigue(seed: int) -> Network:
    """Rewards that spikes release, short-term plasticity with and without facilitation, and few neurons that learn."""
    network = Network(dt_ms=0.1, seed=seed)
    noise = network.population("noise", 345, poisson_source(rate_hz=40.0))
    cells = network.population("cells", 322, lif_exp_two)
    reward = network.population("reward", 5, lif_delta)
    network.neuromodulator("dopamine", baseline=0.2, tau_ms=50.0)
    network.neuromodulator("unused")
    network.connect(
        noise, cells, FixedInDegree(k=30), Uniform(20.0, 80.0), Uniform(0.1, 4.0),
        plasticity=[
            RewardSTDP(w_max=120.0, a_plus=2.0, a_minus=1.5, tau_eligibility_ms=60.0, every_ms=3.0),
            HomeostaticScaling(30.0, w_max=120.0, every_ms=25.0, strength=0.3),
        ],
    )  # fmt: skip
    network.connect(
        cells, cells, FixedInDegree(k=10), Normal(40.0, 10.0, low=0.0), Uniform(0.1, 9.0),
        plasticity=TsodyksMarkram(u=0.3, tau_recovery_ms=60.0, tau_facilitation_ms=40.0),
    )  # fmt: skip
    network.connect(noise, cells, FixedInDegree(k=10), -30.0, 1.0, plasticity=TsodyksMarkram(tau_recovery_ms=30.0))
    network.connect(
        cells, reward, FixedInDegree(k=60), 0.8, 0.7,
        plasticity=RewardSTDP(w_max=2.0, a_plus=0.02, a_minus=0.01, every_ms=0.1),
    )  # fmt: skip
    network.poisson(cells, rate_hz=2000.0, weight=60.0)
    network.modulate(reward, "dopamine", amount=0.05)
    network.modulate(cells, "dopamine", amount=-0.001, delay_ms=12.0)
    for population in network.populations:
        network.record(population)
    network.record(cells, "i_in_pa", every_ms=3.0, subset=slice(150, 170))
    return network


def shortest_delay_15(seed: int) -> Network:
    """Workers may run 15 steps ahead of each other; the longest delay is no multiple of that."""
    network = Network(dt_ms=0.2, seed=seed)
    e = network.population("E", 390, lif_exp, v_mv=Normal(-58.0, 5.0))
    i = network.population("I", 130, lif_exp, v_mv=Normal(-58.0, 5.0))
    network.connect(e, e, FixedInDegree(k=20), 60.0, Uniform(3.0, 8.2))
    network.connect(e, i, FixedInDegree(k=20), 60.0, 3.0, plasticity=STDP.additive(w_max=90.0))
    network.connect(i, e, FixedInDegree(k=20), -200.0, Normal(5.0, 2.0, low=3.0))
    network.connect(i, i, FixedInDegree(k=20), -150.0, 41.4)
    network.poisson(e, rate_hz=8000.0, weight=90.0)
    network.poisson(i, rate_hz=8000.0, weight=85.0)
    for population in network.populations:
        network.record(population)
    network.record(e, "i_syn_pa", every_ms=1.4)
    return network


def one_long_delay(seed: int) -> Network:
    """One projection with one delay, longer than most pieces that a run is cut into."""
    network = Network(dt_ms=0.1, seed=seed)
    cells = network.population("cells", 360, lif_delta, v_mv=Uniform(-70.0, -55.1))
    network.connect(cells, cells, FixedInDegree(k=8), 1.3, delay_ms=30.0)
    network.poisson(cells, rate_hz=1200.0, weight=1.5)
    network.record(cells)
    network.record(cells, "v_mv", every_ms=10.0)
    return network


@neuron_model(
    states={"v_mv": 0.0, "seen": 0.0},
    receptors=("input",),
    parameters={"threshold_mv": 20.0},
    signals={"gain": 1.0, "drive": 0.0},
)
def gated(v_mv, seen, input, gain, drive, threshold_mv):
    """Input is multiplied by `gain`; `drive` is added."""
    v_mv = 0.9 * v_mv + gain * input + drive
    spike = v_mv >= threshold_mv
    return spike, 0.0 if spike else v_mv, gain


def rhythms_and_maps(seed: int) -> Network:
    """Models that follow rhythms and a neuromodulator, learning that follows a rhythm, and maps from part to part."""
    network = Network(dt_ms=0.1, seed=seed)
    network.neuromodulator("dopamine", baseline=0.5, tau_ms=30.0)
    network.rhythm("theta", frequency_hz=80.0, phase=0.3, floor=-0.2)
    network.rhythm("gamma", frequency_hz=411.7)
    a = network.population("a", 331, gated(gain="dopamine", drive="theta"))
    b = network.population("b", 130, gated(drive="gamma", threshold_mv=15.0))
    network.connect(a, b, FixedInDegree(k=6, groups=13), Uniform(1.0, 5.0), Uniform(0.1, 2.0))
    network.connect(a, a, PairwiseBernoulli(p=0.3, autapses=False, groups=7), 2.0, Uniform(0.3, 3.0))
    network.connect(
        b, a, AllToAll(groups=9), Uniform(0.5, 1.5), 0.2,
        plasticity=RewardSTDP(w_max=3.0, a_plus=0.02, a_minus=0.01, modulator="theta", every_ms=0.7),
    )  # fmt: skip
    network.poisson(a, rate_hz=3000.0, weight=8.0)
    network.poisson(b, rate_hz=2500.0, weight=5.0)
    network.modulate(b, "dopamine", amount=0.002, delay_ms=0.4)
    for population in network.populations:
        network.record(population)
    network.record(a, "seen", every_ms=0.3, subset=[330, 0, 165])
    return network


def regions_far_apart(seed: int) -> Network:
    """Regions with short delays within and long ones between: shards may run apart from one another, each pair its own.

    One region has a single source region, and one has none.
    """
    network = Network(dt_ms=0.1, seed=seed)
    near, far, deaf, _ = (
        network.population(name, n, lif_delta, v_mv=Uniform(-70.0, -55.1))
        for name, n in (("near", 150), ("far", 140), ("deaf", 60), ("lone", 50))
    )
    for region in (near, far):
        network.connect(region, region, FixedInDegree(k=10), 0.5, delay_ms=Uniform(0.1, 0.5))
    network.connect(near, far, FixedInDegree(k=10), 0.8, delay_ms=Uniform(4.0, 5.0))
    network.connect(far, near, FixedInDegree(k=10), -0.5, delay_ms=7.0, plasticity=TsodyksMarkram())
    network.connect(deaf, far, FixedInDegree(k=10), 1.0, delay_ms=9.0)
    for population in network.populations:
        network.poisson(population, rate_hz=1200.0, weight=1.5)
        network.record(population)
    return network


def weights_far_apart(seed: int) -> Network:
    """Receptors that need several accumulators: weak synapses and strong drivers, static, plastic and Poisson."""
    network = Network(dt_ms=0.1, seed=seed)
    noise = network.population("noise", 150, poisson_source(rate_hz=40.0))
    drivers = network.population("drivers", 60, poisson_source(rate_hz=25.0))
    cells = network.population("cells", 1100, lif_exp_two, v_mv=Uniform(-70.0, -56.0))
    network.connect(noise, cells, FixedInDegree(k=40), weight=Normal(0.1, 0.02, low=0.0), delay_ms=Uniform(0.1, 2.0))
    network.connect(drivers, cells, FixedInDegree(k=30), weight=5000.0, delay_ms=1.5)
    network.connect(drivers, cells, PairwiseBernoulli(p=0.1), weight=2e-4, delay_ms=0.7)
    network.connect(cells, cells, PairwiseBernoulli(p=0.02), weight=LogNormal(2.0, 0.94), delay_ms=Uniform(0.2, 3.0))
    learning = STDP.additive(w_max=0.3, learning_rate=0.05)
    network.connect(noise, cells, FixedInDegree(k=20), weight=0.15, plasticity=learning, name="learning")
    network.connect(cells, cells, FixedInDegree(k=10), weight=-60.0, plasticity=TsodyksMarkram(), name="tiring")
    network.poisson(cells, rate_hz=400.0, weight=150.0)
    network.record(cells)
    network.record(cells, "i_ex_pa", every_ms=1.0, subset=7)
    return network


KICKS_MV = np.array([0.0, 0.5, -0.25])


@neuron_model(
    states={"v_mv": -65.0, "spikes": 0},
    receptors=("input_mv",),
    rate_inputs=("drive", "coupling"),
    output="v_mv",
    parameters={"keep": 0.99, "share": 0.01},
)
def coupled(v_mv, spikes, input_mv, drive, coupling, keep, share):
    v = (v_mv + 65.0) * keep - 65.0 + input_mv + share * (drive + coupling - v_mv)
    spike = v > -50.0
    return spike, -65.0 if spike else v, spikes + 1 if spike else spikes


def continuous(seed: int) -> Network:
    """Rate neurons, and spiking neurons that are coupled by their potentials, with delays of 1 to 41 steps."""
    network = Network(dt_ms=0.1, seed=seed)
    sheet = network.population("sheet", 1300, rate_tanh(gain=1.5, sigma=0.3), rate=Uniform(-1.0, 1.0))
    slow = network.population("slow", 150, rate_linear(tau_ms=30.0, mean=1.0), rate=Normal(0.5, 0.2))
    echo = network.population("echo", 70, rate_tanh_each(tau_ms=3.0, sigma=1.0))
    few = network.population("few", 3, rate_threshold_linear(theta=0.1), rate=[0.1, 0.2, 0.3])
    cells = network.population("cells", 200, coupled, v_mv=Uniform(-65.0, -51.0))
    rates = network.connect_rates
    rates(sheet, sheet, FixedInDegree(k=20), weight=Normal(0.0, 0.5), delay_ms=Uniform(0.1, 2.0))
    rates(slow, sheet, PairwiseBernoulli(p=0.05), weight=LogNormal(-3.0, 0.5), delay_ms=4.1)
    rates(sheet, slow, FixedTotalNumber(n=2000), weight=Uniform(-0.1, 0.1), delay_ms=1.5)
    rates(sheet, few, AllToAll(), weight=0.001, delay_ms=Normal(1.0, 0.3), name="all to few")
    rates(few, slow, AllToAll(), weight=np.linspace(-0.2, 0.2, 450), delay_ms=0.1)
    rates(few, few, OneToOne(), weight=[0.3, -0.3, 0.5], delay_ms=[0.1, 0.2, 3.0])
    rates(slow, echo, PairwiseBernoulli(p=0.2), weight=0.1, delay_ms=0.5)
    rates(slow, cells, FixedOutDegree(k=4), weight=20.0, delay_ms=2.0, rate_input="drive")
    rates(cells, cells, FixedInDegree(k=1), weight=1.0, delay_ms=0.3, rate_input="coupling")
    network.connect(cells, cells, FixedInDegree(k=5), weight=0.5, delay_ms=Uniform(0.2, 1.0))
    network.poisson(cells, rate_hz=2000.0, weight=0.8)
    network.record(cells)
    network.record(sheet, "rate", every_ms=1.0, subset=[1299, 0, 3])
    return network


@neuron_model(
    states={"v_mv": 0.0, "seen": 0.0, "bits": 0},
    receptors=("input",),
    parameters={"threshold_mv": 20.0, "sigma_mv": 1.5},
)
def noisy(v_mv, seen, bits, input, normal, random, uniform, step, t_ms, threshold_mv, sigma_mv):
    """Several draws in a step, some of which decide whether it spikes, as the time does."""
    v_mv = 0.9 * v_mv + input + sigma_mv * normal + KICKS_MV[step % 4] * random_number()
    spike = v_mv >= threshold_mv or random < 1e-3 or step % 173 == 5
    return spike, 0.0 if spike else v_mv, random + t_ms, uniform


def noise_and_time(seed: int) -> Network:
    """Models that draw random numbers, from the streams of Poisson inputs if there are any, and know the time."""
    network = Network(dt_ms=0.1, seed=seed)
    a = network.population("a", 340, noisy)
    b = network.population("b", 133, noisy(sigma_mv=6.0))
    network.connect(a, b, FixedInDegree(k=6), 3.0, Uniform(0.1, 2.0))
    network.connect(b, a, FixedInDegree(k=9), 2.0, Uniform(0.3, 3.0))
    network.poisson(a, rate_hz=3000.0, weight=4.0)
    network.record(a)
    network.record(b)
    network.record(b, "seen", every_ms=0.3, subset=[132, 0, 65])
    network.record(a, "bits", every_ms=0.7)
    return network


@neuron_model(
    states={"v_mv": 0.0, "left": 0},
    receptors=("input",),
    parameters={"tau_ms": 20.0, "pause": 3, "bias_mv": 0.1, "threshold_mv": 20.0},
    constants=lambda p, dt_ms: {"keep": max(0.5, 1.0 - dt_ms / p["tau_ms"]), "wait": 2 * int(p["pause"])},
)
def pausing(v_mv, left, input, uniform, keep, wait, pause, bias_mv, threshold_mv):
    """`constants` is a function of numbers; `pause` is an int, of which a random part of the spikes waits twice."""
    v_mv = v_mv * keep + bias_mv + (input if left == 0 else 0.0)
    spike = v_mv >= threshold_mv
    longer = wait if uniform < 0 else pause
    return spike, 0.0 if spike else v_mv, longer if spike else max(left - 1, 0)


def every_neuron_differs(seed: int, precision: str = "float32") -> Network:
    """Parameters that are arrays or drawn, in built-in and own models, and a population that has none of them."""
    network = Network(dt_ms=0.1, seed=seed, precision=precision)
    drawn = lif_exp_two(
        tau_m_ms=LogNormal(2.3, 0.3), v_threshold_mv=Normal(-55.0, 1.0), refractory_ms=Uniform(0.5, 4.0)
    )
    cells = network.population("cells", 290, drawn, v_mv=Uniform(-70.0, -56.0))
    adaptive = network.population("adaptive", 37, adex(a_ns=Normal(4.0, 1.0), v_t_mv=np.linspace(-52.0, -48.0, 37)))
    noise = network.population("noise", 60, poisson_source(rate_hz=np.linspace(0.0, 120.0, 60)))
    own = network.population("own", 95, pausing(pause=np.arange(95) % 7, tau_ms=[10.0, 20.0, 30.0, 25.0, 15.0] * 19))
    same = network.population("same", 50, lif_exp_two())
    network.connect(noise, cells, FixedInDegree(k=9), weight=Normal(150.0, 20.0), delay_ms=Uniform(0.1, 3.0))
    network.connect(cells, cells, FixedInDegree(k=9), weight=Uniform(10.0, 70.0), plasticity=STDP.additive(w_max=90.0))
    network.connect(cells, adaptive, FixedInDegree(k=20), weight=8.0, delay_ms=0.1)
    network.connect(cells, own, FixedInDegree(k=20), weight=2.0, delay_ms=0.7)
    network.connect(own, same, FixedInDegree(k=20), weight=90.0, delay_ms=0.4)
    network.poisson(cells, rate_hz=3000.0, weight=60.0)
    network.current(cells, np.linspace(-50.0, 200.0, 290))
    network.current(adaptive, 700.0)
    for population in network.populations:
        network.record(population)
    network.record(cells, "v_mv", every_ms=0.5, subset=[289, 0, 144, 145])
    network.record(own, "left", every_ms=0.3, subset=[94, 0, 47])
    return network


adapting = equations(
    """
    dv/dt = (e_rest - v)/tau_m + (i_e + i_i - w + i)/c_m : mV (unless refractory)
    dw/dt = (a*(v - e_rest) - w)/tau_w : pA
    di_e/dt = -i_e/tau_m : pA
    di_i/dt = -i_i/(4*ms) : pA
    e_rest = -70*mV : mV
    tau_m = 10*ms : ms
    tau_w = 90*ms : ms
    a = 3*nS : nS
    c_m = 200*pF : pF
    """,
    threshold="v > -52*mV", reset="v = -60*mV; w += 40*pA", refractory=1.5, initial={"v": "e_rest"},
    receptors={"excitatory": "i_e", "inhibitory": "i_i"}, name="adapting",
)  # fmt: skip
channels = equations(
    """
    dv/dt = (0.1*(-65*mV - v) + g*(0*mV - v)/(10*nS) + 3*m_inf*(40*mV - v) - 4*n*(v + 80*mV))/ms : mV
    m_inf = 1/(1 + exp(-(v + 40*mV)/(5*mV))) : 1
    dn/dt = (1/(1 + exp(-(v + 30*mV)/(6*mV))) - n)/(2*ms) : 1
    dg/dt = -g/(3*ms) : nS
    """,
    threshold="v > 0*mV", refractory="v > -20*mV", initial={"v": "-65*mV"}, method="exponential_euler",
    receptors={"input": "g"}, name="channels",
)  # fmt: skip
drifting = equations(
    """
    dx/dt = (1.1 + 0.3*sin(t/(7*ms)) - x)/tau + 0.05*xi/tau**0.5 : 1 (unless refractory)
    dr/dt = -r/(50*ms) : Hz
    tau = 5*ms : ms
    """,
    threshold="x > 1", reset="x = 0; r += 20*Hz", refractory=0.7, name="drifting",
    receptors={"kick": "x += 0.1*weight"},
)  # fmt: skip


def written_as_equations(seed: int) -> Network:
    """Models of equations: exact with a variable that sees a held one, exponential Euler, and noise with time."""
    network = Network(dt_ms=0.1, seed=seed)
    a = network.population("a", 260, adapting(tau_m_ms=Uniform(6.0, 14.0)), v_mv=Uniform(-70.0, -53.0))
    b = network.population("b", 70, channels)
    c = network.population("c", 90, drifting(tau_ms=np.linspace(4.0, 8.0, 90)))
    network.connect(a, a, FixedInDegree(k=9), weight=Normal(30.0, 10.0, low=0.0), delay_ms=Uniform(0.1, 2.0))
    network.connect(a, b, FixedInDegree(k=12), weight=9.0, delay_ms=0.3)
    network.connect(b, c, FixedInDegree(k=5), weight=0.4, delay_ms=0.2)
    network.connect(c, a, FixedInDegree(k=12), weight=-90.0, delay_ms=1.1)
    network.poisson(a, rate_hz=3000.0, weight=25.0)
    network.current(a, np.linspace(0.0, 150.0, 260))
    for population in network.populations:
        network.record(population)
    network.record(a, "w_pa", every_ms=0.5, subset=[259, 0, 130])
    network.record(b, "v_mv", every_ms=0.3, subset=[69, 0, 35])
    network.record(c, "r_hz", every_ms=0.9)
    return network


def built_in_models_of_many_kinds(seed: int) -> Network:
    """Channels, after-spike currents, saturating receptors, three time constants, noise, random and repeated spikes."""
    network = Network(dt_ms=0.1, seed=seed)
    source = network.population("source", 60, gamma_source(rate_hz=200.0, shape=3))
    parrots = network.population("parrots", 60, parrot)
    cells = network.population("cells", 90, hh_cond_exp, v_mv=Normal(-65.0, 4.0))
    adaptive = network.population("adaptive", 70, glif_5(th_spike_add_mv=Uniform(0.2, 2.0)))
    slow = network.population("slow", 50, lif_nmda(tau_rise_nmda_ms=0.0))
    many = network.population("many", 80, with_noise_current(lif_exp_multi(3))(tau_syn_3_ms=30.0, noise_std_pa=300.0))
    points = network.population("points", 40, pp_delta(q_sfa_mv=5.0))
    saturation, factor = nmda_saturation()
    network.connect(source, parrots, OneToOne(), weight=1.0, delay_ms=0.1)
    network.connect(source, parrots, FixedInDegree(k=2), weight=1.0, delay_ms=0.6)
    network.connect(parrots, cells, FixedInDegree(k=8), weight=8.0, delay_ms=Uniform(0.1, 2.0))
    network.connect(cells, adaptive, FixedInDegree(k=10), weight=60.0, delay_ms=0.4)
    network.connect(adaptive, cells, FixedInDegree(k=6), weight=-9.0, delay_ms=0.7)
    network.connect(parrots, slow, FixedInDegree(k=9), weight=20.0, delay_ms=1.0)
    network.connect(slow, slow, FixedInDegree(k=5), 9.0 * factor, 0.5, "nmda_ns", saturation)
    for receptor in (1, 2, 3):
        network.connect(parrots, many, FixedInDegree(k=3), 90.0 / receptor, 0.1 * receptor, f"input_{receptor}_pa")
    network.connect(many, points, FixedInDegree(k=6), weight=3.0, delay_ms=0.3)
    network.current(many, np.linspace(0.0, 300.0, 80))
    network.current(adaptive, 150.0)
    for population in network.populations:
        network.record(population)
    network.record(cells, "m", every_ms=0.5, subset=[89, 0, 40])
    network.record(slow, "nmda_slow_ns", every_ms=0.3)
    network.record(many, "noise_pa", every_ms=0.9)
    return network


# Drive of each model: the weight of a synapse, of which ten get 250 spikes per second each, and a current in pA.
DRIVES: dict[str, tuple[float, float]] = {
    "adex": (15.0, 900.0),
    "adex_cond_alpha": (5.0, 700.0),
    "glif_1": (20.0, 150.0),
    "glif_2": (20.0, 150.0),
    "glif_3": (20.0, 200.0),
    "glif_4": (20.0, 200.0),
    "glif_5": (20.0, 250.0),
    "hh_alpha": (150.0, 600.0),
    "hh_cond_exp": (1.5, 300.0),
    "hh_cond_exp_fine": (1.5, 300.0),
    "izhikevich": (1.0, 6.0),
    "lif_alpha": (20.0, 350.0),
    "lif_alpha_multi": (20.0, 350.0),
    "lif_cond_alpha": (5.0, 300.0),
    "lif_cond_beta": (2.0, 300.0),
    "lif_cond_exp": (15.0, 350.0),
    "lif_delta": (1.0, 350.0),
    "lif_exp": (100.0, 350.0),
    "lif_exp_multi": (40.0, 350.0),
    "lif_exp_two": (40.0, 350.0),
    "lif_nmda": (3.0, 350.0),
    "mat2": (60.0, 350.0),
    "parrot": (1.0, 0.0),
    "pp_delta": (3.0, 300.0),
    "qif": (20.0, 110.0),
}
# Models without a drive: sources, and rate neurons with a weight each for what the one before sends.
SOURCES: dict[str, dict[str, float]] = {
    "gamma_source": {"rate_hz": 200.0, "shape": 3}, "poisson_source": {"rate_hz": 200.0}, "spike_source": {},
}  # fmt: skip
RATE_WEIGHTS = {
    "rate_linear": 0.3, "rate_linear_output_noise": 0.1, "rate_tanh": 0.6, "rate_tanh_each": 0.4,
    "rate_threshold_linear": 0.5, "rate_threshold_linear_each": 0.5,
}  # fmt: skip


def every_built_in_model(seed: int, precision: str = "float32") -> Network:
    """Ten neurons of each built-in model: each population that takes spikes gets those of the one before."""
    network = Network(dt_ms=0.1, seed=seed, precision=precision)
    n, models = 10, built_in_models()
    times = np.random.default_rng(seed).uniform(0.1, 30.0, 100).round(1)
    before = None
    for name, parameters in SOURCES.items():
        before = network.population(name, n, models[name](**parameters))
    network.spikes("spike_source", times_ms=times, ids=np.arange(100) % n)
    noise = network.population("noise", n, poisson_source(rate_hz=250.0))
    for name, (weight, current_pa) in DRIVES.items():
        model = models[name]
        cells = network.population(name, n, model)
        if model.takes_current:
            network.current(cells, np.linspace(0.8, 1.2, n) * current_pa)
        network.connect(noise, cells, AllToAll(), weight, Uniform(0.1, 2.0))
        for synapse in model.receptors:
            inhibitory = synapse.startswith(("in_", "gaba"))
            network.connect(before, cells, FixedInDegree(k=3), -weight if inhibitory else weight, 0.3, synapse)
        before = cells
    ring = [
        network.population(name, n, models[name](sigma=0.3, mean=0.2), rate=Uniform(-1.0, 1.0)) for name in RATE_WEIGHTS
    ]
    connected = ring if precision == "float32" else []  # what rate connections need
    for one, other in zip(connected, [*connected[1:], *connected[:1]], strict=True):
        network.connect_rates(one, other, FixedInDegree(k=4), RATE_WEIGHTS[other.name], Uniform(0.1, 1.0))
    for population in network.populations:
        if population.name in RATE_WEIGHTS:
            network.record(population, "rate", every_ms=0.5)
        else:
            network.record(population)
    return network


NETWORKS = {
    "continuous": Case(continuous, 800, (3,)),
    "weights far apart": Case(weights_far_apart, 700, (3,)),
    "mixed models": Case(mixed_models, 1000, (2, 5)),
    "every neuron differs": Case(every_neuron_differs, 800, (3, 1)),
    "in float64": Case(lambda seed: every_neuron_differs(seed, "float64"), 800, (2,)),
    "tiny populations": Case(tiny_populations, 1000, (5,)),
    "inputs alone": Case(inputs_alone, 1200, (3,)),
    "every neuron learns": Case(every_neuron_learns, 1000, (1, 3)),
    "reward and fatigue": Case(reward_and_fatigue, 1000, (2,)),
    "shortest delay 15": Case(shortest_delay_15, 900, (5,)),
    "one long delay": Case(one_long_delay, 1000, (3,)),
    "rhythms and maps": Case(rhythms_and_maps, 800, ()),
    "regions far apart": Case(regions_far_apart, 800, ()),
    "noise and time": Case(noise_and_time, 600, (2,)),
    "written as equations": Case(written_as_equations, 600, (3,)),
    "built-in models of many kinds": Case(built_in_models_of_many_kinds, 600, (3,)),
    "every built-in model": Case(every_built_in_model, 600, (3,)),
    "every built-in model in float64": Case(lambda seed: every_built_in_model(seed, "float64"), 600, ()),
}
