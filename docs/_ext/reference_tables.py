"""Tables of the reference, made from the code: models and rules, the TOML file of a brain, commands, errors.

`write` puts each as Markdown into `reference/generated/<name>.txt`, and the pages include these files.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import cyclopts
import msgspec

from neuraxis import errors, network
from neuraxis.brain import regions, spec
from neuraxis.cli import _COMMANDS
from neuraxis.cli.errors import EXIT_CODES
from neuraxis.network import NeuronModel
from neuraxis.network.models.catalogue import built_in_models
from neuraxis.network.parameters import unit

CONNECTION_RULES = [
    network.OneToOne, network.AllToAll, network.PairwiseBernoulli, network.FixedInDegree, network.FixedOutDegree,
    network.FixedTotalNumber, network.Explicit,
]  # fmt: skip
PLASTICITY_RULES = [network.STDP, network.RewardSTDP, network.TsodyksMarkram, network.HomeostaticScaling]
OTHERS = [
    network.Neuromodulator, network.Rhythm, network.Constant, network.Uniform, network.Normal, network.LogNormal,
]  # fmt: skip
TABLES = {  # of a brain's file, by heading
    "": spec.BrainSpec,
    "[regions.NAME]": spec.RegionSpec,
    "[[pathways]]": spec.PathwaySpec,
    "[rhythms.NAME]": spec.RhythmSpec,
    "[neuromodulators.NAME]": spec.ModulatorSpec,
    "[[neuromodulators.NAME.sources]]": spec.ModulatorSource,
    "[sensors.NAME]": spec.SensorSpec,
    "[effectors.NAME]": spec.EffectorSpec,
    "[reward]": spec.RewardSpec,
}


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    made = {f"model-{name}": model_text(model) for name, model in built_in_models().items()}
    made |= {f"rule-{rule.__name__}": fields_text(rule) for rule in (*CONNECTION_RULES, *PLASTICITY_RULES, *OTHERS)}
    made |= {"bench": bench_text()}
    made |= {"toml-brain": toml_text(), "toml-regions": region_text()}
    made |= {"cli": cli_text(), "exit-codes": exit_codes_text(), "errors": errors_text()}
    return made


def write(folder: Path) -> None:
    for name, text in texts().items():
        path = folder / f"{name}.txt"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; rows that differ only in their first cell become one row."""
    head = list(head)
    lines: list[list[str]] = [head, ["---"] * len(head)]
    for row in map(list, rows):
        same = len(lines) > 2 and len(row) > 2 and row[1:] == lines[-1][1:]
        if same and lines[-1][0].rpartition(", ")[2].rpartition(".")[0] == row[0].rpartition(".")[0]:
            lines[-1][0] += f", {row[0]}"
        else:
            lines.append(row)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(value: object) -> str:
    return f"`{value}`" if value != "" else ""


# --- models and rules -------------------------------------------------------------------------------------


def model_rows(model: NeuronModel) -> dict[str, list[tuple[str, ...]]]:
    """Return the parameters, inputs, signals and states of a model, each as rows of cells."""
    inputs = [(name, f"weights in {unit(name)}" if unit(name) else "weights") for name in model.receptors]
    inputs += [(name, "rates") for name in model.rate_inputs]
    if model.takes_current:
        inputs.append(("current_pa", "current from `Network.current`"))
    found = {
        "Parameters": [(name, f"{value:g} {unit(name)}".strip()) for name, value in model.parameters.items()],
        "Inputs": inputs,
        "Signals": [(name, f"{value}") for name, value in model.signals.items()],
        "States": [(name, f"{value:g} {unit(name)}".strip()) for name, value in model.states.items()],
    }
    return {
        title: [(code(name), text, model.meanings.get(name, "")) for name, text in rows]
        for title, rows in found.items()
        if rows
    }


def model_text(model: NeuronModel) -> str:
    second = {"Parameters": "default", "Inputs": "what arrives", "Signals": "default", "States": "initial value"}
    names = {"Parameters": "parameter", "Inputs": "input", "Signals": "signal", "States": "state"}
    parts = [table((names[title], second[title], "meaning"), rows) for title, rows in model_rows(model).items()]
    return "\n".join(parts) or "The model has no parameters, inputs or states.\n"


def described(owner: type) -> dict[str, str]:
    """Return the description of each parameter or attribute in the NumPy-style docstring of a class."""
    lines = inspect.getdoc(owner).splitlines()  # type: ignore[union-attr]
    found: dict[str, str] = {}
    inside, names = False, []
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and re.fullmatch("-{3,}", lines[number + 1]):
            inside, names = line in ("Parameters", "Attributes"), []
        elif not inside or re.fullmatch("-{3,}", line):
            continue
        elif line and not line[0].isspace():
            names = [name.strip() for name in line.partition(" : ")[0].split(",")]
            found |= dict.fromkeys(names, "")
        else:
            for name in names:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def fields_text(owner: type) -> str:
    """Return the table of the fields of a dataclass: name, default, unit and meaning."""
    text = described(owner)
    rows = []
    for field in dataclasses.fields(owner):
        if field.name in text and field.name != "index":
            default = "required" if field.default is dataclasses.MISSING else code(toml_value(field.default))
            rows.append((code(field.name), default, unit_of(field.name, text[field.name]), text[field.name]))
    return table(("parameter", "default", "unit", "meaning"), rows) if rows else "The rule has no parameters.\n"


