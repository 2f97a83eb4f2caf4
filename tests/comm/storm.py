"""Fault injection on the ranks of a group: one rank is killed, raises or leaves, and every other must name it.

    python -m tests.comm.storm shm --cases 500 --seed 1 --load
    python -m tests.comm.storm mpi --seconds 60
    python -m tests.comm.storm torch --cases 500

Each case is drawn from the seed: the number of ranks, the victim, its fault and moment, the calls that the ranks make
(collectives, messages, objects, asynchronous calls, a group without the victim), and what each survivor does after its
PeerLost, because a survivor that leaves must not be taken for the cause. A case passes if every survivor raised a
PeerLost that names the victim and its signal, exit code or exception.

`torch` is training over torch's backend "shm": steps of DDP and FSDP2 models, in which the fault falls into the
forward pass, the backward pass, the optimizer, or between them (`tests.torch.training_steps`).

Over shm, gloo and torch the ranks of a case are forked from this process, which has all modules loaded. mpirun ends
every rank when one is killed, so over MPI the victims raise or leave, all cases in the same processes.

`storm` runs it in a new Python and returns a `Report`; `tests.comm.test_storm` runs a short one in each backend.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import neuraxis.distributed as dist
from neuraxis.errors import PeerLost

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0  # of every call, and then of the case
MPI_SIZE = 4
MODULE = "tests.comm.storm"

SIGNALS = ["SIGKILL", "SIGTERM", "SIGSEGV"]
KILLS = [*["SIGKILL"] * 6, "SIGTERM", "SIGSEGV"]
RAISES = ["raises", "raises", "exits", "leaves"]
TORCH_FAULTS = [*["SIGKILL"] * 4, *["SIGSEGV"] * 2, *["SIGTERM"] * 2, "raises", "raises", "os._exit", "exits", "leaves"]
CALLS = ["barrier", "all_reduce", "long", "all_to_all", "objects", "async", "ring", "any", "subgroup"]
AFTERWARDS = ["raises", "raises another", "returns", "shuts down", "exits"]


@dataclass
class Case:
    """One fault."""

    number: int
    seed: int
    backend: str
    size: int
    victim: int
    fault: str
    calls_before: int
    delay_s: float | None  # the fault comes from another thread after this time; between two calls where it is None
    with_block: bool  # the context is used in a `with`; otherwise the interpreter's end closes it
    afterwards: list[str]  # what each rank does after its PeerLost
    model: str = ""  # of torch's training, with the point of a step at which a fault without delay occurs
    point: str = ""

    @property
    def text(self) -> str:
        """The text of the victim's exception."""
        return f"fault {self.number} of rank {self.victim}"


@dataclass
class Report:
    """The outcome of a storm."""

    backend: str
    seed: int
    cases: int = 0
    survivors: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)  # of torch's training, in which the survivors raised
    wrong: list[str] = field(default_factory=list)  # a line for each survivor that did not name the cause
    latencies_s: list[float] = field(default_factory=list)  # from the fault to a survivor's PeerLost

    def __str__(self) -> str:
        late = sorted(self.latencies_s) or [0.0]
        kinds = ", ".join(f"{count} {fault}" for fault, count in sorted(self.faults.items()))
        phases = ", ".join(f"{count} in {phase}" for phase, count in sorted(self.phases.items()))
        summary = (
            f"{self.backend}, seed {self.seed}: {self.cases} faults ({kinds}), {self.survivors} survivors, "
            f"{len(self.wrong)} wrong; noticed after {1000 * late[len(late) // 2]:.0f} ms (median), "
            f"{1000 * late[-1]:.0f} ms (longest){'; raised: ' + phases if phases else ''}"
        )
        return "\n".join([summary, *self.wrong[:20]])


