"""What does not change while a tuning goes on: the cells of the space at all rungs, and how the kernels see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from isotune.tune.belief import HELP_ODDS, INVARIANCE_ODDS, ROUGH_ODDS
from isotune.tune.kernels import Kernel, Places, helped_kernel, invariant_kernel, plain_kernel, rough_kernel
from isotune.tune.questions import Goal

MAX_ON_BOARD = 1024  # cells: the pairs of more take much memory


@dataclass(frozen=True, eq=False)
class Board:
    """Some cells of a goal's space, at all of its rungs."""

    goal: Goal
    cells: np.ndarray  # their places in the space, ascending
    places: Places = field(repr=False)  # cell by cell, from the shortest rung to the longest; without seeds
    departures: dict[str, np.ndarray] = field(repr=False)  # by view, [cells at the goal's budget x places]

    @staticmethod
    def of(goal: Goal, cells: np.ndarray) -> Board:
        kernels, rungs = kernels_of(goal), np.array(goal.rungs)
        settings = goal.space.cells[cells].repeat(len(rungs), axis=0)
        places = Places.of(kernels, goal.points(settings, np.tile(rungs, len(cells))))
        targets = places.some(slice(len(rungs) - 1, None, len(rungs)))
        views = {kernel.view: kernel for kernel in kernels}
        departures = {view: kernel.shared(targets, places).departures for view, kernel in views.items()}
        return Board(goal, cells, places, departures)

    def places_of(
        self, targets: np.ndarray, cells: np.ndarray, rungs: np.ndarray, seeds: np.ndarray, views: Iterable[str]
    ) -> Places:
        """Of targets, which are cells at the goal's budget without a seed, and then of questions: cells at rungs."""
        num_rungs = len(self.goal.rungs)
        at = np.searchsorted(self.cells, targets)
        rows = np.concatenate([(at + 1) * num_rungs - 1, np.searchsorted(self.cells, cells) * num_rungs + rungs])
        departures = {view: self.departures[view][at].take(rows, axis=1) for view in views}
        all_seeds = np.concatenate([np.full(len(at), np.nan), seeds])
        return self.places.some(rows, views).with_seeds(all_seeds, departures)


def board_of(goal: Goal, *cells: np.ndarray) -> Board:
    """One that has these cells, and is kept where the space is not very large."""
    if len(goal.space.cells) <= MAX_ON_BOARD:
        return whole_board(goal)
    return Board.of(goal, np.unique(np.concatenate(cells)))


@lru_cache(maxsize=2)  # one takes up to 80 MB
def whole_board(goal: Goal) -> Board:
    """Of all cells."""
    return Board.of(goal, np.arange(len(goal.space.cells)))


@lru_cache(maxsize=8)
def target_places(goal: Goal) -> Places:
    """Of all cells at the goal's budget, without seeds."""
    return Places.of(kernels_of(goal), goal.targets(np.arange(len(goal.space.cells))))


@lru_cache(maxsize=8)
def kernels_of(goal: Goal) -> dict[Kernel, float]:
    """What the losses may be like, with odds."""
    cells = goal.space.cells
    middle, reach = goal.space.middle, (cells.max(axis=0) - cells.min(axis=0)) / 2
    plain = plain_kernel(float(middle[0]), float(middle[1]))
    if goal.tokens_per_step is None:
        return {plain: 1.0}
    invariant = invariant_kernel(float(middle[0]), max(1.0, float(reach[0]) / 1.25))
    return {
        invariant: INVARIANCE_ODDS,
        helped_kernel(invariant): HELP_ODDS,
        rough_kernel(invariant): ROUGH_ODDS,
        plain: 1.0,
    }
