"""What runs that ended without a loss tell: ends of the range that are given up, and when that is doubted.

A run that fails says nothing of its loss. Where all runs at an end of the range fail, its settings may be the reason,
and nothing else there is asked. But a full disk fails as well, wherever it happens to be met. So before a tuning ends
beside what was given up, what lies next to it is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from isotune.tune.questions import Answer, Goal, Question, Space
from isotune.tune.told import DIVERGED_EXCESS, Told, is_near, not_hopeless, place_of, recommendable

FAILING = 3  # questions without an answer, all beyond any that was answered: their place may be the reason
RATE, DECAY = 0, 1  # columns of settings


@dataclass(frozen=True)
class End:
    """An end of the range that was given up, and the first setting of the space that lies behind."""

    words: str  # "LR from", "LR up to", "WD from", "WD up to"
    column: int
    sign: int  # 1: an upper end
    value: float

    @property
    def axis(self) -> str:
        return "LR" if self.column == RATE else "WD"

    def has(self, question: Question) -> bool:
        """Whether a question lies next to it, not far behind."""
        setting = question.learning_rate, question.weight_decay
        return bool(is_near(np.array(setting[self.column]), self.value))


def doubtful_end(
    goal: Goal, unanswered: Sequence[Question], answers: Sequence[Answer], best: tuple[float, float]
) -> tuple[Question, End] | None:
    """A question behind an end beside which the best setting lies; None where enough were asked next to it, or nothing
    is given up there."""
    asked = {*unanswered, *(answer.question for answer in answers)}
    for end in ends_beside(goal, unanswered, answers, best):
        if sum(end.has(question) for question in asked) < FAILING:
            question = _next_behind(goal, end, asked, best)
            if question is not None:
                return question, end
    return None


def ends_beside(
    goal: Goal, unanswered: Sequence[Question], answers: Sequence[Answer], best: tuple[float, float]
) -> list[End]:
    """The ends given up beside which the best setting lies: nothing between them may be recommended."""
    if len(unanswered) < FAILING or all(answer.has_diverged for answer in answers):
        return []
    sides = failing_sides(unanswered, answers)
    if like_divergence := failing_like_divergence(unanswered, answers):
        sides["LR from"] = min(answer.question.learning_rate for answer in like_divergence)
    told, possible = Told.of(answers), without_failing_sides(goal, unanswered, answers)
    left = possible.space.settings[recommendable(possible, Told.of([*answers, *like_divergence]))]
    ends = []
    for words, value in sides.items():
        column, sign = (RATE if words.startswith("LR") else DECAY), (-1 if words.endswith("up to") else 1)
        there = sign * goal.space.settings[:, column]
        there = there[there >= sign * value * (1 - sign * 1e-9)]
        is_beside = sign * best[column] >= (sign * left[:, column]).max() * (1 - sign * 1e-9)
        if not (is_beside and len(there)):
            continue
        end = End(words, column, sign, float(sign * there.min()))
        if end.column == DECAY or not_hopeless(np.array([end.value]), np.array([goal.tokens]), told)[0]:
            ends.append(end)
    return ends


def _next_behind(goal: Goal, end: End, asked: Set[Question], best: tuple[float, float]) -> Question | None:
    """The shortest run next to an end that was not asked, with settings near the best; None: all were."""
    settings = goal.space.settings
    settings = settings[is_near(settings[:, end.column], end.value)]
    away = np.abs(np.log2(np.maximum(settings, 1e-300) / np.maximum(best, 1e-300))).sum(axis=1)
    ordered = settings[np.argsort(away, kind="stable")].tolist()
    questions = (Question(lr, wd, tokens, goal.seeds[0]) for tokens in goal.rungs for lr, wd in ordered)
    return next((question for question in questions if question not in asked), None)


def failing_like_divergence(unanswered: Sequence[Question], answers: Sequence[Answer]) -> list[Answer]:
    """Failures that count as weak evidence of divergence: several, with higher LRs than any run that finished; or any,
    as long as nothing was answered, so that lower LRs are tried before it is given up."""
    finished = [answer.question.learning_rate for answer in answers if not answer.has_diverged]
    highest = max(finished, default=0.0)
    failing = [question for question in unanswered if question.learning_rate > highest]
    if answers and len(failing) < FAILING:
        return []
    return [Answer(one, math.nan, "diverged", DIVERGED_EXCESS) for one in sorted(failing, key=place_of)]


def failing_sides(unanswered: Sequence[Question], answers: Sequence[Answer]) -> dict[str, float]:
    """Where runs fail at an end of the range, and none finished: "LR up to", "WD up to", "WD from", by the last value
    that failed. It takes several failures whose other setting is about one that finished, and is not the reason.
    Failures at high LRs may be divergences, which is another matter."""
    finished = [answer.question for answer in answers if not answer.has_diverged]
    sides: dict[str, float] = {}
    if not finished:
        return sides
    for words, name, other, sign in (
        ("LR up to", "learning_rate", "weight_decay", -1),
        ("WD up to", "weight_decay", "learning_rate", -1),
        ("WD from", "weight_decay", "learning_rate", 1),
    ):
        end = max(sign * getattr(question, name) for question in finished)
        others = [getattr(question, other) for question in finished]
        failing = [
            sign * getattr(question, name)
            for question in unanswered
            if sign * getattr(question, name) > end and min(others) / 2 <= getattr(question, other) <= 2 * max(others)
        ]
        if len(failing) >= FAILING:
            sides[words] = sign * min(failing)
    return sides


def without_failing_sides(goal: Goal, unanswered: Sequence[Question], answers: Sequence[Answer]) -> Goal:
    """The goal in a space without the ends and corners at which runs fail: nothing there is asked any more, or
    recommended."""
    if len(unanswered) < FAILING:
        return goal
    sides = failing_sides(unanswered, answers)
    settings = goal.space.settings
    lr, wd = settings.T
    kept = (
        (lr > sides.get("LR up to", 0.0)) & (wd > sides.get("WD up to", -1.0)) & (wd < sides.get("WD from", math.inf))
    )
    kept &= ~_in_failing_corner(lr, wd, unanswered, answers)
    if kept.all() or not kept.any():
        return goal
    return replace(goal, space=Space(only=tuple((lr, wd) for lr, wd in settings[kept].tolist())))


def _in_failing_corner(
    lr: np.ndarray, wd: np.ndarray, unanswered: Sequence[Question], answers: Sequence[Answer]
) -> np.ndarray:
    """Which settings have a lower LR and a more extreme WD than all that finished, where several such failed: which of
    the two is the reason is not known yet, so that nothing else there is tried before that is."""
    inside = np.zeros(len(lr), dtype=bool)
    finished = [answer.question for answer in answers if not answer.has_diverged]
    if not finished:
        return inside
    lowest = min(question.learning_rate for question in finished)
    for sign in (-1, 1):
        end = max(sign * question.weight_decay for question in finished)
        failing = [
            one.learning_rate for one in unanswered if one.learning_rate < lowest and sign * one.weight_decay > end
        ]
        if len(failing) >= FAILING:
            inside |= (lr <= max(failing)) & (sign * wd > end)
    return inside
