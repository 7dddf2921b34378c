"""The run that would tell most: what is missing comes first, then what is uncertain, then what is far away."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from isotune.analyze.curves import log2_settings
from isotune.analyze.families import Cells, Family, cells_of
from isotune.analyze.laws import is_constant
from isotune.analyze.surface import LossSurface
from isotune.recipe.quantities import format_number, format_tokens
from isotune.runs.trajectory import WeightDecayConvention

MIN_CELLS = 6
FEW_CELLS = 9  # below, a missing corner of the grid tells more than a seed
MIN_BUDGETS = 3  # of a law
LONGER = 4.0  # the next budget for a law of budgets
FAR_OCTAVES = 0.5  # from the fitted minimum to the nearest run: farther, and nobody has been there

Place = tuple[float, float]  # (log2 LR, log2 WD)


@dataclass(frozen=True)
class NextRun:
    """A proposal: settings, length, and why."""

    learning_rate: float
    weight_decay: float  # coupled: w *= 1 - LR * WD
    effective_learning_rate: float  # the weight decay of an independent optimizer: w *= 1 - WD
    tokens: int
    seed: Literal["same", "another"]
    why: str

    def words(self, convention: WeightDecayConvention) -> str:
        """Settings and length as the user of this convention writes them."""
        wd = self.effective_learning_rate if convention == "independent" else self.weight_decay
        seed = ", another seed" if self.seed == "another" else ""
        return (
            f"LR {format_number(self.learning_rate)}, WD {format_number(wd)}{seed}, {format_tokens(self.tokens)} tokens"
        )


def choose_next_run(family: Family, surfaces: Mapping[int, LossSurface | None], invariant: str) -> NextRun | None:
    """The most informative run; None where there is nothing to go by. `surfaces` are by budget."""
    cells, tokens = _last_losses(family)
    if not len(cells.value) or (len(cells.value) >= MIN_CELLS and is_constant(cells.value)):
        return None
    taken = _taken(family, cells)
    best = int(np.argmin(cells.value))
    place = (float(cells.log2_lr[best]), float(cells.log2_wd[best]))
    on_a_line = _off_the_line(cells, place, taken)
    if on_a_line is not None:
        where, why = on_a_line
        return _run(where, tokens, why)
    missing = _missing_corner(cells, place, taken)
    if len(cells.value) < MIN_CELLS or (invariant == "undecided" and missing and len(cells.value) < FEW_CELLS):
        where = missing or _free_neighbour(place, taken) or place
        return _run(where, tokens, "it completes a rectangle of LR and WD, which is what tells LR from ELR")
    surface = surfaces.get(tokens)
    if surface is not None and surface.is_censored:
        return _beyond_the_edge(cells, surface, place, tokens, taken)
    if invariant == "undecided" and cells.num_runs.max() < 2:
        return _run(place, tokens, "the best cell with another seed: how much of a difference is chance?", "another")
    if surface is None:
        return _run(place, tokens, "the best cell with another seed: is it really the best?", "another")
    minimum = (surface.minimum_log2_learning_rate, surface.minimum_log2_weight_decay)
    nearest = float(np.min(np.hypot(cells.log2_lr - minimum[0], cells.log2_wd - minimum[1])))
    if nearest > FAR_OCTAVES:
        return _run(minimum, tokens, f"the fitted minimum, {nearest:.1f} octaves from the nearest run")
    num_inside = sum(one is not None and not one.is_censored for one in surfaces.values())
    longer = int(tokens * LONGER)
    if num_inside < MIN_BUDGETS:
        why = (
            f"the fitted minimum at {LONGER:g} times the tokens, as the first run of a grid around it: laws of budgets"
        )
        there = "1 is there" if num_inside == 1 else f"{num_inside} are there"
        return _run(minimum, longer, f"{why} take {MIN_BUDGETS} budgets with a minimum, and {there}")
    return _run(minimum, longer, f"the fitted minimum at {LONGER:g} times the tokens: does the law hold there?")


def _run(place: Place, tokens: int, why: str, seed: Literal["same", "another"] = "same") -> NextRun:
    return NextRun(2.0 ** place[0], 2.0 ** place[1], 2.0 ** sum(place), tokens, seed, why)


def _last_losses(family: Family) -> tuple[Cells, int]:
    """The losses to go by: of the largest budget with half as many cells as any, else those at the curves' ends."""
    if family.budgets:
        most = max(len(budget.ends) for budget in family.budgets)
        budget = [one for one in family.budgets if 2 * len(one.ends) >= most][-1]
        return budget.cells(), budget.tokens
    values = np.array([run.last(family.loss) for run in family.curves])
    tokens = max((int(run.tokens[-1]) for run in family.curves), default=0)
    return cells_of([run.info for run in family.curves], values), tokens


