"""Imports on demand: public names that load on first use, and optional packages.

Every public package lists its names in `__all__` and gets its `__getattr__` and `__dir__` from `lazy_names`, so that
`import neuraxis` costs next to nothing, tab completion shows the public names, and nothing else.

Every use of a package that an extra brings (torch, CuPy, Dask, mpi4py, cryptography, Protobuf, ...) goes through one of
three functions, because they differ in cost and in risk:

- `loaded` never imports. Code that reads data from outside uses this one: a message must not decide which packages a
  process imports. It does not return a module that another thread is still importing, whose attributes may be missing.
- `installed` looks for the package on disk and imports nothing of it.
- `require` imports it. Only a call of the user's own program leads there.

`import neuraxis` imports this module, so it imports little itself: what only hints need is imported by them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

_FACADE = "neuraxis.distributed"  # its names are elsewhere, too

__all__ = ["import_folder", "install_command", "installed", "lazy_names", "loaded", "require"]


def lazy_names(
    package: str,
    homes: Mapping[str, Iterable[str]],
    *,
    modules: Iterable[str] = (),
    deprecated: Mapping[str, str] | None = None,
    advice: str = "",
    require: Callable[[], object] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a module whose public names load on first use.

    A package calls this where type checkers do not look, because a module with a `__getattr__` has every name for them:

        if TYPE_CHECKING:
            from neuraxis.mesh.node import Node
        else:
            __getattr__, __dir__ = lazy_names(__name__, {"neuraxis.mesh.node": ["Node"]})

    Parameters
    ----------
    package
        The `__name__` of the calling module. `dir()` of it returns its `__all__`.
    homes
        For each module, the public names that it defines.
    modules
        Public submodules of the package, which load on first use as well.
    deprecated
        For each name of the previous release that is not public any more, the module that has it. Such a name still
        resolves, with a DeprecationWarning, and is not in `dir()`.
    advice
        What the warning tells users to do; by default, to do without the name.
    require
        Called before a module is imported; raises if a package that the module needs is not installed.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    submodules = frozenset(modules)
    old_home_of = dict(deprecated or {})

    def load(name: str) -> Any:
        if name in old_home_of:
            from neuraxis.deprecation import warn_deprecated

            warn_deprecated(f"{package}.{name}", advice or "It is not part of the public API any more")
            return getattr(importlib.import_module(old_home_of[name]), name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")  # which also makes it an attribute of the package
        if name not in home_of:
            home = _public_home(name)
            if home and _is_import(sys._getframe(1)) and not _is_submodule(package, name):
                # Python has an error of its own for an AttributeError here, which would not say where the name is.
                raise ImportError(
                    f"cannot import name {name!r} from {package!r}: it is in {home}. Write from {home} import {name}",
                    name=package,
                )
            # With the name and the object, Python adds the closest public name: "Did you mean: 'FixedInDegree'?"
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{f'; there is {home}.{name}' if home else ''}",
                name=name,
                obj=sys.modules[package],
            )
        if require is not None:
            require()
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def public_names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, public_names


# --- names that are elsewhere ---------------------------------------------------------------------------------


def _public_home(name: str) -> str:
    """Return the public module that has a name; "" if there is none. It reads `__all__` and imports nothing."""
    if name.startswith("_"):
        return ""
    found = [module for module, names in _public_names().items() if name in names]
    return min(found, key=lambda module: (module == _FACADE, module), default="")


@lru_cache(maxsize=1)
def _public_names() -> dict[str, frozenset[str]]:
    """Return `__all__` of each public module: the top level, and `modules` of its calls of `lazy_names` and theirs."""
    import ast
    from pathlib import Path

    found: dict[str, frozenset[str]] = {}
    top = __name__.partition(".")[0]
    waiting = [(top, Path(__file__).resolve().parent)]
    while waiting:
        module, place = waiting.pop()
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[module] = frozenset(ast.literal_eval(node.value))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names":
                (modules,) = [one.value for one in node.keywords if one.arg == "modules"] or [ast.List([])]
                waiting += [(f"{module}.{one}", place / one) for one in ast.literal_eval(modules)]
    return found


def _is_import(caller: FrameType) -> bool:
    """Return True if a frame is that of `from package import name`, which asks the package for the name first."""
    return caller.f_code.co_name == "_handle_fromlist" and "importlib" in caller.f_code.co_filename


def _is_submodule(package: str, name: str) -> bool:
    """Return True if `from package import name` would import a module that is not public."""
    folders = getattr(sys.modules[package], "__path__", [])
    endings = (f"{name}.py", f"{name}/__init__.py")
    from pathlib import Path

    return any(Path(folder, ending).is_file() for folder in folders for ending in endings)


# --- optional packages ------------------------------------------------------------------------------------


_complete: dict[str, Any] = {}  # modules that were seen fully initialised, to answer again in one lookup


def loaded(module: str) -> Any | None:
    """Return a module if the program has imported it completely, else None. Nothing is imported.

    A module is in `sys.modules` from the start of its import, when most of its attributes are missing. Such a module,
    and a submodule of such a package, counts as not loaded.

    Parameters
    ----------
    module
        The full name, e.g. "torch" or "google.protobuf.message".

    Examples
    --------
    >>> from neuraxis import imports
    >>> imports.loaded("no_such_package") is None
    True
    """
    found = sys.modules.get(module)
    if found is None:
        return None
    if _complete.get(module) is found:
        return found
    # importlib sets the flag before the module enters sys.modules, and clears it after a failed import has removed the
    # module again. So a module that is found, then not initialising, then still there has been imported successfully.
    if getattr(getattr(found, "__spec__", None), "_initializing", False) or sys.modules.get(module) is not found:
        return None
    parent = module.rpartition(".")[0]
    if parent and loaded(parent) is None:
        return None
    _complete[module] = found
    return found


def installed(module: str) -> bool:
    """Return True if a package can be found, without importing it.

    A submodule ("google.protobuf") is looked for only after its parent package was imported, which Python needs for it.
    """
    if module in sys.modules:
        return sys.modules[module] is not None
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def import_folder(module: str) -> Path | None:
    """Return the folder in which Python finds a top-level module or package, without importing it; None if nowhere."""
    import importlib.util
    from pathlib import Path

    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return Path(places[0]).resolve().parent if places and Path(places[0]).exists() else None


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package and return it.

    Parameters
    ----------
    module
        The module to import, e.g. "torch".
    extra
        The extra of neuraxis that installs it, e.g. "torch".
    purpose
        The part of neuraxis that needs it, as the error names it, e.g. "training".

    Raises
    ------
    MissingDependency
        The package is not installed or cannot be loaded; the text has the command that installs it.
    """
    found = loaded(module)
    if found is not None:
        return found
    try:
        # If another thread is importing it, this waits: importlib holds a lock for each module.
        return importlib.import_module(module)
    except ImportError as error:
        from neuraxis.errors import MissingDependency

        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name is not None and (
            module == error.name or module.startswith(f"{error.name}.")
        )  # fmt: skip
        reason = f"{package} is not installed" if absent else f"{package} cannot be loaded ({error})"
        raise MissingDependency(purpose, reason, install_command(extra), package=package) from error


