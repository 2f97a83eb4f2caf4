"""The `neuraxis` command as a whole: help, exit codes, one error style, old option names, shell completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neuraxis.cli.errors import EXIT_CODES, RENAMED, exit_code, rename_options
from neuraxis.cli.launch import ELSEWHERE, _mark_script
from neuraxis.cli.launch import _options as launch_options
from neuraxis.errors import InvalidArgument, MeshError, SpecError

LIMIT_S = 100


def neuraxis(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuraxis", *words],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_help_of_a_command_is_its_help_option() -> None:
    for words in (["run"], ["bench", "rpc"], ["mesh", "keys", "init"], ["launch"]):
        helped, option = neuraxis("help", *words), neuraxis(*words, "--help")
        assert helped.returncode == option.returncode == 0
        assert helped.stdout == option.stdout
        assert f"Usage: neuraxis {' '.join(words)}" in helped.stdout


def test_help_lists_commands_and_exit_codes() -> None:
    listed = neuraxis("help")
    assert listed.returncode == 0
    for word in ("demo", "bench", "doctor", "--install-completion", "130 Ctrl-C"):
        assert word in listed.stdout
    codes = neuraxis("help", "exit-codes")
    assert (codes.returncode, codes.stdout) == (0, EXIT_CODES + "\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["runn"], 'neuraxis: Unknown command "runn". Did you mean "run"? '),
        (["help", "runn"], "neuraxis help: there is no command 'runn'; the commands are demo, run, "),
        (
            ["bench", "rpc", "--metods", "x"],
            "neuraxis bench rpc: Unknown option: --metods. Did you mean --methods? See ",
        ),
        (["bench", "collectives", "-n", "two"], "neuraxis bench collectives: Invalid value for -n: "),
        (["launch", "-n", "two", "x.py"], "neuraxis launch: Invalid value for -n: "),
        (["launch", "-n", "0", "x.py"], "neuraxis launch: "),
        (["launch", "--nproc-per-node", "2", "x.py"], "neuraxis launch: unknown option --nproc-per-node: write -n, "),
        (["launch", "--nproc_per_node=2", "x.py"], "neuraxis launch: unknown option --nproc_per_node: write -n, "),
        (["launch", "-np", "2", "x.py"], "neuraxis launch: unknown option -np: write -n, "),
        (["launch", "--nnodes=2", "x.py"], "neuraxis launch: unknown option --nnodes: write --nodes; "),
        (["launch", "--node_rank", "0", "x.py"], "neuraxis launch: unknown option --node_rank: write --node-rank; "),
        (["launch", "-n", "2", "--master_addr=h", "x.py"], "neuraxis launch: unknown option --master_addr: write --ma"),
        (["launch", "--standalone", "x.py"], "neuraxis launch: unknown option --standalone: leave it out, "),
        (["echo"], "neuraxis echo: "),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: list[str], line: str) -> None:
    done = neuraxis(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1


def test_options_of_other_launchers_lead_to_options_that_exist() -> None:
    """After the script they are the script's."""
    known = {name for argument in launch_options.assemble_argument_collection() for name in argument.names}
    for old, text in ELSEWHERE.items():
        assert old not in known
        named = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", text))
        assert named <= known, old
        assert named or "leave it out" in text
    words = ["--no-prefix", "-n", "2", "x.py", "-np", "3", "--nnodes=2"]
    assert _mark_script(words) == [*words[:3], "--", *words[3:]]


def test_exit_codes_separate_usage_errors_from_failures() -> None:
    assert exit_code(InvalidArgument("")) == exit_code(SpecError("")) == 2
    assert exit_code(MeshError("")) == exit_code(FileNotFoundError()) == 1


def test_old_option_names_work_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for command, renamed in RENAMED.items():
        for old, new in renamed.items():
            assert rename_options([command, "x", old, "3", f"{old}=3"]) == [command, "x", new, "3", f"{new}=3"]
            warning = f"neuraxis {command}: {old} is deprecated: use {new}; "
            assert [line[: len(warning)] for line in capsys.readouterr().err.splitlines()] == [warning] * 2
    assert rename_options(["run", "--mesh", "local", "b.toml"]) == ["run", "--mesh", "b.toml"]
    assert rename_options(["nodes", "--mesh", "local", "--json"]) == ["nodes", "--json"]
    assert len(capsys.readouterr().err.splitlines()) == 2
    for words in ([], ["launch", "x.py", "--patience-s", "1"], ["run", "b.toml", "--mesh", "--silence-timeout", "1"]):
        assert rename_options(list(words)) == words
    assert capsys.readouterr().err == ""


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    done = neuraxis("--install-completion", "--shell", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (script,) = (tmp_path / ".local/share/bash-completion/completions").iterdir()
    text = script.read_text()
    for word in ("collectives", "--targets", "--lockstep", "--mesh-name"):
        assert word in text
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=LIMIT_S)
    startup = (tmp_path / ".bashrc").read_text()
    assert str(script) in startup
    # With a file of one's own, the start-up file stays as it is.
    own = tmp_path / "own.sh"
    done = neuraxis("--install-completion", "--shell", "bash", "--output", str(own), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Wrote completion for bash to {own}. To use it, run: source {own}\n"
    assert own.read_text() == text
    assert (tmp_path / ".bashrc").read_text() == startup
