"""Fixtures and hooks for all tests: leak checks, and rank groups of which only one runs at a time."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from neuraxis.process.pickling import follow_parent
from tests.ranks import BACKENDS, RANK_GROUPS, RankGroup
from tests.ranks.fork_server import close_fork_servers, fork_server

_RANK_GROUP = re.compile(rf"[\[-]((?:{'|'.join(BACKENDS)})-\d)(?=[\]-])")
_SEGMENT = re.compile(r"/neuraxis-[^/-]+-[0-9a-f]{16}|/dev/shm/#\d+ \(deleted\)")

_UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}  # machines may be busy
hypothesis.settings.register_profile("local", database=None, **_UNTIMED)
hypothesis.settings.register_profile("ci", database=None, derandomize=True, **_UNTIMED)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


# A worker of pytest-xdist is a program without a file, like a notebook; tests are modules, which processes can import.
follow_parent(False)


# --- options and markers ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the soaks, which take many minutes")
    parser.addoption(
        "--grace", type=float, default=30.0, help="seconds for processes and threads to end before they count as leaks"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="a soak: run with --slow, or make soak"))
        if item.get_closest_marker("gpu") and not _cuda_device():
            item.add_marker(pytest.mark.skip(reason="gpu: there is no CUDA device here"))


def _cuda_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


# --- rank groups and fork servers ---


class _ByFileOrRankGroup(LoadFileScheduling):
    """Gives one pytest-xdist worker all tests of a rank group or of a file, so that fixtures start once."""

    def _split_scope(self, nodeid: str) -> str:
        rank_group = _RANK_GROUP.search(nodeid)
        return rank_group[1] if rank_group else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # where xdist is not in use
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return _ByFileOrRankGroup(config, log)


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[None]:
    """Run the fork servers from before the first test that forks until after the last."""
    for torch in (False, True):
        fork_server(torch).start()
    yield
    close_fork_servers()


@pytest.fixture(scope="session", params=RANK_GROUPS, ids=lambda rank_group: f"{rank_group[0]}-{rank_group[1]}")
def rank_group(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    """The ranks of one world, shared by many tests; pytest groups the tests that use the same one."""
    rank_group = RankGroup(*request.param)
    yield rank_group
    rank_group.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Close a rank group when the next test does not use it, so that at most one runs at a time."""
    result = yield
    rank_group = getattr(item, "funcargs", {}).get("rank_group")
    if isinstance(rank_group, RankGroup) and _rank_group_parameter(item) != _rank_group_parameter(nextitem):
        rank_group.close()
    return result


def _rank_group_parameter(item: Any) -> Any:
    return getattr(getattr(item, "callspec", None), "params", {}).get("rank_group")


# --- leak check ---


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaks a process, thread, file descriptor or shared-memory segment."""
    rank_group = request.getfixturevalue("rank_group") if "rank_group" in request.fixturenames else None
    if rank_group is not None:
        rank_group.ensure()  # restarts a group that an earlier test broke
        generation = rank_group.generation
    if request.node.get_closest_marker("gpu"):
        _open_cuda()
    before = _held()
    yield
    if rank_group is not None and (rank_group.broken or rank_group.generation != generation):
        rank_group.close()
    deadline = time.monotonic() + request.config.getoption("--grace")
    while left := _left(before):
        if time.monotonic() > deadline:
            pytest.fail("leaked:\n" + "\n".join(left), pytrace=False)
        time.sleep(0.01)


def _open_cuda() -> None:
    """Initialize CUDA before the leak check: its descriptors stay open until the process ends."""
    import torch

    torch.zeros(1, device="cuda")


def _held() -> dict[str, dict[Any, str]]:
    """Return the resources of this process: kind → identity → description."""
    me = psutil.Process()
    held: dict[str, dict[Any, str]] = {"process": {}, "thread": {}, "descriptor": {}, "segment": {}}
    for child in me.children(recursive=True):
        try:
            held["process"][child.pid, child.create_time()] = f"{child.pid} {' '.join(child.cmdline())[:200]}"
        except psutil.NoSuchProcess:
            pass
    for thread in threading.enumerate():
        held["thread"][thread] = repr(thread)
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:  # the descriptor that lists this folder
            continue
        if target.startswith("/dev/shm/cuda.shm."):  # opened by CUDA and kept until the process ends
            continue
        held["descriptor"][link.name, target] = f"{link.name} → {target}"
    for segment in Path("/dev/shm").glob("neuraxis-*"):
        held["segment"][segment.name] = f"/dev/shm/{segment.name}"
    for line in Path("/proc/self/maps").read_text().splitlines():
        if _SEGMENT.search(line):
            held["segment"][line.split(maxsplit=1)[0]] = line
    return held


def _left(before: dict[str, dict[Any, str]]) -> list[str]:
    return [
        f"{kind}: {description}"
        for kind, now in _held().items()
        for identity, description in now.items()
        if identity not in before[kind]
    ]
