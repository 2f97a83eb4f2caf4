"""The leak check itself: a leaking test must fail, a clean one must pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEAKS = {
    "process": """
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        kept.append(child)
        """,
    "grandchild": """
        script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']); input()"
        kept.append(subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE))
        """,
    "thread": """
        kept.append(threading.Thread(target=threading.Event().wait, daemon=True))
        kept[-1].start()
        """,
    "socket": """
        kept.append(socket.create_server(("127.0.0.1", 0)))
        """,
    "file": """
        kept.append(open(os.devnull))
        """,
    "segment": """
        kept.append(Segment.create(4096, 4096))
        atexit.register(kept[-1].close)
        """,
    "mapping": """
        segment = Segment.create(4096, 4096)
        kept.append(np.frombuffer(segment._map, np.uint8))  # keeps the memory mapped
        segment.close()
        """,
}
SAYS = {"grandchild": "process", "socket": "descriptor", "file": "descriptor", "mapping": "segment"}

HEAD = """
import atexit, os, socket, subprocess, sys, threading
import numpy as np
from neuraxis.comm.backends.shm.memory import Segment

kept = []
"""


SLOW = """
import pytest


@pytest.mark.slow
def test_it():
    pass
"""


def function(name: str, body: str) -> str:
    return f"\n\ndef test_{name}():\n" + textwrap.indent(textwrap.dedent(body), "    ")


def run_pytest(folder: Path, content: str, *options: str) -> tuple[int, str]:
    file = folder / "test_it.py"
    file.write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of pytest for a file with a test for each kind of leak."""
    functions = "".join(function(name, body) for name, body in LEAKS.items())
    code, output = run_pytest(tmp_path_factory.mktemp("leaks"), HEAD + functions, "--grace=0.1")
    assert code == 1, output
    # The tests themselves are well; what they leave is not.
    assert f"{len(LEAKS)} passed, {len(LEAKS)} errors" in output
    return output


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_fails_the_test(leak: str, leaking: str) -> None:
    story = re.search(rf"^_+ ERROR at teardown of test_{leak} _+$(.*?)^[_=]{{3}}", leaking, re.MULTILINE | re.DOTALL)
    assert story, leaking
    assert "leaked" in story[1]
    assert f"{SAYS.get(leak, leak)}: " in story[1]


def test_a_clean_test_passes(tmp_path: Path) -> None:
    body = """
        child = subprocess.Popen([sys.executable, "-c", "pass"])
        child.wait()
        thread = threading.Thread(target=int)
        thread.start()
        socket.create_server(("127.0.0.1", 0)).close()
        open(os.devnull).close()
        Segment.create(4096, 4096).close()
        """
    code, output = run_pytest(tmp_path, HEAD + function("it", body))
    assert code == 0, output


STRICT = """
import os, threading
import pytest

pytestmark = pytest.mark.usefixtures("no_leaks")
gates = [threading.Event() for _ in range(3)]
threads = [threading.Thread(target=gate.wait, daemon=True) for gate in gates]
for thread in threads:
    thread.start()
kept = []


@pytest.fixture(autouse=True)
def leak_check():  # replaces the fixture of tests/conftest.py
    pass


def end_one():
    gates.pop().set()
    threads.pop().join()


def test_fewer():
    end_one()


def test_thread_in_place_of_another():
    end_one()
    kept.append(threading.Thread(target=threading.Event().wait, daemon=True))
    kept[-1].start()


def test_descriptor_in_place_of_another():
    ends = os.pipe()
    os.dup2(ends[0], 0)
    for one in ends:
        os.close(one)
"""


def test_the_strict_check_compares_identities(tmp_path: Path) -> None:
    """A resource that ends is fine; a new one in its place is a leak, although the number is the same."""
    code, output = run_pytest(tmp_path, STRICT, "-p", "tests.process.conftest")
    assert code == 1, output
    assert "3 passed, 2 errors" in output
    assert "ERROR at teardown of test_thread_in_place_of_another" in output
    assert "ERROR at teardown of test_descriptor_in_place_of_another" in output


def test_a_slow_test_runs_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: slow\n    gpu: gpu\n")
    for options, outcome in (((), "1 skipped"), (("--slow",), "1 passed")):
        code, output = run_pytest(tmp_path, SLOW, *options)
        assert code == 0, output
        assert outcome in output
