"""Two hosts, each a network namespace with its own launcher."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

MEET = """
    import socket
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            met = []
            for _ in range(size - 1):
                other, peer = server.accept()
                with other, other.makefile() as lines:
                    met.append((int(lines.readline()), peer[0]))
        print("met", sorted(met))
    else:
        while True:  # rank 0 may not listen yet
            try:
                with socket.create_connection(address, timeout=20) as other:
                    other.sendall(f"{rank}\\n".encode())
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces, 10.77.0.1 and 10.77.0.2, joined by a virtual cable."""
    mark = uuid.uuid4().hex[:6]
    names = (f"nx{mark}a", f"nx{mark}b")
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
            ip(
                "link",
                "add",
                names[0],
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                names[1],
                "netns",
                names[1],
            )
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", b"").decode().strip() or str(error)
            pytest.skip(f"network namespaces are not permitted here: {reason}")
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


def start(launch, hosts, script, *words):
    place = ("-n", "2", "--nodes", "2", "--master-addr", "10.77.0.1", *words)
    return [
        launch.start(*place, "--node-rank", str(node), script, prefix=("ip", "netns", "exec", name))
        for node, name in enumerate(hosts)
    ]


def test_the_ranks_of_two_hosts_meet(launch, hosts):
    first, second = start(launch, hosts, launch.script(MEET))
    assert first.end() == (0, "[rank 0] met [(1, '10.77.0.1'), (2, '10.77.0.2'), (3, '10.77.0.2')]\n", "")
    assert second.end() == (0, "", "")


def test_a_failure_on_one_host_restarts_both_when_the_ranks_notice(launch, hosts):
    script = launch.script("""
        import socket
        from neuraxis.errors import PeerLost
        rank, attempt = int(os.environ["RANK"]), int(os.environ["NEURAXIS_RESTART"])
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank == 0:
            with socket.create_server(address) as server:
                others = [server.accept()[0] for _ in range(3)]
                if attempt == 0:
                    os._exit(6)
                for other in others:
                    other.sendall(b"go")
                    other.close()
        else:
            while True:
                try:
                    other = socket.create_connection(address, timeout=20)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            with other:
                if other.recv(2) != b"go":
                    raise PeerLost("rank 0 has gone", rank=0)
            print("finished", attempt)
    """)
    first, second = start(launch, hosts, script, "--max-restarts", "1")
    status, out, err = first.end()
    assert (status, out) == (0, "[rank 1] finished 1\n")
    assert "rank 0 (pid" in err
    assert "failed with exit code 6" in err
    status, out, err = second.end()
    assert (status, sorted(out.splitlines())) == (0, ["[rank 2] finished 1", "[rank 3] finished 1"])
    assert "PeerLost: rank 0 has gone" in err
