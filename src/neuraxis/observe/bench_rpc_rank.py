"""The caller or the callee of one crew of `neuraxis bench rpc`: the caller makes the calls its parent asks for."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from neuraxis.launch.tether import tether
from neuraxis.observe.bench_rank import Ask, Reply, serve_rank
from neuraxis.observe.bench_rpc_plan import MANY
from neuraxis.observe.bench_rpc_ways import CALLER, Calling, Crew, open_crew

__all__ = ["measure_calls"]


def measure_calls(crew: Crew, ask: Ask) -> Reply:
    """Make calls; `ask.pattern` is way/one, where each waits for the one before, or way/many, where many are under way.

    With `check`, it is seen whether what comes back is what was sent.
    """
    if crew.rank != CALLER:
        return Reply()
    way, pattern = ask.pattern.split("/")
    calling = crew.calling(way)
    array = np.random.default_rng(ask.size).integers(0, 256, ask.size, np.uint8)
    if ask.check and not _comes_back(calling, array):
        return Reply(problem=f"{ask.pattern}: what came back is not what was sent")
    payload = calling.pack(array)
    for _ in repeat(None, ask.warmups):
        calling.call(payload)
    collecting = gc.isenabled()
    gc.disable()
    try:
        if pattern == "many":
            assert calling.start is not None
            return Reply(_many(calling.start, payload, ask.iterations))
        times = _one_by_one(calling.call, payload, ask.iterations)
    finally:
        if collecting:
            gc.enable()
    p50, p99 = np.percentile(times, [50, 99])
    return Reply(sum(times), facts={"p50_us": 1e6 * float(p50), "p99_us": 1e6 * float(p99)})


def _comes_back(calling: Calling, array: np.ndarray) -> bool:
    came = [calling.unpack(calling.call(calling.pack(array)))]
    if calling.start is not None:
        came.append(calling.unpack(calling.start(calling.pack(array))()))
    return all(one.dtype == np.uint8 and np.array_equal(one, array) for one in came)


def _one_by_one(call: Callable[[Any], Any], payload: Any, calls: int) -> list[float]:
    clock, times = time.perf_counter, []
    for _ in repeat(None, calls):
        begun = clock()
        call(payload)
        times.append(clock() - begun)
    return times


def _many(start: Callable[[Any], Callable[[], Any]], payload: Any, calls: int) -> float:
    begun = time.perf_counter()
    under_way = deque(start(payload) for _ in range(min(MANY, calls)))
    for _ in repeat(None, calls - len(under_way)):
        under_way.popleft()()
        under_way.append(start(payload))
    for wait in under_way:
        wait()
    return time.perf_counter() - begun


if __name__ == "__main__":
    tether(os.getppid())  # a paused process would not notice that its parent is gone
    serve_rank(open_crew, measure_calls)
