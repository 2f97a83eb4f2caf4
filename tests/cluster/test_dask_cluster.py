"""A Dask cluster from a user's view: functions and data on workers, and lost workers and schedulers."""

from __future__ import annotations

import copy
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, Security

from neuraxis.cluster import DaskCluster, dask_to_tensor, tensor_to_dask
from neuraxis.errors import (
    BackendUnavailable,
    ClusterClosed,
    ClusterError,
    ClusterTimeout,
    InvalidArgument,
    InvalidType,
    TaskLost,
)
from neuraxis.imports import install_command
from tests.cluster import tasks
from tests.cluster.conftest import LIMIT_S, Others, keys_in
from tests.ranks.fork_server import ROOT, SEARCH_PATH
from tests.ranks.stopping import resume, stop


def until(what, limit_s=LIMIT_S):
    """The first answer that is not false."""
    deadline = time.monotonic() + limit_s
    while not (answer := what()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


# --- to compute ---


def test_functions_run_on_workers(cluster, tmp_path):
    assert cluster.gather(cluster.map(tasks.square, range(7))) == [0, 1, 4, 9, 16, 25, 36]
    assert cluster.gather(cluster.map(tasks.scaled, [1, 2], (x for x in (10, 20)), plus=3)) == [13, 43]
    assert cluster.gather(cluster.submit(tasks.scaled, cluster.submit(tasks.square, 3), by=2)) == 18
    pids = set(cluster.gather(cluster.map(tasks.pid, range(20), pure=False)))
    assert os.getpid() not in pids
    assert pids <= set(cluster.client.run(os.getpid).values())
    # Results have the container type of their futures.
    two, three = cluster.submit(tasks.square, 2), cluster.submit(tasks.square, 3)
    found = cluster.gather({"both": [two, three], "one": (two,), "plain": 5})
    assert found == {"both": [4, 9], "one": (4,), "plain": 5}
    assert cluster.gather([]) == []
    # Futures are yielded in the order of completion.
    late = cluster.submit(tasks.wait_for, str(tmp_path / "go"))
    early = cluster.submit(tasks.square, 12)
    order = cluster.completed([late, early])
    assert next(order) is early
    (tmp_path / "go").touch()
    assert list(order) == [late]
    failed = cluster.submit(tasks.refuse, 5)
    assert [future.status for future in cluster.completed([failed])] == ["error"]


def test_data_are_sent_once_and_used_where_they_are(cluster):
    one, other = cluster.scatter([np.arange(3), np.arange(4)])
    assert cluster.gather(cluster.submit(np.add, one, 1)).tolist() == [1, 2, 3]
    assert cluster.gather(other).tolist() == [0, 1, 2, 3]
    named = cluster.scatter({"weights": np.ones(2)})
    assert cluster.gather(named)["weights"].tolist() == [1, 1]
    everywhere = cluster.scatter(np.full(5, 7), broadcast=True)
    assert {len(workers) for workers in cluster.client.who_has(everywhere).values()} == {2}
    assert len(cluster.client.who_has(one)[one.key]) == 1
    cluster.replicate(one)
    assert len(cluster.client.who_has(one)[one.key]) == 2
    assert not cluster.client.amm.running()  # it would drop the copies


def test_results_are_replicated_however_long_the_computation_takes(cluster, tmp_path):
    cluster.settings = replace(cluster.settings, timeout=0.5)
    late = cluster.submit(tasks.wait_for, str(tmp_path / "go"))
    timer = threading.Timer(1, (tmp_path / "go").touch)
    timer.start()
    cluster.replicate(late)
    timer.join()
    assert len(cluster.client.who_has(late)[late.key]) == 2
    with pytest.raises(LookupError, match="17 is not here"):
        cluster.replicate([late, cluster.submit(tasks.refuse, 17)])


def test_workers_are_described_and_listen_on_loopback_only(cluster):
    info = cluster.get_worker_info()
    assert len(info) == 2
    for address, worker in info.items():
        assert address.startswith("tcp://127.0.0.1:")
        assert (worker["host"], worker["threads"], worker["memory_limit"]) == ("127.0.0.1", 1, 4_000_000_000)
    assert cluster.is_running
    assert repr(cluster) == (
        f"<DaskCluster {cluster.scheduler_address}: 2 workers x 1 threads, 3.73 GiB each; "
        f"no dashboard: {install_command('', 'bokeh')}>"
    )
    assert cluster.dashboard_link is None
    workers = set(cluster.client.run(os.getpid).values())
    for process in (psutil.Process(), *map(psutil.Process, workers)):
        listening = [each.laddr.ip for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        assert set(listening) == {"127.0.0.1"}
    # Dask's own collections are computed there, too.
    pids = da.ones((4, 3), chunks=(1, 3)).map_blocks(lambda block: block * os.getpid())
    assert set(np.unique(pids.compute()).astype(int)) <= workers


# --- what goes wrong ---


def test_an_error_of_a_task_is_raised_here_and_a_wait_can_time_out(cluster, tmp_path):
    with pytest.raises(LookupError, match="17 is not here"):
        cluster.gather(cluster.map(tasks.refuse, [17]))
    with pytest.raises(FileNotFoundError, match="/there/is/no/such/file"):  # an OSError, and not of the connection
        cluster.gather(cluster.submit(tasks.read_nothing))
    assert cluster.gather(cluster.submit(tasks.square, 4)) == 16
    future = cluster.submit(tasks.wait_for, str(tmp_path / "go"))
    with pytest.raises(ClusterTimeout, match=r"gather: not done after 0\.2 s"):
        cluster.gather(future, timeout=0.2)
    (tmp_path / "go").touch()
    assert cluster.gather(future, timeout=LIMIT_S) in cluster.client.run(os.getpid).values()

    cancelled = cluster.submit(tasks.wait_for, str(tmp_path / "later"))
    cancelled.cancel()
    (tmp_path / "later").touch()
    with pytest.raises(ClusterError, match="gather: it was cancelled"):
        cluster.gather(cancelled)
    with pytest.raises(InvalidType, match="func=3: a function is expected"):
        cluster.submit(3)
    with pytest.raises(InvalidArgument, match="timeout=0"):
        cluster.gather([], timeout=0)
    with pytest.raises(InvalidArgument, match=r"map: there is nothing to map over"):
        cluster.map(tasks.square)
    with pytest.raises(InvalidType, match=r"map: 3 is not iterable"):
        cluster.map(tasks.square, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_workers": 0}, InvalidArgument, "n_workers=0: must be 1 or more"),
        ({"n_workers": 2.0}, InvalidType, "n_workers=2.0: a whole number is expected"),
        ({"threads_per_worker": -1}, InvalidArgument, "threads_per_worker=-1"),
        ({"memory_limit": "much"}, InvalidArgument, "memory_limit='much' is not a size such as"),
        ({"memory_limit": 1.5}, InvalidType, "memory_limit=1.5"),
        ({"memory_limit": "1kB"}, InvalidArgument, "memory_limit='1kB': a worker needs 64MiB or more"),
        ({"scheduler_address": "nowhere"}, InvalidArgument, "scheduler_address='nowhere' is not an address such as"),
        ({"scheduler_address": "tcp://127.0.0.1:99999"}, InvalidArgument, "scheduler_address='tcp://127.0.0.1:99999'"),
        (
            {"scheduler_address": "ftp://127.0.0.1:21"},
            InvalidArgument,
            "scheduler_address='ftp://127.0.0.1:21': the scheme",
        ),
        ({"scheduler_address": 8786}, InvalidType, "scheduler_address=8786"),
        ({"security": "tls"}, InvalidType, "security='tls'"),
        ({"security": Security()}, InvalidArgument, "security=Security(require_encryption=False"),
        (
            {"scheduler_address": "tls://127.0.0.1:1"},
            InvalidArgument,
            "scheduler_address='tls://127.0.0.1:1': tls:// needs keys",
        ),
        (
            {"scheduler_address": "tcp://127.0.0.1:1", "security": Security(require_encryption=True)},
            InvalidArgument,
            "scheduler_address='tcp://127.0.0.1:1': with keys the address must begin with tls://",
        ),
        ({"security": True, "scheduler_address": "127.0.0.1:1"}, InvalidArgument, "security=True creates keys"),
        ({"timeout": 0}, InvalidArgument, "timeout=0"),
        (
            {"scheduler_address": "ucx://127.0.0.1:1"},
            BackendUnavailable,
            "backend 'dask' cannot be used here: scheduler_address='ucx://127.0.0.1:1': distributed-ucxx, which",
        ),
        (
            {"scheduler_address": "tls://127.0.0.1:1", "security": Security(require_encryption=True)},
            InvalidArgument,
            "security: the client has no certificate, or no CA certificate",
        ),
    ],
)
def test_invalid_arguments_raise_at_construction(arguments, error, message):
    with pytest.raises(error) as raised:
        DaskCluster(**arguments)
    assert str(raised.value).startswith(message)


def test_unusable_keys_raise_at_construction(tmp_path):
    keys = keys_in(tmp_path)

    def refused(match, **other):
        files = {"tls_ca_file": keys.ca, "tls_client_cert": keys.certificate, "tls_client_key": keys.key, **other}
        security = Security(require_encryption=True, **{name: str(path) for name, path in files.items()})
        with pytest.raises(InvalidArgument, match=match):
            DaskCluster(scheduler_address="tls://127.0.0.1:1", security=security)

    missing = tmp_path / "none.pem"
    refused(f"security: the key of the client: there is no file '{missing}'", tls_client_key=missing)
    refused(f"security: the authority's certificate of the client: there is no file '{missing}'", tls_ca_file=missing)
    refused(r"security: the keys of the client cannot be used .*our\.pem", tls_client_key=keys.certificate)


def test_it_must_run_and_can_run_again():
    cluster = DaskCluster(n_workers=1, threads_per_worker=1, memory_limit=None)
    assert repr(cluster) == "<DaskCluster not running>"
    for use in (lambda: cluster.map(tasks.square, [1]), lambda: cluster.gather([]), cluster.get_worker_info):
        with pytest.raises(ClusterClosed, match="call start"):
            use()
    for _ in range(2):
        cluster.start()
        assert cluster.start() is cluster
        assert "no memory limit" in repr(cluster)
        with cluster:  # it is running: nothing is started
            future = cluster.submit(tasks.square, 9)
            assert cluster.gather(future) == 81
        assert not cluster.is_running
        cluster.close()
        with pytest.raises(ClusterClosed):
            cluster.gather(future)


def test_stop_is_close_and_no_workers_s_is_a_deprecated_name():
    cluster = DaskCluster(n_workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cluster.stop()
        cluster.completed([], no_workers_timeout=1.0)
    with pytest.warns(DeprecationWarning, match="Use no_workers_timeout="):
        cluster.completed([], no_workers_s=1.0)
    with pytest.raises(InvalidArgument, match="no_workers_timeout=0"):
        cluster.completed([], no_workers_timeout=0)


def test_keys_keep_others_out():
    with DaskCluster(n_workers=1, threads_per_worker=1, security=True) as cluster:
        assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        assert cluster.gather(cluster.submit(tasks.square, 9)) == 81
        stranger = DaskCluster(scheduler_address=cluster.scheduler_address.replace("tls", "tcp"), timeout=1)
        with pytest.raises(ClusterError, match="no Dask scheduler answers there within 1 s"):
            stranger.start()
        other = Security.temporary()
        with pytest.raises(ClusterError, match="no Dask scheduler answers"):
            DaskCluster(scheduler_address=cluster.scheduler_address, security=other, timeout=1).start()
        friend = DaskCluster(scheduler_address=cluster.scheduler_address, security=cluster.settings.security)
        with friend:
            assert friend.gather(friend.submit(tasks.square, 8)) == 64


# --- workers that die ---


def test_a_killed_worker_loses_no_result(tmp_path):
    with DaskCluster(n_workers=2, threads_per_worker=1) as cluster:
        values = np.arange(12.0).reshape(6, 2)
        squares = tensor_to_dask(values, chunks=(1, -1)).map_blocks(
            tasks.note_and_wait, folder=str(tmp_path), meta=np.empty((0, 0))
        )
        future = cluster.client.compute(squares)
        busy = until(lambda: len(found := list(tmp_path.glob("pid-*"))) == 2 and found)
        os.kill(int(busy[0].name.removeprefix("pid-")), signal.SIGKILL)
        until(lambda: len(list(tmp_path.glob("pid-*"))) == 3)  # one that was started in its place
        (tmp_path / "go").touch()
        assert np.array_equal(cluster.gather(future, timeout=LIMIT_S), values**2)


def test_scattered_data_are_lost_with_their_worker_unless_others_have_a_copy():
    with DaskCluster(n_workers=2, threads_per_worker=1) as cluster:
        lost, kept = cluster.scatter([7])[0], cluster.scatter([8], broadcast=True)[0]
        [[holder]] = cluster.client.who_has(lost).values()
        until(lambda: len(next(iter(cluster.client.who_has(kept).values()))) == 2)
        os.kill(cluster.client.run(os.getpid)[holder], signal.SIGKILL)
        until(lambda: holder not in cluster.client.scheduler_info()["workers"])
        for wanted in (lost, cluster.submit(tasks.square, lost)):
            with pytest.raises(ClusterError, match="scatter them again"):
                cluster.gather(wanted, timeout=LIMIT_S)
        assert cluster.gather(cluster.submit(tasks.square, kept), timeout=LIMIT_S) == 64


def test_a_task_that_ends_every_worker_is_given_up():
    with DaskCluster(n_workers=1, threads_per_worker=1) as cluster:
        with pytest.raises(TaskLost, match="gather: 4 workers died, one after the other, while running the task") as e:
            cluster.gather(cluster.submit(tasks.end_the_process))
        assert e.value.task.startswith("end_the_process-")
        assert cluster.gather(cluster.submit(tasks.square, 3)) == 9


def test_workers_that_are_not_started_again_are_an_error(cluster):
    cluster._waiter._own_workers_s = 0.5
    for nanny in list(cluster.client.cluster.workers.values()):  # what would start a worker again
        cluster.client.sync(nanny.close)
    with pytest.raises(ClusterTimeout, match=r"gather: the workers of the cluster are gone, and for 0\.5 s none"):
        cluster.gather(cluster.submit(tasks.square, 3))
    cluster.stop()
    cluster.start()
    assert cluster.gather(cluster.submit(tasks.square, 3)) == 9


PARENT = """
import sys
from neuraxis.cluster import DaskCluster
from tests.cluster import tasks

if __name__ == "__main__":
    with DaskCluster(n_workers=2, threads_per_worker=1) as cluster:
        print(*cluster.client.run(tasks.pid).values(), flush=True)
        deaf = cluster.submit(tasks.hold_the_lock_of_python, sys.argv[1])
        cluster.gather(deaf)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        workers = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        until(lambda: list(tmp_path.glob("deaf-*")))
    finally:
        parent.kill()
        parent.communicate(timeout=LIMIT_S)
    _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
    assert not alive


def test_a_program_without_a_main_guard_gets_a_clear_error(tmp_path):
    (tmp_path / "forgetful.py").write_text(PARENT.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "forgetful.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert 'below `if __name__ == "__main__":`' in done.stderr
    assert "2 workers of 1 threads could not be started" in done.stderr


# --- a scheduler of others ---


def test_closing_leaves_a_joined_cluster_running(others: Others):
    others.start_scheduler()
    worker = others.start_worker()
    with DaskCluster(scheduler_address=others.address) as cluster:
        assert cluster.gather(cluster.submit(tasks.pid), timeout=LIMIT_S) == worker.pid
        assert len(cluster.get_worker_info()) == 1
        assert repr(cluster).startswith(f"<DaskCluster joined {others.address}; dashboard http://127.0.0.1:")
        assert cluster.check_workers() == 1
    assert repr(cluster) == f"<DaskCluster not connected to {others.address}>"
    assert all(process.poll() is None for process in others.processes)
    with Client(others.address, timeout=LIMIT_S) as client:
        assert client.submit(tasks.square, 5).result(timeout=LIMIT_S) == 25


def test_clusters_side_by_side_and_in_several_threads(others: Others, tmp_path):
    others.start_scheduler()
    before = copy.deepcopy(dask.config.config)
    levels = [handler.level for handler in logging.getLogger("distributed").handlers]
    first, second = (DaskCluster(scheduler_address=others.address) for _ in range(2))
    starts = [threading.Thread(target=cluster.start) for cluster in (first, second) for _ in range(2)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join(LIMIT_S)
    there = first.client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients))
    assert len([name for name in there if name.startswith("Client-")]) == 2
    during = [handler.level for handler in logging.getLogger("distributed").handlers]

    # The error of a wait names the stopped cluster, not a lost scheduler.
    reported = []

    def wait():
        try:
            first.gather(first.submit(tasks.square, 3))
        except ClusterError as error:
            reported.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: first.client.futures)
    first.stop()
    waiting.join(LIMIT_S)
    assert [type(error) for error in reported] == [ClusterClosed]
    # The remaining cluster keeps Dask's settings; after it they are restored.
    assert dask.config.get("scheduler") == "dask.distributed"
    assert [handler.level for handler in logging.getLogger("distributed").handlers] == during
    second.stop()
    assert dask.config.config == before
    assert [handler.level for handler in logging.getLogger("distributed").handlers] == levels


def test_a_scheduler_that_dies_or_hangs_is_an_error(others: Others, tmp_path):
    scheduler = others.start_scheduler()
    others.start_worker()
    cluster = DaskCluster(scheduler_address=others.address, timeout=1)
    with cluster:
        never = cluster.submit(tasks.wait_for, str(tmp_path / "never"))
        stop(scheduler.pid)
        with pytest.raises(ClusterTimeout, match=f"the scheduler at {others.address} has not answered for 1 s"):
            cluster.gather(never)
        assert repr(cluster).startswith(f"<DaskCluster joined {others.address}; dashboard http://127.0.0.1:")
        resume(scheduler.pid)
        array = da.ones(4, chunks=2).map_blocks(tasks.note_and_wait, folder=str(tmp_path), meta=np.empty(0))
        client = cluster.client
        killer = threading.Thread(target=lambda: (until(lambda: len(client.futures) == 3), scheduler.kill()))
        killer.start()  # as soon as the two chunks are requested
        with pytest.raises(ClusterError, match=f"dask_to_tensor: the scheduler at {others.address} is gone"):
            dask_to_tensor(array)
        killer.join()
        with pytest.raises(ClusterError, match=f"the scheduler at {others.address} is gone"):
            cluster.gather(never)
        with pytest.raises(ClusterError, match=f"the scheduler at {others.address} is gone"):
            cluster.submit(tasks.square, 1)
        assert not cluster.is_running
    with pytest.raises(ClusterError, match=f"scheduler_address='{others.address}': no Dask scheduler answers there"):
        cluster.start()


# --- without Dask, and before it is used ---


def test_dask_loads_when_it_is_used():
    program = (
        "import sys, neuraxis.distributed, neuraxis.cluster\n"
        "assert not {'dask', 'distributed', 'torch'} & set(sys.modules)\n"
        "sys.modules.update(dask=None)\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from neuraxis.distributed import DaskCluster\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": SEARCH_PATH}, cwd=ROOT, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert f"dask is not installed. Run: {install_command('dask')}" in done.stderr
