"""Environment variables and arguments of each rank."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuraxis.machine import usable_cores

SHOW = """
    import json
    print(json.dumps({"env": dict(os.environ), "argv": sys.argv[1:]}))
"""


def shown(output: str) -> list[dict[str, Any]]:
    ranks = [json.loads(line) for line in output.splitlines()]
    return sorted(ranks, key=lambda each: int(each["env"]["RANK"]))


def test_every_rank_knows_its_place(launch):
    status, out, err = launch("-n", "3", "--no-prefix", launch.script(SHOW))
    assert (status, err) == (0, "")
    ranks = [each["env"] for each in shown(out)]
    assert [each["RANK"] for each in ranks] == ["0", "1", "2"]
    assert [each["LOCAL_RANK"] for each in ranks] == ["0", "1", "2"]
    for name, value in {
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "NEURAXIS_RESTART": "0",
        "OMP_NUM_THREADS": str(max(1, usable_cores() // 3)),
    }.items():
        assert {each[name] for each in ranks} == {value}
    (port,) = {each["MASTER_PORT"] for each in ranks}
    assert 0 < int(port) < 65536
    (job,) = {each["NEURAXIS_JOB"] for each in ranks}
    assert len(bytes.fromhex(job)) == 16


def test_two_jobs_have_different_secrets_and_the_users_thread_count_stays(launch):
    launch.environment["OMP_NUM_THREADS"] = "7"
    script = launch.script(SHOW)
    first, second = (shown(launch("-n", "2", "--no-prefix", script)[1])[0]["env"] for _ in range(2))
    assert first["NEURAXIS_JOB"] != second["NEURAXIS_JOB"]
    assert first["OMP_NUM_THREADS"] == "7"


def test_ranks_of_the_second_of_two_hosts(launch):
    launch.environment.pop("NEURAXIS_JOB", None)
    place = ("--nodes", "2", "--node-rank", "1", "--master-addr", "10.1.2.3")
    _, out, _ = launch("-n", "2", *place, "--no-prefix", launch.script(SHOW))
    ranks = [each["env"] for each in shown(out)]
    assert [(each["RANK"], each["LOCAL_RANK"]) for each in ranks] == [("2", "0"), ("3", "1")]
    for name, value in {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.1.2.3",
        "MASTER_PORT": "29500",
    }.items():
        assert {each[name] for each in ranks} == {value}
    assert "NEURAXIS_JOB" not in ranks[0]


def test_several_hosts_keep_the_users_secret_and_port(launch):
    launch.environment["NEURAXIS_JOB"] = "shared"
    place = ("--nodes=2", "--master-addr=10.1.2.3", "--master-port=4242")
    _, out, _ = launch("-n1", *place, "--no-prefix", launch.script(SHOW))
    (rank,) = shown(out)
    assert rank["env"]["NEURAXIS_JOB"] == "shared"
    assert rank["env"]["MASTER_PORT"] == "4242"


def test_arguments_after_the_script_belong_to_the_script(launch):
    words = ["--nodes", "5", "-n", "9", "--help", "--", "-m", "--no-prefix", "a b", "--version", ""]
    status, out, err = launch("--no-prefix", "-n", "1", launch.script(SHOW), *words)
    assert (status, err) == (0, "")
    assert shown(out)[0]["argv"] == words


@pytest.mark.parametrize("words", [("-m", "-n", "2"), ("-mn", "2"), ("-n2", "--module")])
def test_a_module(launch, words):
    launch.script(SHOW, "show_module.py")
    status, out, _ = launch("--no-prefix", *words, "show_module", "-m", "x")
    assert status == 0
    assert [each["argv"] for each in shown(out)] == [["-m", "x"]] * 2


def test_rank_0_alone_reads_standard_input(launch):
    script = launch.script("print(len(sys.stdin.read()))")
    with (launch.folder / "input").open("w+") as file:
        file.write("four")
        file.seek(0)
        status, out, _ = launch("-n", "2", script, stdin=file)
    assert (status, sorted(out.splitlines())) == (0, ["[rank 0] 4", "[rank 1] 0"])


def test_auto_is_one_rank_a_core(launch):
    script = launch.script("print(os.environ['WORLD_SIZE'])")
    assert launch("-n", "auto", "--no-prefix", script)[1].split() == [str(usable_cores())] * usable_cores()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("-n", "0"), "n is 0"),
        (("--nodes", "2"), "--master-addr"),
        (("--nodes", "2", "--node-rank", "2", "--master-addr", "a"), "node_rank is 2"),
        (("--max-restarts", "-1"), "max_restarts is -1"),
        (("--master-port", "70000"), "master_port is 70000"),
    ],
)
def test_invalid_options_are_reported(launch, words, complaint):
    status, out, err = launch(*words, launch.script("print('started')"))
    assert (status, out) == (2, "")
    assert complaint in err


def test_a_script_that_is_not_there(launch):
    status, _, err = launch("-n", "2", "absent.py")
    assert status == 2
    assert "absent.py" in err


def test_help_teaches(launch):
    status, out, _ = launch("--help")
    assert status == 0
    assert "--max-restarts" in out
    assert "neuraxis launch -n 4 train.py" in out
