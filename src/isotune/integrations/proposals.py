"""What samplers and searchers of other tools share: a history of (LR, WD, loss) -> the next (LR, WD)."""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from isotune.errors import InputError
from isotune.recipe.quantities import require_choice
from isotune.runs.trajectory import WeightDecayConvention
from isotune.tune import Answer, Goal, Question, Recommendation, Space, Suggestion, recommend_now, suggest
from isotune.tune.failures import without_failing_sides
from isotune.tune.questions import NO_DECAY, log2_cells, place_numbers
from isotune.tune.tuner import believe_answers

LOWEST_SHARE = 2.0**-8  # of the upper end, where a range begins at 0: a logarithmic axis has none
TOKENS = 1 << 20  # of every run, where nobody says: only its ratio to itself counts
FIRST_MEMORY_TIMES = 0.3  # of the first run: WD below this matters little
PRUNED_NOISE = 0.02  # of the log loss that a pruned run would have had; with more, what was pruned teaches nothing

MIN_FAILURES = 2  # above every LR that has a loss, to be taken for divergences
CHANCE = 0.1  # that all of them failed for another reason: with more, they may have
RUNS_BETWEEN = 4  # runs with a loss, before LRs that failed are tried again; as many more each time that they fail
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tried:
    """A configuration that was tried, or is being tried; loss NaN: it diverged, None: there is none (yet)."""

    learning_rate: float
    weight_decay: float
    loss: float | None
    has_failed: bool = False  # it ended without a loss: a divergence, or nothing that LR and WD are to blame for
    noise: float | None = None  # standard deviation of the log loss, where it is known
    was_unused: bool = False  # it ended without asking for both, so that its loss is not that of its LR and WD


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """The next LR and WD within ranges; `tokens` and `tokens_per_step` give n, without which there is no invariance."""

    weight_decay_convention: WeightDecayConvention
    tokens: int | None = None
    tokens_per_step: int | None = None
    octaves: float = 0.5
    _told: list[Tried] = field(default_factory=list, repr=False, compare=False)  # failures whose reason was logged

    def __post_init__(self) -> None:
        require_choice("weight_decay_convention", self.weight_decay_convention, ("coupled", "independent"))
        if (self.tokens is None) != (self.tokens_per_step is None):
            raise InputError("tokens and tokens_per_step go together: give both (or neither, and n is unknown)")

    def next(
        self,
        learning_rate: tuple[float, float],
        weight_decay: tuple[float, float],
        tried: Sequence[Tried],
        steps: tuple[float | None, float | None] = (None, None),
    ) -> tuple[float, float]:
        """(LR, WD) to try next, inside the ranges, one of which may be a point; WD in the convention of the ranges.

        Where LR or WD has a step, it is a multiple of that, and not 0."""
        if weight_decay == (0.0, 0.0):
            without = [replace(one, weight_decay=NO_DECAY) for one in tried]
            return self.next(learning_rate, (NO_DECAY, NO_DECAY), without, (steps[0], None))[0], 0.0
        pairs, goal = self._pairs_and_goal(learning_rate, weight_decay, steps)
        placed = _on_axes(tried)
        narrowed, given_up, behind = self._given_up(goal, placed)
        first = (goal, placed) if _are_long_ago(placed, behind) else (narrowed, given_up)
        self._tell([placed[index] for index in behind])
        for its_goal, known, others in (
            (*first, first[1]),
            (goal, placed, placed),  # what was given up, where nothing else is left
            (*first, _not_to_be_repeated(placed)),
        ):
            answers = self._answers(known, goal)
            pending = [self._question(one, goal) for one in others if one.loss is None]
            suggestion = suggest(its_goal, answers, pending=pending)
            chosen = _worth_having(its_goal, answers, pending, suggestion) or next(
                iter(_settings(suggestion.questions)), None
            )
            if chosen is not None:
                return pairs[chosen]
        best = recommend_now(narrowed, self._answers(given_up, goal))  # everything was tried: the best once more
        return pairs[best.learning_rate, best.weight_decay]

    def recommend(
        self, learning_rate: tuple[float, float], weight_decay: tuple[float, float], tried: Sequence[Tried]
    ) -> Recommendation:
        """What is expected to be best within the ranges, tried or not; its WDs are in the convention of the ranges."""
        if weight_decay == (0.0, 0.0):
            without = [replace(one, weight_decay=NO_DECAY) for one in tried]
            best = self.recommend(learning_rate, (NO_DECAY, NO_DECAY), without)
            return replace(best, weight_decay=0.0, as_good=tuple((lr, 0.0) for lr, _ in best.as_good))
        pairs, goal = self._pairs_and_goal(learning_rate, weight_decay, (None, None))
        narrowed, given_up, _ = self._given_up(goal, _on_axes(tried))
        best = recommend_now(narrowed, self._answers(given_up, goal))
        return replace(
            best,
            weight_decay=pairs[best.learning_rate, best.weight_decay][1],
            as_good=tuple(pairs[setting] for setting in best.as_good),
        )

    def first_learning_rate(self, learning_rate: tuple[float, float], number: int = 0) -> float:
        """An LR to begin with: the middle of the range, then of its halves, and so on."""
        return _between(_above_zero(learning_rate), number)

    def first_weight_decay(
        self, learning_rate: float | None, weight_decay: tuple[float, float], number: int = 0
    ) -> float:
        """A WD to begin with: n of .3, or the middle of the range, then of its halves, and so on."""
        low, high = _above_zero(weight_decay)
        if number or self.tokens is None or self.tokens_per_step is None or not learning_rate:
            return _between((low, high), number)
        per_step = FIRST_MEMORY_TIMES * self.tokens_per_step / self.tokens
        wanted = per_step if self.weight_decay_convention == "independent" else per_step / learning_rate
        return min(max(wanted, low), high)

    def _pairs_and_goal(
        self,
        learning_rate: tuple[float, float],
        weight_decay: tuple[float, float],
        steps: tuple[float | None, float | None],
    ) -> tuple[dict[tuple[float, float], tuple[float, float]], Goal]:
        pairs = self._pairs(_above_zero(learning_rate), _above_zero(weight_decay), steps)
        tokens = self.tokens or TOKENS
        goal = Goal(
            tokens=tokens, space=Space(only=tuple(pairs)), rungs=(tokens,), tokens_per_step=self.tokens_per_step
        )
        return pairs, goal

    def _given_up(self, goal: Goal, placed: Sequence[Tried]) -> tuple[Goal, list[Tried], list[int]]:
        """The goal without the ends of the range where all runs fail, what was tried with failures that look like
        divergences told as such, and which of the failures are the reason."""
        failed = [index for index, one in enumerate(placed) if one.has_failed and one.loss is None]
        questions = [self._question(placed[index], goal) for index in failed]
        narrowed = without_failing_sides(goal, questions, self._answers(placed, goal))
        given_up = _with_divergences(placed)
        behind = {index for index, one in enumerate(given_up) if one is not placed[index]}
        if narrowed is not goal:
            is_outside = narrowed.space.find(log2_cells(_settings(questions))) < 0
            is_inside_before = goal.space.find(log2_cells(_settings(questions))) >= 0
            behind |= {failed[place] for place in np.flatnonzero(is_outside & is_inside_before).tolist()}
        return narrowed, given_up, sorted(behind)

    def _tell(self, behind: Sequence[Tried]) -> None:
        """Logs that parts of the range are left out, whenever there are more reasons for it."""
        if len(behind) > len(self._told):
            self._told.extend(behind[len(self._told) :])
            rates, decays = ([getattr(one, name) for one in behind] for name in ("learning_rate", "weight_decay"))
            _log.warning(
                f"{len(behind)} trials failed where none has a loss, with LR {min(rates):.4g} to {max(rates):.4g} and "
                f"WD {min(decays):.4g} to {max(decays):.4g}: settings there are left out until some others have a loss"
            )

    def _answers(self, placed: Sequence[Tried], goal: Goal) -> list[Answer]:
        known = [one for one in placed if one.loss is not None]
        losses = _positive([one.loss for one in known if one.loss is not None])
        return [
            Answer(self._question(one, goal), loss, noise=one.noise) for one, loss in zip(known, losses, strict=True)
        ]

    def _pairs(
        self, rates: tuple[float, float], decays: tuple[float, float], steps: tuple[float | None, float | None]
    ) -> dict[tuple[float, float], tuple[float, float]]:
        """(LR, coupled WD) of every cell -> (LR, WD) in the user's convention."""
        cells = 2.0 ** Space(learning_rate=rates, weight_decay=decays, octaves=self.octaves).cells
        pairs = {}
        for cell in cells.tolist():
            lr, wd = _inside(cell[0], rates, steps[0]), _inside(cell[1], decays, steps[1])
            pairs[lr, self._coupled(lr, wd)] = lr, wd
        return pairs

    def _coupled(self, learning_rate: float, weight_decay: float) -> float:
        return weight_decay / learning_rate if self.weight_decay_convention == "independent" else weight_decay

    def _question(self, one: Tried, goal: Goal) -> Question:
        return Question(one.learning_rate, self._coupled(one.learning_rate, one.weight_decay), goal.tokens)


