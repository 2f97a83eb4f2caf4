"""A parameter server with workers that join, leave, die and are slow: the result, and bounded waits."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuraxis.comm import DistributedContext
from neuraxis.errors import (
    InvalidArgument,
    ModelMismatch,
    NodeGone,
    NotInitialized,
    RequestFailed,
    RequestTimeout,
    RouterLost,
)
from neuraxis.mesh import Node, Router, Topology
from neuraxis.rpc import RpcContext
from neuraxis.training import DataParallel, ParameterServer, RpcChannel, ServerWorker
from neuraxis.training.server.channel import ChunkStore, Handler, MeshChannel
from tests.mesh.raw import until
from tests.ranks.processes import Ranks, await_mark, mark, run_ranks
from tests.training.case import UNEVEN, batch, mine, net, plain_net, rows_of

TOLERANCE = 1e-12
LIMIT_S = 60.0
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _zenoh_is_warm() -> None:
    """Let Zenoh open the resources that it keeps until the process ends, so that the leak check ignores them."""
    with Node("first", mesh=f"warm-{os.getpid()}") as first, Node("second", mesh=f"warm-{os.getpid()}") as second:
        first.serve("nothing", lambda message: 0)
        second.request("first", "nothing", timeout=LIMIT_S)


@pytest.fixture
def mesh() -> str:
    """A name that nobody else uses."""
    return f"training-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def start(mesh: str) -> Iterator[Callable[..., Any]]:
    """Opens a server or workers on this test's mesh, which are closed after it."""
    with ExitStack() as stack:

        def open_one(kind: Any, *arguments: Any, **options: Any) -> Any:
            return stack.enter_context(kind(*arguments, mesh=mesh, **options))

        yield open_one


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


def give(worker: ServerWorker, module: nn.Module, seed: int, rows: int = 4) -> Any:
    """One step on a batch of a plain net."""
    loss_of(module, seed, rows).backward()
    return worker.step()


