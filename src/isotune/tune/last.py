"""What is still to be asked where a recommendation is expected to be good enough, before a tuning ends.

One lucky run, or an LR that nobody tried, can look sure: the recommended LR is run with two seeds, or with all that
there are, as long as any run with it was. And where all runs with that LR are short or have a low WD, none of them can
refute that WD does nothing: two runs of one seed and length are to show it, WD acts in one of them and hardly does in
the other, wherever one more run can make such a pair.
"""

from __future__ import annotations

import numpy as np

from isotune.tune.candidates import Candidates, askable
from isotune.tune.considered import Outlook
from isotune.tune.questions import Goal, Prices, Question
from isotune.tune.told import Asked, is_near

ACTING_MEMORY = (0.15, 1.2)  # n at which WD has begun to act, and does not yet do harm in the tables
CONTRAST = 4.0  # times the n of another run


def last_question(outlook: Outlook, best: tuple[float, float], prices: Prices | None) -> tuple[Question, float] | None:
    """The cheapest that is left to ask of the recommended LR, with its price; None: nothing. What is pending, or was
    asked in vain, is not asked in another way."""
    goal = outlook.goal
    runs, asked_before = (
        some.some(some.have(best[0]) & (some.tokens <= goal.tokens))
        for some in (outlook.told.trained, outlook.unanswered)
    )
    is_confirmed = len(_seeds_of_longest(runs)) >= min(2, len(goal.seeds))
    is_contrasted = any(_are_contrasts(goal, runs, others).any() for others in (runs, asked_before))
    if is_confirmed and is_contrasted:
        return None
    cells = askable(goal, outlook.told)
    cells = cells[is_near(goal.space.settings[cells, 0], best[0])]
    left = Candidates.of(outlook, cells[:0], cells, prices, (), num_repeated=len(cells))
    place = None if is_confirmed else _confirming(left, best, runs)
    if place is None and not is_contrasted:
        place = _contrasting(goal, left, runs)
    return None if place is None else left.priced(place)


def _seeds_of_longest(runs: Asked) -> set[float]:
    return set(runs.seeds[runs.tokens == runs.tokens.max(initial=0)].tolist())


def _confirming(left: Candidates, best: tuple[float, float], runs: Asked) -> int | None:
    """The place of the cheapest question with the recommended settings and another seed; None: none is left."""
    is_other = left.asked.have(*best) & (left.asked.tokens >= runs.tokens.max(initial=0))
    for seed in _seeds_of_longest(runs):
        is_other &= left.asked.seeds != seed
    places = np.flatnonzero(is_other)
    return int(places[np.argmin(left.prices[places])]) if len(places) else None


def _contrasting(goal: Goal, left: Candidates, runs: Asked) -> int | None:
    """The place of the cheapest question that, beside one of the runs, would show what WD does; None: one more cannot
    show it."""
    shows = np.flatnonzero(_are_contrasts(goal, left.asked, runs).any(axis=1))
    if not len(shows):
        return None
    memory = left.asked.some(shows).memory(goal)
    far_from_middle = np.abs(np.log2(np.maximum(memory, 1e-9)) - np.mean(np.log2(ACTING_MEMORY)))
    return int(shows[np.lexsort((far_from_middle, left.prices[shows]))[0]])


def _are_contrasts(goal: Goal, first: Asked, second: Asked) -> np.ndarray:
    """[first x second]: whether two runs show what WD does: equal seeds and lengths, in one it acts, in one it hardly
    does."""
    n, other = first.memory(goal)[:, None], second.memory(goal)
    same = (first.tokens[:, None] == second.tokens) & (first.seeds[:, None] == second.seeds)
    high, low = np.maximum(n, other), np.minimum(n, other)
    return np.asarray(same & (high >= ACTING_MEMORY[0]) & (high <= ACTING_MEMORY[1]) & (CONTRAST * low <= high))
