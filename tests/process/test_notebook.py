"""Functions and classes that are defined in a notebook or at a prompt, in worker processes of this machine.

Each program reaches the interpreter on standard input, so that its `__main__` cannot be imported, as in a notebook, or
at the prompt of `python -i`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cloudpickle")

LIMIT_S = 280
pytestmark = pytest.mark.timeout(300)


def at_prompt(program: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", *options],
        input=program,
        cwd=cwd,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def printed(program: str, *options: str, cwd: Path | None = None) -> list[str]:
    done = at_prompt(program, *(options or ("-",)), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FUNCTIONS = """
import dataclasses, os
from neuraxis import launch

SCALE = 3

@dataclasses.dataclass
class Answer:
    rank: int
    value: int

class Refused(ValueError):
    pass

def scaled(x):
    return SCALE * x

def work(x):
    if x < 0:
        raise Refused(f"{x} is negative")
    return Answer(int(os.environ["RANK"]), scaled(x))

"""


def test_run_calls_a_function_of_a_notebook() -> None:
    program = FUNCTIONS + (
        "answers = launch.run(work, 2, 14)\n"
        "print(answers, [type(answer) is Answer for answer in answers])\n"
        "print(launch.run(lambda answer: answer.value, 1, Answer(0, 7)))\n"
        "try:\n"
        "    launch.run(work, 1, -1)\n"
        "except Refused as error:\n"
        "    print('refused:', error)\n"
    )
    assert printed(program) == [
        "[Answer(rank=0, value=42), Answer(rank=1, value=42)] [True, True]",
        "[7]",
        "refused: -1 is negative",
    ]


def test_a_function_that_is_defined_at_the_prompt_after_a_script(tmp_path: Path) -> None:
    """The script has no guard: nothing imports it a second time."""
    (tmp_path / "script.py").write_text("from neuraxis import launch\nSCALE = 3\nprint('the script runs')\n")
    program = "def work(x):\n    return SCALE * x\n\nprint(launch.run(work, 2, 14))\n"
    assert printed(program, "-q", "-i", "script.py", cwd=tmp_path) == ["the script runs", "[42, 42]"]


def test_a_team_exchanges_objects_of_a_notebook() -> None:
    program = FUNCTIONS + (
        "import numpy as np\n"
        "def serve(line):\n"
        "    while True:\n"
        "        answer, array = line.receive()\n"
        "        line.send((Answer(line.rank, scaled(answer.value)), array + 1))\n"
        "with launch.Team(serve, 2) as team:\n"
        "    team.broadcast((Answer(-1, 14), np.zeros(100_000)))\n"
        "    for answer, array in team.gather():\n"
        "        print(answer, type(answer) is Answer, array.sum())\n"
    )
    assert printed(program) == [f"Answer(rank={rank}, value=42) True 100000.0" for rank in (0, 1)]


REGION = """
globals().pop("__file__", None)  # "<stdin>": multiprocessing, which Dask uses, would look for that file
import numpy as np
from neuraxis.brain import Brain, BrainBuilder, Event

COLUMNS = 4

def cells(column):
    return np.arange(10) + 10 * column

class Camera:
    stateless = True

    def __init__(self, config, device):
        self.every = config["every"]

    def process_events(self, now, events):
        column = int(now / self.every) % COLUMNS
        return [Event(time_ms=now + 1 + k, ids=cells(column)) for k in range(10)]

def brain_with_camera():
    return (
        BrainBuilder("seeing", seed=1)
        .python_region("camera", Camera, neurons=40, groups=4, tick_ms=20.0, config={"every": 100})
        .region("cortex", "cortex", neurons=160)
        .pathway("camera", "cortex", 5.0, topographic=True)
        .spec()
    )

def fingerprint(**options):
    with Brain(brain_with_camera(), progress=False, **options) as brain:
        brain.run(40.0)
        return brain.fingerprint()

"""


def test_regions_of_a_notebook_run_in_workers_on_the_mesh_and_in_ranks() -> None:
    program = REGION + (
        "import time\n"
        "from neuraxis import launch\n"
        "from neuraxis.brain import mesh_executor\n"
        "print(fingerprint())\n"
        "print(fingerprint(workers=2))\n"
        "spec = brain_with_camera()\n"
        "print(fingerprint(executor=mesh_executor(spec, mesh=f'notebook-{time.time_ns()}')))\n"
        "print(*set(launch.run(fingerprint, 2)))\n"
    )
    lines = printed(program)
    assert len(lines) == 4
    assert len(set(lines)) == 1, lines


def test_a_sweep_runs_regions_of_a_notebook(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    program = REGION + (
        "from pathlib import Path\n"
        "from neuraxis.cluster import DaskCluster\n"
        "from neuraxis.sweep.plan import Job, Setting, plan_cells\n"
        "from neuraxis.sweep.run import SweepFolder, run_sweep\n"
        "job = Job(time_ms=40.0)\n"
        "grid = plan_cells(brain_with_camera(), [Setting('regions.camera.config.every', (100, 10))], [1], job)\n"
        "with SweepFolder(Path('cells')) as folder:\n"
        "    run = run_sweep(grid, job, folder, DaskCluster(1, 1))\n"
        "print(fingerprint())\n"
        "for record in run.records:\n"
        "    print(record.get('error') or record['answer']['fingerprint'])\n"
    )
    alone, *swept = printed(program, cwd=tmp_path)
    assert len(set(swept)) == 2, swept
    assert swept[0] == alone


def test_without_cloudpickle_the_error_names_the_extra_and_the_command() -> None:
    for program in (
        "from neuraxis import launch\ndef work():\n    return 1\n\nlaunch.run(work, 2)\n",
        REGION + "fingerprint(workers=2)\n",
    ):
        done = at_prompt("import sys\nsys.modules['cloudpickle'] = None\n" + program, "-")
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("neuraxis.errors.MissingDependency: sending functions and classes of a notebook"), last
        assert "pip install" in last
        assert "[notebook]" in last


def test_a_program_in_a_file_does_without_cloudpickle(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        FUNCTIONS
        + "import sys\n"
        + "def loaded():\n    return 'cloudpickle' in sys.modules\n"
        + "if __name__ == '__main__':\n"
        + "    print(launch.run(work, 2, 14)[1], launch.run(loaded, 1), loaded())\n"
        + "    try:\n        launch.run(lambda: 1, 1)\n"
        + "    except Exception as error:\n        print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout.splitlines() == ["Answer(rank=1, value=42) [False] False", "InvalidArgument"], done.stderr