def _worth_having(
    goal: Goal, answers: Sequence[Answer], pending: Sequence[Question], suggestion: Suggestion
) -> tuple[float, float] | None:
    """(LR, WD) that nobody has tried and that is expected to be better than all that were, or, where nothing is left to
    be learned, as good as they: what these tools return in the end is the best of what was tried, not what is believed.
    """
    best = suggestion.recommendation
    asked = _places([*(answer.question for answer in answers), *pending])
    settings = [(best.learning_rate, best.weight_decay), *(best.as_good if suggestion.is_done else ())]
    untried = (one for one in settings if _places([Question(*one, goal.tokens)])[0] not in asked)
    chosen = next(untried, None)
    known = [answer.question for answer in answers if not answer.has_diverged]
    if chosen is None or not known or suggestion.is_done:
        return chosen if known else None
    points = goal.points(log2_cells(_settings(known)), goal.tokens)
    lowest = float(believe_answers(goal, answers).at(points).mean.min())
    return chosen if math.log(best.loss) < lowest - goal.tolerance else None


def _settings(questions: Sequence[Question]) -> list[tuple[float, float]]:
    return [(question.learning_rate, question.weight_decay) for question in questions]


def _places(questions: Sequence[Question]) -> list[int]:
    """Equal where settings differ in their last digits alone."""
    return place_numbers(log2_cells(_settings(questions))).tolist()


