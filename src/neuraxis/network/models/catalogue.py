"""The built-in models by name, and what their descriptions say about schemes and about other simulators."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neuraxis.network.neuron_model import NeuronModel

__all__ = ["ModelText", "built_in_models", "text_of"]

_SIMULATORS = ("NEST", "PyNN", "Brian2")


def built_in_models() -> dict[str, NeuronModel]:
    """Return all built-in models by name; those with any number of receptors with two.

    Returns
    -------
    dict of str to NeuronModel
        Models by name, in alphabetical order.

    Examples
    --------
    >>> from neuraxis.network.models.catalogue import built_in_models
    >>> [name for name in built_in_models() if name.startswith("hh")]
    ['hh_alpha', 'hh_cond_exp', 'hh_cond_exp_fine']
    """
    from neuraxis.network import models

    found = {}
    for name in models.__all__:
        one = getattr(models, name)
        found[name] = one if isinstance(one, NeuronModel) else one()
    return found


@dataclass(frozen=True)
class ModelText:
    """The parts of a model's description.

    Parameters
    ----------
    summary : str
        The first line.
    equations : str
        What follows: equations, and what to know about them.
    scheme : str
        How a step is computed.
    elsewhere : dict of str to str
        Names of the model in other simulators, by simulator.
    papers : str
        References.
    """

    summary: str
    equations: str
    scheme: str
    elsewhere: dict[str, str]
    papers: str


def text_of(model: NeuronModel) -> ModelText:
    """Return the parts of the description of a built-in model."""
    summary, *paragraphs = model.description.split("\n\n")
    equations, scheme, elsewhere, papers = [], "", "", []
    for paragraph in paragraphs:
        one_line = " ".join(paragraph.split())
        if one_line.startswith("Scheme: "):
            scheme = one_line.removeprefix("Scheme: ")
        elif one_line.startswith("Elsewhere: "):
            elsewhere = one_line.removeprefix("Elsewhere: ")
        elif elsewhere:
            papers.append(one_line)
        else:
            equations.append(paragraph)
    names = {}
    for part in re.split(r"; ", elsewhere.rstrip(".")):
        simulator, _, name = part.partition(" ")
        if simulator in _SIMULATORS:
            names[simulator] = name
    return ModelText(" ".join(summary.split()), "\n\n".join(equations), scheme, names, " ".join(papers))
