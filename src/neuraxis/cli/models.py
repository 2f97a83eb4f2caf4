"""`neuraxis models`: the built-in neuron models, and the description of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from neuraxis.arguments import near
from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument

if TYPE_CHECKING:
    from neuraxis.network import NeuronModel

__all__ = ["models"]

_EPILOGUE = """lif_exp_multi and lif_alpha_multi are shown with two receptors; in Python,
lif_exp_multi(5) has five.

Examples:

  All models:
    neuraxis models

  One, by its name here, or in NEST, PyNN or Brian2:
    neuraxis models lif_exp
    neuraxis models iaf_cond_beta

  What does the work of a device of NEST, PyNN or Brian2:
    neuraxis models noise_generator

  For a program:
    neuraxis models lif_exp --json | jq .parameters

Exit codes: 0; 2 for an unknown name."""

models = App(
    name="models",
    help="List the neuron models, or show one: equations, parameters, numerical scheme, names elsewhere.",
    help_epilogue=_EPILOGUE,
    help_format="plaintext",
    version_flags=(),
)


@models.default
def _models(
    name: Annotated[str | None, Parameter(show_default=False)] = None,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """List the neuron models, or show one.

    Parameters
    ----------
    name
        A model by its name here or in NEST, PyNN or Brian2, or one of their devices; all models by default.
    as_json
        Print a JSON list, or the object of one model.
    """
    from neuraxis.network.models.catalogue import (
        built_in_models,
        counterpart,
        model_called,
        names_elsewhere,
        text_of,
    )
    from neuraxis.notebook import text_table

    found = built_in_models()
    if name is None:
        if as_json:
            print(json.dumps([_as_data(one) for one in found.values()], indent=1))
            return 0
        texts = [(one, text_of(one)) for one in found.values()]
        rows = [
            (one.name, str(len(one.receptors)), str(len(one.states)), text.elsewhere.get("NEST", "-").split()[0],
             text.summary.partition(";")[0].rstrip("."))
            for one, text in texts
        ]  # fmt: skip
        print(text_table(("model", "receptors", "states", "NEST", ""), rows))
        return 0
    chosen, instead = model_called(name), counterpart(name)
    if chosen is None and instead is None:
        known = dict.fromkeys([*found, *(given.split()[0] for one in found.values() for given in names_elsewhere(one))])
        return fail(
            "models",
            InvalidArgument(
                f"no model {name!r}; {near(name, known)}. neuraxis.network.equations makes models of differential "
                "equations."
            ),
        )
    if as_json:
        data = _as_data(chosen) if chosen is not None else {"name": name}
        print(json.dumps({**data, "instead": instead} if instead else data, indent=1))
        return 0
    print("\n\n".join([*([f"{name}: {instead}"] if instead else []), *([_as_text(chosen)] if chosen else [])]))
    return 0


def _as_text(model: NeuronModel) -> str:
    from neuraxis.network.models.catalogue import text_of
    from neuraxis.network.parameters import unit
    from neuraxis.notebook import text_table

    text = text_of(model)

    def rows(names: Any) -> list[tuple[str, ...]]:
        return [
            (one, f"{value:g}" if value != "" else "", unit(one), model.meanings.get(one, ""))
            for one, value in names.items()
        ]

    parts = [f"{model.name}: {text.summary}", text.equations]
    if text.scheme:
        parts.append(f"Scheme: {text.scheme}")
    parts.append("Elsewhere: " + "; ".join(f"{simulator} {name}" for simulator, name in text.elsewhere.items()))
    if text.papers:
        parts.append(text.papers)
    for title, second, names in (
        ("parameter", "default", model.parameters),
        ("receptor", "", dict.fromkeys(model.receptors, "")),
        ("state", "initial", model.states),
    ):
        if names:
            parts.append(text_table((title, second, "unit", "meaning"), rows(names)))
    return "\n\n".join(part for part in parts if part)


def _as_data(model: NeuronModel) -> dict[str, Any]:
    from neuraxis.network.models.catalogue import text_of
    from neuraxis.network.parameters import unit

    text = text_of(model)

    def described(names: Any) -> dict[str, Any]:
        return {one: {"value": value, "unit": unit(one), "meaning": model.meanings.get(one, "")}
                for one, value in names.items()}  # fmt: skip

    return {
        "name": model.name,
        "summary": text.summary,
        "equations": text.equations,
        "scheme": text.scheme,
        "elsewhere": text.elsewhere,
        "papers": text.papers,
        "takes_current": model.takes_current,
        "receptors": {one: {"unit": unit(one), "meaning": model.meanings.get(one, "")} for one in model.receptors},
        "parameters": described(model.parameters),
        "states": described(model.states),
    }
