"""The public API (docs/decisions/037-public-api.md): discoverable, documented, exported once, cheap to import."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuraxis
from neuraxis.imports import _public_names

ROOT = Path(__file__).parents[1]
LIMIT_S = 60

PUBLIC_MODULES = [
    "neuraxis",
    "neuraxis.brain",
    "neuraxis.brain.regions",
    "neuraxis.cluster",
    "neuraxis.comm",
    "neuraxis.distributed",
    "neuraxis.errors",
    "neuraxis.gpu",
    "neuraxis.launch",
    "neuraxis.mesh",
    "neuraxis.network",
    "neuraxis.network.arithmetic",
    "neuraxis.network.library",
    "neuraxis.network.models",
    "neuraxis.report",
    "neuraxis.rpc",
    "neuraxis.simulation",
    "neuraxis.torch",
    "neuraxis.training",
]

# Modules that export again what another public module defines.
FACADES = {"neuraxis", "neuraxis.distributed"}

# Values without a docstring of their own: the docstring of their module documents them.
CONSTANTS = (str, int, float, tuple, dict, timedelta, types.UnionType)

# What `import` of a public module may load of the packages that take long to load. All others load none of them.
HEAVY = {"numpy", "numba", "scipy", "torch", "zenoh", "dask", "distributed", "cupy", "matplotlib", "h5py", "msgspec"}
NEEDED = {
    "neuraxis.network": {"numpy"},
    "neuraxis.network.arithmetic": {"numpy"},
    "neuraxis.network.library": {"numpy"},
    "neuraxis.network.models": {"numpy"},
    "neuraxis.torch": {"torch", "numpy"},  # it registers a backend with torch
}

every_module = pytest.mark.parametrize("name", PUBLIC_MODULES)


def public_items(name: str) -> dict[str, Any]:
    module = importlib.import_module(name)
    return {public: getattr(module, public) for public in module.__all__}


def run_python(program: str) -> str:
    """Run a program in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- discoverable -----------------------------------------------------------------------------------------


def test_tab_completion_finds_every_public_module() -> None:
    """`neuraxis.brain` works after `import neuraxis`, and the public modules are those that the top level leads to."""
    program = (
        "import neuraxis, types\n"
        "def walk(module):\n"
        "    print(module.__name__)\n"
        "    for name in dir(module):\n"
        "        value = getattr(module, name)\n"
        "        if isinstance(value, types.ModuleType):\n"
        "            walk(value)\n"
        "walk(neuraxis)\n"
    )
    assert sorted(run_python(program).split()) == PUBLIC_MODULES


@every_module
def test_dir_shows_the_public_names_and_nothing_else(name: str) -> None:
    module = importlib.import_module(name)
    for _ in ("before anything is loaded", "after everything is"):
        assert sorted(dir(module)) == sorted(module.__all__)
        assert len(set(module.__all__)) == len(module.__all__)
        assert all(not public.startswith("_") or public == "__version__" for public in module.__all__)
        public_items(name)


@every_module
def test_unknown_names_are_attribute_errors(name: str) -> None:
    module = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'no_such_name'") as raised:
        _ = module.no_such_name
    assert raised.value.name == "no_such_name"  # from both of these Python makes "Did you mean: ...?"
    assert raised.value.obj is module


def test_a_name_of_another_public_module_leads_to_it() -> None:
    """As `from neuraxis import AllToAll`: the error has the place, and nothing is imported to find it."""
    program = (
        "import sys\n"
        "try:\n"
        "    from neuraxis import AllToAll\n"
        "except ImportError as error:\n"
        "    print(error, '|', error.name)\n"
        "import neuraxis\n"
        "try:\n"
        "    neuraxis.lif_exp\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
        "print(hasattr(neuraxis, 'AllToAll'))\n"
        f"print({HEAVY!r} & set(sys.modules), [one for one in sys.modules if one.startswith('neuraxis.network')])\n"
        "from neuraxis import version\n"  # a module that is not public
    )
    imported, read, has, loaded = run_python(program).splitlines()
    assert imported == (
        "cannot import name 'AllToAll' from 'neuraxis': it is in neuraxis.network. Write from neuraxis.network import "
        "AllToAll | neuraxis"
    )
    assert read == "module 'neuraxis' has no attribute 'lif_exp'; there is neuraxis.network.models.lif_exp"
    assert (has, loaded) == ("False", "set() []")
    with pytest.raises(ImportError, match=r"'neuraxis\.mesh': it is in neuraxis\.simulation\. Write"):
        from neuraxis.mesh import MeshExecutor  # noqa: F401
    with pytest.raises(ImportError, match=r"cannot import name 'no_such_name' from 'neuraxis' \("):
        from neuraxis import no_such_name  # noqa: F401


