"""isotune's tuner in the race, and what is left of it without its parts.

It counts as done where its tolerance is met, and goes on until it expects to be within half of the strictest target, so
that the path shows what more tokens would have given; then it stops, with what it recommends there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from replay import Question, Replay, Spent
from scores import TARGETS

from isotune.tune import Answer, Goal, Recommendation, Space, suggest
from isotune.tune import Question as Asked
from isotune.tune.questions import MAX_SEEDS, MIN_DECAYS_PER_RUNG
from isotune.tune.readings import Trunk, read_off

STRICTEST, TOLERANCE, _ = TARGETS
LAST = STRICTEST / 2  # where it stops: what it expects is a mean, and a replay that ends outside a target fails


def isotune(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """The tuner as users have it; it draws no random numbers, so that only the replay's seed makes a difference."""
    return _points(whole_tuning(replay))


def whole_tuning(replay: Replay) -> Iterator[tuple[Spent, Recommendation]]:
    """The same, with all that it says of what it recommends."""
    return _tuning(replay, tokens_per_step=replay.tokens_per_step, rungs=_rungs(replay))


def isotune_without_readings(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Nothing is read off trunks: only decays that were trained count."""
    return _points(_tuning(replay, tokens_per_step=replay.tokens_per_step, rungs=_rungs(replay), reads=False))


def isotune_without_invariance(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """n is not known to it, so that it has the plain kernel alone."""
    return _points(_tuning(replay, tokens_per_step=None, rungs=_rungs(replay)))


def isotune_with_one_seed(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """No setting is asked with a second seed."""
    return _points(_tuning(replay, tokens_per_step=replay.tokens_per_step, rungs=_rungs(replay), max_seeds=1))


def isotune_without_rungs(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Only runs of the target budget."""
    return _points(_tuning(replay, tokens_per_step=replay.tokens_per_step, rungs=(replay.budget,)))


def _rungs(replay: Replay) -> tuple[int, ...]:
    return tuple(
        budget
        for budget in replay.budgets
        if budget >= MIN_DECAYS_PER_RUNG * (budget - replay.branch(budget)) or budget == replay.budget
    )


def _points(steps: Iterator[tuple[Spent, Recommendation]]) -> Iterator[Spent]:
    return (spent for spent, _ in steps)


def _tuning(
    replay: Replay,
    *,
    tokens_per_step: int | None,
    rungs: tuple[int, ...],
    reads: bool = True,
    max_seeds: int = MAX_SEEDS,
) -> Iterator[tuple[Spent, Recommendation]]:
    pairs = [(2.0**lr, 2.0**wd) for lr, wd in zip(replay.log2_lr.tolist(), replay.log2_wd.tolist(), strict=True)]
    cells = {pair: cell for cell, pair in enumerate(pairs)}
    space = Space(only=tuple(pairs))
    goal = Goal(
        tokens=replay.budget,
        space=space,
        rungs=rungs,
        tokens_per_step=tokens_per_step,
        seeds=tuple(range(max_seeds)),
        tolerance=TOLERANCE,
    )

    def prices(questions: list[Asked]) -> list[int]:
        return [replay.price(_question(question, cells)) for question in questions]

    decay_tokens = replay.budget - replay.branch(replay.budget)
    answers: list[Answer] = []
    trunks: dict[tuple[int, int, int], Trunk] = {}
    while True:
        read = read_off(_trunks(replay, answers, cells, trunks), answers, rungs, decay_tokens) if reads else []
        suggestion = suggest(goal, answers + read, prices)
        best = suggestion.recommendation
        if answers:  # before that it recommends what it expects, for nothing: no rival does
            yield Spent(replay.spent, cells[best.learning_rate, best.weight_decay], suggestion.is_done), best
        is_sure = answers and best.regret <= LAST and suggestion.is_done
        if is_sure or replay.is_exhausted or not suggestion.questions:
            return
        asked = suggestion.questions[0]
        loss = replay.answer(_question(asked, cells))
        answers.append(Answer(asked, loss, "finished" if np.isfinite(loss) else "diverged"))


def _trunks(
    replay: Replay,
    answers: list[Answer],
    cells: dict[tuple[float, float], int],
    known: dict[tuple[int, int, int], Trunk],
) -> Iterator[Trunk]:
    """The trunks of all that was asked, as far as they were trained; `known` keeps them while they do not grow."""
    for lr, wd, seed in dict.fromkeys(
        (answer.question.learning_rate, answer.question.weight_decay, answer.question.seed) for answer in answers
    ):
        cell = cells[lr, wd]
        key = (cell, seed, replay.trained(cell, seed))
        if key not in known:
            known[key] = Trunk(lr, wd, replay.curve(cell, seed), seed)
        yield known[key]


def _question(asked: Asked, cells: dict[tuple[float, float], int]) -> Question:
    return Question(cells[asked.learning_rate, asked.weight_decay], asked.tokens, repeat=asked.seed)
