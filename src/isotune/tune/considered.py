"""Of a space of many cells those that are looked at: all pairs of them would take long, and neighbours say the same."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from isotune.tune.belief import Belief
from isotune.tune.board import MAX_ON_BOARD, target_places
from isotune.tune.kernels import Places
from isotune.tune.questions import Goal

MAX_CONSIDERED = 64  # a space of no more cells is looked at as a whole
# Of a larger one: cells spread evenly over it, those that are expected to be best, and those that may be. On made
# surfaces of 221 cells these do as well as all of them (docs/log.md).
NUM_SPREAD, NUM_EXPECTED, NUM_POSSIBLE = 40, 12, 16
# Of a very large one, in which those spread over it would lie far off: so many of both others.
NUM_OF_MANY = 200


def considered(goal: Goal, belief: Belief, cells: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Those of these cells of the goal's space that are looked at, ascending; `expected` are the log losses of all
    cells."""
    num_cells, places = len(goal.space.cells), target_places(goal)
    if num_cells > MAX_ON_BOARD:
        return cells if len(cells) <= 2 * NUM_OF_MANY else _of_many(belief, places, cells, expected)
    if num_cells <= MAX_CONSIDERED or len(cells) <= MAX_CONSIDERED:
        return cells
    possible = expected[cells] - belief.likeliest().at(places.some(cells)).deviation
    chosen = np.isin(cells, spread(goal))
    chosen[_lowest(expected[cells], NUM_EXPECTED)] = True
    chosen[_lowest(possible, NUM_POSSIBLE)] = True
    return cells[chosen]


def _of_many(belief: Belief, places: Places, cells: np.ndarray, expected: np.ndarray) -> np.ndarray:
    possible = expected[cells] - 2 * belief.at(places.some(cells)).deviation
    best = _lowest(expected[cells], NUM_OF_MANY)
    possible[best] = np.inf
    return cells[np.sort([*best, *_lowest(possible, NUM_OF_MANY)])]


def _lowest(values: np.ndarray, number: int) -> np.ndarray:
    return np.argsort(values, kind="stable")[:number]


@lru_cache(maxsize=8)
def spread(goal: Goal) -> np.ndarray:
    """Cells all over a space, one in each field of so many octaves of LR and twice as many of WD, which matters
    less: as few octaves as leave no more than NUM_SPREAD."""
    cells = goal.space.cells - goal.space.cells.min(axis=0)
    octaves = goal.space.octaves
    while True:
        _, first = np.unique(np.rint(cells / (octaves, 2 * octaves) - 1e-9), axis=0, return_index=True)
        if len(first) <= NUM_SPREAD:
            return np.sort(first)
        octaves *= 2
