"""Conversion of the input of `Brain.forward` into rates, spikes and data, checked before anything is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import near
from neuraxis.brain.spec import BrainSpec, SensorSpec, is_outside
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.simulation.python_populations import DataSubscription, is_concrete

__all__ = ["Stimulus", "as_stimulus", "sensor_rates"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Stimulus:
    """Checked input of one run.

    Attributes
    ----------
    rates_hz : dict of str to array
        Rates of the neurons of every sensor, in Hz.
    spikes : dict of str to (array, array)
        By sensor: steps from the start of the run, and neurons.
    data : dict
        Data by user's region.
    outside : dict
        Data by name ("sensor/thermal"), for all users' regions with a pathway from it.
    """

    rates_hz: dict[str, Floats]
    spikes: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    outside: dict[str, Any] = field(default_factory=dict)


def as_stimulus(spec: BrainSpec, python_regions: Sequence[str], given: Any, steps: int) -> Stimulus:
    """Convert the input of `Brain.forward` for a run of `steps` steps."""
    inputs = _by_name(spec, python_regions, given)
    stimulus = Stimulus(
        {},
        {},
        {name: data for name, data in inputs.items() if name in python_regions},
        {name: data for name, data in inputs.items() if is_outside(name)},
    )
    for name, sensor in spec.sensors.items():
        stimulus.rates_hz[name] = np.full(sensor.neurons, sensor.background_hz)
        if name not in inputs:
            continue
        array = _as_array(inputs[name], f"input[{name!r}]")
        if array.ndim == 2:
            stimulus.rates_hz[name] = np.zeros(sensor.neurons)
            stimulus.spikes[name] = _spikes(array, name, sensor, steps)
        else:
            stimulus.rates_hz[name] = _rates(array, name, sensor)
    return stimulus


def _by_name(spec: BrainSpec, python_regions: Sequence[str], given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(spec.sensors) != 1:
            names = ", ".join(spec.sensors) or "none"
            raise InvalidArgument(f"input: a dict by sensor is expected; the sensors of the brain are: {names}")
        return {next(iter(spec.sensors)): given}
    for name in given:
        if isinstance(name, str) and is_outside(name):
            _check_outside(spec, name)
        elif name not in spec.sensors and name not in python_regions:
            raise InvalidArgument(f"input: no sensor {name!r}; {near(str(name), [*spec.sensors, *python_regions])}")
    return dict(given)


def _check_outside(spec: BrainSpec, name: str) -> None:
    if not is_concrete(name):
        raise InvalidArgument(f"input: {name!r}: a name is expected, as 'sensor/thermal', without '*'")
    expressions = [pathway.source for pathway in spec.outside_pathways()]
    if not any(DataSubscription(expression, 0).includes(name) for expression in expressions):
        raise InvalidArgument(
            f"input: no pathway starts at {name!r}; the pathways from outside the brain start at: "
            f"{', '.join(dict.fromkeys(expressions)) or 'none'}"
        )


def sensor_rates(value: Any, name: str, sensor: SensorSpec) -> Floats:
    """Return the rates in Hz of a sensor's neurons, for an input with one number for each group or neuron."""
    return _rates(_as_array(value, f"input[{name!r}]"), name, sensor)


def _rates(array: Floats, name: str, sensor: SensorSpec) -> Floats:
    if array.shape not in ((sensor.groups,), (sensor.neurons,)):
        raise InvalidArgument(
            f"input[{name!r}]: has shape {array.shape}; {sensor.groups} numbers (one for each group) or "
            f"{sensor.neurons} (one for each neuron) are expected"
        )
    if array.min() < 0:
        raise InvalidArgument(f"input[{name!r}]: {array.min():g}: numbers from 0 (background) to 1 are expected")
    each = np.repeat(array, sensor.neurons // len(array))
    return sensor.background_hz + each * (sensor.rate_hz - sensor.background_hz)


def _spikes(array: Floats, name: str, sensor: SensorSpec, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if array.shape != (steps, sensor.neurons):
        raise InvalidArgument(
            f"input[{name!r}]: spikes have shape {array.shape}; {steps} steps by {sensor.neurons} neurons are expected"
        )
    if not ((array == 0) | (array == 1)).all():
        raise InvalidArgument(f"input[{name!r}]: a two-dimensional input holds spikes, which are 0 or 1")
    at, ids = np.nonzero(array)
    return at.astype(np.int64), ids.astype(np.int64)


def _as_array(given: Any, name: str) -> Floats:
    """Convert numbers from NumPy, torch (any device), CuPy or lists to float64."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = (given.double() if given.is_floating_point() else given).numpy()
    elif hasattr(given, "__cuda_array_interface__") and hasattr(given, "get"):
        given = given.get()
    try:
        array = np.asarray(given)
        if array.size and array.dtype.kind not in "biuf":
            raise TypeError(f"not {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidType(f"{name}: numbers are expected: {error}") from None
    if array.ndim not in (1, 2) or not array.size or not np.isfinite(array).all():
        raise InvalidArgument(
            f"{name}: an array of finite numbers is expected, of shape (groups,), (neurons,) or (steps, neurons)"
        )
    return array
