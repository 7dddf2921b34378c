"""Large spaces: which of their cells are looked at, and that nothing is lost by it."""

from dataclasses import replace

import numpy as np
import pytest
from surfaces import GOAL, nano_like, play, regret, round_bowl

from isotune.tune import Answer, Question, Space, recommend_now, suggest
from isotune.tune.board import MAX_ON_BOARD, target_places
from isotune.tune.considered import (
    MAX_CONSIDERED,
    NUM_EXPECTED,
    NUM_OF_MANY,
    NUM_POSSIBLE,
    NUM_SPREAD,
    considered,
    spread,
)
from isotune.tune.last import ACTING_MEMORY, CONTRAST
from isotune.tune.tuner import believe_answers

LARGE = replace(GOAL, space=Space())
VERY_LARGE = replace(GOAL, space=Space(learning_rate=(2.0**-20, 1.0)))


def looked_at(goal, answers):
    belief = believe_answers(goal, answers)
    expected = belief.expected(target_places(goal))
    return considered(goal, belief, np.arange(len(goal.space.cells)), expected), expected


def answers_of(surface, goal, number):
    rng = np.random.default_rng(0)
    settings = goal.space.settings[rng.choice(len(goal.space.settings), number, replace=False)].tolist()
    return [Answer(Question(lr, wd, goal.tokens), surface(lr, wd, goal.tokens)) for lr, wd in settings]


def test_a_space_that_is_not_large_is_looked_at_as_a_whole():
    assert len(GOAL.space.cells) <= MAX_CONSIDERED
    assert looked_at(GOAL, answers_of(nano_like, GOAL, 5))[0].tolist() == list(range(len(GOAL.space.cells)))


@pytest.mark.parametrize("number", [0, 3, 30])
def test_of_a_large_space_the_best_are_looked_at_and_some_all_over_it(number):
    assert MAX_CONSIDERED < len(LARGE.space.cells) <= MAX_ON_BOARD
    cells, expected = looked_at(LARGE, answers_of(nano_like, LARGE, number))
    assert len(set(cells.tolist())) == len(cells) <= NUM_SPREAD + NUM_EXPECTED + NUM_POSSIBLE
    assert {*spread(LARGE).tolist(), *np.argsort(expected)[:NUM_EXPECTED].tolist()} <= set(cells.tolist())


def test_no_cell_is_far_from_one_that_is_looked_at():
    every, some = LARGE.space.cells, LARGE.space.cells[spread(LARGE)]
    assert NUM_SPREAD / 4 < len(some) <= NUM_SPREAD
    lr, wd = np.abs(every[:, None] - some).transpose(2, 0, 1)
    assert ((lr <= 1) & (wd <= 2)).any(axis=1).all()


def test_of_a_very_large_space_those_are_looked_at_that_are_or_may_be_best():
    cells, expected = looked_at(VERY_LARGE, answers_of(nano_like, VERY_LARGE, 12))
    assert len(VERY_LARGE.space.cells) > MAX_ON_BOARD and len(cells) == 2 * NUM_OF_MANY
    assert set(np.argsort(expected)[:NUM_OF_MANY].tolist()) <= set(cells.tolist())


@pytest.mark.parametrize("surface", [nano_like, round_bowl])
@pytest.mark.parametrize("learning_rate", [(2.0**-13, 2.0**-6), (2.0**-9, 2.0**-2), (2.0**-16, 2.0**-9)])
def test_the_best_cell_of_a_large_space_is_found(surface, learning_rate):
    goal = replace(LARGE, space=Space(learning_rate=learning_rate), tolerance=0.001)
    answers, suggestions = play(surface, goal, most=40)
    assert regret(surface, goal, suggestions[-1].recommendation) <= 2 * goal.tolerance
    assert sum(answer.question.tokens for answer in answers) < 0.1 * len(goal.space.cells) * goal.tokens


def test_as_good_are_all_cells_expected_within_the_tolerance_looked_at_or_not():
    goal = replace(LARGE, tolerance=0.01)
    answers, _ = play(nano_like, goal, most=12)
    best = recommend_now(goal, answers)
    expected = believe_answers(goal, answers).at(target_places(goal)).mean
    within = np.flatnonzero(expected <= np.log(best.loss) + goal.tolerance)
    settings = {tuple(pair) for pair in goal.space.settings[within].tolist()}
    assert {*best.as_good, (best.learning_rate, best.weight_decay)} == settings
    assert not set(within.tolist()) <= set(looked_at(goal, answers)[0].tolist()), "some of them are not looked at"
    assert suggest(goal, answers).recommendation.as_good == best.as_good


def test_every_weight_decay_of_the_recommended_rate_may_be_the_last_to_ask():
    """A run in which WD acts is asked before the end, whether its cell is looked at or not."""
    goal = replace(LARGE, space=Space(weight_decay=(2.0**-14, 2.0**-2)), tolerance=0.05)
    answers = [
        Answer(Question(2.0**lr, 2.0**-14, goal.tokens), nano_like(2.0**lr, 2.0**-14, goal.tokens))
        for lr in np.arange(-13, -5.9, 0.5).tolist()
    ]
    suggestion = suggest(goal, answers)
    (question,) = suggestion.questions
    assert suggestion.recommendation.regret <= goal.tolerance and not suggestion.is_done
    n = question.learning_rate * question.weight_decay * question.tokens / goal.tokens_per_step
    assert question.learning_rate == suggestion.recommendation.learning_rate
    assert ACTING_MEMORY[0] <= n <= ACTING_MEMORY[1]
    assert n >= CONTRAST * n / question.weight_decay * 2.0**-14
    cell = goal.space.find(np.log2([[question.learning_rate, question.weight_decay]]))
    assert not np.isin(cell, looked_at(goal, answers)[0]).any()
