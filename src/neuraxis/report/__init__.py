"""Statistics, plots and pages of results.

The public names are statistics of spike trains, and plots that draw on a matplotlib Axes and return it; the commands
`demo`, `run` and `patterns` make the pages. Every name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "LearningCurve",
    "SpikeSummary",
    "count_correlations",
    "isi_cv",
    "ks_distance",
    "learning_curve",
    "learning_curves",
    "raster",
    "rate_bars",
    "rates_hz",
]

if TYPE_CHECKING:
    from neuraxis.report.brain.model import LearningCurve
    from neuraxis.report.plots import learning_curve, learning_curves, raster, rate_bars
    from neuraxis.report.spike_statistics import SpikeSummary, count_correlations, isi_cv, ks_distance, rates_hz
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.report.brain.model": ["LearningCurve"],
            "neuraxis.report.plots": ["learning_curve", "learning_curves", "raster", "rate_bars"],
            "neuraxis.report.spike_statistics": [
                "SpikeSummary",
                "count_correlations",
                "isi_cv",
                "ks_distance",
                "rates_hz",
            ],
        },
    )
