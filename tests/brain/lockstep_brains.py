"""Brains for ranks and the functions that ranks run on them. Ranks import this module, so it imports nothing heavy."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from neuraxis.brain import Brain, BrainBuilder, Event, default_brain
from neuraxis.brain.spec import BrainSpec
from neuraxis.brain.tasks import CueActionTask, Timing
from neuraxis.comm import Communicator, DistributedContext
from neuraxis.engine.placement import place
from neuraxis.errors import CheckpointError, InvalidArgument, PeerLost, ShardFailed
from neuraxis.simulation import LockstepExecutor
from tests.brain.python_regions import Camera, Failing, Filter, Judge, Unmakable

RUN_MS = 40.0
PIXELS = 12


class Gaze:
    """Answers what the judge sees, some time later, with words and numbers."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        pass

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        heard = [one for one in events if len(one.ids)]
        if not heard:
            return []
        ids = [int(value) for value in heard[0].ids]
        return [Event(time_ms=now + 1.7, ids=[ids[-1] % 4], data={"seen": ids, "word": "look"})]


class Memory:
    """Receive the data of the gaze and send an array to the filter, which closes the loop."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.seen = np.zeros(PIXELS)

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        answers = []
        for one in events:
            if one.data is not None:
                assert one.data["word"] == "look"
                self.seen[one.data["seen"][-1] % PIXELS] += 1.0
                answers.append(Event(data=self.seen / self.seen.sum()))
        return answers

    def get_state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = np.array(state["seen"])


class Mixer(Filter):
    """Data that arrive together are passed on as one."""

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        return super().process_events(now, events)[-1:]


def looking() -> BrainSpec:
    """Regions of Python in a loop: camera, filter, judge, gaze, memory and back to the filter; and neurons."""
    return (
        tiny()
        .python_region("camera", Camera, neurons=PIXELS, tick_ms=2.0, config={"pixels": PIXELS})
        .python_region("filter", Mixer, neurons=1, config={"pixels": PIXELS})
        .python_region("judge", Judge, neurons=3 + PIXELS)
        .python_region("gaze", Gaze, neurons=4)
        .python_region("memory", Memory, neurons=1)
        .pathway("camera", "thalamus", 2.0)
        .pathway("camera", "filter", 3.0)
        .pathway("filter", "judge", 0.5)
        .pathway("judge", "gaze", 1.1)
        .pathway("gaze", "memory", 0.7)
        .pathway("memory", "filter", 2.3)
        .pathway("gaze", "thalamus", 1.5)
        .pathway("sensor/*", "filter", 4.0)
        .spec()
    )


def tiny(seed: int = 3) -> BrainBuilder:
    return (
        BrainBuilder("tiny", seed=seed)
        .sensor("cue", 40, groups=4, rate_hz=60.0)
        .region("thalamus", "thalamus", relay=40)
        .region("cortex", "cortex", neurons=80)
        .pathway("cue", "thalamus", 2.0, topographic=True)
        .pathway("thalamus", "cortex", 2.0, topographic=True)
    )


# --- what one process does, and each rank as well ---


def learn(brain: Brain) -> dict[str, Any]:
    """A few short trials of the default brain."""
    task = CueActionTask(brain, timing=Timing(cue_ms=20, decision_ms=15, action_ms=15, outcome_ms=5, rest_ms=10))
    done = [task.run_trial() for _ in range(2)]
    return {"actions": [one.action for one in done], "fingerprint": brain.fingerprint()}


def look(brain: Brain, folder: Path) -> str:
    """Run in two halves, with external data in flight between them; save the state half way."""
    half = round(RUN_MS / 2 / 0.1)
    brain.forward({"judge": np.arange(5.0)}, half - 20)
    brain.forward({"sensor/any": np.full(PIXELS, 0.5)}, 20)
    brain.save(folder)
    brain.run(RUN_MS / 2)
    return brain.fingerprint()


# --- what each rank does ---


def everything(backend: str, folder: str) -> dict[str, Any]:
    """Return the observations of a rank: a brain that learns, one with data, and error cases."""
    with DistributedContext(backend=backend, check_calls=False) as context:
        world = context.world
        with Brain(default_brain(1), executor=LockstepExecutor(world)) as brain:
            seen = {"rank": world.rank, "leads": brain.leads, "workers": brain.workers, "learned": learn(brain)}
        seen["looked"] = looked(world, Path(folder))
        seen["failed"] = failed(world)
        seen["refused"] = refused(world)
        seen["placed"] = placed(world)
        return seen


def looked(world: Communicator, folder: Path) -> dict[str, Any]:
    """Save half way, continue, restore the saved state, and continue again."""
    with Brain(looking(), executor=LockstepExecutor(world), record=True) as brain:
        first = look(brain, folder)
        brain.restore(folder)
        brain.run(RUN_MS / 2)
        names = [one.name.split(".")[0] for one in brain.lowered.network.populations]
        homes = {names[part.population]: shard for shard, slices in enumerate(brain.placement) for part in slices}
        return {"first": first, "again": brain.fingerprint(), "spikes": brain.spikes("judge"), "homes": homes}


def failed(world: Communicator) -> dict[str, Any]:
    """A region raises on one rank. The ranks are together after it, and make another brain."""
    lab = tiny().python_region("lab", Failing, neurons=1, tick_ms=1.0, config={"at_ms": 4.0})
    answer: dict[str, Any] = {}
    with Brain(lab.pathway("lab", "thalamus", 2.0).spec(), executor=LockstepExecutor(world)) as brain:
        brain.run(3.0)
        try:
            brain.run(10.0)
        except ShardFailed as error:
            answer = {"text": str(error), "shard": error.shard, "step": error.step, "traceback": error.traceback}
    with Brain(tiny().spec(), executor=LockstepExecutor(world)) as brain:
        brain.run(5.0)
        return {**answer, "after": brain.fingerprint()}


def refused(world: Communicator) -> list[str]:
    """Check that invalid brains are refused on all ranks."""
    wrong: list[tuple[BrainSpec, dict[str, Any]]] = [
        (tiny().python_region("own", Unmakable).spec(), {}),
        (tiny(seed=world.rank).spec(), {}),
        (tiny().spec(), {"workers": world.size + 1}),
        (tiny().spec(), {"on_worker_loss": "restart"}),
    ]
    reported = []
    for spec, options in wrong:
        try:
            Brain(spec, executor=LockstepExecutor(world), **options).close()
        except InvalidArgument as error:
            reported.append(str(error))
    return reported


def show(brain: Brain) -> str:
    """Much light, so that there are many spikes in a window."""
    brain.forward([1, 1, 1, 1], 300)
    return brain.fingerprint()


def placed(world: Communicator) -> str:
    """Neurons where a caller wants them, and more spikes in a window than go at once."""
    with Brain(tiny().spec()) as alone:
        wanted = place(alone.lowered.network, world.size)
    with Brain(tiny().spec(), executor=LockstepExecutor(world, placement=wanted)) as brain:
        assert brain.placement == wanted
        assert not brain.rebalance()
        with mock.patch("neuraxis.simulation.lockstep._INLINE", 5):
            return show(brain)


def save_apart(folder: str) -> dict[str, Any]:
    """Rank 1 does not see the folder of rank 0, as on another host; a failed write raises on all ranks."""
    is_dir = Path.is_dir
    with DistributedContext(backend="shm") as context:

        def sees(path: Path) -> bool:
            return is_dir(path) and not (context.rank == 1 and str(path).startswith(folder))

        executor = LockstepExecutor(context.world)
        with Brain(looking(), executor=executor) as brain:
            brain.run(RUN_MS / 2)
            reported = ""
            with mock.patch.object(Path, "is_dir", sees):
                brain.save(folder)
                try:
                    executor.save(Path(folder) / "nowhere")
                except CheckpointError as error:
                    reported = str(error)
            brain.run(RUN_MS / 2)
            return {"fingerprint": brain.fingerprint(), "error": reported}


def die(backend: str, folder: str) -> None:
    """Rank 1 is killed in mid-run; rank 0 writes what it sees, and after how long."""
    with (
        DistributedContext(backend=backend) as context,
        Brain(tiny().spec(), executor=LockstepExecutor(context.world)) as brain,
    ):
        brain.run(5.0)
        begun = time.monotonic()
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            brain.run(1000.0)
        except PeerLost:
            Path(folder, "noticed").write_text(str(time.monotonic() - begun))
            raise
