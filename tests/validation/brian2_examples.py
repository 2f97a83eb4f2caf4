"""Published examples of Brian2 about neurons, each for Brian2 and for `neuraxis.network.equations`, side by side.

Run with a Python that has Brian2 (`benchmarks/peers.sh` makes one), this file writes what Brian2 computes:

    .venv-peers/bin/python tests/validation/brian2_examples.py tests/validation/brian2_results.json

`test_against_brian2.py` compares neuraxis with that file. The examples are those of Brian2's documentation, by their
file names there; what differs here from the published ones stands in each docstring. Random numbers of the published
examples (initial values, connections, Poisson spikes) are replaced by sequences that look random, and are the same on
both sides.

Steps are counted as neuraxis does: a spike of Brian2 at the time n * dt is a spike of step n + 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

Result = dict[str, Any]


def spread(n: int, seed: int = 0) -> Any:
    """Return n numbers from 0 to 1 without a pattern, from integer arithmetic alone."""
    x = np.arange(n, dtype=np.uint64) + np.uint64(seed * 0x9E3779B9 + 1)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def bell(n: int, seed: int = 0) -> Any:
    """Return n numbers with mean 0 and variance 1: sums of twelve of `spread`."""
    return spread(12 * n, seed).reshape(n, 12).sum(axis=1) - 6.0


def sources(n: int, low: int, high: int, k: int, seed: int) -> tuple[Any, Any]:
    """Return k sources from low to high for each of n targets, as two arrays of ids."""
    return (low + spread(n * k, seed) * (high - low)).astype(np.int64), np.repeat(np.arange(n), k)


# --- the two sides ------------------------------------------------------------------------------------------


def brian(dt_ms: float = 0.1) -> Any:
    """Return Brian2, ready for a new example."""
    import brian2  # type: ignore[import-not-found, unused-ignore]

    brian2.start_scope()
    brian2.prefs.codegen.target = "numpy"
    brian2.defaultclock.dt = dt_ms * brian2.ms
    return brian2


def brian_spikes(b: Any, monitor: Any) -> Result:
    steps = np.rint(np.asarray(monitor.t / b.defaultclock.dt)).astype(int) + 1
    return {"steps": steps.tolist(), "ids": np.asarray(monitor.i).tolist()}


def brian_trace(values: Any, every: int) -> list[list[float]]:
    """Return every sample after the first of a StateMonitor that samples at the start of steps."""
    return [[float(f"{one:.9g}") for one in row[every::every]] for row in np.asarray(values)]


def run_here(network: Any, cells: Any, steps: int, state: str | None = None) -> Result:
    """Run a network of neuraxis; return the spikes of a population, and the recorded state."""
    from neuraxis.simulation import Simulation

    network.record(cells, "spikes")
    with Simulation(network) as simulation:
        simulation.step(steps)
        times_ms, ids = simulation.spikes(cells)
        made: Result = {"steps": np.rint(times_ms / network.dt_ms).astype(int).tolist(), "ids": ids.tolist()}
        if state is not None:
            made["trace"] = simulation.samples(cells, state)[1].T.tolist()
    return made


class CUBA:
    """Random network with exponential currents. Connections of fixed number, delays of one step, 0.3 s."""

    n, steps = 4000, 3000
    excitatory = sources(n, 0, 3200, 64, 1)
    inhibitory = sources(n, 3200, 4000, 16, 2)
    v_mv = -60.0 + 10.0 * spread(n, 3)

    def brian2(self) -> Result:
        b = brian()
        ms, mv = b.ms, b.mV
        cells = b.NeuronGroup(
            self.n,
            """
            dv/dt  = (ge+gi-(v-El))/taum : volt (unless refractory)
            dge/dt = -ge/taue : volt
            dgi/dt = -gi/taui : volt
            """,
            threshold="v>Vt", reset="v = Vr", refractory=5 * ms, method="exact",
            namespace={"taum": 20 * ms, "taue": 5 * ms, "taui": 10 * ms, "Vt": -50 * mv, "Vr": -60 * mv,
                       "El": -49 * mv},
        )  # fmt: skip
        cells.v = self.v_mv * mv
        delay = b.defaultclock.dt
        e = b.Synapses(cells, cells, on_pre="ge += we", delay=delay, namespace={"we": 1.62 * mv})
        i = b.Synapses(cells, cells, on_pre="gi += wi", delay=delay, namespace={"wi": -9 * mv})
        e.connect(i=self.excitatory[0], j=self.excitatory[1])
        i.connect(i=self.inhibitory[0], j=self.inhibitory[1])
        spikes = b.SpikeMonitor(cells)
        b.Network(cells, e, i, spikes).run(self.steps * b.defaultclock.dt)
        return brian_spikes(b, spikes)

    def neuraxis(self) -> Result:
        from neuraxis.network import Explicit, Network, equations

        model = equations(
            """
            dv/dt  = (ge+gi-(v-El))/taum : volt (unless refractory)
            dge/dt = -ge/taue : volt
            dgi/dt = -gi/taui : volt
            """,
            threshold="v>Vt", reset="v = Vr", refractory="5*ms - dt", method="exact",
            receptors={"excitatory": "ge", "inhibitory": "gi"},
            parameters={"taum": "20*ms", "taue": "5*ms", "taui": "10*ms", "Vt": "-50*mV", "Vr": "-60*mV",
                        "El": "-49*mV"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        cells = network.population("cells", self.n, model, v_mv=self.v_mv)
        network.connect(cells, cells, Explicit(*self.excitatory), weight=1.62, delay_ms=0.1)
        network.connect(cells, cells, Explicit(*self.inhibitory), weight=-9.0, delay_ms=0.1)
        return run_here(network, cells, self.steps)


HH_GATES = """
    dm/dt = alpha_m*(1-m)-beta_m*m : 1
    dn/dt = alpha_n*(1-n)-beta_n*n : 1
    dh/dt = alpha_h*(1-h)-beta_h*h : 1
    alpha_m = 0.32*(mV**-1)*4*mV/exprel((13*mV-v+VT)/(4*mV))/ms : Hz
    beta_m = 0.28*(mV**-1)*5*mV/exprel((v-VT-40*mV)/(5*mV))/ms : Hz
    alpha_h = 0.128*exp((17*mV-v+VT)/(18*mV))/ms : Hz
    beta_h = 4./(1+exp((40*mV-v+VT)/(5*mV)))/ms : Hz
    alpha_n = 0.032*(mV**-1)*5*mV/exprel((15*mV-v+VT)/(5*mV))/ms : Hz
    beta_n = .5*exp((10*mV-v+VT)/(40*mV))/ms : Hz