def unit_of(name: str, text: str) -> str:
    return unit(name) or ("unit of the weight" if "unit of the weight" in text else "")


# --- the TOML file of a brain -----------------------------------------------------------------------------


def toml_text() -> str:
    parts = []
    for heading, struct in TABLES.items():
        first = inspect.getdoc(struct).partition("\n\n")[0].replace("\n", " ")  # type: ignore[union-attr]
        parts.append(f"### `{heading}`\n\n{first}\n" if heading else "### Keys at the top\n")
        parts.append(struct_table(struct))
    return "\n".join(parts)


def region_text() -> str:
    parts = []
    for kind, struct in regions.REGION_KINDS.items():
        _, _, notes = inspect.getdoc(struct).partition("\n\n")  # type: ignore[union-attr]
        notes = notes.partition("\nAttributes\n")[0].replace("\n", " ").strip()
        parts.append(f'### `kind = "{kind}"`\n\n{inspect.getdoc(struct).partition(chr(10))[0]} {notes}\n')  # type: ignore[union-attr]
        parts.append(struct_table(struct))
    return "\n".join(parts)


def struct_table(struct: type[msgspec.Struct]) -> str:
    text = described(struct)
    rows = []
    for field in msgspec.structs.fields(struct):
        if field.required:
            shown = "required"
        elif isinstance(field.default, bool | int | float | str):
            shown = code(toml_value(field.default))
        else:
            shown = "none"
        meaning = re.sub(
            r"\bNone( if|:)", lambda found: "absent if" if found[1] == " if" else "without it:", text[field.name]
        )
        rows.append((code(field.encode_name), type_name(field.type), unit(field.name), shown, meaning))
    return table(("key", "type", "unit", "default", "meaning"), rows)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def type_name(kind: Any) -> str:
    text = str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
    names = {"str": "text", "float": "number", "int": "whole number", "bool": "true or false"}
    if text.startswith(("dict", "tuple")) or "Spec" in text:
        return "list of text" if "str, ..." in text else "list of tables" if text.startswith("tuple") else "table"
    return " or ".join(names.get(part, part) for part in text.split(" | ") if part != "None")


# --- results of benchmarks ----------------------------------------------------------------------------------


COMMON = {"machine", "load_before", "busy"}
UNREPORTED = {"plan.peers_python"}  # a path, which reports leave out
BENCHMARKS = ("collectives", "brain", "models", "mesh", "rpc", "training")
_SUFFIXES = {"us": "µs", "seconds": "s", "bytes": "bytes", "s": "s", "ms": "ms", "hz": "Hz"}


def bench_text() -> str:
    parts = []
    for name in BENCHMARKS:
        results = importlib.import_module(f"neuraxis.bench.{name}.measure").Results
        rows = [
            (key, *rest)
            for key, *rest in nested_rows(results)
            if key.strip("`") not in UNREPORTED and key.strip("`").partition(".")[0] not in COMMON
        ]
        parts.append(f"### `neuraxis bench {name} --json`\n\n{table(('key', 'type', 'unit'), rows)}")
    return "\n".join(parts)


