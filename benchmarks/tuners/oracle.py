"""What the noise of seeds alone costs: one who knows everything but which of two cells is the better one.

It knows the best cell and the best one of another LR, and trains both to the target budget with one seed after the
other. What it pays until the mean difference has the right sign for good, no tuner that reads whole runs can save; so
it is no rival, but says how far rivals could get.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
from replay import Question, Replay, Spent


def oracle(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """The two cells in turn, with as many seeds as the grid's tokens last."""
    best, other = _two_best(replay)
    difference = 0.0
    for repeat in count():
        losses = [replay.answer(Question(cell, replay.budget, repeat=repeat)) for cell in (best, other)]
        difference += losses[0] - losses[1]
        yield Spent(replay.spent, best if difference <= 0 else other)
        if replay.spent >= replay.grid_price:
            return


def _two_best(replay: Replay) -> tuple[int, int]:
    regrets = replay.true_regrets()
    best = int(np.argmin(regrets))
    other = int(np.argmin(np.where(replay.log2_lr == replay.log2_lr[best], np.inf, regrets)))
    return best, other
