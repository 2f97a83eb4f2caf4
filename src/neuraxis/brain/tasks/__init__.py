"""Tasks that a brain learns by reward."""

from neuraxis.brain.tasks.cue_action import CueActionTask, Timing, Trial

__all__ = ["CueActionTask", "Timing", "Trial"]