def nested_rows(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield a row for each key of a struct, and for those of the structs in it."""
    for field in msgspec.structs.fields(struct):
        key = prefix + field.encode_name
        inner = [part for part in (field.type, *getattr(field.type, "__args__", ())) if is_struct(part)]
        listed = str(field.type).startswith(("list", "tuple"))
        if inner:
            yield from nested_rows(inner[0], f"{key}[]." if listed else f"{key}.")
        else:
            shown = "object" if str(field.type).startswith("dict") else type_name(field.type)
            if listed:
                shown = f"list of {type_name(field.type.__args__[0])}".replace("number", "numbers")
            yield code(key), shown, unit_of_result(field.name)


def unit_of_result(name: str) -> str:
    return "1/s" if name.endswith("per_s") else _SUFFIXES.get(name.rpartition("_")[2], "")


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


# --- commands ---------------------------------------------------------------------------------------------


def cli_text() -> str:
    parts = []
    for name, target, _ in _COMMANDS:
        module, _, attribute = target.partition(":")
        app = getattr(importlib.import_module(module), attribute)
        if name == "launch":  # it passes all words to an inner parser, because most of them belong to the script
            app = importlib.import_module(module)._options
        if not isinstance(app, cyclopts.App):
            app, function = cyclopts.App(name=name), app
            app.default(function)
        parts += command_text(app, f"neuraxis {name}")
    return "\n".join(parts)


def command_text(app: cyclopts.App, name: str, level: int = 2) -> Iterator[str]:
    """Yield the parts of a command's section, and those of its subcommands."""
    subcommands = [word for word in app if not word.startswith("-")]
    made = app.generate_docs(recursive=False, heading_level=1, usage_name=name)
    yield f"{'#' * level} `{name}`\n"
    yield f"{plain(without_sections(app.help or inspect.getdoc(app.default_command) or ''))}\n"
    usage = app.usage.removeprefix("Usage: ") if app.usage else re.search(r"```console\n(.*?)\n```", made, re.S)
    if not subcommands:
        yield f"```text\n{usage if isinstance(usage, str) else usage[1] if usage else name}\n```\n"
    for title, block in re.findall(r"\*\*(Arguments|Parameters)\*\*:\n\n(.*?)(?=\n\*\*|\Z)", made, re.S):
        rows = [option_row(line) for line in re.split(r"\n(?=\* )", block.strip())]
        yield table((title.lower().rstrip("s").replace("parameter", "option"), "meaning", "default"), rows)
    if app.help_epilogue:
        yield from epilogue(app.help_epilogue)
    for word in subcommands:
        yield from command_text(app[word], f"{name} {word}", level + 1)


def without_sections(text: str) -> str:
    """Return a docstring up to its first section."""
    return re.split(r"\n\n?\w+\n\s*---", inspect.cleandoc(text))[0]


def plain(text: str) -> str:
    """Return a text without hard line breaks, which help texts have for terminals."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n")).replace("*", "\\*")


def option_row(line: str) -> tuple[str, str, str]:
    name, text = re.fullmatch(r"\* `([^`]*)`(?::\s*(.*))?", line, re.S).groups()  # type: ignore[union-attr]
    text = " ".join((text or "").split())
    default = re.search(r"\*\[default: (.*?)\]\*", text)
    shown = "required" if "**[required]**" in text else code(default[1]) if default else ""
    choices = re.search(r"\*\[choices: (.*?)\]\*", text)
    text = re.sub(r"\s*\*\[(default|choices): .*?\]\*|\s*\*\*\[required\]\*\*", "", text)
    if choices and not all(word in text for word in choices[1].split(", ")):
        text += f" One of {choices[1]}."
    return f"`{name}`", text.replace("*", "\\*"), "" if shown == "`False`" else shown


def epilogue(text: str) -> Iterator[str]:
    """Yield the examples, the paragraphs around them and the exit codes that end a help text."""
    rest, _, codes = text.partition("Exit codes:")
    paragraphs = rest.removeprefix("Examples:").strip("\n").split("\n\n")
    for indented, group in groupby(paragraphs, key=lambda one: one.startswith(" ")):
        joined = "\n\n".join(group)
        if joined.strip():
            yield f"```text\n{textwrap.dedent(joined)}\n```\n" if indented else f"{plain(joined)}\n"
    if codes:
        yield f"**Exit codes:** {plain(codes)}\n"


def exit_codes_text() -> str:
    rows = []
    for line in EXIT_CODES.splitlines()[2:]:
        if not line:
            break
        if found := re.match(r"  (\d+)\s+(.*)", line):
            rows.append([code(found[1]), found[2]])
        else:
            rows[-1][1] += f" {line.strip()}"
    rest = EXIT_CODES.rpartition("\n\n")[2]
    return table(("exit code", "meaning"), rows) + f"\n{plain(rest)}\n"


# --- errors -----------------------------------------------------------------------------------------------


def errors_text() -> str:
    titles = {"arguments and resources": "Arguments and resources", "mesh": "Mesh", "GPU": "GPU"}
    section = {"NeuraxisError": "The base class"}
    title = ""
    for line in inspect.getsource(errors).splitlines():
        if found := re.fullmatch(r"# --- (.*?) -+", line):
            title = titles.get(found[1], found[1][0].upper() + found[1][1:])
        elif found := re.match(r"class (\w+)", line):
            section.setdefault(found[1], title)
    parts, last = [], ""
    for name in sorted(errors.__all__, key=lambda name: list(section).index(name)):
        if section[name] != last:
            parts.append(f"## {section[name]}\n")
            last = section[name]
        parts.append(error_text(getattr(errors, name)))
    return "\n".join(parts)


def error_text(error: type) -> str:
    cause, remedy = cause_and_remedy(error)
    bases = [f"{{py:exc}}`~neuraxis.errors.{base.__name__}`" if base.__name__ in errors.__all__ else code(base.__name__)
             for base in error.__bases__ if base.__name__ not in ("NeuraxisError", "Exception")]  # fmt: skip
    parts = [f"### {error.__name__}\n", f"**Cause.** {cause}\n", f"**Remedy.** {remedy}\n"]
    if bases:
        parts.append(f"Also caught by: {', '.join(bases)}.\n")
    own = {name: text for name, text in described(error).items() if text}
    if own:
        parts.append(table(("attribute", "meaning"), ((code(name), text) for name, text in own.items())))
    return "\n".join(parts)


def cause_and_remedy(error: type) -> tuple[str, str]:
    """Return the first and the second paragraph of an error's docstring."""
    paragraphs = inspect.cleandoc(error.__doc__ or "").split("\n\n")
    text = [" ".join(part.split()) for part in paragraphs if not part.startswith("Attributes\n")]
    return text[0], " ".join(text[1:])
