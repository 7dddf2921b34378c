"""Of a space of many cells those that are looked at: all pairs of them would take long, and neighbours say the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from isotune.tune.belief import Belief, Beside
from isotune.tune.board import MAX_ON_BOARD, target_places
from isotune.tune.questions import Goal
from isotune.tune.told import NOTHING, Asked, Register, Told

MAX_CONSIDERED = 64  # a space of no more cells is looked at as a whole
# Of a larger one: cells spread evenly over it, those that are expected to be best, and those that may be. On made
# surfaces of 221 cells these do as well as all of them, and of 729 cells as 400 of them (docs/log.md).
NUM_SPREAD, NUM_EXPECTED, NUM_POSSIBLE = 40, 12, 8
# Of a very large one, in which those spread over it would lie far off: so many of both others.
NUM_OF_MANY = 200


@dataclass(frozen=True)
class Outlook:
    """What was asked, and what a belief says of all cells of a space at the goal's budget."""

    goal: Goal
    told: Told
    belief: Belief
    unanswered: Asked = NOTHING  # pending, or left out

    @cached_property
    def expected(self) -> np.ndarray:
        """Log losses."""
        return self.belief.expected(self._beside)

    @cached_property
    def possible(self) -> np.ndarray:
        """Log losses that would be good luck."""
        if is_very_large(self.goal):
            return self.expected - 2 * self.belief.at(self._beside).deviation
        return self.expected - self.belief.likeliest().at(self._beside).deviation

    @cached_property
    def register(self) -> Register:
        """Of all that need not be asked again."""
        return Register.of(self.goal, self.told.trained.and_also(self.unanswered))

    def considered(self, cells: np.ndarray) -> np.ndarray:
        """Those of these cells that are looked at, ascending and each place once."""
        if is_small(self.goal):
            return cells
        num_expected = num_possible = NUM_OF_MANY
        chosen = np.zeros(len(self.goal.space.cells), dtype=bool)
        if not is_very_large(self.goal):
            num_expected, num_possible = NUM_EXPECTED, NUM_POSSIBLE
            chosen[spread(self.goal)] = True
        among = np.zeros(len(chosen), dtype=bool)
        among[cells] = True
        among &= self.goal.space.is_distinct
        chosen &= among
        best = self._by_expected[among[self._by_expected]][:num_expected]
        chosen[best], among[best] = True, False
        chosen[self._by_possible[among[self._by_possible]][:num_possible]] = True
        return np.flatnonzero(chosen)

    @cached_property
    def _beside(self) -> Beside:
        return self.belief.beside(target_places(self.goal))

    @cached_property
    def _by_expected(self) -> np.ndarray:
        """All cells, from the lowest expected loss on."""
        return np.argsort(self.expected, kind="stable")

    @cached_property
    def _by_possible(self) -> np.ndarray:
        return np.argsort(self.possible, kind="stable")


def is_small(goal: Goal) -> bool:
    return len(goal.space.distinct) <= MAX_CONSIDERED


def is_very_large(goal: Goal) -> bool:
    return len(goal.space.cells) > MAX_ON_BOARD


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
