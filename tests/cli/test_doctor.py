"""`neuraxis doctor` on this machine, and on this machine with parts taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neuraxis.cli.doctor import SHORT_LIMIT_S, Check, Finding, all_checks, examine, probe
from neuraxis.imports import install_command

LIMIT_S = 200


def doctor(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuraxis", "doctor", *words],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_everything_here_is_ok() -> None:
    done = doctor("--full")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()
    assert done.stderr == ""
    states = {
        line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line[:2] in ("ok", "no", "--", "??")
    }
    assert set(states) == {check.name.split()[0] for check in all_checks()}
    for name in ("python", "numpy", "zenoh", "shm", "gloo", "mpi", "dask", "torch", "numba"):
        assert states[name] == "ok", done.stdout


def test_missing_parts_are_reported_with_an_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neuraxis.cli import doctor as command

    # Each check starts a process, which finds parts missing; the checks of other parts have nothing to do with it.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules.update(h5py=None, torch=None, dask=None)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    some = [check for check in all_checks() if check.name in ("numpy", "h5py", "shm", "torch", "gloo", "dask")]
    monkeypatch.setattr(command, "examine", lambda **options: examine(some, limit_s=LIMIT_S, **options))
    assert command.doctor(as_json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["broken"] == ["h5py"]
    checks = {check["name"]: check for check in report["checks"]}
    for name, module, remedy in (
        ("h5py", "h5py", install_command("", "h5py")),
        ("torch", "torch", install_command("torch")),
        ("gloo", "torch", install_command("torch")),
        ("dask", "dask", install_command("dask")),
    ):
        assert not checks[name]["usable"]
        assert checks[name]["state"] == "missing"
        assert checks[name]["detail"] == f"{module} is not installed"
        assert checks[name]["remedy"] == remedy
    assert checks["shm"]["usable"]


def test_the_text_names_the_broken_part_of_the_base_install(capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli import doctor as module

    with pytest.MonkeyPatch.context() as patch:
        broken = Finding("h5py", "missing", "h5py is not installed", "pip install h5py", required=True)
        patch.setattr(module, "examine", lambda **_: iter([broken]))
        assert module.doctor() == 1
    captured = capsys.readouterr()
    assert captured.out == "no  h5py  h5py is not installed\n          -> pip install h5py\n"
    assert captured.err == "neuraxis doctor: the base install is broken: h5py; see above\n"


def test_a_check_that_crashes_is_a_line_and_not_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nprint('Bang', flush=True)\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    check = next(check for check in all_checks() if check.name == "safetensors")
    (found, *rest) = examine([check, *(one for one in all_checks() if one.name == "matplotlib")], limit_s=LIMIT_S)
    assert found.state == "broken"
    assert found.required
    assert found.detail.startswith("the check ended with SIGABRT")
    assert [one.state for one in rest] == ["ok"]  # another process runs the remaining checks


def test_an_error_in_a_check_is_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(full: bool) -> str:
        raise RuntimeError("first line\nlast line")

    monkeypatch.setattr("neuraxis.cli.doctor.all_checks", lambda: [Check("bomb", explode, "defuse it")])
    probe(["bomb"])
    found = json.loads(capsys.readouterr().out.partition(":")[2])
    assert found == {
        "name": "bomb",
        "state": "broken",
        "required": False,
        "detail": "RuntimeError: last line",
        "remedy": "defuse it",
    }


def test_cuda_reports_device_and_cupy() -> None:
    (found,) = examine([check for check in all_checks() if check.name == "cuda"], full=True)
    if found.usable:
        assert "compiled and ran a kernel" in found.detail
    else:
        assert "cupy" in found.detail.lower() or "NVRTC" in found.detail
        assert found.remedy


def test_the_short_form_answers_quickly_and_reports_nothing_as_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine, a check without an answer in time is reported as slow, not as broken."""
    from neuraxis.cli import doctor as command

    began = time.monotonic()
    assert command.doctor(as_json=True) == 0
    assert time.monotonic() - began < SHORT_LIMIT_S + 10  # of which the ends of processes may take some under load
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["broken"] == []
    for check in report["checks"]:
        assert check["state"] in ("ok", "slow", "missing"), check
        assert check["state"] != "slow" or check["detail"].startswith("took too long: no answer within")
    assert report["unknown"] == [one["name"] for one in report["checks"] if one["required"] and one["state"] == "slow"]


def test_a_check_that_does_not_answer_is_slow_and_not_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    some = [check for check in all_checks() if check.name in ("safetensors", "matplotlib")]
    found = list(examine(some, limit_s=1.0))
    assert [one.state for one in found] == ["slow", "slow"]
    assert all("no answer within 1 s" in one.detail for one in found)
    assert all(one.remedy == "neuraxis doctor --full waits longer" for one in found)
