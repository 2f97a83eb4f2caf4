"""The default brain: six regions that learn by reward which of four actions to take on each of four cues.

The thalamus relays a cue to the column of the cortex that represents it. The cortex projects to the striatum, where
the action is chosen, and to the prefrontal cortex, which holds the cue after it is gone and projects to the striatum,
too. The reward is compared with the one that the striatum's critic expected. Dopamine carries the difference and
changes the synapses onto the striatum; acetylcholine lets the cortex learn from surprises; noradrenaline clears the
working memory for the next trial. The hippocampus stores patterns of cortical activity in the theta rhythm; the
cerebellum receives cortical activity and an efference copy of the action, and learns from errors.

Delays between regions are a few milliseconds, as between areas of a brain. Weights that are not given here are the
defaults of the target region.
"""

from __future__ import annotations

from typing import Any

from neuraxis.arguments import whole
from neuraxis.brain.builder import BrainBuilder
from neuraxis.brain.spec import BrainSpec

__all__ = ["ACTIONS", "CUES", "default_brain"]

CUES = 4
ACTIONS = 4


def default_brain(seed: int = 1, scale: int = 1) -> BrainSpec:
    """Return the description of the default brain, which `neuraxis demo` runs.

    Parameters
    ----------
    seed : int
        Seed of everything that is random in the brain.
    scale : int
        Factor for the number of cells. In-degrees and weights stay, so that a larger brain behaves alike.

    Returns
    -------
    BrainSpec
        Regions "thalamus", "cortex", "hippocampus", "prefrontal", "striatum" and "cerebellum", sensors "cue" and
        "error", and effector "motor".

    Raises
    ------
    InvalidArgument, SpecError
        `seed` or `scale` is out of range.

    Examples
    --------
    >>> spec = default_brain(seed=1)
    >>> list(spec.regions)
    ['thalamus', 'cortex', 'hippocampus', 'prefrontal', 'striatum', 'cerebellum']
    """
    n = whole(scale, "scale", 1)
    return (
        BrainBuilder("default", seed=seed)
        .rhythm("theta", 8.0)
        .rhythm("alpha", 10.0)
        .rhythm("gamma", 40.0)
        .neuromodulator("dopamine", baseline=1.0, tau_ms=100.0, delay_ms=1.0)
        .neuromodulator("acetylcholine", baseline=0.0, tau_ms=200.0, delay_ms=1.0)
        .neuromodulator("noradrenaline", baseline=0.0, tau_ms=60.0, delay_ms=30.0)
        .sensor("cue", 160 * n, groups=CUES, rate_hz=60.0, background_hz=0.5)
        .sensor("error", 16 * n, groups=ACTIONS, rate_hz=100.0, background_hz=9.0)
        .region("thalamus", "thalamus", relay=160 * n)
        .region("cortex", "cortex", neurons=160 * n)
        .region("hippocampus", "hippocampus", **_times(n, ec=100, dg=500, ca3=150, ca1=100, **_HIPPOCAMPAL_INHIBITION))
        .region("prefrontal", "prefrontal", memory=240 * n, inhibitory=60 * n)
        .region("striatum", "striatum", **_times(n, cells_per_action=25, fast_spiking=20, critic=40))
        .region(
            "cerebellum",
            "cerebellum",
            **_times(n, mossy=40, granule=400, golgi=10, purkinje=40, nuclei=20, climbing=16),
        )
        .effector("motor", "striatum", ACTIONS, neurons=40 * n, rate_hz=100.0, duration_ms=200.0, temperature_hz=3.0)
        .reward(
            critic="striatum.critic",
            critic_hz=30.0,
            lowest_expected=0.2,
            dopamine=1.0,
            acetylcholine=0.3,
            noradrenaline=1.5,
        )
        .pathway("cue", "thalamus", 2.0, topographic=True)
        .pathway("thalamus", "cortex", 5.0, topographic=True)
        .pathway("cortex.L5e", "striatum", 5.0)
        .pathway("cortex.L23e", "prefrontal", 6.0, topographic=True)
        .pathway("prefrontal", "striatum", 4.0)
        .pathway("motor", "striatum.efference", 2.0, topographic=True)
        .pathway("cortex.L23e", "hippocampus", 3.0, topographic=True)
        .pathway("hippocampus", "cortex.L23e", 4.0, topographic=True, weight=20.0)
        .pathway("cortex.L5e", "cerebellum", 5.0, topographic=True)
        .pathway("motor", "cerebellum", 4.0, in_degree=1, weight=20.0)
        .pathway("error", "cerebellum.climbing", 4.0, topographic=True)
        .pathway("cerebellum", "thalamus", 4.0, in_degree=5, weight=20.0)
        .spec()
    )


_HIPPOCAMPAL_INHIBITION = {"dg_inhibitory": 25, "ca3_inhibitory": 15, "ca1_inhibitory": 10}


def _times(n: int, **cells: int) -> dict[str, Any]:
    return {name: n * number for name, number in cells.items()}
