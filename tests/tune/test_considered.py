"""Large spaces: which of their cells are looked at, and that nothing is lost by it."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from surfaces import GOAL, nano_like, play, regret, round_bowl

from isotune.tune import Answer, Question, Space, recommend_now, suggest
from isotune.tune.belief import believe
from isotune.tune.board import MAX_ON_BOARD, target_places
from isotune.tune.candidates import looked_at as questions_of
from isotune.tune.considered import (
    MAX_CONSIDERED,
    NUM_EXPECTED,
    NUM_OF_MANY,
    NUM_POSSIBLE,
    NUM_SPREAD,
    Outlook,
    spread,
)
from isotune.tune.last import ACTING_MEMORY, CONTRAST
from isotune.tune.told import Told, recommendable
from isotune.tune.tuner import _normals, believe_answers

LARGE = replace(GOAL, space=Space())
VERY_LARGE = replace(GOAL, space=Space(learning_rate=(2.0**-20, 1.0), weight_decay=(2.0**-16, 1.0)))


def outlook_of(goal, answers):
    return Outlook(goal, Told.of(answers), believe_answers(goal, answers))


def looked_at(goal, answers):
    return outlook_of(goal, answers).considered(np.arange(len(goal.space.cells)))


def answers_of(surface, goal, number):
    rng = np.random.default_rng(0)
    settings = goal.space.settings[rng.choice(len(goal.space.settings), number, replace=False)].tolist()
    return [Answer(Question(lr, wd, goal.tokens), surface(lr, wd, goal.tokens)) for lr, wd in settings]


def test_a_space_that_is_not_large_is_looked_at_as_a_whole():
    assert len(GOAL.space.cells) <= MAX_CONSIDERED
    assert looked_at(GOAL, answers_of(nano_like, GOAL, 5)).tolist() == list(range(len(GOAL.space.cells)))


@pytest.mark.parametrize("number", [0, 3, 30])
def test_of_a_large_space_the_best_are_looked_at_and_some_all_over_it(number):
    assert MAX_CONSIDERED < len(LARGE.space.cells) <= MAX_ON_BOARD
    outlook = outlook_of(LARGE, answers_of(nano_like, LARGE, number))
    belief, places = outlook.belief, target_places(LARGE)
    best = np.argsort(belief.at(places).mean, kind="stable")[:NUM_EXPECTED]
    likeliest = max(belief.rivals, key=lambda rival: rival.weight)
    alone = believe({likeliest.kernel: 1.0}, belief.observations, {likeliest.size: 1.0}, {likeliest.scatter: 1.0})
    possible = belief.at(places).mean - alone.at(places).deviation
    others = [cell for cell in np.argsort(possible, kind="stable").tolist() if cell not in best][:NUM_POSSIBLE]
    expected = {*spread(LARGE).tolist(), *best.tolist(), *others}
    assert outlook.considered(np.arange(len(places))).tolist() == sorted(expected)


def test_no_cell_is_far_from_one_that_is_looked_at():
    every, some = LARGE.space.cells, LARGE.space.cells[spread(LARGE)]
    assert NUM_SPREAD / 4 < len(some) <= NUM_SPREAD
    lr, wd = np.abs(every[:, None] - some).transpose(2, 0, 1)
    assert ((lr <= 1) & (wd <= 2)).any(axis=1).all()


def test_of_a_very_large_space_those_are_looked_at_that_are_or_may_be_best():
    outlook = outlook_of(VERY_LARGE, answers_of(nano_like, VERY_LARGE, 12))
    posterior = outlook.belief.at(target_places(VERY_LARGE))
    cells = outlook.considered(np.arange(len(VERY_LARGE.space.cells)))
    best = set(np.argsort(posterior.mean)[:NUM_OF_MANY].tolist())
    order = np.argsort(posterior.mean - 2 * posterior.deviation).tolist()
    others = [cell for cell in order if cell not in best][:NUM_OF_MANY]
    assert len(VERY_LARGE.space.cells) > MAX_ON_BOARD and cells.tolist() == sorted({*best, *others})


def test_cells_that_are_named_twice_take_no_places():
    once = replace(LARGE, space=Space(learning_rate=(2.0**-11, 2.0**-8)))
    twice = replace(LARGE, space=Space(only=tuple(map(tuple, once.space.settings.tolist())) * 2))
    answers = answers_of(nano_like, once, 10)
    assert len(once.space.cells) > MAX_CONSIDERED and len(twice.space.cells) <= MAX_ON_BOARD
    assert looked_at(twice, answers).tolist() == looked_at(once, answers).tolist()
    small = replace(GOAL, space=Space(only=GOAL.space.only * 2))
    assert looked_at(small, []).tolist() == list(range(len(small.space.cells)))


def test_a_large_space_with_one_rung_is_asked_to_its_last_cell():
    goal = replace(LARGE, rungs=(LARGE.tokens,), space=Space(learning_rate=(2.0**-11, 2.0**-8)))
    asked = set()
    answers = []
    while questions := suggest(goal, answers, count=8).questions:
        answers += [Answer(one, nano_like(one.learning_rate, one.weight_decay, one.tokens)) for one in questions]
        assert not asked & set(questions)
        asked |= set(questions)
    assert len(goal.space.cells) > MAX_CONSIDERED and len(asked) == len(goal.space.cells)


def test_where_long_runs_diverge_what_is_recommended_may_be_asked():
    """Rates that diverge in long runs may be asked in short ones, and would take the places of those that do not."""
    short, long = LARGE.rungs[0], LARGE.tokens
    answers = [Answer(Question(2.0**-7, 2.0**-4, long), math.nan, "diverged")]
    for lr in (2.0**-13, 2.0**-10, 2.0**-8, 2.0**-6):
        answers.append(Answer(Question(lr, 2.0**-4, short), 3.0 * lr**-0.05))
    outlook = outlook_of(LARGE, answers)
    targets = outlook.considered(recommendable(LARGE, outlook.told))
    assert set(targets.tolist()) <= set(questions_of(outlook, targets).tolist())


@pytest.mark.parametrize("surface", [nano_like, round_bowl])
@pytest.mark.parametrize("learning_rate", [(2.0**-13, 2.0**-6), (2.0**-9, 2.0**-2), (2.0**-16, 2.0**-9), (1e-5, 0.1)])
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
    assert not set(within.tolist()) <= set(looked_at(goal, answers).tolist()), "some of them are not looked at"
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
    assert not np.isin(cell, looked_at(goal, answers)).any()


@pytest.mark.parametrize("best_log2_lr", [-12.0, -11.5, -11.0])
def test_a_second_seed_is_asked_whichever_weight_decay_is_recommended(best_log2_lr):
    """All WDs of the recommended LR may be even, and the one that was run the surest, though not the lowest."""
    goal = replace(LARGE, seeds=(0, 1), tolerance=0.05)
    wd = min(goal.space.settings[:, 1].tolist(), key=lambda one: abs(one - 2.0**-1.5))
    answers = []
    for lr in np.unique(goal.space.settings[:, 0]).tolist():
        z = math.log2(1 + lr * wd * goal.tokens / goal.tokens_per_step)
        loss = math.exp(0.4 + 0.009 * (math.log2(lr) - best_log2_lr - z / 3) ** 2)
        answers.append(Answer(Question(lr, wd, goal.tokens), loss))
    suggestion = suggest(goal, answers)
    assert suggestion.recommendation.regret <= goal.tolerance
    assert not suggestion.is_done and suggestion.questions[0].seed == 1


def test_a_cell_has_the_same_draws_whichever_cells_are_looked_at():
    some, more = np.array([3, 7, 80]), np.array([0, 3, 7, 79, 80])
    assert _normals(LARGE, some, 0).tolist() == _normals(LARGE, more, 0)[:, [1, 2, 4]].tolist()


@pytest.mark.parametrize("space", [Space(octaves=0.22), Space(learning_rate=(2.0**-9, 2.0**-9), octaves=0.1)])
def test_cells_that_are_very_near_each_other_have_draws(space):
    """Their losses are nearly the same, and their covariance nearly singular: distances take all digits."""
    goal = replace(LARGE, space=space, tokens_per_step=4096, rungs=(LARGE.tokens,))
    for number in (5, 57):
        rng = np.random.default_rng([1, number])
        settings = goal.space.settings[rng.integers(0, len(goal.space.cells), number)].tolist()
        bowl = [0.009 * (np.log2(lr) + 9) ** 2 + 0.003 * (np.log2(wd) + 4) ** 2 for lr, wd in settings]
        losses = np.exp(0.4 + np.array(bowl) + rng.normal(0, 0.001, number)).tolist()
        answers = [Answer(Question(lr, wd, goal.tokens), loss) for (lr, wd), loss in zip(settings, losses, strict=True)]
        best = recommend_now(goal, answers)
        assert 0 <= best.regret <= best.regret_bound < 0.1


def test_only_what_may_be_recommended_is_a_target():
    """Neither what is spread over the space nor what is expected to be best brings back what has diverged."""
    goal = replace(GOAL, space=Space())
    answers = [Answer(Question(2.0**-9, 2.0**-4, goal.tokens), math.nan)]
    answers.append(Answer(Question(2.0**-11, 2.0**-4, goal.tokens), 1.5))
    outlook = outlook_of(goal, answers)
    possible = recommendable(goal, outlook.told)
    assert 0 < len(possible) < len(goal.space.cells)
    assert set(outlook.considered(possible).tolist()) <= set(possible.tolist())


def test_memory_of_many_cells_does_not_grow_with_the_rivals():
    """Without an answer all rivals have a chance, and covariances of all of them at once would take 100 MB and more."""
    space = Space(learning_rate=(2.0**-16, 2.0**-2), weight_decay=(2.0**-12, 1.0), octaves=0.0925)
    goal = replace(GOAL, space=space)
    assert len(space.cells) > 15_000
    suggest(goal, [])
    tracemalloc.start()
    suggest(goal, [])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 70e6
