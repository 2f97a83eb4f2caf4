"""`neuraxis doctor` on this machine, and on this machine with parts taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuraxis.observe.doctor import Check, Finding, all_checks, examine, probe

LIMIT_S = 100


def doctor(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuraxis", "doctor", *words],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_everything_here_is_well() -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()
    assert done.stderr == ""
    states = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line[:2] in ("ok", "no")}
    assert set(states) == {check.name.split()[0] for check in all_checks()}
    for name in ("python", "numpy", "zenoh", "shm", "gloo", "mpi", "dask", "torch", "numba"):
        assert states[name] == "ok", done.stdout


def test_missing_parts_are_told_with_their_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neuraxis.cli import doctor as command

    # Each check starts a process, which finds parts missing; the checks of other parts have nothing to do with it.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules.update(h5py=None, torch=None, dask=None)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    some = [check for check in all_checks() if check.name in ("numpy", "h5py", "shm", "torch", "gloo", "dask")]
    monkeypatch.setattr(command, "examine", lambda: examine(some))
    assert command.doctor(json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["broken"] == ["h5py"]
    checks = {check["name"]: check for check in report["checks"]}
    for name, module, remedy in (
        ("h5py", "h5py", "pip install h5py"),
        ("torch", "torch", "pip install 'neuraxis[torch]'"),
        ("gloo", "torch", "pip install 'neuraxis[torch]'"),
        ("dask", "dask", "pip install 'neuraxis[dask]'"),
    ):
        assert not checks[name]["usable"]
        assert checks[name]["detail"] == f"{module} is not installed"
        assert checks[name]["remedy"] == remedy
    assert checks["shm"]["usable"]


def test_the_text_names_what_broke_the_base(capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli import doctor as module

    with pytest.MonkeyPatch.context() as patch:
        broken = Finding("h5py", False, "h5py is not installed", "pip install h5py", required=True)
        patch.setattr(module, "examine", lambda: iter([broken]))
        assert module.doctor() == 1
    captured = capsys.readouterr()
    assert captured.out == "no  h5py  h5py is not installed\n          -> pip install h5py\n"
    assert captured.err == "The base install is broken: h5py.\n"


def test_a_check_that_crashes_is_a_line_and_not_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nprint('Bang', flush=True)\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = next(check for check in all_checks() if check.name == "safetensors")
    (found,) = examine([check])
    assert not found.usable
    assert found.required
    assert found.detail.startswith("the check ended with SIGABRT")


def test_an_error_in_a_check_is_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode() -> str:
        raise RuntimeError("first line\nlast line")

    monkeypatch.setattr("neuraxis.observe.doctor.all_checks", lambda: [Check("bomb", explode, "defuse it")])
    probe("bomb")
    found = json.loads(capsys.readouterr().out.partition(":")[2])
    assert found == {
        "name": "bomb",
        "usable": False,
        "required": False,
        "detail": "RuntimeError: last line",
        "remedy": "defuse it",
    }


def test_cuda_tells_of_the_device_and_of_cupy() -> None:
    (found,) = examine([check for check in all_checks() if check.name == "cuda"])
    if found.usable:
        assert "compiled and ran a kernel" in found.detail
    else:
        assert "cupy" in found.detail.lower() or "NVRTC" in found.detail
        assert found.remedy