"""


def hh_namespace(b: Any, e_leak: float) -> dict[str, Any]:
    area = 20000 * b.umetre**2
    return {
        "Cm": (1 * b.ufarad * b.cm**-2) * area,
        "gl": (5e-5 * b.siemens * b.cm**-2) * area,
        "g_na": (100 * b.msiemens * b.cm**-2) * area,
        "g_kd": (30 * b.msiemens * b.cm**-2) * area,
        "El": e_leak * b.mV, "EK": -90 * b.mV, "ENa": 50 * b.mV, "VT": -63 * b.mV,
    }  # fmt: skip


HH_PARAMETERS = {
    "Cm": "1*ufarad*cm**-2 * 20000*umetre**2",
    "gl": "5e-5*siemens*cm**-2 * 20000*umetre**2",
    "g_na": "100*msiemens*cm**-2 * 20000*umetre**2",
    "g_kd": "30*msiemens*cm**-2 * 20000*umetre**2",
    "EK": "-90*mV", "ENa": "50*mV", "VT": "-63*mV",
}  # fmt: skip


class COBAHH:
    """Random network of Hodgkin-Huxley neurons. 1,000 of them, 50 ms, connections as in `CUBA`."""

    n, steps = 1000, 500
    excitatory = sources(n, 0, 800, 64, 4)
    inhibitory = sources(n, 800, 1000, 16, 5)
    v_mv = -60.0 + bell(n, 6) * 5.0 - 5.0
    ge_ns = np.maximum((bell(n, 7) * 1.5 + 4.0) * 10.0, 0.0)
    gi_ns = np.maximum((bell(n, 8) * 12.0 + 20.0) * 10.0, 0.0)
    text = """
    dv/dt = (gl*(El-v)+ge*(Ee-v)+gi*(Ei-v)-
             g_na*(m*m*m)*h*(v-ENa)-
             g_kd*(n*n*n*n)*(v-EK))/Cm : volt
    dge/dt = -ge*(1./taue) : siemens
    dgi/dt = -gi*(1./taui) : siemens
    """

    def brian2(self) -> Result:
        b = brian()
        others = {"taue": 5 * b.ms, "taui": 10 * b.ms, "Ee": 0 * b.mV, "Ei": -80 * b.mV}
        cells = b.NeuronGroup(
            self.n, self.text + HH_GATES, threshold="v>-20*mV", refractory=3 * b.ms, method="exponential_euler",
            namespace={**hh_namespace(b, -60.0), **others},
        )  # fmt: skip
        cells.v, cells.ge, cells.gi = self.v_mv * b.mV, self.ge_ns * b.nS, self.gi_ns * b.nS
        delay = b.defaultclock.dt
        e = b.Synapses(cells, cells, on_pre="ge+=6*nS", delay=delay)
        i = b.Synapses(cells, cells, on_pre="gi+=67*nS", delay=delay)
        e.connect(i=self.excitatory[0], j=self.excitatory[1])
        i.connect(i=self.inhibitory[0], j=self.inhibitory[1])
        spikes = b.SpikeMonitor(cells)
        trace = b.StateMonitor(cells, "v", record=[1, 10, 100])
        b.Network(cells, e, i, spikes, trace).run((self.steps + 1) * b.defaultclock.dt)
        return {**brian_spikes(b, spikes), "trace": brian_trace(trace.v / b.mV, 10)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Explicit, Network, equations

        others = {"El": "-60*mV", "taue": "5*ms", "taui": "10*ms", "Ee": "0*mV", "Ei": "-80*mV"}
        model = equations(
            self.text + HH_GATES, threshold="v>-20*mV", refractory="3*ms - dt", method="exponential_euler",
            receptors={"excitatory": "ge", "inhibitory": "gi"}, parameters={**HH_PARAMETERS, **others},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        cells = network.population("cells", self.n, model, v_mv=self.v_mv, ge_ns=self.ge_ns, gi_ns=self.gi_ns)
        network.connect(cells, cells, Explicit(*self.excitatory), weight=6.0, delay_ms=0.1)
        network.connect(cells, cells, Explicit(*self.inhibitory), weight=67.0, delay_ms=0.1, synapse="inhibitory")
        network.record(cells, "v_mv", every_ms=1.0, subset=[1, 10, 100])
        return run_here(network, cells, self.steps, "v_mv")


class AdaptiveThreshold:
    """Threshold that grows with each spike. Twenty neurons, 0.5 s; in Brian2, synapses act before thresholds."""

    n, steps = 20, 5000
    trains: ClassVar[list[Any]] = [np.flatnonzero(spread(5000, 20 + k) < 0.05) for k in range(20)]
    text = """
    dv/dt = -v/(10*ms) : volt
    dvt/dt = (10*mV-vt)/(15*ms) : volt
    """
    reset = """
    v = 0*mV
    vt += 3*mV
    """

    def brian2(self) -> Result:
        b = brian()
        cells = b.NeuronGroup(self.n, self.text, reset=self.reset, threshold="v>vt", method="exact")
        cells.vt = 10 * b.mV
        steps, ids = np.concatenate(self.trains), np.repeat(np.arange(self.n), [len(one) for one in self.trains])
        source = b.SpikeGeneratorGroup(self.n, ids, steps * b.defaultclock.dt)
        synapses = b.Synapses(source, cells, on_pre="v += 3*mV")  # this order of a step takes one step by itself
        synapses.connect(j="i")
        spikes, trace = b.SpikeMonitor(cells), b.StateMonitor(cells, "vt", record=[0, 7])
        network = b.Network(source, cells, synapses, spikes, trace)
        network.schedule = ["start", "groups", "synapses", "thresholds", "resets", "end"]
        network.run((self.steps + 1) * b.defaultclock.dt)
        return {**brian_spikes(b, spikes), "trace": brian_trace(trace.vt / b.mV, 10)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, OneToOne, equations
        from neuraxis.network.models import spike_source

        model = equations(
            self.text, reset=self.reset, threshold="v>vt", method="exact",
            initial={"vt": "10*mV"}, receptors={"input": "v"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        source = network.population("source", self.n, spike_source)
        cells = network.population("cells", self.n, model)
        steps, ids = np.concatenate(self.trains) + 1, np.repeat(np.arange(self.n), [len(one) for one in self.trains])
        network.spikes(source, steps * 0.1, ids)
        network.connect(source, cells, OneToOne(), weight=3.0, delay_ms=0.1)
        network.record(cells, "vt_mv", every_ms=1.0, subset=[0, 7])
        return run_here(network, cells, self.steps, "vt_mv")


class IFCurveLIF:
    """Rate of a leaky neuron against its input, which is a parameter of each neuron."""

    n, steps = 1000, 10_000
    v0_mv = 20.0 * np.arange(n) / (n - 1)

    def brian2(self) -> Result:
        b = brian()
        cells = b.NeuronGroup(
            self.n,
            """
            dv/dt = (v0 - v) / tau : volt (unless refractory)
            v0 : volt
            """,
            threshold="v > 10*mV", reset="v = 0*mV", refractory=5 * b.ms, method="exact",
            namespace={"tau": 10 * b.ms},
        )  # fmt: skip
        cells.v0 = self.v0_mv * b.mV
        spikes = b.SpikeMonitor(cells)
        b.Network(cells, spikes).run(self.steps * b.defaultclock.dt)
        return {"counts": np.asarray(spikes.count).tolist()}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            """
            dv/dt = (v0 - v) / tau : volt (unless refractory)
            v0 : volt
            """,
            threshold="v > 10*mV", reset="v = 0*mV", refractory="5*ms - dt", method="exact",
            parameters={"tau": "10*ms", "v0": "0*mV"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        cells = network.population("cells", self.n, model(v0_mv=self.v0_mv))
        found = run_here(network, cells, self.steps)
        return {"counts": np.bincount(found["ids"], minlength=self.n).tolist()}


class IFCurveHodgkinHuxley:
    """Rate of a Hodgkin-Huxley neuron against a current. 0.5 s, every tenth neuron."""

    n, steps = 10, 5000
    current_na = 0.7 * np.arange(0, 100, 10) / 100
    text = """
    dv/dt = (gl*(El-v) - g_na*(m*m*m)*h*(v-ENa) - g_kd*(n*n*n*n)*(v-EK) + I)/Cm : volt
    dm/dt = 0.32*(mV**-1)*4*mV/exprel((13.*mV-v+VT)/(4*mV))/ms*(1-m)-0.28*(mV**-1)*5*mV/exprel((v-VT-40.*mV)/(5*mV))/ms*m : 1
    dn/dt = 0.032*(mV**-1)*5*mV/exprel((15.*mV-v+VT)/(5*mV))/ms*(1.-n)-.5*exp((10.*mV-v+VT)/(40.*mV))/ms*n : 1
    dh/dt = 0.128*exp((17.*mV-v+VT)/(18.*mV))/ms*(1.-h)-4./(1+exp((40.*mV-v+VT)/(5.*mV)))/ms*h : 1
    I : amp
    """  # noqa: E501

    def brian2(self) -> Result:
        b = brian()
        cells = b.NeuronGroup(
            self.n, self.text, threshold="v > -40*mV", refractory="v > -40*mV", method="exponential_euler",
            namespace=hh_namespace(b, -65.0),
        )  # fmt: skip
        cells.v, cells.I = -65 * b.mV, self.current_na * b.nA
        spikes, trace = b.SpikeMonitor(cells), b.StateMonitor(cells, "v", record=True)
        b.Network(cells, spikes, trace).run((self.steps + 1) * b.defaultclock.dt)
        return {**brian_spikes(b, spikes), "trace": brian_trace(trace.v / b.mV, 50)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, threshold="v > -40*mV", refractory="v > -40*mV", method="exponential_euler", current="I",
            parameters={**HH_PARAMETERS, "El": "-65*mV"}, initial={"v": "El"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        cells = network.population("cells", self.n, model)
        network.current(cells, 1000.0 * self.current_na)
        network.record(cells, "v_mv", every_ms=5.0)
        return run_here(network, cells, self.steps, "v_mv")


class BretteGerstner2005:
    """Adaptive exponential neuron: at rest, a current of 1 nA, at rest."""

    steps = 1400
    text = """
    dvm/dt = (gL*(EL - vm) + gL*DeltaT*exp((vm - VT)/DeltaT) + I - w)/C : volt
    dw/dt = (a*(vm - EL) - w)/tauw : amp
    I : amp
    """

    def brian2(self) -> Result:
        b = brian()
        mv = b.mV
        neuron = b.NeuronGroup(
            1, self.text, threshold="vm>Vcut", reset="vm=Vr; w+=b", method="euler",
            namespace={"C": 281 * b.pF, "gL": 30 * b.nS, "EL": -70.6 * mv, "VT": -50.4 * mv, "DeltaT": 2 * mv,
                       "Vcut": -40.4 * mv, "tauw": 144 * b.ms, "a": 4 * b.nS, "b": 0.0805 * b.nA, "Vr": -70.6 * mv},
        )  # fmt: skip
        neuron.vm = -70.6 * mv
        trace, spikes = b.StateMonitor(neuron, "vm", record=0), b.SpikeMonitor(neuron)
        network = b.Network(neuron, trace, spikes)
        network.run(20 * b.ms)
        neuron.I = 1 * b.nA
        network.run(100 * b.ms)
        neuron.I = 0 * b.nA
        network.run(20 * b.ms + b.defaultclock.dt)
        return {**brian_spikes(b, spikes), "trace": brian_trace(trace.vm / mv, 1)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, threshold="vm>Vcut", reset="vm=Vr; w+=b", method="euler", current="I", initial={"vm": "EL"},
            parameters={"C": "281*pF", "gL": "30*nS", "EL": "-70.6*mV", "VT": "-50.4*mV", "DeltaT": "2*mV",
                        "Vcut": "-40.4*mV", "tauw": "144*ms", "a": "4*nS", "b": "0.0805*nA", "Vr": "-70.6*mV"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        neuron = network.population("neuron", 1, model)
        network.current(neuron, 1000.0, start_ms=20.0, stop_ms=120.0)
        network.record(neuron, "vm_mv", every_ms=0.1)
        return run_here(network, neuron, self.steps, "vm_mv")


class RothmanManis2003:
    """Cochlear neuron, type 1c: currents that a large part of its equations is for are 0, as published."""

    steps = 1500
    text = """
    dv/dt = (ileak + ina + ikht + iklt + ika + ih + I)/C : volt
    vu = v/mV : 1  # unitless v
    I : amp
    ileak = gl*(El-v) : amp
    ika = gkabar*a**4*b*c*(EK-v): amp
    da/dt=q10*(ainf-a)/atau : 1
    db/dt=q10*(binf-b)/btau : 1
    dc/dt=q10*(cinf-c)/ctau : 1
    ainf = (1. / (1 + exp(-(vu + 31) / 6.)))**0.25 : 1
    binf = 1. / (1 + exp((vu + 66) / 7.))**0.5 : 1
    cinf = 1. / (1 + exp((vu + 66) / 7.))**0.5 : 1
    atau =  ((100. / (7*exp((vu+60) / 14.) + 29*exp(-(vu+60) / 24.))) + 0.1)*ms : second
    btau =  ((1000. / (14*exp((vu+60) / 27.) + 29*exp(-(vu+60) / 24.))) + 1)*ms : second
    ctau = ((90. / (1 + exp((-66-vu) / 17.))) + 10)*ms : second
    ina = gnabar*m**3*h*(ENa-v) : amp
    dm/dt=q10*(minf-m)/mtau : 1
    dh/dt=q10*(hinf-h)/htau : 1
    minf = 1./(1+exp(-(vu + 38.) / 7.)) : 1
    hinf = 1./(1+exp((vu + 65.) / 6.)) : 1
    mtau =  ((10. / (5*exp((vu+60.) / 18.) + 36.*exp(-(vu+60.) / 25.))) + 0.04)*ms : second
    htau =  ((100. / (7*exp((vu+60.) / 11.) + 10.*exp(-(vu+60.) / 25.))) + 0.6)*ms : second
    ih = ghbar*r*(Eh-v) : amp
    dr/dt=q10*(rinf-r)/rtau : 1
    rinf = 1. / (1+exp((vu + 76.) / 7.)) : 1
    rtau = ((100000. / (237.*exp((vu+60.) / 12.) + 17.*exp(-(vu+60.) / 14.))) + 25.)*ms : second
    iklt = gkltbar*w**4*z*(EK-v) : amp
    dw/dt=q10*(winf-w)/wtau : 1
    dz/dt=q10*(zinf-z)/ztau : 1
    winf = (1. / (1 + exp(-(vu + 48.) / 6.)))**0.25 : 1
    zinf = zss + ((1.-zss) / (1 + exp((vu + 71.) / 10.))) : 1
    wtau = ((100. / (6.*exp((vu+60.) / 6.) + 16.*exp(-(vu+60.) / 45.))) + 1.5)*ms : second
    ztau = ((1000. / (exp((vu+60.) / 20.) + exp(-(vu+60.) / 8.))) + 50)*ms : second
    ikht = gkhtbar*(nf*n**2 + (1-nf)*p)*(EK-v) : amp
    dn/dt=q10*(ninf-n)/ntau : 1
    dp/dt=q10*(pinf-p)/ptau : 1
    ninf =   (1 + exp(-(vu + 15) / 5.))**-0.5 : 1
    pinf =  1. / (1 + exp(-(vu + 23) / 6.)) : 1
    ntau =  ((100. / (11*exp((vu+60) / 24.) + 21*exp(-(vu+60) / 23.))) + 0.7)*ms : second
    ptau = ((100. / (4*exp((vu+60) / 32.) + 5*exp(-(vu+60) / 22.))) + 5)*ms : second
    """
    ns: ClassVar[dict[str, Any]] = {"gnabar": 1000, "gkhtbar": 150, "gkltbar": 0, "gkabar": 0, "ghbar": 0.5, "gl": 2}
    mv: ClassVar[dict[str, Any]] = {"Eh": -43, "EK": -70, "El": -65, "ENa": 50}
    numbers: ClassVar[dict[str, Any]] = {"nf": 0.85, "zss": 0.5, "q10": 3.0 ** ((22.0 - 22.0) / 10.0)}

    def brian2(self) -> Result:
        b = brian()
        namespace: dict[str, Any] = {one: value * b.nS for one, value in self.ns.items()}
        namespace |= {one: value * b.mV for one, value in self.mv.items()}
        neuron = b.NeuronGroup(
            1, self.text, method="exponential_euler", namespace={**namespace, **self.numbers, "C": 12 * b.pF}
        )
        neuron.v = -65 * b.mV
        trace = b.StateMonitor(neuron, "v", record=0)
        network = b.Network(neuron, trace)
        network.run(50 * b.ms)
        neuron.I = 250 * b.pA
        network.run(100 * b.ms + b.defaultclock.dt)
        return {"trace": brian_trace(trace.v / b.mV, 2)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        parameters: dict[str, Any] = {one: f"{value}*nS" for one, value in self.ns.items()}
        parameters |= {one: f"{value}*mV" for one, value in self.mv.items()}
        model = equations(
            self.text, method="exponential_euler", current="I", initial={"v": "El"},
            parameters={**parameters, **self.numbers, "C": "12*pF"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        neuron = network.population("neuron", 1, model)
        network.current(neuron, 250.0, start_ms=50.0)
        network.record(neuron, "v_mv", every_ms=0.2)
        return {"trace": run_here(network, neuron, self.steps, "v_mv")["trace"]}


class HindmarshRose1984:
    """Three equations without units that make bursts, at three currents. 0.5 s."""

    steps = 5000
    current = (0.4, 2.0, 4.0)
    numbers: ClassVar[dict[str, Any]] = {"a": 1, "b": 3, "c": 1, "d": 5, "r": 0.001, "s": 4, "x_1": -1.6}
    text = """
    dx/dt = (y - a*x**3 + b*x**2 + I - z)/time_unit : 1
    dy/dt = (c - d*x**2 - y)/time_unit : 1
    dz/dt = r*(s*(x - x_1) - z)/time_unit : 1
    I : 1 (constant)
    """

    def brian2(self) -> Result:
        b = brian()
        neuron = b.NeuronGroup(3, self.text, method="rk4", namespace={**self.numbers, "time_unit": 1 * b.ms})
        neuron.x, neuron.y, neuron.z, neuron.I = -1.6, "c - d*x**2", "r*(s*(x - x_1))", self.current
        trace = b.StateMonitor(neuron, "x", record=True)
        b.Network(neuron, trace).run((self.steps + 1) * b.defaultclock.dt)
        return {"trace": brian_trace(trace.x, 10)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, method="rk4", current="I", parameters={**self.numbers, "time_unit": "1*ms"},
            initial={"x": "x_1", "y": "c - d*x_1**2"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        neuron = network.population("neuron", 3, model)
        network.current(neuron, self.current)
        network.record(neuron, "x", every_ms=1.0)
        return {"trace": run_here(network, neuron, self.steps, "x")["trace"]}


class MorrisLecar1981:
    """Two equations that oscillate, at 17 currents."""

    steps, dt_ms = 10_000, 0.01
    current_ua = np.arange(17) * 25 + 100
    text = """
    dV/dt = (-g_L*(V - V_L) - g_Ca*m_inf*(V - V_Ca) - g_K*n*(V - V_K) + I)/C : volt
    dn/dt = lambda_n*(n_inf - n) : 1
    m_inf = 0.5*(1 + tanh((V - V_1)/V_2)) : 1
    n_inf = 0.5*(1 + tanh((V - V_3)/V_4)) : 1
    lambda_n = lambda_n__max*cosh((V - V_3)/(2*V_4)) : Hz
    I : amp
    """
    mv: ClassVar[dict[str, Any]] = {"V_L": -50, "V_Ca": 100, "V_K": -70, "V_1": 10, "V_2": 15, "V_3": -1, "V_4": 14.5}

    def brian2(self) -> Result:
        b = brian(self.dt_ms)
        namespace = {one: value * b.mV for one, value in self.mv.items()}
        namespace |= {"g_L": 2 * b.mS, "g_Ca": 4 * b.mS, "g_K": 8 * b.mS, "C": 20 * b.uF}
        neuron = b.NeuronGroup(
            17, self.text, method="exponential_euler", namespace={**namespace, "lambda_n__max": 1.0 / (15 * b.ms)}
        )
        neuron.I, neuron.V, neuron.n = self.current_ua * b.uA, -50 * b.mV, "n_inf"
        trace = b.StateMonitor(neuron, "V", record=True)
        b.Network(neuron, trace).run((self.steps + 1) * b.defaultclock.dt)
        return {"trace": brian_trace(trace.V / b.mV, 100)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        parameters = {one: f"{value}*mV" for one, value in self.mv.items()}
        parameters |= {"g_L": "2*mS", "g_Ca": "4*mS", "g_K": "8*mS", "C": "20*uF", "lambda_n__max": "1/(15*ms)"}
        model = equations(
            self.text, method="exponential_euler", current="I", parameters=parameters,
            initial={"V": "V_L", "n": "0.5*(1 + tanh((V_L - V_3)/V_4))"},
        )  # fmt: skip
        network = Network(dt_ms=self.dt_ms)
        neuron = network.population("neuron", 17, model)
        network.current(neuron, 1e6 * self.current_ua)
        network.record(neuron, "V_mv", every_ms=1.0)
        return {"trace": run_here(network, neuron, self.steps, "V_mv")["trace"]}


class WangBuszaki1996:
    """Fast spiking interneuron, whose activation of sodium is immediate."""

    steps, dt_ms = 10_000, 0.01
    text = """
    dv/dt = (-gNa*m**3*h*(v-ENa)-gK*n**4*(v-EK)-gL*(v-EL)+Iapp)/Cm : volt
    m = alpha_m/(alpha_m+beta_m) : 1
    alpha_m = 0.1/mV*10*mV/exprel(-(v+35*mV)/(10*mV))/ms : Hz
    beta_m = 4*exp(-(v+60*mV)/(18*mV))/ms : Hz
    dh/dt = 5*(alpha_h*(1-h)-beta_h*h) : 1
    alpha_h = 0.07*exp(-(v+58*mV)/(20*mV))/ms : Hz
    beta_h = 1./(exp(-0.1/mV*(v+28*mV))+1)/ms : Hz
    dn/dt = 5*(alpha_n*(1-n)-beta_n*n) : 1
    alpha_n = 0.01/mV*10*mV/exprel(-(v+34*mV)/(10*mV))/ms : Hz
    beta_n = 0.125*exp(-(v+44*mV)/(80*mV))/ms : Hz
    """

    def brian2(self) -> Result:
        b = brian(self.dt_ms)
        neuron = b.NeuronGroup(
            1, self.text, method="rk4",
            namespace={"Cm": 1 * b.uF, "Iapp": 2 * b.uA, "gL": 0.1 * b.msiemens, "EL": -65 * b.mV, "ENa": 55 * b.mV,
                       "EK": -90 * b.mV, "gNa": 35 * b.msiemens, "gK": 9 * b.msiemens},
        )  # fmt: skip
        neuron.v, neuron.h = -70 * b.mV, 1
        trace = b.StateMonitor(neuron, "v", record=0)
        b.Network(neuron, trace).run((self.steps + 1) * b.defaultclock.dt)
        return {"trace": brian_trace(trace.v / b.mV, 20)}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, initial={"v": "-70*mV", "h": 1.0},
            parameters={"Cm": "1*uF", "Iapp": "2*uA", "gL": "0.1*msiemens", "EL": "-65*mV", "ENa": "55*mV",
                        "EK": "-90*mV", "gNa": "35*msiemens", "gK": "9*msiemens"},
        )  # fmt: skip
        network = Network(dt_ms=self.dt_ms)
        neuron = network.population("neuron", 1, model)
        network.record(neuron, "v_mv", every_ms=0.2)
        return {"trace": run_here(network, neuron, self.steps, "v_mv")["trace"]}


class Naud2008:
    """Firing patterns of the adaptive exponential neuron: eight sets of parameters, 0.6 s."""

    steps = 6000
    names = ("c_m", "g_l", "e_l", "v_t", "d_t", "a", "tau_w", "b", "v_r", "i_stim")
    units = ("pF", "nS", "mV", "mV", "mV", "nS", "ms", "pA", "mV", "pA")
    patterns = (
        (200, 10, -70, -50, 2, 2, 30, 0, -58, 500),
        (200, 12, -70, -50, 2, 2, 300, 60, -58, 500),
        (130, 18, -58, -50, 2, 4, 150, 120, -50, 400),
        (200, 10, -58, -50, 2, 2, 120, 100, -46, 210),
        (200, 12, -70, -50, 2, -10, 300, 0, -58, 300),
        (100, 10, -65, -50, 2, -10, 90, 30, -47, 110),
        (100, 10, -65, -50, 2, 10, 90, 100, -47, 180),
        (100, 12, -60, -50, 2, -11, 130, 30, -48, 160),
    )
    text = """
    dvm/dt = (g_l*(e_l - vm) + g_l*d_t*exp((vm-v_t)/d_t) + i_stim - w)/c_m : volt
    dw/dt  = (a*(vm - e_l) - w)/tau_w : amp
    """

    def brian2(self) -> Result:
        steps, ids = [], []
        for number, values in enumerate(self.patterns):
            b = brian()
            given = {
                one: value * getattr(b, unit) for one, unit, value in zip(self.names, self.units, values, strict=True)
            }
            neuron = b.NeuronGroup(
                1, self.text, threshold="vm > 0*mV", reset="vm = v_r; w += b", method="euler", namespace=given
            )
            neuron.vm = given["e_l"]
            spikes = b.SpikeMonitor(neuron)
            b.Network(neuron, spikes).run(self.steps * b.defaultclock.dt)
            found = brian_spikes(b, spikes)["steps"]
            steps += found
            ids += [number] * len(found)
        return {"steps": steps, "ids": ids}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations
        from neuraxis.simulation import Simulation

        first = dict(
            zip(self.names, (f"{v}*{u}" for v, u in zip(self.patterns[0], self.units, strict=True)), strict=True)
        )
        model = equations(
            self.text, threshold="vm > 0*mV", reset="vm = v_r; w += b", method="euler", parameters=first,
            initial={"vm": "e_l"},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        for number, values in enumerate(self.patterns):
            named = {f"{one}_{unit.lower()}": float(value)
                     for one, unit, value in zip(self.names, self.units, values, strict=True)}  # fmt: skip
            network.population(f"pattern {number}", 1, model(**named), vm_mv=named["e_l_mv"])
            network.record(f"pattern {number}", "spikes")
        steps, ids = [], []
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            for number in range(len(self.patterns)):
                found = np.rint(simulation.spikes(f"pattern {number}")[0] / 0.1).astype(int).tolist()
                steps += found
                ids += [number] * len(found)
        return {"steps": steps, "ids": ids}


class PhaseLocking:
    """Spikes that lock to a periodic input, of a hundred neurons with amplitudes of their own."""

    n, steps = 100, 10_000
    x0 = spread(n, 50)
    a = 0.05 + 0.7 * np.arange(n) / n
    text = """
    dv/dt = (-v + a * sin(2 * pi * freq * t) + b) / tau : 1
    a : 1
    """

    def brian2(self) -> Result:
        b = brian()
        cells = b.NeuronGroup(
            self.n, self.text, threshold="v > 1", reset="v = 0", method="euler",
            namespace={"tau": 20 * b.ms, "b": 1.2, "freq": 10 * b.Hz},
        )  # fmt: skip
        cells.v, cells.a = self.x0, self.a
        spikes = b.SpikeMonitor(cells)
        b.Network(cells, spikes).run(self.steps * b.defaultclock.dt)
        return brian_spikes(b, spikes)

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, threshold="v > 1", reset="v = 0", method="euler",
            parameters={"tau": "20*ms", "b": 1.2, "freq": "10*Hz", "a": 0.0},
        )  # fmt: skip
        network = Network(dt_ms=0.1)
        cells = network.population("cells", self.n, model(a=self.a), v=self.x0)
        return run_here(network, cells, self.steps)


class Brette2004:
    """A leaky neuron that is driven by a sine, at 200 mean inputs (published: 2,000), 2 s."""

    n, steps = 200, 20_000
    a = np.linspace(2, 4, n)
    text = """
    dv/dt = (-v + a + 2*sin(2*pi*t/tau))/tau : 1
    a : 1
    """

    def brian2(self) -> Result:
        b = brian()
        cells = b.NeuronGroup(
            self.n, self.text, threshold="v>1", reset="v=0", method="euler", namespace={"tau": 100 * b.ms}
        )
        cells.a = self.a
        spikes = b.SpikeMonitor(cells)
        b.Network(cells, spikes).run(self.steps * b.defaultclock.dt)
        return brian_spikes(b, spikes)

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, threshold="v>1", reset="v=0", method="euler", parameters={"tau": "100*ms", "a": 2.0}
        )
        network = Network(dt_ms=0.1)
        cells = network.population("cells", self.n, model(a=self.a))
        return run_here(network, cells, self.steps)


class NonReliability:
    """Neurons with noise and the same input: 2,000 of them (published: 25), 0.5 s."""

    n, steps = 2000, 5000
    text = "dx/dt = (1.1 - x) / tau + sigma * (2 / tau)**.5 * xi : 1 (unless refractory)"

    def brian2(self) -> Result:
        b = brian()
        b.seed(1)
        cells = b.NeuronGroup(
            self.n, self.text, threshold="x > 1", reset="x = 0", refractory=5 * b.ms, method="euler",
            namespace={"tau": 20 * b.ms, "sigma": 0.015},
        )  # fmt: skip
        spikes = b.SpikeMonitor(cells)
        b.Network(cells, spikes).run(self.steps * b.defaultclock.dt)
        return {"intervals": intervals_of(brian_spikes(b, spikes))}

    def neuraxis(self) -> Result:
        from neuraxis.network import Network, equations

        model = equations(
            self.text, threshold="x > 1", reset="x = 0", refractory="5*ms - dt", method="euler",
            parameters={"tau": "20*ms", "sigma": 0.015},
        )  # fmt: skip
        network = Network(dt_ms=0.1, seed=1)
        cells = network.population("cells", self.n, model)
        return {"intervals": intervals_of(run_here(network, cells, self.steps))}


def intervals_of(result: Result) -> list[float]:
    """Return number, mean and standard deviation of the intervals between spikes, in steps."""
    order = np.lexsort((result["steps"], result["ids"]))
    steps, ids = np.array(result["steps"])[order], np.array(result["ids"])[order]
    found = np.diff(steps)[np.diff(ids) == 0]
    return [float(len(found)), float(found.mean()), float(found.std())]


EXAMPLES: dict[str, type[Any]] = {
    "CUBA": CUBA,
    "COBAHH": COBAHH,
    "phase_locking": PhaseLocking,
    "non_reliability": NonReliability,
    "adaptive_threshold": AdaptiveThreshold,
    "IF_curve_LIF": IFCurveLIF,
    "IF_curve_Hodgkin_Huxley": IFCurveHodgkinHuxley,
    "frompapers/Brette_2004": Brette2004,
    "frompapers/Brette_Gerstner_2005": BretteGerstner2005,
    "frompapers/Rothman_Manis_2003": RothmanManis2003,
    "frompapers/Hindmarsh_Rose_1984": HindmarshRose1984,
    "frompapers/Morris_Lecar_1981": MorrisLecar1981,
    "frompapers/Wang_Buszaki_1996": WangBuszaki1996,
    "frompapers/Naud_et_al_2008_adex_firing_patterns": Naud2008,
}


def main(results_file: str, *titles: str) -> None:
    """Write the results of Brian2 for all examples, or replace those of some."""
    import brian2

    file = Path(results_file)
    results: dict[str, Any] = json.loads(file.read_text()) if titles else {}
    results |= {
        "made with": f"Brian2 {brian2.__version__}, NumPy {np.__version__}",
        "command": "python tests/validation/brian2_examples.py tests/validation/brian2_results.json",
    }
    for title in titles or EXAMPLES:
        results[title] = EXAMPLES[title]().brian2()
        print(title, {key: len(value) for key, value in results[title].items()}, flush=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in results.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