def as_if_finished(loss: float, beside: Sequence[tuple[float, float]]) -> float | None:
    """The loss that a run would have had: as much above the best of others as it was where it was stopped.

    Of each of the others its loss there and its last one; None where there is none to compare with."""
    there, final = min((pair for pair in beside if min(pair) > 0 and max(pair) < math.inf), default=(0.0, 0.0))
    return final * loss / there if there else None


def _on_axes(everything: Sequence[Tried]) -> list[Tried]:
    """Those that have a place on logarithmic axes."""
    return [one for one in everything if one.learning_rate > 0 and one.weight_decay > 0]


def _not_to_be_repeated(placed: Sequence[Tried]) -> list[Tried]:
    """Without what failed, or was not used, once: that is asked once more where nothing else is left."""
    number = Counter((one.learning_rate, one.weight_decay) for one in placed)
    return [
        one
        for one in placed
        if not (one.has_failed or one.was_unused) or number[one.learning_rate, one.weight_decay] > 1
    ]


def _with_divergences(tried: Sequence[Tried]) -> list[Tried]:
    """All of them, with failures that look like divergences told as such: several, above every LR that has a loss. Of a
    run that raises an error or returns NaN Optuna says no more than that it failed.

    But another parameter may be to blame: where runs with lower LRs fail as often, LR is not.
    """
    above = _failed_above(tried)
    if len(above) < MIN_FAILURES:
        return list(tried)
    num_finished = sum(map(_has_loss, tried))
    num_below = sum(one.has_failed and one.loss is None for one in tried) - len(above)
    chance = num_below / max(1, num_below + num_finished)  # of failing for another reason
    if chance ** len(above) > CHANCE:
        return list(tried)
    places = set(above)
    return [replace(one, loss=math.nan) if index in places else one for index, one in enumerate(tried)]


def _are_long_ago(tried: Sequence[Tried], failed: Sequence[int]) -> bool:
    """Whether these failures are, by runs with a loss since then, so that there may be another try: a full disk fails
    as well. It takes more of them each time that it fails again."""
    have_loss = list(map(_has_loss, tried))
    num_spells = 1 + sum(any(have_loss[one:other]) for one, other in pairwise(failed))
    return bool(failed) and sum(have_loss[failed[-1] :]) >= RUNS_BETWEEN * num_spells


def _failed_above(tried: Sequence[Tried]) -> list[int]:
    """Which failed with higher LRs than any that has a loss, in the order in which they were tried."""
    highest = max((one.learning_rate for one in tried if _has_loss(one)), default=0.0)
    return [
        index for index, one in enumerate(tried) if one.has_failed and one.loss is None and one.learning_rate > highest
    ]


def _has_loss(one: Tried) -> bool:
    return one.loss is not None and math.isfinite(one.loss)


def _between(ends: tuple[float, float], number: int) -> float:
    """Places that fill a range evenly on a logarithmic axis: 1/2, 1/4, 3/4, 1/8 of the way, and so on."""
    share, step = 0.0, 0.5
    digits = number + 1
    while digits:
        share += step * (digits % 2)
        digits, step = digits // 2, step / 2
    return float(ends[0] * (ends[1] / ends[0]) ** share)


def _inside(value: float, ends: tuple[float, float], step: float | None) -> float:
    """The value within its range, whose ends are multiples of the step where it has one; never 0."""
    return min(max(value, ends[0]), ends[1]) if step is None else max(1, round(value / step)) * step


def _above_zero(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    if not high > 0:
        raise InputError(f"a range of {low:g} to {high:g} has nothing above 0: learning rate and weight decay need it")
    return (low if low > 0 else high * LOWEST_SHARE, high)


def _positive(losses: Sequence[float]) -> list[float]:
    """Losses on a scale on which their logarithm makes sense: moved up where some are not above 0.

    By ten times twice the way from the lowest to the median: a few that are far off do not set the scale."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    lowest = min(finite, default=1.0)
    if lowest > 0:
        return list(losses)
    span = 2 * (statistics.median(finite) - lowest) or max(finite) - lowest or 1.0
    return [loss - lowest + 10 * span for loss in losses]