# --- installing -----------------------------------------------------------------------------------------


def install_command(extra: str = "", *packages: str) -> str:
    """Return the shell command that installs an extra of neuraxis, and other packages, into this Python.

    The command installs neuraxis from the source of this installation: the clone, the folder, the repository or file
    that pip recorded, or else the package index.

    Parameters
    ----------
    extra
        An extra of neuraxis; "" for none.
    *packages
        Names of packages of the index.
    """
    words = [*_source(extra), *packages] if extra else list(packages)
    return f"{_pip()} install {' '.join(words)}"


def _source(extra: str) -> tuple[str, ...]:
    clone = _clone()
    if clone is not None:
        return "-e", _quoted(f"{clone}[{extra}]")
    origin = _recorded_origin()
    if "dir_info" in origin:
        import os
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        folder = url2pathname(urlsplit(origin["url"]).path)
        if os.path.isdir(folder):
            return (_quoted(f"{folder}[{extra}]"),)
    elif "vcs_info" in origin:
        version = origin["vcs_info"]
        return (_quoted(f"neuraxis[{extra}] @ {version['vcs']}+{origin['url']}@{version['commit_id']}"),)
    elif "archive_info" in origin:
        return (_quoted(f"neuraxis[{extra}] @ {origin['url']}"),)
    return (_quoted(f"neuraxis[{extra}]"),)


def _clone() -> Path | None:
    """Return the clone that this code runs from, if it does: by an editable installation or by PYTHONPATH."""
    from pathlib import Path

    package = Path(__file__).resolve().parent
    root = package.parent.parent
    return root if package.parent.name == "src" and (root / "pyproject.toml").is_file() else None


@lru_cache(maxsize=1)
def _recorded_origin() -> dict[str, Any]:
    """Return the origin of this installation as pip recorded it (PEP 610); empty for one from an index."""
    import importlib.metadata
    import json

    try:
        text = importlib.metadata.distribution("neuraxis").read_text("direct_url.json")
        origin = json.loads(text or "{}")
        return origin if isinstance(origin, dict) and isinstance(origin.get("url"), str) else {}
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return {}


def _pip() -> str:
    """Return the pip of this Python: by name where the shell finds that one, else by its interpreter."""
    import shlex
    import shutil
    from pathlib import Path

    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def _quoted(text: str) -> str:
    import shlex

    # Always: a shell may take the brackets for a pattern, which shlex.quote leaves to the shell where nothing matches.
    return shlex.quote(text) if "'" in text else f"'{text}'"
