"""A noise current for any neuron model: the same model with a current that is drawn anew at intervals."""

from __future__ import annotations

import ast
from typing import Any

from neuraxis.errors import InvalidArgument
from neuraxis.network.models.lif import check, steps
from neuraxis.network.neuron_model import NeuronModel, neuron_model_from_source

__all__ = ["with_noise_current"]

_PARAMETERS = {"noise_mean_pa": 0.0, "noise_std_pa": 100.0, "noise_every_ms": 1.0}
_STATES = {"noise_pa": 0.0, "noise_left": 0}
_MEANINGS = {
    "noise_mean_pa": "mean of the noise current",
    "noise_std_pa": "standard deviation of the noise current",
    "noise_every_ms": "time between two draws of the noise current",
    "noise_pa": "noise current",
    "noise_left": "steps until the next draw",
}
_BEFORE = """
noise_pa = noise_mean_pa + noise_std_pa * normal if noise_left <= 0 else noise_pa
noise_left = noise_steps - 1 if noise_left <= 0 else noise_left - 1
current_pa = current_pa + noise_pa
"""


def with_noise_current(model: NeuronModel) -> NeuronModel:
    """Return a model to which a noise current is added: Gaussian, constant for some steps, independent for each neuron.

    The current is noise_mean_pa + noise_std_pa z, with a new z from the standard normal distribution every
    `noise_every_ms`, for all neurons at the same moments. It adds to the currents of `Network.current`. A neuron draws
    from its own random stream, so the numbers are the same on any number of workers, and after a restored checkpoint.

    The membrane of a leaky neuron fluctuates with the standard deviation noise_std_pa sqrt(noise_every_ms tau_m / 2) /
    c_m if `noise_every_ms` is much shorter than tau_m.

    Elsewhere: NEST noise_generator; PyNN NoisyCurrentSource; Brian2 `xi`.

    Parameters
    ----------
    model : NeuronModel
        Any model that takes `current_pa`.

    Returns
    -------
    NeuronModel
        The model with the further parameters `noise_mean_pa` (0), `noise_std_pa` (100) and `noise_every_ms` (1), and
        the states `noise_pa` and `noise_left`.

    Raises
    ------
    InvalidArgument
        The model takes no current, draws normal numbers itself, or has a noise current already.

    Examples
    --------
    >>> from neuraxis.network import with_noise_current
    >>> from neuraxis.network.models import lif_exp
    >>> noisy = with_noise_current(lif_exp)(noise_mean_pa=300.0, noise_std_pa=50.0)
    >>> noisy.parameters["noise_every_ms"], list(noisy.states)
    (1.0, ['v_mv', 'i_syn_pa', 'refractory', 'noise_pa', 'noise_left'])
    """
    if not model.takes_current:
        raise InvalidArgument(f"{model.name}: takes no current, so it can have no noise current. Use another model.")
    if "normal" in model.arguments or set(_STATES) & set(model.states):
        raise InvalidArgument(f"{model.name}: has noise of its own, to which none can be added. Change its parameters.")
    if any(isinstance(value, str) for value in model.signals.values()):
        raise InvalidArgument(
            f"{model.name}: connect its signals afterwards, as in with_noise_current(model)(gain=...)"
        )
    if model.constants is not None:
        raise InvalidArgument(f"{model.name}: belongs to a network. Pass the model that was passed to it.")
    function = ast.parse(model.source).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.name = f"{model.name}_with_noise"
    added = ["normal", "noise_steps", "noise_mean_pa", "noise_std_pa", *_STATES]
    function.args.args += [ast.arg(name) for name in added]
    function.body[:0] = ast.parse(_BEFORE).body
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            node.value.elts += [ast.Name(name, ast.Load()) for name in _STATES]

    def constants(p: Any, dt_ms: float) -> dict[str, Any]:
        values = dict(model.constants_for(p, dt_ms)) if model.constants_for else {}
        check(p, "noise_std_pa", p["noise_std_pa"] >= 0, "a standard deviation cannot be negative")
        values["noise_steps"] = steps(p, "noise_every_ms", dt_ms)
        check(p, "noise_every_ms", values["noise_steps"] >= 1, f"must be a step ({dt_ms:g} ms) or more")
        return values

    return neuron_model_from_source(
        ast.unparse(ast.fix_missing_locations(function)),
        states={**model.states, **_STATES},
        receptors=model.receptors,
        parameters={**model.parameters, **_PARAMETERS},
        signals={name: float(value) for name, value in model.signals.items()},
        constants=constants,
        meanings={**model.meanings, **_MEANINGS},
        names=dict(model.globals_used),
        filename=f"<{function.name}>",
    )
