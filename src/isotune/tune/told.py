"""What answers tell: which settings have diverged, and observations for a belief."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from isotune.errors import InputError
from isotune.tune.observations import Observations, own_noise, with_noise
from isotune.tune.questions import Answer, Goal, Question, log2_cells, place_numbers

# A diverged run counts as this much worse than the worst of its budget, give or take: it tells that its LR is too high,
# which no cell with that LR needs a fit for, and nothing of how the bowl bends.
DIVERGED_EXCESS, DIVERGED_NOISE = 0.15, 0.2
# In log loss above the best run that was no longer, a factor of 2: what has a higher LR and such a loss has stopped
# learning. However bad a loss is, the belief, which is local, cannot use more than MAX_EXCESS of it.
EXPLODED_EXCESS, MAX_EXCESS = 0.7, 2.0
NO_INFORMATION = 1e3  # noise of a log loss that says nothing, where an answer has more, or infinite noise
SAME = 1e-9  # settings that differ by no more than this share of themselves are the same


@dataclass(frozen=True)
class Asked:
    """Questions by column."""

    settings: np.ndarray  # [questions x 2]: LR, WD
    cells: np.ndarray  # the same as log2 LR, log2 WD
    tokens: np.ndarray
    seeds: np.ndarray

    @staticmethod
    def of(questions: Sequence[Question]) -> Asked:
        if not len(questions):
            return NOTHING
        return Asked.of_columns(_unpacked([question.packed for question in questions], 4))

    @staticmethod
    def of_columns(columns: np.ndarray) -> Asked:
        """LR, WD, tokens, seed."""
        return Asked(columns[:, :2], log2_cells(columns[:, :2]), columns[:, 2], columns[:, 3])

    def __len__(self) -> int:
        return len(self.tokens)

    def some(self, chosen: np.ndarray | list[int]) -> Asked:
        return Asked(self.settings[chosen], self.cells[chosen], self.tokens[chosen], self.seeds[chosen])

    def and_also(self, other: Asked) -> Asked:
        if not len(other):
            return self
        return Asked(
            np.concatenate([self.settings, other.settings]),
            np.concatenate([self.cells, other.cells]),
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.seeds, other.seeds]),
        )

    def memory(self, goal: Goal) -> np.ndarray:
        """n at the end of each run; NaN where it is unknown."""
        return np.asarray(self.settings.prod(axis=1) * self.tokens / (goal.tokens_per_step or math.nan))

    def have(self, learning_rate: float, weight_decay: float | None = None) -> np.ndarray:
        """Which have this LR, and this WD if it is given, but for the last digits."""
        same = is_near(self.settings[:, 0], learning_rate)
        return same if weight_decay is None else same & is_near(self.settings[:, 1], weight_decay)


NOTHING = Asked(np.empty((0, 2)), np.empty((0, 2)), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Register:
    """Which cells of a space were asked, at which rung and with which seed."""

    seeds: np.ndarray  # ascending: those of the goal, and whatever else was asked
    were_asked: np.ndarray  # [cells x rungs x seeds]

    @staticmethod
    def of(goal: Goal, asked: Asked) -> Register:
        seeds = np.array(sorted({*asked.seeds.tolist(), *goal.seeds}), dtype=float)
        budgets = np.array(goal.rungs, dtype=float)
        were_asked = np.zeros((len(goal.space.cells), len(budgets), len(seeds)), dtype=bool)
        cells, rungs = goal.space.find(asked.cells), np.searchsorted(budgets[:-1], asked.tokens)
        inside = (cells >= 0) & (budgets[rungs] == asked.tokens)
        were_asked[cells[inside], rungs[inside], np.searchsorted(seeds, asked.seeds[inside])] = True
        return Register(seeds, were_asked)

    def has(self, cells: np.ndarray, rungs: np.ndarray | slice, seeds: np.ndarray | float) -> np.ndarray:
        """Of each cell, whether it was asked at its rung with its seed."""
        return np.asarray(self.were_asked[cells, rungs, np.searchsorted(self.seeds, seeds)])


@dataclass(frozen=True)
class Told:
    """Answers by column."""

    asked: Asked
    losses: np.ndarray  # NaN: diverged
    noise: np.ndarray  # of log losses, where an answer has more than runs have by themselves
    were_read: np.ndarray  # not trained but read off a trunk

    @staticmethod
    def of(answers: Sequence[Answer]) -> Told:
        """Those whose loss is finite but has exploded count as diverged."""
        columns = _unpacked([answer.packed for answer in answers], 7)
        told = Told(Asked.of_columns(columns[:, :4]), columns[:, 4], columns[:, 5], columns[:, 6] > 0)
        exploded = has_exploded(told)
        return replace(told, losses=np.where(exploded, math.nan, told.losses)) if exploded.any() else told

    def __len__(self) -> int:
        return len(self.losses)

    @cached_property
    def diverged(self) -> np.ndarray:
        return np.isnan(self.losses)

    @cached_property
    def trained(self) -> Asked:
        """What was asked, without what was read off trunks."""
        return self.asked.some(~self.were_read) if self.were_read.any() else self.asked

    @cached_property
    def finished(self) -> Asked:
        return self.asked.some(~self.diverged) if self.diverged.any() else self.asked

    def up_to(self, tokens: int) -> Told:
        """Of runs that are no longer than this."""
        chosen = self.asked.tokens <= tokens
        if chosen.all():
            return self
        return Told(self.asked.some(chosen), self.losses[chosen], self.noise[chosen], self.were_read[chosen])


def _unpacked(rows: Sequence[bytes], number: int) -> np.ndarray:
    """[rows x number] of doubles. Takes a fraction of the time of np.array."""
    return np.frombuffer(b"".join(rows)).reshape(-1, number) if rows else np.empty((0, number))


def is_near(values: np.ndarray, value: float) -> np.ndarray:
    """The same as math.isclose, of many."""
    return np.asarray(np.abs(values - value) <= SAME * np.maximum(np.abs(values), abs(value)))


def in_order(answers: Sequence[Answer]) -> list[Answer]:
    """Answers in an order that does not depend on when they came: sums of floats do depend on theirs."""
    return sorted(answers, key=lambda answer: place_of(answer.question))


def place_of(question: Question) -> tuple[float, float, int, int]:
    return question.learning_rate, question.weight_decay, question.tokens, question.seed


def mark_exploded(answers: Sequence[Answer]) -> Sequence[Answer]:
    """The answers, those diverged whose loss is finite but has exploded."""
    told = Told.of(answers)
    return [
        replace(answer, loss=math.nan, status="diverged") if diverged and not answer.has_diverged else answer
        for answer, diverged in zip(answers, told.diverged.tolist(), strict=True)
    ]


def has_exploded(told: Told) -> np.ndarray:
    """Which losses are far above that of the best run that was no longer, and have a higher LR than it. At a lower LR,
    or in fewer tokens, such a run has learned too little, which is no divergence."""
    losses, rates, tokens = told.losses, told.asked.settings[:, 0], told.asked.tokens
    exploded = np.zeros(len(losses), dtype=bool)
    finished = losses[~told.diverged]
    if not len(finished):
        return exploded
    if (lowest := float(finished.min())) <= 0:
        raise InputError(
            f"a loss is {lowest:.4g}: losses must be above 0, since their logarithms are compared; add a constant"
        )
    factor = math.exp(EXPLODED_EXCESS)
    if float(finished.max()) <= factor * lowest:
        return exploded
    for budget in set(tokens[~told.diverged].tolist()):
        best = int(np.argmin(np.where((tokens <= budget) & ~told.diverged, losses, math.inf)))
        exploded |= (tokens == budget) & (losses > factor * losses[best]) & (rates > rates[best])
    return exploded


def observations(goal: Goal, told: Told) -> Observations:
    """What a belief is made of."""
    usable = told.up_to(goal.tokens)
    asked, diverged = usable.asked, usable.diverged
    values = np.log(usable.losses)
    of_runs = own_noise(asked.cells[:, 0] - goal.space.middle[0])
    noise = np.where(diverged, DIVERGED_NOISE, np.minimum(np.hypot(of_runs, usable.noise), NO_INFORMATION))
    if not diverged.all():
        values = np.minimum(values, np.nanmin(values) + MAX_EXCESS)
    for tokens in set(asked.tokens[diverged].tolist()):
        here = asked.tokens == tokens
        known = values[here & ~diverged]
        known = known if len(known) else values[~diverged]
        values[here & diverged] = (known.max() if len(known) else 0.0) + DIVERGED_EXCESS
    return with_noise(goal.points(asked.cells, asked.tokens, asked.seeds), values, noise)


def not_hopeless(learning_rates: np.ndarray, tokens: np.ndarray, told: Told) -> np.ndarray:
    """Whether no run with this LR or a lower one diverged in so few tokens; or one with this LR or a higher one, that
    was no shorter than the one that diverged, did not."""
    possible = np.ones(len(tokens), dtype=bool)
    if not told.diverged.any():
        return possible
    diverged, finished = told.asked.some(told.diverged), told.finished
    for budget in set(diverged.tokens.tolist()):
        lowest = diverged.settings[diverged.tokens == budget, 0].min()
        highest = finished.settings[finished.tokens >= budget, 0].max(initial=0.0)
        is_lower = learning_rates < lowest * (1 - SAME)
        possible &= is_lower | (learning_rates <= highest * (1 + SAME)) | (tokens < budget)
    return possible


def recommendable(goal: Goal, told: Told) -> np.ndarray:
    """Which cells of the space have an LR that is not known to diverge: no run with it or a lower one did, or a run
    with it or a higher one, and as long, did not; and did not diverge themselves, with any seed. Where this leaves
    nothing, those with the lowest LR."""
    cells, rates = goal.space.cells, goal.space.settings[:, 0]
    every = np.arange(len(cells))
    if not told.diverged.any():
        return every
    diverged = told.asked.some(told.diverged & (told.asked.tokens <= goal.tokens))
    if not len(diverged):
        return every
    possible = not_hopeless(rates, np.full(len(cells), goal.tokens), told)
    possible &= ~np.isin(place_numbers(cells), place_numbers(diverged.cells))
    return every[possible] if possible.any() else every[is_near(rates, rates.min())]
