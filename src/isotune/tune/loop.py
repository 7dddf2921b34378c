"""Ask, wait, ask again: the loop between a tuner and whatever answers it.

All that the loop knows it reads from the objective, so that a tuning that was killed anywhere goes on when it is
started again: what was answered is not asked twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from isotune.tune.questions import Answer, Goal, Question
from isotune.tune.tuner import Recommendation, Suggestion, recommend_now, suggest

Stopped = Literal["good enough", "max_tokens", "max_hours", "nothing left to ask", "interrupted", "no answers"]


class Objective(Protocol):
    """What a tuner may ask: it answers questions, remembers its answers, and knows what an answer costs."""

    num_parallel: int  # questions of a round

    def answers(self) -> Sequence[Answer]:
        """Everything that is known, from earlier calls and earlier processes too."""

    def prices(self, questions: Sequence[Question]) -> Sequence[int]:
        """The tokens that are not trained yet and each answer would need."""

    def ask(self, questions: Sequence[Question]) -> None:
        """Finds the answers, which `answers` then has; a question that cannot be answered is left out there."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to end, however much is still unknown."""

    max_tokens: int | None = None
    max_hours: float | None = None


@dataclass(frozen=True)
class Round:
    """A round that is about to be asked."""

    number: int
    suggestion: Suggestion
    prices: tuple[int, ...]
    spent_tokens: int


@dataclass(frozen=True)
class Tuned:
    """How a tuning ended."""

    recommendation: Recommendation
    stopped: Stopped
    spent_tokens: int  # by this call
    grid_tokens: int  # what a grid of all cells at the goal's budget would have trained
    num_rounds: int
    seconds: float
    unanswered: tuple[Question, ...]


def tune(
    objective: Objective,
    goal: Goal,
    *,
    limits: Limits | None = None,
    on_round: Callable[[Round], None] = lambda round: None,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Asks until the recommendation is good enough, or a limit is reached."""
    limits = limits or Limits()
    began, spent, rounds = clock(), 0, 0
    unanswered: dict[Question, None] = {}
    stopped: Stopped
    while True:
        answers = list(objective.answers())
        suggestion = suggest(goal, answers, objective.prices, count=objective.num_parallel, leave_out=tuple(unanswered))
        prices = tuple(objective.prices(suggestion.questions))
        reason = _reason_to_stop(suggestion, answers, spent, clock() - began, limits, prices, should_stop)
        if reason is not None:
            stopped = reason
            break
        rounds += 1
        on_round(Round(rounds, suggestion, prices, spent))
        objective.ask(suggestion.questions)
        spent += sum(prices)
        known = {answer.question for answer in objective.answers()}
        unanswered.update(dict.fromkeys(question for question in suggestion.questions if question not in known))
        if len(unanswered) >= 3 and not known:
            stopped = "no answers"
            break
    grid_tokens = len(goal.space.cells) * goal.tokens
    recommendation = recommend_now(goal, objective.answers())
    return Tuned(recommendation, stopped, spent, grid_tokens, rounds, clock() - began, tuple(unanswered))


def _reason_to_stop(
    suggestion: Suggestion,
    answers: Sequence[Answer],
    spent: int,
    seconds: float,
    limits: Limits,
    prices: Sequence[int],
    should_stop: Callable[[], bool],
) -> Stopped | None:
    if should_stop():
        return "interrupted"
    if suggestion.is_done and answers:
        return "good enough"
    if not suggestion.questions:
        return "nothing left to ask"
    if limits.max_tokens is not None and spent + sum(prices) > limits.max_tokens:
        return "max_tokens"
    if limits.max_hours is not None and seconds > 3600 * limits.max_hours:
        return "max_hours"
    return None