def loss_of(module: nn.Module, seed: int, rows: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    return functional.mse_loss(module(x), y)


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max((mine.double() - theirs.double()).abs().max().item() for mine, theirs in pairs)


# --- synchronous ------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def server_and_all_reduce(mesh: str, optimizer: str) -> tuple[float, float]:
    """Rank 0 is the server; the others train a model with it, and another one by all-reduce, on the same batches."""
    steps = 6
    with DistributedContext("shm", timeout=LIMIT_S) as context:
        workers = context.new_group([1, 2, 3])
        model = net()
        if context.rank == 0:
            make = OPTIMIZERS[optimizer](parameter for parameter in model.parameters() if parameter.requires_grad)
            with ParameterServer(model, make, workers=3, mesh=mesh) as server:
                server.run(timeout=LIMIT_S)
                assert server.version == steps
                assert server.dropped == 0
            context.world.barrier()
            return 0.0, 0.0
        together = DataParallel(net(), group=workers)
        update = OPTIMIZERS[optimizer](parameter for parameter in together.parameters() if parameter.requires_grad)
        begin = net(seed=50 + context.rank)  # the server's values are taken
        with ServerWorker(begin, mesh=mesh, name=f"worker-{context.rank}", timeout=LIMIT_S) as worker:
            for step in range(steps):
                rows = rows_of(UNEVEN, step, 3)
                x, y = batch(step, sum(rows))
                own = mine(rows, context.rank - 1)
                for trained in (begin, together):
                    functional.cross_entropy(trained(x[own]), y[own]).backward()
                assert worker.step().version == step + 1
                update.step()
                update.zero_grad()
        difference = distance(begin, together.module)
        away = distance(begin, net())
        context.world.barrier()
        return difference, away


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_synchronous_server_equals_all_reduce(mesh: str, optimizer: str) -> None:
    results = run_ranks(server_and_all_reduce, 4, mesh, optimizer, torch=True)
    for difference, away in results[1:]:
        assert difference < TOLERANCE
        assert away > 0.01  # it has learned something


def over_remote_calls(mesh: str, backend: str) -> float | None:
    """Rank 0 is the server, the others work for it; how far it is from one process."""
    rank = int(os.environ["RANK"])
    model = plain_net()
    where = {"mesh": mesh} if backend == "zenoh" else {}
    with RpcContext(backend, timeout=LIMIT_S, threads=4, **where) as context:
        channel = RpcChannel(context)
        if rank > 0:
            with ServerWorker(model, server="rank0", channel=channel, timeout=LIMIT_S) as worker:
                for step in range(4):
                    loss_of(model, 10 * rank + step).backward()
                    assert worker.step().version == step + 1
            return None
        with ParameterServer(model, sgd(model), workers=2, channel=channel) as server:
            server.run(timeout=LIMIT_S)
            assert (server.version, server.dropped) == (4, 0)
    whole = plain_net()
    reference = sgd(whole)
    for step in range(4):
        reference.zero_grad()
        ((loss_of(whole, 10 + step) + loss_of(whole, 20 + step)) / 2).backward()
        reference.step()
    return distance(model, whole)


@pytest.mark.parametrize("backend", ["zenoh", "shm"])
def test_over_remote_calls_it_is_the_same(mesh: str, backend: str) -> None:
    far, *_ = run_ranks(over_remote_calls, 3, mesh, backend, torch=True)
    assert far < TOLERANCE


def test_workers_can_join_and_leave(start: Callable[..., Any]) -> None:
    whole = plain_net()
    reference = sgd(whole)
    model = plain_net()
    server = start(ParameterServer, model, sgd(model))
    nets = {name: plain_net(seed=9) for name in "abc"}

    def expect(*shares: tuple[int, int]) -> None:
        """One step on several batches, seen as one."""
        reference.zero_grad()
        total = sum(rows for _, rows in shares)
        for seed, rows in shares:
            (loss_of(whole, seed, rows) * (rows / total)).backward()
        reference.step()
        assert distance(model, whole) < TOLERANCE

    with ThreadPoolExecutor() as threads:
        a = start(ServerWorker, nets["a"], name="a", timeout=LIMIT_S)
        give(a, nets["a"], 1)
        expect((1, 4))
        b = start(ServerWorker, nets["b"], name="b", timeout=LIMIT_S)
        assert b.version == 1
        assert distance(nets["b"], whole) == 0.0
        nets["b"].eval()  # is trained all the same, and counts by its rows
        list(threads.map(give, (a, b), (nets["a"], nets["b"]), (2, 3), (5, 2)))
        expect((2, 5), (3, 2))
        a.close()
        assert list(server.members()) == ["b"]
        give(b, nets["b"], 4)
        expect((4, 4))
    assert server.members() == {"b": server.members()["b"]}


def test_a_batch_without_rows_changes_nothing(start: Callable[..., Any]) -> None:
    model = plain_net()
    start(ParameterServer, model, sgd(model))
    own = plain_net()
    worker = start(ServerWorker, own, timeout=LIMIT_S)
    assert give(worker, own, 1, rows=0).version == 1
    assert distance(model, plain_net()) == 0.0
    give(worker, own, 1, rows=3)
    assert distance(model, plain_net()) > 0.0


def test_the_weight_of_a_batch_can_be_set(start: Callable[..., Any]) -> None:
    model, whole = plain_net(), plain_net()
    start(ParameterServer, model, torch.optim.SGD(model.parameters(), 0.1), workers=2)
    nets = [plain_net(), plain_net()]
    with ThreadPoolExecutor() as threads:
        joined = [
            threads.submit(start, ServerWorker, own, timeout=LIMIT_S, weigh=lambda args, kwargs, weight=weight: weight)
            for own, weight in zip(nets, (3.0, 1.0), strict=True)
        ]
        workers = [one.result() for one in joined]
        list(threads.map(give, workers, nets, (1, 2)))
    (0.75 * loss_of(whole, 1) + 0.25 * loss_of(whole, 2)).backward()
    torch.optim.SGD(whole.parameters(), 0.1).step()
    assert distance(model, whole) < TOLERANCE


# --- asynchronous -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 2])
def test_no_worker_exceeds_the_staleness_bound(start: Callable[..., Any], staleness: int) -> None:
    model = plain_net()
    server = start(ParameterServer, model, sgd(model), mode="async", staleness=staleness, straggler_timeout=LIMIT_S)
    nets = [plain_net(), plain_net()]
    fast = start(ServerWorker, nets[0], name="fast", timeout=LIMIT_S)
    slow = start(ServerWorker, nets[1], name="slow", timeout=LIMIT_S)
    for _ in range(staleness):
        give(fast, nets[0], 1)
    fast.timeout = 1.0
    with pytest.raises(RequestTimeout, match="waiting for: slow"):
        give(fast, nets[0], 1)
    assert server.members() == {"fast": staleness + 1, "slow": 0}
    result = give(slow, nets[1], 2)
    assert (result.missed, result.dropped) == (staleness + 1, False)
    fast.timeout = LIMIT_S
    assert fast.pull() == staleness + 2
    assert distance(nets[0], model) == 0.0


def asynchronous(mesh: str) -> list[int]:
    """Rank 0 is the server, of a linear problem; the others work as fast as they can."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(3)
    model = nn.Linear(4, 1).double()
    if rank == 0:
        with ParameterServer(
            model, torch.optim.SGD(model.parameters(), 0.05), mode="async", staleness=1, workers=3, mesh=mesh
        ) as server:
            server.run(until=150, timeout=LIMIT_S)
            assert server.version >= 150
        assert (model.weight - torch.arange(4.0)).abs().max() < 0.05
        return []
    missed = []
    with ServerWorker(model, mesh=mesh, timeout=LIMIT_S) as worker:
        finished = False
        while not finished:
            x = torch.randn(16, 4, dtype=torch.float64)
            functional.mse_loss(model(x), x @ torch.arange(4.0, dtype=torch.float64)[:, None]).backward()
            result = worker.step()
            missed.append(result.missed)
            finished = result.finished
            assert not result.dropped
    return missed


def test_asynchronous_training_converges_and_no_gradient_is_older_than_the_bound(mesh: str) -> None:
    results = run_ranks(asynchronous, 4, mesh, torch=True)
    others, staleness = 2, 1
    assert all(0 <= missed <= others * (2 * staleness + 1) for missed in itertools.chain(*results))
    steps = [len(missed) for missed in results[1:]]
    assert max(steps) - min(steps) <= staleness + 1
    assert sum(steps) >= 150


# --- slow ones, dead ones ---------------------------------------------------------------------------------------


def test_a_slow_worker_is_left_behind_and_comes_back(start: Callable[..., Any]) -> None:
    model = plain_net()
    server = start(ParameterServer, model, sgd(model), straggler_timeout=0.3)
    nets = [plain_net(), plain_net()]
    quick = start(ServerWorker, nets[0], name="quick", timeout=LIMIT_S)
    slow = start(ServerWorker, nets[1], name="slow", timeout=LIMIT_S)
    assert give(quick, nets[0], 1).version == 1  # returns after the timeout
    late = give(slow, nets[1], 2)
    assert (late.dropped, late.missed, late.version) == (True, 1, 1)
    assert distance(nets[1], model) == 0.0
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(give, (quick, slow), nets, (3, 4)))
    assert [(one.dropped, one.version) for one in results] == [(False, 2), (False, 2)]
    assert server.dropped == 1


def killed_after_three(mesh: str) -> float | None:
    """Rank 0 is the server; rank 2 is killed after its third step. The difference to one process, of the server."""
    rank = int(os.environ["RANK"])
    model = plain_net()
    if rank == 0:
        with ParameterServer(model, sgd(model), workers=2, mesh=mesh, straggler_timeout=LIMIT_S) as server:
            server.run(timeout=LIMIT_S)
        whole = plain_net()
        reference = sgd(whole)
        for step in range(6):
            reference.zero_grad()
            loss = loss_of(whole, 10 + step)
            if step < 3:
                loss = (loss + loss_of(whole, 20 + step)) / 2
            loss.backward()
            reference.step()
        return distance(model, whole)
    with ServerWorker(model, mesh=mesh, name=f"worker-{rank}", timeout=LIMIT_S) as worker:
        for step in range(6):
            loss_of(model, 10 * rank + step).backward()
            if step == 3 and rank == 2:
                mark("dies")
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 3:
                await_mark("dies")
            worker.step()
    return None


def test_a_killed_worker_does_not_stop_the_others(mesh: str) -> None:
    with Ranks(killed_after_three, 3, mesh, torch=True) as ranks:
        server, survivor, victim = ranks.outcomes(LIMIT_S)
    assert victim.status == -signal.SIGKILL, victim.output
    assert survivor.status == 0, survivor.output
    assert server.status == 0, server.output
    assert server.value < TOLERANCE


def stopped_for_a_while(mesh: str) -> list[bool]:
    """Rank 2 is stopped in mid-step until the others have taken it for dead, and then goes on."""
    rank = int(os.environ["RANK"])
    model = plain_net()
    if rank == 0:
        with ParameterServer(model, sgd(model), workers=2, mesh=mesh, straggler_timeout=LIMIT_S) as server:
            server.run(timeout=LIMIT_S)
        return []
    dropped = []
    with ServerWorker(model, mesh=mesh, name=f"worker-{rank}", timeout=LIMIT_S) as worker:
        for step in range(3):
            loss_of(model, 10 * rank + step).backward()
            if step == 1 and rank == 2:
                mark("stops")
                os.kill(os.getpid(), signal.SIGSTOP)
            if step == 1 and rank == 1:
                await_mark("stops")
                dropped.append(worker.step().dropped)  # returns when the other is taken for dead
                mark("went-on")
                await_mark("is-back", LIMIT_S)
            else:
                dropped.append(worker.step().dropped)
            if step == 1 and rank == 2:
                mark("is-back")
    return dropped


@pytest.mark.alone
def test_a_stopped_worker_does_not_block_the_others_and_rejoins(mesh: str) -> None:
    with Ranks(stopped_for_a_while, 3, mesh, torch=True) as ranks:
        ranks.wait_for("went-on", LIMIT_S)
        ranks.processes[2].send_signal(signal.SIGCONT)
        server, patient, stopped = ranks.outcomes(LIMIT_S)
    assert server.status == 0, server.output
    assert patient.value == [False, False, False], patient.output
    assert stopped.value == [False, True, False], stopped.output


def server_is_killed(mesh: str) -> str:
    rank = int(os.environ["RANK"])
    model = plain_net()
    if rank == 0:
        with ParameterServer(model, sgd(model), workers=2, mesh=mesh) as server:
            while server.version < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    with ServerWorker(model, mesh=mesh, timeout=LIMIT_S) as worker:
        try:
            for step in range(1_000_000):
                give(worker, model, step)
        except NodeGone as error:
            return str(error)
    return "it never ended"


def test_a_dead_server_is_an_error_for_its_workers(mesh: str) -> None:
    with Ranks(server_is_killed, 3, mesh, torch=True) as ranks:
        server, *workers = ranks.outcomes(LIMIT_S)
    assert server.status == -signal.SIGKILL, server.output
    for worker in workers:
        assert worker.status == 0, worker.output
        assert "'server'" in worker.value


# --- deadlines and mistakes -------------------------------------------------------------------------------------


def test_no_server_is_an_error_when_the_time_is_over(start: Callable[..., Any]) -> None:
    with pytest.raises(NodeGone, match="no parameter server called 'nowhere'"):
        start(ServerWorker, plain_net(), server="nowhere", timeout=0.3)


def test_a_worker_that_lost_its_router_does_not_take_the_server_for_gone(mesh: str) -> None:
    with (
        Router(["tcp/127.0.0.1:0"]) as router,
        Node("worker", mesh=mesh, topology=Topology("client", router.endpoints)) as node,
        MeshChannel("worker", node=node) as channel,
    ):
        assert not channel.wait_for("server", 0.1)
        router.close()
        until(lambda: not node.connected, "the worker to be cut off")
        with pytest.raises(RouterLost, match="waiting for 'server': node 'worker' has lost its connection"):
            channel.wait_for("server", 0.1)
        with pytest.raises(RouterLost, match="request to 'pull' of node 'server'"):
            channel.call("server", "pull", {}, timeout=0.5)


def test_no_workers_are_an_error_when_the_time_is_over(start: Callable[..., Any]) -> None:
    model = plain_net()
    server = start(ParameterServer, model, sgd(model), workers=2)
    with pytest.raises(RequestTimeout, match="present: none"):
        server.run(timeout=0.2)
    with pytest.raises(RequestTimeout, match="not enough workers"):
        start(ServerWorker, plain_net(), timeout=0.5)


def test_other_models_are_refused_with_the_name(start: Callable[..., Any]) -> None:
    model = plain_net()
    server = start(ParameterServer, model, sgd(model))
    other = plain_net()
    other[2] = nn.Linear(8, 9).double()
    with pytest.raises(ModelMismatch, match=r"2\.weight") as caught:
        start(ServerWorker, other, timeout=LIMIT_S)
    assert caught.value.parameter == "2.weight"
    with pytest.raises(ModelMismatch, match="float32"):
        start(ServerWorker, plain_net().float(), timeout=LIMIT_S)
    assert server.members() == {}


class Failing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ZeroDivisionError("no step today")


def test_an_optimizer_error_ends_the_server_and_reaches_the_workers(start: Callable[..., Any]) -> None:
    model = plain_net()
    server = start(ParameterServer, model, Failing(model.parameters(), 0.1))
    own = plain_net()
    worker = start(ServerWorker, own, timeout=LIMIT_S)
    with pytest.raises(RequestFailed, match="no step today"):
        give(worker, own, 1)
    with pytest.raises(ZeroDivisionError):
        server.run(timeout=LIMIT_S)
    with pytest.raises(RequestFailed, match="no step today"):
        worker.pull()


def test_the_server_ends_at_the_requested_version(start: Callable[..., Any], mesh: str) -> None:
    model = plain_net()
    server = start(ParameterServer, model, sgd(model))
    own = plain_net()

    def work() -> int:
        with ServerWorker(own, mesh=mesh, timeout=LIMIT_S) as worker:
            while not give(worker, own, 1).finished:
                pass
            return worker.version

    with ThreadPoolExecutor() as threads:
        working = threads.submit(work)
        server.run(until=5, timeout=LIMIT_S)
        assert working.result(LIMIT_S) == 5
    assert server.version == 5
    assert distance(own, model) == 0.0


def test_a_worker_of_an_earlier_server_gets_an_error(start: Callable[..., Any]) -> None:
    model, own = plain_net(), plain_net()
    first = start(ParameterServer, model, sgd(model))
    worker = start(ServerWorker, own, timeout=LIMIT_S)
    first.close()
    start(ParameterServer, model, sgd(model))
    worker._channel.wait_for("server", LIMIT_S)
    with pytest.raises(RequestFailed, match="join again"):
        give(worker, own, 1)


def test_a_step_before_joining_raises(mesh: str) -> None:
    worker = ServerWorker(plain_net(), mesh=mesh)
    try:
        with pytest.raises(NotInitialized, match="with"):
            worker.step()
    finally:
        worker.close()
    with pytest.raises(InvalidArgument, match="timeout"):
        ServerWorker(plain_net(), mesh=mesh, timeout=0.0)


def test_patience_s_is_a_deprecated_name_of_straggler_timeout(mesh: str) -> None:
    model = plain_net()
    with pytest.warns(DeprecationWarning, match="Use straggler_timeout="):
        server = ParameterServer(model, sgd(model), mesh=mesh, patience_s=0.5)
    with server:
        assert server._membership.straggler_timeout == 0.5


# --- another way to talk ----------------------------------------------------------------------------------------


class Room:
    """Parties of one process that call each other directly."""

    def __init__(self) -> None:
        self.parties: dict[str, dict[str, Handler]] = {}
        self.changed = threading.Condition()


class RoomChannel:
    """A channel without a network: what it takes to put another one in the mesh's place."""

    def __init__(self, room: Room, name: str) -> None:
        self.name = name
        self._room = room
        self._handlers: dict[str, Handler] = {}

    def serve(self, topic: str, handler: Handler, threads: int) -> None:
        self._handlers[topic] = handler

    def announce(self) -> None:
        with self._room.changed:
            self._room.parties[self.name] = self._handlers
            self._room.changed.notify_all()

    def call(self, to: str, topic: str, value: dict[str, Any], timeout: float) -> Any:
        if not self.is_present(to):
            raise NodeGone(f"{to} is not in the room", to)
        return copy.deepcopy(self._room.parties[to][topic](copy.deepcopy(value)))

    def is_present(self, name: str) -> bool:
        return name in self._room.parties

    def wait_for(self, name: str, timeout: float) -> bool:
        with self._room.changed:
            return self._room.changed.wait_for(lambda: self.is_present(name), timeout)

    def close(self) -> None:
        self._room.parties.pop(self.name, None)


def test_any_channel_will_do() -> None:
    room = Room()
    model, own, whole = plain_net(), plain_net(), plain_net()
    with (
        ParameterServer(model, sgd(model), channel=RoomChannel(room, "server")) as server,
        ServerWorker(own, channel=RoomChannel(room, "worker")) as worker,
    ):
        reference = sgd(whole)
        for seed in range(3):
            give(worker, own, seed)
            reference.zero_grad()
            loss_of(whole, seed).backward()
            reference.step()
        assert server.members() == {"worker": 3}
        room.parties.pop("worker")  # it is gone, without a word
        server.run(timeout=LIMIT_S)
    assert distance(model, whole) < TOLERANCE


def test_long_tensors_are_sent_in_pieces(mesh: str) -> None:
    model, own, whole = plain_net(), plain_net(seed=4), plain_net()
    with (
        ParameterServer(model, sgd(model), channel=MeshChannel("server", mesh, chunk_bytes=100)) as server,
        ServerWorker(own, channel=MeshChannel("worker", mesh, chunk_bytes=36)) as worker,
    ):
        reference = sgd(whole)
        for seed in range(2):
            give(worker, own, seed)
            reference.zero_grad()
            loss_of(whole, seed).backward()
            reference.step()
        assert server.version == 2
    assert distance(own, whole) < TOLERANCE


def test_a_chunk_is_taken_once() -> None:
    chunks = ChunkStore()
    chunks.keep("one", torch.ones(3))
    assert chunks.take("one").tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(InvalidArgument, match="no chunk 'one'"):
        chunks.take("one")