def storm(
    backend: str,
    *,
    seed: int = 0,
    cases: int | None = None,
    seconds: float | None = None,
    load: bool = False,
    timeout: float = 600.0,
) -> Report:
    """Run a storm in a new Python: `cases` faults, or as many as there are in `seconds`."""
    options = [f"--seed={seed}", "--json", *(["--load"] if load else [])]
    options += [f"--cases={cases}"] if cases is not None else []
    options += [f"--seconds={seconds}"] if seconds is not None else []
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    run = subprocess.run(
        [sys.executable, "-m", MODULE, backend, *options],
        env={**os.environ, "PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=True,
    )
    return Report(**json.loads(run.stdout))


def draw(backend: str, seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    chance = random.Random(f"{seed}/{number}")
    if backend == "torch":
        return _draw_training(chance, seed, number)
    size = MPI_SIZE if backend == "mpi" else chance.choice([2, 3, 4, 4, 4, 5])
    kills = backend != "mpi" and chance.random() < 0.75
    fault = chance.choice(KILLS if kills else RAISES)
    return Case(
        number,
        seed,
        backend,
        size,
        chance.randrange(size),
        fault,
        chance.randrange(6),
        chance.uniform(0.0, 0.03) if kills and chance.random() < 0.5 else None,
        backend == "mpi" or chance.random() < 0.7,
        [chance.choice(AFTERWARDS) for _ in range(size)],
    )


def _draw_training(chance: random.Random, seed: int, number: int) -> Case:
    from tests.torch.training_steps import DDP_MODELS, FSDP2_MODELS, POINTS

    model = chance.choice(FSDP2_MODELS if number % 2 else DDP_MODELS)
    size = chance.choice([2, 4]) if "replicated" in model else chance.choice([2, 3, 3, 4])
    fault = chance.choice(TORCH_FAULTS)
    at_any_time = fault in (*SIGNALS, "os._exit") and chance.random() < 0.5
    return Case(
        number,
        seed,
        "torch",
        size,
        chance.randrange(size),
        fault,
        chance.randrange(4),
        chance.uniform(0.0, 0.05) if at_any_time else None,
        chance.random() < 0.7,
        [chance.choice(AFTERWARDS) for _ in range(size)],
        model,
        chance.choice(POINTS),
    )


# --- one rank of one case ---------------------------------------------------------------------------


def live(case: Case, rank: int, place: dict[str, Any], tell: Callable[..., None]) -> None:
    """Make calls until the fault; `tell` records the observations of this rank."""
    context = dist.DistributedContext(case.backend, timeout=DEADLINE_S, **place)
    if case.with_block:
        with context:
            _use(case, context, tell)
    else:
        _use(case, context.initialize(), tell)


def _use(case: Case, context: dist.DistributedContext, tell: Callable[..., None]) -> None:
    chance = random.Random(f"{case.seed}/{case.number}/calls")  # the same calls on all ranks
    others = [rank for rank in range(case.size) if rank != case.victim]
    subgroup = dist.new_group(others)
    dist.barrier()
    is_victim = context.rank == case.victim
    if is_victim and case.delay_s is not None:
        threading.Timer(case.delay_s, _fail, (case, tell)).start()
    try:
        for number in range(10**9):
            if is_victim and case.delay_s is None and number == case.calls_before:
                _fail(case, tell)
                return
            _call(chance.choice(CALLS), context.world, subgroup)
    except ConnectionError as error:  # as a program that knows nothing of neuraxis would
        _tell_loss(tell, error)
        _go_on(case.afterwards[context.rank], context.shutdown, error)


def _tell_loss(tell: Callable[..., None], error: ConnectionError, **more: Any) -> None:
    tell(
        at=time.monotonic(),
        kind=type(error).__name__,
        rank=getattr(error, "rank", None),
        signal=getattr(error, "signal", None),
        exit_code=getattr(error, "exit_code", None),
        text=str(error),
        **more,
    )


def train(case: Case, rank: int, place: dict[str, Any], tell: Callable[..., None]) -> None:
    """Train over torch's backend "shm" until the fault."""
    import torch.distributed as torch_dist

    torch_dist.init_process_group("shm", timeout=timedelta(seconds=DEADLINE_S), **place)
    try:
        _train(case, rank, tell)
    finally:
        if case.with_block and torch_dist.is_initialized():
            torch_dist.destroy_process_group()


def _train(case: Case, rank: int, tell: Callable[..., None]) -> None:
    import torch.distributed as torch_dist

    from tests.torch.training_steps import Training

    is_victim = rank == case.victim

    def reach(step: int, point: str) -> None:
        if is_victim and case.delay_s is None and step == case.calls_before and point == case.point:
            _fail(case, tell)
            raise _Leaving

    training = Training(case.model, reach)
    torch_dist.barrier()
    if is_victim and case.delay_s is not None:
        threading.Timer(case.delay_s, _fail, (case, tell)).start()
    try:
        training.run()
    except _Leaving:
        pass
    except ConnectionError as error:
        _tell_loss(tell, error, phase=f"{case.model.split(',')[0]} {training.phase}")
        _go_on(case.afterwards[rank], torch_dist.destroy_process_group, error)


class _Leaving(Exception):
    """The victim leaves its training in good order."""


def _fail(case: Case, tell: Callable[..., None]) -> None:
    tell(at=time.monotonic())
    if case.fault in SIGNALS:
        os.kill(os.getpid(), getattr(signal, case.fault))
        time.sleep(DEADLINE_S)
    elif case.fault == "os._exit":
        os._exit(3)
    elif case.fault == "raises":
        raise ValueError(case.text)
    elif case.fault == "exits":
        sys.exit(3)


def _go_on(afterwards: str, shut_down: Callable[[], None], error: BaseException) -> None:
    if afterwards == "raises":
        raise error
    if afterwards == "raises another":
        raise RuntimeError("no more training")
    if afterwards == "shuts down":
        shut_down()
    if afterwards == "exits":
        sys.exit(4)


def _call(call: str, world: dist.Communicator, subgroup: Any) -> None:
    rank, size = world.rank, world.size
    data = np.full(8, float(rank))
    if call == "barrier":
        world.barrier()
    elif call == "all_reduce":
        world.all_reduce(data)
    elif call == "long":
        world.all_reduce(np.ones(100_000))
    elif call == "all_to_all":
        world.all_to_all([np.empty(4) for _ in range(size)], [np.ones(4) for _ in range(size)])
    elif call == "objects":
        world.all_gather_object([None] * size, {"rank": rank})
    elif call == "async":
        work = world.all_reduce(data, async_op=True)
        assert work is not None
        work.wait()
    elif call == "ring":
        sending = world.isend(data, dst=(rank + 1) % size)
        world.recv(np.empty(8), src=(rank - 1) % size)
        sending.wait()
    elif call == "any":  # one message in front of all others, so that two such calls cannot mix
        if rank == 0:
            for _ in range(size - 1):
                world.recv(np.empty(8))
        else:
            world.send(data, dst=0)
        world.barrier()
    elif subgroup:
        subgroup.all_reduce(data)


# --- what must have come of it ----------------------------------------------------------------------


def judge(case: Case, seen: dict[int, list[dict[str, Any]]], report: Report) -> None:
    """Add a case to the report; `seen` has the records of the ranks."""
    report.cases += 1
    report.faults[case.fault] = report.faults.get(case.fault, 0) + 1
    for rank in range(case.size):
        if rank == case.victim:
            continue
        report.survivors += 1
        reported = seen.get(rank, [])
        if not reported:
            report.wrong.append(f"{case}: rank {rank} noticed nothing")
            continue
        wrong = _mistake(case, reported[0])
        if wrong:
            report.wrong.append(f"{case}: rank {rank}: {wrong}: {reported[0]}")
        if "phase" in reported[0]:
            report.phases[reported[0]["phase"]] = report.phases.get(reported[0]["phase"], 0) + 1
        if seen.get(case.victim):
            report.latencies_s.append(reported[0]["at"] - seen[case.victim][0]["at"])


def _mistake(case: Case, reported: dict[str, Any]) -> str:
    if reported["kind"] != "PeerLost":
        return f"a {reported['kind']}"
    if reported["rank"] != case.victim:
        return f"it names rank {reported['rank']}"
    expected = {"raises": f"raised ValueError: {case.text}", "leaves": "has left this group"}.get(case.fault, "")
    if case.backend == "torch" and case.fault == "leaves" and not case.with_block:  # torch's groups stay open
        expected = "exited with code 0"
    if case.fault in SIGNALS:
        expected = f"killed by {case.fault}"
        if reported["signal"] != getattr(signal, case.fault):
            return f"it has signal {reported['signal']}"
    if case.fault == "os._exit":
        expected = "exited with code 3"
        if reported["exit_code"] != 3:
            return f"it has exit code {reported['exit_code']}"
    if case.fault == "exits" and (case.with_block or reported["exit_code"] is not None):
        expected = "left by sys.exit(3)" if case.with_block else "exited with code 3"
        if reported["exit_code"] != 3:
            return f"it has exit code {reported['exit_code']}"
    return "" if f"rank {case.victim}" in reported["text"] and expected in reported["text"] else "it gives no reason"


# --- shm, gloo and torch: forked ranks --------------------------------------------------------------


def run_forked(backend: str, seed: int, wanted: Callable[[int], bool], report: Report) -> None:
    """Run the cases, each in processes of its own."""
    number = 0
    while wanted(number):
        case = draw(backend, seed, number)
        folder = Path(tempfile.mkdtemp(prefix="neuraxis-storm-"))
        pids: list[int] = []
        for rank in range(case.size):
            pid = os.fork()
            if pid == 0:
                _be_a_process(case, rank, folder)
            pids.append(pid)
        _await_ends(pids, case, report)
        judge(case, {rank: _read(folder / str(rank)) for rank in range(case.size)}, report)
        shutil.rmtree(folder)
        number += 1


def _be_a_process(case: Case, rank: int, folder: Path) -> NoReturn:
    """Be a rank, and end as the interpreter would, except that nothing is torn down that the system frees anyway."""
    log = os.open(folder / f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["NEURAXIS_JOB"] = folder.name
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    place = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": case.size}
    status = 0
    try:
        (train if case.backend == "torch" else live)(case, rank, place, _writer(folder / str(rank)))
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:
        traceback.print_exception(error)
        sys.last_value = error
        status = 1
    atexit._run_exitfuncs()
    os._exit(status)


def _await_ends(pids: list[int], case: Case, report: Report) -> None:
    """Wait until all have ended, and only then take their statuses: until then all ranks can see how one ended."""
    deadline = time.monotonic() + DEADLINE_S + 30
    for pid in pids:
        descriptor = os.pidfd_open(pid)
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            report.wrong.append(f"{case}: rank {pids.index(pid)} did not end")
            os.kill(pid, signal.SIGKILL)
        os.close(descriptor)
    for pid in pids:
        os.waitpid(pid, 0)


def _writer(path: Path) -> Callable[..., None]:
    def tell(**what: Any) -> None:
        with path.open("a") as lines:
            lines.write(json.dumps(what) + "\n")

    return tell


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# --- MPI: all cases in the same processes -----------------------------------------------------------


def run_under_mpi(seed: int, cases: int | None, seconds: float | None, report: Report) -> None:
    """Start the ranks by mpirun and judge what they have written down."""
    folder = Path(tempfile.mkdtemp(prefix="neuraxis-storm-"))
    mpirun = Path(sys.executable).with_name("mpirun")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    command = [str(mpirun) if mpirun.exists() else "mpirun", "--allow-run-as-root", "--oversubscribe"]
    command += ["-n", str(MPI_SIZE), sys.executable, "-m", MODULE, "mpi-rank", f"--seed={seed}", f"--folder={folder}"]
    command += [f"--cases={cases}"] if cases is not None else []
    command += [f"--seconds={seconds}"] if seconds is not None else []
    subprocess.run(command, env=kept, cwd=ROOT, stdout=sys.stderr, check=True)
    for path in sorted(folder.glob("*-0"), key=lambda path: int(path.name.split("-")[0])):
        number = int(path.name.split("-")[0])
        judge(draw("mpi", seed, number), {rank: _read(folder / f"{number}-{rank}") for rank in range(MPI_SIZE)}, report)
    shutil.rmtree(folder)


def be_mpi_ranks(seed: int, wanted: Callable[[int], bool], folder: Path) -> None:
    """The program of each of mpirun's ranks."""
    number, goes_on = 0, True
    while goes_on:
        case = draw("mpi", seed, number)
        with dist.DistributedContext("mpi", timeout=DEADLINE_S) as context:
            rank = context.rank
            decision = np.array([float(wanted(number + 1))])
            dist.broadcast(decision, src=0)
            goes_on = bool(decision[0])
        tell = _writer(folder / f"{number}-{rank}")
        (folder / f"{number}-{rank}").touch()
        with suppress(ValueError, RuntimeError, SystemExit, PeerLost):
            live(case, rank, {}, tell)
        number += 1


# --- the program ------------------------------------------------------------------------------------


@contextmanager
def burning_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy meanwhile."""
    here = os.getpid()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while os.getppid() == here:
                sum(range(100_000))
            os._exit(0)
        pids.append(pid)
    try:
        yield
    finally:
        if os.getpid() == here:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("backend", choices=["shm", "gloo", "mpi", "torch", "mpi-rank"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--load", action="store_true", help="keep all cores busy meanwhile")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    stop_at = time.monotonic() + options.seconds if options.seconds is not None else float("inf")

    def wanted(number: int) -> bool:
        return (options.cases is None or number < options.cases) and time.monotonic() < stop_at

    if options.backend == "mpi-rank":
        be_mpi_ranks(options.seed, wanted, options.folder)
        return
    report = Report(options.backend, options.seed)
    with burning_cores(len(os.sched_getaffinity(0)) if options.load else 0):
        if options.backend == "mpi":
            run_under_mpi(options.seed, options.cases, options.seconds, report)
        else:
            _load_modules(options.backend)
            run_forked(options.backend, options.seed, wanted, report)
    print(json.dumps(asdict(report)) if options.json else report)


def _load_modules(backend: str) -> None:
    """Load, before the first fork, what every rank would load by itself."""
    from neuraxis.comm.backends.shm.backend import ShmBackend

    if backend == "gloo":
        from neuraxis.comm.backends import torch as torch_backend

        torch_backend.require_torch("gloo")
    if backend == "torch":
        import torch
        import torch._dynamo  # comes with the first optimizer

        import neuraxis.torch.process_group  # noqa: F401
        import tests.torch.training_steps  # noqa: F401

        torch.set_num_threads(1)
    # The compiled functions: two ranks in two threads make every call once.
    contents: list[bytes] = [b"", b""]
    meeting = threading.Barrier(2)

    def be_rank(rank: int) -> None:
        def exchange(content: bytes) -> list[bytes]:
            contents[rank] = content
            meeting.wait(DEADLINE_S)
            everybody = list(contents)
            meeting.wait(DEADLINE_S)
            return everybody

        world = dist.Communicator(ShmBackend(rank, 2, exchange, DEADLINE_S), range(2), DEADLINE_S, "world")
        for call in CALLS:
            _call(call, world, None)
        data = np.ones(2, np.float32)
        world.all_reduce(data)
        world.all_reduce(np.ones(2, np.float16))
        world.reduce_scatter_tensor(data[:1], np.ones(2, np.float32))
        world.all_gather_into_tensor(data, np.ones(1, np.float32))
        world.broadcast(data, src=0)
        world.close()

    threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