def test_places_of_names_are_those_of_the_public_modules() -> None:
    """The places are read from the sources, without an import."""
    assert _public_names() == {name: frozenset(importlib.import_module(name).__all__) for name in PUBLIC_MODULES}


def test_no_submodule_hides_a_public_name() -> None:
    """Importing a submodule makes it an attribute of its package, over a name that has not been loaded yet."""
    alike = []
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        submodules = {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
        alike += [(name, public) for public in submodules & set(module.__all__) - {"launch", "errors", "distributed"}]
    program = "import importlib, types\n"
    for name, public in alike:
        if f"{name}.{public}" not in PUBLIC_MODULES:
            program += f"importlib.import_module('{name}.{public}')\n"
            program += (
                f"assert not isinstance(importlib.import_module('{name}').{public}, types.ModuleType), {public!r}\n"
            )
    run_python(program)


def test_every_public_name_is_exported_once() -> None:
    homes: dict[int, list[str]] = {}
    for name in PUBLIC_MODULES:
        if name not in FACADES:
            for public, value in public_items(name).items():
                if not isinstance(value, CONSTANTS):
                    homes.setdefault(id(value), []).append(f"{name}.{public}")
    assert [names for names in homes.values() if len(names) > 1] == []


def test_the_facades_define_nothing() -> None:
    """The top level exports what a public package exports, under the same name."""
    elsewhere = {
        (public, id(value))
        for name in PUBLIC_MODULES
        if name not in FACADES
        for public, value in public_items(name).items()
    }
    for public, value in public_items("neuraxis").items():
        if not isinstance(value, (types.ModuleType, str)):
            assert (public, id(value)) in elsewhere, public


# --- one way to end, one way to wait ------------------------------------------------------------------------


END_VERBS = {
    "abort", "cancel", "destroy", "disconnect", "dispose", "end", "exit", "finalize", "finish", "halt", "kill", "leave",
    "quit", "shutdown", "stop", "teardown", "terminate", "undeclare", "unsubscribe",
}  # fmt: skip
OTHER_ENDS = {
    # Names of seed 001, which are the same as `close`.
    "DistributedContext.shutdown",
    "RpcContext.shutdown",
    "DaskCluster.stop",
    "CudaContext.stop",
    # Ending without waiting for queued operations, which `close` does wait for.
    "DistributedContext.abort",
    "Communicator.abort",
    # Interfaces of others: of torch's process groups, and of the futures of the standard library.
    "ShmProcessGroup.shutdown",
    "ShmProcessGroup.abort",
    "RpcFuture.cancel",
}


def public_classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for name in PUBLIC_MODULES:
        found |= {value.__name__: value for value in public_items(name).values() if isinstance(value, type)}
    return found


def own_methods(owner: type) -> dict[str, Any]:
    """Return the public methods that a class has from us, without deprecated names."""
    methods = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("neuraxis."):
            methods |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return {name: value for name, value in methods.items() if callable(value) or isinstance(value, classmethod)}


def test_close_is_the_only_verb_that_ends_something() -> None:
    ends = {
        f"{owner.__name__}.{method}"
        for owner in public_classes().values()
        for method in own_methods(owner)
        if method in END_VERBS or method.split("_")[0] in END_VERBS
    }
    assert ends == OTHER_ENDS


def test_everything_that_can_be_closed_is_a_context_manager() -> None:
    can_close = {name: owner for name, owner in public_classes().items() if hasattr(owner, "close")}
    assert {"Brain", "Communicator", "DistributedContext", "Node", "RpcContext", "Simulation", "Team"} <= set(can_close)
    for name, owner in can_close.items():
        if not getattr(owner, "_is_protocol", False):
            assert hasattr(owner, "__enter__"), name
            assert hasattr(owner, "__exit__"), name
    for name, owner in public_classes().items():
        if name != "Work":
            assert not hasattr(owner, "__enter__") or hasattr(owner, "close"), name


@pytest.mark.parametrize("how", ["close", "with", "shutdown"])
def test_a_context_and_its_groups_are_closed_once_or_twice(how: str) -> None:
    context = neuraxis.DistributedContext("local").initialize()
    group = context.new_group([0])
    if how == "with":
        with group as entered:
            assert entered is group
        with context:
            pass
    else:
        group.close()
        getattr(context, how)()
    for _ in range(2):
        group.close()
        context.close()
    with pytest.raises(neuraxis.errors.CommunicatorClosed):
        group.barrier()
    assert not context.is_initialized


def test_leaving_a_group_with_an_exception_aborts_it() -> None:
    with neuraxis.DistributedContext("local") as context:
        with pytest.raises(ZeroDivisionError), context.new_group([0]) as group:
            raise ZeroDivisionError
        with pytest.raises(neuraxis.errors.CommunicatorClosed):
            group.barrier()
        context.world.barrier()


def test_an_rpc_context_is_closed_once_or_twice() -> None:
    context = neuraxis.RpcContext("shm", world_size=1, rank=0).initialize()
    for end in (context.close, context.close, context.shutdown):
        end()
        assert not context.is_initialized
    assert "closed" in repr(context)


# Parameters whose names look like a time to wait, and are something else.
NO_TIMEOUTS = {
    "AccumulatorOverflow.limit": "a number",
    "Capacity.operations_per_s": "a rate",
    "DaskCluster.memory_limit": "bytes",
    "EarlyStop.patience": "epochs",
    "HippocampusConfig.forget_s": "model time",
    "Summary.build_seconds": "a result",
    "Summary.compile_seconds": "a result",
    "Summary.run_seconds": "a result",
}
SECONDS = {"float", "float | None", "float | timedelta | None", "timedelta", "timedelta | None"}  # timedelta: torch's
BLOCKING = {"get", "receive", "recv", "request", "result", "wait", "wait_for", "wait_for_subscribers", "gather"}


def public_signatures() -> dict[str, inspect.Signature]:
    """Return the signatures of all public functions, constructors and methods, by their names without the module."""
    found = {}
    for name in PUBLIC_MODULES:
        for public, value in public_items(name).items():
            callables = {public: value}
            if isinstance(value, type):
                callables |= {f"{public}.{method}": getattr(value, method) for method in own_methods(value)}
            for label, one in callables.items():
                try:
                    found[label] = inspect.signature(one)
                except (TypeError, ValueError):
                    assert not inspect.isfunction(one)
    return found


def test_every_time_to_wait_is_called_timeout_and_is_in_seconds() -> None:
    looks_like_one = re.compile(r"(_s|_secs?|seconds|deadline|patience|delay|wait|limit|timeout)$")
    timeouts = 0
    for label, signature in public_signatures().items():
        for parameter in signature.parameters.values():
            if looks_like_one.search(parameter.name) and f"{label}.{parameter.name}" not in NO_TIMEOUTS:
                assert parameter.name == "timeout" or parameter.name.endswith("_timeout"), (label, parameter)
                kind = parameter.annotation
                assert (kind if isinstance(kind, str) else kind.__name__) in SECONDS, (label, parameter)
                timeouts += 1
    assert timeouts > 50


def test_every_call_that_waits_has_a_timeout() -> None:
    """A collective waits for at most the timeout of its group, as in torch."""
    collectives = {"Communicator.gather", "ProcessGroup.gather", "gather", "recv"}
    for label, signature in public_signatures().items():
        owner, _, name = label.rpartition(".")
        if name in BLOCKING and label not in collectives and owner != "ShmProcessGroup":  # whose methods torch names
            assert "timeout" in signature.parameters, label


def test_options_of_commands_follow_the_same_convention() -> None:
    from cyclopts import App

    from neuraxis.cli import _COMMANDS
    from neuraxis.cli.errors import RENAMED

    def option_names(command: Any) -> set[str]:
        if not isinstance(command, App):
            command = App(default_command=command)
        names = set()
        if command.default_command is not None:
            names = {name for argument in command.assemble_argument_collection() for name in argument.names}
        return names.union(*(option_names(command[name]) for name in command if not name.startswith("-")))

    options = {}
    for command, target, _ in _COMMANDS:
        module, _, attribute = target.partition(":")
        options[command] = option_names(getattr(importlib.import_module(module), attribute))
    assert "--timeout" in options["pub"]
    for command, names in options.items():
        wrong = [name for name in names if re.search(r"(-s|-secs?|-seconds|-?deadline|patience|-?wait|-limit)$", name)]
        assert set(wrong) <= {"--memory-limit", "--seconds"}, command  # --seconds: for how long to listen
    for command, renamed in RENAMED.items():
        assert set(renamed.values()) <= options[command]
        assert not set(renamed) & options[command]


# --- names of the previous release ------------------------------------------------------------------------


def test_names_of_the_previous_release_still_work() -> None:
    for old in ("LARGEST_NORMAL", "choose_exponent", "to_steps", "as_distribution"):
        with pytest.warns(DeprecationWarning, match=rf"neuraxis\.network\.{old} is deprecated .* release 0\.3"):
            getattr(neuraxis.network, old)
    execution = importlib.import_module("neuraxis.execution")
    with pytest.warns(DeprecationWarning, match=r"Import it from neuraxis\.simulation"):
        assert execution.Simulation is neuraxis.Simulation
    mesh = importlib.import_module("neuraxis.execution.mesh")
    with pytest.warns(DeprecationWarning, match=r"Import it from neuraxis\.simulation\.mesh"):
        assert mesh.Units({"a": [0]}).names == ("a",)


def test_renamed_arguments_work_with_a_warning() -> None:
    from neuraxis.deprecation import renamed_arguments

    @renamed_arguments(timeout_s="timeout", word="token")
    def function(first: int, timeout: float = 1.0, token: str = "") -> tuple[int, float, str]:
        return first, timeout, token

    assert function(1, 2.0, token="x") == (1, 2.0, "x")
    with pytest.warns(DeprecationWarning, match=r"function\(timeout_s=\) .* release 0\.3\. Use timeout=\.") as caught:
        assert function(1, timeout_s=3.0) == (1, 3.0, "")  # type: ignore[call-arg]
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="'timeout' and its old name 'timeout_s'"):
        function(1, timeout=2.0, timeout_s=3.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"), pytest.warns(DeprecationWarning, match="timeout_s"):
        function(1, 2.0, timeout_s=3.0)  # type: ignore[call-arg]


OLD_ARGUMENTS = [
    ("mesh.Topology", (), {"patience_s": 3.0}, "connect_timeout"),
    ("launch.LaunchOptions", (__file__,), {"grace_s": 3.0}, "grace"),
    ("simulation.ParallelExecutor", (2,), {"timeout_s": 3.0}, "timeout"),
]


@pytest.mark.parametrize(("name", "arguments", "old", "new"), OLD_ARGUMENTS)
def test_old_arguments_of_constructors_work(
    name: str, arguments: tuple[Any, ...], old: dict[str, Any], new: str
) -> None:
    module, _, public = name.partition(".")
    constructor = getattr(getattr(neuraxis, module), public)
    ((old_name, value),) = old.items()
    with pytest.warns(DeprecationWarning, match=rf"{public}\({old_name}=\) is deprecated .* Use {new}="):
        made = constructor(*arguments, **old)
    assert getattr(made, new, None) == value or getattr(made, f"_{new}") == value


def test_old_members_work() -> None:
    with neuraxis.DistributedContext("local") as context:
        group = context.new_group([0])
        with pytest.warns(
            DeprecationWarning, match=r"Communicator\.destroy is deprecated .* Use Communicator\.close\."
        ):
            group.destroy()
        with pytest.raises(neuraxis.errors.CommunicatorClosed):
            group.barrier()
    topology = neuraxis.Topology()
    with pytest.warns(DeprecationWarning, match=r"Topology\.patience_s"):
        assert topology.patience_s == topology.connect_timeout
    with pytest.warns(DeprecationWarning, match=r"BrainSpec\.outside_pathways"):
        assert neuraxis.brain.default_brain().admissions() == []


def test_old_fields_of_a_region_setup_work() -> None:
    from neuraxis.network.models import lif_delta
    from neuraxis.simulation.mesh import RegionSetup, Units

    network = neuraxis.Network(dt_ms=0.1, seed=1)
    network.population("cells", 1, lif_delta())
    old = {
        "patience_s": 2.0, "reconnect_s": 3.0, "start_wait_s": 4.0, "residents": (), "journal_bytes": 5, "word": "w"
    }  # fmt: skip
    with pytest.warns(DeprecationWarning, match="RegionSetup") as caught:
        setup = RegionSetup("a", Units({"a": [0]}), network, mesh="m", topology={}, **old)  # type: ignore[call-arg]
    assert len(caught) == len(old)
    assert (setup.silence_timeout, setup.reconnect_timeout, setup.start_timeout) == (2.0, 3.0, 4.0)
    with pytest.warns(DeprecationWarning, match="RegionSetup"):
        assert (setup.residents, setup.journal_bytes, setup.word) == ((), 5, "w")  # type: ignore[attr-defined]


# --- documented -------------------------------------------------------------------------------------------


@every_module
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    missing = []
    for public, value in public_items(name).items():
        if isinstance(value, CONSTANTS):
            documented = f"`{public}" in module.__doc__ or public == "__version__"
        elif isinstance(value, type):
            own = vars(value).get("__doc__") or ""
            documented = bool(own) and not own.startswith(f"{public}(")  # which a dataclass writes by itself
        else:
            documented = bool(inspect.getdoc(value))
        if not documented:
            missing.append(public)
    assert missing == []


# Names without an example that runs, and why.
WITHOUT_EXAMPLE = {
    **dict.fromkeys(("CudaContext", "Kernel", "gpu_to_tensor", "open_shared", "share", "tensor_to_gpu"), "needs a GPU"),
    "WorkerLine": "is made in the processes of a Team, whose example runs",
}


# Classes that other calls make: their docstrings name these calls instead of constructor arguments.
MADE_BY_OTHERS = {"NonMember", "Polled", "RemoteObject", "RpcFuture", "ShmProcessGroup", "Subscription", "Work"}
ENUMERATIONS = {"ReduceOp", "reduce_op"}


def sections_of(value: Any) -> set[str]:
    """Return the titles of the sections of a docstring; "Parameters" for the table of a neuron model, too."""
    titles = re.findall(r"^(\w+)(?: \(default\))?\n-{3,}$", inspect.getdoc(value) or "", flags=re.MULTILINE)
    return set(titles)


def arguments_of(value: Any) -> list[str]:
    return [one for one in inspect.signature(value).parameters if one not in ("self", "cls")]


def says_what_it_returns(value: Any) -> bool:
    """Return True for a section about the result, or a summary that is about it: "Return the number of ranks."."""
    summary = inspect.getdoc(value) or ""
    return bool(sections_of(value) & {"Returns", "Yields"}) or summary.startswith(("Return ", "Return, ", "Yield "))


def public_callables(name: str) -> dict[str, Any]:
    """Return the functions, classes and neuron models that a module defines; exceptions are raised, not called."""
    return {
        public: value
        for public, value in public_items(name).items()
        if callable(value)
        and not isinstance(value, types.UnionType)
        and not (isinstance(value, type) and issubclass(value, BaseException))
    }


def is_foreign(owner: type, method: str) -> bool:
    """Return True if a method is that of a base class of another package, which documents it."""
    return any(method in vars(base) for base in owner.__mro__ if not base.__module__.startswith("neuraxis."))


@every_module
def test_every_public_function_documents_arguments_and_result(name: str) -> None:
    missing = []
    for public, value in public_callables(name).items():
        sections = sections_of(value)
        if (
            arguments_of(value)
            and not sections & {"Parameters", "Attributes"}
            and public not in MADE_BY_OTHERS | ENUMERATIONS
        ):
            missing.append(f"{public}: Parameters")
        if inspect.isfunction(value):
            returns = value.__annotations__.get("return") not in (None, "None", "NoReturn")
            if returns and not says_what_it_returns(value):
                missing.append(f"{public}: Returns")
    assert missing == []


@every_module
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    with_example = {
        public for public, value in public_callables(name).items() if ">>> " in (inspect.getdoc(value) or "")
    }
    missing = set(public_callables(name)) - with_example
    assert missing - set(WITHOUT_EXAMPLE) == set()
    assert with_example & set(WITHOUT_EXAMPLE) == set()


@every_module
def test_every_public_method_documents_arguments_and_result(name: str) -> None:
    missing = []
    for public, owner in public_callables(name).items():
        if not isinstance(owner, type):
            continue
        for method in own_methods(owner):
            value = getattr(owner, method)
            if not inspect.isroutine(value) or is_foreign(owner, method):
                continue
            if not inspect.getdoc(value):
                missing.append(f"{public}.{method}")
            elif arguments_of(value) and "Parameters" not in sections_of(value):
                missing.append(f"{public}.{method}: Parameters")
            elif inspect.signature(value).return_annotation not in (None, "None", "Self") and not says_what_it_returns(
                value
            ):
                missing.append(f"{public}.{method}: Returns")
    assert missing == []


@pytest.mark.timeout(300)
@every_module
def test_examples_of_docstrings_run(name: str, tmp_path: Path) -> None:
    """In a process of its own: Zenoh and Dask keep descriptors open for as long as a process lives."""
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": search_path}
    command = [sys.executable, "-W", "error", "-m", "tests.test_public_api", name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def run_examples(name: str) -> int:
    """Run the examples in the docstrings of a public module; return the number that failed."""
    module = importlib.import_module(name)
    examples = doctest.DocTestFinder(recurse=False).find(module, name)
    finder = doctest.DocTestFinder()
    for public, value in public_items(name).items():
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        if home is not None and (name not in FACADES or home.__name__.startswith("neuraxis.comm.")):
            names = {**vars(home), "np": np, "neuraxis": neuraxis, public: value}
            examples += finder.find(value, f"{name}.{public}", module=home, globs=names)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    with np.printoptions(legacy=False):
        for example in examples:
            runner.run(example)
    return runner.summarize(verbose=False).failed


# --- visible to type checkers -----------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_type_checkers_see_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = [f"from {name} import {public} as _" for name in PUBLIC_MODULES for public in public_items(name)]
    uses = "".join(f"def f{i}() -> None:\n    {line}\n" for i, line in enumerate(lines))
    wrong = [f"from {name} import no_such_name as _" for name in PUBLIC_MODULES]
    uses += "".join(f"def g{i}() -> None:\n    {line}\n" for i, line in enumerate(wrong))
    program = tmp_path / "uses.py"
    program.write_text(uses)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(program)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
    )
    found = [line for line in checked.stdout.splitlines() if "uses.py" in line and "error:" in line]
    missing = [line for line in found if "no_such_name" not in line]
    assert missing == [], "\n".join(missing)
    assert len(found) == len(wrong), checked.stdout + checked.stderr


# --- cheap to import --------------------------------------------------------------------------------------


@every_module
def test_imports_load_nothing_that_they_do_not_need(name: str) -> None:
    loaded = set(run_python(f"import sys, {name}\nprint(*sys.modules)").split())
    assert loaded & HEAVY <= NEEDED.get(name, set())


@pytest.mark.parametrize(
    "statement",
    [
        "from neuraxis import Network; Network().population('cells', 1, neuraxis.network.models.lif_exp)",
        "neuraxis.mesh.Node",
        "from neuraxis.launch import Team, run",
        "from neuraxis.brain import default_brain; default_brain()",
        "import neuraxis.cli.doctor, neuraxis.cli.patterns, neuraxis.cli.compile",
    ],
)
def test_what_compiles_nothing_and_uses_no_tensor_loads_neither_numba_nor_torch(statement: str) -> None:
    loaded = set(run_python(f"import sys, neuraxis\n{statement}\nprint(*sys.modules)").split())
    assert not loaded & {"numba", "llvmlite", "torch", "matplotlib", "h5py"}


def test_a_simulation_that_records_to_no_file_does_not_load_h5py() -> None:
    program = (
        "import sys\n"
        "from neuraxis import Network, Simulation\n"
        "from neuraxis.network.models import lif_delta\n"
        "network = Network()\n"
        "network.record(network.population('cells', 3, lif_delta), 'spikes')\n"
        "with Simulation(network) as simulation:\n"
        "    simulation.run(1.0)\n"
        "print('h5py' in sys.modules)\n"
    )
    assert run_python(program).split()[-1] == "False"


def test_the_help_of_the_command_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from neuraxis.cli import main\n"
        "sys.argv = ['neuraxis', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "print('loaded:', *sys.modules)\n"
    )
    loaded = set(run_python(program).partition("loaded:")[2].split())
    assert "neuraxis.cli" in loaded
    assert not loaded & HEAVY


if __name__ == "__main__":
    sys.exit(run_examples(sys.argv[1]))
