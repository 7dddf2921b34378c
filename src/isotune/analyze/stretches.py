"""Noise of a run over stretches of tokens: values without intervals, for curves of many runs.

`measure.windows` has the same values with intervals, which take a hundred times as long.
"""

from __future__ import annotations

import math

import numpy as np

from isotune.analyze.curves import ADAM_BETA2, NOISE_SOURCES, setting_at_rows, steps_at_rows
from isotune.measure import windows
from isotune.runs.trajectory import Trajectory


def stretch_values(run: Trajectory, column: str, edges: np.ndarray) -> np.ndarray:
    """scaled_noise, (LR/B) mean(c^2 T) / mean(c), or scaled_gradient, without B, in each stretch; NaN without readings.

    A stretch holds the rows with start < tokens <= end. Rows right after a batch switch are left out.
    """
    values = run.columns.get(NOISE_SOURCES[column])
    if values is None:
        return np.full(len(edges) - 1, math.nan)
    rate = setting_at_rows(run, "learning_rate", run.info.learning_rate)
    batch = setting_at_rows(run, "batch_size", run.info.batch_size)
    clip = run.columns.get("noise_clip_factor", run.columns.get("clip_factor", np.ones(len(values))))
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = (rate / batch if column == "scaled_noise" else rate) * clip**2 * values
    used = np.isfinite(scaled) & np.isfinite(clip)
    if len(np.unique(batch[~np.isnan(batch)])) > 1:
        used &= ~windows.after_switch_mask(steps_at_rows(run), batch, ADAM_BETA2)
    stretch = np.searchsorted(edges, run.tokens.astype(float), side="left") - 1
    used &= (stretch >= 0) & (stretch < len(edges) - 1)
    sums, clips = (np.bincount(stretch[used], weights=one[used], minlength=len(edges) - 1) for one in (scaled, clip))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(clips > 0, sums / clips, math.nan)
