"""Stretches of a sweep in which n lies in a range: where LR should be invariant, where ELR, and what lies between.

n = memory_times grows with time at a pace that differs from cell to cell, so a stretch of tokens in which every run
has n above 3 holds few cells if it begins early and few points if it begins late. The stretch with most of both is
taken, cells first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from isotune.analyze.curves import memory_times, warmup_end
from isotune.analyze.families import cell_of
from isotune.runs.trajectory import Trajectory

Stage = Literal["early", "middle", "late"]

# DESIGN: claims of equal LR are judged where n < .3, those of equal ELR where n > 3.
EARLY_BELOW = 0.3
LATE_ABOVE = 3.0
STAGES: dict[Stage, tuple[float, float]] = {
    "early": (0.0, EARLY_BELOW),
    "middle": (EARLY_BELOW, LATE_ABOVE),
    "late": (LATE_ABOVE, math.inf),
}
MIN_POINTS = 4  # evaluations of a run in the stretch
MIN_CELLS = 6
NUM_POSITIONS = 28  # where a stretch may begin and end


@dataclass(frozen=True)
class Stretch:
    """Tokens from `start` to `end`, and the runs whose n stays in the stage's range there."""

    stage: Stage
    start: float
    end: float
    runs: tuple[Trajectory, ...]


def find_stretch(stage: Stage, runs: Sequence[Trajectory], loss: str, through_ramps: bool = False) -> Stretch | None:
    """The stretch with most cells and points; None if none has six cells with four evaluations each."""
    low, high = STAGES[stage]
    measured = [run.measured(loss)[0].astype(float) for run in runs]
    begins = np.array([_begin(run, at) for run, at in zip(runs, measured, strict=True)])
    ends = np.array([at[-1] if len(at) else -math.inf for at in measured])
    if not len(runs) or not np.isfinite(begins).any() or not (ends > begins).any():
        return None
    positions = np.geomspace(max(1.0, begins[np.isfinite(begins)].min()), ends.max(), NUM_POSITIONS)
    n = np.array([_at(positions, run, through_ramps) for run in runs])
    before = np.array([np.searchsorted(at, positions, side="left") for at in measured])
    up_to = np.array([np.searchsorted(at, positions, side="right") for at in measured])
    cells = _cell_numbers(runs)
    best, best_score = None, 0.0
    for i, j in itertools.combinations(range(NUM_POSITIONS), 2):
        start, end = positions[i], positions[j]
        inside = (begins <= start * (1 + 1e-9)) & (end <= ends * (1 + 1e-9)) & (n[:, i] >= low) & (n[:, j] <= high)
        num_cells = len(np.unique(cells[inside]))
        if num_cells < MIN_CELLS:
            continue
        points = int((up_to[inside, j] - before[inside, i]).min())
        score = num_cells**2 * math.log2(1 + points)
        if points >= MIN_POINTS and score > best_score:
            chosen = tuple(run for run, taken in zip(runs, inside, strict=True) if taken)
            best, best_score = Stretch(stage, float(start), float(min(end, ends[inside].min())), chosen), score
    return best


def knows_memory_times(runs: Sequence[Trajectory]) -> bool:
    """Whether n is known of any of these runs."""
    return any(len(run.tokens) and not np.isnan(memory_times(run)).all() for run in runs)


def _begin(run: Trajectory, at: np.ndarray) -> float:
    """The first evaluation after the warm-up."""
    begins = warmup_end(run)
    after = at[at >= (0.0 if math.isnan(begins) else begins)]
    return float(after[0]) if len(after) else math.inf


def _at(positions: np.ndarray, run: Trajectory, through_ramps: bool) -> np.ndarray:
    return np.interp(positions, run.tokens.astype(float), memory_times(run, through_ramps=through_ramps))


def _cell_numbers(runs: Sequence[Trajectory]) -> np.ndarray:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(cell_of(run.info), len(numbers)) for run in runs])
