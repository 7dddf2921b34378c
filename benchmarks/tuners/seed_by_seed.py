"""What others would do where one seed tells too little: single runs at the target budget, seed after seed.

A cell counts by the mean of its runs. Elsewhere (baselines.py, multi_fidelity.py) a cell that has several seeds is
trained with all of them at once, which is dear for cells that one run shows to be bad. Here every cell gets a first
seed before any gets a second one; `halving` drops the worse half after each round and doubles the seeds of the rest
(sequential halving, Karnin et al. 2013), the usual answer to the question which of many noisy things is best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from baselines import lowest_fitted, shuffled, sobol_cells, usual_row
from replay import Question, Replay, Spent, best_of

FITS_PER_ROUND = 4  # of a surface to the means, after a first round that has one for each run


class Means:
    """The mean loss of each cell over its runs; one diverged run makes it NaN."""

    def __init__(self, replay: Replay):
        self.replay = replay
        self.losses: dict[int, list[float]] = {}

    def train(self, cell: int) -> None:
        """One more seed of a cell."""
        runs = self.losses.setdefault(cell, [])
        runs.append(self.replay.answer(Question(cell, self.replay.budget, repeat=len(runs))))

    def all(self) -> dict[int, float]:
        return {cell: float(np.mean(runs)) for cell, runs in self.losses.items()}

    def spent(self, is_done: bool = False) -> Spent:
        return Spent(self.replay.spent, best_of(self.all()), is_done)


def grid(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Every cell with one seed after the other, in random order."""
    yield from _rounds(replay, shuffled(np.arange(replay.num_cells), rng))


def lr_only(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """All LRs at the WD nearest to 0.1, with one seed after the other."""
    yield from _rounds(replay, shuffled(usual_row(replay), rng))


def lr_then_wd(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """All LRs at the WD nearest to 0.1 with all seeds, one after the other, then all WDs at the best of them."""
    last = None
    for last in _rounds(replay, shuffled(usual_row(replay), rng)):
        yield Spent(last.tokens, last.cell)
    if last is not None and last.cell is not None:
        column = np.flatnonzero(np.isclose(replay.log2_lr, replay.log2_lr[last.cell]))
        yield from _rounds(replay, [last.cell, *(cell for cell in shuffled(column, rng) if cell != last.cell)])


def sobol_quadratic(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """All cells in the order of a Sobol sequence, one seed after the other; the cell where the paraboloid through their
    means is lowest is recommended."""
    cells, means = sobol_cells(replay, rng), Means(replay)
    rounds_of = max(1, len(cells) // FITS_PER_ROUND)
    for number in range(replay.num_seeds * len(cells)):
        means.train(cells[number % len(cells)])
        is_last = number == replay.num_seeds * len(cells) - 1
        if number < len(cells) or number % rounds_of == 0 or is_last:
            yield Spent(replay.spent, lowest_fitted(replay, means.all()), is_last)


def halving(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """All cells with one seed, the better half with two, the better half of it with four; the last ones with all."""
    means, cells, seeds = Means(replay), shuffled(np.arange(replay.num_cells), rng), 1
    while True:
        for repeat in range(seeds):
            for cell in cells:
                if len(means.losses.get(cell, [])) <= repeat:
                    means.train(cell)
                    yield means.spent()
        if seeds == replay.num_seeds:
            yield means.spent(is_done=True)
            return
        ranked = sorted(cells, key=lambda cell: _or_inf(means.all()[cell]))
        cells, seeds = ranked[: max(2, len(ranked) // 2)], min(2 * seeds, replay.num_seeds)


def _rounds(replay: Replay, cells: Sequence[int]) -> Iterator[Spent]:
    """The cells with the first seed, then with the second."""
    means = Means(replay)
    for number in range(replay.num_seeds):
        for cell in cells:
            means.train(cell)
            yield means.spent(is_done=number == replay.num_seeds - 1 and cell == cells[-1])


def _or_inf(loss: float) -> float:
    return loss if np.isfinite(loss) else np.inf
