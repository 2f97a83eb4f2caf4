"""Networks of many projections: the work to describe and to build them grows in proportion to their number."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.placement import place
from neuraxis.engine.precompile import warm_up
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.network import STDP, FixedInDegree, FixedTotalNumber, Network, Uniform
from neuraxis.network.models import lif_delta
from tests.engine.cuda.shards import run_together
from tests.engine.cuda.twin import TwinDevice, TwinProgram, compiler

POPULATIONS = (6, 12, 18, 36)  # all are connected with all


def described(populations: int) -> Network:
    network = Network(seed=3)
    made = [network.population(f"p{i}", 4, lif_delta) for i in range(populations)]
    for i, source in enumerate(made):
        network.poisson(source, 100.0, 0.5)
        for j, target in enumerate(made):
            if i % 2:
                network.connect(source, target, FixedTotalNumber(9), 0.5, 0.4)
            elif j % 3:
                network.connect(source, target, FixedInDegree(2), Uniform(0.1, 0.4), Uniform(0.2, 2.0))
            else:
                network.connect(source, target, FixedInDegree(1), 0.5, 0.4, plasticity=STDP.additive(w_max=1.0))
    return network


def build(network: Network) -> Shard:
    placement = place(network, 1)
    return Shard(network, placement, 0, SpikeBuffers.private(network, placement))


def instructions(call: Callable[[], Any]) -> int:
    """Return the number of Python instructions that a call executes, which is the same each time."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return executed


def test_the_work_for_each_projection_does_not_grow_with_their_number() -> None:
    """The work is c0 + c1 populations + c2 projections, found from small networks, for a larger one, too."""
    warm_up()
    build(described(POPULATIONS[0]))  # compiles the rest
    networks = {n: described(n) for n in POPULATIONS}
    for work in (described, lambda n: build(networks[n])):
        *small, large = (instructions(lambda n=n, work=work: work(n)) for n in POPULATIONS)
        parts = np.linalg.solve([[1, n, n * n] for n in POPULATIONS[:-1]], small)
        assert large < 1.03 * parts @ [1, POPULATIONS[-1], POPULATIONS[-1] ** 2]


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU needs g++")
def test_static_projections_share_launches_and_copies_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    used: Counter[str] = Counter()

    def counted(of: type, name: str) -> None:
        original = getattr(of, name)

        def call(self: Any, *arguments: Any) -> Any:
            used[name] += 1
            return original(self, *arguments)

        monkeypatch.setattr(of, name, call)

    for of, name in ((TwinProgram, "launch"), (TwinDevice, "write"), (TwinDevice, "read"), (TwinDevice, "empty")):
        counted(of, name)

    def network(times: int) -> Network:
        made = Network(seed=4)
        sources, lonely = made.population("sources", 40, lif_delta), made.population("lonely", 1, lif_delta)
        made.poisson(sources, 9000.0, 1.0)
        for _ in range(times):
            for target in (sources, lonely):
                made.connect(sources, target, FixedTotalNumber(70), Uniform(0.1, 0.4), Uniform(0.2, 1.0))
                made.connect(sources, target, FixedInDegree(3), 0.2, 0.4)
        made.record(lonely, "spikes")
        return made

    found = []
    for times in (1, 8):
        expected = run_together(network(times), "c", (60,))
        used.clear()
        assert run_together(network(times), "g", (60,)) == expected
        found.append(dict(used))
        assert expected.counts[1] > 0
    assert found[0] == found[1]
