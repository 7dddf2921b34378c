"""The run that would tell most: what is missing comes first, then what is uncertain, then what is far away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotune.analyze.families import Budget, Cells, Family, cells_of
from isotune.analyze.surface import LossSurface

MIN_CELLS = 6
MIN_BUDGETS = 3  # of a law
LONGER = 4.0  # the next budget for a law of budgets


@dataclass(frozen=True)
class NextRun:
    """A proposal: settings (WD coupled), length, and why."""

    learning_rate: float
    weight_decay: float
    tokens: int
    seed: str  # "same" or "another"
    why: str


def choose_next_run(family: Family, surfaces: Sequence[LossSurface | None], invariant: str) -> NextRun | None:
    """The most informative run; None where there is nothing to start from."""
    cells, tokens = _last_losses(family)
    if not len(cells.value):
        return None
    best = int(np.argmin(cells.value))
    place = (float(cells.log2_lr[best]), float(cells.log2_wd[best]))
    if len(np.unique(cells.log2_lr)) < 2 or len(np.unique(cells.log2_wd)) < 2:
        return _run(
            place[0] + 1,
            place[1] - 1,
            tokens,
            "twice the LR at half the WD: equal ELR. If its late curve overlaps that of the best run, ELR decides; a "
            "run with another WD at that LR then says the same of LR",
        )
    missing = _missing_corner(cells)
    if len(cells.value) < MIN_CELLS or (invariant == "undecided" and missing is not None and len(cells.value) < 9):
        where = missing or (place[0], place[1] + 1)
        return _run(*where, tokens, "it completes a rectangle of LR and WD, which is what tells LR from ELR")
    surface = surfaces[-1] if surfaces else None
    if surface is not None and surface.is_censored:
        return _beyond_the_edge(cells, surface, place, tokens)
    if invariant == "undecided" and cells.num_runs.max() < 2:
        return _run(*place, tokens, "the best cell with another seed: how much of a difference is chance?", "another")
    if surface is not None and not math.isnan(surface.minimum_log2_learning_rate):
        minimum = (surface.minimum_log2_learning_rate, surface.minimum_log2_weight_decay)
        nearest = float(np.min(np.hypot(cells.log2_lr - minimum[0], cells.log2_wd - minimum[1])))
        usable = [one for one in surfaces if one is not None and not one.is_censored]
        if len(usable) < MIN_BUDGETS:
            why = f"the fitted minimum at {LONGER:g} times the tokens: a law of budgets takes {MIN_BUDGETS}"
            return _run(*minimum, int(tokens * LONGER), f"{why}, and {len(usable)} are there")
        if nearest > 0.5:
            return _run(*minimum, tokens, f"the fitted minimum, {nearest:.1f} octaves from the nearest run")
        return _run(*minimum, int(tokens * LONGER), "the fitted minimum at a longer budget: does the law hold there?")
    return _run(*place, tokens, "the best cell with another seed: is it really the best?", "another")


def _run(log2_lr: float, log2_wd: float, tokens: int, why: str, seed: str = "same") -> NextRun:
    return NextRun(2.0**log2_lr, 2.0**log2_wd, tokens, seed, why)


def _last_losses(family: Family) -> tuple[Cells, int]:
    """The losses to go by: the largest budget's with most cells, else those at the end of the curves."""
    if family.budgets:
        most = max(len(budget.ends) for budget in family.budgets)
        budget: Budget = [one for one in family.budgets if 2 * len(one.ends) >= most][-1]
        return budget.cells(), budget.tokens
    runs = [run for run in family.curves if len(run.measured(family.loss)[0])]
    values = np.array([run.last(family.loss) for run in runs])
    tokens = max((int(run.tokens[-1]) for run in runs), default=0)
    return cells_of([run.info for run in runs], values), tokens


def _missing_corner(cells: Cells) -> tuple[float, float] | None:
    """The cell nearest to the best one that would complete a rectangle: its LR and WD are there, not together."""
    there = set(zip(cells.log2_lr.tolist(), cells.log2_wd.tolist(), strict=True))
    best = int(np.argmin(cells.value))
    absent = [
        (x, y)
        for x in np.unique(cells.log2_lr).tolist()
        for y in np.unique(cells.log2_wd).tolist()
        if (x, y) not in there
    ]
    x0, y0 = cells.log2_lr[best], cells.log2_wd[best]
    return min(absent, key=lambda cell: (math.hypot(cell[0] - x0, cell[1] - y0), cell), default=None)


def _beyond_the_edge(cells: Cells, surface: LossSurface, place: tuple[float, float], tokens: int) -> NextRun:
    """One octave past the grid, from the best cell towards where the fitted loss falls."""
    lr, wd = place
    steps = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy]
    there = set(zip(cells.log2_lr.round(6).tolist(), cells.log2_wd.round(6).tolist(), strict=True))
    new = [step for step in steps if (round(lr + step[0], 6), round(wd + step[1], 6)) not in there]
    if not new:
        return _run(
            lr, wd, tokens, "the best cell with another seed: the surface does not have its minimum there", "another"
        )
    dx, dy = min(new, key=lambda step: float(surface.loss_at(lr + step[0], wd + step[1])))
    ends = ", ".join(surface.censored)
    return _run(lr + dx, wd + dy, tokens, f"the minimum is not inside the grid ({ends}): one octave beyond its edge")


def memory_times_at(family: Family, learning_rate: float, weight_decay: float, tokens: float) -> float:
    """n of such a run at its end; NaN where batch size or sequence length are unknown."""
    if isinstance(family.batch_size, str) or isinstance(family.sequence_length, str):
        return math.nan
    return learning_rate * weight_decay * tokens / (family.batch_size * family.sequence_length)
