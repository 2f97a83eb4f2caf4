"""What every test of the project shares: nothing may be left behind, and crews come one at a time."""

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

from tests.crew import CREWS, Crew
from tests.crew.nursery import close_nurseries, nursery

_SEGMENT = re.compile(r"/neuraxis-[^/-]+-[0-9a-f]{16}")

hypothesis.settings.register_profile("local", deadline=None, database=None)
hypothesis.settings.register_profile("ci", deadline=None, database=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


# --- options and markers ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--grace", type=float, default=30.0, help="seconds for what was told to end until it counts as left behind"
    )


# Long ones whose ground is covered by shorter ones: they run with --slow.
_LONG = (
    "test_node.py::test_the_demo_over_the_mesh_gives_what_one_process_gives",
    "test_node.py::test_states_of_another_brain_are_refused",
    "test_hosts.py::test_who_waits_less_goes_on_with_recorded_silence",
    "test_join_and_return.py::test_the_others_begin_without_one_that_does_not_come_and_it_is_heard_when_it_does",
    "test_join_and_return.py::test_what_nobody_has_any_more_when_one_comes_back_is_recorded",
    "test_join_and_return.py::test_one_without_a_state_yet_comes_back_as_new",
    "test_realtime.py::test_they_end_at_their_time_and_what_came_late_is_counted",
    "test_faults.py::test_two_killed_at_once_and_the_last_one_goes_on",
    "test_lockstep.py::test_every_rank_gets_what_one_process_gets[gloo",
    "test_hosts.py::test_lockstep_waits_for_a_new_router_and_a_cut_cable",
    "test_faults.py::test_where_a_loss_is_an_error_it_ends_the_simulation",
    "test_context.py::test_beside_torch_distributed_under_torchrun[torch]",
    "('reward and fatigue', 0)",
    ", parallel 2]",
    "test_join_and_return.py::test_where_it_is_waited_for_its_death_leaves_no_trace",
    "tests/brain/test_hippocampus.py",
    "tests/brain/test_cerebellum.py",
    "tests/validation/",
    "test_side_by_side.py::test_two_worlds_in_one_job[neuraxis",
    "test_bench_training.py::test_every_way_is_measured_and_equal_ways_are_equal",
    "test_bench_training.py::test_compression_sends_fewer_bytes_and_tells_its_error",
    "test_bench_training.py::test_tables_of_a_run",
    "test_bench_training.py::test_nothing_is_left_when_it_is_ended_early",
    "test_bench_rpc.py::test_a_run_measures_and_compares",
    "test_context.py::test_beside_torch_distributed_under_torchrun[neuraxis]",
    "rpc/test_faults.py::test_shutting_down_while_calls_are_under_way[gloo]",
    "rpc/test_faults.py::test_shutting_down_while_calls_are_under_way[tensorpipe]",
    "rpc/test_faults.py::test_a_stopped_callee_is_a_timeout[gloo]",
    "rpc/test_faults.py::test_a_stopped_callee_is_a_timeout[tensorpipe]",
    "test_restart.py::test_a_training_with_options_goes_on_to_the_bit",
    "test_properties.py::test_any_sequence_over_other_transports[mpi-2",
    "test_hosts.py::test_delays_losses_and_the_death_of_a_router_change_nothing",
    "test_rendezvous.py::test_auto_is_gloo_across_hosts",
    "test_node.py::test_regions_that_are_started_one_by_one_run_together_and_one_comes_back",
    "test_lockstep.py::test_data_of_own_regions_travel_between_ranks[('gloo', 2)]",
    "test_lockstep.py::test_a_rank_that_dies_is_noticed_by_the_others[gloo]",
    "test_join_and_return.py::test_what_was_done_to_the_brain_since_its_last_state_is_done_to_one_that_comes_back",
    "test_faults.py::test_python_that_is_stuck_is_noticed_although_its_process_lives_and_comes_back",
    "test_conformance_messages.py::test_a_wait_that_expires_can_be_repeated[mpi-2]",
    "test_patterns.py::test_json_is_one_object_that_agrees_with_the_definitions[2-2-mpi",
    "test_bench_brain.py::test_a_run_has_every_sample_and_its_medians",
    "test_sweep.py::test_workers_unlike_this_program_are_named_and_none_is_waited_for_for_ever",
    "test_robot.py::test_the_tour",
    "test_examples.py::test_example[06_torch_ddp.py]",
    "test_patterns.py::test_json_is_one_object_that_agrees_with_the_definitions[2-3-gloo",
    "test_bench.py::test_a_contender_that_fails_does_not_end_the_run",
    "test_bench_brain.py::test_scaling_runs_neuraxis_alone_and_compares_the_spikes",
    "test_recovery.py::test_the_course_after_a_restore_is_what_lost_workers_are_brought_back_to",
    "test_modes.py::test_a_session_is_the_same_on_any_number_of_workers[3]",
    "test_modes.py::test_a_session_is_the_same_on_any_number_of_workers[5]",
    "test_sweep.py::test_on_a_cluster_of_others",
    "brain/test_lockstep.py::test_the_default_brain_learns_the_same[('gloo', 2)]",
    "brain/test_lockstep.py::test_a_region_that_raises_does_so_on_all_ranks[('gloo', 2)]",
    "test_patterns.py::test_json_is_one_object_that_agrees_with_the_definitions[3-1-auto",
    "19_digits",  # test_digits.py
    "20_resume",
    "21_parameter_server",
    "22_partition",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(name in item.nodeid for name in _LONG):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if item.get_closest_marker("gpu") and not _cuda_device():
            item.add_marker(pytest.mark.skip(reason="gpu: there is no CUDA device here"))


def _cuda_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


# --- crews ---


@pytest.fixture(scope="session")
def nurseries() -> Iterator[None]:
    """What ranks are forked of; there from before the first test that forks until the last."""
    for torch in (False, True):
        nursery(torch).start()
    yield
    close_nurseries()


# What three ranks of gloo show, other sizes and MPI show as well, what one rank by itself shows, one of shm does, and
# what five of shm show, three do. With --slow all of them are run.
_LEFT_TO_SLOW = {
    ("mpi", 3),
    ("shm", 1),
    ("shm", 5),
    *((backend, size) for backend in ("gloo", "mpi") for size in (1, 2, 5)),
}
_CREWS = [pytest.param(crew, marks=[pytest.mark.slow] * (crew in _LEFT_TO_SLOW)) for crew in CREWS]


@pytest.fixture(scope="session", params=_CREWS, ids=lambda crew: f"{crew[0]}-{crew[1]}")
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    """The ranks of one world, alive from test to test; pytest groups the tests that use the same one."""
    crew = Crew(*request.param)
    yield crew
    crew.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End a crew as soon as the next test does not use it, so that there is never more than one."""
    result = yield
    crew = getattr(item, "funcargs", {}).get("crew")
    if isinstance(crew, Crew) and _crew_parameter(item) != _crew_parameter(nextitem):
        crew.close()
    return result


def _crew_parameter(item: Any) -> Any:
    return getattr(getattr(item, "callspec", None), "params", {}).get("crew")


# --- nothing is left behind ---


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test after which a process, thread, descriptor or shared memory is there that was not before."""
    crew = request.getfixturevalue("crew") if "crew" in request.fixturenames else None
    if crew is not None:
        crew.ensure()  # one that an earlier test broke is started anew
        generation = crew.generation
    if request.node.get_closest_marker("gpu"):
        _open_cuda()
    before = _held()
    yield
    if crew is not None and (crew.broken or crew.generation != generation):
        crew.close()
    deadline = time.monotonic() + request.config.getoption("--grace")
    while left := _left(before):
        if time.monotonic() > deadline:
            pytest.fail("left behind:\n" + "\n".join(left), pytrace=False)
        time.sleep(0.01)


def _open_cuda() -> None:
    """What CUDA opens when it is used first stays open until the process ends."""
    import torch

    torch.zeros(1, device="cuda")


def _held() -> dict[str, dict[Any, str]]:
    """What this process holds: kind → what identifies one → how to describe it."""
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
        except FileNotFoundError:  # the one that lists this folder
            continue
        if target.startswith("/dev/shm/cuda.shm."):  # CUDA's own, from the first tensor shared until the process ends
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
