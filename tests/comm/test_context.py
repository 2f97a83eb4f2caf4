"""Life cycle of a context: initialization, invalid arguments, shutdown, fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm.context import current_context
from neuraxis.errors import (
    AlreadyInitialized,
    BackendUnavailable,
    CommunicatorClosed,
    ForkedProcess,
    InvalidArgument,
    NotInitialized,
)
from neuraxis.imports import install_command
from tests.ranks.processes import ROOT, free_port, run_ranks


def test_a_world_of_one_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with dist.init_distributed() as context:
        assert context.is_initialized
        assert context.is_main_process
        assert (context.backend, dist.get_rank(), dist.get_world_size()) == ("local", 0, 1)
        data = np.arange(3.0)
        dist.all_reduce(data)
        assert data.tolist() == [0, 1, 2]
    assert not context.is_initialized
    assert not dist.is_initialized()


@pytest.mark.parametrize("index", [1, np.int64(1), np.array(1)])
def test_the_device_of_a_process_group_may_be_a_number_of_numpy(index: object) -> None:
    dist.init_process_group("shm", world_size=1, rank=0, device_id=index)
    try:
        assert current_context().device_id == 1
    finally:
        dist.destroy_process_group()


def test_initializing_twice_is_a_harmless_error() -> None:
    with dist.DistributedContext("local") as context:
        with pytest.raises(AlreadyInitialized, match="already"):
            context.initialize()
        with pytest.raises(AlreadyInitialized, match=r"close\(\)"):
            dist.init_distributed("local")
        dist.barrier()


def test_after_shutdown() -> None:
    context = dist.init_distributed("local")
    world = context.world
    group = dist.new_group([0])
    context.shutdown()
    context.shutdown()  # again does nothing
    with pytest.raises(NotInitialized, match="init_distributed"):
        dist.barrier()
    with pytest.raises(NotInitialized):
        dist.get_rank()
    for dead in (world, group):
        with pytest.raises(CommunicatorClosed, match="closed"):
            dead.all_reduce(np.ones(1))
    with pytest.raises(CommunicatorClosed, match="Make a new"):
        context.initialize()
    with dist.DistributedContext("local"):  # a new one can be started
        dist.barrier()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": "smoke"}, "'smoke' is not one of auto, local, shm"),
        ({"timeout": 0}, "timeout=0"),
        ({"world_size": 0}, "world_size=0"),
        ({"world_size": 2, "rank": 2}, "rank=2 is not below world_size=2"),
        ({"world_size": 3}, "Give both"),
        ({"backend": "local", "world_size": 2, "rank": 0}, "'local' is for one rank"),
        ({"world_size": 2, "rank": 0, "init_method": "udp://x"}, "must begin with env://, tcp:// or file://"),
        ({"world_size": 2, "rank": 0, "init_method": "tcp://localhost"}, "tcp://host:port"),
        ({"world_size": 2, "rank": 0, "init_method": "file:///no/such/folder/x"}, "existing folder"),
        ({"world_size": 2, "rank": 0}, "MASTER_PORT is not set"),
    ],
)
def test_bad_arguments_are_refused_with_their_name(
    arguments: dict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR", "NEURAXIS_JOB"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgument, match=words):
        dist.init_distributed(**arguments)
    assert not dist.is_initialized()


def test_an_unavailable_backend_gives_the_reason() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(BackendUnavailable, match="nccl") as caught:
        dist.init_distributed("nccl")
    assert caught.value.backend == "nccl"
    assert caught.value.reason


def test_a_missing_extra_is_reported_as_the_line_that_brings_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util\n"
        "original = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name in ('torch', 'mpi4py') else original(name, *a)\n"
        "import neuraxis.distributed as dist\n"
        "for backend in ('gloo', 'mpi'):\n"
        "    try:\n"
        "        dist.init_distributed(backend)\n"
        "    except dist.BackendUnavailable as error:\n"
        "        print(error)\n"
    ).replace("dist.BackendUnavailable", "__import__('neuraxis.errors').errors.BackendUnavailable")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert install_command("torch") in done.stdout
    assert install_command("mpi") in done.stdout


# --- with several ranks ---


def _sum(init_method: str | None, backend: str) -> tuple[float, str]:
    with dist.DistributedContext(backend, init_method, timeout=30) as context:
        data = np.full(2, float(context.rank + 1))
        dist.all_reduce(data)
        return float(data[0]), context.backend


@pytest.mark.parametrize("backend", ["auto", "gloo"])
@pytest.mark.parametrize("scheme", ["env", "tcp", "file"])
def test_each_init_method(scheme: str, backend: str, tmp_path: Path) -> None:
    init_method = {
        "env": "env://",
        "tcp": f"tcp://127.0.0.1:{free_port()}",
        "file": f"file://{tmp_path}/meet",
    }[scheme]
    expected = (6.0, "shm" if backend == "auto" else "gloo")
    assert run_ranks(_sum, 3, init_method, backend, torch=backend == "gloo") == [expected] * 3
    assert list(tmp_path.iterdir()) == []  # the file has served its purpose


def test_a_file_left_by_a_dead_job_does_not_mislead(tmp_path: Path) -> None:
    (tmp_path / "meet").write_text(f"127.0.0.1 {free_port()}\n")
    assert run_ranks(_sum, 2, f"file://{tmp_path}/meet", "shm") == [(3.0, "shm")] * 2


def _many_contexts(count: int) -> list[float]:
    sums = []
    for index in range(count):
        with dist.DistributedContext("shm", timeout=30) as context:
            data = np.full(1, float(context.rank + index))
            dist.all_reduce(data)
            sums.append(float(data[0]))
    return sums


def test_one_context_after_another_in_the_same_processes() -> None:
    expected = [1.0 + 2 * index for index in range(5)]
    assert run_ranks(_many_contexts, 2, 5) == [expected] * 2


def _fork() -> list[str]:
    context = dist.init_distributed("shm", timeout=30)
    group = dist.new_group([0, 1])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        reported = []
        for attempt in (
            dist.barrier,
            lambda: context.world.all_reduce(np.ones(1)),
            lambda: group.barrier(),
            lambda: dist.init_distributed("local"),
        ):
            try:
                attempt()
                reported.append("nothing")
            except ForkedProcess as error:
                reported.append("forked" if "forked from process" in str(error) else str(error))
        context.shutdown()
        os.write(writer, ",".join(reported).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    reported = os.read(reader, 1000).decode().split(",")
    os.close(reader)
    data = np.ones(1)
    dist.all_reduce(data)  # the parent is unaffected
    assert data[0] == 2
    group.barrier()
    context.shutdown()
    return reported


def test_use_in_a_forked_child_raises() -> None:
    assert run_ranks(_fork, 2) == [["forked"] * 4] * 2


def _threads_after(count: int) -> list[str]:
    with dist.DistributedContext("shm", timeout=30) as context:
        works = [dist.all_reduce(np.ones(10), async_op=True) for _ in range(count)]
        for work in works:
            assert work is not None
            work.wait()
        pending = dist.irecv(np.zeros(1), src=1 - context.rank)
        assert not pending.is_completed()
        dist.barrier()
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def test_shutdown_ends_every_thread() -> None:
    assert run_ranks(_threads_after, 2, 5) == [[], []]


def _side_by_side(first: str) -> list[float]:
    """torch.distributed and neuraxis.distributed in one program, both with the same MASTER_PORT."""
    import torch
    import torch.distributed

    def theirs() -> float:
        data = torch.ones(1) * (torch.distributed.get_rank() + 1)
        torch.distributed.all_reduce(data)
        return float(data[0])

    def ours() -> float:
        data = np.ones(1) * (dist.get_rank() + 1)
        dist.all_reduce(data)
        return float(data[0])

    if first == "torch":
        torch.distributed.init_process_group("gloo")
        context = dist.init_distributed("auto", timeout=30)
    else:
        context = dist.init_distributed("auto", timeout=30)
        torch.distributed.init_process_group("gloo")
    sums = [theirs(), ours(), theirs()]
    context.shutdown()
    sums.append(theirs())
    with dist.DistributedContext("gloo", timeout=30):  # our gloo and torch's own at the same time
        sums += [ours(), theirs()]
    torch.distributed.destroy_process_group()
    return sums


@pytest.mark.parametrize("first", ["torch", "neuraxis"])
def test_beside_torch_distributed(first: str) -> None:
    assert run_ranks(_side_by_side, 2, first, torch=True) == [[3.0] * 6] * 2


@pytest.mark.parametrize("first", ["torch", "neuraxis"])
def test_beside_torch_distributed_under_torchrun(first: str, tmp_path: Path) -> None:
    """torchrun itself listens on MASTER_PORT."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.comm.test_context import _side_by_side\n"
        "assert _side_by_side(sys.argv[1]) == [3.0] * 6\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    done = subprocess.run(
        [*command, str(script), first], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def _import_time_of(name: str) -> set[str]:
    code = f"import sys, {name}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_is_light() -> None:
    """`import neuraxis` loads nothing heavy, and the facade nothing that only an extra brings."""
    assert not _import_time_of("neuraxis") & {"numpy", "numba", "torch", "zenoh", "matplotlib"}
    assert not _import_time_of("neuraxis.launch") & {"numpy", "numba", "torch"}
    extras = {"torch", "mpi4py", "dask", "distributed", "cupy"}
    assert not _import_time_of("neuraxis.distributed") & {*extras, "zenoh", "matplotlib"}


def _label_of_an_shm_group() -> str:
    with dist.DistributedContext("gloo", timeout=30) as context:
        group = context.new_group([0], backend="shm")
        assert isinstance(group, dist.Communicator)
        return getattr(group.backend, "label", "")


def test_a_group_of_another_backend_has_its_own_name_in_errors() -> None:
    assert run_ranks(_label_of_an_shm_group, 1, torch=True) == ["group of ranks 0"]


def test_a_batch_with_a_peer_outside_the_group_is_an_invalid_argument() -> None:
    with dist.DistributedContext("local"):
        for op in (dist.isend, dist.irecv):
            with pytest.raises(InvalidArgument, match="5"):
                dist.batch_isend_irecv([dist.P2POp(op, np.ones(2), 5)])
