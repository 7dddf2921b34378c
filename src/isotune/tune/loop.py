"""Ask, wait, ask again: the loop between a tuner and whatever answers it.

All that the loop knows it reads from the objective, so that a tuning that was killed anywhere goes on when it is
started again: what was answered is not asked twice, and what was spent stays spent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from isotune.errors import InputError
from isotune.recipe import format_number
from isotune.tune.failures import doubtful_end, failing_like_divergence, without_failing_sides
from isotune.tune.questions import Answer, Goal, Question, Space
from isotune.tune.readings import Trunk, read_off
from isotune.tune.told import in_order, mark_exploded
from isotune.tune.tuner import Recommendation, Suggestion, suggest

Stopped = Literal[
    "good enough",
    "max_tokens",
    "max_hours",
    "nothing left to ask",
    "interrupted",
    "no answers",
    "all diverged",
    "too many failures",
]

GRID_OCTAVES = 1.0  # between neighbours of the grid that a tuning is compared with: nobody trains a finer one
PATIENCE = 3  # questions without an answer, where nothing was ever answered
MAX_FAILURES = 8  # questions without an answer, one after another, where some were answered before
MAX_FORGIVEN = 16  # of these, where what failed led to giving up an end of the range


class Objective(Protocol):
    """What a tuner may ask: it answers questions, remembers its answers, and knows what an answer costs."""

    num_parallel: int  # questions of a round

    def answers(self) -> Sequence[Answer]:
        """Everything that is known, from earlier calls and earlier processes too."""

    def prices(self, questions: Sequence[Question]) -> Sequence[int]:
        """The tokens that are not trained yet and each answer would need."""

    def spent_tokens(self) -> int:
        """What was trained so far, in earlier processes too."""

    def trunks(self) -> Sequence[Trunk]:
        """The curves at constant LR of what was answered, up to where decays began; none where nobody knows them."""

    def ask(self, questions: Sequence[Question]) -> None:
        """Finds the answers, which `answers` then has; a question that cannot be answered is left out there."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to end, however much is still unknown: tokens of all calls together, hours of this one."""

    max_tokens: int | None = None
    max_hours: float | None = None


@dataclass(frozen=True)
class Round:
    """A round that is about to be asked; the last one of a tuning was not."""

    number: int
    suggestion: Suggestion
    prices: tuple[int, ...]
    spent_tokens: int  # before it
    num_finished: int  # runs before it that did not diverge


@dataclass(frozen=True)
class Tuned:
    """How a tuning ended."""

    stopped: Stopped
    spent_tokens: int  # in all, by earlier calls too
    spent_before: int  # of these, by earlier calls
    grid_tokens: int  # what a grid at the goal's budget would have trained
    num_rounds: int
    seconds: float
    unanswered: tuple[Question, ...]
    more: Round  # what would be asked next: the price of knowing more
    last_failure: str  # in the objective's words; empty where nothing failed, or nobody noted why

    @property
    def recommendation(self) -> Recommendation:
        """The best settings by all that was answered; without a run that finished there are none."""
        if not self.more.num_finished:
            failed = f"; the last of {len(self.unanswered)} that failed: {self.last_failure}" if self.unanswered else ""
            raise InputError(
                f"no run has finished ({self.stopped}), so that nothing can be recommended: mend the trainer, lower "
                f"LR, or raise the limits{failed}"
            )
        return self.more.suggestion.recommendation


