"""The reference is complete: every public package, model, rule, key of a file, command and error is in its page."""

from __future__ import annotations

import importlib
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuraxis import errors
from neuraxis.brain import regions
from neuraxis.brain.spec import BrainSpec
from neuraxis.cli import _COMMANDS
from neuraxis.mesh import messages
from neuraxis.network import Distribution, PlasticityRule, Rule
from neuraxis.network.models.catalogue import built_in_models
from neuraxis.store import states
from neuraxis.wire import codecs, envelope

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import reference_tables  # noqa: E402

TEXTS = reference_tables.texts()


def page(name: str) -> str:
    """Return a page with the generated files that it includes."""
    text = (PAGES / f"{name}.md").read_text()
    return re.sub(r"```\{include\} generated/(.*)\.txt\n```", lambda found: TEXTS[found[1]], text)


def test_every_public_package_is_listed() -> None:
    from .test_public_api import PUBLIC_MODULES

    listed = re.findall(r"^generated/(.*)$", (PAGES / "api.md").read_text(), re.M)
    assert sorted(listed) == PUBLIC_MODULES
    source = (ROOT / "docs" / "_ext" / "reference.py").read_text()
    assert all(f'    "{name}": ' in source for name in PUBLIC_MODULES)


@pytest.mark.parametrize("name", built_in_models())
def test_every_model_is_in_the_page_of_models(name: str) -> None:
    text = page("models")
    assert f"### `{name}`" in text
    section = text.partition(f"### `{name}`")[2].partition("\n### ")[0]
    model = built_in_models()[name]
    for part in (*model.parameters, *model.receptors, *model.rate_inputs, *model.states):
        assert f"| `{part}` |" in section, part
    assert "$$" in section or not model.parameters


@pytest.mark.parametrize("rule", [*Rule.__args__, *PlasticityRule.__args__], ids=lambda rule: rule.__name__)
def test_every_rule_is_in_the_page_of_models(rule: Any) -> None:
    section = page("models").partition(f"### `{rule.__name__}`")[2].partition("\n### ")[0]
    for field in rule.__dataclass_fields__:
        assert f"`{field}`" in section or field == "_", field


def test_every_distribution_of_weights_is_in_the_page_of_models() -> None:
    for kind in Distribution.__args__:
        assert f"`{kind.__name__}`" in page("models"), kind


def structs_of(kind: Any) -> set[type[msgspec.Struct]]:
    """Return the structs that a type contains."""
    found: set[type[msgspec.Struct]] = set()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found.add(kind)
        for field in msgspec.structs.fields(kind):
            found |= structs_of(field.type)
    for part in getattr(kind, "__args__", ()):
        found |= structs_of(part)
    return found


def test_every_key_of_a_brain_file_is_in_the_page_of_configuration() -> None:
    documented = {*reference_tables.TABLES.values(), *regions.REGION_KINDS.values()}
    assert structs_of(BrainSpec) <= documented
    text = page("configuration")
    for kind in documented:
        rows = reference_tables.struct_table(kind)
        assert rows in text
        for field in msgspec.structs.fields(kind):
            row = re.search(rf"^\| (`\w+`, )*`{field.encode_name}`(, `\w+`)* \|(.*)$", rows, re.M)
            assert row, f"{kind.__name__}.{field.name}"
            assert row[3].count("|") == 4
            assert len(row[3].rsplit("|", 2)[1].strip()) > 5, f"{kind.__name__}.{field.name} has no meaning"


@pytest.mark.parametrize("name", [name for name, *_ in _COMMANDS])
def test_every_command_is_in_the_page_of_commands(name: str) -> None:
    section = page("cli").partition(f"\n## `neuraxis {name}`\n")[2].partition("\n## ")[0]
    assert f"neuraxis {name}" in section
    assert "--json" in section or name in ("launch", "router", "node"), name


def test_every_exit_code_is_in_its_page() -> None:
    for code in (0, 1, 2, 130):
        assert f"| `{code}` |" in page("exit-codes")


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_a_cause_and_a_remedy(name: str) -> None:
    cause, remedy = reference_tables.cause_and_remedy(getattr(errors, name))
    assert cause.endswith(".")
    assert remedy.endswith(".")
    section = page("errors").partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    assert cause in section
    assert remedy in section


def test_every_key_of_the_results_of_benchmarks_is_in_the_page_of_file_formats() -> None:
    text = page("file-formats")
    for name in reference_tables.BENCHMARKS:
        results = importlib.import_module(f"neuraxis.bench.{name}.measure").Results
        section = text.partition(f"### `neuraxis bench {name} --json`")[2].partition("\n### ")[0]
        for field in msgspec.structs.fields(results):
            place = text if field.name in reference_tables.COMMON else section
            assert re.search(rf"`{field.name}[`.\[]", place), f"{name}: {field.name}"


def test_every_field_of_a_manifest_is_in_the_page_of_file_formats(tmp_path: Path) -> None:
    data = states.begin(tmp_path)
    (data / "shard-0.safetensors").write_bytes(b"")
    states.commit(data, states.Kind("simulation", 1), {"shard-0.safetensors": (0, 0)}, {})
    text = page("file-formats")
    for field in json.loads((tmp_path / states.MANIFEST).read_text()):
        assert f"| `{field}` |" in text, field


def test_the_envelope_is_as_in_the_page_of_wire_formats() -> None:
    text = (PAGES / "wire-formats.md").read_text()
    table = text.partition("| bytes | type | content |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+)(?:-(\d*))? \| (\S+)", table, re.M)
    types = {"2": "2s", "uint8": "B", "uint64": "Q", "int64": "q"}
    layout = struct.Struct("<" + "".join(types[kind] for *_, kind in rows if kind != "UTF-8"))
    sealed = envelope.seal_envelope(b"plain", 1, 2, -1, 3, sent_ns=4)
    assert layout.unpack_from(sealed) == (b"nx", envelope.VERSION, 3, 1, 2, -1, 4)
    assert int(rows[-1][0]) == layout.size
    assert sealed[layout.size :] == b"plain"
    kinds = re.search(r"kind: (.*) \|", text)
    assert kinds
    assert kinds[1] == ", ".join(f"{number} {kind}" for number, kind in enumerate(messages.KINDS))


def test_every_encoding_and_extension_is_in_the_page_of_wire_formats() -> None:
    text = (PAGES / "wire-formats.md").read_text()
    for encoding in codecs._READERS:
        assert f"`{encoding}" in text, encoding
    tags = re.findall(r"^\| (\d+(?:, \d+)*) \| ", text.partition("**MessagePack**")[2], re.M)
    assert [int(tag) for line in tags for tag in line.split(", ")] == list(range(1, 11))
