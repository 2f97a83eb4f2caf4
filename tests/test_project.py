"""Consistency of facts that several files of the project repeat (versions, tools, extras), and limits on the code."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import neuraxis

ROOT = Path(__file__).parents[1]
BASES = [  # of the paths that CONTRIBUTING.md names
    ROOT,
    ROOT / "src" / "neuraxis",
    ROOT / "src" / "neuraxis" / "comm" / "backends",
    ROOT / "tests" / "comm",
]
# The functions with more than 10 arguments: commands and public constructors, whose options are keywords.
MANY_OPTIONS = {
    "cli/bench.py brain",
    "cli/demo.py _demo",
    "cli/node.py _node",
    "cli/run.py _run",
    "cli/sweep.py _sweep",
    "network/neuron_model.py neuron_model_from_source",
    "network/symbolic/model.py equations",
    "brain/brain.py Brain.__init__",
    "simulation/mesh/executor.py MeshExecutor.__init__",
    "simulation/simulation.py Simulation.__init__",
    "training/parallel/data_parallel.py DataParallel.__init__",
    "training/trainer.py Trainer.__init__",
}
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {neuraxis.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"  version = {{{neuraxis.__version__}}},\n" in (ROOT / "docs" / "cite.md").read_text()


def test_pre_commit_runs_the_ruff_that_make_lint_runs() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    (version,) = re.findall(r"ruff-pre-commit\n    rev: v(\S+)", config)
    assert version == PINS["ruff"]


def test_every_tool_of_the_developers_is_pinned() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[\[>=;<! ]", requirement)[0].lower() for requirement in extras["dev"]}
    assert names - {"neuraxis"} <= {name.lower() for name in PINS}


def test_workflows_call_only_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        called = re.findall(r"run: .*\bmake ([a-z-]+)", workflow.read_text())
        assert called, workflow.name
        assert set(called) <= targets


def test_the_contributors_guide_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {name for name in re.findall(r"`([a-z_0-9/]+/[a-z_0-9/]*\.?(?:py|md)?)`", text) if "NAME" not in name}
    assert len(named) > 20
    missing = [name for name in sorted(named) if not any((base / name).exists() for base in BASES)]
    assert missing == []


def test_functions_outside_kernels_take_at_most_ten_arguments() -> None:
    found, wrong = set(), []
    for path in sorted((ROOT / "src" / "neuraxis").rglob("*.py")):
        place = path.relative_to(ROOT / "src" / "neuraxis").as_posix()
        for name, function in functions_in(ast.parse(path.read_text()), ""):
            decorators = {ast.unparse(one).partition("(")[0] for one in function.decorator_list}
            if decorators & {"njit", "compiled", "inner_function", "intrinsic", "neuron_model"}:
                continue
            arguments = (*function.args.posonlyargs, *function.args.args)
            if place.startswith("network/models/") and not any(one.annotation for one in arguments):
                continue  # a part of models, which is compiled with them
            positional = [one.arg for one in arguments]
            positional = [one for one in positional if one not in ("self", "cls")]
            if len(positional) > 10:
                wrong.append(f"{place} {name}")
            elif len(positional) + len(function.args.kwonlyargs) > 10:
                found.add(f"{place} {name}")
    assert wrong == []
    assert found == MANY_OPTIONS


def functions_in(node: ast.AST, within: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return the functions of a module with their qualified names."""
    found = []
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                found.append((name, child))
        found += functions_in(child, name)
    return found


def test_the_program_in_the_readme_is_the_one_that_the_documentation_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert (
        f"```{{file}} network.py\n{program}```\n\n```{{shell}}\n:timeout: 180\npython network.py\n```"
        in (ROOT / "docs" / "index.md").read_text()
    )


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 500


def test_the_walks_of_the_design_name_at_most_eight_modules_each_which_exist() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    walks = text.partition("## Five walks\n")[2].partition("\n## ")[0].split("\n**")[1:]
    assert len(walks) == 5
    package = ROOT / "src" / "neuraxis"
    for walk in walks:
        steps = "\n".join(re.findall(r"^\d\. .*(?:\n   .*)*", walk, re.MULTILINE))
        folders, modules = [package], set()
        for name in re.findall(r"`([\w/]+\.py)`", steps):  # relative to the package, or to the file before it
            found = next((folder / name for folder in reversed(folders) if (folder / name).is_file()), None)
            assert found is not None, name
            folders.append(found.parent)
            modules.add(found)
        assert 4 < len(modules) <= 8, sorted(modules)
