"""C27: what it costs to tune along one line of the grid and never to leave it.

    regret = (truth at the line's best cell - lowest truth) / lowest truth

A line's best cell is chosen on drawn losses, the truth is the posterior mean of other draws: the same numbers must not
choose and judge.
"""

from __future__ import annotations

import numpy as np

from isotune.analyze.truth import smooth_surface
from isotune.claims.grids import GridLosses
from isotune.claims.rules import Entry

Ends = tuple[float, float]


def lines_through(positions: np.ndarray, ends: Ends) -> list[np.ndarray]:
    """The cells of each line: those of one position (log2 WD, LR or ELR), for positions from end to end."""
    rounded = np.round(positions, 3)
    inside = [each for each in np.unique(rounded) if ends[0] - 1e-3 <= each <= ends[1] + 1e-3]
    return [np.flatnonzero(rounded == each) for each in inside]


class Regrets:
    """The draws of a grid at its last budget, from which the regret of any set of lines is read."""

    def __init__(self, grid: GridLosses, entry: Entry, stream: int = 0) -> None:
        self.grid, self.seed = grid, entry.random_seed + stream
        smooth = smooth_surface(grid.log2_lr, grid.log2_wd, grid.loss[:, -1], grid.covariance(-1))
        self.truth = smooth.truth(grid.drawn(entry, stream)[:, :, -1])
        self.chosen_on = grid.drawn(entry, stream + 100)[:, :, -1]

    def of(self, lines: list[np.ndarray]) -> np.ndarray:
        """[draws x lines]."""
        lowest = self.truth.min(axis=1)
        draws = np.arange(len(self.truth))
        columns = []
        for cells in lines:
            losses = np.where(np.isnan(self.chosen_on[:, cells]), np.inf, self.chosen_on[:, cells])
            best = cells[np.argmin(losses, axis=1)]
            columns.append((self.truth[draws, best] - lowest) / lowest)
        return np.column_stack(columns)

    def of_random_cells(self, count: int) -> np.ndarray:
        """The regret of the best of so many cells drawn at random, one set for each draw."""
        rng = np.random.default_rng(self.seed)
        keys = rng.random(self.truth.shape)
        out = np.argsort(keys, axis=1)[:, count:]
        losses = np.where(np.isnan(self.chosen_on), np.inf, self.chosen_on)
        np.put_along_axis(losses, out, np.inf, axis=1)
        best = np.argmin(losses, axis=1)
        lowest = self.truth.min(axis=1)
        return (self.truth[np.arange(len(best)), best] - lowest) / lowest
