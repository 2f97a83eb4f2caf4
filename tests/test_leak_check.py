"""The leak check itself: a test that leaves something behind must fail, one that does not must pass."""

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
from neuraxis.comm.arena import Segment

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
    """What pytest says of a file with a test for each leak."""
    functions = "".join(function(name, body) for name, body in LEAKS.items())
    code, output = run_pytest(tmp_path_factory.mktemp("leaks"), HEAD + functions, "--grace=0.1")
    assert code == 1, output
    # The tests themselves are well; what they leave is not.
    assert f"{len(LEAKS)} passed, {len(LEAKS)} errors" in output
    return output


@pytest.mark.parametrize("leak", LEAKS)
def test_what_is_left_behind_fails_the_test(leak: str, leaking: str) -> None:
    story = re.search(rf"^_+ ERROR at teardown of test_{leak} _+$(.*?)^[_=]{{3}}", leaking, re.MULTILINE | re.DOTALL)
    assert story, leaking
    assert "left behind" in story[1]
    assert f"{SAYS.get(leak, leak)}: " in story[1]


def test_what_is_cleaned_up_passes(tmp_path: Path) -> None:
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


def test_a_slow_test_runs_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: slow\n    gpu: gpu\n")
    for options, outcome in (((), "1 skipped"), (("--slow",), "1 passed")):
        code, output = run_pytest(tmp_path, SLOW, *options)
        assert code == 0, output
        assert outcome in output