def tune(
    objective: Objective,
    goal: Goal,
    *,
    limits: Limits | None = None,
    leave_out: Sequence[Question] | None = None,
    on_round: Callable[[Round], None] = lambda round: None,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Asks until the recommendation is good enough, or a limit is reached.

    Questions in `leave_out` are not asked; if it is not given, those are what earlier calls asked in vain, where the
    objective remembers it and was ever answered.
    """
    began, before, rounds = clock(), objective.spent_tokens(), 0
    pace = _Pace()
    failures = forgiven = 0  # in a row, and those of them that led to giving up an end of the range
    unanswered = dict.fromkeys(_asked_in_vain(objective) if leave_out is None else leave_out)
    num_cells = len(goal.space.cells)
    while True:
        answers = in_order(mark_exploded(objective.answers()))
        read = read_off(objective.trunks(), answers, goal.rungs, goal.decay_tokens)
        possible = without_failing_sides(goal, tuple(unanswered), answers)
        if len(goal.space.cells) / 2 <= len(possible.space.cells) < num_cells:  # given up: the next may do better
            num_cells, forgiven = len(possible.space.cells), min(failures, MAX_FORGIVEN)
        evidence = [*answers, *read, *failing_like_divergence(tuple(unanswered), answers)]
        ask = partial(
            suggest, possible, evidence, objective.prices, count=objective.num_parallel, leave_out=tuple(unanswered)
        )
        suggestion = ask()
        if suggestion.is_done or not suggestion.questions:
            suggestion = _unless_doubtful(suggestion, goal, tuple(unanswered), answers)
        spent, seconds = objective.spent_tokens(), clock() - began
        num_finished = sum(not answer.has_diverged for answer in answers)
        prices = tuple(objective.prices(suggestion.questions))
        asked = Round(rounds + 1, suggestion, prices, spent, num_finished)
        stopped = _reason_to_stop(asked, bool(answers), failures - forgiven, should_stop)
        if stopped is not None:
            break
        left = _left(limits or Limits(), spent, pace, spent - before, seconds)
        affordable = left.pays_for(asked)
        if affordable:
            asked = _with_some(asked, affordable)
        else:  # of what costs less there may be something that is worth asking
            cheaper = ask(most_tokens=left.tokens_for_one) if num_finished else None
            if cheaper is None or cheaper.is_done or not cheaper.questions:
                stopped = left.limit(asked)
                break
            asked = replace(asked, suggestion=cheaper, prices=tuple(objective.prices(cheaper.questions)))
        rounds += 1
        on_round(asked)
        pace = pace.after(asked.prices)
        questions = asked.suggestion.questions
        objective.ask(questions)
        if should_stop():  # what was interrupted has not failed
            continue
        known = {answer.question for answer in objective.answers()}
        failed = [question for question in questions if question not in known]
        if len(failed) < len(questions):
            failures = forgiven = 0
        failures += len(failed)
        unanswered.update(dict.fromkeys(failed))
    return Tuned(
        stopped,
        spent,
        before,
        grid_size(goal.space) * goal.tokens,
        rounds,
        clock() - began,
        tuple(unanswered),
        asked,
        getattr(objective, "last_failure", str)(),
    )


def _unless_doubtful(
    suggestion: Suggestion, goal: Goal, unanswered: Sequence[Question], answers: Sequence[Answer]
) -> Suggestion:
    """What is to be asked before a tuning ends beside settings that were given up."""
    best = suggestion.recommendation
    doubtful = doubtful_end(goal, unanswered, answers, (best.learning_rate, best.weight_decay))
    if doubtful is None:
        return suggestion
    question, end = doubtful
    reason = f"checking that {end.axis} {format_number(end.value)} fails: the best settings lie beside it"
    return replace(suggestion, questions=(question,), reasons=(reason,), is_done=False)


def _asked_in_vain(objective: Objective) -> Sequence[Question]:
    failed = getattr(objective, "failed", None)
    return failed() if failed is not None and objective.answers() else ()


def grid_size(space: Space) -> int:
    """The cells of a grid over a space: its own, or those an octave apart if its own are closer."""
    if space.only or space.octaves >= GRID_OCTAVES:
        return len(space.cells)
    return len(Space(learning_rate=space.learning_rate, weight_decay=space.weight_decay, octaves=GRID_OCTAVES).cells)


@dataclass(frozen=True)
class _Pace:
    """What the rounds of this call have asked for: a round takes as long as its longest run, where all run at once."""

    in_all: int = 0
    longest: int = 0  # run of each round, added up

    def after(self, prices: Sequence[int]) -> _Pace:
        return _Pace(self.in_all + sum(prices), self.longest + max(prices))


@dataclass(frozen=True)
class _Left:
    """Tokens that the limits leave: those of --max-tokens, and those that there is time for, in all and for one run."""

    tokens: float
    in_time: float
    in_time_each: float

    def pays_for(self, asked: Round) -> list[int]:
        """The questions of a round, by number and in order, that can still be paid for."""
        found, price = list[int](), 0
        for index, its in enumerate(asked.prices):
            if price + its <= min(self.tokens, self.in_time) and its <= self.in_time_each:
                found.append(index)
                price += its
        return found

    @property
    def tokens_for_one(self) -> float:
        """That the limits leave for one run."""
        return min(self.tokens, self.in_time, self.in_time_each)

    def limit(self, asked: Round) -> Stopped:
        """Which of the limits pays for none of them."""
        return "max_tokens" if min(asked.prices) > self.tokens else "max_hours"


def _left(limits: Limits, spent: int, pace: _Pace, spent_now: int, seconds: float) -> _Left:
    """What would end too late is not begun; how long it takes is told by what this call has trained."""
    tokens = math.inf if limits.max_tokens is None else limits.max_tokens - spent
    if limits.max_hours is None:
        return _Left(tokens, math.inf, math.inf)
    seconds_left = 3600 * limits.max_hours - seconds
    if not spent_now or seconds <= 0:
        in_time = math.copysign(math.inf, seconds_left)
        return _Left(tokens, in_time, in_time)
    in_time = seconds_left * spent_now / seconds
    return _Left(tokens, in_time, in_time * pace.longest / pace.in_all if pace.in_all else in_time)


def _with_some(asked: Round, indices: Sequence[int]) -> Round:
    """The round with some of its questions."""
    suggestion = replace(
        asked.suggestion,
        questions=tuple(asked.suggestion.questions[index] for index in indices),
        reasons=tuple(asked.suggestion.reasons[index] for index in indices),
    )
    return replace(asked, suggestion=suggestion, prices=tuple(asked.prices[index] for index in indices))


def _reason_to_stop(
    asked: Round, has_answers: bool, num_failures: int, should_stop: Callable[[], bool]
) -> Stopped | None:
    """Why to end, the limits apart."""
    if should_stop():
        return "interrupted"
    if num_failures >= PATIENCE and not has_answers:
        return "no answers"
    if num_failures >= MAX_FAILURES:
        return "too many failures"
    if asked.suggestion.is_done and asked.num_finished:
        return "good enough"
    if not asked.suggestion.questions:
        return "nothing left to ask" if asked.num_finished else "all diverged" if has_answers else "no answers"
    return None
