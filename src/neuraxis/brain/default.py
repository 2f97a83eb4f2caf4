"""The default brain: six regions that together learn which of four actions to take on which of four cues.

A cue comes in through the thalamus to the column of the cortex that is for it. From there the cortex tells the
striatum, where an action is chosen, and the prefrontal cortex, which holds the cue when it has gone, and tells the
striatum, too. What the action brings is compared with what the striatum's critic expected: dopamine says which
synapses onto the striatum were right, acetylcholine lets the cortex learn from surprises, and noradrenaline clears the
memory for the next trial. The hippocampus stores what the cortex shows it, in the rhythm of theta; the cerebellum
gets the cortex's activity and a copy of the action, and learns from errors.

Delays between regions are a few milliseconds each, as between areas of a brain; weights are what each region thinks
best, unless said here.
"""

from __future__ import annotations

from neuraxis.brain.builder import BrainBuilder
from neuraxis.brain.spec import BrainSpec

__all__ = ["ACTIONS", "CUES", "default_brain"]

CUES = 4
ACTIONS = 4


def default_brain(seed: int = 1, scale: int = 1) -> BrainSpec:
    """The description of the default brain; with `scale`, regions of so many times the cells."""
    return (
        BrainBuilder("default", seed=seed)
        .rhythm("theta", 8.0)
        .rhythm("alpha", 10.0)
        .rhythm("gamma", 40.0)
        .neuromodulator("dopamine", baseline=1.0, tau_ms=100.0, delay_ms=1.0)
        .neuromodulator("acetylcholine", baseline=0.0, tau_ms=200.0, delay_ms=1.0)
        .neuromodulator("noradrenaline", baseline=0.0, tau_ms=60.0, delay_ms=30.0)
        .sensor("cue", 160, groups=CUES, rate_hz=60.0, background_hz=0.5)
        .region("thalamus", "thalamus")
        .region("cortex", "cortex")
        .region("prefrontal", "prefrontal")
        .region("striatum", "striatum")
        .effector("motor", "striatum", ACTIONS, neurons=40, rate_hz=100.0, duration_ms=200.0, temperature_hz=3.0)
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
        .spec()
    )