def _taken(family: Family, cells: Cells) -> set[Place]:
    """Cells that were run, those that diverged included: they have told what they can."""
    there = [_rounded(place) for place in zip(cells.log2_lr.tolist(), cells.log2_wd.tolist(), strict=True)]
    gone = zip(*(column.tolist() for column in log2_settings(family.diverged)), strict=True) if family.diverged else ()
    return {*there, *(_rounded(place) for place in gone)}


def _rounded(place: Place) -> Place:
    return round(place[0], 2), round(place[1], 2)


def _off_the_line(cells: Cells, place: Place, taken: set[Place]) -> tuple[Place, str] | None:
    """Where all runs have one LR, one WD or one ELR: a run that has another, and what it tells."""
    lr, wd = place
    num_lr, num_wd, num_elr = (
        len(np.unique(column.round(2))) for column in (cells.log2_lr, cells.log2_wd, cells.log2_elr)
    )
    if num_elr == 1 and num_lr > 1:
        where = _first_free(((lr, wd + 1), (lr, wd - 1)), taken)
        return where, "another WD at the LR of the best run: all runs have one ELR, and this tells whether ELR matters"
    if num_lr > 1 and num_wd > 1:
        return None
    where = _first_free(((lr + 1, wd - 1), (lr - 1, wd + 1)), taken)
    how = "twice the LR at half the WD" if where[0] > lr else "half the LR at twice the WD"
    return where, (
        f"{how}: equal ELR. If its late curve overlaps that of the best run, ELR decides; a run with another WD at "
        "that LR then says the same of LR"
    )


def _first_free(places: tuple[Place, ...], taken: set[Place]) -> Place:
    return next((place for place in places if _rounded(place) not in taken), places[0])


def _free_neighbour(place: Place, taken: set[Place]) -> Place | None:
    lr, wd = place
    return next((p for p in ((lr, wd + 1), (lr, wd - 1), (lr + 1, wd), (lr - 1, wd)) if _rounded(p) not in taken), None)


def _missing_corner(cells: Cells, place: Place, taken: set[Place]) -> Place | None:
    """The cell nearest to the best one that would complete a rectangle: its LR and WD are there, not together."""
    if len(cells.value) >= FEW_CELLS:
        return None
    corners = [(x, y) for x in np.unique(cells.log2_lr).tolist() for y in np.unique(cells.log2_wd).tolist()]
    absent = [corner for corner in corners if _rounded(corner) not in taken]
    return min(absent, key=lambda corner: (math.dist(corner, place), corner), default=None)


def _beyond_the_edge(cells: Cells, surface: LossSurface, place: Place, tokens: int, taken: set[Place]) -> NextRun:
    """One octave from the best cell, where nothing was run and the fitted loss is lowest."""
    lr, wd = place
    around = [(lr + dx, wd + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy]
    free = [neighbour for neighbour in around if _rounded(neighbour) not in taken]
    names = " and ".join(name.replace("_", " ") for name in surface.censored)
    why = f"the minimum is not known to lie inside the grid ({names})"
    if not free:
        return _run(place, tokens, f"the best cell with another seed: {why}, though all around it was run", "another")
    where = min(free, key=lambda neighbour: float(surface.loss_at(*neighbour)))
    outside = any(
        not low <= value <= high
        for value, low, high in zip(
            where,
            (cells.log2_lr.min(), cells.log2_wd.min()),
            (cells.log2_lr.max(), cells.log2_wd.max()),
            strict=True,
        )
    )
    step = "one octave beyond its edge" if outside else "one octave from the best cell, where nothing was run"
    return _run(where, tokens, f"{why}: {step}")
